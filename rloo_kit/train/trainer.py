"""``RLOOTrainer``: the algorithm, from top to bottom: sample, score, totals, KL, advantages, micro-batches, loss.

It subclasses whatever ``trl.RLOOTrainer`` is after unsloth's import: TRL's own class on a CPU, unsloth's generated one
on a GPU.  The method is Ahmadian et al. 2024 (arXiv 2402.14740): the advantage of a completion is its reward minus the
mean reward of its prompt's other K - 1 completions.  ``train()`` and resuming are in :mod:`.resume`, sampling and
scoring in :mod:`.rollout`, and checkpoints in :mod:`.checkpoints`, each in a class that this one extends.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
import trl
from datasets import Dataset, IterableDataset
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from trl.trainer.utils import nanstd

from rloo_kit import data_checks
from rloo_kit.advantages import KL_ESTIMATORS, estimated, normalized, total_rewards, zero_variance_groups
from rloo_kit.memory import out_of_memory, plan
from rloo_kit.memory.policy_tensors import reference_is_base
from rloo_kit.policy.policy import Policy
from rloo_kit.session.output import without_bars
from rloo_kit.train import check_trainer_args, losses, microbatches
from rloo_kit.train.check_config import HANDLERS, refused_as_ours
from rloo_kit.train.checkpoints import Updates, make_folder
from rloo_kit.train.config import RLOOConfig
from rloo_kit.train.resume import drop_reference
from rloo_kit.train.rollout import Batch, Example, RolloutTrainer
from rloo_kit.watch.callbacks import HealthCallback, LivePlot, ProgressCallback
from rloo_kit.watch.read_run import judged_by

AnyDataset: TypeAlias = Dataset | IterableDataset
RewardFunction: TypeAlias = str | PreTrainedModel | Callable[..., Sequence[float | None]]


class RLOOTrainer(RolloutTrainer):
    """TRL's ``RLOOTrainer``; all its arguments work and mean the same, and names of older releases are accepted.

    Differences, where plain TRL fails silently:

    - Configuration, dataset and rewards are checked before the first completion, rewards again at every step.
    - The same policy can be trained again.  No second copy of the LoRA is kept if the reference is the base model or
      beta is 0; if all weights are trained, the reference is the policy as given.
    - A 4-bit policy's LoRA stays in float32 on a CPU, as on a GPU.  A gradient that is not finite stops the run.
    - ``train(resume_from_checkpoint=True)`` uses the newest whole checkpoint and this configuration's learning rate.
    - Passes and completions that do not change the update are left out: ``single_pass``,
      ``skip_zero_variance_groups``.
    - Problems are reported once, with cause and remedy (:mod:`rloo_kit.watch.symptoms`).  The metric
      ``zero_variance_groups`` is the share of groups of equal rewards (before the KL term), or of masked completions.

    Args:
        model: a PEFT model, or the :class:`~rloo_kit.Policy` that holds one, with its tokenizer.
        reward_funcs: TRL reward callables, reward models, or a list of both.
        args: an :class:`RLOOConfig`.
        train_dataset, eval_dataset: with a column ``prompt``; further columns go to the rewards.

    Raises:
        ConfigError, DatasetError, RewardError, rewards.RewardValueError: what is wrong, where, and what to do.
        RunFolderError: ``output_dir`` cannot be made.
    """

    args: Any
    beta: float

    def __init__(
        self,
        model: Policy | PeftModel | PreTrainedModel | str | None = None,
        reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
        args: RLOOConfig | trl.RLOOConfig | None = None,
        train_dataset: AnyDataset | None = None,
        eval_dataset: AnyDataset | dict[str, AnyDataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] | None = None,
        quantization_config: Any = None,
        peft_config: Any = None,
        **kwargs: object,
    ) -> None:
        named = {name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")}
        given = {name: value for name, value in {**named, **kwargs}.items() if value is not None}
        given = check_trainer_args.completed(given, set(named))
        settings = given["args"]
        self._asked = dict(given)
        if settings.should_save:
            make_folder(settings.output_dir)
        drop_reference(policy := given["model"])
        if not isinstance(policy, str):  # from here on, an earlier trainer's head or reference may be another
            policy.trainers_built = getattr(policy, "trainers_built", 0) + 1
        refused = refused_as_ours("RLOOTrainer", vars(settings) | given)
        with refused, in_its_precision(given["model"]), without_bars():
            super().__init__(**given)
        check_trainer_args.check_launch(self.accelerator, self.args, self.train_dataset)
        as_at_the_start(self.ref_model, self.model)
        _ = self.folder  # resolved here: a later cell may change the working directory
        if self.beta == 0 or reference_is_base(self.model):
            drop_reference(self.model)  # TRL then uses the base, with the adapter switched off
        self._number = self.model.trainers_built = getattr(self.model, "trainers_built", 1)
        self._max_seq_length = getattr(self.model, "max_seq_length", None)  # unsloth's models have one
        self._backbones = [module for module in self.model.modules() if hasattr(module, "embed_tokens")]
        rows, longest = data_checks.longest_prompts(self.train_dataset)
        ids, _, _ = self._tokenize_prompts(longest)
        data_checks.check_lengths(ids, self.max_completion_length, self._max_seq_length, rows)
        self.memory_plan = plan.plan(self.model, self.args, prompt_tokens=max(map(len, ids)))
        if hasattr(self.model, "auto_checkpointing") and not self.memory_plan.device.on_gpu:
            self.args = copy.copy(self.args)  # the user's configuration may serve another trainer
            self.args.gradient_checkpointing = bool(self.memory_plan.settings.checkpointing)
            switch = "enable" if self.args.gradient_checkpointing else "disable"
            getattr(self.model, f"gradient_checkpointing_{switch}")()
        self.old_pass = self.memory_plan.settings.old_pass
        self._set_callbacks()
        self._start_afresh()

    def _set_callbacks(self) -> None:
        self.remove_callback(PrinterCallback)
        self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
        if self.args.progress and self.args.live_plot:
            self.add_callback(LivePlot())  # added before the lines, to appear above them
        if self.args.progress:
            self.add_callback(ProgressCallback())
        handler = HANDLERS.get(self.args.on_unhealthy, self.args.on_unhealthy)
        judges = judged_by(self.reward_funcs, self.reward_func_names)
        self.add_callback(HealthCallback(handler, judges, self.reward_func_names))
        self.add_callback(Updates(self))

    # --- from prompts to advantages -----------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Sequence[Example]) -> Batch:
        """Works around: TRL has one estimator, and runs the policy and the reference over every completion before
        it knows which of them carry a signal.

        Returns the rollout's batch with ``live`` (rows,) bool, the rows that are trained on; ``advantages`` (rows,);
        ``old_per_token_logps`` and ``ref_per_token_logps`` (rows, tokens) where a step needs them.  A KL term in the
        reward is subtracted here; one in the loss is added by :meth:`_compute_loss`.
        """
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        batch, scores = self._rollout(inputs)
        rewards = self._total_rewards(scores)
        advantages = self._advantages(rewards)
        batch["live"] = self._live(advantages, batch["completion_mask"])
        self._log_scores(scores, rewards, batch["completion_mask"])
        if self.old_pass:
            batch["old_per_token_logps"] = self._log_probs(batch)
        if self.beta:
            batch["ref_per_token_logps"] = self._log_probs(batch, reference=True)
        if self.beta and self.args.kl_placement != "loss":
            trained_on = batch["completion_mask"] * batch["live"].unsqueeze(1)
            kl = self._kl(batch["old_per_token_logps"], batch["ref_per_token_logps"], trained_on)
            advantages = self._advantages(rewards - self.beta * self._of_all_processes(kl.sum(1)))
        batch["advantages"] = self._of_this_process(advantages)
        self._logs["advantages"].extend(advantages.view(-1).tolist())
        return batch

    def _total_rewards(self, scores: torch.Tensor, clipped: bool = True) -> torch.Tensor:
        """Turn scores (completions, rewards) into rewards (groups, K), NaN where no reward applies."""
        weights, clip = self.reward_weights.to(scores.device), self.reward_clip_range if clipped else None
        return total_rewards(scores, weights, clip).view(-1, self.num_generations)

    def _advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        """Advantages (groups, K) of rewards (groups, K)."""
        advantages = estimated(rewards, self.args.advantage_estimator)
        return normalized(advantages, ~rewards.isnan()) if self.normalize_advantages else advantages

    def _of_all_processes(self, values: torch.Tensor) -> torch.Tensor:
        """Gather values (rows,) of each process into (groups, K) of all processes."""
        return self.accelerator.gather(values).view(-1, self.num_generations)

    def _of_this_process(self, values: torch.Tensor) -> torch.Tensor:
        """Take this process's part (rows,) of values (groups, K) of all processes."""
        rows = values.numel() // self.accelerator.num_processes
        return values.view(-1)[self.accelerator.process_index * rows :][:rows]

    def _live(self, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mark this process's rows to train on, (rows,) bool, by all advantages (groups, K) before the KL term."""
        skips = self.args.skip_zero_variance_groups
        if not (self.beta == 0 if skips is None else skips):
            return torch.ones(len(mask), dtype=torch.bool, device=mask.device)
        signal = advantages != 0
        if self.beta:  # a row with advantage 0 still has its KL term; only zero-variance groups drop theirs
            signal = signal.any(1, keepdim=True).expand_as(advantages)
        return self._of_this_process(signal.reshape(-1)) & mask.any(1)

    def _kl(self, logps: torch.Tensor, ref_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Per-token KL estimates (rows, tokens), 0 where masked; logs their mean over tokens."""
        kl = KL_ESTIMATORS[self.args.kl_estimator](logps - ref_logps)
        kl = kl.masked_fill(mask == 0, 0.0)  # a product with the mask would keep an overflow at a pad
        self._log_token_mean("kl", kl, mask)
        return kl

    def _log_scores(self, scores: torch.Tensor, rewards: torch.Tensor, mask: torch.Tensor) -> None:
        all_masked = ~self._of_all_processes(mask.any(1).int()).any(1)  # groups whose completions are all masked
        unclipped = self._total_rewards(scores, clipped=False)
        spread = nanstd(rewards, dim=1)
        metrics = {
            "reward": unclipped.nanmean(),
            "reward_std": nanstd(unclipped.view(-1)),
            "frac_reward_zero_std": spread.isclose(torch.zeros_like(spread)).float().mean(),
            "zero_variance_groups": (zero_variance_groups(rewards) | all_masked).float().mean(),
        }
        for name, column in zip(self.reward_func_names, scores.T, strict=True):
            metrics |= {f"rewards/{name}/mean": column.nanmean(), f"rewards/{name}/std": nanstd(column)}
        self._log_each({name: value.item() for name, value in metrics.items()})

    # --- micro-batches ------------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Sequence[Example]) -> Batch:
        """Works around: TRL cuts a generation batch into micro-batches regardless of its content."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = microbatches.micro_batches(batch, self.args, self.accelerator, self._sharded)
        return self._buffered_inputs[self._step % steps]

    def training_step(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Works around: an out-of-memory error names neither the phase nor what to do."""
        with out_of_memory.explained("train", self.memory_plan):
            return super().training_step(*args, **kwargs)

    # --- the loss -----------------------------------------------------------------------------------------

    def _compute_loss(self, model: PreTrainedModel, inputs: Batch) -> torch.Tensor:
        """Works around: TRL has one aggregation, and no KL term in the loss."""
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        if not len(inputs["prompt_ids"]):
            # A gradient of 0, not None, so that momentum goes on as in plain TRL.
            zeros = [p.sum().to(self.accelerator.device) * 0.0 for p in model.parameters() if p.requires_grad]
            return torch.stack(zeros).sum()
        mask = inputs["completion_mask"]
        logps, entropies, balance = self._get_per_token_logps_and_entropies(
            model, *microbatches.model_inputs(inputs), compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        old_logps = inputs.get("old_per_token_logps", logps.detach())
        advantages = inputs["advantages"]
        clip = (1 - self.epsilon_low, 1 + self.epsilon_high)
        by_completion = self.args.loss_aggregation == "seq-mean-token-sum"
        level = self.args.importance_sampling_level or ("completion" if by_completion else "token")
        row_loss, ratio = losses.policy_loss(logps, old_logps, advantages, mask, level, clip)
        if self.beta and self.args.kl_placement == "loss":
            kl = self._kl(logps, inputs["ref_per_token_logps"], mask)
            if self.args.use_bias_correction_kl:
                kl = kl * ratio.view(len(ratio), -1)
            row_loss = row_loss + self.beta * kl.sum(1)
        self._log_token_mean("entropy", entropies, mask)
        counts = losses.clip_counts(ratio.detach(), advantages, mask, clip)
        low, high, total = self.accelerator.reduce(counts, reduction="sum").tolist()
        if total:
            names = (f"clip_ratio/{side}_mean" for side in ("low", "high", "region"))
            shares = (low / total, high / total, (low + high) / total)
            self._log_each(dict(zip(names, shares, strict=True)))
        loss = (row_loss * inputs["row_weight"]).sum()
        if balance is None:
            return loss
        self._log_each({"aux_loss": self.accelerator.gather(balance.detach()).mean().item()})
        return loss + self.router_aux_loss_coef * balance  # the router's, of a mixture of experts, over this pass


@contextlib.contextmanager
def in_its_precision(model: torch.nn.Module | str) -> Iterator[None]:
    """Works around: on construction TRL's trainer casts a quantised model's trained weights to bfloat16, which holds no
    change below 1 part in 256.  (On a GPU unsloth removes those lines, models/rl.py.)"""
    weights = () if isinstance(model, str) else model.parameters()
    trained = [(weight, weight.data) for weight in weights if weight.requires_grad]
    try:
        yield
    finally:
        for weight, exact in trained:
            if weight.dtype != exact.dtype:
                weight.data = exact.to(weight.device)


def as_at_the_start(reference: torch.nn.Module | None, model: torch.nn.Module) -> None:
    """Works around: without PEFT, TRL loads the reference by the model's name, in float32, whatever weights and
    precision the policy has by then."""
    if reference is None:
        return
    # Per parameter: casting the whole module would also round the rotary embedding's frequencies.
    for kept, trained in zip(reference.parameters(), model.parameters(), strict=True):
        kept.data = trained.detach().clone().to(kept.device)

"""``RLOOTrainer``: TRL's, guarded, that can be run twice, stopped anywhere and resumed.

For everybody who trains, in a notebook or a script.  It is a subclass of whatever ``trl.RLOOTrainer`` is
after unsloth's import: TRL's own class on a CPU, unsloth's generated one on a GPU.  The method is Ahmadian et
al. 2024 (arXiv 2402.14740): the advantage of a completion is its reward minus the mean reward of
the other K - 1 of its prompt.

TRL samples and scores.  What follows is done here, with :mod:`~rloo_kit.advantages`, :mod:`~rloo_kit.train.packing` and
:mod:`~rloo_kit.train.losses`: advantages, the log-probabilities that are needed and no others, micro-batches, loss.

This is the only room that overrides TRL's methods.  Each override names what it answers; tests/contract pins
the methods and fails in words when TRL changes them.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rloo_kit import advantages, inputs
from rloo_kit.advantages import dead_groups, total_rewards
from rloo_kit.errors import OutOfMemoryError, RewardError
from rloo_kit.memory import meter, planning, shortage
from rloo_kit.policy import sampling
from rloo_kit.session.imports import import_unsloth
from rloo_kit.train import config as _config
from rloo_kit.train import losses, packing
from rloo_kit.watch import run_folder, truncation

import_unsloth()

import torch  # noqa: E402 - unsloth first
import trl  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from transformers import PrinterCallback, TrainerState  # noqa: E402
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK  # noqa: E402
from transformers.trainer_utils import TrainOutput  # noqa: E402
from trl.models.utils import disable_gradient_checkpointing  # noqa: E402
from trl.trainer.utils import use_adapter  # noqa: E402

from rloo_kit.train import arguments, gradients, prompts  # noqa: E402
from rloo_kit.train.arguments import ROW  # noqa: E402
from rloo_kit.watch.health import HealthCallback  # noqa: E402
from rloo_kit.watch.live import LivePlot  # noqa: E402
from rloo_kit.watch.progress import ProgressCallback  # noqa: E402

RLOOConfig = _config.RLOOConfig

HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
"""Of an optimizer's parameter groups: what a configuration sets.  Some optimizers keep state beside it."""

UNSCORED_BATCHES = 3
"""After so many batches in a row without a single score a reward is reported."""


class RLOOTrainer(trl.RLOOTrainer):
    """TRL's ``RLOOTrainer``; all of its arguments work and mean the same.

    What differs, each because stock TRL fails there in silence:

    - Configuration, dataset and reward functions are checked before the first completion is sampled, and
      rewards again at every step (``rewards.guarded``).
    - The same policy can be trained again: stock TRL stops with "Adapter with name 'ref' already exists".
      No second copy of the LoRA is kept where the reference is the base model or beta is 0.
    - A gradient that is not finite stops the run before it reaches a weight.
    - ``train(resume_from_checkpoint=True)`` takes the newest checkpoint that is whole, and the learning rate of this
      configuration: transformers takes the checkpoint's.
    - Where each batch is used once, the pass for the old log-probabilities is left out: they are the new ones.
      Completions without a signal are left out of training.  The update is the same
      (:class:`RLOOConfig`, ``single_pass`` and ``skip_dead_groups``).
    - What goes wrong is said, once, with its likely cause and the setting to change (:mod:`rloo_kit.watch.health`).
      What will not fit is said before the first step, and running out of memory says where and what to do
      (:mod:`rloo_kit.memory.shortage`).
    - One line per logged step in place of transformers' bar, in a notebook a live picture, and the metric
      ``dead_groups``: the share of groups whose K raw rewards are all equal, or in training whose completions are all
      cut and masked, counted before the KL term hides it, as ``frac_reward_zero_std`` then is.
    - Completions that are cut at ``max_completion_length`` are spoken of, with the length that would do.

    Args:
        model: a PEFT model, or the :class:`~rloo_kit.policy.load.Policy` that holds one.
        reward_funcs: TRL reward callables, reward models, or a list of both.
        args: an :class:`RLOOConfig`.
        train_dataset, eval_dataset: with a column ``prompt``; further columns go to the rewards.
        processing_class: the tokenizer; taken from a ``Policy``.
        kwargs: the other arguments of TRL's trainer.

    Raises:
        ConfigError, DatasetError, RewardError: see :mod:`rloo_kit.train.guards`.
        ArgumentError: an argument that TRL's trainer does not have.
        rewards.RewardValueError: a reward that cannot be called as TRL calls it.
    """

    beta: float
    _buffered_inputs: Any

    def __init__(
        self,
        model: Any = None,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        named = {"model": model, "reward_funcs": reward_funcs, "args": args, "train_dataset": train_dataset}
        given = {name: value for name, value in {**named, **kwargs}.items() if value is not None}
        given, self._history = arguments.completed(given)
        _drop_reference(given["model"])
        self._estimator = advantages.find(_config.own(given["args"], "advantage_estimator"))
        self._unscored: Counter[str] = Counter()
        self._log_probs_wait = False
        self._token_sums: dict[str, tuple[float, float]] = {}
        super().__init__(**given)
        if self.beta == 0 or _is_fresh(self.model):
            # TRL then takes the base model, with the adapter switched off, as the reference.
            _drop_reference(self.model)
        self._backbones = [module for module in self.model.modules() if hasattr(module, "embed_tokens")]
        for shown in (PrinterCallback, DEFAULT_PROGRESS_CALLBACK):
            self.remove_callback(shown)
        if _config.own(self.args, "live_plot"):
            self.add_callback(LivePlot())
        self.add_callback(ProgressCallback())
        self.add_callback(HealthCallback(_config.on_unhealthy(self.args), self._said))
        self.add_callback(gradients.FiniteGradients(self.accelerator))
        if self._history is not None:
            self.add_callback(self._history)
        self._start_afresh()
        longest = self._check_first_prompts()
        self._explain_two_passes()
        self.memory = meter.Meter.for_model(self.model)
        self.memory_plan = planning.plan(self.model, self.args, prompt_tokens=longest)

    def _said(self) -> list[str]:
        """Symptoms that the trainer has named itself: it knows the length that would do, the log does not."""
        return ["truncation"] if self._watch.has_spoken else []

    def _check_first_prompts(self) -> int:
        """Tokens of the longest prompt."""
        rows, longest = inputs.longest_prompts(self.train_dataset)
        ids, _, _ = self._tokenize_prompts(longest)
        inputs.check_lengths(ids, self.max_completion_length, self._max_seq_length, rows)
        return max(map(len, ids))

    @property
    def _max_seq_length(self) -> int | None:
        return getattr(self.model, "max_seq_length", None)

    # --- a generation batch -------------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """Answers: TRL draws every prompt as often as any other."""
        if self._history is None:
            return super()._get_train_sampler(dataset)
        steps = self.args.steps_per_generation * self.num_iterations
        # transformers fetches the batches of a whole optimizer step at once, accelerate one more, workers theirs.
        ahead = self.args.gradient_accumulation_steps
        ahead += self.args.dataloader_num_workers * (self.args.dataloader_prefetch_factor or 2)
        return prompts.InformativeSampler(
            self._history,
            prompts=len(self.train_dataset if dataset is None else dataset),
            per_batch=self.args.generation_batch_size // self.num_generations,
            repeats=steps,
            lag=math.ceil(ahead / steps) + 1,
            seed=self.args.seed,
        )

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Answers: unsloth cuts sequences inside the forward pass, and ends an evaluation's sampling in training
        mode; multinomial is most of a CPU's step."""
        inputs.check_lengths(prompt_ids, self.max_completion_length, self._max_seq_length)
        training = self.model.training
        with shortage.phase(self, "generate"), self._fast_sampling():
            completion_ids = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        if training:
            self._look_for_truncation(completion_ids)
        else:
            self.model.eval()  # unsloth leaves it training, and what follows would be taken for a training step
        return completion_ids

    def _look_for_truncation(self, completion_ids: list[list[int]]) -> None:
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        seen = [(len(ids), ids[-1] not in ends) for ids in completion_ids]
        gathered = self.accelerator.gather(torch.tensor(seen, device=self.accelerator.device))
        said = self._watch.see(gathered[:, 0].tolist(), gathered[:, 1].bool().tolist())
        if said and self.accelerator.is_main_process:
            warnings.warn(said, stacklevel=2)

    @contextmanager
    def _fast_sampling(self) -> Iterator[None]:
        """Have ``generate`` draw by inverse CDF while inside, on a CPU."""
        wanted = _config.own(self.args, "fast_sampling") and self.accelerator.device.type == "cpu"
        other_engine = self.use_vllm or self.use_transformers_continuous_batching
        if not wanted or other_engine or self.args.generation_kwargs:
            yield
            return
        model, bound = self.model, self.model.generate
        own = "generate" in vars(model)
        model.generate = functools.partial(bound, **sampling.options(self.accelerator.device))
        try:
            yield
        finally:
            if own:
                model.generate = bound
            else:
                del model.generate

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Answers: TRL knows one estimator, and runs the policy and the reference over every completion before
        it knows which of them carry a signal.

        Returns:
            TRL's batch (rows of this process) without ``old_logps``; with ``live`` (rows,) bool, which rows
            are trained on; ``advantages`` (rows,), or ``rewards`` (rows,) where they wait for the KL term;
            ``old_per_token_logps`` and ``ref_per_token_logps`` (rows, tokens) where they are needed.
        """
        drawn = [example.get(ROW) for example in inputs]
        inputs = [{name: value for name, value in row.items() if name != ROW} for row in inputs]
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        with self._sampling_and_rewards_only():
            batch = super()._generate_and_score_completions(inputs)
        del batch["old_logps"], batch["advantages"]
        scored = self._total_rewards.view(-1, self.num_generations)
        masked = self._masked_groups(batch)
        self._metrics["train"]["dead_groups"].append((dead_groups(scored) | masked).float().mean().item())
        if self._history is not None:
            rows = self.accelerator.gather(torch.tensor(drawn, device=self.accelerator.device))
            taught = scored.masked_fill(masked.unsqueeze(1), torch.nan)
            self._history.record(rows.tolist()[:: self.num_generations], taught)
        before_kl = self._estimate(scored)
        batch["live"] = self._live(before_kl)[self._own_rows(batch)]
        if self._advantages_wait:
            batch["rewards"] = self._total_rewards[self._own_rows(batch)]
        else:
            batch["live"] &= self._trains_on_all | batch["completion_mask"].any(1)
        if not self._is_single_pass:
            batch["old_per_token_logps"] = self._log_probs(batch)
        if self.beta:
            batch["ref_per_token_logps"] = self._log_probs(batch, reference=True)
        taken = before_kl
        if not self._advantages_wait:
            if self.beta and not self._kl_in_loss:
                taken = self._estimate(self._less_kl(batch))
            batch["advantages"] = taken.view(-1)[self._own_rows(batch)]
        self._logs["advantages"].clear()
        self._logs["advantages"].extend(taken.view(-1).tolist())  # those that wait: before the KL term
        return batch

    @contextmanager
    def _sampling_and_rewards_only(self) -> Iterator[None]:
        """Have TRL sample and score, and leave log-probabilities and the KL term to us."""
        beta, self.beta, self._log_probs_wait = self.beta, 0.0, True
        try:
            yield
        finally:
            self.beta, self._log_probs_wait = beta, False

    def _masked_groups(self, batch: dict[str, Any]) -> torch.Tensor:
        """Which groups (groups,) of all processes teach nothing, their completions all cut and masked."""
        masked = self.accelerator.gather(1 - batch["completion_mask"].any(1).int()).bool()
        return masked.view(-1, self.num_generations).all(1)

    def _own_rows(self, batch: dict[str, Any]) -> slice:
        """Where this process's rows stand among all."""
        rows = len(batch["prompt_ids"])
        return slice(self.accelerator.process_index * rows, (self.accelerator.process_index + 1) * rows)

    def _estimate(self, rewards: torch.Tensor) -> torch.Tensor:
        """Advantages (groups, K), by the estimator that was asked for."""
        found = self._estimator(rewards)
        return advantages.normalized(found, ~rewards.isnan()) if self.normalize_advantages else found

    def _live(self, before_kl: torch.Tensor) -> torch.Tensor:
        """Which rows of all processes are trained on, given their advantages before the KL term."""
        if self._trains_on_all:
            return torch.ones_like(before_kl, dtype=torch.bool).view(-1)
        signal = before_kl != 0
        if self.beta:  # a row with advantage 0 still carries its KL term; one of a dead group is given up
            signal = signal.any(1, keepdim=True).expand_as(before_kl)
        return signal.reshape(-1)

    @property
    def _trains_on_all(self) -> bool:
        skip = _config.own(self.args, "skip_dead_groups")
        return not (self.beta == 0 and not self.aux_loss_enabled if skip is None else skip)

    def _less_kl(self, batch: dict[str, Any]) -> torch.Tensor:
        """Rewards (groups, K) of all processes minus beta x KL, as in Ahmadian et al. 2024."""
        scored = batch["completion_mask"] * batch["live"].unsqueeze(1)
        kl = self._kl(batch["old_per_token_logps"], {**batch, "completion_mask": scored})
        total = self._total_rewards - self.beta * self.accelerator.gather(kl.sum(1))
        return total.view(-1, self.num_generations)

    def _kl(self, logps: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        """Per-token KL estimates (rows, tokens), 0 where masked; logs their mean over tokens."""
        estimate = advantages.KL_ESTIMATORS[_config.own(self.args, "kl_estimator")]
        kl: torch.Tensor = estimate(logps - batch["ref_per_token_logps"])
        kl = kl.masked_fill(batch["completion_mask"] == 0, 0.0)  # a product would keep an overflow of a pad
        self._log_token_mean("kl", kl.detach(), batch["completion_mask"])
        return kl

    def _log_token_mean(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        stats = torch.stack([(values * mask).sum(), mask.sum().float()])
        total, count = self.accelerator.reduce(stats, reduction="sum").tolist()
        # Since the last log: a mean of means would favour the tokens of short micro-batches.
        before, counted = self._token_sums.get(name, (0.0, 0.0))
        self._token_sums[name] = total, count = total + before, count + counted
        self._metrics["train"][name] = [total / max(count, 1.0)]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Answers: TRL's means are of what was logged since; those over tokens begin anew with them."""
        super().log(logs, start_time)
        if self.model.training:
            self._token_sums.clear()

    # --- log-probabilities --------------------------------------------------------------------------------

    @property
    def _wants_single_pass(self) -> bool:
        """Whether the policy that sampled a generation batch is the one that every loss of it is taken of."""
        before_update = self.args.gradient_accumulation_steps % self.args.steps_per_generation == 0
        return bool(_config.own(self.args, "single_pass") and self.num_iterations == 1 and before_update)

    @property
    def _kl_in_loss(self) -> bool:
        return bool(_config.own(self.args, "kl_placement") == "loss")

    @property
    def _torn(self) -> str:
        """Why advantages cannot be computed one micro-batch at a time; empty where they can."""
        size, k = self.args.per_device_train_batch_size, self.num_generations
        if size % k:
            return f"a micro-batch of {size} does not hold whole groups of {k}: a multiple of {k} would"
        if not self._estimator.groupwise:
            return f"advantage_estimator={self._estimator.name!r} looks at more than one group"
        return "normalize_advantages looks at the whole generation batch" if self.normalize_advantages else ""

    @property
    def _is_single_pass(self) -> bool:
        """Whether the loss's own forward pass gives the old log-probabilities: then the ratio is 1."""
        return self._wants_single_pass and (self.beta == 0 or self._kl_in_loss or not self._torn)

    @property
    def _advantages_wait(self) -> bool:
        """Whether the advantages need a KL term that only the loss's forward pass will give."""
        return bool(self.beta) and not self._kl_in_loss and self._is_single_pass

    def _explain_two_passes(self) -> None:
        if self._wants_single_pass and not self._is_single_pass and self.accelerator.is_main_process:
            warnings.warn(
                f"Each step takes one forward pass more than it needs, for the KL term: {self._torn}. "
                "Larger micro-batches take more memory; single_pass=False says that it is meant as it is.",
                stacklevel=3,
            )

    @torch.no_grad()
    def _log_probs(self, batch: dict[str, Any], reference: bool = False) -> torch.Tensor:
        """Log-probabilities (rows, tokens) of the live rows under the policy or the reference; 0 elsewhere."""
        found = torch.zeros(batch["completion_ids"].shape, device=self.accelerator.device)
        tensors = {name: batch[name] for name in (*packing.PROMPT, "completion_ids", "completion_mask")}
        lengths = batch["completion_mask"].sum(1).tolist()
        rows = sorted(batch["live"].nonzero().flatten().tolist(), key=lengths.__getitem__)
        size = self.args.per_device_train_batch_size
        with (
            shortage.phase(self, "log-probs"),
            disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs),
            self._reference() if reference else nullcontext(self.model) as model,
        ):
            for start in range(0, len(rows), size):
                chosen = rows[start : start + size]
                part = packing.select(tensors, chosen, self._trims)
                logps, _, _ = self._get_per_token_logps_and_entropies(model, *_model_inputs(part))
                found[chosen, : logps.size(1)] = logps.float()
        return found

    @contextmanager
    def _reference(self) -> Iterator[Any]:
        """The reference, as TRL has it: a model of its own, the base, or the adapter "ref"."""
        if self.ref_model is not None:
            yield self.ref_model
            return
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield self.model

    @property
    def _trims(self) -> bool:
        return self.pad_to_multiple_of is None

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: Any,
        logits_to_keep: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Answers: TRL runs a forward pass for the old log-probabilities as soon as it has sampled.

        Returns:
            Log-probabilities (rows, logits_to_keep), entropies or None, auxiliary loss or None.
        """
        if self._log_probs_wait:
            return torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device), None, None
        self._keep_padding_mask(attention_mask)
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )

    def _keep_padding_mask(self, attention_mask: torch.Tensor) -> None:
        """Answers: in training mode unsloth's fast forward drops the attention mask, so that prompts padded on the left
        are attended to, unless this flag is set, as unsloth sets it for its own PPO (its models/llama.py and rl.py).
        Without padding on the left the mask says no more than causal attention does, whose kernels are faster."""
        padded = bool((attention_mask[:, 0] == 0).any())
        for backbone in self._backbones:
            backbone._unsloth_keep_padding_mask = padded

    # --- micro-batches ------------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Answers: TRL cuts a generation batch into micro-batches without looking at what is in it."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._micro_batches(
                self._generate_and_score_completions(generation_batch)
            )
        return self._buffered_inputs[self._step % steps]

    def _micro_batches(self, batch: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
        """The generation batch as ``steps_per_generation`` micro-batches, some of them perhaps empty."""
        unit = packing.unit(self.args.gradient_accumulation_steps, self.args.steps_per_generation)
        # As TRL shuffles, so that the next sampling meets the same random state.
        shuffled = torch.randperm(len(batch["prompt_ids"]))
        rows_of_units = shuffled.split(self.args.per_device_train_batch_size * unit)
        batch["row_weight"] = torch.zeros(len(shuffled), device=self.accelerator.device)
        laid = [part for rows in rows_of_units for part in self._lay_out(batch, rows, unit)]
        tensors = {name: value for name, value in batch.items() if name != "live"}
        return [packing.select(tensors, rows, self._trims) for rows in laid]

    def _lay_out(self, batch: dict[str, Any], shuffled: torch.Tensor, unit: int) -> list[list[int]]:
        """Rows of each of a unit's micro-batches; writes their weights into the batch."""
        # Advantages that wait need whole groups, which stand together before they are shuffled.
        block = self.num_generations if self._advantages_wait else 1
        rows = sorted(shuffled.tolist()) if block > 1 else shuffled.tolist()
        tokens = batch["completion_mask"].sum(1)
        processes = self.accelerator.num_processes
        weights = losses.row_weights(
            _config.own(self.args, "loss_aggregation"),
            tokens[rows],
            total_rows=len(rows) * processes,
            total_tokens=int(self.accelerator.reduce(tokens[rows].sum(), reduction="sum")),
            longest=self.max_completion_length,
        )
        # transformers divides by the accumulation and processes average, so that is undone here.
        batch["row_weight"][rows] = weights * unit * processes

        lengths = tokens.tolist()
        live = batch["live"].tolist()
        blocks = packing.blocks_of([row for row in rows if live[row]], block, lengths)
        per_batch = self.args.per_device_train_batch_size // block
        needed = 0
        if processes > 1:  # all must pass through the model equally often, or they wait for each other
            mine = torch.tensor(max(1, math.ceil(len(blocks) / per_batch)), device=self.accelerator.device)
            needed = int(self.accelerator.gather(mine).max())
            spare = packing.blocks_of([row for row in rows if not live[row]], block, lengths)
            spare = spare[: max(0, needed - len(blocks))]
            idle = [row for run in spare for row in run]
            batch["row_weight"][idle] = 0.0
            batch["completion_mask"][idle] = 0
            blocks = spare + blocks
        return packing.lay_out(blocks, per_batch, unit, needed)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Answers: running out of memory says neither in which phase, nor what to do."""
        with shortage.phase(self, "train"):
            return super().training_step(*args, **kwargs)

    # --- the loss -----------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Answers: TRL has one aggregation, and no KL term in the loss."""
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        if not len(inputs["prompt_ids"]):
            # A gradient of 0, not of None: the optimizer's momentum goes on as it would in stock TRL.
            device = self.accelerator.device
            return torch.stack(
                [p.sum().to(device) * 0.0 for p in model.parameters() if p.requires_grad]
            ).sum()
        mask = inputs["completion_mask"]
        logps, entropies, aux_loss = self._get_per_token_logps_and_entropies(
            model, *_model_inputs(inputs), compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        taken = (
            self._advantages_after_kl(inputs, logps.detach())
            if self._advantages_wait
            else inputs["advantages"]
        )
        clip = (1 - self.epsilon_low, 1 + self.epsilon_high)
        whole = _config.own(self.args, "loss_aggregation") == "seq-mean-token-sum"
        old = inputs.get("old_per_token_logps", logps.detach())
        per_row, ratio = losses.policy_loss(logps, old, taken, mask, whole, clip)
        if self.beta and self._kl_in_loss:
            per_row = per_row + self.beta * self._kl(logps, inputs).sum(1)
        loss = (per_row * inputs["row_weight"]).sum()
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss
            self._log_token_mean("aux_loss", aux_loss.detach(), torch.ones_like(aux_loss))
        self._log_token_mean("entropy", entropies, mask)
        self._log_clipping(ratio.detach(), taken, mask, clip)
        return loss

    def _advantages_after_kl(self, inputs: dict[str, torch.Tensor], logps: torch.Tensor) -> torch.Tensor:
        """Advantages (rows,) of whole groups, from rewards and the KL term of this very forward pass."""
        rewards = inputs["rewards"] - self.beta * self._kl(logps, inputs).sum(1)
        return self._estimate(rewards.view(-1, self.num_generations)).view(-1)

    def _log_clipping(
        self, ratio: torch.Tensor, taken: torch.Tensor, mask: torch.Tensor, clip: tuple[float, float]
    ) -> None:
        """TRL's ``clip_ratio/*``: shares of completions, or of tokens where each has a ratio."""
        if ratio.ndim == 2:
            taken, ratio = taken.unsqueeze(1).expand_as(ratio)[mask.bool()], ratio[mask.bool()]
        low = ((ratio < clip[0]) & (taken < 0)).float()
        high = ((ratio > clip[1]) & (taken > 0)).float()
        none = low.new_tensor(torch.inf)
        extremes = (low.min(), -high.max()) if len(low) else (none, none)
        local = torch.stack([low.sum(), high.sum(), low.new_tensor(len(low)), *extremes])
        every = self.accelerator.gather(local.unsqueeze(0))
        clipped_low, clipped_high, count = every[:, :3].sum(0).tolist()
        if not count:  # every process asks, or those that have something would wait for the others
            return
        least, most = every[:, 3:].amin(0).tolist()
        metrics = self._metrics["train"]
        metrics["clip_ratio/low_mean"].append(clipped_low / count)
        metrics["clip_ratio/low_min"].append(least)
        metrics["clip_ratio/high_mean"].append(clipped_high / count)
        metrics["clip_ratio/high_max"].append(-most)
        metrics["clip_ratio/region_mean"].append((clipped_low + clipped_high) / count)

    # --- rewards ------------------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Answers: TRL counts groups without spread after the KL term has given them one.

        Returns:
            (completions, rewards), gathered over processes, NaN where a reward does not apply.
        """
        scores: torch.Tensor = super()._calculate_rewards(inputs, *args, **kwargs)
        training = self.model.training
        self._check_models_rewards(scores)
        self._total_rewards = total_rewards(
            scores, self.reward_weights.to(scores.device), self.reward_clip_range
        )
        if training:
            self._report_unscored(scores)
        elif self.num_generations_eval > 1:  # an evaluation may sample one completion per prompt
            dead = dead_groups(self._total_rewards.view(-1, self.num_generations_eval))
            self._metrics["eval"]["dead_groups"].append(dead.float().mean().item())
        return scores

    def _check_models_rewards(self, scores: torch.Tensor) -> None:
        """Answers: a NaN of a reward model counts as "does not apply", and an infinity makes every weight NaN.

        (What functions return is checked by ``rewards.guarded``.)
        """
        for column, reward in enumerate(self.reward_funcs):
            if isinstance(reward, torch.nn.Module) and not scores[:, column].isfinite().all():
                bad = int((~scores[:, column].isfinite()).sum())
                raise RewardError(
                    "a reward model's score is not finite",
                    where=f"{self.reward_func_names[column]}, {bad} of {len(scores)} completions, step "
                    f"{self.state.global_step + 1}",
                    todo="load it in bfloat16 or float32, and look for NaN in its weights",
                )

    def _report_unscored(self, scores: torch.Tensor) -> None:
        """Answers: a reward that is None for every sample changes nothing, and TRL says so only in a log."""
        for name, column in zip(self.reward_func_names, scores.T, strict=True):
            self._unscored[name] = self._unscored[name] + 1 if column.isnan().all() else 0
            if self._unscored[name] == UNSCORED_BATCHES:
                warnings.warn(
                    f"Reward '{name}' has given None for every sample of {UNSCORED_BATCHES} batches in a row, so "
                    "it teaches nothing. Check the dataset column it reads.",
                    stacklevel=2,
                )

    # --- a run --------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train, from the start or from a checkpoint, and leave ``trainer_state.json`` in ``output_dir``.

        Args:
            resume_from_checkpoint: True goes on from the newest whole checkpoint in ``output_dir``, and
                starts anew where there is none; a path names one.  A checkpoint that was being written when
                the process died is removed; a run that is interrupted saves its last step.  Without it the run
                starts at step 0, and checkpoints of an earlier run are moved to ``output_dir/earlier``, so that
                no later resume takes them for its own.
            kwargs: as in transformers' ``Trainer.train``.

        Raises:
            ConfigError: the path is not that of a whole checkpoint.
        """
        if resume_from_checkpoint is True:
            found = run_folder.last_whole_checkpoint(self.args.output_dir)
            if self.accelerator.is_main_process:
                run_folder.remove_broken(self.args.output_dir)
                print(f"resuming from {found}" if found else "no checkpoint yet: starting at step 0")
            self.accelerator.wait_for_everyone()
            resume_from_checkpoint = str(found) if found else None
        elif resume_from_checkpoint:
            run_folder.check(Path(resume_from_checkpoint), self.args.output_dir)
        elif self.accelerator.is_main_process:
            run_folder.set_aside(self.args.output_dir)
        if resume_from_checkpoint and 0 < self.args.max_steps <= run_folder.step_of(
            Path(resume_from_checkpoint)
        ):
            return self._already_done(Path(str(resume_from_checkpoint)))
        self._start_afresh()
        self._recall_prompts(resume_from_checkpoint)
        shortage.warn_if_too_large(self.memory_plan)
        try:
            with shortage.phase(self, "optimizer"):
                result = super().train(resume_from_checkpoint=resume_from_checkpoint or None, **kwargs)
        except KeyboardInterrupt:
            self._keep_what_is_done()
            raise
        except OutOfMemoryError as error:
            shortage.let_go(error)
            self._keep_what_is_done()
            raise shortage.with_way_on(
                error, run_folder.last_whole_checkpoint(self.args.output_dir)
            ) from error.__cause__
        self.save_state()
        return result

    def _start_afresh(self) -> None:
        """Answers: a cell that was stopped in the middle of a step leaves its position and its batches behind,
        and every later step would then train on completions of an older policy."""
        self._step, self._buffered_inputs, self._current_train_step_time = 0, None, 0.0
        self._metrics["train"].clear()
        self._token_sums.clear()
        self._unscored.clear()
        gradients.begin(self.accelerator)
        self._watch = truncation.Watch(self.max_completion_length, self.mask_truncated_completions)

    def _recall_prompts(self, checkpoint: Any) -> None:
        """Give the prompts' history of a checkpoint back, or an empty one to a run that starts anew."""
        if self._history is None:
            return
        state, trained = prompts.PromptHistory(self.num_generations).state(), 0
        if checkpoint:
            saved = TrainerState.load_from_json(str(Path(str(checkpoint)) / "trainer_state.json"))
            state = saved.stateful_callbacks.get("PromptHistory", state)
            steps = self.args.steps_per_generation * self.num_iterations
            trained = saved.global_step * self.args.gradient_accumulation_steps // steps
        self._history.restore(state, trained)

    def _load_callback_state(self) -> None:
        """Answers: restore_callback_states_from_checkpoint puts another history in place of the one in use."""
        super()._load_callback_state()
        if self._history is not None:
            self.remove_callback(prompts.PromptHistory)
            self.add_callback(self._history)

    def _keep_what_is_done(self) -> None:
        """Answers: a cell that is stopped loses all steps since the last checkpoint."""
        if self.state.global_step and self.args.save_strategy != "no":
            self._save_checkpoint(self.model, trial=None)
            print(
                f"stopped: step {self.state.global_step} is saved, train(resume_from_checkpoint=True) goes on"
            )

    def _already_done(self, folder: Path) -> TrainOutput:
        """Answers: transformers takes one more step from a checkpoint that is at the last one."""
        print(
            f"{folder} is at step {run_folder.step_of(folder)} of {self.args.max_steps}: nothing left to train"
        )
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
        return TrainOutput(self.state.global_step, 0.0, {})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Answers: torch's load_state_dict takes learning rate, betas and weight decay from the checkpoint, so
        that a learning_rate lowered to mend a run would silently stay as it was.  (DeepSpeed loads its own before
        this, and keeps them.)"""
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        groups = self.optimizer.param_groups
        asked = [{name: group[name] for name in HYPERPARAMETERS if name in group} for group in groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not isinstance(scheduler, LambdaLR):
            return
        saved, scheduler.base_lrs = scheduler.base_lrs, [one["initial_lr"] for one in asked]
        rates = [
            base * shape(scheduler.last_epoch)
            for base, shape in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, settings, rate in zip(self.optimizer.param_groups, asked, rates, strict=True):
            group.update(settings, lr=rate)
        scheduler._last_lr = rates
        if saved != scheduler.base_lrs and self.accelerator.is_main_process:
            print(f"learning_rate is {self.args.learning_rate:g} from here on; it was {saved[0]:g}")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Answers: with a "ref" folder inside a checkpoint, transformers loads that adapter and no other, so
        a resumed run would go on from untrained weights; and PEFT casts what it loads to float32, where TRL trains a
        4-bit policy's adapter in bfloat16 on a CPU."""
        folder, target = Path(resume_from_checkpoint), self.model if model is None else model
        dtypes = {name: parameter.dtype for name, parameter in target.named_parameters()}
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if not (folder / "ref").is_dir():
            # That run's reference was the base; the one made for this trainer would be a policy half trained.
            _drop_reference(target)
        elif (folder / "adapter_config.json").is_file():
            target.load_adapter(str(folder), "default", is_trainable=True)
            target.set_adapter("default")
        for name, parameter in target.named_parameters():
            if parameter.dtype != dtypes.get(name, parameter.dtype):
                parameter.data = parameter.data.to(dtypes[name])


def _model_inputs(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Token ids, attention mask and the number of completion tokens, as TRL's log-probabilities take them."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, mask, batch["completion_ids"].size(1)


# --- before the parent's __init__ -------------------------------------------------------------------------


def _is_fresh(model: Any) -> bool:
    """Whether the LoRA is still the zero map, so that the base model is the same reference."""
    pairs = [p for name, p in model.named_parameters() if ".default." in name and "lora_B" in name]
    others = [name for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name]
    return bool(pairs) and not others and not any(p.any() for p in pairs)


def _drop_reference(model: Any) -> None:
    """Answers: TRL adds an adapter "ref" to every PEFT model, and fails where one is left from before."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
        model.set_adapter("default")

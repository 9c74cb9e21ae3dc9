"""A rollout: sample completions, score them, and take log-probabilities, by TRL's own methods with what they lack.

For :class:`rloo_kit.RLOOTrainer`, which makes advantages and a loss of it.  The overrides name what they work around;
tests/contract pins TRL's methods and fails with an explanation when TRL changes them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit import data_checks
from rloo_kit.advantages import dead_groups, total_rewards
from rloo_kit.errors import RewardError
from rloo_kit.memory import oom
from rloo_kit.policy import generate
from rloo_kit.policy.generate import SlicedGenerate
from rloo_kit.session import processes
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.train import cpu_logprobs, metrics, microbatches
from rloo_kit.train.validate import Own
from rloo_kit.watch.callbacks import TruncationWatch

import_unsloth()

import torch  # noqa: E402 - unsloth first
from accelerate.utils import gather_object  # noqa: E402
from transformers.integrations.integration_utils import TrackioCallback  # noqa: E402
from trl.models.utils import disable_gradient_checkpointing  # noqa: E402
from trl.trainer.utils import pad, use_adapter  # noqa: E402

from rloo_kit.train.resume import ResumableTrainer  # noqa: E402

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Batch = dict[str, torch.Tensor]
Example = dict[str, Any]

UNSCORED_BATCHES = 3
"""After so many batches in a row without a single score a reward function is reported."""


class RolloutTrainer(ResumableTrainer):
    """TRL's trainer with checked sampling and scores, and no more forward passes than are asked for."""

    own: Own
    log_completions: bool
    _backbones: list[torch.nn.Module]

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._unscored: Counter[str] = Counter()
        self._told: set[str] = set()
        self._watch = TruncationWatch(self.max_completion_length, self.mask_truncated_completions)
        self._at_most: int | None = None  # rows sampled at once, since memory ran out
        self._unprinted = False  # whether completions were sampled since they were last printed
        self._token_means = metrics.TokenMeans()

    def _rollout(self, examples: Sequence[Example]) -> tuple[Batch, torch.Tensor]:
        """Sample a completion of each example's prompt, and score it.

        Returns:
            ``prompt_ids`` and ``prompt_mask`` (rows, tokens) padded on the left, ``completion_ids`` and
            ``completion_mask`` padded on the right, of this process; and the scores (completions, rewards) of all
            processes, NaN where a reward does not apply.
        """
        prompts = [example.get("prompt") for example in examples]
        where = f"train_dataset, step {self.state.global_step + 1}, batch"
        data_checks.check_prompts(
            prompts, self._tokenizer, where
        )  # only the first were looked at before training
        prompt_ids, completion_ids, completions = self._generate(prompts)
        scores = self._calculate_rewards(examples, prompts, completions, completion_ids)
        self._log_rollout(prompts, completions, scores)
        return self._padded(prompt_ids, completion_ids), scores

    def _padded(self, prompt_ids: Sequence[list[int]], completion_ids: Sequence[list[int]]) -> Batch:
        def padded(rows: Sequence[Sequence[int]], side: str, value: int = 0) -> torch.Tensor:
            found: torch.Tensor = pad(
                [torch.tensor(row) for row in rows],
                padding_value=value,
                padding_side=side,
                pad_to_multiple_of=self.pad_to_multiple_of,
            )
            return found.to(self.accelerator.device)

        pad_id, masked = self._tokenizer.pad_token_id, self.mask_truncated_completions
        counted = [[0 if masked and self._is_cut(row) else 1] * len(row) for row in completion_ids]
        return {
            "prompt_ids": padded(prompt_ids, "left", pad_id),
            "prompt_mask": padded([[1] * len(row) for row in prompt_ids], "left"),
            "completion_ids": padded(completion_ids, "right", pad_id),
            "completion_mask": padded(counted, "right"),
        }

    def _is_cut(self, completion_ids: list[int]) -> bool:
        return completion_ids[-1] not in (*self.eos_token_ids, self._tokenizer.pad_token_id)

    def _log_rollout(self, prompts: list[Any], completions: list[Any], scores: torch.Tensor) -> None:
        """Fill TRL's table of completions, and flush what reward functions logged; keys sorted, so that all processes
        gather in one order."""
        self._logs["prompt"].extend(gather_object(prompts))
        self._logs["completion"].extend(gather_object(completions))
        for name, column in zip(self.reward_func_names, scores.T, strict=True):
            self._logs["rewards"][name].extend(column.tolist())
        for column in sorted(set(gather_object(list(self._pending_extra_logs)))):
            values = self._pending_extra_logs.get(column, [None] * len(prompts))
            self._logs["extra"][column].extend(gather_object(values))
        for name in sorted(set(gather_object(list(self._pending_metrics)))):
            values = self._pending_metrics.get(name, [])
            local = torch.tensor(
                [sum(values), len(values)], device=self.accelerator.device, dtype=torch.float32
            )
            total, count = self.accelerator.reduce(local, reduction="sum").tolist()
            self._metrics["train"][name].append(total / count)
        self._pending_extra_logs.clear()
        self._pending_metrics.clear()

    # --- sampling -----------------------------------------------------------------------------------------

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: object, **kwargs: object
    ) -> list[list[int]]:
        """Works around: unsloth cuts sequences inside the forward pass, has each call warn of a length, and ends an
        evaluation's sampling in training mode; multinomial is most of a CPU's step, and reading lm_head for each row
        most of a GPU's; and all rows at once may be more than memory holds."""
        data_checks.check_lengths(prompt_ids, self.max_completion_length, self._max_seq_length)
        training = self.model.training
        with (
            oom.phase(self, "generate"),
            self._own_sampling(len(prompt_ids)),
            generate.without_max_length(self.model),
        ):
            completion_ids: list[list[int]] = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        if training:
            self._warn_of_truncation(completion_ids)
        else:
            self.model.eval()  # unsloth leaves it training, and what follows would be taken for a training step
        return completion_ids

    @property
    def _max_seq_length(self) -> int | None:
        return getattr(self.model, "max_seq_length", None)  # unsloth's models have one, plain ones do not

    def _warn_of_truncation(self, completion_ids: list[list[int]]) -> None:
        seen = [(len(ids), self._is_cut(ids)) for ids in completion_ids]
        gathered = self.accelerator.gather(torch.tensor(seen, device=self.accelerator.device))
        said = self._watch.see(gathered[:, 0].tolist(), gathered[:, 1].bool().tolist())
        if said:
            processes.warn(said)

    @contextmanager
    def _own_sampling(self, rows: int) -> Iterator[None]:
        """While inside, have ``generate`` sample as many rows at once as fit, draw by inverse CDF on a CPU, and read
        lm_head once a token on a GPU."""
        if not self._samples_itself:
            yield
            return
        model, bound, patched = self.model, self.model.generate, "generate" in vars(self.model)
        at_once = min(self._rows_at_once(rows), self._at_most or rows)
        fast = self.own.fast_sampling and not self.args.generation_kwargs
        sliced = SlicedGenerate(model, at_once, self.eos_token_ids, fast=fast, halves=not self._sharded)
        model.generate = sliced
        try:
            with generate.head_in_one_product(model) if self.own.fast_sampling else nullcontext():
                yield
        finally:
            if patched:
                model.generate = bound
            else:
                del model.generate
        if sliced.at_once < at_once:
            self._at_most = sliced.at_once
            processes.warn(self._ran_short(at_once), main_alone=False)

    @property
    def _sharded(self) -> bool:
        """Whether several processes share the weights, so that each must sample as often as the others."""
        return self.accelerator.num_processes > 1 and bool(self.is_deepspeed_enabled or self.is_fsdp_enabled)

    def _rows_at_once(self, rows: int) -> int:
        """As many as the plan says; its figure for free memory is this process's alone."""
        if self._sharded and self.own.generation_rows is None:
            return rows
        return self.memory_plan.rows_at_once(rows)

    def _ran_short(self, before: int) -> str:
        return (
            f"Memory ran out with {before} completions sampled at once, step {self.state.global_step + 1}: from here "
            f"on it is {self._at_most}. What was sampled is kept, and their distribution is the same. "
            f"What to do: RLOOConfig(generation_rows={self._at_most}) spares a next run the attempt."
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Works around: transformers closes trackio's run when a training ends, and TRL's profiler logs to it in an
        evaluation (trl/extras/profiling.py), which raises."""
        callbacks = self.callback_handler.callbacks
        trackio = next((one for one in callbacks if isinstance(one, TrackioCallback)), None)
        if trackio is None or not self.is_world_process_zero() or _has_trackio_run():
            trackio = None
        else:
            trackio.setup(self.args, self.state, self.model)
        try:
            found: dict[str, float] = super().evaluate(*args, **kwargs)
            return found
        finally:
            if trackio is not None:
                trackio._trackio.finish()
                trackio._initialized = False  # a training that follows opens it again

    # --- scores -------------------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Sequence[Example], *args: object) -> torch.Tensor:
        """Works around: what a reward model returns is not checked, a reward that is always None is only logged, and an
        evaluation does not count its dead groups.

        Returns:
            (completions, rewards) of all processes, NaN where a reward does not apply.
        """
        names, out_of_memory = self.reward_func_names, oom.explain_out_of_memory
        with out_of_memory("rewards", self.memory_plan), undisturbed(self.model, names, self._told):
            scores: torch.Tensor = super()._calculate_rewards(inputs, *args)
        self._check_models_rewards(scores)
        self._unprinted = True
        if self.model.training:
            self._report_unscored(scores)
        elif self.num_generations_eval > 1:  # an evaluation may sample one completion per prompt
            totals = self._totals(scores, self.num_generations_eval)
            self._metrics["eval"]["dead_groups"].append(dead_groups(totals).float().mean().item())
        return scores

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Works around: with ``log_completions`` TRL prints its table with every log, also where that has no new
        completions: of a further update on the same ones, or of the run's end.  And TRL's means are of what was
        logged since; those over tokens begin anew with them."""
        asked, self.log_completions = self.log_completions, self.log_completions and self._unprinted
        try:
            super().log(logs, start_time)
        finally:
            self.log_completions, self._unprinted = asked, False
        if self.model.training:
            self._token_means.clear()

    def _log_token_mean(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        sums = torch.stack([(values * mask).sum(), mask.sum().float()])
        total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        self._metrics["train"][name] = [self._token_means.add(name, total, count)]

    def _totals(self, scores: torch.Tensor, num_generations: int) -> torch.Tensor:
        weights = self.reward_weights.to(scores.device)
        return total_rewards(scores, weights, self.reward_clip_range).view(-1, num_generations)

    def _check_models_rewards(self, scores: torch.Tensor) -> None:
        """Works around: a NaN of a reward model counts as "does not apply", and an infinity makes every weight NaN.
        (What functions return is checked by ``rewards.guarded``.)"""
        for column, reward in enumerate(self.reward_funcs):
            bad = int((~scores[:, column].isfinite()).sum())
            if bad and isinstance(reward, torch.nn.Module):
                raise RewardError(
                    "a reward model's score is not finite",
                    where=f"{self.reward_func_names[column]}, {bad} of {len(scores)} completions, step "
                    f"{self.state.global_step + 1}",
                    todo="load it in bfloat16 or float32, and look for NaN in its weights",
                )

    def _report_unscored(self, scores: torch.Tensor) -> None:
        """Of single rewards: where none has scored anything, :mod:`rloo_kit.watch` speaks."""
        for name, column in zip(self.reward_func_names, scores.T, strict=True):
            self._unscored[name] = self._unscored[name] + 1 if column.isnan().all() else 0
            if self._unscored[name] == UNSCORED_BATCHES and not scores.isnan().all():
                processes.warn(
                    f"Reward '{name}' has returned None for every sample of {UNSCORED_BATCHES} batches in a row, so it "
                    "has no effect. Check the dataset column that it reads."
                )

    # --- log-probabilities --------------------------------------------------------------------------------

    @torch.no_grad()
    def _log_probs(self, batch: Batch, reference: bool = False) -> torch.Tensor:
        """Log-probabilities (rows, tokens) of the live rows under the policy or the reference; 0 elsewhere."""
        found = torch.zeros(batch["completion_ids"].shape, device=self.accelerator.device)
        tensors = {name: batch[name] for name in (*microbatches.PROMPT, "completion_ids", "completion_mask")}
        lengths = batch["completion_mask"].sum(1).tolist()
        passed = torch.ones_like(batch["live"]) if self._sharded else batch["live"]  # all equally often
        rows = sorted(passed.nonzero().flatten().tolist(), key=lengths.__getitem__)
        size = self.args.per_device_train_batch_size
        with (
            oom.phase(self, "log-probs"),
            disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs),
            self._reference() if reference else nullcontext(self.model) as model,
        ):
            for start in range(0, len(rows), size):
                chosen = rows[start : start + size]
                part = microbatches.select(tensors, chosen, trim=self.pad_to_multiple_of is None)
                logps, _, _ = self._get_per_token_logps_and_entropies(model, *microbatches.model_inputs(part))
                found[chosen, : logps.size(1)] = logps.float()
        return found.masked_fill(~batch["live"].unsqueeze(1), 0.0)

    @contextmanager
    def _reference(self) -> Iterator[PreTrainedModel]:
        """The reference, as TRL has it: a model of its own, the base, or the adapter "ref"."""
        if self.ref_model is not None:
            yield self.ref_model
            return
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield self.model

    def _get_per_token_logps_and_entropies(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        *args: object,
        compute_entropy: bool = False,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Works around: in training mode unsloth's fast forward drops the attention mask, so that padding on the left
        is attended to, unless a flag is set, as unsloth sets it for its own PPO (its models/llama.py and rl.py).
        Without such padding the mask says no more than causal attention, whose kernels are faster.  And on a CPU the
        head passes several times over logits that no cache holds (:mod:`.cpu_logprobs`).

        Returns:
            Log-probabilities (rows, logits_to_keep), entropies or None, auxiliary loss or None.
        """
        padded = bool((attention_mask[:, 0] == 0).any())
        for backbone in self._backbones:
            backbone._unsloth_keep_padding_mask = padded  # type: ignore[assignment]
        found: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
        with cpu_logprobs.in_tiles(entropy=compute_entropy):
            found = super()._get_per_token_logps_and_entropies(
                model,
                *(input_ids, attention_mask, logits_to_keep, *args),
                compute_entropy=compute_entropy,
                **kwargs,
            )
        return found


def _has_trackio_run() -> bool:
    from trackio import context_vars

    return context_vars.current_run.get() is not None


# --- what rewards must leave as it is -----------------------------------------------------------------------

ADAPTERS = ("_disable_adapters", "_active_adapter", "active_adapter", "_adapters_disabled")
"""Where PEFT's layers and models keep which adapter is on (tuners_utils.py, peft_model.py)."""


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None takes torch's wrapper away


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.get_num_threads, torch.set_num_threads),
)
"""Of torch: what reads each, and what sets it."""


def _switches(module: torch.nn.Module) -> dict[str, object]:
    return {name: vars(module)[name] for name in ("training", *ADAPTERS) if name in vars(module)}


@contextmanager
def undisturbed(model: torch.nn.Module, names: Sequence[str], told: set[str]) -> Iterator[None]:
    """Put back what reward functions called inside have changed, and say so once a run: a judge that switches gradients
    or the adapter off would have something else trained, and one that seeds torch, which is put back without a word,
    would make every step draw the same completions.

    Args:
        names: of the functions, for the warning.
        told: what a warning has said in this run; added to.

    Raises:
        RunFolderError: the process's folder was deleted.
    """
    switches = {module: _switches(module) for module in model.modules()}
    trained = {parameter: parameter.requires_grad for parameter in model.parameters()}
    settings, folder = [read() for read, _ in SETTINGS], processes.folder()
    draws = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        found = []
        torch.set_rng_state(draws[0])
        if draws[1]:
            torch.cuda.set_rng_state_all(draws[1])
        for module, before in switches.items():
            if (now := _switches(module)) != before:
                for name in now:
                    del vars(module)[name]
                vars(module).update(before)
                found.append("the model's mode (training or evaluation) or adapters")
        for parameter, was_trained in trained.items():
            if parameter.requires_grad != was_trained:
                parameter.requires_grad_(was_trained)
                found.append("which of the model's parameters are trained")
        for (read, put), setting in zip(SETTINGS, settings, strict=True):
            if (other := read()) != setting:
                put(setting)
                found.append(f"torch.{read.__name__}() from {setting} to {other}")
        if _working_folder() != folder:
            if folder.is_dir():
                os.chdir(folder)
            processes.folder()
            found.append("the process's folder")
        if new := [what for what in dict.fromkeys(found) if what not in told]:
            told.update(new)
            processes.warn(
                f"{'Reward' if len(names) == 1 else 'One of the rewards'} {', '.join(map(repr, names))} changed "
                f"{' and '.join(new)}. It is put back after each call; let the function restore what it changes."
            )


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None

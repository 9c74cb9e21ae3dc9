"""Sample and score completions with TRL's own methods, and add what these lack.

Used by :class:`rloo_kit.RLOOTrainer`.  Each override names what it works around; tests/contract pins TRL's methods.
"""

from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import PreTrainedModel
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import pad, use_adapter

from rloo_kit import data_checks
from rloo_kit.errors import ConfigError, RewardError
from rloo_kit.memory import out_of_memory
from rloo_kit.policy import generate, thinking
from rloo_kit.policy.generate import SlicedGenerate
from rloo_kit.session import output
from rloo_kit.train import cpu_logprobs, microbatches
from rloo_kit.train.resume import ResumableTrainer

Batch = microbatches.Batch
Example = dict[str, Any]


class RolloutTrainer(ResumableTrainer):
    """TRL's trainer with checked sampling and scores, and no more forward passes than are needed."""

    _backbones: list[torch.nn.Module]
    _max_seq_length: int | None

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._at_most: int | None = None  # rows sampled at once, after memory ran out
        self._in_16_bit = True  # until memory runs out with 4-bit weights in 16 bit
        self._budget = thinking.budget_of(self._tokenizer)
        if self._budget and not self._samples_itself:
            what = "a thinking budget needs completions that the policy itself samples"
            todo = "leave out use_vllm and use_transformers_continuous_batching, or the budget"
            raise ConfigError(what, where=f"load_policy(thinking={self._budget.tokens})", todo=todo)
        self._token_sums: dict[str, torch.Tensor] = {}  # totals and counts of tokens since the last log

    def _rollout(self, examples: Sequence[Example]) -> tuple[Batch, torch.Tensor]:
        """Sample and score a completion for each example's prompt.  Returns :meth:`_padded`'s tensors (rows, tokens) of
        this process, and scores (completions, rewards) of all processes, NaN where a reward does not apply."""
        prompts = [example.get("prompt") for example in examples]
        # Before training, only the first prompts were checked.
        place = f"train_dataset, step {self.state.global_step + 1}, batch"
        data_checks.check_prompts(prompts, self._tokenizer, place)
        prompt_ids, completion_ids, completions = self._generate(prompts)
        scores = self._calculate_rewards(examples, prompts, completions, completion_ids)
        self._log_rollout(prompts, completions, scores)
        return self._padded(prompt_ids, completion_ids), scores

    def _padded(self, prompt_ids: Sequence[list[int]], completion_ids: Sequence[list[int]]) -> Batch:
        def padded(rows: Sequence[Sequence[int]], side: str, value: int = 0) -> torch.Tensor:
            multiple, tensors = self.pad_to_multiple_of, [torch.tensor(row) for row in rows]
            return pad(tensors, value, side, multiple).to(self.accelerator.device)

        pad_id = self._tokenizer.pad_token_id
        masks = [self._trained_on(*row) for row in zip(prompt_ids, completion_ids, strict=True)]
        return {
            "prompt_ids": padded(prompt_ids, "left", pad_id),
            "prompt_mask": padded([[1] * len(row) for row in prompt_ids], "left"),
            "completion_ids": padded(completion_ids, "right", pad_id),
            "completion_mask": padded(masks, "right"),
        }

    def _trained_on(self, prompt_ids: list[int], completion_ids: list[int]) -> list[int]:
        """Mark trained tokens by 1, and by 0 those of a masked truncated completion or forced by a thinking budget."""
        ends = (*self.eos_token_ids, self._tokenizer.pad_token_id)
        if self.mask_truncated_completions and completion_ids[-1] not in ends:
            return [0] * len(completion_ids)
        if not self._budget:
            return [1] * len(completion_ids)
        return [int(not forced) for forced in self._budget.forced(prompt_ids, completion_ids)]

    # --- what is logged -----------------------------------------------------------------------------------

    def _log_rollout(self, prompts: list[Any], completions: list[Any], scores: torch.Tensor) -> None:
        """Fill TRL's table of completions, and flush what reward functions logged."""

        def logged(by_name: dict[str, list[Any]]) -> list[str]:
            return sorted(set(gather_object(list(by_name))))  # so that all processes gather in the same order

        self._logs["prompt"].extend(gather_object(prompts))
        self._logs["completion"].extend(gather_object(completions))
        for name, column in zip(self.reward_func_names, scores.T, strict=True):
            self._logs["rewards"][name].extend(column.tolist())
        for name in logged(self._pending_extra_logs):
            values = self._pending_extra_logs.get(name, [None] * len(prompts))
            self._logs["extra"][name].extend(gather_object(values))
        for name in logged(self._pending_metrics):
            values = gather_object(self._pending_metrics.get(name, []))
            self._log_each({name: sum(values) / len(values)})
        self._pending_extra_logs.clear()
        self._pending_metrics.clear()

    def _log_each(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    def _log_token_mean(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Log the mean over all tokens since the last log; a mean of means would favour short micro-batches."""
        local = torch.stack([(values.detach() * mask).sum(), mask.sum().float()])
        sums = self.accelerator.reduce(local, reduction="sum") + self._token_sums.get(name, 0.0)
        self._token_sums[name], (total, count) = sums, sums.tolist()
        self._metrics["train"][name] = [total / max(count, 1.0)]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Works around: TRL restarts its means at each log, but not the sums over tokens, which are cleared here."""
        super().log(logs, start_time)
        if self.model.training:
            self._token_sums.clear()

    # --- sampling -----------------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: object, **kwargs: object) -> list[list[int]]:
        """Works around: unsloth cuts sequences inside the forward pass, and leaves the model in training mode after an
        evaluation's sampling; multinomial takes most of a CPU's step, and reading lm_head for each row most of a
        GPU's; and memory may not hold all rows at once."""
        data_checks.check_lengths(prompt_ids, self.max_completion_length, self._max_seq_length)
        training = self.model.training
        with out_of_memory.explained("generate", self.memory_plan), self._own_sampling(len(prompt_ids)):
            completion_ids = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        if not training:
            self.model.eval()  # unsloth leaves it in training mode, which would make later calls training steps
        return completion_ids

    @contextmanager
    def _own_sampling(self, rows: int) -> Iterator[None]:
        """Make ``generate`` sample as many rows at once as fit, draw by inverse CDF on a CPU, and read lm_head once per
        token on a GPU."""
        if not self._samples_itself:
            yield
            return
        at_once = self._at_most or rows
        if not self._sharded or self.args.generation_rows:  # the plan knows only one process's free memory
            at_once = min(at_once, self.memory_plan.rows_at_once(rows))
        model, bound, patched = self.model, self.model.generate, "generate" in vars(self.model)
        fast = self.memory_plan.settings.fast_sampling
        how: Any = {"fast": fast, "halves": not self._sharded, "budget": self._budget}
        how["in_16_bit"] = self._in_16_bit and not self._sharded and self.memory_plan.in_16_bit_bytes > 0
        sliced = SlicedGenerate(model, at_once, self._tokenizer.pad_token_id, **how)
        model.generate = sliced
        try:
            with generate.head_in_one_product(model) if self.args.fast_sampling else nullcontext():
                yield
        finally:
            if patched:
                model.generate = bound
            else:
                del model.generate
        if how["in_16_bit"] and not sliced.in_16_bit:
            self._in_16_bit = False
            what = f"Memory ran out with 4-bit weights held in 16 bit, step {self.state.global_step + 1}"
            output.warn(f"{what}: from here on they stay in 4 bit, and sampling takes longer", main_alone=False)
        if sliced.at_once < at_once:
            self._at_most = sliced.at_once
            what = f"Memory ran out with {at_once} completions sampled at once, step {self.state.global_step + 1}"
            what += f": from here on it is {self._at_most}"
            todo = f"RLOOConfig(generation_rows={self._at_most}) avoids the failed attempt next time."
            output.warn(f"{what}. What to do: {todo}", main_alone=False)

    @property
    def _sharded(self) -> bool:
        """Whether several processes share the weights, so that each must sample as often as the others."""
        return self.accelerator.num_processes > 1 and bool(self.is_deepspeed_enabled or self.is_fsdp_enabled)

    # --- scores -------------------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Sequence[Example], *args: object) -> torch.Tensor:
        """Works around: TRL does not check a reward model's scores."""
        with out_of_memory.explained("rewards", self.memory_plan), undisturbed(self.model):
            scores = super()._calculate_rewards(inputs, *args)
        for name, reward, column in zip(self.reward_func_names, self.reward_funcs, scores.T, strict=True):
            if isinstance(reward, torch.nn.Module) and not column.isfinite().all():
                where = f"{name}, {int((~column.isfinite()).sum())} of {len(column)} completions"
                todo = "load it in bfloat16 or float32, and look for NaN in its weights"
                raise RewardError("a reward model's score is not finite", where=where, todo=todo)
        return scores

    # --- log-probabilities --------------------------------------------------------------------------------

    @torch.no_grad()
    def _log_probs(self, batch: Batch, reference: bool = False) -> torch.Tensor:
        """Log-probabilities (rows, tokens) of the live rows under the policy or the reference; 0 elsewhere."""
        log_probs = torch.zeros(batch["completion_ids"].shape, device=self.accelerator.device)
        tensors = {name: batch[name] for name in (*microbatches.PROMPT, "completion_ids", "completion_mask")}
        lengths = batch["completion_mask"].sum(1).tolist()
        passed = torch.ones_like(batch["live"]) if self._sharded else batch["live"]  # all run equally often
        rows = sorted(passed.nonzero().flatten().tolist(), key=lengths.__getitem__)
        size = self.args.per_device_train_batch_size
        with (
            out_of_memory.explained("log-probs", self.memory_plan),
            disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs),
            self._reference() if reference else nullcontext(self.model) as model,
        ):
            for start in range(0, len(rows), size):
                chosen = rows[start : start + size]
                part = microbatches.select(tensors, chosen, trim=self.pad_to_multiple_of is None)
                logps, _, _ = self._get_per_token_logps_and_entropies(model, *microbatches.model_inputs(part))
                log_probs[chosen, : logps.size(1)] = logps.float()
        return log_probs.masked_fill(~batch["live"].unsqueeze(1), 0.0)

    @contextmanager
    def _reference(self) -> Iterator[PreTrainedModel]:
        if self.ref_model is not None:
            yield self.ref_model
            return
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield self.model

    def _get_per_token_logps_and_entropies(
        self, model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, Any, Any]:
        """Works around: in training mode unsloth's fast forward drops the attention mask, so that padding on the left
        is attended to, unless a flag is set, as unsloth sets it for its own PPO (its models/llama.py and rl.py).
        Without left padding the mask adds nothing to causal attention, whose kernels are faster.  On a CPU, the head
        passes several times over logits that exceed its cache, and the model runs each prompt K times
        (:mod:`.cpu_logprobs`)."""
        padded = bool((mask[:, 0] == 0).any())
        for backbone in self._backbones:
            backbone._unsloth_keep_padding_mask = padded  # type: ignore[assignment]
        # Not if an evaluation splits its pass, or if experts are balanced over each completion's prompt, too.
        if len(args) == 1 and not self._sharded and not kwargs.get("compute_aux_loss"):
            model = cpu_logprobs.sharing(model, ids, mask, args[0])
        with cpu_logprobs.in_tiles(entropy=kwargs.get("compute_entropy", False)):
            return super()._get_per_token_logps_and_entropies(model, ids, mask, *args, **kwargs)


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Restore what reward functions called inside may change: a reward that seeds torch would make every step draw the
    same completions; a reward that queries the policy may leave it in evaluation mode, or gradients switched off."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    training, grad = model.training, torch.set_grad_enabled(torch.is_grad_enabled())
    try:
        with torch.random.fork_rng(devices), grad, chdir("."):
            yield
    finally:
        model.train(training)

"""What decides how much memory a run takes: of the model, of the configuration and of the device.

:mod:`.reading` fills these in, :mod:`.footprint` computes with them, :mod:`.changes` varies them.  Values only: nothing
here reads a model or a device.
"""

from dataclasses import dataclass

from rloo_kit.catalogue import Checkpoint
from rloo_kit.memory.engine import Engine
from rloo_kit.passes import DEFAULTS, Passes
from rloo_kit.session.imports import UNSLOTH_CPU_TILE_LOGITS

PROCESSORS = {"repetition_penalty": 4, "temperature": 4, "top_k": 5, "top_p": 22, "min_p": 9}
"""Bytes per logit that transformers' logits processors hold at their peak beside their input, in the order in which
they run: the output, in most a mask; top-p also sorted logits, their int64 indices, softmax and its cumulative sum,
min-p softmax alone."""


@dataclass(frozen=True)
class Model:
    """A policy's tensors.

    Attributes:
        checkpoint: the shape.
        linear_bytes: the projections as stored.
        rest_bytes: embedding, lm_head and norms.
        lora_sizes: elements of each LoRA matrix.
        kept_bytes: an estimate of what layers kept in 16 bit add, where their number is not known.
        full_sizes: elements of each weight, where all are trained and there is no LoRA.
    """

    checkpoint: Checkpoint
    linear_bytes: int
    rest_bytes: int
    lora_sizes: tuple[int, ...]
    kept_bytes: int = 0
    full_sizes: tuple[int, ...] = ()

    @property
    def trained_sizes(self) -> tuple[int, ...]:
        """Elements of each trained tensor."""
        return self.full_sizes or self.lora_sizes

    @property
    def card(self) -> Checkpoint:
        """The old name of ``checkpoint``."""
        return self.checkpoint


@dataclass(frozen=True)
class Settings:
    """The configuration and the device, with the names of ``RLOOConfig`` in brackets.

    Attributes:
        completion_tokens: ``max_completion_length``.
        padded: whether prompts of a batch differ in length, so that rows are padded on the left.
        micro_rows: completions in one forward and backward pass (``per_device_train_batch_size``).
        batch_rows: completions of a generation batch: micro_rows x ``steps_per_generation``.
        generation_rows: the most completions sampled at once (``generation_rows``); None takes as many as fit.
        accumulation: micro-batches per update (``gradient_accumulation_steps``).
        iterations: how often a generation batch is used (``num_iterations``).
        steps: updates of the run (``max_steps``); 0 where the data decides.
        reference_copy: whether the reference is a second LoRA (a continued policy) or the base model.
        full_finetuning: whether all weights are trained, which asks for a second model as the reference.
        fast_sampling: on a CPU, the kit's own sampling loop instead of transformers'.
        processors: those of :data:`PROCESSORS` that are switched on, in their order.
        single_pass: leave out the pass for old log-probabilities where it is not needed.
        on_gpu: unsloth's GPU path, or its CPU path.
        dtype_bytes: of activations, cache and whatever is not quantised: 2, or 4 on a CPU in float32.
        cpu_tile_logits: logits of one tile on a CPU.
        engine: vLLM, where it samples on the GPU that trains.
        small_card: at most 24.5 GiB, where unsloth's head works in smaller tiles.
    """

    prompt_tokens: int = 512
    completion_tokens: int = DEFAULTS.max_completion_length
    padded: bool = True
    num_generations: int = DEFAULTS.num_generations
    micro_rows: int = DEFAULTS.per_device_train_batch_size
    batch_rows: int = DEFAULTS.per_device_train_batch_size * DEFAULTS.gradient_accumulation_steps
    generation_rows: int | None = None
    accumulation: int = DEFAULTS.gradient_accumulation_steps
    iterations: int = DEFAULTS.num_iterations
    steps: int = 0
    beta: float = DEFAULTS.beta
    reference_copy: bool = False
    fast_sampling: bool = DEFAULTS.fast_sampling
    processors: tuple[str, ...] = ()
    single_pass: bool = DEFAULTS.single_pass
    optimizer: str = DEFAULTS.optim
    lora_rank: int = 16
    full_finetuning: bool = False
    four_bit: bool = True
    checkpointing: bool | str = "unsloth"
    on_gpu: bool = True
    dtype_bytes: int = 2
    engine: Engine | None = None
    small_card: bool = True
    cpu_tile_logits: int = UNSLOTH_CPU_TILE_LOGITS

    @property
    def row_tokens(self) -> int:
        """T: prompt and completion of one row."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def sampled_rows(self) -> int:
        """Completions sampled at once; all of the batch where ``generation_rows`` is None."""
        return self.generation_rows or self.batch_rows

    @property
    def passes(self) -> Passes:
        """The forward passes of a step."""
        return Passes.of(
            beta=self.beta,
            num_generations=self.num_generations,
            micro_rows=self.micro_rows,
            accumulation=self.accumulation,
            steps_per_generation=self.batch_rows // self.micro_rows,
            iterations=self.iterations,
            single_pass=self.single_pass,
        )

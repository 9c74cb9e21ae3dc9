"""How many bytes each part of an RLOO step takes: one formula a term, with the source it was read from.

For :mod:`rloo_kit.memory`, which adds the terms up by phase and compares them with a GPU's memory.  Sources are the
pinned releases of bitsandbytes, PEFT, TRL, transformers, unsloth and unsloth_zoo; nothing is copied from them.  The
CPU's terms are checked against real tensors (tests/memory).  The GPU's follow unsloth's kernels, which were read and
not run: no figure here was measured on a GPU.

Letters: n tokens in a micro-batch, T tokens in a row, H hidden size, A heads x head_dim, G kv_heads x head_dim,
F ffn size, V vocabulary, L layers, r LoRA rank.  It reads no device and imports nothing heavy.
"""

from functools import cached_property

from rloo_kit.catalogue import Checkpoint
from rloo_kit.memory.settings import PROCESSORS, Model, Settings
from rloo_kit.session.show import GIB, MIB

WEIGHTS, KEPT, REST = "weights", "layers kept in 16 bit", "embedding, lm_head, norms"
LORA, REFERENCE = "LoRA", "LoRA, reference copy"
GRADIENTS, OPTIMIZER = "gradients", "optimizer state"
CACHE, DECODING = "key-value cache", "decoding and sampling"
CHECKPOINTS, LAYER = "checkpointed activations", "one layer's activations"
HIDDEN, TILE = "final hidden states", "log-probability tile"
BUFFER, CONTEXT, FRAGMENTATION = "one weight, dequantised", "context", "fragmentation"

PARTS = (
    *(WEIGHTS, KEPT, REST, LORA, REFERENCE, OPTIMIZER, GRADIENTS, CACHE, DECODING, CHECKPOINTS, LAYER),
    *(HIDDEN, TILE, BUFFER, CONTEXT, FRAGMENTATION),
)
"""Every part, in the order in which a table shows them."""

CUDA_CONTEXT_BYTES = 512 * MIB
"""What a process holds on a GPU beside torch's tensors: the CUDA context, the kernels of torch, cuBLAS, Triton and
bitsandbytes, and cuBLAS's workspace.  An estimate, not measured: published out-of-memory messages and forum posts
show 0.1 to 0.7 GiB between what the driver and what torch count, by GPU, driver and version."""

KEPT_SHARE = 0.1
"""Unsloth's 4-bit repositories leave some projections in 16 bit; its README puts the cost below 10 % of what plain
bitsandbytes takes.  An estimate, for repositories whose config.json, which lists them, is not in the hub's cache."""

LIBRARIES_BYTES = 530 * MIB
"""What a process on a CPU holds beside tensors: resident memory after ``load_policy("tiny")`` less the policy's own
bytes (torch 2.13, Linux, one thread).  Measured by ``scripts/cards.py --libraries``."""


class Step:
    """The terms of one training step of a model under some settings, all in bytes."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.checkpoint = shape = model.checkpoint
        self.hidden, self.ffn = shape.hidden_size, shape.ffn_size
        self.attention, self.keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.pass_tokens = settings.micro_rows * settings.row_tokens
        self.scored_tokens = settings.micro_rows * settings.completion_tokens
        self.layer_input = self.pass_tokens * self.hidden * settings.dtype_bytes
        self.widest_activation = self.pass_tokens * self.ffn * settings.dtype_bytes
        self.first_buffer_tokens = _buffer(settings.prompt_tokens + 513)

    @property
    def lora(self) -> int:
        """As it is trained, in float32 (:meth:`load`); gradients have the weights' type."""
        return 4 * sum(self.model.lora_sizes)

    @property
    def optimizer(self) -> int:
        """State of the optimizer after its first step.

        adamw_torch_fused, and any other without "8bit": two moments per trained weight, of its type, and a float32
        step per tensor (torch.optim.AdamW).
        8 bit: two bytes per weight and two float32 scales per 256 weights; tensors under 4096 weights stay in 32
        bit; two shared tables of 256 (bitsandbytes, ``Optimizer2State.init_state``).  On a CPU unsloth puts
        adamw_torch_fused in their place.
        """
        sizes = self.model.lora_sizes
        if "8bit" not in self.settings.optimizer or not self.settings.on_gpu:
            return 2 * self.lora + 4 * len(sizes)
        blockwise = sum(2 * size + 8 * -(-size // 256) for size in sizes if size >= 4096)
        return blockwise + sum(8 * size for size in sizes if size < 4096) + 2 * 4 * 256

    @cached_property
    def standing(self) -> dict[str, int]:
        """What is held in every phase after the first update."""
        s = self.settings
        found = {
            WEIGHTS: self.model.linear_bytes,
            KEPT: self.model.kept_bytes,
            REST: self.model.rest_bytes,
            LORA: self.lora,
            REFERENCE: self.lora if s.reference_copy and s.beta else 0,
            OPTIMIZER: self.optimizer,
            CONTEXT: CUDA_CONTEXT_BYTES if s.on_gpu else LIBRARIES_BYTES,
            BUFFER: self.buffer if s.on_gpu else 0,
        }
        return {part: size for part, size in found.items() if size}

    @property
    def buffer(self) -> int:
        """The largest projection in full: unsloth's ``fast_dequantize`` keeps one buffer of that size for all
        layers (kernels/utils.py); on a CPU bitsandbytes makes one in each backward product (``MatMul4Bit``)."""
        largest = max(rows * columns for rows, columns in self.checkpoint.projections.values())
        return self.settings.dtype_bytes * largest if self.settings.four_bit else 0

    def cache(self, tokens: int) -> int:
        """Keys and values of the rows sampled at once, ``tokens`` per row: rows x tokens x 2 L G."""
        per_token = 2 * self.checkpoint.layers * self.keys * self.settings.dtype_bytes
        return self.settings.sampled_rows * tokens * per_token

    @property
    def cached_tokens(self) -> int:
        """Tokens of a row in the cache at the end: the last one sampled is not fed back.

        On a CPU transformers' ``DynamicCache`` holds exactly these.  On a GPU unsloth allocates rows in multiples
        of 256, from prompt + 513 on, doubling up to prompt + completion + 1 (models/_decode_graphs.py, which RL
        generation uses; without graphs it grows by 512).
        """
        if not self.settings.on_gpu:
            return self.settings.row_tokens - 1
        return max(self.first_buffer_tokens, _buffer(self.settings.row_tokens + 1))

    @property
    def cache_growth(self) -> int:
        """The old copy of what is being enlarged.

        CPU: a layer's keys, while ``torch.cat`` makes the new ones.  GPU: a layer's buffer of half the length,
        while ``resize_`` copies it; none where the first allocation was large enough.
        """
        if self.settings.on_gpu and self.cached_tokens <= self.first_buffer_tokens:
            return 0
        return self.cache(self.cached_tokens) // self.checkpoint.layers // 2

    @property
    def sampling(self) -> int:
        """Next-token logits of all rows, in the copies that live at once.

        With transformers' ``_sample``: lm_head's output, its float32 copy, what processors make of it, softmax, and
        the noise that ``torch.multinomial`` draws; while processors work, the last token's softmax and logits are
        still held.  On a CPU with fast sampling (:mod:`rloo_kit.policy.sampling`): logits and softmax; while
        processors work lm_head's output too, unless it is float32 and needs no copy.
        """
        s = self.settings
        fast = s.fast_sampling and not s.on_gpu
        logits = 4 if fast and s.dtype_bytes == 4 else s.dtype_bytes + 4
        per_logit = 2 * 4 if fast else logits + 2 * 4 + 4 * bool(s.processors)
        if s.processors:
            inside = max(PROCESSORS[name] + 4 * (place > 0) for place, name in enumerate(s.processors))
            per_logit = max(per_logit, logits + inside + (0 if fast else 2 * 4))
        return s.sampled_rows * self.checkpoint.vocabulary * per_logit

    @property
    def decode_scratch(self) -> int:
        """Unsloth's buffers beside the cache, of each layer: projections of one token, and attention scores over
        all cached tokens (``alloc_decode_buffers``).  None on a CPU."""
        if not self.settings.on_gpu:
            return 0
        projections = 3 * self.attention + 2 * self.keys + self.hidden
        per_layer = projections + self.checkpoint.heads * self.cached_tokens
        return self.settings.sampled_rows * self.checkpoint.layers * per_layer * self.settings.dtype_bytes

    def generate(self) -> dict[str, int]:
        """The largest of three moments: all prompts in a layer; the first decode step, which on a GPU copies the
        prompts' keys and values into buffers; the last token."""
        s = self.settings
        layer = self.layer_without_gradient(s.sampled_rows, s.prompt_tokens)
        prompts = {CACHE: self.cache(s.prompt_tokens), LAYER: layer}
        decoding = self.sampling + self.decode_scratch
        copied = self.cache(s.prompt_tokens + self.first_buffer_tokens) if s.on_gpu else 0
        whole = self.cache(self.cached_tokens)
        first = {CACHE: copied, DECODING: decoding}
        last = {CACHE: whole + self.cache_growth, DECODING: decoding}
        return self._phase(_largest(prompts, first, last), whole // self.checkpoint.layers)

    def layer_without_gradient(self, rows: int, tokens: int) -> int:
        """A layer's forward pass that keeps nothing.

        GPU: residual and norm, then the larger of attention (Q before and after its norm and position, K and V
        expanded to all heads, the output and its contiguous copy) and the MLP (gate, up, product, output):
        2 H + max(6 A + 3 G, 3 F + H) per token.  CPU, counted: 4 H + 4 F.
        """
        if self.settings.on_gpu:
            both = max(6 * self.attention + 3 * self.keys, 3 * self.ffn + self.hidden)
            per_token = 2 * self.hidden + both
        else:
            per_token = 4 * self.hidden + 4 * self.ffn
        return rows * tokens * per_token * self.settings.dtype_bytes + self.mask(rows, tokens)

    def mask(self, rows: int, tokens: int) -> int:
        """The causal mask of a batch padded on the left, rows x T x T: on a GPU additive in 16 bit (unsloth's
        models/llama.py) beside two bool copies (its utils/attention_dispatch.py), one byte on a CPU (transformers'
        masking_utils)."""
        return rows * tokens * tokens * (4 if self.settings.on_gpu else 1)

    @property
    def layer_with_gradient(self) -> int:
        """The layer that is recomputed, at the widest moment of its backward pass.

        GPU, from what unsloth's autograd functions save (kernels/fast_lora.py, rms_layernorm.py,
        rope_embedding.py): two norms' outputs, the residual, incoming and outgoing gradient (5 H); Q twice, the
        attention's output twice, K and V expanded to all heads (6 A); K twice and V (3 G); gate, up and one
        gradient, since the rest is written in place (3 F).
        CPU, counted: 4 H + 3 A + 3 G + 6 F + 6 r, :attr:`statistics` included.
        Where nothing is checkpointed, what it keeps is counted there, and 2 F (on a GPU F + 2 H) remain.
        """
        if not self.settings.checkpointing:
            per_token = self.ffn + 2 * self.hidden if self.settings.on_gpu else 2 * self.ffn
        elif self.settings.on_gpu:
            per_token = 5 * self.hidden + 6 * self.attention + 3 * self.keys + 3 * self.ffn
        else:
            per_token = 4 * self.hidden + 3 * self.attention + 3 * self.keys + 6 * self.ffn
            per_token += 6 * self.settings.lora_rank + self.statistics
        return self.pass_tokens * per_token * self.settings.dtype_bytes

    @property
    def statistics(self) -> int:
        """Elements per token on a CPU: the norms' and the attention's statistics, and a row of the mask as floats; in
        16 bit also what RMSNorm keeps in float32: 2 H for each of two norms, and A + G for those of Q and K."""
        copies = 4 * self.hidden + self.attention + self.keys if self.settings.dtype_bytes == 2 else 0
        return 2 + 2 * self.checkpoint.heads + self.checkpoint.kv_heads + self.settings.row_tokens + copies

    @property
    def layer_saved(self) -> int:
        """What a layer keeps for its backward pass where nothing is checkpointed, its output included."""
        if self.settings.on_gpu:
            per_token = 4 * self.hidden + 6 * self.attention + 3 * self.keys + 2 * self.ffn
        else:
            per_token = 4 * self.hidden + 3 * self.attention + 3 * self.keys + 4 * self.ffn
            per_token += 7 * self.settings.lora_rank + self.statistics
        return self.pass_tokens * per_token * self.settings.dtype_bytes

    @property
    def offloads(self) -> bool:
        """Whether "unsloth" checkpointing moves layers' inputs to the computer's own memory: on a GPU, from 2 MiB on
        (unsloth_zoo, gradient_checkpointing.py)."""
        s = self.settings
        return s.checkpointing == "unsloth" and s.on_gpu and self.layer_input > 2 * MIB

    @property
    def offloaded(self) -> int:
        """What "unsloth" checkpointing puts there: all inputs but the last."""
        return (self.checkpoint.layers - 1) * self.layer_input if self.offloads else 0

    @property
    def checkpoints(self) -> int:
        """What is kept between the forward and the backward pass: each layer's input, or :attr:`layer_saved` where
        nothing is checkpointed; the positions' cosines and sines; the mask.  Where inputs are offloaded: the last
        one, and two buffers that bring the others back."""
        s = self.settings
        each = self.layer_input if s.checkpointing else self.layer_saved
        kept = each * (3 if self.offloads else self.checkpoint.layers)
        positions = 2 * s.row_tokens * self.checkpoint.head_dim * s.dtype_bytes
        return kept + positions + self.mask(s.micro_rows, s.row_tokens)

    @property
    def tile(self) -> int:
        """Logits held at once while log-probabilities are computed; never those of all tokens.

        CPU: as many rows as make ``cpu_tile_logits`` (unsloth_zoo/cpu/ops.py), in float32, twice: logits and
        probabilities, in 16 bit beside lm_head's output; four times from the second tile on, since those of the
        previous tile are still held.
        GPU: unsloth's fused head (unsloth_zoo/fused_losses/fused_linear.py, in place of TRL's
        ``_ChunkedLogProbFunction``): on GPUs up to 24.5 GiB 4096 x 16384 logits in float32, 256 MiB, and a float32
        accumulator of 4096 x H; on larger ones whole rows, 512 or as many as n H / V, at most 2 GiB.
        """
        s, vocabulary, scored = self.settings, self.checkpoint.vocabulary, self.scored_tokens
        if not s.on_gpu:
            rows = max(1, s.cpu_tile_logits // vocabulary)
            first = 2 * 4 + s.dtype_bytes % 4
            return min(scored, rows) * vocabulary * (first if scored <= rows else 4 * 4)
        if s.small_card or scored >= 4096:
            rows = min(scored, 4096)
            return 4 * rows * (min(vocabulary, 16384) + self.hidden)
        rows = min(scored, max(512, scored * self.hidden // vocabulary))
        return min(4 * rows * vocabulary, 2 * GIB)

    def final_hidden(self, with_gradient: bool) -> int:
        """Around the head: the last norm's output and the scored positions of it; when training also the norm's
        input and the gradient, which both kernels form in the forward pass."""
        tokens = self.pass_tokens + self.scored_tokens
        return tokens * (2 if with_gradient else 1) * self.hidden * self.settings.dtype_bytes

    def log_probs(self) -> dict[str, int]:
        """Log-probabilities before the update, without gradient: a layer, or the head."""
        layer = {LAYER: self.layer_without_gradient(self.settings.micro_rows, self.settings.row_tokens)}
        head = {HIDDEN: self.final_hidden(with_gradient=False), TILE: self.tile}
        moving = _largest(layer, head)
        return self._phase(moving, self.tile if TILE in moving else self.widest_activation)

    def forward(self) -> dict[str, int]:
        """The update's forward pass, at its end: everything checkpointed, and the head's tile."""
        head = {CHECKPOINTS: self.checkpoints, HIDDEN: self.final_hidden(with_gradient=True), TILE: self.tile}
        return self._phase({GRADIENTS: self.lora, **head}, self.tile)

    def backward(self) -> dict[str, int]:
        """The update's backward pass, in its first layer: everything checkpointed, and one layer in full."""
        layers = {CHECKPOINTS: self.checkpoints, LAYER: self.layer_with_gradient, BUFFER: self.buffer}
        return self._phase({GRADIENTS: self.lora, **layers}, self.widest_activation)

    def load(self) -> dict[str, int]:
        """Weights and LoRA, before the first step; a matrix is held in full while it is quantised.

        The LoRA is float32, on CPU and GPU: unsloth_zoo's ``prepare_model_for_training`` upcasts what is trained, and
        so does PEFT's ``autocast_adapter_dtype``; the kit's trainer leaves it so (train/precision.py).
        """
        loaded = {
            part: self.standing[part] for part in (WEIGHTS, KEPT, REST, CONTEXT) if part in self.standing
        }
        return {**loaded, LORA: self.lora, BUFFER: self.buffer}

    def _phase(self, moving: dict[str, int], block: int) -> dict[str, int]:
        """A phase's parts.  On a GPU with fragmentation, estimated as its largest block once more: a caching
        allocator cannot put a large block into the holes that smaller ones left.  Not measured."""
        fragmentation = {FRAGMENTATION: block} if self.settings.on_gpu else {}
        return {**self.standing, **moving, **fragmentation}

    def phases(self) -> dict[str, dict[str, int]]:
        """Phase -> part -> bytes, in the order of a run."""
        found = {"load": self.load(), "generate": self.generate()}
        if self.settings.passes.before_update:
            found["log-probs"] = self.log_probs()
        # The optimizer's fused kernels need nothing beside gradients and state.
        update = {**self.standing, GRADIENTS: self.lora}
        return {**found, "forward": self.forward(), "backward": self.backward(), "optimizer": update}


def lora_sizes(checkpoint: Checkpoint, rank: int) -> tuple[int, ...]:
    """Elements of each LoRA matrix on the seven projections of every layer: A is rank x inputs, B outputs x rank
    (Hu et al. 2021)."""
    layer = [rank * size for rows, columns in checkpoint.projections.values() for size in (columns, rows)]
    return tuple(layer * checkpoint.layers)


def _buffer(tokens: int) -> int:
    """The multiple of 256 that holds so many."""
    return -(-tokens // 256) * 256


def _largest(*moments: dict[str, int]) -> dict[str, int]:
    return max(moments, key=lambda parts: sum(parts.values()))

"""How many bytes each part of an RLOO step takes: one formula a term, with the source it was read from.

They are checked against unsloth's own GPU code run on tensors without memory (benchmarks/plan_on_meta.py) and on one
H100.  A CPU's cache is its own; its activations are taken to be a GPU's.

Letters: n tokens in a micro-batch, T tokens in a row, H hidden size, A heads x head_dim, G kv_heads x head_dim,
F ffn size, V vocabulary, L layers, r LoRA rank.
"""

from functools import cached_property

from rloo_kit.memory.hardware import CUDA_CONTEXT_BYTES
from rloo_kit.memory.plan_settings import PROCESSORS, Settings
from rloo_kit.memory.policy_tensors import Model
from rloo_kit.session.output import GIB, MIB

WEIGHTS, KEPT, REST = "weights", "layers kept in 16 bit", "embedding, lm_head, norms"
LORA, REFERENCE, REFERENCE_MODEL = "LoRA", "LoRA, reference copy", "reference model"
OPTIMIZER, GRADIENTS, HEAD_GRADIENT = "optimizer state", "gradients", "gradient of lm_head"
CACHE, DECODING = "key-value cache", "decoding and sampling"
CHECKPOINTS, LAYER = "checkpointed activations", "one layer's activations"
HIDDEN, TILE = "final hidden states", "log-probability tile"
BUFFER, OFFLOAD, ROTARY = "one weight, dequantised", "offload buffers", "rotary table"
WORKSPACES, CONTEXT, FRAGMENTATION = "cuBLAS workspaces", "context", "fragmentation"
_HELD = (WEIGHTS, KEPT, REST, LORA, REFERENCE, REFERENCE_MODEL, OPTIMIZER, GRADIENTS, HEAD_GRADIENT)
_MOVING = (CACHE, DECODING, CHECKPOINTS, LAYER, HIDDEN, TILE, BUFFER, OFFLOAD, ROTARY)
PARTS = (*_HELD, *_MOVING, WORKSPACES, CONTEXT, FRAGMENTATION)  # in the order in which a table shows them
ESTIMATED = {KEPT, CONTEXT, FRAGMENTATION}  # without a formula

DRAWN_AT_ONCE = 8192  # entries of a row of logits that a CPU makes exponentials of at once when it draws

LIBRARIES_BYTES = 530 * MIB
"""Of a process on a CPU beside tensors, as measured (torch 2.13, Linux, one thread)."""

Parts = dict[str, int]  # part -> bytes


class Step:
    """One training step of a model under some settings: its terms, and their sums by phase, in bytes."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.checkpoint = shape = model.checkpoint
        self.hidden, self.ffn = shape.hidden_size, shape.ffn_size
        self.attention, self.keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.micro_rows = settings.per_device_train_batch_size
        self.pass_tokens = self.micro_rows * settings.row_tokens
        self.scored_tokens = self.micro_rows * settings.max_completion_length
        self.layer_input = self.pass_tokens * self.hidden * settings.dtype_bytes
        self.widest_activation = self.pass_tokens * self.ffn * settings.dtype_bytes
        self.head = shape.vocabulary * self.hidden  # elements of lm_head
        # In float32: unsloth_zoo's prepare_model_for_training and PEFT's autocast_adapter_dtype upcast it.
        self.lora = 4 * sum(model.lora_sizes)
        self.gradients = self.lora + settings.dtype_bytes * sum(model.full_sizes)
        self.trained_sizes = model.full_sizes or model.lora_sizes
        # The largest projection in full: unsloth's fast_dequantize keeps one buffer of that size for all layers
        # (kernels/utils.py); on a CPU bitsandbytes makes one in each backward product (MatMul4Bit).
        largest = max(rows * columns for rows, columns in shape.projections.values())
        self.buffer = settings.dtype_bytes * largest if settings.four_bit else 0
        # "unsloth" checkpointing moves all layers' inputs but the last to the computer's own memory, from 2 MiB on
        # (unsloth_zoo, gradient_checkpointing.py).
        is_large = self.layer_input > 2 * MIB
        self.offloads = settings.checkpointing == "unsloth" and settings.on_gpu and is_large
        self.offloaded = (shape.layers - 1) * self.layer_input if self.offloads else 0
        self.token_cache = 2 * shape.layers * self.keys * settings.dtype_bytes  # keys and values: 2 L G
        self.pass_mask = self.mask(self.micro_rows, settings.row_tokens)

    @property
    def optimizer(self) -> int:
        """AdamW: two moments of each weight's type, a float32 step a tensor (torch.optim.AdamW); on a CPU no other.

        8 bit: two bytes a weight and two float32 scales per 256; tensors under 4096 weights in 32 bit; two tables of
        256 (bitsandbytes, ``Optimizer2State.init_state``).
        """
        sizes = self.trained_sizes
        if "8bit" not in self.settings.optim or not self.settings.on_gpu:
            return 2 * self.gradients + 4 * len(sizes)
        blockwise = sum(2 * size + 8 * -(-size // 256) for size in sizes if size >= 4096)
        return blockwise + sum(8 * size for size in sizes if size < 4096) + 2 * 4 * 256

    @cached_property
    def standing(self) -> Parts:
        """What is held in every phase after the first update."""
        s = self.settings
        # 32 MiB on Hopper, taken for any over 24.5 GiB; else 8.1 (torch's getChosenWorkspaceSize).
        workspace = (4096 * 2 + 16 * 8) * 1024 if s.small_card else 32 * MIB
        positions = -(-self.checkpoint.positions // 8192) * 8192
        whole = self.model.linear_bytes + self.model.rest_bytes
        found = {
            WEIGHTS: self.model.linear_bytes,
            KEPT: self.model.kept_bytes,
            REST: self.model.rest_bytes,
            LORA: self.lora,
            REFERENCE: self.lora if s.reference_copy and s.beta else 0,
            # Where all weights are trained, TRL's trainer loads a second model for beta > 0.
            REFERENCE_MODEL: whole if self.model.full_sizes and s.beta else 0,
            OPTIMIZER: self.optimizer,
            # cuBLAS's: three, by what an H100 held beside all other tensors (two on the smallest shape).
            WORKSPACES: 3 * workspace * s.on_gpu,
            CONTEXT: CUDA_CONTEXT_BYTES if s.on_gpu else LIBRARIES_BYTES,
            BUFFER: self.buffer if s.on_gpu else 0,
            OFFLOAD: 2 * self.layer_input if self.offloads else 0,
            # Cosines and sines of all positions, where some are given (unsloth's LlamaModel_fast_forward).
            ROTARY: 2 * positions * self.checkpoint.head_dim * s.dtype_bytes * s.on_gpu,
        }
        return {part: size for part, size in found.items() if size}

    def cache(self, tokens: int) -> int:
        """Of the rows sampled at once, ``tokens`` per row."""
        return self.settings.sampled_rows * tokens * self.token_cache

    @property
    def cached_tokens(self) -> int:
        """Of a row at the end: all but the last in transformers' ``DynamicCache``; unsloth allocates more."""
        return self.buffer_sizes[-1] if self.settings.on_gpu else self.settings.row_tokens - 1

    @cached_property
    def buffer_sizes(self) -> list[int]:
        """Tokens a row that unsloth allocates, first to last: multiples of 256, from prompt + 513 on, doubling up to
        prompt + completion + 1 (models/_decode_graphs.py)."""
        most, sizes = self.settings.row_tokens, [_in_blocks(self.settings.prompt_tokens + 513)]
        while sizes[-1] < most:
            sizes.append(_in_blocks(min(2 * sizes[-1], most + 1)))
        return sizes

    @property
    def sampling(self) -> int:
        """Next-token logits of all rows, in transformers' ``_sample``: lm_head's output, its float32 copy, what
        processors make of it, softmax, noise of ``torch.multinomial``; beside processors, the last token's softmax and
        logits.  On a CPU (policy/generate.py): logits, and exponentials of a tile of them."""
        s, vocabulary = self.settings, self.checkpoint.vocabulary
        if not s.on_gpu:
            return 4 * s.sampled_rows * (vocabulary + min(vocabulary, DRAWN_AT_ONCE))
        per_logit = s.dtype_bytes + 4 + 2 * 4 + 4 * bool(s.processors)
        if s.processors:
            inside = max(PROCESSORS[name] + 4 * (place > 0) for place, name in enumerate(s.processors))
            per_logit = max(per_logit, s.dtype_bytes + 4 + inside + 2 * 4)
        return s.sampled_rows * vocabulary * per_logit

    def decode_scratch(self, tokens: int) -> int:
        """Beside the cache while unsloth decodes: of each layer a token's projections and its attention scores
        (``alloc_decode_buffers``); one layer's activations; the LoRA in 16 bit (``_fast_lora_weights``)."""
        s = self.settings
        per_layer = 3 * self.attention + 2 * self.keys + self.hidden + self.checkpoint.heads * tokens
        token = 4 * self.hidden + 4 * self.attention + 2 * self.ffn + 4 * tokens
        buffers = s.sampled_rows * (self.checkpoint.layers * per_layer + token) * s.dtype_bytes
        return buffers + s.dtype_bytes * sum(self.model.lora_sizes)

    def decode_attention(self, tokens: int) -> int:
        """Keys and values expanded to all heads, where rows are padded (``_decode_attention_core``)."""
        s = self.settings
        is_expanded = s.padded and s.sampled_rows > 1 and self.keys < self.attention
        return 2 * s.sampled_rows * tokens * self.attention * s.dtype_bytes if is_expanded else 0

    def layer_without_gradient(self, rows: int, tokens: int) -> int:
        """A layer's forward pass that keeps nothing, the larger of two moments (``LlamaDecoderLayer_fast_forward``).
        MLP: 5 H + 3 F a token, and the mask.  Attention: 3 H + 3 A + 3 G; in padded rows K and V are expanded,
        3 H + 5 A + 2 G, and the mask is there in 16 bit, as bool (utils/attention_dispatch.py) and converted again."""
        s, pairs = self.settings, rows * tokens * tokens
        heads = 4 * self.attention + 2 * self.keys if s.padded else 3 * (self.attention + self.keys)
        mlp = rows * tokens * (5 * self.hidden + 3 * self.ffn) * s.dtype_bytes + self.mask(rows, tokens)
        attention = rows * tokens * (3 * self.hidden + heads) * s.dtype_bytes
        if s.padded:
            attention += 5 * pairs + max(pairs, rows * tokens * self.attention * s.dtype_bytes)
        lora = s.lora_rank * (self.hidden + self.ffn) * s.dtype_bytes
        return max(mlp, attention) + rows * tokens * self.statistics + lora

    def mask(self, rows: int, tokens: int) -> int:
        """Rows x T x T, where rows are padded (unsloth's models/llama.py)."""
        return rows * tokens * tokens * self.settings.dtype_bytes * self.settings.padded

    @property
    def statistics(self) -> int:
        """Per token, in float32, what norms and attention keep beside the activations, and what LoRA's A makes."""
        return 4 * (2 * self.checkpoint.heads + self.checkpoint.kv_heads + 2) + 8 * self.settings.lora_rank

    @property
    def layer_with_gradient(self) -> int:
        """The layer that is recomputed, at the widest moment of its backward pass (``LoRA_MLP.backward``): what the
        layer saves, the incoming gradient, the product of gate and up, three LoRAs in 16 bit and their gradients.
        Where nothing is checkpointed, F + H remain."""
        s = self.settings
        lora = 12 * s.lora_rank * (self.hidden + self.ffn) * s.dtype_bytes
        saved = self.layer_saved if s.checkpointing else 0
        return saved + lora + self.pass_tokens * (self.ffn + self.hidden) * s.dtype_bytes

    @property
    def layer_saved(self) -> int:
        """What a layer keeps for its backward pass where nothing is checkpointed, its output included:
        4 H + 3 A + 3 G + 2 F, in padded rows 4 H + 5 A + G + 2 F and the mask (kernels/fast_lora.py, rms_layernorm.py,
        qk_norm_rope.py)."""
        s = self.settings
        heads = 5 * self.attention + self.keys if s.padded else 3 * (self.attention + self.keys)
        saved = self.pass_tokens * (4 * self.hidden + heads + 2 * self.ffn) * s.dtype_bytes
        return saved + self.pass_tokens * self.statistics + self.pass_mask

    @property
    def checkpoints(self) -> int:
        """Between forward and backward: each layer's input, or all that it saves, and the mask.  Where inputs are
        offloaded the embedding's output and the last layer's input stay."""
        each = self.layer_input if self.settings.checkpointing else self.layer_saved
        return each * (2 if self.offloads else self.checkpoint.layers) + self.pass_mask

    def tile(self, with_gradient: bool = True) -> int:
        """Logits held at once for log-probabilities (unsloth_zoo/fused_losses/fused_linear.py).  Up to 24.5 GiB
        4096 x 16384 in float32, for the gradient an accumulator of 4096 x H, and 8 statistics of each 16384 of a row,
        twice from the second tile on; above, whole rows, 512 or as many as n H / V, at most 2 GiB."""
        vocabulary, scored = self.checkpoint.vocabulary, self.scored_tokens
        if self.settings.small_card or scored >= 4096:
            rows = min(scored, 4096)
            statistics = 8 * -(-vocabulary // 16384) * (1 if scored <= rows else 2)
            accumulator = self.hidden if with_gradient else 0
            return 4 * rows * (min(vocabulary, 16384) + accumulator + statistics)
        rows = min(scored, max(512, scored * self.hidden // vocabulary))
        return min(4 * rows * vocabulary, 2 * GIB)

    def final_hidden(self, with_gradient: bool) -> int:
        """The last norm's output and its scored positions; when training also the norm's input and the gradient, which
        both kernels form in the forward pass; 80 bytes a token of ids, mask, labels and results."""
        tokens = self.pass_tokens + self.scored_tokens
        hidden = tokens * (2 if with_gradient else 1) * self.hidden * self.settings.dtype_bytes
        return hidden + self.pass_tokens * 80

    @property
    def last_layer(self) -> int:
        """The last layer's forward pass, beside what is kept.  Where inputs are offloaded the first micro-batch keeps
        one more: unsloth_zoo's ``CURRENT_GC_INDEX`` counted the pass without gradient before it."""
        s = self.settings
        if not s.checkpointing:
            return self.pass_tokens * (self.ffn + self.hidden) * s.dtype_bytes
        whole = self.layer_without_gradient(self.micro_rows, s.row_tokens)
        first = max(0, self.layer_input - self.lora) if self.offloads else 0
        return whole - 2 * self.layer_input - self.pass_mask + first

    def phases(self) -> dict[str, Parts]:
        """Phase -> part -> bytes, in the order of a run."""
        held = {part: size for part, size in self.standing.items() if part in (WEIGHTS, KEPT, REST, CONTEXT)}
        # A matrix is held in full while it is quantised.
        phases = {"load": {**held, LORA: self.lora, BUFFER: self.buffer}}
        if self.settings.vllm_bytes is None:
            phases["generate"] = self._generate()
        if self.settings.passes.before_update:
            phases["log-probs"] = self._log_probs()
        phases |= {"forward": self._forward(), "backward": self._backward()}
        # The fused kernels need nothing beside gradients and state; clipping, a norm of each tensor, twice.
        norms = 8 * len(self.trained_sizes) + 8
        return {**phases, "optimizer": {**self.standing, GRADIENTS: self.gradients + norms}}

    def _generate(self) -> Parts:
        """The largest of three moments: all prompts in a layer; the first decode step, which copies their keys and
        values into buffers, and holds the scores of the token before; the last, after a layer's buffer has grown."""
        s = self.settings
        layer = self.layer_without_gradient(s.sampled_rows, s.prompt_tokens)
        prompts = {CACHE: self.cache(s.prompt_tokens), LAYER: layer}
        whole = self.cache(self.cached_tokens)
        if not s.on_gpu:
            return self._phase(_largest(prompts, {CACHE: whole, DECODING: self.sampling}), 0)
        scores = s.sampled_rows * self.checkpoint.vocabulary
        drawing = scores * s.dtype_bytes + self.sampling
        before = scores * (2 * s.dtype_bytes + 2 * 4)  # logits twice, and float32 scores and probabilities
        first = self.buffer_sizes[0]
        copying = {
            CACHE: self.cache(s.prompt_tokens + first),
            DECODING: self.decode_scratch(first) + max(drawing, before + self.decode_attention(s.prompt_tokens + 1)),
        }
        growth = self.cache(self.buffer_sizes[-2]) // self.checkpoint.layers if self.buffer_sizes[1:] else 0
        decoding = before + max(growth, self.decode_attention(s.row_tokens - 1))
        last = {CACHE: whole, DECODING: self.decode_scratch(self.cached_tokens) + max(drawing, decoding)}
        return self._phase(_largest(prompts, copying, last), whole // self.checkpoint.layers)

    def _log_probs(self) -> Parts:
        """Log-probabilities before the update, without gradient: a layer, or the head."""
        layer = {LAYER: self.layer_without_gradient(self.micro_rows, self.settings.row_tokens)}
        tile = self.tile(with_gradient=False)
        moving = _largest(layer, {HIDDEN: self.final_hidden(with_gradient=False), TILE: tile})
        return self._phase(moving, tile if TILE in moving else self.widest_activation)

    def _forward(self) -> Parts:
        """The last layer, or its end: everything kept and the head's tile.  lm_head's gradient is summed up over tiles
        in float32 (unsloth_zoo/cpu/ops.py)."""
        head = {HEAD_GRADIENT: 4 * self.head} if self.model.full_sizes else {}
        ends = {HIDDEN: self.final_hidden(with_gradient=True), TILE: self.tile(), **head}
        moving = _largest(ends, {LAYER: self.last_layer})
        block = self.tile() if TILE in moving else self.widest_activation
        return self._phase({GRADIENTS: self.gradients, CHECKPOINTS: self.checkpoints, **moving}, block)

    def _backward(self) -> Parts:
        """Everything kept, and one layer in full.  A weight is dequantised beside the buffer for them
        (``LoRA_MLP.backward``, without ``use_global_buffer``)."""
        layers = {CHECKPOINTS: self.checkpoints, LAYER: self.layer_with_gradient, BUFFER: 2 * self.buffer}
        if self.model.full_sizes:
            # The embedding's; where it is lm_head too, that one's, and from the second micro-batch on their sum.
            copies = 1 + self.checkpoint.tied * (1 + (self.settings.gradient_accumulation_steps > 1))
            layers[HEAD_GRADIENT] = copies * self.head * self.settings.dtype_bytes
        return self._phase({GRADIENTS: self.gradients, **layers}, self.widest_activation)

    def _phase(self, moving: Parts, block: int) -> Parts:
        """With fragmentation, estimated as the largest block once more: it does not go into smaller ones' holes."""
        fragmentation = {FRAGMENTATION: block} if self.settings.on_gpu else {}
        return {**self.standing, **moving, **fragmentation}


def _in_blocks(tokens: int) -> int:
    return -(-tokens // 256) * 256


def _largest(*moments: Parts) -> Parts:
    return max(moments, key=lambda parts: sum(parts.values()))

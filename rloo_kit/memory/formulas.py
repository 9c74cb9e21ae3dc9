"""How many bytes each part of an RLOO step takes: one formula per term, with the source it was read from.

The formulas are checked against unsloth's GPU code, run on meta tensors (benchmarks/plan_on_meta.py) and on one H100.
A CPU has its own formula for the cache; its activations are assumed to be a GPU's.

Letters: n tokens in a micro-batch, T tokens in a row, H hidden size, A heads x head_dim, G kv_heads x head_dim,
F ffn size, V vocabulary, L layers, r LoRA rank.
"""

from dataclasses import replace
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

DRAWN_AT_ONCE = 8192  # logits of a row that a CPU exponentiates at once when it samples

LIBRARIES_BYTES = 530 * MIB
"""Memory of a CPU process besides its tensors, as measured (torch 2.13, Linux, one thread)."""

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
        # The LoRA is in float32: unsloth_zoo's prepare_model_for_training and PEFT's autocast_adapter_dtype upcast it.
        self.lora = 4 * sum(model.lora_sizes)
        self.gradients = self.lora + settings.dtype_bytes * sum(model.full_sizes)
        self.trained_sizes = model.full_sizes or model.lora_sizes
        # The largest projection, dequantised: unsloth's fast_dequantize keeps one buffer of that size for all layers
        # (kernels/utils.py); on a CPU bitsandbytes allocates one in each backward product (MatMul4Bit).
        largest = max(rows * columns for rows, columns in shape.projections.values())
        self.buffer = settings.dtype_bytes * largest if settings.four_bit else 0
        # "unsloth" checkpointing offloads the input of every layer but the last to host memory, if it is larger than
        # 2 MiB (unsloth_zoo, gradient_checkpointing.py).
        is_large = self.layer_input > 2 * MIB
        self.offloads = settings.checkpointing == "unsloth" and settings.on_gpu and is_large
        self.offloaded = (shape.layers - 1) * self.layer_input if self.offloads else 0
        self.token_cache = 2 * shape.layers * self.keys * settings.dtype_bytes  # keys and values: 2 L G
        self.pass_mask = self.mask(self.micro_rows, settings.row_tokens)

    @property
    def optimizer(self) -> int:
        """AdamW's state: two moments in each weight's dtype, a float32 step per tensor (torch.optim.AdamW).

        In 8 bit, on a GPU only: two bytes per weight, two float32 scales per 256 weights, and two tables of 256;
        tensors under 4096 weights stay in 32 bit (bitsandbytes, ``Optimizer2State.init_state``).
        """
        sizes = self.trained_sizes
        if "8bit" not in self.settings.optim or not self.settings.on_gpu:
            return 2 * self.gradients + 4 * len(sizes)
        blockwise = sum(2 * size + 8 * -(-size // 256) for size in sizes if size >= 4096)
        return blockwise + sum(8 * size for size in sizes if size < 4096) + 2 * 4 * 256

    @cached_property
    def standing(self) -> Parts:
        """What every phase holds after the first update."""
        s = self.settings
        # One workspace: 32 MiB on Hopper, assumed above 24.5 GiB; else 8.1 MiB (torch's getChosenWorkspaceSize).
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
            # Three of cuBLAS: what an H100 held besides all other tensors (two on the smallest shape).
            WORKSPACES: 3 * workspace * s.on_gpu,
            CONTEXT: CUDA_CONTEXT_BYTES if s.on_gpu else LIBRARIES_BYTES,
            BUFFER: self.buffer if s.on_gpu else 0,
            OFFLOAD: 2 * self.layer_input if self.offloads else 0,
            # Cosines and sines of all positions, since position ids are passed (unsloth's LlamaModel_fast_forward).
            ROTARY: 2 * positions * self.checkpoint.head_dim * s.dtype_bytes * s.on_gpu,
        }
        return {part: size for part, size in found.items() if size}

    def cache(self, tokens: int) -> int:
        """The key-value cache of the rows sampled at once, with ``tokens`` per row."""
        return self.settings.sampled_rows * tokens * self.token_cache

    @property
    def cached_tokens(self) -> int:
        """Cached tokens of a finished row: all but the last in transformers' ``DynamicCache``; more with unsloth."""
        return self.buffer_sizes[-1] if self.settings.on_gpu else self.settings.row_tokens - 1

    @cached_property
    def buffer_sizes(self) -> list[int]:
        """Tokens per row of unsloth's buffer, from its first size to its last: multiples of 256, from prompt + 513,
        doubling up to prompt + completion + 1 (models/_decode_graphs.py)."""
        most, sizes = self.settings.row_tokens, [_in_blocks(self.settings.prompt_tokens + 513)]
        while sizes[-1] < most:
            sizes.append(_in_blocks(min(2 * sizes[-1], most + 1)))
        return sizes

    @property
    def sampling(self) -> int:
        """Next-token logits of all rows in transformers' ``_sample``: lm_head's output, its float32 copy, the
        processors' output, softmax, and ``torch.multinomial``'s noise; while processors run, also the previous token's
        softmax and logits.  On a CPU (policy/generate.py): logits, and the exponentials of one tile of them."""
        s, vocabulary = self.settings, self.checkpoint.vocabulary
        if not s.on_gpu:
            return 4 * s.sampled_rows * (vocabulary + min(vocabulary, DRAWN_AT_ONCE))
        per_logit = s.dtype_bytes + 4 + 2 * 4 + 4 * bool(s.processors)
        if s.processors:
            inside = max(PROCESSORS[name] + 4 * (place > 0) for place, name in enumerate(s.processors))
            per_logit = max(per_logit, s.dtype_bytes + 4 + inside + 2 * 4)
        return s.sampled_rows * vocabulary * per_logit

    def decode_scratch(self, tokens: int) -> int:
        """What unsloth holds besides the cache while it decodes a token: projections and attention scores of each
        layer (``alloc_decode_buffers``), one layer's activations, the LoRA in 16 bit (``_fast_lora_weights``)."""
        s = self.settings
        per_layer = 3 * self.attention + 2 * self.keys + self.hidden + self.checkpoint.heads * tokens
        token = 4 * self.hidden + 4 * self.attention + 2 * self.ffn + 4 * tokens
        buffers = s.sampled_rows * (self.checkpoint.layers * per_layer + token) * s.dtype_bytes
        return buffers + s.dtype_bytes * sum(self.model.lora_sizes)

    def decode_attention(self, tokens: int) -> int:
        """Keys and values expanded to all heads, if rows are padded (``_decode_attention_core``)."""
        s = self.settings
        is_expanded = s.padded and s.sampled_rows > 1 and self.keys < self.attention
        return 2 * s.sampled_rows * tokens * self.attention * s.dtype_bytes if is_expanded else 0

    def layer_without_gradient(self, rows: int, tokens: int) -> int:
        """The peak of a layer's forward pass that keeps nothing (``LlamaDecoderLayer_fast_forward``): MLP or attention.
        MLP: 5 H + 3 F per token, and the mask.  Attention: 3 H + 3 A + 3 G; in padded rows 3 H + 5 A + 2 G, with K and
        V expanded, and three masks: in 16 bit, as bool (utils/attention_dispatch.py), and converted back."""
        s, pairs = self.settings, rows * tokens * tokens
        heads = 4 * self.attention + 2 * self.keys if s.padded else 3 * (self.attention + self.keys)
        mlp = rows * tokens * (5 * self.hidden + 3 * self.ffn) * s.dtype_bytes + self.mask(rows, tokens)
        attention = rows * tokens * (3 * self.hidden + heads) * s.dtype_bytes
        if s.padded:
            attention += 5 * pairs + max(pairs, rows * tokens * self.attention * s.dtype_bytes)
        lora = s.lora_rank * (self.hidden + self.ffn) * s.dtype_bytes
        return max(mlp, attention) + rows * tokens * self.statistics + lora

    def mask(self, rows: int, tokens: int) -> int:
        """The attention mask, rows x T x T, if rows are padded (unsloth's models/llama.py)."""
        return rows * tokens * tokens * self.settings.dtype_bytes * self.settings.padded

    @property
    def statistics(self) -> int:
        """Bytes per token, in float32: what norms and attention keep besides activations, and LoRA A's output."""
        return 4 * (2 * self.checkpoint.heads + self.checkpoint.kv_heads + 2) + 8 * self.settings.lora_rank

    @property
    def layer_with_gradient(self) -> int:
        """The recomputed layer at the peak of its backward pass (``LoRA_MLP.backward``): what the layer saves, the
        incoming gradient, the product of gate and up, and three LoRAs in 16 bit with their gradients.  Without
        checkpointing, what it saves is not counted here but in ``checkpoints``."""
        s = self.settings
        lora = 12 * s.lora_rank * (self.hidden + self.ffn) * s.dtype_bytes
        saved = self.layer_saved if s.checkpointing else 0
        return saved + lora + self.pass_tokens * (self.ffn + self.hidden) * s.dtype_bytes

    @property
    def layer_saved(self) -> int:
        """What a layer keeps for its backward pass without checkpointing, including its output:
        4 H + 3 A + 3 G + 2 F; in padded rows 4 H + 5 A + G + 2 F and the mask (kernels/fast_lora.py, rms_layernorm.py,
        qk_norm_rope.py)."""
        s = self.settings
        heads = 5 * self.attention + self.keys if s.padded else 3 * (self.attention + self.keys)
        saved = self.pass_tokens * (4 * self.hidden + heads + 2 * self.ffn) * s.dtype_bytes
        return saved + self.pass_tokens * self.statistics + self.pass_mask

    @property
    def checkpoints(self) -> int:
        """What is kept from forward to backward: each layer's input, or without checkpointing all that it saves, and
        the mask.  If inputs are offloaded, only the embedding's output and the last layer's input stay."""
        each = self.layer_input if self.settings.checkpointing else self.layer_saved
        return each * (2 if self.offloads else self.checkpoint.layers) + self.pass_mask

    def tile(self, with_gradient: bool = True) -> int:
        """Logits held at once for log-probabilities (unsloth_zoo/fused_losses/fused_linear.py).  Up to 24.5 GiB, or
        from 4096 scored tokens on: 4096 x 16384 in float32, an accumulator of 4096 x H for the gradient, and per row
        and 16384 columns 8 statistics, 16 beyond 4096 rows.  Else max(512, scored x H / V) rows, at most 2 GiB."""
        vocabulary, scored = self.checkpoint.vocabulary, self.scored_tokens
        if self.settings.small_card or scored >= 4096:
            rows = min(scored, 4096)
            statistics = 8 * -(-vocabulary // 16384) * (1 if scored <= rows else 2)
            accumulator = self.hidden if with_gradient else 0
            return 4 * rows * (min(vocabulary, 16384) + accumulator + statistics)
        rows = min(scored, max(512, scored * self.hidden // vocabulary))
        return min(4 * rows * vocabulary, 2 * GIB)

    def final_hidden(self, with_gradient: bool) -> int:
        """The last norm's output, its scored positions, and 80 bytes per token of ids, mask, labels and results.
        Training adds the norm's input and the gradient, which both kernels compute in the forward pass."""
        tokens = self.pass_tokens + self.scored_tokens
        hidden = tokens * (2 if with_gradient else 1) * self.hidden * self.settings.dtype_bytes
        return hidden + self.pass_tokens * 80

    @property
    def last_layer(self) -> int:
        """The last layer's forward pass, besides what is kept.  If inputs are offloaded, the first micro-batch keeps
        one more: unsloth_zoo's ``CURRENT_GC_INDEX`` has also counted the earlier pass without gradient."""
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
        if not self.settings.by_vllm:
            phases["generate"] = self._generate()
        if self.settings.beta or self.settings.old_pass:
            phases["log-probs"] = self._log_probs()
        phases |= {"forward": self._forward(), "backward": self._backward()}
        # The fused optimizer needs only gradients and state; clipping needs two norms of each tensor.
        norms = 8 * len(self.trained_sizes) + 8
        phases["optimizer"] = {**self.standing, GRADIENTS: self.gradients + norms}
        if self.settings.evaluates:
            size = self.settings.per_device_eval_batch_size
            passed = Step(self.model, replace(self.settings, per_device_train_batch_size=size))._log_probs()
            phases["evaluation"] = passed | self.standing
        return phases

    def _generate(self) -> Parts:
        """The largest of three moments: the prompts in a layer; the first decode step, which copies their keys and
        values into buffers and holds the previous token's scores; the last step, after a layer's buffer has grown."""
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
        """Log-probabilities before the update, without gradient: the larger of a layer and the head."""
        layer = {LAYER: self.layer_without_gradient(self.micro_rows, self.settings.row_tokens)}
        tile = self.tile(with_gradient=False)
        moving = _largest(layer, {HIDDEN: self.final_hidden(with_gradient=False), TILE: tile})
        return self._phase(moving, tile if TILE in moving else self.widest_activation)

    def _forward(self) -> Parts:
        """Everything kept, and the larger of the last layer and the head.  lm_head's gradient is summed over tiles in
        float32 (unsloth_zoo/cpu/ops.py)."""
        head = {HEAD_GRADIENT: 4 * self.head} if self.model.full_sizes else {}
        ends = {HIDDEN: self.final_hidden(with_gradient=True), TILE: self.tile(), **head}
        moving = _largest(ends, {LAYER: self.last_layer})
        block = self.tile() if TILE in moving else self.widest_activation
        return self._phase({GRADIENTS: self.gradients, CHECKPOINTS: self.checkpoints, **moving}, block)

    def _backward(self) -> Parts:
        """Everything kept, and one layer in full.  One weight is dequantised outside the shared buffer
        (``LoRA_MLP.backward``, without ``use_global_buffer``)."""
        layers = {CHECKPOINTS: self.checkpoints, LAYER: self.layer_with_gradient, BUFFER: 2 * self.buffer}
        if self.model.full_sizes:
            # The embedding's gradient; if tied, lm_head's too, and from the second micro-batch on their sum.
            copies = 1 + self.checkpoint.tied * (1 + (self.settings.gradient_accumulation_steps > 1))
            layers[HEAD_GRADIENT] = copies * self.head * self.settings.dtype_bytes
        return self._phase({GRADIENTS: self.gradients, **layers}, self.widest_activation)

    def _phase(self, moving: Parts, block: int) -> Parts:
        """Add fragmentation, estimated as the largest block once more: it does not fit the holes of smaller blocks."""
        fragmentation = {FRAGMENTATION: block} if self.settings.on_gpu else {}
        return {**self.standing, **moving, **fragmentation}


def _in_blocks(tokens: int) -> int:
    return -(-tokens // 256) * 256


def _largest(*moments: Parts) -> Parts:
    return max(moments, key=lambda parts: sum(parts.values()))

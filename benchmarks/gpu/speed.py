"""Speed: Qwen3-4B's shape in 4 bit, K = 8, by trainer; against the bandwidth bound; and what could make it faster.

Three trainers: TRL + PEFT + bitsandbytes without unsloth in the process, TRL under unsloth (the usual recipe), the kit.
All sample full completions of the same prompts, eight of one prompt a step, in one pass, beta 0.05.  The first step, of
a few tokens, is left out.  A candidate is the kit's run with one public switch of the stack turned; one that raises
fails with its error.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import device, shapes
from .checks import KIT, PLAIN, Check, Figure, Found, Place, add, at_least, check, seen
from .prefill import prefilled_once
from .report import NOT_RUN, Outcome, verdict
from .variants import CANDIDATES, PROMPT_TOKENS, TRAINERS, Variant
from .workload import REHEARSAL_TOKENS, HalfDead, dataset, every_other, full_length, settings

if TYPE_CHECKING:
    from rloo_kit.catalogue import Checkpoint as Card

SHAPE = "qwen3-4b"
K = 8
LENGTHS = (256, 1024)
LORA_RANK = 16


# --- one run ----------------------------------------------------------------------------------------------


def run(variant: Variant, tokens: int, place: Place) -> Found:
    """The last step, by phase; and what the first one takes, in which unsloth compiles each kind of layer."""
    from phases import PHASES

    tokens = min(tokens, REHEARSAL_TOKENS) if place.is_rehearsal else tokens
    model, tokenizer = _model(variant, place)
    on_gpu = not place.is_rehearsal
    device.forget_peaks(on_gpu)
    with tempfile.TemporaryDirectory() as folder:
        meter = _train(variant, model, tokenizer, tokens, folder, place)
    step = meter.steps[-1]
    seconds, rows = step.total.wall_seconds, K * variant.groups
    decoding = step.spent["generate"].wall_seconds
    peaks = device.peaks(on_gpu)
    return Found(
        [
            seen("a step", seconds, "s"),
            seen("completions", rows / seconds, "/s"),
            seen("tokens while sampling", step.tokens / decoding, "/s"),
            seen("a token of all rows", 1e3 * decoding / tokens, "ms"),
            at_least("tokens sampled, of all that there could be", step.tokens / (rows * tokens), 0.9),
            seen("peak held by torch", max(peaks.values()) / device.GIB, "GiB"),
            seen("peak of tensors", peaks["allocated"] / device.GIB, "GiB"),
            *(
                seen(name, step.spent[name].wall_seconds, "s")
                for name in PHASES
                if step.spent[name].wall_seconds
            ),
            seen("the first step, of a few tokens", meter.steps[0].total.wall_seconds, "s"),
        ],
        {
            "variant": dataclasses.asdict(variant),
            "tokens": step.tokens,
            "steps": [one.total.wall_seconds for one in meter.steps],
            "stored_bytes": _stored_bytes(model),
            "graphs": graph_counts(model),
        },
    )


def _model(variant: Variant, place: Place) -> tuple[Any, Any]:
    if variant.trainer == "plain":
        return plain_model(str(shapes.folder_of(SHAPE, place)))
    import rloo_kit

    shapes.forget()
    folder = shapes.folder_of(SHAPE, place)
    if variant.load.get("load_in_4bit") is False:
        folder = _sixteen_bit(place)
    policy = rloo_kit.load_policy(folder, seed=0, **variant.load)
    return policy.model, policy.tokenizer


def _sixteen_bit(place: Place) -> Any:
    """The same shape in 16 bit, made on first use."""
    import torch

    folder = place.scratch / "shapes" / f"{SHAPE}-16bit"
    if not folder.exists():
        on = "cuda" if torch.cuda.is_available() else "cpu"
        shapes.save(shapes.card_of(SHAPE, place), folder, four_bit=False, device=on)
    return folder


def plain_model(folder: str) -> tuple[Any, Any]:
    """The quantised base and its tokenizer, as transformers alone loads them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    on = {"": 0} if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device.computes_bf16() else torch.float16
    base = AutoModelForCausalLM.from_pretrained(folder, device_map=on, dtype=dtype)
    return base, AutoTokenizer.from_pretrained(folder)


def plain_lora() -> Any:
    """The LoRA that TRL puts on it: its own way with a quantised model is a ``peft_config`` for the trainer."""
    from peft import LoraConfig

    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, target_modules=names, task_type="CAUSAL_LM")


def trainer_of(variant: Variant, model: Any, tokenizer: Any, tokens: int, folder: str, place: Place) -> Any:
    """Its trainer, and the callback that sets completions' length."""
    if variant.trainer == "kit":
        import rloo_kit

        kind, config_kind, own = rloo_kit.RLOOTrainer, rloo_kit.RLOOConfig, {"live_plot": False}
    else:
        import trl

        kind, config_kind, own = trl.RLOOTrainer, trl.RLOOConfig, {}
    steps = 3 if tokens <= LENGTHS[0] else 2  # one more where it is cheap, should a kernel be compiled late
    shared = settings(folder, K, variant.groups, K, tokens, max_steps=steps, **_precision())
    lengths = full_length(tokens)
    trainer = kind(
        model=model,
        processing_class=tokenizer,
        reward_funcs=HalfDead(K) if variant.half_dead else every_other,
        args=config_kind(**{**shared, **own, **variant.config}),
        train_dataset=dataset(32 if place.is_rehearsal else variant.prompt_tokens),
        callbacks=[lengths],
        **({"peft_config": plain_lora()} if variant.trainer == "plain" else {}),
    )
    if variant.prefill_once:
        trainer.model.generate = prefilled_once(trainer.model.generate, K)
    lengths.begin(trainer)
    return trainer


def _precision() -> dict[str, bool]:
    import torch

    if not torch.cuda.is_available():
        return {"bf16": False, "fp16": False}
    bf16 = device.computes_bf16()
    return {"bf16": bf16, "fp16": not bf16}


def _train(variant: Variant, model: Any, tokenizer: Any, tokens: int, folder: str, place: Place) -> Any:
    from phases import Meter
    from transformers import TrainerCallback

    trainer = trainer_of(variant, model, tokenizer, tokens, folder, place)
    trainer.memory = None  # the kit's own meter sets the peaks back in every phase
    meter = Meter(trainer)

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meter.end_step()

    trainer.add_callback(Watch())
    trainer.train()
    return meter


def graph_counts(model: Any) -> dict[str, Any]:
    """How often unsloth captured and replayed a decode step, and why it gave that up, if it did; empty where it
    keeps no count."""
    for module in model.modules():
        state = vars(module).get("_unsloth_decode_graphs")
        if state is not None:
            kept = ("captures", "replays", "eager_steps", "disabled")
            return {name: getattr(state, name, None) for name in kept}
    return {}


def _stored_bytes(model: Any) -> int:
    """Bytes of all weights as they lie on the card, LoRA and quantisation state included."""
    total = 0
    for parameter in {id(p): p for p in model.parameters()}.values():
        state = getattr(parameter, "quant_state", None)
        parts = [parameter] + ([state.absmax] if state is not None else [])
        total += sum(part.numel() * part.element_size() for part in parts)
    return total


# --- the bound --------------------------------------------------------------------------------------------


def bytes_per_step(
    card: Card, rows: int, prompt: int, tokens: int, lora_rank: int, four_bit: bool = True
) -> float:
    """Bytes that one decoding step of all rows has to read, in the middle of a completion.

    Every projection as stored and its LoRA in 16 bit (unsloth keeps such copies), once for all rows; lm_head in 16 bit
    (the embedding gives one row a token, which is nothing); and each row's keys and values so far, on average
    prompt + tokens / 2.
    """
    shapes_of_lora = sum(lora_rank * (outputs + inputs) for outputs, inputs in card.projections.values())
    weights = card.linear_bytes(four_bit) + 2 * card.layers * shapes_of_lora
    head = 2 * card.vocabulary * card.hidden_size
    return weights + head + rows * (prompt + tokens / 2) * card.kv_bytes_per_token


@check("speed/bandwidth", seconds=60, takes=5, rank=26)
def bandwidth(place: Place) -> Found:
    """What a copy on the device moves, and the tokens per second that it would allow."""
    from rloo_kit.catalogue import CATALOGUE

    found = device.copy_bandwidth(2**24 if place.is_rehearsal else device.GIB)
    card = CATALOGUE[SHAPE]
    figures = [seen("copy, read and written", found / 1e9, "GB/s")]
    for tokens in LENGTHS:
        needed = bytes_per_step(card, K, PROMPT_TOKENS, tokens, LORA_RANK)
        figures.append(seen(f"bound of decoding, {tokens} tokens", K * found / needed, "tokens/s"))
    return Found(figures, {"bytes_per_second": found})


# --- the goals --------------------------------------------------------------------------------------------


def goals(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What the kit is to the usual recipe, from both runs: twice the completions a second, at most its peak; and how
    far either is from the bound."""
    known = {
        outcome.name: {f.name: f.value for f in outcome.figures} for outcome in outcomes if outcome.figures
    }
    bound = known.get("speed/bandwidth", {})
    return [_goal(tokens, known, bound.get(f"bound of decoding, {tokens} tokens")) for tokens in LENGTHS]


def _goal(tokens: int, known: dict[str, dict[str, float]], bound: float | None) -> Outcome:
    name = f"speed/goal, {tokens} tokens"
    usual, kit = (known.get(f"speed/{tokens} tokens, {one}") for one in ("TRL under unsloth", "kit"))
    if usual is None or kit is None:
        return Outcome(name, NOT_RUN, note="needs the kit's run and the usual recipe's")
    faster, larger = (kit[figure] / usual[figure] for figure in ("completions", "peak held by torch"))
    figures = [
        Figure("completions a second, kit / usual recipe", faster, low=2.0, is_goal=True),
        Figure("peak, kit / usual recipe", larger, high=1.0, is_goal=True),
    ]
    if bound:
        figures.append(seen("kit's sampling, of the bandwidth bound", kit["tokens while sampling"] / bound))
    return Outcome(name, verdict(figures), tuple(figures))


# --- the list ---------------------------------------------------------------------------------------------


def _home(variant: Variant) -> str:
    return PLAIN if variant.trainer == "plain" else KIT if not variant.variables else "tuned"


def _put(name: str, variant: Variant, tokens: int, rank: int) -> None:
    add(
        Check(
            name,
            functools.partial(run, variant, tokens),
            seconds=150 + 0.15 * tokens,
            takes=30 + (0.07 if variant.trainer == "plain" else 0.03) * tokens,
            rank=rank,
            home=_home(variant),
            variables=variant.variables,
            needs=(f"shape/{SHAPE}",),
            is_rehearsed=variant.trainer != "plain",
        )
    )


for _tokens, _ranks in {256: (26, 34), 1024: (43, 44)}.items():
    for _name, _variant in TRAINERS.items():
        _put(f"speed/{_tokens} tokens, {_name}", _variant, _tokens, _ranks[_variant.trainer == "plain"])
for _rank, (_name, _variant) in enumerate(CANDIDATES.items()):
    _put(f"tune/{_name}", _variant, 256, 70 + _rank)

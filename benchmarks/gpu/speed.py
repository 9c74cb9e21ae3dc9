"""Time a training step on a Qwen3 shape in 4 bit, the kit's beside that of Unsloth's notebooks.

TRL under Unsloth and the kit sample full completions of the same prompts, K of one prompt per step, and train on them
in one pass, with beta 0.05.  The first step is a warm-up.
"""

import importlib
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from phases import PHASES, Meter, peak_bytes, reset_peak

from . import work
from .runner import Figure, Place
from .work import KIT, UNSLOTH

SHAPE, K = "qwen3-4b", 8


def run(
    place: Place,
    trainer: str,
    tokens: int,
    shape: str = SHAPE,
    k: int = K,
    steps: int = 1,
    label: str = "",
    loading: dict[str, Any] | None = None,
    in_16_bit: bool = True,
    **config: Any,
) -> dict[str, Figure]:
    """Return the median over ``steps``, in total and by phase, and the kit's ratios to what was timed before it on the
    same shape."""
    label = label or trainer
    if place.is_rehearsal:
        tokens, k = work.REHEARSAL_TOKENS, min(k, K)
    timed = trainer_of(place, trainer, tokens, shape, k, loading or {}, **{"max_steps": 1 + steps, **config})
    torch.cuda.empty_cache()
    reset_peak("cuda")
    meter, peaks = Meter(timed), list[int]()

    def end_step() -> None:
        meter.end_step()
        peaks.append(peak_bytes("cuda"))

    def begin() -> None:
        timed._in_16_bit = in_16_bit  # set here, since train() resets it
        meter.begin()

    work.listen(timed, on_train_begin=begin, on_step_end=end_step)
    timed.train()
    counted = meter.steps[1:]
    every = [step.total.wall_seconds for step in counted]
    seconds, sampled = statistics.median(every), sum(step.tokens for step in counted) / steps
    mine = {"completions a second": k / seconds, "peak of tensors, GiB": max(peaks[1:]) / 2**30}
    found = {"a step, s": seconds, "its fastest, s": min(every), "its slowest, s": max(every)}
    for name in PHASES:
        found[f"{name}, s"] = statistics.median(step.spent[name].wall_seconds for step in counted)
    found["the first step, of a few tokens, s"] = meter.steps[0].total.wall_seconds
    return {
        **{name: Figure(value) for name, value in {**found, **mine}.items()},
        **beside(label, mine, place.scratch / f"speed-{shape}-{k}-{tokens}.json"),
        # With random weights a row ends early about once in ten steps, at an end-of-turn or a padding token.
        "tokens sampled, of all that there could be": Figure(sampled / (k * tokens), low=0.75),
    }


def beside(trainer: str, mine: dict[str, float], file: Path) -> dict[str, Figure]:
    known: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, trainer: mine}))
    found: dict[str, Figure] = {}
    for other in known if trainer.startswith(KIT) else ():
        speed, peak = (mine[name] / known[other][name] for name in mine)
        goal = " (goal: 2 or more)" if other == UNSLOTH else ""
        found |= {f"speed, / {other}{goal}": Figure(speed), f"peak, / {other}": Figure(peak)}
    return found


def model_of(folder: Path, trainer: str, loading: dict[str, Any]) -> dict[str, Any]:
    """Return model and tokenizer as a trainer's arguments, loaded by ``load_policy`` or as in Unsloth's notebooks.  The
    kit sets environment variables, so rloo_kit is imported for its own run only."""
    if trainer == KIT:
        import rloo_kit

        policy = rloo_kit.load_policy(folder, **loading)
        return {"model": policy.model, "processing_class": policy.tokenizer}
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(str(folder), max_seq_length=2048, load_in_4bit=True)
    projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    rank = {"r": 16, "lora_alpha": 16, "target_modules": projections}
    lora = FastLanguageModel.get_peft_model(model, **rank, use_gradient_checkpointing="unsloth")
    return {"model": lora, "processing_class": tokenizer}


def trainer_of(
    place: Place, trainer: str, tokens: int, shape: str, k: int, loading: dict[str, Any], **more: Any
) -> Any:
    named = model_of(place.scratch / shape, trainer, loading)
    kind = importlib.import_module("rloo_kit" if trainer == KIT else "trl")
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    folder = str(place.scratch / "run")
    config = kind.RLOOConfig(**work.settings(folder, k, 1, k, tokens, bf16=bf16, fp16=not bf16, **more))
    data = work.dataset(32 if place.is_rehearsal else 128)
    made = kind.RLOOTrainer(reward_funcs=work.every_other, args=config, train_dataset=data, **named)
    work.at_full_length(made, tokens)
    return made

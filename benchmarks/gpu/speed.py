"""Speed: seconds of a step on a Qwen3 shape in 4 bit, beside the usual recipes.

Three trainers: TRL with PEFT and bitsandbytes, TRL under Unsloth, the kit.  All sample full completions of the same
prompts, K of one prompt a step, in one pass, with beta 0.05; the first step warms up.
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
    longer: int = 0,
    label: str = "",
    config: dict[str, Any] | None = None,
) -> dict[str, Figure]:
    """The median of ``steps``, in all and by phase, then a step of ``longer`` completions; and of the kit beside what
    ran before it in this command."""
    label = label or trainer
    if place.is_rehearsal:
        tokens, longer, k = work.REHEARSAL_TOKENS, 2 * work.REHEARSAL_TOKENS * bool(longer), min(k, K)
    config = {"max_steps": 1 + steps + bool(longer), **(config or {})}
    timed = trainer_of(place, trainer, tokens, shape, k, longer, **config)
    torch.cuda.empty_cache()
    reset_peak("cuda")
    meter = Meter(timed)

    def end_step() -> None:
        meter.end_step()
        if longer and len(meter.steps) > steps:
            timed.generation_config.max_new_tokens = longer

    work.listen(timed, on_train_begin=meter.begin, on_step_end=end_step)
    timed.train()
    counted, last = meter.steps[1 : 1 + steps], meter.steps[-1]
    every = [step.total.wall_seconds for step in counted]
    seconds, sampled = statistics.median(every), sum(step.tokens for step in counted) / steps
    mine = {"completions a second": k / seconds, "peak of tensors, GiB": peak_bytes("cuda") / 2**30}
    found = {"a step, s": seconds, "its fastest, s": min(every), "its slowest, s": max(every)}
    if longer:
        found[f"a step of {longer} tokens, s"] = last.total.wall_seconds
        found[f"of it generate, {longer} tokens, s"] = last.spent["generate"].wall_seconds
    for name in PHASES:
        found[f"{name}, s"] = statistics.median(step.spent[name].wall_seconds for step in counted)
    found["the first step, of a few tokens, s"] = meter.steps[0].total.wall_seconds
    return {
        **{name: Figure(value) for name, value in {**found, **mine}.items()},
        **beside(label, mine, place.scratch / f"speed-{shape}-{k}-{tokens}-{longer}.json"),
        # A row of random weights ends early about once in ten steps: at the end of a turn, or at the padding.
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


def model_of(folder: Path, trainer: str) -> dict[str, Any]:
    """Model, tokenizer and LoRA as arguments of a trainer: by ``load_policy``, as Unsloth's notebooks load them, or by
    transformers and TRL alone.  The loader sets the environment, so rloo_kit is imported for its own run only."""
    if trainer == KIT:
        import rloo_kit

        policy = rloo_kit.load_policy(folder)
        return {"model": policy.model, "processing_class": policy.tokenizer}
    if trainer == UNSLOTH:
        from unsloth import FastLanguageModel

        model, tokenizer = FastLanguageModel.from_pretrained(str(folder), max_seq_length=2048, load_in_4bit=True)
        projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        rank = {"r": 16, "lora_alpha": 16, "target_modules": projections}
        lora = FastLanguageModel.get_peft_model(model, **rank, use_gradient_checkpointing="unsloth")
        return {"model": lora, "processing_class": tokenizer}
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, device_map={"": 0}, dtype="auto")
    lora = LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    return {"model": model, "processing_class": AutoTokenizer.from_pretrained(folder), "peft_config": lora}


def trainer_of(place: Place, trainer: str, tokens: int, shape: str, k: int = K, longer: int = 0, **more: Any) -> Any:
    named = model_of(place.scratch / shape, trainer)
    kind = importlib.import_module("rloo_kit" if trainer == KIT else "trl")
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    folder = str(place.scratch / "run")
    longest = max(tokens, longer)
    config = kind.RLOOConfig(**work.settings(folder, k, 1, k, longest, bf16=bf16, fp16=not bf16, **more))
    data = work.dataset(32 if place.is_rehearsal else 128)
    made = kind.RLOOTrainer(reward_funcs=work.every_other, args=config, train_dataset=data, **named)
    made.memory = None  # the kit's own meter sets the peaks back in every phase
    work.at_full_length(made, tokens)
    return made

"""Speed: seconds of a step on Qwen3-4B's shape in 4 bit with K = 8, beside the usual recipes.

Three trainers: TRL with PEFT and bitsandbytes, TRL under Unsloth, the kit.  All sample full completions of the same
prompts, eight of one prompt a step, in one pass, with beta 0.05; the last step counts.  A candidate is the kit's run
with one public switch turned, measured beside the kit's default of the same command.  Nothing here changes the kit.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from phases import PHASES, Meter, peak_bytes, reset_peak

from . import work
from .runner import Figure, Place
from .work import KIT, PLAIN, UNSLOTH

SHAPE, K = "qwen3-4b", 8


def run(place: Place, trainer: str, tokens: int, candidate: Any = None) -> dict[str, Figure]:
    """The last step, in all and by phase, and beside the runs before it in this command; a candidate has arguments of
    the config and of ``load_policy``, over the kit's, and ``groups``, prompts sampled at once."""
    tokens = work.REHEARSAL_TOKENS if place.is_rehearsal else tokens
    switch = candidate or {}
    rows = K * switch.get("groups", 1)
    timed = trainer_of(place, trainer, tokens, switch)
    torch.cuda.empty_cache()
    reset_peak("cuda")
    meter = Meter(timed)
    work.listen(timed, on_train_begin=meter.begin, on_step_end=meter.end_step)
    timed.train()
    steps, last, seconds = meter.steps, meter.steps[-1], meter.steps[-1].total.wall_seconds
    mine = {"completions a second": rows / seconds, "peak of tensors, GiB": peak_bytes("cuda") / 2**30}
    return {
        "a step, s": Figure(seconds),
        **{name: Figure(value) for name, value in mine.items()},
        **beside(trainer, candidate is None, mine, place.scratch / f"speed-{tokens}.json"),
        # A row of random weights ends early about once in ten steps: at the end of a turn, or at the padding.
        "tokens sampled, of all that there could be": Figure(last.tokens / (rows * tokens), low=0.75),
        **{f"{name}, s": Figure(last.spent[name].wall_seconds) for name in PHASES},
        "the first step, of a few tokens, s": Figure(steps[0].total.wall_seconds),
    }


def beside(trainer: str, is_default: bool, mine: dict[str, float], file: Path) -> dict[str, Figure]:
    """Ratios to the trainers measured before: of the kit to the recipes, of a candidate to the kit's default."""
    known: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    if is_default:
        file.write_text(json.dumps({**known, trainer: mine}))
    found: dict[str, Figure] = {}
    for other in {PLAIN, UNSLOTH} & known.keys() if is_default else {KIT}:
        if trainer == KIT:
            speed, peak = (mine[name] / known[other][name] for name in mine)
            goal = " (goal: 2 or more)" if other == UNSLOTH else ""
            found |= {f"speed, / {other}{goal}": Figure(speed), f"peak, / {other}": Figure(peak)}
    return found


def model_of(folder: Path, trainer: str, **options: Any) -> dict[str, Any]:
    """Model, tokenizer and LoRA as arguments of a trainer: by ``load_policy``, as Unsloth's notebooks load them, or by
    transformers and TRL alone.  The loader sets the environment, so rloo_kit is imported for its own run only."""
    if trainer == KIT:
        import rloo_kit

        policy = rloo_kit.load_policy(folder, **options)
        return {"model": policy.model, "processing_class": policy.tokenizer}
    if trainer == UNSLOTH:
        from unsloth import FastLanguageModel

        model, tokenizer = FastLanguageModel.from_pretrained(
            str(folder), max_seq_length=2048, load_in_4bit=True
        )
        projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        rank = {"r": 16, "lora_alpha": 16, "target_modules": projections}
        lora = FastLanguageModel.get_peft_model(model, **rank, use_gradient_checkpointing="unsloth")
        return {"model": lora, "processing_class": tokenizer}
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, device_map={"": 0}, dtype="auto")
    lora = LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    return {"model": model, "processing_class": AutoTokenizer.from_pretrained(folder), "peft_config": lora}


def trainer_of(place: Place, trainer: str, tokens: int, switch: dict[str, Any]) -> Any:
    """One of the three, on a policy of its own."""
    named = model_of(place.scratch / SHAPE, trainer, **switch.get("load", {}))
    kind = importlib.import_module("rloo_kit" if trainer == KIT else "trl")
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    more = {"bf16": bf16, "fp16": not bf16, **switch.get("config", {})}
    folder, groups = str(place.scratch / "run"), switch.get("groups", 1)
    config = kind.RLOOConfig(**work.settings(folder, K, groups, K, tokens, **more))
    data = work.dataset(32 if place.is_rehearsal else 128)
    made = kind.RLOOTrainer(reward_funcs=work.every_other, args=config, train_dataset=data, **named)
    made.memory = None  # the kit's own meter sets the peaks back in every phase
    work.at_full_length(made, tokens)
    return made

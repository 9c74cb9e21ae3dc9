"""Speed: seconds of a step on Qwen3-4B's shape in 4 bit with K = 8, beside the usual recipes.

Three trainers: TRL with PEFT and bitsandbytes, TRL under Unsloth, the kit.  All sample full completions of the same
prompts, eight of one prompt a step, in one pass, with beta 0.05; the last step counts.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from phases import PHASES, Meter, peak_bytes, reset_peak

from . import work
from .runner import Figure, Place
from .work import KIT, UNSLOTH

SHAPE, K = "qwen3-4b", 8


def run(place: Place, trainer: str, tokens: int, shape: str = SHAPE) -> dict[str, Figure]:
    """The last step, in all and by phase, and of the kit beside the recipes that ran before it in this command."""
    tokens = work.REHEARSAL_TOKENS if place.is_rehearsal else tokens
    timed = trainer_of(place, trainer, tokens, shape)
    torch.cuda.empty_cache()
    reset_peak("cuda")
    meter = Meter(timed)
    work.listen(timed, on_train_begin=meter.begin, on_step_end=meter.end_step)
    timed.train()
    last, seconds = meter.steps[-1], meter.steps[-1].total.wall_seconds
    mine = {"completions a second": K / seconds, "peak of tensors, GiB": peak_bytes("cuda") / 2**30}
    return {
        "a step, s": Figure(seconds),
        **{name: Figure(value) for name, value in mine.items()},
        **(beside(trainer, mine, place.scratch / f"speed-{tokens}.json") if shape == SHAPE else {}),
        # A row of random weights ends early about once in ten steps: at the end of a turn, or at the padding.
        "tokens sampled, of all that there could be": Figure(last.tokens / (K * tokens), low=0.75),
        **{f"{name}, s": Figure(last.spent[name].wall_seconds) for name in PHASES},
        "the first step, of a few tokens, s": Figure(meter.steps[0].total.wall_seconds),
    }


def beside(trainer: str, mine: dict[str, float], file: Path) -> dict[str, Figure]:
    known: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, trainer: mine}))
    found: dict[str, Figure] = {}
    for other in known if trainer == KIT else ():
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


def trainer_of(place: Place, trainer: str, tokens: int, shape: str) -> Any:
    named = model_of(place.scratch / shape, trainer)
    kind = importlib.import_module("rloo_kit" if trainer == KIT else "trl")
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    folder = str(place.scratch / "run")
    config = kind.RLOOConfig(**work.settings(folder, K, 1, K, tokens, bf16=bf16, fp16=not bf16))
    data = work.dataset(32 if place.is_rehearsal else 128)
    made = kind.RLOOTrainer(reward_funcs=work.every_other, args=config, train_dataset=data, **named)
    made.memory = None  # the kit's own meter sets the peaks back in every phase
    work.at_full_length(made, tokens)
    return made

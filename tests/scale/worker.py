"""Do in each process of a launcher what a run does: a screen, a level, a few steps, a saved adapter.

``worker.py FOLDER '{"max_steps": 2, ...}'``.  Each process writes what it saw into FOLDER/seen_RANK.json.
"""

import json
import os
import sys
from pathlib import Path

import rloo_kit

folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
dies, resume = asked.pop("dies", None), asked.pop("resume", None)
rank = int(os.environ.get("RANK", 0))
rloo_kit.prepare()
policy = rloo_kit.load_policy("tiny", seed=0)
task = rloo_kit.tasks.arithmetic(
    asked.pop("level", 1), policy, n_train=32, n_held_out=8, max_new_tokens=16, n_prompts=2, n_samples=1
)
config = rloo_kit.RLOOConfig(
    output_dir=str(folder / "run"),
    num_generations=4,
    gradient_accumulation_steps=1,
    max_completion_length=8,
    learning_rate=1e-3,
    lr_scheduler_type="constant",
    logging_steps=1,
    report_to="none",
    seed=7,
    top_p=0.9,  # questionable, so it warns, once
    **asked,
)
seen: list[tuple[int, str, list[int]]] = []


def reward(completion_ids: list[list[int]], problem: list[str], trainer_state, **kwargs: object) -> list[float]:
    step = trainer_state.global_step + 1
    seen.extend((step, text, list(ids)) for text, ids in zip(problem, completion_ids, strict=True))
    if dies and rank == dies["rank"] and step == dies["step"]:
        raise ZeroDivisionError("the reward broke")
    return [sum(ids) % 97 / 97 for ids in completion_ids]


trainer = rloo_kit.RLOOTrainer(model=policy, reward_funcs=reward, args=config, train_dataset=task.train)
trainer.train(resume_from_checkpoint=resume)
policy.save(folder / "adapter")
saved = sorted(path.name for path in (folder / "adapter").iterdir())  # complete before any process goes on
told = {"seen": seen, "processes": trainer.accelerator.num_processes, "adapter": saved}
(folder / f"seen_{rank}.json").write_text(json.dumps(told))

"""Draw results/quickstart_run.png from the recorded log of notebook 01; nothing is measured.

python benchmarks/quickstart_picture.py
"""

import rloo_kit  # isort: skip - unsloth first

import json
from types import SimpleNamespace

from health_runs import DATA
from tables import RESULTS

if __name__ == "__main__":
    run = json.loads((DATA / "quickstart_seed_0.healthy.json").read_text())
    settings = rloo_kit.RLOOConfig(**run["config"])
    trainer = SimpleNamespace(state=SimpleNamespace(log_history=run["log_history"]), args=settings)
    rloo_kit.plot(trainer, RESULTS / "quickstart_run.png")

"""Compare the memory plan with live tensors of Unsloth's own GPU code, on real Qwen3 shapes in 4 bit, without a GPU.

Tensors lie on "meta": they have a shape and no memory (benchmarks/pretended).  Unsloth's forward and backward passes,
its offloading, head, cache and captured decode step make them, and live bytes are counted at every operation.  Only the
plan's figures for tensors are compared.  The CUDA context, fragmentation, projections kept in 16 bit and what a kernel
allocates inside stay estimates.

    python benchmarks/plan_on_meta.py             measure the configurations of results/plan_on_meta.json; ten minutes
    python benchmarks/plan_on_meta.py --stored    write the document again from the stored figures
    python benchmarks/plan_on_meta.py --short     two configurations, printed as JSON

The stored configurations cover each shape in full, and more settings on six of its layers, since layers are alike.  The
script needs the release of Triton that torch names (the package "triton"), in .triton or on the path.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import RESULTS, document, table, write

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".triton")]

COUNTED = ("load", "generate", "log-probs", "forward", "backward", "optimizer")
EIGHT_BIT = {"optimizer": "adamw_8bit"}
SHORT = (
    {"model": "qwen3-4b", "layers": 3, "rows": 8, "micro": 2, "padded": True},
    {"model": "qwen3-0.6b", "layers": 3, "rows": 4, "micro": 4, "completion": 1536, "checkpointing": False} | EIGHT_BIT,
)
"""The test's configurations: few layers, everything else as in the real shapes."""


def planned(case: dict[str, Any]) -> dict[str, int]:
    """Return phase -> planned bytes of tensors, from the catalogue; all projections are in 4 bit, as in the trace."""
    from rloo_kit.memory.formulas import BUFFER, CONTEXT, FRAGMENTATION, WORKSPACES, Step
    from rloo_kit.memory.plan_settings import Settings
    from rloo_kit.memory.policy_tensors import model_of
    from rloo_kit.models import CATALOGUE

    settings = Settings(
        prompt_tokens=case["prompt"],
        max_completion_length=case["completion"],
        padded=case["padded"],
        num_generations=case["rows"],
        per_device_train_batch_size=case["micro"],
        steps_per_generation=case["rows"] // case["micro"],
        gradient_accumulation_steps=case["rows"] // case["micro"],
        beta=0.05,
        optim=case["optimizer"],
        checkpointing=case["checkpointing"],
    )
    whole = CATALOGUE[case["model"]]
    checkpoint = dataclasses.replace(whole, layers=case["layers"] or whole.layers, four_bit_repository=None)
    phases = Step(model_of(checkpoint, settings.lora_rank, four_bit=True), settings).phases()
    phases["load"].pop(BUFFER)  # weights are quantised already here
    estimated = {CONTEXT, FRAGMENTATION, WORKSPACES}  # no pretended card has these
    return {name: sum(parts[part] for part in parts.keys() - estimated) for name, parts in phases.items()}


def measure(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    from benchmarks.pretended import start

    start("rtx 3090", target="meta")
    from benchmarks.pretended.meta import make_passes_run
    from benchmarks.pretended.trace import Case, Run

    mode, found = make_passes_run(), []
    for given in cases:
        case = Case(**given)
        run = Run(case, mode)
        run.step()
        found.append({"case": dataclasses.asdict(case), "traced": {name: run.peaks[name] for name in COUNTED}})
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def ratios(entry: dict[str, Any]) -> list[float]:
    plan = planned(entry["case"])
    return [plan[name] / entry["traced"][name] for name in COUNTED]


def row(entry: dict[str, Any]) -> list[str]:
    """Return a table row: a configuration, the traced peak, and each phase's planned / traced."""
    case = entry["case"]
    shown = {"adamw_torch_fused": "fused", "adamw_8bit": "8 bit"}
    return [
        case["model"],
        str(case["layers"] or "all"),
        f"{case['rows']} by {case['micro']}",
        f"{case['prompt']} + {case['completion']:,}",
        "yes" if case["padded"] else "no",
        str(case["checkpointing"]),
        shown[case["optimizer"]],
        f"{max(entry['traced'].values()) / 2**30:.2f}",
        *(f"{ratio:.3f}" for ratio in ratios(entry)),
    ]


def report(found: list[dict[str, Any]], command: str) -> str:
    all_ratios = [ratio for entry in found for ratio in ratios(entry)]
    columns = ("policy", "layers", "rows by micro-batch", "tokens", "padded", "checkpointing", "AdamW")
    return document(
        "The memory plan beside Unsloth's own code",
        command,
        "Traced on tensors without memory, on no GPU: Unsloth's GPU code makes the tensors, and what is live is "
        "counted. A phase's figure is planned / traced, tensors alone; the peak is the largest phase's, traced.",
        f"{len(found)} configurations, {len(all_ratios)} phases: planned / traced from {min(all_ratios):.4f} to "
        f"{max(all_ratios):.4f}.",
        table((*columns, "peak GiB", *COUNTED), "lrlllllr" + "r" * len(COUNTED), map(row, found)),
        "Not traced: the CUDA context, fragmentation, projections that repositories keep in 16 bit, a matrix in full "
        "while it is quantised, and what a kernel allocates inside.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    if given.short:
        print(json.dumps(measure(SHORT)))
        return
    stored = RESULTS / "plan_on_meta.json"
    found = json.loads(stored.read_text())
    if not given.stored:
        found = measure([entry["case"] for entry in found])
        stored.write_text(json.dumps(found, indent=1) + "\n")
    write("plan_on_meta", lambda command: report(found, command))


if __name__ == "__main__":
    main()

"""Run the quickstart notebook from top to bottom, show its output as it comes, and summarise it in eight lines.

Called by ``make quickstart``; ``python scripts/quickstart.py 1`` uses seed 1 instead of 0.  The executed copy, the
adapter and the plot stay under out/.  Unless ``RLOO_KIT_MODEL`` names a model, the tiny policy trains on the CPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
OUT = ROOT / "out"

# Runs in the notebook's own kernel, after its last cell, and is not part of the stored copy.
ASK = """
import json as _json, pathlib as _pathlib, resource as _resource, torch as _torch
_state = _json.loads((_pathlib.Path(config.output_dir) / "trainer_state.json").read_text())
_log = [entry["reward"] for entry in _state["log_history"] if "reward" in entry]
_peak = _torch.cuda.max_memory_allocated() if env.device == "cuda" else (
    _resource.getrusage(_resource.RUSAGE_SELF).ru_maxrss * 1024)
print(_json.dumps({
    "device": f"{env.device} ({env.device_name})",
    "model": str(policy.checkpoint),
    "before": [before.accuracy.value, before.accuracy.low, before.accuracy.high],
    "after": [after.accuracy.value, after.accuracy.low, after.accuracy.high],
    "rewards": _log,
    "peak_bytes": _peak,
    "adapter": str(adapter),
}))
"""


class _Showing(NotebookClient):
    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        if cell_index >= 0 and msg["msg_type"] == "stream":
            print(msg["content"]["text"], end="", flush=True)
        return super().process_message(msg, cell, cell_index)


def run(seed: int = 0) -> dict[str, Any]:
    """Execute a copy of the notebook, left under out/, and ask its kernel for the results."""
    started, book = time.monotonic(), nbformat.read(NOTEBOOK, as_version=4)
    for cell in book.cells:
        cell.source = f"seed = {seed}" if cell.source == "seed = 0" else cell.source
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    client = _Showing(book, timeout=None, kernel_name="python3", resources=where)
    OUT.mkdir(exist_ok=True)
    cells = [index for index, cell in enumerate(book.cells) if cell.cell_type == "code"]
    try:
        with client.setup_kernel():
            for number, index in enumerate(cells, 1):
                print(f"\n[{number}/{len(cells)}] {book.cells[index].source.splitlines()[0]}", flush=True)
                client.execute_cell(book.cells[index], index)
            answer = client.execute_cell(nbformat.v4.new_code_cell(ASK), -1)
    finally:
        nbformat.write(book, OUT / NOTEBOOK.name)
    return {**json.loads(answer.outputs[0]["text"]), "seconds": time.monotonic() - started}


def summary(found: dict[str, Any]) -> str:
    rewards = found["rewards"]
    few = max(1, len(rewards) // 6)
    first, last = sum(rewards[:few]) / few, sum(rewards[-few:]) / few
    before, after = ("{:.3f} [{:.3f}, {:.3f}]".format(*found[when]) for when in ("before", "after"))
    adapter = (NOTEBOOK.parent / found["adapter"]).resolve()
    return "\n".join(
        [
            f"device     {found['device']}",
            f"model      {found['model']}",
            f"held out   accuracy {before} -> {after} (95 %)",
            f"reward     {first:.3f} (first {few} steps) -> {last:.3f} (last {few})",
            f"time       {found['seconds']:.0f} s for the notebook",
            f"memory     {found['peak_bytes'] / 2**30:.2f} GiB at the peak",
            f"adapter    {adapter.relative_to(ROOT)}",
            f"notebook   {(OUT / NOTEBOOK.name).relative_to(ROOT)}",
        ]
    )


if __name__ == "__main__":
    # A failed notebook has shown its error already; this script's traceback would only hide it.
    sys.tracebacklimit = 0
    if "RLOO_KIT_MODEL" not in os.environ:
        # Otherwise on a GPU the notebook would download a Qwen3 and train for hours; a .env may name another model too.
        os.environ |= {"RLOO_KIT_MODEL": "tiny", "CUDA_VISIBLE_DEVICES": ""}
    print("\n" + summary(run(int(sys.argv[1]) if len(sys.argv) > 1 else 0)))

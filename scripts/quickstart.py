"""Run the quickstart notebook top to bottom, showing its output as it comes, and sum it up in eight lines.

Called by ``make quickstart``.  The executed copy, the adapter and the plot stay under out/.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

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
    """Prints each cell's first line when it starts, and its text output while it runs."""

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "stream" and cell_index >= 0:
            print(msg["content"]["text"], end="", flush=True)
        return super().process_message(msg, cell, cell_index)


def run(notebook: Path, parameters: dict[str, Any] | None = None, show: bool = True) -> dict[str, Any]:
    """Execute a copy of the notebook and ask its kernel what came of it.

    Args:
        notebook: has a cell tagged ``parameters`` if any are given.
        parameters: values that replace those of that cell.
        show: whether to print the cells and their output.

    Returns:
        What :data:`ASK` prints, with ``seconds`` and the path of the ``executed`` copy.
    """
    book = load_notebook_node(str(notebook))
    if parameters:
        book = parameterize_notebook(book, parameters)
    client = (_Showing if show else NotebookClient)(
        book, timeout=None, kernel_name="python3", resources={"metadata": {"path": str(notebook.parent)}}
    )
    executed = OUT / notebook.name
    executed.parent.mkdir(exist_ok=True)
    code = [index for index, cell in enumerate(book.cells) if cell.cell_type == "code"]
    started = time.monotonic()
    try:
        with client.setup_kernel():
            for number, index in enumerate(code, 1):
                if show:
                    print(f"\n[{number}/{len(code)}] {book.cells[index].source.splitlines()[0]}", flush=True)
                client.execute_cell(book.cells[index], index)
            answer = client.execute_cell(nbformat.v4.new_code_cell(ASK), -1)
    finally:
        nbformat.write(book, executed)
    result: dict[str, Any] = json.loads(answer.outputs[0]["text"])
    return {**result, "seconds": time.monotonic() - started, "executed": str(executed.relative_to(ROOT))}


def summary(result: dict[str, Any]) -> str:
    """At most eight lines: what ran where, what it learned, what it cost, where the adapter is."""
    rewards = result["rewards"]
    few = max(1, len(rewards) // 6)
    first, last = sum(rewards[:few]) / few, sum(rewards[-few:]) / few
    shares = ["{:.3f} [{:.3f}, {:.3f}]".format(*result[key]) for key in ("before", "after")]
    adapter = (NOTEBOOK.parent / result["adapter"]).resolve()
    return "\n".join(
        [
            f"device     {result['device']}",
            f"model      {result['model']}",
            f"held out   accuracy {shares[0]} -> {shares[1]} (95 %)",
            f"reward     {first:.3f} (first {few} steps) -> {last:.3f} (last {few})",
            f"time       {result['seconds']:.0f} s for the notebook",
            f"memory     {result['peak_bytes'] / 2**30:.2f} GiB at the peak",
            f"adapter    {adapter.relative_to(ROOT)}",
            f"notebook   {result['executed']}",
        ]
    )


if __name__ == "__main__":
    # A notebook that failed has shown its error; the traceback of this script would only bury it.
    sys.tracebacklimit = 0
    print("\n" + summary(run(NOTEBOOK)))

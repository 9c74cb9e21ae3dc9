"""The tables of traffic.json, as Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import document, table

Phases = dict[str, dict[str, float]]
PHASES = ("prefill", "decode", "log-probs", "update")
GROUPS = {"usual": "usual", "before": "kit, switches off", "kit": "kit", "bound": "least"}
COMMAND = "`PYTHONPATH=.:.triton OMP_NUM_THREADS=1 python benchmarks/traffic.py --card CARD`, once a card"
ABOUT = """Qwen3's real shapes in 4 bit with LoRA of rank 16, prompts of 256 tokens, completions that run to their
limit. Unsloth's own GPU path ran on tensors without memory; each kernel that it would launch was counted by what it
reads and writes. **Nothing was timed, and nothing ran on a GPU.** What a kernel keeps in the GPU's cache from one
launch to the next is not seen; a matrix that a batched product reads once for each row counts once where it fits into
the second-level cache (6 MiB on an RTX 3090), else once for each row. Which 4-bit product a card takes
follows Unsloth's and bitsandbytes' own tables. A product's operations are counted with torch's formulas, a causal
mask halves nothing.

*Usual*: stock TRL under Unsloth with Unsloth's defaults: 8 rows at once and 4 in a pass (K 16: 32 and 16),
log-probabilities of the policy and of the reference, 8-bit AdamW. *Kit*: its defaults with K rows in a pass; at K 4
two prompts at once, as in the usual recipe, of unlike length. *Least*: weights as stored read once for each token
step and once for each of two passes, the cache read once, no activations."""


def moved(phases: Phases) -> float:
    """Gigabytes."""
    return sum(work["read"] + work["written"] for work in phases.values()) / 1e9


def computed(phases: Phases) -> float:
    """Operations, in 10^12."""
    return sum(work["flops"] for work in phases.values()) / 1e12


def steps(found: dict[str, Any]) -> str:
    """A row a shape, K and length."""
    rows = []
    for shape, counted in found.items():
        for case, made in counted["steps"].items():
            sizes = {how: moved(made[how]) for how in GROUPS}
            shown = [f"{size:.0f}" for size in sizes.values()]
            ratios = [sizes["kit"] / sizes["usual"], sizes["kit"] / sizes["bound"]]
            rows.append([shape, case, *shown, *(f"{ratio:.2f}" for ratio in ratios)])
    columns = ["shape", "case", *GROUPS.values(), "kit / usual", "kit / least"]
    return table(columns, "llrrrrrr", rows)


def phases(found: dict[str, Any], case: str) -> str:
    """Where the bytes go: a row a shape and recipe."""
    rows, length = [], int(case.split(", ")[1].split()[0])
    for shape, counted in found.items():
        for how in ("usual", "kit", "bound"):
            made = counted["steps"][case][how]
            each = [f"{moved({phase: made[phase]}):.1f}" for phase in PHASES]
            token = f"{moved({'': made['decode']}) / (length - 1):.3f}"
            trained = f"{moved({p: made[p] for p in ('log-probs', 'update')}) / (256 + length):.3f}"
            kernels = f"{8 * made['decode']['kernels'] / (length - 1):.0f}" if how != "bound" else ""
            rows.append([shape, GROUPS[how], *each, token, trained, f"{computed(made):.1f}", kernels])
    columns = [
        "shape",
        "recipe",
        *PHASES,
        "a generated token",
        "a trained token",
        "TFLOP",
        "kernels a token step",
    ]
    return table(columns, "llrrrrrrrr", rows)


def switches(counted: dict[str, dict[str, Phases]]) -> str:
    """A row a switch, largest saving first."""
    lengths = list(counted)
    before = {length: moved(counted[length]["the kit before"]) for length in lengths}
    apart = ["the kit before", "usual", "usual, a shared matrix read once"]
    apart += ["the kit, K 4: 2 prompts at once, of unlike length", "the kit, K 4: one prompt at once"]
    apart += ["the kit, prompt of 2048", "the same, prefill shared"]
    apart = [name for name in apart if name in counted[lengths[0]]]
    names = sorted(
        (n for n in counted[lengths[0]] if n not in apart), key=lambda n: moved(counted[lengths[0]][n])
    )
    rows = []
    for name in (apart[0], *names, *apart[1:]):
        row = [name]
        for length in lengths:
            made = counted[length][name]
            alike = not name.startswith(("the kit, ", "the same"))
            to = f"{moved(made) / before[length]:.2f}" if alike else ""
            row += [f"{moved(made):.0f}", to, f"{computed(made):.1f}"]
        rows.append(row)
    columns = ["switch", *(word for n in lengths for word in (f"GB, {n}", "to before", "TFLOP"))]
    return table(columns, "l" + "rrr" * len(lengths), rows)


def kernels(found: dict[str, dict[str, float]]) -> str:
    """The kernels of a token step that move most."""
    largest = sorted(found.items(), key=lambda item: -item[1]["read"] - item[1]["written"])[:10]
    rows = [
        [name, f"{work['kernels']:.0f}", *(f"{work[kind] / 1e6:.1f}" for kind in ("read", "written"))]
        for name, work in largest
    ]
    return table(["kernel", "launches", "MB read", "MB written"], "lrrr", rows)


def markdown(known: dict[str, Any]) -> str:
    """The whole document; figures are for one completion."""
    parts = [
        COMMAND,
        " ".join(ABOUT.split("\n\n")[0].split()),
        " ".join(ABOUT.split("\n\n")[1].split()),
    ]
    for card, found in known.items():
        parts += [f"## {card}: gigabytes for one completion", steps(found)]
        for case in ("K 8, 256 tokens", "K 8, 1024 tokens"):
            parts += [f"### {card}, {case}: gigabytes by phase", phases(found, case)]
        if "switches" in found.get("qwen3-4b", {}):
            parts += [f"### {card}, qwen3-4b, K 8: each switch over the kit without the two chosen"]
            parts += [switches(found["qwen3-4b"]["switches"])]
            parts += [f"### {card}, qwen3-4b, K 8: a token step of the kit, 257 tokens in the cache"]
            parts += [kernels(found["qwen3-4b"]["kernels of a decoded token"])]
    return document("What a step asks of a GPU, counted", *parts)

"""What a step asks of a GPU, counted where it cannot be timed: bytes, operations and kernels, by phase.

    PYTHONPATH=.:.triton OMP_NUM_THREADS=1 python benchmarks/traffic.py [--card "rtx 3090"] [--shapes qwen3-4b ...]
    python benchmarks/traffic.py --stored

Unsloth's own GPU path runs on tensors without memory, at the real shapes in 4 bit, and every kernel that it would
launch is counted (benchmarks/pretended/counter.py); nothing is timed.  A step is put together from its passes: a
decoded token costs a + b x tokens in the cache, traced at two lengths and checked at a third.  What is compared:
stock TRL under Unsloth with Unsloth's defaults, the kit, each of the kit's switches, and the least that a step needs.
Cards take part by what Unsloth and bitsandbytes choose for them.  What traffic.json holds is not counted again.
Results: benchmarks/results/traffic.json and traffic.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import pretended, traffic_tables  # noqa: E402
from benchmarks.pretended.work import Work, total  # noqa: E402
from rloo_kit.catalogue import CATALOGUE, Checkpoint  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
SHAPES, KS, LENGTHS, PROMPT = ("qwen3-1.7b", "qwen3-4b", "qwen3-8b"), (4, 8, 16), (256, 1024), 256
FUSED = {"UNSLOTH_BNB_GEMM_4BIT": "1"}
CACHED = (256, 1280)
"""Lengths of the cache at which a decoded token is traced."""


@dataclass(frozen=True)
class Recipe:
    """A way to make a step.

    Attributes:
        rows: completions sampled at once.
        micro: completions in a pass of the update.
        padded: whether prompts of unlike length are sampled together.
        scored: passes for log-probabilities before the update.
        variables: Unsloth's switches.
        one_head: :func:`rloo_kit.policy.sampling.head_in_one_product`.
        four_bit: the base in 4 bit, or 16.
        shared: the prefill computes each prompt once, not once a completion.
        live: the share of completions that is trained on.
        shared_once: whether what a batch of products shares is read once, whatever the cache holds.
        prompt: tokens.
    """

    rows: int
    micro: int
    padded: bool = False
    scored: int = 2
    variables: tuple[tuple[str, str], ...] = ()
    one_head: bool = False
    four_bit: bool = True
    shared: int = 1
    live: float = 1.0
    shared_once: bool = False
    prompt: int = PROMPT


def usual(k: int) -> Recipe:
    """Stock TRL under Unsloth with Unsloth's defaults: batch 4 x accumulation 2; K 16 makes the batch 16."""
    return Recipe(rows=8 if k <= 8 else 32, micro=4 if k <= 8 else 16, padded=k != 8)


def kit(k: int) -> Recipe:
    """The kit's defaults, with whole groups in a pass: K 4 samples two prompts at once, 8 and 16 one."""
    found = Recipe(rows=max(8, k), micro=k, padded=k == 4, scored=1, one_head=True)
    return replace(found, variables=tuple(FUSED.items()))


def before(k: int) -> Recipe:
    """The kit without the two switches that were chosen by this count."""
    return replace(kit(k), variables=(), one_head=False)


SWITCHES: dict[str, Callable[[Recipe], Recipe]] = {
    "fused 4-bit product (UNSLOTH_BNB_GEMM_4BIT=1)": lambda r: replace(r, variables=tuple(FUSED.items())),
    "fused 4-bit rows (UNSLOTH_GEMV_MAX_ROWS=8)": lambda r: replace(
        r, variables=(("UNSLOTH_GEMV_MAX_ROWS", "8"),)
    ),
    "head in one product": lambda r: replace(r, one_head=True),
    "fused 4-bit product and head in one product": lambda r: replace(
        r, variables=tuple(FUSED.items()), one_head=True
    ),
    "base in 16 bit": lambda r: replace(r, four_bit=False),
    "base in 16 bit, head in one product": lambda r: replace(r, four_bit=False, one_head=True),
    "2 prompts at once, of unlike length": lambda r: replace(r, rows=2 * r.rows, padded=True),
    "2 prompts at once, of one length": lambda r: replace(r, rows=2 * r.rows),
    "4 prompts at once, of one length": lambda r: replace(r, rows=4 * r.rows),
    "prefill shared by the completions of a prompt": lambda r: replace(r, shared=r.rows),
    "two passes (single_pass=False)": lambda r: replace(r, scored=r.scored + 1),
    "no log-probs pass (beta 0)": lambda r: replace(r, scored=0),
    "dead groups left out, half are dead (skip_dead_groups)": lambda r: replace(r, live=0.5),
}
"""One each, over the kit before: 4B, K 8.  A static cache changes nothing: Unsloth puts its own in its place."""


class Traced:
    """Passes of one policy, each traced once."""

    def __init__(self, passes: Any, load: Callable[[bool], Any]) -> None:
        self.passes, self._load = passes, load
        self._known: dict[tuple[Any, ...], Any] = {}
        self._four_bit: bool | None = None

    def _once(self, key: tuple[Any, ...], four_bit: bool, run: Callable[[], Any]) -> Any:
        if (key, four_bit) not in self._known:
            if self._four_bit is not four_bit:
                self.passes.of(self._load(four_bit))
                self._four_bit = four_bit
            self._known[key, four_bit] = run()
            print("traced", *key, "" if four_bit else "16 bit", flush=True)
        return self._known[key, four_bit]

    @contextmanager
    def _as(self, recipe: Recipe) -> Iterator[None]:
        from benchmarks.pretended.passes import switched
        from rloo_kit.policy.sampling import head_in_one_product

        with ExitStack() as stack:
            stack.enter_context(switched(dict(recipe.variables)))
            if recipe.shared_once:
                stack.enter_context(patch.object(self.passes.counter, "cache_bytes", math.inf))
            if recipe.one_head:
                stack.enter_context(head_in_one_product(self.passes.model))
            yield

    def generate(self, recipe: Recipe, rows: int, prompt: int) -> tuple[dict[str, Work], dict[str, Work]]:
        """Prefill and one decoded token."""
        key: tuple[Any, ...] = ("generate", rows, prompt, recipe.padded, recipe.variables, recipe.one_head)
        key = (*key, recipe.shared_once)

        def run() -> Any:
            with self._as(recipe):
                return self.passes.generate(rows, prompt, recipe.padded)

        found: tuple[dict[str, Work], dict[str, Work]] = self._once(key, recipe.four_bit, run)
        return found

    def token(self, recipe: Recipe, cached: float) -> Work:
        """Decoding a token of all rows from so many in the cache."""
        low, high = (total(self.generate(recipe, recipe.rows, n)[1].values()) for n in CACHED)
        each = (high - low) * (1 / (CACHED[1] - CACHED[0]))
        return low + each * (cached - CACHED[0] - 1)

    def log_probs(self, recipe: Recipe, completion: int, reference: bool) -> Work:
        """A pass over all rows; the reference is the base alone."""
        key = ("log-probs", recipe.micro, recipe.prompt, completion, reference)

        def run() -> Any:
            with self.passes.model.disable_adapter() if reference else ExitStack():
                return self.passes.log_probs(recipe.micro, recipe.prompt, completion)

        return total(self._once(key, recipe.four_bit, run).values()) * (recipe.rows / recipe.micro)

    def update(self, recipe: Recipe, completion: int) -> Work:
        """Forward and backward over all rows."""
        key = ("update", recipe.micro, recipe.prompt, completion)
        run = lambda: self.passes.update(recipe.micro, recipe.prompt, completion)  # noqa: E731
        both = self._once(key, recipe.four_bit, run)
        return total(w for found in both for w in found.values()) * (recipe.rows / recipe.micro)


def step(traced: Traced, recipe: Recipe, completion: int, optimizer: Work) -> dict[str, Work]:
    """Phase -> what a step does, per completion.  A trained row that is dead costs the update nothing."""
    tokens, prompt = completion - 1, recipe.prompt  # the prefill gives the first
    prefill = total(traced.generate(recipe, recipe.rows // recipe.shared, prompt)[0].values())
    scored = [traced.log_probs(recipe, completion, reference=n == 0) for n in range(recipe.scored)]
    found = {
        "prefill": prefill,
        "decode": traced.token(recipe, prompt + (1 + tokens) / 2) * tokens,
        "log-probs": total(scored),
        "update": traced.update(recipe, completion) * recipe.live,
        "optimizer": optimizer,
    }
    return {phase: work * (1 / recipe.rows) for phase, work in found.items()}


def bound(checkpoint: Checkpoint, rows: int, completion: int) -> dict[str, Work]:
    """The least: weights as stored once a token step and once a pass, the cache once; no activations.  The update is
    one pass forward and one backward, and no other is needed."""
    head = 2 * checkpoint.vocabulary * checkpoint.hidden_size
    weights, cache = checkpoint.linear_bytes() + head, checkpoint.kv_bytes_per_token
    dense = 2 * (checkpoint.linear_parameters + head / 2)
    decoded = (completion - 1) * (weights + rows * cache * (PROMPT + completion / 2))
    written = rows * cache
    return {
        "prefill": Work(weights, written * PROMPT, rows * PROMPT * dense) * (1 / rows),
        "decode": Work(decoded, written * (completion - 1), rows * (completion - 1) * dense) * (1 / rows),
        "log-probs": Work(),
        "update": Work(2 * weights, 0, 2 * rows * (PROMPT + completion) * dense) * (1 / rows),
        "optimizer": Work(),
    }


def optimizer_work(lora: int, recipe: str) -> Work:
    """AdamW over float32 weights, computed from what it holds, and the clipping of the gradient's norm: weight,
    gradient and two moments read, weight and moments written; in 8 bit the moments take a byte each."""
    moments = 2 if recipe.startswith("usual") else 8
    return Work((8 + moments + 8) * lora, (4 + moments + 4) * lora, 20 * lora)


def count(card: str, names: list[str], known: dict[str, Any], keep: Callable[[], None]) -> None:
    """Count what is not yet known of a card, for this process alone; ``keep`` is called whenever something is."""
    pretended.start(card, target="meta")
    import torch

    from benchmarks.pretended.passes import Passes

    passes = Passes(card)
    dtype = torch.bfloat16 if pretended.CARDS[card].has_bfloat16 else torch.float16
    for name in names:
        traced = Traced(passes, functools.partial(loaded, name, dtype))
        for _ in of_shape(traced, CATALOGUE[name], known.setdefault(name, {}), card == "rtx 3090"):
            keep()


def loaded(name: str, dtype: Any, four_bit: bool) -> Any:
    """The policy of a shape; in 16 bit its projections are left as they are."""
    from benchmarks.pretended import shapes

    if four_bit:
        return shapes.load(name, dtype)
    whole, write = shapes.skeleton, shapes.write_without_weights

    def skeleton(*args: Any) -> Any:
        with patch.object(shapes, "_in_four_bit", lambda linear, dtype: linear):
            model = whole(*args)
        del model.config.quantization_config, model.quantization_method
        model.is_loaded_in_4bit = model.is_quantized = False
        return model

    def unquantised(checkpoint: Checkpoint, folder: Path) -> None:
        write(checkpoint, folder)
        config = json.loads((folder / "config.json").read_text())
        del config["quantization_config"]
        (folder / "config.json").write_text(json.dumps(config))

    with patch.multiple(shapes, skeleton=skeleton, write_without_weights=unquantised):
        return shapes.load(name, dtype, load_in_4bit=False)


def of_shape(traced: Traced, checkpoint: Checkpoint, known: dict[str, Any], is_first: bool) -> Iterator[None]:
    """Steps of every K and length, the switches on one shape, and how well the line fits; added to ``known``."""
    from rloo_kit.memory.footprint import lora_sizes

    lora, steps = sum(lora_sizes(checkpoint, 16)), known.setdefault("steps", {})
    for k, length in itertools.product(KS, LENGTHS):
        recipes = {"usual": usual(k), "before": before(k), "kit": kit(k)}
        if (case := f"K {k}, {length} tokens") not in steps:
            made = {how: step(traced, r, length, optimizer_work(lora, how)) for how, r in recipes.items()}
            steps[case] = shown({**made, "bound": bound(checkpoint, kit(k).rows, length)})
            yield
    if (name := "kernels of a decoded token") not in known:
        known[name] = shown({"": traced.generate(kit(8), 8, PROMPT)[1]})[""]
        yield
    if checkpoint.name == "qwen3-4b":
        for length, (name, recipe) in itertools.product(LENGTHS, switched_recipes().items()):
            found = known.setdefault("switches", {}).setdefault(f"{length} tokens", {})
            if name not in found:
                found |= shown({name: step(traced, recipe, length, optimizer_work(lora, name))})
                yield
    if is_first and checkpoint.name == "qwen3-1.7b" and (name := "line / trace at 768") not in known:
        traced_there = total(traced.generate(kit(8), 8, 768)[1].values())
        known[name] = traced.token(kit(8), 769).bytes / traced_there.bytes
        yield


def switched_recipes() -> dict[str, Recipe]:
    """Each switch over the kit before, at K 8; and what else is compared."""
    found = {"the kit before": before(8), **{name: turn(before(8)) for name, turn in SWITCHES.items()}}
    found |= {"usual": usual(8), "usual, a shared matrix read once": replace(usual(8), shared_once=True)}
    found |= {"the kit, K 4: 2 prompts at once, of unlike length": kit(4)}
    found |= {"the kit, K 4: one prompt at once": replace(kit(4), rows=4, padded=False)}
    long = replace(kit(8), prompt=2048)
    return {**found, "the kit, prompt of 2048": long, "the same, prefill shared": replace(long, shared=8)}


def shown(found: dict[str, dict[str, Work]]) -> dict[str, dict[str, dict[str, float]]]:
    """For JSON, rounded to five digits."""
    return {
        name: {
            phase: {kind: float(f"{value:.5g}") for kind, value in asdict(work).items()}
            for phase, work in phases.items()
        }
        for name, phases in found.items()
    }


def _write(file: Path, known: dict[str, Any]) -> None:
    file.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    """Count one card, or write the tables of all that were counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--card", choices=pretended.CARDS, default="rtx 3090")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--stored", action="store_true", help="write the tables of what was counted before")
    given, file = parser.parse_args(), RESULTS / "traffic.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    if not given.stored:
        found = known.setdefault(given.card, {})
        count(given.card, given.shapes, found, lambda: _write(file, known))
    (RESULTS / "traffic.md").write_text(traffic_tables.markdown(known))


if __name__ == "__main__":
    main()

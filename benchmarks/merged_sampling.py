"""Whether merging the LoRA into the weights while completions are sampled pays: SmolLM2-135M in float32, on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/merged_sampling.py

PEFT's layers make two products more for each projection.  Merged, each projection is one product, and the merge itself
is paid once a rollout.  Both ways draw the same completions of 4 prompts x K 8, in turns; CPU milliseconds a token.
Writes results/merged_sampling.md.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from tables import RESULTS, command_line, document, table

REPEATS = 5


@contextlib.contextmanager
def merged(model: Any) -> Iterator[None]:
    """While inside, weights are base + LoRA, and PEFT's layers take them alone; the base comes back exactly."""
    from peft.tuners.lora import LoraLayer

    layers = [one for one in model.modules() if isinstance(one, LoraLayer) and "default" in one.lora_A]
    kept = [layer.get_base_layer().weight.data for layer in layers]
    for layer, weight in zip(layers, kept, strict=True):
        layer.get_base_layer().weight.data = weight + layer.get_delta_weight("default")
        layer.merged_adapters.append("default")
    try:
        yield
    finally:
        for layer, weight in zip(layers, kept, strict=True):
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.remove("default")


def main() -> None:
    import rloo_kit

    rloo_kit.prepare()
    import torch

    policy = rloo_kit.load_policy("smollm2-135m", gradient_checkpointing=False)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:  # a LoRA that was trained
            torch.nn.init.normal_(weight, std=0.01)
    prompts = [row["prompt"] for row in rloo_kit.tasks.word_sums(policy, largest=10).train.take(4)]
    ways = {
        "LoRA as PEFT has it": contextlib.nullcontext,
        "merged while it samples": lambda: merged(policy.model),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            started = time.process_time()
            with way():
                ready = time.process_time()
                completions = policy.generate(prompts, n=8, max_new_tokens=40, seed=0)
            tokens = sum(len(one.ids) for one in completions)
            ends = time.process_time()
            spent[name].append((1000 * (ends - started) / tokens, 1000 * (ready - started) / tokens))
    rows = []
    for name, pairs in spent.items():
        whole, merging = zip(*pairs, strict=True)
        shown = f"{statistics.median(whole):.2f} [{min(whole):.2f}, {max(whole):.2f}]"
        rows.append((name, shown, f"{statistics.median(merging):.2f}"))
    text = document(
        "Merging the LoRA while completions are sampled",
        command_line(),
        f"SmolLM2-135M in float32, rank 16, 4 prompts x K 8, at most 40 tokens; {REPEATS} repeats in turns, median "
        "[lowest, highest].",
        table(("sampling", "CPU ms a token", "of it merging"), "lrr", rows),
    )
    print(text)
    (RESULTS / "merged_sampling.md").write_text(text)


if __name__ == "__main__":
    main()

"""``rloo-kit doctor``: what this machine is, and what would go wrong on it."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Show what this machine is: device, memory, versions.

    And the variables that are set, and the policy that ``load_policy()`` takes.
    Exit status 1 where something is to be mended first.
    """
    from rloo_kit.memory.planning import fit
    from rloo_kit.session.environment import prepare

    found = prepare()
    on_gpu = found.device == "cuda"
    planned = fit() if on_gpu else None
    takes = planned.model.checkpoint.name if planned else "tiny"
    why = (
        planned.summary if planned else "no GPU; smollm2-135m is the real language model that a CPU can train"
    )
    typer.echo(f"{'policy':<10}{takes}: {why}")
    if found.warnings or (planned is not None and planned.fits != "fits"):
        raise typer.Exit(1)

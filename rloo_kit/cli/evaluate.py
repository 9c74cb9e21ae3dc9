"""``rloo-kit evaluate``: how good a policy is on a configuration's held-out problems."""

from __future__ import annotations

from typing import Annotated

import typer

from rloo_kit.cli.shown import ConfigFile, Settings

Adapter = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="What was trained; by default the configuration's policy."),
]
Count = Annotated[
    int | None, typer.Option("-n", min=1, help="Held-out problems; evaluate.n of the file, or all.")
]


def evaluate(config: ConfigFile, adapter: Adapter = None, n: Count = None, set_: Settings = None) -> None:
    """Measure accuracy and reward on held-out problems.

    Each with a 95 % interval.
    """
    from rloo_kit.cli import run, schema
    from rloo_kit.policy.load import load_policy
    from rloo_kit.session.environment import prepare

    prepare()
    found = schema.load_config(config, set_ or ())
    others = {name: value for name, value in found.policy.items() if name != "model_name"}
    policy = load_policy(**{**others, "name": adapter}) if adapter else None
    made = run.assembled(found, policy)
    asked = (found.evaluate or {}) | ({"n": n} if n else {})
    typer.echo(f"\n{adapter or made.policy.checkpoint.name}\n{made.measure(**asked)}")

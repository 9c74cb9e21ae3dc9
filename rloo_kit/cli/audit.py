"""``rloo-kit audit``: attack a configuration's rewards before a policy does."""

from __future__ import annotations

import typer

from rloo_kit.cli.shown import ConfigFile, Settings


def audit(config: ConfigFile, set_: Settings = None) -> None:
    """Attack the rewards before a policy does.

    Each is tried on tricks and honest answers made from the task's own problems.

    Exit status 1 where a trick is paid.
    """
    import rewards
    from rloo_kit.cli import run, schema
    from rloo_kit.session.environment import prepare

    prepare()
    made = run.assembled(schema.load_config(config, set_ or ()))
    found = [
        rewards.audit(one, tokenizer=made.policy.tokenizer, rows=made.task.train) for one in made.rewards
    ]
    for one in found:
        typer.echo(f"\n{one}")
    if any(one.exploits for one in found):
        raise typer.Exit(1)

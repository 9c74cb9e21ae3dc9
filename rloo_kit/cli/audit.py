"""``rloo-kit audit``: attack a configuration's rewards before a policy does."""

from __future__ import annotations

import typer

from rloo_kit.cli.shown import ConfigFile, Settings


def audit(config: ConfigFile, set_: Settings = None) -> None:
    """Attack the rewards before a policy does.

    Each is tried on tricks and honest answers made from the task's own problems.

    Exit status 1 where a trick is paid, a reward raises, or all that it scores is scored alike.
    """
    import rewards
    from rloo_kit.cli.config import load_config
    from rloo_kit.session.prepare import prepare

    checked = load_config(config, set_ or ())
    prepare()
    from rloo_kit.cli import run

    made = run.assembled(checked)
    failed = False
    for reward in made.rewards:
        found = rewards.audit(reward, tokenizer=made.policy.tokenizer, rows=made.task.train)
        typer.echo(f"\n{found}")
        try:
            found.raise_for()
        except rewards.AuditFailed:
            failed = True
    if failed:
        raise typer.Exit(1)

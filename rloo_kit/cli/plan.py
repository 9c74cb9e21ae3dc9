"""``rloo-kit plan``: whether a run fits a card, before anything is loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from rloo_kit.cli.shown import ConfigFile, Settings

Card = Annotated[str | None, typer.Option(help="'rtx 3060 12gb', 't4', '8GB'; by default this machine.")]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="The longest prompt; 512 where it is not known.")
]


def plan(
    config: ConfigFile, card: Card = None, prompt_tokens: PromptTokens = None, set_: Settings = None
) -> None:
    """Say whether a run fits a card.

    And what to change if not.  Computed from shapes: no weights are loaded.  Exit status 1 where it is tight or does
    not fit.
    """
    from rloo_kit.cli import schema

    found = schema.planned(schema.load_config(config, set_ or ()), card, prompt_tokens)
    typer.echo(found)
    if found.fits != "fits":
        raise typer.Exit(1)

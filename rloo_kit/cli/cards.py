"""``rloo-kit cards``: which model fits which card."""

from __future__ import annotations

from typing import Annotated

import typer

Card = Annotated[
    str | None, typer.Argument(help="One card, as 'rtx 4070' or '12GB': its largest model, in full.")
]


def cards(card: Card = None) -> None:
    """Show which Qwen3 fits which card.

    And how long its completions may be: computed, not measured.
    """
    from rloo_kit.memory import cards as tables
    from rloo_kit.memory.planning import fit

    typer.echo(fit(card) if card else f"{tables.table()}\n\n{tables.rule()}")

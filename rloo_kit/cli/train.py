"""``rloo-kit train``: a run from a file, with its measurements, its adapter and its resolved configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rloo_kit.cli.shown import ConfigFile, Resume, Settings
from rloo_kit.errors import ConfigError
from rloo_kit.session import processes

if TYPE_CHECKING:
    from rloo_kit.cli.run import Run
    from rloo_kit.cli.schema import Config

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show plan, resolved configuration and first prompt; train nothing.")
]


def train(config: ConfigFile, set_: Settings = None, dry_run: DryRun = False, resume: Resume = False) -> None:
    """Train, from the start or from a checkpoint.

    Says before the first step whether the run fits.  With a section 'evaluate' it measures before and after, with
    'save' it writes the adapter, and beside it the configuration as it was run.
    """
    from rloo_kit.cli import document, run, schema
    from rloo_kit.session.environment import prepare

    document.read(config, set_ or ())  # what is no YAML is said before seconds of imports
    prepare()
    checked = schema.load_config(config, set_ or ())
    check_place(checked)
    made = run.assembled(checked)
    processes.say(f"\n{made.task.name}: {made.task.description}\n\n{made.plan()}\n")
    if dry_run:
        processes.say(f"{made.config.resolved()}\n{made.first_prompt()}")
        return
    trainer = made.trainer()  # what it refuses is said before anything is measured
    measure(made, "before")
    trainer.train(resume_from_checkpoint=resume or None)
    measure(made, "after")
    save(made)


def check_place(config: Config) -> None:
    """Check that adapter and configuration can be written where they are to be, before a run and not after it.

    Raises:
        ConfigError: a file, a folder that holds more than an adapter, or the run's own; or there is a file of another
            kind where the configuration goes.
    """
    from rloo_kit.cli import document
    from rloo_kit.policy.folder import check_target

    if config.save is None:
        return
    named, of_run = (
        os.path.expanduser(place)  # noqa: PTH111 - Path.expanduser raises for an unknown user
        for place in (config.save, str(config.trainer.output_dir))
    )
    target = Path(os.path.realpath(named))
    where = config.document.where(("save",))
    check_target(target, where)
    if Path(os.path.realpath(of_run)).is_relative_to(target):
        raise ConfigError(
            "the run writes its checkpoints into this folder, and the adapter would replace them",
            where=f"{where}; trainer.output_dir is {config.trainer.output_dir}",
            todo="name a folder of its own, such as out/adapter",
        )
    beside = Path(f"{named}.yaml")
    if beside.exists() and not document.is_written(beside):
        raise ConfigError(
            f"the configuration as it was run is written to {beside.name}, which would be lost",
            where=f"{where}; {beside} is there, and not by a run",
            todo="name another folder, such as out/adapter",
        )


def measure(made: Run, when: str) -> None:
    """Print an evaluation, where the configuration asks for one."""
    if (asked := made.config.evaluate) is not None:
        processes.say(f"\n{when}\n{made.measure(**asked)}\n")


def save(made: Run) -> None:
    """Write the adapter, where the configuration names a folder, and the resolved configuration beside it."""
    if made.config.save is None:
        return
    folder = made.policy.save(made.config.save)
    beside = Path(f"{folder}.yaml")
    if processes.is_main():
        beside.write_text(made.config.resolved(), encoding="utf-8")
    processes.say(f"adapter: {folder}\nconfiguration: {beside}")

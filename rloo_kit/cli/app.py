"""The command ``rloo-kit`` and its verbs, each of which calls what a notebook would call, and prints.

A verb imports heavy modules when it is called, so that ``--help`` is quick.  Errors are printed without a traceback,
except for bugs in the kit.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rloo_kit
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.session import output

if TYPE_CHECKING:
    from rloo_kit.cli.run import Run

FAULTY = 2  # the exit status of a faulty request; 1 is a verb's own "no"
AS_RUN = "_run.yaml"  # in output_dir; a push to the hub leaves out files that begin with "_"

Of, Given = typer.Option, typer.Argument
_run = Given(metavar="CONFIG.yaml", exists=True, dir_okay=False, help="Policy, task, rewards, trainer.")
ConfigFile = Annotated[Path, _run]
_set = Of("--set", metavar="KEY=VALUE", help="Replace a value: trainer.max_steps=5.  As often as needed.")
Settings = Annotated[list[str] | None, _set]
Card = Annotated[str | None, Of(help="'rtx 3060 12gb', 't4', '8GB'; by default this machine.")]
OneCard = Annotated[str | None, Given(help="One card, as 'rtx 4070' or '12GB': its largest model, in full.")]
PromptTokens = Annotated[int | None, Of(min=1, help="The longest prompt; 512 where it is not known.")]
DryRun = Annotated[bool, Of(help="Show plan, resolved configuration and first prompt; train nothing.")]
Resume = Annotated[bool, Of("--resume", help="Go on from the newest whole checkpoint in trainer.output_dir.")]
_folder = Of(metavar="FOLDER", help="What was trained; by default the configuration's policy.")
Adapter = Annotated[str | None, _folder]
Problems = Annotated[int | None, Of("-n", min=1, help="Held-out problems; evaluate.n of the file, or all.")]
Log = Annotated[Path, Given(metavar="LOG", help="A run's folder, a checkpoint or a trainer_state.json.")]
RunFolder = Annotated[Path, Given(metavar="RUN", help="A run's folder: its trainer's output_dir.")]
_out = Of(metavar="FILE.yaml", help="Where to; beside the run's folder if left out.")
Out = Annotated[Path | None, _out]
Force = Annotated[bool, Of("--force", help="Replace what is there.")]


def _assembled(config: Path, settings: list[str] | None, adapter: str = "", saves: bool = False) -> Run:
    rloo_kit.prepare()
    from rloo_kit.cli import run
    from rloo_kit.cli.config import load_config

    checked = load_config(config, settings or ())
    if adapter:
        others = {name: value for name, value in checked.policy.items() if name != "model_name"}
        checked.policy = {**others, "name": adapter}
    if saves:
        run.check_training(checked)
    return run.assembled(checked)


def doctor() -> None:
    """Show what this machine is: device, memory, versions.

    And every variable in effect, and the largest policy that fits.  Exit status 1 where something is to be put right.
    """
    environment = rloo_kit.prepare()
    policy, fits = "tiny: no GPU; smollm2-135m is the real language model that a CPU can train", True
    if environment.device == "cuda":
        planned = rloo_kit.fit()
        policy, fits = planned.model.checkpoint.name, planned.fits == "fits"
        policy += f": {planned.fits}: {planned.takes}"
    for name, value, why in environment.variables:
        typer.echo(f"{'':11}{name}={value}, {why}")
    typer.echo(f"{'policy':<11}{policy}")
    raise typer.Exit(int(bool(environment.warnings) or not fits))


def cards(card: OneCard = None) -> None:
    """Show which Qwen3 fits which card.

    And how long its completions may be: computed, not measured.
    """
    from rloo_kit.memory.model_choice import table

    typer.echo(rloo_kit.fit(card) if card else table())


def plan(config: ConfigFile, card: Card = None, prompt_tokens: PromptTokens = None, set_: Settings = None) -> None:
    """Say whether a run fits a card.

    And what to change if not.  Computed from shapes: no weights are loaded.  Exit status 1 where it is tight or does
    not fit.
    """
    from rloo_kit.cli.config import load_config
    from rloo_kit.cli.run import planned

    plan = planned(load_config(config, set_ or ()), card, prompt_tokens)
    typer.echo(plan)
    raise typer.Exit(int(plan.fits != "fits"))


def train(config: ConfigFile, set_: Settings = None, dry_run: DryRun = False, resume: Resume = False) -> None:
    """Train, from the start or from a checkpoint.

    Says before the first step whether the run fits.  With a section 'evaluate' it measures before and after, with
    'within_reach' it trains on problems that the policy solves sometimes, with 'save' it writes the adapter.  The
    configuration as it was run is kept in the run's folder.
    """
    run = _assembled(config, set_, saves=True)
    output.say(f"\n{run.task.name}: {run.task.description}\n\n{run.plan()}\n")
    as_run = run.config.resolved()
    if dry_run:
        output.say(f"{as_run}\n{run.first_prompt()}")
        return
    trainer = run.trainer()  # the trainer's errors come before anything is measured
    if run.config.within_reach is not None:
        run = run.within_reach()
        trainer = run.trainer()
    results = run.measured("before")
    trainer.kept_beside = {AS_RUN: as_run}
    trainer.train(resume_from_checkpoint=resume or None)
    try:
        results |= run.measured("after")
    finally:  # what was trained is kept, whatever a reward does now
        if run.config.save is not None:
            output.say(f"adapter: {run.policy.save(run.config.save, results=results)}")


def evaluate(config: ConfigFile, adapter: Adapter = None, n: Problems = None, set_: Settings = None) -> None:
    """Measure accuracy and reward on held-out problems.

    Each with a 95 % interval.
    """
    run = _assembled(config, set_, adapter or "")
    settings = (run.config.evaluate or {}) | ({"n": n} if n else {})
    typer.echo(f"\n{adapter or run.policy.checkpoint.name}\n{run.measure(**settings)}")


def audit(config: ConfigFile, set_: Settings = None) -> None:
    """Attack the rewards before a policy does.

    Each is tried on tricks and honest answers made from the task's own problems.
    Exit status 1 where a trick is paid, a reward raises, or all that it scores is scored alike.
    """
    import rewards

    run, failed = _assembled(config, set_), False
    for reward in run.rewards:
        audited = rewards.audit(reward, tokenizer=run.policy.tokenizer, rows=run.task.train)
        typer.echo(f"\n{audited}")
        try:
            audited.raise_for()
        except rewards.AuditFailed:
            failed = True
    raise typer.Exit(int(failed))


def diagnose(log: Log) -> None:
    """Say what was wrong with a run.

    Of the kit's or of plain TRL's: with figures, and the setting to change.
    Exit status 1 where something was found.
    """
    diagnosis = rloo_kit.diagnose(log)
    typer.echo(diagnosis)
    raise typer.Exit(int(bool(diagnosis.findings)))


def export(run: RunFolder, out: Out = None, force: Force = False) -> None:
    """Write a run as a file that 'train' repeats.

    With the same policy, task, rewards, settings and seed.  Functions from a notebook are written into a .py beside
    it.  What cannot be written is named, with what to do.
    """
    from rloo_kit.cli.config import written
    from rloo_kit.watch.read_run import NOTEBOOK, RECIPE

    file = out or Path(f"{run.absolute()}.yaml")
    functions = file.with_name(f"{file.stem}_rewards.py")
    try:
        text = (run / RECIPE).read_text(encoding="utf-8")
        recipe = json.loads(text.replace(f'"{NOTEBOOK}:', f'"{functions.name}:'))
        config, cannot, notes, source = (recipe[name] for name in ("config", "cannot", "notes", "functions"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"this is no folder of a run that can be exported: {RECIPE}, {type(error).__name__}"
        todo = "name the output_dir of a run of the kit; plain TRL runs cannot be exported"
        raise ConfigError(what, where=str(run), todo=todo) from None
    if cannot:
        again = "; then run it again"
        faults = [ConfigError(what, where=f"{run}, {part}", todo=todo + again) for part, what, todo in cannot]
        raise ExceptionGroup(f"{run} cannot be exported", faults)
    config["trainer"]["output_dir"] = f"{run}-again"
    comments = [f"The run in {run}, as it was started.  'rloo-kit train' repeats it into trainer.output_dir."]
    comments += [f"Not in it: {note}." for note in notes]
    comments += ["To measure before and after, add 'evaluate: {n: 100}'; to keep the adapter, 'save: FOLDER'."]
    texts = {file: "".join(f"# {comment}\n" for comment in comments) + written(config)}
    texts |= {functions: source} if source else {}
    if there := [str(path) for path in texts if path.exists() and not force]:
        raise ConfigError("the file is there already", where=there[0], todo="give another --out, or --force")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(path)
    for note in notes:
        typer.echo(f"not in it: {note}", err=True)


def reporting_errors(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb, with its errors printed in three lines each."""

    @functools.wraps(verb)
    def run(**options: Any) -> None:
        try:
            verb(**options)
        except Exception as error:
            faults = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            if not all(isinstance(fault, RLOOKitError) or "\nWhat to do: " in str(fault) for fault in faults):
                raise  # neither the kit nor rewards raised it on purpose
            typer.echo("\n\n".join(map(str, faults)), err=True)
            raise typer.Exit(FAULTY) from None

    return run


# Plain text is readable in any terminal and log, and rich takes longer to import than the rest.
app = typer.Typer(
    name="rloo-kit",
    help="Train Qwen3 with RLOO: the same run as in a notebook, from a YAML file.",
    epilog="A run from beginning to end: rloo-kit doctor; rloo-kit plan CONFIG.yaml; rloo-kit train CONFIG.yaml",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for _verb in (doctor, cards, plan, audit, train, evaluate, diagnose, export):  # in the order of their use
    app.command()(reporting_errors(_verb))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(rloo_kit.__version__)
        raise typer.Exit


_said = Of("--version", callback=_version, is_eager=True, help="Print the version.")


@app.callback()
def _options(version: Annotated[bool, _said] = False) -> None:
    if (here := str(Path.cwd())) not in sys.path:  # a configuration's .py files may import from it
        sys.path.append(here)


def main() -> None:
    warnings.formatwarning = lambda message, *_, **__: f"warning: {' '.join(str(message).split())}\n"
    app()

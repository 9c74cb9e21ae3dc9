"""The command ``rloo-kit``: its verbs, each of which calls what a notebook would call, and prints.

A verb imports what is heavy when it is called, so that ``--help`` is quick, and after the configuration was checked.
Errors are said without a traceback; a bug of the kit's keeps it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

import rloo_kit
from rloo_kit.cli.launch import check_installed, command, deepspeed_file
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.session import multi_process, output

if TYPE_CHECKING:
    from rloo_kit.cli.assemble import Run
    from rloo_kit.cli.config import Config

P = ParamSpec("P")
R = TypeVar("R")

FAULTY = 2  # the exit status of what was asked for wrongly; 1 is a verb's own "no"
INTERRUPTED = 130
AS_RUN = "# Written by rloo-kit train: the run as it was.\n"

Of, Given = typer.Option, typer.Argument
ConfigFile = Annotated[Path, Given(metavar="CONFIG.yaml", help="The run: policy, task, rewards, trainer.")]
_set = Of("--set", metavar="KEY=VALUE", help="Replace a value: trainer.max_steps=5.  As often as needed.")
Settings = Annotated[list[str] | None, _set]
Resume = Annotated[bool, Of("--resume", help="Go on from the newest whole checkpoint in trainer.output_dir.")]
_dry = Of("--dry-run", help="Show plan, resolved configuration and first prompt; train nothing.")
Card = Annotated[str | None, Of(help="'rtx 3060 12gb', 't4', '8GB'; by default this machine.")]
PromptTokens = Annotated[int | None, Of(min=1, help="The longest prompt; 512 where it is not known.")]
_card = Given(help="One card, as 'rtx 4070' or '12GB': its largest model, in full.")
_folder = Of(metavar="FOLDER", help="What was trained; by default the configuration's policy.")
Problems = Annotated[int | None, Of("-n", min=1, help="Held-out problems; evaluate.n of the file, or all.")]
_log = Given(metavar="LOG", help="A run's folder, a checkpoint or a trainer_state.json.")
RunFolder = Annotated[Path, Given(metavar="RUN", help="A run's folder: its trainer's output_dir.")]
_out = Of(metavar="FILE.yaml", help="Where to; beside the run's folder if left out.")
Count = Annotated[int, Of(min=1, help="Processes, one a GPU.")]
Engine = Annotated[str, Of(help="ddp, or where the policy is too large: zero2, zero3, fsdp2.")]
ByCPU = Annotated[bool, Of("--cpu", help="By gloo on CPUs, to try it out.")]
Configs = Annotated[str, Of(help="accelerate's and DeepSpeed's configurations.")]


def _checked(config: Path, set_: list[str] | None) -> Config:
    from rloo_kit.cli.config import load_config

    return load_config(config, set_ or ())


def _assembled(checked: Config, saves: bool = False) -> Run:
    rloo_kit.prepare()
    if saves and checked.save is not None:
        check_place(checked, checked.save)
    from rloo_kit.cli import assemble

    return assemble.assembled(checked)


def doctor() -> None:
    """Show what this machine is: device, memory, versions.

    And the variables that are set, and the policy that ``load_policy()`` takes.
    Exit status 1 where something is to be put right first.
    """
    found = rloo_kit.prepare()
    takes, fits = "tiny: no GPU; smollm2-135m is the real language model that a CPU can train", True
    if found.device == "cuda":
        planned = rloo_kit.fit()
        takes, fits = f"{planned.model.checkpoint.name}: {planned.summary}", planned.fits == "fits"
    typer.echo(f"{'policy':<10}{takes}")
    raise typer.Exit(int(bool(found.warnings) or not fits))


def cards(card: Annotated[str | None, _card] = None) -> None:
    """Show which Qwen3 fits which card.

    And how long its completions may be: computed, not measured.
    """
    from rloo_kit.memory.cards import table

    typer.echo(rloo_kit.fit(card) if card else table())


def plan(
    config: ConfigFile, card: Card = None, prompt_tokens: PromptTokens = None, set_: Settings = None
) -> None:
    """Say whether a run fits a card.

    And what to change if not.  Computed from shapes: no weights are loaded.  Exit status 1 where it is tight or does
    not fit.
    """
    checked = _checked(config, set_)
    from rloo_kit.cli import assemble

    found = assemble.planned(checked, card, prompt_tokens)
    typer.echo(found)
    raise typer.Exit(int(found.fits != "fits"))


def train(
    config: ConfigFile, set_: Settings = None, dry_run: Annotated[bool, _dry] = False, resume: Resume = False
) -> None:
    """Train, from the start or from a checkpoint.

    Says before the first step whether the run fits.  With a section 'evaluate' it measures before and after, with
    'save' it writes the adapter, and beside it the configuration as it was run.
    """
    checked = _checked(config, set_)
    made = _assembled(checked, saves=True)
    output.say(f"\n{made.task.name}: {made.task.description}\n\n{made.plan()}\n")
    if dry_run:
        output.say(f"{checked.resolved()}\n{made.first_prompt()}")
        return
    trainer = made.trainer()  # what it refuses is said before anything is measured
    results = made.measured("before")
    trainer.train(resume_from_checkpoint=resume or None)
    results |= made.measured("after")
    if checked.save is None:
        return
    folder = made.policy.save(checked.save, results=results)
    beside = Path(f"{folder}.yaml")
    if multi_process.is_main():
        beside.write_text(AS_RUN + checked.resolved(), encoding="utf-8")
    output.say(f"adapter: {folder}\nconfiguration: {beside}")


def check_place(config: Config, save: str) -> None:
    """Check that adapter and configuration can be written where they are to be, before a run and not after it."""
    from rloo_kit.policy.resolve import base_named
    from rloo_kit.policy.save import check_target

    target, where, what = Path(save).expanduser().resolve(), config.document.where(("save",)), ""
    beside = Path(f"{target}.yaml")
    base = config.policy.get("name") or config.policy.get("model_name") or "tiny"
    check_target(target, where, base_named(str(base)))
    if Path(str(config.trainer.output_dir)).expanduser().resolve().is_relative_to(target):
        what = "the run writes its checkpoints into this folder, and the adapter would replace them"
    elif beside.exists() and not beside.read_text(encoding="utf-8").startswith(AS_RUN):
        what = f"the configuration as it was run is written to {beside.name}, which would be lost"
    if what:
        raise ConfigError(what, where=where, todo="name a folder of its own, such as out/adapter")


def launch(
    config: ConfigFile,
    processes: Count,
    engine: Engine = "ddp",
    cpu: ByCPU = False,
    configs: Configs = "configs/accelerate",
    dry_run: Annotated[bool, Of("--dry-run", help="Print the command, and start nothing.")] = False,
    resume: Resume = False,
    set_: Settings = None,
) -> None:
    """Train in several processes.

    Composes the command of accelerate (on CPUs torchrun), prints it, and runs it.
    """
    settings = list(set_ or [])
    if cpu:  # without a GPU accelerate does not hand DeepSpeed's file on
        file = deepspeed_file(engine, configs)
        settings = ["trainer.use_cpu=true", *([f"trainer.deepspeed={file}"] if file else []), *settings]
    target = ["-m", "rloo_kit", "train", str(config), *(["--resume"] if resume else [])]
    target += [part for one in settings for part in ("--set", one)]
    made = command(engine, processes, target, on_cpu=cpu, configs=configs)
    typer.echo(str(made))
    if not dry_run:
        check_installed(engine, configs, cpu)
        raise typer.Exit(made.run())


def evaluate(
    config: ConfigFile,
    adapter: Annotated[str | None, _folder] = None,
    n: Problems = None,
    set_: Settings = None,
) -> None:
    """Measure accuracy and reward on held-out problems.

    Each with a 95 % interval.
    """
    checked = _checked(config, set_)
    if adapter:
        others = {name: value for name, value in checked.policy.items() if name != "model_name"}
        checked = dataclasses.replace(checked, policy={**others, "name": adapter})
    made = _assembled(checked)
    asked = (checked.evaluate or {}) | ({"n": n} if n else {})
    typer.echo(f"\n{adapter or made.policy.checkpoint.name}\n{made.measure(**asked)}")


def audit(config: ConfigFile, set_: Settings = None) -> None:
    """Attack the rewards before a policy does.

    Each is tried on tricks and honest answers made from the task's own problems.
    Exit status 1 where a trick is paid, a reward raises, or all that it scores is scored alike.
    """
    import rewards

    made = _assembled(_checked(config, set_))
    failed = False
    for reward in made.rewards:
        found = rewards.audit(reward, tokenizer=made.policy.tokenizer, rows=made.task.train)
        typer.echo(f"\n{found}")
        try:
            found.raise_for()
        except rewards.AuditFailed:
            failed = True
    raise typer.Exit(int(failed))


def diagnose(log: Annotated[Path, _log]) -> None:
    """Say what was wrong with a run.

    Of the kit's or of plain TRL's: with figures, and the setting to change.
    Exit status 1 where something was found.
    """
    from rloo_kit.watch.run_folder import read_history

    read_history(log, "diagnose")  # what is no log is said before the stack is imported
    found = rloo_kit.diagnose(log)
    typer.echo(found)
    raise typer.Exit(int(bool(found.findings)))


def export(
    run: RunFolder,
    out: Annotated[Path | None, _out] = None,
    force: Annotated[bool, Of("--force", help="Replace what is there.")] = False,
) -> None:
    """Write a run as a file that 'train' repeats.

    With the same policy, task, rewards, settings and seed.  Functions from a notebook are written into a .py beside
    it.  What cannot be written is named, with what to do.
    """
    from rloo_kit.watch.run_folder import RECIPE

    try:
        recipe = json.loads((run / RECIPE).read_text(encoding="utf-8"))
        cannot, notes = recipe["cannot"], recipe["notes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"this is no folder of a run that can be exported: {RECIPE}, {type(error).__name__}"
        todo = "name the output_dir of a run; runs of plain TRL, and of releases before 0.2, have none"
        raise ConfigError(what, where=str(run), todo=todo) from None
    if cannot:
        again = "; then run it again"
        faults = [ConfigError(what, where=f"{run}, {part}", todo=todo + again) for part, what, todo in cannot]
        raise ExceptionGroup(f"{run} cannot be exported", faults)
    file = out or Path(f"{run.absolute()}.yaml")
    functions = file.with_name(f"{file.stem}_rewards.py")
    text, code = exported(recipe, run, functions.name)
    texts = {file: text} | ({functions: code} if code else {})
    if there := [str(path) for path in texts if path.exists() and not force]:
        todo = "give another --out, or --force"
        raise ConfigError("the file is there already", where=there[0], todo=todo)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(path)
    for note in notes:
        typer.echo(f"not in it: {note}", err=True)


def exported(recipe: dict[str, Any], run: Path, functions: str) -> tuple[str, str]:
    """The run as a configuration, which writes into a folder of its own, and the functions that it names.

    A package's function, which a configuration does not import, becomes a line of the file of functions.
    """
    from rloo_kit.cli.config import mapped
    from rloo_kit.cli.document import written
    from rloo_kit.watch.run_folder import NOTEBOOK

    code: dict[str, None] = {recipe["functions"]: None} if recipe["functions"] else {}

    def here(name: str) -> str:
        if name.startswith(f"{NOTEBOOK}:"):
            return f"{functions}:{name.rpartition(':')[2]}"
        module, _, attribute = name.rpartition(".")
        top = module.partition(".")[0]
        if top in ("", "rewards", "task") or not name.replace(".", "").isidentifier():
            return name
        if importlib.util.find_spec(top) is None:
            return name
        code[f"import {module}\n\n{attribute} = {name}\n"] = None
        return f"{functions}:{attribute}"

    config = recipe["config"] | {"rewards": mapped(recipe["config"]["rewards"], here)}
    config["trainer"] = (config.get("trainer") or {}) | {"output_dir": f"{run}-again"}
    notes = [f"The run in {run}, as it was started.  'rloo-kit train' repeats it into trainer.output_dir."]
    notes += [f"Not in it: {note}." for note in recipe["notes"]]
    notes += ["To measure before and after, add 'evaluate: {n: 100}'; to keep the adapter, 'save: FOLDER'."]
    return "".join(f"# {note}\n" for note in notes) + written(config), "\n\n".join(code)


# --- the program ------------------------------------------------------------------------------------------


def explained(verb: Callable[P, R]) -> Callable[P, R]:
    """The verb, whose errors are printed in three lines each; exit status 2, or 130 where it was interrupted."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            found = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            if not all(isinstance(one, RLOOKitError) or "\nWhat to do: " in str(one) for one in found):
                raise  # it was not raised on purpose, by the kit or by rewards
            typer.echo("\n\n".join(map(str, found)), err=True)
            raise typer.Exit(FAULTY) from None

    return run


VERBS: dict[str, Callable[..., None]] = {
    verb.__name__: verb for verb in (doctor, cards, plan, train, launch, evaluate, audit, diagnose, export)
}
"""In the order in which they are needed."""

# Plain text reads in any terminal and log, and rich takes longer to import than the rest.
app = typer.Typer(
    name="rloo-kit",
    help="Train Qwen3 with RLOO: the same run as in a notebook, from a YAML file.",
    epilog="A run from beginning to end: rloo-kit doctor; rloo-kit plan CONFIG.yaml; rloo-kit train CONFIG.yaml",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for _name, _verb in VERBS.items():
    app.command(_name)(explained(_verb))


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
    """Run the command line."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {' '.join(str(message).split())}\n"
    app()

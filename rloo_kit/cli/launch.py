"""``rloo-kit launch``: the same run in several processes, by accelerate or torchrun, whose command it prints."""

from __future__ import annotations

from typing import Annotated

import typer

from rloo_kit.cli.shown import ConfigFile, Resume, Settings

EngineName = Annotated[
    str, typer.Option("--engine", help="ddp, or where the policy is too large: zero2, zero3, fsdp2.")
]
Count = Annotated[int, typer.Option(min=1, help="Processes of all machines together, one a GPU.")]
MachineCount = Annotated[int, typer.Option("--machines", min=1, help="Start it on each, with its own rank.")]
MachineRank = Annotated[int, typer.Option("--machine-rank", min=0, help="0 on the one that --host names.")]
Host = Annotated[str, typer.Option(help="Machine 0, as the others reach it.")]
Port = Annotated[int, typer.Option(help="A free port of machine 0.")]
OnCPU = Annotated[bool, typer.Option("--cpu", help="By gloo on CPUs, to try it out.")]
Folder = Annotated[str, typer.Option("--configs", help="accelerate's and DeepSpeed's configurations.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Print the command, and start nothing.")]


def launch(
    config: ConfigFile,
    processes: Count,
    engine: EngineName = "ddp",
    machines: MachineCount = 1,
    machine_rank: MachineRank = 0,
    host: Host = "127.0.0.1",
    port: Port = 29500,
    cpu: OnCPU = False,
    configs: Folder = "configs/accelerate",
    dry_run: Dry = False,
    resume: Resume = False,
    set_: Settings = None,
) -> None:
    """Train in several processes.

    Composes the command of accelerate (on CPUs torchrun), prints it, and runs it.
    """
    from rloo_kit.session import engines

    target = ["-m", "rloo_kit", "train", str(config), *(["--resume"] if resume else [])]
    made = engines.command(
        engine,
        processes,
        [*target, *_settings(engine, cpu, configs, set_ or [])],
        on_cpu=cpu,
        machines=engines.Machines(machines, machine_rank, host, port),
        configs=configs,
    )
    typer.echo(str(made))
    if dry_run:
        return
    engines.check_installed(engine, configs, cpu)
    raise typer.Exit(made.run())


def _settings(engine: str, cpu: bool, configs: str, given: list[str]) -> list[str]:
    """What train is told beside the user's settings: without a GPU accelerate does not hand DeepSpeed's file on."""
    from rloo_kit.session import engines

    own = []
    if cpu:
        own.append("trainer.use_cpu=true")
        if file := engines.deepspeed_file(engine, configs):
            own.append(f"trainer.deepspeed={file}")
    return [part for pair in (*own, *given) for part in ("--set", pair)]

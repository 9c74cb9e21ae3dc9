"""``prepare()``: read .env, set variables, import unsloth, seed, and print what the process runs on.

For the first cell of a notebook.  It loads no model, and never prints a value that came from a .env file.
"""

import concurrent.futures
import contextlib
import io
import os
import platform
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.redact import INSTEAD, hide, is_hidden, without_hidden
from rloo_kit.session import import_order
from rloo_kit.session.import_order import CPU_BF16, import_unsloth, settings
from rloo_kit.session.output import GIB, quiet, say
from rloo_kit.session.versions import STACK, outside, version_of

MODEL, STEPS = "RLOO_KIT_MODEL", "RLOO_KIT_STEPS"
FROM_FILE = "set by .env"
SHOWN = ("torch", "unsloth", "trl", "transformers")
SPILLS = (
    "Windows' driver may move what does not fit on the GPU into the computer's memory, which makes steps many times "
    "slower: keep to rloo_kit.plan(), and prefer no 'CUDA - Sysmem Fallback' in the NVIDIA control panel."
)
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Environment:
    """Device, memory and versions of this process; ``print`` shows them in a few lines.

    Attributes:
        total_bytes, free_bytes: the device's memory (the machine's, on a CPU).
        bf16: whether the kit computes in bfloat16 here, see :func:`compute_dtype`.
        versions: package -> installed version, for the packages of :data:`STACK`.
        offline: whether the Hugging Face hub is not used.
        variables: (name, value or "(not shown)", who set it and why) of each variable in effect.
        model, steps: RLOO_KIT_MODEL and RLOO_KIT_STEPS, which change a notebook's policy and length without editing a
            cell: ``load_policy(env.model)``, ``max_steps=env.steps or 100``.  None if not set.
    """

    device: str
    device_name: str
    total_bytes: int
    free_bytes: int
    bf16: bool
    versions: Mapping[str, str]
    offline: bool
    variables: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]
    model: str | None = None
    steps: int | None = None

    def __str__(self) -> str:
        free = f"{self.free_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB free"
        dtype = "bfloat16" if self.bf16 else "float16" if self.device == "cuda" else "float32"
        setters = [why.partition(":")[0] for *_, why in self.variables]
        counts = sorted({f"{setters.count(setter)} {setter}" for setter in setters})
        switched = {"model": self.model, "steps": self.steps}
        rows = [
            ("device", f"{self.device}, {self.device_name}: {free}, computes in {dtype}"),
            ("stack", ", ".join(f"{package} {self.versions[package]}" for package in SHOWN)),
            ("hub", "offline" if self.offline else "in use"),
            ("variables", f"{', '.join(counts)}; see env.variables"),
            *((name, f"{value}, in place of the notebook's") for name, value in switched.items() if value),
            *(("warning", text) for text in self.warnings),
        ]
        return "\n".join(f"{label:<11}{text}" for label, text in rows)

    def __repr__(self) -> str:
        return f"Environment(device={self.device!r}, bf16={self.bf16}, offline={self.offline})"


def prepare(dotenv: str | os.PathLike[str] | None = ".env", offline: bool | None = None, seed: int = 0) -> Environment:
    """Load .env, set variables, import unsloth, seed, and print the device and versions.

    Call it in the first cell, after ``import rloo_kit``.  Calling it again is harmless: nothing is undone,
    and variables that came too late to take effect are named in ``warnings``.

    Args:
        dotenv: a file of ``NAME=value`` lines; a variable already set wins.  None reads no file.
        offline: whether to do without the Hugging Face hub; None follows ``HF_HUB_OFFLINE`` or, if that is not set,
            tries to connect to the hub for at most three seconds.
        seed: for Python's, NumPy's and torch's generators, until the trainer sets its own (``RLOOConfig.seed``).

    Raises:
        ConfigError: the .env file cannot be read, or is not UTF-8 text; RLOO_KIT_STEPS is not a whole number above 0.
        ImportOrderError: trl, transformers, peft or accelerate was imported before ``rloo_kit``.
        VersionError: trl is not the version that the trainer was written for.
    """
    notes: list[str] = []
    from_file = _load_dotenv(dotenv, notes)
    if "trl" in outside():  # import_unsloth() warns of the rest
        what = "the trainer overrides methods of trl 1.15 and does not work with another release"
        todo = "pip install 'trl>=1.15,<1.16', and restart the kernel"
        raise VersionError(what, where=f"trl {version_of('trl')}", todo=todo)
    is_offline, steps = _settle_offline(offline, notes), _steps()
    import_unsloth()
    with quiet():
        from transformers import set_seed
    set_seed(seed)
    import torch

    on_gpu = torch.cuda.is_available()
    # WSL uses Windows' driver.
    if on_gpu and (os.name == "nt" or "microsoft" in platform.uname().release.lower()):
        notes.append(SPILLS)
    device, threads, (free, total) = "cuda" if on_gpu else "cpu", torch.get_num_threads(), device_memory()
    variables = tuple(_variables(device, from_file, notes))
    environment = Environment(
        device=device,
        device_name=torch.cuda.get_device_name() if on_gpu else f"{threads} thread{'s' * (threads > 1)}",
        total_bytes=total,
        free_bytes=free,
        bf16=compute_dtype() == "bfloat16",
        versions={package: version_of(package) for package in STACK},
        offline=is_offline,
        variables=variables,
        warnings=tuple(notes),
        model=os.environ.get(MODEL) or None,
        steps=steps,
    )
    say(environment)
    return environment


def _steps() -> int | None:
    text = os.environ.get(STEPS) or None
    if text and not (text.isascii() and text.isdecimal() and int(text) > 0):
        todo = f"set it to the number of updates, as in {STEPS}=5, or unset it"
        raise ConfigError(f"{STEPS} must be a whole number above 0", where=f"{STEPS}={text!r}", todo=todo)
    return int(text) if text else None


def compute_dtype() -> str:
    """Return the kit's compute type, once unsloth is imported: on a GPU "bfloat16" if supported, else "float16".

    On a CPU "float32", so that results agree between machines, or "bfloat16" if UNSLOTH_CPU_BF16=1 was set in time.
    """
    import torch

    if torch.cuda.is_available():
        import unsloth

        return "bfloat16" if unsloth.is_bfloat16_supported() else "float16"
    value = (import_order.values_read.get(CPU_BF16) or "").strip().lower()
    return "bfloat16" if value in ("1", "true", "yes", "on") else "float32"  # as unsloth reads it


def device_memory() -> tuple[int, int]:
    """Return free and total bytes of the GPU's memory, or without a GPU of the computer's."""
    import psutil
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _load_dotenv(path: str | os.PathLike[str] | None, notes: list[str]) -> set[str]:
    """Set the file's variables, never show their values from now on, and return the names of those in effect."""
    if path is None:
        return set()
    from dotenv import dotenv_values, find_dotenv

    # A notebook's working directory is its own folder, while .env lies at the project's top.
    if not (file := find_dotenv(os.fspath(path), usecwd=True)):
        if os.fspath(path) != ".env":
            notes.append(f"{without_hidden(os.fspath(path))} was not found here or in a folder above.")
        return set()
    try:
        text = Path(file).read_text(encoding="utf-8-sig")  # Windows' editors write a byte-order mark
        if "\0" in text:  # UTF-16, as PowerShell writes it
            raise UnicodeError
    except (OSError, UnicodeError) as error:
        what = f"{Path(file).name} cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})"
        todo = "let this user read it, and save it as UTF-8: PowerShell writes UTF-16"
        raise ConfigError(what, where=f"prepare, {file}", todo=todo) from None
    values = {name: value for name, value in dotenv_values(stream=io.StringIO(text)).items() if value is not None}
    for name, value in values.items():
        hide(name, value)
        # The file overrides the kit's own defaults; if a library has already read one, :func:`_variables` warns.
        if name not in os.environ or import_order.set_by_kit.pop(name, None) is not None:
            os.environ[name] = value
    return {name for name, value in values.items() if os.environ[name] == value}


def _variables(device: str, from_file: Collection[str], notes: list[str]) -> Iterator[tuple[str, str, str]]:
    table, late = settings(), []
    for name, setting in table.items():
        value = os.environ.get(name)
        if setting.device not in ("", device) or (name == CPU_BF16 and value is None):
            continue  # without it load_policy chooses float32
        if value != import_order.values_read[name] or (value is None and setting.value is not None):
            late.append(name)
        elif name in from_file or is_hidden(name, value):
            yield name, INSTEAD, FROM_FILE
        elif name in import_order.set_by_kit:
            yield name, _short(import_order.set_by_kit[name]), f"set by the kit: {setting.reason}"
        elif name in import_order.set_by_user:
            yield name, _short(value or ""), "set before"
    yield from ((name, INSTEAD, FROM_FILE) for name in sorted(set(from_file) - set(table)))
    if late:
        readers = ", ".join(sorted({table[name].read_by for name in late}))
        notes.append(
            f"{', '.join(late)}: set after {readers} had been imported, which is too late. Restart the kernel, and set "
            "it before any import or in .env."
        )


def _short(value: str) -> str:
    if "@" in value:  # an address may hold a password
        return INSTEAD
    return without_hidden(value).replace(str(Path.home()), "~", 1)


def _settle_offline(offline: bool | None, notes: list[str]) -> bool:
    """Switch the hub library off or on, unless it has already read its variable; return whether it is off."""
    switch = os.environ.get("HF_HUB_OFFLINE", os.environ.get("TRANSFORMERS_OFFLINE"))
    switched_off = switch is not None and switch.upper() in {"1", "ON", "YES", "TRUE"}
    if offline is None:
        offline = switched_off if switch is not None else not _hub_reachable()
    if "huggingface_hub" not in sys.modules:
        if switched_off != offline:
            os.environ["HF_HUB_OFFLINE"] = import_order.set_by_kit["HF_HUB_OFFLINE"] = str(int(offline))
        return offline
    is_off = bool(sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE)
    if is_off != offline:
        notes.append(
            f"The hub is {'out of reach' if offline else 'wanted'}, but huggingface_hub had read HF_HUB_OFFLINE "
            "before prepare() could set it. Restart the kernel and call prepare() before any other import."
        )
    return is_off


def _hub_reachable(seconds: float = 3.0) -> bool:
    """Whether the hub's host accepts a connection; behind a proxy it is assumed to be reachable."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    import socket
    from urllib.parse import urlsplit

    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = address.port or (80 if address.scheme == "http" else 443)
    with contextlib.suppress(OSError):
        within(seconds, lambda: socket.create_connection((address.hostname or "", port), seconds).close())
        return True
    return False


HUB_SECONDS = 9.0  # the hub's library itself retries for longer


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Return or raise what ``ask`` does; raise TimeoutError after ``seconds``.

    A timeout given to a socket or to the hub library applies to each phase of a request, and not to the DNS lookup.
    """
    future: concurrent.futures.Future[Answer] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:
            future.set_exception(error)

    # Not an executor: leaving its block, or the process, would wait for its thread.
    threading.Thread(target=run, daemon=True).start()
    return future.result(timeout=seconds)

"""Put the process in order before the stack is imported: .env, environment variables, unsloth first.

For anyone who opens a notebook: ``import rloo_kit`` puts the import order in force, ``prepare()`` does the
rest and shows what it did on one screen.  This is the only room that writes ``os.environ``, and the only
one that imports unsloth before anything else.  It does not touch the model, the trainer or the kernel, and
it never prints the value of a variable that came from a .env file.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import io
import logging
import os
import platform
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rloo_kit import tiny
from rloo_kit.errors import ImportOrderError, VersionError
from rloo_kit.releasing import running_shell

# unsloth rewrites these at import, and only the names that nobody has bound yet.
PATCHED_BY_UNSLOTH = ("trl", "transformers", "peft", "accelerate")

# What the tests ran on.
TESTED = {
    "torch": ("2.13.0",),
    "unsloth": ("2026.10.9",),
    "unsloth_zoo": ("2026.10.9",),
    "trl": ("1.15.0",),
    "transformers": ("5.17.0",),
    "peft": ("0.21.2",),
    "bitsandbytes": ("0.50.2",),
    "datasets": ("4.8.5",),
}


class Setting(NamedTuple):
    """A variable that some library reads once, at import.

    Attributes:
        value: what the kit sets where the user set nothing; None where the kit only watches it.
        read_by: the module whose import reads it; later changes do nothing.
        reason: why, in one line.
        old_name: an earlier name that is still read, and is the user's choice where it is set.
    """

    value: str | None
    read_by: str
    reason: str
    old_name: str = ""


def settings() -> dict[str, Setting]:
    """The variables that must be in place before the stack is imported, with the kit's values."""
    return {
        "UNSLOTH_DISABLE_STATISTICS": Setting(
            "1", "unsloth", "on a GPU, loading otherwise downloads statistics repos, for up to 120 s"
        ),
        "UNSLOTH_COMPILE_LOCATION": Setting(
            str(tiny.cache_folder() / "unsloth_compiled_cache"),
            "unsloth",
            "unsloth otherwise writes its compiled code into the notebook's folder",
        ),
        # unsloth sets it where the platform allows, but looks for today's name only.
        "PYTORCH_ALLOC_CONF": Setting(
            None, "torch", "torch settles its allocator once", old_name="PYTORCH_CUDA_ALLOC_CONF"
        ),
        "TOKENIZERS_PARALLELISM": Setting(
            "false", "tokenizers", "forked data workers otherwise warn, or hang, on the tokenizer's threads"
        ),
        "HF_HUB_OFFLINE": Setting(
            None, "huggingface_hub", "without a network every look-up waits and retries"
        ),
        "HF_HOME": Setting(None, "huggingface_hub", "the hub's cache folder is settled once"),
        "HF_HUB_CACHE": Setting(None, "huggingface_hub", "the same"),
        "HF_ENDPOINT": Setting(None, "huggingface_hub", "the hub's address is settled once"),
        "OMP_NUM_THREADS": Setting(None, "torch", "torch sizes its thread pool once"),
        "CUDA_VISIBLE_DEVICES": Setting(None, "torch", "CUDA lists its devices once"),
    }


class Noise(NamedTuple):
    """A start-up line that is known, harmless and always there, so that it says nothing."""

    pattern: str
    source: str
    reason: str


NOISE = (
    Noise(r"^🦥", "print", "unsloth's banner"),
    Noise(r"^Unsloth \S+: no GPU found, training on CPU", "print", "prepare() says which device it is"),
    Noise(r"^Unsloth \(CPU\): \w+ on \d+ CPU threads", "print", "the policy's card says it"),
    Noise(r"^Unsloth: `?triton`? is not available", "print", "a CPU install does not use it"),
    Noise(r"^On Windows, Triton is published", "print", "the second line of the one above"),
    Noise(
        r"^Unsloth( \(CPU\))?: .* is a LoRA adapter; loading its base", "print", "that is what was asked for"
    ),
    Noise(r"^==\(\(=+\)\)==|^ *\\\\ +/\||^O\^O/|^\\ {6,}/ |^ \"-_+-\"", "print", "unsloth's GPU banner"),
    Noise(r"Detected no triton", "torchao.kernel.intmm", "a CPU install does not use it"),
    Noise(r"register_constant\(\) on Enum", "torch.utils._pytree", "torchao's call, not the user's"),
    Noise(r"is an Enum subclass and is now natively supported", "torch.utils._pytree", "the same"),
)


def is_noise(line: str, source: str = "print") -> bool:
    """Whether a line is one of :data:`NOISE`; an empty line is not."""
    return any(noise.source == source and re.search(noise.pattern, line) for noise in NOISE)


class _NoiseFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not is_noise(record.getMessage(), record.name)


class _PrintFilter(io.TextIOBase):
    """A stdout that drops known lines and passes the rest on, unchanged."""

    def __init__(self, target: io.TextIOBase) -> None:
        self._target, self._pending = target, ""

    def write(self, text: str) -> int:
        self._pending += text
        *lines, self._pending = self._pending.split("\n")
        for line in lines:
            if not is_noise(line):
                self._target.write(line + "\n")
        return len(text)

    def close_line(self) -> None:
        """Pass on a last line that has no newline."""
        if self._pending and not is_noise(self._pending):
            self._target.write(self._pending)
        self._pending = ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop the lines of :data:`NOISE` that are printed or logged inside; everything else gets through."""
    for name in {noise.source for noise in NOISE} - {"print"}:
        logger = logging.getLogger(name)
        if not any(isinstance(item, _NoiseFilter) for item in logger.filters):
            logger.addFilter(_NoiseFilter())
    out = _PrintFilter(sys.stdout)  # type: ignore[arg-type]
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            # torch's compiled extensions were built with SWIG; nobody can act on it.
            warnings.filterwarnings("ignore", message=r"builtin type \w+ has no __module__ attribute")
            yield
    finally:
        out.close_line()


# --- unsloth first ----------------------------------------------------------------------------------------


class _UnslothFirst(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import unsloth, in order and quietly, before the first of the libraries it patches; then stand aside.

    The work is done in ``create_module``, not in ``find_spec``: unsloth imports the asked-for library
    itself, and importlib would execute that library a second time if a finder had loaded it.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in (*PATCHED_BY_UNSLOTH, "unsloth"):
            return None
        # The library's own spec, so that whoever only asks whether it is installed gets a true answer.
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None:
            spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        import_unsloth()
        module = importlib.import_module(spec.name)
        self._true_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._true_spec

    def remove(self) -> None:
        # A new list: importlib may be going through the old one.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)


_hook = _UnslothFirst()
_imported_too_early: tuple[str, ...] = ()
_set_by_kit: dict[str, str] = {}
_found: dict[str, str] = {}  # variables that were set already, and by whom as far as can be known
_read: dict[str, str | None] = {}  # the watched variables as they stood after unsloth's import
_shown_in_cell: int | None = None


def put_in_force() -> None:
    """Make unsloth the first of its kind in this process; called by ``import rloo_kit``."""
    global _imported_too_early
    if "unsloth" in sys.modules:
        return
    _imported_too_early = tuple(name for name in PATCHED_BY_UNSLOTH if name in sys.modules)
    if not _imported_too_early:
        _hook.install()


def import_unsloth() -> ModuleType:
    """Import unsloth, quietly, with the kit's settings in place.

    Raises:
        ImportOrderError: a library that unsloth patches was imported before ``rloo_kit``.
        VersionError: this unsloth has no backend for this machine.
    """
    if _imported_too_early:
        raise ImportOrderError(
            "unsloth has to be imported before the libraries it patches",
            where=", ".join(_imported_too_early) + " came first in this process",
            todo="restart the kernel and make `import rloo_kit` its first line",
        )
    apply_settings()
    _hook.remove()
    try:
        with quiet():
            unsloth = importlib.import_module("unsloth")
        for name in settings():
            _read.setdefault(name, os.environ.get(name))
        if not sys.modules["torch"].cuda.is_available():
            _keep_freed_memory()
        return unsloth
    except BaseException as error:
        if sys.modules.get("unsloth") is None:
            _hook.install()  # the next import must not slip past
        if isinstance(error, NotImplementedError):
            raise VersionError(
                "this unsloth finds no device it can run on",
                where=f"unsloth {_version('unsloth')}: {error}",
                todo=f"install unsloth {TESTED['unsloth'][-1]}, the first with a CPU backend: make install",
            ) from error
        raise


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt (malloc.h)."""


def _keep_freed_memory() -> None:
    """Answers: on a CPU each token sampled needs buffers of 20 MB at Qwen3's vocabulary, which glibc hands back
    to the system and faults in anew, page by page: a third of a training step.

    Up to 1 GiB that is free stays with the process, until ``release()`` trims it; unsloth's tiles of
    log-probabilities are made small enough to be kept.  RLOO_KIT_KEEP_MEMORY=0 leaves everything as it is.
    """
    if os.environ.get("RLOO_KIT_KEEP_MEMORY") == "0" or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return
    os.environ.setdefault("UNSLOTH_CPU_CE_CHUNK_ELEMENTS", str(4 * 2**20))
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc takes
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)


def apply_settings() -> None:
    """Set the kit's variables where the user set nothing and they still matter.

    unsloth sets some itself when it is imported: one that is there before is the user's.
    """
    whose = "was set before prepare()" if "unsloth" in sys.modules else "yours, left as it is"
    for name, setting in settings().items():
        if setting.old_name in os.environ:
            os.environ.setdefault(name, os.environ[setting.old_name])
        if name in os.environ:
            if name not in _set_by_kit and name not in _read:
                _found.setdefault(name, whose)
        elif setting.value is not None and setting.read_by not in sys.modules:
            os.environ[name] = _set_by_kit[name] = setting.value


# --- prepare ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """What the process runs on, as :func:`prepare` found and made it; ``print`` shows one screen.

    Attributes:
        device: "cuda" or "cpu".
        device_name: as the driver or the operating system names it.
        total_bytes, free_bytes: the device's memory (the machine's, on a CPU).
        bf16: whether the device computes in bfloat16.
        versions: package -> installed version, for the packages of :data:`TESTED`.
        offline: whether the Hugging Face hub is left alone.
        hub: the same in words; also where it is out of reach and was not switched off in time.
        seed: the seed that was set.
        variables: (name, value or "(not shown)", who set it and why) of each variable that matters.
        warnings: what the user should know, one sentence each.
    """

    device: str
    device_name: str
    total_bytes: int
    free_bytes: int
    bf16: bool
    versions: Mapping[str, str]
    offline: bool
    hub: str
    seed: int
    variables: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        gib = 2**30
        stack = [f"{name} {number}" for name, number in self.versions.items()]
        rows = [
            ("device", f"{self.device}: {self.device_name}"),
            ("memory", f"{self.free_bytes / gib:.1f} of {self.total_bytes / gib:.1f} GiB free"),
            ("bfloat16", "yes" if self.bf16 else "no"),
            ("hub", self.hub),
            ("seed", str(self.seed)),
            ("stack", ", ".join(stack[:4])),
            ("", ", ".join(stack[4:])),
            *(("variable", f"{name}={value}\n{'':12}{why}") for name, value, why in self.variables),
            *(("warning", text) for text in self.warnings),
        ]
        return "\n".join(f"{label:<10}{text}" for label, text in rows)

    def __repr__(self) -> str:
        return (
            f"Environment(device={self.device!r}, bf16={self.bf16}, offline={self.offline}, seed={self.seed})"
        )

    def _ipython_display_(self) -> None:
        # A bare prepare() at a cell's end has printed the screen already.
        if _running_cell() != _shown_in_cell:
            print(self)


def prepare(
    dotenv: str | os.PathLike[str] | None = ".env", offline: bool | None = None, seed: int = 0
) -> Environment:
    """Load .env, set what is read at import, import unsloth, seed, and show the result.

    Call it in the first cell, after ``import rloo_kit``.  Calling it again is harmless: nothing is undone,
    and whatever came too late to matter is named in ``warnings``.

    Args:
        dotenv: a file of ``NAME=value`` lines; a variable that is set already wins.  None reads none.
        offline: True leaves the Hugging Face hub alone, False uses it; None follows ``HF_HUB_OFFLINE`` or,
            where that is not set, asks the hub's host for at most three seconds.
        seed: for Python's, NumPy's and torch's generators, until the trainer sets its own (``RLOOConfig.seed``).

    Raises:
        ImportOrderError: trl, transformers, peft or accelerate was imported before ``rloo_kit``.
        VersionError: trl is of a version that the trainer was not written for.
    """
    global _shown_in_cell
    notes: list[str] = []
    from_file = _load_dotenv(dotenv, notes)
    _check_versions(notes)
    is_offline, hub = _settle_offline(offline, notes)
    unsloth = import_unsloth()
    with quiet():
        from transformers import set_seed
    set_seed(seed)
    environment = _describe(unsloth, is_offline, hub, seed, from_file, notes)
    print(environment)
    _shown_in_cell = _running_cell()
    return environment


def _running_cell() -> int | None:
    """The number of the notebook's cell that runs; None elsewhere."""
    return getattr(running_shell(), "execution_count", None)


def _load_dotenv(path: str | os.PathLike[str] | None, notes: list[str]) -> tuple[str, ...]:
    """Set what the file names and nobody has set; return the names that it set."""
    if path is None:
        return ()
    from dotenv import dotenv_values, find_dotenv

    # A notebook's working directory is its own folder, and .env lies at the project's top.
    file = find_dotenv(os.fspath(path), usecwd=True)
    if not file:
        if os.fspath(path) != ".env":
            notes.append(f"{os.fspath(path)} was not found here or in a folder above.")
        return ()
    known, loaded = settings(), []
    for name, value in dotenv_values(file).items():
        if value is None or (name in os.environ and name not in _set_by_kit):
            continue
        if name in known and known[name].read_by in sys.modules:
            if os.environ.get(name) != value:
                notes.append(
                    f"{name} in {Path(file).name} came too late: {known[name].read_by} had read it. Restart the "
                    "kernel and call prepare() before importing it."
                )
            continue
        os.environ[name] = value
        _set_by_kit.pop(name, None)
        loaded.append(name)
    return tuple(loaded)


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _matches(installed: str, tested: Sequence[str]) -> bool:
    plain = installed.split("+")[0]
    return any(plain == item or plain.startswith(item + ".") for item in tested)


def _check_versions(notes: list[str]) -> None:
    if not _version("trl").startswith("1.15."):
        raise VersionError(
            "the trainer overrides methods of trl 1.15 and cannot be trusted over another release",
            where=f"trl {_version('trl')}",
            todo="pip install trl==1.15.0, and restart the kernel",
        )
    for package, tested in TESTED.items():
        if not _matches(_version(package), tested):
            notes.append(f"{package} {_version(package)} is installed; tested was {' and '.join(tested)}.")


def _settle_offline(offline: bool | None, notes: list[str]) -> tuple[bool, str]:
    """Decide whether the hub is left alone, and tell the libraries before they ask; the same in words."""
    truthy = {"1", "ON", "YES", "TRUE"}
    told = os.environ.get("HF_HUB_OFFLINE", os.environ.get("TRANSFORMERS_OFFLINE"))
    if offline is None:
        offline = told.upper() in truthy if told is not None else not _hub_reachable()
    if "huggingface_hub" in sys.modules:
        active = bool(sys.modules["huggingface_hub"].constants.HF_HUB_OFFLINE)
        if active != offline:
            notes.append(
                f"The hub is {'out of reach' if offline else 'wanted'}, but huggingface_hub had read HF_HUB_OFFLINE "
                "before prepare() could set it. Restart the kernel and call prepare() before any other import."
            )
        in_reach = "out of reach, not switched off" if offline else "in use"
        return active, "offline" if active else in_reach
    if (told is not None and told.upper() in truthy) != offline:
        os.environ["HF_HUB_OFFLINE"] = _set_by_kit["HF_HUB_OFFLINE"] = "1" if offline else "0"
    return offline, "offline" if offline else "in use"


def _hub_reachable(seconds: float = 3.0) -> bool:
    """Whether the hub's host takes a connection; a proxy is trusted to know the way."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    import socket
    from urllib.parse import urlsplit

    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = address.port or (80 if address.scheme == "http" else 443)
    answered = threading.Event()

    def knock() -> None:
        with contextlib.suppress(OSError), socket.create_connection((address.hostname or "", port), seconds):
            answered.set()

    # A name server that never answers would hold create_connection beyond any timeout given to it.
    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


def _describe(
    unsloth: ModuleType, offline: bool, hub: str, seed: int, from_file: Sequence[str], notes: list[str]
) -> Environment:
    import torch

    if torch.cuda.is_available():
        device, name = "cuda", torch.cuda.get_device_name()
        if _spills():
            notes.append(SPILLS)
    else:
        device, name = "cpu", f"{torch.get_num_threads()} threads"
    free, total = device_memory()
    return Environment(
        device=device,
        device_name=name,
        total_bytes=total,
        free_bytes=free,
        bf16=bool(unsloth.is_bfloat16_supported()),
        versions={package: _version(package) for package in TESTED},
        offline=offline,
        hub=hub,
        seed=seed,
        variables=tuple(_variables(from_file, notes)),
        warnings=tuple(notes),
    )


SPILLS = (
    "Windows' driver may put what does not fit on the card into the computer's memory: steps then take many times "
    "longer, where other systems raise an error. Keep to rloo_kit.plan(), and set 'CUDA - Sysmem Fallback Policy' to "
    "'Prefer No Sysmem Fallback' in the NVIDIA control panel (WSL does not heed it)."
)


def _spills() -> bool:
    """Whether the card's driver is Windows', under WSL too."""
    return os.name == "nt" or "microsoft" in platform.uname().release.lower()


def _variables(from_file: Sequence[str], notes: list[str]) -> Iterator[tuple[str, str, str]]:
    known = settings()
    for name, setting in known.items():
        value = os.environ.get(name)
        if value != _read[name]:
            notes.append(
                f"{name} was changed after {setting.read_by} read it; restart the kernel to change it."
            )
        elif name in _set_by_kit:
            yield name, _short(_set_by_kit[name]), f"set: {setting.reason}"
        elif name in from_file:
            yield name, "(not shown)", "from .env"
        elif name in _found:
            yield name, _short(value or ""), _found[name]
        elif value is None and setting.value is not None:
            notes.append(f"{name} could not be set: {setting.read_by} was imported before prepare().")
    for name in from_file:
        if name not in known:
            yield name, "(not shown)", "from .env"


def process_count() -> int:
    """Processes of this run, as torchrun and accelerate launch say."""
    return int(os.environ.get("WORLD_SIZE", 1))


def _short(value: str) -> str:
    if "@" in value:  # an address may hold a password
        return "(not shown)"
    return value.replace(str(Path.home()), "~", 1)


def device_memory() -> tuple[int, int]:
    """Bytes that are free, and all of them: the card's, or without one the computer's."""
    import psutil
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)
    memory = psutil.virtual_memory()
    return memory.available, memory.total

"""Import unsloth first: the hook that ``import rloo_kit`` installs, and the variables that are read at import.

Only this module and :mod:`.prepare` write ``os.environ``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from rloo_kit.errors import ImportOrderError
from rloo_kit.session import output
from rloo_kit.session.output import drop_logged_noise, quiet
from rloo_kit.session.versions import warn_once

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# unsloth patches these at import; names that other code bound earlier stay unpatched.
PATCHED_BY_UNSLOTH = ("trl", "transformers", "peft", "accelerate")

CPU_BF16 = "UNSLOTH_CPU_BF16"
FUSED_4BIT = "UNSLOTH_BNB_GEMM_4BIT"
BLOCK_COMPILE = "UNSLOTH_BLOCK_COMPILE"


class Setting(NamedTuple):
    """A variable that some library reads once, at import."""

    value: str | None  # set if the user set nothing; None if the kit only watches the variable
    read_by: str  # the module whose import reads it; later changes do nothing
    reason: str = ""
    old_name: str = ""  # an earlier name that is still read; if set, it is the user's choice
    device: str = ""  # "cpu" or "cuda" if it affects only that device


FAST = 1.5e12
"""Memory bandwidth in bytes per second: the A100 and its successors in data centres are above it (so is the RTX 5090,
at 1.8e12), all other consumer cards below."""


def settings() -> dict[str, Setting]:
    """The variables that must be in place before the stack is imported, with the kit's values."""
    # By default unsloth fuses 4-bit products on a T4 alone (its _BNB_GEMM_4BIT_ARCHS).  On an H100, whose memory is
    # three times as fast as an RTX 4090's, a step took a fifth longer with them (docs/speed.md).
    fused = None if gpu_bandwidth() > FAST else "1"
    sampled = "2 to 16 completions are multiplied with 4-bit weights; timed on an H100 alone, and slower there"
    cache = str(cache_folder() / "unsloth_compiled_cache")
    statistics = "on a GPU, loading otherwise downloads statistics repos, for up to 120 s"
    folder = "unsloth otherwise writes its compiled code into the notebook's folder"
    same = "float32 on every CPU, so that results agree; 1 takes bfloat16"
    # On an H100 compiling made the first step 36 s longer (58 s with 4-bit products), and a later one 5 to 11 %.
    slow = "compiling the layers made the first step 36 to 58 s longer on an H100, and later ones no faster"
    threads = "forked data workers otherwise warn, or hang, on the tokenizer's threads"
    offline = "without a network every look-up waits and retries"
    # libgomp, torch's OpenMP on Linux, itself takes 100 to 1,000 if it has more threads than cores (GCC's manual).
    waits = sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ and "torch" not in sys.modules
    spins = "1000" if waits else None  # benchmarks/results/busy_cpu.md
    busy = "beside another busy process, threads otherwise wait for each other in long loops: over ten times slower"
    of_the_hub = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT")
    return {
        "UNSLOTH_DISABLE_STATISTICS": Setting("1", "unsloth", statistics),
        "UNSLOTH_COMPILE_LOCATION": Setting(cache, "unsloth", folder),
        CPU_BF16: Setting("0", "unsloth", same, device="cpu"),
        FUSED_4BIT: Setting(fused, "unsloth", sampled, device="cuda"),
        BLOCK_COMPILE: Setting("0", "unsloth", slow, device="cuda"),
        # unsloth sets it where the platform allows, but ignores the old name.
        "PYTORCH_ALLOC_CONF": Setting(None, "torch", old_name="PYTORCH_CUDA_ALLOC_CONF"),
        "TOKENIZERS_PARALLELISM": Setting("false", "tokenizers", threads),
        "GOMP_SPINCOUNT": Setting(spins, "torch", busy, device="cpu"),
        "HF_HUB_OFFLINE": Setting(None, "huggingface_hub", offline),
        **dict.fromkeys(of_the_hub, Setting(None, "huggingface_hub")),
        **dict.fromkeys(("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"), Setting(None, "torch")),
    }


def gpu_bandwidth() -> float:
    """Return the first visible GPU's memory bandwidth in bytes per second, at two transfers per clock as NVML counts
    GDDR's and HBM's clock: 9.4e11 on an RTX 3090; 0 if NVML finds no GPU.  torch is not imported yet at this point."""
    import pynvml

    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    by_uuid = not first.isdigit()
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByUUID(first) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(int(first))
        megahertz = pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_MEM)
        return float(2 * megahertz * 1e6 * pynvml.nvmlDeviceGetMemoryBusWidth(gpu) / 8)
    return 0.0


class _UnslothFirst:
    """Imports unsloth before the first of the libraries it patches, then removes itself.

    The work is done in ``create_module``, not in ``find_spec``: unsloth imports the asked-for library itself, and
    importlib would execute it twice if a finder had loaded it.  No base class: importlib.abc takes 10 ms to import.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (*PATCHED_BY_UNSLOTH, "unsloth"):
            return None
        # The library's own spec: code that only checks whether it is installed gets the true answer.
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None:
            spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        import_unsloth()
        module = importlib.import_module(spec.name)
        self._true_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._true_spec

    def install(self) -> None:
        self.remove()
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        # A new list: importlib may be iterating over the old one.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


_hook = _UnslothFirst()
imported_too_early: tuple[str, ...] = ()
set_by_kit: dict[str, str] = {}
set_by_user: set[str] = set()
values_read: dict[str, str | None] = {}  # the variables' values right after unsloth's import


def put_in_force() -> None:
    global imported_too_early
    drop_logged_noise()
    if "unsloth" in sys.modules:
        return
    imported_too_early = tuple(name for name in PATCHED_BY_UNSLOTH if name in sys.modules)
    if imported_too_early:
        output.warn(str(_too_early()))
    else:
        _hook.install()


def _too_early() -> ImportOrderError:
    return ImportOrderError(
        "unsloth has to be imported before the libraries it patches: nothing can be loaded or trained here",
        where=f"{', '.join(imported_too_early)} came before rloo_kit in this process",
        todo="restart the kernel and make `import rloo_kit` its first line",
    )


def import_unsloth() -> ModuleType:
    """Import unsloth, quietly, with the kit's settings in place; ImportOrderError if a library it patches was first."""
    if imported_too_early:
        raise _too_early()
    apply_settings()
    warn_once()  # before the import, which an untested release may break
    _hook.remove()
    try:
        with quiet():
            unsloth = importlib.import_module("unsloth")
    except BaseException:
        if sys.modules.get("unsloth") is None:
            _hook.install()  # for the next attempt
        raise
    for name in settings():
        values_read.setdefault(name, os.environ.get(name))
    return unsloth


def apply_settings() -> None:
    """Set the kit's variables where the user set nothing and the library has not read them yet."""
    for name, setting in settings().items():
        if setting.old_name in os.environ:
            os.environ.setdefault(name, os.environ[setting.old_name])
        if name in os.environ:
            if name not in set_by_kit and name not in values_read:  # importing unsloth sets some, too
                set_by_user.add(name)
        elif setting.value is not None and setting.read_by not in sys.modules:
            os.environ[name] = set_by_kit[name] = setting.value


def cache_folder() -> Path:
    # The XDG base directory specification: an empty or relative value is ignored.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "rloo-kit"

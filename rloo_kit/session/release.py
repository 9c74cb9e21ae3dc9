"""Give memory back between two runs: `release()` drops references to models and reports who still holds one.

For notebooks, where the GPU stays full after ``del trainer``: IPython's Out history, the last traceback and the trainer
itself each keep a reference to the model.  It saves no weights, and does not empty the user's own containers: it names
them.  torch and IPython are used where they are loaded and never loaded here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING

from rloo_kit.session.output import MIB, running_shell

if TYPE_CHECKING:
    import torch
    from IPython.core.interactiveshell import InteractiveShell

Namespace = dict[str, object]
Storages = dict[tuple[str, int], int]  # bytes by (device, address): views and tied weights count once

SHOWN = 8
WORTH_NAMING = MIB // 2  # less rounds to 0 MiB: tables that libraries keep
MAX_WALKED = 1_000_000  # objects from one root: about a second
# Where trainers, policies, pipelines and accelerate's wrappers keep what they wrap.
WRAPPED = ("model", "model_wrapped", "ref_model", "module", "optimizer", "lr_scheduler", "scheduler")
HOLDS_NOTHING = (type, ModuleType, FunctionType, BuiltinFunctionType)
_CO_OPTIMIZED = 1  # the flag of a function's code, as opposed to a module's or a class body's


@dataclass(frozen=True, repr=False)
class Released:
    """What `release` gave back, and what is still held.

    On a GPU the bytes are those of ``torch.cuda.memory_allocated`` over all devices; without one they are
    the storages of the live tensors that Python can see, each storage once.

    Attributes:
        freed_bytes: bytes that were held before and are not now.
        held_bytes: bytes still held.
        holders: pairs of (who, bytes) from half a MiB on, largest first: a name in the notebook, a variable of a
            running function.  Two names of one model each count it in full, because both have to go; of the functions
            that pass it on, the innermost is named.  ``held_bytes`` also counts bytes whose holder was not looked for:
            a global of a library.
    """

    freed_bytes: int
    held_bytes: int
    holders: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        lines = [f"Released {_mib(self.freed_bytes)}; {_mib(self.held_bytes)} still held."]
        lines += [f"  {_mib(held):>9}  {who}" for who, held in self.holders[:SHOWN]]
        if len(self.holders) > SHOWN:
            lines.append(f"  and {len(self.holders) - SHOWN} more in .holders")
        return "\n".join(lines)

    __repr__ = __str__


def _mib(count: int) -> str:
    return "<1 MiB" if 0 < count < WORTH_NAMING else f"{count / MIB:.0f} MiB"


def release(*holders: object, namespace: Namespace | None = None) -> Released:
    """Drop what keeps the model in memory, and report what is still held and by whom.

    With ``holders`` (a trainer, a policy, a model), the names in the notebook that refer to them or to
    their models go.  Without, every name goes that refers to a ``torch.nn.Module``, an optimizer or a
    learning-rate schedule, or to an object with one of these as its ``model`` (a trainer, a policy).
    Either way these go too: IPython's Out history (``Out``, ``_``, ``_3``), the last traceback, the
    references inside a trainer and its accelerator, and embeddings that bitsandbytes registered for an
    8-bit optimizer.  A trainer cannot be used after that; its ``state.log_history`` stays.

    The user's own containers and variables of running functions are left alone and named in the result.
    Garbage that was already unreachable counts as neither freed nor held, so that the figures of a seeded
    run repeat.  Calling it again is harmless.

    Args:
        holders: objects to let go of; none means every model that the namespace names.
        namespace: where the names are; by default the notebook's, in a script those of ``__main__``.
    """
    shell = running_shell()
    if namespace is None:
        namespace = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
    collect()
    before = bytes_in_use()
    _let_go(holders, namespace)
    del holders
    _clear_errors(shell)
    _clear_out_history(shell, namespace)
    collect()
    held = bytes_in_use()
    return Released(max(before - held, 0), held, holders=_who_holds(held, shell, namespace))


def collect() -> None:
    """Collect garbage, and return what the allocator of the GPU, or without one of the process, keeps cached."""
    gc.collect()
    if _on_cuda():
        cuda = sys.modules["torch"].cuda
        cuda.empty_cache()
        with contextlib.suppress(Exception):  # not every backend shares memory between processes
            cuda.ipc_collect()
    elif sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # glibc keeps what lies below a block that is in use


# --- letting go -------------------------------------------------------------------------------------------


def _let_go(holders: tuple[object, ...], names: Namespace) -> None:
    wanted = _may_hold if holders else _holds_model
    targets = [thing for thing in holders or names.values() if wanted(thing)]
    wrapped = [_attribute(target, name) for target in targets for name in WRAPPED]
    everything = [*targets, *filter(_holds_weights, wrapped)]
    modules = [module for thing in everything if _is_module(thing) for module in thing.modules()]  # type: ignore[attr-defined]
    parts = {id(thing) for thing in everything + modules}
    for name in [name for name, value in names.items() if id(value) in parts]:
        del names[name]
    for target in targets:
        _empty_trainer(target)
    # With an 8-bit optimizer transformers' Trainer registers every nn.Embedding with bitsandbytes' global
    # manager, which never lets it go: 0.78 GB for the embedding of a Qwen3-4B.
    with contextlib.suppress(Exception):
        manager = sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance()
        kept = [triple for triple in manager.module_weight_config_triple if id(triple[0]) not in parts]
        manager.module_weight_config_triple[:] = kept


def _empty_trainer(thing: object) -> None:
    """Empty a trainer, so that what still refers to it keeps no model alive."""
    free_memory = _attribute(_attribute(thing, "accelerator"), "free_memory")
    if not callable(free_memory) or _is_module(thing):
        return
    with contextlib.suppress(Exception):
        free_memory()
    handler = _attribute(thing, "callback_handler")
    callbacks = _attribute(handler, "callbacks")
    for keeper in (thing, handler, *(callbacks if isinstance(callbacks, list) else ())):
        fields = _attribute(keeper, "__dict__")
        for name, value in list(fields.items()) if isinstance(fields, dict) else ():
            several = value if isinstance(value, (list, tuple)) else (value,)
            if value is not handler and any(map(_holds_model, several)):
                with contextlib.suppress(Exception):
                    setattr(keeper, name, None)


def _clear_errors(shell: InteractiveShell | None) -> None:
    """Drop the last traceback, and the local variables of the frames in it that have ended."""
    clear_frames(sys.exc_info()[1], getattr(sys, "last_value", None), getattr(sys, "last_exc", None))
    for name in ("last_value", "last_exc", "last_traceback"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    if shell is not None:
        shell.InteractiveTB.tb = None
        shell.last_execution_result = None


def clear_frames(*errors: BaseException | None) -> None:
    """Drop the local variables of the finished frames of errors, and of all that these were raised from."""
    found: list[BaseException] = []
    todo = list(errors)
    while todo:
        error = todo.pop()
        if error is not None and all(error is not known for known in found):
            found.append(error)
            todo += [error.__cause__, error.__context__]
            traceback.clear_frames(error.__traceback__)


def _clear_out_history(shell: InteractiveShell | None, names: Namespace) -> None:
    if not isinstance(history := names.get("_oh"), dict):  # outside IPython `_` is often gettext's
        return
    for name in [name for name in names if re.fullmatch(r"_\d+", name)]:
        del names[name]
    for name in {"_", "__", "___"} & names.keys():
        names[name] = ""
    history.clear()
    if shell is not None:
        with contextlib.suppress(ValueError):  # raised where the user turned the history off
            shell.displayhook.flush()
        # flush() forgets the shell's second copy of these, which would go on holding the last output.
        shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)


# --- what an object is ------------------------------------------------------------------------------------


def _is_a(thing: object, kinds: type | tuple[type, ...]) -> bool:
    """By type alone: lazy modules and proxies answer ``__class__`` by running code."""
    return issubclass(type(thing), kinds)


def _attribute(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of the user's
        return None


def _may_hold(thing: object) -> bool:
    """Whether a name may be dropped for its value: ``release(None)`` must not drop every name that is None."""
    return gc.is_tracked(thing) and not _is_a(thing, HOLDS_NOTHING)


def _torch_loaded() -> bool:
    torch = sys.modules.get("torch")
    return hasattr(torch, "nn") and hasattr(torch, "optim")  # completely


def _is_module(thing: object) -> bool:
    return _torch_loaded() and _is_a(thing, sys.modules["torch"].nn.Module)


def _holds_weights(thing: object) -> bool:
    if not _torch_loaded():
        return False
    optim = sys.modules["torch"].optim
    return _is_module(thing) or _is_a(thing, (optim.Optimizer, optim.lr_scheduler.LRScheduler))


def _holds_model(thing: object) -> bool:
    """Whether it holds weights, or wraps something that does: a trainer, a policy."""
    if not _may_hold(thing):
        return False
    return _holds_weights(thing) or any(_holds_weights(_attribute(thing, name)) for name in WRAPPED)


# --- bytes, and who holds them ----------------------------------------------------------------------------


def _on_cuda() -> bool:
    return _torch_loaded() and bool(sys.modules["torch"].cuda.is_initialized())


def bytes_in_use() -> int:
    """Bytes that tensors hold: on all GPUs as torch counts them, without one in the storages Python can see."""
    if not _torch_loaded():
        return 0
    if _on_cuda():
        cuda = sys.modules["torch"].cuda
        return sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))
    return sum(_storages_of(gc.get_objects()).values())


def _storages_of(objects: Iterable[object]) -> Storages:
    kind = sys.modules["torch"].Tensor
    found: Storages = {}
    for tensor in [thing for thing in objects if _is_a(thing, kind)]:
        with contextlib.suppress(Exception):  # fake, sparse and wrapper tensors have no storage
            found.update(_storages_of_one(tensor))  # type: ignore[arg-type]
    return found


def _storages_of_one(tensor: torch.Tensor) -> Iterator[tuple[tuple[str, int], int]]:
    # The collector does not list a gradient that Python code has not touched: it has no Python object yet.
    for one in (tensor, tensor.grad if tensor.is_leaf else None):
        if one is not None and (one.is_cuda or not _on_cuda()):
            storage = one.untyped_storage()
            yield (str(one.device), storage.data_ptr()), storage.nbytes() if storage.data_ptr() else 0


def _who_holds(held_bytes: int, shell: object, names: Namespace) -> tuple[tuple[str, int], ...]:
    """Names and running functions from which live tensors are reached, largest first, then by name."""
    if held_bytes < WORTH_NAMING:
        return ()
    # Objects that lead everywhere and hold nothing themselves: namespaces, modules, the shell.
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    everywhere = [names, shell, sys.modules, *modules, *map(vars, modules)]
    stops = {id(thing) for thing in everywhere if thing is not None}
    found = [
        (f"{name} (name in the notebook)", _bytes_from(value, set(stops)))
        for name, value in list(names.items())
    ]
    found += _held_by_frames(stops, names)
    large = [(who, count) for who, count in found if count >= WORTH_NAMING]
    return tuple(sorted(large, key=lambda pair: (-pair[1], pair[0])))


def _bytes_from(root: object, seen: set[int]) -> int:
    """Bytes of the tensors reached from ``root``, without passing through what ``seen`` has, which grows."""
    todo, reached = [root], list[object]()
    while todo and len(reached) < MAX_WALKED:
        thing = todo.pop()
        if id(thing) in seen or not gc.is_tracked(thing):
            continue
        seen.add(id(thing))
        reached.append(thing)
        if _is_a(thing, FunctionType):  # without __globals__: every function refers to its module
            todo += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]  # type: ignore[attr-defined]
        elif not _is_a(thing, type):
            todo += gc.get_referents(thing)
    return sum(_storages_of(reached).values())


def _frames() -> Iterator[FrameType]:
    return (frame for top in sys._current_frames().values() for frame, _ in traceback.walk_stack(top))


def _held_by_frames(seen: set[int], names: Namespace) -> Iterator[tuple[str, int]]:
    for frame in _frames():
        variables = frame.f_locals
        ours = frame.f_globals.get("__name__") == __name__
        if ours or variables is frame.f_globals or variables is names:
            continue
        # The model itself before what leads to it: the first that reaches it is the one to be named.
        for name, value in sorted(variables.items(), key=lambda item: not _holds_model(item[1])):
            if held := _bytes_from(value, seen):
                yield f"{name} (variable of {frame.f_code.co_name}(), line {frame.f_lineno})", held
                # Before Python 3.13 f_locals is a copy that the frame keeps: left alone, this very look at a
                # variable would go on holding the model after the function's own `del`.
                if isinstance(variables, dict) and frame.f_code.co_flags & _CO_OPTIMIZED:
                    variables.pop(name, None)

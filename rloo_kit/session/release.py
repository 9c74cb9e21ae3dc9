"""Give the memory back between two runs: `release()` lets go of a model, and says who still holds what.

For whoever trains in a notebook and finds the card still full after ``del trainer``: IPython's Out history, the last
traceback and the trainer itself each keep a reference to the model.  `release()` drops those, and walks from every
name, running function and module to the tensors that are left.

This module never loads torch or IPython: it works on them where they are loaded.  It does not move,
copy or save weights, and it does not take the user's own containers apart: it names them.  The process goes on;
:mod:`rloo_kit.session.kernel` ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

from rloo_kit.session.show import MIB, running_shell

_WORTH_NAMING = MIB // 2  # below it rounds to nothing: tables that libraries keep
_SHOWN_HOLDERS = 8
_MAX_WALKED = 1_000_000  # objects; a bound on the search for holders, about a second
_CO_OPTIMIZED = 1  # the flag of a function's code, as against a module's or a class body's
# Where trainers, policies, pipelines and accelerate's wrappers keep what they wrap.
_WRAPPED = ("model", "model_wrapped", "ref_model", "module", "optimizer", "lr_scheduler", "scheduler")


@dataclass(frozen=True, repr=False)
class Released:
    """What `release` gave back, and what is still held.

    On a GPU the bytes are those of ``torch.cuda.memory_allocated`` over all devices; without one they are
    the storages of the live tensors that Python can see, each storage once.

    Attributes:
        freed_bytes: bytes that were held before and are not now.
        held_bytes: bytes still held.
        holders: pairs of (who, bytes) from half a MiB on, largest first: a name in the notebook, a
            variable of a running function, a global of a module.  Two names of one model each count it
            in full, because both have to go; of the functions that pass it on, the innermost is named;
            modules are searched for what is unexplained then.  Bytes nobody could be named for are in
            ``held_bytes`` only.
    """

    freed_bytes: int
    held_bytes: int
    holders: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        lines = [f"Released {_mib(self.freed_bytes)}; {_mib(self.held_bytes)} still held."]
        lines += [f"  {_mib(held):>9}  {who}" for who, held in self.holders[:_SHOWN_HOLDERS]]
        if len(self.holders) > _SHOWN_HOLDERS:
            lines.append(f"  and {len(self.holders) - _SHOWN_HOLDERS} more in .holders")
        return "\n".join(lines)

    __repr__ = __str__


def release(*holders: object, namespace: dict[str, Any] | None = None) -> Released:
    """Drop what holds the model in memory, and say what is still held and by whom.

    With ``holders`` (a trainer, a policy, a model), the names in the notebook that refer to them or to
    their models go.  Without, every name goes that refers to a ``torch.nn.Module``, an optimizer or a
    learning-rate schedule, or to an object with one of these as its ``model`` (a trainer, a policy).
    Either way these go too: IPython's Out history (``Out``, ``_``, ``_3``), the last traceback, the
    references inside a trainer and its accelerator, and embeddings that bitsandbytes registered for an
    8-bit optimizer.  A trainer cannot be used after that; its ``state.log_history`` stays.

    The user's own containers and variables of running functions are left alone and named in the result.
    Garbage that was already unreachable counts as neither freed nor held, so that the figures of a seeded
    run repeat.  Calling it again is harmless, an odd holder is passed over, and torch is not loaded.

    Args:
        holders: objects to let go of; none means every model that the namespace names.
        namespace: where the names are; by default the notebook's, in a script those of ``__main__``.

    Returns:
        A `Released`, whose text is in whole MiB.

    Example:
        >>> names = {"answer": 42}
        >>> released = release(namespace=names)
        >>> names
        {'answer': 42}
    """
    shell = running_shell()
    names = _default_namespace(shell) if namespace is None else namespace
    collect()
    before = bytes_in_use()
    _let_go(holders, names)
    del holders
    _clear_errors(shell)
    _clear_out_history(shell, names)
    collect()
    held = bytes_in_use()
    return Released(max(before - held, 0), held, holders=_who_holds(held, shell, names))


def _mib(count: int) -> str:
    return "<1 MiB" if 0 < count < _WORTH_NAMING else f"{count / MIB:.0f} MiB"


def _default_namespace(shell: Any) -> dict[str, Any]:
    names: dict[str, Any] = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
    return names


def _torch() -> Any:
    """torch where it is loaded, else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "nn") and hasattr(torch, "optim") else None


def _on_cuda() -> bool:
    torch = _torch()
    return torch is not None and torch.cuda.is_initialized()


def collect() -> None:
    """Collect garbage, and give back what the allocator of the card, or without one of the process, keeps."""
    gc.collect()
    if _on_cuda():
        torch = _torch()
        torch.cuda.empty_cache()
        with contextlib.suppress(Exception):  # not every backend shares memory between processes
            torch.cuda.ipc_collect()
    elif sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # answers: what prepare() lets glibc keep stays with the process


# --- what goes --------------------------------------------------------------------------------------------


def _let_go(holders: tuple[object, ...], names: dict[str, Any]) -> None:
    targets = [h for h in holders or names.values() if (_may_hold(h) if holders else _holds_model(h))]
    parts = _with_parts(targets)
    for name in [name for name, value in names.items() if id(value) in parts]:
        del names[name]
    for target in targets:
        _empty_trainer(target)
    _forget_embeddings(parts)


_HOLDS_NOTHING = (type, ModuleType, FunctionType, BuiltinFunctionType)


def _is(thing: object, kinds: type | tuple[type, ...]) -> bool:
    # Not isinstance, which asks __class__: lazy modules and proxies answer that by running code.
    return issubclass(type(thing), kinds)


def _may_hold(thing: object) -> bool:
    # Names are dropped by identity: `release(None)` must not take every name that is None.
    return gc.is_tracked(thing) and not _is(thing, _HOLDS_NOTHING)


def _attribute(thing: object, name: str) -> Any:
    """``thing.name`` or None; a property that raises is an odd holder, not an error of ours."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def _is_module(thing: object) -> bool:
    torch = _torch()
    return torch is not None and _is(thing, torch.nn.Module)


def _holds_weights(thing: object) -> bool:
    torch = _torch()
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler) if torch else ()
    return _is(thing, kinds)


def _holds_model(thing: object) -> bool:
    if not _may_hold(thing):
        return False
    return _holds_weights(thing) or any(_holds_weights(_attribute(thing, name)) for name in _WRAPPED)


def _with_parts(targets: Iterable[object]) -> set[int]:
    """Identities of the targets, of what they wrap, and of every submodule of these."""
    wrapped = [_attribute(target, name) for target in targets for name in _WRAPPED]
    everything = [*targets, *(part for part in wrapped if _holds_weights(part))]
    modules = [module for thing in everything if _is_module(thing) for module in thing.modules()]
    return {id(thing) for thing in everything + modules}


def _empty_trainer(thing: object) -> None:
    """Empty a trainer: whoever else keeps it then keeps no model with it."""
    free_memory = _attribute(_attribute(thing, "accelerator"), "free_memory")
    if free_memory is None or _is_module(thing):
        return
    with contextlib.suppress(Exception):
        free_memory()
    handler = _attribute(thing, "callback_handler")
    with contextlib.suppress(Exception):
        for keeper in (thing, handler, *handler.callbacks):
            _clear_fields(keeper, keep=handler)


def _clear_fields(keeper: object, keep: object) -> None:
    for name, value in list((_attribute(keeper, "__dict__") or {}).items()):
        several = value if isinstance(value, (list, tuple)) else (value,)
        if value is not keep and any(_holds_model(one) for one in several):
            with contextlib.suppress(Exception):
                setattr(keeper, name, None)


def _forget_embeddings(parts: set[int]) -> None:
    # transformers' Trainer registers every nn.Embedding with bitsandbytes' global manager when the
    # optimizer is 8-bit, and nobody takes it out again: 0.78 GB for the embedding of a Qwen3-4B.
    with contextlib.suppress(Exception):
        manager = sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance()
        kept = [triple for triple in manager.module_weight_config_triple if id(triple[0]) not in parts]
        manager.module_weight_config_triple[:] = kept


def _clear_errors(shell: Any) -> None:
    """Drop the last traceback, and the local variables of the frames in it that have ended."""
    clear_frames(sys.exc_info()[1], getattr(sys, "last_value", None), getattr(sys, "last_exc", None))
    for name in ("last_value", "last_exc", "last_traceback"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    if shell is not None:
        shell.InteractiveTB.tb = None
        shell.last_execution_result = None


def clear_frames(*errors: BaseException | None) -> None:
    """Drop the local variables of the frames that errors, and all that they were raised from, have left behind."""
    found: list[BaseException] = []
    todo = list(errors)
    while todo:
        error = todo.pop()
        if error is not None and all(error is not known for known in found):
            found.append(error)
            todo += [error.__cause__, error.__context__]
            traceback.clear_frames(error.__traceback__)


def _clear_out_history(shell: Any, names: dict[str, Any]) -> None:
    if "_oh" not in names:  # outside IPython `_` is the user's own, gettext's as a rule
        return
    for name in [name for name in names if re.fullmatch(r"_\d+", name)]:
        del names[name]
    for name in {"_", "__", "___"} & names.keys():
        names[name] = ""
    names["_oh"].clear()
    if shell is not None:
        with contextlib.suppress(ValueError):  # raised where the user turned the history off
            shell.displayhook.flush()
        # flush() forgets the shell's second copy of these, which would go on holding the last output.
        shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)


# --- what is still held -----------------------------------------------------------------------------------


def bytes_in_use() -> int:
    """Bytes that tensors hold: on all GPUs as torch counts them, without one in the storages Python can see."""
    torch = _torch()
    if torch is None:
        return 0
    if _on_cuda():
        return sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))
    return sum(_storages_of(gc.get_objects()).values())


_Storages = dict[tuple[str, int], int]  # bytes by (device, address): views and tied weights count once


def _storages_of(objects: Iterable[object]) -> _Storages:
    kind = _torch().Tensor
    found: _Storages = {}
    for tensor in [thing for thing in objects if issubclass(type(thing), kind)]:
        with contextlib.suppress(Exception):  # fake, sparse and wrapper tensors have no storage
            found.update(_storages_of_one(tensor))
    return found


def _storages_of_one(tensor: Any) -> Iterator[tuple[tuple[str, int], int]]:
    # A gradient that nobody looked at yet has no Python object, so the collector does not list it.
    for one in (tensor, tensor.grad if tensor.is_leaf else None):
        if one is not None and (one.is_cuda or not _on_cuda()):
            storage = one.untyped_storage()
            yield (str(one.device), storage.data_ptr()), storage.nbytes() if storage.data_ptr() else 0


def _who_holds(held_bytes: int, shell: Any, names: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    """Roots from which live tensors are reached, largest first, then by name."""
    if held_bytes < _WORTH_NAMING:
        return ()
    walk = _Walk(stops=_stops(shell, names))
    held = {**dict(_held_by_names(walk, names)), **dict(_held_by_frames(walk, names))}
    if held_bytes - sum(walk.explained.values()) >= _WORTH_NAMING:
        held |= dict(_held_by_modules(walk, names))
    large = [(who, count) for who, count in held.items() if count >= _WORTH_NAMING]
    return tuple(sorted(large, key=lambda pair: (-pair[1], pair[0])))


def _stops(shell: Any, names: dict[str, Any]) -> set[int]:
    """Objects that lead everywhere and hold nothing themselves: namespaces, modules, the shell."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    everywhere = [names, shell, sys.modules, *modules, *map(vars, modules)]
    return {id(thing) for thing in everywhere if thing is not None}


@dataclass
class _Walk:
    """Walks from a root to all that it refers to, within a bound on the whole search."""

    stops: set[int]
    explained: _Storages = field(default_factory=dict)
    left: int = _MAX_WALKED

    def bytes_from(self, root: object, seen: set[int] | None = None) -> int:
        """Bytes of the tensors reached from ``root``, without passing through what ``seen`` has."""
        seen = set() if seen is None else seen
        todo, reached = [root], []
        while todo and self.left > 0:
            thing = todo.pop()
            if id(thing) in seen or id(thing) in self.stops or not gc.is_tracked(thing):
                continue
            seen.add(id(thing))
            self.left -= 1
            reached.append(thing)
            todo.extend(_referents(thing))
        storages = _storages_of(reached)
        self.explained.update(storages)
        return sum(storages.values())


def _referents(thing: object) -> list[Any]:
    if _is(thing, type):
        return []
    if _is(thing, FunctionType):  # without __globals__: every function refers to its module
        return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]  # type: ignore[attr-defined]
    return gc.get_referents(thing)


_Held = Iterator[tuple[str, int]]


def _held_by_names(walk: _Walk, names: dict[str, Any]) -> _Held:
    for name, value in list(names.items()):
        if held := walk.bytes_from(value):
            yield f"{name} (name in the notebook)", held


def _held_by_frames(walk: _Walk, names: dict[str, Any]) -> _Held:
    seen: set[int] = set()
    for frame in _frames():
        variables = frame.f_locals
        if frame.f_globals is globals() or variables is frame.f_globals or variables is names:
            continue
        # The model itself before what leads to it: the first that reaches it is the one to be named.
        for name, value in sorted(variables.items(), key=lambda item: not _holds_model(item[1])):
            if held := walk.bytes_from(value, seen):
                yield f"{name} (variable of {frame.f_code.co_name}(), line {frame.f_lineno})", held
                _forget_snapshot(frame, variables, name)


def _frames() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _forget_snapshot(frame: FrameType, variables: Any, name: str) -> None:
    # Before Python 3.13 f_locals is a copy that the frame keeps: left alone, this very look at a
    # variable would go on holding the model after the function's own `del`.
    if isinstance(variables, dict) and frame.f_code.co_flags & _CO_OPTIMIZED:
        variables.pop(name, None)


def _held_by_modules(walk: _Walk, names: dict[str, Any]) -> _Held:
    seen: set[int] = set()  # shared: a global that ten modules import is named once
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and vars(module) is not names:
            for name, value in _globals_of(module_name, module):
                if held := walk.bytes_from(value, seen):
                    yield name, held


def _globals_of(module_name: str, module: ModuleType) -> Iterator[tuple[str, object]]:
    for name, value in list(vars(module).items()):
        if _is(value, type):
            if value.__module__ == module_name:
                yield from _attributes_of(f"{module_name}.{name}", value)
        elif gc.is_tracked(value):
            yield f"{module_name}.{name} (global of a module)", value


def _attributes_of(who: str, kind: type) -> Iterator[tuple[str, object]]:
    for name, value in list(vars(kind).items()):
        if gc.is_tracked(value):
            yield f"{who}.{name} (attribute of a class)", value

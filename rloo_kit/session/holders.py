"""Which tensors are alive, and who holds them: the search behind :func:`rloo_kit.release`.

It walks from every name and running function to the tensors that they lead to.  It only reads: :mod:`.release`
drops references.  torch is used where it is loaded and never loaded here.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING

from rloo_kit.session.show import MIB

if TYPE_CHECKING:
    import torch

Namespace = dict[str, object]
Held = Iterator[tuple[str, int]]  # pairs of (who, bytes)
Storages = dict[tuple[str, int], int]  # bytes by (device, address): views and tied weights count once

WORTH_NAMING = MIB // 2  # less rounds to 0 MiB: tables that libraries keep
MAX_WALKED = 1_000_000  # objects from one root: about a second
# Where trainers, policies, pipelines and accelerate's wrappers keep what they wrap.
WRAPPED = ("model", "model_wrapped", "ref_model", "module", "optimizer", "lr_scheduler", "scheduler")
_HOLDS_NOTHING = (type, ModuleType, FunctionType, BuiltinFunctionType)
_CO_OPTIMIZED = 1  # the flag of a function's code, as opposed to a module's or a class body's


# --- what an object is ------------------------------------------------------------------------------------


def is_a(thing: object, kinds: type | tuple[type, ...]) -> bool:
    """``isinstance`` by type alone: lazy modules and proxies answer ``__class__`` by running code."""
    return issubclass(type(thing), kinds)


def attribute(thing: object, name: str) -> object:
    """``thing.name``, or None where there is none or where a property raises."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def may_hold(thing: object) -> bool:
    """Whether a name may be dropped for its value: ``release(None)`` must not drop every name that is None."""
    return gc.is_tracked(thing) and not is_a(thing, _HOLDS_NOTHING)


def is_module(thing: object) -> bool:
    """Whether it is a ``torch.nn.Module``."""
    return torch_loaded() and is_a(thing, sys.modules["torch"].nn.Module)


def holds_weights(thing: object) -> bool:
    """Whether it is a module, an optimizer or a learning-rate schedule."""
    if not torch_loaded():
        return False
    optim = sys.modules["torch"].optim
    return is_module(thing) or is_a(thing, (optim.Optimizer, optim.lr_scheduler.LRScheduler))


def holds_model(thing: object) -> bool:
    """Whether it holds weights, or wraps something that does: a trainer, a policy."""
    if not may_hold(thing):
        return False
    return holds_weights(thing) or any(holds_weights(attribute(thing, name)) for name in WRAPPED)


# --- bytes ------------------------------------------------------------------------------------------------


def torch_loaded() -> bool:
    """Whether torch is imported, and completely."""
    torch = sys.modules.get("torch")
    return hasattr(torch, "nn") and hasattr(torch, "optim")


def on_cuda() -> bool:
    """Whether this process uses a GPU."""
    return torch_loaded() and bool(sys.modules["torch"].cuda.is_initialized())


def bytes_in_use() -> int:
    """Bytes that tensors hold: on all GPUs as torch counts them, without one in the storages Python can see."""
    if not torch_loaded():
        return 0
    if on_cuda():
        cuda = sys.modules["torch"].cuda
        return sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))
    return sum(_storages_of(gc.get_objects()).values())


def _storages_of(objects: Iterable[object]) -> Storages:
    kind = sys.modules["torch"].Tensor
    found: Storages = {}
    for tensor in [thing for thing in objects if is_a(thing, kind)]:
        with contextlib.suppress(Exception):  # fake, sparse and wrapper tensors have no storage
            found.update(_storages_of_one(tensor))  # type: ignore[arg-type]
    return found


def _storages_of_one(tensor: torch.Tensor) -> Iterator[tuple[tuple[str, int], int]]:
    # The collector does not list a gradient that Python code has not touched: it has no Python object yet.
    for one in (tensor, tensor.grad if tensor.is_leaf else None):
        if one is not None and (one.is_cuda or not on_cuda()):
            storage = one.untyped_storage()
            yield (str(one.device), storage.data_ptr()), storage.nbytes() if storage.data_ptr() else 0


# --- who holds them ---------------------------------------------------------------------------------------


def who_holds(held_bytes: int, shell: object, names: Namespace) -> tuple[tuple[str, int], ...]:
    """Names and running functions from which live tensors are reached, largest first, then by name."""
    if held_bytes < WORTH_NAMING:
        return ()
    # Objects that lead everywhere and hold nothing themselves: namespaces, modules, the shell.
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    everywhere = [names, shell, sys.modules, *modules, *map(vars, modules)]
    stops = {id(thing) for thing in everywhere if thing is not None}
    held = {
        f"{name} (name in the notebook)": _bytes_from(value, set(stops))
        for name, value in list(names.items())
    }
    held |= dict(_held_by_frames(stops, names))
    large = [(who, count) for who, count in held.items() if count >= WORTH_NAMING]
    return tuple(sorted(large, key=lambda pair: (-pair[1], pair[0])))


def _bytes_from(root: object, seen: set[int]) -> int:
    """Bytes of the tensors reached from ``root``, without passing through what ``seen`` has, which grows."""
    todo, reached = [root], list[object]()
    while todo and len(reached) < MAX_WALKED:
        thing = todo.pop()
        if id(thing) not in seen and gc.is_tracked(thing):
            seen.add(id(thing))
            reached.append(thing)
            todo.extend(_referents(thing))
    return sum(_storages_of(reached).values())


def _referents(thing: object) -> list[object]:
    if is_a(thing, type):
        return []
    if is_a(thing, FunctionType):  # without __globals__: every function refers to its module
        return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]  # type: ignore[attr-defined]
    return gc.get_referents(thing)


def _frames() -> Iterator[FrameType]:
    return (frame for top in sys._current_frames().values() for frame, _ in traceback.walk_stack(top))


def _held_by_frames(seen: set[int], names: Namespace) -> Held:
    for frame in _frames():
        variables = frame.f_locals
        ours = frame.f_globals.get("__package__") == __package__
        if ours or variables is frame.f_globals or variables is names:
            continue
        # The model itself before what leads to it: the first that reaches it is the one to be named.
        for name, value in sorted(variables.items(), key=lambda item: not holds_model(item[1])):
            if held := _bytes_from(value, seen):
                yield f"{name} (variable of {frame.f_code.co_name}(), line {frame.f_lineno})", held
                # Before Python 3.13 f_locals is a copy that the frame keeps: left alone, this very look at a
                # variable would go on holding the model after the function's own `del`.
                if isinstance(variables, dict) and frame.f_code.co_flags & _CO_OPTIMIZED:
                    variables.pop(name, None)

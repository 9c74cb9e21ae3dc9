"""Give memory back between two runs: `release()` drops references to models and names who still holds one.

For notebooks, where the GPU stays full after ``del trainer``.  It saves no weights, and leaves users' containers alone.
torch and IPython are used where they are loaded and never loaded here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType
from typing import Any

from rloo_kit.session.output import MIB, running_shell

SHOWN = 8
WORTH_NAMING = MIB // 2  # less rounds to 0 MiB
# Where trainers, policies, pipelines and accelerate's wrappers keep what they wrap.
WRAPPED = ("model", "model_wrapped", "ref_model", "module", "optimizer", "lr_scheduler", "scheduler")


@dataclass(frozen=True, repr=False)
class Released:
    """What `release` gave back, and what is still held.

    Attributes:
        freed_bytes, held_bytes: as ``torch.cuda.memory_allocated`` counts them; without a GPU, live tensors' storages.
        holders: pairs of (who, bytes) from half a MiB on, largest first: names in the notebook and variables of running
            functions that are a model or a tensor, or have one among their items, attributes or closed-over variables.
            Each counts it in full.  What is held further down is in ``held_bytes`` alone.
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


def release(*holders: object, namespace: dict[str, Any] | None = None) -> Released:
    """Drop what keeps the model in memory, and report what is still held and by whom.

    Names in the notebook go that refer to ``holders`` or to their models; without holders, all of models, optimizers,
    schedules, and what wraps one (a trainer, a policy).  So do IPython's Out history, the last traceback, and the
    references inside a trainer, which cannot be used after that; its ``state.log_history`` stays.

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
    clear_frames(sys.exc_info()[1], getattr(sys, "last_value", None), getattr(sys, "last_exc", None))
    for name in {"last_value", "last_exc", "last_traceback"} & vars(sys).keys():
        setattr(sys, name, None)
    if shell is not None:
        shell.InteractiveTB.tb = shell.last_execution_result = None
        with contextlib.suppress(ValueError):  # raised where the user turned the history off
            shell.displayhook.flush()
        # flush() forgets the shell's second copy of these, which would go on holding the last output.
        shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)
    collect()
    held = bytes_in_use()
    found = _who_holds(namespace) if held >= WORTH_NAMING else ()
    large = sorted((-size, who) for who, size in found if size >= WORTH_NAMING)
    return Released(max(before - held, 0), held, tuple((who, -size) for size, who in large))


def _on_cuda() -> bool:
    return _torch() is not None and bool(_torch().cuda.is_initialized())


def collect() -> None:
    """Collect garbage, and return what the allocator of the GPU, or without one of the process, keeps cached."""
    gc.collect()
    if _on_cuda():
        sys.modules["torch"].cuda.empty_cache()
    elif sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # glibc keeps what lies below a block that is in use


def _let_go(holders: tuple[object, ...], names: dict[str, Any]) -> None:
    targets = [thing for thing in holders or names.values() if _weights(thing)]
    weights = [found for thing in targets for found in _weights(thing)]
    modules = [module for found in weights if hasattr(found, "modules") for module in found.modules()]
    parts = {id(thing) for thing in [*targets, *weights, *modules]}
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
    if _is_weights(thing) or not callable(free_memory):
        return
    with contextlib.suppress(Exception):
        free_memory()
    for name, value in list((_attribute(thing, "__dict__") or {}).items()):
        if name == "callback_handler" or any(map(_weights, [value, *_inside(value)])):
            with contextlib.suppress(Exception):
                setattr(thing, name, None)


def clear_frames(*errors: BaseException | None) -> None:
    """Drop the local variables of the finished frames of errors, and of all that these were raised from."""
    found, todo = set[int](), list(errors)
    while todo:
        error = todo.pop()
        if error is not None and id(error) not in found:
            found.add(id(error))
            todo += [error.__cause__, error.__context__]
            traceback.clear_frames(error.__traceback__)


def _attribute(thing: object, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:  # a property of the user's
        return None


def _is_a(thing: object, *kinds: type) -> bool:
    """By type alone: lazy modules and proxies answer ``__class__`` by running code."""
    return issubclass(type(thing), kinds)


def _torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "nn") and hasattr(torch, "optim") else None  # loaded completely


def _is_weights(thing: object) -> bool:
    torch = _torch()
    kinds = torch and (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    return bool(kinds) and _is_a(thing, *kinds)


def _weights(thing: object) -> list[Any]:
    """The models, optimizers and schedules that a thing is, or wraps as a trainer and a policy do."""
    wrapped = () if _is_a(thing, type, ModuleType) else (_attribute(thing, name) for name in WRAPPED)
    return list(filter(_is_weights, (thing, *wrapped)))


def _inside(thing: Any) -> list[Any]:
    """Items of a container, what a function closes over, attributes of anything else but weights."""
    if _is_weights(thing) or _is_a(thing, type, ModuleType):
        return []
    if _is_a(thing, FunctionType):
        return [_attribute(cell, "cell_contents") for cell in thing.__closure__ or ()]
    if _is_a(thing, list, tuple, set):
        return list(thing)
    held = thing if _is_a(thing, dict) else _attribute(thing, "__dict__")
    return list(held.values()) if _is_a(held, dict) else []


def _who_holds(names: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in list(names.items()):
        yield f"{name} (name in the notebook)", _bytes_held(value)
    for frame in _frames():
        code, variables = frame.f_code, frame.f_locals
        if frame.f_globals is globals() or not code.co_flags & inspect.CO_OPTIMIZED:  # no function's
            continue
        for name, value in list(variables.items()):
            if value is not names and (held := _bytes_held(value)):
                yield f"{name} (variable of {code.co_name}(), line {frame.f_lineno})", held
                # Before Python 3.13 the variables are a copy, which would outlive the function's own `del`.
                if isinstance(variables, dict):
                    variables.pop(name, None)


def _frames() -> Iterator[FrameType]:
    return (frame for top in sys._current_frames().values() for frame, _ in traceback.walk_stack(top))


def _bytes_held(value: object) -> int:
    """Bytes of a value's tensors and models, and of those one level inside it."""
    near = [value, *_inside(value)]
    models = [one for thing in near for one in _weights(thing) if hasattr(one, "buffers")]
    tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    return _bytes_of([*near, *tensors])


def bytes_in_use() -> int:
    """Bytes that tensors hold: on all GPUs as torch counts them, without one in the storages Python can see."""
    if _on_cuda():
        cuda = _torch().cuda
        return sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))
    return _bytes_of(gc.get_objects())


def _bytes_of(things: Iterable[object]) -> int:
    if (torch := _torch()) is None:
        return 0
    found: dict[tuple[str, int], int] = {}  # bytes by device and address: views and tied weights count once
    for tensor in [thing for thing in things if _is_a(thing, torch.Tensor)]:
        with contextlib.suppress(Exception):  # fake, sparse and wrapper tensors have no storage
            found.update(_storages_of(tensor))
    return sum(found.values())


def _storages_of(tensor: Any) -> Iterator[tuple[tuple[str, int], int]]:
    # The collector does not list a gradient that Python code has not touched: it has no Python object yet.
    for one in (tensor, tensor.grad if tensor.is_leaf else None):
        if one is not None and (one.is_cuda or not _on_cuda()):
            storage = one.untyped_storage()
            yield (str(one.device), storage.data_ptr()), storage.nbytes() if storage.data_ptr() else 0

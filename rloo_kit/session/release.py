"""Free memory between two runs: `release()` drops references to models and names what still holds one.

For notebooks, where the GPU stays full after ``del trainer``.  It saves no weights, and leaves users' containers alone.
torch and IPython are used if already loaded, and never loaded here.
"""

import contextlib
import ctypes
import gc
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rloo_kit.session.output import MIB, running_shell

SHOWN = 8  # holders that are printed
WORTH_NAMING = MIB // 2  # less rounds to 0 MiB
# Attributes in which trainers, policies, pipelines and accelerate's wrappers keep what they wrap.
WRAPPED = ("model", "model_wrapped", "ref_model", "module", "optimizer", "lr_scheduler", "scheduler")


@dataclass(frozen=True, repr=False)
class Released:
    """What `release` gave back, and what is still held.

    Attributes:
        freed_bytes, held_bytes: as ``torch.cuda.memory_allocated`` counts them; without a GPU, live tensors' storages.
        holders: (name, bytes) pairs from half a MiB on, largest first: names in the notebook and variables of running
            functions that are a model, a trainer, a policy or a tensor, or a list, tuple or dict of them.  Shared
            memory counts in full for each holder.  Memory held deeper is only in ``held_bytes``.
    """

    freed_bytes: int
    held_bytes: int
    holders: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        lines = [f"Released {_mib(self.freed_bytes)}; {_mib(self.held_bytes)} still held."]
        return "\n".join([*lines, *(f"  {_mib(held):>9}  {who}" for who, held in self.holders[:SHOWN])])

    __repr__ = __str__


def _mib(count: int) -> str:
    return "<1 MiB" if 0 < count < WORTH_NAMING else f"{count / MIB:.0f} MiB"


def release(*holders: object, namespace: dict[str, Any] | None = None) -> Released:
    """Free the model's memory, and report what is still held and by what.

    Deletes the notebook's names for ``holders`` and their models; without holders, every name of a model, an optimizer,
    a schedule, or an object that wraps one (a trainer, a policy).  It also clears IPython's Out history, the last
    traceback, and the references inside a trainer, which cannot be used afterwards; its ``state.log_history`` stays.

    Args:
        holders: objects to let go of; none means every model named in the namespace.
        namespace: the dict of names; None means the notebook's, in a script ``__main__``'s.
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
        with contextlib.suppress(ValueError):  # raised if the user turned the history off
            shell.displayhook.flush()
        # flush() misses the shell's second copy of these, which would go on holding the last output.
        shell.push(dict.fromkeys(("_", "__", "___"), ""), interactive=False)
    collect()
    held = bytes_in_use()
    sizes = _sizes_by_holder(namespace) if held >= WORTH_NAMING else ()
    large = sorted((-size, who) for who, size in sizes if size >= WORTH_NAMING)
    return Released(max(before - held, 0), held, tuple((who, -size) for size, who in large))


def collect() -> None:
    """Collect garbage, and give back the memory cached by the GPU's allocator, or without a GPU by the process's."""
    gc.collect()
    if _on_cuda():
        sys.modules["torch"].cuda.empty_cache()
    elif sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # glibc keeps free memory below a block that is in use


def _let_go(holders: tuple[object, ...], names: dict[str, Any]) -> None:
    targets = [thing for thing in holders or names.values() if _weights(thing)]
    weights = [part for thing in targets for part in _weights(thing)]
    modules = [module for part in weights if hasattr(part, "modules") for module in part.modules()]
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
    """Empty a trainer, so that remaining references to it keep no model alive."""
    attributes = _attributes(thing)
    free_memory = getattr(attributes.get("accelerator"), "free_memory", None)
    if not callable(free_memory):
        return
    with contextlib.suppress(Exception):
        free_memory()
    for name, value in list(attributes.items()):
        if name == "callback_handler" or any(map(_weights, [value, *_items(value)])):
            attributes[name] = None


def clear_frames(*errors: BaseException | None) -> None:
    """Drop the local variables in the finished frames of errors, and in those of their causes and contexts."""
    cleared, todo = set[int](), list(errors)
    while todo:
        error = todo.pop()
        if error is not None and id(error) not in cleared:
            cleared.add(id(error))
            todo += [error.__cause__, error.__context__]
            traceback.clear_frames(error.__traceback__)


def _attributes(thing: object) -> dict[str, Any]:
    try:
        return {} if isinstance(thing, type | ModuleType) else vars(thing)
    except Exception:  # there are none, or the user's class runs code of its own here
        return {}


def _items(thing: Any) -> list[Any]:
    if issubclass(type(thing), dict):
        return list(thing.values())
    return list(thing) if issubclass(type(thing), (list, tuple)) else []


def _weights(thing: object) -> list[Any]:
    """Return the models, optimizers and schedules that an object is, or wraps as a trainer or a policy does."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    parts = [thing, *map(_attributes(thing).get, WRAPPED)]
    return [part for part in parts if issubclass(type(part), kinds)]  # by type: a proxy's __class__ runs its code


def _sizes_by_holder(names: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in list(names.items()):
        yield f"{name} (name in the notebook)", _bytes_held(value)
    for frame, line in traceback.walk_stack(sys._getframe()):
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if frame.f_globals is globals() or not is_function:
            continue
        variables = frame.f_locals
        for name, value in list(variables.items()):
            if value is not names and (size := _bytes_held(value)):
                yield f"{name} (variable of {frame.f_code.co_name}(), line {line})", size
                # Before Python 3.13 the variables are a copy, which would outlive the function's own `del`.
                if isinstance(variables, dict):
                    del variables[name]


def _bytes_held(value: object) -> int:
    near = [value, *_items(value)]
    models = [part for thing in near for part in _weights(thing) if hasattr(part, "buffers")]
    weights = [weight for model in models for weight in (*model.parameters(), *model.buffers())]
    return _bytes_of([*near, *weights])


def bytes_in_use() -> int:
    """Return the bytes that tensors hold: on all GPUs as torch counts them, or without one, in storages Python sees."""
    if _on_cuda():
        cuda = sys.modules["torch"].cuda
        return sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))
    return _bytes_of(gc.get_objects())


def _on_cuda() -> bool:
    return "torch" in sys.modules and bool(sys.modules["torch"].cuda.is_initialized())


def _bytes_of(things: Iterable[Any]) -> int:
    if (torch := sys.modules.get("torch")) is None:
        return 0
    storages = dict[tuple[str, int], int]()  # bytes by device and address: views and tied weights count once
    for tensor in [thing for thing in things if issubclass(type(thing), torch.Tensor)]:
        with contextlib.suppress(Exception):  # fake, sparse and wrapper tensors have no storage
            # The collector does not list a gradient that Python code has not touched: it has no Python object yet.
            for part in (tensor, tensor.grad if tensor.is_leaf else None):
                if part is not None and (part.is_cuda or not _on_cuda()) and part.data_ptr():
                    storage = part.untyped_storage()
                    storages[str(part.device), storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())

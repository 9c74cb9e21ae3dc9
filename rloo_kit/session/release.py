"""Give memory back between two runs: `release()` drops references to models and reports who still holds one.

For notebooks, where the GPU stays full after ``del trainer``: IPython's Out history, the last traceback and the trainer
itself each keep a reference to the model.  It does not move, copy or save weights, and it does not empty the user's own
containers: it names them.  torch and IPython are used where they are loaded and never loaded here.

The process goes on; :mod:`rloo_kit.session.kernel` ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rloo_kit.session import holders as search
from rloo_kit.session.holders import Namespace, attribute
from rloo_kit.session.show import MIB, running_shell

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_SHOWN_HOLDERS = 8


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
            that pass it on, the innermost is named.  ``held_bytes`` also counts bytes whose holder was not found, such
            as a global of a library.
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


def _mib(count: int) -> str:
    return "<1 MiB" if 0 < count < search.WORTH_NAMING else f"{count / MIB:.0f} MiB"


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
    before = search.bytes_in_use()
    _let_go(holders, namespace)
    del holders
    _clear_errors(shell)
    _clear_out_history(shell, namespace)
    collect()
    held = search.bytes_in_use()
    return Released(max(before - held, 0), held, holders=search.who_holds(held, shell, namespace))


def collect() -> None:
    """Collect garbage, and return what the allocator of the GPU, or without one of the process, keeps cached."""
    gc.collect()
    if search.on_cuda():
        cuda = sys.modules["torch"].cuda
        cuda.empty_cache()
        with contextlib.suppress(Exception):  # not every backend shares memory between processes
            cuda.ipc_collect()
    elif sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # glibc keeps what lies below a block that is in use


def _let_go(holders: tuple[object, ...], names: Namespace) -> None:
    wanted = search.may_hold if holders else search.holds_model
    targets = [thing for thing in holders or names.values() if wanted(thing)]
    parts = _with_parts(targets)
    for name in [name for name, value in names.items() if id(value) in parts]:
        del names[name]
    for target in targets:
        _empty_trainer(target)
    _forget_embeddings(parts)


def _with_parts(targets: Iterable[object]) -> set[int]:
    wrapped = [attribute(target, name) for target in targets for name in search.WRAPPED]
    everything = [*targets, *(part for part in wrapped if search.holds_weights(part))]
    modules = [module for thing in everything if search.is_module(thing) for module in thing.modules()]  # type: ignore[attr-defined]
    return {id(thing) for thing in everything + modules}


def _empty_trainer(thing: object) -> None:
    """Empty a trainer, so that what still refers to it keeps no model alive."""
    free_memory = attribute(attribute(thing, "accelerator"), "free_memory")
    if not callable(free_memory) or search.is_module(thing):
        return
    with contextlib.suppress(Exception):
        free_memory()
    handler = attribute(thing, "callback_handler")
    callbacks = attribute(handler, "callbacks")
    for keeper in (thing, handler, *(callbacks if isinstance(callbacks, list) else ())):
        _clear_fields(keeper, keep=handler)


def _clear_fields(keeper: object, keep: object) -> None:
    fields = attribute(keeper, "__dict__")
    for name, value in list(fields.items()) if isinstance(fields, dict) else ():
        several = value if isinstance(value, (list, tuple)) else (value,)
        if value is not keep and any(search.holds_model(one) for one in several):
            with contextlib.suppress(Exception):
                setattr(keeper, name, None)


def _forget_embeddings(parts: set[int]) -> None:
    # With an 8-bit optimizer transformers' Trainer registers every nn.Embedding with bitsandbytes' global
    # manager, which never lets it go: 0.78 GB for the embedding of a Qwen3-4B.
    with contextlib.suppress(Exception):
        manager = sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance()
        kept = [triple for triple in manager.module_weight_config_triple if id(triple[0]) not in parts]
        manager.module_weight_config_triple[:] = kept


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

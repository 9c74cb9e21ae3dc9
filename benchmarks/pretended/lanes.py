"""Vectorise Triton's interpreter: run all programs along a grid's first axis at once, as numpy arrays.

The interpreter runs one program after another, each of tens of operations of 30 microseconds, and a kernel of Unsloth's
has one program per token.  Here every array has an extra first axis, the lanes: one lane per program, or a single lane
where all programs hold the same value.  If a program branches unlike its neighbours (on its number), the launch is run
again lane by lane.  After the first store it is too late for that, and an error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton
from triton.runtime import interpreter

AT_ONCE = 512
"""Programs run at once; more would not fit the processor's cache."""
Handle = interpreter.TensorHandle
_patch_lang = interpreter._patch_lang
_known_languages: set[str] = set()


class LanesDiffer(Exception):
    """A kernel asks for a single number where its programs hold different ones."""


def _one(tensor: Any) -> Any:
    values = tensor.handle.data
    if (values != values.flat[0]).any():
        raise LanesDiffer(str(values))
    return values.flat[0]


def _transposed(tensor: Any) -> Any:
    rows, columns = tensor.type.shape
    kind = triton.language.block_type(tensor.dtype, [columns, rows])
    return triton.language.tensor(Handle(tensor.handle.data.swapaxes(1, 2), tensor.handle.dtype), kind)


def patched_for_good(kernel: Any) -> Any:
    """Patch Triton's language for the interpreter once: restoring it after each launch would mean patching again."""
    if kernel.__module__ not in _known_languages:
        _known_languages.add(kernel.__module__)
        _patch_lang(kernel)
        tensor = triton.language.tensor
        # Blocks are true, as in the interpreter: kernels branch on numbers only.
        tensor.__bool__ = lambda self: self.type.is_block() or bool(_one(self))
        tensor.__index__ = lambda self: int(_one(self))
        tensor.T = property(_transposed)
    return SimpleNamespace(restore=lambda: None)


def install() -> None:
    builder = interpreter.InterpreterBuilder
    for name, method in {**_shapes(), **_memory(builder)}.items():
        setattr(builder, name, method)
    interpreter._patch_lang = patched_for_good
    interpreter.GridExecutor.__call__ = _launch
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        _shift_axis(kind)
    interpreter.ReduceScanOpInterface.to_tensor = _to_tensor
    interpreter.ReduceScanOpInterface.check_axis = lambda self, shape, axis: None


# --- shapes ---------------------------------------------------------------------------------------------------


def _shapes() -> dict[str, Callable[..., Any]]:
    def splat(self: Any, kind: Any, value: Any) -> Any:
        lanes = len(value.data)
        flat = value.data.reshape(lanes, *[1] * len(kind.shape))
        return Handle(np.broadcast_to(flat, (lanes, *kind.shape)), value.dtype.scalar)

    def broadcast(self: Any, value: Any, shape: Any) -> Any:
        return Handle(np.broadcast_to(value.data, (len(value.data), *shape)), value.dtype.scalar)

    def reshape(self: Any, value: Any, shape: Any, allow_reorder: bool) -> Any:
        return Handle(value.data.reshape(len(value.data), *shape), value.dtype.scalar)

    def program_id(self: Any, axis: int) -> Any:
        here = self.grid_idx[axis]
        return Handle(np.atleast_1d(np.asarray(here, dtype=np.int32)), triton.language.int32)

    return {
        "create_splat": splat,
        "create_broadcast": broadcast,
        "create_reshape": reshape,
        "create_get_program_id": program_id,
        "create_make_range": lambda self, kind, start, stop: Handle(
            np.arange(start, stop, dtype=np.int32)[None], triton.language.int32
        ),
        "create_expand_dims": lambda self, value, axis: Handle(
            np.expand_dims(value.data, axis + 1), value.dtype.scalar
        ),
        "create_trans": lambda self, value, order: Handle(
            np.transpose(value.data, (0, *(axis + 1 for axis in order))), value.dtype.scalar
        ),
        "create_unsplat": lambda self, value: Handle(value.data.reshape(-1), value.dtype.scalar),
    }


def _shift_axis(kind: Any) -> None:
    begin = kind.__init__

    def init(self: Any, axis: int | None, *args: Any) -> None:
        begin(self, axis, *args)
        self.axis = None if axis is None else axis + 1

    def slow(self: Any, *args: Any) -> Any:
        raise NotImplementedError("a reduction with a function of its own")

    def total(self: Any, given: Any) -> Any:
        values = given.handle.data
        axes = tuple(range(1, values.ndim)) if self.axis is None else self.axis
        return self.to_tensor(np.sum(values, axis=axes, keepdims=self.keep_dims), given.dtype)

    kind.__init__, kind.generic_reduce, kind.generic_scan = init, slow, slow
    if kind is interpreter.ReduceOps:
        kind.sum = total


def _to_tensor(self: Any, values: Any, dtype: Any) -> Any:
    values = np.atleast_1d(values).astype(interpreter._get_np_dtype(dtype))
    kind = triton.language.block_type(dtype, list(values.shape[1:])) if values.ndim > 1 else dtype
    return triton.language.tensor(Handle(values, dtype.scalar), kind)


# --- memory, and launches ---------------------------------------------------------------------------------------


def _alike(*handles: Any) -> Iterator[Any]:
    """Broadcast to equal shapes, which the interpreter's C++ requires."""
    shape = np.broadcast_shapes(*(handle.data.shape for handle in handles))
    for handle in handles:
        yield Handle(np.broadcast_to(handle.data, shape).copy(), handle.dtype)


def _memory(builder: Any) -> dict[str, Callable[..., Any]]:
    load, store = builder.create_masked_load, builder.create_masked_store
    update, exchange = builder.create_atomic_rmw, builder.create_atomic_cas

    def masked_load(self: Any, pointers: Any, mask: Any, other: Any, *how: Any) -> Any:
        if other is None:
            pointers, mask = _alike(pointers, mask)
        else:
            pointers, mask, other = _alike(pointers, mask, other)
        return load(self, pointers, mask, other, *how)

    def masked_store(self: Any, pointers: Any, values: Any, mask: Any, *how: Any) -> Any:
        self.has_stored = True
        return store(self, *_alike(pointers, values, mask), *how)

    def atomic_rmw(self: Any, operation: Any, pointers: Any, values: Any, mask: Any, *how: Any) -> Any:
        self.has_stored = True
        return update(self, operation, *_alike(pointers, values, mask), *how)

    def atomic_cas(self: Any, pointers: Any, compared: Any, values: Any, *how: Any) -> Any:
        self.has_stored = True
        return exchange(self, *_alike(pointers, compared, values), *how)

    return {
        "create_masked_load": masked_load,
        "create_masked_store": masked_store,
        "create_atomic_rmw": atomic_rmw,
        "create_atomic_cas": atomic_cas,
    }


def _launch(executor: Any, *args: Any, **kwargs: Any) -> None:
    """Run a kernel over its grid; arguments are treated as in the interpreter's ``GridExecutor.__call__``."""
    import inspect

    names = inspect.getfullargspec(executor.fn).args
    for hook in executor.pre_run_hooks:
        hook(*args, **kwargs)
    patched_for_good(executor.fn)
    given = inspect.getcallargs(executor.fn, *args, **{n: v for n, v in kwargs.items() if n in names})
    given = {n: v if n in executor.constexprs else interpreter._implicit_cvt(v) for n, v in given.items()}
    grid = executor.grid(given) if callable(executor.grid) else executor.grid
    first, *rest = (*grid, 1, 1)[:3]
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(first, *rest)
    for start in range(0, first, AT_ONCE):
        for y, z in np.ndindex(*rest):
            _run(executor.fn, given, np.arange(start, min(start + AT_ONCE, first)), int(y), int(z))


def _run(kernel: Callable[..., None], given: dict[str, Any], programs: Any, y: int, z: int) -> None:
    builder = interpreter.interpreter_builder
    builder.grid_idx, builder.has_stored = (programs, y, z), False
    try:
        kernel(**given)
    except (LanesDiffer, interpreter.InterpreterError):
        if len(programs) == 1 or builder.has_stored:
            raise
        for program in programs:
            _run(kernel, given, np.array([program]), y, z)

"""Tensors on "cuda": they lie in the computer's memory, or on "meta", and say that they are on cuda:0."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

CUDA = torch.device("cuda:0")
_device = vars(torch._C.TensorBase)["device"].__get__
_is_cuda = vars(torch._C.TensorBase)["is_cuda"].__get__


class CudaIs(TorchFunctionMode):
    """Replaces "cuda" by the target in every call of torch, and answers "cuda:0" when asked for a tensor's device.

    Attributes:
        target: where tensors lie; it may be changed between calls.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = torch.device(target)

    def lowered(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return self.target
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
            return self.target.type
        return value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kwargs.pop("pin_memory", None)
        if type(kwargs.get("device")) is int:
            kwargs["device"] = self.target
        if func is torch.device:
            is_index = bool(args) and type(args[0]) is int
            return func("cuda", *args) if is_index else func(*args, **kwargs)
        if func == _device:
            found = _device(args[0])
            return CUDA if found.type == self.target.type else found
        if func == _is_cuda:
            return _device(args[0]).type == self.target.type
        if func is torch.Tensor.cuda:
            return args[0].to(self.target)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], self.target, *args[2:])
        return func(*map(self.lowered, args), **{name: self.lowered(value) for name, value in kwargs.items()})


_ENTERED: list[TorchFunctionMode] = []


def enter(mode: TorchFunctionMode) -> None:
    mode.__enter__()
    _ENTERED.append(mode)


def _stay_in_backward() -> None:
    """Keep modes on in ``loss.backward()``: torch switches a mode off inside the call that it handles."""
    engine: Any = torch.autograd  # calls the engine by the name that it imported
    run = engine._engine_run_backward

    def run_in_modes(*args: Any, **kwargs: Any) -> Any:
        active = _get_current_function_mode_stack()
        with contextlib.ExitStack() as stack:
            for mode in _ENTERED:
                if mode not in active:
                    stack.enter_context(mode)
            return run(*args, **kwargs)

    engine._engine_run_backward = run_in_modes


def _host(value: Any) -> Any:
    return "cpu" if value in ("cuda", "meta") else value


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*map(_host, args), **{name: _host(value) for name, value in kwargs.items()})


def _autocast_on_host() -> None:
    begin = torch.autocast.__init__

    def init(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, _host(device_type), *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]
    asked = ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_available")
    for name in (*asked, "set_autocast_enabled", "set_autocast_dtype"):
        for owner in (torch, torch._C, torch.amp, torch.amp.autocast_mode):
            if hasattr(owner, name):
                setattr(owner, name, _on_host(getattr(owner, name)))
    for name in ("custom_fwd", "custom_bwd"):
        setattr(torch.amp, name, _on_host(getattr(torch.amp, name)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")


class _IsGenerator(type):
    """Keeps isinstance working for torch's own generators."""

    true = torch.Generator

    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is cls.true

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls.true


class Generator(metaclass=_IsGenerator):
    def __new__(cls, device: object = None) -> torch.Generator:  # type: ignore[misc]
        return cls.true()


def pretend(target: str) -> CudaIs:
    mode = CudaIs(target)
    enter(mode)
    _stay_in_backward()
    torch.Tensor.cuda = lambda self, *args, **kwargs: self.to(mode.target)  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    _autocast_on_host()
    torch.Generator = Generator  # type: ignore[misc]
    return mode

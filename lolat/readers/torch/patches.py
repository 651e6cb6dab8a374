"""Patches PyTorch while a module runs: torch.no_grad, torch.autocast, torch.utils.checkpoint, masks."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._functorch import eager_transforms
from torch.autograd import grad_mode
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from lolat.graph import GraphBuilder
from lolat.readers.remarks import LIBRARIES
from lolat.readers.torch.isolation import in_this_thread
from lolat.readers.torch.parameters import Parameters
from lolat.readers.torch.running import Running
from lolat.readers.torch.transfers import Transfers
from lolat.readers.user_modules import quietly
from lolat.units import plural

NO_AUTOCAST = (
    "its code uses torch.autocast of CUDA, which is off on this machine: the precision is the device's, or "
    "the one asked for"
)

READ_AS_EAGER = (
    "its code asks whether PyTorch compiles or exports it (torch.compiler.is_compiling): read as it runs "
    "without --launch compiled; compiled it may run other operations"
)

READ_ON_CPU = (
    "its code asks whether it runs on a GPU (is_cuda, torch.cuda.is_available): read as it runs on a CPU; "
    "on a GPU it may run other operations"
)

PARTS_COMPILED = (
    "it has {} that PyTorch compiles (torch.compile): read as eager; --launch compiled is for all of "
    "the network"
)

BY_POLICY = "a policy of its own chooses the activations that are recomputed (context_fn)"


def _is_causal(mask: Any, hint: bool | None = None, size: int | None = None) -> bool:
    return hint is True  # PyTorch compares the values of the mask


def _masks_as_run() -> Any:
    """Make transformers' decoders run as usual: without an attention mask or copies of keys for each head.

    While a decoder is exported, or searches a sequence for several texts, it makes both.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    without = {"is_torchdynamo_exporting": bool, "find_packed_sequence_indices": lambda _: None}
    usual: Any = {name: value for name, value in without.items() if hasattr(masks, name)}
    return mock.patch.multiple(masks, **usual) if usual else contextlib.nullcontext()


def _replaced(holder: Any, name: str, own: Callable[..., Any]) -> Any:
    """A context in which this thread calls `own` in place of the function `name` of the framework."""
    return mock.patch.object(holder, name, in_this_thread(own, getattr(holder, name)))


@contextlib.contextmanager
def _backward_watched(parameters: Parameters) -> Iterator[None]:
    """Record user code for the backward pass: autograd Functions, saved-tensor hooks, requested gradients.

    Results whose gradient the code requests become `asked`; parameters are frozen or trained as the code
    requests. Inside a Function gradients cannot be turned off: they pass through its backward method.
    torch.func fails like torch.autograd.grad, because nothing is recorded for a backward pass.
    """
    apply = vars(torch.autograd.Function)["apply"]
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    running, known = parameters.running, parameters.tensors.known
    enter, told = hooks.__enter__, parameters.writer.builder.training_only

    def applied(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__.startswith("torch."):
            return apply.__func__(function, *args, **kwargs)
        told.append(
            f"what the code of {function.__name__} (torch.autograd.Function) keeps and computes"
        )
        outer, running.applied = running.applied, True
        try:
            return apply.__func__(function, *args, **kwargs)
        finally:
            running.applied = outer

    def entered(context: Any) -> Any:
        told.append(f"what {type(context).__name__} (torch.autograd.graph) does with saved tensors")
        return enter(context)

    def asked(tensor: Any, requires_grad: bool = True) -> Any:
        if isinstance(tensor, torch.nn.Parameter):
            tensor.requires_grad = requires_grad
        elif requires_grad and tensor in known:
            parameters.asked.add(known[tensor])
        return tensor

    def unrecorded(*_: Any, **__: Any) -> Any:
        raise RuntimeError("element 0 of tensors does not require grad")

    with (
        mock.patch.object(
            torch.autograd.Function, "apply", classmethod(in_this_thread(applied, apply.__func__))
        ),
        _replaced(hooks, "__enter__", entered),
        _replaced(torch.Tensor, "requires_grad_", asked),
        _replaced(eager_transforms, "_autograd_grad", unrecorded),
    ):
        yield


@contextlib.contextmanager
def _autocast_watched(builder: GraphBuilder, running: Running) -> Iterator[None]:
    """Record each torch.autocast context that is active, and whether it is enabled.

    Needed because without a GPU PyTorch disables every autocast of CUDA.
    """
    init, enter, leave = (vars(torch.autocast)[f"__{n}__"] for n in ("init", "enter", "exit"))

    def made(context: Any, device_type: str, *args: Any, **named: Any) -> None:
        init(context, device_type, *args, **named)
        context.asked = named.get("enabled", all(args[1:2]))  # the argument after the data type

    def entered(context: Any) -> Any:
        asked = getattr(context, "asked", context._enabled or context.device == "cuda")
        running.autocasts.append(asked)
        if context._enabled and context.fast_dtype in (torch.float16, torch.bfloat16):
            builder.autocast = True
        elif asked and context.device == "cuda" and not torch.cuda.is_available():
            builder.warnings.append(NO_AUTOCAST)
        return enter(context)

    def left(context: Any, *error: Any) -> Any:
        running.autocasts.pop()
        return leave(context, *error)

    with (
        _replaced(torch.autocast, "__init__", made),
        _replaced(torch.autocast, "__enter__", entered),
        _replaced(torch.autocast, "__exit__", left),
    ):
        yield


@contextlib.contextmanager
def watched(parameters: Parameters) -> Iterator[None]:
    """Record the checkpoints, no_grad and autocast of the code in `parameters.running`."""
    running, builder = parameters.running, parameters.writer.builder
    enter, leave = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    enable = torch._C._set_grad_enabled
    before: list[bool] = []  # gradients around each torch.inference_mode

    def again(_: Any, preserve: Any, context: Any, *more: Any, **named: Any) -> Iterator[None]:
        stops_early = more[2]  # behind the check of determinism and the debugging
        if context is not checkpoint.noop_context_fn:
            builder.training_obstacles.append(BY_POLICY)
        with running.checkpointed(not stops_early):
            yield

    def reentrant(function: Any, preserve: Any, *args: Any) -> Any:
        with running.checkpointed(True):
            return function(*args)

    def entered(context: Any) -> None:
        before.append(running.gradients)
        running.gradients &= running.applied or not context.mode
        enter(context)

    def left(context: Any, *error: Any) -> None:
        running.gradients = before.pop()
        leave(context, *error)

    def enabled(yes: bool) -> None:
        if not running.applied:
            running.gradients = yes
        if not torch.is_inference_mode_enabled():  # as PyTorch makes a fake tensor of a parameter
            enable(yes)

    # Other threads get the real state: gradients are off.
    is_enabled = in_this_thread(lambda: running.gradients, torch.is_grad_enabled)
    told = vars(torch) | {"is_grad_enabled": is_enabled}
    checkpointed = in_this_thread(reentrant, checkpoint.CheckpointFunction.apply)
    with (
        _masks_as_run(),
        _replaced(checkpoint, "_checkpoint_without_reentrant_generator", again),
        mock.patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=checkpointed)),
        mock.patch.object(transformer, "_detect_is_causal_mask", _is_causal),
        _replaced(torch.inference_mode, "__enter__", entered),
        _replaced(torch.inference_mode, "__exit__", left),
        _backward_watched(parameters),
        _autocast_watched(builder, running),
        mock.patch.object(grad_mode, "torch", SimpleNamespace(**told)),
        _replaced(torch._C, "_set_grad_enabled", enabled),
    ):
        yield


class _Compiling:
    """A flag of torch.compiler: true for libraries, which then do not read the values of tensors.

    It is false for a user's own code: its eager branch is read, and `warnings` get a remark on the other
    branch.
    """

    def __init__(self, warnings: list[str]) -> None:
        self.warnings, self.thread = warnings, threading.get_ident()

    def __bool__(self) -> bool:
        return self._for(sys._getframe(1).f_globals)

    def __or__(self, other: Any) -> Any:
        return self._for(sys._getframe(1).f_globals) | other

    def __and__(self, other: Any) -> Any:
        return self._for(sys._getframe(1).f_globals) & other

    __ror__, __rand__ = __or__, __and__

    def _for(self, asking: Mapping[str, Any]) -> bool:
        """The flag for code of the module with globals `asking`; False in other threads."""
        is_read = threading.get_ident() == self.thread
        return is_read and not _noted(READ_AS_EAGER, self.warnings, asking)


def _noted(remark: str, warnings: list[str], asking: Mapping[str, Any]) -> bool:
    """Return whether the module with globals `asking` is the user's; then add `remark` to `warnings`."""
    if str(asking.get("__name__", "")).partition(".")[0] in {*LIBRARIES, "lolat"}:
        return False
    if remark not in warnings:
        warnings.append(remark)
    return True


@contextlib.contextmanager
def _compiled_watched(whole: Any, builder: GraphBuilder) -> Iterator[None]:
    """Count the functions and modules compiled by torch.compile that run, except the `whole` network."""
    wrapping: Any = importlib.import_module("torch._dynamo.eval_frame")
    by_stance, parts = wrapping._callback_from_stance, dict[int, Any]()

    def asked(compiler: Any) -> Any:
        part = sys._getframe(2).f_locals.get("fn")  # 1 chose this
        if compiler and part is not None and getattr(part, "__self__", None) is not whole:
            parts[id(part)] = part
        return by_stance(compiler)

    with _replaced(wrapping, "_callback_from_stance", asked):
        yield
    if parts:
        builder.warnings.append(PARTS_COMPILED.format(plural(len(parts), "part")))


@contextlib.contextmanager
def eagerly(model: Any, builder: GraphBuilder) -> Iterator[None]:
    """Silence PyTorch, and turn off its compiler and its fused encoder layer, inside this context.

    Output of the network goes to stderr. `builder`: builds the model's graph, which gets a remark if the
    code asks whether it is compiled, or if parts of the model are compiled.
    """
    attention = torch.backends.mha
    with contextlib.ExitStack() as stack:
        stack.callback(attention.set_fastpath_enabled, attention.get_fastpath_enabled())
        attention.set_fastpath_enabled(False)
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)  # its loggers have levels of their own
        for flag in ("_is_compiling_flag", "_is_exporting_flag"):
            stack.callback(setattr, torch.compiler, flag, getattr(torch.compiler, flag, False))
            setattr(torch.compiler, flag, _Compiling(builder.warnings))
        is_available = torch.cuda.is_available

        def has_gpu() -> bool:
            _noted(READ_ON_CPU, builder.warnings, sys._getframe(2).f_globals)  # 1 chose this
            return is_available()

        stack.enter_context(_replaced(torch.cuda, "is_available", has_gpu))
        stack.enter_context(quietly())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_compiled_watched(model, builder))
        yield


class OnCpu(TorchFunctionMode):
    """Keeps tensors on the CPU that code moves to a GPU (`.cuda()`): a network is read without a GPU.

    `warnings` get a remark if user code asks for a tensor's device; `transfers` follows the copies.
    """

    def __init__(
        self, warnings: list[str] | None = None, transfers: Transfers | None = None
    ) -> None:
        super().__init__()
        self.warnings = [] if warnings is None else warnings
        self.transfers = transfers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch with the CPU in place of a GPU."""
        given, named, asking = args, dict(kwargs or {}), sys._getframe(1)
        if func == torch.Tensor.is_cuda.__get__:
            _noted(READ_ON_CPU, self.warnings, asking.f_globals)
        if func is torch.Tensor.to:
            args = args[0], *map(_on_cpu, args[1:])
        if "device" in named:
            named["device"] = _on_cpu(named["device"])
        result = args[0] if func is torch.Tensor.cuda else func(*args, **named)
        if self.transfers is not None:
            self.transfers.follow(func, given, kwargs or {}, result, asking)
        return result


def _on_cpu(value: Any) -> Any:
    """The argument, or the CPU if the argument is a GPU or the number of a GPU."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return "cpu" if is_number or str(value).startswith("cuda") else value

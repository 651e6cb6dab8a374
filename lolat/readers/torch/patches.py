"""Patches PyTorch while a module runs: torch.no_grad, torch.autocast, torch.utils.checkpoint, masks."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._functorch import eager_transforms
from torch.autograd import grad_mode
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from lolat.graph import Operation
from lolat.graph.kinds import GATES, KERNELS, MULTIPLYING, RECAST, WIDE
from lolat.io.progress import quietly

if TYPE_CHECKING:
    from lolat.readers.torch.trace import Tracer

NO_AUTOCAST = (
    "its code uses torch.autocast of CUDA, which is off on this machine: the precision is the device's, or "
    "the one asked for"
)

BY_POLICY = "a policy of its own chooses the activations that are computed again (context_fn)"


def _is_causal(mask: Any, hint: bool | None = None, size: int | None = None) -> bool:
    return hint is True  # PyTorch compares the values of the mask


def _masks_as_run() -> Any:
    """Let transformers' decoders do without a mask, and copies of keys for each head, as they do when run.

    Told that they are compiled, they look neither for padding nor for several texts in a sequence.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    without = {"is_torchdynamo_exporting": bool, "find_packed_sequence_indices": lambda _: None}
    usual: Any = {name: value for name, value in without.items() if hasattr(masks, name)}
    return mock.patch.multiple(masks, **usual) if usual else contextlib.nullcontext()


@contextlib.contextmanager
def _backward_watched(tracer: Tracer) -> Iterator[None]:
    """Tell the tracer of a backward pass of a user's own: torch.autograd.Function, hooks of saved tensors.

    The tracer learns the results whose gradient the code asks for; a parameter is frozen and trained as
    asked. Inside of a Function gradients cannot be turned off: they go through its backward method.
    Gradients by torch.func fail as those by torch.autograd.grad do, as nothing is recorded.
    """
    apply = vars(torch.autograd.Function)["apply"]
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    enter, told = hooks.__enter__, tracer.builder.training_only

    def applied(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__.startswith("torch."):
            return apply.__func__(function, *args, **kwargs)
        told.append(
            f"what the code of {function.__name__} (torch.autograd.Function) keeps and computes"
        )
        outer, tracer.applied = tracer.applied, True
        try:
            return apply.__func__(function, *args, **kwargs)
        finally:
            tracer.applied = outer

    def entered(context: Any) -> Any:
        told.append(f"what {type(context).__name__} (torch.autograd.graph) does with saved tensors")
        return enter(context)

    def asked(tensor: Any, requires_grad: bool = True) -> Any:
        if isinstance(tensor, torch.nn.Parameter):
            tensor.requires_grad = requires_grad
        elif requires_grad and tensor in tracer.known:
            tracer.asked.add(tracer.known[tensor])
        return tensor

    def unrecorded(*_: Any, **__: Any) -> Any:
        raise RuntimeError("element 0 of tensors does not require grad")

    with (
        mock.patch.object(torch.autograd.Function, "apply", classmethod(applied)),
        mock.patch.object(hooks, "__enter__", entered),
        mock.patch.object(torch.Tensor, "requires_grad_", asked),
        mock.patch.object(eager_transforms, "_autograd_grad", unrecorded),
    ):
        yield


@contextlib.contextmanager
def _autocast_watched(tracer: Tracer) -> Iterator[None]:
    """Tell the tracer of torch.autocast, and of torch.autocast(enabled=False) inside of it.

    Without a GPU PyTorch turns every autocast of CUDA off.
    """
    init, enter, leave = (vars(torch.autocast)[f"__{n}__"] for n in ("init", "enter", "exit"))

    def made(context: Any, device_type: str, *args: Any, **named: Any) -> None:
        init(context, device_type, *args, **named)
        context.asked = named.get("enabled", all(args[1:2]))  # behind the data type

    def entered(context: Any) -> Any:
        asked = getattr(context, "asked", context._enabled or context.device == "cuda")
        tracer.autocasts.append(asked)
        if context._enabled and context.fast_dtype in (torch.float16, torch.bfloat16):
            tracer.builder.autocast = True
        elif asked and context.device == "cuda" and not torch.cuda.is_available():
            tracer.builder.warnings.append(NO_AUTOCAST)
        return enter(context)

    def left(context: Any, *error: Any) -> Any:
        tracer.autocasts.pop()
        return leave(context, *error)

    with (
        mock.patch.object(torch.autocast, "__init__", made),
        mock.patch.object(torch.autocast, "__enter__", entered),
        mock.patch.object(torch.autocast, "__exit__", left),
    ):
        yield


def mark_autocast(tracer: Tracer, start: int, arguments: Mapping[str, Any]) -> None:
    """Mark products from position `start` on as `wide` if autocast is turned off, else as `recast`.

    Sums of one (angles) are not marked as wide.
    """
    operations = tracer.builder.operations
    for i, o in enumerate(operations[start:], start):
        if all(tracer.autocasts[-1:]):
            if _is_recast(tracer, o, arguments):
                operations[i] = o.changed(**{RECAST: True})
        elif o.kind in MULTIPLYING:
            terms = o.attributes.get("contracted", o.attributes.get("in_features"))
            operations[i] = o.changed(**{WIDE: terms != 1 or None})


def _is_recast(tracer: Tracer, operation: Operation, arguments: Mapping[str, Any]) -> bool:
    """True if autocast keeps no copy in half precision of an operation's kernel.

    It keeps those of whole parameters that require a gradient (cached_cast in ATen/autocast_mode.cpp).
    Passed over are kernels that each call computes, as their computation is, and those of recurrent layers,
    which cuDNN copies in any case.
    """
    if operation.kind not in KERNELS - GATES.keys() or "bits" in operation.attributes:
        return False
    read = [t for t in tree_leaves(dict(arguments)) if isinstance(t, torch.Tensor)]
    weights = tracer.writer.constants - tracer.computed - {*operation.inputs}
    kernel = max(
        (t for t in read if tracer.index(t) in weights), key=torch.Tensor.numel, default=None
    )
    if kernel is None or kernel.dtype != torch.float32:
        return False
    return not kernel.requires_grad or len(tracer.viewed(kernel)) > 1


@contextlib.contextmanager
def watched(tracer: Tracer) -> Iterator[None]:
    """Tell the tracer when the code uses torch.utils.checkpoint, torch.no_grad and the like."""
    enter, leave = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    enable = torch._C._set_grad_enabled
    before: list[bool] = []  # gradients around each torch.inference_mode

    def again(_: Any, preserve: Any, context: Any, *more: Any, **named: Any) -> Iterator[None]:
        stops_early = more[2]  # behind the check of determinism and the debugging
        if context is not checkpoint.noop_context_fn:
            tracer.builder.training.append(BY_POLICY)
        with tracer.again(not stops_early):
            yield

    def reentrant(function: Any, preserve: Any, *args: Any) -> Any:
        with tracer.again(True):
            return function(*args)

    def entered(context: Any) -> None:
        before.append(tracer.gradients)
        tracer.gradients &= tracer.applied or not context.mode
        enter(context)

    def left(context: Any, *error: Any) -> None:
        tracer.gradients = before.pop()
        leave(context, *error)

    def enabled(yes: bool) -> None:
        if not tracer.applied:
            tracer.gradients = yes
        if not torch.is_inference_mode_enabled():  # as PyTorch makes a fake tensor of a parameter
            enable(yes)

    # Other callers are told the truth: gradients are off.
    told = vars(torch) | {"is_grad_enabled": lambda: tracer.gradients}
    with (
        _masks_as_run(),
        mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", again),
        mock.patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=reentrant)),
        mock.patch.object(transformer, "_detect_is_causal_mask", _is_causal),
        mock.patch.object(torch.inference_mode, "__enter__", entered),
        mock.patch.object(torch.inference_mode, "__exit__", left),
        _backward_watched(tracer),
        _autocast_watched(tracer),
        mock.patch.object(grad_mode, "torch", SimpleNamespace(**told)),
        mock.patch.object(torch._C, "_set_grad_enabled", enabled),
    ):
        yield


@contextlib.contextmanager
def following_modules(tracer: Tracer) -> Iterator[None]:
    """Keep the modules that are being called in the tracer's `stack`."""
    entered: dict[Any, contextlib.ExitStack] = {}

    def enter(module: Any, args: Any) -> None:
        cls = type(module)
        tracer.called.add(module)
        path = tracer.modules.get(module, tracer.stack[-1][0])
        if tracer.has_batch_elsewhere(module, args[0] if args else None):
            tracer.misread.append(path or cls.__name__)
        tracer.stack.append((path, f"{cls.__module__}.{cls.__qualname__}"))
        if getattr(module, "gradient_checkpointing", False) is True and any(
            c.__name__ == "GradientCheckpointingLayer" for c in cls.__mro__
        ):  # of transformers, which does so in training alone
            function = getattr(module, "_gradient_checkpointing_func", None)
            whole = bool(getattr(function, "keywords", {}).get("use_reentrant"))
            entered[module] = contextlib.ExitStack()
            entered[module].enter_context(tracer.again(whole))

    def leave(module: Any, args: Any, output: Any) -> None:
        tracer.stack.pop()
        if module in entered:
            entered.pop(module).close()

    hooks = torch.nn.modules.module
    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Silence PyTorch, and turn off its compiler and its fused encoder layer.

    Code that asks is told that it is compiled: then it does not look at the values of tensors. Output of
    the network goes to stderr.
    """
    attention = torch.backends.mha
    with contextlib.ExitStack() as stack:
        stack.callback(attention.set_fastpath_enabled, attention.get_fastpath_enabled())
        attention.set_fastpath_enabled(False)
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)  # its loggers have levels of their own
        for flag in ("_is_compiling_flag", "_is_exporting_flag"):
            stack.callback(setattr, torch.compiler, flag, getattr(torch.compiler, flag, False))
            setattr(torch.compiler, flag, True)
        stack.enter_context(quietly())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class OnCpu(TorchFunctionMode):
    """Keeps on the CPU what code puts on a GPU (`.cuda()`): a network is read without one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch with the CPU in place of a GPU."""
        named = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = args[0], *map(_on_cpu, args[1:])
        if "device" in named:
            named["device"] = _on_cpu(named["device"])
        return func(*args, **named)


def _on_cpu(value: Any) -> Any:
    """An argument; the CPU if it is a GPU, or the number of one."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return "cpu" if is_number or str(value).startswith("cuda") else value

"""Calls a PyTorch module once on fake tensors, and writes its operations into a graph in their order.

In inference mode PyTorch passes each operation to a `TorchDispatchMode` as the code calls it (a
convolution, a layer norm, an attention), before it is decomposed. Under `FakeTensorMode` tensors have a
shape and no values, so nothing is computed, and weights need no memory.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lolat.errors import NetworkError
from lolat.graph import Graph, GraphBuilder, Tensor
from lolat.graph.kinds import AHEAD, CONVOLUTIONS, IN_PLACE, KERNELS, MULTIPLYING
from lolat.graph.weights import completed
from lolat.readers.ops import Writer
from lolat.readers.torch import operations
from lolat.readers.torch.aten import AtenOperation, base_name
from lolat.readers.torch.inputs import ExampleCall
from lolat.readers.torch.isolation import (
    WithoutValues,
    data_copied,
    evaluated,
    in_this_thread,
    without_values,
)
from lolat.readers.torch.layout import Layout, formats_of, free_turns, in_channels_last
from lolat.readers.torch.lifetimes import held_by, is_copied, leaves_of, shares
from lolat.readers.torch.memory import tensors_of, with_buffers
from lolat.readers.torch.parameters import Parameters
from lolat.readers.torch.patches import OnCpu, eagerly, watched
from lolat.readers.torch.positions import Positions
from lolat.readers.torch.remarks import (
    anew_in_each_call,
    in_training_alone,
    in_training_only,
    mark_dropouts,
    training_obstacles,
)
from lolat.readers.torch.running import Running
from lolat.readers.torch.tensors import Tensors, dtype_name
from lolat.readers.torch.transfers import Transfers
from lolat.units import byte_size, percent, plural


class Tracer(TorchDispatchMode):
    """Writes the operations that run inside this context into a graph.

    `axis`: the batch axis of the inputs; `misread`: layers with the batch on another axis;
    `redundant_casts`: number of conversions to float32 of tensors that are in float32 already; `filled`:
    elements of tensors that are filled for each sample; `formats`: memory formats that operations request;
    `convolved`: multiply-accumulates of convolutions, under True if they run in channels last, else under
    False.
    """

    def __init__(self, builder: GraphBuilder, running: Running, axis: int) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.builder, self.writer, self.layout = builder, Writer(builder), Layout(builder)
        self.axis, self.running, self.positions = axis, running, Positions()
        self.tensors = Tensors(self.writer)
        self.parameters = Parameters(running.modules, self.tensors, running)
        self.misread: list[str] = []
        self.module_tensors: list[Any] = []
        self.redundant_casts = self.filled = 0
        self.formats: set[Any] = set()
        self.convolved = Counter[bool]()

    def input(self, tensor: Any, grows: bool) -> None:
        """Add an input of the network. `grows`: True if it grows with the batch."""
        made = self.builder.input(tuple(tensor.shape), dtype_name(tensor), grows)
        self.tensors.learn(tensor, made)

    def has_batch_elsewhere(self, layer: Any, given: Any) -> bool:
        """True if a recurrent layer or an attention reads the batch axis of a tensor as steps."""
        batch_first = getattr(layer, "batch_first", None)
        index = self.tensors.known.get(given) if isinstance(given, torch.Tensor) else None
        grows = index is not None and self.builder.tensors[index].batched
        if not (isinstance(batch_first, bool) and grows and given.dim() in (2, 3)):
            return False
        in_front = not batch_first and given.shape[0] == 1
        # A tensor with two axes has no batch.
        return given.dim() == 2 or (
            given.shape[1 - batch_first] != 1 and (in_front or self.axis == 1)
        )

    def index(self, value: Any) -> int | None:
        """The graph's tensor of a value (a constant if no operation wrote it); None if not a tensor."""
        if not isinstance(value, torch.Tensor):
            return None
        found: int | None = self.tensors.known.get(value)
        return self.parameters.own(value) if found is None else found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on fake tensors, and write it into the graph."""
        kwargs = kwargs or {}
        schema = func._schema
        if schema.name == "aten::detach_":  # refused for new meta tensors
            self.write("detach", {"self": args[0]}, args[:1], True)
            return args[0]
        if schema.name in ("aten::gru_cell", "aten::lstm_cell"):
            self.builder.warnings.append(
                "the steps of its GRUCell or LSTMCell count as the single operations that a CPU runs; a "
                "GPU runs three for each step, so that an answer for GPUs is up to six times too slow"
            )
        if func.namespace == "aten" and not operations.is_known(base_name(schema)):
            with self:  # records the smaller operations
                redundant_casts, result = self.redundant_casts, func.decompose(*args, **kwargs)
            if "dtype" not in kwargs:  # PyTorch's own code names the type that its input has
                self.redundant_casts = redundant_casts
            if result is not NotImplemented:
                return result
        if schema.name in operations.DYNAMIC_LINEAR:  # packed weights cannot be compared
            result = args[0].new_empty((*args[0].shape[:-1], len(operations.unpacked(args[1])[0])))
        else:
            result = without_values(self.fake, func, args, kwargs)
        results = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        if not results:
            return result  # sizes, assertions
        named = {a.name: kwargs.get(a.name, a.default_value) for a in schema.arguments}
        named |= dict(zip(named, args, strict=False))
        written = (a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
        overwritten = [named[name] for name in written]
        before = [self.index(t) for t in overwritten[:1]]
        bases = [t for t in args if isinstance(t, torch.Tensor)]
        is_view = any(r.alias_info is not None for r in schema.returns)
        if bases and not self.builder.autocast:  # which converts weights too, and is counted
            is_view &= not is_copied(base_name(schema), bases[0], results[0])
        if bases and is_view and not isinstance(bases[0], FakeTensor):  # of a parameter or a buffer
            self.tensors.lifetimes.own(results[0])
        self.positions.follow(schema.name.removeprefix("aten::"), named, results[0])
        self.write(base_name(schema), named, results, is_view)
        if self.tensors.known[results[0]] in self.writer.constants:
            self.parameters.aside += sum(t.numel() for t in overwritten)
        elif not self._is_of_quantized(self.tensors.known[results[0]]):
            of_first = getattr(next(iter(args), None), "dtype", None)
            is_own = "layout" in kwargs  # as to(device) and to(memory_format=...) repeat it
            self.redundant_casts += named.get("dtype") is torch.float32 is of_first and not is_own
        self.formats.add(named.get("memory_format"))
        if "conv" in schema.name:
            self._convolve(named, results[0], "transpose" in schema.name)
        if overwritten and isinstance(overwritten[0], torch.Tensor):
            every, index = self.builder.operations, self.tensors.known[results[0]]
            if every and every[-1].outputs == (index,) and [*every[-1].inputs[:1]] == before:
                every[-1] = every[-1].changed(**{IN_PLACE: True})
            self.tensors.overwrite(overwritten[0], index)
        elif bases and is_view:
            base = bases[0]
            # A copy of a weight counts as the weight; a copy of a result keeps nothing alive.
            is_weight = self.index(base) in self.writer.constants
            others = (t for t in results if t is not base and (is_weight or shares(t, base)))
            self.tensors.views.update((t, base) for t in others)
        return result

    def _convolve(self, named: dict[str, Any], result: Any, transposed: bool) -> None:
        """Add the multiply-accumulates of a convolution to `convolved`."""
        weight = named.get("weight")
        if isinstance(weight, torch.Tensor) and weight.dim() > 2:
            positions = named["input"] if transposed or named.get("transposed") else result
            is_last = torch.channels_last in formats_of([result])
            self.convolved[is_last] += positions.numel() * prod(weight.shape[1:])

    def _is_of_quantized(self, tensor: int) -> bool:
        """True if the last operation has quantized weights and wrote `tensor`."""
        last = self.builder.operations[-1:]
        return any(tensor in o.outputs and "bits" in o.attributes for o in last)

    def write(self, op: str, named: dict[str, Any], results: Sequence[Any], is_view: bool) -> None:
        """Write an operation. With only constant operands it becomes a constant, unless a product."""
        sources = [i for v in pytree.tree_leaves(named) if (i := self.index(v)) is not None]
        for_batch = operations.for_batch(op, named, bool(sources))
        grows = for_batch or any(self.builder.tensors[i].batched for i in sources)
        constant = self.writer.constants.issuperset(sources) and not (sources and grows)
        before, start = len(self.builder.tensors), len(self.builder.operations)
        if for_batch and op in operations.FILLS:
            self.filled += sum(t.numel() for t in results)
        # new_zeros(x) is of the type of x, not of its values
        if op.startswith("new_") or (constant and op not in operations.NEVER_FOLDED):
            written = []
            if "empty" not in op and is_view:
                self.writer.viewed += 1
            elif "empty" not in op:
                self.writer.computed += 1
        else:
            shapes, dtype = [tuple(t.shape) for t in results], dtype_name(results[0])
            call = AtenOperation(
                op, named, shapes, *self.running.place(), dtype, self.writer, self.index, self.layout,
                not shares(results[0], named.get("self")), is_view,
            )  # fmt: skip
            written = operations.write(call)
            self.parameters.give(start, named, sources, written, grows)
            for tensor, index in zip(results, written, strict=False):
                if index >= before or for_batch:
                    made = self.builder.tensors[index]
                    grows = made.batched or for_batch
                    self.builder.tensors[index] = Tensor(made.shape, grows, dtype_name(tensor))
        for tensor in results[len(written) :]:
            shape, batched = tuple(tensor.shape), for_batch and not written
            written.append(self.writer.constant(shape, dtype_name(tensor), batched))
            self.parameters.compute(written[-1], op, sources, is_view)
        if self.running.stops(op):
            self.writer.detached.update(index for index in written if index >= before)
        for tensor, index in zip(results, written, strict=True):
            self.tensors.learn(tensor, index)


@contextlib.contextmanager
def following_modules(tracer: Tracer) -> Iterator[None]:
    """Record the modules that this thread calls in `stack`, by hooks that PyTorch runs in all threads."""
    running, entered = tracer.running, dict[Any, contextlib.ExitStack]()

    def enter(module: Any, args: Any) -> None:
        cls = type(module)
        running.called.add(module)
        path = running.modules.get(module, running.stack[-1][0])
        if tracer.has_batch_elsewhere(module, args[0] if args else None):
            tracer.misread.append(path or cls.__name__)
        running.stack.append((path, f"{cls.__module__}.{cls.__qualname__}"))
        # A layer of transformers, which does so in training alone.
        is_layer = any(c.__name__ == "GradientCheckpointingLayer" for c in cls.__mro__)
        if is_layer and getattr(module, "gradient_checkpointing", False) is True:
            function = getattr(module, "_gradient_checkpointing_func", None)
            whole = bool(getattr(function, "keywords", {}).get("use_reentrant"))
            entered[module] = contextlib.ExitStack()
            entered[module].enter_context(running.checkpointed(whole))

    def leave(module: Any, args: Any, output: Any) -> None:
        running.stack.pop()
        if module in entered:
            entered.pop(module).close()

    def ignore(*_: Any) -> None: ...

    hooks = torch.nn.modules.module
    handles = [
        hooks.register_module_forward_pre_hook(in_this_thread(enter, ignore)),
        hooks.register_module_forward_hook(in_this_thread(leave, ignore), always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def traced(model: Any, name: str, call: ExampleCall, axis: int) -> tuple[Graph, str]:
    """Trace a call of a module; return (graph, first layer with the batch on another axis or "").

    `axis`: the batch axis of the arguments. Raises whatever the module's code raises, and NetworkError if
    no output depends on the inputs.
    """
    tracer, outputs = _called_again(model, name, call, axis)
    builder, writer = tracer.builder, tracer.writer
    parameters, running = tracer.parameters, tracer.running
    outputs = [i for i in dict.fromkeys(outputs) if i not in writer.constants]
    if not outputs:
        raise NetworkError(
            f"network {name!r} returns no tensor that depends on its inputs; its forward must return what "
            "it computed"
        )
    alone = in_training_alone(model, parameters)
    builder.training_obstacles += training_obstacles(model, running, alone)
    if running.parts or not parameters.is_whole(outputs):
        parameters.mark_parts(outputs)
    writer.mark_stops(writer.constants - parameters.trained.made_of.keys())
    builder.loose_parameters += parameters.loose()
    drops, builder.training_only_on_cpu = mark_dropouts(model, builder.operations, running.called)
    builder.training_only += [*drops, *in_training_only(model, running)]
    builder.warnings += anew_in_each_call(parameters, model)
    if tracer.filled >= LEAST_FILLED:
        builder.warnings.append(
            f"its code fills tensors of the batch's size ({byte_size(4 * tracer.filled)} a sample in "
            "float32, torch.zeros or the like), which takes time that is not counted"
        )
    if any(o.kind in CONVOLUTIONS for o in builder.operations):
        builder.warnings += in_channels_last("its code puts tensors", tracer.formats)
    before = [o.kind in KERNELS for o in builder.operations if o.kind in LARGE]
    outputs = writer.prune(outputs)
    after = [o.kind in KERNELS for o in builder.operations if o.kind in LARGE]
    if unused := len(before) - len(after):
        what = "layer" if unused == sum(before) - sum(after) else "operation"
        builder.warnings.append(
            f"none of the tensors that it returns depends on {plural(unused, what)}, which eager PyTorch "
            "runs all the same: skipped"
        )
    builder.operations[:] = free_turns(builder.operations, builder.tensors)
    builder.redundant_casts = tracer.redundant_casts
    builder.autocast &= any(p.dtype == torch.float32 for p in model.parameters())
    own = {id(p): p.numel() for p in model.parameters()}  # and buffers that are weights
    graph = completed(builder, outputs, sum((parameters.every.taken | own).values()))
    return with_buffers(model, tracer.module_tensors, graph), next(iter(tracer.misread), "")


def read_with_several(
    model: Any, name: str, call: ExampleCall, axis: int, remarks: list[str], samples: int
) -> Graph:
    """Trace a call with several samples, as a graph at batch size 1.

    `call`, `axis`: as in `traced`. `remarks`: gets a remark if convolutions run in channels last because
    the code permutes an image; the strides of a single sample may not show it. Raises whatever the module's
    code raises.
    """
    tracer, outputs = _called_again(model, name, call, axis, samples)
    remarks += _permuted_remark(model, tracer)
    return tracer.builder.build(tracer.writer.prune(outputs))


def _permuted_remark(model: Any, tracer: Tracer) -> Iterator[str]:
    """Yield a remark if convolutions run in channels last, but neither code nor weights set this layout."""
    if torch.channels_last in formats_of(model.parameters()) | tracer.formats:
        return
    share = tracer.convolved[True] / max(sum(tracer.convolved.values()), 1)
    if share > LEAST_LAST:
        what = (
            f"its code permutes tensors so that {percent(share)} of the work of its convolutions is"
        )
        yield from in_channels_last(what, [torch.channels_last])


LARGE = MULTIPLYING | {"resize"}
"""Kinds of operations that get a remark if no output depends on them."""
LEAST_LAST = 0.1
"""From this share of the convolutions' multiply-accumulates on, channels last gets a remark."""
LEAST_FILLED = 1 << 18
"""From this number of elements (1 MiB in float32) on, tensors filled for each sample get a remark."""

LATER_CALL = (
    "its code stores tensors in its first call; this is the time of a later call, which reads them"
)


def _called_again(
    model: Any, name: str, call: ExampleCall, axis: int, samples: int = 1
) -> tuple[Tracer, list[int]]:
    """Call a module by `_called`, and a second time if its first call stores something.

    Returns the second call only if it has fewer launches: with a growing KV cache it has not.
    """
    tracer, outputs, has_stored = _called(model, name, call, axis, samples)
    if has_stored:
        with contextlib.suppress(Exception):  # whatever the module's code raises
            second, its_outputs, _ = _called(model, name, call, axis, samples, calls=2)
            if _launches(second) < _launches(tracer):
                second.builder.warnings.append(LATER_CALL)
                return second, its_outputs
    return tracer, outputs


def _launches(tracer: Tracer) -> int:
    """The number of operations of a call, including operations on constants."""
    return sum(1 + sum(o.attributes.get(AHEAD, ())) for o in tracer.builder.operations)


def _called(
    model: Any, name: str, call: ExampleCall, axis: int, samples: int = 1, calls: int = 1
) -> tuple[Tracer, list[int], bool]:
    """Call a module in evaluation mode `calls` times.

    Returns (tracer of the last call, the graph's outputs, True if the code stored something).

    Inputs with one sample on `axis` get `samples` samples.
    """
    builder = GraphBuilder(name, "torch")
    tracer = Tracer(builder, Running({m: path for path, m in model.named_modules()}), axis)

    def of_samples(tensor: Any) -> Any:
        shape = list(tensor.shape)
        grows = shape[axis : axis + 1] == [1] and id(tensor) not in call.without_batch
        shape[axis : axis + 1] = [samples] if grows else shape[axis : axis + 1]
        made = tensor.new_empty(shape) if grows else torch.empty_like(tensor)
        tracer.input(made, grows and samples == 1)
        return made

    weights = (*model.parameters(), *model.buffers())
    transfers = Transfers()
    is_on_cpu = all(w.device.type == "cpu" for w in weights)
    on_cpu = OnCpu(builder.warnings, transfers) if is_on_cpu else contextlib.nullcontext()
    with (
        evaluated(model) as stored, eagerly(model, builder), data_copied(), torch.inference_mode(),
        watched(tracer.parameters), tracer.fake, on_cpu,
    ):  # fmt: skip
        arguments = [call.args, dict(call.kwargs)]
        args, kwargs = pytree.tree_map_only(torch.Tensor, of_samples, arguments)
        for _ in range(calls - 1):
            with WithoutValues(tracer.fake):
                model(*args, **kwargs)
        tracer.module_tensors = tensors_of(model)
        transfers.copied.clear()
        with following_modules(tracer), tracer:
            result = model(*args, **kwargs)
            tracer.tensors.lifetimes.end()
        leaves = [*leaves_of(result)]
        outputs = [i for t in leaves if (i := tracer.index(t)) is not None]
        # A view of keys in a cache keeps the whole cache alive.
        leaf_tensors = (tracer.tensors.viewed(t)[-1] for t in held_by(leaves))
        builder.kept += [i for t in leaf_tensors if (i := tracer.tensors.known.get(t)) is not None]
    builder.warnings += transfers.remarks()
    return tracer, outputs, bool(stored)

"""A quick way to a Program: the module runs on tensors that have a shape alone, each operation is noted.

In inference mode PyTorch hands on an operation as the code calls it (a convolution, a batch
normalization), as torch.export notes it too, which is several times slower. What this way cannot follow
(values of tensors, autocast, several devices, a module under two names or with attributes that its code
changes, whatever an operation raises) is an Exception here, and torch.export then reads the network, or
says why it cannot be read.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

torch: Any = importlib.import_module("torch")  # this module is imported when a module of it is read
pytree: Any = importlib.import_module("torch.utils._pytree")
_Mode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
_Tensor: Any = torch.Tensor

_LIKE_FIRST = frozenset(
    ["batch_norm", "elu", "elu_", "gelu", "hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_",
     "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "mish", "mish_", "relu", "relu_", "sigmoid",
     "sigmoid_", "silu", "silu_", "tanh", "tanh_"]
)  # fmt: skip
"""Operations of floating-point numbers whose result is like the first argument."""

_META = torch.device("meta")


class _Shape(_Tensor):
    """A tensor without values. `form`: its shape, strides, type; `node`: what made it."""

    @staticmethod
    def __new__(cls, form: Any, device: Any, node: Any, of: Any = None) -> Any:
        shape, strides, dtype = form
        made = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, dtype=dtype, device=device,
            requires_grad=of is not None and of.requires_grad,
        )  # fmt: skip
        made.form, made.node = form, node
        made._is_param = isinstance(of, torch.nn.Parameter)  # for isinstance(x, Parameter)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{func} on a shape, after it was followed")


def _form(tensor: Any) -> Any:
    if tensor.is_conj() or tensor.is_neg():
        raise NotImplementedError("a conjugate that is not there yet")
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested tuples and lists, as tuples, with `change` of each leaf."""
    if isinstance(value, (list, tuple)):
        return tuple([_mapped(v, change) for v in value])
    return change(value)


class Tracer(_Mode):
    """Notes operations as nodes of `graph`. `known`: what each operation writes, which may come again."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.graph, self.device = torch.fx.Graph(), device
        self.known: dict[Any, Any] = {}
        self.layers: list[dict[str, Any]] = [{}]
        # id -> a tensor, which keeps the id; its shape
        self.constants: dict[int, tuple[Any, Any]] = {}
        self.with_grad = torch.is_grad_enabled()

    def placeholder(self, value: Any, name: str) -> Any:
        """A parameter, an input or a constant of the network."""
        if value.device != self.device:
            raise NotImplementedError("several devices")
        return self.made(_form(value), self.graph.placeholder(name), value)

    def made(self, form: Any, node: Any, of: Any = None) -> Any:
        """A new tensor that a node yields."""
        shape = node.meta["val"] = _Shape(form, self.device, node, of)
        return shape

    def shape_of(self, value: Any) -> Any:
        """A tensor as one of this trace; any other is a constant."""
        if type(value) is _Shape and value.node.graph is self.graph:
            return value
        if id(value) not in self.constants:
            shape = self.placeholder(value, f"constant_{len(self.constants)}")
            self.constants[id(value)] = value, shape
        return self.constants[id(value)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation, and return what has the shapes of its results."""
        kwargs = kwargs or {}
        if func._schema.is_mutable and self.with_grad != torch.is_grad_enabled():
            raise NotImplementedError(
                "torch.export has a graph of its own for what is under no_grad"
            )
        if func is torch.ops.aten.lift_fresh.default:
            func = torch.ops.aten.lift_fresh_copy.default
        if func is torch.ops.aten.detach.default and not args[0].node.all_input_nodes:
            node = args[0].node
            if node.op == "call_function" and not node.users:
                # PyTorch's own, of what it just made.
                return _Shape(args[0].form, self.device, node)
        read: list[Any] = []

        def noted(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            read.append(self.shape_of(value))
            return read[-1].node

        def keyed(value: Any) -> Any:
            is_tensor = isinstance(value, torch.Tensor)
            return self.shape_of(value).form if is_tensor else (type(value), value)

        named = tuple(kwargs.items())
        nodes = _mapped(args, noted), {name: _mapped(v, noted) for name, v in named}
        key = func, _mapped(args, keyed), tuple([(name, _mapped(v, keyed)) for name, v in named])
        if key not in self.known:
            self.known[key] = self.run(func, args, kwargs)
        several, forms = self.known[key]
        node = self.noted(func, *nodes)
        if several is None:
            return self.written(forms[0], node, read)
        items = [self.noted(operator.getitem, (node, i), {}) for i in range(len(forms))]
        results = [self.written(*pair, read) for pair in zip(forms, items, strict=True)]
        node.meta["val"] = results
        return several(results)

    def noted(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A node in the layer that is being called."""
        name = getattr(target, "overloadpacket", target).__name__  # as torch.export's
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        node.meta["nn_module_stack"] = self.layers[-1]
        return node

    def written(self, form: Any, node: Any, read: list[Any]) -> Any:
        """A result; a number is that of the argument that it is, which is the node's from now on."""
        if not isinstance(form, int):
            return self.made(form, node)
        read[form].node, node.meta["val"] = node, read[form]
        return read[form]

    def run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """(list or tuple, None for one tensor; the form of each, or the number of the argument it is)."""
        first: Any = self.shape_of(args[0]) if args and isinstance(args[0], torch.Tensor) else None
        alike = (
            func.overloadpacket.__name__ in _LIKE_FIRST
            and first is not None and first.is_contiguous() and first.is_floating_point()
        )  # fmt: skip
        given: list[Any] = []

        def bare(value: Any) -> Any:
            if isinstance(value, torch.device) and value != self.device:
                raise NotImplementedError("several devices")
            if not isinstance(value, torch.Tensor):
                return _META if isinstance(value, torch.device) else value
            shape, strides, dtype = self.shape_of(value).form
            if alike:  # PyTorch's kernel for a few numbers is quicker than what it has for shapes
                few = shape if given else [n if i == 1 else 1 for i, n in enumerate(shape)]
                given.append(torch.empty(few, dtype=dtype))
            else:
                given.append(torch.empty_strided(shape, strides, dtype=dtype, device=_META))
            return given[-1]

        positional, named = _mapped(args, bare), {k: _mapped(v, bare) for k, v in kwargs.items()}
        if not given:
            if "device" not in named and self.device != torch.get_default_device():
                raise NotImplementedError("several devices")
            named["device"] = _META
        before = [_form(g) for g in given]
        result = func(*positional, **named)
        several = type(result) if isinstance(result, (list, tuple)) else None
        results = result if several else [result]
        if before != [_form(g) for g in given] or not all(map(torch.is_tensor, results)):
            raise NotImplementedError(f"{func} gives no tensor, or another shape to one")
        forms: list[Any] = []
        for one in results:
            same = [i for i, g in enumerate(given) if g is one and func._schema.is_mutable]
            like = (*first.form[:2], one.dtype) if alike else _form(one)
            forms.append(same[0] if same else like)
        return several, forms


def traced(
    model: Any, prefix: str, call: Any, tensors: Callable[[Any], Any]
) -> tuple[Any, frozenset[str], int]:
    """(what has the graph of a call, names of its inputs, number of outputs) of a module.

    `prefix`: what paths begin with; `call`: (args, kwargs); `tensors`: those in what a network returns.
    Raises whatever exception is in the way.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    paths = {module: f"{prefix}.{name}".rstrip(".") for name, module in modules.items()}
    if len(paths) < len(modules) or any(
        isinstance(m, torch.fx.GraphModule) or hasattr(m, "_orig_mod") for m in paths
    ):
        raise NotImplementedError("torch.export has names of its own for parts that are used twice")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise NotImplementedError("autocast")
    own = [*model.named_parameters(), *model.named_buffers()]
    leaves = [*(value for _, value in own), *pytree.tree_leaves(call)]
    device = next((t.device for t in leaves if isinstance(t, torch.Tensor)), torch.device("cpu"))
    tracer = Tracer(device)
    with torch.inference_mode(), torch.set_grad_enabled(tracer.with_grad):
        state = {name: tracer.placeholder(value, f"p_{i}") for i, (name, value) in enumerate(own)}
        inputs: list[str] = []

        def filled(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            shape = tracer.placeholder(value, f"input_{len(inputs)}")
            inputs.append(shape.node.name)
            return shape

        args, kwargs = pytree.tree_map(filled, call)
        with _called(model, paths, tracer), tracer:
            result = torch.func.functional_call(model, state, args, kwargs)
    returned = tuple(tracer.shape_of(t).node for t in tensors(result))
    tracer.graph.output(returned)
    return SimpleNamespace(graph=tracer.graph), frozenset(inputs), len(returned)


@contextlib.contextmanager
def _called(model: Any, paths: dict[Any, str], tracer: Tracer) -> Iterator[None]:
    """While it lasts, modules are called as under torch.export, and the tracer knows which one is."""
    plain: Any = torch.nn.Module.__call__
    entered = torch.autocast.__enter__
    calls: dict[str, int] = {}

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        path = paths.get(module)
        if path is None:
            return plain(module, *args, **kwargs)
        count = calls[path] = calls.get(path, -1) + 1
        layer = {f"{path}@{count}": (path, type(module))}
        tracer.layers.append(tracer.layers[-1] | layer)
        try:
            with _unchanged(paths) if module is model else contextlib.nullcontext():
                return plain(module, *args, **kwargs)
        finally:
            tracer.layers.pop()

    def enter(context: Any) -> Any:
        if getattr(context, "_enabled", True):
            raise NotImplementedError("autocast casts before an operation can be noted")
        return entered(context)

    def transformed(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("torch.export follows vmap, cond and their like itself")

    # What PyTorch has not is an AttributeError here: torch.export knows its own version.
    patches = [(torch.compiler, "_is_compiling_flag", True),
               (torch._functorch.apis, "vmap_impl", transformed),
               (torch, "compile", transformed),
               (torch.autocast, "__enter__", enter), (torch.nn.Module, "__call__", called)]  # fmt: skip
    if hasattr(torch.compiler, "_is_exporting_flag"):  # newer than the oldest PyTorch
        patches.append((torch.compiler, "_is_exporting_flag", True))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for patch in patches:
            setattr(*patch)
        if not torch.compiler.is_compiling():
            raise NotImplementedError("PyTorch has another way to say that it exports")
        yield
    finally:
        for patch in before:
            setattr(*patch)


_OF_WEIGHTS = {"_flat_weights", "_flat_weight_refs"}
"""Attributes in which recurrent layers of PyTorch's have their weights again."""


def _held(value: Any) -> tuple[Any, ...]:
    """What an attribute is, or holds."""
    if isinstance(value, dict):
        return (*value, *value.values())
    return tuple(value) if isinstance(value, list) else (value,)


@contextlib.contextmanager
def _unchanged(modules: Any) -> Iterator[None]:
    """Afterwards attributes are as before; where the code changed one, torch.export has to judge it."""
    common = vars(torch.nn.Module())

    def attributes(module: Any) -> dict[str, Any]:
        return {k: (v, _held(v)) for k, v in vars(module).items() if k not in common}

    before, changed = {module: attributes(module) for module in modules}, False
    try:
        yield
    finally:
        for module, was in before.items():
            now = attributes(module)
            differ = {n for n in {**was, **now} if not _same(was.get(n, ()), now.get(n, ()))}
            changed = changed or not differ <= _OF_WEIGHTS
            for name in differ:
                vars(module).pop(name, None)
            for name in differ & was.keys():
                value, held = was[name]
                vars(module)[name] = value
                if isinstance(value, dict):
                    value.clear()
                    value.update(zip(held[: len(held) // 2], held[len(held) // 2 :], strict=True))
                elif isinstance(value, list):
                    value[:] = held
    if changed:
        raise NotImplementedError("the code changes attributes")


def _same(was: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether an attribute is what it was, and holds what it held."""
    if was[:1] and now[:1] and was[0] is now[0] and len(was[1]) == len(now[1]):
        return all(a is b for a, b in zip(was[1], now[1], strict=True))
    return False

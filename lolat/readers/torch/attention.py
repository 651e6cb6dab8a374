"""Attention: PyTorch's fused operation, and `nn.MultiheadAttention` as the operations it consists of."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from lolat.readers.rules import attention
from lolat.readers.torch.calls import RESHAPES, TRANSPOSITIONS, arguments_of

MULTI_HEAD = "activation.MultiheadAttention"
_VIEWS = RESHAPES | TRANSPOSITIONS | {"slice", "select", "dropout"}


def _fused(walker: Any, call: Any) -> list[Any]:
    """softmax(q k' * scale) v on (..., heads, steps, size): two products, a scaling, a softmax.

    What is added to the scores is an addition; a mask of yes and no is no operand, as in Keras. Each
    says that it is `fused`: on a GPU, PyTorch runs all as one.
    """
    query, key, value = (walker.index(call.get(n)) for n in ("query", "key", "value"))
    (*batch, steps, size), keys = walker.shape(query), walker.shape(key)[-2]
    scores_shape = (*batch, steps, keys)
    call = replace(call, name=call.label("attention"))
    scores = walker.add(
        call, "matmul", [query, key], scores_shape, suffix="scores", contracted=size,
        fused=True,
    )  # fmt: skip
    scores = walker.add(call, "scale", [scores], scores_shape, suffix="scale", fused=True)
    bias = walker.index(call.get("attn_mask", call.get("attn_bias")))
    if bias is not None and "float" in walker.builder.tensors[bias].dtype:
        scores = walker.add(call, "add", [scores, bias], scores_shape, suffix="add", fused=True)
    weights = walker.add(call, "softmax", [scores], scores_shape, suffix="softmax", fused=True)
    return [walker.add(call, "matmul", [weights, value], suffix="mix", contracted=keys, fused=True)]


def _flexible(walker: Any, call: Any) -> list[Any]:
    """`flex_attention`: the same; what its function does to the scores is not counted."""
    query, key, value = call.node.args[:3]
    return _fused(walker, replace(call, arguments={"query": query, "key": key, "value": value}))


def _layer_of(node: Any) -> tuple[str, str] | None:
    """(key of the call, module path) of the attention layer that a node is in."""
    for key, (path, cls) in (node.meta.get("nn_module_stack") or {}).items():
        name = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        if name.startswith("torch.nn.") and name.endswith(MULTI_HEAD):
            return str(key), str(path)
    return None


def _given(node: Any, name: str) -> Any:
    """An argument of a node."""
    return arguments_of(node)[name]


def _op(node: Any) -> str:
    return str(getattr(getattr(node.target, "_schema", None), "name", "")).removeprefix("aten::")


def read_whole(walker: Any, node: Any) -> bool:
    """Read the attention layer that begins at a node, as Keras' MultiHeadAttention is read.

    False when the node begins none, or one of an unusual kind (keys of its own, decomposed to matrices):
    then it is read operation by operation.
    """
    found = _layer_of(node)
    if found is None:
        return False
    layer = [n for n in node.graph.nodes if n.op == "call_function" and _layer_of(n) == found]
    if layer[0] is not node:
        return False
    inside = set(layer)
    linears = [n for n in layer if _op(n) == "linear"]
    heads = _head_size(layer)
    if len(linears) not in (2, 3, 4) or heads is None or any(_op(n) == "cat" for n in layer):
        return False
    sources = [walker.index(_outside(_given(n, "input"), inside)) for n in linears[:-1]]
    returned = {n: _origin(n, inside) for n in layer if set(n.users) - inside}
    if None in sources or not set(returned.values()) <= {"linear", "softmax", "mean"}:
        return False
    _emit(walker, layer, linears, sources, heads, walker.shortened(found[1]), returned)
    walker.done |= inside
    return True


def _emit(
    walker: Any, layer: list[Any], linears: list[Any], sources: list[int], size: int, path: str,
    returned: dict[Any, str],
) -> None:  # fmt: skip
    b = walker.builder
    total = int(_given(linears[-1], "weight").meta["val"].shape[1])
    rows = _rows(walker, layer, sources[0], size, total)
    sources = [sources[0], *(sources[1:] or sources) * 2][:3] if len(sources) < 3 else sources
    biased = _given(linears[0], "bias") is not None
    projected = []
    for role, source in zip(("query", "key", "value"), sources, strict=True):
        shape = walker.shape(source)
        steps = prod(shape[:-1]) // rows
        projected.append(b.add(
            "dense", [source], (rows, steps, total), role, path,
            in_features=shape[-1], out_features=total, bias=biased,
        ))  # fmt: skip
    heads = total // size
    query, key, value = projected
    mixed, weights = attention(walker.builder, query, key, value, (heads, heads), "attention", path)
    last = linears[-1]
    features = int(_given(last, "weight").meta["val"].shape[0])
    out = b.add(
        "dense", [mixed], (*b.tensors[mixed].shape[:-1], features), "output", path,
        in_features=total, out_features=features,
        bias=_given(last, "bias") is not None,
    )  # fmt: skip
    for node, origin in returned.items():
        shape, _ = walker.program.sizes(node, node.meta["val"], True)
        kind = "reduce" if origin == "mean" else "reshape"
        name = "result" if origin == "linear" else "weights"
        index = b.add(kind, [out if origin == "linear" else weights], shape, name, path)
        walker.values[node] = index
        if origin == "linear":
            walker.channels[index] = len(shape) - 1


def _head_size(layer: list[Any]) -> int | None:
    """Features of one head."""
    for node in layer:
        if _op(node) in ("scaled_dot_product_attention", "bmm"):
            first = _given(node, "self" if _op(node) == "bmm" else "query")
            return int(first.meta["val"].shape[-1])
        if _op(node) == "baddbmm":
            return int(_given(node, "batch1").meta["val"].shape[-1])
    return None


def _rows(walker: Any, layer: list[Any], source: int, size: int, total: int) -> int:
    """How many sequences there are at batch size 1 (windows are in the batch)."""
    for node in layer:
        if _op(node) == "scaled_dot_product_attention":
            shape, _ = walker.program.sizes(node, node.meta["val"], True)
            return prod(shape[:-3])
        if _op(node) in ("bmm", "baddbmm"):
            shape, _ = walker.program.sizes(node, node.meta["val"], True)
            return max(1, shape[0] * size // total)
    return 1


def _outside(node: Any, inside: set[Any]) -> Any:
    """What a node inside the layer is a view of, outside it."""
    while node in inside and _op(node) in _VIEWS:
        node = node.all_input_nodes[0]
    return None if node in inside else node


def _origin(node: Any, inside: set[Any]) -> str:
    """The operation whose result, seen in another shape, a node returns from the layer."""
    while node in inside and (_op(node) in _VIEWS or node.target.__name__ == "getitem"):
        node = node.all_input_nodes[0]
    return _op(node) if node in inside else ""


RULES = {
    "scaled_dot_product_attention": _fused,
    "python.flex_attention": _flexible,
    **dict.fromkeys(
        [f"_scaled_dot_product_{how}" for how in (
            "flash_attention", "efficient_attention", "cudnn_attention", "attention_math",
            "flash_attention_for_cpu", "fused_attention_overrideable",
        )], _fused,
    ),
}  # fmt: skip

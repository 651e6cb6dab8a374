"""Attention in an ONNX network: two products around a softmax.

PyTorch's exporters write its fused attention with a scaling of the queries and one of the keys, which
they transpose; tf2onnx leaves "einsum" in the names of Keras' MultiHeadAttention. Such attention is, as in
Keras, the two products, one scaling of the scores and the softmax. The transposes of the heads are part of
a layer (`nn.MultiheadAttention`, Keras'), which has none; around a call of the fused attention they are the
network's own, and count. Attention that somebody wrote by hand is counted as it is written.
"""

from __future__ import annotations

from lolat.readers.onnx_layout import VIEWS
from lolat.readers.onnx_nodes import Net, Node

PRODUCTS = frozenset(["MatMul", "Einsum"])
_BETWEEN = VIEWS | {"Add", "Mul", "Div", "Where", "Cast", "Dropout", "Max", "Sub", "Clip", "IsNaN"}


def fuse(net: Net) -> list[tuple[Node, str]]:
    """Put the scalings together; returns each product of a layer with a tensor that is heads to it."""
    whole = _unpack(net)
    heads: list[tuple[Node, str]] = []
    for node in net.nodes:
        fused = node.op == "Attention" and not node.domain
        if fused and (node.path in whole or _steps_first(net, node, net.producers())):
            heads += [(node, n) for n in (*node.inputs[:3], node.outputs[0])]
    for softmax in [n for n in net.nodes if n.op in ("Softmax", "softmax") and not n.domain]:
        producers, consumers = net.producers(), net.consumers()
        scores, between = _scores(net, softmax, producers)
        mix = _mix(net, softmax, consumers)
        if scores is None or mix is None:
            continue
        scaled = [n for n in between if _scalar_product(net, n)]
        sides = [_unscaled(net, scores, side, producers, consumers) for side in range(2)]
        of_layer = (
            scores.path in whole
            or "einsum" in scores.name.lower()
            or _steps_first(net, scores, producers)
        )
        if not (of_layer or all(sides)):
            continue  # written by hand: counted as it is written
        if not of_layer:
            _mark_keys(net, scores, producers)
        scaled += sides[0] + sides[1]
        if scaled:
            kept = next((n for n in scaled if n in between), None)
            for node in scaled:
                if node is not kept:
                    _take_out(net, node)
            if kept is None:
                _scale(net, scores)
            else:
                kept.kind = "scale"
        if of_layer:
            heads += [(scores, n) for n in scores.inputs[:2]]
            heads += [(mix, n) for n in mix.inputs if n and n in net.shapes]
            heads.append((mix, mix.outputs[0]))
    return heads


def _unpack(net: Net) -> set[str]:
    """PyTorch's nn.MultiheadAttention projects to queries, keys and values at once: three dense layers.

    It is known by its transpose of (1, ..., ..., 3, features) to (3, ..., ..., 1, features), or of 2 where
    the queries are of something else, parts of which are then taken; Keras' layer and LoLat's reader of
    PyTorch have three projections there. Returns the module paths of such layers.
    """
    found = set()
    producers, consumers = net.producers(), net.consumers()
    for node in [n for n in net.nodes if n.op == "Transpose" and not n.domain]:
        shape = net.shapes[node.inputs[0]]
        if (
            tuple(node.attributes.get("perm", ())) != (3, 1, 2, 0, 4)
            or shape[0] != 1
            or shape[3] not in (2, 3)
        ):
            continue
        above: list[Node] = [node]
        while (before := producers.get(above[-1].inputs[0])) is not None and before.op in VIEWS:
            above.append(before)
        parts = consumers.get(node.outputs[0], [])
        views = [n for n in parts if n.op in VIEWS]
        if views:
            parts = [p for n in views for p in consumers.get(n.outputs[0], [])]
        taken = all(p.op == "Gather" and net.elements(p.inputs[1]) == 1 for p in parts)
        private = all(len(consumers[n.inputs[0]]) == 1 for n in above)
        if (
            before is None
            or before.op not in ("MatMul", "Gemm")
            or not (parts and taken and private)
        ):
            continue
        if net.live_inputs(before) != before.inputs[:1]:
            continue
        features = net.shapes[before.inputs[0]][-1]
        bias = before.extra.get("bias") or bool(before.input(2))
        names = ("query", "key", "value")[-shape[3] :]
        for part, which in zip(parts, names, strict=False):
            weights = f"{part.outputs[0]} (weights)"
            net.shapes[weights], net.dtypes[weights] = (features, shape[4]), "float32"
            part.op, part.kind, part.name, part.attributes = "MatMul", "", which, {}
            part.inputs, part.extra = [before.inputs[0], weights], {"bias": bool(bias)}
        net.drop([before, *above, *views])
        found.add(node.path)
    return found


def _is_product(net: Net, node: Node | None) -> bool:
    """Whether a node multiplies two activations."""
    return (
        node is not None
        and node.op in PRODUCTS
        and not node.domain
        and len(net.live_inputs(node)) > 1
    )


def _scores(net: Net, softmax: Node, producers: dict[str, Node]) -> tuple[Node | None, list[Node]]:
    """The product in front of a softmax, and what is between them."""
    between: list[Node] = []
    tensor = softmax.inputs[0]
    for _ in range(8):
        node = producers.get(tensor)
        if node is None or _is_product(net, node):
            return node, between
        if node.op not in _BETWEEN or node.domain:
            return None, []
        between.append(node)
        shape = net.elements(node.outputs[0])
        same = [n for n in net.live_inputs(node) if net.elements(n) == shape]
        leading = [n for n in same if net.dtypes[n] != "bool"]
        behind = [n for n in leading if n in producers]
        if not behind:
            return None, []
        tensor = behind[0]
    return None, []


def _mix(net: Net, softmax: Node, consumers: dict[str, list[Node]]) -> Node | None:
    """The product behind a softmax."""
    waiting = [softmax.outputs[0]]
    for _ in range(8):
        if not waiting:
            return None
        for node in consumers.get(waiting.pop(0), ()):
            if _is_product(net, node):
                return node
            if node.op in _BETWEEN and not node.domain:
                waiting.append(node.outputs[0])
    return None


def _scalar_product(net: Net, node: Node) -> bool:
    """Whether a node multiplies by, or divides by, one number."""
    if node.op not in ("Mul", "Div") or node.domain or len(net.live_inputs(node)) != 1:
        return False
    other = [n for n in node.inputs if net.constant(n)]
    return len(other) == 1 and net.elements(other[0]) == 1


def _unscaled(
    net: Net, scores: Node, operand: int, producers: dict[str, Node],
    consumers: dict[str, list[Node]],
) -> list[Node]:  # fmt: skip
    """The scalings of one operand of the scores that nobody else reads."""
    found = []
    tensor = scores.inputs[operand]
    while (node := producers.get(tensor)) is not None and len(consumers[tensor]) == 1:
        if _scalar_product(net, node):
            found.append(node)
        elif node.domain or (node.op not in VIEWS and node.op != "Transpose"):
            break
        tensor = net.live_inputs(node)[0]
    return found


def _steps_first(net: Net, scores: Node, producers: dict[str, Node]) -> bool:
    """Whether the queries come from (steps, batch x heads, size), as in nn.MultiheadAttention alone."""
    before = producers.get(scores.inputs[0])
    while before is not None and (before.op in VIEWS or _scalar_product(net, before)):
        before = producers.get(net.live_inputs(before)[0])
    perm = tuple(before.attributes.get("perm", ())) if before is not None else ()
    return before is not None and before.op == "Transpose" and perm == (1, 0, 2)


def _mark_keys(net: Net, scores: Node, producers: dict[str, Node]) -> None:
    """Mark the exporter's transposition of the keys, which is part of the product.

    One of the network's own in front of it may have been joined with it: then that one counts.
    """
    before = producers.get(scores.inputs[1])
    while before is not None and (before.op in VIEWS or _scalar_product(net, before)):
        before = producers.get(net.live_inputs(before)[0])
    if before is None or before.op != "Transpose" or before.domain:
        return
    shape = net.shapes[before.inputs[0]]
    *own, last, second = before.attributes.get("perm") or range(len(shape) - 1, -1, -1)
    moved = [axis for axis in (*own, second, last) if shape[axis] > 1]
    if moved == sorted(moved):
        before.kind = "reshape"


def _take_out(net: Net, node: Node) -> None:
    """Let who reads a scaled tensor read the one before it."""
    net.drop([node])
    net.rename(node.outputs[0], net.live_inputs(node)[0])


def _scale(net: Net, scores: Node) -> None:
    """Write a scaling behind the scores."""
    made = scores.outputs[0]
    raw = f"{made} (not scaled)"
    net.shapes[raw], net.dtypes[raw] = net.shapes[made], net.dtypes[made]
    net.live.add(raw)
    if made in net.grows:
        net.grows.add(raw)
    scores.outputs = [raw]
    scale = Node("Mul", "", "scale", scores.path, [raw], [made], kind="scale")
    net.nodes.insert(net.nodes.index(scores) + 1, scale)

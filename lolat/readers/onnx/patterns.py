"""Puts together what exporters of ONNX networks take apart: activations, normalizations, biases, attention.

A pattern is a region of element-wise operators with one tensor that goes in and one that comes out. What
is in it decides, not the order; each operator has a label that says whether it meets a constant (`Add*`).

PyTorch's exporters write its fused attention with a scaling of the queries and one of the keys, which
they transpose; tf2onnx leaves "einsum" in the names of Keras' MultiHeadAttention. Such attention is, as in
Keras, the two products, one scaling of the scores and the softmax. The transposes of the heads are part of
a layer (`nn.MultiheadAttention`, Keras'), which has none; around a call of the fused attention they are the
network's own, and count. Attention that somebody wrote by hand is counted as it is written.
"""

from __future__ import annotations

from collections import Counter

from lolat.readers.onnx.nodes import VIEWS, Links, Net, Node

LARGEST = 14  # operators of a pattern

_LABELS = {
    "Erf": "Erf", "Tanh": "Tanh", "Sqrt": "Sqrt", "Reciprocal": "Inverse", "Sigmoid": "Sigmoid",
    "HardSigmoid": "HardSigmoid", "Softplus": "Softplus", "Exp": "Exp", "Log": "Log", "ReduceMean": "Mean",
    "ReduceSum": "Sum", "ReduceMax": "Largest", "ReduceL2": "Norm", "Reshape": "Reshape",
    "InstanceNormalization": "InstanceNormalization", "Expand": "Expand",
    "Cast": "", "Identity": "", "Dropout": "",
}  # fmt: skip
_TANH_GELU = "Tanh Add* Mul Mul* Mul* Mul*"

_PATTERNS = {
    "silu": ["Sigmoid Mul"],
    "log_sigmoid": ["Sigmoid Log"],
    "hard_sigmoid": ["Add* Clip6 Mul*"],
    "hard_silu": ["HardSigmoid Mul", "Add* Clip6 Mul* Mul"],
    "mish": ["Softplus Tanh Mul", "Exp Add* Log Tanh Mul"],
    "gelu": ["Mul* Erf Add* Mul Mul*", f"{_TANH_GELU} Cube Add", f"{_TANH_GELU} Square Mul Add",
             f"{_TANH_GELU} Square Add* Mul"],
    "layer_norm": ["Mean Sub Square Mean Add* Sqrt Div", "Mean Sub Sub Square Mean Add* Sqrt Div",
                   "Mean Sub Square Mean Add* Sqrt Inverse Mul",
                   "Mean Sub Sub Square Mean Add* Sqrt Inverse Mul"],
    "rms_norm": ["Square Mean Add* Sqrt Div", "Square Mean Add* Sqrt Inverse Mul"],
    "group_norm": ["Reshape InstanceNormalization Reshape"],
    "softmax": ["Exp Sum Div", "Largest Sub Exp Sum Div"],
    "unit_norm": ["Norm Div", "Norm Clip Div", "Norm Clip Expand Div", "Norm Add* Div"],
}  # fmt: skip
_AFFINE = {"layer_norm": ("Mul*", "Mul* Add*"), "rms_norm": ("Mul*",), "group_norm": ("Mul* Add*",)}


KINDS: dict[tuple[str, ...], str] = {
    tuple(sorted(f"{pattern} {affine}".split())): kind
    for kind, patterns in _PATTERNS.items()
    for pattern in patterns
    for affine in ("", *_AFFINE.get(kind, ()))
}
"""Labels of a region, sorted -> the kind of operation that it is."""


def fuse(net: Net) -> None:
    """Find the patterns in a network and put one node in place of each."""
    _skip_identities(net)
    for node in net.nodes:
        if node.op in ("LSTM", "GRU", "RNN"):  # states that are zero are nobody's work
            node.inputs = [n if i < 4 or n in net.live else "" for i, n in enumerate(node.inputs)]
    net.prune()
    _biases(net)
    _regions(net)
    _rolls(net)


_UNCHANGED = frozenset(["Expand", "Pad", "Resize", "Tile", "Slice", "Upsample", "Cast"])


def _skip_identities(net: Net) -> None:
    """Take out what hands on its input: Identity, and an Expand, a Pad or a Resize that changes nothing."""
    instead: dict[str, str] = {}
    kept = []
    for node in net.nodes:
        node.inputs = [instead.get(n, n) for n in node.inputs]
        source = _handed_on(net, node)
        if source is not None and (node.outputs[0] not in net.outputs or net.constant(source)):
            instead[node.outputs[0]] = source
        else:
            kept.append(node)
    net.nodes = kept
    net.outputs = [instead.get(n, n) for n in net.outputs]


def _handed_on(net: Net, node: Node) -> str | None:
    """The input that a node gives as its output; None when it does something to it."""
    if node.domain or not node.outputs:
        return None
    if node.op == "Identity":
        return node.inputs[0]
    live = net.live_inputs(node)
    if node.op not in _UNCHANGED or len(live) != 1:
        return None
    out = node.outputs[0]
    same = net.shapes[live[0]] == net.shapes[out] and net.dtypes[live[0]] == net.dtypes[out]
    return live[0] if same else None


def _biases(net: Net) -> None:
    """An addition of a constant vector behind a product with constant weights is its bias."""
    producers, consumers = net.links()
    gone = []
    for node in net.nodes:
        live = net.live_inputs(node)
        if node.op != "Add" or node.domain or len(live) != 1 or len(node.inputs) != 2:
            continue
        (source,) = live
        before = producers.get(source)
        bias = node.inputs[node.inputs[0] == source]
        if before is None or before.extra.get("bias") or len(consumers[source]) > 1:
            continue
        if source in net.outputs or bias == source or not _is_bias(net, before, bias):
            continue
        before.extra["bias"] = True
        before.outputs = [node.outputs[0], *before.outputs[1:]]
        producers[node.outputs[0]] = before
        gone.append(node)
    net.drop(gone)


def _is_bias(net: Net, node: Node, bias: str) -> bool:
    """Whether a constant can be the bias of a product or a convolution."""
    if node.domain or not node.outputs:
        return False
    shape, out = net.shapes[bias], net.shapes[node.outputs[0]]
    if node.op in ("MatMul", "Gemm", "Einsum"):
        has_weights = any(net.constant(n) for n in node.inputs[:2])
        has_one = node.op == "Gemm" and bool(node.input(2))
        fits = shape[-1:] == out[-1:] and net.elements(bias) == shape[-1]
        return has_weights and not has_one and fits
    if node.op in ("Conv", "ConvTranspose") and not node.input(2):
        vector = (out[1], *(1,) * (len(out) - 2))
        return net.elements(bias) == out[1] and shape[1 - len(out) :] == vector
    return False


def _rolls(net: Net) -> None:
    """The end of an axis put in front of its beginning is a roll; along several axes it is still one."""
    for node in [n for n in net.nodes if n.op == "Concat" and len(n.inputs) == 2 and not n.domain]:
        producers, consumers = net.links()
        parts = [producers.get(n) for n in node.inputs]
        slices = [p for p in parts if p is not None and p.op == "Slice" and not p.domain]
        if len(slices) < 2 or slices[0].inputs[0] != slices[1].inputs[0]:
            continue
        source = slices[0].inputs[0]
        private = all(len(consumers[p.outputs[0]]) == 1 for p in slices)
        if not private or net.shapes[source] != net.shapes[node.outputs[0]]:
            continue
        before = producers.get(source)
        if before is not None and before.kind == "roll" and len(consumers[source]) == 2:
            source = before.inputs[0]
            slices.append(before)
        node.kind, node.inputs = "roll", [source]
        net.drop(slices)


def _regions(net: Net) -> None:
    """Replace each region that is a pattern; the largest one that ends somewhere wins."""
    producers, consumers = net.links()
    order = {id(node): i for i, node in enumerate(net.nodes)}
    taken: set[int] = set()
    for last in reversed(net.nodes):
        if id(last) in taken or not _label(net, last):
            continue
        best = None
        for region, source in _region(net, last, producers, order, taken):
            kind = KINDS.get(tuple(sorted(label for n in region if (label := _label(net, n)))))
            if kind and net.shapes[source] == net.shapes[last.outputs[0]]:
                inside = {id(n) for n in region}
                written = [o for n in region if n is not last for o in n.outputs]
                read = {id(c) for o in written for c in consumers.get(o, ())}
                if read <= inside and not set(written) & set(net.outputs):
                    best = region, source, kind
        if best is not None:
            region, source, kind = best
            taken.update(id(n) for n in region)
            last.kind, last.op, last.domain, last.inputs = kind, kind, "", [source]
    net.drop([n for n in net.nodes if id(n) in taken and not n.kind])


def _region(
    net: Net, last: Node, producers: dict[str, Node], order: dict[int, int], taken: set[int]
) -> list[tuple[list[Node], str]]:
    """The regions that end in `last` and have one tensor going in, from small to large."""
    region, sources = [last], set(net.live_inputs(last))
    regions = []
    while len(region) <= LARGEST:
        if len(sources) == 1:
            regions.append((list(region), next(iter(sources))))
        makers = [(order[id(producers[s])], s) for s in sources if s in producers]
        if not makers:
            break
        source = max(makers)[1]
        node = producers[source]
        if id(node) in taken or node.extra or _label(net, node) is None:
            break
        region.append(node)
        sources.update(net.live_inputs(node))
        sources -= set(node.outputs)
    return regions


def _label(net: Net, node: Node) -> str | None:
    """What a node is in a pattern; "" when it does not matter, None when it is in no pattern."""
    if node.domain or node.kind:
        return None
    if node.op in _LABELS:
        return _LABELS[node.op]
    if node.op == "Clip":
        low, high = clip_limits(net, node)
        return "Clip6" if low == 0 and high in (1, 6) else "Clip"
    if node.op == "Max" and len(net.live_inputs(node)) == 1:
        return "Clip"  # the lower limit that keeps a norm from 0
    if node.op == "Pow":
        names = {2: "Square", 3: "Cube", 0.5: "Sqrt"}
        return names.get(net.scalar(node.inputs[1]) or 0)
    if node.op not in ("Add", "Sub", "Mul", "Div"):
        return None
    one = Counter(net.constant(n) for n in node.inputs)[True] == 1
    if not one:
        same = node.op == "Mul" and node.inputs[0] == node.inputs[1]
        return "Square" if same else node.op
    if node.op == "Div":
        return "Inverse" if net.constant(node.inputs[0]) else "Mul*"
    return "Mul*" if node.op == "Mul" else "Add*"


def clip_limits(net: Net, node: Node) -> tuple[float | None, float | None]:
    """The limits of a Clip: attributes before opset 11, inputs since."""
    if node.input(1) or node.input(2):
        return net.scalar(node.input(1)), net.scalar(node.input(2))
    return node.attributes.get("min"), node.attributes.get("max")


# ---- Attention.

PRODUCTS = frozenset(["MatMul", "Einsum"])
_BETWEEN = VIEWS | {"Add", "Mul", "Div", "Where", "Cast", "Dropout", "Max", "Sub", "Clip", "IsNaN"}


def fuse_attention(net: Net) -> list[tuple[Node, str]]:
    """Put the scalings together; returns each product of a layer with a tensor that is heads to it."""
    whole = _unpack(net)
    heads: list[tuple[Node, str]] = []
    for node in net.nodes:
        fused = node.op == "Attention" and not node.domain
        if fused and (node.path in whole or _steps_first(net, node, net.links())):
            heads += [(node, n) for n in (*node.inputs[:3], node.outputs[0])]
    for softmax in [n for n in net.nodes if n.op in ("Softmax", "softmax") and not n.domain]:
        links = net.links()
        scores, between = _scores(net, softmax, links)
        mix = _mix(net, softmax, links)
        if scores is None or mix is None:
            continue
        sides = [_unscaled(net, scores, side, links) for side in range(2)]
        einsum = "einsum" in scores.name.lower()
        of_layer = scores.path in whole or einsum or _steps_first(net, scores, links)
        if not (of_layer or all(sides)):
            continue  # written by hand: counted as it is written
        if not of_layer:
            _mark_keys(net, scores, links)
        inner = [n for n in between if _scalar_product(net, n)]
        for node in [*inner[1:], *sides[0], *sides[1]]:  # let who reads it read the one before it
            net.drop([node])
            net.rename(node.outputs[0], net.live_inputs(node)[0])
        if inner:
            inner[0].kind = "scale"
        elif any(sides):
            _scale(net, scores)
        if of_layer:
            heads += [(scores, n) for n in scores.inputs[:2]]
            heads += [(mix, n) for n in (*mix.inputs, mix.outputs[0]) if n and n in net.shapes]
    return heads


def _unpack(net: Net) -> set[str]:
    """PyTorch's nn.MultiheadAttention projects to queries, keys and values at once: three dense layers.

    It is known by its transpose of (1, ..., ..., 3, features) to (3, ..., ..., 1, features), or of 2 where
    the queries are of something else, parts of which are then taken; Keras' layer and LoLat's reader of
    PyTorch have three projections there. Returns the module paths of such layers.
    """
    paths = set()
    producers, consumers = net.links()
    for node in [n for n in net.nodes if n.op == "Transpose" and not n.domain]:
        shape = net.shapes[node.inputs[0]]
        turned = tuple(node.attributes.get("perm", ())) == (3, 1, 2, 0, 4)
        if not turned or shape[0] != 1 or shape[3] not in (2, 3):
            continue
        above: list[Node] = [node]
        while (before := producers.get(above[-1].inputs[0])) is not None and before.op in VIEWS:
            above.append(before)
        parts = consumers.get(node.outputs[0], [])
        views = [n for n in parts if n.op in VIEWS]
        if views:
            parts = [p for n in views for p in consumers.get(n.outputs[0], [])]
        taken = parts and all(p.op == "Gather" and net.elements(p.inputs[1]) == 1 for p in parts)
        private = all(len(consumers[n.inputs[0]]) == 1 for n in above)
        if before is None or before.op not in ("MatMul", "Gemm") or not (taken and private):
            continue
        if net.live_inputs(before) != before.inputs[:1]:
            continue
        features = net.shapes[before.inputs[0]][-1]
        bias = bool(before.extra.get("bias") or before.input(2))
        names = ("query", "key", "value")[-shape[3] :]
        for part, which in zip(parts, names, strict=False):
            weights = f"{part.outputs[0]} (weights)"
            net.shapes[weights], net.dtypes[weights] = (features, shape[4]), "float32"
            part.op, part.kind, part.name, part.attributes = "MatMul", "", which, {}
            part.inputs, part.extra = [before.inputs[0], weights], {"bias": bias}
        net.drop([before, *above, *views])
        paths.add(node.path)
    return paths


def _is_product(net: Net, node: Node | None) -> bool:
    """Whether a node multiplies two activations."""
    if node is None or node.op not in PRODUCTS or node.domain:
        return False
    return len(net.live_inputs(node)) > 1


def _scores(net: Net, softmax: Node, links: Links) -> tuple[Node | None, list[Node]]:
    """The product in front of a softmax, and what is between them."""
    between: list[Node] = []
    tensor = softmax.inputs[0]
    for _ in range(8):
        node = links.producers.get(tensor)
        if node is None or _is_product(net, node):
            return node, between
        if node.op not in _BETWEEN or node.domain:
            break
        between.append(node)
        size = net.elements(node.outputs[0])
        same = [n for n in net.live_inputs(node) if net.elements(n) == size]
        behind = [n for n in same if net.dtypes[n] != "bool" and n in links.producers]
        if not behind:
            break
        tensor = behind[0]
    return None, []


def _mix(net: Net, softmax: Node, links: Links) -> Node | None:
    """The product behind a softmax."""
    waiting = [softmax.outputs[0]]
    for _ in range(8):
        if not waiting:
            return None
        for node in links.consumers.get(waiting.pop(0), ()):
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


def _unscaled(net: Net, scores: Node, operand: int, links: Links) -> list[Node]:
    """The scalings of one operand of the scores that nobody else reads."""
    scalings, tensor, (producers, consumers) = [], scores.inputs[operand], links
    while (node := producers.get(tensor)) is not None and len(consumers[tensor]) == 1:
        if _scalar_product(net, node):
            scalings.append(node)
        elif node.domain or (node.op not in VIEWS and node.op != "Transpose"):
            break
        tensor = net.live_inputs(node)[0]
    return scalings


def _maker(net: Net, tensor: str, links: Links) -> Node | None:
    """What makes a tensor, views and scalings apart."""
    before = links.producers.get(tensor)
    while before is not None and (before.op in VIEWS or _scalar_product(net, before)):
        before = links.producers.get(net.live_inputs(before)[0])
    return before


def _steps_first(net: Net, scores: Node, links: Links) -> bool:
    """Whether the queries come from (steps, batch x heads, size), as in nn.MultiheadAttention alone."""
    before = _maker(net, scores.inputs[0], links)
    if before is None or before.op != "Transpose":
        return False
    return tuple(before.attributes.get("perm", ())) == (1, 0, 2)


def _mark_keys(net: Net, scores: Node, links: Links) -> None:
    """Mark the exporter's transposition of the keys, which is part of the product.

    One of the network's own in front of it may have been joined with it: then that one counts.
    """
    before = _maker(net, scores.inputs[1], links)
    if before is None or before.op != "Transpose" or before.domain:
        return
    shape = net.shapes[before.inputs[0]]
    *own, last, second = before.attributes.get("perm") or range(len(shape) - 1, -1, -1)
    moved = [axis for axis in (*own, second, last) if shape[axis] > 1]
    if moved == sorted(moved):
        before.kind = "reshape"


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

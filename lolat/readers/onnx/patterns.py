"""Puts together what exporters of ONNX networks take apart: activations, normalizations, biases.

A pattern is a region of element-wise operators with one tensor that goes in and one that comes out. What
is in it decides, not the order; each operator has a label that says whether it meets a constant (`Add*`).
"""

from __future__ import annotations

from collections import Counter

from lolat.readers.onnx.nodes import Net, Node

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
        if before is None or before.bias or len(consumers[source]) > 1:
            continue
        if source in net.outputs or bias == source or not _is_bias(net, before, bias):
            continue
        before.bias = True
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
        if id(node) in taken or node.bias or _label(net, node) is None:
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

"""An ONNX network between file and Graph: nodes whose shapes are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import numpy as np

STANDARD = ("", "ai.onnx")
SAME = frozenset(
    ["GroupNormalization", "LayerNormalization", "SimplifiedLayerNormalization", "Gelu", "BiasGelu",
     "FastGelu", "QuickGelu", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Dropout",
     "Identity", "RotaryEmbedding", "Swish", "InstanceNormalization"]
)  # fmt: skip
"""Operators whose first output has the shape of their first input, also in other domains."""
DATA_DEPENDENT = frozenset(["NonZero", "Unique", "Compress", "NonMaxSuppression"])


@dataclass(eq=False)
class Node:
    """A call of an operator. `inputs` and `outputs` are names of tensors; "" for one that is left out.

    `kind` is set where a pattern has found the kind of operation; `bias`: whether one has found a bias.
    """

    op: str
    domain: str
    name: str
    path: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    bias: bool = False
    proto: Any = None

    def input(self, position: int) -> str:
        """The name of an input, "" where there is none."""
        return self.inputs[position] if position < len(self.inputs) else ""


@dataclass
class Net:
    """Nodes in running order, and what is known of every tensor (by name).

    `shapes` are those at batch size 1; `grows` has the tensors that grow with the batch; `live` those that
    depend on what is in the network's inputs, not only on their shapes; `values` the contents of small
    constants.
    """

    name: str
    nodes: list[Node]
    inputs: list[str]
    outputs: list[str]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    values: dict[str, np.ndarray]
    live: set[str]
    grows: set[str]
    warnings: list[str] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)  # initializers
    opset: int = 1

    def elements(self, name: str) -> int:
        """Number of elements of a tensor at batch size 1."""
        return prod(self.shapes[name])

    def constant(self, name: str) -> bool:
        """Whether a tensor is there and stays the same whatever goes in."""
        return bool(name) and name not in self.live and name not in self.grows

    def scalar(self, name: str) -> float | None:
        """The number that a constant of one element is; None for anything else."""
        value = self.values.get(name)
        if name in self.live or value is None or value.size != 1 or value.dtype.kind not in "fiu":
            return None
        return float(value.reshape(()))

    def live_inputs(self, node: Node) -> list[str]:
        """The inputs of a node that are no constants, each once, in order."""
        return list(dict.fromkeys(n for n in node.inputs if n and not self.constant(n)))

    def links(self) -> tuple[dict[str, Node], dict[str, list[Node]]]:
        """Tensor -> the node that writes it; the nodes that read it, each as often as it does."""
        producers = {name: node for node in self.nodes for name in node.outputs if name}
        consumers = defaultdict[str, list[Node]](list)
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    consumers[name].append(node)
        return producers, dict(consumers)

    def drop(self, nodes: Iterable[Node]) -> None:
        """Take nodes out."""
        gone = {id(node) for node in nodes}
        self.nodes = [node for node in self.nodes if id(node) not in gone]

    def prune(self) -> None:
        """Take out what no output needs, and what is constant."""
        needed = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            written = [n for n in node.outputs if n in needed]
            if not written or all(self.constant(n) for n in written):
                continue
            needed.update(n for n in node.inputs if n)
            kept.append(node)
        self.nodes = kept[::-1]


def place(proto: Any) -> tuple[str, str]:
    """(path, name) of a node: where the exporter wrote in which module it is.

    PyTorch's first exporter names nodes "/layer1/layer1.0/conv1/Conv", its second one has the modules in
    the node's metadata; tf2onnx writes "model/block/conv/Conv2D".
    """
    for entry in proto.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = [part.strip().strip("'\"") for part in entry.value.strip("[]").split(",")]
            parts = [part for part in scopes if part]
            weights = proto.input[1].split(".")[:-1] if len(proto.input) > 1 else []
            if parts and "batch_norm" in parts[-1] and proto.op_type == "Conv" and weights:
                # Folded into the convolution, whose name is left on its weights alone.
                scopes = [".".join(weights[: i + 1]) for i in range(len(weights))]
                return "/".join(_modules(scopes)), "conv"
            if parts:
                return "/".join(_modules(parts[:-1])), parts[-1]
    parts = [part for part in proto.name.split(";")[0].split("/") if part]
    return ("/".join(parts[:-1]), parts[-1]) if parts else ("", "")


def _modules(scopes: Iterable[str]) -> list[str]:
    """["layer1", "layer1.0", "layer1.0.conv1"] as ["layer1", "layer1.0", "conv1"]."""
    parts: list[str] = []
    before = ""
    for scope in scopes:
        own = scope.removeprefix(f"{before}.") if before else scope
        parts.append(f"{parts[-1]}.{own}" if parts and own.isdigit() else own)
        before = scope
    return parts


def captured(body: Any) -> Iterable[str]:
    """The tensors that a sub-graph reads, its own too."""
    for node in body.node:
        yield from node.input
        for a in node.attribute:
            if a.HasField("g"):
                yield from captured(a.g)


def _renamed(body: Any, names: Mapping[str, str]) -> Any:
    """A copy of a sub-graph with other names for some of its tensors, in what is inside of it too."""
    made = type(body)()
    made.CopyFrom(body)
    tensors = [*made.initializer, *(sparse.values for sparse in made.sparse_initializer)]
    for named in (*tensors, *made.value_info, *made.output):
        named.name = names.get(named.name, named.name)
    for node in made.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for a in node.attribute:
            if a.HasField("g"):
                a.g.CopyFrom(_renamed(a.g, names))
    return made


def with_its_own_names(body: Any, taken: Container[str]) -> Any:
    """A branch of an If, with other names for what is `taken`: two branches may use the same."""
    tensors = [*body.initializer, *(sparse.values for sparse in body.sparse_initializer)]
    own = [*(t.name for t in tensors), *(out for node in body.node for out in node.output)]
    fresh = ((name, (f"{name}:{i}" for i in count(2))) for name in own if name and name in taken)
    names = {name: next(new for new in news if new not in taken) for name, news in fresh}
    return _renamed(body, names) if names else body


def work(body: Any) -> tuple[int, int]:
    """How much is in a sub-graph: heavy operators, all operators."""
    heavy = sum(node.op_type in ("Conv", "MatMul", "Gemm", "LSTM", "GRU") for node in body.node)
    return heavy, len(body.node)


def permutation(net: Net, node: Node) -> tuple[int, ...]:
    """Which axis of its input each axis of a Transpose's output is."""
    rank = len(net.shapes[node.inputs[0]])
    return tuple(int(n) for n in node.attributes.get("perm") or range(rank - 1, -1, -1))


def pooled(net: Net, axes: Sequence[int], source: str) -> bool:
    """Whether reducing `axes` of an image leaves one number per channel, as global pooling does."""
    rank = len(net.shapes[source])
    left = sorted({*range(rank)} - {a % rank for a in axes})
    return rank > 3 and net.elements(source) > 0 and left in ([0, 1], [0, rank - 1])

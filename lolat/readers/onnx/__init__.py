"""ONNX network -> Graph: an `.onnx` file, whose weights are never loaded.

The steps: the file without its weights (`file`), the shape of every tensor (`shapes`), what exporters took
apart put together again (`patterns`), and a rule per operator (`rules`). Shapes in the Graph are those of
the file, channels first. Transposes and attention are counted as they stand there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from lolat.errors import InputError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.readers.onnx import patterns, rules, shapes
from lolat.readers.onnx.file import load, without_weights
from lolat.readers.onnx.nodes import Net, Node
from lolat.readers.rules import WITH_AXIS, axis_of
from lolat.units import one_line, shortened


class Writer:
    """Writes an ONNX network, patterns found, into a Graph; tensors are called by their names."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.is_constant, self.elements = net.constant, net.elements
        self.builder = GraphBuilder(net.name, "onnx")
        self.builder.warnings += net.warnings
        self.index: dict[str, int] = {}
        self.wanted = {n for node in net.nodes for n in node.inputs if n} | set(net.outputs)
        self.within = Counter(node.path for node in net.nodes)
        self.named = Counter((node.path, node.name) for node in net.nodes)
        parts = [path.split("/") for path in self.within]
        self.parents = {"/".join(p[:i]) for p in parts for i in range(len(p))}

    def graph(self) -> Graph:
        """The whole network."""
        for name in self.net.inputs:
            shape, dtype = self.net.shapes[name], self.net.dtypes[name]
            self.index[name] = self.builder.input(shape, dtype, name in self.net.grows)
        for node in self.net.nodes:
            try:
                rules.write(self, node)
            except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
                raise NetworkError(
                    f"node {shortened(node.name or node.outputs[0])!r} ({node.op}) of {self.net.name!r} is "
                    f"not as ONNX has it ({type(error).__name__}: {one_line(error)}); export it again"
                ) from error
        return self.builder.build([self.tensor(name) for name in self.net.outputs])

    def tensor(self, name: str) -> int:
        """The index of a tensor; one that nothing writes is a constant operand."""
        if name not in self.index:
            self.index[name] = self.builder.tensor(
                self.net.shapes[name], name in self.net.grows, self.net.dtypes[name]
            )
        return self.index[name]

    def read(self, name: str) -> bool:
        """Whether anybody reads a tensor."""
        return bool(name) and name in self.wanted

    def outputs(self, node: Node) -> list[str]:
        """What a node writes that somebody reads; its first output if nobody reads any."""
        return [o for o in node.outputs if self.read(o)] or node.outputs[:1]

    def activations(self, node: Node) -> list[str]:
        """The first operand; the others are its parameters."""
        return node.inputs[:1]

    def operands(self, node: Node) -> list[str]:
        """The operands of a node; a constant that is a single number is none."""
        single = {n for n in node.inputs if self.is_constant(n) and self.elements(n) == 1}
        return [n for n in node.inputs if n and n not in single]

    def numbers(self, node: Node, attribute: str, position: int) -> list[int] | None:
        """Numbers that are an attribute, or in later opsets an input; None where they are not known."""
        values = node.attributes.get(attribute)
        if values is None and node.input(position):
            values = self.net.values.get(node.inputs[position])
        return None if values is None else [int(n) for n in np.ravel(values)]

    def axes(self, node: Node, kind: str) -> dict[str, Any]:
        """The axis or axes that an operator works along."""
        if kind not in WITH_AXIS or node.op == "GatherND":
            return {}
        rank = len(self.net.shapes[node.inputs[0]])
        axis: Any = node.attributes.get("axis", 0)
        if kind in ("softmax", "log_softmax"):
            # Before opset 13, over all axes from that one on.
            newer = self.net.opset >= 13
            axis = node.attributes.get("axis", -1 if newer else 1)
            axis = axis if newer else range(axis % rank, rank)
        elif kind == "cumulative":
            axis = self.numbers(node, "axis", 1)
        elif node.op.startswith("Reduce"):
            axis = self.numbers(node, "axes", 1)
            if axis is None and node.input(1):
                return {}
        return axis_of(axis, rank, everything=kind == "reduce")

    def temporary(self, name: str, shape: tuple[int, ...], node: Node) -> str:
        """A tensor between the operations that a node is written as; grows as its output does."""
        like = next(name for name in node.outputs if name)
        self.net.shapes[name], self.net.dtypes[name] = shape, self.net.dtypes[like]
        if like in self.net.grows:
            self.net.grows.add(name)
        self.wanted.add(name)
        return name

    def write(self, node: Node, kind: str, inputs: Sequence[str], **attributes: Any) -> list[str]:
        """Append the operation that writes a node's outputs."""
        outputs = self.outputs(node)
        path, name = self.place(node, kind)
        written = self.builder.add_several(
            kind, [self.tensor(n) for n in inputs], [self.net.shapes[o] for o in outputs],
            name, path, self.net.dtypes[outputs[0]], **attributes,
        )  # fmt: skip
        for out, index in zip(outputs, written, strict=True):
            facts: Any = {"batched": out in self.net.grows, "dtype": self.net.dtypes[out]}
            self.builder.tensors[index] = replace(self.builder.tensors[index], **facts)
            self.index[out] = index
        return outputs

    def place(self, node: Node, kind: str) -> tuple[str, str]:
        """(path, name) of an operation: a module with one operation in it is that operation."""
        part = re.search(
            r"_(forward|backward|merge|scores|scale|mask|softmax|mix|cache)$", node.name
        )
        suffix = part.group() if part else ""
        if node.path and self.within[node.path] == 1 and node.path not in self.parents:
            above, _, name = node.path.rpartition("/")
            return above, name + suffix
        several = self.named[node.path, node.name.removesuffix(suffix)] > 1
        name = node.name.removeprefix("node_").strip("_")
        if not name or several or node.kind:
            return node.path, kind + suffix
        return node.path, name.lower() if name[0].isupper() else name


def read_file(path: str, name: str = "", input_size: Sequence[int] | None = None) -> Graph:
    """Read the ONNX file at `path` into a Graph.

    `input_size`: () or None for the sizes in the file; (H,) for every size that the file leaves open;
    more for the open ones in order, or for all without the batch. Raises NetworkError when it is no
    ONNX network, a size stays open, or a shape cannot be found; MissingPackageError without onnx.
    """
    if os.path.isdir(path):
        raise NetworkError(f"{shortened(path)!r} is a folder; expected an .onnx file")
    if not os.path.exists(path):
        raise NetworkError(f"no file {shortened(path)!r}; expected an .onnx file")
    return _graph(load(path), name or Path(path).stem, input_size, os.path.dirname(path))


def read_model(model: Any, name: str = "", input_size: Sequence[int] | None = None) -> Graph:
    """Read an `onnx.ModelProto` into a Graph; sizes and errors as of `read_file`."""
    return _graph(without_weights(model), name or model.graph.name or "onnx", input_size, "")


def _graph(model: Any, name: str, input_size: Sequence[int] | None, folder: str) -> Graph:
    """The Graph of a ModelProto without weights; `folder`: where its external data are."""
    net = shapes.read_net(model, name, tuple(input_size or ()), folder)
    patterns.fuse(net)
    graph = Writer(net).graph()
    try:
        graph.check_sizes()
    except InputError as error:
        raise NetworkError(f"{error.message}; export it again") from None
    return graph

"""Writes an ONNX network, patterns found, into a Graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lolat.errors import NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.readers import onnx_rules
from lolat.readers.onnx_nodes import Net, Node
from lolat.readers.wording import one_line, shortened


class Writer:
    """What the rules write with: operands by name, names and paths of operations, what grows."""

    def __init__(self, net: Net) -> None:
        self.net = net
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
            dtype = self.net.dtypes[name]
            shape = self.net.shapes[name]
            self.index[name] = self.builder.input(shape, dtype, name in self.net.grows)
        for node in self.net.nodes:
            try:
                onnx_rules.write(self, node)
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

    def operands(self, node: Node) -> list[str]:
        """The operands of a node; a constant that is a single number is none."""
        return [
            n for n in node.inputs if n and not (self.net.constant(n) and self.net.elements(n) == 1)
        ]

    def temporary(self, name: str, shape: tuple[int, ...], like: str) -> str:
        """A tensor between the operations that an operator is written as; grows as `like` does."""
        self.net.shapes[name], self.net.dtypes[name] = shape, self.net.dtypes[like]
        if like in self.net.grows:
            self.net.grows.add(name)
        self.wanted.add(name)
        return name

    def write(self, node: Node, kind: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Append the operation that writes a node's outputs."""
        outputs = [o for o in node.outputs if self.read(o)] or node.outputs[:1]
        path, name = self.place(node, kind)
        written = self.builder.add_several(
            kind, [self.tensor(n) for n in inputs], [self.net.shapes[o] for o in outputs],
            name, path, self.net.dtypes[outputs[0]], **attributes,
        )  # fmt: skip
        for out, index in zip(outputs, written, strict=True):
            known = self.builder.tensors[index]
            self.builder.tensors[index] = replace(
                known, batched=out in self.net.grows, dtype=self.net.dtypes[out]
            )
            self.index[out] = index

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
        if not name or several or (node.kind and node.kind not in ("reshape", "scale")):
            return node.path, kind + suffix
        return node.path, name.lower() if name[0].isupper() else name

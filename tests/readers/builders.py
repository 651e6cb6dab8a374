"""A row of tests/data/operations.toml, built as a network of one framework and read into a Graph.

An expression of a row is Python: it is a layer, or says what is computed of the inputs `x`, `y` and `z`. In
`onnx`, a name in capitals is an operator, `w(4, 3)` a weight of that shape, `c([1, 2])` a constant, `f(2)`
one of float32; `d := ...` names a tensor that is read again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import lolat
from lolat.graph import Graph

INPUTS = ("x", "y", "z")


def shapes(row: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Input -> its shape without the batch."""
    return {name: tuple(row[name]) for name in INPUTS if name in row}


def _call(row: dict[str, Any], framework: str, names: dict[str, Any]) -> Any:
    """The layer, or the function of the inputs, that an expression is."""
    text = row[framework]
    is_layer = not re.search(r"\b[xyz]\b", text)
    return eval(text if is_layer else f"lambda {', '.join(shapes(row))}: {text}", names)


def in_torch(row: dict[str, Any], folder: Path) -> Graph:
    """The row as a module of PyTorch's; `w(3, 4)` is a parameter."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from tests.readers.torch_networks import Does

    def w(*shape: int) -> Any:
        return nn.Parameter(torch.zeros(shape))

    call = _call(row, "torch", {"torch": torch, "nn": nn, "F": F, "w": w})
    dtype = getattr(torch, row.get("dtype", "float32"))
    inputs = tuple(torch.zeros((1, *shape), dtype=dtype) for shape in shapes(row).values())
    is_layer = isinstance(call, nn.Module)
    return lolat.read((call if is_layer else Does(lambda m, *tensors: call(*tensors)), inputs))


def in_keras(row: dict[str, Any], folder: Path) -> Graph:
    """The row as a functional network; of an image the channels are moved to the last axis."""
    from tests.readers.keras_networks import graph_of, keras, layers, ops

    names = {"keras": keras, "layers": layers, "ops": ops, "np": np, "w": _ones}
    call = _call(row, "keras", names)
    of_inputs = list(shapes(row).values())
    if row.get("image"):
        of_inputs = [(*shape[1:], shape[0]) for shape in of_inputs]
    return graph_of(call, *of_inputs, dtype=row.get("dtype", "float32"))


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


class _Operators(dict[str, Any]):
    """Names of an expression: an unknown one is an ONNX operator, which appends its node."""

    def __init__(self) -> None:
        super().__init__(w=_ones, c=np.asarray, f=np.float32)
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def __missing__(self, op: str) -> Any:
        from onnx import helper

        def append(*inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
            names = [self.name(value) for value in inputs]
            written = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
            self.nodes.append(helper.make_node(op, names, written, **attributes))
            return written[0] if outputs == 1 else written

        if not op[0].isupper():
            raise KeyError(op)
        return append

    def name(self, value: Any) -> str:
        """The name of a tensor, or of a constant that gets one."""
        if isinstance(value, str):
            return value
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def in_onnx(row: dict[str, Any], folder: Path, opset: int = 20) -> Graph:
    """The row as an ONNX file."""
    from onnx import TensorProto

    from tests.readers.onnx_networks import graph_of, model

    names = _Operators()
    names.update({name: name for name in shapes(row)})
    result = eval(row["onnx"], {}, names)
    x, *others = [("N", *shape) for shape in shapes(row).values()]
    dtype = getattr(
        TensorProto, {"float32": "FLOAT", "int64": "INT64"}[row.get("dtype", "float32")]
    )
    outputs = [result] if isinstance(result, str) else result
    made = model(
        names.nodes, x, opset, dtype, " ".join(outputs),
        dict(zip(INPUTS[1:], others, strict=False)), **names.constants,
    )  # fmt: skip
    return graph_of(folder, made)


BUILDERS = {"torch": in_torch, "keras": in_keras, "onnx": in_onnx}

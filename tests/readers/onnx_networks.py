"""Small ONNX networks for the reader's tests: built operator by operator, written to a file, read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lolat.graph import Graph
from lolat.readers.onnx import read_file
from tests.readers.counting import kinds as kinds
from tests.readers.counting import six as six
from tests.readers.counting import total as total

NEWEST = min(onnx.defs.onnx_opset_version(), 26)
"""The newest opset that is tested."""


def node(op: str, inputs: str, outputs: str, domain: str = "", name: str = "", **a: Any) -> Any:
    """A call: `inputs` and `outputs` are names with blanks between, "-" for one that is left out."""
    ins = [n if n != "-" else "" for n in inputs.split()]
    outs = [n if n != "-" else "" for n in outputs.split()]
    return helper.make_node(op, ins, outs, domain=domain, name=name, **a)


def model(
    nodes: Sequence[Any], x: Any = ("N", 3, 8, 8), opset: int = 20, dtype: int = TensorProto.FLOAT,
    outputs: str = "y", more: dict[str, Any] | None = None, domains: Sequence[str] = (), **constants: Any,
) -> Any:  # fmt: skip
    """A network of the input `x`; a constant is an array, or a shape that is filled with ones."""
    initializers = []
    for name, value in constants.items():
        array = np.ones(value, np.float32) if isinstance(value, tuple) else np.asarray(value)
        initializers.append(numpy_helper.from_array(array, name))
    inputs = {"x": x, **(more or {})}
    graph = helper.make_graph(
        list(nodes), "graph",
        [helper.make_tensor_value_info(n, dtype, shape) for n, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs.split()],
        initializers,
    )  # fmt: skip
    sets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def saved(folder: Path, made: Any, name: str = "network.onnx") -> str:
    """The path of a file with the model."""
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return str(path)


def graph_of(folder: Path, made: Any, size: Any = ()) -> Graph:
    """The graph that is read from the model's file; sound, whatever it is."""
    graph = read_file(saved(folder, made), input_size=size)
    assert Graph.from_dict(graph.to_dict()) == graph
    names = [o.full_name for o in graph.operations]
    assert len(set(names)) == len(names)
    return graph

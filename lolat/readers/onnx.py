"""ONNX network -> Graph: an `.onnx` file, whose weights are never loaded.

The steps: the file without its weights (`onnx_file`), the shape of every tensor (`onnx_shapes`), what
exporters took apart put together again (`onnx_patterns`, `onnx_attention`), transposes that are layout
marked (`onnx_layout`), and a rule per operator (`onnx_rules`). Shapes in the Graph are the file's: channels
first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.readers import onnx_attention, onnx_file, onnx_layout, onnx_patterns, onnx_shapes
from lolat.readers.onnx_writer import Writer
from lolat.readers.wording import shortened


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
    if any(not isinstance(n, int) for n in input_size or ()):
        raise InputError(
            f"several input sizes are for PyTorch modules; {shortened(path)!r} says what its inputs are, "
            "give one size or none"
        )
    model = onnx_file.load(path)
    net = onnx_shapes.read_net(
        model, name or Path(path).stem, tuple(input_size or ()), os.path.dirname(path)
    )
    del model
    onnx_patterns.fuse(net)
    heads = onnx_attention.fuse(net)
    onnx_layout.mark(net, heads)
    return Writer(net).graph()

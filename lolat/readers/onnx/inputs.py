"""The inputs of an ONNX file: their batch axes, and their sizes from the file or from the user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.errors import NetworkError
from lolat.readers.size import InputForm, Size, filled

_STEPS = re.compile("seq|token|length|step|time", re.IGNORECASE)
_ROWS = re.compile("seq|token|len|step|time|frame|patch|point|^[tl]$", re.IGNORECASE)
_BATCH = re.compile(r"[nb]|bs|.*batch.*|unk.*|.*dynamic.*|dim.*|.*_dim_0|s\d+|", re.IGNORECASE)
"""Patterns of axis names: _STEPS for steps; for a first axis, _BATCH if it is the batch, _ROWS if not."""


@dataclass(frozen=True)
class Input:
    """An input of a network: its shape at batch size 1, and its batch axis (None: no batch axis).

    `fixed`: the batch size for which the file was exported; 0 if any batch size fits.
    """

    shape: tuple[int, ...]
    dtype: str
    batch_axis: int | None
    fixed: int

    def at(self, batch_size: int) -> tuple[int, ...]:
        """The shape at a batch size."""
        return tuple(batch_size if at == self.batch_axis else n for at, n in enumerate(self.shape))


def inputs_of(
    graph: Any, parameters: set[str], size: Size, network: str, remarks: list[str]
) -> dict[str, Input]:
    """Input name -> input, without parameters. `size`: see `lolat.readers.size.filled`.

    Remarks are appended to `remarks`. NetworkError if an axis stays open, or `size` does not fit.
    """
    from onnx.helper import tensor_dtype_to_np_dtype

    inputs = {i.name: i.type.tensor_type for i in graph.input if i.name not in parameters}
    dims = {name: tensor.shape.dim for name, tensor in inputs.items()}
    dtypes = {name: tensor_dtype_to_np_dtype(t.elem_type) for name, t in inputs.items()}
    batch = _batch_axes(dims, _steps_first(graph))
    remarks += [
        f"the first axis of {name}, {called}, is taken as the batch"
        for name, axis in batch.items()
        if not axis and not _BATCH.fullmatch(called := dims[name][0].dim_param)
    ]
    symbols = {dims[name][axis].dim_param for name, axis in batch.items()} - {""}
    axes = {
        name: [
            a for a, d in enumerate(sizes) if a != batch.get(name) and d.dim_param not in symbols
        ]
        for name, sizes in dims.items()
    }
    past = sorted(set(_open_past(dims, axes)))
    if past and not size.shapes:
        raise NetworkError(
            f"{network!r} is a decoder that reads earlier tokens (their number is open: "
            f"{', '.join(past)}); expected the shape of each input in Python, or its config.json for "
            "lolat llm",
            code="input-size",
        )
    is_index = {name: dtypes[name].kind in "iub" for name in axes}
    inner = {name: [dims[name][a] for a in kept] for name, kept in axes.items()}
    tokens = {dim.dim_param for n, shape in inner.items() if is_index[n] for dim in shape}
    forms = {n: _form(shape, is_index[n], tokens, size) for n, shape in inner.items()}
    wanted = filled(forms, size, network, fixed=True, remarks=remarks)
    sized = {}
    for name in inputs:
        sizes = dict(zip(axes[name], wanted[name], strict=True))
        fixed = dims[name][batch[name]].dim_value if name in batch else 0
        sized[name] = Input(
            tuple(sizes.get(axis, 1) for axis in range(len(dims[name]))),
            str(dtypes[name]), batch.get(name), max(fixed, 0),
        )  # fmt: skip
    return sized


def _open_past(dims: Mapping[str, Any], axes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield the name of each open axis that counts a decoder's earlier tokens.

    An axis without a name is yielded under the name of its input.
    """
    for name, on in axes.items():
        for called in (dims[name][a].dim_param or name for a in on if dims[name][a].dim_value < 1):
            if "past" in called.lower():
                yield called


def _form(dims: Sequence[Any], is_index: bool, tokens: set[str], size: Size) -> InputForm:
    """The form of an input with axes `dims`, without the batch; `tokens`: names of axes that count tokens.

    An image with three open axes has 3 channels if `size` is one number.
    """
    shape = [max(d.dim_value, 0) or None for d in dims]
    if shape == [None] * 3 and len(size.images) == 1 and not is_index:
        shape[0] = 3
    is_last = bool(shape) and shape[0] is None and shape[-1] is not None
    steps = (
        at for at, d in enumerate(dims)
        if shape[at] is None and d.dim_param and (d.dim_param in tokens or _STEPS.search(d.dim_param))
    )  # fmt: skip
    return InputForm(tuple(shape), -1 if is_last else 0, is_index, frozenset(steps))


def set_sizes(graph: Any, inputs: Mapping[str, Input], samples: int = 1) -> None:
    """Write the sizes of the inputs into the graph, also in place of symbolic sizes."""
    symbols: dict[str, int] = {}
    for value in graph.input:
        if value.name in inputs:
            for dim, size in zip(
                value.type.tensor_type.shape.dim, inputs[value.name].at(samples), strict=True
            ):
                symbols.setdefault(dim.dim_param, size)
                dim.dim_value = size
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    if any(one.fixed > 1 for one in inputs.values()):
        del graph.value_info[:]  # these shapes are those at the fixed batch size
    for value in graph.value_info:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols and dim.dim_param:
                dim.dim_value = symbols[dim.dim_param]


def _steps_first(graph: Any) -> set[str]:
    """Names of sequences and states that recurrent layers read with the batch on the second axis."""
    recurrent = (node for node in graph.node if node.op_type in ("LSTM", "GRU", "RNN"))
    return {
        name
        for node in recurrent
        if not any(a.name == "layout" and a.i for a in node.attribute)
        for name in (*node.input[:1], *node.input[5:7])
    }


def _batch_axes(inputs: Mapping[str, Any], steps_first: set[str]) -> dict[str, int]:
    """Input -> its batch axis: the axis named "batch", else the axis that `_batch_axis` finds.

    An input with named axes has no batch axis if only other inputs have an axis named "batch". An axis is
    also dropped if its size is not the batch size: open if any batch axis is open, else the first input's.
    """
    called = {
        name: [axis for axis, d in enumerate(dims) if "batch" in d.dim_param.lower()]
        for name, dims in inputs.items()
    }
    batch = {}
    for name, dims in inputs.items():
        if any(called.values()) and dims and dims[0].dim_param and not called[name]:
            continue
        axis = called[name][0] if called[name] else _batch_axis(dims, name in steps_first)
        if axis is not None and axis < len(dims):
            batch[name] = axis
    sizes = {name: max(inputs[name][axis].dim_value, 0) for name, axis in batch.items()}
    whole = 0 if 0 in sizes.values() else next(iter(sizes.values()), 0)
    return {name: axis for name, axis in batch.items() if sizes[name] == whole}


def _batch_axis(dims: Sequence[Any], steps_first: bool) -> int | None:
    """The batch axis of an input: 0; if the first axis is steps, 1 or None.

    Steps are recognized by the axis name, or by a recurrent layer that reads the input (`steps_first`). The
    first axis of an image is always its batch.
    """
    if steps_first:
        return 1
    if not dims or len(dims) > 3 or not _ROWS.search(dims[0].dim_param):
        return 0
    is_batch = len(dims) == 3 and (dims[1].dim_value == 1 or dims[1].dim_param)
    return 1 if is_batch else None

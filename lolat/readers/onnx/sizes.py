"""Open sizes of the inputs of an ONNX file that the weights behind them, or their names, tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lolat.readers.size import Form

_ELEMENTWISE = frozenset(["Add", "Cast", "Clip", "Div", "Identity", "Mul", "Pad", "Relu", "Sub"])
_STEPS = re.compile("seq|token|length|step|time", re.IGNORECASE)
_PAST = re.compile("past", re.IGNORECASE)
_OTHER = re.compile("encoder|total", re.IGNORECASE)
"""Steps of a decoder's inputs beside its own tokens: of an encoder, of a mask of all tokens."""
_ROWS = re.compile("seq|token|len|step|time|frame|patch|point|^[tl]$", re.IGNORECASE)
_BATCH = re.compile(r"[nb]|bs|.*batch.*|unk.*|.*dynamic.*|dim.*|.*_dim_0|s\d+", re.IGNORECASE)
"""Names of a first axis that is no batch, and those of a batch; exporters number unnamed axes."""


def batch_axis(name: str, dims: Sequence[Any], steps_first: bool, remarks: list[str]) -> int | None:
    """The axis of an input's batch by the name of its first axis; None where that is steps, and no other.

    `steps_first`: whether a recurrent layer reads it with the batch second. Rows of a network of images are
    its batch, whatever their name. `remarks` gets a first axis that its name does not tell.
    """
    called = dims[0].dim_param if dims else ""
    if steps_first or not called or _BATCH.fullmatch(called):
        return int(steps_first)
    if len(dims) < 4 and _ROWS.search(called):
        second = dims[1] if len(dims) == 3 else None
        is_batch = second is not None and (
            second.dim_value == 1 or _BATCH.fullmatch(second.dim_param)
        )
        return 1 if is_batch else None
    remarks.append(f"the first axis of {name}, {called}, is taken as the batch")
    return 0


def first_layers(
    graph: Any, dims: Mapping[str, Sequence[Any]], parameters: set[str]
) -> dict[str, tuple[int, int]]:
    """Input -> (axis of its channels or features, their number) of a layer that reads it as it is.

    Operators element by element, and transpositions, may stand between the two.
    """
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in graph.input:
        if value.name in parameters:
            shapes[value.name] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    axes = {name: (name, [*range(len(of))]) for name, of in dims.items()}
    found: dict[str, tuple[int, int]] = {}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            shapes[node.output[0]] = tuple(node.attribute[0].t.dims)
        about = {a.name: a for a in node.attribute}
        source = next((name for name in node.input if name in axes), "")
        if node.op_type == "Transpose" and "perm" in about:
            order = list(about["perm"].ints)
            if source:
                name, before = axes[source]
                axes[node.output[0]] = name, [before[axis] for axis in order]
            elif node.input[0] in shapes:
                shapes[node.output[0]] = tuple(shapes[node.input[0]][axis] for axis in order)
        elif node.op_type in _ELEMENTWISE and source:
            axes[node.output[0]] = axes[source]
        elif node.op_type in ("Cast", "Identity") and node.input[0] in shapes:
            shapes[node.output[0]] = shapes[node.input[0]]
        elif source and source == node.input[0]:
            name, order = axes[source]
            weights = shapes.get(node.input[1], ()) if len(node.input) > 1 else ()
            number = _read(node.op_type, about, weights)
            if number is not None and len(order) > 1:
                axis = order[1] if "Conv" in node.op_type else order[-1]
                found.setdefault(name, (axis, number))
    return found


def _read(op: str, about: Mapping[str, Any], weights: tuple[int, ...]) -> int | None:
    """Channels or features that a layer with such weights reads; None if that is not known."""
    if len(weights) < 2:
        return None
    if op == "Conv":
        return weights[1] * (about["group"].i if "group" in about else 1)
    if op == "ConvTranspose":
        return weights[0]
    if op == "MatMul":
        return weights[-2]
    if op == "Gemm":
        return weights[1 if "transB" in about and about["transB"].i else 0]
    return weights[-1] if op in ("LSTM", "GRU", "RNN") else None


def forms(
    dims: Mapping[str, Sequence[Any]], axes: Mapping[str, Sequence[int]], is_index: Mapping[str, bool],
    layers: Mapping[str, tuple[int, int]], length: int, remarks: list[str],
) -> dict[str, Form]:  # fmt: skip
    """The inputs on `axes`, which leave the batch out; open sizes that weights or names tell are filled in.

    `length`: the number that is given for tokens and steps, 0 for none. The earlier tokens of a decoder (an
    axis named "past") are none where its tokens are open, else they are what the length is for. `remarks`
    gets what was filled in.
    """
    named = {
        name: [dims[name][axis].dim_param or name * bool(_PAST.search(name)) for axis in on]
        for name, on in axes.items()
    }
    shapes: dict[str, list[int | None]] = {
        name: [max(dims[name][axis].dim_value, 0) or None for axis in on]
        for name, on in axes.items()
    }
    for name, (axis, number) in layers.items():
        at = axes[name].index(axis) if axis in axes[name] else None
        if at is not None and shapes[name][at] is None:
            shapes[name][at] = number
            remarks.append(f"{name} has {number:,} channels or features, as its first layer has")
    places = [(name, at) for name, of in shapes.items() for at, n in enumerate(of) if n is None]
    steps = {named[n][at] for n, at in places if is_index[n]} - {""}
    past = [(n, at) for n, at in places if length and _PAST.search(named[n][at])]
    new = [(n, named[n][at]) for n, at in places if not _PAST.search(named[n][at])]
    is_prompt = any(is_index[n] for n, _ in new) or (
        not any(is_index.values())  # tokens come as vectors
        and any(len(shapes[n]) == 2 and _STEPS.search(a) and not _OTHER.search(a) for n, a in new)
    )
    for name, at in past:
        terms = [term.strip() for term in named[name][at].split("+")]
        numbers = [int(term) for term in terms if term.isdigit()]
        if all(term.isdigit() or _PAST.search(term) for term in terms) and (is_prompt or numbers):
            shapes[name][at] = sum(numbers) + (len(terms) - len(numbers)) * length * (not is_prompt)
    if none := {named[n][at]: None for n, at in past if shapes[n][at] == 0}:
        remarks.append(
            f"read as a prompt, with no earlier tokens ({', '.join(none)}: 0); for another number give the "
            "shape of each input in Python"
        )
    return {
        name: Form(
            tuple(of), axes[name].index(layers[name][0]) if name in layers else 0, is_index[name],
            frozenset(at for at, n in enumerate(of) if n is None
                      and (named[name][at] in steps or _STEPS.search(named[name][at]))),
        )
        for name, of in shapes.items()
    }  # fmt: skip

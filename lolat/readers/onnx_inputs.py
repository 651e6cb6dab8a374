"""What goes into an ONNX network: which axis is the batch, and the sizes that the file leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lolat.errors import NetworkError

RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass
class Inputs:
    """Inputs of a network: name -> sizes, None where the batch is; and the symbols of the file.

    `fixed` is the batch size that the file was made for, None where it is open.
    """

    sizes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, int | None] = field(default_factory=dict)  # None: the batch
    fixed: int | None = None
    warnings: list[str] = field(default_factory=list)

    def at(self, batch: int) -> dict[str, tuple[int, ...]]:
        """The shapes at a batch size."""
        return {name: tuple(batch if n is None else n for n in s) for name, s in self.sizes.items()}


def read_inputs(model: Any, size: Sequence[int], network: str) -> Inputs:
    """The inputs of a model; `size` as of --input-size: open sizes, or all without the batch.

    Raises NetworkError where a size stays open, or the file fixes another one.
    """
    found = Inputs()
    constants = {i.name for i in model.graph.initializer}
    given = [i for i in model.graph.input if i.name not in constants]
    dims = {i.name: _dims(i, network) for i in given}
    named = any(isinstance(n, str) and "batch" in n.lower() for d in dims.values() for n in d)
    batch = {name: _batch_axis(model, name, d, named) for name, d in dims.items()}
    first = next((d[batch[n]] for n, d in dims.items() if batch[n] is not None), None)  # type: ignore[index]
    for value in given:
        name, axis = value.name, batch[value.name]
        if axis is not None and isinstance(first, int) and dims[name][axis] not in (first, 1):
            axis = batch[name] = None  # of another size than the other inputs' batch
        if axis is not None:
            at = dims[name][axis]
            if isinstance(at, int):
                found.fixed = max(at, found.fixed or 1)
                if at > 1:
                    found.warnings.append(
                        f"input {name!r} is fixed at {at} x ...: taken as the batch size and read at 1"
                    )
            elif at:
                found.symbols[at] = None
    changed = False
    for value in given:
        name = value.name
        sizes, used = _filled(dims[name], batch[name], tuple(size), found.symbols, name, network)
        changed = changed or used
        found.sizes[name] = sizes
        found.dtypes[name] = value.type.tensor_type.elem_type
    if size and given and not changed:
        shown = "; ".join(f"{n}: {_shown(d, batch[n])}" for n, d in dims.items())
        raise NetworkError(
            f"--input-size {','.join(map(str, size))} fits no input of {network!r} ({shown}); "
            "give a size where it says ?, or all sizes without the batch"
        )
    return found


def _dims(value: Any, network: str) -> list[int | str]:
    """Sizes of an input, the symbol or "" for open ones."""
    if value.type.WhichOneof("value") != "tensor_type":
        raise NetworkError(
            f"input {value.name!r} of {network!r} is no tensor but a {value.type.WhichOneof('value')}; "
            "export the network with tensors as inputs"
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise NetworkError(
            f"input {value.name!r} of {network!r} has no shape in the file; export it with a shape"
        )
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else d.dim_param
        for d in tensor.shape.dim
    ]


def _batch_axis(model: Any, name: str, dims: list[int | str], named: bool) -> int | None:
    """The axis that is named after the batch; else the first, or the second of a recurrent layer's.

    `named`: some input has an axis named after the batch; then an axis of another name is none.
    """
    if not dims:
        return None
    for axis, n in enumerate(dims):
        if isinstance(n, str) and "batch" in n.lower():
            return axis
    if len(dims) == 3:
        for node in model.graph.node:
            if node.op_type in RECURRENT and list(node.input[:1]) == [name]:
                return 0 if any(a.name == "layout" and a.i for a in node.attribute) else 1
    return None if named and isinstance(dims[0], str) and dims[0] else 0


def _filled(
    dims: list[int | str],
    axis: int | None,
    size: tuple[int, ...],
    symbols: dict[str, int | None],
    name: str,
    network: str,
) -> tuple[tuple[int | None, ...], bool]:
    """All sizes of an input (None for the batch), and whether `size` said something about it."""
    rest = [i for i in range(len(dims)) if i != axis]
    opened = [
        i for i in rest if isinstance(dims[i], str) and symbols.get(str(dims[i]), 0) is not None
    ]
    wanted: dict[int, int] = {}
    if len(size) == len(rest) and len(size) > 1:
        wanted = dict(zip(rest, size, strict=True))
    elif len(size) == 1 and opened:
        wanted = dict.fromkeys(opened, size[0])
    elif size and len(size) == len(opened):
        wanted = dict(zip(opened, size, strict=True))
    elif len(size) == 1 and rest and all(isinstance(dims[i], int) for i in rest):
        wanted = dict.fromkeys(rest[1:] if len(rest) > 1 else rest, size[0])
    sizes: list[int | None] = []
    for i, n in enumerate(dims):
        if i == axis or (isinstance(n, str) and n and symbols.get(n, 0) is None):
            sizes.append(None)
        elif isinstance(n, int):
            if wanted.get(i, n) != n:
                raise NetworkError(
                    f"input {name!r} of {network!r} is fixed at {_shown(dims, axis)} in the file; "
                    f"--input-size {','.join(map(str, size))} cannot change it; export the network with "
                    "dynamic axes, or at that size"
                )
            sizes.append(n)
        else:
            known = wanted.get(i) or symbols.get(n)
            if not known:
                raise NetworkError(
                    f"input {name!r} of {network!r} leaves sizes open: {_shown(dims, axis)}; give them "
                    "with --input-size, for example --input-size 224"
                )
            if n:
                symbols.setdefault(n, known)
            sizes.append(known)
    return tuple(sizes), bool(wanted)


def _shown(dims: Sequence[int | str], axis: int | None) -> str:
    """Sizes without the batch: 3x?x?."""
    return "x".join(str(n) if isinstance(n, int) else "?" for i, n in enumerate(dims) if i != axis)

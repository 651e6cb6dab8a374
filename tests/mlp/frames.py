"""Pickles as pandas 0.2x under Python 2 wrote them, put together without pandas."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np


class Global:
    """Pickled as the name `module.name`, whether or not there is such a thing here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None:
        """Pickle asks for something that can be called."""


class Call:
    """Pickled as a call of `of`, with a state where there is one."""

    def __init__(self, of: Any, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.parts = (of, arguments) if state is None else (of, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


class Pickler(pickle._Pickler):
    """Knows Global."""

    def save_name(self, item: Global) -> None:
        """Write the opcode GLOBAL."""
        self.write(f"c{item.module}\n{item.name}\n".encode())

    dispatch: ClassVar[dict[Any, Any]] = {**pickle._Pickler.dispatch, Global: save_name}


def dumps(value: Any) -> bytes:
    """Protocol 2, as Python 2 wrote it."""
    file = io.BytesIO()
    Pickler(file, protocol=2).dump(value)
    return file.getvalue()


FRAME = Global("pandas.core.frame", "DataFrame")
MANAGER = Global("pandas.core.internals", "BlockManager")
NEW_INDEX = Global("pandas.core.indexes.base", "_new_Index")
INDEX = Global("pandas.core.indexes.base", "Index")
RANGE = Global("pandas.core.indexes.range", "RangeIndex")


def frame_pickle(columns: Mapping[str, np.ndarray], state: Any = None) -> bytes:
    """A data frame with one block per kind of number; `state` instead of the right one."""
    names = list(columns)
    rows = len(next(iter(columns.values())))
    index = {"data": array(np.array(names, dtype=object)), "name": None}
    counted = {"start": 0, "stop": rows, "step": 1, "name": None}
    axes = [Call(NEW_INDEX, (INDEX, index)), Call(NEW_INDEX, (RANGE, counted))]
    blocks = []
    for dtype in dict.fromkeys(c.dtype for c in columns.values()):
        places = [i for i, n in enumerate(names) if columns[n].dtype == dtype]
        where = Call(Global("__builtin__", "slice"), (places[0], places[0] + 1, 1))
        values = array(np.array([columns[names[i]] for i in places]))
        blocks.append(
            {"mgr_locs": array(np.array(places)) if len(places) > 1 else where, "values": values}
        )
    manager = Call(MANAGER, (), (axes, [], [], {"0.14.1": {"axes": axes, "blocks": blocks}}))
    return dumps(Call(FRAME, (), state or {"_typ": "dataframe", "_data": manager}))


def array(values: np.ndarray) -> Call:
    """An array as NumPy under Python 2 pickled it: its content a string of bytes, or a list of objects."""
    text = values.dtype.kind == "O"
    content = values.tolist() if text else values.tobytes().decode("latin1")
    code = "O8" if text else values.dtype.str[1:]
    order = "|" if text or values.dtype.itemsize == 1 else "<"
    dtype = Call(Global("numpy", "dtype"), (code, 0, 1), (3, order, None, None, None, -1, -1, 0))
    arguments = (Global("numpy", "ndarray"), (0,), "b")
    state = (1, values.shape, dtype, False, content)
    return Call(Global("numpy.core.multiarray", "_reconstruct"), arguments, state)


def write(folder: Path, name: str, columns: Mapping[str, np.ndarray]) -> Path:
    """folder/name with a frame of the columns, parents made."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame_pickle(columns))
    return path

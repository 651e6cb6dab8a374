"""Reads data frames out of old pandas pickles without pandas, and without running what a pickle asks for.

A pickle is a program: it names what to call. Here every name that it may give stands for a small class of
ours that only keeps what it is given; any other name is refused before anything of it runs. The frames are
those of pandas before 1.0: pickled as DataFrame -> BlockManager -> axes and blocks of NumPy arrays.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.units import plain

LARGEST_BYTES = 256 * 2**20
_NUMBERS = re.compile(r"[<>|=]?[biuf][1248]")
_TEXT = re.compile(r"[<>|=]?O[48]?")
_EXPECTED = "expected a pickled pandas data frame of numbers"


class _Sealed(type):
    """A class that a pickle cannot change: BUILD may set attributes of whatever is on its stack."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise pickle.UnpicklingError("a pickle that changes a class")


class _Kept(metaclass=_Sealed):
    """Keeps what it is called and built with."""

    __slots__ = ("given", "state")

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Frame(_Kept):
    """pandas.DataFrame: its state has the manager under _data."""

    __slots__ = ()


class _Manager(_Kept):
    """pandas' BlockManager: its state's fourth part has axes and blocks."""

    __slots__ = ()


class _NewIndex(_Kept):
    """pandas' _new_Index(class, facts): called, it is the index."""

    __slots__ = ()


class _Index(_Kept):
    """The class of an index of names or numbers."""

    __slots__ = ()


class _Array(_Kept):
    """numpy's _reconstruct: state (version, shape, dtype, Fortran order, content)."""

    __slots__ = ()


class _ArrayType(_Kept):
    """The class numpy.ndarray, which _reconstruct is given."""

    __slots__ = ()


class _Dtype(_Kept):
    """numpy.dtype("f8", 0, 1): state (version, byte order, ...)."""

    __slots__ = ()


class _Slice(_Kept):
    """slice(start, stop, step): the columns of a block."""

    __slots__ = ()


_PANDAS_INDEX = ("pandas.core.indexes.base", "pandas.indexes.base", "pandas.core.index")
# Module and name in a pickle -> what stands for it; modules as different versions called them.
ADMITTED: Mapping[tuple[str, str], type] = {
    ("pandas.core.frame", "DataFrame"): _Frame,
    ("pandas.core.internals", "BlockManager"): _Manager,
    ("pandas.core.internals.managers", "BlockManager"): _Manager,
    **{(module, "_new_Index"): _NewIndex for module in _PANDAS_INDEX},
    **{(module, "Index"): _Index for module in _PANDAS_INDEX},
    ("pandas.core.indexes.range", "RangeIndex"): _Index,
    ("pandas.indexes.range", "RangeIndex"): _Index,
    ("pandas.core.indexes.numeric", "Int64Index"): _Index,
    ("pandas.indexes.numeric", "Int64Index"): _Index,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _Dtype,
    ("__builtin__", "slice"): _Slice,
    ("builtins", "slice"): _Slice,
}


class _Reader(pickle.Unpickler):
    """Admits the names of ADMITTED only."""

    def __init__(self, content: bytes, source: str) -> None:
        # Python 2 wrote bytes and text alike; Latin-1 keeps every byte.
        super().__init__(io.BytesIO(content), encoding="latin1")
        self.source = source

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in; InputError for a name that is not admitted."""
        if (module, name) not in ADMITTED:
            raise InputError(
                f"{self.source} asks for {plain(module)}.{plain(name)}, which no data frame of "
                "measurements needs; refused before it ran: do not open this file by other means"
            )
        return ADMITTED[module, name]


class _NotAFrame(Exception):
    """What was read is something else than a frame of numbers; the message says in which way."""


def read_frame(path: str | Path) -> dict[str, np.ndarray]:
    """The columns of the data frame in a pickle, in its order: name -> (rows,) numbers, bools or objects.

    Raises InputError that names the file: not there, not a pickle, damaged, not a data frame, or a
    pickle that asks for anything besides the few types in one (none of which runs).
    """
    source = plain(str(path))
    content = _content(path, source)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            # A place in the memo far beyond the file's length only takes memory.
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(
                content
            ):
                raise _NotAFrame("a memo larger than the file")
        found = _Reader(content, source).load()
        return _columns(found)
    except InputError:
        raise
    except _NotAFrame as error:
        raise InputError(f"{source} is no data frame of numbers: {error}; {_EXPECTED}") from None
    except Exception as error:  # a damaged pickle fails in any way
        reason = plain(" ".join(str(error).split())) or type(error).__name__
        raise InputError(f"{source} is damaged or no pickle ({reason}); {_EXPECTED}") from None


def _content(path: str | Path, source: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}; {_EXPECTED}") from None
    if not content:
        raise InputError(f"{source} is empty; {_EXPECTED}")
    if len(content) > LARGEST_BYTES:
        raise InputError(f"{source} is larger than {LARGEST_BYTES // 2**20} MiB; {_EXPECTED}")
    return content


def _columns(frame: Any) -> dict[str, np.ndarray]:
    if not isinstance(frame, _Frame) or not isinstance(frame.state, dict):
        raise _NotAFrame(f"a {_named(frame)}")
    manager = frame.state.get("_data")
    if not isinstance(manager, _Manager):
        raise _NotAFrame(f"its data are a {_named(manager)}")
    layout = manager.state[3]["0.14.1"]
    names = [str(name) for name in _array(layout["axes"][0].given[1]["data"])]
    found: dict[str, np.ndarray] = {}
    for block in layout["blocks"]:
        values = _array(block["values"])
        for row, place in enumerate(_places(block["mgr_locs"])):
            found[names[place]] = values[row]
    if set(found) != set(names) or len({len(v) for v in found.values()}) > 1:
        raise _NotAFrame("its columns are not whole")
    return {name: found[name] for name in names}


def _named(value: Any) -> str:
    return type(value).__name__.strip("_")


def _places(where: Any) -> list[int]:
    """The columns that a block has: a slice or an array of places."""
    if isinstance(where, _Slice):
        start, stop, step = where.given
        return list(range(start, min(stop, 10_000), step))
    return [int(place) for place in _array(where)]


def _array(kept: Any) -> np.ndarray:
    """The array that a stand-in was built with: numbers from their bytes, objects from a list of text."""
    if not isinstance(kept, _Array):
        raise _NotAFrame(f"a {_named(kept)} where an array is expected")
    _, shape, dtype, fortran, content = kept.state
    code = str(dtype.given[0])
    if _TEXT.fullmatch(code):
        if not all(isinstance(item, str | int | float) for item in content):
            raise _NotAFrame("an array of objects that are neither text nor numbers")
        # One at a time, as NumPy would take a list of texts for an array of text.
        values = np.empty(len(content), dtype=object)
        values[:] = content
    elif _NUMBERS.fullmatch(code):
        order = ">" if dtype.state[1] == ">" else "<"
        raw = content.encode("latin1") if isinstance(content, str) else bytes(content)
        values = np.frombuffer(raw, np.dtype(order + code.lstrip("<>|=")))
    else:
        raise _NotAFrame(f"an array of {plain(code)}")
    return values.reshape(shape, order="F" if fortran else "C")

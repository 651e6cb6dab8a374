"""The raw files behind Justus et al. 2018 as tables: GPU/run/benchmark_{convolution,dense}_*.pkl -> CSV.

    python benchmarks/justus/importing.py RAW_DIR DIR

writes DIR/convolution.csv and DIR/dense.csv. The files are old pandas pickles: only the few types of a data
frame are read out of them; a file that asks for anything else is refused, and nothing is written.

github.com/CDECatapult/ml-performance-prediction, raw_data. What its numbers stand for (which optimizer is
2, say) is in the order of the words in `table`.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from lolat.cli.common import progress, run, say
from lolat.errors import InputError
from lolat.io.writing import write_bytes
from lolat.mlp.devices import DEVICES, find
from lolat.mlp.table import ACTIVATIONS, COLUMNS, LAYERS, OPTIMIZERS, PADDINGS, SPREADS, TIME
from lolat.units import plain

# ---- Reads data frames out of old pandas pickles without pandas, and without running what a
# pickle asks for.
#
# A pickle is a program: it names what to call. Here every name that it may give stands for a small class of
# ours that only keeps what it is given; any other name is refused before anything of it runs. The frames
# are
# those of pandas before 1.0: pickled as DataFrame -> BlockManager -> axes and blocks of NumPy arrays.

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


# ---- importing ----------------------------------------

EXPECTED = "expected a folder with GPU/run/benchmark_convolution_*.pkl or benchmark_dense_*.pkl"
_FLAGS = ("0", "1")
# Our column -> the raw one.
_RAW = {
    "batch_size": "batchsize",
    "input_size": "matsize",
    "kernel_size": "kernelsize",
    "in_channels": "channels_in",
    "out_channels": "channels_out",
    "stride": "strides",
    "padding": "padding",
    "use_bias": "use_bias",
    "in_features": "dim_input",
    "out_features": "dim_output",
    "activation": "activation_fct",
    "optimizer": "optimizer",
    TIME: "timeUsed_median",
    "time_ms_min": "timeUsed_min",
    "time_ms_max": "timeUsed_max",
    "time_ms_std": "timeUsed_std",
}
_WORDS: Mapping[str, Sequence[str]] = {
    "padding": PADDINGS,
    "use_bias": _FLAGS,
    "activation": ACTIVATIONS,
    "optimizer": OPTIMIZERS,
}
TIMES = (TIME, *SPREADS)


@dataclass(frozen=True)
class Imported:
    """What the files of one kind of layer gave.

    `columns`: names; `rows`: text cells, those that are possible, each layer of a GPU and run once;
    `files`: how many; `read`: rows in them; `dropped`: rows left out, by reason.
    """

    layer: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    files: int
    read: int
    dropped: Mapping[str, int]

    def to_csv(self) -> str:
        """The table as CSV text; no cell has a comma."""
        lines = [",".join(cells) for cells in (self.columns, *self.rows)]
        return "\n".join(lines) + "\n"


def import_raw(folder: str | Path, done: Callable[[], None] = lambda: None) -> list[Imported]:
    """The tables of all raw files below `folder`, one per kind of layer that there is.

    Files in the order of GPU, run and name, rows in theirs. `done` is called after each file. Raises
    InputError: no such files, or a file that is not what is expected (`pickles.read_frame`).
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{plain(str(folder))} is not a folder; {EXPECTED}")
    found = []
    for layer in LAYERS:
        files = sorted(root.glob(f"*/*/benchmark_{layer}_*.pkl"))
        if files:
            found.append(_layer(layer, files, done))
    if not found:
        raise InputError(f"{plain(str(folder))} has no raw files; {EXPECTED}")
    return found


def raw_files(folder: str | Path) -> int:
    """How many raw files there are below `folder`."""
    return sum(len(list(Path(folder).glob(f"*/*/benchmark_{layer}_*.pkl"))) for layer in LAYERS)


def _layer(layer: str, files: Sequence[Path], done: Callable[[], None]) -> Imported:
    described = COLUMNS[layer][1:]
    rows: list[list[str]] = []
    seen: set[tuple[str, ...]] = set()
    dropped: dict[str, int] = {}
    read = 0
    for path in files:
        frame = read_frame(path)
        gpu, run = _gpu(path.parent.parent.name), path.parent.name
        for cells, reason in _rows(frame, layer, path):
            read += 1
            layer_of = (gpu, run, *cells[: len(described)])
            if reason is None and layer_of in seen:
                reason = "the same layer once more in a run"
            if reason is None:
                seen.add(layer_of)
                rows.append([gpu, run, *cells])
            else:
                dropped[reason] = dropped.get(reason, 0) + 1
        done()
    return Imported(layer, ("gpu", "run", *described, *TIMES), rows, len(files), read, dropped)


def _gpu(folder: str) -> str:
    """The name of a GPU as the built-in table has it; the folder's where it does not."""
    device = find(folder, DEVICES)
    if "," in folder or '"' in folder or not folder.isprintable():
        raise InputError(f"{plain(folder)!r} is no name of a GPU; {EXPECTED}")
    return folder if device is None else device.name


def _rows(
    frame: Mapping[str, np.ndarray], layer: str, path: Path
) -> list[tuple[list[str], str | None]]:
    """Each row's cells in our columns, and why it is impossible (None: it is possible)."""
    names = (*COLUMNS[layer][1:], *TIMES)
    lacking = [_RAW[name] for name in names if _RAW[name] not in frame]
    if lacking:
        raise InputError(
            f"{plain(str(path))} lacks the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}; expected "
            f"a raw file of {layer} layers, with {', '.join(_RAW[name] for name in names)}"
        )
    raw = {name: frame[_RAW[name]].tolist() for name in names}
    precisions = frame["precision"].tolist() if "precision" in frame else [32] * len(raw[TIME])
    found = []
    for values, precision in zip(zip(*raw.values(), strict=True), precisions, strict=True):
        row = dict(zip(names, values, strict=True))
        reason = _impossible(row) if precision == 32 else "not of 32 bits"
        found.append(([_cell(name, row[name]) for name in names] if reason is None else [], reason))
    return found


def _impossible(row: Mapping[str, Any]) -> str | None:
    """Why no measurement can be like this; None: it can."""
    times = [row[name] for name in TIMES]
    if not all(isinstance(t, float | int) and np.isfinite(t) for t in times):
        return "a time that is no number"
    low, high, median, spread = (row[n] for n in ("time_ms_min", "time_ms_max", TIME, TIMES[-1]))
    if low <= 0 or median <= 0 or spread < 0:
        return "a time of 0 or below"
    if not low <= median <= high:
        return "a median that is not between least and greatest time"
    for name, value in row.items():
        if name in TIMES:
            continue
        if not isinstance(value, float | int) or value != int(value):
            return f"{name} that is no whole number"
        if name in _WORDS and not 0 <= value < len(_WORDS[name]):
            return f"{name} of an unknown kind"
        if name not in _WORDS and value < 1:
            return f"{name} below 1"
    if row.get("padding") == 0 and row["kernel_size"] > row["input_size"]:
        return "a kernel larger than its input without padding"
    return None


def _cell(name: str, value: float) -> str:
    if name in TIMES:
        return f"{value:.6g}"
    return _WORDS[name][int(value)] if name in _WORDS else str(int(value))


@click.command()
@click.argument("folder", metavar="RAW_DIR", type=click.Path())
@click.argument("output", metavar="DIR", type=click.Path(path_type=Path))
def main(folder: str, output: Path) -> None:
    """Read RAW_DIR/GPU/run/benchmark_*.pkl and write one CSV per kind of layer into DIR."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; expected a folder, made where it is not there")
    with progress() as shown:
        shown.start("files", raw_files(folder))
        found = import_raw(folder, shown.step)
    for table in found:
        path = output / f"{table.layer}.csv"
        write_bytes(path, table.to_csv().encode())
        click.echo(f"{path}: {len(table.rows):,} of {table.read:,} rows, from {table.files} files")
        for reason, count in table.dropped.items():
            say(f"{table.layer}: {count:,} rows left out: {reason}")


if __name__ == "__main__":
    sys.exit(run(main, None, "importing.py"))

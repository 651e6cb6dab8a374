"""Milliseconds of every choice of a space, as tables and as a file: a look-up table like FBNet's.

`.json` holds all: tables of any positions, the constant, what they are of. `.txt` is what PyTorch
implementations of FBNet read (github.com/AnnaAra/FBNet and those made from it): a line of operations, then
for each layer a line of their microseconds; only for spaces whose layers are independent and have the
same choices, and without what no choice changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.errors import InputError
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.io.documents import AtLeastOne, Count, Number, converted, read_json, to_json
from lolat.io.writing import write_bytes
from lolat.model import Model
from lolat.nas.scorer import Grid
from lolat.nas.space import Position, Space

SCHEMA, VERSION = "lolat-lookup-table", 1
EXPECTED = "expected a .json file that lolat.nas.adapters.lookup_table wrote"
FBNET_NAMES = {
    "k3_e1": "ir_k3_e1", "k3_e1_g2": "ir_k3_s2", "k3_e3": "ir_k3_e3", "k3_e6": "ir_k3_e6",
    "k5_e1": "ir_k5_e1", "k5_e1_g2": "ir_k5_s2", "k5_e3": "ir_k5_e3", "k5_e6": "ir_k5_e6",
}  # fmt: skip
"""FBNet's blocks as implementations with PyTorch call them."""
PER_MS = 1000.0  # microseconds


@dataclass(frozen=True)
class LookUpTable:
    """Latency of a candidate: `constant_ms` plus an entry of each table.

    `tables`: positions -> milliseconds, with an axis for each of them; below `breakpoint_ms` the sum is
    drawn towards it by `slope` (the two-regime formula). Choices of a table that was read are text.
    """

    space: str
    positions: tuple[Position, ...]
    tables: dict[tuple[int, ...], np.ndarray]
    constant_ms: float
    batch_size: int = 1
    predictor: str = "extended"
    device: str = ""
    breakpoint_ms: float = 0.0
    slope: float = 1.0

    def latency(self, candidates: Any) -> np.ndarray:
        """(n,) milliseconds of (n, positions) integers. InputError where a row is no candidate."""
        rows = Grid(tuple(len(p.choices) for p in self.positions)).checked(candidates)
        total = np.full(len(rows), self.constant_ms)
        for positions, table in self.tables.items():
            total += table[tuple(rows[:, p] for p in positions)]
        return np.asarray(self.bend(total, np.where))

    def bend(self, times: Any, where: Callable[[Any, Any, Any], Any]) -> Any:
        """What becomes of sums, an array or a tensor with its `where(condition, yes, no)`."""
        if not self.breakpoint_ms:
            return times
        below = self.breakpoint_ms - self.slope * (self.breakpoint_ms - times)
        return where(times < self.breakpoint_ms, below, times)

    def layers(self) -> list[dict[str, float]]:
        """Milliseconds of each position by choice, where every table is of one position.

        InputError where choices depend on each other.
        """
        together = next((p for p in self.tables if len(p) > 1), None)
        if together is not None:
            names = " and ".join(self.positions[p].name for p in together)
            raise InputError(
                f"space {self.space!r}: what {names} cost depends on each other, which a table by layer "
                "cannot say; write a .json file"
            )
        return [
            dict(zip(map(str, p.choices), map(float, self.tables[i,]), strict=True))
            if (i,) in self.tables
            else dict.fromkeys(map(str, p.choices), 0.0)
            for i, p in enumerate(self.positions)
        ]


def look_up_table(
    space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
) -> LookUpTable:
    """The table of `space` on the device of `model`. InputError as `Space.scorer`.

    A position with one choice has no axis: it changes nothing.
    """
    formula, times = space.tables_ms(model, batch_size, predictor)
    constant = formula.constant
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for positions, table in times:
        chosen = tuple(p for p in positions if len(space.positions[p].choices) > 1)
        table = table.reshape([len(space.positions[p].choices) for p in chosen])
        if chosen:
            tables[chosen] = tables[chosen] + table if chosen in tables else table
        else:
            constant += float(table)
    bend = (formula.breakpoint, formula.slope) if isinstance(formula, TwoRegime) else ()
    return LookUpTable(
        space.name, space.positions, tables, constant, batch_size, formula.name, model.name,
        *bend,
    )  # fmt: skip


def write(path: str | Path, table: LookUpTable, names: Mapping[str, str] | None = None) -> None:
    """Write the file in one step, as JSON or, where `path` ends in .txt, as FBNet's text.

    `names`: what the text calls the choices; of the space fbnet FBNET_NAMES unless given. InputError
    where the text cannot hold the table, or the file cannot be written.
    """
    if names is None:
        names = FBNET_NAMES if table.space == "fbnet" else {}
    is_text = Path(path).suffix == ".txt"
    write_bytes(path, (_text(table, names) if is_text else _json(table)).encode())


def _json(table: LookUpTable) -> str:
    fields = {k: v for k, v in vars(table).items() if k not in ("positions", "tables")}
    positions = [{"name": p.name, "choices": list(map(str, p.choices))} for p in table.positions]
    tables = [{"positions": list(p), "ms": t.tolist()} for p, t in table.tables.items()]
    head = {"schema": SCHEMA, "version": VERSION, **fields}
    return to_json({**head, "positions": positions, "tables": tables})


def _text(table: LookUpTable, names: Mapping[str, str]) -> str:
    layers = table.layers()
    first = table.positions[0]
    other = next((p for p in table.positions if p.choices != first.choices), None)
    if other is not None:
        raise InputError(
            f"space {table.space!r}: {other.name!r} has other choices than {first.name!r}, which FBNet's "
            "text cannot say; write a .json file"
        )
    if table.breakpoint_ms:
        raise InputError(
            "the two-regime formula is no sum below its breakpoint, which FBNet's text cannot say; "
            "take predictor='extended', or write a .json file"
        )
    called = [names.get(c, c) for c in layers[0]]
    split = next((c for c in called if len(c.split()) != 1), None)
    if split is not None:
        raise InputError(
            f"choice {split!r} is not one word, which FBNet's text cannot say; give another in `names`"
        )
    lines = [" ".join(repr(PER_MS * ms) for ms in layer.values()) for layer in layers]
    return "\n".join([" ".join(called), *lines])


def read_layers(path: str | Path) -> list[dict[str, float]]:
    """Milliseconds of each layer by operation, from FBNet's text. InputError names the wrong line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").strip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; expected a look-up table") from None
    names = lines[0].split()
    if not names or len(lines) < 2:
        raise InputError(
            f"{path} has no layers; expected a line of operations, then for each layer a line of their "
            "microseconds"
        )
    layers = []
    for number, line in enumerate(lines[1:], 2):
        try:
            times = [float(word) / PER_MS for word in line.split()]
        except ValueError:
            times = []
        if len(times) != len(names) or not all(map(math.isfinite, times)):
            raise InputError(
                f"{path}, line {number}: {line[:60]!r}; expected {len(names)} numbers, one for each of "
                f"{' '.join(names)}"
            )
        layers.append(dict(zip(names, times, strict=True)))
    return layers


class _Position(msgspec.Struct):
    name: str
    choices: list[str]


class _Table(msgspec.Struct):
    positions: list[Count]
    ms: list[Any]  # as deep as there are positions


class _Document(msgspec.Struct):
    """What the JSON file holds, besides `schema` and `version`."""

    space: str
    positions: list[_Position]
    tables: list[_Table]
    constant_ms: Number
    batch_size: AtLeastOne
    predictor: str
    device: str
    breakpoint_ms: Number
    slope: Number


def read(path: str | Path) -> LookUpTable:
    """The table that `write` put into a .json file. InputError says what is wrong with it."""
    document = read_json(path, EXPECTED)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a look-up table; {EXPECTED}")
    if document.get("version") != VERSION:
        raise InputError(
            f"{path} is of version {document.get('version')!r}; this LoLat reads {VERSION}"
        )
    converted(document, _Document, str(path))
    fields = {name: document[name] for name in _Document.__struct_fields__}
    positions = tuple(Position(p["name"], tuple(p["choices"])) for p in document["positions"])
    tables = {}
    for entry in document["tables"]:
        try:
            times = np.asarray(entry["ms"], float)
            shape = tuple(len(positions[p].choices) for p in entry["positions"])
        except (TypeError, ValueError, IndexError):
            times, shape = np.empty(0), (-1,)
        if times.shape != shape or not np.isfinite(times).all():
            raise InputError(
                f"{path} is damaged: the table of the positions {entry['positions']} is not of finite "
                f"numbers, one for each of their choices; {EXPECTED}"
            )
        tables[tuple(entry["positions"])] = times
    return LookUpTable(**{**fields, "positions": positions, "tables": tables})

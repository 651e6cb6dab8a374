"""Milliseconds of every choice of a space as a file: a look-up table like FBNet's.

`.json` holds all: tables of any positions, the constant, what they are of. `.txt` is what PyTorch
implementations of FBNet read (github.com/AnnaAra/FBNet and those made from it): a line of operations, then
for each layer a line of their microseconds; only for spaces whose layers are independent and have the
same choices, and without what no choice changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas.adapters.common import milliseconds
from lolat.nas.fewshot.file import write_text
from lolat.nas.grid import Grid
from lolat.nas.space import Space

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

    `positions`: (name, choices as text) of each; `tables`: positions -> milliseconds, with an axis for
    each of them; below `breakpoint_ms` the sum is drawn towards it by `slope` (the two-regime formula).
    """

    space: str
    positions: tuple[tuple[str, tuple[str, ...]], ...]
    tables: dict[tuple[int, ...], np.ndarray]
    constant_ms: float
    batch_size: int = 1
    predictor: str = "extended"
    device: str = ""
    breakpoint_ms: float = 0.0
    slope: float = 1.0

    def latency(self, candidates: Any) -> np.ndarray:
        """(n,) milliseconds of (n, positions) integers. InputError where a row is no candidate."""
        rows = Grid(tuple(len(choices) for _, choices in self.positions)).checked(candidates)
        found = np.full(len(rows), self.constant_ms)
        for positions, table in self.tables.items():
            found += table[tuple(rows[:, p] for p in positions)]
        below = self.breakpoint_ms - self.slope * (self.breakpoint_ms - found)
        return np.where(found < self.breakpoint_ms, below, found)

    def layers(self) -> list[dict[str, float]]:
        """Milliseconds of each position by choice, where every table is of one position.

        InputError where choices depend on each other.
        """
        together = next((p for p in self.tables if len(p) > 1), None)
        if together is not None:
            names = " and ".join(self.positions[p][0] for p in together)
            raise InputError(
                f"space {self.space!r}: what {names} cost depends on each other, which a table by layer "
                "cannot say; write a .json file"
            )
        zero = [np.zeros(len(choices)) for _, choices in self.positions]
        return [
            dict(zip(choices, map(float, self.tables.get((i,), zero[i])), strict=True))
            for i, (_, choices) in enumerate(self.positions)
        ]


def look_up_table(
    space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
) -> LookUpTable:
    """The table of `space` on the device of `model`. InputError as `Space.scorer`."""
    times = milliseconds(space, model, batch_size, predictor)
    positions = tuple((p.name, tuple(map(str, p.choices))) for p in space.positions)
    formula = times.formula.to_dict()
    return LookUpTable(
        space.name, positions, times.tables, times.constant, batch_size, times.formula.name,
        model.name, formula.get("breakpoint_ms", 0.0), formula.get("slope", 1.0),
    )  # fmt: skip


def write(path: str | Path, table: LookUpTable, names: Mapping[str, str] | None = None) -> None:
    """Write the file in one step, as JSON or, where `path` ends in .txt, as FBNet's text.

    `names`: what the text calls the choices; of the space fbnet FBNET_NAMES unless given. InputError
    where the text cannot hold the table, or the file cannot be written.
    """
    if names is None:
        names = FBNET_NAMES if table.space == "fbnet" else {}
    is_text = Path(path).suffix == ".txt"
    write_text(path, _text(table, names) if is_text else _json(table))


def _json(table: LookUpTable) -> str:
    """One line for each table, so that the file can be read."""
    document = {
        "schema": SCHEMA, "version": VERSION, "space": table.space, "device": table.device,
        "predictor": table.predictor, "batch_size": table.batch_size,
        "constant_ms": table.constant_ms, "breakpoint_ms": table.breakpoint_ms, "slope": table.slope,
        "positions": [{"name": n, "choices": list(c)} for n, c in table.positions],
    }  # fmt: skip
    head = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in document.items()]
    rows = [
        f"  {json.dumps({'positions': list(p), 'ms': t.tolist()})}" for p, t in table.tables.items()
    ]
    return "{\n" + ",\n".join([*head, ' "tables": [\n' + ",\n".join(rows) + "\n ]"]) + "\n}\n"


def _text(table: LookUpTable, names: Mapping[str, str]) -> str:
    layers = table.layers()
    choices = table.positions[0][1]
    other = next((name for name, c in table.positions if c != choices), None)
    if other is not None:
        raise InputError(
            f"space {table.space!r}: {other!r} has other choices than {table.positions[0][0]!r}, which "
            "FBNet's text cannot say; write a .json file"
        )
    if table.breakpoint_ms:
        raise InputError(
            "the two-regime formula is no sum below its breakpoint, which FBNet's text cannot say; "
            "take predictor='extended', or write a .json file"
        )
    called = [names.get(c, c) for c in choices]
    split = next((c for c in called if len(c.split()) != 1), None)
    if split is not None:
        raise InputError(
            f"choice {split!r} is not one word, which FBNet's text cannot say; give another in `names`"
        )
    lines = [" ".join(repr(PER_MS * layer[c]) for c in choices) for layer in layers]
    return "\n".join([" ".join(called), *lines])


def read_layers(path: str | Path) -> list[dict[str, float]]:
    """Milliseconds of each layer by operation, from FBNet's text. InputError names the wrong line."""
    lines = _read(path).strip("\n").split("\n")
    names = lines[0].split()
    expected = "expected a line of operations, then for each layer a line of their microseconds"
    if not names or len(lines) < 2:
        raise InputError(f"{path} has no layers; {expected}")
    found = []
    for number, line in enumerate(lines[1:], 2):
        numbers = [_number(word) for word in line.split()]
        if len(numbers) != len(names) or any(n is None for n in numbers):
            raise InputError(
                f"{path}, line {number}: {line[:60]!r}; expected {len(names)} numbers, one for each of "
                f"{' '.join(names)}"
            )
        found.append({n: float(v or 0) / PER_MS for n, v in zip(names, numbers, strict=True)})
    return found


def read(path: str | Path) -> LookUpTable:
    """The table that `write` put into a .json file. InputError says what is wrong with it."""
    try:
        document = json.loads(_read(path))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); {EXPECTED}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a look-up table; {EXPECTED}")
    if document.get("version") != VERSION:
        raise InputError(
            f"{path} is of version {document.get('version')!r}; this LoLat reads {VERSION}"
        )
    try:
        return _table(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path} is damaged ({said}); {EXPECTED}") from None


def _table(document: Mapping[str, Any]) -> LookUpTable:
    positions = tuple(
        (str(p["name"]), tuple(map(str, p["choices"]))) for p in document["positions"]
    )
    tables = {}
    for entry in document["tables"]:
        times = np.asarray(entry["ms"], float)
        shape = tuple(len(positions[p][1]) for p in entry["positions"])
        if times.shape != shape or not np.isfinite(times).all():
            raise ValueError(
                f"a table of positions {entry['positions']} has the shape {times.shape}; expected "
                f"finite numbers of shape {shape}"
            )
        tables[tuple(entry["positions"])] = times
    fields = ("constant_ms", "breakpoint_ms", "slope")
    constant, breakpoint, slope = (float(document[f]) for f in fields)
    return LookUpTable(
        str(document["space"]), positions, tables, constant, int(document["batch_size"]),
        str(document["predictor"]), str(document["device"]), breakpoint, slope,
    )  # fmt: skip


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise InputError(f"cannot read {path}: {said}; expected a look-up table") from None


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None

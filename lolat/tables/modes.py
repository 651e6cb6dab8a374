"""The execution mode of a table's row, and the mode in the name of a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lolat.graph.modes import COMPILED, DEFAULT_MODE, DTYPES, EAGER, FLOAT32, Mode
from lolat.io.tables import Row
from lolat.parameters import LAUNCHES

MODE_COLUMNS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "dtype": ("dtype", DTYPES),
    "precision": ("dtype", DTYPES),
    "launch": ("launch", {launch: launch for launch in LAUNCHES}),
    "compiled": ("launch", {"yes": COMPILED, "no": EAGER, "true": COMPILED, "false": EAGER}),
    "channels_last": ("channels_last", {"yes": True, "no": False, "true": True, "false": False}),
    "pass": ("training", {"inference": False, "training": True}),
}
"""Column of a table -> (the field of Mode that it sets, word in a cell -> value of the field)."""


def mode_of_row(row: Row, usual: Mode = DEFAULT_MODE) -> Mode:
    """The mode of a row; a field without a column comes from `usual`. InputError for an unknown word."""
    changes: dict[str, Any] = {}
    for column, (name, choices) in MODE_COLUMNS.items():
        if row.get(column):
            changes[name] = choices[row.choice(column, choices)]
    if "training" not in changes and row.get("optimizer", "none") not in ("", "none"):
        changes["training"] = True  # the optimizer's update is part of a training step
    return replace(usual, **changes)


def mode_of_name(name: str, usual: Mode | None = None) -> Mode:
    """The mode in the name of a table like timm's: infer-amp-nhwc-pt240-...-dynamo.csv.

    `usual`: the mode if the name has none; None for DEFAULT_MODE.
    """
    words = re.split(r"[-.]", name.lower())
    # "mixed" alone may be what a table holds, such as mixed networks.
    dtypes = [DTYPES[w] for w in words if w in DTYPES and w != "mixed"]
    compiled = not {"dynamo", "compile", "compiled", "inductor"}.isdisjoint(words)
    last = not {"nhwc", "channels_last"}.isdisjoint(words)
    if not (dtypes or compiled or last or "nchw" in words):
        return usual or DEFAULT_MODE
    launch = COMPILED if compiled else EAGER
    return Mode(dtypes[0] if dtypes else FLOAT32, launch, last, "train" in words)

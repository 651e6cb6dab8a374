"""The blocks of a prediction as a CSV table."""

from __future__ import annotations

import csv
from pathlib import Path

from lolat.counts import COLUMNS
from lolat.errors import not_written
from lolat.prediction import Prediction
from lolat.units import plain


def write_csv(path: str | Path, prediction: Prediction) -> None:
    """One row per block: name, latency_ms, share, bound_by, counts. InputError if not writable.

    A name that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["name", "latency_ms", "share", "bound_by", *COLUMNS])
            for block in prediction.blocks:
                writer.writerow(
                    [
                        _text(block.name),
                        f"{block.latency_ms:.6g}",
                        f"{block.share:.6g}",
                        block.bound_by,
                        *(block.counts[c] for c in COLUMNS),
                    ]
                )
    except OSError as error:
        raise not_written(path, error, "--csv") from error


def _text(name: str) -> str:
    shown = plain(name)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown

"""The blocks of a prediction as a CSV table."""

from __future__ import annotations

import csv
from pathlib import Path

from lolat.counts import COLUMNS
from lolat.errors import InputError
from lolat.prediction import Prediction


def write_csv(path: str | Path, prediction: Prediction) -> None:
    """One row per block: name, latency_ms, share, bound_by, counts. InputError if not writable."""
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["name", "latency_ms", "share", "bound_by", *COLUMNS])
            for block in prediction.blocks:
                writer.writerow(
                    [
                        block.name,
                        f"{block.latency_ms:.6g}",
                        f"{block.share:.6g}",
                        block.bound_by,
                        *(block.counts[c] for c in COLUMNS),
                    ]
                )
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give --csv elsewhere") from error

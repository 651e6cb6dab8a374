"""Reading the log of a run of transformers' Trainer: trainer_state.json."""

from __future__ import annotations

import json
from pathlib import Path

from lolat.io.paths import reason_of
from lolat.io.tables import Row

SAME_STEP, ROUNDED = 0.1, 0.0005
"""(largest relative difference between the samples of a step by a log and by its row, largest rounding of
the log's steps per second)."""


def logged_rate(row: Row, column: str, folder: Path, samples: int) -> float:
    """Samples per second of all GPUs, from the end of the Trainer's log that a cell names.

    The time of evaluations is left out. transformers 4 writes the planned samples and steps even if the run
    stopped early. `samples`: samples of a step by the row; InputError if the log has another number.
    """
    expected = "expected the trainer_state.json, relative to the table, of a run that ended"
    try:
        state = json.loads((folder / row[column]).read_text("utf-8"))
        history = state["log_history"]
        ends = [i for i, one in enumerate(history) if "train_samples_per_second" in one]
        if not ends:
            why = "the run did not end (no train_samples_per_second)"
            raise row.refused(f"{row[column]}: {why}; {expected}")
        end = ends[-1]
        # The tokens beside them are those of one GPU, of all, or without padding, by version.
        rate = float(history[end]["train_samples_per_second"])
        steps = float(history[end].get("train_steps_per_second", 0.0))
        whole = float(history[end].get("train_runtime", 0.0))
        epochs = float(history[end].get("epoch", 1.0))
        planned = float(state.get("max_steps", 0.0))
        before = max(
            (i for i, one in enumerate(history[:end]) if "train_runtime" in one), default=-1
        )
        since = history[before + 1 : end]
        ran = float(history[end].get("step", planned))
        ran -= float(history[before].get("step", 0.0)) if before >= 0 else 0.0
        evaluating = sum(float(one.get("eval_runtime", 0.0)) for one in since)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "no log of transformers' Trainer"
        raise row.refused(f"{row[column]}: {why}; {expected}") from None
    if steps > 0.0:
        # Steps a second are rounded, and an epoch's last step may be short or dropped.
        known = ROUNDED / steps + epochs / max(steps * whole, 1.0)
        if abs(rate / steps / samples - 1.0) > SAME_STEP + known:
            raise row.refused(
                f"by {row[column]} a step has {rate / steps:.0f} samples, by the row {samples:,}; expected "
                "the batch size of a GPU, the GPUs and the gradient_accumulation of that run"
            )
    counted = steps * whole or planned
    if 0.0 < ran < planned and abs(counted - planned) < abs(counted - ran):
        rate *= ran / planned
    return rate * whole / (whole - evaluating) if whole > evaluating else rate

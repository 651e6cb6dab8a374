"""A probe against networks' times while a machine changes.

    python -m benchmarks run probe
    python -m benchmarks run probe trial=benchmarks/asked/probe-quiet.jsonl.xz

A line of a trial is a moment: the `probe` (`microbench/probe.py` and other kernels beside it) in a new
process, then the `times_ms` of four networks in loops of their own, alone or beside programs (`state`).
LEARNING lines in a row, a minute, stand for a learning; each other one for a moment at which somebody asks.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Errors, Tables, benchmark, percent
from lolat.device.state import LIMIT
from lolat.microbench.probe import waking_ms

LEARNING = 3
TRIAL = Path(__file__).resolve().parent / "asked" / "probe.jsonl.xz"
OPERATIONS = {
    "keras MobileNetV2": 152, "keras ResNet50": 176, "timm resnet18": 68, "timm vit_tiny": 223,
}  # fmt: skip
"""Networks and their operations (`lolat read`)."""


def times(line: dict[str, Any]) -> np.ndarray:
    """The median ms of each network."""
    return np.array([np.median(line["times_ms"][name]) for name in OPERATIONS])


def errors(
    learned: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]]
) -> dict[str, np.ndarray]:
    """Logarithms of the errors of networks' times in a line, estimated from LEARNING others, by method."""
    found: dict[str, list[np.ndarray]] = {}
    for first in range(len(learned) - LEARNING + 1):
        lines = learned[first : first + LEARNING]
        then = np.median([line["probe"]["forks"] for line in lines], axis=0)
        usual = np.median([times(line) for line in lines], axis=0)
        for line in (one for one in asked if one not in lines):
            y = np.log(times(line) / usual)
            longer_ms = waking_ms(then, line["probe"]["forks"]) * np.array([*OPERATIONS.values()])
            ratio = np.maximum(1 + longer_ms / usual, 0.5)
            has_moved = abs(np.median(1 + longer_ms / usual) - 1) > LIMIT
            told = {
                "as learned": 0.0,
                "by half of a fork": np.log(ratio) if has_moved else 0.0,
                "by three other networks": [np.median(np.delete(y, n)) for n in range(len(y))],
            }
            for way, x in told.items():
                found.setdefault(way, []).append(y - x)
    return {way: np.concatenate(e) for way, e in found.items()}


@benchmark("probe", "probe", "extended")
def judged(trial: str = str(TRIAL)) -> Tables:
    """Times of networks against when they were learned, and against what a probe tells."""
    with lzma.open(trial, "rt") as file:
        lines = [json.loads(line) for line in file]
    rows, middle = [], len(lines) // 2
    for half, part in (("first", lines[:middle]), ("second", lines[middle:])):
        alone = [line for line in part if not line["state"]]
        busy = [line for line in part if line["state"]]
        for state, asked in (("alone", alone), ("beside programs", busy)):
            for way, logs in errors(alone, asked).items() if asked else ():
                off, rms = Errors(np.expm1(logs)), f"{math.sqrt((logs**2).mean()):.2f}"
                bias, within = np.median(off.off), np.mean(np.abs(off.off) <= 0.1)
                name = f"{state}, {half} half: {way}"
                rows.append([name, percent(bias), off.median, percent(within), rms])
    columns = ["times", "bias", "median error", "within 10 %", "spread"]
    return {"quiet" if "quiet" in trial else "probe": (columns, rows)}

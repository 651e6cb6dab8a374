"""Several answers at once: networks, batch sizes and devices as one table, one CSV, one JSON object."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lolat.fitting.domain import NEGLIGIBLE_SHARE
from lolat.graph.counts import FEATURES
from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.model.prediction import Prediction
from lolat.report.rows import View, rows, table_lines
from lolat.report.text import BLOCK_HEADER, block_rows, csv_name
from lolat.units import byte_size, digits, plain, shortened

DOMAIN = {True: "inside", False: "OUTSIDE", None: "not known"}  # with the share of the time inside
_OF_TIME = re.compile(r" \([\d.]+ % of its time\)")
"""In a note: differs from answer to answer, and the note would stand there for each."""
SUMMARY = 40  # characters of what is in a block
ASKED = ("network", "device", "batch_size")
HEADER = ("latency_ms", "low_ms", "high_ms", "coverage", "in_domain", "predictor", *FEATURES)


@dataclass(frozen=True)
class Answer:
    """A prediction, and what was asked: the device and the network as they were given."""

    device: str
    network: str
    prediction: Prediction


@dataclass(frozen=True)
class Predictions:
    """Several networks, batch sizes or devices; `failures`: why some could not be read, by network."""

    answers: tuple[Prediction, ...]
    failures: dict[str, str]


def predictions(answers: Sequence[Answer], failures: dict[str, str]) -> Predictions:
    """The JSON answer."""
    return Predictions(tuple(replace(a.prediction, device=a.device) for a in answers), failures)


def totals_table(answers: Sequence[Answer]) -> Iterator[str]:
    """A line each, then the notes, each once and with whose it is where it is not all's.

    The last column says how long a sample takes, over the first line's.
    """
    first = _per_sample_ms(answers[0])
    batches = {answer.prediction.batch_size for answer in answers}
    lines = []
    for answer in answers:
        found = answer.prediction
        interval = " .. ".join(map(digits, found.interval_ms or ()))
        sample_ms = _per_sample_ms(answer)
        lines.append(
            [_name(answer, answers), plain(answer.device), str(found.batch_size),
             digits(found.latency_ms), interval, digits(sample_ms) if len(batches) > 1 else "",
             f"{sample_ms / first:.2f}x" if first else "", _inside(found),
             "" if found.memory is None else byte_size(found.memory.total_bytes)]
        )  # fmt: skip
    coverages = {a.prediction.coverage for a in answers} - {None}
    sure = "".join(f"{100 * (c or 0.0):g} % sure of" for c in coverages)
    header = ["network", "device", "batch", "ms", sure, "ms a sample", "vs. first"]
    header += ["measured domain", "memory"]
    yield from table_lines(header, lines, {0, 1, 7})
    notes: dict[str, list[Answer]] = {}
    for answer in answers:
        for warning in answer.prediction.warnings:
            notes.setdefault(_OF_TIME.sub("", plain(warning)), []).append(answer)
    for note, whose in notes.items():
        who = "" if len(whose) == len(answers) else f" ({', '.join(_whose(whose, answers))})"
        yield f"note{who}: {note}"


def block_columns(
    answers: Sequence[Answer], paths: Sequence[tuple[str, ...]], view: View
) -> Iterator[str]:
    """The blocks of one network with the ms of each answer beside each other; `paths`, `view`: see `rows`.

    Of two answers also the second over the first.
    """
    columns = [rows(answer.prediction, paths, view) for answer in answers]
    ms = [{row.blocks: row.latency_ms for row in column} for column in columns]
    totals = [answer.prediction.latency_ms for answer in answers]
    yield plain(answers[0].prediction.network)
    lines = [
        [row.label, shortened(row.summary)[:SUMMARY], *_side_by_side([m[row.blocks] for m in ms])]
        for row in columns[0]
    ]
    lines.append(["together", "", *_side_by_side(totals)])
    heads = [_head(answer, answers) for answer in answers]
    yield from table_lines(["block", "", *heads, *["ratio"] * (len(heads) == 2)], lines, {0, 1})


def write_answers(path: str | Path, answers: Sequence[Answer]) -> None:
    """A CSV table with a row for each answer; InputError where it cannot be written."""
    lines = []
    for answer in answers:
        found = answer.prediction
        low, high = found.interval_ms or (None, None)
        times = ["" if t is None else f"{t:.6g}" for t in (found.latency_ms, low, high)]
        about = [found.coverage, found.in_domain, found.predictor]
        lines.append([*_asked(answer), *times, *about, *map(found.counts.get, FEATURES)])
    write_text(path, to_csv([*ASKED, *HEADER], lines))


def write_blocks(path: str | Path, answers: Sequence[Answer]) -> None:
    """A CSV table with the blocks of each answer, as `text.write_csv` has them; InputError likewise."""
    lines = ([*_asked(a), *row] for a in answers for row in block_rows(a.prediction))
    write_text(path, to_csv([*ASKED, *BLOCK_HEADER], lines))


def _asked(answer: Answer) -> list[Any]:
    """The cells of ASKED."""
    given = csv_name(answer.network), csv_name(answer.device)
    return [*given, answer.prediction.batch_size]


def _inside(prediction: Prediction) -> str:
    if prediction.host_bound:
        return "host-bound"
    share = prediction.inside_share
    if share is None or share > 1.0 - NEGLIGIBLE_SHARE:
        return DOMAIN[prediction.in_domain]
    where = "mostly" if prediction.in_domain else DOMAIN[False]
    return f"{where}, {math.floor(100 * share)} %"


def _per_sample_ms(answer: Answer) -> float:
    return answer.prediction.latency_ms / answer.prediction.batch_size


def _name(answer: Answer, answers: Sequence[Answer]) -> str:
    """The network's name; as it was given where another has the same."""
    name = answer.prediction.network
    same = {a.network for a in answers if a.prediction.network == name}
    return plain(name if len(same) == 1 else answer.network)


def _whose(some: Sequence[Answer], answers: Sequence[Answer]) -> list[str]:
    """Names for some of the answers: networks, with the device where it is not all of a network's."""
    names = []
    for network in dict.fromkeys(a.network for a in some):
        own = [a for a in some if a.network == network]
        name = _name(own[0], answers)
        whole = len(own) == sum(a.network == network for a in answers)
        devices = dict.fromkeys(plain(a.device) for a in own)
        names += [name] if whole else [f"{name} on {device}" for device in devices]
    return names


def _head(answer: Answer, answers: Sequence[Answer]) -> str:
    """What tells an answer from the others of its network: the device, the batch size or both."""
    devices = len({a.device for a in answers}) > 1
    batches = len({a.prediction.batch_size for a in answers}) > 1
    parts = [plain(answer.device)] * devices
    return " ".join([*parts, *[f"batch {answer.prediction.batch_size}"] * (batches or not devices)])


def _side_by_side(times_ms: Sequence[float]) -> list[str]:
    found = [digits(t) for t in times_ms]
    if len(times_ms) == 2:
        found.append(f"{times_ms[1] / times_ms[0]:.2f}x" if times_ms[0] else "")
    return found

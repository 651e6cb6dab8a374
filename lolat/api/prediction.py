"""Predictions that print themselves, one and several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lolat.device import prediction
from lolat.device.prediction import CALL
from lolat.errors import LolatError
from lolat.io.results import Result
from lolat.io.writing import write_text
from lolat.units import milliseconds, plural


class Prediction(prediction.Prediction):
    """A prediction that prints itself; its fields: see `lolat.device.prediction.Prediction`."""

    def folded(self, depth: int) -> Prediction:
        """The prediction with a block for each module, so many names deep; 0: one of all."""
        from lolat.report.rows import rows

        named = [(r.label, [*r.blocks]) for r in rows(self, depth) if r.label != CALL]
        names = [self.names[i[0]] if len(i) == 1 else label for label, i in named]
        counts, terms = (
            np.array([table[members].sum(axis=0) for _, members in named])
            for table in (self.block_counts, self.block_terms)
        )
        return replace(self, names=tuple(names), block_counts=counts, block_terms=terms)

    def report(self) -> str:
        """The table of blocks with the bottlenecks, as `lolat report` prints it."""
        from lolat.report.prediction import report_lines

        return "\n".join(report_lines(self))

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write `block_rows` as a CSV table. Raises InputError where the file cannot be written."""
        from lolat.report.tables import write_csv

        write_csv(path, self.block_rows())

    def write_html(self, path: str | os.PathLike[str], depth: int | None = None) -> None:
        """Write a page to explore the blocks, at first `folded`: one file that loads nothing.

        Raises InputError where it cannot be written.
        """
        from lolat.report.bottlenecks import page

        write_text(path, page(self, depth))


@dataclass(frozen=True, repr=False)
class Predictions(Result):
    """Predictions of several networks, batch sizes or devices: a sequence of them.

    `failures`: why a network could not be read, by network; `left_out`: why a device could not answer, by
    its name.
    """

    KEYS = ("answers", "failures", "left_out")

    answers: tuple[Prediction, ...]
    errors: Mapping[str, LolatError] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> dict[str, str]:
        """Why a network could not be read, by network."""
        return {network: str(error) for network, error in self.errors.items()}

    def __getitem__(self, index: int) -> Prediction:
        return self.answers[index]

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def is_one(self) -> bool:
        """Whether one prediction is the whole answer."""
        return len(self.answers) == 1 and not self.errors

    def words(self) -> str:
        """How many there are, and the shortest and the longest time."""
        times = sorted(p.latency_ms for p in self.answers)
        ends = f": {milliseconds(times[0])} to {milliseconds(times[-1])}" if times else ""
        lost = "".join(f"; {name} could not be read: {why}" for name, why in self.failures.items())
        return f"{plural(len(times), 'prediction')}{ends}{lost}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each prediction: see `Prediction.rows`."""
        return [row for p in self.answers for row in p.rows()]

"""A report: a prediction with its bottlenecks, to print, to write as a page or as a table."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, replace
from typing import Any

from lolat.api import Model
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.io.results import Result
from lolat.io.writing import write_text
from lolat.model.attribution import AtSize
from lolat.model.prediction import Prediction
from lolat.report.rows import View, bottleneck_sentence, familiar, module_paths
from lolat.report.text import print_report, write_csv


@dataclass(frozen=True, repr=False)
class Report(Result):
    """A prediction of `graph` by `model`; the rest as asked for. `at_size`: see `explain_network`."""

    model: Model
    graph: Graph
    prediction: Prediction
    network: str
    input_size: tuple[int, ...] = ()
    predictor: str | None = None
    coverage: float | None = None
    at_size: AtSize | None = None

    def again(self, model: Model, batch_size: int) -> Report:
        """The same question to another model, or of another batch size; the network is not read again."""
        found = model.predict(self.graph, batch_size, self.predictor, self.coverage)
        return replace(self, model=model, prediction=found)

    def words(self) -> str:
        """The prediction, and where its time goes."""
        return f"{self.prediction.words()}\n{bottleneck_sentence(self.prediction)}"

    def to_dict(self) -> dict[str, Any]:
        """The prediction as plain data: the answer of `report --json`."""
        return self.prediction.to_dict()

    def rows(self) -> list[dict[str, Any]]:
        """A row for each block, as the prediction has them."""
        return self.prediction.rows()

    def show(self, view: View | None = None) -> None:
        """Print the table of blocks and what it says; `view`: which rows, columns and order."""
        asked = self.model.given, self.network, self.input_size
        if view is None or view == View():
            print_report(self.model, self.prediction, *asked)
            return
        print_report(self.model, self.prediction, *asked, view, self.paths(), familiar(self.graph))

    def paths(self) -> list[tuple[str, ...]]:
        """For each block but the call, the modules that it is in; see `lolat.report.rows`."""
        return module_paths(self.graph, cut(self.graph))

    def __str__(self) -> str:
        """What `show` prints."""
        with contextlib.redirect_stdout(io.StringIO()) as text:
            self.show()
        return text.getvalue()

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a row for each block. Raises InputError where the file cannot be written."""
        write_csv(os.fspath(path), self.prediction)

    def write_html(self, path: str | os.PathLike[str], against: Report | None = None) -> None:
        """Write the page, alone or beside another report, of the same batch size and predictor.

        The page is one file that loads nothing. Raises InputError where it cannot be written.
        """
        from lolat.report.bottlenecks import Side, command_of, page

        sides = [
            Side(
                r.model, r.graph, r.paths(), r.model.given, r.network,
                command_of(r.network, r.input_size), r.at_size,
            )
            for r in (self, against) if r is not None
        ]  # fmt: skip
        size = self.prediction.batch_size
        write_text(os.fspath(path), page(sides, size, self.predictor, self.coverage))

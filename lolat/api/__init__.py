"""What `import lolat` offers: a device's model and its answers; the command line asks the same.

Importing it loads no framework; what an answer needs is imported when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, overload

from lolat import model as core
from lolat.errors import InputError

if TYPE_CHECKING:
    from lolat.api.measuring import Diagnosis, Evaluation, TableEvaluation
    from lolat.api.report import Report
    from lolat.api.training import TrainingAnswer
    from lolat.graph import Graph
    from lolat.model.attribution import AtSize, Explanation
    from lolat.model.budget import BudgetAnswer
    from lolat.model.prediction import Prediction
    from lolat.model.state import State
    from lolat.training.cost import Plan

InputSize = int | Sequence[int] | None
"""Height = width of the input, or its shape without the batch; None: the network's own."""


class Model(core.Model):
    """What is known of a device: it predicts, explains and plans for networks of any framework.

    A network is a Keras model, a `torch.nn.Module` (or a pair of one and inputs to call it with), a path
    to a `.keras`, `.onnx` or `.pt2` file, an ONNX `ModelProto`, a name such as "keras:ResNet50" or
    "timm:resnet50", or a `Graph`. All times are in milliseconds where their names end in `_ms`, in seconds
    where they end in `_s`. What cannot be answered raises a `LolatError` that says how to mend it.
    """

    @overload
    def predict(
        self, network: Any, batch_size: int = 1, predictor: str | None = None,
        coverage: float | None = None, *, input_size: InputSize = None,
        state: State | str | os.PathLike[str] | None = None,
    ) -> Prediction: ...  # fmt: skip

    @overload
    def predict(
        self, network: Any, batch_size: Sequence[int], predictor: str | None = None,
        coverage: float | None = None, *, input_size: InputSize = None,
        state: State | str | os.PathLike[str] | None = None,
    ) -> list[Prediction]: ...  # fmt: skip

    def predict(
        self,
        network: Any,
        batch_size: int | Sequence[int] = 1,
        predictor: str | None = None,
        coverage: float | None = None,
        *,
        input_size: InputSize = None,
        state: State | str | os.PathLike[str] | None = None,
    ) -> Prediction | list[Prediction]:
        """How long one forward pass of a network takes, block by block.

        `network`: see the class. `batch_size`: samples in one pass; a list of them gives a list of
        predictions, for which the network is read once. `predictor`: "extended" or "two-regime", the
        model's default if None. `coverage`: how sure the interval is, above 0 and below 1; 0.9 if None.
        `input_size`: height = width, or the shape without the batch. `state`: of the machine, as `doctor`
        found it, or the file that `lolat doctor --json` wrote; then the interval is narrower.

        Returns a `Prediction`: latency_ms, interval_ms, in_domain, blocks and more. Raises NetworkError
        where the network cannot be read, InputError for a size, predictor or coverage that cannot be.
        """
        formula = self.predictor(predictor)
        if coverage is not None:  # found out before a framework starts
            from lolat.fitting.intervals import interval_width

            interval_width(self.document["predictors"][formula.name], coverage)
        known = _state(state)
        graph = self._graph(network, input_size)
        several = isinstance(batch_size, Sequence)
        sizes = batch_size if isinstance(batch_size, Sequence) else [batch_size]
        found = [super(Model, self).predict(graph, n, predictor, coverage) for n in sizes]
        if isinstance(network, (str, os.PathLike)):
            found = [_named(p, os.fspath(network), input_size) for p in found]
        if known is not None:
            found = [p.under(known) for p in found]
        return found if several else found[0]

    def report(
        self,
        network: Any,
        batch_size: int = 1,
        predictor: str | None = None,
        coverage: float | None = None,
        *,
        input_size: InputSize = None,
    ) -> Report:
        """The prediction with its bottlenecks, to print, to save as a page or as a table.

        Takes and raises what `predict` does. Returns a `Report`: `print(report)` shows it block by block,
        `report.write_html("page.html")` and `report.write_csv("blocks.csv")` write it.
        """
        from lolat.api.report import Report
        from lolat.readers import as_sizes

        graph = self._graph(network, input_size)
        prediction = self.predict(graph, batch_size, predictor, coverage)
        if not isinstance(network, (str, os.PathLike)):
            return Report(self, graph, prediction, graph.name)
        name, size = os.fspath(network), as_sizes(input_size)
        return Report(self, graph, _named(prediction, name, size), name, size)

    def explain(
        self,
        network: Any,
        batch_size: int = 1,
        predictor: str | None = None,
        *,
        input_size: InputSize = None,
        block: str | None = None,
    ) -> Explanation:
        """Which milliseconds come from what, and what a change of the network would save.

        `block`: the label of one block, which is then explained operation by operation. The rest is as
        for `predict`. Returns an `Explanation`. Raises InputError where there is no such block.
        """
        from lolat.model.attribution import explain_block, explain_network

        self.predictor(predictor)
        graph = self._graph(network, input_size)
        if block is not None:
            return explain_block(self, graph, block, batch_size, predictor)
        return explain_network(self, graph, batch_size, predictor, _at_size(network))

    def budget(
        self,
        network: Any,
        max_ms: float,
        vary: str,
        batch_size: int = 1,
        predictor: str | None = None,
        coverage: float | None = None,
        *,
        sure: bool = False,
        input_size: InputSize = None,
    ) -> BudgetAnswer:
        """The widest, largest or most of a network that stays within a time.

        `max_ms`: the time, ms. `vary`: "width" (channel counts), "resolution" (pixels of the input) or
        "batch" (samples at once). `sure`: the upper end of the interval must stay within the time, not
        the latency alone. The rest is as for `predict`. Returns a `BudgetAnswer`, whose `best.value` is the
        answer. Raises AnswerIsNo where not even the smallest stays within the time.
        """
        from lolat.model.budget import Question, check_budget

        check_budget(max_ms)
        self.predictor(predictor)
        graph = self._graph(network, input_size)
        asked = Question(
            self, graph, max_ms, batch_size, predictor, coverage, sure, _at_size(network)
        )
        return asked.answer(vary)

    def _graph(self, network: Any, input_size: InputSize) -> Graph:
        """The network read; an analysis is one that was."""
        from lolat.graph.analysis import Analysis
        from lolat.readers import read

        return network.graph if isinstance(network, Analysis) else read(network, input_size)


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model of a device.

    `path`: a JSON file, "local" (the one learned last on this machine) or a name of `lolat.models()`.
    Returns a `Model`. Raises ModelFileError where there is none, or the file is something else or damaged.
    """
    return core.load_as(Model, path)


def _state(state: State | str | os.PathLike[str] | None) -> State | None:
    """The state that is given, read where it is a file."""
    if isinstance(state, (str, os.PathLike)):
        from lolat.model.state import read_state

        return read_state(state)
    return state


def network_option(network: str, input_size: InputSize) -> str:
    """How the advice to measure a network names it on the command line."""
    from lolat.readers import as_size

    size = as_size(input_size)
    return f"--for {quote(network)}" + (f" --input-size {','.join(map(str, size))}" if size else "")


def _named(prediction: Prediction, network: str, input_size: InputSize) -> Prediction:
    """The prediction with its advice as a command that can be copied."""
    from lolat.fitting.domain import FOR_NETWORK

    option = network_option(network, input_size)
    named = tuple(w.replace(FOR_NETWORK, option) for w in prediction.warnings)
    return replace(prediction, warnings=named)


def _at_size(network: Any) -> AtSize | None:
    """Reads a network again at another resolution; None for what has one only."""
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis
    from lolat.readers import read

    if isinstance(network, (Graph, Analysis, tuple)):
        return None
    return lambda side: read(network, (side,))

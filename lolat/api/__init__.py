"""What `import lolat` offers: a device's model and its answers; the command line asks the same.

Importing it loads no framework; what an answer needs is imported when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from lolat import model as core
from lolat.io.results import Result, dict_of

if TYPE_CHECKING:
    from lolat.api.measuring import Diagnosis, Evaluation, TableEvaluation
    from lolat.api.report import Report
    from lolat.graph import Graph
    from lolat.io.progress import Progress
    from lolat.model.attribution import AtSize, Explanation
    from lolat.model.budget import BudgetAnswer
    from lolat.model.prediction import Prediction
    from lolat.training.cost import Cost

InputSize = int | Sequence[int] | None
"""Height = width of the input, or its shape without the batch; None: the network's own."""


class Model(core.Model, Result):
    """What is known of a device: it predicts, explains and plans for networks of any framework.

    A network is a Keras model, a `torch.nn.Module` (or a pair of one and inputs to call it with), a path
    to a `.keras` or `.onnx` file, an ONNX `ModelProto`, a name such as "keras:ResNet50" or
    "timm:resnet50", or a `Graph`. All times are in milliseconds where their names end in `_ms`, in seconds
    where they end in `_s`. What cannot be answered raises a `LolatError` that says how to mend it.
    `given`: the path or name that it was loaded by.
    """

    def __init__(self, document: Mapping[str, Any], source: str = "model") -> None:
        """`document`: a valid model file's contents; `source`: where it is from, for messages."""
        super().__init__(document, source)

    def words(self) -> str:
        """The device, when and with what it was learned, and how far off its default formula is."""
        from lolat.api.summary import errors_of
        from lolat.model.file import knows
        from lolat.report.device import headline
        from lolat.units import percent

        if not self.predictors:
            return f"{headline(self)}\nknows {', '.join(knows(self.document))}"
        errors = errors_of(self.document, self.default)
        told = f"by default {self.default}"
        if {"median", "points"} <= errors.keys():
            told += f": median error {percent(errors['median'])} on {errors['points']:,} points"
        return f"{headline(self)}\n{told}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each predictor: its name, whether it is the default, its errors where left out."""
        from lolat.api.summary import errors_of

        return [
            {"predictor": name, "default": name == self.default, **errors_of(self.document, name)}
            for name in self.predictors
        ]

    def to_dict(self) -> dict[str, Any]:
        """What the file says of its device, without its points: a `lolat.api.summary.ModelSummary`."""
        from lolat.api.summary import summary_of

        return dict_of(summary_of(self))

    @overload
    def predict(
        self, network: Any, batch_size: int = 1, predictor: str | None = None,
        coverage: float | None = None, *, input_size: InputSize = None,
    ) -> Prediction: ...  # fmt: skip

    @overload
    def predict(
        self, network: Any, batch_size: Sequence[int], predictor: str | None = None,
        coverage: float | None = None, *, input_size: InputSize = None,
    ) -> list[Prediction]: ...  # fmt: skip

    def predict(
        self,
        network: Any,
        batch_size: int | Sequence[int] = 1,
        predictor: str | None = None,
        coverage: float | None = None,
        *,
        input_size: InputSize = None,
    ) -> Prediction | list[Prediction]:
        """How long one forward pass of a network takes, block by block.

        `network`: see the class. `batch_size`: samples in one pass; a list of them gives a list of
        predictions, for which the network is read once. `predictor`: "extended" or "two-regime", the
        model's default if None. `coverage`: how sure the interval is, above 0 and below 1; 0.9 if None.
        `input_size`: height = width, or the shape without the batch.

        Returns a `Prediction`: latency_ms, interval_ms, in_domain, blocks and more. Raises NetworkError
        where the network cannot be read, InputError for a size, predictor or coverage that cannot be.
        """
        self.check(predictor, coverage)
        graph = self._graph(network, input_size)
        several = isinstance(batch_size, Sequence)
        sizes = batch_size if isinstance(batch_size, Sequence) else [batch_size]
        found = [core.Model.predict(self, graph, n, predictor, coverage) for n in sizes]
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
        from lolat.readers import as_size

        self.check(predictor, coverage)
        graph = self._graph(network, input_size)
        found = self.predict(graph, batch_size, predictor, coverage)
        if not isinstance(network, (str, os.PathLike)):
            return Report(self, graph, found, graph.name, (), predictor, coverage)
        name, size, again = os.fspath(network), as_size(input_size), _at_size(network)
        return Report(self, graph, found, name, size, predictor, coverage, again)

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
        self.check(predictor, coverage)
        graph = self._graph(network, input_size)
        asked = Question(
            self, graph, max_ms, batch_size, predictor, coverage, sure, _at_size(network)
        )
        return asked.answer(vary)

    def cost(
        self,
        network: Any,
        batch_size: int,
        samples: int | None = None,
        epochs: int = 1,
        optimizer: str = "sgd",
        coverage: float | None = None,
        *,
        replicas: int | Sequence[int] = 1,
        strategy: str = "ring",
        link_gbps: float | None = None,
        input_ms_per_sample: float = 0.0,
        validation_samples: int | None = None,
        memory_gib: float | None = None,
        price_per_hour: float | None = None,
        prices: str | None = None,
        accelerator: str | None = None,
        input_size: InputSize = None,
    ) -> Cost:
        """How long training takes on each number of devices in `replicas`, its memory and its dollars.

        `batch_size`: samples of an iteration on each device. `samples`: in the data set; None: iterations
        alone. `optimizer`: sgd, momentum, rmsprop, adagrad, adam or adadelta. Several devices exchange
        gradients by `strategy` (ring, tree, one-to-all or mirrored) over links of `link_gbps` Gbit/s, if
        None as such devices usually are linked. `input_ms_per_sample`: of the input pipeline beside
        training. `validation_samples`: evaluated after each epoch. `memory_gib`: of each device.
        `price_per_hour`: US$ for one device; else the price in `prices` (a CSV file in the layout of
        SkyPilot's catalog; None: the list of `lolat prices`) of `accelerator`, the model's device if
        None.

        Returns a `Cost`, whose `options` have times, and dollars where there is a price. If no training was
        measured it is an estimate from latencies, which its warnings say. Raises ModelFileError if the
        model knows neither, and InputError for what cannot be.
        """
        from lolat.fitting.intervals import COVERAGE
        from lolat.training.cost import cost
        from lolat.training.file import training_of
        from lolat.training.model import TrainingRun

        run = TrainingRun(
            batch_size, samples, epochs, optimizer, COVERAGE if coverage is None else coverage,
            validation_samples, strategy, input_ms_per_sample,
        )  # fmt: skip
        return cost(
            training_of(self.document, self.source), network, run,
            [replicas] if isinstance(replicas, int) else replicas, link_gbps=link_gbps,
            price_per_hour=price_per_hour, prices=prices, accelerator=accelerator, memory_gib=memory_gib,
            input_size=input_size,
        )  # fmt: skip

    def evaluate(
        self,
        networks: Sequence[str] = (),
        batch_size: int | Sequence[int] = (),
        *,
        input_size: InputSize = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Measure networks on this machine and compare them with what the model predicts: some minutes.

        `networks`: names, files or "package.module:callable", as the model's framework runs them; ten of
        keras.applications if none. `batch_size`: one or several; 1 and 4 if none. `progress`: is told how
        far it is (start, step, note). Returns an `Evaluation`. Raises MissingPackageError where the
        framework is not installed, InputError where the model is not of this kind of device.
        """
        from lolat.api.measuring import evaluate
        from lolat.readers import as_size

        sizes = [batch_size] if isinstance(batch_size, int) else batch_size
        return evaluate(self, self.given, networks, sizes, as_size(input_size), progress)

    def evaluate_table(
        self,
        table: str | os.PathLike[str],
        *,
        only: str | Collection[str] | None = None,
        predictor: str | None = None,
        training: bool = False,
    ) -> TableEvaluation:
        """Compare with the times of networks or operations in a CSV table; nothing is measured.

        `only`: rows of this device (or devices). `training`: its training steps. Returns a
        `TableEvaluation`.
        Raises InputError where no row can be predicted.
        """
        from lolat.api.measuring import evaluate_table

        return evaluate_table(self, os.fspath(table), only, predictor, training)

    def doctor(self, *, progress: Progress | None = None) -> Diagnosis:
        """Measure some of the model's own networks again, within 20 seconds: does it still hold here?

        Returns a `Diagnosis`: `holds`, and the `ratio` of now to then. Raises what `evaluate` does.
        """
        from lolat.api.measuring import doctor

        return doctor(self, progress)

    def check(self, predictor: str | None, coverage: float | None) -> None:
        """InputError for what the model cannot answer, before a framework starts to read a network."""
        formula = self.predictor(predictor)
        if coverage is not None:
            from lolat.fitting.intervals import interval_width

            interval_width(self.document["predictors"][formula.name], coverage)

    def _graph(self, network: Any, input_size: InputSize) -> Graph:
        """The network read; an analysis is one that was."""
        from lolat.graph import Graph
        from lolat.graph.analysis import Analysis

        if isinstance(network, (Graph, Analysis)):
            return network if isinstance(network, Graph) else network.graph
        from lolat.readers import read

        return read(network, input_size)


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model of a device.

    `path`: a JSON file, "local" (the one learned last on this machine) or a name of `lolat.models()`.
    Returns a `Model`. Raises ModelFileError where there is none, or the file is something else or damaged.
    """
    model = core.load_as(Model, path)
    model.given = os.fspath(path)
    return model


def _at_size(network: Any) -> AtSize | None:
    """Reads a network again at another resolution; None for what has one only."""
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis
    from lolat.readers import read

    if isinstance(network, (Graph, Analysis, tuple)):
        return None
    return lambda side: read(network, (side,))

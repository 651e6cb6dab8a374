"""The interface to a device: latencies, explanations, training, language models, measuring."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack, overload

from lolat.device.device import Device
from lolat.device.file import OF_LANGUAGE_MODELS
from lolat.device.question import (
    BudgetQuestion,
    ExplainQuestion,
    LatencyOptions,
    LatencyQuestion,
    Question,
    RunAs,
    TableQuestion,
    each_batch,
    is_one,
    several,
)  # fmt: skip
from lolat.errors import AnswerIsNo, InputError, arg
from lolat.graph import Graph
from lolat.io.progress import Progress
from lolat.llm.question import ServingQuestion
from lolat.parameters import BEST, EVALUATED_BATCHES, LENGTH, SIZE, asks, with_length
from lolat.training.question import TrainingQuestion

if TYPE_CHECKING:
    from lolat.api.doctor import Diagnosis
    from lolat.api.measuring import Evaluation
    from lolat.api.predicting import Predictions
    from lolat.api.table_evaluation import TableEvaluation
    from lolat.device.attribution import Explanation, Explanations
    from lolat.device.budget import BudgetAnswer, BudgetAnswers
    from lolat.device.prediction import Prediction
    from lolat.graph.analysis import Analysis
    from lolat.io.paths import AnyPath
    from lolat.llm.answer import ServingAnswer
    from lolat.llm.gpu import ServingSection
    from lolat.parameters import InputSize
    from lolat.training.compare import Costs
    from lolat.training.cost import Cost

KEPT_ANSWERS = 1000  # answers of `llm`


class Model(Device):
    """A device's profile: it predicts, explains and plans for networks of any framework.

    A network is a Keras model, a `torch.nn.Module` (or a pair of a module and inputs to call it with), a
    path to a `.keras` or `.onnx` file, an ONNX `ModelProto`, a name such as "keras:ResNet50",
    "timm:resnet50" or "package.module:callable", or a `Graph`. `label`: the path or name that the profile
    was loaded by, as a command takes it; `source`: its file; `serving`: returns the profile for language
    models of this name, or None.
    """

    serving: Callable[[], Model] | None = None

    def report(self, *network: Any, **asked: Any) -> str:
        """The lines of `lolat show`. InputError if a network is given: its prediction has a report."""
        if network or asked:
            raise InputError(
                "report takes no network; expected that of a prediction: model.predict(network).report()",
                code="report",
            )
        return super().report()

    # ---- The latency of a network

    @overload
    def predict(
        self, network: Any, batch_size: int | str = 1, predictor: str | None = None,
        coverage: float | None = None, **more: Unpack[LatencyOptions],
    ) -> Prediction: ...  # fmt: skip

    @overload
    def predict(
        self, network: Any, batch_size: Sequence[int | str], *args: Any, **more: Any
    ) -> Predictions: ...

    @asks(LatencyQuestion)  # type: ignore[misc] # as `cost`
    def predict(self, network: Any, asked: LatencyQuestion) -> Prediction | Predictions:
        """Predict the latency of one forward pass of a network, block by block.

        `network`: see `Model`. `batch_size`: "auto" is the largest batch that fits in memory and keeps
        `max_ms`, or 1 if no batch keeps it. A list of networks or of batch sizes gives `Predictions`, one
        for each; each network is read once. A dict {"narrow": network} names networks. `predictor`: one of
        the profile's `predictors`. If too few points were measured for an interval, `interval_ms` is None,
        and giving `coverage` is an error. `precision`, `launch`, `host_us`, `channels_last`: see `run_as`;
        `precision` "best" is the fastest. `max_ms`: only with batch size "auto"; for other sizes compare
        latency_ms. `sure`: True if the upper end of the interval must keep `max_ms`, or the interval's
        coverage in percent.

        Returns a `Prediction`: latency_ms, interval_ms, in_domain, blocks and more; `report()` has the
        table of blocks. Raises NetworkError if the network cannot be read (with several networks the reason
        is in `failures`), InputError for an impossible batch size, predictor, coverage or precision. The
        arguments are the options of `lolat predict`:
        """
        from lolat.api.predicting import ask

        return ask(network, asked, [asked.device(self)])

    @overload
    def explain(
        self, network: Any, batch_size: int = 1, *args: Any, **more: Any
    ) -> Explanation: ...

    @overload
    def explain(
        self, network: Any, batch_size: Sequence[int], *args: Any, **more: Any
    ) -> Explanations: ...

    @asks(ExplainQuestion)  # type: ignore[misc] # as `cost`
    def explain(self, network: Any, asked: ExplainQuestion) -> Explanation | Explanations:
        """Break a latency down into its causes, and predict what changes to the network would save.

        `block`: the label of one block. `precision`: "best" is the fastest. Returns an `Explanation`, or
        `Explanations` for a list of batch sizes. Raises InputError if there is no such block. The other
        arguments are as for `predict`:
        """
        from lolat.device.attribution import Explanations, explain
        from lolat.device.fastest import in_fastest
        from lolat.device.prediction import at_size

        if not is_one(asked.batch_size):
            each = (self.explain(network, **vars(one)) for one in each_batch(asked))
            return Explanations(tuple(each))
        model = asked.device(self)
        question = Question(asked.batch_size, asked.predictor, input_size=asked.input_size)
        graph = model._read(network, question)
        best = in_fastest(model, graph, question) if asked.precision == BEST else None
        device = best.query.device if best else model
        explanation = explain(device, graph, question, at_size(network), asked.block)
        prediction = explanation.prediction.named(network, asked.input_size)
        return replace(explanation, prediction=prediction)

    @overload
    def budget(
        self, network: Any, max_ms: float, vary: str, batch_size: int = 1, *args: Any, **more: Any
    ) -> BudgetAnswer: ...

    @overload
    def budget(
        self, network: Any, max_ms: float, vary: str, batch_size: Sequence[int], *args: Any, **more: Any
    ) -> BudgetAnswers: ...  # fmt: skip

    @asks(BudgetQuestion)  # type: ignore[misc] # as `cost`
    def budget(self, network: Any, asked: BudgetQuestion) -> BudgetAnswer | BudgetAnswers:
        """Find the largest width, input or batch of a network that keeps a time limit.

        `max_ms`: the time limit in ms. `vary`: "width" (channel counts), "resolution" (pixels of the input)
        or "batch" (samples at once). `sure`: True if the upper end of the interval must keep the limit, or
        the interval's coverage in percent. `precision`: "best" is the precision with the largest answer.
        Returns a `BudgetAnswer`, whose `best.value` is the answer, or `BudgetAnswers` for a list of batch
        sizes. Raises AnswerIsNo if not even the smallest value keeps the limit. The other arguments are as
        for `predict`:
        """
        from lolat.device.budget import BudgetAnswers, budget
        from lolat.device.prediction import at_size, titled
        from lolat.graph.analysis import analyze

        if not is_one(asked.batch_size):
            answers = []
            for one in each_batch(asked):
                try:
                    answers.append(self.budget(network, **vars(one)))
                except AnswerIsNo as no:
                    size = f"{arg('batch_size')} {one.batch_size}"
                    raise no.reworded(f"{size}: {no.message}") from None
            return BudgetAnswers(tuple(answers))
        model = asked.device(self)
        question = Question(
            asked.batch_size, asked.predictor, asked.coverage, input_size=asked.input_size,
            max_ms=asked.max_ms, sure=asked.sure,
        )  # fmt: skip
        graph = titled(analyze(model._read(network, question)).graph, network)
        return budget(model, graph, asked.vary, question, at_size(network), asked.precision)

    # ---- Training

    @overload
    def cost(
        self, network: Any, batch_size: int | str | None = None, *args: Any, **more: Any
    ) -> Cost: ...

    @overload
    def cost(
        self, network: Any, batch_size: Sequence[int | str], *args: Any, **more: Any
    ) -> Costs: ...

    @asks(TrainingQuestion)  # type: ignore[misc] # mypy does not know its argument `network` by name
    def cost(self, network: Any, asked: TrainingQuestion) -> Cost | Costs:
        """Predict time, memory and dollars of training, for each number of devices in `replicas`.

        `network`: a network, or the config.json of a decoder as for `llm`, with `input_size` tokens in a
        sequence. `batch_size`: samples on each device; "auto" (default): the smallest sure one within 2 %
        of the best speed. `precision`: "best" is the fastest of fp32, tf32 and amp, in both image layouts;
        it is the default for a network on a GPU's name ("a100"), which in a given half precision takes the
        faster layout. Other profiles ("a100-fp32", a file) answer as measured.

        Returns a `Cost`, or `Costs` for several batch sizes or ways of `checkpointing`. If no training was
        measured, the answer is an estimate from latencies and a warning says so. Raises ModelFileError if
        the profile has neither training nor latencies, and InputError for an impossible question. The other
        arguments are the options of `lolat cost`:
        """
        from lolat.training.compare import costs_of

        return costs_of(self, network, asked)

    # ---- Language models

    @cached_property
    def _known_answers(self) -> dict[Any, ServingAnswer]:
        """A cache of the last answers of `llm`."""
        return {}

    @cached_property
    def _llm_profile(self) -> Model:
        """The profile that answers `llm`: this one, or its GPU's if this one has no language models."""
        return self.serving() if self.serving and self.file.llm is None else self

    @asks(ServingQuestion)
    def llm(self, config: Any, asked: ServingQuestion) -> ServingAnswer:
        """Predict the latency of a language model served on GPUs, and the cost of a million tokens.

        `config`: a published config.json (its path, folder or contents), or a known name. Raises InputError
        for an impossible question, AnswerIsNo if no row keeps the limits, ModelFileError for a profile
        without language models. The other arguments are the options of `lolat llm`:
        """
        from lolat.hardware.hardware import Hardware
        from lolat.hardware.prices import no_price
        from lolat.hardware.rental import given_list, rental_of
        from lolat.llm.answering import answer
        from lolat.llm.names import find_decoder

        if self.asked != RunAs():
            raise InputError(
                "run_as: a served language model runs as its framework runs it; expected the profile of "
                "lolat.load, and dtype, kv_dtype for data types", code="run-as",
            )  # fmt: skip
        # The last answers stay: a loop that asks again has them in microseconds.
        listed = given_list(asked.price_per_hour, asked.prices)
        key = find_decoder(config), replace(asked, prices=listed)
        if key not in self._known_answers:
            if len(self._known_answers) >= KEPT_ANSWERS:
                self._known_answers.clear()
            served = self._llm_profile
            device, section = served.file.product, served.language_models
            # A price list knows GPUs of one name by their memory, as A100-80GB.
            card = Hardware(f"{device}-{section.sheet.memory_gib:.0f}gb")
            rental = rental_of(card, asked.price_per_hour, listed)
            named = no_price(device, listed), served.label, served.profile
            self._known_answers[key] = answer(section, device, *key, rental, *named)
        return self._known_answers[key]

    @cached_property
    def language_models(self) -> ServingSection:
        """The file's section on language models; ModelFileError, with the command to add it, if missing."""
        from lolat.llm.gpu import section_of

        if self.file.llm is None:
            from lolat.device.remedies import lacking_error

            raise lacking_error(self.file, self.source, OF_LANGUAGE_MODELS)
        return section_of(self.file.llm, self.source)

    # ---- Measuring on this machine

    def evaluate(
        self,
        networks: str | Sequence[str] = (),
        batch_size: int | Sequence[int] = EVALUATED_BATCHES,
        *,
        input_size: InputSize = None,
        sequence_length: int | None = None,
        wait: bool = False,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Measure networks on this machine and compare them with the profile's predictions: some minutes.

        `networks`: a name, file or "package.module:callable", or several, that the profile's framework can
        run; without networks ten of keras.applications. `batch_size`: one or several. `wait`: wait for a
        calm moment, ten minutes at most. `progress`: gets stages, steps and notes.

        Returns an `Evaluation`. Raises MissingPackageError if the framework is not installed, InputError if
        the profile is not of this kind of device.
        """
        from lolat.api.measuring import evaluate

        sizes = several(batch_size)
        size = with_length({SIZE: input_size, LENGTH: sequence_length})[SIZE]
        return evaluate(self, several(networks), sizes, size, wait, progress or Progress())

    @asks(TableQuestion)
    def evaluate_table(
        self, table: AnyPath | Sequence[AnyPath], asked: TableQuestion
    ) -> TableEvaluation:
        """Compare predictions with the times in one table or several, as `lolat.fit` takes them.

        Nothing is measured. `on_progress`: called after each network is counted with (number done, number
        of all, name). Returns a `TableEvaluation`. Raises InputError if no row can be predicted. The
        arguments are the options of `lolat evaluate`:
        """
        from lolat.api.table_evaluation import evaluate_table

        return evaluate_table(self, [*map(os.fspath, several(table))], asked)

    def doctor(self, *, progress: Progress | None = None) -> Diagnosis:
        """Measure some of the profile's networks again (20 s), to check whether it still holds here.

        Returns a `Diagnosis`: `holds`, and the `ratio` of current to learned time. Raises what `evaluate`
        does.
        """
        from lolat.api.doctor import doctor

        return doctor(self, progress or Progress())

    def as_now(self, *, progress: Progress | None = None) -> Model:
        """Measure some of the profile's networks again (20 s), and scale the profile to the current speed.

        Returns a `Model` whose latencies are scaled by the median change of these networks' times; its
        intervals are wider the more the changes differ. Raises what `doctor` does, and InputError on
        another machine.
        """
        from lolat.api.doctor import as_now

        return as_now(self, progress or Progress())

    # ---- Reading

    def _read(self, network: Any, question: Question) -> Graph | Analysis:
        """Check the question against the profile, then read the network."""
        from lolat.api.predicting import read_network

        question.check(self)
        return read_network(network, question.input_size)

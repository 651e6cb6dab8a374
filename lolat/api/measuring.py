"""What measures on this machine and compares with a model: networks, a table's times, the model's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.devices.compare import (
    Compared,
    compare_operations,
    compare_table,
    mode_of,
    predictions,
    summary,
)
from lolat.devices.tables import columns_of, is_of_operations, read_networks, read_operations
from lolat.errors import InputError
from lolat.fitting.points import Point
from lolat.io.progress import Progress, Silent, Warn
from lolat.io.results import Result, plain_data
from lolat.model import Model
from lolat.readers.many import Said
from lolat.units import percent, plain, plural
from microbench import backends, environment
from microbench import doctor as again
from microbench import evaluate as measuring

EXAMPLES = {
    "torch": (" of torchvision", "torchvision.models:resnet50 --input-size 224"),
    "onnxruntime": ("", "network.onnx"),
}
"""Backend without networks of its own -> whose they may be, and how one is given."""


@dataclass(frozen=True, repr=False)
class Measured(Result):
    """What was measured: `answer` is what the command prints with --json."""

    answer: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The answer."""
        return dict(self.answer)


class Evaluation(Measured):
    """Networks measured and compared: `answer` is what `evaluate --json` prints."""

    @property
    def median_error(self) -> float:
        """Relative: 0.05 is 5 %."""
        return float(self.answer["summary"]["median"])

    def words(self) -> str:
        """How far off the predictions are at the median."""
        networks = plural(len(self.answer["networks"]), "network")
        device = plain(self.answer["device"])
        return f"{networks} measured on {device}: median error {percent(self.median_error)}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each network: measured and predicted ms, the error, the interval."""
        told = (
            "network",
            "batch_size",
            "measured_ms",
            "predicted_ms",
            "error",
            "inside",
            "in_domain",
        )
        return [{name: r[name] for name in told} for r in self.answer["networks"]]


@dataclass(frozen=True, repr=False)
class TableEvaluation(Result):
    """A table's times compared; `what`: "networks" or "operations"; `skipped`: reason -> rows left out."""

    what: str
    compared: list[Compared]
    skipped: Mapping[str, int]
    columns: list[str]

    @property
    def summary(self) -> dict[str, Any]:
        """Of all rows: errors, and how many are inside their intervals."""
        found: dict[str, Any] = summary(self.compared, self.what)
        return found

    def words(self) -> str:
        """How far off the predictions are at the median."""
        return f"{len(self.compared)} {self.what}: median error {percent(self.summary['median'])}"

    def to_dict(self) -> dict[str, Any]:
        """The answer of `evaluate --table --json`."""
        return {self.what: self.rows(), "summary": self.summary, "skipped": dict(self.skipped)}

    def rows(self) -> list[dict[str, Any]]:
        """Each row as it stands in the table, with latency_ms, predicted_ms and interval_ms."""
        told = ("latency_ms", "predicted_ms", "interval_ms")
        return [
            {**c.row, **{name: plain_data(getattr(c, name)) for name in told}}
            for c in self.compared
        ]

    def to_csv(self) -> str:
        """The table's rows with predicted_ms, low_ms, high_ms."""
        return predictions(self.compared, self.columns)


class Diagnosis(Measured):
    """Whether a model still holds: `answer` is what `doctor --json` prints."""

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return bool(self.answer["verdict"] == again.OK)

    @property
    def ratio(self) -> float | None:
        """New over learned time of the networks, the median; None where nothing was measured."""
        found: float | None = self.answer["ratio"]
        return found

    def words(self) -> str:
        """The verdict, and how much longer networks take than when it was learned."""
        times = "" if self.ratio is None else f": {self.ratio:.2f} times as long as learned"
        return f"{plain(self.answer['model'])}: {self.answer['verdict']}{times}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each network measured again: learned_ms, now_ms, ratio."""
        return [dict(network) for network in self.answer["networks"]]


def evaluate(
    model: Model,
    name: str,
    networks: Sequence[str] = (),
    batch_sizes: Sequence[int] = (),
    input_size: tuple[int, ...] = (),
    progress: Progress | None = None,
    warn: Warn = lambda remark: None,
) -> Evaluation:
    """Measure networks on this machine, and compare them with what `model` predicts; see `Model.evaluate`.

    `name`: how messages call the model.
    """
    where = model.inference["environment"]
    backend, device = backends.of_model(where), device_of(where)
    check_networks(networks, backend, name)
    here = environment.here(where, device)
    known: tuple[environment.Difference, ...] = ()
    if device == "cpu":  # known before measuring; what a GPU is called, the backend says
        known = environment.differences_of_device(model.device, where, here)
        if known and where.get("device") not in ("cpu", "gpu"):  # fitted to times of others
            raise InputError(
                f"{name} is of {model.device}, which this machine is not, so measuring here says nothing "
                f"of it; compare it with times from there: lolat evaluate {name} --table TIMES.csv"
            )
        _tell(warn, known, "" if known else environment.unsaid(where))
    sizes = batch_sizes or measuring.DEFAULT_BATCH_SIZES
    points = [Point.from_dict(p) for p in model.inference["points"]]
    wanted = measuring.cases(networks or measuring.DEFAULT_NETWORKS, sizes, input_size)
    run = measuring.measure_cases(backend, device, wanted, points, progress or Silent())
    now = environment.differences(model.device, where, here | run.environment)
    _tell(warn, [d for d in now if d not in known])
    ratio = again.median_ratio(run.again)
    result = measuring.compare(model, run.measured, run.failures, ratio)
    return Evaluation({**result, "noise": run.noise})


def evaluate_table(
    model: Model,
    table: str,
    only: str | Collection[str] | None = None,
    predictor: str | None = None,
    training: bool = False,
    said: Said | None = None,
) -> TableEvaluation:
    """Compare with the times in a table; nothing is measured. See `Model.evaluate_table`.

    `said`: is told of each network that is counted: (done, all, name).
    """
    columns = columns_of(table)
    if is_of_operations(columns):
        found = compare_operations(model, read_operations(table), predictor)
        return TableEvaluation("operations", found, {}, columns)
    networks = read_networks(table, only, mode=mode_of(model))
    found = compare_table(model, networks, predictor, training or None, said=said)
    return TableEvaluation("networks", found, networks.skipped, columns)


def doctor(model: Model, progress: Progress | None = None) -> Diagnosis:
    """Whether `model` still holds on this machine; see `Model.doctor`."""
    return Diagnosis(again.diagnose(model, examined(model, progress)))


def examined(model: Model, progress: Progress | None = None) -> again.Examination:
    """What measuring networks of a model again finds; LolatError where that cannot be done."""
    where = model.inference["environment"]
    backend = backends.of_model(where)
    backends.check(backend)
    points = [Point.from_dict(p) for p in model.inference["points"]]
    shown = progress or Silent()
    return again.examine(points, model.device, where, backend, device_of(where), shown)


def check_networks(networks: Sequence[str], backend: str, model: str) -> None:
    """InputError where none is given, and there are none for the backend of the model."""
    name = backend.partition("+")[0]
    if not networks and name in EXAMPLES:
        whose, given = EXAMPLES[name]
        raise InputError(
            f"{model} was learned with {name}, for which no networks come with LoLat; give some, for "
            f"example{whose}: lolat evaluate {model} {given}"
        )


def device_of(where: Mapping[str, Any]) -> str:
    """cpu or gpu: what a model was measured on; cpu where it does not say."""
    return "gpu" if where.get("device") == "gpu" else "cpu"


def _tell(warn: Warn, found: Iterable[object], unsaid: str = "") -> None:
    """Say where the device, versions, threads or flags are not those of the model, or not known."""
    for remark in [*map(str, found), *[unsaid] * bool(unsaid)]:
        warn(f"warning: {remark}")

"""What measures on this machine and compares with a model: networks, a table's times, the model's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, UnsetType, convert

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
from lolat.io.results import Result, dict_of, plain_data
from lolat.model import Model
from lolat.model.state import write_check
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


@dataclass(frozen=True)
class EvaluatedNetwork:
    """A network measured, beside the prediction as `predict` gives it."""

    network: str
    input_size: tuple[int, ...]
    batch_size: int
    measured_ms: float
    spread: float | None
    predicted_ms: float
    error: float
    coverage: float | None
    interval_ms: tuple[float, float] | None
    interval_width: float | None
    inside: bool | None
    in_domain: bool | None


@dataclass(frozen=True)
class IntervalsKept:
    """How many times were inside their intervals, and between which shares the true one lies."""

    coverage: float
    inside: int
    of: int
    bounds: tuple[float, float]
    certainty: float
    median_width: float


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """Networks measured on this machine and compared with the model; `failures`: what could not be.

    `summary`: relative errors (0.05 is 5 %) as `predict` answers, and how it ranks; `ratio`: how many times
    as long as learned the model's own networks took meanwhile, the median, None where it has none;
    `ratio_taken_out`: the errors of predictions times that ratio; `limit`: how far the ratio may be from 1.
    `verdict`: good, fair or poor; `cause`: of an error that is not good, one of machine (which moved beyond
    the limit), domain, noise, level (of the machine, within the limit), formula, unknown.
    """

    model: str
    device: str
    predictor: str
    ratio: float | None
    limit: float
    ratio_taken_out: Mapping[str, float | None] | None
    verdict: Literal["good", "fair", "poor"]
    cause: Literal["machine", "domain", "noise", "level", "formula", "unknown"] | None
    networks: tuple[EvaluatedNetwork, ...]
    summary: Mapping[str, float | None]
    inside_interval: int
    intervals: IntervalsKept | None
    noise_floor: float | None
    failures: Mapping[str, str]
    noise: Mapping[str, Any]

    @property
    def median_error(self) -> float:
        """Relative: 0.05 is 5 %."""
        return float(self.summary["median"] or 0.0)

    def words(self) -> str:
        """How far off the predictions are at the median, and what that is from."""
        from lolat.report.evaluation import verdict

        networks = plural(len(self.networks), "network")
        device = plain(self.device)
        words = f"{networks} measured on {device}: median error {percent(self.median_error)}"
        return f"{words}\n{verdict(self.to_dict())}"

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
        return [{name: row[name] for name in told} for row in plain_data(self.networks)]


@dataclass(frozen=True, repr=False)
class TableEvaluation(Result):
    """A table's times compared; `what`: "networks" or "operations"; `skipped`: reason -> rows left out.

    In JSON `networks` or `operations` are the rows as they stand in the table, with latency_ms,
    predicted_ms and interval_ms; `summary` has relative errors, and how many rows there are.
    """

    KEYS = ("networks", "operations", "summary", "skipped")

    what: str
    compared: list[Compared]
    skipped: Mapping[str, int]
    columns: list[str]

    @property
    def summary(self) -> dict[str, float]:
        """Of all rows: errors, and how many are inside their intervals."""
        found: dict[str, float] = summary(self.compared, self.what)
        return found

    @property
    def networks(self) -> list[dict[str, Any]] | UnsetType:
        """The rows of a table of networks."""
        return self.rows() if self.what == "networks" else UNSET

    @property
    def operations(self) -> list[dict[str, Any]] | UnsetType:
        """The rows of a table of operations."""
        return self.rows() if self.what == "operations" else UNSET

    def words(self) -> str:
        """How far off the predictions are at the median."""
        return f"{len(self.compared)} {self.what}: median error {percent(self.summary['median'])}"

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


@dataclass(frozen=True)
class NetworkAgain:
    """A network of the model measured again; `ratio`: new over learned time."""

    name: str
    batch_size: int
    learned_ms: float
    now_ms: float
    ratio: float


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """Whether a model still holds: `verdict` is ok, drifted, another machine or unsettled.

    `measured`: what the networks alone say; `ratio`: new over learned time, the median over the networks;
    the model holds where it is within `limit` of 1: 10 %, or what the model's own repeated measurements
    differ by where that is more. `differences`: from when it was learned.
    """

    model: str
    device: str
    verdict: str
    ratio: float | None
    measured: str | None
    spread: tuple[float, float] | None
    limit: float
    networks: tuple[NetworkAgain, ...]
    unrest: float | None
    seconds: float
    starting_seconds: float
    differences: tuple[environment.Difference, ...]
    failures: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.verdict == again.OK

    def words(self) -> str:
        """The verdict, and how much longer networks take than when it was learned."""
        times = "" if self.ratio is None else f": {self.ratio:.2f} times as long as learned"
        return f"{plain(self.model)}: {self.verdict}{times}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each network measured again: learned_ms, now_ms, ratio."""
        return [dict_of(network) for network in self.networks]


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
                f"of it; compare it with times from there: `lolat evaluate {name} --table TIMES.csv`",
                code="other-device",
            )
        _tell(warn, known, "" if known else environment.unsaid(where))
    sizes = batch_sizes or measuring.DEFAULT_BATCH_SIZES
    points = [Point.from_dict(p) for p in model.inference["points"]]
    wanted = measuring.cases(networks or measuring.DEFAULT_NETWORKS, sizes, input_size)
    run = measuring.measure_cases(backend, device, wanted, points, progress or Silent())
    now = environment.differences(model.device, where, here | run.environment)
    _tell(warn, [d for d in now if d not in known])
    ratio = again.median_ratio(run.again)
    other = environment.differences_of_device(model.device, where, here | run.environment)
    if ratio is not None and not other:
        _keep(model, "evaluate", ratio)
    result = measuring.compare(model, run.measured, run.failures, ratio)
    return convert({**result, "noise": run.noise}, Evaluation)


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
    found = convert(again.diagnose(model, examined(model, progress)), Diagnosis)
    if found.ratio is not None:  # else it is of another device, and this one says nothing of it
        _keep(model, "doctor", found.ratio)
    return found


def _keep(model: Model, by: Literal["doctor", "evaluate"], ratio: float) -> None:
    """Write the state of the machine beside the model, and have the model's next answers say it."""
    write_check(model.document, model.source, by, ratio)
    model.__dict__.pop("knowledge", None)


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

"""Measures networks on this machine and compares them with a profile's predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lolat.device.file import UNKNOWN
from lolat.device.remedies import bundled_of
from lolat.device.state import limit_of, write_check
from lolat.errors import InputError, MeasuringError, ModelFileError, arg
from lolat.fitting.cross_validation import IntervalsKept, figures, intervals
from lolat.hardware.environment_section import ANY_GPU
from lolat.hardware.gpus import CPU
from lolat.io.progress import Progress
from lolat.io.results import Result
from lolat.microbench import backends, check, environment, learn
from lolat.microbench import runner as runners
from lolat.parameters import EVALUATED_BATCHES, InputSize, check_given
from lolat.readers.size import as_size
from lolat.tables.blocks import points_of
from lolat.units import deviation, percent, plain, plural

if TYPE_CHECKING:
    from lolat.api.model import Model

DEFAULT_NETWORKS = (
    "keras:ResNet50", "keras:MobileNetV2", "keras:EfficientNetB0", "keras:DenseNet121",
    "keras:InceptionV3", "keras:VGG16", "keras:NASNetMobile", "keras:Xception",
    "keras:MobileNetV3Large", "keras:ResNet101V2",
)  # fmt: skip
"""Ten architectures that learning does not measure as whole networks; it measures blocks of four."""
GOOD, FAIR = 0.08, 0.15  # median errors up to which a profile is good, and fair
UNSETTLED: Literal["unsettled"] = "unsettled"
UNSTEADY = 1.0 + FAIR
"""Above this ratio of a network's median round to its fastest, its error says nothing about the profile."""
TAKEN_OUT = ("median", "bias", "within_10_percent")


@dataclass(frozen=True)
class EvaluatedNetwork:
    """A measured network and its prediction by `predict`.

    `unrest`: ratio of its median round to its fastest round; other programs make it large.
    """

    network: str
    input_size: tuple[int, ...]
    batch_size: int
    measured_ms: float
    spread: float | None
    unrest: float
    predicted_ms: float
    error: float
    coverage: float | None
    interval_ms: tuple[float, float] | None
    interval_width: float | None
    inside: bool | None
    in_domain: bool | None

    @property
    def is_unsteady(self) -> bool:
        """True if its rounds differ too much to judge the prediction."""
        return self.unrest > UNSTEADY


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """Networks measured on this machine and compared with the profile.

    `failures`: network -> reason why it could not be measured. `summary`: relative errors (0.05 is 5 %) and
    rank correlation. `ratio`: median of measured / learned time of the profile's own networks, measured in
    between; None if it has none. `ratio_taken_out`: the errors after predictions are multiplied by `ratio`.
    `limit`: how far `ratio` may be from 1. `verdict`: good (a median error up to 8 %), fair (up to 15 %),
    poor, or unsettled (above 8 % on the profile's own machine while it is busy or unsteady). `cause`:
    machine, domain, level, noise or formula (docs/how-to/measure.md). `differences`: between this machine
    and the profile's.
    """

    KEYS = (
        "model", "device", "predictor", "ratio", "limit", "ratio_taken_out", "verdict", "cause", "networks",
        "summary", "intervals", "noise_floor", "failures", "noise", "differences",
    )  # fmt: skip

    model: str
    device: str
    predictor: str
    ratio: float | None
    limit: float
    ratio_taken_out: Mapping[str, float | None] | None
    networks: tuple[EvaluatedNetwork, ...]
    summary: Mapping[str, float | None]
    intervals: IntervalsKept | None
    noise_floor: float | None
    failures: Mapping[str, str]
    noise: Mapping[str, Any]
    differences: tuple[environment.Difference, ...] = ()

    @property
    def median_error(self) -> float:
        """The median relative error: 0.05 is 5 %."""
        return float(self.summary["median"] or 0.0)

    @property
    def verdict(self) -> Literal["good", "fair", "poor", "unsettled"]:
        """The verdict on the predictions, by their median error."""
        error = self.median_error
        if error > GOOD and self.unrest and not self.differences:
            return UNSETTLED
        return "good" if error <= GOOD else "fair" if error <= FAIR else "poor"

    @property
    def has_moved(self) -> bool:
        """True if the machine's speed is another than learned, by more than the limit."""
        return self.ratio is not None and deviation(self.ratio) > self.limit

    @property
    def unrest(self) -> list[str]:
        """The signs that the machine is busy or unsteady, in words; [] on a calm one."""
        unsteady = [n for n in self.networks if n.is_unsteady]
        signs = [*learn.unrest(self.noise)]
        if 2 * len(unsteady) >= len(self.networks):  # fewer do not decide the median
            worst = max(unsteady, key=attrgetter("unrest"))
            signs.append(
                f"{plain(worst.network)} usually took {worst.unrest:.1f} times its fastest round"
            )
        return signs

    @property
    def cause(self) -> Literal["machine", "domain", "noise", "level", "formula"] | None:
        """The cause of the median error; None if the verdict is good."""
        if self.verdict == "good":
            return None
        if self.has_moved or self.verdict == UNSETTLED:
            return "machine"
        if sum(n.in_domain is False for n in self.networks) > len(self.networks) / 2:
            return "domain"
        if self.ratio_taken_out and (self.ratio_taken_out["median"] or 0.0) <= GOOD:
            return "level"
        return "noise" if (self.noise_floor or 0.0) > self.median_error / 2 else "formula"

    def words(self) -> str:
        """The median error of the predictions, and its cause."""
        from lolat.report.evaluation import verdict

        networks = plural(len(self.networks), "network")
        device = plain(self.device)
        words = f"{networks} measured on {device}: median error {percent(self.median_error)}"
        return f"{words}\n{verdict(self)}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each network: measured and predicted ms, the error, the interval."""
        columns = (
            "network", "batch_size", "measured_ms", "predicted_ms", "error", "inside", "in_domain"
        )  # fmt: skip
        return [{name: getattr(row, name) for name in columns} for row in self.networks]


# ---- Networks measured against predicted


def evaluate(
    model: Model,
    networks: Sequence[str],
    batch_sizes: Sequence[int],
    input_size: InputSize,
    wait: bool,
    progress: Progress,
) -> Evaluation:
    """Measure networks on this machine, and compare them with the predictions: see `Model.evaluate`."""
    check_given(wait=wait)
    name = model.label
    learned, where = model.latencies_file.environment, model.latencies_file.recorded
    backend, device = backends.backend_of(where), device_of(model)
    if not networks and not backend.startswith("tensorflow"):
        raise InputError(
            f"no networks come with LoLat for {backend}, which {name} was learned with; give some, such as "
            "torchvision:resnet50 or network.onnx"
        )
    here = environment.here(where, device)
    other = environment.differences_of_device(model.device, where, here)
    # A profile that is not learned was fitted to the times of others.
    if not learned.is_learned and other:
        of = f"is of {model.device}, which this machine is not"
        if model.file.product == UNKNOWN:
            of = f"does not say of which device its times are (`lolat fit` with {arg('name')} does)"
        raise InputError(
            f"{name} {of}, so measuring here tells nothing; "
            f"compare it with times from there: `lolat evaluate {name} --table TIMES.csv`",
            code="other-device",
        )
    for difference in other if device == CPU else ():  # before minutes are spent
        progress.note(f"warning: {difference}; {_advice_here(model, here)}")
    # Read before a framework is started.
    wanted = check.read_cases(
        backend, networks or DEFAULT_NETWORKS, batch_sizes or EVALUATED_BATCHES, as_size(input_size)
    )
    references = check.references_of(points_of(model.latencies_file.document), backend)
    remark = None if wait else learn.busy(here | {"others_at_start": environment.other_programs()})
    with runners.Runner(backend, device, progress) as runner:
        if wait:
            learn.wait_until_calm(progress)
        elif remark:
            progress.note(remark)
        found = environment.differences(model.device, where, here | runner.environment)
        for difference in found:
            if device != CPU or difference not in other:
                progress.note(f"warning: {difference}")
        measured = check.measure(runner, backend, wanted, references)
    ratio = check.median_ratio(measured.again)
    result = replace(compared(model, measured, ratio), differences=other)
    if ratio is not None and not any(d.of_device for d in found):
        write_state(model, "evaluate", ratio, not (result.has_moved and result.unrest))
    return result


def with_bundled(error: ModelFileError) -> ModelFileError:
    """The error for a missing `local` profile, which also names bundled profiles of this processor."""
    there = bundled_of(environment.processor_facts())
    return error.reworded("; ".join(filter(None, [error.message, there])))


def _advice_here(model: Model, here: Mapping[str, Any]) -> str:
    """A clause that names a bundled profile of this processor, if any, and the command to learn one."""
    where = model.file.environment
    learn = f"`{where.learn_command(threads=here.get('threads_asked'))}` learns this one"
    there = bundled_of(here["processor"], where.framework)
    return f"{there}, {learn}" if there else learn


def compared(model: Model, measured: check.Measured, ratio: float | None) -> Evaluation:
    """Compare measured networks with their predictions by `predict`.

    `ratio`: see `Evaluation`; predictions are not corrected by it. MeasuringError if nothing was measured.
    """
    if not measured.networks:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in measured.failures.items())
        raise MeasuringError(f"no network could be measured ({reasons})")
    rows = tuple(_evaluated(model, n) for n in measured.networks)
    predicted, times = (
        np.array([getattr(r, k) for r in rows]) for k in ("predicted_ms", "measured_ms")
    )
    taken_out = None if ratio is None else figures(ratio * predicted, times)
    return Evaluation(
        model=model.name,
        device=model.device,
        predictor=model.default,
        ratio=ratio,
        limit=limit_of(model.file),
        ratio_taken_out=taken_out and {name: taken_out[name] for name in TAKEN_OUT},
        networks=rows,
        summary=figures(predicted, times),
        intervals=intervals(rows),
        noise_floor=model.file.noise.floor,
        failures=dict(measured.failures),
        noise=learn.noise_of(measured.latencies),
    )


def _evaluated(model: Model, network: check.MeasuredNetwork) -> EvaluatedNetwork:
    predicted, ms = model.predict(network.graph, network.case.batch_size), network.latency_ms
    latency, interval = predicted.latency_ms, predicted.interval_ms
    return EvaluatedNetwork(
        network=network.case.spec,
        input_size=network.case.input_size.numbers,
        batch_size=network.case.batch_size,
        measured_ms=ms,
        spread=network.spread,
        unrest=network.unrest,
        predicted_ms=latency,
        error=latency / ms - 1,
        coverage=predicted.coverage,
        interval_ms=interval,
        interval_width=interval and (interval[1] - interval[0]) / (latency or 1.0),
        inside=interval and bool(interval[0] <= ms <= interval[1]),
        in_domain=predicted.in_domain,
    )


def write_state(
    model: Model, by: Literal["doctor", "evaluate"], ratio: float, settled: bool = True
) -> None:
    """Write the state of the machine next to the profile's file, so that later answers mention it."""
    write_check(model.file, model.source, by, ratio, settled)
    for one in (model, *model._in_mode.values()):
        one.__dict__.pop("state", None)


def device_of(model: Model) -> str:
    """ "cpu" or "gpu", the device that a profile was measured on; "cpu" if the file does not say."""
    return ANY_GPU if model.file.environment.device == ANY_GPU else CPU

"""Measures whole networks, with the same care as the predefined blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from lolat.errors import InputError, MeasuringError
from lolat.fitting.intervals import noise_floor
from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.io.progress import Progress
from lolat.model import Model
from lolat.model.figures import figures, intervals
from lolat.model.prediction import Prediction
from lolat.model.state import limit_of
from lolat.readers import read
from lolat.units import off
from microbench import backends
from microbench.blocks import NETWORKS, Predefined, known_blocks
from microbench.doctor import Again, measured_again, references_of
from microbench.learn import noise_of
from microbench.runner import Job, Runner, Settings, job_key, keep_bytes, peak_bytes
from microbench.timing import levels

DEFAULT_NETWORKS = (
    "keras:ResNet50", "keras:MobileNetV2", "keras:EfficientNetB0", "keras:DenseNet121",
    "keras:InceptionV3", "keras:VGG16", "keras:NASNetMobile", "keras:Xception",
    "keras:MobileNetV3Large", "keras:ResNet101V2",
)  # fmt: skip
"""Ten architectures, as whole networks not measured when learning; four of them share a block with the
predefined ones."""
DEFAULT_BATCH_SIZES = (1, 4)
SETTINGS = Settings(rounds=8)


@dataclass(frozen=True)
class Case:
    """What is measured: a NETWORK at a size."""

    spec: str
    batch_size: int = 1
    input_size: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Tells it from others in messages and journals."""
        size = "x".join(map(str, self.input_size))
        return self.spec + (f" {size}" if size else "")


@dataclass(frozen=True)
class MeasuredNetwork:
    """A case, measured: its latency on the machine as it was throughout the run."""

    spec: str
    graph: Graph
    batch_size: int
    latency_ms: float
    spread: float | None
    input_size: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """What a run measured: the cases; what failed and why; networks of the model, measured again.

    `environment` is the backend's, `noise` how steady the machine was (`learn.noise_of`).
    """

    measured: tuple[MeasuredNetwork, ...]
    failures: dict[str, str]
    again: tuple[Again, ...]
    environment: dict[str, Any]
    noise: dict[str, Any]


def cases(
    networks: Sequence[str], batch_sizes: Sequence[int], input_size: tuple[int, ...] = ()
) -> list[Case]:
    """Every network at every batch size, none twice."""
    sizes = list(dict.fromkeys(batch_sizes))
    return [Case(spec, n, input_size) for spec in dict.fromkeys(networks) for n in sizes]


def measure_cases(
    backend: str,
    device: str,
    wanted: Sequence[Case],
    points: Sequence[Point] = (),
    progress: Progress | None = None,
    networks: Sequence[Predefined] = NETWORKS,
    settings: Settings = SETTINGS,
) -> Evaluation:
    """Measure `wanted` as a user would, each network in a loop of its own, all in the same random rounds.

    `points`: of the model that is judged; some of its networks are measured in the same rounds and tell how
    fast the machine is.
    """
    keys = [(c.spec, c.input_size) for c in wanted]
    networks_read = {key: read(*key) for key in dict.fromkeys(keys)}
    graphs = [networks_read[key] for key in keys]
    jobs = [_job(c, g) for c, g in zip(wanted, graphs, strict=True)]
    try:
        own = references_of(points, known_blocks(backend, networks))
    except InputError:
        own = []
    with Runner(backend, device, progress) as runner:
        again = [r.job for r in own]
        outcome = runner.run([*jobs, *again], again, settings, None, runner.available_bytes())
    result = levels(outcome.visits)
    measured = tuple(
        MeasuredNetwork(
            case.spec,
            as_run(backend, graph),
            case.batch_size,
            level.latency_ms,
            level.spread,
            case.input_size,
        )
        for case, graph, job in zip(wanted, graphs, jobs, strict=True)
        if (level := result.jobs.get(job.key))
    )
    now = measured_again(own, result)
    return Evaluation(measured, outcome.failures, now, outcome.environment, noise_of(result))


def as_run(backend: str, graph: Graph) -> Graph:
    """`graph` in the data type that `backend` runs it in: float16 where it has the option `half`."""
    if "half" not in backends.split(backend)[1]:
        return graph
    tensors = (replace(t, dtype=t.dtype.replace("float32", "float16")) for t in graph.tensors)
    return replace(graph, tensors=tuple(tensors))


def _job(case: Case, graph: Graph) -> Job:
    """A network, which is built by its own framework's code."""
    payload = {"network": case.spec, "input_size": list(case.input_size)}
    return Job(
        key=job_key(case.name, case.batch_size),
        payload={**payload, "batch_size": case.batch_size},
        need_bytes=peak_bytes(graph, case.batch_size),
        keep_bytes=keep_bytes(graph, case.batch_size),
        whole=True,
    )


# ---- Measured against predicted


def compare(
    model: Model,
    measured: Sequence[MeasuredNetwork],
    failures: Mapping[str, str],
    ratio: float | None = None,
) -> dict[str, Any]:
    """Everything `evaluate --json` prints. Raises MeasuringError where nothing was measured.

    What is compared is the prediction as `predict` gives it. `ratio`: how many times as long as learned the
    model's own networks took meanwhile, the median. It corrects nothing; beside the errors stands what they
    are with it taken out.
    """
    if not measured:
        reasons = [f"{key}: {reason}" for key, reason in failures.items()]
        raise MeasuringError(f"no network could be measured ({'; '.join(reasons) or 'none given'})")
    rows = [_row(n, model.predict(n.graph, n.batch_size)) for n in measured]
    predicted, times = (np.array([r[k] for r in rows]) for k in ("predicted_ms", "measured_ms"))
    found, floor, limit = (
        figures(predicted, times),
        noise_floor(model.document),
        limit_of(model.document),
    )
    taken_out = None if ratio is None else figures(ratio * predicted, times)
    outside = [r["network"] for r in rows if r["in_domain"] is False]
    judged = Judged(found, taken_out, ratio, limit, floor or 0.0, len(outside) / len(rows))
    return {
        "model": model.name,
        "device": model.device,
        "predictor": model.default,
        "ratio": ratio,
        "limit": limit,
        "ratio_taken_out": taken_out and {k: taken_out[k] for k in TAKEN_OUT},
        "verdict": judged.verdict,
        "cause": judged.cause,
        "networks": rows,
        "summary": found,
        "inside_interval": sum(r["inside"] is True for r in rows),
        "intervals": intervals(rows),
        "noise_floor": floor,
        "failures": dict(failures),
    }


GOOD, FAIR = 0.08, 0.15  # median errors up to which a model is good, and fair
TAKEN_OUT = ("median", "bias", "within_10_percent")


@dataclass(frozen=True)
class Judged:
    """What a verdict is made from: figures of the errors as predicted, and with `ratio` taken out.

    `limit`: how far the ratio may be from 1; `floor`: the noise floor; `outside`: which share of the
    networks is outside the measured domain.
    """

    found: Mapping[str, Any]
    taken_out: Mapping[str, Any] | None
    ratio: float | None
    limit: float
    floor: float
    outside: float

    @property
    def verdict(self) -> str:
        """good, fair or poor: of the error as predicted, whatever its cause."""
        error = self.found["median"]
        return "good" if error <= GOOD else "fair" if error <= FAIR else "poor"

    @property
    def cause(self) -> str | None:
        """What an error is from; None of a good model.

        machine: it moved further than the limit. domain: most of the networks hold what was never measured.
        level: the machine is within its limit of how it was learned, and the error is small without that.
        noise: points of the model are not known better. formula: none of these. unknown: the same, but
        nothing tells whether the machine moved.
        """
        if self.verdict == "good":
            return None
        if self.ratio is not None and off(self.ratio) > self.limit:
            return "machine"
        if self.outside > 0.5:
            return "domain"
        if self.taken_out is not None and self.taken_out["median"] <= GOOD:
            return "level"
        if self.floor > self.found["median"] / 2:
            return "noise"
        return "unknown" if self.taken_out is None else "formula"


def _row(network: MeasuredNetwork, predicted: Prediction) -> dict[str, Any]:
    """One of `networks`."""
    ms, latency, interval = network.latency_ms, predicted.latency_ms, predicted.interval_ms
    return {
        "network": network.spec,
        "input_size": list(network.input_size),
        "batch_size": network.batch_size,
        "measured_ms": ms,
        "spread": network.spread,
        "predicted_ms": latency,
        "error": latency / ms - 1,
        "coverage": predicted.coverage,
        "interval_ms": interval and list(interval),
        "interval_width": interval and (interval[1] - interval[0]) / (latency or 1.0),
        "inside": interval and bool(interval[0] <= ms <= interval[1]),
        "in_domain": predicted.in_domain,
    }

"""Predicts timed steps of training networks, to compare or fit them part by part."""

from __future__ import annotations

from lolat.device.file import DeviceFile
from lolat.fitting.refined import TrainingParts
from lolat.graph import Graph
from lolat.graph.edits import as_trained
from lolat.parameters import NETWORK_OPTIMIZER
from lolat.readers import read
from lolat.tables.networks import TimedNetwork
from lolat.training.decoder_rows import row_link
from lolat.training.estimate import EstimatedTraining
from lolat.training.pass_counts import flops
from lolat.training.prediction import TrainingPrediction, predict
from lolat.training.predictor import TrainingPredictor
from lolat.training.run import TrainingRun
from lolat.units import percent


def step_run(row: TimedNetwork) -> TrainingRun:
    """The run of a timed step, with the row's optimizer (NETWORK_OPTIMIZER if it has none)."""
    optimizer = NETWORK_OPTIMIZER if row.optimizer in ("", "none") else row.optimizer
    return TrainingRun(row.batch_size, optimizer=optimizer, accumulate=row.accumulate)


def predicted_step(
    training: TrainingPredictor, graph: Graph, row: TimedNetwork
) -> TrainingPrediction:
    """Predict the timed training step of a row."""
    link = row_link(training.file, row.gpus, row.link_gbps)
    return predict(training, as_trained(graph), step_run(row), row.gpus, link)


def training_parts(file: DeviceFile) -> TrainingParts:
    """Make a function of a timed step that returns (predicted ms of its passes, ms of its other parts, the
    key of its work).

    The other parts are the update of the row's optimizer and, on several devices, the wait for the
    exchange. The function raises InputError for a step that computes faster than the data sheet's peak.
    `file`: the profile of a device that was fitted to timed operations.
    """
    training = EstimatedTraining(file)
    mode, gpu = training.mode, file.gpu
    # Other devices have several rates.
    peak = gpu.peak(mode.dtype) if gpu and mode and mode.half else None

    def parts_of(row: TimedNetwork) -> tuple[float, float, str]:
        spec, size, _ = row.network
        graph = as_trained(read(spec, size))
        found = 1e3 * row.batch_size * row.accumulate * flops(graph).sum() / row.latency_ms
        if peak and found > 1e12 * peak:
            raise row.row.refused(
                f"{row.name} computes {found / 1e12:,.0f} TFLOPS on each GPU, "
                f"{percent(found / 1e12 / peak)} of the data sheet's peak; expected the time of an "
                "iteration in ms, or samples_per_s of all GPUs and in gpus how many these are"
            )
        parts = predicted_step(training, graph, row).parts_ms
        ms = {name: value or 0.0 for name, value in parts.items()}
        updates = row.optimizer not in ("", "none")
        passes, rest = ms["forward"] + ms["backward"], updates * ms["update"] + ms["exchange"]
        return passes, rest, training.key(graph)

    return parts_of

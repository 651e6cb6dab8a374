"""Timed steps of training networks, by their predicted parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lolat.graph.analysis import as_trained
from lolat.hardware.prices import hardware_of
from lolat.readers import read
from lolat.tables.networks import TimedNetwork
from lolat.training.decoder_rows import row_link
from lolat.training.estimate import EstimatedTraining
from lolat.training.model import TrainingRun, predict


def step_parts(document: Mapping[str, Any]) -> Callable[[TimedNetwork], tuple[float, float]]:
    """Return a function of a timed step: the predicted ms of its passes, and of what else it contains.

    That is the update of the row's optimizer, and on several devices the wait for their exchange.
    `document`: the file of a device known by operations.
    """
    training, device = EstimatedTraining(document), hardware_of(document)

    def parts(row: TimedNetwork) -> tuple[float, float]:
        spec, size, _ = row.network
        updates = row.optimizer not in ("", "none")
        run = TrainingRun(
            row.batch_size, optimizer=row.optimizer if updates else "sgd", accumulate=row.accumulate
        )
        link = row_link(device, row.gpus, row.link_gbps)
        found = predict(training, as_trained(read(spec, size)), run, row.gpus, link).parts_ms
        ms = {name: value or 0.0 for name, value in found.items()}
        return ms["forward"] + ms["backward"], updates * ms["update"] + ms["exchange"]

    return parts

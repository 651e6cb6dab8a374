"""Several networks, batch sizes and devices at once: the question of `lolat predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lolat import readers
from lolat.errors import LolatError, MissingPackageError, NetworkError
from lolat.model import Model
from lolat.model.prediction import Prediction, Predictions


def predict_all(
    models: Sequence[Model],
    networks: Sequence[Any],
    batch_sizes: Sequence[int],
    predictor: str | None = None,
    coverage: float | None = None,
    input_size: Sequence[int] = (),
) -> Predictions:
    """Predict each network at each batch size on each device, in this order.

    A network is read once. One that cannot be read is in `errors`, and the others are answered. InputError
    for a predictor or a coverage that a model cannot answer, before a network is read.
    """
    for model in models:
        model.check(predictor, coverage)
    several = len(models) * len(batch_sizes) * len(set(networks)) > 1
    answers: list[Prediction] = []
    errors: dict[str, LolatError] = {}
    for network in dict.fromkeys(networks):
        try:
            graph = readers.read(network, input_size)
        except (NetworkError, MissingPackageError) as error:
            errors[network] = error
            continue
        for batch_size in batch_sizes:
            for model in models:
                p = model.predict(graph, batch_size, predictor, coverage)
                p = p.named(network, input_size)
                answers.append(replace(p, device=model.label) if several else p)
    return Predictions(tuple(answers), errors)

"""Several networks, batch sizes and devices at once: the question of `lolat predict`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import UNSET

from lolat import readers
from lolat.errors import (
    InputError,
    LolatError,
    MissingPackageError,
    ModelFileError,
    NetworkError,
    arg,
)
from lolat.fitting.gpus import gpu_of
from lolat.graph.modes import EAGER
from lolat.io.paths import find_model, list_models
from lolat.model import Model, load
from lolat.model.file import answers_for
from lolat.model.prediction import Prediction, Predictions
from lolat.model.running import mode_of, ways
from lolat.training.prices import Prices, read_prices, rental_of

ALL = "all"
HALVES = ("tf32", "amp", "fp16", "bf16")
"""Precisions in which a device is tried for its fastest."""
CPU = "cpu"


def devices(
    on: Sequence[str], opened: Callable[[str], Model] = load
) -> tuple[list[Model], dict[str, str]]:
    """(the models of these names, each once; why others cannot answer, by name).

    `on`: names with commas between them; "all": every local and shipped one that answers for networks;
    "a100": the one of that GPU, eager where it can be. `opened`: opens one by its name. A name that is not
    there is a ModelFileError.
    """
    names = [name.strip() for text in on for name in text.split(",") if name.strip()]
    models, left_out = [], {}
    for name in dict.fromkeys(names):
        every = [known for known, _, _ in list_models()] if name == ALL else [full_name(name)]
        for known in every:
            try:
                if name != ALL or "networks" in answers_for(load(known).document):
                    models.append(opened(known))
            except LolatError as error:
                # Among several, one without the precision or the launch is told below the others.
                if name != ALL and (len(names) == 1 or isinstance(error, ModelFileError)):
                    raise
                left_out[known] = str(error)
    distinct = {model.label: model for model in models}  # of one precision two may be the same
    models = list(distinct.values())
    if not names:
        raise InputError(
            f"no device is given; expected MODEL in front of the networks, or {arg('on')}",
            code="no-device",
        )
    if not models:
        why = "; ".join(left_out.values()) or "there is none"
        raise InputError(f"{arg('on')}: no device can answer ({why})", code="no-device")
    return models, left_out


def full_name(name: str) -> str:
    """The name of the model of networks of a GPU, such as "a100"; the name itself where it is a model's."""
    with contextlib.suppress(LolatError):
        find_model(name)
        return name
    known = [n for n, _, _ in list_models() if n.startswith(f"{name}-")]
    able = [n for n in known if "networks" in answers_for(load(n).document)]
    return min(able, key=lambda n: (mode_of(load(n).document).launch != EAGER, n), default=name)


NO_TIMES = (
    "a price, but no times of networks here; of its sheet: `lolat fit --name NAME --output FILE`"
)


def with_a_price(
    models: Sequence[Model], prices: str | Prices | None
) -> tuple[list[Model], dict[str, str]]:
    """(the GPUs among models that a price list has; why others are left out, by name: GPUs without a price,
    and those of the list without a model).
    """
    listed = prices if isinstance(prices, Prices) else read_prices(prices)
    others = [m for m in models if m.document["environment"].get("device") != CPU]
    rentals = {m.label: rental_of(m.document, None, listed) for m in others}
    priced = [m for m in others if rentals[m.label]]
    why = f"no price in {listed.prices}"
    left_out = {m.label: why for m in others if m not in priced and gpu_of(m.document)}
    known = {o.accelerator for rental in rentals.values() if rental for o in rental.offers}
    unknown = {o.accelerator for o in listed.offers} - known - {""}
    return priced, left_out | dict.fromkeys(sorted(unknown), NO_TIMES)


def predict_all(
    models: Sequence[Model],
    networks: Sequence[Any],
    batch_sizes: Sequence[int | str],
    predictor: str | None = None,
    coverage: float | None = None,
    input_size: Sequence[int] = (),
    left_out: Mapping[str, str] | None = None,
    best: bool = False,
    prices: str | Prices | None = None,
) -> Predictions:
    """Predict each network at each batch size on each device, in this order.

    A network is read once. One that cannot be read is in `errors`, and the others are answered. `left_out`:
    devices that cannot answer, and why. `best`: each device in its fastest precision. `prices`: what
    several devices cost; None: the list of `lolat prices`. InputError for a predictor or a coverage that a
    model cannot answer, before a network is read.
    """
    for model in models:
        model.check(predictor, coverage)
    several = len(models) * len(batch_sizes) * len(set(networks)) + len(left_out or ()) > 1
    lost = dict(left_out or {})
    per_hour = _price_per_hour(models, prices) if len(models) > 1 else {}
    answers: list[Prediction] = []
    seen: set[tuple[Any, int, str]] = set()
    errors: dict[str, LolatError] = {}
    for network in dict.fromkeys(networks):
        try:
            graph = readers.read(network, input_size)
        except (NetworkError, MissingPackageError) as error:
            errors[network] = error
            continue
        for batch_size in batch_sizes:
            for model in models:
                try:
                    p = _fastest(model, best, graph, batch_size, predictor, coverage)
                except InputError as error:
                    if error.code != "no-precision" or len(models) == 1:
                        raise
                    lost[model.label] = str(error)  # of a network that is in half itself
                    continue
                p = p.named(network, input_size)
                label = p.query.model.label  # the faster model of two of one GPU may be the same
                if best and (network, p.batch_size, label) in seen:
                    continue
                seen.add((network, p.batch_size, label))
                price = per_hour.get(model.label, UNSET)
                answers.append(replace(p, device=label, price_per_hour=price) if several else p)
    return Predictions(tuple(answers), errors, lost)


def _price_per_hour(models: Sequence[Model], prices: str | Prices | None) -> dict[str, float]:
    """US$ an hour of one device of each model that has a price, by its name."""
    listed = prices if isinstance(prices, Prices) else read_prices(prices)
    rentals = {m.label: rental_of(m.document, None, listed) for m in models}
    return {name: r.rented(1).price_per_hour for name, r in rentals.items() if r is not None}


def _fastest(model: Model, best: bool, *question: Any) -> Prediction:
    """The prediction of a device; `best`: in its fastest precision of those that it has."""
    if not best:
        return model.predict(*question)
    found: list[Prediction] = []
    refused: InputError | None = None
    for way in ways(model, HALVES):
        try:
            found.append(way.predict(*question))
        except InputError as error:
            if error.code != "no-precision":
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    return min(found, key=lambda p: p.latency_ms / p.batch_size)

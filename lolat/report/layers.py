"""The lines of `lolat mlp fit` and `lolat mlp predict`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lolat.report.tables import Column, Part, Table
from lolat.units import digits, milliseconds, percent, plain, plural

if TYPE_CHECKING:
    from lolat.mlp.layer_model import Evaluation
    from lolat.mlp.networks import NetworkTime


def error_lines(errors: Evaluation) -> Iterator[Part]:
    """A table of the errors of all rows, of each GPU and of each optimizer."""
    optimizers = {"forward only" if n == "none" else n: e for n, e in errors.optimizers.items()}
    columns = [
        Column("", lambda pair: pair[0], plain, is_text=True),
        Column("rows", lambda pair: pair[1].rows, "{:,}".format),
        Column("RMSE, ms", lambda pair: pair[1].rmse_ms, digits),
        Column("mean error", lambda pair: pair[1].mean_relative_error, percent),
        Column("median", lambda pair: pair[1].median_relative_error, percent),
    ]
    every = {"all": errors.all} | errors.gpus | optimizers
    yield Table(columns, [*every.items()])


def network_lines(network: NetworkTime) -> Iterator[Part]:
    """The sum, each layer, and the kinds of operation that are not in it."""
    mode = "forward only" if network.optimizer == "none" else f"training with {network.optimizer}"
    yield f"{plain(network.network)} · batch {network.batch_size} · {plain(network.gpu)} · {mode}"
    layers = plural(len(network.layers), "layer")
    yield f"{milliseconds(network.batch_ms)} a batch: {layers}, each as if alone\n"
    columns = [
        Column("layer", lambda e: e.name, plain, is_text=True),
        Column("time", lambda e: e.predicted_ms, milliseconds),
        Column("share", lambda e: e.share, percent),
    ]
    yield Table(columns, network.layers)
    if others := network.not_predicted:
        yield f"\nNot in the sum: {', '.join(f'{n} {kind}' for kind, n in others.items())}"

"""The lines of `lolat mlp fit` and `lolat mlp predict`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lolat.report.tables import Column, Part, Table
from lolat.units import digits, milliseconds, percent, plain, plural

if TYPE_CHECKING:
    from lolat.mlp.layer_model import Errors
    from lolat.mlp.networks import NetworkTime


def error_line(errors: Errors) -> str:
    """The errors of a table's rows."""
    mean, median = map(percent, (errors.mean_relative_error, errors.median_relative_error))
    rows = plural(errors.rows, "row")
    return f"{rows}: RMSE {digits(errors.rmse_ms)} ms, mean error {mean}, median {median}"


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

"""`lolat training fit`: a device's training time from a table of epochs that somebody timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lolat.cli.errors import say
from lolat.cli.options import json_option
from lolat.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lolat.graph import Graph
    from lolat.training.epochs import Epoch


@click.command()
@click.argument("epochs", metavar="EPOCHS.csv", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="The model file to write."
)
@click.option("--name", default=None, help="Of the device; the table's name if not given.")
@click.option(
    "--drop-last",
    is_flag=True,
    help="The epochs left out a last batch that was not full; without it, it was run too.",
)
@json_option
def fit(epochs: Path, output: Path, name: str | None, drop_last: bool, as_json: bool) -> None:
    """Fit a device's training time to EPOCHS.csv: no device is needed.

    A table with the columns network (any NETWORK, such as keras:ResNet50), batch_size, samples, optimizer
    and epoch_s, a row for each timed epoch. Forty rows of different networks and batch sizes do.
    """
    import numpy as np

    from lolat.training.epochs import read_epochs
    from lolat.training.file import write
    from lolat.training.fitting import fit as fit_model

    rows = read_epochs(epochs)
    model = fit_model(rows, _reader(epochs, rows), name or epochs.stem, drop_last)
    write(output, model)
    error = float(np.median(np.abs(np.expm1(-np.array(model.residuals)))))
    used = [t for t, c in model.document["coefficients_ms"].items() if c > 0]
    if as_json:
        told = {
            "output": str(output), "name": model.name, "epochs": len(rows),
            "networks": len({r.network for r in rows}), "optimizers": list(model.optimizers),
            "drop_last": drop_last, "left_out_error": round(error, 6), "terms": used,
        }  # fmt: skip
        click.echo(json.dumps(told))
        return
    click.echo(f"{model.name}: {len(rows)} epochs of {len({r.network for r in rows})} networks")
    click.echo(f"  left out of the fit, half of them are within {100 * error:.1f} %")
    click.echo(f"  time goes by {', '.join(used)}")
    click.echo(f"written: {output}")


def _reader(table: Path, rows: Sequence[Epoch]) -> Callable[[str], Graph]:
    """Reads a network of the table; an error says its line, and progress is told now and then."""
    from lolat.readers import read

    lines = {row.network: row.line for row in reversed(rows)}
    done = 0

    def graph(network: str) -> Graph:
        nonlocal done
        try:
            found = read(network)
        except InputError as error:
            raise InputError(f"{table}, line {lines[network]}: {error}") from error
        done += 1
        if done % 20 == 0:
            say(f"{done} of {len(lines)} networks read")
        return found

    return graph

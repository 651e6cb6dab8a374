"""`lolat nas fit`: a search space's latency on a new device from a few measured networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from lolat.cli.errors import say
from lolat.cli.options import json_option

if TYPE_CHECKING:
    from lolat.nas.few.nas_model import NasModel

SPACE_NAMES = ("nasbench201", "fbnet")
space_option = click.option(
    "--space",
    type=click.Choice(SPACE_NAMES),
    required=True,
    help="The search space that the networks are of.",
)


@click.command()
@space_option
@click.argument("samples", metavar="SAMPLES", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="The model file to write."
)
@json_option
def fit(space: str, samples: Path, output: Path, as_json: bool) -> None:
    """Fit a space's latency to SAMPLES: a CSV table (or .csv.gz) with columns arch and latency_ms.

    Ten samples are enough to rank a space well; `lolat nas suggest` says which. Fewer work too: the
    formula then says what they do not.
    """
    from lolat.nas.few.named import space_terms
    from lolat.nas.few.nas_file import write
    from lolat.nas.few.nas_model import fit as fit_model
    from lolat.nas.few.samples import ENOUGH, read_samples

    model = fit_model(space, read_samples(samples, space_terms(space)))
    write(output, model)
    for remark in model.warnings:
        say(f"warning: {remark}")
    error = typical_error(model)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "output": str(output),
                    "space": space,
                    "samples": len(model.times_ms),
                    "noise": round(model.noise, 6),
                    "typical_error": round(error, 6),
                    "assumptions": [
                        {"words": words, "weight": round(w, 6)} for words, w in model.assumptions()
                    ],
                    "warnings": list(model.warnings),
                }
            )
        )
        return
    count = len(model.times_ms)
    noise = f" · noise {100 * model.noise:.1f} %" if count >= ENOUGH else ""  # else mostly a guess
    click.echo(f"{space} from {count} sample{'s' * (count > 1)}{noise}")
    for words, weight in model.assumptions():
        if weight >= 0.005:
            click.echo(f"  {words}: {100 * weight:.0f} % sure")
    if error < 1.0:
        click.echo(f"Half of all networks of the space should be within {100 * error:.1f} %.")
    else:
        click.echo(f"Half of all networks of the space may be off by a factor of {1 + error:.2g}.")
    click.echo(f"written: {output}")


def typical_error(model: NasModel) -> float:
    """What half of the space's networks should stay within, relative, by the model's own intervals."""
    rows = model.terms.candidates(np.random.default_rng(0))[:: 1 if model.space == "fbnet" else 7]
    low, high = model.interval_ms(rows, 0.5)
    return float(np.median(np.sqrt(high / low)) - 1.0)

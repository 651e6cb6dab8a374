"""`lolat show` and `lolat models`: what is in a model file, and which there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lolat.cli.common import model_argument


@click.command()
@model_argument
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw points and fit: .svg or .png.")
def show(model: str, plot: str | None) -> None:
    """What MODEL knows of its device: inference, training, epochs, search spaces, links; how well."""
    from lolat.model import load
    from lolat.report.text import describe

    if plot is not None:
        from lolat.report.plots import check_plot

        check_plot(plot)
    loaded = load(model)
    for line in describe(loaded):
        click.echo(line)
    if plot is not None:
        from lolat.report.plots import fit_plot

        fit_plot(loaded, plot)
        click.echo(f"drawn: {plot}")


@click.command()
def models() -> None:
    """The models that can be named: learned here, and shipped with LoLat."""
    from lolat.errors import ModelFileError
    from lolat.io.paths import list_models
    from lolat.model.file import read
    from lolat.units import plain

    found = list_models()
    if not found:
        click.echo("no models yet: learn one with `python learn_model.py cpu`")
    width = max((len(name) for name, *_ in found), default=0)
    for name, path, origin in found:
        try:
            document = read(path)
            about = document["device"] + _source(document)
        except ModelFileError as error:
            about = f"cannot be read: {error}"
        click.echo(f"{plain(name):{width}}  {origin:7}  {plain(about)}")


def _source(document: Mapping[str, Any]) -> str:
    """Of a model from tables: which, and how far off what was left out of the fit is."""
    entry = document.get("predictors", {}).get("kernels", {})
    left_out = entry.get("error", {}).get("left_out", {}) if isinstance(entry, dict) else {}
    source = document["environment"].get("source")
    if not left_out or not isinstance(source, str):
        return ""
    return f"; {source}; {100 * left_out['median']:.0f} % off at the median where left out"


# ---- `lolat serve`: the calculator as a page in the browser.

PORT = 8000


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL ...]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    metavar="P",
    help="0: any that is free.",
)
def serve(models: tuple[str, ...], port: int) -> None:
    """How long training takes and what it costs, as a page in the browser; Ctrl-C ends it.

    The page is for this machine alone (127.0.0.1), and nothing leaves it. It lists the models that
    `lolat models` does, and first any MODEL that is given. One whose training was not measured is
    estimated from its latencies of inference, and says so.
    """
    from lolat.io.paths import find_model
    from lolat.training.file import load_training
    from lolat.web.app import serve as run

    named = [Path(find_model(model)) for model in models]
    for path in named:  # one that is given by name is to work, or to be refused here
        load_training(path)

    def told(address: str) -> None:
        click.echo(f"LoLat's calculator: {address}   (Ctrl-C ends it)")

    run(port, named, told)

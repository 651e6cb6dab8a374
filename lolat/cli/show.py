"""`lolat show` and `lolat models`: what is in a model file, and which there are."""

from __future__ import annotations

import click

from lolat.cli.options import model_argument


@click.command()
@model_argument
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw points and fit: .svg or .png.")
def show(model: str, plot: str | None) -> None:
    """What MODEL says of its device: where measured, coefficients, errors, what bounds it, training."""
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
    from lolat.model_file import read
    from lolat.places import list_models
    from lolat.units import plain

    found = list_models()
    if not found:
        click.echo("no models yet: learn one with `python learn_model.py cpu`")
    width = max((len(name) for name, *_ in found), default=0)
    for name, path, origin in found:
        try:
            about = read(path)["device"]
        except ModelFileError as error:
            about = f"cannot be read: {error}"
        click.echo(f"{plain(name):{width}}  {origin:7}  {plain(about)}")

"""`lolat show` and `lolat models`: what is in a model file, and which there are."""

from __future__ import annotations

from pathlib import Path

import click

import lolat
from lolat.cli import common
from lolat.cli.parsing import Number


@common.command("lolat show epyc-2t", "lolat show local --formula")
@common.model_argument
@common.option("--formula", is_flag=True, help="Its formulas: each term, its rate, its family.")
@common.plot_option(more="Points and fit.")
@common.json_option
def show(model: str, formula: bool, plot: str | None, as_json: bool) -> None:
    """What MODEL knows of its device: how far off it is, where the time goes, what was measured.

    With --formula how it computes a time: families of work with a rate each, and below how far each kind of
    work is from that. --json has both.
    """
    from lolat.report.device import describe, formula_lines

    loaded = lolat.load(model)
    common.answer(
        "model-summary", loaded, as_json, (formula_lines if formula else describe)(loaded)
    )
    if plot is not None:
        from lolat.report.plots import fit_plot

        fit_plot(loaded, plot)
        (common.say if as_json else click.echo)(f"drawn: {plot}")


@common.command("lolat models")
@common.json_option
def models(as_json: bool) -> None:
    """The models that can be named: learned here, and shipped with LoLat."""
    from lolat.units import plain

    found = lolat.models()
    if as_json:
        common.say_json("models", found.to_dict())
        return
    if not len(found):
        click.echo("no models yet: learn one with `lolat learn cpu`")
    width = max((len(m.name) for m in found), default=0)
    for m in found:
        about = str(m.device)
        if m.error is not None:
            about += f"; {100 * m.error:.0f} % off at the median where left out"
        elif m.source is not None:
            about += f"; from {m.source}"
        if m.problem is not None:
            about = f"cannot be read: {m.problem}"
        click.echo(f"{plain(m.name):{width}}  {m.origin:7}  {plain(about)}")


# ---- `lolat serve`: the page in the browser.

PORT = 8000


@common.command("lolat serve")
@click.argument("models", nargs=-1, metavar="[MODEL ...]")
@common.option(
    "--port",
    type=Number("N", whole=True, least=0, most=65535),
    default=PORT,
    show_default=True,
    help="Where the page is; 0: any that is free.",
)
def serve(models: tuple[str, ...], port: int) -> None:
    """Latency, what fits in a time, training and its cost, as a page in the browser; Ctrl-C ends it.

    The page is for this machine alone (127.0.0.1), and nothing leaves it. It lists the models that
    `lolat models` does, and first any MODEL that is given. Training that was not measured is estimated
    from the latencies of inference, and says so.
    """
    from lolat.errors import InputError
    from lolat.io.paths import find_model
    from lolat.web.devices import opened
    from lolat.web.server import serve as run

    named = [Path(find_model(model)) for model in models]
    for path in named:  # one that is given by name is to work, or to be refused here
        found = opened(path, path.stem, True)
        if found.latency is None and found.training is None:
            raise InputError(found.lacking["latency"])

    def told(address: str) -> None:
        click.echo(f"LoLat: {address}   (Ctrl-C ends it)")

    run(port, named, told)

"""Models and networks in files: `lolat show`, `models`, `read`, `cache`; and `lolat serve`, the page."""

from __future__ import annotations

from pathlib import Path

import click

import lolat
from lolat.cli import common
from lolat.cli.parsing import Number


@common.command("lolat show epyc-2t", "lolat show local --plot fit.svg")
@common.model_argument
@common.plot_option(more="Points and fit.")
@common.json_option
def show(model: str, plot: str | None, as_json: bool) -> None:
    """What MODEL knows of its device: inference, training, epochs, search spaces, links; how well."""
    from lolat.report.text import describe

    loaded = lolat.load(model)
    common.answer("model-summary", loaded, as_json, describe(loaded))
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


# ---- Networks in files, so that a question needs no framework.


@common.command("lolat read keras:ResNet50 --output resnet50.json")
@common.network_argument
@common.size_option
@common.output_option(required=True, more="A JSON file.")
@common.json_option
def read(network: str, input_size: tuple[int, ...], output: Path, as_json: bool) -> None:
    """Write NETWORK to a JSON file, which every command takes as NETWORK, without its framework.

    It holds operations and shapes, no weights.
    """
    from lolat import readers
    from lolat.graph.counts import count
    from lolat.io.documents import to_json
    from lolat.io.writing import write_text
    from lolat.units import plain, plural, quantity

    graph = readers.read(network, input_size)
    counts = count(graph)
    total, warnings = counts.total(), tuple(dict.fromkeys((*graph.warnings, *counts.warnings)))
    write_text(output, to_json(graph.to_dict(), str(output)))
    common.warn(warnings)
    found = {"network": graph.name, "output": str(output), "operations": len(graph.operations)}
    found |= {"counts": total._asdict(), "warnings": list(warnings)}
    what = f"{plain(graph.name)}, {plural(len(graph.operations), 'operation')}"
    line = f"written: {plain(str(output))} ({what}, {quantity(total.flops, 'MACs')})"
    common.answer("network-file", found, as_json, [line])


@common.command("lolat cache", "lolat cache --clear")
@common.option(
    "--clear", is_flag=True, help="Remove what is kept; it is read again when it is asked for."
)
@common.json_option
def cache(clear: bool, as_json: bool) -> None:
    """Where networks that were read are kept, how many and how large; the least recently used go first.

    LOLAT_CACHE names another folder; LOLAT_CACHE=off keeps nothing.
    """
    from lolat.readers.cache import Cache, shipped_networks
    from lolat.units import plain, plural, quantity

    kept = Cache()
    networks, held_bytes = kept.held()
    if clear:
        kept.trim(0)
    folder, shipped = kept.folder and str(kept.folder), shipped_networks()
    if as_json:
        found = {"folder": folder, "networks": networks, "held_bytes": held_bytes}
        more = {"most_bytes": kept.most_bytes, "cleared": clear, "shipped": shipped}
        common.say_json("cache", {**found, **more})
        return
    if folder is None:
        click.echo("nothing is kept: LOLAT_CACHE is off, or no home folder is known")
    else:
        size, most = quantity(held_bytes, "B"), quantity(kept.most_bytes, "B")
        verb = "removed" if clear else "kept"
        click.echo(
            f"{plain(str(folder))}: {verb} {plural(networks, 'network')}, {size} (at most {most})"
        )
    click.echo(
        f"{plural(len(shipped), 'network')} come with LoLat: keras.applications and known ones of timm"
    )


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

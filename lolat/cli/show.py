"""`lolat show`, `models`, `read` and `serve`: what is in a profile, a network as a file, the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

import lolat
from lolat.cli import common


@common.command(
    "lolat show epyc-2t",
    "lolat show local --formula",
    answers={"model-summary": "lolat.device.summary:ModelSummary"},
)
@common.model_argument
@click.option("--formula", is_flag=True, help="Its formulas: each term, its rate, its family.")
def show(model: str, formula: bool) -> None:
    """Show what MODEL knows of its device: its errors, where the time goes, what was measured."""
    from lolat.report.device import describe, formula_lines

    loaded = lolat.load(model)
    lines = formula_lines if formula else describe
    common.answer(loaded, lines(loaded))


@common.command("lolat models", answers={"models": "lolat.api.listing:Models"})
def models() -> None:
    """The profiles that can be named, learned here or bundled, by the questions that they answer."""
    from lolat.report.device import models_lines

    listed = lolat.models()
    common.answer(listed, models_lines(listed))


# ---- `lolat read`


@dataclass(frozen=True)
class NetworkFile:
    """The result of writing a network to a file: number of operations, and counts at batch size 1."""

    network: str
    output: str
    operations: int
    counts: dict[str, int]
    warnings: tuple[str, ...]


@common.command(
    "lolat read keras:ResNet50 --output resnet50.json",
    answers={"network-file": "lolat.cli.show:NetworkFile"},
)
@common.network_argument
@common.parameter("input_size")
@common.output_option(required=True, more="A JSON file.")
def read(network: str, input_size: tuple[int, ...], output: Path) -> None:
    """Write NETWORK to a JSON file, which every command takes as NETWORK, without its framework.

    It holds operations and shapes, no weights.
    """
    from lolat import readers
    from lolat.errors import InputError, arg
    from lolat.graph.counts import count
    from lolat.io.documents import to_json
    from lolat.io.forms import GRAPH_FILE, is_file
    from lolat.io.writing import check_kind, write_text
    from lolat.units import plain, plural, quantity

    if not is_file(str(output), GRAPH_FILE):  # another ending would be read as another format
        words = f"{arg('output')} {output}: the file is JSON of LoLat; expected {output.stem}{GRAPH_FILE}"
        raise InputError(words, code="output")
    common.check_file(output, "output")
    check_kind(output, "output", readers.read)
    graph = readers.read(network, input_size)
    counts = count(graph)
    total, warnings = counts.total(), tuple(dict.fromkeys((*graph.warnings, *counts.warnings)))
    write_text(output, to_json(graph.to_dict(), str(output)))
    common.warn(warnings)
    operations = len(graph.operations)
    written = NetworkFile(graph.name, str(output), operations, total._asdict(), warnings)
    about = f"{plural(operations, 'operation')}, {quantity(total.flops, 'MACs')}"
    line = f"written: {plain(str(output))} ({plain(graph.name)}, {about})"
    common.answer(written, [line])


# ---- `lolat serve`: the page in the browser


@common.command("lolat serve")
@click.argument("models", nargs=-1, metavar="[MODEL ...]")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=8000, show_default=True,
    help="Port of the page; 0: any free one.",
)  # fmt: skip
def serve(models: tuple[str, ...], port: int) -> None:
    """Latency, what fits in a time, training, and serving language models, in the browser; Ctrl-C ends it.

    The page is for this machine alone (127.0.0.1), and nothing leaves it. It lists the profiles that
    `lolat models` does, and first any MODEL that is given.
    """
    from lolat.web.server import serve as run

    paths = [Path(lolat.load(model).source) for model in models]
    run(port, paths, lambda address: click.echo(f"LoLat: {address}   (Ctrl-C ends it)"))

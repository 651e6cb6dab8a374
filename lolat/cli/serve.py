"""`lolat serve`: the calculator as a page in the browser."""

from __future__ import annotations

from pathlib import Path

import click

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
    `lolat models` does, and first any MODEL that is given: those that know of training can be asked.
    """
    from lolat.places import find_model
    from lolat.training.model import load_training
    from lolat.web.server import serve as run

    named = [Path(find_model(model)) for model in models]
    for path in named:  # one that is given by name is to work, or to be refused here
        load_training(path)

    def told(address: str) -> None:
        click.echo(f"LoLat's calculator: {address}   (Ctrl-C ends it)")

    run(port, named, told)

"""`lolat prices`: the prices that there are, and `lolat prices refresh`, which downloads them."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from lolat.cli.errors import say
from lolat.cli.options import json_option


@click.group(invoke_without_command=True)
@click.option(
    "--prices",
    "prices_file",
    metavar="FILE",
    type=click.Path(),
    help="A CSV file in the layout of SkyPilot's catalogue, in place of what is downloaded or built in.",
)
@click.option(
    "--accelerator", metavar="NAME", help="Only this one, such as V100; cpu: without one."
)
@json_option
@click.pass_context
def prices(
    context: click.Context, prices_file: str | None, accelerator: str | None, as_json: bool
) -> None:
    """What instances cost an hour: from FILE, as downloaded last, or else a small built-in table."""
    if context.invoked_subcommand is not None:
        if prices_file is not None or accelerator is not None or as_json:
            raise click.UsageError("options go behind `refresh`, where it has them", context)
        return
    from lolat.training.cost.catalogue import offers_of
    from lolat.training.cost.prices import find_prices
    from lolat.training.cost.text import price_lines

    found = find_prices(prices_file)
    offers = offers_of(found.offers, accelerator, found.where) if accelerator else found.offers
    if as_json:
        click.echo(json.dumps({"prices": found.where, "offers": [asdict(o) for o in offers]}))
        return
    click.echo(f"US$ an hour of a whole instance, from {found.where}")
    click.echo("")
    for line in price_lines(offers):
        click.echo(line)


@prices.command(short_help="Download the prices of today.")
@click.option(
    "--url",
    "base",
    metavar="BASE",
    help="A folder with PROVIDER/vms.csv in it, or one CSV file; SkyPilot's catalogue if not given.",
)
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME",
    help="Only this one, such as aws; may be given several times.",
)
@json_option
def refresh(base: str | None, providers: tuple[str, ...], as_json: bool) -> None:
    """Download SkyPilot's catalogue of prices; it is used from then on, and says of which day it is."""
    from lolat.training.cost import refresh as refreshing
    from lolat.training.cost.prices import refreshed_file

    done = refreshing.refresh(
        refreshed_file(), base or refreshing.BASE, providers or refreshing.PROVIDERS
    )
    for name, reason in done.left_out.items():
        say(f"left out: {name}: {reason}")
    if as_json:
        document = {
            "offers": done.offers,
            "left_out": done.left_out,
            "file": str(done.path),
            "date": done.date,
        }
        click.echo(json.dumps(document))
        return
    counts = ", ".join(f"{name} {number:,}" for name, number in done.offers.items())
    click.echo(f"{done.date}: {sum(done.offers.values()):,} prices ({counts}) in {done.path}")

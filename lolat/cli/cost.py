"""`lolat cost`: hours and dollars of a training run, for several numbers of devices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lolat.cli.common import (
    coverage_option,
    json_option,
    model_argument,
    network_argument,
    say,
    size_option,
)
from lolat.cli.training import device_options
from lolat.errors import InputError

if TYPE_CHECKING:
    from lolat.training.cost.plan import Rent, Spot
    from lolat.training.cost.renting import Machines
    from lolat.training.exchange import Link
    from lolat.training.model import Training


class Devices(click.ParamType):
    """Numbers of devices with commas between them."""

    name = "K,K"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Text into a tuple of numbers from 1, each once."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            found = ()
        if not found or min(found) < 1:
            self.fail(f"{value!r}: expected whole numbers from 1, such as 1,2,4,8")
        return found


class Amount(click.ParamType):
    """A number of at least 0."""

    name = "N"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Text into a number."""
        try:
            amount = float(value)
        except ValueError:
            amount = math.nan
        if not 0.0 <= amount < math.inf:
            self.fail(f"{value!r}: expected a number of at least 0")
        return amount


@click.command()
@model_argument
@network_argument
@click.option("--samples", type=click.IntRange(min=1), required=True, metavar="N", help="Data set.")
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="E",
    help="Times through the data set.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    required=True,
    metavar="B",
    help="Samples of an iteration on each device.",
)
@click.option("--optimizer", default="sgd", show_default=True, metavar="NAME", help="Such as adam.")
@click.option(
    "--devices",
    type=Devices(),
    default="1",
    show_default=True,
    help="Each to be compared, as in 1,2,4,8.",
)
@click.option("--price-per-hour", type=Amount(), metavar="P", help="US$ for one device.")
@click.option(
    "--prices",
    "prices_file",
    type=click.Path(),
    metavar="FILE",
    help="A CSV file in the layout of SkyPilot's catalogue; else what `lolat prices` lists.",
)
@click.option(
    "--accelerator",
    metavar="NAME",
    help="In the prices, such as V100; cpu: instances without one. By the model's device if not given.",
)
@click.option(
    "--as-if",
    is_flag=True,
    help="Take the price though --accelerator is another device than the model's.",
)
@click.option("--spot", "on_spot", is_flag=True, help="Spot prices, and interruptions.")
@click.option(
    "--interruptions-per-hour", type=Amount(), metavar="R", help="Of each instance, with --spot."
)
@click.option(
    "--restart-cost-s",
    type=Amount(),
    metavar="S",
    help="Seconds lost at each: a new instance, loading, doing again what was not saved.",
)
@click.option(
    "--billing",
    type=click.Choice(["second", "hour"]),
    default="second",
    show_default=True,
    help="Whether a begun hour is paid for whole.",
)
@device_options
@size_option
@coverage_option
@json_option
def cost(
    model: str,
    network: str,
    samples: int,
    epochs: int,
    batch_size: int,
    optimizer: str,
    devices: tuple[int, ...],
    link_gbps: float | None,
    strategy: str,
    no_overlap: bool,
    input_ms: float,
    price_per_hour: float | None,
    prices_file: str | None,
    accelerator: str | None,
    as_if: bool,
    on_spot: bool,
    interruptions_per_hour: float | None,
    restart_cost_s: float | None,
    billing: str,
    input_size: tuple[int, ...],
    coverage: float | None,
    as_json: bool,
) -> None:
    """Time and money of training NETWORK on the device of MODEL, and on several of them.

    Without storage and data transfer. With --price-per-hour K devices cost K times as much; from a price
    list they are an instance with as many where there is one, else several.
    """
    from lolat.fitting.intervals import COVERAGE, check_coverage
    from lolat.readers import read
    from lolat.training.cost.plan import Duration, plan
    from lolat.training.cost.renting import device_of, link_of
    from lolat.training.exchange import Link
    from lolat.training.model import load_training, with_input
    from lolat.training.replicas import check_strategy, predict_parallel
    from lolat.training.settings import optimizer_named

    spot = _spot(on_spot, interruptions_per_hour, restart_cost_s)
    given = None if link_gbps is None else Link(link_gbps)
    if batch_size > samples:
        raise InputError(
            f"a batch of {batch_size} is larger than the data set of {samples} samples; give a smaller "
            "--batch-size, or more --samples"
        )
    check_strategy(strategy, max(devices))
    optimizer = optimizer_named(optimizer).name
    sure = COVERAGE if coverage is None else coverage
    check_coverage(sure)
    loaded = load_training(model)
    rent, where = _rent(loaded, price_per_hour, prices_file, accelerator, as_if, on_spot)
    graph = read(network, input_size)  # last, as it is what takes long
    warnings: dict[str, None] = {}
    links = {k: given or link_of(rent(k), device_of(loaded)) for k in devices}

    def predict(count: int) -> Duration:
        told = predict_parallel(
            loaded, graph, batch_size, samples, epochs, optimizer, sure, count, links[count], strategy,
            overlap=not no_overlap,
        ).training  # fmt: skip
        told = with_input(told, input_ms, count)
        warnings.update(dict.fromkeys(told.warnings))
        assert told.total_s is not None  # as there are samples
        return Duration(told.total_s, told.interval_s)

    found = plan(predict, rent, devices, epochs, billing, spot, sure)
    for warning in warnings:
        say(f"warning: {warning}")
    said = {
        "model": loaded.name,
        "network": graph.name,
        "samples": samples,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "link_gbps": link_gbps,
        "links": [
            {"devices": k, "link": v.name or None, "gbps": v.gbps}
            for k, v in links.items()
            if k > 1
        ],
        "strategy": strategy,
        "prices": where,
    }
    if as_json:
        click.echo(json.dumps({**said, **found.to_dict()}))
        return
    from lolat.report.cost import plan_lines
    from lolat.units import plain

    click.echo(
        f"{plain(graph.name)} on {plain(loaded.name)}: {epochs:,} epoch{'s' * (epochs != 1)} of "
        f"{samples:,} samples, batch {batch_size} on each device, {optimizer}"
    )
    for line in _link_lines(strategy, links):
        click.echo(line)
    if as_if:
        click.echo(f"Price of {plain(where)}")
    click.echo("")
    for line in plan_lines(found):
        click.echo(line)


def _link_lines(strategy: str, links: Mapping[int, Link]) -> Iterator[str]:
    """What gradients travel over, by the number of devices; nothing for one device alone."""
    of: dict[Link, list[str]] = {}
    for devices, link in links.items():
        if devices > 1:
            of.setdefault(link, []).append(str(devices))
    for link, numbers in of.items():
        among = f"of {', '.join(numbers)} devices " if len(of) > 1 else ""
        where = "assumed; yours: --link-gbps" if link.name else "--link-gbps"
        yield f"Gradients {among}by {strategy} over {link} ({where})"


def _spot(on_spot: bool, per_hour: float | None, restart_s: float | None) -> Spot | None:
    """The interruptions, where spot instances are asked for."""
    from lolat.training.cost.plan import Spot

    given = (per_hour is not None, restart_s is not None)
    if not on_spot:
        if any(given):
            raise InputError(
                "--interruptions-per-hour and --restart-cost-s are of spot instances; add --spot, or leave "
                "them out"
            )
        return None
    if per_hour is None or restart_s is None:
        raise InputError(
            "--spot without how often and how badly it interrupts; expected --interruptions-per-hour R and "
            "--restart-cost-s S too (0 and 0: never)"
        )
    return Spot(per_hour, restart_s)


def _rent(
    model: Training,
    price: float | None,
    prices_file: str | None,
    accelerator: str | None,
    as_if: bool,
    on_spot: bool,
) -> tuple[Rent, str]:
    """What is rented for a number of devices, and where its price is from."""
    from lolat.training.cost.catalogue import Offer, accelerators, listed
    from lolat.training.cost.prices import accelerator_of, find_prices
    from lolat.training.cost.renting import (
        device_of,
        is_price_of,
        machines_for,
        offers_for,
        shown_device,
    )
    from lolat.units import plain

    if price is not None:
        if prices_file is not None:
            raise InputError("--price-per-hour and --prices are two prices; give one of them")
        offers: tuple[Offer, ...] = (Offer("", "", 0, price, price, source="--price-per-hour"),)
        where = "--price-per-hour"
    else:
        found = find_prices(prices_file)
        where = found.where
        device = device_of(model)
        name = accelerator or accelerator_of(device, found.offers)
        if name is None:
            raise InputError(
                f"{where} has no accelerator like {device!r}, the device of the model; give "
                f"--price-per-hour, or --as-if and --accelerator with one of "
                f"{listed(accelerators(found.offers))}"
            )
        offers = offers_for(model, found.offers, name, where)
        where = f"{name} in {where}"
        if not is_price_of(name, device):
            shown = shown_device(model)
            if not as_if:
                raise InputError(
                    f"the price is of {plain(name)}, the times of the model are of {shown}; give a model "
                    f"of {plain(name)}, --price-per-hour for {shown}, or --as-if to take both all the same"
                )
            where += f", as if it were that of {shown}"

    def rent(devices: int) -> Machines:
        return machines_for(offers, devices, on_spot, where)

    return rent, where


# ---- `lolat prices`: the prices that there are, and `lolat prices refresh`, which downloads
# them.


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
    from lolat.report.cost import price_lines
    from lolat.training.cost.catalogue import offers_of
    from lolat.training.cost.prices import find_prices

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
    from lolat.training.cost import prices as refreshing
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

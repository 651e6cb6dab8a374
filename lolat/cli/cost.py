"""`lolat cost`: hours and dollars of a training run, for several numbers of devices; `lolat prices`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import click

from lolat.cli import common
from lolat.cli.parsing import Number
from lolat.cli.training import exchange_options, question, run_options
from lolat.units import plain

if TYPE_CHECKING:
    from lolat.api.training import Exchange, Payment, Run
    from lolat.training.exchange import Link


# ---- What is paid for.


prices_option = common.option(
    "--prices", "prices_file", type=click.Path(), metavar="FILE",
    help="A CSV file in the layout of SkyPilot's catalog; what `lolat prices` lists if not given.",
)  # fmt: skip
accelerator_option = common.option(
    "--accelerator", metavar="NAME", help="In the prices, such as V100; cpu: instances without one."
)
payment_options = common.as_one(
    "payment",
    lambda: question("Payment"),
    common.option("--price-per-hour", type=Number("USD", least=0.0), help="US$ for one device."),
    prices_option,
    accelerator_option(more="By the model's device if not given."),
    common.option("--as-if", is_flag=True,
                  help="Take the price though --accelerator is another device than the model's."),
    common.option("--billing", type=click.Choice(["second", "hour"]), default="second",
                  show_default=True, help="Whether a begun hour is paid for whole."),
)  # fmt: skip


@common.command(
    "lolat cost v100-fp32 keras:ResNet50 --samples 50000 --epochs 20 --batch-size 64 --replicas 1,2,4"
)
@common.model_argument
@common.network_argument
@run_options(samples_required=True)
@common.replicas_option(more="Several numbers are compared.")
@payment_options
@exchange_options
@common.size_option
@common.json_option
def cost(
    model: str,
    network: str,
    run: Run,
    replicas: tuple[int, ...],
    payment: Payment,
    exchange: Exchange,
    input_size: tuple[int, ...],
    as_json: bool,
) -> None:
    """Time and money of training NETWORK on the device of MODEL, and on several of them.

    Without storage and data transfer. With --price-per-hour K devices cost K times as much; from a price
    list they are an instance with as many where there is one, else several.
    """
    from lolat.api.training import cost_of
    from lolat.report.cost import plan_lines
    from lolat.training.file import load_training

    answer = cost_of(load_training(model), network, run, exchange, payment, replicas, input_size)
    common.warn(answer.warnings)
    asked = (
        f"{plain(answer.network)} on {plain(answer.device)}: {run.epochs:,} epoch{'s' * (run.epochs != 1)} "
        f"of {run.samples:,} samples, batch {run.batch_size} on each device, {answer.run.optimizer}"
    )
    links = _link_lines(exchange.strategy, answer.links)
    price = [f"Price of {plain(answer.prices)}"] if payment.as_if else []
    common.answer(
        "cost", answer, as_json, chain([asked], links, price, [""], plan_lines(answer.plan))
    )


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


# ---- `lolat prices`: the prices that there are.


@common.command("lolat prices --accelerator V100")
@prices_option
@accelerator_option(more="Only it.")
@common.json_option
def prices(prices_file: str | None, accelerator: str | None, as_json: bool) -> None:
    """What instances cost an hour: from FILE, or else from a small built-in table."""
    from lolat.report.cost import price_lines
    from lolat.training.cost.prices import Prices, find_prices, offers_of

    listed = find_prices(prices_file)
    offers = offers_of(listed.offers, accelerator, listed.where) if accelerator else listed.offers
    found = Prices(tuple(offers), listed.where)
    head = f"US$ an hour of a whole instance, from {listed.where}"
    common.answer("prices", found, as_json, chain([head, ""], price_lines(offers)))

"""`lolat cost`: time, memory and dollars of training, on one device or several; `lolat prices`."""

from __future__ import annotations

import click

from lolat.cli import common

prices_option = common.option(
    "--prices", "prices_file", type=click.Path(), metavar="FILE",
    help="A CSV file in the layout of SkyPilot's catalog; the list of `lolat prices` if not given.",
)  # fmt: skip


@common.command(
    "lolat cost epyc-2t keras:MobileNetV2 --batch-size 64",
    "lolat cost v100-fp32 keras:ResNet50 --batch-size 64 --samples 50000 --epochs 20 --replicas 1,2,4",
    answers={"cost": "lolat.training.cost:Cost"},
)
@common.model_argument
@common.network_argument
@common.batch_option(required=True, more="On each device.")
@common.samples_option(more="Without it, iterations alone.")
@common.epochs_option(default=1, show_default=True)
@common.optimizer_option
@common.option("--validation-samples", type=common.WHOLE, help="Evaluated after each epoch.")
@common.coverage_option
@common.option(
    "--memory-gib",
    type=common.POSITIVE,
    metavar="GIB",
    help="Of each device, to say whether a batch fits; if not given, what was free when a CPU was learned.",
)
@common.replicas_option(more="Several numbers are compared.")
@common.link_option
@common.option(
    "--price-per-hour", type=click.FloatRange(0), metavar="USD", help="US$ for one device."
)
@prices_option
@common.size_option
@common.json_option
def cost(
    model: str, network: str, prices_file: str | None, as_json: bool, **question: object
) -> None:  # fmt: skip
    """How long training NETWORK takes on the device of MODEL or several of them, its memory and dollars.

    By what MODEL knows best: timed epochs, what `lolat learn --mode training` measured, or else an estimate
    from its latencies of inference, which says so. With --price-per-hour K devices cost K times as much;
    from a price list they are an instance with as many where there is one, else several.
    """
    import lolat
    from lolat.report.cost import cost_lines

    answer = lolat.load(model).cost(network, prices=prices_file, **question)  # type: ignore[arg-type]
    common.warn(answer.warnings)
    common.answer("cost", answer, as_json, cost_lines(answer))


@common.command(
    "lolat prices --accelerator V100", answers={"prices": "lolat.training.prices:Prices"}
)
@prices_option
@common.option(
    "--accelerator", metavar="NAME", help="Only it, such as V100; cpu: instances without one."
)
@common.json_option
def prices(prices_file: str | None, accelerator: str | None, as_json: bool) -> None:
    """What instances cost an hour: from FILE, or else from a small built-in table."""
    from lolat.report.cost import price_lines
    from lolat.training.prices import Prices, offers_of, read_prices

    found = read_prices(prices_file)
    found = Prices(found.prices, offers_of(found, accelerator)) if accelerator else found
    common.answer("prices", found, as_json, price_lines(found))

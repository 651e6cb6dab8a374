"""Arguments and options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

model_argument = click.argument("model", metavar="MODEL")
network_argument = click.argument("network", metavar="NETWORK")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


class Size(click.ParamType):  # not of a type: that of click 8.1 is not generic
    """An input size: 224, or several numbers with commas."""

    name = "H[,W,C]"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Text into a tuple of positive integers."""
        if isinstance(value, tuple):
            return value
        try:
            size = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            size = ()
        if not size or min(size) < 1:
            self.fail(f"{value!r}: expected a positive whole number (224) or several (224,224,3)")
        return size


class Columns(click.ParamType):
    """Names of columns with commas between them; whether there are such is not looked at here."""

    name = "A,B"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Text into a tuple of names, each once."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(n.strip().lower() for n in str(value).split(",") if n.strip()))
        if not names:
            self.fail(f"{value!r}: expected at least one column, such as ms,share,macs")
        return names


class Milliseconds(click.ParamType):
    """A time above 0."""

    name = "MS"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Text into a number."""
        try:
            time = float(value)
        except ValueError:
            time = math.nan
        if not 0.0 < time < math.inf:
            self.fail(f"{value!r}: expected a number of milliseconds above 0, such as 15")
        return time


batch_option = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Samples in one forward pass.",
)
size_option = click.option(
    "--input-size",
    "--sequence-length",
    "input_size",
    type=Size(),
    default=(),
    help="Height = width of the input, or its whole shape without the batch (Keras: H,W,C; PyTorch "
    "and ONNX: C,H,W); of a text, its length.",
)
predictor_option = click.option(
    "--predictor", default=None, help="two-regime or extended; the model's default if not given."
)
coverage_option = click.option(
    "--coverage",
    type=float,
    default=None,
    metavar="C",
    help="How sure the interval is to be, above 0 and below 1; 0.9 if not given.",
)


def network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """MODEL NETWORK and what goes with them."""
    for option in (json_option, predictor_option, size_option, batch_option):
        command = option(command)
    return model_argument(network_argument(command))

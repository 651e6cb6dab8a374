"""Arguments and options of the companion's commands."""

from __future__ import annotations

import click

table_argument = click.argument("table", metavar="CSV", type=click.Path())
model_argument = click.argument("model", metavar="MODEL", type=click.Path())
devices_option = click.option(
    "--devices",
    type=click.Path(),
    metavar="FILE",
    help="Facts of GPUs: CSV (name,bandwidth,cores,clock in GB/s, number, MHz) or JSON.",
)

"""`lolat training link`: what exchanging gradients costs on this machine, measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from lolat.cli.errors import say
from lolat.cli.options import json_option
from lolat.units import milliseconds, plain

if TYPE_CHECKING:
    from microbench.exchange import MeasuredLink

WORDS = {"mirrored": "MirroredStrategy", "ddp": "DistributedDataParallel"}
OF_PREDICT = {"mirrored": "mirrored", "ddp": "ring"}
"""What `lolat training predict --strategy` calls each."""


@click.command()
@click.option("--replicas", type=int, default=2, show_default=True, metavar="K")
@click.option(
    "--strategy",
    default="mirrored",
    show_default=True,
    metavar="NAME",
    help="mirrored (TensorFlow's MirroredStrategy) or ddp (PyTorch's DistributedDataParallel).",
)
@click.option(
    "--threads",
    type=int,
    default=None,
    metavar="N",
    help="Of each replica on a CPU; the processors shared out, if not given.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="cpu: all replicas share this machine's processors. gpu: a GPU for each.",
)
@json_option
def link(replicas: int, strategy: str, threads: int | None, device: str, as_json: bool) -> None:
    """Measure what a strategy adds to an iteration on this machine: half a minute.

    Gradients of several sizes are exchanged by the strategy itself, with nothing to compute. What comes
    out goes into `lolat training predict --devices K --link-gbps G`. It holds for so many replicas.
    """
    from microbench.exchange import measure_link

    found = measure_link(strategy, replicas, threads, device)
    for warning in found.warnings:
        say(f"warning: {warning}")
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    for line in lines(found):
        click.echo(line)


def lines(found: MeasuredLink) -> list[str]:
    """What a person reads."""
    where = found.environment
    each = f" of {found.threads} thread{'s' * (found.threads > 1)}" * (found.device == "cpu")
    told = [
        f"{WORDS[found.strategy]} · {found.replicas} replicas{each} · "
        f"{where['framework']} {where['framework_version']}",
        plain(str(where["device"])),
        f"link {found.link.gbps:.3g} Gbit/s · {milliseconds(found.link.latency_ms)} a step · "
        f"{milliseconds(found.variable_ms)} a variable · {milliseconds(found.fixed_ms)} an iteration",
        "",
        "  variables   gradients   added to an iteration   by the line",
    ]
    for point in found.points:
        line = found.added_ms(point.variables, point.size_bytes)
        told.append(
            f"  {point.variables:>9}   {_size(point.size_bytes):>9}   "
            f"{milliseconds(point.added_ms):>21}   {milliseconds(line):>11}"
        )
    return [
        *told,
        "",
        f"Next: lolat training predict MODEL NETWORK --batch-size B --devices {found.replicas} "
        f"--strategy {OF_PREDICT[found.strategy]} --link-gbps {found.link.gbps:.3g}",
    ]


def _size(size_bytes: int) -> str:
    """Bytes as people say them."""
    if size_bytes >= 2**20:
        return f"{size_bytes / 2**20:g} MiB"
    return f"{size_bytes / 2**10:g} KiB"

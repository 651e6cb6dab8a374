"""Options of all commands that carry training over to several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--strategy",
        default="ring",
        show_default=True,
        metavar="NAME",
        help="How gradients are exchanged: ring, tree, one-to-all or mirrored.",
    ),
    click.option(
        "--link-gbps",
        type=float,
        default=None,
        metavar="G",
        help="Gbit/s of each device's link to the others; if not given, as such devices are linked in one "
        "machine, and 10 between machines.",
    ),
    click.option(
        "--no-overlap",
        is_flag=True,
        help="Exchange nothing during the backward pass: right for replicas that share a CPU.",
    ),
    click.option(
        "--input-ms-per-sample",
        "input_ms",
        type=float,
        default=0.0,
        metavar="T",
        help="What the input pipeline takes beside training; a device that is faster waits for it.",
    ),
)


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How devices exchange gradients and what feeds them: strategy, link_gbps, no_overlap, input_ms."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command

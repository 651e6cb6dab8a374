"""Parts that the answers of all tabs share, as plain data: commands, cards, the table of blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lolat.errors import LolatError
from lolat.io.paths import find_model
from lolat.report.charts import bar
from lolat.units import milliseconds, percent
from lolat.web.fields import FIELDS
from lolat.web.networks import NetworkKey

MOST_BLOCKS = 24
"""Rows of a table of blocks; of a longer network the rest is one row."""


def named(network: NetworkKey, file_name: str) -> list[str]:
    """NETWORK of a command; `file_name`: what one that was given as a file is called."""
    size = ["--input-size", ",".join(map(str, network.size))] if network.size else []
    return [file_name if network.uploaded else network.spec, *size]


def options(values: dict[str, str]) -> list[str]:
    """Fields as options of a command, without those that are as at first."""
    chosen = {name: text for name, text in values.items() if text != FIELDS[name].default}
    return [word for n, text in chosen.items() for word in ("--" + n.replace("_", "-"), text)]


def shown_path(path: Path) -> str:
    """A model as it is typed in the server's working directory: its name if that finds it, or its path."""
    with contextlib.suppress(LolatError, OSError):
        if find_model(path.stem).resolve() == path:
            return path.stem
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def between(ends: tuple[float, float] | None, words: Callable[[float], str]) -> str:
    """An interval in words, "" for none."""
    if not ends:
        return ""
    low, high = map(words, ends)
    return f"{low.removesuffix(' ms') if high.endswith(' ms') else low} to {high}"


def block_rows(names: Sequence[str], times: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """The rows of a table of blocks, in the network's order; the shortest of many together in one.

    `times`: of each device, the ms of each block. `blocks` of a row: which of `names` it is of.
    """
    totals = [sum(own) or 1.0 for own in times]
    shares = [[ms / total for ms in own] for own, total in zip(times, totals, strict=True)]
    order = sorted(range(len(names)), key=lambda i: -max(own[i] for own in shares))
    groups = [([i], names[i]) for i in sorted(order[:MOST_BLOCKS])]
    if rest := sorted(order[MOST_BLOCKS:]):
        groups.append((rest, f"{len(rest)} shorter ones together"))
    summed = [[sum(own[i] for i in group) for own in shares] for group, _ in groups]
    longest = max((share for row in summed for share in row), default=0.0) or 1.0
    return [
        {
            "name": name,
            "blocks": group,
            "summary": "",
            "most": "",
            "cells": [
                {
                    "ms": milliseconds(sum(times[d][i] for i in group)),
                    "share": percent(share),
                    "bar": Markup(bar(share / longest, d)),
                }
                for d, share in enumerate(row)
            ],
        }
        for (group, name), row in zip(groups, summed, strict=True)
    ]

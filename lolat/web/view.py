"""What the page's template shows, as plain data: every number a text with its unit."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lolat.errors import LolatError
from lolat.graph import Graph
from lolat.io.paths import find_model
from lolat.report.charts import Dot, bar, frontier_chart, key
from lolat.training.cost import LEFT_OUT, Option, device_of, frontier
from lolat.training.exchange import Link, assumed_link
from lolat.training.model import PARTS
from lolat.units import (
    dollars,
    duration,
    gibibytes,
    milliseconds,
    percent,
    plain,
    plural,
)
from lolat.web.answer import DeviceAnswer
from lolat.web.forms import FIELDS, Asked, Chosen

# ---- The command lines that give what a page shows.


def commands(asked: Asked, answer: DeviceAnswer, file_name: str, chosen: Chosen) -> tuple[str, ...]:
    """`lolat cost`, where there is a price, and `lolat training predict`, for a POSIX shell.

    `file_name`: what a network that was given as a file is called; options that are as without them are
    left out.
    """
    network = [file_name if asked.network.uploaded else asked.network.spec]
    if asked.network.size:
        network += ["--input-size", ",".join(map(str, asked.network.size))]
    run = ["--samples", str(asked.samples), "--epochs", str(asked.epochs)]
    run += ["--batch-size", str(asked.batch_size)]
    usual = {"strategy": "strategy", "link-gbps": "link_gbps", "optimizer": "optimizer",
             "billing": "billing", "coverage": "coverage"}  # fmt: skip

    def others(given: dict[str, str]) -> list[str]:
        return [
            word
            for option, value in given.items()
            if value != FIELDS[usual[option]].default
            for word in (f"--{option}", value)
        ]

    def common(link: Link | None) -> list[str]:
        exchange = {"strategy": asked.strategy, "link-gbps": f"{link.gbps:.12g}" if link else ""}
        sure = {"coverage": f"{asked.coverage:.12g}"}
        return others({"optimizer": asked.optimizer, **exchange, **sure})

    model = shown_path(answer.device.path)
    found = []
    if answer.priced:
        devices = ["--devices", ",".join(str(o.devices) for o in answer.plan.options)]
        money = [] if chosen.price is None else ["--price-per-hour", f"{chosen.price:.12g}"]
        billing = others({"billing": asked.billing})
        found.append(
            [
                "lolat",
                "cost",
                model,
                *network,
                *run,
                *devices,
                *money,
                *billing,
                *common(asked.link),
            ]
        )
    several = ["--devices", str(asked.devices)] if asked.devices > 1 else []
    room = []
    if chosen.memory_bytes is not None:
        room = ["--memory-gib", f"{chosen.memory_bytes / 2**30:.12g}"]
    predict = ["lolat", "training", "predict", model, *network, *run, *several, *room]
    link = asked.link
    if answer.device.model is not None and not link:  # without prices it knows no instances
        usually = assumed_link(device_of(answer.device.model), asked.devices)
        link = None if answer.link == usually else answer.link
    found.append([*predict, *common(link)])
    return tuple(shlex.join(words) for words in found)


def shown_path(path: Path) -> str:
    """A model as it is typed in the server's working directory: its name if that finds it, or its path."""
    with contextlib.suppress(LolatError, OSError):
        if find_model(path.stem).resolve() == path:
            return path.stem
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


# ---- view ----------------------------------------

MOST_BLOCKS = 24
"""Rows of the chart of an iteration; of a longer network the rest is one row."""


def shown(
    asked: Asked, graph: Graph, file_name: str, found: Sequence[DeviceAnswer]
) -> dict[str, Any]:
    """The answer as the template needs it."""
    chosen = {c.key: c for c in asked.models}
    several = len(found) > 1
    warnings = dict.fromkeys(
        (f"{a.device.key}: {plain(w)}" if several else plain(w))
        for a in found
        for w in (*a.training.warnings, *_remarks(a))
    )
    return {
        "network": plain(graph.name),
        "run": f"{plural(asked.epochs, 'epoch')} of {plural(asked.samples, 'sample')}, batch "
        f"{asked.batch_size:,} on {_devices(asked.devices)}, {asked.optimizer}",
        "several": several,
        "cards": [_card(asked, a, i if several else None) for i, a in enumerate(found)],
        "blocks": _blocks(found),
        "plan": _plan(asked, found),
        "warnings": list(warnings),
        "commands": [
            {"device": a.device.key, "lines": commands(asked, a, file_name, chosen[a.device.key])}
            for a in found
        ],
        "uploaded": asked.network.uploaded,
        "file_name": file_name,
        "left_out": ", ".join(LEFT_OUT),
    }


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"each of {count:,} devices"


def _remarks(answer: DeviceAnswer) -> list[str]:
    if answer.training.interval_s is None:
        return ["how sure the time is, is not known"]
    return []


def _card(asked: Asked, answer: DeviceAnswer, series: int | None) -> dict[str, Any]:
    """One model's answer: the total first."""
    t, option = answer.training, answer.option
    assert t.total_s is not None
    assert t.epoch_s is not None
    rows = [
        ("An iteration", milliseconds(t.iteration_ms), _parts(t.parts_ms)),
        ("An epoch", duration(t.epoch_s), plural(t.iterations or 0, "iteration")),
    ]
    if t.startup_s:
        rows.append(("Starting", duration(t.startup_s), "more for the first epoch"))
    if asked.devices > 1:
        whose = "assumed" if answer.link.name else "the link given"
        rows.append(("Gradients travel over", str(answer.link), whose))
    if answer.priced:
        rented = (
            f"{option.instances} × {plain(option.instance_type)}, " if option.instance_type else ""
        )
        rows.append(
            ("An hour costs", dollars(option.price_per_hour), rented + plain(answer.price_from))
        )
        rows.append(("An epoch costs", dollars(option.dollars_per_epoch), ""))
    rows.append(_memory(asked, answer))
    return {
        "key": answer.device.key,
        "mark": None if series is None else Markup(key(series)),
        "device": answer.device.device,
        "total": duration(t.total_s),
        "sure": None
        if t.interval_s is None
        else f"{percent(t.coverage)} sure of {_between(t.interval_s, duration)}",
        "dollars": dollars(option.dollars) if answer.priced else None,
        "dollars_sure": _between(option.dollars_interval, dollars)
        if answer.priced and option.dollars_interval
        else None,
        "rows": rows,
        "fits": answer.fits,
    }


def _between(ends: tuple[float, float], words: Any) -> str:
    return f"{words(ends[0])} to {words(ends[1])}"


def _parts(parts_ms: dict[str, float | None]) -> str:
    """What an iteration is made of, as far as the model tells it apart."""
    known = [(p, parts_ms.get(p)) for p in PARTS]
    return ", ".join(f"{name} {milliseconds(ms)}" for name, ms in known if ms)


def _memory(asked: Asked, answer: DeviceAnswer) -> tuple[str, str, str]:
    needs = gibibytes(answer.training.memory_bytes)
    if answer.memory_bytes is None:
        return (
            "Memory",
            needs,
            "estimated, on each device; give the device's to see whether it fits",
        )
    has = f"of {gibibytes(answer.memory_bytes)} on each device"
    if answer.fits:
        return "Memory", needs, f"{has}: fits, and so would a batch of {answer.largest:,}"
    mend = (
        f"the largest batch that does is {answer.largest:,}"
        if answer.largest
        else "nor does a batch of 1"
    )
    return "Memory", needs, f"{has}: does not fit; {mend}"


def _blocks(found: Sequence[DeviceAnswer]) -> dict[str, Any]:
    """The rows of the chart of an iteration, in the network's order; the shortest of many together."""
    lengths = [max(a.blocks[i].share for a in found) for i in range(len(found[0].blocks))]
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    kept = sorted(order[:MOST_BLOCKS])
    rest = [i for i in range(len(lengths)) if i not in set(kept)]
    groups = [([i], plain(found[0].blocks[i].name)) for i in kept]
    if rest:
        groups.append((rest, f"{len(rest)} shorter ones together"))
    longest = max(
        (sum(a.blocks[i].share for i in group) for a in found for group, _ in groups), default=1.0
    )
    rows = []
    for group, name in groups:
        cells = []
        for at, a in enumerate(found):
            share = sum(a.blocks[i].share for i in group)
            cells.append(
                {
                    "ms": milliseconds(sum(a.blocks[i].iteration_ms for i in group)),
                    "share": percent(share),
                    "bar": Markup(bar(share / (longest or 1.0), at)),
                }
            )
        rows.append({"name": name, "cells": cells})
    top = [i for i in order[:3] if lengths[i] > 0]
    names = " and ".join(plain(found[0].blocks[i].name) for i in top[:1])
    return {
        "rows": rows,
        "heads": [a.device.key for a in found],
        "sentence": f"The longest of {len(lengths)}, {names}, takes {percent(lengths[top[0]])} of an "
        f"iteration on one device."
        if top
        else "",
    }


def _plan(asked: Asked, found: Sequence[DeviceAnswer]) -> dict[str, Any]:
    """The table over numbers of devices, and the chart of money and time."""
    options: list[tuple[int, DeviceAnswer, Option]] = [
        (i, a, o) for i, a in enumerate(found) for o in a.plan.options
    ]
    priced = [(i, a, o) for i, a, o in options if a.priced]
    best = dict(
        zip(
            (id(o) for _, _, o in priced),
            frontier([(o.total_s, o.dollars) for _, _, o in priced]),
            strict=True,
        )
    )
    rows = [
        {
            "model": a.device.key,
            "mark": Markup(key(i)) if len(found) > 1 else "",
            "devices": f"{o.devices:,}",
            "rented": f"{o.instances} × {plain(o.instance_type)}" if o.instance_type else "",
            "idle": plural(o.idle_devices, "device") + " idle" if o.idle_devices else "",
            "total": duration(o.total_s),
            "between": _between(o.interval_s, duration) if o.interval_s else "not known",
            "dollars": dollars(o.dollars) if a.priced else "",
            "dollars_between": _between(o.dollars_interval, dollars)
            if a.priced and o.dollars_interval
            else "",
            "on_frontier": best.get(id(o), False),
        }
        for i, a, o in options
    ]
    return {
        "rows": rows,
        "priced": bool(priced),
        "rented": any(row["rented"] for row in rows),
        "coverage": percent(asked.coverage),
        "left_out": _left_out(asked, found[0]),
        "sentence": _choice(priced, len(found) > 1),
        "chart": _chart(priced, best, len(found) > 1) if priced else None,
    }


def _left_out(asked: Asked, answer: DeviceAnswer) -> str:
    """Which numbers of devices are not in the table, and why."""
    shown = {o.devices for o in answer.plan.options}
    missing = [k for k in asked.compare if k not in shown]
    if not missing:
        return ""
    return (
        f"Not shown: {', '.join(f'{k:,}' for k in missing)} devices, whose batches of {asked.batch_size:,} "
        f"together are larger than the data set of {asked.samples:,} samples."
    )


def _choice(priced: Sequence[tuple[int, DeviceAnswer, Option]], several: bool) -> str:
    if not priced:
        return "Give a price to see what it costs."

    def said(one: tuple[int, DeviceAnswer, Option]) -> str:
        _, answer, o = one
        where = f" of {answer.device.key}" if several else ""
        return f"{plural(o.devices, 'device')}{where}, {duration(o.total_s)}, {dollars(o.dollars)}"

    cheapest = min(priced, key=lambda p: (p[2].dollars, p[2].total_s, p[2].devices))
    fastest = min(priced, key=lambda p: (p[2].total_s, p[2].dollars, p[2].devices))
    if cheapest is fastest:
        return f"Cheapest and fastest: {said(cheapest)}."
    return f"Cheapest: {said(cheapest)}. Fastest: {said(fastest)}."


def _chart(
    priced: Sequence[tuple[int, DeviceAnswer, Option]], best: dict[int, bool], several: bool
) -> Markup:
    dots = [Dot(o.total_s, o.dollars, f"{o.devices:,}", i, best[id(o)]) for i, _, o in priced]
    told = "; ".join(
        f"{a.device.key + ', ' if several else ''}{plural(o.devices, 'device')}: {duration(o.total_s)}, "
        f"{dollars(o.dollars)}"
        for _, a, o in priced
    )
    return Markup(frontier_chart(dots, told))

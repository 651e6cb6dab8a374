"""The command lines that give what a page shows."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from lolat.errors import LolatError
from lolat.places import find_model
from lolat.training.cost.renting import device_of
from lolat.training.parallel.links import Link
from lolat.training.parallel.machines import assumed_link
from lolat.web.answer import DeviceAnswer
from lolat.web.asked import Asked, Chosen
from lolat.web.fields import FIELDS


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

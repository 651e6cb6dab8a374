"""`lolat learn --mode training`: measures training and adds it to a model file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import click

from lolat.cli.errors import say
from lolat.errors import InputError, LolatError

ADVICE = (
    "give the --backend and options that it was learned with, another --output, or --restart to learn all "
    "anew"
)


def known_model(output: Path, device: str, threads: int | None = None) -> dict[str, Any] | None:
    """The model in `output`, to which training can be added; None where there is none.

    `threads`: that were asked for, if so. What else stands there is replaced, as by any learning.
    InputError for a model of another device.
    """
    from lolat.model_file import read
    from microbench import comparable, environment

    if not output.exists():
        return None
    try:
        document = read(output)
    except LolatError:
        return None
    learned, label = document["environment"], str(document["device"])
    here = comparable.here({"threads_asked": threads}, device)
    other = device == "cpu" and comparable.differences_of_device(label, learned, here)
    if learned.get("device") != device or other:
        own = environment.label_of(device, here) if device == "cpu" else f"a {device}"
        raise InputError(
            f"{output} is a model of another device: {label}, and this is {own}; give another --output, "
            "or --restart to replace it"
        )
    return document


def kept_training(output: Path, learned: Mapping[str, Any]) -> dict[str, Any]:
    """{"training": ...} of the model in `output`, if its latencies now are `learned` on the same device.

    What took minutes to measure is not lost where the latencies are learned again; {} where there is none.
    """
    from lolat.model_file import read
    from microbench.extend import refuse_another

    try:
        old = read(output)
        section = old["training"]
        refuse_another(str(old["device"]), section["environment"], learned["environment"])
    except (LolatError, KeyError, TypeError, AttributeError):
        return {}
    return {"training": section}


def add_training(
    document: Mapping[str, Any], output: Path, backend: str, device: str, restart: bool
) -> None:
    """Measure training on this device and write it to `output`, in `document`, a latency model's.

    Where the file was changed meanwhile, training is added to what it is then. InputError where the
    framework or its settings are not those that `document` was learned with.
    """
    from lolat.cli.learn import interruptible
    from lolat.cli.progress import progress
    from lolat.model_file import write
    from microbench import comparable
    from microbench.backends import threads_of
    from microbench.learn_training import measure_training

    started = time.monotonic()
    if unsaid := comparable.unsaid(document["environment"]):
        say(f"warning: {output}: {unsaid}")
    journal_path = output.with_name(output.name + ".training.journal.jsonl")
    with interruptible(journal_path):
        with progress() as bar:
            section, journal = measure_training(
                backend, device, journal_path, time.time(), restart, bar,
                check=partial(_refuse, document),
            )  # fmt: skip
        section["environment"]["seconds"] = round(time.monotonic() - started, 1)
        now = known_model(output, device, threads_of(backend)) or document
        _refuse(now, section["environment"])
        write(output, {**now, "training": section})
    journal.remove()
    for remark in section["warnings"]:
        say(f"warning: {remark}")
    for line in learned_training(section, output):
        click.echo(line)


def _refuse(document: Mapping[str, Any], where: Mapping[str, Any]) -> None:
    """InputError where training would be measured otherwise than the latencies of the file were."""
    from microbench.extend import refuse_another

    refuse_another(str(document["device"]), document["environment"], where, ADVICE)


def learned_training(section: Mapping[str, Any], output: Path) -> list[str]:
    """What a person reads after it."""
    blocks = {p["name"] for p in section["points"]}
    both = section["error"]["left_out_median"]
    noise = section["noise"]
    return [
        f"training: {len(section['points'])} passes of {len(blocks)} blocks, "
        f"{len(section['update_points'])} updates by {len(section['update_ms'])} optimisers "
        f"in {section['environment']['seconds']:.0f} s",
        f"  forward and backward of blocks left out: median error {100 * both:.1f} %; noise "
        f"{100 * noise['floor']:.1f} %, calm for {100 * noise['calm_share']:.0f} % of the run",
        f"written: {output}",
        f"Next: lolat training predict {quote(str(output))} keras:ResNet50 --batch-size 32 --samples 50000",
    ]

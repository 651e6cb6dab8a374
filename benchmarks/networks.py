"""Accuracy on whole networks of fourteen families and on blocks cut from them: measure once, judge models.

    python benchmarks/networks.py MODEL ... [--measured FILE] [--half chosen|reported]

Blocks, terms and thresholds were chosen on the predefined blocks and on the first seven families
("chosen"); the other seven ("reported") say how good the result is. `--measured FILE` keeps what was
measured; what it holds already is not measured again. Prints the tables of docs/accuracy.md.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lolat.blocks import cut
from lolat.cli.progress import progress
from lolat.graph import Graph
from lolat.model import Model, load
from lolat.readers import open_network
from lolat.report.evaluation import compare
from lolat.units import percent
from microbench.evaluate import Case, MeasuredNetwork, case_graph, measure_cases

CHOSEN, REPORTED = "chosen", "reported"
ROWS = """
ResNet50 288x1 192x4 256x16, ResNet101 320x2 96x8, MobileNet 160x16 320x2 128x4 256x1 288x8,
MobileNetV3Small 96x8 288x4 160x16, MobileNetV3Large 320x2 224x1, EfficientNetB0 192x8 320x1 160x16,
EfficientNetB2 96x2 256x4, DenseNet121 224x16 160x4 96x1, DenseNet201 128x2 320x8,
Xception 128x8 96x4 256x1 320x2 192x16, ConvNeXtTiny 160x4 96x4 192x2, ConvNeXtSmall 320x1 288x1;
ResNet50V2 96x1 288x2 160x16, ResNet152V2 128x4 192x8, MobileNetV2 256x4 128x1 320x2 224x8 96x16,
EfficientNetV2B0 160x8 320x16, EfficientNetV2B3 96x1 288x4, EfficientNetV2S 128x2,
VGG16 192x4 128x1 224x4, VGG19 96x2 160x8, InceptionV3 288x4 224x2 256x8 192x16 128x1,
InceptionResNetV2 288x1 192x2 160x8 96x4 256x8, NASNetMobile 128x4 288x1 256x8 192x2 224x16
"""
"""NETWORK and PIXELSxBATCH: five sizes of each family, drawn at random (batch 1 to 16, 96 to 320 pixels,
no pass of more than about a second); chosen on; and reported on."""
BLOCKS_PER_NETWORK = 2
STATE = 1.2  # times the model's reference: more is another state of the machine
TRIES = 4
EXTRA_S = 40.0  # of waiting for calm moments, of each part
AT_ONCE = 12  # cases in one process: large ones that wait for their turn slow the others down


def networks(half: str | None = None) -> list[Case]:
    """The whole networks of a half, or all."""
    found = []
    for name, part in zip((CHOSEN, REPORTED), ROWS.split(";"), strict=True):
        if half in (None, name):
            for row in part.split(","):
                network, *sizes = row.split()
                pairs = [map(int, s.split("x")) for s in sizes]
                found += [Case(f"keras:{network}", n, (pixels,)) for pixels, n in pairs]
    return found


def network_of(case: Case) -> Graph:
    """The whole network of a case; each is read once."""
    return _read(case.spec, case.input_size)


@cache
def _read(spec: str, input_size: tuple[int, ...]) -> Graph:
    return open_network(spec, input_size).graph()


def blocks(wanted: Sequence[Case]) -> list[Case]:
    """Some blocks of each network, drawn at random, at its size and batch size; none twice."""
    draw = random.Random(1)
    found = []
    for case in wanted:
        number = len(cut(network_of(case)))
        for block in draw.sample(range(number), min(number, BLOCKS_PER_NETWORK)):
            found.append(Case(case.spec, case.batch_size, case.input_size, block))
    return found


def half_of(case: Case | MeasuredNetwork) -> str:
    """Which half a network, or the network of a block, belongs to."""
    return CHOSEN if case.spec in _chosen() else REPORTED


@cache
def _chosen() -> frozenset[str]:
    return frozenset(c.spec for c in networks(CHOSEN))


def split(measured: Sequence[MeasuredNetwork]) -> Iterator[tuple[str, list[MeasuredNetwork]]]:
    """(title, the measured) of each part that the goals are about."""
    for half in (CHOSEN, REPORTED):
        yield f"networks, {half}", [m for m in measured if m.block is None and half_of(m) == half]
    for half in (CHOSEN, REPORTED):
        yield f"blocks, {half}", [m for m in measured if m.block is not None and half_of(m) == half]


def figures(model: Model, measured: Sequence[MeasuredNetwork]) -> list[str]:
    """Cells of a row: extended, two-regime, interval."""
    result = compare(model, measured, {})
    ours, published = (result["summary"][n] for n in (model.default, "two-regime"))
    sure, inside = result["intervals"], "-"
    if sure is not None:
        low, high = map(_whole, sure["bounds"])
        inside = f"{sure['inside']} of {sure['of']} ({low} to {high})"
    return [
        str(len(measured)),
        percent(ours["median"]),
        _whole(ours["within_10_percent"]),
        _or_dash(ours["median_from_2_ms"]),
        _or_dash(ours["median_below_2_ms"]),
        percent(published["median"]),
        inside,
        _or_dash(None if sure is None else sure["median_width"]),
    ]


def _whole(share: float) -> str:
    return f"{100 * share:.0f} %"


HEADER = (
    "model", "measured", "number", "median error", "within 10 %", "from 2 ms", "below 2 ms",
    "two-regime", "inside the 90 % interval", "its width",
)  # fmt: skip


def table(models: Sequence[Model], measured: Sequence[MeasuredNetwork]) -> Iterator[str]:
    """A Markdown table: a row for each model and part."""
    yield "| " + " | ".join(HEADER) + " |"
    yield "|" + " --- |" * len(HEADER)
    for title, part in split(measured):
        if part:
            for model in models:
                yield "| " + " | ".join([model.name, title, *figures(model, part)]) + " |"


def details(model: Model, measured: Sequence[MeasuredNetwork]) -> Iterator[str]:
    """A Markdown table: a row for each network, two-regime beside."""
    yield "| network | pixels | batch | measured | extended | | two-regime | |"
    yield "| --- | --: | --: | --: | --: | --: | --: | --: |"
    for case, row in zip(measured, compare(model, measured, {})["networks"], strict=True):
        cells = " | ".join(
            f"{row['predicted_ms'][n]:.2f} | {100 * row['error'][n]:+.1f} %"
            for n in (model.default, "two-regime")
        )
        name = case.spec.removeprefix("keras:")
        if case.block is not None:
            name += f" {cut(network_of(_case(case)))[case.block].name}"
        yield (
            f"| {name} | {case.input_size[0]} | {case.batch_size} | {row['measured_ms']:.2f} ms | "
            f"{cells} |"
        )


def _or_dash(value: float | None) -> str:
    return "-" if value is None else percent(value)


def recall(path: Path) -> list[MeasuredNetwork]:
    """What an earlier run measured."""
    found = []
    for row in json.loads(path.read_text(encoding="utf-8"))["networks"]:
        case = Case(row["network"], row["batch_size"], tuple(row["input_size"]), row["block"])
        found.append(measured_again(case, row))
    return found


def measured_again(case: Case, row: dict[str, Any]) -> MeasuredNetwork:
    """A measured network from its row in a file; the network is read again to count it."""
    return MeasuredNetwork(
        case.spec, case_graph(case, network_of(case)), case.batch_size, row["measured_ms"], row["spread"],
        row["calm"], case.input_size, case.block,
    )  # fmt: skip


def measure(
    wanted: Sequence[Case], noise: dict[str, Any], path: Path | None
) -> list[MeasuredNetwork]:
    """Measure what `path` does not hold yet, some at a time; each part is kept there when it is done.

    `noise`: of the model, whose state of the machine is waited for: a part that saw another one is
    measured again at the end, at most TRIES times, and then left out.
    """
    found = recall(path) if path is not None and path.exists() else []
    known = {_case(m) for m in found}
    todo = [c for c in wanted if c not in known]
    parts = [(todo[i : i + AT_ONCE], 1) for i in range(0, len(todo), AT_ONCE)]
    while parts:
        part, tries = parts.pop(0)
        with progress() as bar:
            measured, failures, _, steady = measure_cases(
                "tensorflow", "cpu", part, bar, noise.get("calm_ms"), EXTRA_S
            )
        for name, reason in failures.items():
            click.echo(f"not measured: {name}: {reason}", err=True)
        if steady["reference_ms"] > STATE * noise.get("reference_ms", math.inf):
            again = "once more later" if tries < TRIES else "left out"
            click.echo(f"another state, {steady['reference_ms']:.2f} ms: {again}", err=True)
            parts += [(part, tries + 1)] if tries < TRIES else []
            continue
        found += measured
        if path is not None:
            keep(path, found)
    return found


def _case(measured: MeasuredNetwork) -> Case:
    return Case(measured.spec, measured.batch_size, measured.input_size, measured.block)


def keep(path: Path, measured: Sequence[MeasuredNetwork]) -> None:
    """Write what was measured, as `lolat evaluate --json` does: `lolat compare --networks` reads it."""
    rows = [
        {
            "network": m.spec, "batch_size": m.batch_size, "input_size": list(m.input_size),
            "block": m.block, "measured_ms": m.latency_ms, "spread": m.spread, "calm": m.calm,
        }
        for m in measured
    ]  # fmt: skip
    text = json.dumps({"networks": rows}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--measured", "path", type=click.Path(path_type=Path), help="Keep or use again.")
@click.option("--half", type=click.Choice([CHOSEN, REPORTED]), help="Measure this one only.")
@click.option("--whole", is_flag=True, help="Whole networks only, no blocks.")
def main(models: tuple[str, ...], path: Path | None, half: str | None, whole: bool) -> None:
    """Judge MODELs on whole networks and blocks that they were not learned from."""
    loaded = [load(m) for m in models]
    wanted = networks(half)
    wanted += [] if whole else blocks(wanted)
    found = measure(wanted, loaded[0].document["noise"], path)
    click.echo(f"no calm moment: {sum(not m.calm for m in found)} of {len(found)}", err=True)
    for line in table(loaded, found):
        click.echo(line)
    for title, part in split(found):
        click.echo(f"\n{title}\n")
        for line in details(loaded[0], part) if part else ():
            click.echo(line)


if __name__ == "__main__":
    main()

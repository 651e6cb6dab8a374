"""`lolat compare`: all predictors on the same measured points, side by side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from lolat.cli import common
from lolat.errors import InputError
from lolat.io.writing import check_file

KIND = re.compile(r" \(family \d+ model \d+\)")
"""What newer labels of processors have behind the name."""


@common.command("lolat compare epyc-2t --html compare.html")
@common.model_argument
@common.option(
    "--networks",
    "evaluation",
    type=click.Path(),
    metavar="FILE",
    help="Judge on these networks too: what `lolat evaluate MODEL --json` wrote.",
)
@common.csv_option(more="The figures.")
@common.html_option
@common.json_option
def compare(
    model: str, evaluation: str | None, csv_file: Path | None, html_file: str | None, as_json: bool
) -> None:
    """Judge LoLat's formulas and others on the points of MODEL; nothing is measured.

    Each predictor is fitted with a tenth of the blocks left out at a time and judged on those: extended,
    two-regime, FLOPs alone, a roofline, a random forest and a Gaussian process.
    """
    from lolat.comparison.candidates import check_sklearn
    from lolat.comparison.judging import ROUNDS, count_networks, judge, read_evaluation, steps
    from lolat.fitting.points import Point
    from lolat.model import load
    from lolat.report import comparison as report

    check_file(csv_file, "--csv")
    check_file(html_file, "--html")
    check_sklearn()
    loaded = load(model)
    points = [Point.from_dict(p) for p in loaded.inference["points"]]
    if not points:
        raise InputError(
            f"{loaded.source} has no points, so there is nothing to compare on; expected a model that was "
            "measured (lolat learn) or fitted from a table (lolat fit)"
        )
    networks, device = read_evaluation(evaluation) if evaluation is not None else ([], None)
    if device is not None and device != loaded.device:
        both = f"{evaluation} was measured for {device}; {model} was learned on {loaded.device}"
        common.say(f"warning: {both}{of_one_name(device, loaded.device)}")
    with common.progress("two to three minutes: every predictor is fitted eleven times") as bar:
        if networks:
            bar.start("reading networks", len(networks))
        networks, counts, skipped = count_networks(networks, done=bar.step)
        for label, reason in skipped.items():
            bar.note(f"warning: skipped {label}: {reason}")
        if evaluation is not None and not networks:
            raise InputError(
                f"none of the networks in {evaluation} could be read here; run the command where they are, "
                "or leave --networks out"
            )
        bar.start("fitting", steps(points))
        found = judge(points, counts, done=bar.step)
        bar.start("timing", ROUNDS)
        speeds = _speeds(points, found, bar.step)
    result = report.compare(loaded, points, found, networks, speeds)
    result["skipped"] = skipped
    if as_json:
        common.say_json("comparison", result)
    else:
        report.print_comparison(result)
    if csv_file is not None:
        report.write_csv(csv_file, result)
        common.say(f"written: {csv_file}")
    if html_file is not None:
        report.write_page(html_file, result)
        common.say(f"written: {html_file}")


def of_one_name(one: str, other: str) -> str:
    """What is to be added where of two devices' labels one says which kind of a processor it is."""
    without = {KIND.sub("", label) for label in (one, other)}
    if len(without) == 1 and without & {one, other}:
        return (
            ": one of these does not say which processor that is, so that they may be two or one; learn "
            "or measure it again to know"
        )
    return ""


def _speeds(points: list[Any], found: Any, done: Any) -> dict[str, Any]:
    """How fast each of the fitted predictors answers."""
    from lolat.comparison.judging import many_rows, speeds
    from lolat.fitting.points import known_features, matrix

    known = known_features(points)
    fitted = {
        j.candidate.name: (j.fitted, [known.index(name) for name in j.features])
        for j in found.judged
    }
    return speeds(fitted, many_rows(matrix(points, known)), done=done)

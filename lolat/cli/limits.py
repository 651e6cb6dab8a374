"""The limits of `lolat predict`: with them it is a check, of a pull request for example."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import lolat
from lolat.cli import common
from lolat.cli.parsing import Number
from lolat.errors import AnswerIsNo, InputError
from lolat.io.writing import write_bytes
from lolat.units import plain

if TYPE_CHECKING:
    from lolat.model.budget import Finding, Limits
    from lolat.model.prediction import Prediction


def coverage_of(sure: float | None, given: float | None) -> float | None:
    """Of the interval. InputError where --sure and --coverage say two things."""
    if sure is not None and given not in (None, sure):
        raise InputError(
            f"--sure and --coverage are two answers; give --sure {100 * given:g} alone"
        )
    return given if sure is None else sure


@dataclass(frozen=True)
class Limited:
    """The options of a check."""

    max_ms: float | None
    sure: float | None
    max_ratio: float | None
    against: str | None
    github: bool
    junit: str | None

    def limits(
        self, model: str, batch_size: int, predictor: str | None, input_size: tuple[int, ...]
    ) -> Limits:
        """The limits; the model is for `--against` a network. InputError for wrong ones."""
        from lolat.model.budget import TOGETHER, Limits, before_of, is_prediction, read_before

        if (self.github or self.junit is not None) and self.max_ms is self.max_ratio is None:
            raise InputError(
                "--github and --junit are of a check; expected --max-ms or --max-ratio too"
            )
        before = None
        if self.against is not None and self.max_ratio is not None:
            if is_prediction(self.against):
                before = read_before(self.against)
            else:
                asked = (self.against, batch_size, predictor)
                before = before_of(lolat.load(model).predict(*asked, input_size=input_size))
        elif self.against is not None or self.max_ratio is not None:
            raise InputError(TOGETHER)
        return Limits(self.max_ms, self.sure, self.max_ratio, before)

    def check(
        self, predictions: Sequence[Prediction], limits: Limits, devices: Sequence[str]
    ) -> None:
        """Say and write what was found; AnswerIsNo where a limit is not kept. `devices`: to be named."""
        from lolat.model.budget import check

        found = check(predictions, limits, devices)
        for line in github_lines(found) if self.github else ():
            click.echo(line, err=True)
        if self.junit is not None:
            write_junit(self.junit, found)
        if wrong := [f.words for f in found if not f.holds]:
            many = f"{len(wrong)} of {len(found)} limits: " if len(found) > 1 else ""
            raise AnswerIsNo(many + "; ".join(wrong))


limit_options = common.as_one(
    "limited",
    lambda: Limited,
    common.max_ms_option(more="Exit code 3 where it takes longer."),
    common.sure_option,
    common.option("--max-ratio", type=Number("R", above=0.0, such="1.05"),
                  help="Exit code 3 where it takes more than R times as long as --against."),
    common.against_option(more="A network, or what `predict --json` wrote of the base branch."),
    common.option("--github", is_flag=True, help="Annotations of GitHub Actions too, on stderr."),
    common.option("--junit", type=click.Path(), metavar="FILE", help="Write JUnit's XML too."),
)  # fmt: skip
"""The options of a check, which the command gets as one `limited`."""


# ---- Findings as machines that run checks read them: annotations of GitHub Actions, JUnit's XML.

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def github_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """A workflow command for each: ::error where a limit is not kept, else ::notice.

    GitHub's escapes: docs.github.com, "Workflow commands for GitHub Actions".
    """
    data = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    properties = data | str.maketrans({":": "%3A", ",": "%2C"})
    for finding in findings:
        kind = "notice" if finding.holds else "error"
        title = f"latency {finding.limit}".translate(properties)
        yield f"::{kind} title={title}::{finding.words.translate(data)}"


def write_junit(path: str | Path, findings: Sequence[Finding]) -> None:
    """Write a test case for each limit of each prediction. InputError where it cannot be written.

    The layout that CI servers read: testsuites/testsuite/testcase, a failure in those not kept. The time of
    a case is the predicted latency, in seconds.
    """
    from xml.etree import ElementTree

    def text(words: str) -> str:
        """What XML can hold: names come out of files."""
        return _NOT_XML.sub("?", plain(words))

    failures = sum(not f.holds for f in findings)
    numbers = {"tests": str(len(findings)), "failures": str(failures), "errors": "0"}
    root = ElementTree.Element("testsuites", numbers)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "lolat", **numbers})
    for finding in findings:
        p = finding.prediction
        name = text(f"batch {p.batch_size} {finding.limit}")
        about = {"classname": text(f"{p.model}.{p.network}"), "name": name}
        about["time"] = f"{p.latency_ms / 1e3:.6f}"
        case = ElementTree.SubElement(suite, "testcase", about)
        if finding.holds:
            ElementTree.SubElement(case, "system-out").text = text(finding.words)
        else:
            ElementTree.SubElement(case, "failure", {"message": text(finding.words)})
    ElementTree.indent(root)
    write_bytes(path, ElementTree.tostring(root, "utf-8", xml_declaration=True) + b"\n")

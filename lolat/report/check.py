"""Findings of a check as machines that run checks read them: annotations of GitHub Actions, JUnit's XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from lolat.io.writing import write_bytes
from lolat.model.check import Finding
from lolat.units import plain

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def github_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """A workflow command for each: ::error where a limit is not kept, else ::notice.

    GitHub's escapes: docs.github.com, "Workflow commands for GitHub Actions".
    """
    for finding in findings:
        kind = "notice" if finding.holds else "error"
        title = _data(f"latency {finding.limit}").replace(":", "%3A").replace(",", "%2C")
        yield f"::{kind} title={title}::{_data(finding.words)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def write_junit(path: str | Path, findings: Sequence[Finding]) -> None:
    """Write a test case for each limit of each prediction. InputError where it cannot be written.

    The layout that CI servers read: testsuites/testsuite/testcase, a failure in those not kept. The time of
    a case is the predicted latency, in seconds.
    """
    failures = sum(not f.holds for f in findings)
    numbers = {"tests": str(len(findings)), "failures": str(failures), "errors": "0"}
    root = ElementTree.Element("testsuites", numbers)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "lolat", **numbers})
    for finding in findings:
        p = finding.prediction
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": _text(f"{p.model}.{p.network}"),
                "name": _text(f"batch {p.batch_size} {finding.limit}"),
                "time": f"{p.latency_ms / 1e3:.6f}",
            },
        )
        if finding.holds:
            ElementTree.SubElement(case, "system-out").text = _text(finding.words)
        else:
            ElementTree.SubElement(case, "failure", {"message": _text(finding.words)})
    ElementTree.indent(root)
    write_bytes(path, ElementTree.tostring(root, "utf-8", xml_declaration=True) + b"\n")


def _text(text: str) -> str:
    """What XML can hold: names come out of files."""
    return _NOT_XML.sub("?", plain(text))

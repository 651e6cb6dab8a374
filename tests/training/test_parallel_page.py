"""docs/how-to/several-devices.md: its Python runs, and its commands are commands."""

from __future__ import annotations

import doctest
from pathlib import Path

from lolat.training.exchange import interconnect_of

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/several-devices.md"


def test_its_python_runs() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 4
    assert found.failed == 0


def test_its_links_are_those_that_are_assumed() -> None:
    text = (
        PAGE.read_text(encoding="utf-8").partition("| an exchange has |\n")[2].partition("\n\n")[0]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[1:]]
    assert len(rows) == 8
    for devices, link, peak, rate in rows:
        for device in devices.split(", "):
            found = interconnect_of(device)
            assert found is not None, device
            said = (found.name, f"{found.peak_gb_s:g} GB/s", f"{found.gbps:g} Gbit/s")
            assert said == (link, peak, rate), device

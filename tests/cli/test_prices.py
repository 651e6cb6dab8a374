"""`lolat prices` and `lolat prices refresh`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lolat.io import paths as places
from tests.cli.commands import Command
from tests.training.site import served

HEAD = "InstanceType,Price,AcceleratorName,AcceleratorCount,Region,SpotPrice\n"
LIST = HEAD + "one,3.06,V100,1,there,0.918\none,3.5,V100,1,far,\nbox,0.2,,,here,\n"


@pytest.fixture
def lolat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """With nothing downloaded."""
    monkeypatch.setattr(places, "local_folder", lambda: tmp_path / "local")
    return Command(capsys)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "p.csv"
    path.write_text(LIST)
    return path


def test_the_built_in_table_says_its_sources_and_day(lolat: Command) -> None:
    found = lolat("prices")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    assert lines[0].startswith("US$ an hour of a whole instance, from the built-in table of 20")
    rows = lines[3:]
    assert all("skypilot-org/skypilot-catalog" in row for row in rows)
    assert all(row[-10:-6] >= "2026" for row in rows)
    v100 = next(row for row in rows if "p3.2xlarge" in row)
    assert " ".join(v100.split()).startswith("V100 x1 p3.2xlarge 3.06 0.92 us-east-1 ")
    assert rows[-1].startswith("cpu")
    assert max(map(len, lines)) <= 120


def test_a_file_of_ones_own(lolat: Command, listed: Path) -> None:
    found = lolat("prices", "--prices", listed)
    assert [" ".join(line.split()) for line in found.out.splitlines()[2:]] == [
        "accelerator instance type $/hour spot region source, read",
        "V100 x1 one 3.06 0.92 there p.csv",  # the cheaper region
        "cpu box 0.20 here p.csv",
    ]


def test_json_is_one_object(lolat: Command, listed: Path) -> None:
    found = lolat("prices", "--prices", listed, "--accelerator", "v100", "--json")
    assert (found.code, found.err, len(found.out.splitlines())) == (0, "", 1)
    answer = json.loads(found.out)
    assert [(o["instance_type"], o["price"], o["region"]) for o in answer["offers"]] == [
        ("one", 3.06, "there"),
        ("one", 3.5, "far"),
    ]


def test_refresh_and_then_its_prices(
    lolat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served(tmp_path / "site", {"lambda/vms.csv": LIST}) as url:
        found = lolat("prices", "refresh", "--url", url, "--provider", "lambda", "--json")
        more = lolat("prices", "refresh", "--url", url)
        none = lolat.refused("prices", "refresh", "--url", url, "--provider", "aws")
    answer = json.loads(found.out)
    assert (found.code, found.err) == (0, "")
    assert (answer["offers"], answer["left_out"]) == ({"lambda": 3}, {})
    assert Path(answer["file"]).is_file()
    assert (more.code, f"{answer['date']}: 3 prices (lambda 3) in " in more.out) == (0, True)
    assert "lolat: left out: aws: the server answers 404" in more.err
    assert "has no price list (aws: the server answers 404" in none
    listed = lolat("prices").out
    assert listed.startswith(
        f"US$ an hour of a whole instance, from the catalogue of {answer['date']}"
    )
    assert f"lambda/vms.csv, {answer['date']}" in listed


def test_options_in_front_of_refresh(lolat: Command) -> None:
    assert "options go behind `refresh`" in lolat.refused("prices", "--json", "refresh")

"""`lolat nas fit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.nas.few_devices import layered, only_needed, some_cells, some_layers, write_samples


def test_a_model_is_written_and_described(lolat: Command, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "s.csv", some_cells(12))
    found = lolat("nas", "fit", "--space", "nasbench201", samples, "--output", tmp_path / "m.json")
    assert (found.code, found.err) == (0, "")
    first, assumption, error, last = found.out.splitlines()
    assert first.startswith("nasbench201 from 12 samples · noise ")
    assert "every operation is executed: 100 % sure" in assumption
    assert "Half of all networks of the space should be within" in error
    assert last == f"written: {tmp_path / 'm.json'}"
    assert max(map(len, found.out.splitlines()[:3])) <= 80
    assert json.loads((tmp_path / "m.json").read_text())["schema"] == "lolat-nas-model"


def test_json_says_the_same(lolat: Command, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "s.csv", some_cells(12), only_needed)
    found = lolat(
        "nas", "fit", "--space", "nasbench201", samples, "--output", tmp_path / "m.json", "--json"
    )  # fmt: skip
    told = json.loads(found.out)
    assert told["samples"] == 12
    assert told["space"] == "nasbench201"
    assert told["assumptions"][0]["words"].startswith("operations that the output does not need")
    assert told["assumptions"][0]["weight"] > 0.9
    assert 0.0 < told["typical_error"] < 0.05
    assert told["warnings"] == []


def test_fbnet_is_fitted(lolat: Command, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "s.csv", some_layers(10), layered)
    found = lolat("nas", "fit", "--space", "fbnet", samples, "--output", tmp_path / "m.json")
    assert found.code == 0
    assert found.out.startswith("fbnet from 10 samples")


@pytest.mark.parametrize("count", [1, 9])
def test_few_samples_are_warned_of(lolat: Command, tmp_path: Path, count: int) -> None:
    samples = write_samples(tmp_path / "s.csv", some_cells(count))
    found = lolat("nas", "fit", "--space", "nasbench201", samples, "--output", tmp_path / "m.json")
    assert found.code == 0
    (line,) = found.err.splitlines()
    assert line.startswith(f"lolat: warning: {count} sample")
    assert "lolat nas suggest --have" in line
    assert (tmp_path / "m.json").exists()
    assert "noise" not in found.out  # of so few readings it is not known


def test_samples_that_no_formula_explains_are_not_to_be_trusted(
    lolat: Command, tmp_path: Path
) -> None:
    times = {arch: 10.0 ** (3 * (i % 3)) + 0.001 for i, arch in enumerate(some_cells(6))}
    samples = write_samples(tmp_path / "s.csv", list(times), times.__getitem__)
    found = lolat("nas", "fit", "--space", "nasbench201", samples, "--output", tmp_path / "m.json")
    assert found.code == 0
    assert "4 of 6 samples lie far from what the others say: trust no answer" in found.err


def test_what_is_wrong_is_refused_and_nothing_written(lolat: Command, tmp_path: Path) -> None:
    archs = some_cells(3)
    samples = write_samples(tmp_path / "s.csv", archs)
    output = tmp_path / "m.json"
    fit = ("nas", "fit", "--space", "nasbench201", samples, "--output", output)
    samples.write_text(samples.read_text().replace("3x3", "7x7", 1))
    assert "unknown operation" in lolat.refused(*fit)
    samples.write_text(f"arch,latency_ms\n{archs[0]},1.5\n{archs[0]},1.6\n")
    assert "all 2 rows are of one network" in lolat.refused(*fit)
    samples.write_text(f"arch,latency_ms\n{archs[0]},-1.5\n")
    assert "expected a time above 0" in lolat.refused(*fit)
    samples.write_text("arch,latency_ms\n")
    assert "has no rows" in lolat.refused(*fit)
    samples.write_text(f"arch\n{archs[0]}\n")
    assert "lacks the column latency_ms" in lolat.refused(*fit)
    assert not output.exists()


def test_options_are_asked_for(lolat: Command, tmp_path: Path) -> None:
    assert "--space" in lolat.refused("nas", "fit", "s.csv", "--output", "m.json")
    assert "--output" in lolat.refused("nas", "fit", "--space", "fbnet", "s.csv")
    message = lolat.refused("nas", "fit", "--space", "darts", "s.csv", "--output", "m.json")
    assert "nasbench201" in message
    samples = write_samples(tmp_path / "s.csv", some_cells(3))
    folder = lolat.refused("nas", "fit", "--space", "nasbench201", samples, "--output", tmp_path)
    assert "Is a directory" in folder


def test_the_spaces_offered_are_those_there_are() -> None:
    from lolat.cli.nas import SPACE_NAMES
    from lolat.nas.fewshot.samples import SPACES

    assert SPACE_NAMES == SPACES

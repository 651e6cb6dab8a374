"""`lolat compare`: a whole run on a small model, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lolat.cli import compare
from lolat.comparison.candidates import CANDIDATES, fit_forest
from lolat.errors import NetworkError
from lolat.model import load
from tests import synthetic
from tests.cli.commands import Command


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of few points, so that the fits take no time; few folds, few rows to time."""
    monkeypatch.setattr("lolat.comparison.judging.FOLDS", 2)
    monkeypatch.setattr("lolat.comparison.judging.ROWS", 2000)
    monkeypatch.setattr("lolat.comparison.judging.ROUNDS", 1)
    monkeypatch.setattr("lolat.comparison.judging.ROUND_S", 0.001)
    # tests/comparison has the process itself, whose fit takes seconds
    monkeypatch.setattr("lolat.comparison.candidates.fit_process", fit_forest)
    path = tmp_path / "small.json"
    path.write_text(json.dumps(synthetic.document(synthetic.measured(22, (1, 4)))))
    return path


def evaluation(tmp_path: Path, rows: list[Any], device: str = "a desk, 2 threads") -> Path:
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps({"device": device, "networks": rows}))
    return path


HERE = "tests.synthetic:network"


def test_a_whole_run(
    lolat: Command, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(spec: str, size: Any) -> Any:
        """No framework: the network is a graph already."""
        if spec != HERE:
            raise NetworkError(f"no network {spec!r}")
        return synthetic.network()

    reading = "lolat.comparison.judging.count_networks.__defaults__"
    monkeypatch.setattr(reading, (read, lambda: None))
    rows = [
        {"network": HERE, "batch_size": 1, "measured_ms": 3.0},
        {"network": HERE, "batch_size": 4, "measured_ms": 11.0},
        {"network": "gone", "batch_size": 1, "measured_ms": 1.0},
    ]
    networks = evaluation(tmp_path, rows, "another desk")
    table, page = tmp_path / "c.csv", tmp_path / "c.html"
    files = ("--networks", networks, "--csv", table, "--html", page)
    found = lolat.done("compare", small, *files, "--json")
    result = json.loads(found.out)
    names = [c.name for c in CANDIDATES]
    assert list(result["predictors"]) == names
    assert result["not_compared"] == {}
    assert result["points"] == 44
    assert result["folds"] == 2
    assert result["skipped"] == {"gone": "no network 'gone'"}
    assert [r["measured_ms"] for r in result["networks"]["rows"]] == [3.0, 11.0]
    # The points follow the extended formula but for 3 % of noise.
    assert result["left_out"]["summary"]["extended"]["median"] < 0.1
    assert all(p["one_query_us"] > 0 for p in result["predictors"].values())
    # Fitted on all points, as the model itself was.
    expected = load(small).predict(synthetic.network(), 4).latency_ms
    assert result["networks"]["rows"][1]["predicted_ms"]["extended"] == pytest.approx(expected)
    assert len(table.read_text().splitlines()) == 1 + 2 * len(names)
    assert page.read_text().count("<svg") == 2 * (1 + len(names))
    assert "warning: skipped gone: no network 'gone'" in found.err
    assert "was measured for another desk;" in found.err
    assert f"written: {page}" in found.err


def test_the_tables_in_the_terminal(lolat: Command, small: Path) -> None:
    found = lolat.done("compare", small)
    for candidate in CANDIDATES:
        assert found.out.count(f"\n {candidate.label}") >= 2
    assert " extended * " in found.out
    assert "Whole networks" not in found.out


def test_a_model_without_points(lolat: Command, tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(synthetic.document() | {"points": []}))
    assert "has no points, so there is nothing to compare on" in lolat.refused("compare", path)


def test_networks_that_are_no_evaluation(lolat: Command, small: Path) -> None:
    told = lolat.refused("compare", small, "--networks", small)
    assert "`networks` is missing; expected a list" in told
    assert "lolat evaluate MODEL --json" in told


def test_no_network_that_can_be_read(lolat: Command, small: Path, tmp_path: Path) -> None:
    rows = [{"network": "no", "batch_size": 1, "measured_ms": 1.0}]
    found = lolat("compare", small, "--networks", evaluation(tmp_path, rows))
    assert (found.code, found.out) == (2, "")
    assert "none of the networks in" in found.err.splitlines()[-1]


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_a_file_that_cannot_be_written_is_found_out_first(
    lolat: Command, small: Path, tmp_path: Path, option: str
) -> None:
    ring, no_folder = tmp_path / "ring", tmp_path / "no" / "c"
    ring.symlink_to(ring)
    for path, why in ((no_folder, "no folder"), (ring, ""), (ring / "c", "")):
        told = lolat.refused("compare", small, option, path)
        assert f"{option} {path}: {why}" in told
        assert "expected a file in a folder of yours" in told
    assert re.search("is a (folder|directory)", lolat.refused("compare", small, option, tmp_path))


def test_without_scikit_learn(lolat: Command, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "sklearn" else find(name, *a)
    )
    assert "pip install scikit-learn" in lolat.refused("compare", small)


@pytest.mark.parametrize(
    ("one", "other", "unsaid"),
    [
        ("EPYC, 2 threads", "EPYC (family 25 model 17), 2 threads", True),
        ("EPYC (family 25 model 1), 2 threads", "EPYC, 2 threads", True),
        ("EPYC (family 25 model 1), 2 threads", "EPYC (family 25 model 17), 2 threads", False),
        ("EPYC, 4 threads", "EPYC (family 25 model 17), 2 threads", False),
        ("Xeon, 2 threads", "EPYC, 2 threads", False),
    ],
)
def test_a_label_that_does_not_say_which_processor(one: str, other: str, unsaid: bool) -> None:
    said = compare.of_one_name(one, other)
    assert ("does not say which processor" in said) == unsaid
    assert bool(said) == unsaid

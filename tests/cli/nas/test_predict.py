"""`lolat nas predict`."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.nas.few_devices import everything, some_cells, some_layers, write_samples


@pytest.fixture
def cells(lolat: Command, tmp_path: Path) -> Path:
    samples = write_samples(tmp_path / "samples.csv", some_cells(14))
    path = tmp_path / "cells.json"
    assert lolat("nas", "fit", "--space", "nasbench201", samples, "--output", path).code == 0
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def asked(folder: Path, archs: list[str]) -> Path:
    path = folder / "archs.csv"
    path.write_text("\n".join(["index,arch", *(f"{i},{a}" for i, a in enumerate(archs))]) + "\n")
    return path


def test_the_table_has_all_networks_in_their_order(
    lolat: Command, tmp_path: Path, cells: Path
) -> None:
    archs = some_cells(60, seed=9)
    archs += archs[:5]
    output = tmp_path / "new" / "out.csv"
    found = lolat("nas", "predict", cells, asked(tmp_path, archs), "--output", output)
    assert (found.code, found.err) == (0, "")
    assert found.out == f"written: {output}, 65 networks of nasbench201\n"
    told = rows(output)
    assert output.read_text().splitlines()[0] == "arch,latency_ms"
    assert [row["arch"] for row in told] == archs
    wanted = [everything(arch) for arch in archs]
    assert [float(row["latency_ms"]) for row in told] == pytest.approx(wanted, rel=0.02)


def test_a_compressed_table_and_json(lolat: Command, tmp_path: Path, cells: Path) -> None:
    plain = asked(tmp_path, some_cells(3))
    packed = tmp_path / "archs.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    output = tmp_path / "out.csv"
    found = lolat("nas", "predict", cells, packed, "--output", output, "--json")
    assert json.loads(found.out) == {
        "output": str(output), "space": "nasbench201", "networks": 3,
    }  # fmt: skip
    assert len(rows(output)) == 3


def test_no_networks_give_an_empty_table(lolat: Command, tmp_path: Path, cells: Path) -> None:
    output = tmp_path / "out.csv"
    assert lolat("nas", "predict", cells, asked(tmp_path, []), "--output", output).code == 0
    assert output.read_text() == "arch,latency_ms\n"


def test_intervals_come_when_asked_for(lolat: Command, tmp_path: Path, cells: Path) -> None:
    archs, output = asked(tmp_path, some_cells(30, seed=9)), tmp_path / "out.csv"
    assert lolat("nas", "predict", cells, archs, "--output", output, "--coverage", "0.9").code == 0
    for row in rows(output):
        low, middle, high = (
            float(row[c]) for c in ("latency_low_ms", "latency_ms", "latency_high_ms")
        )
        assert low < middle < high
        assert low < everything(row["arch"]) < high
    for wrong in ("0", "1", "nan"):
        message = lolat.refused(
            "nas", "predict", cells, archs, "--output", output, "--coverage", wrong
        )
        assert "expected a number above 0 and below 1" in message


def test_networks_of_another_space_are_refused(lolat: Command, tmp_path: Path, cells: Path) -> None:
    archs = asked(tmp_path, some_layers(2))
    output = tmp_path / "out.csv"
    message = lolat.refused("nas", "predict", cells, archs, "--output", output)
    assert "line 2 (row 1): unknown operation" in message
    assert f"{cells} is a model of the space nasbench201" in message
    assert not output.exists()


def test_what_is_no_model_is_refused(lolat: Command, tmp_path: Path, model: Path) -> None:
    archs, output = asked(tmp_path, some_cells(2)), tmp_path / "out.csv"
    message = lolat.refused("nas", "predict", model, archs, "--output", output)
    assert "a model of a device, for whole networks" in message
    missing = tmp_path / "absent.json"
    message = lolat.refused("nas", "predict", missing, archs, "--output", output)
    assert "No such file" in message


def test_a_table_without_networks_is_refused(lolat: Command, tmp_path: Path, cells: Path) -> None:
    path = tmp_path / "archs.csv"
    path.write_text("network\nx\n")
    message = lolat.refused("nas", "predict", cells, path, "--output", tmp_path / "out.csv")
    assert "lacks the column arch" in message

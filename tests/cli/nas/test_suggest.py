"""`lolat nas suggest`."""

from __future__ import annotations

import json
from pathlib import Path

from lolat.nas.spaces import nasbench201
from tests.cli.commands import Command
from tests.nas.few_devices import some_cells, some_layers, write_samples

SUGGEST = ("nas", "suggest", "--space", "nasbench201")


def test_networks_are_named_one_a_line(lolat: Command) -> None:
    found = lolat(*SUGGEST, "--count", "4")
    assert (found.code, found.err) == (0, "")
    archs = found.out.splitlines()
    assert len(set(archs)) == len(archs) == 4
    assert nasbench201.parse_many(archs).shape == (4, 6)
    assert json.loads(lolat(*SUGGEST, "--count", "4", "--json").out) == {
        "space": "nasbench201", "archs": archs,
    }  # fmt: skip


def test_what_is_measured_is_not_named_again(lolat: Command, tmp_path: Path) -> None:
    among = some_cells(8)
    have = write_samples(tmp_path / "have.csv", among[:5])
    names = write_samples(tmp_path / "among.csv", among)
    found = lolat(*SUGGEST, "--count", "3", "--have", have, "--among", names)
    assert found.code == 0
    assert set(found.out.splitlines()) == set(among[5:])
    message = lolat.refused(*SUGGEST, "--count", "4", "--have", have, "--among", names)
    assert "4 networks were asked for and 3 are left" in message


def test_the_table_is_ready_to_be_filled_in(lolat: Command, tmp_path: Path) -> None:
    output = tmp_path / "measure.csv"
    found = lolat(*SUGGEST, "--count", "2", "--output", output)
    assert output.read_text().splitlines() == ["arch", *found.out.splitlines()]


def test_after_readings_of_one_network_others_are_named(lolat: Command, tmp_path: Path) -> None:
    arch = some_cells(1)[0]
    have = tmp_path / "have.csv"
    have.write_text(f"arch,latency_ms\n{arch},5.12\n{arch},5.31\n")
    found = lolat(*SUGGEST, "--count", "2", "--have", have)
    assert found.code == 0
    assert arch not in found.out
    assert "2 readings of one network; all of them count" in found.err


def test_fbnet_has_suggestions(lolat: Command, tmp_path: Path) -> None:
    among = write_samples(tmp_path / "among.csv", some_layers(20), lambda _: 1.0)
    found = lolat("nas", "suggest", "--space", "fbnet", "--count", "3", "--among", among)
    assert set(found.out.splitlines()) < set(some_layers(20))


def test_what_is_wrong_is_refused(lolat: Command, tmp_path: Path) -> None:
    assert "--count" in lolat.refused(*SUGGEST, "--count", "0")
    assert "--space" in lolat.refused("nas", "suggest", "--count", "3")
    wrong = tmp_path / "have.csv"
    wrong.write_text("arch,latency_ms\nx,1.25\n")
    assert "line 2 (row 1): unknown operation" in lolat.refused(*SUGGEST, "--have", wrong)
    absent = lolat.refused(*SUGGEST, "--have", tmp_path / "absent.csv")
    assert "No such file" in absent

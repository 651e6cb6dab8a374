"""Look-up tables: written, read by another's code, read back, and what cannot be written or read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas import Position, Space, spaces
from lolat.nas.adapters import lookup_table
from lolat.nas.adapters.lookup_table import look_up_table, read, read_layers, write
from tests import synthetic
from tests.nas.test_space import every, small

MODEL = Model(synthetic.document())
BENT = Model(synthetic.document())
BENT.document["predictors"]["two-regime"] |= {"breakpoint_ms": 0.75, "slope": 0.5}


def as_fbnet_reads(path: Path, layers: int) -> list[dict[str, float]]:
    """What implementations of FBNet do with the file: split at single blanks, by hand."""
    with open(path) as file:
        lines = [line.strip("\n") for line in file]
    operations = lines[0].split(" ")
    rows = [[float(x) for x in line.split(" ")] for line in lines[1:]]
    return [dict(zip(operations, rows[i], strict=True)) for i in range(layers)]


def test_fbnets_text_is_what_others_read(tmp_path: Path) -> None:
    space = spaces.SPACES["fbnet"]()
    path = tmp_path / "lookup_table.txt"
    write(path, look_up_table(space, MODEL))
    layers = as_fbnet_reads(path, 22)
    assert list(layers[0]) == [
        "ir_k3_e1", "ir_k3_s2", "ir_k3_e3", "ir_k3_e6", "ir_k5_e1", "ir_k5_s2", "ir_k5_e3", "ir_k5_e6",
        "skip",
    ]  # fmt: skip
    # Microseconds: the difference that one layer makes is that of whole networks, predicted.
    base = [8] * 22
    for layer, choice in ((0, 3), (5, 7), (21, 0)):
        changed = [*base]
        changed[layer] = choice
        times = [MODEL.predict(space.network(c)).latency_ms for c in (base, changed)]
        row = list(layers[layer].values())
        assert row[choice] - row[8] == pytest.approx(1000 * (times[1] - times[0]), rel=1e-9)
    back = read_layers(path)
    assert back[21] == pytest.approx({k: v / 1000 for k, v in layers[21].items()})
    assert len(back) == 22
    assert {*lookup_table.FBNET_NAMES, "skip"} == set(space.positions[0].choices)
    write(path, look_up_table(space, MODEL), {"skip": "identity"})
    assert path.read_text().split("\n")[0].split(" ")[-2:] == ["k5_e6", "identity"]


@pytest.mark.parametrize("predictor", ["extended", "two-regime"])
def test_json_gives_the_latency_of_every_candidate(tmp_path: Path, predictor: str) -> None:
    space, rows, networks = every()
    model = BENT
    path = tmp_path / "table.json"
    write(path, look_up_table(space, model, 2, predictor))
    wanted = [model.predict(n, 2, predictor).latency_ms for n in networks]
    if predictor == "two-regime":
        assert min(wanted) < 0.75 < max(wanted)
    table = read(path)
    np.testing.assert_allclose(table.latency(rows), wanted, rtol=1e-12)
    assert (table.space, table.batch_size, table.predictor) == ("small", 2, predictor)
    assert table.positions[1] == Position("kernel 2", ("1", "3", "5"))
    assert table.device == model.name
    with pytest.raises(InputError, match="row 0 has 9 at position 0"):
        table.latency([[9, 0, 0, 0, 0]])
    if predictor == "extended":  # without LoLat: the constant, and an entry of each table
        document = json.loads(path.read_text())
        total = document["constant_ms"]
        for entry in document["tables"]:
            found: Any = entry["ms"]
            for position in entry["positions"]:
                found = found[rows[41][position]]
            total += found
        assert total == pytest.approx(wanted[41], rel=1e-12)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.SPACES["fbnet"](), r"no sum below its breakpoint.*take predictor='extended'"),
        (small(), "what width 1 and kernel 2 and width 2 cost depends on each other, which a table by "
                  "layer cannot say; write a .json file"),
        (Space("two", [Position("a", (1, 2)), Position("b", (3, 4))], [], lambda v, n: every()[2][0]),
         "'b' has other choices than 'a', which FBNet's text cannot say; write a .json file"),
        (Space("words", [Position("a", ("conv 1", "conv 2"))], [], lambda v, n: every()[2][0]),
         "choice 'conv 1' is not one word, which FBNet's text cannot say; give another in `names`"),
    ],
)  # fmt: skip
def test_what_the_text_cannot_say(tmp_path: Path, space: Space, said: str) -> None:
    table = look_up_table(space, BENT, 1, "two-regime" if space.name == "fbnet" else None)
    with pytest.raises(InputError, match=said):
        write(tmp_path / "table.txt", table)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no layers; expected a line of operations"),
        ("a b\n", "has no layers"),
        ("a b\n1 2\n1\n", "line 3: '1'; expected 2 numbers, one for each of a b"),
        ("a b\n1 x\n", "line 2: '1 x'; expected 2 numbers"),
        ("a b\n1 nan\n", "line 2: '1 nan'; expected 2 numbers"),
    ],
)
def test_a_wrong_text(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "table.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_layers(path)


WRONG = [[[0.0] * 7] * 3]  # of no positions' choices


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "lolat-model"}, r"is not a look-up table; expected a \.json file"),
        ({"version": 2}, "is of version 2; this LoLat reads 1"),
        ({"constant_ms": "x"}, r"at `\$.constant_ms`"),
        ({"tables": [{"positions": [0, 1, 2], "ms": WRONG}]}, r"is damaged: .* \[0, 1, 2\]"),
        ({"tables": [{"positions": [9], "ms": [1.0]}]}, r"is damaged: .* \[9\]"),
        ({"tables": [{"positions": [0], "ms": ["a", "b"]}]}, r"is damaged: .* \[0\]"),
    ],
)
def test_a_wrong_json(tmp_path: Path, change: Any, said: str) -> None:
    path = tmp_path / "table.json"
    write(path, look_up_table(small(), MODEL))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=said):
        read(path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path / "file/table.json", look_up_table(small(), MODEL))

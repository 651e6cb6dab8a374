"""Points: from a table, from a model file, as arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.fitting import points as module
from lolat.fitting.points import Point, known_features, matrix, read_csv, times
from lolat.graph.counts import COLUMNS, FEATURES
from tests import synthetic

HEAD = "acts,inp,flops,latency_ms"


def csv_file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "points.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_four_columns_are_enough(tmp_path: Path) -> None:
    points = read_csv(csv_file(tmp_path, f"{HEAD}\n10,20,300,1.5\n1,2,3,0.25\n"))
    assert [dict(p.counts) for p in points] == [
        {"acts": 10, "inp": 20, "flops": 300},
        {"acts": 1, "inp": 2, "flops": 3},
    ]
    assert times(points).tolist() == [1.5, 0.25]
    assert [p.batch_size for p in points] == [1, 1]
    assert points[0].name != points[1].name  # two blocks, as nobody says otherwise
    assert points[0].samples_ms is None
    assert known_features(points) == ("acts", "inp", "flops")


def test_all_columns_in_any_order_with_others_between(tmp_path: Path) -> None:
    text = (
        "remark,name,latency_ms,ops,weights,traffic,flops,inp,acts,batch_size\n"
        'x,"conv, 3x3",2.5,7,6,5,4,3,2,8\n'
    )
    (point,) = read_csv(csv_file(tmp_path, text))
    assert point.name == "conv, 3x3"
    assert point.batch_size == 8
    assert dict(point.counts) == dict(zip(FEATURES, (2, 3, 4, 5, 6, 7), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEAD + "\n1,2,3,4\n",
        HEAD + "\r\n1,2,3,4\r\n",
        HEAD + "\r1,2,3,4\r",
        " acts , inp,flops ,latency_ms\n1,2,3,4\n",
        "ACTS,INP,FLOPs,latency_ms\n1,2,3,4\n",
        HEAD + "\n\n1,2,3,4\n\n",
        HEAD + "\n1.0,2e0, 3 ,4\n",
        HEAD + ",batch_size,name\n1,2,3,4,,\n",
        HEAD + ",batch_size,name\n1,2,3,4, , \n",
    ],
    ids=["bom", "crlf", "cr", "spaces", "capitals", "blank lines", "floats", "empty", "blank"],
)
def test_what_spreadsheets_write_is_read(tmp_path: Path, text: str) -> None:
    (point,) = read_csv(csv_file(tmp_path, text))
    assert dict(point.counts) == {"acts": 1, "inp": 2, "flops": 3}
    assert point.latency_ms == 4
    assert point.batch_size == 1


def test_a_count_that_some_rows_lack_is_not_known(tmp_path: Path) -> None:
    text = f"{HEAD},traffic,weights,ops\n1,2,3,4,5,6,7\n1,2,3,4,5,,7\n"
    points = read_csv(csv_file(tmp_path, text))
    assert known_features(points) == ("acts", "inp", "flops", "traffic", "ops")
    assert "weights" not in points[1].counts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x,y\n1,2\n", "lacks the columns acts, inp, flops, latency_ms"),
        (HEAD + "\n", "no rows"),
        (HEAD + "\n1,2,3,4\n1,2,nan,4\n", "line 3: flops is 'nan'; expected a count"),
        (HEAD + "\n-1,2,3,4\n", "line 2: acts is '-1'; expected a count from 0"),
        (HEAD + "\n1,2,4.1,4\n", "line 2: flops is '4.1'; expected a count"),
        (HEAD + "\n1e30,2,3,4\n", "line 2: acts is '1e30'; expected a count"),
        (HEAD + "\n1,,3,4\n", "line 2: inp is empty"),
        (HEAD + "\n1,2,3,0\n", "line 2: latency_ms is '0'; expected a time above 0"),
        (HEAD + ",batch_size\n1,2,3,4,0\n", "batch_size is '0'; expected a whole number from 1"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_one_plain_error(tmp_path: Path, text: str | bytes, expected: str) -> None:
    path = csv_file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_csv(path)
    message = str(caught.value)
    assert expected in message
    assert str(path) in message
    assert "\n" not in message


def test_of_a_long_table_some_rows_are_drawn_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("acts", "inp", "flops", "latency_ms", "traffic", "batch_size")
    lines = [
        f"{i}, {2 * i},{3 * i}e1,{i + 0.5},{i if i % 3 else ''},{1 + i % 4}" for i in range(500)
    ]
    path = csv_file(tmp_path, "\n".join([",".join(names), *lines]))
    every = {p.name: p for p in read_csv(path)}
    monkeypatch.setattr(module, "MOST_ROWS", 60)
    said: list[str] = []
    drawn = read_csv(path, said.append)
    assert drawn == [every[p.name] for p in drawn]
    numbers = [p.counts["acts"] for p in drawn]
    assert len(set(numbers)) == 60
    assert numbers == sorted(numbers)
    assert max(numbers) > 400 > 100 > min(numbers), "from all of it"
    assert len(said) == 1
    for words in (str(path), "500 rows", "60 of them", "drawn at random"):
        assert words in said[0]
    assert read_csv(path) == drawn


def test_a_point_survives_the_model_file() -> None:
    point = Point(
        "conv 3x3",
        8,
        {"acts": 1, "inp": 2, "flops": 3},
        1.25,
        (1.2, 1.3),
        (0.5,),
        0.01,
        ("conv",),
        True,
    )
    again = Point.from_dict(json.loads(json.dumps(point.to_dict())))
    assert again == point
    assert point.to_dict()["traffic"] is None
    from_table = Point("row", 1, {"acts": 1, "inp": 2, "flops": 3}, 1.0)
    assert Point.from_dict(json.loads(json.dumps(from_table.to_dict()))) == from_table
    assert from_table.to_dict()["samples_ms"] is None


def test_a_point_holds_what_the_contract_asks_for() -> None:
    wanted = {"name", "batch_size", *FEATURES, "latency_ms", "samples_ms"}
    assert wanted <= synthetic.measured(1)[0].to_dict().keys()


def test_arrays_have_a_row_for_every_point() -> None:
    points = synthetic.measured(2, (1, 4))
    found = matrix(points, ("flops", "acts"))
    assert found.shape == (4, 2)
    assert found.dtype == np.float64
    assert found[1].tolist() == [points[1].counts["flops"], points[1].counts["acts"]]
    assert matrix([], ("flops",)).shape == (0, 1)
    assert known_features(points) == COLUMNS

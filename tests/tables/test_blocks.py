"""Points: from a table, from a profile, as arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.graph.counts import FEATURES
from lolat.tables import blocks as module
from lolat.tables.blocks import Point, blocks_of, read_points

HEAD = "acts,inp,flops,latency_ms"


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "points.csv"
    path.write_text(text)
    return path


def read_csv(path: Path) -> list[Point]:
    return [point for point, _ in read_points(path)]


def test_all_columns_in_any_order_with_others_between(tmp_path: Path) -> None:
    text = (
        "remark,name,latency_ms,ops,weights,traffic,flops,inp,acts,batch_size\n"
        'x,"conv, 3x3",2.5,7,6,5,4,3,2,8\n'
    )
    (point,) = read_csv(csv_file(tmp_path, text))
    assert point.name == "conv, 3x3"
    assert point.batch_size == 8
    assert dict(point.counts) == dict(zip(FEATURES, (2, 3, 4, 5, 6, 7), strict=True))


def test_of_a_long_table_some_rows_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{i},{2 * i},{3 * i},{i + 0.5},b{i}" for i in range(500)]
    path = csv_file(tmp_path, "\n".join([f"{HEAD},name", *lines]))
    every = {p.name: p for p in read_csv(path)}
    monkeypatch.setattr(module, "MOST_USED_ROWS", 60)
    drawn = read_csv(path)
    assert drawn == [every[p.name] for p in drawn] == read_csv(path)
    numbers = [p.counts["acts"] for p in drawn]
    assert len(set(numbers)) == 60
    assert numbers == sorted(numbers)
    assert numbers[-1] > 400 > 100 > numbers[0], "from all of it"


def test_a_point_survives_the_model_file() -> None:
    counts = {"acts": 1, "inp": 2, "flops": 3}
    measured = Point("conv", 8, counts, 1.25, (1.2, 1.3), (0.5,), 0.01, ("conv",), True)
    from_table = Point("row", 1, counts, 1.0)
    for point in (measured, from_table):
        document = json.loads(json.dumps(point.to_dict()))
        assert Point.from_dict(document) == point
        assert document["traffic"] is None
        assert {"name", "batch_size", *FEATURES, "latency_ms", "samples_ms"} <= document.keys()


def test_rows_of_one_block() -> None:
    """By name with all batch sizes; by counts where a table gives them; networks by family."""

    def together(points: list[Point]) -> list[list[int]]:
        blocks = blocks_of(points)
        return [[i for i, b in enumerate(blocks) if b == block] for block in dict.fromkeys(blocks)]

    def point(name: str, macs: int, **more: Any) -> Point:
        return Point(name, 1, {"acts": 1, "inp": 1, "flops": macs}, 1.0, **more)

    rows = [("a", 1), ("a", 2), ("b", 2), ("c", 3), ("d", 4), ("b", 4), ("e", 5)]
    assert together([point(*row) for row in rows]) == [[0, 1, 2, 4, 5], [3], [6]]
    assert together([point(*row, whole=True) for row in rows]) == [[0, 1], [2, 5], [3], [4], [6]]
    names = (
        "residual 50 3x160",
        "vgg 11",
        "grouped residual 50 3x128",
        "residual 34 3x128",
        "keras:VGG16",
    )
    networks = [point(name, i, whole=True) for i, name in enumerate(names)]
    assert together(networks) == [[0, 2, 3], [1, 4]]
    for measured in ({"samples_ms": (1.0,)}, {"kinds": ("conv",)}):
        assert together([point(*row, **measured) for row in rows]) == [
            [0, 1],
            [2, 5],
            [3],
            [4],
            [6],
        ]

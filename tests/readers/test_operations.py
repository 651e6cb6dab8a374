"""One operation in each framework: kinds and six counts by hand, from tests/data/operations.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.readers.builders import BUILDERS
from tests.readers.counting import kinds, six

ROWS = tomllib.loads((Path(__file__).parents[1] / "data" / "operations.toml").read_text())
CALLS = [
    pytest.param(framework, row, id=f"{framework} {row[framework]}")
    for row in ROWS["operation"]
    for framework in BUILDERS
    if framework in row
]


@pytest.mark.parametrize(("framework", "row"), CALLS)
def test_an_operation(framework: str, row: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip(framework)
    counts = row.get("counts") or [0, 0, 0, row["traffic"], 0, len(row["kinds"].split())]
    for opset in row.get("opsets", [20]) if framework == "onnx" else [None]:
        graph = BUILDERS[framework](row, tmp_path, *([opset] if opset else []))
        assert " ".join(kinds(graph)) == row["kinds"]
        for batch_size in (1, 3):
            growing = row.get("growing", 4)
            grown = [batch_size * n for n in counts[:growing]]
            grown[3] += row.get("fixed", 0)
            assert six(graph, batch_size) == (*grown, *counts[growing:])

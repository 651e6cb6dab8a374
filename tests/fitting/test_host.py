"""What tables tell of the host: from operations timed alone, from networks, from nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from lolat.api.model import Model
from lolat.device.domain import LARGER
from lolat.device.intervals import Calibration
from lolat.device.predictors.host import FACTOR, USUAL_MS
from lolat.device.schema import validate
from lolat.fitting.from_tables import (
    OTHER_HOST_SPREAD,
    TimedRows,
    measured_minimum,
    specs_document,
    tables_document,
)
from lolat.fitting.times import Times
from lolat.graph import work as c
from lolat.graph.modes import Mode
from lolat.hardware.specs import read_specs
from lolat.tables.operations import read_operations
from tests.device.test_roofline import work_of
from tests.fitting import made_up


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made_up.write_tables(tmp_path_factory.mktemp("tables"))


def test_operations_timed_alone_tell_what_a_start_takes(tables: tuple[Path, Path]) -> None:
    """Half way, as logarithms, between the table's launch, less the timing's own, and the usual one."""
    operations, facts = tables
    rows = read_operations(operations)
    timed = TimedRows(rows, [], Mode())
    document = tables_document("desk", "desk", timed, read_specs(facts, "desk"), {}, print)
    validate(document, "desk")
    entry = document["predictors"]["kernels"]
    host = entry["host"]
    assert entry["launch_ms"] == pytest.approx(made_up.LAUNCH_MS, rel=0.2)
    assert host["start_ms"] == pytest.approx((0.7 * made_up.LAUNCH_MS * USUAL_MS) ** 0.5, rel=0.1)
    assert (host["source"], host["launch"]) == ("assumed", "eager")
    assert host["factor"] == FACTOR["assumed"]
    least = document["domain"]["minimum"]
    assert set(least) == {"operation_ms"}
    alone = sorted(o.latency_ms for o in rows)
    assert alone[0] <= least["operation_ms"] <= alone[len(alone) // 20]
    plain = {k: v for k, v in entry.items() if k != "elsewhere"}
    wide, narrow = (msgspec.convert(e, Calibration).half_width(1.0) for e in (entry, plain))
    assert wide**2 - narrow**2 == pytest.approx((1.645 * OTHER_HOST_SPREAD) ** 2, rel=1e-3)
    formula = Model(document).predictor()
    tiny = work_of([(0, 0, 0, 0, 4)], c.ELEMENTS)
    assert formula.times(tiny)[0][0] < 0.3 * made_up.LAUNCH_MS, "of which most is the host's"


def test_a_data_sheet_alone_says_nothing_of_the_host(tables: tuple[Path, Path]) -> None:
    entry = specs_document("desk", "desk", read_specs(tables[1], "desk"), {})["predictors"][
        "kernels"
    ]
    assert entry["host"] == {
        "start_ms": USUAL_MS, "factor": FACTOR["assumed"], "source": "assumed", "launch": "eager",
        "call_ms": 0.0, "training": None,
    }  # fmt: skip


def test_the_least_of_a_table_of_networks() -> None:
    """All but one in a hundred are above."""
    one = work_of([(1, 1, 1, 1, 1)] * 4)
    ms = np.arange(1.0, 202.0)
    times = Times.of([one] * 201, ms, np.ones(201, bool))
    sizes = np.full(201, 64)
    sizes[7] = 100
    least = measured_minimum(times, sizes)
    assert (least.latency_ms, least.most_samples) == (3.0, 100.0)
    assert least.operation_ms == pytest.approx(3.0 / 4)
    assert least.remark(100, 1e6, 1) == ""
    assert least.remark(101, 1e6, 1) == f"{LARGER}: batch 101 (measured: 100 or less)"
    with_operations = Times.of([one] * 201, ms, np.arange(201) > 0)
    assert measured_minimum(with_operations, sizes).most_samples is None, (
        "operations have sizes of their own"
    )

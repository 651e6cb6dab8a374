"""Errors of predictions by hand and by scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lolat.mlp.evaluation import errors_of, evaluate
from tests.mlp.tables import hand_model, rows_of, table


def test_errors_by_hand() -> None:
    found = errors_of(np.array([1.0, 3, 4]), np.array([2.0, 2, 4]), np.array([0.2, 0.1, np.nan]))
    assert found.rows == 3
    assert found.rmse_ms == pytest.approx((2 / 3) ** 0.5)
    assert found.mean_relative_error == pytest.approx(1 / 3)
    assert found.median_relative_error == pytest.approx(0.5)
    assert found.spread == pytest.approx(0.075)
    assert errors_of(np.ones(1), np.ones(1), np.array([np.nan])).spread is None


def test_errors_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    measured, predicted = rng.lognormal(size=(2, 500))
    found = errors_of(predicted, measured)
    assert found.rmse_ms == pytest.approx(metrics.root_mean_squared_error(measured, predicted))
    assert found.mean_relative_error == pytest.approx(
        metrics.mean_absolute_percentage_error(measured, predicted)
    )


def test_groups_are_gpus_and_optimizers(tmp_path: Path) -> None:
    rows = table(
        tmp_path,
        rows_of(
            "dense",
            {"gpu": "k80", "batch_size": "4", "time_ms_median": "2"},
            {"gpu": "V100", "batch_size": "4", "time_ms_median": "1"},
            {"gpu": "K80", "batch_size": "8", "time_ms_median": "4", "optimizer": "adam"},
        ),
    )
    found = evaluate(hand_model(gpus=("V100", "K80"), slope=0.25), rows)
    assert list(found.gpus) == ["V100", "K80"]
    assert list(found.optimizers) == ["none", "adam"]
    assert found.gpus["V100"].rmse_ms == 0
    assert found.gpus["K80"].rows == 2
    assert found.gpus["K80"].mean_relative_error == pytest.approx(0.5)
    assert found.optimizers["adam"].rmse_ms == pytest.approx(2)
    assert found.all.rmse_ms == pytest.approx((5 / 3) ** 0.5)
    lines = found.lines()
    assert [line.split()[0] for line in lines if line][1:] == [
        "all",
        "V100",
        "K80",
        "forward",
        "adam",
    ]
    assert len({len(line) for line in lines if line}) == 1
    assert len(lines[0]) <= 80
    assert found.to_dict()["gpus"]["K80"]["rows"] == 2


def test_without_the_spread_there_is_no_such_column(tmp_path: Path) -> None:
    (row,) = rows_of("dense", {})
    del row["time_ms_std"]
    found = evaluate(hand_model(), table(tmp_path, [row]))
    assert found.all.spread is None
    assert "spread" not in found.lines()[0]

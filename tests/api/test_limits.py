"""A prediction against limits: a time, and a ratio to an earlier prediction."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lolat.api.model import Model
from lolat.api.predicting import Before, exceeded, read_before
from lolat.device.question import Question
from lolat.errors import InputError, arg
from tests import synthetic

PREDICTION = replace(
    Model(synthetic.document()).predict(synthetic.network(name="net"), 4),
    latency_ms=10.0,
    interval_ms=(8.0, 12.5),
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """What `predict --json` wrote."""
    path = tmp_path / "base.json"
    path.write_text(
        json.dumps({"schema": "lolat-prediction", "version": 1, **PREDICTION.to_dict()})
    )
    return path


def before_of(base: Path) -> Before:
    """What is read of it."""
    (before,) = read_before(str(base))
    return before


@pytest.mark.parametrize(
    ("limits", "exceeds"),
    [
        ({}, []),
        ({"max_ms": 10.0}, []),  # not more than that
        ({"max_ms": 9.99}, ["max_ms"]),
        ({"max_ms": 12.5, "sure": True}, []),  # the upper end of the interval
        ({"max_ms": 12.4, "sure": True}, ["max_ms"]),
        ({"before": 9.53}, []),  # 10 / 9.53 = 1.049
        ({"before": 9.52}, ["max_ratio"]),
        ({"max_ms": 9.0, "before": 8.0}, ["max_ms", "max_ratio"]),
        ({"before": 8.0, "max_ratio": 1.26}, []),  # 10 / 8 = 1.25
        ({"before": 8.0, "max_ratio": 1.24}, ["max_ratio"]),
    ],
)
def test_limits(base: Path, limits: dict[str, Any], exceeds: list[str]) -> None:
    earlier = {n: v for n, v in limits.items() if n in ("before", "max_ratio")}
    question = Question(**{n: v for n, v in limits.items() if n not in earlier})
    if "before" in earlier:
        earlier["before"] = [structs.replace(before_of(base), latency_ms=limits["before"])]
    fast = replace(PREDICTION, latency_ms=5.0, interval_ms=(4.0, 6.0), device="a")
    lines = exceeded([fast, replace(PREDICTION, device="b")], question, **earlier)
    assert [name for line, name in zip(lines, exceeds, strict=True) if arg(name) in line] == exceeds
    assert all(" on b takes " in line for line in lines)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "b"},
        {"learned": "2026-01-02"},
        {"predictor": "two-regime"},
        {"batch_size": 1},
        {"precision": "amp"},
        {"launch": "graph"},
        {"host_us": 50.0},
    ],
)
def test_answers_to_two_questions_are_not_compared(base: Path, other: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        exceeded([PREDICTION], Question(), [structs.replace(before_of(base), **other)])
    assert error.value.code == "against"


def test_another_file_is_no_base(base: Path) -> None:
    base.write_text(json.dumps(json.loads(base.read_text()) | {"schema": "lolat-network"}))
    for path in (str(base), "keras:ResNet50"):
        with pytest.raises(InputError):
            read_before(path)

"""A prediction against limits; and the findings as CI servers read them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lolat.cli.limits import github_lines, write_junit
from lolat.errors import InputError
from lolat.model import Model
from lolat.model.check import Limits, before_of, check, is_prediction, read_before
from lolat.model.state import State
from tests import synthetic

MODEL = Model(synthetic.document())
PREDICTION = replace(
    MODEL.predict(synthetic.network(name="net"), 4), latency_ms=10.0, interval_ms=(8.0, 12.5)
)
BEFORE = before_of(replace(PREDICTION, latency_ms=8.0, network="as it was"))


def holds(limits: Limits) -> list[bool]:
    return [f.holds for f in check([PREDICTION], limits)]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, []),
        ({"max_ms": 10.0}, [True]),  # not more than that
        ({"max_ms": 9.99}, [False]),
        ({"max_ms": 12.5, "sure": 0.9}, [True]),  # the upper end of the interval
        ({"max_ms": 12.4, "sure": 0.9}, [False]),
        ({"max_ratio": 1.25, "before": BEFORE}, [True]),  # 10 / 8
        ({"max_ratio": 1.24, "before": BEFORE}, [False]),
        ({"max_ms": 11.0, "max_ratio": 1.2, "before": BEFORE}, [True, False]),
    ],
)
def test_limits(limits: dict[str, Any], kept: list[bool]) -> None:
    assert holds(Limits(**limits)) == kept


def test_what_is_said() -> None:
    time, ratio = check([PREDICTION], Limits(8.0, 0.95, 1.2, BEFORE))
    assert (
        "net · batch 4 · 56x56x3 takes 10.0 ms (95 % sure of at most 12.5 ms), 56 % more than the 8 ms"
        in time.words
    )
    assert (time.limit, ratio.limit) == ("--max-ms 8 --sure 95", "--max-ratio 1.2")
    assert "1.25 times the 8.00 ms of the base, more than the 1.2" in ratio.words


def test_each_prediction_is_checked() -> None:
    fast = replace(PREDICTION, latency_ms=5.0, network="fast")
    found = check([PREDICTION, fast], Limits(max_ms=7.0))
    assert [(f.prediction.network, f.holds) for f in found] == [("net", False), ("fast", True)]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"sure": 0.9}, "expected --max-ms T too"),
        ({"max_ratio": 1.05}, "expected both"),
        ({"before": BEFORE}, "expected both"),
    ],
)
def test_limits_that_do_not_go_together(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Limits(**limits)


def test_to_be_sure_takes_an_interval() -> None:
    with pytest.raises(InputError, match="--sure needs an interval"):
        check([replace(PREDICTION, interval_ms=None)], Limits(20.0, 0.9))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"model": "another"}, "model is another; expected desk"),
        ({"learned": "2026-01-02"}, "learned is 2026-01-02"),
        ({"predictor": "two-regime"}, "predictor is two-regime; expected extended"),
        ({"batch_size": 1}, "batch size is 1; expected 4"),
        ({"state": State(1.5, 1.5, 1.5)}, "state is .*1.5.*; expected None"),
    ],
)
def test_what_cannot_be_compared(other: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check([PREDICTION], Limits(max_ratio=2.0, before=before_of(replace(PREDICTION, **other))))


def test_the_base_is_read_from_what_predict_wrote(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    answer = {"schema": "lolat-prediction", "version": 1, **PREDICTION.to_dict()}
    path.write_text(json.dumps(answer))
    assert is_prediction(str(path))
    assert read_before(str(path)) == before_of(PREDICTION)
    path.write_text(
        json.dumps({k: v for k, v in answer.items() if k != "model"})
    )  # of an older version
    with pytest.raises(
        InputError, match=r"--against .*base.json: .*`model`.*lolat predict MODEL NETWORK --json"
    ):
        read_before(str(path))
    path.write_text(json.dumps({"schema": "lolat-graph"}))
    assert not is_prediction(str(path))
    assert not is_prediction("keras:ResNet50")


def test_annotations_of_github() -> None:
    """Its runner ends a command's data at a line's end and takes % for an escape."""
    odd = replace(PREDICTION, network="50%\n::error::x")
    error, notice = github_lines(check([odd], Limits(8.0, None, 2.0, BEFORE)))
    assert re.fullmatch("::error title=latency --max-ms 8::50%25.*", error)
    assert notice.startswith("::notice title=latency --max-ratio 2::")
    assert "\n" not in error


def test_junit(tmp_path: Path) -> None:
    odd = replace(PREDICTION, network="<a> & \x00")
    path = tmp_path / "latency.xml"
    write_junit(path, check([odd], Limits(8.0, None, 2.0, BEFORE)))
    root = ElementTree.parse(path).getroot()
    assert (root.tag, root.attrib) == ("testsuites", {"tests": "2", "failures": "1", "errors": "0"})
    first, second = root.findall("testsuite/testcase")
    assert first.attrib["name"] == "batch 4 --max-ms 8"
    assert "<a> &" in first.attrib["classname"]
    assert float(first.attrib["time"]) == pytest.approx(0.010)
    (failure,) = first.findall("failure")
    assert "8 ms of --max-ms" in failure.attrib["message"]
    assert not second.findall("failure")

"""Charts and plots: what is drawn stands where its numbers say; it is said to those who do not see it."""

from __future__ import annotations

import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from lolat.errors import InputError, MissingPackageError
from lolat.model import Model
from lolat.report.plots import (
    check_plot,
    evaluation_plot,
    fit_plot,
)
from tests import synthetic

ROWS: list[dict[str, Any]] = [
    {"measured_ms": 2.0, "predicted_ms": 2.1},
    {"measured_ms": 20.0, "predicted_ms": 18.0},
    {"measured_ms": 5.0, "predicted_ms": 7.0},
]
SVG = "{http://www.w3.org/2000/svg}"


def model(device: str = "a desk", **two_regime: Any) -> Model:
    document = synthetic.document(device=device)
    document["predictors"]["two-regime"] |= two_regime
    return Model(document)


def texts(path: Path) -> str:
    """All text of an SVG, which parses as XML."""
    return "|".join(ElementTree.parse(path).getroot().itertext())


def markers(path: Path) -> np.ndarray:
    """Where the data of an SVG are drawn, in its own coordinates; ticks and legend are not clipped."""
    clipped = [g for g in ElementTree.parse(path).getroot().iter(f"{SVG}g") if g.get("clip-path")]
    # The band of agreement is used too, at the origin.
    drawn = [u for g in clipped for u in g.iter(f"{SVG}use") if u.attrib["x"] != "0"]
    return np.array([[float(u.attrib["x"]), float(u.attrib["y"])] for u in drawn])


def per_decade(drawn: np.ndarray, values: Any) -> float:
    """How far a factor of ten is on a logarithmic axis, which all of the values must lie on."""
    logs = np.log10(values)
    slope, start = np.polyfit(logs, drawn, 1)
    assert drawn == pytest.approx(start + slope * logs, abs=0.01)
    return float(slope)


def test_measured_against_predicted(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    evaluation_plot(ROWS, "three networks", str(path))
    x, y = markers(path).T
    measured = [r["measured_ms"] for r in ROWS]
    predicted = [r["predicted_ms"] for r in ROWS]
    right = per_decade(x, measured)
    assert right > 0
    assert per_decade(y, predicted) == pytest.approx(-right, rel=1e-3)  # up, on the same scale
    assert "three networks" in texts(path)


@pytest.mark.parametrize("name", ["plot.png", "PLOT.PNG"])
def test_a_png(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    evaluation_plot(ROWS, "three networks", str(path))
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", content[16:24])) > 500


def test_the_fit(tmp_path: Path) -> None:
    """By hand: each point at its time to the right, and up at what the default predictor says of it."""
    path = tmp_path / "fit.svg"
    fit_plot(model(), str(path))
    document = synthetic.document()
    assert document["default"] == "extended"
    formula = dict(document["predictors"]["extended"]["coefficients"])
    call = formula.pop("call")
    points = document["points"]
    sums = [sum(c * p[f] for f, c in formula.items()) + call for p in points]
    x, y = markers(path).T
    right = per_decade(x, [p["latency_ms"] for p in points])
    assert right > 0
    assert per_decade(y, sums) == pytest.approx(-right, rel=1e-3)
    assert "a desk: 105 points" in texts(path)
    assert "105 blocks" in texts(path)
    assert "predicted by extended, ms" in texts(path)


def test_whole_networks_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "fit.svg"
    document = synthetic.document()
    for point in document["points"][:5]:
        point["whole"] = True
    fit_plot(Model(document), str(path))
    assert {"100 blocks", "5 whole networks"} <= set(texts(path).split("|"))


def test_points_of_nothing_are_left_out(tmp_path: Path) -> None:
    """All coefficients 0: the time of each point is 0, which a logarithm does not have."""
    path = tmp_path / "a.svg"
    document = synthetic.document()
    found = document["predictors"]["extended"]["coefficients"]
    document["predictors"]["extended"] = {"coefficients": dict.fromkeys(found, 0.0)}
    fit_plot(Model(document), str(path))
    assert len(markers(path)) == 0
    assert "105 points" in texts(path)


def test_a_device_name_is_text_and_no_formula(tmp_path: Path) -> None:
    path = tmp_path / "fit.svg"
    fit_plot(model("$5 \\frac VPS$ <b>&\x1b"), str(path))
    assert "$5 \\frac VPS$ <b>&\\x1b: 105 points" in texts(path)


def test_a_users_own_settings_stay(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    fit_plot(model(), str(tmp_path / "fit.svg"))
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[plot\]'"):
        check_plot(str(tmp_path / "fit.svg"))


def test_a_model_without_points(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no points to draw"):
        fit_plot(Model(synthetic.document() | {"points": []}), str(tmp_path / "a.svg"))

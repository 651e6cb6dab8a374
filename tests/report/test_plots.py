"""Plots: files that can be opened, and plain errors where they cannot be written."""

from __future__ import annotations

import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from lolat.errors import InputError, MissingPackageError
from lolat.model import Model
from lolat.report.plots import check_plot, evaluation_plot, fit_plot
from tests import synthetic

ROWS: list[dict[str, Any]] = [
    {"measured_ms": 2.0, "predicted_ms": {"extended": 2.1, "two-regime": 3.0}},
    {"measured_ms": 20.0, "predicted_ms": {"extended": 18.0, "two-regime": 60.0}},
]


def model(device: str = "a desk") -> Model:
    document = synthetic.document(device=device)
    document["predictors"]["two-regime"] |= {
        "breakpoint_ms": 5.0, "slope": 0.5, "offset_ms": 2.5,
    }  # fmt: skip
    return Model(document)


def texts(path: Path) -> str:
    """All text of an SVG, which parses as XML."""
    return "|".join(ElementTree.parse(path).getroot().itertext())


def test_the_fit_as_svg(tmp_path: Path) -> None:
    path = tmp_path / "fit.svg"
    fit_plot(model(), str(path))
    found = texts(path)
    assert "a desk: 105 points, two-regime fit" in found
    assert "below 5 ms: slope 0.50" in found
    assert "measured blocks" in found


def test_the_fit_without_a_breakpoint(tmp_path: Path) -> None:
    path = tmp_path / "fit.svg"
    document = synthetic.document()
    document["predictors"]["two-regime"] |= {
        "breakpoint_ms": 0.0, "slope": 1.0, "offset_ms": 0.0,
    }  # fmt: skip
    fit_plot(Model(document), str(path))
    assert "below" not in texts(path)


@pytest.mark.parametrize("name", ["plot.png", "PLOT.PNG"])
def test_measured_against_predicted_as_png(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    evaluation_plot(ROWS, ["extended", "two-regime"], "two networks", str(path))
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert min(width, height) > 500


def test_the_same_plot_gives_the_same_file(tmp_path: Path) -> None:
    files = []
    for name in ("a.svg", "b.svg"):
        evaluation_plot(ROWS, ["extended"], "two networks", str(tmp_path / name))
        files.append((tmp_path / name).read_text())
    assert files[0] == files[1]
    assert "two networks" in texts(tmp_path / "a.svg")


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


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "svg", "plot.svg.txt"])
def test_another_format(tmp_path: Path, name: str) -> None:
    for draw in (check_plot, lambda path: fit_plot(model(), path)):
        with pytest.raises(InputError, match=r"expected a file name that ends in \.svg or \.png"):
            draw(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        fit_plot(model(), str(tmp_path / "no" / "fit.svg"))
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        fit_plot(model(), str(tmp_path / "folder.svg"))


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'lolat\[plot\]'"):
        check_plot(str(tmp_path / "fit.svg"))


def test_a_model_without_points(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no points to draw"):
        fit_plot(Model(synthetic.document(points=None) | {"points": []}), str(tmp_path / "a.svg"))


def test_points_of_nothing_can_be_drawn(tmp_path: Path) -> None:
    """All coefficients 0: the sum of some points is 0, which a logarithm does not have."""
    document = synthetic.document()
    document["predictors"]["two-regime"]["coefficients"] = {
        "acts": 0.0, "inp": 0.0, "flops": 0.0, "call": 0.0,
    }  # fmt: skip
    fit_plot(Model(document), str(tmp_path / "a.svg"))
    texts(tmp_path / "a.svg")

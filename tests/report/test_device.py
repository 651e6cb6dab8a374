"""What the terminal shows of a model: `lolat show`, and what `learn` and `fit` end with."""

from __future__ import annotations

import importlib.util
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lolat.api.model import Model
from lolat.device import state
from lolat.device.summary import headline
from lolat.errors import ModelFileError
from lolat.llm.gpu import ServedRow
from lolat.report import device
from lolat.report.tables import SCREEN_WIDTH, lines_of
from tests import synthetic
from tests.llm import known_gpu


@pytest.mark.parametrize(
    ("date", "words"),
    [("2026-03-01T16:30:00-07:00", " · learned 32 minutes ago, 2026-03-01 23:30 UTC"),
     ("2026-02-28T23:00:00+00:00", " · learned 25 hours ago, 2026-02-28 23:00 UTC"),
     ("2026-03-05T00:00:00+00:00", " · learned 0 minutes ago, 2026-03-05 00:00 UTC"),  # a clock was wrong
     *((wrong, "") for wrong in (None, "soon", "2026-01-01T00:00:00"))],
)  # fmt: skip
def test_the_age_of_a_model(date: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "now", lambda: datetime(2026, 3, 2, 0, 2, tzinfo=UTC))
    model = Model(synthetic.document(environment={"date": date}))
    assert (
        headline(model)
        == f"desk: a desk, 2 threads, by 105 measurements, batch 1 to 4{words} · noise 3.0 %"
    )
    model = Model(synthetic.document(environment={}, noise={}))
    assert headline(model) == "desk: a desk, 2 threads, by 105 measurements, batch 1 to 4"


def test_the_errors_are_those_of_the_file() -> None:
    model = Model.load("epyc-2t")
    errors = model.file.document["predictors"]["extended"]["error"]
    lines = [*lines_of(device.describe(model))]
    said = " ".join(line.strip() for line in lines)
    for key, name in (("networks_left_out", "networks"), ("left_out", "single blocks")):
        half = f"half within {100 * errors[key]['median']:.1f} %, nine of ten within "
        assert f"{name} that the fit had not seen: {half}" in said
    part = model.file.document["predictors"]["extended"]
    held = sorted(math.expm1(abs(residual)) for residual in part["residuals"])
    nine = held[math.ceil(0.9 * (len(held) + 1)) - 1]
    assert f"nine of ten within {100 * nine:.0f} % (formula: extended)" in said
    # Student's t of ten families is 1.812 at 90 % (any table).
    of_networks = math.expm1(1.812 * part["networks"]["spread"])
    assert part["networks"]["count"] == 10
    assert f"nine of ten within {100 * of_networks:.0f} % (formula: extended)" in said


def test_a_data_sheet_says_how_far_off_sheets_are() -> None:
    """By hand, from the 35 errors of other GPUs in the profile."""
    model = Model.load("l4")
    residuals = model.file.document["predictors"]["kernels"]["residuals"]
    off = sorted(math.expm1(abs(residual)) for residual in residuals)
    assert len(off) == 35
    (told,) = device.error_lines(model)
    half, nine = off[18 - 1], off[33 - 1]  # ceil(36 / 2) and ceil(36 * 0.9)
    assert f"half within {100 * half:.0f} %, nine of ten within {100 * nine:.0f} %" in told
    assert told.endswith(" %; no network of convolutions was checked so")
    (told,) = device.error_lines(model.run_as("amp"))
    assert told.endswith("they allow for other hosts, versions and precisions")


def test_the_formula() -> None:
    document = synthetic.document()
    document["predictors"]["two-regime"] |= {
        "coefficients": {"acts": 2e-6, "inp": 0.0, "flops": 1e-8, "call": 0.25},
        "breakpoint_ms": 5.0, "slope": 0.5, "offset_ms": 2.5,
    }  # fmt: skip
    document["predictors"]["extended"] |= {
        "coefficients": {"exps": 3e-6, "flat_macs": 16e-9, "spatial_macs": 0.0, "pointwise_macs": 4e-9,
                         "call": 0.25},
        "families": {"flops": 8e-9, "weights": 0.0, "elements": 0.0, "ops": 0.0},
    }  # fmt: skip
    lines = [*lines_of(device.formula_lines(Model(document)))]
    assert lines[0] == (
        "desk: a desk, 2 threads, by 105 measurements, batch 1 to 4, TensorFlow 2.21.0 · noise 3.0 %"
    )
    assert "1 MAC is one multiply-accumulate" in lines[1]
    assert "  computing, 8.00 ms a GMAC. Multiplying and adding." in lines
    kinds = [line for line in lines if line.startswith("     2.00 x ") or " 0.50 x " in line]
    assert ["dense layers." in kinds[0], "1x1 convolution." in kinds[1]] == [True, True]
    assert "      free: larger convolution" in lines
    assert any(
        line.startswith("        + exponentials, 3.00 ms a million elements.") for line in lines
    )
    assert "  a call of the network, 0.250 ms" in lines
    assert "two-regime: t = 2e-06*ACTS + 1e-08*FLOPs + 0.25 ms" in lines
    assert "  below 5.00 ms: 0.500 * t + 2.500" in lines


def test_what_disturbed_the_learning() -> None:
    document = synthetic.document()
    document["warnings"] = ["a \x1b[1m remark " + "of many words " * 20, *"abc"]
    lines = [*lines_of(device.describe(Model(document)))]
    at = lines.index("while learning")
    assert lines[at + 1].startswith(r"  a \x1b[1m remark of many words")
    assert lines[-3:] == ["  a", "  b", "  c"]
    assert max(map(len, lines)) <= SCREEN_WIDTH


def test_what_learning_says_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/bin/lolat")
    document = dict(Model.load("epyc-2t").file.document)
    document["environment"] = document["environment"] | {"seconds": 174.6}
    document["noise"] = document["noise"] | {"repeatability": 0.061}
    lines = [*lines_of(device.learned(Model(document), "my models/a.json", "my models/a.json"))]
    assert lines[0].startswith("epyc-2t: AMD EPYC Zen 4, 2 threads, by 118 measurements, ")
    assert " · measured in 175 s" in " ".join(line.strip() for line in lines[:3])
    wanted = "  the machine: blocks measured again differ by 4.8 %; times repeat within 6.1 %"
    assert wanted in lines
    at = lines.index("written: my models/a.json")
    assert lines[at + 1].startswith(
        "bundled for this very processor: epyc-2t (TensorFlow, 2 threads)"
    )
    assert lines[-2].startswith(
        "Next: lolat report 'my models/a.json' keras:ResNet50 · lolat evaluate"
    )
    assert lines[-1].startswith("Next: lolat cost 'my models/a.json' keras:ResNet50 ")
    own = tuple(ServedRow(name, 512, 64, 1, 9.0) for name in ("qwen3-8b", "my models/llama"))
    part = known_gpu.document(known_gpu.section(own=own))["llm"]
    lines = [*lines_of(device.learned(Model(document | {"llm": part}), "a", "a"))]
    assert "Next: lolat llm a 'my models/llama'" in lines
    for now, is_better in ((0.1, True), (0.2, False)):
        part |= {"own_error": [now], "was_error": [0.2]}
        lines = [*lines_of(device.learned(Model(document | {"llm": part}), "a", "a"))]
        assert any("Next: lolat llm" in line for line in lines) == is_better
        assert any("no better than the device" in line for line in lines) != is_better
    of_torch = document | {"environment": document["environment"] | {"framework": "torch"}}
    lines = [*lines_of(device.learned(Model(of_torch), "a", "a"))]
    timed = " · lolat evaluate a timm:resnet50" * bool(importlib.util.find_spec("timm"))
    assert lines[-2].startswith(f"Next: lolat report a timm:resnet50{timed} · lolat show a")
    assert lines[-1].startswith("Next: lolat cost a timm:resnet50 ")
    monkeypatch.setattr("shutil.which", lambda _: None)  # the environment is not active
    monkeypatch.setattr("sys.executable", str(Path.cwd() / "its env/bin/python"))
    monkeypatch.setattr("pathlib.Path.exists", lambda path: path.name == "lolat")
    *_, last = device.learned(Model(document), "a.json", "local")
    assert last.startswith("Next: 'its env/bin/lolat' cost local keras:ResNet50 ")


def test_a_damaged_section_is_an_error_before_the_first_line() -> None:
    damaged = known_gpu.document()
    damaged["llm"]["operations"]["gemm"]["bfloat16"]["terms"].pop("rate")
    with pytest.raises(ModelFileError, match="gemm of bfloat16 is damaged"):
        next(device.describe(Model(damaged)))

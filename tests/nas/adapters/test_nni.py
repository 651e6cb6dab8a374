"""NNI 3 itself: its model spaces, filters and penalties with LoLat's profilers, against whole networks."""

from __future__ import annotations

import functools
import io
import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import lolat
from lolat.errors import InputError
from lolat.model import Model
from lolat.nas.adapters import nni as adapter
from tests import synthetic

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NNI 3.0 is older than this PyTorch, and wonders about it
    import nni
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace, MutableConv2d, MutableDropout, Repeat
    from nni.nas.oneshot.pytorch.profiler import (
        ExpectationProfilerPenalty,
        RangeProfilerFilter,
        SampleProfilerPenalty,
    )
    from nni.nas.profiler import ExpressionProfiler, Profiler
    from nni.nas.profiler.pytorch import nn_meter as hook

MODEL = Model(synthetic.document())
SIZE = (3, 16, 16)
VALUES: dict[str, list[int]] = {"width": [4, 8], "layer": [0, 1], "depth": [1, 2, 3]}


class Small(ModelSpace):  # type: ignore[misc]
    """A width, a layer that depends on it, and a depth."""

    def __init__(self) -> None:
        super().__init__()
        width = nni.choice("width", VALUES["width"])
        self.stem = MutableConv2d(3, width, 3, padding=1)
        convolution = MutableConv2d(width, width, 3, padding=1)
        self.layer = LayerChoice([convolution, nn.ReLU()], label="layer")
        self.rest = Repeat(lambda index: nn.ReLU(), (1, 3), label="depth")
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Any) -> Any:
        return self.pool(self.rest(self.layer(self.stem(x))))


def samples() -> list[dict[str, int]]:
    return [
        dict(zip(VALUES, chosen, strict=True)) for chosen in itertools.product(*VALUES.values())
    ]


def by_hand(sample: dict[str, int]) -> nn.Module:
    """The network of a sample, without NNI."""
    width = sample["width"]
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    layers += [nn.ReLU() if sample["layer"] else nn.Conv2d(width, width, 3, padding=1)]
    layers += [nn.ReLU() for _ in range(sample["depth"])]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))


@functools.cache
def wanted(batch_size: int = 1, predictor: str | None = None) -> list[float]:
    """Latencies of all samples, each whole network predicted."""
    graphs = [lolat.read(by_hand(s), SIZE) for s in samples()]
    return [MODEL.predict(g, batch_size, predictor).latency_ms for g in graphs]


@pytest.mark.parametrize(
    ("tables", "predictor"), [(True, None), (False, None), (True, "two-regime")]
)
def test_a_samples_latency_is_the_whole_networks(tables: bool, predictor: str | None) -> None:
    found = adapter.profiler(Small(), MODEL, SIZE, 2, predictor, tables)
    assert isinstance(found, Profiler)
    assert isinstance(found, ExpressionProfiler) == (tables and predictor is None)
    times = [found.profile(sample) for sample in samples()]
    assert times == pytest.approx(wanted(2, predictor), rel=1e-9)


def test_nnis_own_parts_take_it() -> None:
    found = adapter.profiler(Small(), MODEL, SIZE)
    times = wanted()
    budget = sorted(times)[5] * 1.0001
    within = RangeProfilerFilter(found, max=budget)
    assert [within(s) for s in samples()] == [t <= budget for t in times]
    loss, _ = SampleProfilerPenalty(found, baseline=budget)(torch.tensor(1.0), samples()[0])
    assert float(loss) == pytest.approx(1.0 + times[0] / budget - 1.0)
    assert [found.expression.evaluate(s) for s in samples()] == pytest.approx(times)


def test_the_expectation_over_a_distribution() -> None:
    found = adapter.profiler(Small(), MODEL, SIZE)
    random = torch.Generator().manual_seed(0)
    logits = {k: torch.randn(len(v), generator=random) for k, v in VALUES.items()}
    chances = {k: torch.softmax(x.double().requires_grad_(), 0) for k, x in logits.items()}
    sample = {k: dict(zip(VALUES[k], p, strict=True)) for k, p in chances.items()}
    loss, details = ExpectationProfilerPenalty(found, baseline=1.0)(torch.tensor(0.0), sample)
    brute_force = sum(
        t * math.prod(sample[k][v].item() for k, v in s.items())
        for s, t in zip(samples(), wanted(), strict=True)
    )
    assert details["penalty"].item() == pytest.approx(brute_force, rel=1e-9)
    slope = torch.autograd.grad(loss, chances["width"])[0]
    assert slope[1] > slope[0]  # wider is slower


def exported(module: nn.Module, inputs: Any) -> Any:
    """A module as an ONNX model."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(inputs), buffer, dynamo=False)
    return onnx.load_from_string(buffer.getvalue())


@pytest.mark.parametrize("ours", [True, False])
def test_the_nn_meter_profiler_adds_up_to_the_network(
    ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NNI's own hands the exporter an open file, which PyTorch and onnx no longer take.
    monkeypatch.setattr(hook, "to_onnx", exported)
    made, predictor = (Small(), torch.randn(2, *SIZE)), adapter.NnMeterPredictor(MODEL)
    found = (
        adapter.nn_meter_profiler(*made, MODEL) if ours else hook.NnMeterProfiler(*made, predictor)
    )
    assert isinstance(found, hook.NnMeterProfiler)
    times = [found.profile(sample) + (0 if ours else predictor.call_ms) for sample in samples()]
    assert times == pytest.approx(wanted(2), rel=1e-9)


def test_whole_networks_as_nn_meter_takes_them(tmp_path: Path) -> None:
    name = tmp_path / "desk.json"
    name.write_text(json.dumps(synthetic.document()))
    predictor = adapter.load_latency_predictor(str(name))
    network = by_hand(samples()[0])
    graph = lolat.read(network, SIZE)
    whole = adapter.NnMeterPredictor(MODEL, whole=True)
    for batch in (1, 3):
        shape = (batch, *SIZE)
        found = whole.predict(network, "torch", input_shape=shape, apply_nni=True)
        assert found == pytest.approx(MODEL.predict(graph, batch).latency_ms)
        part = predictor.predict(network, model_type="torch", input_shape=shape)
        formula = MODEL.predictor()
        border = dict(zip(formula.features, formula.coefficients, strict=True)).get("border", 0.0)
        edges = batch * (3 * 16 * 16 + 4)
        assert part + predictor.call_ms + border * edges == pytest.approx(found, rel=1e-9)
    path = tmp_path / "network.onnx"
    onnx.save(exported(network, (torch.zeros(1, *SIZE),)), path)
    assert whole.predict(str(path), "onnx") == pytest.approx(MODEL.predict(graph).latency_ms)
    assert whole.predict(path, "onnx", (4,)) == pytest.approx(MODEL.predict(graph, 4).latency_ms)
    with pytest.raises(InputError, match="model_type is 'pb'; expected 'torch' or 'onnx'"):
        whole.predict(network, "pb")


def test_choices_that_tables_cannot_have() -> None:
    class Several(ModelSpace):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rate = MutableDropout(nni.uniform("rate", 0.1, 0.5))

    said = "'rate' is a Numerical, which tables cannot have; expected choices from a list, one at a time"
    with pytest.raises(InputError, match=f"{said}; with tables=False the network of each sample"):
        adapter.profiler(Several(), MODEL, SIZE)
    # And networks that cannot be read.
    with pytest.raises(InputError, match=r"Small of .*; with tables=False the network of each"):
        adapter.profiler(Small(), MODEL, (5, 16, 16))

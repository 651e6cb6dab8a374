"""The factors of INT8: fitted to quantized blocks, stored, answered with, fitted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import lolat
from lolat.device.file import read, write
from lolat.device.lookup import find_model
from lolat.device.predictors import AdditiveCosts
from lolat.fitting.int8 import LEAST_OF_SCHEME, with_int8
from lolat.graph import Graph
from lolat.graph.analysis import analyze
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.graph.quantized import DYNAMIC, INT8_CLASSES, SCHEMES, SIGNED, STATIC, as_quantized
from lolat.microbench.blocks import QUANTIZED, known_graphs
from lolat.tables.blocks import Point

TRUE: dict[str, dict[str, float]] = {
    STATIC: {"convolution": 0.3, "product": 0.4, "pair": 1.5, "conversion": 2.0, "average": 1.4},
    SIGNED: {"convolution": 0.35, "product": 0.4, "conversion": 2.5, "depthwise island": 2.0},
    DYNAMIC: {"convolution": 0.9, "product": 0.6, "depthwise": 2.5, "conversion": 0.8},
}
"""Factors of a machine; 1 for the classes without one."""


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    """A bundled file, and each quantized block by the true factors, at the level of its time in float."""
    file = read(find_model("epyc-2t-onnxruntime"))
    formula = msgspec.convert(file.document["predictors"]["extended"], AdditiveCosts)
    in_float = {(p["name"], p["batch_size"]): p["latency_ms"] for p in file.document["points"]}
    points, graphs = [], known_graphs("onnxruntime")
    for block in QUANTIZED:
        graph, (size,) = graphs[block.name], block.batch_sizes
        factors = [TRUE[block.scheme].get(name, 1.0) for name in (*INT8_CLASSES, "")]
        ms = float((formula.int8_parts(analyze(graph), size) @ factors).sum()) + formula.constant
        float_ms = float(formula.rows(count(graph).at(size).sum(axis=0)[None, formula.columns])[0])
        ms *= in_float[block.name.removesuffix(f" {block.scheme}"), size] / float_ms
        counts = count(graph).total(size)._asdict()
        points.append(
            Point(block.name, size, counts, ms, (ms,), whole=block.whole, scheme=block.scheme)
        )
    return dict(with_int8(file, points, graphs).document)


def factors(document: dict[str, Any], scheme: str) -> dict[str, float]:
    found: dict[str, float] = document["predictors"]["extended"]["int8"][scheme]["factors"]
    return found


@pytest.mark.parametrize(
    ("scheme", "name"),
    [(s, n) for s in SCHEMES for n in ("convolution", "product", "conversion", "depthwise")],
)
def test_the_fit_finds_the_factors(learned: dict[str, Any], scheme: str, name: str) -> None:
    """Within the reach of the prior, although each block is a mixture of classes."""
    assert factors(learned, scheme)[name] == pytest.approx(TRUE[scheme].get(name, 1.0), rel=0.2)


def convolution(size: int = 32) -> Graph:
    n = Layers.on("one", size, size, 16)
    return n.done(n.conv(n.input, 32, 3, bias=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_network_in_int8(learned: dict[str, Any], scheme: str) -> None:
    """A convolution by hand: its factor; its input is rounded and its result converted back.

    A dynamic one goes three times over its result: to float, scaled, with a bias.
    """
    model, graph = lolat.Model(learned), convolution()
    before, after = model.predict(graph), model.predict(as_quantized(graph, scheme))
    rates = learned["predictors"]["extended"]["families"]
    of = factors(learned, scheme)
    passes = 3 if scheme == DYNAMIC else 1
    moved = 32 * 32 * (16 + 32 * passes)
    conversion = of["conversion"] * (rates["elements"] * moved + rates["ops"])
    alone = before.latency_ms - before.call_ms
    expected = before.call_ms + of["convolution"] * alone + conversion
    assert after.latency_ms == pytest.approx(expected)
    assert after.in_domain is True
    assert before.interval_ms is not None
    assert after.interval_ms is not None
    widths = [b / a for a, b in (before.interval_ms, after.interval_ms)]
    assert widths[1] > widths[0], "the factors are uncertain too"
    told = [w for w in after.warnings if w.startswith("quantized")]
    assert len(told) == 1
    assert "in conversions from and to 8 bits" in told[0]
    explained = model.explain(as_quantized(graph, scheme))
    assert sum(b.latency_ms for b in explained.blocks) == pytest.approx(expected - before.call_ms)


def test_a_scheme_that_was_not_timed_is_outside(learned: dict[str, Any]) -> None:
    few = [Point.from_dict(p) for p in learned["quantized"] if p["scheme"] == STATIC]
    file = with_int8(read(find_model("epyc-2t-onnxruntime")), few, known_graphs("onnxruntime"))
    assert set(file.document["predictors"]["extended"]["int8"]) == {STATIC}
    model, graph = lolat.Model(file), convolution()
    outside = model.predict(as_quantized(graph, DYNAMIC))
    assert outside.in_domain is False
    assert outside.latency_ms == model.predict(graph).latency_ms
    assert any("timed as in float" in w for w in outside.warnings)
    less = with_int8(file, few[: LEAST_OF_SCHEME - 1], known_graphs("onnxruntime"))
    assert less.document["quantized"] == [p.to_dict() for p in few[: LEAST_OF_SCHEME - 1]]


@pytest.mark.slow
def test_a_file_is_fitted_again(learned: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write(path, learned)
    again = lolat.fit(path, tmp_path / "again.json").file.document
    assert again["quantized"] == learned["quantized"]
    assert len(again["points"]) == len(learned["points"])
    for scheme in SCHEMES:
        one, other = (np.array([*factors(d, scheme).values()]) for d in (learned, again))
        assert other == pytest.approx(one, rel=0.05)

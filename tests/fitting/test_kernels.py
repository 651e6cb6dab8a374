"""The formula by operation: products and moves by hand, its slopes by differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lolat.errors import ModelFileError
from lolat.fitting.predictors import kernels as k
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph import work as c
from lolat.graph.modes import Mode
from lolat.graph.work import OPTIONAL_TERMS, PRODUCT_TERMS, Work

TERMS = {
    "rate": 3e6, "small": 0.3, "tiny": 0.7, "fill": 40.0, "launch": 0.011, "bandwidth": 2e5,
    "unaligned": 0.4, "spread": 3.0, "direct": 0.8, "step": 0.002, "heavy": 1.7, "overlap": 3.0,
}  # fmt: skip
MOVING = {"launch": 0.01, "bandwidth": 3e5, "corner": 2.5}
# Tiles, and how much of `small` and of `tiny` each pays.
TILES = [
    (256, 128, 0, 0),
    (128, 128, 0, 0),
    (128, 64, 0.5, 0),
    (64, 64, 1, 0),
    (64, 32, 1.5, 0),
    (32, 32, 1, 1),
]
# number, rows, columns, depth, bytes, squares, half precision, bytes of weights
PRODUCTS: list[tuple[Any, ...]] = [
    (1, 512, 512, 256, 2e6, 0, False, 5e5),
    (1, 500, 96, 128, 3e5, 0, False, 0),
    (3, 70, 33, 65, 1e4, 0, False, 2e3),
    (8, 256, 640, 1024, 4e6, 0, True, 1e6),
    (2, 40, 8, 24, 5e4, 0, True, 1e3),
    (2, 40, 8, 20, 1e3, 0, True, 0),
    (1, 9000, 512, 4608, 4e7, 576, False, 7e6),
    (1, 9000, 512, 4608, 4e7, 576, True, 7e6),
    (1, 4, 4, 4, 1e7, 0, False, 1e6),
    (1, 3000, 3000, 64, 1e6, 0, False, 1e5),
]


def work_of(rows: list[tuple[Any, ...]], kind: str = c.DENSE) -> Work:
    number, high, wide, deep, moved, squares, narrow, weights = map(
        np.array, zip(*rows, strict=True)
    )
    kinds = np.full(len(rows), c.CLASSES.index(kind))
    sizes = (n.astype(float) for n in (number, high, wide, deep, moved, squares))
    return Work(kinds, *sizes, narrow, kinds * 0, narrow & False, weights.astype(float))


def by_hand(
    product: tuple[Any, ...], t: dict[str, float], mps: int, tile: float
) -> tuple[float, float]:
    """(computing, moving), ms."""
    number, rows, columns, depth, moved, squares, narrow, weights = product
    macs = []
    for long, short, small, tiny in TILES:
        a, b = max(long / tile, 1.0), max(short / tile, 1.0)
        waves = min(
            math.ceil(number * math.ceil(rows / h) * math.ceil(columns / w) / mps)
            for h, w in ((a, b), (b, a))
        )
        macs.append(waves * mps * a * b * (1 + small * t["small"]) * (1 + tiny * t["tiny"]))
    computing = min(macs) * (depth + t["fill"]) / t["rate"]
    unaligned = columns % (8 if narrow else 32) or depth % (8 if narrow else 32)
    computing *= 1 + t["unaligned"] if unaligned else 1
    computing /= 1 + t["direct"] if squares else 1
    again = max(number * rows * columns * depth * (2 if narrow else 4) / 64 - moved, 0)
    moved += weights * (t["heavy"] - 1) + (again / t["spread"] if unaligned else 0)
    return computing, moved / t["bandwidth"]


def norm(one: float, other: float, p: float) -> float:
    return float((one**p + other**p) ** (1 / p))


def differences(
    job: Callable[[dict[str, float]], np.ndarray], terms: dict[str, float]
) -> dict[str, np.ndarray]:
    """Derivatives by the logarithm of each term."""
    up, down = math.exp(1e-4), math.exp(-1e-4)
    return {
        name: (job({**terms, name: n * up}) - job({**terms, name: n * down})) / 2e-4
        for name, n in terms.items()
    }


@pytest.mark.parametrize("tile", [1.0, 4.0, 50.0])
@pytest.mark.parametrize("mps", [1, 7, 108])
def test_products_by_hand(mps: int, tile: float) -> None:
    found = np.array(k.Tiled.of(work_of(PRODUCTS), mps, tile).parts(TERMS)).T
    np.testing.assert_allclose(found, [by_hand(p, TERMS, mps, tile) for p in PRODUCTS], rtol=1e-12)


def test_what_a_product_takes_alone_and_in_a_network() -> None:
    """Terms that are not there are as of devices of which nobody said more."""
    few = {n: TERMS[n] for n in PRODUCT_TERMS}
    usual = {**few, "step": 0.0, "heavy": 1.0, "overlap": 4.0}
    assert {n: usual[n] for n in OPTIONAL_TERMS} == OPTIONAL_TERMS
    tiny = (1, 1, 1, 1, 1.0, 0, False, 0)
    products = k.Tiled.of(work_of([*PRODUCTS, tiny]), 7, 50.0)
    for terms, full in ((TERMS, TERMS), (few, usual)):
        both = [norm(*by_hand(p, full, 7, 50.0), full["overlap"]) for p in (*PRODUCTS, tiny)]
        parts = products.parts(terms)
        np.testing.assert_allclose(k.alone(terms, *parts), np.add(both, 0.011), rtol=1e-12)
        inside = np.maximum(both, 1e-4) + full["step"]
        np.testing.assert_allclose(k.inside(terms, *parts), inside, rtol=1e-12)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("mps", "tile"), [(7, 1.0), (108, 1.0), (1, 4.0)])
def test_slopes_by_differences(mps: int, tile: float, alone: bool) -> None:
    time = k.alone if alone else k.inside
    for ways in (k.Tiled.of(work_of(PRODUCTS), mps, tile), k.Ways.of(work_of(PRODUCTS), mps, tile)):
        found = ways.slopes(TERMS, np.full(len(PRODUCTS), alone))
        wanted = differences(lambda t, w=ways: time(t, *w.parts(t)), TERMS)  # type: ignore[misc]
        assert set(found) == set(wanted)
        for name, slopes in wanted.items():
            np.testing.assert_allclose(found[name], slopes, rtol=1e-5, atol=1e-7, err_msg=name)


def test_the_faster_of_two_ways() -> None:
    """Winograd's for what is cut into squares, in float32, on tiles of a GPU."""
    work = work_of(PRODUCTS)
    for direct, faster in ((0.0, True), (50.0, False)):
        terms = {**TERMS, "direct": direct}
        tiled, ways = (k.alone(terms, *w.of(work, 7).parts(terms)) for w in (k.Tiled, k.Ways))
        other = k.alone(terms, *k.Tiled.of(work.winograd(), 7).parts(terms))
        assert bool(other[6] < tiled[6]) is faster
        assert ways[6] == min(other[6], tiled[6])
        assert ways[7] == tiled[7]
        np.testing.assert_array_equal(np.delete(ways, 6), np.delete(tiled, 6))
        small = (k.alone(terms, *w.of(work, 7, 2.0).parts(terms)) for w in (k.Tiled, k.Ways))
        np.testing.assert_array_equal(*small)


def test_moving_by_hand() -> None:
    """A launch, then the bandwidth, rounded at the corner."""
    moved = np.array([0.0, 1.0, 1e3, 3e3, 1e5, 1e8])
    found = k.moving_time(MOVING, moved)
    np.testing.assert_allclose(found, [norm(0.01, n / 3e5, 2.5) for n in moved], rtol=1e-9)
    slopes = k.moving_slopes(MOVING, moved)
    for name, wanted in differences(lambda t: k.moving_time(t, moved), MOVING).items():
        np.testing.assert_allclose(slopes[name], wanted, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_network_step_by_step() -> None:
    """Each class by its own terms or those of the one most like it; what moves nothing is free; no product
    but those of which Winograd's are fewer goes beyond what the device sustains.
    """
    other = {**TERMS, "rate": 1e5}
    formula = k.Kernels.of(
        7, {c.DENSE: TERMS, c.CONVOLUTION: other, c.ELEMENTS: MOVING}, Mode("amp")
    )
    slopes = dict(zip(formula.features, formula.coefficients, strict=True))
    assert slopes == {"flops": 1 / 3e6, "traffic": 4 / 3e5, "ops": 0.01}
    assert (formula.constant, formula.mode, formula.tile) == (0.0, Mode("amp"), 1.0)
    big, small, squares = PRODUCTS[0], PRODUCTS[8], PRODUCTS[6]
    rows = [big, small, squares, big, *[(0, 0, 0, 0, n, 0, False, 0) for n in (2e3, 1e6, 4e3, 0.0)]]
    work = work_of(rows)
    names = [
        c.DENSE,
        c.POINTWISE,
        c.CONVOLUTION,
        c.STEM,
        c.ELEMENTS,
        c.SOFTMAX,
        c.CURVES,
        c.ELEMENTS,
    ]
    work = replace(work, kind=np.array([c.CLASSES.index(n) for n in names]))
    ms, mostly = formula.times(work)
    alone = k.Tiled.of(work_of([squares]).winograd(), 7).parts(other)
    stem = {**TERMS, **k.TILED, "rate": k.RATES[c.STEM] * TERMS["rate"]}
    wanted = [
        *(norm(*by_hand(p, TERMS, 7, 1.0), 3.0) + 0.002 for p in (big, small)),
        min(norm(*by_hand(squares, other, 7, 1.0), 3.0), float(k._larger(*alone, 3.0)[0])) + 0.002,
        norm(*by_hand(big, stem, 7, 1.0), 3.0) + 0.002,
        *(norm(0.01, n / 3e5, 2.5) for n in (2e3, 1e6, 4e3)), 0.0,
    ]  # fmt: skip
    np.testing.assert_allclose(ms, wanted, rtol=1e-12)
    assert list(mostly[:2]) == [k.COMPUTE, k.MOVE]
    assert list(mostly[4:7]) == [k.START, k.MOVE, k.MOVE]
    slow = replace(formula, sustained=1e5).times(work)[0]
    assert slow[0] == 512 * 512 * 256 / 1e5
    np.testing.assert_array_equal(slow[[1, 2, 4, 5, 6, 7]], ms[[1, 2, 4, 5, 6, 7]])
    near = k.Nearby([[1.0, 512, 512, 256, 2.0]])
    twice = replace(formula, nearby={c.DENSE: near}).times(work)[0][:7] / ms[:7]
    assert twice[0] == pytest.approx(math.exp(2 * 0.3**2))
    np.testing.assert_array_equal(twice[1:], 1.0)
    assert k.Kernels.from_dict(replace(formula, sustained=1e5).to_dict()) == replace(
        formula, sustained=1e5
    )
    needed = {"coefficients", "multiprocessors", "classes"}
    less = k.Kernels.from_dict({n: v for n, v in formula.to_dict().items() if n in needed})
    assert less == replace(formula, mode=Mode())
    assert "sustained" not in formula.to_dict()
    found = formula.unlike(work, ms)
    assert found == {
        n: pytest.approx(ms[i] / ms.sum()) for i, n in enumerate(names) if i in (1, 3, 5, 6)
    }
    assert k.Kernels.of(7, {c.DENSE: TERMS, c.ELEMENTS: MOVING}).unlike(work, ms) is None
    assert k.Kernels.unlike_remarks({"stem": 0.5, "softmax": 0.05}, 0.05) == (
        "nothing measured is like its convolutions of an image (50 % of its time); they are taken to be "
        "like others",
    )


@pytest.mark.parametrize("wrong", [{"overlap": 1e-30}, {"corner": 1e-30}, {"launch": math.inf}])
def test_a_time_that_is_not_finite_is_refused(wrong: dict[str, float]) -> None:
    """Whatever numbers of a file lead to it: here to infinity, or to NaN."""
    formula = k.Kernels.of(4, {c.DENSE: TERMS | wrong, c.ELEMENTS: MOVING | wrong})
    with pytest.raises(
        ModelFileError, match=r"predictor 'kernels' gives a time that is not finite"
    ):
        formula.times(work_of(PRODUCTS[:1], c.DENSE if "overlap" in wrong else c.ELEMENTS))


@pytest.mark.parametrize("constant", [math.inf, math.nan])
def test_so_is_one_of_a_formula_on_counts(constant: float) -> None:
    with pytest.raises(ModelFileError, match="predictor 'two-regime' gives a time"):
        TwoRegime(("acts",), (1.0,), constant).shares(np.ones((2, 1)))

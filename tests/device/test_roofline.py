"""The formula by operation: products and moves by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from lolat.device.predictors import roofline as k
from lolat.graph import work as c
from lolat.graph.modes import DEFAULT_MODE, Mode
from lolat.graph.work import CLASSES, PRODUCTS, Workload

RATE, BANDWIDTH, MOVING_BANDWIDTH = 3e6, 2e5, 3e5
LAUNCH_MS, STEP_MS = 0.011, 0.002
# number, rows, columns, depth, bytes
PRODUCT_ROWS: list[tuple[float, ...]] = [
    (1, 512, 512, 256, 2e6),
    (1, 500, 96, 128, 3e5),
    (3, 70, 33, 65, 1e4),
    (8, 256, 640, 1024, 4e6),
    (2, 40, 8, 24, 5e4),
    (1, 9000, 512, 4608, 4e7),
    (1, 4, 4, 4, 1e7),
    (1, 3000, 3000, 64, 1e6),
    (1, 64, 100, 50_000, 2e7),
]


def work_of(rows: list[tuple[float, ...]], *names: str) -> Workload:
    """Steps of these sizes and bytes; `names`: their classes, or the one of all."""
    number, high, wide, deep, moved = np.array(rows, float).T
    kinds = np.resize([CLASSES.index(n) for n in names or (c.DENSE,)], len(rows))
    return Workload(kinds, number, high, wide, deep, moved, kinds * 0, kinds < 0, 0.0 * number)


def classes(of_product: Mapping[str, float] | None = None, **others: Any) -> dict[str, Any]:
    """The terms of all classes, those of `others` besides."""
    product = of_product or {"rate": RATE, "bandwidth": BANDWIDTH}
    moving = {"bandwidth": MOVING_BANDWIDTH}
    return {name: product if name in PRODUCTS else moving for name in CLASSES} | others


def formula(multiprocessors: float = 1, mode: Mode = DEFAULT_MODE, **others: Any) -> k.Roofline:
    terms = classes(**others)
    return k.Roofline.of(multiprocessors, terms, LAUNCH_MS, STEP_MS, mode=mode)


def norm(*parts: float) -> float:
    return float(sum(p**3 for p in parts) ** (1 / 3))


def computing(
    product: tuple[float, ...], multiprocessors: int, rate: float = RATE, deep: int = 1
) -> float:
    """Ms of tiles of 64 x 64, one for each multiprocessor at a time, `deep` steps of depth at once."""
    number, rows, columns, depth, _ = product
    tiles = number * math.ceil(rows / 64) * math.ceil(columns / 64)
    parts = max(min(multiprocessors // tiles, depth // 1024), 1)
    outputs = math.ceil(tiles * parts / multiprocessors) * multiprocessors * 64 * 64
    return outputs * math.ceil(depth / parts / deep) * deep / rate


@pytest.mark.parametrize(("dtype", "deep"), [("float32", 1), ("amp", 64), ("bfloat16", 64)])
@pytest.mark.parametrize("mps", [1, 7, 108])
def test_products_by_hand(mps: int, dtype: str, deep: int) -> None:
    """The launch is part of the norm in a network, and on top if timed alone."""
    own, work = formula(mps, Mode(dtype)), work_of(PRODUCT_ROWS)
    parts = [(computing(p, mps, deep=deep), p[-1] / BANDWIDTH) for p in PRODUCT_ROWS]
    ms, shares = own.times(work)
    np.testing.assert_allclose(ms, [norm(*p, STEP_MS) for p in parts], rtol=1e-12)
    alone = own.times_alone(work)
    launch = (0.3 + 0.7 * 2.5) * LAUNCH_MS  # of a dense layer, over that of an addition
    np.testing.assert_allclose(alone, [norm(*p) + launch for p in parts], rtol=1e-12)
    powers = np.array([[*p, STEP_MS] for p in parts]) ** 3
    np.testing.assert_allclose(shares.T, powers / powers.sum(axis=1, keepdims=True), rtol=1e-9)
    assert {*shares.argmax(axis=0)} == {k.COMPUTE, k.MOVE}


@pytest.mark.parametrize(
    ("product", "waves", "deep"),
    [
        ((1, 576, 64, 204_000, 1e6), 1, 17_000),  # 9 tiles, each in 12 parts
        ((1, 64, 64, 2048, 1e4), 1, 1024),
        ((1, 64, 64, 2047, 1e4), 1, 2047),  # no part below 1024
        ((2, 4096, 64, 50_000, 1e7), 2, 50_000),  # 128 tiles
    ],
)
def test_a_great_depth_is_shared_by_108_multiprocessors(
    product: tuple[float, ...], waves: int, deep: int
) -> None:
    wanted = norm(108 * waves * 64**2 * deep / RATE, product[-1] / BANDWIDTH, STEP_MS)
    assert formula(108).times(work_of([product]))[0] == pytest.approx([wanted], rel=1e-12)


def test_what_is_not_cut_into_tiles() -> None:
    parts = [(n * rows * columns * depth, moved) for n, rows, columns, depth, moved in PRODUCT_ROWS]
    wanted = [norm(macs / RATE, moved / BANDWIDTH, STEP_MS) for macs, moved in parts]
    for name in (c.GROUPED, c.DEPTHWISE):
        found = formula(108).times(work_of(PRODUCT_ROWS, name))[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_moving_by_hand() -> None:
    """Bytes, and a start: that of a network or that of an operation alone; nothing moved is free."""
    moved = [0.0, 1.0, 1e2, 1e3, 1e5, 1e8]
    work = work_of([(0, 0, 0, 0, n) for n in moved], c.NORM)
    for found, start in (
        (formula().times(work)[0], STEP_MS),
        (formula().times_alone(work), (0.3 + 0.7 * 1.7) * LAUNCH_MS),
    ):
        wanted = [0.0, *(norm(n / MOVING_BANDWIDTH, start) for n in moved[1:])]
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    assert formula().moving_ms(c.NORM, 1e5) == pytest.approx(norm(1e5 / MOVING_BANDWIDTH, STEP_MS))
    assert list(formula().times(work)[1].argmax(axis=0)[[1, -1]]) == [k.START, k.MOVE]


def test_each_class_has_its_own_terms() -> None:
    own = formula(convolution={"rate": 1e5, "bandwidth": 1e4}, sums={"bandwidth": 1e3})
    product, moved = PRODUCT_ROWS[0], (0.0, 0.0, 0.0, 0.0, 1e6)
    work = work_of([product, product, moved, moved], c.DENSE, c.CONVOLUTION, c.ELEMENTS, c.SUMS)
    np.testing.assert_allclose(own.times(work)[0], [
        norm(computing(product, 1), 2e6 / BANDWIDTH, STEP_MS),
        norm(computing(product, 1, 1e5), 2e6 / 1e4, STEP_MS),
        norm(1e6 / MOVING_BANDWIDTH, STEP_MS),
        norm(1e6 / 1e3, STEP_MS),
    ], rtol=1e-12)  # fmt: skip
    rates = {"flops": 1 / RATE, "traffic": 4 / MOVING_BANDWIDTH, "ops": STEP_MS}
    assert own.coefficients == {**rates, "call": 0.0}


def test_no_product_of_a_network_goes_beyond_what_the_device_sustains() -> None:
    own, work = formula(7), work_of(PRODUCT_ROWS)
    slow = replace(own, sustained=1e5)
    wanted = np.maximum(own.times(work)[0], work.macs / 1e5)
    np.testing.assert_allclose(slow.times(work)[0], wanted, rtol=1e-12)
    np.testing.assert_array_equal(slow.times_alone(work), own.times_alone(work))


def test_shapes_that_were_timed_near_by() -> None:
    """A weight of 2 on one shape: that shape takes exp(2 * 0.3 ** 2) times as long, others hardly."""
    own, work = formula(), work_of(PRODUCT_ROWS, c.DENSE, c.BATCHED)
    near = replace(own, shape_residuals={c.DENSE: ((1.0, 512, 512, 256, 2.0),)})
    for time in (lambda f: f.times(work)[0], lambda f: f.times_alone(work)):
        factors = time(near) / time(own)
        assert factors[0] == pytest.approx(math.exp(2 * 0.3**2))
        np.testing.assert_array_equal(factors[1::2], 1.0)


def test_tf32_is_for_convolutions_of_float32() -> None:
    big = PRODUCT_ROWS[5]
    work = work_of([big, big], c.DENSE, c.CONVOLUTION)
    slow, fast = (replace(formula(), tf32=n).times(work)[0] for n in (1.0, 4.0))
    assert fast[0] == slow[0]
    moving = big[-1] / BANDWIDTH
    assert fast[1] == pytest.approx(norm(computing(big, 1) / 4, moving, STEP_MS))
    half = formula(mode=Mode("amp"))
    found = replace(half, tf32=4.0).times(work)[0]
    np.testing.assert_array_equal(found, half.times(work)[0])


def test_it_is_the_same_from_its_file() -> None:
    for own in (
        formula(7, Mode("amp")),
        replace(formula(), sustained=1e5, tf32=2.0, measured=(c.DENSE,)),
    ):
        assert msgspec.convert(own.to_dict(), k.Roofline) == own
    assert not {"sustained", "host", "shape_residuals"} & formula().to_dict().keys()


def test_what_is_unlike_all_that_was_measured() -> None:
    work = work_of(
        [PRODUCT_ROWS[0], PRODUCT_ROWS[0], (0, 0, 0, 0, 1e6)], c.DENSE, c.GROUPED, c.NORM
    )
    steps = dataclasses.replace(formula().steps(work), run_ms=np.array([1.0, 2.0, 1.0]))
    some = replace(formula(), measured=(c.DENSE, c.NORM))
    assert some.unlike(steps) == {c.GROUPED: 0.5}
    assert formula().unlike(steps) == {}
    assert replace(formula(), measured=()).unlike(steps) is None
    assert k.Roofline.unlike_remarks({c.GROUPED: 0.5, c.NORM: 0.05}, 0.05) == (
        "kinds of operations that were hardly timed on this device: grouped convolutions (50 %) of the "
        "time; they are assumed to be as on other GPUs",
    )

"""The fit of a space's costs: made-up devices are found again, absurd readings borne; its file."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.stats import spearmanr
from scipy.stats import t as student

from lolat import nas
from lolat.api.model import Model
from lolat.device.file import new_document
from lolat.errors import InputError, ModelFileError
from lolat.nas import FewShotModel, Space, fit
from lolat.nas.cost_fit import FREEDOM, WeightedFit, outlying, weighted_fits
from lolat.nas.fewshot import Samples, mixed_quantile, read_samples, rounding
from lolat.nas.spaces import SPACES
from tests import synthetic
from tests.nas.few_devices import FIXED, PHONE, edges, everything, needed_edges, some_cells
from tests.nas.test_space import small

CELLS, LAYERS = SPACES["nasbench201"](), SPACES["fbnet"]()
ASSUMED = CELLS.assumptions()


def exact(archs: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, times) of some networks."""
    return CELLS.parse(archs), np.array([everything(a) for a in archs])


def predicted(found: list[WeightedFit], rows: np.ndarray) -> np.ndarray:
    parts = [
        e.weight * np.log(e.pieces.counts(rows) @ e.pieces.costs(e.parameters)[0]) for e in found
    ]
    return np.exp(np.sum(parts, axis=0))


def test_the_costs_of_a_device_are_found_from_twelve_exact_readings() -> None:
    found = weighted_fits(ASSUMED, *exact(some_cells(12)))
    assert sum(e.weight for e in found if e.pieces.name == "all") > 0.99
    costs = found[0].pieces.costs(found[0].parameters)[0]
    # skip_connect is free in PHONE, so the rest is what is fixed.
    wanted = ["none", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"]
    assert costs == pytest.approx([FIXED, *(PHONE[name] for name in wanted)], rel=0.02)
    rows, times = exact(some_cells(500, seed=1))
    assert predicted(found, rows) == pytest.approx(times, rel=0.01)
    weights = [e.weight for e in found]
    assert sum(weights) == pytest.approx(1.0)
    assert weights == sorted(weights, reverse=True)


def test_absurd_readings_hardly_count_and_are_named() -> None:
    rows, times = exact(some_cells(12, seed=5))
    times *= np.exp(0.01 * np.random.default_rng(0).standard_normal(12))
    times[4], times[7] = 0.003, times[7] * 3.0
    found = weighted_fits(ASSUMED, rows, times)
    others, wanted = exact(some_cells(500, seed=6))
    assert np.median(np.abs(predicted(found, others) / wanted - 1.0)) < 0.02
    off = outlying(found[0], rows, times)
    assert set(np.flatnonzero(off != 1.0)) == {4, 7}
    assert off[7] == pytest.approx(3.0, rel=0.1)
    assert off[4] < 0.01


def test_whole_milliseconds_count_as_rounded() -> None:
    rows, times = exact(some_cells(15, seed=7))
    rounded = np.round(times / 4.0)
    assert np.abs(rounded / (times / 4.0) - 1.0).max() > 0.05
    found = weighted_fits(ASSUMED, rows, rounded, step=1.0)
    # What rounding explains is no noise of the device.
    assert found[0].noise < weighted_fits(ASSUMED, rows, rounded)[0].noise
    assert (outlying(found[0], rows, rounded, step=1.0) == 1.0).all()


def test_the_most_probable_costs_are_those_of_a_general_minimizer() -> None:
    """The oracle is scipy's minimum of the posterior, written anew without our derivatives."""
    pieces, noise = ASSUMED[0], 0.12
    rows, times = exact(some_cells(8, seed=10))
    times *= np.exp(noise * np.random.default_rng(3).standard_normal(8))
    counts = pieces.counts(rows)
    spread = np.concatenate([[50.0], [1.5, 1.5, 1.5, 1.5, 2.0], [s for _, s in pieces.members]])

    def posterior(x: np.ndarray) -> float:
        costs = (pieces.terms @ np.exp(x[1:6])) * np.exp(x[0] + pieces.factors @ x[6:])
        z = (np.log(times) - np.log(counts @ costs)) / noise
        return float(np.sum(2.5 * np.log1p(z**2 / FREEDOM)) + 0.5 * np.sum((x / spread) ** 2))

    ours = next(e for e in weighted_fits([pieces], rows, times) if e.noise == noise).parameters
    start = np.zeros(pieces.size)
    start[0] = 1.0
    other = minimize(posterior, start, method="BFGS", options={"gtol": 1e-8, "maxiter": 2000})
    assert posterior(ours) == pytest.approx(other.fun, abs=1e-3)


# ---- The model: answers, intervals, warnings.


def noisy(count: int, noise: float, seed: int = 0) -> Samples:
    archs = some_cells(count, seed)
    rows, times = exact(archs)
    times *= np.exp(noise * np.random.default_rng(seed).standard_t(4.0, count))
    return Samples(tuple(archs), rows, times, 0.0)


@pytest.fixture(scope="module")
def cells() -> FewShotModel:
    return fit(CELLS, noisy(12, 0.02))


def test_what_is_faster_or_slower_than_all_samples_is_outside(cells: FewShotModel) -> None:
    measured = sorted(sample.latency_ms for sample in cells.section.samples)
    fastest, slowest = measured[0], measured[-1]
    asked = np.array([fastest / 1.2, fastest, measured[3], slowest, slowest * 1.2])
    assert cells.inside(asked).tolist() == [False, True, True, True, False]


def test_intervals_hold_about_as_many_readings_as_they_say(cells: FewShotModel) -> None:
    """Readings of made-up devices with heavy-tailed noise, over many draws of samples."""
    inside, within = [], []
    for seed in range(12):
        model, readings = fit(CELLS, noisy(12, 0.03, seed)), noisy(200, 0.03, seed + 100)
        low, high = model.interval(readings.rows, 0.9)
        assert (low < high).all()
        inside.append(np.mean((low <= readings.times) & (readings.times <= high)))
        errors = np.abs(np.log(readings.times / model.latency(readings.rows)))
        limits = np.log1p([model.error_of(0.5), model.error_of(0.9)])
        within.append([np.mean(errors <= limit) for limit in limits])
    assert 0.82 < np.mean(inside) < 0.98
    assert np.mean(within, axis=0) == pytest.approx([0.5, 0.9], abs=0.12)
    rows = CELLS.parse(some_cells(20, seed=4))
    half, most = cells.interval(rows, 0.5), cells.interval(rows, 0.95)
    assert (most[0] < half[0]).all()
    assert (half[1] < most[1]).all()


@pytest.mark.parametrize("seed", [1, 2, 3, 6])
def test_what_samples_cannot_tell_does_not_move_the_answer(seed: int) -> None:
    """Each operation of the samples is read, so that they hardly tell whether an unread one runs."""
    archs = [a for a in some_cells(400, seed) if needed_edges(a) == opened(a)][:10]
    rows, times = exact(archs)
    times *= np.exp(0.03 * np.random.default_rng(seed).standard_normal(10))
    model = fit(CELLS, Samples(tuple(archs), rows, times, 0.0))
    unread, wanted = exact([a for a in some_cells(4000, seed) if not needed_edges(a)])
    assert model.latency(unread) == pytest.approx(wanted, rel=0.2)
    low, high = model.interval(unread, 0.9)
    assert ((low < wanted) & (wanted < high)).mean() > 0.8
    assert np.median(high / wanted) < 1.5


def opened(arch: str) -> set[tuple[int, int]]:
    return {edge for edge, operation in edges(arch).items() if operation != "none"}


@pytest.mark.parametrize("chance", [0.05, 0.5, 0.95])
@pytest.mark.parametrize(("share", "apart"), [(0.1, 3.0), (0.4, 0.2), (0.75, 1.0)])
def test_quantiles_of_a_mixture(chance: float, share: float, apart: float) -> None:
    """The oracle is a root of the distribution by scipy."""
    weights, middles, spreads = [share, 1.0 - share], [2.0 - apart, 2.0], [0.3, 0.05]

    def below(x: float) -> float:
        parts = zip(weights, middles, spreads, strict=True)
        return sum(w * student.cdf(x, FREEDOM, m, s) for w, m, s in parts) - chance

    columns = (np.array(values)[:, None] for values in (middles, spreads))
    (found,) = mixed_quantile(np.array(weights), *columns, chance)
    assert found == pytest.approx(brentq(below, -20.0, 20.0), abs=1e-6)


def test_few_samples_and_absurd_ones_are_warned_of() -> None:
    assert fit(CELLS, noisy(5, 0.01)).warnings[0].startswith("5 samples")
    many = noisy(14, 0.005, seed=2)
    assert fit(CELLS, many).warnings == []
    (warning,) = fit(CELLS, replace(many, times=many.times / 1000.0)).warnings
    assert "seconds?" in warning
    many.times[3] = 0.004
    (warning,) = fit(CELLS, many).warnings
    assert many.archs[3] in warning


@pytest.mark.parametrize("make", [SPACES["fbnet"], SPACES["fbnet-cifar"], small])
def test_ten_samples_rank_the_networks_that_the_space_builds(make: Callable[[], Space]) -> None:
    """The truth is the formula of inference; `small` has no assumptions of its own."""
    space, model = make(), Model.load("epyc-2t")
    estimator = nas.estimator(space, model)
    rows = space.sample(500, seed=9)
    truth, ranks = estimator.latency(rows), []
    assert truth[:2] == pytest.approx(
        [model.predict(space.network(r)).latency_ms for r in rows[:2]]
    )
    for seed in range(5):
        ten = space.sample(10, seed=seed)
        archs = tuple(space.arch(row) for row in ten)
        found = fit(space, Samples(archs, ten, estimator.latency(ten), 0.0))
        ranks.append(spearmanr(found.latency(rows), truth)[0])
    assert np.mean(ranks) > 0.9


# ---- Its file.


def with_section(space: str, section: Any) -> Model:
    document = {**new_document("m", "a phone", {}), "default": "", "spaces": {space: section}}
    return Model(document, "m.json")


def test_samples_answer_where_the_model_has_some(cells: FewShotModel) -> None:
    section = msgspec.to_builtins(cells.section)
    document = {**synthetic.document(), "spaces": {"nasbench201": section}}
    model, rows = Model(document, "m.json"), CELLS.sample(3)
    assert nas.estimator(CELLS, model).latency(rows).tolist() == cells.latency(rows).tolist()
    for space, *options in ((CELLS, 2), (CELLS, 1, "extended"), (LAYERS,)):
        assert nas.estimator(space, model, *options).predictor == "extended"
    assert (
        nas.estimator(CELLS, model.run_as("fp32")).predictor == "extended"
    )  # samples tell no precision
    with pytest.raises(ModelFileError):
        nas.estimator(small("nasbench201"), model)
    with pytest.raises(ModelFileError, match="lolat nas fit fbnet"):
        nas.estimator(LAYERS, with_section("nasbench201", section))


# ---- Tables of samples.

A, B = some_cells(2)
HEADS = "arch,latency_ms"
WRONG = B.replace(B.split("~")[0][1:], "conv_9x9", 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_of_samples(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "samples.csv"
    content = f"\ufeffname, Latency_ms ,ARCH\nx,1.25,{A}\n\ny,2.5,{B}\n".encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    found = read_samples(path, CELLS)
    assert (found.archs, found.times.tolist(), found.step) == ((A, B), [1.25, 2.5], 0.01)
    assert found.rows.tolist() == CELLS.parse([A, B]).tolist()


@pytest.mark.parametrize(
    ("unit", "times"), [("s", ("0.00125", "2.5e-3")), ("us", ("1250", "2500"))]
)
def test_samples_may_be_in_other_units(tmp_path: Path, unit: str, times: tuple[str, str]) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(f"arch,latency_{unit}\n{A},{times[0]}\n{B},{times[1]}\n")
    found = read_samples(path, CELLS)
    assert (found.times.tolist(), found.step) == (pytest.approx([1.25, 2.5]), 0.01)
    path.write_text(f"arch,latency_{unit}\n{A},1e20\n")
    with pytest.raises(InputError, match=f"line 2: latency_{unit} is '1e20', 1e.* ms; expected"):
        read_samples(path, CELLS)
    path.write_text(f"arch,latency\n{A},1\n")
    with pytest.raises(InputError, match=r"lacks .* latency_ms; .* \(or latency_s, latency_us\)"):
        read_samples(path, CELLS)


def test_a_sample_counts_once_and_is_of_one_device_at_batch_size_1(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    rows = [f"{A},1.25,t4,x", f"{A},1.25,t4,x", f"{B},2.5,t4,x", f"{B},2.6,t4,x", f"{A},9,v100,x"]
    path.write_text("\n".join(["arch,latency_ms,device,who", *rows]))
    found = read_samples(path, CELLS, "t4")
    assert found.times.tolist() == [1.25, 2.5, 2.6]
    assert len(found.remarks) == 2
    assert found.remarks[0].startswith("1 of 4 rows are copies")
    assert found.remarks[1].endswith("not read: who")
    with pytest.raises(InputError, match="rows of t4, v100"):
        read_samples(path, CELLS)
    path.write_text(f"arch,latency_ms,batch_size\n{A},1.25,32\n")
    with pytest.raises(InputError, match="line 2: batch_size is '32'; expected 1"):
        read_samples(path, CELLS)


@pytest.mark.parametrize("line", [f"{B},0", f"{WRONG},2.5", None])
def test_wrong_rows_are_refused(tmp_path: Path, line: str | None) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("\n".join([HEADS] if line is None else [HEADS, f"{A},1.25", "", line]))
    with pytest.raises(InputError) as caught:
        read_samples(path, CELLS)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "step"),
    [
        (["12", "15.0"], 1.0), (["12.1", "15"], 0.1), (["12.13", "1"], 0.01), (["12.131", "1"], 0.0),
        (["1e3"], 1.0), (["1e-9", "1"], 0.0),
    ],
)  # fmt: skip
def test_rounding_is_seen_from_the_digits(texts: list[str], step: float) -> None:
    assert rounding(texts) == pytest.approx(step)

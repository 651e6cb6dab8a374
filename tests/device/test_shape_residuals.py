"""Residuals by shape, against scikit-learn's Gaussian process."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.device.predictors.shape_residuals import (
    ERROR_SPREAD,
    LENGTH_SCALE,
    MOST_SHAPES,
    TIME_VARIANCE,
    fit_shape_residuals,
    shape_factors,
)
from lolat.graph.work import Workload

gaussian_process = pytest.importorskip("sklearn.gaussian_process")
GaussianProcessRegressor = gaussian_process.GaussianProcessRegressor
RBF, ConstantKernel = gaussian_process.kernels.RBF, gaussian_process.kernels.ConstantKernel


def products(shapes: np.ndarray) -> Workload:
    none = np.zeros(len(shapes))
    return Workload(none.astype(int), *shapes.T, none, none.astype(int), none > 0, none)


def drawn(number: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 4096, (number, 4)).astype(float)


def features(shapes: np.ndarray) -> np.ndarray:
    return np.column_stack([np.log(shapes), shapes[:, 2:] % 32 == 0])


def test_the_mean_of_a_gaussian_process() -> None:
    measured, asked = drawn(60, 0), drawn(40, 1)
    residuals = 0.02 * np.sin(np.log(measured).sum(axis=1))  # small: all weigh about the same
    kernel = ConstantKernel(ERROR_SPREAD**2) * RBF([LENGTH_SCALE] * 4 + [1.0, 1.0])
    known = GaussianProcessRegressor(kernel, alpha=TIME_VARIANCE, optimizer=None)
    expected = known.fit(features(measured), residuals).predict(features(asked))
    found = np.log(
        shape_factors(fit_shape_residuals(products(measured), residuals), products(asked))
    )
    assert found == pytest.approx(expected, abs=1e-3)


def test_what_all_have_in_common_is_told_and_an_outlier_is_not() -> None:
    measured = drawn(3 * MOST_SHAPES, 2)
    residuals = np.full(len(measured), 0.2)
    residuals[::10] = 3.0
    found = fit_shape_residuals(products(measured), residuals)
    assert len(found) <= MOST_SHAPES
    near = np.log(shape_factors(found, products(drawn(50, 3))))
    assert np.median(near) == pytest.approx(0.2, abs=0.08)


def test_far_from_all_that_was_measured_it_says_nothing() -> None:
    found = fit_shape_residuals(products(drawn(50, 4)), np.full(50, 0.3))
    far = products(np.full((1, 4), 1e12))
    assert shape_factors(found, far) == pytest.approx(1.0)

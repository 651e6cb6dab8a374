"""The linear regression against scikit-learn's, its counts by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.justus.linear import features, fit_linear
from tests.mlp.tables import random_rows, rows_of, table


def test_the_features_are_the_sizes_and_the_authors_count_of_work(tmp_path: Path) -> None:
    rows = table(
        tmp_path,
        rows_of("convolution", {}, {"padding": "valid", "stride": "4", "use_bias": "0"}),
    )
    # 8 images, 56 x 56, 3 x 3, 64 to 32 channels; valid: (56 - 2) / 4 = 13.5, which is not rounded.
    work = [8 * 56**2 * 9 * 64 * 32, 8 * 13.5**2 * 9 * 64 * 32]
    assert features(rows).tolist() == [
        [8, 3136, 9, 64, 32, 1, 1, 1, work[0]],
        [8, 3136, 9, 64, 32, 0, 4, 0, work[1]],
    ]
    dense = table(tmp_path, rows_of("dense", {}))
    assert features(dense).tolist() == [[8, 100, 10, 8 * 100 * 10]]


@pytest.mark.parametrize("layer", ["convolution", "dense"])
def test_it_is_least_squares(layer: str, tmp_path: Path) -> None:
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = table(tmp_path, random_rows(layer, 120, seed=3))
    others = table(tmp_path, random_rows(layer, 30, seed=4))
    reference = make_pipeline(StandardScaler(), LinearRegression()).fit(
        features(rows), rows.times_ms
    )
    expected = reference.predict(features(others))
    found = fit_linear(rows).predict(others)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.ptp(expected))

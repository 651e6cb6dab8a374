"""Linear regression on a layer's sizes and its multiply-accumulates: the baseline of Justus et al. 2018.

Ordinary least squares in ms, neither device, optimizer nor activation among its features, as in the
authors' notebook. It may answer below 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lolat.mlp.table import LayerTable


def features(table: LayerTable) -> np.ndarray:
    """(n, k) float64: batch size, sizes (input and kernel squared), flags, multiply-accumulates.

    The authors' count takes the output as (input - (kernel - 1 if valid)) / stride, not rounded up.
    """
    batch = table["batch_size"].astype(np.float64)
    if table.layer == "dense":
        columns = [batch, table["in_features"], table["out_features"]]
        macs = batch * table["in_features"] * table["out_features"]
    else:
        same = table["padding"] == "same"
        kernel = table["kernel_size"].astype(np.float64)
        size = table["input_size"].astype(np.float64)
        output = (size - np.where(same, 0, kernel - 1)) / table["stride"]
        channels = table["in_channels"].astype(np.float64) * table["out_channels"]
        macs = batch * output**2 * kernel**2 * channels
        columns = [
            batch, size**2, kernel**2, table["in_channels"], table["out_channels"], same,
            table["stride"], table["use_bias"],
        ]  # fmt: skip
    return np.stack([np.asarray(c, dtype=np.float64) for c in (*columns, macs)], axis=1)


@dataclass(frozen=True)
class LinearModel:
    """`coefficients` (k,) and `constant` of the standardised features (x - mean) / scale; ms."""

    mean: np.ndarray
    scale: np.ndarray
    coefficients: np.ndarray
    constant: float

    def predict(self, table: LayerTable) -> np.ndarray:
        """(n,) ms; may be negative."""
        x = (features(table) - self.mean) / self.scale
        return x @ self.coefficients + self.constant


def fit_linear(table: LayerTable) -> LinearModel:
    """The least squares fit to the times of a table; of several best ones, that of least norm."""
    x, y = features(table), table.times_ms
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale == 0] = 1.0
    # Standardised: counts of 1e10 beside flags of 0 and 1 would cost all digits.
    coefficients, *_ = np.linalg.lstsq((x - mean) / scale, y - y.mean(), rcond=None)
    return LinearModel(mean, scale, coefficients, float(y.mean()))

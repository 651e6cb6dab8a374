"""VGG-16 as a list of convolutions, as the authors sum it up: dense layers are such, pooling is left out.

Their three dense layers are convolutions of 7x7 and 1x1 without padding, which is how the network that
they measured (TF-Slim's) has them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lolat.io.tables import read_table
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.table import LayerTable

GPU = "V100"
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)

# (input size, kernel, channels in, channels out, padding, activation)
LAYERS = [
    (224, 3, 3, 64, "same", "relu"), (224, 3, 64, 64, "same", "relu"),
    (112, 3, 64, 128, "same", "relu"), (112, 3, 128, 128, "same", "relu"),
    (56, 3, 128, 256, "same", "relu"), *[(56, 3, 256, 256, "same", "relu")] * 2,
    (28, 3, 256, 512, "same", "relu"), *[(28, 3, 512, 512, "same", "relu")] * 2,
    *[(14, 3, 512, 512, "same", "relu")] * 3,
    (7, 7, 512, 4096, "valid", "relu"), (1, 1, 4096, 4096, "same", "relu"),
    (1, 1, 4096, 1000, "same", "none"),
]  # fmt: skip


def table(batch_size: int, optimizer: str) -> LayerTable:
    """The sixteen layers at a batch size, "none" for forward only, as rows to predict."""
    size, kernel, inputs, outputs, padding, activation = zip(*LAYERS, strict=True)
    n = len(LAYERS)
    return LayerTable(
        "convolution",
        {
            "gpu": np.array([GPU] * n),
            "batch_size": np.full(n, batch_size),
            "input_size": np.array(size),
            "kernel_size": np.array(kernel),
            "in_channels": np.array(inputs),
            "out_channels": np.array(outputs),
            "stride": np.full(n, 1),
            "padding": np.array(padding),
            "use_bias": np.full(n, 1),
            "activation": np.array(activation),
            "optimizer": np.array([optimizer] * n),
        },
    )


def predict_ms(model: LayerModel, batch_size: int, optimizer: str) -> float:
    """The sum of the layers' predicted times, ms."""
    return float(model.predict(table(batch_size, optimizer)).sum())


def measured_ms(folder: Path) -> dict[tuple[str, int], float]:
    """The authors' times of the whole network on a V100 by (optimizer, batch size), ms."""
    rows = read_table(folder / "justus2018_vgg16_v100.csv", ("optimizer", "batch_size", "time_ms"))
    return {(row["optimizer"], row.whole("batch_size")): row.number("time_ms") for row in rows}

"""What a layer asks of a GPU, and about how long that takes by the GPU's data sheet.

The terms are what TensorFlow 1 did in the measurements behind Justus et al. 2018 (benchmark_conv.py in
github.com/CDECatapult/ml-performance-prediction; conv_ops.cc in TensorFlow):

- tensors lie as batch, height, width, channels, and cuDNN wants the channels first: input, output and
  kernel are turned around, unless the layer is a matrix multiplication as it stands;
- where "same" needs an odd number of pixels, one more on one side, the input is copied with its padding;
- with an optimiser the layer runs forward, and back to both its kernel and its input; the input and the
  target of the loss are variables as the kernel is, and the optimiser updates all three.

How much each term counts was fitted to the relative error (non-negative least squares, made robust) on rows
of the authors' six GPUs, the four from 2014 on together and the two before. By itself the sum is a fifth to
a quarter off; the network of the recipe "best" learns the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lolat.mlp.devices import Device, facts, find
from lolat.mlp.layer_counts import output_sizes
from lolat.mlp.table import LayerTable

Devices = Mapping[str, Device]

PASSES: Mapping[str, int] = {
    "none": 0, "sgd": 3, "momentum": 5, "adagrad": 5, "adam": 7, "rmsprop": 7, "adadelta": 7,
}  # fmt: skip
"""Reads and writes of each element that an optimiser updates: value, gradient, its one or two slots."""

# How much each term counts: (forward, more with an optimiser), of GPUs from 2014 on and of earlier ones.
_CONVOLUTION = {
    "start_ms": ((0.24, 0.16), (0.28, 0.24)),
    "macs": ((1.34, 3.25), (3.47, 7.11)),
    "input": ((5.1, 10.2), (7.4, 16.4)),
    "output": ((5.4, 23.1), (9.6, 29.4)),
    "kernel": ((20.8, 53.6), (20.9, 78.4)),
    "padded": ((6.0, 14.9), (11.1, 27.8)),
    "bias": ((3.35, 0.0), (5.5, 0.0)),
    "activation": ((3.35, 3.1), (5.5, 2.4)),
    "updated": ((0.0, 2.6), (0.0, 3.5)),
}
_DENSE = {
    "start_ms": ((0.17, 0.23), (0.24, 0.28)),
    "macs": ((3.1, 2.9), (0.6, 1.7)),
    "kernel": ((0.8, 0.0), (3.8, 0.0)),
    "input": ((0.0, 0.0), (55.0, 0.0)),
    "updated": ((0.0, 2.0), (0.0, 3.8)),
}
_BALANCE = 8.0
"""MACs that a GPU typically does in the time of moving a byte; for such a one `turn` is `stream`."""
_BYTES = 4  # of a float32


@dataclass(frozen=True)
class Amounts:
    """Of n layers, each (n,) float64: MACs forward, elements of input, output and kernel.

    `size`: height = width of a convolution's output, 1 for a dense layer; `margin`: pixels of padding,
    both sides together; `product`: 1 where it is a matrix multiplication as it stands; `updated`: elements
    that the optimiser reads and writes; `trained`: 1 with an optimiser.
    """

    macs: np.ndarray
    input: np.ndarray
    output: np.ndarray
    kernel: np.ndarray
    size: np.ndarray
    margin: np.ndarray
    product: np.ndarray
    updated: np.ndarray
    trained: np.ndarray


def amounts(table: LayerTable) -> Amounts:
    """The amounts of each row of a table."""
    batch = table["batch_size"].astype(float)
    ones = np.ones(len(table))
    if table.layer == "convolution":
        height, window, inside, outside, stride = (
            table[name].astype(float)
            for name in ("input_size", "kernel_size", "in_channels", "out_channels", "stride")
        )
        same = table["padding"] == "same"
        size = output_sizes(table).astype(float)
        margin = np.where(same, np.maximum(0.0, (size - 1) * stride + window - height), 0.0)
        product = ((window == 1) & (stride == 1)) | ((window == height) & ~same)
        given, kernel = batch * height**2 * inside, window**2 * inside * outside
    else:
        inside, outside = table["in_features"].astype(float), table["out_features"].astype(float)
        size, margin, product = ones, 0 * ones, ones
        given, kernel = batch * inside, inside * outside
    output = batch * size**2 * outside
    passes = _each(table["optimizer"], PASSES)
    return Amounts(
        macs=batch * size**2 * kernel,
        input=given,
        output=output,
        kernel=kernel,
        size=size,
        margin=margin,
        product=product * 1.0,
        updated=passes * (given + output + kernel),
        trained=(table["optimizer"] != "none") * 1.0,
    )


def is_early(device: Device) -> bool:
    """Whether a GPU is older than Maxwell (2014): many slow cores, which reach far less of their peak.

    They ran below 1 GHz, which says it where the year is not known.
    """
    return device.clock_mhz < 1000 and (device.year is None or device.year <= 2014)


def early(table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) bool: `is_early` of the GPU of each row."""
    texts = table["gpu"]
    facts(texts, devices, "cores")  # an unknown GPU is an InputError
    answers = {}
    for text in dict.fromkeys(texts.tolist()):
        device = find(text, devices)
        answers[text] = device is not None and is_early(device)
    return _each(texts, answers).astype(bool)


def expected_ms(table: LayerTable, devices: Devices) -> np.ndarray:
    """(n,) ms: the time of each row by the facts of its GPU alone, above 0.

    Calculation counts by the peak, reading and writing in order by the bandwidth, and turning tensors
    around, which keeps neither busy, by their geometric mean. InputError for a GPU without facts.
    """
    what = amounts(table)
    compute = 1e3 / facts(table["gpu"], devices, "peak_macs")  # ms per MAC
    stream = 1e3 * _BYTES / facts(table["gpu"], devices, "bandwidth")  # ms per element
    turn = np.sqrt(stream * compute * _BALANCE * _BYTES)  # ms per element
    times = {
        "start_ms": np.ones(len(table)),
        "macs": what.macs * compute,
        "updated": what.updated * stream,
    }
    if table.layer == "convolution":
        counts = _CONVOLUTION
        times |= {
            "input": what.input * turn,
            "output": what.output * turn,
            "kernel": what.kernel * turn,
            "padded": what.input * turn * (what.margin % 2),
            "bias": what.output * stream * table["use_bias"],
            "activation": what.output * stream * (table["activation"] != "none"),
        }
    else:
        counts = _DENSE
        times |= {"kernel": what.kernel * stream, "input": what.input * turn}
    generation = early(table, devices)
    total = np.zeros(len(table))
    for name, ((ahead, back), (early_ahead, early_back)) in counts.items():
        forward = np.where(generation, early_ahead, ahead)
        total += times[name] * (forward + what.trained * np.where(generation, early_back, back))
    return total


def _each(texts: np.ndarray, values: Mapping[str, float]) -> np.ndarray:
    """(n,) float64: the value of each text."""
    listed = texts.tolist()
    return np.fromiter((values[text] for text in listed), np.float64, len(listed))

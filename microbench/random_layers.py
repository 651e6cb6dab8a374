"""Random layers to measure, drawn as Justus et al. 2018 drew theirs, without those that take too long.

The ranges are those of the measurements behind the paper (all ends are included, each value is as likely
as the others):

    both         batch 1 to 64; activation none, relu, tanh, sigmoid; half of the layers forward only, the
                 others with one of six optimisers
    convolution  input size 1 to 512, kernel 1 to 7 but no larger than the input, channels in and out 1 to
                 10,000 / input size, stride 1 to 4, padding same or valid, with or without a bias
    dense        features in and out 1 to 4095, always a bias
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.mlp.layer_counts import layer_counts, layer_name
from lolat.mlp.table import ACTIVATIONS, COLUMNS, LAYERS, OPTIMIZERS, PADDINGS, LayerTable

LARGEST_BATCH = 64
LARGEST_SIZE = 512
LARGEST_KERNEL = 7
LARGEST_STRIDE = 4
LARGEST_FEATURES = 4095
SHARE_FORWARD = 0.5
CHANNELS_TIMES_SIZE = 10_000  # at most, on either side

ELEMENT_MACS = 64
"""Multiply-accumulates that take as long as moving an element: of a processor of 64 GMAC/s and 4 GB/s."""
PASSES = 3
"""Forward and backward against forward: the gradients of weights and of input cost about as much each."""
MOST_WORK = {"cpu": 1e9, "gpu": None}
"""Device -> the most work of a layer (see `work`) that is measured; None: there is no limit."""

_BATCH = 4096  # drawn at a time; always the same, so that fewer points are the first ones of more
_MOST_BATCHES = 200


def draw(layer: str, points: int, seed: int, most_work: float | None = None) -> LayerTable:
    """`points` different layers of a kind, "convolution" or "dense", without GPU and times.

    Where one has more than `most_work` (see `work`) another is drawn with an optimiser if it has one,
    else without, so that half of them stay forward only; they are smaller than the paper's. The same seed
    gives the same layers, and fewer points the first ones of more. Raises InputError where hardly any
    layer is that small.
    """
    if layer not in LAYERS:
        raise InputError(f"unknown kind of layer {layer!r}; expected {' or '.join(LAYERS)}")
    generator, coin = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    wanted = coin.random(points) < SHARE_FORWARD
    columns = _columns(layer)
    found: dict[bool, dict[tuple[Any, ...], None]] = {True: {}, False: {}}  # forward only or not
    for _ in range(_MOST_BATCHES):
        if all(len(found[forward]) >= (wanted == forward).sum() for forward in found):
            rows = {forward: iter(drawn) for forward, drawn in found.items()}
            chosen = zip(*(next(rows[bool(forward)]) for forward in wanted), strict=True)
            return LayerTable(layer, {c: np.array(v) for c, v in zip(columns, chosen, strict=True)})
        drawn = _drawn(layer, generator)
        if most_work is not None:
            drawn = drawn.select(work(drawn) <= most_work)
        for row in zip(*(drawn[c].tolist() for c in columns), strict=True):
            found[row[-1] == "none"][row] = None
    raise InputError(
        f"of {_BATCH * _MOST_BATCHES} random {layer} layers {sum(map(len, found.values()))} have at most "
        f"{most_work:g} MACs of work; expected {points}: allow larger ones"
    )


def work(table: LayerTable) -> np.ndarray:
    """(n,) how much there is to do in each layer of n, in MACs: comparable to time on a processor.

    Multiply-accumulates, and ELEMENT_MACS for each element read or written (input, output, weights,
    what the activation reads and writes); PASSES times where there is an optimiser.
    """
    acts, inp, flops, traffic, weights, _ = layer_counts(table).T
    passes = np.where(table["optimizer"] == "none", 1, PASSES)
    found: np.ndarray = passes * (flops + ELEMENT_MACS * (acts + inp + traffic + weights))
    return found


def description(table: LayerTable, row: int) -> dict[str, Any]:
    """One layer as plain data: its kind under "layer", and its columns."""
    return {"layer": table.layer, **{c: table[c][row].item() for c in _columns(table.layer)}}


def name(table: LayerTable, row: int) -> str:
    """One layer in words that tell it from every other: "conv 3x3 64x56x56 to 128, bias, x8, adam"."""
    bias = ", bias" if "use_bias" in table and table["use_bias"][row] else ""
    optimizer = str(table["optimizer"][row])
    return (
        f"{layer_name(table, row)}{bias}, x{int(table['batch_size'][row])}, "
        f"{'forward' if optimizer == 'none' else optimizer}"
    )


def _columns(layer: str) -> tuple[str, ...]:
    return tuple(c for c in COLUMNS[layer] if c != "gpu")


def _drawn(layer: str, generator: np.random.Generator) -> LayerTable:
    """_BATCH layers of the paper's ranges."""

    def whole(low: int, high: int | np.ndarray) -> np.ndarray:
        return generator.integers(low, high, _BATCH, endpoint=True)

    columns: dict[str, np.ndarray] = {"batch_size": whole(1, LARGEST_BATCH)}
    if layer == "convolution":
        size = whole(1, LARGEST_SIZE)
        columns |= {
            "input_size": size,
            "kernel_size": whole(1, np.minimum(size, LARGEST_KERNEL)),
            "in_channels": whole(1, CHANNELS_TIMES_SIZE // size),
            "out_channels": whole(1, CHANNELS_TIMES_SIZE // size),
            "stride": whole(1, LARGEST_STRIDE),
            "padding": generator.choice(PADDINGS, _BATCH),
            "use_bias": whole(0, 1),
        }
    else:
        columns |= {f: whole(1, LARGEST_FEATURES) for f in ("in_features", "out_features")}
    columns["activation"] = generator.choice(ACTIVATIONS, _BATCH)
    backward = generator.choice([o for o in OPTIMIZERS if o != "none"], _BATCH)
    columns["optimizer"] = np.where(generator.random(_BATCH) >= SHARE_FORWARD, backward, "none")
    return LayerTable(layer, columns)

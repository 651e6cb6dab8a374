"""From layers to networks, as the paper does it: each layer predicted as if alone, the times added up.

What the models do not know (pooling, normalization, a convolution of another sort) is listed and left out
of the sum; LoLat's formula says what it may take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lolat.errors import InputError
from lolat.fitting.least_squares import point_weights
from lolat.fitting.predictors.kernels import TILES, slower
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, FEATURES, count
from lolat.mlp.devices import DEVICES, Device, find, key, merged
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.table import LAYERS, LayerTable, LayerWork, layer_name, network_rows
from lolat.model import Model

# ---- What a convolution pays when it is timed alone, and what of it a network pays: a formula
# of one GPU.
#
# The authors timed each layer as a TensorFlow 1.10 program of its own (benchmark_conv.py in
# github.com/CDECatapult/ml-performance-prediction): a variable, `tf.layers.conv2d`, one `session.run` after
# the other. What the GPU does then (conv_ops.cc, layout_optimizer.cc, conv_ops_gpu_3.cu.cc of TensorFlow):
#
# - a call, and starting each operation: the host's work, which in a network the GPU's own hides;
# - the input is turned so that its channels come first, the output back: in a network this is done once at
#   either end;
# - the kernel is turned as well, at every call, also in a network: neighbours in what is written lie far
#   apart in what is read, so that large kernels miss the table of pages;
# - cuDNN's fastest algorithm: the product as it stands or, of 3x3 windows moved by 1, Winograd's in one
#   step (tiles of 2x2) or in three (4x4, batches padded to a multiple of 16);
# - bias and activation, an operation each.
#
# A bare 1x1 convolution (no bias, no activation) is one product without any turning; such rows are left
# out.

BYTES = 4.0
BATCHES = 16.0  # Winograd's three steps do whole ones
NARROW = 16  # channels below which TensorFlow turns an output in another, slower way
HEAVY, LIGHT = 1.5e6, 3e9  # weights, MACs of a layer that mostly turns its weights
SHARP = 12.0  # of the choice between algorithms

START: Mapping[str, float] = {
    "call": 0.15, "start": 0.02, "move": 1.2,
    "turned": 2e-8, "missed": 1e-7, "pages": 4e7, "spread": 0.4, "sharp": 3.0,
    "rate": 0.7, "bandwidth": 0.7, "fill": 50.0, "small": 0.1, "tiny": 0.1, "deep": 6e-5,
    "fused": 0.5, "fused_fill": 40.0, "winograd": 0.7, "winograd_fill": 40.0, "winograd_deep": 1e-4,
    "transformed": 0.7, "kernel": 0.3,
}  # fmt: skip
"""Where the search for each term begins, and what it is drawn to a little.

`call`, `start`: ms; `move`: times as long as at the data sheet's bandwidth takes what reads and writes each
element, turning it too; `rate`, `fused`, `winograd`: parts of its peak; `bandwidth`, `transformed`: of its
bandwidth; `turned`: ms for each weight, and `missed` more once they lie in many `pages`; `deep`: ms for
each element of a product's depth, one after the other.
"""
LEAST_TERMS = {"move": 1.0}
BOOST = 1.06  # times a data sheet's clock: a V100 of 1455 MHz runs at up to 1530
MOST_TERMS = {
    "rate": BOOST, "fused": BOOST, "winograd": BOOST, "bandwidth": 1.0, "transformed": 1.0, "sharp": 6.0,
}  # fmt: skip
"""What no GPU can be faster than; no step is sharper."""
PRIOR, FAR_OFF = 0.05, 0.1
LEAST_ROWS = 100
CORES = {"K40": 192, "K80": 192, "M60": 128, "1080ti": 128}
"""Of a multiprocessor; 64 in the others."""


@dataclass(frozen=True)
class Parts:
    """(layers,) ms each: `alone` (call, starts, turned tensors) is what only a layer by itself pays,
    `kernel` turning its weights, `computing` and `after` (bias, activation) are a network's too.
    """

    alone: np.ndarray
    kernel: np.ndarray
    computing: np.ndarray
    after: np.ndarray

    @property
    def network(self) -> np.ndarray:
        """(layers,) ms in a network."""
        return self.kernel + self.computing + self.after

    @property
    def total(self) -> np.ndarray:
        """(layers,) ms alone."""
        return self.alone + self.network


class Sizes:
    """What the formula needs of each row of a table, computed once."""

    def __init__(self, table: LayerTable, device: Device) -> None:
        self.device, self.work = device, LayerWork(table)
        work = self.work
        self.bias = table["use_bias"].astype(float)
        self.active = (table["activation"] != "none").astype(float)
        self.bare = (self.bias + self.active == 0) & work.product
        self.small_window = (work.window == 3) & (work.stride == 1)
        waves = device.cores / CORES.get(device.name, 64)
        whole = np.ceil(work.batch / BATCHES) * BATCHES
        self.squares = whole * np.ceil(work.side / 4) ** 2
        self.plain = _tiles(1, work.batch * work.side**2, work.outside, waves)
        self.fused = _tiles(16, work.batch * np.ceil(work.side / 2) ** 2, work.outside, waves)
        self.winograd = _tiles(36, self.squares, work.outside, waves)


def _tiles(number: int, rows: np.ndarray, columns: np.ndarray, waves: float) -> np.ndarray:
    """(tilings, layers) multiply-accumulates of `number` products of depth 1, in whole waves of tiles."""
    tilings = []
    for long, short in TILES:
        fewest = np.full(len(rows), np.inf)
        for high, wide in ((long, short), (short, long)):
            tiles = number * np.ceil(rows / high) * np.ceil(columns / wide)
            fewest = np.minimum(fewest, np.ceil(tiles / waves))
        tilings.append(fewest * long * short * waves)
    return np.array(tilings)


def parts(sizes: Sizes, t: Mapping[str, float]) -> Parts:
    """The ms of layers by the terms `t` of START."""
    work, device = sizes.work, sizes.device
    peak, stream = device.peak_macs / 1e3, device.bandwidth / 1e3 / BYTES  # a ms: MACs, elements
    longer = slower(t)[:, None]

    def product(tiles: np.ndarray, depth: np.ndarray, rate: str, fill: str) -> np.ndarray:
        return (tiles * longer).min(axis=0) * (depth + t[fill]) / (t[rate] * peak)

    moved = work.input + work.output
    flow = t["bandwidth"] * stream
    plain = product(sizes.plain, work.depth, "rate", "fill")
    plain = _together(plain, (moved + work.kernel) / flow, work.depth * t["deep"])
    fused = _together(product(sizes.fused, work.inside, "fused", "fused_fill"), moved / flow)
    steps = product(sizes.winograd, work.inside, "winograd", "winograd_fill")
    between = 36 * sizes.squares * (work.inside + work.outside) / (t["transformed"] * stream)
    steps = _together(steps, between, work.inside * t["winograd_deep"]) + between
    of_kernel = 36 * work.inside * work.outside / t["kernel"]
    steps = steps + (moved + of_kernel) / (t["transformed"] * stream)
    fastest = np.where(sizes.small_window, _fastest(plain, fused, steps), plain)

    pages = np.log(work.kernel / t["pages"]) + 2 * t["spread"] * np.log(work.window)
    missing = 1.0 / (1.0 + np.exp(-np.clip(t["sharp"] * pages, -50.0, 50.0)))
    turned = t["move"] * moved * 2 / stream
    started = 3.0 + sizes.bias + sizes.active  # two of them turn the tensors
    return Parts(
        alone=t["call"] + t["start"] * started + turned,
        kernel=work.kernel * (t["turned"] + t["missed"] * missing),
        computing=fastest,
        after=(sizes.bias + sizes.active) * work.output * 2 * t["move"] / stream,
    )


def _together(*times: np.ndarray) -> np.ndarray:
    """(layers,) of what goes on at the same time: the longest, rounded."""
    return np.sqrt(sum(one**2 for one in times))


def _fastest(*times: np.ndarray) -> np.ndarray:
    """(layers,) the least of some times, smoothed."""
    least = np.minimum.reduce(times)
    return least * sum((one / least) ** -SHARP for one in times) ** (-1.0 / SHARP)


def alike(table: LayerTable) -> np.ndarray:
    """(rows,) whether the formula is of such a layer: forward; 3x3 or 1x1 windows moved by 1, one pixel
    written, or weights that take longer than computing; channels that are turned as most are.
    """
    work = LayerWork(table)
    known = (
        ((work.stride == 1) & ((work.window == 1) | (work.window == 3)))
        | (work.side == 1)
        | (work.kernel > HEAVY) & (work.output * work.depth < LIGHT)
    )
    return np.asarray(known & (work.outside >= NARROW) & (table["optimizer"] == "none"), bool)


def usable(table: LayerTable) -> np.ndarray:
    """(rows,) whether rows, each timed alone, tell the terms: those that are `alike` and not bare."""
    return alike(table) & ~Sizes(table, Device("any", 1, 1, 1)).bare


@dataclass(frozen=True)
class Alone:
    """The formula of a GPU: `terms` of START."""

    terms: Mapping[str, float]
    device: Device

    def parts(self, table: LayerTable) -> Parts:
        """The ms of each row."""
        return parts(Sizes(table, self.device), self.terms)


def fit(table: LayerTable, device: Device) -> Alone:
    """The terms from the rows of a GPU that are `usable`: robust least squares on the logarithms of their
    times, short ones counting less as everywhere (`lolat.fitting.least_squares.point_weights`).

    InputError for a table of dense layers, or of fewer than LEAST_ROWS such rows.
    """
    from scipy.optimize import least_squares

    if table.layer != "convolution":
        raise InputError(
            f"a table of {table.layer} layers; expected convolutions, each timed alone"
        )
    own = np.array([key(name) == key(device.name) for name in table["gpu"]], bool)
    table = table.select(own & usable(table))
    if len(table) < LEAST_ROWS:
        raise InputError(
            f"{len(table)} convolutions of {device.name} that tell what a layer pays alone; expected at "
            f"least {LEAST_ROWS}: forward only, {NARROW} channels out or more, windows of 1x1 or 3x3 moved "
            "by 1, or weights that outweigh the computing"
        )
    names = list(START)
    sizes, start = Sizes(table, device), np.log([START[n] for n in names])
    log_ms = np.log(table.times_ms)
    weights = point_weights(table.times_ms, np.zeros(len(table), bool))
    low = np.array([np.log(LEAST_TERMS[n]) if n in LEAST_TERMS else -50.0 for n in names])
    high = np.array([np.log(MOST_TERMS[n]) if n in MOST_TERMS else 50.0 for n in names])

    def errors(unknowns: np.ndarray) -> np.ndarray:
        terms = dict(zip(names, np.exp(unknowns).tolist(), strict=True))
        off = np.log(parts(sizes, terms).total) - log_ms
        return np.concatenate([weights * off, PRIOR * (unknowns - start)])

    fitted = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=FAR_OFF)
    return Alone(dict(zip(names, np.exp(fitted.x).tolist(), strict=True)), device)


# ---- A network from its layers.

ELEMENT_BYTES = 4  # float32
_SIX = [COLUMNS.index(c) for c in FEATURES]


@dataclass(frozen=True)
class LayerTime:
    """A layer and its predicted time; `what`: the row in words, `share`: of the sum."""

    name: str
    kind: str
    what: str
    predicted_ms: float
    share: float


@dataclass(frozen=True)
class OtherLayer:
    """An operation that is not in the sum, why, and what LoLat's formula says of it (None: nothing)."""

    name: str
    kind: str
    reason: str
    formula_ms: float | None


@dataclass(frozen=True)
class NetworkTime:
    """The time of one batch, ms: the sum of the layers and `call_ms`. `others` are not in it.

    `call_ms`: of one call, where convolutions are as inside a network; None where each has its own.

    An epoch is `batches` batches, the last one counted as a full one (as Keras counts them); both are
    None where the number of samples is not known. `formula_model`: what says something of the others.
    """

    KEYS = (
        "network", "gpu", "optimizer", "batch_size", "batch_ms", "call_ms", "samples", "batches", "epoch_s",
        "layers", "unpredicted=others", "unpredicted_formula_ms=others_ms", "warnings", "formula_model",
    )  # fmt: skip

    network: str
    gpu: str
    optimizer: str
    batch_size: int
    samples: int | None
    layers: tuple[LayerTime, ...]
    others: tuple[OtherLayer, ...]
    warnings: tuple[str, ...]
    call_ms: float | None = None
    formula_model: str | None = None

    @property
    def batch_ms(self) -> float:
        """The sum of the layers, and a call."""
        return math.fsum(layer.predicted_ms for layer in self.layers) + (self.call_ms or 0.0)

    @property
    def batches(self) -> int | None:
        """Of an epoch: samples over batch size, rounded up."""
        return None if self.samples is None else -(-self.samples // self.batch_size)

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch."""
        return None if self.batches is None else self.batches * self.batch_ms / 1e3

    @property
    def others_ms(self) -> float | None:
        """What the formula says of all that is not in the sum; None where it says nothing of one."""
        times = [other.formula_ms for other in self.others]
        known = [t for t in times if t is not None]
        return math.fsum(known) if len(known) == len(times) else None


def network_time(
    graph: Graph,
    models: Mapping[str, LayerModel],
    gpu: str,
    batch_size: int,
    optimizer: str = "none",
    samples: int | None = None,
    devices: Mapping[str, Device] | None = None,
    formula: Model | None = None,
    alone: Alone | None = None,
) -> NetworkTime:
    """Predict a network with a model per kind of layer.

    `models`: by "convolution" and "dense"; `gpu`, `optimizer`: as in a LayerTable ("none": forward only);
    `devices`: facts of GPUs that are not built in; `formula`: LoLat's model of the GPU, forward only, for
    what is not in the sum; `alone`: what convolutions pay alone, for their times inside the network
    instead of a model's. Raises InputError as `LayerModel.predict` does.
    """
    rows = network_rows(graph, gpu, batch_size, optimizer)
    warnings = [*graph.warnings, *rows.warnings]
    times: dict[int, tuple[str, float]] = {}
    for layer in LAYERS:
        table = rows.table(layer)
        if not len(table):
            continue
        positions = [row.operation for row in rows.layers if row.layer == layer]
        inside = alone if layer == "convolution" else None
        if inside is None:
            predicted = models[layer].predict(table, devices)
        else:
            predicted = inside.parts(table).network
            warnings += _unlike(table)
        for i, (position, time) in enumerate(zip(positions, predicted, strict=True)):
            times[position] = layer_name(table, i), float(time)
        outside = None if inside else models[layer].outside(table)
        if outside:
            warnings.append(f"{layer} layers: {outside}")
    total = math.fsum(time for _, time in times.values()) or 1.0
    layers = [
        LayerTime(row.name, row.layer, *times[row.operation], times[row.operation][1] / total)
        for row in rows.layers
    ]
    estimates: Sequence[float | None] = [None] * len(rows.others)
    if optimizer == "none" and formula is not None:
        device = find(gpu, merged(DEVICES, devices or {}))
        positions = [position for position, _ in rows.others]
        estimates = formula_ms(graph, positions, batch_size, formula, device).tolist()
    others = [
        OtherLayer(graph.operations[i].full_name, graph.operations[i].kind, reason, estimate)
        for (i, reason), estimate in zip(rows.others, estimates, strict=True)
    ]
    return NetworkTime(
        graph.name, gpu, optimizer, batch_size, samples, tuple(layers), tuple(others),
        tuple(dict.fromkeys(warnings)), None if alone is None else alone.terms["call"],
        None if formula is None else formula.name,
    )  # fmt: skip


def _unlike(table: LayerTable) -> list[str]:
    """A remark where convolutions are of a kind that `Alone` was not fitted to."""
    number = int((~alike(table)).sum())
    if not number:
        return []
    return [
        f"{number} of {len(table)} convolutions are unlike the rows that say what one pays alone (strides, "
        "windows other than 1x1 and 3x3, few channels); they are taken as plain products"
    ]


def formula_ms(
    graph: Graph, positions: Sequence[int], batch_size: int, model: Model, device: Device | None
) -> np.ndarray:
    """(n,) ms of the operations at `positions` by LoLat's model, without its constant, forward only.

    At least what reading and writing takes at the memory bandwidth of `device`: where the layers that
    a model is fitted on do not tell what traffic costs, its coefficient is 0.
    """
    counts = count(graph).at(batch_size)[list(positions)]
    predictor = model.predictor()
    terms, _ = predictor.shares(counts[:, [COLUMNS.index(f) for f in predictor.features]])
    times: np.ndarray = terms.sum(axis=1)
    if device is None:
        return times
    acts, inp, _, traffic, weights, _ = counts[:, _SIX].T
    moved = ELEMENT_BYTES * (acts + inp + traffic + weights)
    return np.maximum(times, 1e3 * moved / device.bandwidth)

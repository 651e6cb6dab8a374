"""The classes of a GPU's operations: one row per class, with all that formula and fit assume about it.

`lolat.graph.work` assigns each operation to its class.
"""

from __future__ import annotations

from dataclasses import dataclass

from lolat.graph import work as c

Share = tuple[float, float]
"""(share of the device's rate or bandwidth, standard deviation of the log of this share)."""


@dataclass(frozen=True, kw_only=True)
class OperationClass:
    """The assumptions about a class of operations.

    `launch`: launch overhead / launch overhead of an addition. The ratios are from the shortest operations
    that NeuSight timed one by one on A100, V100 and T4, without the addition's TIMING: softmax 1.35, layer
    norm 2.1, product of two tensors 1.3 (more in networks, which reshape them), dense layer 2.5,
    convolution 2.3 to 3.5. `has_weights`: True if autocast launches one more operation in every pass, which
    converts the weights. `backward`: time of the backward pass / time predicted from its work, see
    LAYOUT_FACTORS. `in_tiles`: True for a product that is cut into tiles. `in_tf32`: True if PyTorch
    computes it in TF32 by default, as it does convolutions but not matrix products.

    `in_half`: for products, the shares of a data sheet's sustained rate and bandwidth that they reach in
    half precision. Rates are from large bfloat16 products on A100, H100 and B200 (0.70 to 0.91), and all of
    the rate on an RTX PRO 6000; bandwidths are means of RTX 3090, 4090 and 5090, except that dense layers
    and products of two tensors have the RTX 3090's, since the larger caches of the other cards hold all
    their data. Depthwise convolutions use no matrix units and stay as measured.

    `rate`, `bandwidth`: priors of a fit, from RTX 3090 and 4090 (docs/results/index.md). `on_vectors`: True
    if `rate` is a share of the vector units' float32 rate in every precision.
    `float32_bandwidth`: the prior in float32 and TF32 with channels first. P100, P4, T4, V100 and H100,
    each fitted alone, reach 0.17 to 0.41 of the sheet's bandwidth. In half precision, changing the layout
    of tensors is a separate term (LAYOUT_FACTORS).
    """

    launch: float = 1.0
    has_weights: bool = False
    backward: float = 1.0
    in_tiles: bool = False
    in_tf32: bool = False
    in_half: tuple[float, float] | None = None
    on_vectors: bool = False
    rate: Share = (1.0, 0.2)
    bandwidth: Share = (1.0, 0.3)
    float32_bandwidth: Share | None = None


OPERATION_CLASSES = {
    c.DENSE: OperationClass(launch=2.5, has_weights=True, in_tiles=True, in_half=(0.85, 0.39)),
    c.BATCHED: OperationClass(launch=1.8, in_tiles=True, in_half=(0.76, 0.51)),
    c.POINTWISE: OperationClass(
        launch=2.5, has_weights=True, in_tiles=True, in_tf32=True, in_half=(0.75, 0.8)),
    c.CONVOLUTION: OperationClass(
        launch=2.5, has_weights=True, in_tiles=True, in_tf32=True, in_half=(0.85, 0.7),
        float32_bandwidth=(0.32, 0.3)),
    c.GROUPED: OperationClass(
        launch=2.5, has_weights=True, in_tf32=True, in_half=(0.7, 0.45), rate=(0.75, 0.7),
        float32_bandwidth=(0.32, 0.5)),
    c.DEPTHWISE: OperationClass(
        launch=2.5, has_weights=True, backward=3.2, on_vectors=True, rate=(0.2, 1.0), bandwidth=(0.6, 0.4)),
    c.ATTENTION: OperationClass(launch=2.5, in_tiles=True, in_half=(0.9, 1.0)),
    c.ELEMENTS: OperationClass(backward=1.5),
    c.NORM: OperationClass(launch=1.7),
    c.BATCH_NORM: OperationClass(launch=1.9),
    c.GROUP_NORM: OperationClass(launch=1.9),
    c.POOLS: OperationClass(bandwidth=(0.6, 0.5)),
    c.SUMS: OperationClass(bandwidth=(0.5, 0.5)),
    c.MOVES: OperationClass(),
    c.PARTS: OperationClass(),
    c.JOINED: OperationClass(bandwidth=(0.6, 0.5)),
    c.RESIZED: OperationClass(bandwidth=(0.37, 0.5)),
}  # fmt: skip
TILED = frozenset(name for name, of in OPERATION_CLASSES.items() if of.in_tiles)
IN_TF32 = frozenset(name for name, of in OPERATION_CLASSES.items() if of.in_tf32)

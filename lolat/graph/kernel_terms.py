"""The classes of operations that `predictors.kernels` tells apart, and the terms of each; no more."""

from __future__ import annotations

DENSE, BATCHED, POINTWISE, CONVOLUTION = "dense", "batched", "pointwise", "convolution"
STEM, GROUPED, DEPTHWISE, DEPTHWISE_LAST = "stem", "grouped", "depthwise", "depthwise_last"
ATTENTION, MASKED, RECURRENT = "attention", "masked_attention", "recurrent"
ELEMENTS, SOFTMAX, NORM = "elements", "softmax", "norm"
BATCH_NORM, GROUP_NORM, CURVES, POOLS, SUMS = "batch_norm", "group_norm", "curves", "pools", "sums"
MOVES, PARTS, JOINED, CASTS, ROWS, RESIZED = "moves", "parts", "joined", "casts", "rows", "resized"
PRODUCTS = (
    DENSE, BATCHED, POINTWISE, CONVOLUTION, STEM, GROUPED, DEPTHWISE, DEPTHWISE_LAST, ATTENTION, MASKED,
    RECURRENT,
)  # fmt: skip
"""What multiplies. STEM: a convolution of an image; DEPTHWISE_LAST: one whose channels lie last in memory;
ATTENTION: products and softmax in one, MASKED with something added to the scores."""
MOVING = (
    ELEMENTS, CURVES, BATCH_NORM, NORM, GROUP_NORM, SOFTMAX, POOLS, SUMS, MOVES, PARTS, JOINED, CASTS, ROWS,
    RESIZED,
)  # fmt: skip
"""What only moves: element by element (CURVES: an exponential or the like of each), norms, windows, sums,
copies in another order, slices, concatenations, conversions of the data type, gathered rows, enlarging."""
CLASSES = (*PRODUCTS, *MOVING)
CALLED = {
    DENSE: "dense layers", BATCHED: "products of two tensors", POINTWISE: "1x1 convolutions",
    CONVOLUTION: "convolutions", STEM: "convolutions of an image", GROUPED: "grouped convolutions",
    DEPTHWISE: "depthwise convolutions", DEPTHWISE_LAST: "depthwise convolutions with channels last",
    ATTENTION: "attention", MASKED: "attention with a mask", RECURRENT: "recurrent layers",
    ELEMENTS: "element-wise operations", NORM: "layer norms", BATCH_NORM: "batch norms",
    GROUP_NORM: "group norms", POOLS: "pools", MOVES: "copies", PARTS: "slices",
    JOINED: "concatenations", CASTS: "conversions", ROWS: "gathered rows", RESIZED: "resized images",
}  # fmt: skip
"""The classes in a sentence, where the name itself does not fit into one."""
NEEDED = (DENSE, ELEMENTS)
"""Of every model: those that stand for a class that it has no operations of."""
PRODUCT_TERMS = (
    "rate", "small", "tiny", "fill", "launch", "bandwidth", "unaligned", "spread", "direct",
)  # fmt: skip
"""Of a class of products: macs per ms; how much less efficient tiles of 64 and of 32 are; depth that a
tile costs before it computes; ms; bytes per ms; what rows that are not aligned cost, relative, and how many
times the bandwidth moves what they read again; how much faster a 3x3 convolution of stride 1 is."""
OPTIONAL_TERMS = {"step": 0.0, "heavy": 1.0, "overlap": 4.0}
"""Of a class of products, with what it is where it is not there: ms that each takes in a network whatever
its size; how many times as long a byte of its weights takes as another; how far computing and moving hide
each other: the norm that stands for the larger of the two, 1 for their sum."""
MOVING_TERMS = ("launch", "bandwidth", "corner")
"""Of any other: ms, bytes per ms, how sharply the one goes over into the other."""
SHAPE = ("number", "rows", "columns", "depth")
"""Of a product: `number` times (rows x depth) by (depth x columns)."""

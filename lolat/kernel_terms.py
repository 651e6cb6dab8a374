"""The classes of operations that `lolat.predictors.kernels` tells apart, and the terms of each; no more."""

from __future__ import annotations

DENSE, BATCHED, CONVOLUTION, GROUPED = "dense", "batched", "convolution", "grouped"
ELEMENTS, SOFTMAX, NORM = "elements", "softmax", "norm"
PRODUCTS = (DENSE, BATCHED, CONVOLUTION, GROUPED)
CLASSES = (*PRODUCTS, ELEMENTS, SOFTMAX, NORM)
NEEDED = (DENSE, ELEMENTS)
"""Of every model: those that stand for a class that it has no operations of."""
PRODUCT_TERMS = (
    "rate", "small", "tiny", "fill", "launch", "bandwidth", "unaligned", "spread", "direct",
)  # fmt: skip
"""Of a class of products: macs per ms; how much less efficient tiles of 64 and of 32 are; depth that a
tile costs before it computes; ms; bytes per ms; what rows that are not aligned cost, relative, and how many
times the bandwidth moves what they read again; how much faster a 3x3 convolution of stride 1 is."""
MOVING_TERMS = ("launch", "bandwidth", "corner")
"""Of any other: ms, bytes per ms, how sharply the one goes over into the other."""

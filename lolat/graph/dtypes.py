"""Bytes of an element of each data type."""

from __future__ import annotations

from lolat.graph.kinds import by_name

_OF_SIZE = {
    16.0: "complex128", 8.0: "float64 int64 uint64 complex64", 2.0: "float16 bfloat16 int16 uint16",
    1.0: "float8_e4m3fn float8_e5m2 int8 uint8 bool",
}  # fmt: skip
SIZES = by_name(_OF_SIZE)
"""Data type -> bytes of an element; other types have 4."""
FLOAT_BYTES, HALF_BYTES = 4, 2
ABOVE_FLOAT32 = {dtype: size for dtype, size in SIZES.items() if size > FLOAT_BYTES}

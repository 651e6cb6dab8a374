"""Random input (hypothesis): networks, profiles, tables, queries of the page."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import FORMULAS
from lolat.graph.kinds import CONVOLUTIONS, POOLINGS
from tests import by_hand

# ---- JSON

names = st.text(max_size=6)
plain_values = (
    st.none() | st.booleans() | names | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
json_values = st.recursive(
    plain_values,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)

attributes = st.recursive(
    plain_values, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=2
)
"""As a reader of LoLat's gives them: lists are tuples."""
notes = st.sampled_from([True, False, False, False]).flatmap(
    lambda some: attributes if some else st.just(())
)

# ---- networks

SHAPES = [(1, 8, 8, 4), (1, 4, 4, 8), (1, 16), (1, 1, 1, 4), (1, 10, 4), (1,)]
PATHS = ["", "", "encoder/layer_1", "multi_head_attention"]
NAMES = ["", "conv2d", "conv2d_3", "block1_conv", "block1_add", "block_2", "a/b_1", "x:2", "_",
          "stage1.0.conv1", "normal_conv_5", "/", "...", "1", "Größe_1", "two\nlines", "stem_bn",
          "add_7", "average_pool_" * 30 + "!"]  # fmt: skip
LAYERS = [(name, path) for name in NAMES for path in PATHS]
LAYER_SIZES = [
    {"in_channels": 4, "out_channels": outside, "groups": groups, "bias": groups == 1, "in_features": 4,
     "out_features": outside, "units": 3, "timesteps": 2, "contracted": groups, "padding": padding,
     "heads": 2, "key_heads": 2, "queries": 4, "keys": groups, "head_size": 4, "value_size": outside}
    for outside in (4, 8) for groups in (1, 2, 4) for padding in ("same", "valid")
]  # fmt: skip
KINDS = (*FORMULAS, "mystery")
SLIDING = CONVOLUTIONS | POOLINGS
"""Kinds with a kernel, of as many sizes as an image has axes."""
ELEMENTS = ("relu", "add", "reshape", "identity", "batch_norm", "concatenate")


@st.composite
def graphs(
    draw: st.DrawFn, kinds: Sequence[str] = KINDS, shapes: Sequence[Any] = SHAPES, most: int = 12
) -> Graph:
    """A network of up to `most` operations of any kind, with whatever operands and attributes."""
    b = GraphBuilder(draw(names))
    dtype = st.sampled_from(["float32", "float32", "float16", "int64"])
    known = [b.input(draw(st.sampled_from(shapes)), draw(dtype), draw(st.booleans()))]
    known += [b.input(draw(st.sampled_from(shapes))), b.tensor((1, 4), batched=False)]
    for _ in range(draw(st.integers(0, most))):
        near = st.sampled_from(known[-4:]) | st.sampled_from(known)
        inputs = draw(st.lists(near, min_size=2, max_size=4))
        kind, axes = draw(st.sampled_from(kinds)), len(b.tensors[inputs[0]].shape)
        like = [shape for shape in shapes if len(shape) == axes]
        sliding = kind in SLIDING and axes > 2 and bool(like)
        window = {"kernel": (draw(st.sampled_from([1, 3, 5])),) * (axes - 2)} if sliding else {}
        known += b.add_several(
            kind if sliding or kind not in SLIDING else "mystery",
            inputs[: draw(st.integers(1, 4))] if kind not in ("matmul", "attention") else inputs * 2,
            draw(st.lists(st.sampled_from(like if sliding else shapes), min_size=1, max_size=2)),
            *draw(st.sampled_from(LAYERS)),
            **window, **draw(st.sampled_from(LAYER_SIZES)), note=draw(notes),
        )  # fmt: skip
    b.warnings = draw(st.lists(names, max_size=2))
    return b.build(draw(st.lists(st.sampled_from(known), max_size=3, unique=True)))


@st.composite
def chains(draw: st.DrawFn, most: int = 14) -> Graph:
    """One input, one output that comes from it, all of one shape and too light to be opened."""
    b = GraphBuilder("single")
    tensors = [b.input((1, 8, 8, 4)), b.tensor((4,), batched=False)]
    for i in range(draw(st.integers(1, most))):
        near = st.sampled_from(tensors[-2:]) | st.sampled_from(tensors)
        kind = draw(st.sampled_from(ELEMENTS))
        count = 1 if kind in ("relu", "batch_norm") else draw(st.integers(1, 3))
        inputs = draw(st.lists(near, min_size=1, max_size=count, unique=True))
        tensors.append(b.add(kind, inputs, (1, 8, 8, 4), f"op{i}"))
    return b.build([tensors[-1]])


# ---- profiles

prices = st.floats(0.0, 1e-3)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """The contents of a profile: any coefficients and texts, and what a later LoLat may add."""
    made = by_hand.document(name=draw(names))
    counts = made["predictors"]["extended"]["coefficients"]
    made["predictors"]["extended"]["coefficients"] = {
        count: draw(prices) for count in counts
    } | {"call": draw(st.floats(1e-3, 10.0))}  # fmt: skip
    made["warnings"] = draw(st.lists(names, max_size=2))
    made["environment"] |= draw(st.dictionaries(names.map("x-".__add__), json_values, max_size=2))
    return made | draw(st.dictionaries(names.map("x-".__add__), json_values, max_size=2))


# ---- tables

cells = st.text("ab,\"' \n\r;ä\u2028\x1c\x85#=", max_size=4)


@dataclass(frozen=True)
class Written:
    """Rows of text and a CSV file of them."""

    rows: list[list[str]]
    content: bytes


@st.composite
def tables(draw: st.DrawFn, header: Sequence[str] = ("x", "y")) -> Written:
    """A table with this first line, in any of the ways that programs quote and end lines."""
    width = len(header)
    rows = draw(st.lists(st.lists(cells, min_size=width, max_size=width), max_size=5))
    text = io.StringIO()
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
    if set("\r\n") & set(
        "".join(itertools.chain(*rows))
    ):  # which the module quotes only as its own ending
        quoting = csv.QUOTE_ALL
    # Else csv.writer leaves the one of the two that does not end lines without quotes within a cell.
    ending = "\r\n" if quoting == csv.QUOTE_MINIMAL else draw(st.sampled_from(["\n", "\r\n", "\r"]))
    csv.writer(text, quoting=quoting, lineterminator=ending).writerows([header, *rows])
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return Written(rows, mark + text.getvalue().encode())


# ---- what is typed into the page

TYPED = [
    *"0123456789", "generate", "upload", "keras", "desk", "laptop", "fc", "1e308", "-0", "١٢", "2" * 400,
    "latency", "budget", "training", "1,8", "nan", "\x1b[0m", "\u202e", "\0",
]  # fmt: skip


def queries(fields: Sequence[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Fields of the page and what is typed there."""
    return st.lists(
        st.tuples(st.sampled_from(fields), st.text(max_size=12) | st.sampled_from(TYPED)),
        max_size=8,
    )

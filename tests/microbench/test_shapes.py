"""How operands lie on a tape, paddings, and what attributes and shapes tell of operations; no framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.graph import Graph, GraphBuilder, Tensor
from lolat.graph.layers import Layers
from microbench.backends import shapes
from microbench.backends.tape import Tape, build, is_channels_last


class Text(Tape):
    """A tape that writes down what is asked for as text."""

    def __init__(self) -> None:
        self.input = lambda tensor, shape: f"x{shape}"
        self.constant = lambda tensor: f"c{tensor.shape}"
        self.grown = lambda node, shape: f"grown {node}"
        self.permute = lambda node, order: f"{node}.{''.join(map(str, order))}"
        self.shape = lambda node: None


class Makers(dict[str, Any]):
    """Every kind is built: its name, what it reads, and the shape that is to come out."""

    def get(self, kind: str, default: Any = None) -> Any:
        return lambda c: f"{kind}({', '.join(c.inputs)}){c.out}"


def written(graph: Graph) -> str:
    ((text,), _) = build(graph, Text(), Makers(), "text")
    return str(text)


def test_images_flow_channels_first_and_are_turned_where_that_matters() -> None:
    n = Layers.on("block", 8, 8, 3)
    x = n.conv(n.input, 4)
    y = n.dense(n.same("layer_norm", x), 4, "gelu")
    conv = "conv(x(1, 3, 8, 8))(1, 4, 8, 8)"
    norm = f"layer_norm({conv}.0231)(1, 8, 8, 4)"
    gelu = f"gelu(dense({norm})(1, 8, 8, 4))(1, 8, 8, 4)"
    assert written(n.done(n.same("add", x, y))) == f"add({conv}, {gelu}.0312)(1, 4, 8, 8)"


def test_a_graph_that_is_channels_first_is_built_as_it_is_written() -> None:
    b = GraphBuilder("torch")
    x = b.add("conv", [b.input((1, 3, 8, 8))], (1, 4, 8, 8), kernel=(1, 1), in_channels=3, bias=True,
              out_channels=4, groups=1)  # fmt: skip
    y = b.add("layer_norm", [b.add("reshape", [x], (1, 8, 8, 4))], (1, 8, 8, 4))
    conv = "conv(x(1, 3, 8, 8))(1, 4, 8, 8)"
    assert written(b.build([y])) == f"layer_norm(reshape({conv})(1, 8, 8, 4))(1, 8, 8, 4)"


def test_what_needs_no_turning_is_not_turned() -> None:
    n = Layers.on("normalized along its channels", 8, 8, 6)
    graph = n.done(n.same("gelu", n.same("layer_norm", n.input)))
    assert written(graph) == "gelu(layer_norm(x(1, 8, 8, 6))(1, 8, 8, 6))(1, 8, 8, 6)"
    n = Layers.on("the gate of a squeeze is an image already", 8, 8, 6)
    text = written(n.done(n.squeeze_excite(n.input, 2, "silu", "sigmoid", flat=True)))
    assert "reshape(global_average_pool(x(1, 6, 8, 8))(1, 6))(1, 6, 1, 1)" in text
    assert "." not in text
    n = Layers.on("flattening takes the elements as they lie", 4, 4, 6)
    text = written(n.done(n.dense(n.flatten(n.input), 5)))
    assert text == "dense(flatten(x(1, 6, 4, 4))(1, 96))(1, 5)"


def test_operands_of_other_ranks_meet_as_they_are_written() -> None:
    b = GraphBuilder("ranks")
    x = b.add("relu", [b.add("batch_norm", [b.input((1, 8, 8, 4))], (1, 8, 8, 4))], (1, 8, 8, 4))
    graph = b.build([b.add("multiply", [x, b.tensor((4,), False)], (1, 8, 8, 4))])
    relu = "relu(batch_norm(x(1, 4, 8, 8))(1, 4, 8, 8))(1, 4, 8, 8)"
    assert written(graph) == f"multiply({relu}.0231, c(4,))(1, 8, 8, 4)"


def test_what_is_repeated_for_each_sample_grows() -> None:
    b = GraphBuilder("token")
    x = b.input((1, 9, 4))
    token = b.add("repeat", [b.tensor((1, 1, 4), False)], (1, 1, 4))
    b.tensors[token] = Tensor((1, 1, 4), True)
    text = written(b.build([b.add("concatenate", [token, x], (1, 10, 4))]))
    assert text.startswith("concatenate(repeat(grown c(1, 1, 4))(1, 1, 4), x(1, 9, 4))")
    b = GraphBuilder("constant")
    graph = b.build([b.add("add", [b.input((1, 4)), b.tensor((1, 4))], (1, 4))])
    assert written(graph) == "add(x(1, 4), grown c(1, 4))(1, 4)"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 8, 8, 3), True), ((1, 3, 8, 8), False), ((1, 8, 8, 8), True), ((1, 5, 6, 7), True)],
)
def test_without_convolutions_square_images_tell(shape: tuple[int, ...], expected: bool) -> None:
    b = GraphBuilder("norm")
    assert is_channels_last(b.build([b.add("relu", [b.input(shape)], shape)])) is expected


# ---- windows -------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_the_padding_gives_the_size(
    size: int, kernel: int, stride: int, dilation: int, same: bool
) -> None:
    """Counted window by window; and no symmetric padding is passed over."""
    reach = (kernel - 1) * dilation + 1
    if not same and size < reach:
        return
    wanted = -(-size // stride) if same else (size - reach) // stride + 1

    def windows(before: int, after: int) -> int:
        return len(range(0, size + before + after - reach + 1, stride))

    attributes = {"kernel": (kernel,), "strides": (stride,), "dilation": (dilation,)}
    w = shapes.window(attributes, (size,), (wanted,))
    ((before, after),) = w.pairs
    assert windows(before, after) == wanted
    assert w.symmetric == any(windows(p, p) == wanted for p in range(reach + 1))
    if not same:
        assert (before, after) == (0, 0)


def test_a_stride_that_is_not_known_is_what_the_sizes_say() -> None:
    w = shapes.window({"kernel": (2,)}, (8,), (4,))
    assert (w.strides, w.before, w.dilation) == ((2,), (0,), (1,))


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=60)
def test_a_transposed_padding_gives_the_size(
    size: int, kernel: int, stride: int, more: int
) -> None:
    wanted = max(1, (size - 1) * stride + kernel - more)
    attributes = {"kernel": (kernel,), "strides": (stride,)}
    strides, padding, extra = shapes.transposed_padding(attributes, (size,), (wanted,))
    assert (size - 1) * strides[0] - 2 * padding[0] + kernel + extra[0] == wanted
    assert padding[0] >= 0
    assert 0 <= extra[0] <= 1


# ---- what attributes say, and what shapes tell without them --------------------------------------


def test_axes_that_put_together() -> None:
    assert shapes.concatenation_axis([(1, 4, 2), (1, 4, 3)], (1, 4, 5)) == 2
    assert shapes.concatenation_axis([(1, 4, 2), (1, 3, 2)], (1, 7, 2)) == 1
    assert shapes.concatenation_axis([(1, 4, 2)], (1, 4, 2), 1) == 1
    assert shapes.concatenation_axis([(1, 4, 2), (1, 4, 3)], (1, 4, 5), 1) == 2, "what does not fit"
    with pytest.raises(ValueError, match="no axis puts"):
        shapes.concatenation_axis([(1, 4)], (1, 5))


@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_an_order_of_the_axes_gives_the_shape(order: list[int], sizes: list[int]) -> None:
    after = tuple(sizes[i] for i in order)
    assert shapes.transposition(tuple(sizes), after, order) == tuple(order)
    found = shapes.transposition(tuple(sizes), after)
    if found is not None:
        assert np.zeros(sizes).transpose(found).shape == after
        assert list(found) != [0, 1, 2, 3]
    else:
        assert after == tuple(sizes), "where the shape changes there is an order"


def test_channels_that_change_their_end() -> None:
    assert shapes.channel_order((1, 3, 8, 9), (1, 8, 9, 3)) == (0, 2, 3, 1)
    assert shapes.channel_order((1, 8, 9, 3), (1, 3, 8, 9)) == (0, 3, 1, 2)
    for after in ((1, 3, 8, 9), (1, 9, 8, 3), (1, 3, 72)):
        assert shapes.channel_order((1, 3, 8, 9), after) is None
    assert shapes.transposition((1, 2), (1, 3)) is None
    assert shapes.transposition((1, 2, 3), (1, 3, 2), (2, 1, 0)) == (0, 2, 1), "what does not fit"


def test_repetitions_and_paddings() -> None:
    assert shapes.repetitions((1, 2, 3), (1, 4, 9)) == ((1, 2, 3), (1, 2, 3))
    assert shapes.repetitions((1, 6), (1, 4, 6)) == ((1, 1, 6), (1, 4, 1))
    for wrong in ((1, 5, 3), (1, 2)):
        with pytest.raises(ValueError, match="does not repeat"):
            shapes.repetitions((1, 2, 3), wrong)
    assert shapes.padding((1, 8, 8), (1, 9, 12)) == [(0, 0), (0, 1), (2, 2)]
    assert shapes.padding((1, 8, 8), (1, 9, 12), [(1, 0), (1, 3)]) == [(0, 0), (1, 0), (1, 3)]
    pairs, none = [(2, 1), (0, 1)], (0, 0)  # of the spatial axes
    assert shapes.padding((1, 9, 9, 3), (1, 12, 10, 3), pairs) == [none, *pairs, none]
    assert shapes.padding((1, 3, 9, 9), (1, 3, 12, 10), pairs) == [none, none, *pairs]
    with pytest.raises(ValueError, match="a padding does not go"):
        shapes.padding((1, 8), (1, 7))


@given(*[st.integers(1, 6)] * 4)
def test_a_product_of_these_elements(batch: int, rows: int, columns: int, summed: int) -> None:
    left, right = (batch, rows, summed), (batch, summed, columns)
    sizes = shapes.product_sizes(left, right, (batch, rows, columns), summed)
    assert sizes == (batch, rows, columns)
    with pytest.raises(ValueError, match="no product over"):
        shapes.product_sizes(left, right, (batch * rows * columns * 7,), summed)


def taken(before: tuple[int, ...], *outs: tuple[int, ...], **said: Any) -> list[np.ndarray]:
    """The parts of an array that counts its elements."""
    x = np.arange(np.prod(before)).reshape(before)
    found = shapes.parts(before, outs, said)
    assert all(p is not None and x[p[0]].shape == p[1] for p in found)
    return [x[p[0]].reshape(out) for p, out in zip(found, outs, strict=True) if p is not None]


def test_parts_lie_side_by_side() -> None:
    x, image = np.arange(48).reshape(1, 8, 6), np.arange(48).reshape(1, 4, 4, 3)
    for found, wanted in (
        (taken((1, 8, 6), (1, 8, 2), (1, 8, 3), (1, 8, 3)), [x[..., :2], x[..., 2:5], x[..., 3:]]),
        (taken((1, 8, 6), (1, 6), (1, 6)), [x[:, 0], x[:, 1]]),
        (taken((3, 1, 4, 4), (1, 4, 4), (1, 4, 4)), np.arange(48).reshape(3, 1, 4, 4)[:2]),
        (taken((1, 8, 6), (1, 3, 2), starts=(0, 1, 4), steps=(1, 2, 1)), [x[:, 1:6:2, 4:]]),
        (taken((1, 8, 6), (1, 3, 2), starts=(0, 6, 5)), [x[:, :3, :2]]),  # what does not fit
        (taken((1, 8, 6), (1, 1, 7, 6), starts=(0, 1, 0)), [x[:, None, 1:]]),
        (taken((1, 4, 4, 3), (1, 4, 3), starts=(0, 0, 0, 0), axis=2), [image[:, :, 0]]),
        (taken((1, 4, 4, 3), (1, 4), starts=(0, 0, 2, 1), axis=[2, 3]), [image[:, :, 2, 1]]),
    ):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_where_parts_do_not_fit_so_many_elements_are_taken() -> None:
    assert shapes.parts((1, 8, 6), [(1, 7, 7)], {}) == [None]
    assert shapes.flat_rows((2, 8, 6), (2, 7)) == 2
    assert shapes.flat_rows((2, 8), (1, 7)) == 1
    with pytest.raises(ValueError, match=r"\(1, 49\) is no part of \(1, 8, 6\)"):
        shapes.flat_rows((1, 8, 6), (1, 49))

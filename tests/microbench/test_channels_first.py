"""How operands lie, paddings, and what shapes tell of operations; no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import MeasuringError
from lolat.graph import Graph, GraphBuilder, Tensor
from lolat.graph.layers import Layers
from microbench.backends import shapes
from microbench.backends.shapes import Call, build, is_channels_last, transposed_padding, window
from microbench.blocks import BLOCKS, NETWORKS


class Text:
    """A tape that writes down what is asked for as text."""

    def input(self, tensor: Tensor, shape: tuple[int, ...]) -> str:
        return f"x{shape}"

    def constant(self, tensor: Tensor) -> str:
        return f"c{tensor.shape}"

    def grown(self, node: str, shape: tuple[int, ...]) -> str:
        return f"grown {node}"

    def permute(self, node: str, order: Sequence[int]) -> str:
        return f"{node}.{''.join(map(str, order))}"

    def shape(self, node: str) -> None:
        return None


class Makers(dict[str, Any]):
    """Every kind is built: its name, what it reads, and the shape that is to come out."""

    def get(self, kind: str, default: Any = None) -> Any:
        return lambda c: f"{kind}({', '.join(c.inputs)}){c.out}"


def written(graph: Graph) -> list[str]:
    return build(graph, Text(), Makers(), "text")[0]


def test_images_flow_channels_first_and_are_turned_where_that_matters() -> None:
    n = Layers.on("block", 8, 8, 3)
    x = n.conv(n.input, 4)
    y = n.dense(n.same("layer_norm", x), 4, "gelu")
    (found,) = written(n.done(n.same("add", x, y)))
    conv = "conv(x(1, 3, 8, 8))(1, 4, 8, 8)"
    norm = f"layer_norm({conv}.0231)(1, 8, 8, 4)"
    gelu = f"gelu(dense({norm})(1, 8, 8, 4))(1, 8, 8, 4)"
    assert found == f"add({conv}, {gelu}.0312)(1, 4, 8, 8)"


def test_a_graph_that_is_channels_first_is_built_as_it_is_written() -> None:
    b = GraphBuilder("torch")
    x = b.add("conv", [b.input((1, 3, 8, 8))], (1, 4, 8, 8), kernel=(1, 1), in_channels=3, bias=True,
              out_channels=4, groups=1)  # fmt: skip
    y = b.add("layer_norm", [b.add("reshape", [x], (1, 8, 8, 4))], (1, 8, 8, 4))
    (found,) = written(b.build([y]))
    assert found == ("layer_norm(reshape(conv(x(1, 3, 8, 8))(1, 4, 8, 8))(1, 8, 8, 4))(1, 8, 8, 4)")


def test_an_image_that_is_normalised_along_its_channels_is_not_turned_first() -> None:
    n = Layers.on("norm", 8, 8, 6)
    (found,) = written(n.done(n.same("gelu", n.same("layer_norm", n.input))))
    assert found == "gelu(layer_norm(x(1, 8, 8, 6))(1, 8, 8, 6))(1, 8, 8, 6)"


def test_the_gate_of_a_squeeze_is_an_image_already() -> None:
    n = Layers.on("gate", 8, 8, 6)
    (found,) = written(n.done(n.squeeze_excite(n.input, 2, "silu", "sigmoid", flat=True)))
    assert "reshape(global_average_pool(x(1, 6, 8, 8))(1, 6))(1, 6, 1, 1)" in found
    assert "." not in found, "nothing is turned round"


def test_flattening_takes_the_elements_as_they_lie() -> None:
    n = Layers.on("flat", 4, 4, 6)
    (found,) = written(n.done(n.dense(n.flatten(n.input), 5)))
    assert found == "dense(flatten(x(1, 6, 4, 4))(1, 96))(1, 5)"


def test_operands_of_other_ranks_meet_as_they_are_written() -> None:
    b = GraphBuilder("ranks")
    x = b.add("relu", [b.add("batch_norm", [b.input((1, 8, 8, 4))], (1, 8, 8, 4))], (1, 8, 8, 4))
    (found,) = written(b.build([b.add("multiply", [x, b.tensor((4,), False)], (1, 8, 8, 4))]))
    relu = "relu(batch_norm(x(1, 4, 8, 8))(1, 4, 8, 8))(1, 4, 8, 8)"
    assert found == f"multiply({relu}.0231, c(4,))(1, 8, 8, 4)"


def test_what_is_repeated_for_each_sample_grows() -> None:
    b = GraphBuilder("token")
    x = b.input((1, 9, 4))
    token = b.add("repeat", [b.tensor((1, 1, 4), False)], (1, 1, 4))
    b.tensors[token] = Tensor((1, 1, 4), True)
    (found,) = written(b.build([b.add("concatenate", [token, x], (1, 10, 4))]))
    assert found.startswith("concatenate(repeat(grown c(1, 1, 4))(1, 1, 4), x(1, 9, 4))")
    b = GraphBuilder("constant")
    (found,) = written(b.build([b.add("add", [b.input((1, 4)), b.tensor((1, 4))], (1, 4))]))
    assert found == "add(x(1, 4), grown c(1, 4))(1, 4)"


def test_all_predefined_blocks_of_images_are_channels_last() -> None:
    """Those of tokens have no channels to turn."""
    graphs = [b.make() for b in (*BLOCKS, *NETWORKS)]
    images = [g for g in graphs if len(g.tensors[g.inputs[0]].shape) == 4]
    assert len(images) > 80
    assert all(is_channels_last(g) for g in images)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 8, 8, 3), True), ((1, 3, 8, 8), False), ((1, 8, 8, 8), True), ((1, 5, 6, 7), True)],
)
def test_without_convolutions_square_images_tell(shape: tuple[int, ...], expected: bool) -> None:
    b = GraphBuilder("norm")
    assert is_channels_last(b.build([b.add("relu", [b.input(shape)], shape)])) is expected


def test_a_kind_that_is_not_there_is_named() -> None:
    b = GraphBuilder("odd")
    graph = b.build([b.add("fft", [b.input((1, 8))], (1, 8), name="spectrum")])
    said = (
        r"the text backend cannot build operation 'fft' \('spectrum'\): there is nothing to build"
    )
    with pytest.raises(MeasuringError, match=said):
        build(graph, Text(), {}, "text")


# ---- windows -------------------------------------------------------------------------------------


def call(kind: str, size: int, wanted: int, **attributes: Any) -> Call:
    b = GraphBuilder("one")
    b.add(kind, [b.input((1, 3, size))], (1, 3, wanted), **attributes)
    return Call(
        None, b.operations[0], [""], [(1, 3, size)], [(1, 3, wanted)], True, "float32", False
    )


@given(
    st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.booleans()
)  # fmt: skip
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

    w = window(
        call("conv", size, wanted, kernel=(kernel,), strides=(stride,), dilation=(dilation,))
    )
    (before,), (after,) = w.before, w.after
    assert windows(before, after) == wanted
    assert w.symmetric == any(windows(p, p) == wanted for p in range(reach + 1))
    if not same:
        assert (before, after) == (0, 0)


def test_a_stride_that_is_not_known_is_what_the_sizes_say() -> None:
    w = window(call("max_pool", 8, 4, kernel=(2,)))
    assert (w.strides, w.before, w.dilation) == ((2,), (0,), (1,))


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=60)
def test_a_transposed_padding_gives_the_size(
    size: int, kernel: int, stride: int, more: int
) -> None:
    wanted = max(1, (size - 1) * stride + kernel - more)
    strides, padding, extra = transposed_padding(
        call("transposed_conv", size, wanted, kernel=(kernel,), strides=(stride,))
    )
    assert (size - 1) * strides[0] - 2 * padding[0] + kernel + extra[0] == wanted
    assert padding[0] >= 0
    assert 0 <= extra[0] <= 1


# ---- shapes --------------------------------------------------------------------------------------


def test_axes_that_put_together() -> None:
    assert shapes.concatenation_axis([(1, 4, 2), (1, 4, 3)], (1, 4, 5)) == 2
    assert shapes.concatenation_axis([(1, 4, 2), (1, 3, 2)], (1, 7, 2)) == 1
    assert shapes.stacking_axis([(1, 4), (1, 4)], (1, 2, 4)) == 1
    with pytest.raises(ValueError, match=r"no axis puts \[\(1, 4\)\] together to \(1, 5\)"):
        shapes.concatenation_axis([(1, 4)], (1, 5))
    with pytest.raises(ValueError, match="no axis stacks"):
        shapes.stacking_axis([(1, 4)], (1, 5))


@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_an_order_of_the_axes_gives_the_shape(order: list[int], sizes: list[int]) -> None:
    after = tuple(sizes[i] for i in order)
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


@pytest.mark.parametrize(
    ("before", "after", "axes"),
    [
        ((1, 7, 7, 5), (1, 5), (1, 2)),
        ((1, 7, 5), (1, 1, 5), (1,)),
        ((4, 5), (5,), (0,)),
        ((1, 5), (1,), (1,)),
    ],
)
def test_folded_axes(
    before: tuple[int, ...], after: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    assert shapes.reduced_axes(before, after) == axes
    with pytest.raises(ValueError, match="no axes reduce"):
        shapes.reduced_axes(before, (11,))


def test_repetitions_and_paddings() -> None:
    assert shapes.repetitions((1, 2, 3), (1, 4, 9)) == (1, 2, 3)
    assert shapes.padding((1, 8, 8), (1, 9, 12)) == [(0, 0), (0, 1), (2, 2)]
    for wrong in ((1, 5, 3), (1, 2)):
        with pytest.raises(ValueError, match="does not repeat"):
            shapes.repetitions((1, 2, 3), wrong)
    with pytest.raises(ValueError, match="a padding does not go"):
        shapes.padding((1, 8), (1, 7))


@given(*[st.integers(1, 6)] * 4)
def test_a_product_of_these_elements(batch: int, rows: int, columns: int, summed: int) -> None:
    left, right = (batch, rows, summed), (batch, summed, columns)
    found = shapes.product_sizes(left, right, (batch, rows, columns), summed)
    assert found == (batch, rows, columns)
    with pytest.raises(ValueError, match="no product over"):
        shapes.product_sizes(left, right, (batch * rows * columns * 7,), summed)


def test_parts_lie_side_by_side() -> None:
    starts: dict[int, int] = {}
    assert shapes.cuts((1, 8, 6), (1, 8, 2), starts) == ([(2, 0, 2)], None)
    assert shapes.cuts((1, 8, 6), (1, 8, 3), starts) == ([(2, 2, 3)], None)
    assert shapes.cuts((1, 8, 6), (1, 8, 3), starts) == ([(2, 3, 3)], None), "not beyond the end"
    assert shapes.cuts((1, 8, 6), (1, 6), starts) == ([(1, 0, 1)], 1)
    assert shapes.cuts((1, 8, 6), (1, 6), starts) == ([(1, 1, 1)], 1)
    assert shapes.cuts((3, 1, 8, 6), (1, 8, 6), {}) == ([(0, 0, 1)], 0)
    assert shapes.cuts((1, 8, 6), (1, 7, 7), {}) is None
    assert shapes.flat_rows((2, 8, 6), (2, 7)) == 2
    assert shapes.flat_rows((2, 8), (1, 7)) == 1
    with pytest.raises(ValueError, match=r"\(1, 49\) is no part of \(1, 8, 6\)"):
        shapes.flat_rows((1, 8, 6), (1, 49))

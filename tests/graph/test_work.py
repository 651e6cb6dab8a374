"""Networks lowered to steps, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lolat
from lolat.graph import Graph, GraphBuilder
from lolat.graph import work as c
from lolat.graph.dtypes import SIZES
from lolat.graph.kinds import KINDS
from lolat.graph.modes import Launch, Mode
from lolat.graph.work import Workload, step_table, work_of, workload_at
from tests.synthetic import one

HALF, AMP, COMPILED = Mode("float16"), Mode("amp"), Mode("amp", "compiled")
VIEW = "view"  # a step that moves nothing: the host makes it
PIXELS = 4 * 6 * 6


def conv(inside: int, outside: int, **more: Any) -> dict[str, Any]:
    """The attributes of a 3x3 convolution."""
    usual = {"kernel": (3, 3), "strides": (1, 1), "dilation": (1, 1), "bias": False, "groups": 1}
    return {**usual, "in_channels": inside, "out_channels": outside, **more}


def convolutional() -> Graph:
    """An image of 8x8, a 3x3 convolution to 4 channels, batch norm, relu, a sum with itself, a head."""
    b = GraphBuilder("small", "torch")
    x = b.add("conv", [b.input((1, 3, 8, 8))], (1, 4, 6, 6), **conv(3, 4))
    y = b.add("relu", [b.add("batch_norm", [x], (1, 4, 6, 6))], (1, 4, 6, 6))
    y = b.add("add", [x, y], (1, 4, 6, 6))
    y = b.add("reshape", [y], (1, PIXELS))
    return b.build([b.add("dense", [y], (1, 10), in_features=PIXELS, out_features=10, bias=True)])


def attention(mask: bool = False, keys: int = 50) -> Graph:
    """2 heads, 50 positions, 32 features a head, which need a gradient."""
    b = GraphBuilder("attention", "torch")
    inputs = [b.tensor((1, 2, n, 32)) for n in (50, keys, keys)]
    inputs += [b.tensor((50, keys), batched=False)] if mask else []
    about = {"heads": 2, "key_heads": 2, "queries": 50, "keys": keys}
    return b.build(
        [b.add("attention", inputs, (1, 2, 50, 32), head_size=32, value_size=32, **about)]
    )


def chain(*kinds: str) -> Graph:
    """One after the other, on 5 x 8 features that need a gradient."""
    b = GraphBuilder("chain", "torch")
    x = b.tensor((1, 5, 8))
    for kind in kinds:
        x = b.add(kind, [x], (1, 5, 8))
    return b.build([x])


def named(work: Workload) -> list[tuple[str, float]]:
    """(class, bytes) of each step."""
    steps = zip(work.kind, work.bytes, strict=True)
    return [(c.CLASSES[k] if n else VIEW, float(n)) for k, n in steps]


def test_in_float32_one_after_the_other() -> None:
    assert named(work_of(convolutional(), 2)) == [
        (c.CONVOLUTION, 4 * (2 * 3 * 64 + 2 * PIXELS + 27 * 4)),
        (c.BATCH_NORM, 4 * 2 * 2 * PIXELS),
        (c.ELEMENTS, 4 * 2 * 2 * PIXELS),
        (c.ELEMENTS, 4 * 3 * 2 * PIXELS),
        (VIEW, 0),
        (c.DENSE, 4 * (2 * PIXELS + 2 * 10 + 10 * PIXELS + 10)),
    ]
    half = work_of(convolutional(), 2, HALF)
    assert list(half.bytes * 2) == list(work_of(convolutional(), 2).bytes)


def test_a_softmax_takes_as_long_in_half_precision() -> None:
    """An H100's took 0.94 to 1.0 of the time in float32, its layer norms half (benchmarks/h100)."""
    graph = chain("softmax", "layer_norm")
    assert list(work_of(graph, 2).bytes) == [4 * 2 * 80, 4 * 2 * 80]
    assert list(work_of(graph, 2, HALF).bytes) == [4 * 2 * 80, 2 * 2 * 80]


def test_the_products() -> None:
    work = work_of(convolutional(), 2)
    conv, head = work.take(np.array([0])), work.take(np.array([5]))
    assert (conv.number[0], conv.rows[0], conv.columns[0], conv.depth[0]) == (1, 72, 4, 27)
    assert (head.number[0], head.rows[0], head.columns[0], head.depth[0]) == (1, 2, 10, PIXELS)
    assert list(work.macs) == [72 * 4 * 27, 0, 0, 0, 0, 2 * 10 * PIXELS]
    assert list(work.operation) == [0, 1, 2, 3, 4, 5]


def test_autocast_converts_for_products() -> None:
    """The image comes in float32; what the convolution writes is half, and stays so."""
    found = named(work_of(convolutional(), 1, AMP))
    assert found[0] == (c.ELEMENTS, (4 + 2) * 3 * 64)
    assert [n for n, _ in found[1:]] == [
        *(c.CONVOLUTION, c.BATCH_NORM, c.ELEMENTS, c.ELEMENTS, VIEW, c.DENSE)
    ]
    assert found[2] == (c.BATCH_NORM, 2 * 2 * PIXELS)


def test_autocast_converts_for_norms_and_back() -> None:
    b = GraphBuilder("norm", "torch")
    x = b.input((1, 5, 8))
    x = b.add("dense", [x], (1, 5, 8), in_features=8, out_features=8, bias=False)
    x = b.add("layer_norm", [x], (1, 5, 8))
    graph = b.build([b.add("dense", [x], (1, 5, 8), in_features=8, out_features=8, bias=False)])
    assert named(work_of(graph, 1, AMP)) == [
        (c.ELEMENTS, 6 * 40),
        (c.DENSE, 2 * (80 + 64)),
        (c.ELEMENTS, 6 * 40),
        (c.NORM, 8 * 40),
        (c.ELEMENTS, 6 * 40),
        (c.DENSE, 2 * (80 + 64)),
    ]


def test_autocast_converts_inputs_of_a_fused_attention() -> None:
    """It is in autocast_mode.h, in the list of half precision: so a cache of keys is converted."""
    b = GraphBuilder("cache", "torch")
    query, *cache = [b.input((1, 2, n, 32)) for n in (1, 50, 50)]
    about = {"heads": 2, "key_heads": 2, "queries": 1, "keys": 50, "head_size": 32}
    graph = b.build([b.add("attention", [query, *cache], (1, 2, 1, 32), value_size=32, **about)])
    converted = [(c.ELEMENTS, (4 + 2) * 2 * n * 32) for n in (1, 50, 50)]
    assert named(work_of(graph, 1, AMP))[:-1] == converted
    assert named(work_of(graph, 1, COMPILED))[:-1] == converted  # no operation writes them in half
    assert not named(work_of(graph, 1, HALF))[:-1]


def test_indices_and_masks_never_widen_floats() -> None:
    """Rows of a table by indices of 8 bytes are floats, of 4 bytes; a gathered half stays one."""
    b = GraphBuilder("text", "torch")
    ids, mask = b.input((1, 5), "int64"), b.input((1, 5, 8), "bool")
    x = b.add("embedding", [ids], (1, 5, 8), dtype="float32", rows=9, out_features=8)
    y = b.add("dense", [x], (1, 5, 8), in_features=8, out_features=8, bias=False)
    y = b.add("where", [mask, b.add("gather", [y, ids], (1, 5, 8)), y], (1, 5, 8), dtype="float32")
    found = b.add("compare", [y, x], (1, 5, 8), dtype="bool")
    graph = b.build([found])
    assert [n for _, n in named(work_of(graph, 1, AMP))] == [
        2 * 4 * 40, 6 * 40, 2 * (80 + 64), 2 * 2 * 40, (1 + 2 + 2 + 2) * 40, (2 + 4 + 1) * 40,
    ]  # fmt: skip
    halves = [(2 + 2) * 40, 2 * (80 + 64), 2 * 2 * 40, (1 + 2 + 2 + 2) * 40, (2 + 2 + 1) * 40]
    assert [n for _, n in named(work_of(graph, 1, HALF))] == halves


def test_sizes_of_elements_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    types = [t for t in vars(torch).values() if isinstance(t, torch.dtype)]
    sizes = {str(t).removeprefix("torch."): t.itemsize for t in types}
    for name in ("float32", "int32", *SIZES):
        assert SIZES.get(name, 4) == sizes[name]


def test_compiled_what_follows_a_convolution_is_one_step() -> None:
    """Autocast converts the image; the convolution's result is read once and the sum written once, for the
    head."""
    assert named(work_of(convolutional(), 1, COMPILED)) == [
        (c.ELEMENTS, (4 + 2) * 3 * 64),
        (c.CONVOLUTION, 2 * (3 * 64 + PIXELS + 27 * 4)),
        (c.DENSE, 2 * (PIXELS + 10 + 10 * PIXELS + 10)),
        (c.ELEMENTS, 2 * 2 * PIXELS),
    ]


@pytest.mark.parametrize(("mask", "keys", "tiles"), [(False, 50, 1), (True, 50, 1), (False, 70, 2)])
def test_fused_attention_does_not_write_its_scores(mask: bool, keys: int, tiles: int) -> None:
    """A mask is read. Positions fill tiles of 64; both products count."""
    work = work_of(attention(mask, keys), 3)
    moved = 3 * 4 * 2 * 32 * (50 + keys + keys + 50) + mask * 4 * 50 * keys
    assert named(work) == [(c.ATTENTION, moved)]
    assert float(work.macs[0]) == 3 * 2 * 64 * tiles * 64 * (2 * 32)


@pytest.mark.parametrize(
    ("kind", "inside", "more", "name"),
    [
        ("conv", 5, {}, c.CONVOLUTION),
        ("conv", 5, {"kernel": (2, 1)}, c.CONVOLUTION),
        ("conv", 5, {"kernel": (1, 1)}, c.POINTWISE),
        ("grouped_conv", 10, {"groups": 2}, c.GROUPED),
        ("depthwise_conv", 6, {"groups": 6}, c.DEPTHWISE),
        ("transposed_conv", 5, {}, c.CONVOLUTION),
    ],
)
def test_classes_of_convolutions_and_their_products(
    kind: str, inside: int, more: dict[str, Any], name: str
) -> None:
    """8 x 9 outputs, three samples. A transposed one multiplies each input into a window."""
    outside = inside if kind == "depthwise_conv" else 10
    shapes = [(1, n, 8, 9) for n in (inside, outside)]
    given = conv(inside, outside, bias=True, **more)
    work, groups = work_of(one(kind, shapes[:1], shapes[1:], **given), 3), given["groups"]
    window = given["kernel"][0] * given["kernel"][1]
    assert c.CLASSES[work.kind[0]] == name
    wide, deep = (
        (outside, window * inside) if kind != "transposed_conv" else (window * outside, inside)
    )
    product = (groups, 3 * 8 * 9, wide / groups, deep / groups)
    assert (work.number[0], work.rows[0], work.columns[0], work.depth[0]) == product
    # A bias for each of the columns of the product.
    weights = 4 * groups * wide / groups * (deep / groups + 1)
    assert work.bytes[0] == 4 * 3 * 8 * 9 * (inside + outside) + weights


def test_of_operations_that_run_as_one_the_slowest_names_it() -> None:
    for kinds, slowest in (
        (["relu", "softmax", "reduce"], c.NORM),
        (["relu", "reduce"], c.SUMS),
        (["silu", "relu"], c.ELEMENTS),
        (["relu", "group_norm"], c.GROUP_NORM),
    ):
        found = work_of(chain(*kinds), 2, COMPILED)
        assert c.CLASSES[found.kind[0]] == slowest
        assert list(found.operation) == [len(kinds) - 1]


def test_products_of_vectors_and_of_what_does_not_grow() -> None:
    """Rows of all samples times one matrix; two matrices that are the same for each sample of a batch."""
    b = GraphBuilder("products", "torch")
    x = b.add(
        "matmul", [b.input((1, 3, 4)), b.tensor((4, 5), batched=False)], (1, 3, 5), contracted=4
    )
    one, other = (b.tensor(shape, batched=False) for shape in ((6, 4), (4, 7)))
    y = b.add("matmul", [one, other], (6, 7), batched=False, contracted=4)
    work = work_of(b.build([x, y]), 2)
    sizes = zip(work.number, work.rows, work.columns, work.depth, strict=True)
    assert list(sizes) == [(1, 6, 5, 4), (1, 6, 7, 4)]
    assert list(work.bytes) == [4 * (2 * (12 + 15) + 20), 4 * (24 + 28 + 42)]


def test_a_padding_in_front_of_a_convolution_is_a_copy_and_its_own_is_none() -> None:
    b = GraphBuilder("padded", "torch")
    x = b.add("pad", [b.input((1, 8, 6, 6))], (1, 8, 7, 7), padding=((0, 1), (0, 1)))
    x = b.add("conv", [x], (1, 16, 3, 3), **conv(8, 16, strides=(2, 2), padding=((1, 1), (1, 1))))
    x = b.add("conv", [x], (1, 16, 2, 2), **conv(16, 16, strides=(2, 2), padding=((1, 1), (1, 1))))
    assert [name for name, _ in named(work_of(b.build([x])))] == [c.MOVES, *[c.CONVOLUTION] * 2]
    assert named(work_of(b.build([x])))[0] == (c.MOVES, 4 * 2 * 8 * 36)


def test_constants_that_pytorch_computes_anew_are_launched_unless_a_compiler_fuses_them() -> None:
    b = GraphBuilder("anew", "torch")
    x = b.add("multiply", [b.input((1, 8)), b.tensor((8,), False)], (1, 8), ahead=(2, 1))
    x = b.add("pad", [x], (1, 9), padding=((0, 1),), filled=True)
    graph = b.build([b.add("identity", [x], (1, 9), copied=True)])
    first, pad, *beside = named(work_of(graph))
    assert (first, pad) == ((c.ELEMENTS, 4 * (8 + 8 + 8)), (c.MOVES, 4 * (8 + 9)))
    assert [name for name, _ in beside] == [c.ELEMENTS] * 2 + [VIEW, c.ELEMENTS, c.MOVES]
    assert beside[-2:] == [(c.ELEMENTS, 4 * 9), (c.MOVES, 4 * 2 * 9)]
    assert not work_of(graph, mode=Mode(training=True)).backward[-len(beside) :].any()
    compiled = [name for name, _ in named(work_of(graph, mode=COMPILED))]
    assert c.ELEMENTS not in compiled[1:]
    assert len(compiled) <= 2


def test_a_recurrent_layer_multiplies_at_every_step() -> None:
    about = {"units": 6, "in_features": 5, "timesteps": 7, "bias": True}
    work = work_of(one("lstm", [(1, 7, 5)], [(1, 7, 6)], **about), 2)
    assert named(work) == [(c.DENSE, 4 * (2 * 7 * 11 + 24 * 12))]
    assert float(work.macs[0]) == 2 * 7 * 24 * 11
    assert [*work.sequential] == [7]


@pytest.mark.parametrize("mode", [Mode(), AMP, COMPILED])
def test_a_table_is_for_every_batch_size(mode: Mode) -> None:
    for graph in (convolutional(), attention()):
        table = step_table(graph, mode)
        one, eight = workload_at(table, 1), workload_at(table, 8)
        assert list(eight.macs) == pytest.approx(list(8 * one.macs))
        fixed = table[:, 7]
        assert list(eight.bytes - fixed) == pytest.approx(list(8 * (one.bytes - fixed)))


def test_a_training_step_has_two_more_products_for_each() -> None:
    """The image has no gradient; those of the head's weights are sums over the batch."""
    mode = Mode(training=True)
    forward, step = work_of(convolutional(), 2), work_of(convolutional(), 2, mode)
    back = step.take(step.backward)
    of_image, head = 72 * 4 * 27, 2 * 10 * PIXELS
    assert sorted(m for m in back.macs if m) == sorted([of_image, head, head])
    ahead = step.take(~step.backward)
    assert ahead.macs.sum() == forward.macs.sum()
    statistics = [(c.BATCH_NORM, 4 * 2 * 3 * PIXELS)]  # a batch norm reads once more, for them
    assert named(ahead)[:-1] == [*named(forward)[:1], *statistics, *named(forward)[2:]]
    assert named(ahead)[-1] == (c.NORM, 4 * 2 * 2 * 10), "the loss"
    of_head = back.take(back.kind == c.CLASSES.index(c.DENSE))
    assert sorted(zip(of_head.rows, of_head.columns, of_head.depth, strict=True)) == [
        (2, PIXELS, 10),
        (PIXELS, 10, 2),
    ]


def test_the_backward_pass_by_hand() -> None:
    """Curves read the gradient and what they saved, norms each twice and two and a half times as much in
    all, what has no factor of its own moves as much; of attention both are done again, with five products
    for two.
    """
    graph = chain("gelu", "layer_norm", "resize", "softmax", "pad")
    step = work_of(graph, 3, Mode(training=True))
    assert not step.macs.any()
    loss = 5
    ahead = step.bytes[: loss + 1]
    assert list(step.bytes[loss + 1 :] / ahead[::-1]) == [1.5, 1.0, 1.5, 1.0, 2.5, 1.5]
    assert list(step.kind[loss + 1 :]) == list(step.kind[: loss + 1][::-1])
    assert list(step.backward) == [False] * 6 + [True] * 6
    for mask in (False, True):
        fused = work_of(attention(mask=mask), 3, Mode(training=True))
        assert list(fused.macs) == [3 * 2 * 64**3, 0, 0, 2.5 * 3 * 2 * 64**3]
        assert fused.bytes[3] == 2 * fused.bytes[0]


def test_the_gradients_of_a_convolution() -> None:
    """Gradients of its input, unless that is the network's, and of its weights, a sum over the batch."""
    b = GraphBuilder("two", "torch")
    x = b.add("conv", [b.input((1, 4, 7, 7))], (1, 8, 7, 7), **conv(4, 8))
    graph = b.build([b.add("conv", [x], (1, 6, 7, 7), **conv(8, 6, bias=True))])
    step = work_of(graph, 2, Mode(training=True))
    sizes = list(zip(step.number, step.rows, step.columns, step.depth, strict=True))
    assert sizes == [
        (1, 2 * 49, 8, 36),
        (1, 2 * 49, 6, 72),
        (0, 0, 0, 0),
        (0, 0, 0, 0),
        (0, 0, 0, 0),
        (1, 2 * 49, 72, 6),
        (1, 72, 6, 2 * 49),
        (1, 36, 8, 2 * 49),
    ]
    of_bias = 4 * (2 * 6 * 49)
    assert list(step.bytes[4:]) == [of_bias, step.bytes[1], step.bytes[1], step.bytes[0]]


def test_dropout_takes_time_in_training_alone_unless_it_always_drops() -> None:
    plain, always = (
        one("dropout", [(1, 100)], [(1, 100)], rate=0.1, **more) for more in ({}, {"always": True})
    )
    assert named(work_of(plain, 3)) == []
    found = named(work_of(plain, 3, Mode(training=True)))
    assert found[0] == (c.ELEMENTS, 2.25 * 4 * 300)
    assert named(work_of(always, 3)) == found[:1]
    assert named(work_of(always, 3, Mode(training=True))) == found


@pytest.mark.parametrize(
    ("kinds", "forward", "backward"),
    [
        (("batch_norm", "relu"), 3.25, 5.5),
        (("batch_norm",), 3.0, 5.0),
        (("layer_norm",), 2.0, 5.0),
        (("softmax",), 2.0, 3.0),
        (("relu", "pad"), 2.25, 2.25),
    ],
)
def test_compiled_training_moves_what_pytorchs_compiler_moves(
    kinds: tuple[str, ...], forward: float, backward: float
) -> None:
    """Tensors that PyTorch 2.13's Inductor reads and writes (`GraphLowering.count_bytes`), a quarter for a
    mask.
    """
    x = chain(*kinds)
    step = work_of(x, 1, Mode("float32", "compiled", training=True))
    each = 4.0 * 5 * 8
    assert step.bytes[0] == pytest.approx(forward * each, rel=0.12)
    assert step.bytes[step.backward][-1] == pytest.approx(backward * each, rel=0.12)


def test_each_kind_has_a_class_of_what_moves() -> None:
    assert {kind.work for kind in KINDS.values()} == c.MOVING.keys()


@pytest.mark.parametrize(("how", "tensors"), [("gelu", 2), ("two", 3), ("own", 2)])
def test_branches_that_meet_are_one_step_of_a_compiler(how: str, tensors: int) -> None:
    """A GELU by hand, and a sum of two activated layers; Inductor makes one kernel of each."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            y = self.a(x)
            if how == "two":
                return torch.relu(y) + torch.relu(self.b(x))
            if how == "own":
                return torch.nn.functional.gelu(y)
            return 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.045 * y**3)))

    work = work_of(lolat.read(Network().eval(), (32, 64)), 2, Mode("float16", "compiled"))
    (moved,) = (moved for name, moved in named(work) if name != c.DENSE)
    assert moved == tensors * 2 * 32 * 64 * 2


def test_no_compiled_step_reaches_over_a_product() -> None:
    """The activation reads and writes; the sum behind the layer reads two tensors and writes one."""
    torch = pytest.importorskip("torch")

    class Residual(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            y = torch.relu(x)
            return y + self.inner(y)

    work = work_of(lolat.read(Residual().eval(), (32, 64)), 2, Mode("float16", "compiled"))
    steps = [moved for name, moved in named(work) if name != c.DENSE]
    assert sorted(steps) == [2 * 2 * 32 * 64 * 2, 3 * 2 * 32 * 64 * 2]


@pytest.mark.parametrize("launch", ["eager", "compiled"])
@pytest.mark.parametrize(
    "how", ["fused", "products", "batched", "added", "columns", "heads first", "swapped back"]
)
def test_transpositions_are_copied_where_pytorch_copies_them(how: str, launch: Launch) -> None:
    """The clones of PyTorch's own run, each read and written once; a compiler makes no more of them.

    "batched" has one head: a product takes the matrices of a batch as they are. "columns" has the steps
    last, as an image has: the transposed weights are not copied, and slices behind the batch are.
    """
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Clones(TorchDispatchMode):  # type: ignore[misc]
        """Adds up the bytes that copies of tensors write."""

        written = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_):
                self.written += out.numel() * out.element_size()
            return out

    class Attention(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
            self.register_buffer("mask", torch.zeros(32, 32) if how == "added" else None)

        def forward(self, x: Any) -> Any:
            b, n, width = x.shape
            if how == "batched":
                q, k, v = self.qkv(x).chunk(3, -1)
                return self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)
            if how == "columns":
                q, k, v = self.qkv(x).reshape(b, 3, 4, n, 16).unbind(1)
                return self.out(
                    (v.transpose(-2, -1) @ (q @ k.transpose(-2, -1)).softmax(-1).mT).reshape(
                        b, n, width
                    )
                )
            if how == "heads first":
                q, k, v = self.qkv(x).reshape(b, 4, 3, n, 16).unbind(2)
                return self.out(((q @ k.transpose(-2, -1)).softmax(-1) @ v).reshape(b, n, width))
            if how == "swapped back":
                q, k, v = self.qkv(x).reshape(b, 3, 4, n, 16).unbind(1)
                y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
                return self.out(y.transpose(-2, -1).reshape(b, n, width))
            q, k, v = self.qkv(x).reshape(b, n, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
            if how in ("fused", "added"):
                y = torch.nn.functional.scaled_dot_product_attention(q, k, v, self.mask)
            else:
                y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
            return self.out(y.transpose(1, 2).reshape(b, n, width))

    network, x = Attention().eval(), torch.rand(2, 32, 64)
    with torch.no_grad(), Clones() as clones:
        network(x)
    work = work_of(lolat.read(network, (32, 64)), 2, Mode("float32", launch))
    moved = sum(bytes_ for name, bytes_ in named(work) if name in (c.MOVES, c.PARTS, c.ELEMENTS))
    assert moved == 2 * clones.written

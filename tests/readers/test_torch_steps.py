"""What eager PyTorch launches for an operation and beside it, by its profiler."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lolat
from lolat.graph.modes import Mode
from lolat.graph.work import CLASSES, ELEMENTS, JOINED, PARTS, work_of
from tests.readers.torch_networks import Does, graph_of


def ran(module: nn.Module, x: torch.Tensor) -> list[Any]:
    """The operations of PyTorch in the second call of a module, in order."""
    with torch.inference_mode(), torch.profiler.profile() as profile:
        module(x)
        with torch.profiler.record_function("again"):
            module(x)
    events = sorted(profile.events(), key=lambda e: e.time_range.start)
    after = next(e.time_range.start for e in events if e.name == "again")
    return [e for e in events if e.name.startswith("aten::") and e.time_range.start > after]


def test_what_pytorch_computes_of_parameters_runs_in_every_call() -> None:
    """Against PyTorch: a frozen batch norm, as DETR has it, computes its scale and shift each time."""

    def frozen(m: Any, x: Any) -> Any:
        each = (m.norm.weight, m.norm.bias, m.norm.running_mean, m.norm.running_var)
        weight, bias, mean, variance = (t.reshape(1, -1, 1, 1) for t in each)
        scale = weight * (variance + m.norm.eps).rsqrt()
        return x * scale + (bias - mean * scale)

    norm = Does(frozen, norm=nn.BatchNorm2d(3))
    called = [e.name for e in ran(norm, torch.ones(1, 3, 4, 4)) if e.cpu_parent.name == "again"]
    views = called.count("aten::reshape")
    steps = work_of(graph_of(norm, (3, 4, 4)))
    assert views == 4
    assert np.count_nonzero(steps.bytes) == len(called) - views == 7
    assert len(steps.bytes) == len(called)


@pytest.mark.parametrize(
    ("amounts", "mode"),
    [((0, 0, 0, 0), "constant"), ((1, 0, 2, 1), "constant"), ((1, 1, 1, 1), "reflect"),
     ((1, 1, 1, 1), "replicate"), ((-1, 0, 0, 0), "constant")],
)  # fmt: skip
@pytest.mark.parametrize("before", [False, True], ids=["alone", "in front of a convolution"])
def test_what_a_padding_fills_and_copies(amounts: tuple[int, ...], mode: str, before: bool) -> None:
    """Against PyTorch: a constant one fills and copies, one of nothing copies, others run one kernel."""

    def padded(m: Any, x: Any) -> Any:
        x = F.pad(x, amounts, mode)
        return m.conv(x) if before else x

    module = Does(padded, conv=nn.Conv2d(3, 8, 3, padding=1))
    names = [e.name for e in ran(module, torch.ones(1, 3, 6, 6))]
    names = names[: names.index("aten::conv2d")] if before else names
    kernels = ("aten::fill_", "aten::copy_", "aten::reflection_pad2d", "aten::replication_pad2d")
    steps = work_of(graph_of(module, (3, 6, 6)))
    products = steps.macs > 0
    assert np.count_nonzero(steps.bytes[~products]) == sum(map(names.count, kernels))
    elements = steps.kind[~products] == CLASSES.index(ELEMENTS)
    assert np.count_nonzero(elements) == names.count("aten::fill_")


def halves(m: Any, x: Any) -> Any:
    """A gated activation: the two halves of a split."""
    gate, value = m.layer(x).chunk(2, -1)
    return gate.sigmoid() * value


def second(m: Any, x: Any) -> Any:
    """A split of which one half is not used."""
    return m.layer(x).chunk(2, -1)[1].sigmoid()


def shifted(m: Any, x: Any) -> Any:
    """Each position with the one before: two slices of one tensor."""
    y = m.layer(x)
    return y[:, 1:] * y[:, :-1]


def first(m: Any, x: Any) -> Any:
    """A class token: one index."""
    return m.layer(x)[:, 0].tanh()


@pytest.mark.parametrize("forward", [halves, second, shifted, first])
def test_a_slice_is_a_view_and_its_gradient_a_copy(forward: Any) -> None:
    """Against PyTorch: the bytes that its kernels write in the backward pass of slices, and how many."""
    module = Does(forward, layer=nn.Linear(8, 16, bias=False))
    x = torch.ones(2, 5, 8)
    assert not {"aten::copy_", "aten::clone"}.intersection(e.name for e in ran(module, x))
    graph = graph_of(module, (5, 8))
    of_slices = [
        graph.operations[i].kind in ("slice", "split") for i in range(len(graph.operations))
    ]
    forward_pass = work_of(graph, 2)
    assert not forward_pass.bytes[np.array(of_slices)[forward_pass.operation]].any()
    result = module(x)
    with torch.profiler.profile() as profile:
        result.sum().backward()
    names = Counter(e.name for e in profile.events())
    steps = work_of(graph, 2, Mode(training=True))
    behind = steps.backward & np.array(of_slices)[steps.operation]
    kinds = Counter(CLASSES[k] for k in steps.kind[behind].tolist())
    backward = names["SliceBackward0"] + names["SelectBackward0"]
    assert kinds == Counter({ELEMENTS: backward, PARTS: backward, JOINED: names["SplitBackward0"]})
    whole, part = 2 * 5 * 16 * 4, result.numel() * 4
    by_hand = {
        halves: 2 * whole,
        second: 2 * whole,
        shifted: 2 * (whole + 2 * part),
        first: whole + 2 * part,
    }
    assert steps.bytes[behind].sum() == by_hand[forward]


def test_kernels_for_contiguous_tensors_copy_a_slice() -> None:
    """PyTorch hands them `x.contiguous()`: one more copy of the slice, read and written."""

    def half(m: Any, x: Any) -> Any:
        return m.conv(m.first(x)[:, :4])

    module = Does(half, first=nn.Conv2d(3, 8, 1), conv=nn.Conv2d(4, 4, 1))
    graph = graph_of(module, (3, 6, 6))
    steps = work_of(graph, 2)
    assert steps.bytes[steps.kind == CLASSES.index(PARTS)].tolist() == [2 * 2 * 4 * 36 * 4]


class Weights(nn.Module):
    """Uses weights in a `way`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.whole, self.fixed = nn.Linear(64, 64), nn.Linear(64, 64).requires_grad_(False)
        self.conv = nn.Conv2d(1, 8, 3).requires_grad_(False)
        self.tall = nn.Parameter(torch.zeros(128, 64))
        self.keys: torch.Tensor
        self.register_buffer("keys", torch.zeros(1, 2, 16, 32))

    def forward(self, x: Any) -> Any:
        if self.way == "keys":
            heads = self.whole(x).view(-1, 2, 1, 32)
            return F.scaled_dot_product_attention(heads, self.keys, self.keys)
        if self.way == "convolution":
            return self.conv(x.view(-1, 1, 8, 8))
        if self.way == "transposed":
            return x @ self.whole.weight.t()
        if self.way == "part":
            return F.linear(x, self.tall[:64])
        x = self.whole(x)
        return self.fixed(x) if self.way == "frozen" else x


@pytest.mark.parametrize(
    ("way", "converted"),
    [("whole", 0), ("frozen", 64 * 65), ("convolution", 8 * 10), ("transposed", 64 * 64),
     ("part", 64 * 64), ("keys", 2 * 1024)],
)  # fmt: skip
def test_the_weights_that_autocast_converts_in_each_pass(way: str, converted: int) -> None:
    """Against PyTorch's second pass within one context: all but whole parameters with a gradient.

    4 bytes are read and 2 written for each element, of the input (64) too.
    """
    module, x = Weights(way), torch.zeros(1, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        module(x)
        with torch.profiler.profile(record_shapes=True) as profile:
            module(x)
    copies = [e for e in profile.events() if e.name == "aten::_to_copy"]
    seen = sum(int(np.prod(e.input_shapes[0])) for e in copies)
    assert seen == 64 + converted
    graph = lolat.read((module, x))
    amp, half = (work_of(graph, 1, Mode(dtype)).bytes.sum() for dtype in ("amp", "bfloat16"))
    assert amp - half == 6 * seen


def test_copies_that_autocast_does_not_keep_are_counted_and_told() -> None:
    """Four layers of 4096 x 4096: 403 MB in each pass at the 1008 GB/s of a RTX 4090, one copy at once."""
    size, number = 4096**2, 4
    net = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(number)))
    model, converts_ms = lolat.load("rtx-4090-amp"), number * size * 6 / 1008e6
    trained = model.predict(lolat.read(net, (4096,)), 16)
    frozen = model.predict(lolat.read(net.requires_grad_(False), (4096,)), 16)
    assert frozen.latency_ms - trained.latency_ms == pytest.approx(converts_ms, rel=0.3)
    (told,) = (w for w in frozen.warnings if "autocast" in w)
    assert f"counted as about {converts_ms:.3f} ms" in told
    assert trained.memory.weights_bytes == (4 + 2) * number * size
    assert frozen.memory.weights_bytes == 4 * number * size + 2 * size

"""What eager PyTorch launches for an operation and beside it, by its profiler."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

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

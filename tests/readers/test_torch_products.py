"""Products with tensors that do not grow with the batch, and tensors that code fills: PyTorch's own run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lolat.graph.modes import Mode
from lolat.graph.work import step_table, workload_at
from lolat.readers.torch.reader import read_model


class _Shapes(TorchDispatchMode):
    """The sizes of PyTorch's products: (number, {rows, columns}, depth)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, frozenset[int], int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            left, right = args[0].shape, args[1].shape
            number = left[0] if len(left) == 3 else 1
            self.found.append((number, frozenset([left[-2], right[-1]]), left[-1]))
        return func(*args, **(kwargs or {}))


class _Computed(nn.Module):
    """A product with what the network computes from its parameters alone."""

    def __init__(self, shape: tuple[int, ...], multiply: Any) -> None:
        super().__init__()
        self.one, self.multiply = nn.Parameter(torch.randn(shape)), multiply

    def forward(self, x: Any) -> Any:
        return self.multiply(x, torch.softmax(self.one @ self.one.mT, -1))


@pytest.mark.parametrize(
    ("shape", "sample", "multiply"),
    [
        ((48, 8), (48,), torch.nn.functional.linear),
        ((48, 8), (5, 48), torch.nn.functional.linear),
        ((48, 8), (48,), torch.matmul),
        ((48, 8), (5, 48), torch.matmul),
        ((48, 8), (48, 7), lambda x, a: torch.einsum("nm,bmc->bnc", a, x)),
        ((48, 8), (48, 7), lambda x, a: torch.einsum("bmc,nm->bnc", x, a)),
        ((3, 48, 8), (48, 7), lambda x, a: torch.einsum("knm,bmc->bknc", a, x)),
    ],
)
def test_a_product_with_what_has_no_batch_is_one_for_all_samples(
    shape: tuple[int, ...], sample: tuple[int, ...], multiply: Any
) -> None:
    """PyTorch's own run at batch size 6 has the sizes; the first product makes the weights."""
    net = _Computed(shape, multiply).eval()
    graph = read_model(net, example=torch.randn(1, *sample))
    steps = workload_at(step_table(graph, Mode()), 6)
    with torch.no_grad(), _Shapes() as shapes:
        net(torch.randn(6, *sample))
    last = [
        int(column[steps.macs > 0][-1])
        for column in (steps.number, steps.rows, steps.columns, steps.depth)
    ]
    number, rows, columns, depth = last
    assert (number, frozenset([rows, columns]), depth) == shapes.found[-1]


def test_what_code_fills_for_each_sample_is_told() -> None:
    class Canvas(nn.Module):
        def __init__(self, features: int) -> None:
            super().__init__()
            self.features = features

        def forward(self, x: Any) -> Any:
            made = torch.zeros(x.shape[0], self.features, 64)
            made[:, :3] = x
            return made

    told = ["fills tensors" in " ".join(read_model(Canvas(n), example=torch.randn(1, 3, 64)).warnings)
            for n in (4, 8192)]  # fmt: skip
    assert told == [False, True]
    (line,) = [
        w for w in read_model(Canvas(8192), example=torch.randn(1, 3, 64)).warnings if "fills" in w
    ]
    assert "2.00 MiB" in line  # 8192 x 64 x 4 bytes

"""The tensors that a kind of operation saves for its backward pass, against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lolat.graph import GraphBuilder
from lolat.training.iteration import saved_bytes

torch = pytest.importorskip("torch")
F = torch.nn.functional

ONE: dict[str, Callable[[Any], Any]] = {
    "celu": F.celu, "elu": F.elu, "selu": F.selu, "gelu": F.gelu, "silu": F.silu, "mish": F.mish,
    "log_sigmoid": F.logsigmoid, "softplus": F.softplus, "softsign": F.softsign, "erf": torch.erf,
    "log": torch.log, "exp": torch.exp, "relu": F.relu, "relu6": lambda x: F.relu6(x, inplace=True),
    "leaky_relu": F.leaky_relu, "sigmoid": F.sigmoid, "tanh": F.tanh, "tanh_shrink": F.tanhshrink,
    "hard_tanh": F.hardtanh, "hard_sigmoid": F.hardsigmoid, "hard_silu": F.hardswish,
    "hard_shrink": F.hardshrink, "soft_shrink": F.softshrink, "clip": lambda x: x.clamp(0.2, 0.5),
    "threshold": lambda x: F.threshold(x, 0.1, 0.0), "trigonometric": torch.sin, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "absolute": torch.abs,
    "square": torch.square, "negative": torch.neg, "sign": torch.sign, "round": torch.round,
    "cumulative": lambda x: x.cumsum(1), "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
}  # fmt: skip
TWO = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum,
}  # fmt: skip


@pytest.mark.parametrize("kind", [*ONE, *TWO])
def test_a_kind_saves_what_pytorch_saves(kind: str) -> None:
    saved: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        kept.append(tensor)  # or another tensor may get its memory
        return tensor

    kept: list[Any] = []
    inputs = [torch.rand(1, 64, requires_grad=True) * 1.0 for _ in range(1 + (kind in TWO))]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept.append((ONE.get(kind) or TWO[kind])(*inputs))
    builder = GraphBuilder("net", "torch")
    graph_inputs = [builder.input((1, 64)) for _ in inputs]
    graph = builder.build([builder.add(kind, graph_inputs, (1, 64))])
    assert saved_bytes(graph, 1) == sum(saved.values())

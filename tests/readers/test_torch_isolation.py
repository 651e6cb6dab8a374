"""A module after its code was read: its parameters, buffers and attributes are as they were.

What the code writes in a call happens to tensors without values. Oracles: the state before; PyTorch's own
count of a network that writes nothing.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

import lolat
from lolat.graph.counts import count
from lolat.readers.torch.named import without_weights
from lolat.readers.torch.reader import read_model
from tests.readers.torch_networks import total

Code = Callable[[Any, Any], Any]
EXAMPLE = torch.zeros(1, 8)


class Writes(nn.Module):
    """Two layers, a counter, a table and what a code does before the layers run."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.layer, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.register_buffer("table", torch.randn(4, 8))
        self.cache, self.kept = SimpleNamespace(keys=[[]]), deque([1], maxlen=2)
        self.code = code

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.code(self, x)
        return self.layer(x) + self.teacher(x)


def _average(m: Any, x: Any) -> None:
    for mine, its in zip(m.layer.parameters(), m.teacher.parameters(), strict=True):
        its.mul_(0.9).add_(mine, alpha=0.1)


def _average_by_data(m: Any, x: Any) -> None:
    for mine, its in zip(m.layer.parameters(), m.teacher.parameters(), strict=True):
        its.data = its.data * 0.9 + mine.data * 0.1


def _normalized(m: Any, x: Any) -> None:
    m.layer.weight.data = F.normalize(m.layer.weight.data, dim=1)
    m.table.data = F.normalize(m.table, dim=1)


def _counted(m: Any, x: Any) -> None:
    m.step += 1
    m.step.add_(2)
    m.table[0] += 1
    m.table[1:2] = x.sum(0, keepdim=True)


def _copied(m: Any, x: Any) -> None:
    m.teacher.weight.copy_(m.layer.weight * 2)
    m.teacher.load_state_dict(m.layer.state_dict())
    torch._foreach_mul_([*m.layer.parameters()], 0.5)
    torch.mul(m.table, 2, out=m.table)
    nn.init.zeros_(m.layer.bias)
    m.layer.weight.clamp_(-0.1, 0.1)


def _kept(m: Any, x: Any) -> None:
    m.cache.keys[0].append(x)
    m.cache.last = x
    m.kept.append(x)
    m.table = m.table + x.sum(0)
    m.layer.zero_grad()


CODES = [_average, _average_by_data, _normalized, _counted, _copied, _kept]


def _state(m: Any) -> tuple[Any, ...]:
    """Tensors with their values and gradients; attributes."""
    values = [
        (id(t), t.device, t.detach().numpy().tobytes(), repr(t.grad))
        for t in (*m.parameters(), *m.buffers())
    ]
    return values, [*m.state_dict()], repr(m.cache), repr(m.kept), m.training


def _read(m: Any) -> Any:
    return lolat.read((m, EXAMPLE))


def _predicted(m: Any) -> Any:
    return lolat.load("rtx-4090").predict((m, EXAMPLE), batch_size=8)


def _priced(m: Any) -> Any:
    return lolat.load("rtx-4090").cost((m, EXAMPLE), 8)


@pytest.mark.parametrize("question", [_read, _predicted, _priced])
@pytest.mark.parametrize("code", CODES)
def test_a_question_leaves_a_module_as_it_was(code: Code, question: Callable[[Any], Any]) -> None:
    network = Writes(code)
    network.layer.weight.grad = torch.ones(8, 8)
    before = _state(network)
    question(network)
    assert _state(network) == before
    assert network(torch.randn(3, 8)).isfinite().all()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("code", CODES)
def test_so_does_one_that_fails(code: Code, error: type[BaseException]) -> None:
    def fails(m: Any, x: Any) -> None:
        code(m, x)
        raise error

    network = Writes(fails)
    before = _state(network)
    with pytest.raises(lolat.NetworkError if error is ValueError else error):
        _read(network)
    assert _state(network) == before


@pytest.mark.parametrize("code", [_average, _average_by_data, _normalized, _copied])
def test_weights_that_the_code_updates_stay_its_weights(code: Code) -> None:
    """A mean teacher has the counts, and the trained parameters, of a network without the update."""
    network, still = Writes(code), Writes(lambda m, x: None)
    assert total(_read(network), 4) == total(_read(still), 4)
    assert total(_read(network)).flops == 2 * 8 * 8
    asked, expected = (_priced(m).to_dict() for m in (network, still))
    assert asked["trained_parameters"] == expected["trained_parameters"] == 8 * 8 + 8
    assert asked["memory"] == expected["memory"]


def test_large_weights_are_not_computed() -> None:
    """A tebibyte: products of weights with numbers ran on their values."""
    with torch.device("meta"):
        large = nn.Linear(1 << 19, 1 << 19)
    network = nn.Sequential(large)
    network.forward = lambda x: F.linear(x, large.weight * 2)  # type: ignore[method-assign]
    graph = lolat.read((network, torch.zeros(1, 1 << 19, device="meta")))
    assert count(graph).total(1).flops == 1 << 38


@pytest.mark.parametrize(
    ("code", "words"),
    [(lambda m, x: setattr(m.layer.weight, "data", m.layer.weight.data[:4]), ".data"),
     (lambda m, x: setattr(m.table, "data", m.table.data.half()), ".data"),
     (lambda m, x: m.layer.weight.t_(), "in place")],
)  # fmt: skip
def test_other_shapes_and_types_of_weights_are_refused(code: Code, words: str) -> None:
    network = Writes(code)
    before = _state(network)
    with pytest.raises(lolat.NetworkError, match=words) as caught:
        _read(network)
    assert "test_torch_isolation.py:" in str(caught.value)
    assert "input_size" not in str(caught.value)
    assert _state(network) == before


def pruned(cut: str) -> list[nn.Module]:
    """The channels of a layer that are kept by the size of its weights, in three ways of looking."""
    torch.manual_seed(0)
    wide = nn.Conv2d(64, 256, 3)
    keep = wide.weight.flatten(1).norm(dim=1) > 0.577
    kept: int
    if cut == "sum":
        kept = int(keep.sum())
    elif cut == "mask":
        kept = len(wide.weight.data[keep])
    else:
        kept = len(torch.nonzero(keep))
    return [nn.Conv2d(64, kept, 3)]


@pytest.mark.parametrize("cut", ["sum", "mask", "nonzero"])
def test_a_function_that_looks_at_its_weights_gets_them(cut: str) -> None:
    (plain,), (read,) = pruned(cut), without_weights(lambda: pruned(cut))
    assert 0 < plain.out_channels < 256
    assert read.out_channels == plain.out_channels


def test_weights_that_nobody_looks_at_are_not_filled() -> None:
    calls = []

    def make() -> nn.Module:
        calls.append(1)
        layers = [nn.Linear(512, 512), nn.LSTM(512, 512), nn.Transformer(512)]
        nn.utils.parametrizations.weight_norm(layers[0])
        layers[0].weight.detach().mul_(0.1)
        rates = [x.item() for x in torch.linspace(0, 0.1, 3)]  # as timm's
        return nn.Sequential(*layers, nn.Dropout(rates[1]))

    without_weights(make)
    assert calls == [1]


def test_threads_read_networks_as_one_thread_does() -> None:
    """Every thread gets a graph with all its convolutions, and the process is as before."""

    def state() -> tuple[object, ...]:
        return (
            torch.backends.mha.get_fastpath_enabled(),
            logging.root.manager.disable,
            sys.stdout,
            torch.cuda.is_available,
            torch.Tensor.data,
            torch.compiler._is_compiling_flag,
            torch.inference_mode.__enter__,
            torch._C._set_grad_enabled,
        )

    def flops(width: int) -> float:
        blocks = (nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(6))
        graph = lolat.read(nn.Sequential(*blocks), (width, 16, 16))
        assert not graph.warnings
        return count(graph).total(1).flops

    before, widths = state(), [3, 5, 7, 9] * 4
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(flops, widths)]
    assert state() == before
    assert found == [6 * 9 * width**2 * 16**2 for width in widths]


def test_a_network_that_another_thread_runs_is_not_in_the_graph() -> None:
    """It begins inside a block and ends behind it; each operation has its own path."""
    started, goes_on, image = threading.Event(), threading.Event(), torch.zeros(2, 3)
    pool = ThreadPoolExecutor(1)

    class Other(nn.Module):
        def forward(self, x: Any) -> Any:
            started.set()
            goes_on.wait(10)
            return x

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            pool.submit(Other(), image)
            started.wait(10)
            return self.layer(x)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.block(x))
            goes_on.set()
            pool.shutdown()
            return x

    graph = lolat.read(Network(), (8,))
    assert [o.full_name for o in graph.operations] == ["block/layer", "relu"]


# ---- what a first call leaves for later ones ----------------------------------------------------------


@functools.lru_cache
def _kept_mask(width: int) -> torch.Tensor:
    return torch.zeros(width).cos().sin().exp()


_MASKS: dict[int, torch.Tensor] = {}
_mask: torch.Tensor | None = None


def _of_functools(m: Any) -> torch.Tensor:
    return _kept_mask(8)


def _of_a_global_table(m: Any) -> torch.Tensor:
    if 8 not in _MASKS:
        _MASKS[8] = torch.zeros(8).cos().sin().exp()
    return _MASKS[8]


def _of_a_global_name(m: Any) -> torch.Tensor:
    global _mask
    if _mask is None:
        _mask = torch.zeros(8).cos().sin().exp()
    return _mask


def _of_an_attribute(m: Any) -> torch.Tensor:
    if m.stored is None:
        m.stored = torch.zeros(8).cos().sin().exp()
    return m.stored


class Stores(nn.Module):
    """Multiplies by a tensor that its first call makes."""

    def __init__(self, made: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.made, self.stored = nn.Linear(8, 8), made, None

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.made(self)


@pytest.mark.parametrize(
    "made", [_of_functools, _of_a_global_table, _of_a_global_name, _of_an_attribute]
)
def test_a_later_call_is_read_and_what_a_first_call_stores_is_as_before(made: Any) -> None:
    """Answers are those of a network that has run; the user's own run then gets values."""
    network, image = Stores(made), torch.ones(1, 8)
    gpu = lolat.load("rtx-4090")
    try:
        first, again = (gpu.predict((network, image)) for _ in range(2))
        assert any("first call" in w for w in first.warnings)
        found = network(image)
        assert not isinstance(found, FakeTensor)
        expected = network.layer(image) * torch.zeros(8).cos().sin().exp()
        assert found.detach().allclose(expected)
        then = gpu.predict((network, image))
    finally:
        _kept_mask.cache_clear()
        _MASKS.clear()
        globals().update(_mask=None)
    assert first.latency_ms == again.latency_ms == then.latency_ms


def test_a_cache_that_grows_is_that_of_the_first_call() -> None:
    """A second call would attend to the keys of both."""

    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.keys = nn.Linear(8, 8), torch.zeros(1, 0, 8)

        def forward(self, x: Any) -> Any:
            self.keys = torch.cat([self.keys, self.layer(x)], 1)
            return x @ self.keys.transpose(1, 2)

    graph = lolat.read((Grows(), torch.zeros(1, 4, 8)))
    assert count(graph).total(1).flops == 4 * 8 * 8 + 4 * 4 * 8
    assert not any("first call" in w for w in graph.warnings)


def _in_another_thread() -> dict[str, Any]:
    """What a thread of a user's own computes with gradients while a network is read."""
    found: dict[str, Any] = {}

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2.0

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient * 2.0

    def run() -> None:
        with torch.no_grad():
            found["inside"] = torch.is_grad_enabled()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            found["autocast"] = torch.is_autocast_enabled("cpu")
        x = torch.ones(3).requires_grad_()
        y = checkpoint(Own.apply, x, use_reentrant=True)
        y = checkpoint(torch.sin, y, use_reentrant=False)
        y.sum().backward()
        found["gradient"] = x.grad.tolist()
        weight, other = torch.ones(2), torch.zeros(2)
        weight.data = other
        found["is_other"] = weight.data_ptr() == other.data_ptr()
        found["compiling"] = bool(torch.compiler.is_compiling())
        torch.set_grad_enabled(False)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def test_another_thread_has_pytorch_as_it_is_and_changes_nothing_of_the_network() -> None:
    """The thread runs in the middle of the network's forward; without reading it finds the same."""

    class Busy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 10)
            self.is_busy = False

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            if self.is_busy:
                seen.append(_in_another_thread())
            return self.head(x.mean((2, 3)))

    seen: list[dict[str, Any]] = []
    net = Busy()
    alone = read_model(net, input_size=32)
    net.is_busy = True
    beside = read_model(net, input_size=32)
    assert beside.operations == alone.operations
    assert beside.warnings == alone.warnings
    assert beside.training_only == alone.training_only
    # By hand: d/dx sum(sin(2x)) at 1 is 2 cos 2.
    expected = _in_another_thread()
    assert expected["gradient"] == pytest.approx([2.0 * math.cos(2.0)] * 3)
    assert (expected["inside"], expected["autocast"], expected["is_other"]) == (False, True, True)
    assert seen == [expected] * len(seen)
    assert seen


class _Missing:
    """A stand-in for a package that is not installed, as MONAI has some."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(name)


class _WithMissing:
    reset = _Missing()


def test_what_stands_for_a_missing_package_is_left_alone() -> None:
    """It is in this file, of whose classes the functions are looked at."""
    with pytest.raises(ImportError):
        hasattr(_WithMissing.reset, "__func__")
    assert lolat.read(Stores(lambda m: torch.ones(8)), (8,)).operations[0].kind == "dense"


@pytest.mark.parametrize(
    ("how", "is_fused"),
    [
        ({}, True),
        ({"activation": "gelu"}, True),
        ({"batch_first": False}, False),
        ({"nhead": 1}, False),
    ],
)
def test_a_fused_encoder_layer_is_told(how: dict[str, Any], is_fused: bool) -> None:
    """PyTorch's own call tells whether it ran the fused function."""
    from torch.utils._python_dispatch import TorchDispatchMode

    ran: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            ran.append(str(func))
            return func(*args, **(kwargs or {}))

    layer = nn.TransformerEncoderLayer(
        **{"d_model": 8, "nhead": 2, "batch_first": True} | how
    ).eval()
    x = torch.zeros(1, 4, 8)
    with torch.no_grad(), Names():
        layer(x)
    assert any("_transformer_encoder_layer_fwd" in name for name in ran) == is_fused
    assert any("fused at inference" in w for w in lolat.read((layer, x)).warnings) == is_fused

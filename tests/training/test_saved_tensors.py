"""The tensors saved for the backward pass, and the bytes that it moves, against PyTorch's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.graph import Graph, GraphBuilder
from lolat.graph.edits import as_trained
from lolat.graph.modes import Mode
from lolat.graph.work import CLASSES, PRODUCTS, work_of
from lolat.optimizers import OPTIMIZERS
from tests.training.known import memory_bytes, peak_by_pytorch, saved_by_pytorch, saved_bytes

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

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


def of_kind(kind: str) -> Graph:
    builder = GraphBuilder("net", "torch")
    inputs = [builder.tensor((1, 64)) for _ in range(1 + (kind in TWO))]  # which need a gradient
    return builder.build([builder.add(kind, inputs, (1, 64))])


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
    assert saved_bytes(of_kind(kind), 1) == sum(saved.values())


IN_PLACE = [
    "ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "SiLU", "Hardswish", "Hardsigmoid", "Hardtanh",
    "Mish",
]  # fmt: skip


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", IN_PLACE)
def test_an_activation_between_layers_keeps_what_pytorch_keeps(kind: str, in_place: bool) -> None:
    """In place some save their result, which the next layer saves too, and others a copy of their input."""
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 32), getattr(torch.nn, kind)(inplace=in_place), torch.nn.Linear(32, 8)
    )
    own = saved_by_pytorch(network, torch.rand(4, 64))
    assert saved_bytes(lolat.read(network, (64,)), 4) == own


@pytest.mark.parametrize("before", [torch.nn.ReLU, torch.nn.GELU])
@pytest.mark.parametrize(
    "pad", ["ReflectionPad2d", "ReplicationPad2d", "ZeroPad2d", "CircularPad2d"]
)
def test_a_convolution_keeps_the_padded_copy_of_its_input(pad: str, before: Any) -> None:
    """GELU does not keep its result, nor a padding with zeros or in a circle its input."""
    padding = getattr(torch.nn, pad)((1, 2, 3, 0))
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), before(), padding, torch.nn.Conv2d(32, 4, 3), torch.nn.ReLU()
    )
    own = saved_by_pytorch(network, torch.rand(4, 3, 16, 20))
    if pad == "CircularPad2d" and before is torch.nn.GELU:  # counted as the others that copy
        own += 4 * 4 * 32 * 14 * 18
    assert saved_bytes(lolat.read(network, (3, 16, 20)), 4) == own


class Permute(torch.nn.Module):  # type: ignore[misc]
    """A transposition of an image into tokens."""

    def forward(self, x: Any) -> Any:
        return x.permute(0, 2, 3, 1)


@pytest.mark.parametrize(
    "between",
    [
        [torch.nn.AvgPool2d(3, 1, 1)], [torch.nn.AvgPool2d(2), torch.nn.ReLU()], [torch.nn.AvgPool2d(16)],
        [torch.nn.AdaptiveAvgPool2d(7)], [torch.nn.AdaptiveAvgPool2d(1)], [torch.nn.AdaptiveMaxPool2d(7)],
        [Permute(), torch.nn.Linear(32, 8)], [torch.nn.ReLU(), Permute(), torch.nn.Linear(32, 8)],
        [torch.nn.ReLU(), Permute(), torch.nn.GELU(), torch.nn.Linear(32, 8)],
    ],
)  # fmt: skip
def test_a_pooled_and_a_turned_image_are_kept_as_pytorch_keeps_them(between: list[Any]) -> None:
    """An average keeps its input unless it is of the whole image, and a maximum its positions too.

    A dense layer keeps a copy of a turn.
    """
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), *between)
    own = saved_by_pytorch(network, torch.rand(4, 3, 16, 16))
    assert saved_bytes(lolat.read(network, (3, 16, 16)), 4) == own


class Between(torch.nn.Module):  # type: ignore[misc]
    """Values between two, by a number and by weights."""

    def forward(self, x: Any) -> Any:
        x = torch.lerp(x, -x, 0.3)
        return torch.lerp(x, x + 1.0, x.tanh())


class Chosen(torch.nn.Module):  # type: ignore[misc]
    """A leaky ReLU by hand, a threshold and a mask of all channels."""

    def forward(self, x: Any) -> Any:
        x = torch.where(x > 0, x, 0.1 * x)
        x = x.masked_fill(x < 0.5, 0.0)
        return torch.where(x.sum(1, keepdim=True) > 0, x, -x)


@pytest.mark.parametrize("between", [Chosen, Between])
def test_a_choice_keeps_its_condition_and_a_mixture_its_weights(between: Any) -> None:
    """A byte for each element of the condition."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), between(), torch.nn.Conv2d(32, 4, 3))
    own = saved_by_pytorch(network, torch.rand(4, 3, 16, 16))
    assert saved_bytes(lolat.read(network, (3, 16, 16)), 4) == own


@pytest.mark.parametrize(("framework", "kept"), [("torch", 4 * 64), ("keras", 0)])
def test_tensorflow_averages_without_keeping_its_input(framework: str, kept: int) -> None:
    """Its AvgPoolGrad reads the shape of the input alone."""
    builder = GraphBuilder("net", framework)
    image = builder.tensor((1, 8, 8, 1))  # which needs a gradient
    graph = builder.build([builder.add("average_pool", [image], (1, 4, 4, 1), kernel=[2, 2])])
    assert saved_bytes(graph, 1) == kept


class Windows(torch.nn.Module):  # type: ignore[misc]
    """Attention of a window as timm's Swin has it: slices of a turned tensor are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).reshape(len(x), 49, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        weights = ((q * 8**-0.5) @ k.transpose(-2, -1)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(len(x), 49, 32))


def test_a_slice_that_is_multiplied_is_kept_without_the_others() -> None:
    """PyTorch copies it for the product of a batch."""
    network = Windows()
    own = saved_by_pytorch(network, torch.rand(4, 49, 32))
    assert saved_bytes(lolat.read(network, (49, 32)), 4) == pytest.approx(own, rel=0.01)


def test_autocast_keeps_a_copy_for_each_product_in_place_of_the_tensor() -> None:
    """Of layers whose norms come last, on the CPU, where they are in float32 as on a GPU."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    network = torch.nn.TransformerEncoder(layer, 2)
    graph, x = lolat.read(network, (128, 64)), torch.randn(2, 128, 64)
    own = saved_by_pytorch(network, x)
    assert saved_bytes(graph, 2) == pytest.approx(own, rel=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        own = saved_by_pytorch(network, x)
    weights = 2 * sum(p.numel() for p in network.parameters() if p.ndim == 2)  # copies of these
    assert saved_bytes(graph, 2, Mode("amp")) + weights == pytest.approx(own, rel=0.02)


class OwnLoss(torch.nn.Module):  # type: ignore[misc]
    """Returns its loss, and its logits beside it if `both`."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.head, self.both = torch.nn.Linear(32, 4000), both

    def forward(self, x: Any, target: Any) -> Any:
        logits = self.head(x)
        loss = F.cross_entropy(logits, target)
        return (logits, loss) if self.both else (loss,)


class Accuracy(OwnLoss):
    """Returns a share of right answers, which is a number without a gradient, beside its logits."""

    def forward(self, x: Any, target: Any) -> Any:
        logits = self.head(x)
        return logits, (logits.argmax(1) == target).float().mean()


class LogSoftmax(OwnLoss):
    """Ends with the log-softmax, and leaves the loss its gradient alone."""

    def forward(self, x: Any, target: Any) -> Any:
        return F.log_softmax(self.head(x), -1)


TARGET = torch.zeros(256, dtype=torch.int64)
LOSSES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "loss": (OwnLoss(False), lambda out: out[-1]),
    "loss and logits": (OwnLoss(True), lambda out: out[-1]),  # it was computed from these
    "accuracy": (Accuracy(True), lambda out: F.cross_entropy(out[0], TARGET)),
    "log-softmax": (LogSoftmax(False), lambda out: F.nll_loss(out, TARGET)),
}


@pytest.mark.parametrize("returned", LOSSES)
def test_a_network_that_returns_its_loss_has_no_other(returned: str) -> None:
    network, loss = LOSSES[returned]
    own = peak_by_pytorch(network, torch.randn(256, 32), TARGET, loss=loss)
    graph = as_trained(lolat.read((network, (torch.zeros(1, 32), TARGET[:1]))))
    rel = 0.05 if returned == "log-softmax" else 0.01
    assert memory_bytes(graph, 256, OPTIMIZERS["sgd"]) == pytest.approx(own, rel=rel)
    if returned.startswith("loss"):  # nothing is computed behind the operations that were read
        work = work_of(graph, 256, Mode(training=True))
        assert np.bincount(work.operation[~work.backward]).tolist() == [1, 1, 1]


MEASURED = {
    "resnet50": (5_855_043_072, 3_214_914_560), "densenet121": (8_535_934_464, 4_484_389_888),
    "swin_tiny_patch4_window7_224": (7_227_088_896, 4_935_239_680),
}  # fmt: skip
"""Network of timm -> the most bytes of a step on an H100, batch 64, SGD with momentum, in float32 and under
autocast in float16 (torch.cuda.max_memory_allocated)."""


@pytest.mark.parametrize("name", MEASURED)
def test_a_step_of_a_network_has_the_memory_that_was_measured(name: str) -> None:
    pytest.importorskip("lolat.readers.torch.named").load_torchvision()  # which timm imports
    pytest.importorskip("timm")
    graph, momentum = as_trained(lolat.read(f"timm:{name}")), OPTIMIZERS["momentum"]
    for mode, measured in zip((Mode(), Mode("amp")), MEASURED[name], strict=True):
        assert memory_bytes(graph, 64, momentum, mode) == pytest.approx(measured, rel=0.08)


class Traffic(TorchDispatchMode):  # type: ignore[misc]
    """(operation, bytes of the tensors that it reads and writes) of each that is no view."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, int]] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        read, made = (
            [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
            for tree in (args, out)
        )
        memory = {t.untyped_storage().data_ptr() for t in read}
        if not any(t.untyped_storage().data_ptr() in memory for t in made):
            moved = sum(t.numel() * t.element_size() for t in [*read, *made])
            self.rows.append((op.overloadpacket.__name__, moved))
        return out


def backward_bytes(graph: Graph, batch_size: int) -> float:
    """Bytes of a backward pass without its products and the loss, which is its first step."""
    work = work_of(graph, batch_size, Mode(training=True))
    moves = [CLASSES[kind] not in PRODUCTS for kind in work.kind]
    return float(work.bytes[work.backward & np.array(moves)][1:].sum())


LIKE_PYTORCH = [
    "relu", "leaky_relu", "elu", "gelu", "silu", "hard_silu", "hard_sigmoid", "mish", "sigmoid", "tanh",
    "exp", "softplus", "softmax", "log_softmax", "multiply", "add",
]  # fmt: skip
"""Kinds whose gradient is one operation of PyTorch; it composes those of others."""


@pytest.mark.parametrize("kind", LIKE_PYTORCH)
def test_the_gradient_of_a_kind_moves_what_pytorch_moves(kind: str) -> None:
    inputs = [torch.rand(1, 64, requires_grad=True) for _ in range(1 + (kind in TWO))]
    result = (ONE.get(kind) or TWO[kind])(*inputs)
    gradient = torch.ones(1, 64)
    with Traffic() as traffic:
        torch.autograd.grad(result, inputs, gradient)
    assert backward_bytes(of_kind(kind), 1) == sum(moved for _, moved in traffic.rows)


class Gated(torch.nn.Module):  # type: ignore[misc]
    """A gate of each channel, as squeeze-and-excitation has it, a scale of each channel, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, bias=False)
        self.gate = torch.nn.Conv2d(16, 16, 1, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(16, 1, 1))
        self.head = torch.nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = F.silu(self.stem(x))
        y = x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))
        return self.head((x + y * self.scale).flatten(2).transpose(1, 2))


def test_the_gradient_of_a_gate_is_a_whole_tensor_that_is_summed() -> None:
    """Of each product with a broadcast factor two tensors and a sum; gradients of a tensor are added."""
    network, image = Gated(), torch.rand(4, 3, 18, 18)
    result = network(image)
    gradient = torch.ones_like(result)
    with Traffic() as traffic:
        result.backward(gradient)
    products, whole = ("convolution_backward", "mm"), 4 * 4 * 16 * 256
    ours = backward_bytes(lolat.read(Gated(), (3, 18, 18)), 4)
    theirs = sum(moved for name, moved in traffic.rows if name not in products)
    # The gradient of the mean: PyTorch divides a view of one number a channel, which counts as whole here.
    assert ours == pytest.approx(theirs - whole, rel=0.01)


class Looked(torch.nn.Module):  # type: ignore[misc]
    """Looks up rows of a table, of a parameter, or of a result."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table, self.how = torch.nn.Embedding(5001, 24), how
        self.head = torch.nn.Linear(24, 2)
        self.table.requires_grad_(how != "frozen")

    def forward(self, x: Any) -> Any:
        rows = self.table(x) if self.how in ("table", "frozen") else self.table.weight[x]
        if self.how == "selected":
            rows = self.table.weight.index_select(0, x.flatten()).view(*x.shape, 24)
        elif self.how == "result":
            rows = self.head(x.float()[..., None].expand(-1, -1, 24))
            return rows[:, torch.tensor([4, 0, 4])]
        return self.head(rows)


@pytest.mark.parametrize("how", ["table", "frozen", "indexed", "selected", "result"])
def test_rows_that_were_looked_up_have_a_gradient_of_the_whole_size(how: str) -> None:
    """PyTorch fills zeros, as its profiler shows; a frozen table has none."""
    from torch.profiler import ProfilerActivity, profile

    network, x = Looked(how), torch.zeros(3, 9, dtype=torch.int64)
    result = network(x)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        result.backward(torch.ones_like(result))
    shapes = [event.input_shapes[0] for event in seen.events() if event.name == "aten::zero_"]
    filled = [4 * int(np.prod(shape)) for shape in shapes]
    for mode in Mode(training=True), Mode("float32", "compiled", training=True):
        work = work_of(lolat.read((Looked(how), x[:1])), 3, mode)
        large = {"result": 3 * 9 * 2 * 4}.get(how, 5001 * 24 * 4)
        moves = work.backward & (work.kind == CLASSES.index("moves"))
        assert [size for size in work.bytes[moves] if size == large] == filled


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_saves_what_pytorch_saves(kind: str) -> None:
    """PyTorch's own loop over the steps; the input and the last state are within 5 %."""
    layer = getattr(torch.nn, kind)(64, 128, batch_first=True)
    with torch.backends.mkldnn.flags(enabled=False):
        own = saved_by_pytorch(layer, torch.rand(8, 50, 64))
    assert saved_bytes(lolat.read(layer, (50, 64)), 8) == pytest.approx(own, rel=0.05)


def test_a_decoder_with_grouped_queries_saves_what_pytorch_saves() -> None:
    """No mask, and keys and values of 2 heads for 8: transformers runs a causal attention on them."""
    load_torchvision = pytest.importorskip("lolat.readers.torch.named").load_torchvision
    load_torchvision()
    transformers = pytest.importorskip("transformers")
    settings = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=320, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, vocab_size=100, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    model, tokens = transformers.LlamaForCausalLM(settings), torch.zeros(8, 64, dtype=torch.int64)
    own = saved_by_pytorch(model, tokens)
    graph = lolat.read((model, {"input_ids": tokens[:1]}))
    assert saved_bytes(graph, 8) == pytest.approx(own, rel=0.02)
    assert not {"repeat", "where"} & {o.kind for o in graph.operations}


def test_a_table_of_embeddings_is_updated_beside_measured_steps() -> None:
    """4 GB of a table, which no measured network has, take SGD's accesses of the GPU's memory."""
    network = torch.nn.Sequential(torch.nn.Embedding(10**7, 100), torch.nn.Linear(100, 8))
    device, moved = lolat.load("rtx-3090-amp"), 4 * 10**9
    (row,) = device.cost(lolat.read(network, (20,)), 8, optimizer="sgd").options[:1]
    assert row.parts_ms["update"] > 2 * moved / 936e9 * 1e3


def test_a_dropout_of_rate_zero_saves_nothing() -> None:
    """PyTorch hands on its input."""
    layers = [torch.nn.Linear(64, 32), torch.nn.Dropout(0.0), torch.nn.Linear(32, 8)]
    network = torch.nn.Sequential(*layers)
    own = saved_by_pytorch(network, torch.rand(4, 64))
    assert saved_bytes(lolat.read(network, (64,)), 4) == own


@pytest.mark.parametrize("after", [torch.nn.Linear(256, 16), torch.nn.Flatten()])
def test_a_dropout_saves_a_mask_of_bytes(after: Any) -> None:
    """As on a GPU (native_dropout), not of floats as on a CPU. The layer behind it keeps the result."""

    class Dropped(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.native_dropout(x, 0.1, True)[0]

    first = torch.nn.Linear(64, 256)
    network = torch.nn.Sequential(first, torch.nn.GELU(), Dropped(), after)
    expected = saved_by_pytorch(network, torch.rand(4, 64))
    read = lolat.read(
        torch.nn.Sequential(first, torch.nn.GELU(), torch.nn.Dropout(0.1), after), (64,)
    )
    assert saved_bytes(read, 4) == expected


# ---- The most bytes at once.


class Shared(torch.nn.Module):  # type: ignore[misc]
    """An encoder that runs twice, or a table that is the kernel of its head."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1000, 64) if tied else None
        sizes = (64, 64, 64, 64) if tied else (64, 256, 512, 512)
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        )

    def encoded(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x

    def forward(self, *xs: Any) -> Any:
        if self.table is not None:
            return F.linear(self.encoded(self.table(xs[0])), self.table.weight)
        one, two = map(self.encoded, xs)
        return one * two


class Head(torch.nn.Module):  # type: ignore[misc]
    """A head on frozen convolutions, whose weights have many more bytes."""

    def __init__(self) -> None:
        super().__init__()
        stem = torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.Conv2d(64, 64, 3, padding=1)
        self.stem = torch.nn.Sequential(*stem).requires_grad_(False)
        self.head = torch.nn.Sequential(torch.nn.Linear(64, 500), torch.nn.Linear(500, 500))

    def forward(self, x: Any) -> Any:
        return self.head(self.stem(x).mean((2, 3)))


def patches(frozen: bool) -> Any:
    """An image far larger than all results, the first layer frozen or not."""
    stem = torch.nn.Conv2d(3, 16, 8, 8).requires_grad_(not frozen)
    last = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)
    after = torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2, 1), torch.nn.ReLU()
    return torch.nn.Sequential(stem, *after, *last)


def normalized(inplace: bool) -> Any:
    """Two blocks as of nnU-Net, and the last layer."""
    layers: list[Any] = []
    for channels in (3, 32):
        layers += [
            torch.nn.Conv2d(channels, 32, 3, padding=1), torch.nn.InstanceNorm2d(32, affine=True),
            torch.nn.LeakyReLU(inplace=inplace),
        ]  # fmt: skip
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(32, 4, 1))


PEAKS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    # The gradient of a weight is there from its last use on, and that of its first use beside it.
    "twice": lambda: (Shared(False), [torch.rand(1, 4, 64)] * 2),
    "tied": lambda: (Shared(True), [torch.zeros(1, 4, dtype=torch.int64)]),
    "in bfloat16": lambda: (Shared(True).bfloat16(), [torch.zeros(1, 4, dtype=torch.int64)]),
    # The norm's result is a view, whose gradient PyTorch copies where it was changed in place.
    "in place": lambda: (normalized(True), [torch.rand(1, 3, 64, 64)]),
    "not in place": lambda: (normalized(False), [torch.rand(1, 3, 64, 64)]),
    # Where the stem has run, no weight of the head has a copy in half precision yet.
    "autocast": lambda: (Head(), [torch.rand(1, 3, 64, 64)]),
    # No gradient of an image or a frozen layer's result; the image stays, and its copy while it is read.
    "image": lambda: (patches(False), [torch.rand(1, 3, 256, 256)]),
    "image, frozen": lambda: (patches(True), [torch.rand(1, 3, 256, 256)]),
    "image, autocast": lambda: (patches(False), [torch.rand(1, 3, 256, 256)]),
    "image, frozen, autocast": lambda: (patches(True), [torch.rand(1, 3, 256, 256)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PEAKS)
def test_a_step_has_the_peak_of_pytorch(name: str) -> None:
    network, inputs = PEAKS[name]()
    mode = Mode("amp") if name.endswith("autocast") else Mode()
    of_batch = [torch.cat([x] * 4).clone() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=mode.half):
        own = peak_by_pytorch(network, *of_batch)
    ours = memory_bytes(lolat.read((network, inputs)), 4, OPTIMIZERS["sgd"], mode)
    assert ours == pytest.approx(own, rel=0.02)


class Rotary(torch.nn.Module):
    """An attention with rotated q and k, whose fused product is split in one of several spellings."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.fused, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        y, shape = self.fused(x), (*x.shape[:2], 4, 16)
        if self.spelling == "permute":
            q, k, v = y.view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        elif self.spelling == "unbind":
            q, k, v = (z.transpose(1, 2) for z in y.view(*x.shape[:2], 3, 4, 16).unbind(2))
        else:
            parts = y.split(64, -1) if self.spelling == "split" else y.chunk(3, -1)
            q, k, v = (z.view(shape).transpose(1, 2) for z in parts)
        q, k = (torch.cat([-z[..., 8:], z[..., :8]], -1) for z in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(a.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("spelling", ["permute", "unbind", "split", "chunk"])
def test_values_of_a_fused_product_keep_all_of_it(spelling: str) -> None:
    """The view of a third of a tensor keeps the tensor, however it is turned.

    On a CPU the attention keeps its result in another order besides, and the output layer a copy of it.
    """
    network, tokens = Rotary(spelling), torch.rand(2, 32, 64, requires_grad=True)
    copy = 2 * 32 * 64 * 4
    found = saved_bytes(lolat.read(network, (32, 64)), 2)
    by_pytorch = saved_by_pytorch(network, tokens)
    assert found == pytest.approx(by_pytorch, abs=1.01 * copy + 4096)
    assert found >= 2 * 32 * 64 * 4 * (1 + 3 + 2 + 1)  # input, fused product, q and k, result


class Ordered(torch.nn.Module):
    """An attention between dense layers, whose queries are contiguous or a view."""

    def __init__(self, is_ordered: bool) -> None:
        super().__init__()
        self.is_ordered = is_ordered
        self.q, self.k, self.v, self.out = (torch.nn.Linear(64, 64) for _ in range(4))

    def heads(self, x: Any) -> Any:
        return x.view(*x.shape[:2], 4, 16).transpose(1, 2)

    def forward(self, x: Any) -> Any:
        q, k, v = (self.heads(of(x)) for of in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q.contiguous() if self.is_ordered else q, k, v)
        return self.out(a.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "float32"])
def test_the_result_of_an_attention_has_the_order_of_its_queries(
    is_ordered: bool, dtype: str
) -> None:
    """In half precision it is copied for the output layer, which keeps the copy, by PyTorch's shapes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    kind, ops = (torch.bfloat16 if dtype == "bf16" else torch.float32), torch.ops.aten
    with FakeTensorMode():
        q, k, v = (
            torch.empty(2, 32, 4, 16, dtype=kind, device="cuda").transpose(1, 2) for _ in "qkv"
        )
        if is_ordered:
            q = torch.empty(2, 4, 32, 16, dtype=kind, device="cuda")
        if dtype == "bf16":
            made = ops._scaled_dot_product_flash_attention(q, k, v)[0]
        else:
            made = ops._scaled_dot_product_efficient_attention(q, k, v, None, True)[0]
        is_copied = not made.transpose(1, 2).is_contiguous()
    graph = lolat.read(Ordered(is_ordered), (32, 64))
    tensor = 2 * 32 * 64 * kind.itemsize
    kept = 5 + is_copied  # x, q, k, v, result
    assert saved_bytes(graph, 2, Mode(dtype)) == kept * tensor

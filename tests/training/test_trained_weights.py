"""Adapters, tied, computed and partly frozen weights in training, against PyTorch's own backward pass."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.graph.edits import as_trained
from lolat.graph.modes import Mode
from lolat.graph.weights import copied_bytes, weights_bytes
from lolat.optimizers import OPTIMIZERS
from lolat.training.memory import memory_at_peak, numbers_of
from lolat.training.pass_counts import variables
from lolat.training.recipe import recipe_for, recipe_of
from lolat.training.tuning import tuned
from tests.training.known import saved_bytes
from tests.training.steps_by_pytorch import Blocks, agree, by_pytorch, by_us, read, trained_only

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

TOKENS, WORDS = torch.rand(4, 16, 8), torch.zeros(1, 7, dtype=torch.int64)


class Tied(nn.Module):
    """Its table is the kernel of its head too, and it calls a layer twice."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
        self.between, self.other = nn.Linear(32, 32), nn.Linear(32, 32)
        self.head.weight, self.detached = self.table.weight, detached

    def forward(self, x: Any) -> Any:
        x = self.table(x)
        x = self.other(self.between(x.detach() if self.detached else x).relu())
        return self.head(self.between(x))


def test_a_table_that_is_also_the_last_kernel_is_trained_where_a_gradient_comes(peft: Any) -> None:
    """Its rows are looked up without one; PyTorch's gradient of it is of the product alone."""
    agree(Tied(detached=True), WORDS)
    # Where nothing is detached, through every layer; a layer that is called twice has one adapter.
    whole = read(Tied(), WORDS)
    agree(trained_only(Tied(), "table"), WORDS, tuned(whole, "frozen", None))
    device = lolat.load("h100-fp32")
    told = [str(device.cost(whole, 1, tune=tune).warnings) for tune in ("frozen", "lora:4")]
    assert ["frozen layers too" in remarks for remarks in told] == [True, False]
    config = peft.LoraConfig(r=4, target_modules=["between", "other"])
    agree(peft.get_peft_model(Tied(), config), WORDS, tuned(whole, "lora:4", None))


class Towers(nn.Module):
    """Two tables of one size, each with a block of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(50, 8)
        layers = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))
        self.blocks, self.head = nn.ModuleList(layers), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        user = self.blocks[0](self.users(x))
        return self.head(user * self.blocks[1](self.items(x)))


class Translation(nn.Module):
    """Two tables of one size, of which the head is the second."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50 + more, 8), nn.Embedding(50, 8)
        self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = self.target.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.middle(self.source(x) + self.target(x)))


class Again(nn.Module):
    """Calls one attention three times."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.table(x)
        for _ in range(3):
            x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x)


FROZEN = [
    (Towers, "frozen:1", ["items", "blocks.1", "head"], False),
    (Translation, "frozen", ["target"], True),
    (Again, "frozen:1", ["attention", "head"], True),
    (Again, "frozen:2", ["attention", "head"], True),
    (Again, "frozen", ["head"], False),
]


@pytest.mark.parametrize(("network", "tune", "parts", "is_told"), FROZEN)
def test_a_parameter_is_known_from_another_of_its_size(
    tmp_path: Path, network: Any, tune: str, parts: list[str], is_told: bool
) -> None:
    """PyTorch's own parameters say which are one; so it is in the ONNX file, and in JSON."""
    whole = lolat.read((network(), (WORDS,)))
    part = tuned(as_trained(whole), tune, None)
    expected = trained_only(network(), *parts)
    number = sum(p.numel() for p in expected.parameters() if p.requires_grad)
    assert numbers_of(part).trained == number
    assert any("that the trained part uses too" in w for w in part.warnings) == is_told
    if network is not Again:  # whose attention is in one operation of PyTorch
        agree(expected, WORDS, part)
    assert Graph.from_dict(json.loads(json.dumps(part.to_dict()))) == part
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network().eval(), (WORDS,), tmp_path / "network.onnx", dynamo=False)
    exported = tuned(lolat.read(tmp_path / "network.onnx"), tune, None)
    assert numbers_of(exported).trained == number


def test_a_table_of_the_heads_size_has_no_copy_in_half_precision() -> None:
    """By hand: the kernels have one, and the table that the head is; a row more changes its bytes alone."""
    same, other = (lolat.read((Translation(more), (WORDS,))) for more in (0, 1))
    of_table, of_kernel = 50 * 8, 8 * 8 + 8
    assert copied_bytes(same)[-1] == copied_bytes(other)[-1] == 2 * (of_table + of_kernel)
    held = [
        sum(memory_at_peak(g, 1, recipe_of("amp", OPTIMIZERS["sgd"]))[1].values())
        for g in (same, other)
    ]
    assert (
        4 * 8 <= held[1] - held[0] <= 2 * 4 * 8
    )  # its weights, and its gradient where it is there


@pytest.mark.parametrize("reentrant", [None, False])
def test_adapters_of_peft(peft: Any, reentrant: bool | None) -> None:
    config = peft.LoraConfig(r=4, target_modules=["qkv", "up", "down"])
    agree(peft.get_peft_model(Blocks(reentrant), config), TOKENS)


def test_a_base_in_half_precision_has_adapters_in_float32(peft: Any) -> None:
    """As peft makes them; PyTorch's own bytes of all parameters, and of those with a gradient."""
    base = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(torch.bfloat16)
    network = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["0"]))
    memory = (
        lolat.load("epyc-2t-torch")
        .cost((network, torch.rand(1, 64).bfloat16()), 4, accumulate=2)
        .memory
    )
    every = [p.numel() * p.element_size() for p in network.parameters()]
    trained = [p.numel() * p.element_size() for p in network.parameters() if p.requires_grad]
    assert (memory["weights"], memory["gradients"]) == (sum(every), sum(trained))
    # Asked for in bfloat16 it is the same network: what it keeps, and its adapters, are in float32.
    graph, half = as_trained(lolat.read((network, torch.rand(1, 64).bfloat16()))), Mode("bfloat16")
    assert recipe_for(graph, OPTIMIZERS["sgd"], half).weight == 4
    assert saved_bytes(graph, 4, half) == by_pytorch(network, torch.rand(4, 64).bfloat16()).saved


class InDtypes(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the multiply-accumulates of each data type that PyTorch itself runs."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = Counter[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if "mm" in str(function):
            self.macs[str(result.dtype)] += result.numel() * args[-2].shape[-1]
        return result


def test_a_base_in_half_precision_runs_in_it_whatever_its_adapters(peft: Any) -> None:
    """In the precision of most products of PyTorch's own run; in float32 a GPU would take longer."""
    base = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(torch.bfloat16)
    network = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["0", "2"]))
    with InDtypes() as ran:
        network(torch.rand(4, 64).bfloat16())
    assert ran.macs.most_common(1)[0][0] == "torch.bfloat16"
    given, device = (network, torch.rand(1, 64).bfloat16()), lolat.load("a100")
    assert {device.cost(given, 4).precision, device.predict(given, 4).precision} == {"bf16"}
    assert device.predict(given, 4, precision="best").precision == "bf16"
    assert (
        device.cost(given, 4, precision="amp").precision == "amp"
    )  # as transformers' Trainer does
    assert any("adapters are in float32" in w for w in device.predict(given, 4).warnings)
    with pytest.raises(InputError, match="the network is in bf16 itself"):
        device.cost(given, 4, precision="fp32")


class Prompted(Blocks):
    """Has a token of its own in front, positions of which it takes a part, a prompt in its input."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.prompt = nn.Parameter(torch.rand(1, 1, 32)), nn.Parameter(torch.rand(8))
        self.positions = nn.Parameter(torch.rand(1, 40, 32))
        self.register_buffer("mean", torch.rand(8))

    def forward(self, x: Any) -> Any:
        x = self.stem(x + self.prompt - self.mean)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions[:, :1]
        x = x + self.positions[:, 1 : x.shape[1] + 1]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize(
    "parts", [["token"], ["prompt"], ["positions"], ["token", "head"], ["prompt", "norm"]]
)
def test_a_parameter_that_is_no_operations_weight_is_trained(parts: list[str]) -> None:
    network = trained_only(Prompted(), *parts)
    agree(network, TOKENS)
    found = lolat.load("epyc-2t-torch").cost((network, (TOKENS,)), 4, accumulate=2)
    trained = [p for p in network.parameters() if p.requires_grad]
    assert found.trained_parameters == sum(p.numel() for p in trained)
    assert found.memory["gradients"] == 4 * found.trained_parameters
    assert found.parameters == sum(p.numel() for p in network.parameters())
    graph = read(network, TOKENS)
    assert variables(graph) == len(trained)
    head = numbers_of(tuned(graph, "frozen", None))
    assert head.trained == sum(p.numel() for p in network.head.parameters())


def test_a_parameter_that_is_detached_is_not_trained() -> None:
    class Detached(Prompted):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                prompt = 2 * self.prompt
            x = self.stem(x + prompt) * self.positions[:, :1].detach() + self.token
            return self.head(x)

    agree(trained_only(Detached(), "prompt", "positions", "token"), TOKENS)


@pytest.mark.parametrize("name", ["DoRA", "VeRA", "IA3", "LoHa", "OFT"])
def test_other_adapters_of_peft(peft: Any, name: str) -> None:
    """DoRA computes the norms of its kernels; LoHa and OFT its kernels, with products of their own."""
    layers = ["qkv", "up"]
    config = {
        "DoRA": lambda: peft.LoraConfig(r=4, target_modules=layers, use_dora=True),
        "VeRA": lambda: peft.VeraConfig(r=4, target_modules=["up"]),
        "IA3": lambda: peft.IA3Config(target_modules=["qkv", "down"], feedforward_modules=["down"]),
        "LoHa": lambda: peft.LoHaConfig(r=4, target_modules=layers),
        "OFT": lambda: peft.OFTConfig(r=4, target_modules=["up"], oft_block_size=0),
    }[name]()
    network = peft.get_peft_model(Blocks(), config)
    if name not in ("LoHa", "OFT"):
        agree(network, TOKENS)
    graph = read(network, TOKENS)
    learned = [p.numel() for p in network.parameters() if p.requires_grad]
    assert (numbers_of(graph).trained, variables(graph)) == (sum(learned), len(learned))


class Kronecker(nn.Module):
    """A layer of 64 x 64 from the product of two matrices, and one of equal rows, as often as asked."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.rand(8, 8)), nn.Parameter(torch.rand(8, 8))
        self.row, self.times = nn.Parameter(torch.rand(1, 64)), times

    def forward(self, x: Any) -> Any:
        for _ in range(self.times):
            x = F.linear(F.linear(x, torch.kron(self.left, self.right)), self.row.repeat(64, 1))
        return x


@pytest.mark.parametrize("name", ["LoKr", "FourierFT", "VeRA", "OFT", "pruned", "1", "3"])
@pytest.mark.parametrize("frozen", [False, True])
def test_weights_computed_from_fewer_parameters_are_not_more(
    peft: Any, name: str, frozen: bool
) -> None:
    """The module's own parameters, and its buffers that are weights, once: A and B of VeRA; all bytes."""
    layers, x = ["up", "down"], TOKENS
    config = {
        "LoKr": lambda: peft.LoKrConfig(r=4, target_modules=layers),
        "FourierFT": lambda: peft.FourierFTConfig(n_frequency=10, target_modules=layers),
        "VeRA": lambda: peft.VeraConfig(r=4, target_modules=["up"]),
        "OFT": lambda: peft.OFTConfig(r=4, target_modules=["up"], oft_block_size=0),
    }.get(name)
    if name == "pruned":
        from torch.nn.utils import prune

        network = prune.random_unstructured(nn.Linear(8, 640), "weight", 0.5)
    elif config is None:
        network, x = Kronecker(int(name)), torch.rand(4, 64)
    else:
        network = peft.get_peft_model(Blocks(), config())
    if frozen:
        network.requires_grad_(False)
    graph = lolat.read((network, (x,)))
    weights = {
        id(b): b.numel()
        for n, b in network.named_buffers()
        if n.endswith(("A.default", "B.default"))
    }
    every = sum(p.numel() for p in network.parameters())
    learned = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert numbers_of(graph) == (learned, every - learned + sum(weights.values()))
    made = [t for t in vars(network).values() if isinstance(t, torch.Tensor)]  # a pruned weight
    held = {id(t): t.numel() * t.element_size() for t in (*network.buffers(), *made)}
    assert weights_bytes(graph) == pytest.approx(4 * every + sum(held.values()), abs=4096)


def test_adapters_that_multiply_more_in_training_are_refused(peft: Any) -> None:
    """PyTorch's own count: DoRA computes the frozen layer of the dropped input again."""
    rates = {"all": 0.0, "dropped": 0.1}
    networks = {
        name: peft.get_peft_model(
            Blocks(), peft.LoraConfig(r=4, target_modules=["up"], use_dora=True, lora_dropout=rate)
        )
        for name, rate in rates.items()
    }
    seen = {name: by_pytorch(network, TOKENS).macs for name, network in networks.items()}
    assert seen["dropped"] - seen["all"] == (4 + 3) * 4 * 16 * 32 * 64  # the first has no gradient
    graph = lolat.read((networks["dropped"], (TOKENS,)))
    assert "drops of 4 Linear" in graph.training_only
    with pytest.raises(NetworkError, match="4 frozen layers twice"):
        as_trained(graph)


class Put(nn.Module):
    """A frozen layer behind a weight that is computed from a frozen and a trained parameter."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, sizes = kind, {"table": (90, 32), "filters": (24, 8, 3, 3), "scaled": (32, 8)}
        self.old = nn.Parameter(torch.rand(sizes[kind]), requires_grad=False)
        self.new = nn.Parameter(torch.rand({"scaled": (32, 1)}.get(kind) or (8, *sizes[kind][1:])))
        self.bias = nn.Parameter(torch.rand(32))
        self.after = nn.Linear(32, 4).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        if self.kind == "scaled":
            return self.after(F.gelu(F.linear(x, self.old * self.new, self.bias)))
        both = torch.cat([self.old, self.new])
        if self.kind == "table":
            return self.after(F.gelu(F.embedding(x, both)))
        return self.after(F.gelu(F.conv2d(x, both, self.bias).mean((2, 3))))


@pytest.mark.parametrize("kind", ["table", "filters", "scaled"])
def test_a_weight_of_frozen_and_trained_parameters_is_trained_in_part(kind: str) -> None:
    x = {"table": WORDS, "filters": torch.rand(2, 8, 9, 9), "scaled": TOKENS}[kind]
    network = Put(kind)
    expected = by_pytorch(network, x)
    graph = read(network, x)
    found, parameters = by_us(graph, len(x)), sum(p.numel() for p in network.parameters())
    assert found[:2] == expected[:2]
    assert sum(numbers_of(graph)) == parameters


class Sliced(nn.Module):
    """A dense layer whose weight is a scaled part of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Parameter(torch.ones(64, 8)), nn.Parameter(torch.ones(8))

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.table[:32] * self.scale)


class Reused(nn.Module):
    """A layer with weight_norm that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x: Any) -> Any:
        return self.layer(self.layer(x))


NORMED = nn.utils.parametrizations.weight_norm(nn.Linear(8, 32))


@pytest.mark.parametrize("fixed", ["none", "first", "last"])
@pytest.mark.parametrize("layer", [nn.PReLU(), nn.PReLU(16), NORMED, Sliced(), Reused()])
def test_slopes_and_scales_are_parameters_of_a_training(layer: Any, fixed: str) -> None:
    """The parameters with a gradient in PyTorch; what computes a weight has more elements than it."""
    network = nn.Sequential(layer, nn.Linear(layer(TOKENS).shape[-1], 4)).requires_grad_(True)
    network.zero_grad()
    parts = {"none": [], "first": [*layer.parameters()][:1], "last": [*layer.parameters()][-1:]}
    for parameter in parts[fixed]:
        parameter.requires_grad_(False)
    expected, graph = by_pytorch(network, TOKENS), read(network, TOKENS)
    assert by_us(graph, len(TOKENS))[:2] == expected[:2]
    assert sum(numbers_of(graph)) == sum(p.numel() for p in network.parameters())
    if isinstance(layer, nn.PReLU):
        assert saved_bytes(graph, len(TOKENS)) == expected.saved


def test_adapters_that_are_asked_for_are_those_of_peft(peft: Any) -> None:
    """At all linear layers but the last one."""
    config = peft.LoraConfig(r=4, target_modules=["stem", "qkv", "up", "down"])
    graph = tuned(read(Blocks(), TOKENS), "lora:4", None)
    agree(peft.get_peft_model(Blocks(), config), TOKENS, graph)


def test_adapters_are_not_added_to_those_of_peft(peft: Any) -> None:
    network = peft.get_peft_model(Blocks(), peft.LoraConfig(r=4, target_modules=["stem", "up"]))
    with pytest.raises(InputError, match=r"has adapters of its own \(.*lora_A"):
        tuned(read(network, TOKENS), "lora:4", None)


def test_a_packed_projection_has_no_adapter_as_in_peft(peft: Any) -> None:
    """peft's own count, with the head by hand, which it adapts in a network of no task."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.encoder(x).mean(1))

    graph = lolat.read((Encoder().eval(), torch.zeros(1, 16, 32)))
    names = ["out_proj", "linear1", "linear2"]
    theirs = peft.get_peft_model(Encoder(), peft.LoraConfig(r=4, target_modules=names))
    number = sum(p.numel() for p in theirs.parameters() if p.requires_grad)
    assert numbers_of(tuned(graph, "lora:4", None)).trained == number


@pytest.mark.parametrize("use", ["times", "exp", "clamp"])
def test_a_trained_number_is_a_parameter(use: str) -> None:
    """A scale of logits without axes, as CLIP has it; a power of a pooling that is called p."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.scale = nn.Linear(8, 8), nn.Parameter(torch.zeros(()))
            self.p = nn.Parameter(torch.ones(8) * 3)

        def forward(self, x: Any) -> Any:
            scale = {"times": self.scale, "exp": self.scale.exp(),
                     "clamp": self.scale.clamp(max=4.0).exp()}[use]  # fmt: skip
            return self.dense(x).clamp(min=1e-6).pow(self.p) * scale

    found = numbers_of(lolat.read((Network(), torch.zeros(2, 8))))
    assert (found.trained, found.frozen) == (sum(p.numel() for p in Network().parameters()), 0)

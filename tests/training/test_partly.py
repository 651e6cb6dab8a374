"""Networks of which a part is trained, or computed again, against PyTorch's own backward pass.

PyTorch says which parameters get a gradient, how much is multiplied (its FlopCounterMode), and which
tensors stay for the backward pass (its saved_tensors_hooks).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import lolat
from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.graph.analysis import as_trained, weights_bytes
from lolat.graph.backward import backward_of
from lolat.graph.modes import Mode
from lolat.graph.work import work_of
from lolat.optimizers import optimizer_named
from lolat.readers.torch.named import load_torchvision
from lolat.training.memory import numbers_of, recipe_for
from lolat.training.pass_counts import variables
from lolat.training.tuning import tuned
from tests.training.known import saved_by_pytorch, saved_bytes

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
BYTES = 0.05
"""Of the saved tensors; those that differ are small, such as the statistics of normalizations."""


class Seen(NamedTuple):
    """What a training step does: multiply-accumulates of both passes, parameters with a gradient, bytes."""

    macs: int
    trained: int
    saved: int


def by_pytorch(network: Any, x: Any) -> Seen:
    """A training step of PyTorch."""
    from torch.utils.flop_counter import FlopCounterMode

    network.train()
    saved = saved_by_pytorch(network, x)
    with FlopCounterMode(display=False) as flops:
        result = network(x)
        result = result if isinstance(result, torch.Tensor) else result[0]
        result.sum().backward()
    trained = sum(p.numel() for p in network.parameters() if p.grad is not None)
    return Seen(flops.get_total_flops() // 2, trained, saved)


def by_us(graph: Graph, batch_size: int) -> Seen:
    work, part = work_of(graph, batch_size, Mode(training=True)), backward_of(graph)
    again = work.macs[~work.backward & part.again[work.operation]].sum()
    saved = saved_bytes(graph, batch_size)
    return Seen(int(work.macs.sum() + again), numbers_of(graph).trained, saved)


def read(network: Any, x: Any) -> Graph:
    return as_trained(lolat.read((network, (x,))))


def agree(network: Any, x: Any, graph: Graph | None = None) -> None:
    found = by_us(graph or read(network, x), len(x))
    expected = by_pytorch(network, x)
    assert found.macs == expected.macs
    assert found.trained == expected.trained
    assert found.saved == pytest.approx(expected.saved, rel=BYTES)


# ---- A network of residual blocks, with an attention of single operations.


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return x + self.down(F.gelu(self.up(x)))


class Blocks(nn.Module):
    """`reentrant`: each block is a checkpoint of that kind; None: none is."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.blocks, self.reentrant = nn.ModuleList([Block() for _ in range(4)]), reentrant

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Dropping(Block):
    """Drops weights of its attention as eager transformers do: at a rate of 0 at inference."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.1

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        weights = F.dropout(weights, self.dropout if self.training else 0.0, self.training)
        x = x + weights @ value
        return x + self.down(F.gelu(self.up(x)))


def trained_only(network: Any, *parts: str) -> Any:
    """Freeze all but the parameters whose names have one of these parts."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(part in name for part in parts))
    return network


@pytest.fixture(scope="module")
def peft() -> Any:
    load_torchvision()  # which peft imports
    return pytest.importorskip("peft")


TOKENS, WORDS = torch.rand(4, 16, 8), torch.zeros(1, 7, dtype=torch.int64)
PARTS = {
    "all": [""], "head": ["head"], "last blocks": ["blocks.2", "blocks.3", "head"], "stem": ["stem"],
    "biases": ["bias"], "norms": ["norm"], "one in the middle": ["blocks.1.up"],
}  # fmt: skip


@pytest.mark.parametrize("reentrant", [None, False])
@pytest.mark.parametrize("parts", PARTS)
def test_a_network_of_which_some_is_trained(parts: str, reentrant: bool | None) -> None:
    agree(trained_only(Blocks(reentrant), *PARTS[parts]), TOKENS)
    if parts == "all":
        agree(Blocks(True), TOKENS)  # a reentrant checkpoint runs all of it again


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_dropout_of_weights_in_a_checkpoint_runs_again(reentrant: bool | None) -> None:
    network = Blocks(reentrant)
    network.blocks = nn.ModuleList([Dropping() for _ in range(4)])
    agree(network, TOKENS)
    dropouts = [o for o in read(network, TOKENS).operations if o.kind == "dropout"]
    assert [o.attributes["rate"] for o in dropouts] == [0.1] * 4


def test_positions_of_maxima_in_a_checkpoint_are_found_again() -> None:
    """Only the checkpoint's input is kept, of 8 channels of 16 x 16, and the last layer's input."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2)
            self.inner, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 10)

        def part(self, x: Any) -> Any:
            return self.inner(self.pool(x).exp()).exp()

        def forward(self, x: Any) -> Any:
            x = torch.utils.checkpoint.checkpoint(self.part, self.stem(x), use_reentrant=False)
            return self.head(x.mean((2, 3)))

    x = torch.rand(2, 3, 16, 16)
    agree(Network(), x)
    assert by_us(read(Network(), x), 2).saved == 4 * 2 * (3 * 256 + 8 * 256 + 8)


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


@pytest.mark.parametrize("parts", [[""], ["11."], ["7.", "11."], ["0.", "1.weight", "1.bias"]])
def test_convolutions_of_which_some_are_trained(parts: list[str]) -> None:
    """A frozen convolution keeps its input all the same, as a frozen linear layer does not."""
    network = convolutions()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(name.startswith(part) for part in parts))
    agree(network, torch.rand(4, 3, 32, 32))


class Factors(nn.Module):
    """Multiplies and divides by what has no gradient: a graph's edges of the input, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 64), nn.Linear(64, 10)
        for name, size in {"mean": 8, "spread": 8, "scale": 64, "by": 64}.items():
            self.register_buffer(name, torch.rand(size))

    def forward(self, x: Any) -> Any:
        x = (x - self.mean) / self.spread
        edges = x @ x.transpose(-1, -2)
        x = torch.bmm(edges, self.stem(x)) * self.scale
        return self.head(F.silu(x / self.by))


@pytest.mark.parametrize("parts", [[""], ["stem.weight", "head"]])
def test_a_factor_without_a_gradient_keeps_nothing_for_it(parts: list[str]) -> None:
    agree(trained_only(Factors(), *parts), TOKENS)


def test_batch_normalizations_of_buffers_keep_nothing() -> None:
    """As torchvision's detectors have them."""
    load_torchvision()
    import torchvision

    frozen = torchvision.ops.FrozenBatchNorm2d
    network = torchvision.models.resnet18(norm_layer=frozen, num_classes=10)
    agree(network, torch.rand(2, 3, 64, 64))


def test_no_gradient_goes_through_what_is_detached() -> None:
    class Stopped(Blocks):
        def forward(self, x: Any) -> Any:
            x = self.blocks[0](self.stem(x)).detach()
            with torch.no_grad():
                x = self.blocks[1](x)
            return self.head(self.blocks[3](self.blocks[2](x)))

    agree(Stopped(), TOKENS)


class Twice(Blocks):
    """Runs twice, once without a gradient: `first` says which, as FixMatch's pseudo-labels or SimSiam's."""

    def __init__(self, first: bool, detached: bool) -> None:
        super().__init__()
        self.first, self.detached = first, detached

    def still(self, x: Any) -> Any:
        if self.detached:
            return super().forward(x).detach()
        with torch.no_grad():
            return super().forward(x)

    def forward(self, x: Any) -> Any:
        if self.first:
            target = self.still(x)
            return (super().forward(2 * x) - target) ** 2
        found = super().forward(2 * x)
        return (found - self.still(x)) ** 2


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("detached", [True, False])
def test_each_run_of_a_network_has_a_gradient_of_its_own_or_none(
    first: bool, detached: bool
) -> None:
    agree(Twice(first, detached), TOKENS)


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
    assert recipe_for(graph, optimizer_named("sgd"), half).weight == 4
    assert saved_bytes(graph, 4, half) == by_pytorch(network, torch.rand(4, 64).bfloat16()).saved


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
    held = {id(t): t.numel() * t.element_size() for t in network.buffers()}
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


@pytest.mark.parametrize(
    ("tune", "parts"),
    [("full", [""]), ("frozen", ["head"]), ("frozen:2", ["blocks.2", "blocks.3", "head"])],
)
def test_what_is_asked_to_be_tuned_is_as_if_the_network_said_it(
    tune: str, parts: list[str]
) -> None:
    whole = read(trained_only(Blocks(), "norm"), TOKENS)
    agree(trained_only(Blocks(), *parts), TOKENS, tuned(whole, tune, None))


class Scaled(Block):
    """Has a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(32))

    def forward(self, x: Any) -> Any:
        return super().forward(x) * self.scale


class Stages(Blocks):
    """Has layer scales, a layer between its stages, and a mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Scaled() for _ in range(4)])
        self.between, self.shared = nn.Linear(32, 32), nn.Parameter(torch.rand(32))
        self.register_buffer("mean", torch.rand(32))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(self.between(x) if i == 2 else x) - self.mean + self.shared
        return self.head(x)


def test_what_lies_behind_the_frozen_blocks_is_trained() -> None:
    """What the first blocks read too is frozen."""
    whole = read(Stages(), TOKENS)
    network = trained_only(Stages(), "between", "blocks.2", "blocks.3", "head")
    agree(network, TOKENS, tuned(whole, "frozen:2", None))


def test_full_checkpointing_is_as_if_the_network_had_checkpoints() -> None:
    whole = read(Blocks(), TOKENS)
    agree(Blocks(False), TOKENS, tuned(whole, None, "full"))
    checkpointed = read(Blocks(False), TOKENS)
    agree(Blocks(), TOKENS, tuned(checkpointed, None, "none"))


def test_selective_checkpointing_multiplies_nothing_again() -> None:
    """As with PyTorch's policy that keeps the results of products."""
    from torch.utils import checkpoint

    aten, make = torch.ops.aten, checkpoint.create_selective_checkpoint_contexts
    products = [aten.mm.default, aten.addmm.default, aten.bmm.default]

    class Selective(Blocks):
        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for block in self.blocks:
                x = checkpoint.checkpoint(
                    block, x, use_reentrant=False, context_fn=lambda: make(products)
                )
            return self.head(x)

    graph = tuned(read(Blocks(), TOKENS), None, "selective")
    assert by_us(graph, 4).macs == by_pytorch(Selective(), TOKENS).macs
    # The stem's result, and of each block the results of its products and what it adds up.
    of_block = 3 * 32 + 16 + 32 + 2 * 32 + 32
    assert saved_bytes(graph, 4) == 4 * 4 * 16 * (8 + 32 + 4 * of_block + 3 * 32 + 32)
    with pytest.raises(NetworkError, match="context_fn"):
        read(Selective(), TOKENS)


# ---- Networks of packages.


def transformer(reentrant: bool | None, part: str = "") -> tuple[Any, Any]:
    """BERT with 64 positions, as many as a fused attention works on at a time."""
    load_torchvision()
    package = pytest.importorskip("transformers")
    config = package.BertConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64, vocab_size=100,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager",
        return_dict=False,
    )  # fmt: skip
    network = package.BertForSequenceClassification(config)
    if reentrant is not None:
        network.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return trained_only(network, part), torch.randint(0, 100, (3, 64))


@pytest.mark.parametrize(
    ("reentrant", "part"),
    [(None, ""), (False, ""), (True, ""), (None, "layer.2"), (False, "classifier")],
)
def test_a_network_of_transformers(reentrant: bool | None, part: str) -> None:
    agree(*transformer(reentrant, part))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_network_of_timm(checkpointing: bool) -> None:
    load_torchvision()
    network = pytest.importorskip("timm").create_model("resnet18", num_classes=10)
    network.set_grad_checkpointing(checkpointing)
    agree(network, torch.rand(2, 3, 64, 64))


# ---- What is refused.


def test_not_all_blocks_can_be_frozen() -> None:
    with pytest.raises(InputError, match="has 4 blocks"):
        tuned(read(Blocks(), TOKENS), "frozen:4", None)


def test_a_table_that_is_a_buffer_is_not_trained() -> None:
    class Pretrained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(500, 32))
            self.head = nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            return self.head(F.embedding(x, self.table).mean(1))

    agree(Pretrained(), torch.zeros(1, 7, dtype=torch.int64))


def test_what_is_not_trained_has_its_forward_pass_in_memory() -> None:
    """Of a head on frozen convolutions: the largest result is alive beside the next one."""

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
            )
            self.head = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.stem(x).mean((2, 3)))

    network, batch = Probe(), 8
    network.stem.requires_grad_(False)
    cost = lolat.load("epyc-2t-torch").cost(lolat.read((network, torch.zeros(1, 3, 32, 32))), batch)
    two_results = 2 * 4 * batch * 64 * 32 * 32
    assert two_results <= cost.memory_bytes <= 1.2 * two_results


class Freezing(nn.Module):
    """Freezes its first layers in its own `train()`, as mmdetection's backbones, or in its forward pass."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.modes = how, list[bool]()
        self.stem, self.head = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 16)), nn.Linear(16, 4)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.modes.append(mode)
        if self.how.startswith("train"):
            if mode and self.how == "train, by values":
                bool(self.head.weight.sum() > 0)
            self.head.weight.data.mul_(2)
            self.stem.eval().requires_grad_(False)
        return self

    def forward(self, x: Any) -> Any:
        if self.how == "forward":
            self.stem.requires_grad_(False)
        return self.head(self.stem(x))


@pytest.mark.parametrize("how", ["train", "forward"])
@pytest.mark.parametrize("inside", [False, True])
def test_what_its_own_code_freezes_is_not_trained(how: str, inside: bool) -> None:
    """PyTorch's own step after `train()`; the module itself stays in its mode, with its values."""
    network, outer = Freezing(how), nn.Linear(4, 2)
    whole = nn.Sequential(network, outer) if inside else network
    values = [p.detach().clone() for p in whole.parameters()]
    graph = read(whole, TOKENS)
    assert all(p.requires_grad for p in whole.parameters())
    assert all(m.training for m in whole.modules())
    assert network.modes == []
    assert all(map(torch.equal, values, whole.parameters()))
    agree(whole, TOKENS, graph)


def test_a_train_of_its_own_that_cannot_be_called_is_told() -> None:
    graph = lolat.read((Freezing("train, by values"), (TOKENS,)))
    assert any("Freezing.train()" in told for told in graph.training_only)
    assert numbers_of(graph).trained == 8 * 32 + 32 + 32 * 16 + 16 + 16 * 4 + 4

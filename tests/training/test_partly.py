"""Networks of which a part is trained, or computed again, against PyTorch's own backward pass.

PyTorch says which parameters get a gradient, how much is multiplied (its FlopCounterMode), and which
tensors stay for the backward pass (its saved_tensors_hooks).
"""

from __future__ import annotations

from typing import Any

import pytest

import lolat
from lolat.errors import InputError, NetworkError
from lolat.readers.torch.named import load_torchvision
from lolat.report.cost import cost_lines
from lolat.report.tables import lines_of
from lolat.training.memory import numbers_of
from lolat.training.tuning import tuned, units
from tests.training.known import saved_bytes
from tests.training.steps_by_pytorch import (
    Block,
    Blocks,
    Dropping,
    agree,
    by_pytorch,
    by_us,
    read,
    trained_only,
)

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

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


# ---- What counts as a block.


def convolution(channels: int = 32) -> Any:
    return nn.Sequential(nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())


class Listed(nn.Module):
    """A list of blocks of so many convolutions each; `kept`: each block is a checkpoint."""

    def __init__(self, *convolutions: int, kept: bool = False) -> None:
        super().__init__()
        self.kept = kept
        self.stem, self.head = nn.Conv2d(3, 32, 3), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(layer for _ in range(n) for layer in convolution()))
            for n in convolutions
        )

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.kept else block(x)
        return self.head(x.mean((2, 3)))


LISTS = [(1, 1, 1, 2, 2, 2), (1, 1, 1, 1)]


@pytest.mark.parametrize("convolutions", LISTS)
def test_a_block_of_one_convolution_counts_as_its_siblings_do(
    convolutions: tuple[int, ...],
) -> None:
    """A convolution of 32 channels has 32 x 32 x 9 + 32 parameters, its normalization 64."""
    of_blocks = [n * (32 * 32 * 9 + 32 + 64) for n in convolutions]
    graph = read(Listed(*convolutions), torch.rand(2, 3, 16, 16))
    assert numbers_of(tuned(graph, "frozen:1", None)).trained == sum(of_blocks[1:]) + 330
    assert numbers_of(tuned(graph, "frozen:3", None)).trained == sum(of_blocks[3:]) + 330
    cost = lolat.load("p4-fp32").cost(graph, 2, tune="frozen:3")
    assert any(line.endswith("; frozen: up to blocks.2") for line in lines_of(cost_lines(cost)))


@pytest.mark.parametrize("convolutions", LISTS)
def test_checkpoints_of_a_list_are_those_of_its_blocks(convolutions: tuple[int, ...]) -> None:
    whole, x = Listed(*convolutions), torch.rand(2, 3, 16, 16)
    agree(Listed(*convolutions, kept=True), x, tuned(read(whole, x), None, "full"))


@pytest.mark.parametrize(
    ("package", "name", "blocks"),
    [
        ("timm", "mobilenetv3_large_100", lambda n: [b for stage in n.blocks for b in stage]),
        ("torchvision.models", "mobilenet_v3_small", lambda n: [*n.features]),
        (
            "torchvision.models",
            "efficientnet_b0",
            lambda n: [b for s in n.features[1:8] for b in s],
        ),
    ],
)
def test_blocks_of_known_networks(package: str, name: str, blocks: Any) -> None:
    """All but the first two blocks, counted by PyTorch's modules."""
    load_torchvision()
    network = getattr(pytest.importorskip(package), "create_model" if package == "timm" else name)
    network = network(name) if package == "timm" else network()
    graph = read(network, torch.rand(2, 3, 64, 64))
    found = blocks(network)
    assert len(units(graph)) == len(found)
    behind = [p for block in found[2:] for p in block.parameters()]
    head = network.classifier.parameters()
    if package == "timm":
        head = [*network.conv_head.parameters(), *network.norm_head.parameters(), *head]
    elif name == "efficientnet_b0":
        head = [*network.features[8].parameters(), *head]
    expected = sum(p.numel() for p in (*behind, *head))
    assert numbers_of(tuned(graph, "frozen:2", None)).trained == expected


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


def test_checkpoints_of_a_network_without_blocks_are_told() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            from torch.utils.checkpoint import checkpoint

            return self.last(checkpoint(self.first, x, use_reentrant=False))

    with pytest.raises(
        NetworkError, match="without checkpointing the checkpoints in its code count"
    ):
        tuned(read(Kept(), torch.rand(4, 8)), None, "full")


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

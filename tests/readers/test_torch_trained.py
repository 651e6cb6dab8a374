"""What of a PyTorch network is trained: its code, its kernels, gradients that it stops or computes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lolat
from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.graph.weights import parameters
from lolat.training.memory import numbers_of
from tests.readers.counting import refused
from tests.readers.torch_networks import Does, total

STOPS: dict[str, Any] = {
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
}  # fmt: skip
DETACHED: dict[str, Any] = {
    "detach": torch.Tensor.detach, "detach_": torch.Tensor.detach_, "data": lambda x: x.data,
}  # fmt: skip
SECOND, AGAIN = 6 * 6 + 6, "activations are recomputed"
LAYER = nn.Linear(8, 4)


def _changed(change: str) -> nn.Module:
    """Two layers and a fixed table beside them, trained in another way than whole."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.table = nn.Parameter(torch.zeros(6), requires_grad=False)

        def forward(self, x: Any) -> Any:
            without = STOPS.get(change, contextlib.nullcontext)
            with without():
                x = self.first(x) + self.table
            x = DETACHED.get(change, lambda tensor: tensor)(x)
            if not change.startswith("checkpoint"):
                return self.second(x)
            return checkpoint(self.second, x, use_reentrant=change == "checkpoint, the older form")

    module = Two()
    if change == "frozen":
        module.first.requires_grad_(False)
    elif change == "bias":
        module.first.bias.requires_grad_(False)
    elif change:
        setattr(module, change, True)
    return module


@pytest.mark.parametrize(
    ("change", "trained"),
    [("", 2 * SECOND), ("frozen", SECOND), ("bias", 2 * SECOND - 6),
     *((how, SECOND) for how in [*STOPS, *DETACHED]), ("checkpoint", 2 * SECOND),
     ("checkpoint, the older form", 2 * SECOND)],
)  # fmt: skip
def test_what_is_partly_trained_is_predicted_as_the_whole(change: str, trained: int) -> None:
    """A file of the network keeps what is trained, and a table that is not."""
    model, graph = lolat.load("v100-fp32"), lolat.read(_changed(change), 6)
    whole = lolat.read(_changed(""), 6)
    assert model.predict(graph, 4).latency_ms == model.predict(whole, 4).latency_ms
    graph = Graph.from_dict(json.loads(json.dumps(graph.to_dict())))
    cost = model.cost(graph, 4)
    assert (cost.trained_parameters, cost.parameters) == (trained, 2 * SECOND + 6)


@pytest.mark.parametrize(
    "switch", ["gradient_checkpointing", "grad_checkpointing", "use_checkpoint"]
)
def test_a_switch_that_does_nothing_in_the_trace_is_not_trained(switch: str) -> None:
    with pytest.raises(NetworkError, match=AGAIN):
        lolat.load("v100-fp32").cost(lolat.read(_changed(switch), 6), 4)


class Fixed(nn.Module):
    """A trained layer, then a product or a convolution with what `forward` takes of the module."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.first, self.norm, self.work = nn.Linear(6, 6), nn.BatchNorm1d(6), forward
        self.trained = nn.Parameter(torch.zeros(6, 6))
        self.plain = torch.zeros(6, 6)
        for name, shape in (("matrix", (6, 6)), ("kernel", (2, 1, 3)), ("table", (1, 6))):
            self.register_buffer(name, torch.ones(shape))

    def forward(self, x: Any) -> Any:
        return self.work(self, self.norm(self.first(x)) + self.table)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: nn.functional.linear(x, m.matrix),
        lambda m, x: nn.functional.conv1d(x[:, None], m.kernel),
        lambda m, x: torch.einsum("ab,bc->ac", x, m.matrix),
        lambda m, x: x @ (2 * m.matrix.T),
        lambda m, x: nn.functional.linear(x, m.table),
        lambda m, x: x @ m.plain,
    ],
)
def test_a_kernel_that_is_no_parameter_is_not_trained(forward: Any) -> None:
    """A training step of PyTorch leaves it as it was, and makes a gradient of the layer before."""
    module = Fixed(forward)
    module(torch.ones(2, 6)).sum().backward()
    assert [n for n, p in module.named_parameters() if p.grad is None] == ["trained"]
    trained = sum(p.numel() for p in module.parameters() if p.grad is not None)
    cost = lolat.load("v100-fp32").cost(lolat.read(module, 6), 4)
    assert cost.trained_parameters == trained < cost.parameters


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x @ (m.trained * m.matrix),  # a mask of weights
        lambda m, x: nn.functional.linear(x, (m.trained - m.trained.mean()) / m.trained.std()),
        lambda m, x: (x @ m.trained).masked_fill(m.matrix[:1] == 0, 0) * m.matrix[0],
        lambda m, x: x[..., None] @ m.table + m.trained @ m.trained @ m.matrix,  # of positions
    ],
)
def test_statistics_masks_tables_and_constants_are_no_kernels(forward: Any) -> None:
    assert lolat.read(Fixed(forward), 6).training_obstacles == ()


class Straight(nn.Module):
    """A quantizer whose gradient goes around it; and one whose weights nothing learns."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.first, self.fixed = nn.Linear(6, 6), fixed

    def forward(self, x: Any) -> Any:
        weight = self.first.weight.detach() if self.fixed else self.first.weight
        x = nn.functional.linear(x, weight, self.first.bias)
        return x + (x.round() - x).detach()


@pytest.mark.parametrize("fixed", [False, True])
def test_a_gradient_goes_around_what_is_detached(fixed: bool) -> None:
    cost = lolat.load("v100-fp32").cost(lolat.read(Straight(fixed), 6), 4)
    assert cost.trained_parameters == (6 if fixed else 6 * 6 + 6)


class OnTraining(nn.Module):
    """Runs its layer twice in training; the head runs then alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(net, x: Any) -> Any:
        y = net.body(x)
        return (net.body(y), net.head(y)) if net.training else y


class Inherited(OnTraining):
    pass


@pytest.mark.parametrize("make", [OnTraining, Inherited])
def test_a_head_that_runs_in_training_alone_is_not_trained(make: Any) -> None:
    with pytest.raises(NetworkError, match="head run in training alone"):
        lolat.load("v100-fp32").cost((make(), torch.zeros(1, 8)), 4)


def test_a_quantized_module_is_not_trained() -> None:
    dynamic = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)))
    with pytest.raises(NetworkError, match="quantized"):
        lolat.load("v100-fp32").cost((dynamic, torch.zeros(1, 8)), 4)


@pytest.mark.parametrize("is_detached", [False, True])
def test_stacked_weights_count_once(is_detached: bool) -> None:
    """An ensemble as of torch.func.stack_module_state, which detaches; numbers of PyTorch."""

    def forward(m: Any, x: Any) -> Any:
        weights = torch.stack([one.weight for one in m.several])
        x = torch.einsum("bi,noi->nbo", x, weights.detach() if is_detached else weights).mean(0)
        return m.head(x)

    several = nn.ModuleList(nn.Linear(8, 16, bias=False) for _ in range(5))
    network = Does(forward, several=several, head=nn.Linear(16, 4))
    network(torch.zeros(1, 8)).sum().backward()
    learned = sum(p.numel() for p in network.parameters() if p.grad is not None)
    graph = lolat.read((network, torch.zeros(1, 8)))
    assert parameters(graph) == sum(p.numel() for p in network.parameters())
    assert numbers_of(graph).trained == learned


def test_a_computed_kernel_is_no_parameter() -> None:
    """A convolution of each sample by the kernel that a layer computes from it (CondConv)."""

    def forward(module: Any, x: Any) -> Any:
        kernel = module.experts(x.mean((2, 3))).view(-1, 8, 3, 3)
        images = x.reshape(1, -1, 16, 16)
        return nn.functional.conv2d(images, kernel, padding=1, groups=len(x))

    network = Does(forward)
    network.experts = nn.Linear(8, 4 * 8 * 9)
    graph = lolat.read((network, torch.zeros(1, 8, 16, 16)))
    assert parameters(graph) == sum(p.numel() for p in network.parameters())
    assert not graph.warnings


@pytest.mark.parametrize("shape", [(16, 8), (16, 8, 3, 3)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_kernel_that_is_a_product_has_the_parameters_of_its_factors(
    shape: tuple[int, ...], has_bias: bool
) -> None:
    """Of low rank, and the bias beside it; numbers of PyTorch."""

    def forward(m: Any, x: Any) -> Any:
        layer = nn.functional.linear if len(shape) == 2 else nn.functional.conv2d
        return layer(x, (m.left @ m.right).view(shape), m.bias)

    left, right = (
        nn.Parameter(torch.rand(16, 2)),
        nn.Parameter(torch.rand(2, 8 * 3 ** len(shape[2:]))),
    )
    bias = nn.Parameter(torch.zeros(16)) if has_bias else None
    network = Does(forward, left=left, right=right, bias=bias)
    x = torch.zeros(1, 8, *(6 for _ in shape[2:]))
    network(x).sum().backward()
    learned = sum(p.numel() for p in network.parameters() if p.grad is not None)
    graph = lolat.read((network, x))
    assert parameters(graph) == numbers_of(graph).trained == learned
    assert not graph.warnings


def test_a_kernel_of_frozen_parameters_is_not_trained() -> None:
    """As of weight_norm; what is trained is the second layer."""
    first = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 64, 3, bias=False))
    network = nn.Sequential(first.requires_grad_(False), nn.Conv1d(64, 8, 3))
    cost = lolat.load("v100-fp32").cost(lolat.read(network, (8, 20)), 4)
    assert cost.trained_parameters == 64 * 8 * 3 + 8


def _energy(x: Any) -> Any:
    return LAYER(x).tanh().sum()


@pytest.mark.parametrize(
    "forces",
    [
        lambda _, x: torch.autograd.grad(_energy(x.requires_grad_()), x)[0],
        lambda _, x: torch.func.vmap(torch.func.grad(_energy))(x),
        lambda _, x: torch.func.vmap(torch.func.grad_and_value(_energy))(x)[0],
        lambda _, x: torch.func.vjp(LAYER, x)[1](torch.ones(len(x), 4))[0],
        lambda _, x: torch.func.jacrev(_energy)(x), lambda _, x: torch.func.hessian(_energy)(x),
    ],
)  # fmt: skip
def test_gradients_in_the_forward_pass_are_refused(forces: Any) -> None:
    """Energies and forces, or an equation as a loss: the backward pass would not be counted."""
    refused((Does(forces), torch.zeros(1, 8)), "computes gradients", "cost counts both passes")


def test_a_derivative_forward_is_counted() -> None:
    """The product of the layer, and those of the tangents of its input and its weight (FlopCounterMode)."""
    both = Does(lambda _, x: torch.func.jvp(LAYER, (x,), (x,)))
    assert total(lolat.read((both, torch.zeros(1, 8)))).flops == 3 * 8 * 4


def test_tensors_that_are_saved_elsewhere_are_told() -> None:
    def forward(_: Any, x: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return LAYER(x)

    graph = lolat.read((Does(forward), torch.zeros(1, 8)))
    assert "save_on_cpu" in graph.training_only[0]


def test_sparse_gradients_are_not_counted() -> None:
    network = nn.Sequential(nn.Embedding(9, 8, sparse=True), LAYER)
    with pytest.raises(NetworkError, match="sparse gradients"):
        lolat.load("v100-fp32").cost(lolat.read(network, (5,)), 4)


class Swish(torch.autograd.Function):
    """As in the EfficientNets of many repositories."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(context: Any, above: Any) -> Any:
        return above * context.saved_tensors[0].sigmoid()


class WithSwish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return Swish.apply(self.first(x))


class WithGradientsInTraining(nn.Module):
    """Asks for gradients in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        with torch.set_grad_enabled(self.training):
            y = self.body(x)
        return self.head(y)


def test_gradients_in_training_alone_are_told() -> None:
    """PyTorch gives the part its gradients in training; read in evaluation, it is frozen."""
    network = WithGradientsInTraining()
    network(torch.zeros(1, 8)).sum().backward()
    assert network.body.weight.grad is not None
    graph = lolat.read((network, (torch.zeros(1, 8),)))
    assert graph.training_only == ("what WithGradientsInTraining.forward does if it is training",)


def test_code_of_training_alone_is_told() -> None:
    read = lolat.read((WithSwish(), (torch.zeros(1, 8),)))
    assert read.training_only == (
        "what the code of Swish (torch.autograd.Function) keeps and computes",
    )
    for make in (OnTraining, Inherited):
        graph = lolat.read((make(), (torch.zeros(1, 8),)))
        assert f"what {make.__name__}.forward does if it is training" in graph.training_only


class CheckpointedInTraining(nn.Module):
    """A part that is computed again, where the code says so on the line that asks for training."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return checkpoint(self.body, x, use_reentrant=False) if self.training else self.body(x)


class CheckpointedByName(CheckpointedInTraining):
    """A part that is computed again if an attribute says so."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint = True

    def forward(self, x: Any) -> Any:
        if self.checkpoint and self.training:
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)


def test_checkpoints_of_training_alone_are_told_or_refused() -> None:
    """Read in evaluation, no trace shows them, and all activations would be taken as kept."""
    read = lolat.read((CheckpointedInTraining(), (torch.zeros(1, 8),)))
    assert "what CheckpointedInTraining.forward does if it is training" in read.training_only
    (why,) = lolat.read((CheckpointedByName(), (torch.zeros(1, 8),))).training_obstacles
    assert "activations are recomputed" in why


class WithoutGradients(torch.autograd.Function):
    """As modules write it that compute their activations again."""

    @staticmethod
    def forward(context: Any, x: Any, layer: Any, *parameters: Any) -> Any:
        context.layer, context.parameters = layer, parameters
        context.save_for_backward(x)
        with torch.no_grad():
            return layer(x.detach())

    @staticmethod
    def backward(context: Any, above: Any) -> Any:
        x = context.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = context.layer(x)
        first, *others = torch.autograd.grad(y, (x, *context.parameters), above)
        return first, None, *others


def test_gradients_go_through_a_function_whose_forward_turns_them_off() -> None:
    """Against PyTorch's own backward pass."""

    def forward(m: Any, x: Any) -> Any:
        x = m.stem(x)
        return m.head(WithoutGradients.apply(x, m.layer, *m.layer.parameters()))

    network = Does(forward, stem=nn.Linear(8, 16), layer=nn.Linear(16, 32), head=nn.Linear(32, 4))
    network(torch.zeros(1, 8)).sum().backward()
    learned = sum(p.numel() for p in network.parameters() if p.grad is not None)
    numbers = numbers_of(lolat.read((network, torch.zeros(1, 8))))
    assert (numbers.trained, numbers.frozen) == (learned, 0)


def test_learned_queries_are_trained_beside_the_kernel_that_multiplies_them() -> None:
    """A product of a parameter, expanded to the batch or not, has the parameters of its kernel alone."""

    class Queries(nn.Module):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.query, self.how = nn.Parameter(torch.zeros(1, 16, 8)), how
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            sizes = (len(x), 1, 1)
            query = self.query.expand(len(x), -1, -1) if self.how else self.query.repeat(sizes)
            return self.attention(query, x, x)[0]

    for how in ("", "expand"):
        module = Queries(how)
        graph = lolat.read((module, torch.zeros(1, 5, 8)))
        assert [elements for elements, made in graph.loose_parameters if made] == [16 * 8]
        assert numbers_of(graph).trained == sum(p.numel() for p in module.parameters())


def test_a_loss_is_no_conversion_to_float32() -> None:
    """PyTorch's own cross entropy names the type that its input has; `float()` is the code's wish."""

    class Loss(nn.Module):
        def __init__(self, converts: bool) -> None:
            super().__init__()
            self.layer, self.converts = nn.Linear(8, 4), converts

        def forward(self, x: Any, y: Any) -> Any:
            x = self.layer(x)
            return nn.functional.cross_entropy(x.float() if self.converts else x, y)

    inputs = torch.zeros(2, 8), torch.zeros(2, dtype=torch.long)
    found = [lolat.read((Loss(converts), inputs)).redundant_casts for converts in (False, True)]
    assert found == [0, 1]

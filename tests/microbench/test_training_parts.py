"""Parts of training with TensorFlow and PyTorch: against formulas in numpy, and modules written out."""

from __future__ import annotations

import importlib
from inspect import getclosurevars
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lolat.graph import Graph
from lolat.graph.layers import Layers
from lolat.microbench import backends
from lolat.microbench.backends import create
from lolat.microbench.blocks import Predefined
from lolat.microbench.learn_training import MEASURED, TRAINING_BLOCKS

TRAINED = list(MEASURED)
Array = np.ndarray


class Framework:
    """A framework's training; its numbers as numpy's: channels last, kernels as (..., in, out), float64."""

    def __init__(self, name: str) -> None:
        pytest.importorskip(name)
        self.name, self.is_torch = name, name == "torch"
        self.module: Any = importlib.import_module(f"lolat.microbench.backends.{name}.training")
        self.backend: Any = create(name, "cpu")
        self.trained = self.module.TrainingBenchmark(self.backend)

    def image(self, tensor: Any) -> np.ndarray:
        found = np.asarray(tensor.detach() if self.is_torch else tensor).astype(np.float64)
        return found.transpose(0, 2, 3, 1) if self.is_torch and found.ndim == 4 else found


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def framework(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


@pytest.fixture(scope="module")
def keras_() -> Framework:
    return Framework("tensorflow")


@pytest.fixture(scope="module")
def torch_() -> Framework:
    return Framework("torch")


def inside(call: Any) -> Any:
    """What a call of PyTorch's was made with, by the names in its function."""
    return SimpleNamespace(**getclosurevars(call).nonlocals)


# ---- a block's passes ----------------------------------------------------------------------------


def dense() -> Graph:
    n = Layers.on("dense", 1, 1, 6)
    return n.done(n.dense(n.flatten(n.input), 4, "relu"))


def small() -> Graph:
    """Convolution, batch norm, relu, average, dense layer, softmax."""
    n = Layers.on("small", 6, 6, 3)
    return n.done(n.dense(n.global_pool(n.conv_norm_act(n.input, 4, 3), flat=True), 10, "softmax"))


def alone(kind: str) -> Graph:
    n = Layers.on(kind, 32, 32, 3)
    return n.done(n.same(kind, n.input))


def shown(
    keras_: Framework, monkeypatch: pytest.MonkeyPatch, graph: Graph, of_inputs: bool = True
) -> tuple[Any, Any]:
    """(the Keras model of a block, a call of its passes that gives (given, results))."""
    models: list[Any] = []
    build = keras_.module.build_graph
    keras_.backend.keras.utils.set_random_seed(3)  # weights whose relus let gradients pass

    def noted(keras: Any, graph: Graph) -> Any:
        models.append(build(keras, graph))
        return models[0]

    monkeypatch.setattr(keras_.module, "build_graph", noted)
    monkeypatch.setattr(keras_.backend, "compiled", lambda f, *given: lambda: (given, f(*given)))
    return models, keras_.trained.passes(graph, 3, backward=True, of_inputs=of_inputs)


@pytest.mark.parametrize("of_inputs", [True, False])
def test_kerass_gradients_are_those_of_the_formula(
    keras_: Framework, monkeypatch: pytest.MonkeyPatch, of_inputs: bool
) -> None:
    (model,), call = shown(keras_, monkeypatch, dense(), of_inputs)
    (given, behind), ((out,), found) = call()
    x, flowing = np.asarray(given).reshape(3, 6), np.asarray(behind[0])
    kernel, bias = map(np.asarray, model.trainable_variables)
    z = x @ kernel + bias
    np.testing.assert_allclose(out, np.maximum(z, 0), rtol=1e-5, atol=1e-6)
    dz = flowing * (z > 0)
    expected = [x.T @ dz, dz.sum(axis=0), dz @ kernel.T]
    assert len(found) == (3 if of_inputs else 2)
    for gradient, wanted in zip(found, expected, strict=False):
        assert np.abs(wanted).max() > 0.1
        np.testing.assert_allclose(np.reshape(gradient, wanted.shape), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("of_inputs", [True, False])
def test_pytorchs_gradients_are_those_of_the_formula(torch_: Framework, of_inputs: bool) -> None:
    import torch

    def written_out(x: Any, kernel: Any, scale: Any, shift: Any, dense: Any, bias: Any) -> Any:
        """`small`, with the formula of batch norm."""
        y = torch.nn.functional.conv2d(x, kernel, padding=1)
        mean = y.mean((0, 2, 3), keepdim=True)
        variance = ((y - mean) ** 2).mean((0, 2, 3), keepdim=True)
        y = (y - mean) / (variance + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]
        return ((y.clamp(min=0).mean((2, 3)) @ dense.T) + bias).softmax(1)

    passes = torch_.trained.passes(small(), 4, backward=True, of_inputs=of_inputs)
    passes()
    passes()  # they are not added up
    of = inside(passes)
    (x,), parameters, (flowing,) = of.inputs, list(of.module.parameters()), of.flowing
    assert (x.shape, flowing.shape) == ((4, 3, 6, 6), (4, 10))
    assert flowing.std() > 0.1
    twins = [t.detach().double().requires_grad_(True) for t in (x, *parameters)]
    of_x, *expected = torch.autograd.grad(written_out(*twins), twins, flowing.double())
    for parameter, wanted in zip(parameters, expected, strict=True):
        assert wanted.abs().max() > 1e-4
        torch.testing.assert_close(parameter.grad.double(), wanted, rtol=1e-3, atol=1e-6)
    if of_inputs:
        torch.testing.assert_close(x.grad.double(), of_x, rtol=1e-3, atol=1e-6)
    else:
        assert x.grad is None


@pytest.mark.parametrize(("backward", "products"), [(False, 1), (True, 3)])
def test_nothing_is_left_out(keras_: Framework, backward: bool, products: int) -> None:
    """No gradient of a block that ends in a product needs what comes out of it."""
    n = Layers.on("product", 1, 1, 6)
    graph = n.done(n.dense(n.flatten(n.input), 4))
    context = importlib.import_module("tensorflow.python.eager.context").context()
    call = keras_.trained.passes(graph, 3, backward=backward, of_inputs=True)
    context.enable_graph_collection()
    try:
        call()
        ran = context.export_run_metadata()
    finally:
        context.disable_graph_collection()
    graphs = [g.post_optimization_graph for g in ran.function_graphs]
    assert [sum("MatMul" in n.op for n in g.node) for g in graphs] == [products]


def test_a_forward_pass_leaves_no_gradients_but_their_graph(torch_: Framework) -> None:
    passes = torch_.trained.passes(small(), 4, backward=False, of_inputs=True)
    outputs, of = list[Any](), inside(passes)
    of.module.register_forward_hook(lambda module, given, out: outputs.extend(out))
    passes()
    assert all(p.grad is None for p in (*of.module.parameters(), *of.inputs))
    assert outputs[0].grad_fn is not None
    passes = torch_.trained.passes(alone("relu"), 2, backward=True, of_inputs=False)
    passes()  # without weights, an image as its input: there is no backward pass
    assert inside(passes).inputs[0].grad is None


def of_different_kinds() -> list[Predefined]:
    """The blocks, but for those in which the same kinds of operation follow one another."""
    found: dict[frozenset[tuple[str, str]], Predefined] = {}
    for block in TRAINING_BLOCKS:
        graph = block.make()
        writers = {i: o.kind for o in graph.operations for i in o.outputs}
        pairs = {(writers.get(i, ""), o.kind) for o in graph.operations for i in o.inputs}
        found.setdefault(frozenset(pairs), block)
    return list(found.values())


@pytest.mark.parametrize("block", of_different_kinds(), ids=lambda b: b.name)
def test_every_block_can_be_trained(block: Predefined) -> None:
    """An operation in place may overwrite what a gradient needs; that shows without memory too."""
    torch: Any = pytest.importorskip("torch")
    from lolat.microbench.backends.torch.layers import block_module

    with torch.device("meta"):
        module, shapes = block_module(torch, block.make())
    size = block.batch_sizes[-1]
    inputs = [torch.empty((size, *s[1:]), device="meta", requires_grad=True) for s in shapes]
    outputs = module.train()(*inputs)
    torch.autograd.backward(outputs, [torch.empty_like(out) for out in outputs])
    assert all(v.grad is not None for v in (*module.parameters(), *inputs))


# ---- updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", TRAINED)
def test_an_update_is_a_step_of_the_optimizer_of_that_name(
    framework: Framework, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """The framework's own, whose rules are its business; on every variable once a call."""
    made: list[Any] = []
    real = framework.module.optimizer_of
    monkeypatch.setattr(
        framework.module, "optimizer_of", lambda *a: made.append(real(*a)) or made[-1]
    )
    call = framework.trained.update(optimizer, ((3, 4), (5,), ()))
    call()
    call()
    kind = {"sgd": "SGD", "momentum": "SGD", "rmsprop": "RMSprop"}.get(optimizer, optimizer.title())
    assert type(made[0]).__name__ == kind
    if framework.is_torch:
        options = made[0].defaults
        rate, momentum = options["lr"], options.get("momentum", 0.0)
        assert all(
            float((v.detach() - 1).abs().max()) > 0 for v in made[0].param_groups[0]["params"]
        )
    else:
        assert int(made[0].iterations) == 2
        rate, momentum = float(made[0].learning_rate), getattr(made[0], "momentum", 0.0)
    assert (rate, momentum) == (pytest.approx(1e-4), 0.9 * (optimizer == "momentum"))


# ---- the loops -----------------------------------------------------------------------------------


@pytest.fixture
def fits(keras_: Framework, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of Keras' `fit`: shape of the samples, labels, batch size, epochs, steps of the optimizer."""
    found: list[tuple[Any, ...]] = []
    model = keras_.trained.keras.Model
    fit = model.fit

    def noted(self: Any, x: Any, y: Any, **given: Any) -> None:
        before = int(self.optimizer.iterations)
        fit(self, x, y, **given)
        steps = int(self.optimizer.iterations) - before
        found.append((x.shape, y.shape, given["batch_size"], given["epochs"], steps))

    monkeypatch.setattr(model, "fit", noted)
    return found


@pytest.mark.filterwarnings("ignore:.*produced by a Softmax")
def test_an_epoch_and_a_start_are_steps_of_fit(
    keras_: Framework, fits: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = keras_.trained.epoch((5, 4, 3), 2, 3)
    assert fits == []
    call()
    call()
    assert fits == [((6, 5, 4, 3), (6,), 2, 1, 3)] * 2
    clock = iter([1.0, 3.5])
    monkeypatch.setattr(keras_.module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert keras_.trained.start(small(), 3, "adam") == 2500.0
    assert fits[2:] == [((3, 6, 6, 3), (3,), 3, 1, 1)]


def test_an_epoch_is_every_sample_once_and_a_step_of_sgd_for_each_batch(torch_: Framework) -> None:
    call = torch_.trained.epoch((5, 4, 3), 2, 3)
    loop = inside(call)
    given: list[Any] = []
    loop.network.register_forward_pre_hook(lambda module, x: given.append((module.training, *x)))
    loop.network.eval()
    for group in loop.made.param_groups:
        group["lr"] = 0.5
    weight, bias = (p.detach().double().numpy().copy() for p in loop.network.parameters())
    call()
    assert [(training, x.shape) for training, x in given] == [(True, (2, 3, 5, 4))] * 3
    data = loop.loader.dataset.tensors[0]
    seen = sorted(float(x.sum()) for _, batch in given for x in batch)
    assert seen == sorted(float(x.sum()) for x in data)
    for _, batch in given:  # cross entropy with class 0, by hand
        x = batch.double().numpy().mean((2, 3))
        scores = x @ weight.T + bias
        slope = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        slope[:, 0] -= 1
        weight, bias = weight - 0.5 * slope.T @ x / 2, bias - 0.5 * slope.mean(0)
    for found, wanted in zip(loop.network.parameters(), (weight, bias), strict=True):
        np.testing.assert_allclose(found.detach().double().numpy(), wanted, rtol=1e-4, atol=1e-6)


# ---- a device of its own, and the worker ---------------------------------------------------------


def test_every_call_waits(framework: Framework, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    backend: Any = create(framework.name, "cpu")
    if framework.is_torch:
        backend.wait = lambda: waits.append("wait")
    else:
        backend.is_gpu = True
        sync: Any = backend.tf.test.experimental
        monkeypatch.setattr(sync, "sync_devices", lambda: waits.append("wait"))
    trained: Any = backends.training_of(backend)
    calls = [
        *(trained.passes(small(), 2, backward, True) for backward in (False, True)),
        trained.update("adam", [(2, 3)]),
        *([trained.epoch((4, 4, 3), 2, 1)] if framework.is_torch else []),
    ]
    for call in calls:
        assert waits == []
        call()
        assert waits.pop() == "wait"
    if framework.is_torch:
        trained.start(small(), 2, "sgd")
        assert len(waits) == 2  # for the weights before it starts, and for its end

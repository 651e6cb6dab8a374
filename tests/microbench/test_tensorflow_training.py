"""Training with TensorFlow, in parts: against formulas by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lolat.graph import Graph
from lolat.mlp.table import OPTIMIZERS as NAMES
from microbench import backends
from microbench.backends import create
from microbench.backends.tensorflow import training as tensorflow_training
from microbench.backends.tensorflow.training import OPTIMIZERS, Training
from microbench.layers import Layers
from tests.microbench.layer_oracle import Optimizer

tf: Any = pytest.importorskip("tensorflow")

TRAINED = [o for o in NAMES if o != "none"]


@pytest.fixture(scope="module")
def trained() -> Training:
    return Training(create("tensorflow", "cpu"))  # type: ignore[arg-type]


def dense() -> Graph:
    n = Layers("dense", 1, 6)
    return n.done(n.dense(n.flatten(n.input), 4, "relu"))


def product() -> Graph:
    n = Layers("product", 1, 6)
    return n.done(n.dense(n.flatten(n.input), 4))


def alone(kind: str) -> Graph:
    n = Layers(kind, 32, 3)
    return n.done(n.same(kind, n.input))


def classifier() -> Graph:
    n = Layers("classifier", 6, 3)
    return n.done(n.dense(n.global_pool(n.cba(n.input, 4, 3)), 10, "softmax"))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The Keras models that are built."""
    found: list[Any] = []
    build = tensorflow_training.build

    def noted(keras: Any, graph: Graph) -> Any:
        found.append(build(keras, graph))
        return found[-1]

    monkeypatch.setattr(tensorflow_training, "build", noted)
    return found


@pytest.fixture
def uncompiled(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls give what TensorFlow computes, instead of waiting for it."""
    monkeypatch.setattr(
        trained, "_called", lambda function, *given: lambda: (given, function(*given))
    )


# ---- passes --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("of_inputs", [True, False])
def test_gradients_are_those_of_the_formula(
    trained: Training, built: list[Any], of_inputs: bool
) -> None:
    call: Any = trained.passes(dense(), 3, backward=True, of_inputs=of_inputs)
    (given, behind), ((out,), gradients) = call()
    x, flowing = np.asarray(given).reshape(3, 6), np.asarray(behind[0])
    kernel, bias = map(np.asarray, built[0].trainable_variables)
    z = x @ kernel + bias
    np.testing.assert_allclose(out, np.maximum(z, 0), rtol=1e-5, atol=1e-6)
    dz = flowing * (z > 0)
    expected = [x.T @ dz, dz.sum(axis=0), dz @ kernel.T]
    assert len(gradients) == (3 if of_inputs else 2)
    for found, wanted in zip(gradients, expected, strict=False):
        assert np.abs(wanted).max() > 0.1
        np.testing.assert_allclose(np.reshape(found, wanted.shape), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("backward", "products"), [(False, 1), (True, 3)])
def test_nothing_is_left_out_because_its_result_is_not_used(
    trained: Training, backward: bool, products: int
) -> None:
    """No gradient of a block that ends in a product needs what comes out of it."""
    context = __import__("tensorflow.python.eager.context", fromlist=["context"]).context()
    call = trained.passes(product(), 3, backward=backward, of_inputs=True)
    context.enable_graph_collection()
    try:
        call()
        ran = context.export_run_metadata()
    finally:
        context.disable_graph_collection()
    graphs = [g.post_optimization_graph for g in ran.function_graphs]
    assert [sum("MatMul" in n.op for n in g.node) for g in graphs] == [products]


def test_batch_norm_takes_and_keeps_the_statistics_of_the_batch(
    trained: Training, built: list[Any]
) -> None:
    graph = alone("batch_norm")
    call = trained.passes(graph, 4, backward=True, of_inputs=True)
    x = np.asarray(trained.backend.value(graph.tensors[graph.inputs[0]], 4))
    (mean, _) = built[0].non_trainable_variables
    assert np.asarray(mean).tolist() == [0, 0, 0]
    call()
    np.testing.assert_allclose(mean, 0.01 * x.mean((0, 1, 2)), rtol=1e-3, atol=1e-7)


@pytest.mark.usefixtures("uncompiled")
def test_dropout_drops_in_training_alone(trained: Training, built: list[Any]) -> None:
    call: Any = trained.passes(alone("dropout"), 4, backward=True, of_inputs=True)
    (x, behind), ((out,), (gradient,)) = call()
    kept = np.asarray(gradient) != 0
    assert 0.4 < kept.mean() < 0.6
    np.testing.assert_allclose(out, 2 * np.asarray(x) * kept, rtol=1e-6)
    np.testing.assert_allclose(gradient, 2 * np.asarray(behind[0]) * kept, rtol=1e-6)
    np.testing.assert_array_equal(built[0](x, training=False), x)


@pytest.mark.usefixtures("uncompiled")
def test_a_forward_pass_alone_has_no_gradients(trained: Training) -> None:
    call: Any = trained.passes(dense(), 3, backward=False, of_inputs=True)
    _, out = call()
    assert tf.is_tensor(out)
    assert out.shape == (3, 4)


# ---- updates -------------------------------------------------------------------------------------


class Spy:
    """An optimiser with another learning rate, whose variables can be seen."""

    def __init__(self, made: Any, rate: float) -> None:
        assert float(made.learning_rate) == pytest.approx(1e-4)
        made.learning_rate = rate
        self.made, self.variables = made, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def build(self, variables: Any) -> None:
        self.variables = variables
        self.made.build(variables)


@pytest.mark.parametrize("optimizer", TRAINED)
def test_an_update_follows_the_optimisers_rule(
    trained: Training, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    rate = 10.0 if optimizer == "adadelta" else 0.1  # large, for changes that float32 can tell
    spies: list[Spy] = []
    make = OPTIMIZERS[optimizer]

    def spying(keras: Any) -> Spy:
        spies.append(Spy(make(keras), rate))
        return spies[-1]

    monkeypatch.setitem(OPTIMIZERS, optimizer, spying)  # type: ignore[arg-type]
    shapes = ((3, 4), (5,), ())
    call = trained.update(optimizer, shapes)
    rule = Optimizer(optimizer, "keras", rate)
    expected = [np.ones(s) for s in shapes]
    for _ in range(3):
        call()
        expected = rule.step(expected, [np.full(w.shape, 1e-3) for w in expected])
    for variable, wanted in zip(spies[0].variables, expected, strict=True):
        found = np.asarray(variable).astype(np.float64)
        assert found.shape == wanted.shape
        assert np.abs(wanted - 1).max() > 1e-4
        np.testing.assert_allclose(found - 1, wanted - 1, rtol=1e-3, atol=1e-6)


def test_there_is_every_optimiser() -> None:
    assert set(OPTIMIZERS) == set(TRAINED)


# ---- Keras' loop ---------------------------------------------------------------------------------


@pytest.fixture
def fits(trained: Training, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of `fit`: shape of the samples, labels, batch size, epochs, steps that the optimiser did."""
    found: list[tuple[Any, ...]] = []
    model = trained.keras.Model
    fit = model.fit

    def noted(self: Any, x: Any, y: Any, **given: Any) -> None:
        before = int(self.optimizer.iterations)
        fit(self, x, y, **given)
        steps = int(self.optimizer.iterations) - before
        found.append((x.shape, y.shape, given["batch_size"], given["epochs"], steps))

    monkeypatch.setattr(model, "fit", noted)
    return found


def test_an_epoch_is_so_many_steps_of_fit(trained: Training, fits: list[tuple[Any, ...]]) -> None:
    call = trained.epoch((5, 4, 3), 2, 3)
    assert fits == []
    call()
    call()
    assert fits == [((6, 5, 4, 3), (6,), 2, 1, 3)] * 2


@pytest.mark.filterwarnings("ignore:.*produced by a Softmax")
def test_a_start_is_one_step_of_a_new_network(
    trained: Training, fits: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([1.0, 3.5])
    monkeypatch.setattr(
        tensorflow_training, "time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    assert trained.start(classifier(), 3, "adam") == 2500.0
    assert fits == [((3, 6, 6, 3), (3,), 3, 1, 1)]


# ---- a device of its own, and the worker ---------------------------------------------------------


def test_every_call_waits_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = create("tensorflow", "cpu")
    backend.is_gpu = True
    waits: list[str] = []
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: waits.append("wait"))
    trained = Training(backend)
    for call in (trained.passes(dense(), 2, True, True), trained.update("sgd", [(2,)])):
        assert waits == []
        call()
        assert waits.pop() == "wait"


def test_the_worker_finds_every_part(trained: Training) -> None:
    found = backends.training_of(trained.backend)
    jobs: list[dict[str, Any]] = [
        {"passes": {"graph": dense().to_dict(), "batch_size": 2, "backward": False, "of_inputs": True}},
        {"update": {"optimizer": "sgd", "shapes": [[3, 2], []]}},
    ]  # fmt: skip
    calls: list[Callable[[], object]] = [backends.prepare_training(found, job) for job in jobs]
    assert [call() for call in calls] == [None, None]

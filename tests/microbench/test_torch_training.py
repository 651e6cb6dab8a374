"""Training with PyTorch, in parts: against formulas by hand and modules written out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lolat.errors import MeasuringError
from lolat.graph import Graph, GraphBuilder
from lolat.mlp.table import OPTIMIZERS as NAMES
from microbench import backends
from microbench.backends import create
from microbench.backends.torch import training as torch_training
from microbench.backends.torch.layers import block_module, materialize
from microbench.backends.torch.training import OPTIMIZERS, Loop, Passes, Training, Update
from microbench.blocks import Predefined
from microbench.layers import Layers
from microbench.learn_training import TRAINING_BLOCKS
from microbench.worker import Worker
from tests.microbench.layer_oracle import Optimizer

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional

TRAINED = [o for o in NAMES if o != "none"]


@pytest.fixture(scope="module")
def backend() -> Any:
    return create("torch", "cpu")


def small() -> Graph:
    """Convolution, batch norm, relu, average, dense layer, softmax."""
    n = Layers("small", 6, 3)
    return n.done(n.dense(n.global_pool(n.cba(n.input, 4, 3)), 5, "softmax"))


def alone(kind: str) -> Graph:
    n = Layers(kind, 32, 3)
    return n.done(n.same(kind, n.input))


# ---- passes --------------------------------------------------------------------------------------


def written_out(x: Any, kernel: Any, scale: Any, shift: Any, dense: Any, bias: Any) -> Any:
    """`small`, with the formula of batch norm."""
    y = F.conv2d(x, kernel, padding=1)
    mean = y.mean((0, 2, 3), keepdim=True)
    variance = ((y - mean) ** 2).mean((0, 2, 3), keepdim=True)
    y = (y - mean) / (variance + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]
    return ((y.clamp(min=0).mean((2, 3)) @ dense.T) + bias).softmax(1)


@pytest.mark.parametrize("of_inputs", [True, False])
def test_gradients_are_those_of_the_block_written_out(backend: Any, of_inputs: bool) -> None:
    passes = Passes(backend, small(), 4, backward=True, of_inputs=of_inputs)
    passes()
    passes()  # they are not added up
    (x,) = passes.inputs
    assert x.shape == (4, 3, 6, 6)
    parameters = list(passes.module.parameters())
    twins = [t.detach().double().requires_grad_(True) for t in (x, *parameters)]
    assert passes.flowing is not None
    (flowing,) = passes.flowing
    assert flowing.shape == (4, 5)
    assert flowing.std() > 0.1
    of_x, *expected = torch.autograd.grad(written_out(*twins), twins, flowing.double())
    assert len(parameters) == len(expected) == 5
    for parameter, wanted in zip(parameters, expected, strict=True):
        assert wanted.abs().max() > 1e-4
        torch.testing.assert_close(parameter.grad.double(), wanted, rtol=1e-3, atol=1e-6)
    if of_inputs:
        torch.testing.assert_close(x.grad.double(), of_x, rtol=1e-3, atol=1e-6)
    else:
        assert x.grad is None
        assert not x.requires_grad


def test_a_forward_pass_alone_leaves_no_gradients_and_keeps_what_they_need(backend: Any) -> None:
    passes = Passes(backend, small(), 4, backward=False, of_inputs=True)
    outputs: list[Any] = []
    passes.module.register_forward_hook(lambda module, given, out: outputs.extend(out))
    passes()
    assert all(p.grad is None for p in (*passes.module.parameters(), *passes.inputs))
    assert outputs[0].grad_fn is not None


def test_batch_norm_takes_and_keeps_the_statistics_of_the_batch(backend: Any) -> None:
    passes = Passes(backend, alone("batch_norm"), 4, backward=False, of_inputs=False)
    (norm,) = (m for m in passes.module.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert norm.running_mean.tolist() == [0, 0, 0]
    passes()
    expected = 0.1 * passes.inputs[0].mean((0, 2, 3))
    torch.testing.assert_close(norm.running_mean, expected)
    assert int(norm.num_batches_tracked) == 1


def test_dropout_drops_in_training_alone(backend: Any) -> None:
    passes = Passes(backend, alone("dropout"), 4, backward=True, of_inputs=True)
    x = torch.ones(4, 3, 32, 32)
    (trained,) = passes.module(x)
    assert set(trained.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < trained.mean() / 2 < 0.6
    built = materialize(torch, block_module(torch, alone("dropout"))[0], "cpu")
    assert torch.equal(built(x)[0], x)
    passes()  # backwards, what was dropped gets nothing
    assert passes.flowing is not None
    kept = passes.inputs[0].grad != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(passes.inputs[0].grad, 2 * passes.flowing[0] * kept)


def test_a_block_without_weights_that_reads_an_image_has_no_backward_pass(backend: Any) -> None:
    passes = Passes(backend, alone("relu"), 2, backward=True, of_inputs=False)
    passes()
    assert passes.inputs[0].grad is None


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
    """In place, an operation may overwrite what a gradient needs; without memory that is found too."""
    graph = block.make()
    module, shapes = block_module(torch, graph)
    inputs = [
        torch.empty((block.batch_sizes[-1], *s[1:]), device="meta", requires_grad=True)
        for s in shapes
    ]
    outputs = module.train()(*inputs)
    torch.autograd.backward(outputs, [torch.empty_like(out) for out in outputs])
    assert all(v.grad is not None for v in (*module.parameters(), *inputs))


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []

    def compile(module: Any, dynamic: bool) -> Any:
        compiled.append(module.training and not dynamic)
        return module

    monkeypatch.setattr(torch, "compile", compile)
    backend: Any = create("torch+compile+channels_last+half", "cpu")
    passes = Passes(backend, small(), 4, backward=True, of_inputs=True)
    passes()
    assert compiled == [True]
    seen = (*passes.module.parameters(), *passes.inputs)
    assert {v.dtype for v in (*seen, *(v.grad for v in seen))} == {torch.float16}
    assert passes.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert Update(backend, "sgd", [(2,)]).variables[0].dtype == torch.float16
    loop = loop_of(Training(backend).epoch((4, 4, 3), 2, 1))
    given = watched(loop)
    loop()
    assert compiled == [True, True]
    assert (given[0].dtype, given[0].shape) == (torch.float16, (2, 3, 4, 4))
    assert given[0].is_contiguous(memory_format=torch.channels_last)


# ---- updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", TRAINED)
def test_an_update_follows_the_optimisers_rule(backend: Any, optimizer: str) -> None:
    update = Update(backend, optimizer, [(3, 4), (5,), ()])
    rate = 10.0 if optimizer == "adadelta" else 0.1  # large, for changes that float32 can tell
    for group in update.optimizer.param_groups:
        assert group["lr"] == 1e-4
        group["lr"] = rate
    rule = Optimizer(optimizer, "torch", rate)
    expected = [np.ones(s) for s in ((3, 4), (5,), ())]
    for _ in range(3):
        update()
        expected = rule.step(expected, [np.full(w.shape, 1e-3) for w in expected])
    for variable, wanted in zip(update.variables, expected, strict=True):
        found = variable.detach().double().numpy()
        assert found.shape == wanted.shape
        assert np.abs(wanted - 1).max() > 1e-4
        np.testing.assert_allclose(found - 1, wanted - 1, rtol=1e-3, atol=1e-6)


def test_there_is_every_optimiser() -> None:
    assert set(OPTIMIZERS) == set(TRAINED)


# ---- the loop ------------------------------------------------------------------------------------


def loop_of(call: Callable[[], None]) -> Loop:
    assert isinstance(call, Loop)
    return call


def watched(loop: Loop) -> list[Any]:
    """What the network of a loop gets, step by step."""
    given: list[Any] = []

    def note(module: Any, inputs: Any) -> None:
        assert module.training
        given.append(inputs[0].clone())

    loop.network.register_forward_pre_hook(note)
    return given


def test_an_epoch_is_every_sample_once_and_a_step_of_sgd_for_each_batch(backend: Any) -> None:
    loop = loop_of(Training(backend).epoch((5, 4, 3), 2, 3))
    loop.network.eval()
    given = watched(loop)
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.5
    weight, bias = (p.detach().double().numpy().copy() for p in loop.network.parameters())
    loop()
    assert [x.shape for x in given] == [(2, 3, 5, 4)] * 3
    data = loop.loader.dataset.tensors[0]
    assert sorted(float(x.sum()) for batch in given for x in batch) == sorted(
        float(x.sum()) for x in data
    )
    for batch in given:  # cross entropy with class 0, by hand
        x = batch.double().numpy().mean((2, 3))
        scores = x @ weight.T + bias
        slope = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        slope[:, 0] -= 1
        weight, bias = weight - 0.5 * slope.T @ x / 2, bias - 0.5 * slope.mean(0)
    for found, wanted in zip(loop.network.parameters(), (weight, bias), strict=True):
        np.testing.assert_allclose(found.detach().double().numpy(), wanted, rtol=1e-4, atol=1e-6)


def image_out() -> Graph:
    n = Layers("image", 6, 3)
    return n.done(n.cba(n.input, 4, 3))


def of_words() -> Graph:
    b = GraphBuilder("words")
    x = b.input((1, 7), dtype="int64")
    x = b.add("embedding", [x], (1, 7, 8), dtype="float32", rows=20, out_features=8)
    return b.build([x])


@pytest.mark.parametrize("make", [small, image_out, of_words])
def test_a_start_is_one_step_of_a_new_network(
    backend: Any, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Graph]
) -> None:
    clock = iter([1.0, 3.5])
    monkeypatch.setattr(torch_training, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    steps: list[int] = []

    def adam(torch: Any, parameters: Any) -> Any:
        made = torch.optim.Adam(parameters)
        made.register_step_post_hook(lambda *_: steps.append(len(made.state)))
        return made

    monkeypatch.setitem(OPTIMIZERS, "adam", adam)  # type: ignore[arg-type]
    assert Training(backend).start(make(), 3, "adam") == 2500.0
    assert len(steps) == 1
    assert steps[0] > 0


# ---- a device of its own, and the worker ---------------------------------------------------------


def test_every_call_waits_for_the_device() -> None:
    backend: Any = create("torch", "cpu")
    waits: list[str] = []
    backend.device = SimpleNamespace(place="cpu", refusals=(), wait=lambda: waits.append("wait"))
    trained = Training(backend)
    for call in (
        trained.passes(small(), 2, True, True),
        trained.passes(small(), 2, False, True),
        trained.update("adam", [(2, 3)]),
        trained.epoch((4, 4, 3), 2, 1),
    ):
        assert waits == []
        call()
        assert waits.pop() == "wait"
    trained.start(small(), 2, "sgd")
    assert len(waits) == 2  # for the weights before it starts, and for its end


def test_memory_that_does_not_suffice_is_a_job_less() -> None:
    class Full(Exception):
        pass

    def wait() -> None:
        raise Full("out of it")

    backend: Any = create("torch", "cpu")
    backend.device = SimpleNamespace(place="cpu", refusals=(Full,), wait=wait, tidy=lambda: None)
    trained = Training(backend)
    said = "the device's memory does not suffice: out of it"
    for call in (
        trained.passes(small(), 2, True, True),
        trained.update("sgd", [(2,)]),
        trained.epoch((4, 4, 3), 2, 1),
    ):
        with pytest.raises(MeasuringError, match=said):
            call()
    with pytest.raises(MeasuringError, match=said):
        trained.start(small(), 2, "sgd")


def test_the_worker_finds_every_part(backend: Any) -> None:
    trained = backends.training_of(backend)
    jobs: dict[type, dict[str, Any]] = {
        Passes: {
            "passes": {
                "graph": small().to_dict(), "batch_size": 2, "backward": True, "of_inputs": False
            }
        },
        Update: {"update": {"optimizer": "adam", "shapes": [[3, 2]]}},
        Loop: {"epoch": {"shape": [4, 4, 3], "batch_size": 2, "steps": 2}},
    }  # fmt: skip
    for kind, job in jobs.items():
        call = backends.prepare_training(trained, job)
        assert isinstance(call, kind)
        call()
    job = {"graph": small().to_dict(), "batch_size": 2, "optimizer": "rmsprop"}
    assert Worker("torch", "cpu").answer({"do": "start", "job": job})["start_ms"] > 0

"""What processes of `microbench.process` are asked to do in the tests."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lolat.errors import DeviceError
from microbench.process import meeting_file

Clock = Callable[[], float]


def echo(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """The request, after much noise; the processes hear of each other by a file."""
    print("noise that is no answer")
    os.write(1, b"more of it")
    mine = Path(f"{meeting_file(request)}-{request['rank']}")
    mine.write_text(str(request["rank"]))
    other = Path(f"{meeting_file(request)}-{1 - request['rank']}")
    while not (other.exists() and other.read_text()):
        time.sleep(0.01)
    clock()
    return {**request, "other": int(other.read_text())}


def refuse(request: Mapping[str, Any], clock: Clock) -> None:
    raise DeviceError("no such device; plug one in")


def fail(request: Mapping[str, Any], clock: Clock) -> None:
    raise ZeroDivisionError("by nought\nand more lines")


def eat(request: Mapping[str, Any], clock: Clock) -> None:
    raise MemoryError


def hang(request: Mapping[str, Any], clock: Clock) -> None:
    """Says who it is, then sleeps; rank 1 dies instead, as `dies` says."""
    if request.get("rank") == 1:
        if request["dies"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stderr.write("first\nlast words\n")
        sys.stderr.flush()
        os._exit(3)
    Path(request["pid_file"]).write_text(f"{os.getpid()} {request['folder']}")
    time.sleep(600)


def mirrored(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """What one step changes in the weights of a small network: on one device, and mirrored on two."""
    import keras
    import numpy as np

    from microbench.backends.tensorflow.replicas import Replicas
    from microbench.backends.tensorflow.training import LEARNING_RATE, OPTIMIZERS, descend

    replicas = Replicas("cpu", 2, request["threads"])
    made: list[Any] = []

    def step() -> Callable[[], Any]:
        """A training step on a batch that lies on the device, of a network made there."""
        tf = replicas.tf
        dense = keras.layers.Dense(2, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((3,)), dense])
        made.append(model)
        optimizer = OPTIMIZERS["sgd"](keras)
        optimizer.build(model.trainable_variables)
        values = np.random.default_rng(0).normal(size=(4, 3))
        batch = keras.Variable(values, trainable=False, dtype="float32")
        return lambda: descend(tf, model, optimizer, tf.identity(batch.value), 1.0)

    found: dict[str, Any] = {"environment": replicas.environment()}
    calls = {"beside": replicas.beside(step, 1), "mirrored": replicas.mirrored(step)}
    for (name, call), model in zip(calls.items(), made, strict=True):
        before = [np.array(v.value) for v in model.trainable_variables]
        call()
        after = [np.array(v.value) for v in model.trainable_variables]
        changes = [(a - b) / LEARNING_RATE for a, b in zip(before, after, strict=True)]
        found[name] = [c.tolist() for c in changes]
    return found


def averaged(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Gradients of a parameter that are rank + 1, as DistributedDataParallel leaves them."""
    from microbench.backends.torch.replicas import Replica, known_gradients

    with Replica(request) as replica:
        module = known_gradients(replica.torch, 2, 5)
        parallel = replica.parallel(module)
        step = replica.step(parallel, lambda m: m())
        step()
        for gradient in module.gradients:
            gradient.fill_(1.0 + request["rank"])
        step()
        return {
            "gradients": [p.grad.tolist() for p in module.parameters()],
            "environment": replica.environment(),
        }

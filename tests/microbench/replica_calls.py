"""What processes of `microbench.worker` are asked to do in the tests."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lolat.errors import DeviceError

Clock = Callable[[], float]


def echo(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """The request, after much noise; the processes hear of each other by a file."""
    print("noise that is no answer")
    os.write(1, b"more of it")
    mine = Path(request["folder"], str(request["rank"]))
    mine.write_text(str(request["rank"]))
    other = Path(request["folder"], str(1 - request["rank"]))
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

    from benchmarks.replicas.mirrored import training_step
    from microbench.backends.tensorflow.training import LEARNING_RATE, Replicas

    replicas = Replicas("cpu", 2, request["threads"])
    made: list[Any] = []

    def network() -> Any:
        made.append(
            keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
        )
        return made[-1]

    found: dict[str, Any] = {"environment": replicas.environment()}
    step = training_step(replicas, network, 4, of_input=True)
    calls = {"beside": replicas.beside(step), "mirrored": replicas.mirrored(step)}
    for (name, call), model in zip(calls.items(), (made[0], made[-1]), strict=True):
        before = [np.array(v.value) for v in model.trainable_variables]
        call()
        after = [np.array(v.value) for v in model.trainable_variables]
        changes = [(a - b) / LEARNING_RATE for a, b in zip(before, after, strict=True)]
        found[name] = [c.tolist() for c in changes]
    return found


def averaged(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Gradients of a parameter that are rank + 1, as DistributedDataParallel leaves them."""
    from microbench.backends.torch.training import Replica, known_gradients

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

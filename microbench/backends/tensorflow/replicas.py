"""TensorFlow's MirroredStrategy: replicas on logical devices of the CPU, or on GPUs, in one process.

All gradients of an iteration are joined to one message, which the devices exchange after the backward
pass: a ring in TensorFlow's own code among logical CPUs, NCCL among GPUs. One strategy for a process:
two would share the keys of their exchanges, and wait for each other for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lolat.errors import DeviceError
from lolat.readers.keras import import_keras
from microbench.backends import imported
from microbench.backends.tensorflow import waiting
from microbench.backends.tensorflow.training import OPTIMIZERS
from microbench.timing import Clock, timed

FLOAT_BYTES = 4


class Replicas:
    """Devices of this process, and the strategy over them.

    `threads`: of each replica; 0: what TensorFlow takes by itself. It has two pools for all logical CPUs
    together: `replicas` threads start operations, and with one thread for each replica an operation is
    computed by the one that started it. With more, all operations share a pool of threads x replicas:
    TensorFlow has no pool for each logical CPU. DeviceError where there are fewer GPUs than replicas.
    """

    def __init__(self, device: str, replicas: int, threads: int) -> None:
        if device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        os.environ["KERAS_BACKEND"] = "tensorflow"  # this process is the strategy's own
        self.keras = import_keras()
        self.tf = imported("tensorflow", "MirroredStrategy")
        self.is_gpu = device == "gpu"
        config = self.tf.config
        physical = config.list_physical_devices(device.upper())
        if self.is_gpu and len(physical) < replicas:
            raise DeviceError(
                f"TensorFlow {self.tf.__version__} finds {len(physical)} GPUs here, but {replicas} "
                "replicas need one each; give fewer --replicas, or cpu"
            )
        self.pool = threads if threads == 1 else threads * replicas
        config.threading.set_inter_op_parallelism_threads(replicas if threads else 0)
        config.threading.set_intra_op_parallelism_threads(self.pool)
        if not self.is_gpu:
            logical = [config.LogicalDeviceConfiguration() for _ in range(replicas)]
            config.set_logical_device_configuration(physical[0], logical)
        self.devices = [f"/{device}:{number}" for number in range(replicas)]
        # One device needs no strategy, and is to be timed without one.
        self.strategy: Any = (
            self.tf.distribute.MirroredStrategy(self.devices) if replicas > 1 else None
        )

    def environment(self) -> dict[str, Any]:
        """Versions and threads: what makes times comparable."""
        return {
            "framework": "tensorflow",
            "framework_version": self.tf.__version__,
            "keras_version": self.keras.__version__,
            "intra_op_threads": self.pool,
            "inter_op_threads": self.tf.config.threading.get_inter_op_parallelism_threads(),
        }

    def mirrored(self, make: Callable[[], Callable[[], Any]]) -> Callable[[], None]:
        """One compiled call of what `make` gives, on every replica under the strategy."""
        with self.strategy.scope():
            step = make()
        return waiting(self.tf, self.tf.function(lambda: self.strategy.run(step)), self.is_gpu)

    def beside(
        self, make: Callable[[], Callable[[], Any]], devices: int | None = None
    ) -> Callable[[], None]:
        """The same on the first `devices` (None: all) at the same time, which exchange nothing."""
        steps = []
        for device in self.devices[:devices]:
            with self.tf.device(device):
                steps.append((device, make()))

        def together() -> list[Any]:
            results = []
            for device, step in steps:
                with self.tf.device(device):
                    results.append(step())
            return results

        return waiting(self.tf, self.tf.function(together), self.is_gpu)  # of all devices


def exchange(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Times of iterations that compute nothing but an update by known gradients, with the strategy and not.

    `request`: device, replicas, threads, and "gradients": (how many variables, bytes of all) of each.
    -> samples "without_ms" and "with_ms" of each, (gradients, samples), and the environment.
    """
    replicas = Replicas(request["device"], request["replicas"], request["threads"])
    calls = []
    for variables, size_bytes in request["gradients"]:
        make = _update(replicas, variables, size_bytes)
        calls += [replicas.beside(make), replicas.mirrored(make)]
    times = timed(calls, clock)
    return {
        "without_ms": times[::2],
        "with_ms": times[1::2],
        "environment": replicas.environment(),
    }


def _update(replicas: Replicas, variables: int, size_bytes: int) -> Callable[[], Callable[[], Any]]:
    """Makes a step of Keras' SGD that changes `variables` of equal size by gradients that are known."""
    tf, keras = replicas.tf, replicas.keras
    shape = (max(1, size_bytes // FLOAT_BYTES // max(variables, 1)),)

    def make() -> Callable[[], Any]:
        weights = [keras.Variable(np.zeros(shape, np.float32)) for _ in range(variables)]
        known = [keras.Variable(np.zeros(shape, np.float32), trainable=False) for _ in weights]
        if not weights:
            return lambda: tf.constant(0.0)
        optimizer = OPTIMIZERS["sgd"](keras)
        optimizer.build(weights)

        def step() -> Any:
            optimizer.apply([tf.identity(v.value) for v in known], weights)
            return tf.constant(0.0)

        return step

    return make

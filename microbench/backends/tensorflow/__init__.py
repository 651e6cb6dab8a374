"""Compiled TensorFlow calls of a Graph or a Keras network, which wait for their result."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from lolat.errors import DeviceError
from lolat.graph import Graph, Tensor
from lolat.io.process import scheduled_count
from lolat.readers.keras import import_keras
from lolat.readers.size import Size

from .. import WAKING_ELEMENTS, Backend, Prepared, at_batch, environment_of, open_own_network
from .layers import build_graph


class TensorFlowBackend(Backend):
    """The backend that runs Keras layers with TensorFlow."""

    name = "tensorflow"

    def __init__(self, device: str, jit: bool = False, threads: int | None = None) -> None:
        """`device`: cpu or gpu; `jit`: compile with XLA; `threads`: None for one thread per processor.

        DeviceError if TensorFlow has no such device.
        """
        if device == "cpu":
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        os.environ["KERAS_BACKEND"] = self.name  # this process is the backend's own
        self.keras = import_keras()
        self.tf: Any = importlib.import_module("tensorflow")
        self.threads = threads
        if threads is not None:  # before anything runs, for then it is too late
            self.tf.config.threading.set_intra_op_parallelism_threads(threads)
            self.tf.config.threading.set_inter_op_parallelism_threads(threads)
        devices = self.tf.config.list_physical_devices(device.upper())
        if not devices:
            others = [d.name for d in self.tf.config.list_physical_devices()]
            raise DeviceError(
                f"no {device} here: TensorFlow {self.tf.__version__} found only {', '.join(others)}; use "
                "`lolat learn cpu`, or install TensorFlow with CUDA, and a driver"
            )
        self.device = f"/{device.upper()}:0"
        self.is_gpu = device == "gpu"
        self.physical = devices[0]
        self.jit = jit
        self.wake: Callable[[], None] | None = None
        self.models: dict[bytes, Any] = {}
        """The model of each block, which all batch sizes share, since building in Keras takes half of the
        time."""

    def environment(self) -> dict[str, Any]:
        """The environment of TensorFlow; see `Backend.environment`."""
        details = self.tf.config.experimental.get_device_details if self.is_gpu else lambda _: {}
        device = details(self.physical).get("device_name")
        threads = self.threads, self.threads_used()
        between = self.tf.config.threading.get_inter_op_parallelism_threads()
        return {
            **environment_of(self.name, self.tf.__version__, *threads, between),
            "keras_version": self.keras.__version__,
            "jit": self.jit,
            **({"device_name": device} if device else {}),
        }

    def threads_used(self) -> int:
        """Threads of an operation: as set, else one per processor."""
        set_here: int = self.tf.config.threading.get_intra_op_parallelism_threads()
        return set_here or scheduled_count()

    def prepare_graph(self, graph: Graph, batch_size: int) -> Prepared:
        """A call of a block; see `Backend.prepare_graph`."""
        key = msgspec.json.encode(graph.to_dict())
        with self.tf.device(self.device):
            if key not in self.models:
                self.models[key] = build_graph(self.keras, graph)
            return self._call(self.models[key], batch_size, graph)

    def prepare_network(self, spec: str, input_size: Size, batch_size: int) -> Prepared:
        """A call of a user's network; see `Backend.prepare_network`."""
        # A Keras model is a layer.
        network = open_own_network(
            spec, input_size, lambda m: isinstance(m, self.keras.Layer), self.name
        )
        with self.tf.device(self.device):
            return self._call(network.model, batch_size, network.graph())

    def _call(self, model: Any, batch_size: int, graph: Graph) -> Prepared:
        """A call of the compiled forward pass, with inputs on the device."""
        inputs = [self.value(graph.tensors[i], batch_size) for i in graph.inputs]
        arguments = inputs[0] if len(inputs) == 1 else inputs
        if (structure := getattr(model, "_inputs_struct", None)) is not None:
            arguments = self.keras.tree.pack_sequence_as(structure, inputs)
        call = self.compiled(lambda x: model(x, training=False), arguments)
        if self.is_gpu:
            return Prepared(call)
        if self.wake is None:
            waking = self.tf.zeros(self.threads_used() * WAKING_ELEMENTS)
            self.wake = self.compiled(lambda x: self.tf.reduce_sum(x + 1.0), waking)
        return Prepared(call, tuple(map(np.asarray, inputs)), self.wake)

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
        """A call of the compiled `function` on `arguments`, which waits for its result."""
        tf = self.tf
        traced = tf.function(function, jit_compile=True if self.jit else None)
        concrete = traced.get_concrete_function(*arguments)

        def call() -> None:
            result = concrete(*arguments)  # flat arguments would cost milliseconds of matching
            if self.is_gpu:
                tf.test.experimental.sync_devices()
                return
            for tensor in tf.nest.flatten(result, expand_composites=True):
                np.asarray(tensor)  # waits and, unlike tensor.numpy(), does not copy

        return call

    def value(self, tensor: Tensor, batch_size: int) -> Any:
        """Values for a graph's input."""
        shape = at_batch(tensor, batch_size)
        if "int" in tensor.dtype or tensor.dtype == "bool":
            return self.tf.ones(shape, tensor.dtype)
        return self.tf.cast(self.tf.random.stateless_normal(shape, seed=(1, 2)), tensor.dtype)

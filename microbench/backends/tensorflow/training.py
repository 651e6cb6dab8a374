"""Training with TensorFlow in parts that are timed: passes of a block, an update, Keras' loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lolat.graph import Graph

from .. import LEARNING_RATE, NUM_CLASSES, OPTIMIZERS
from . import TensorFlowBackend
from .layers import build_graph


def optimizer_of(keras: Any, name: str) -> Any:
    """An optimizer of Keras, by its name in OPTIMIZERS."""
    kind, options = OPTIMIZERS[name]
    return getattr(keras.optimizers, kind)(LEARNING_RATE, **options)


class TrainingBenchmark:
    """The parts of training with TensorFlow; each call waits for its end. Shapes exclude the batch."""

    def __init__(self, backend: TensorFlowBackend) -> None:
        self.backend, self.tf, self.keras = backend, backend.tf, backend.keras

    def passes(
        self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> Callable[[], None]:
        """A call of a block's forward pass in training mode and, if `backward`, of its backward pass.

        The backward pass computes the gradients of the weights and, if `of_inputs`, of the inputs, from
        random gradients of the outputs.
        """
        tf = self.tf
        with tf.device(self.backend.device):
            model = build_graph(self.keras, graph)
            inputs = [self.backend.value(graph.tensors[i], batch_size) for i in graph.inputs]
            argument = inputs[0] if len(inputs) == 1 else inputs
            if not backward:
                return self.backend.compiled(lambda x: model(x, training=True), argument)
            behind = [self.backend.value(graph.tensors[i], batch_size) for i in graph.outputs]
            variables = model.trainable_variables

            def train(x: Any, flowing: Any) -> Any:
                sources = [v.value for v in variables]
                watched = [t for t in tf.nest.flatten(x) if of_inputs and t.dtype.is_floating]
                with tf.GradientTape() as tape:
                    tape.watch(watched)
                    out = tf.nest.flatten(model(x, training=True))
                # The output is returned too; else what no gradient needs would not be computed.
                return out, tape.gradient(out, [*sources, *watched], output_gradients=flowing)

            return self.backend.compiled(train, argument, behind)

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Callable[[], None]:
        """A call in which `optimizer` updates variables of these shapes, with gradients given."""
        tf, keras = self.tf, self.keras
        with tf.device(self.backend.device):
            variables = [keras.Variable(np.ones(s, np.float32)) for s in shapes]
            gradients = [tf.fill(tuple(s), 1e-3) for s in shapes]
            made = optimizer_of(keras, optimizer)
            made.build(variables)

            def apply(gradients: Any) -> Any:
                made.apply(gradients, variables)
                return made.iterations.value

            return self.backend.compiled(apply, gradients)

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], None]:
        """A call of an epoch of Keras' `fit` with almost nothing to compute: it times the loop itself."""
        keras = self.keras
        with self.tf.device(self.backend.device):
            image = keras.Input(tuple(shape))
            pooled = keras.layers.GlobalAveragePooling2D()(image)
            model = keras.Model(image, keras.layers.Dense(NUM_CLASSES)(pooled))
        return self._fit(model, "sgd", _samples(shape, batch_size * steps), batch_size)

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """Time in ms from a new network to the end of the first step of Keras' `fit`."""
        with self.tf.device(self.backend.device):
            model = build_graph(self.keras, graph)
        samples = _samples(graph.tensors[graph.inputs[0]].shape[1:], batch_size)
        started = time.perf_counter()
        self._fit(model, optimizer, samples, batch_size)()
        return (time.perf_counter() - started) * 1e3

    def _fit(
        self, model: Any, optimizer: str, samples: tuple[np.ndarray, np.ndarray], batch_size: int
    ) -> Callable[[], None]:
        """A call of an epoch over the samples, written as Keras' users write it."""
        with self.tf.device(self.backend.device):
            loss = self.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            made, jit = optimizer_of(self.keras, optimizer), self.backend.jit or "auto"
            model.compile(made, loss, jit_compile=jit)

        def call() -> None:
            with self.tf.device(self.backend.device):
                model.fit(*samples, batch_size=batch_size, epochs=1, verbose=0)

        return call


def _samples(shape: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """(images, labels) of random samples."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, *shape), dtype=np.float32)
    return x, generator.integers(0, NUM_CLASSES, count)

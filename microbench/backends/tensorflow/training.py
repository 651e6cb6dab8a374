"""Training with TensorFlow, in parts that are timed: passes of a block, an update, Keras' loop, a layer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lolat.graph import Graph
from microbench.backends import CLASSES, LEARNING_RATE, MOMENTUM
from microbench.backends.tensorflow import TensorFlowBackend, waiting
from microbench.backends.tensorflow.layers import build_graph as build
from microbench.backends.tensorflow.layers import standard

OPTIMIZERS: Mapping[str, Callable[[Any], Any]] = {
    "sgd": lambda keras: keras.optimizers.SGD(LEARNING_RATE),
    "momentum": lambda keras: keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
    "adadelta": lambda keras: keras.optimizers.Adadelta(LEARNING_RATE),
    "adagrad": lambda keras: keras.optimizers.Adagrad(LEARNING_RATE),
    "adam": lambda keras: keras.optimizers.Adam(LEARNING_RATE),
    "rmsprop": lambda keras: keras.optimizers.RMSprop(LEARNING_RATE),
}


class Training:
    """What `microbench.backends.Training` asks of TensorFlow."""

    def __init__(self, backend: TensorFlowBackend) -> None:
        self.backend, self.tf, self.keras = backend, backend.tf, backend.keras

    def passes(
        self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> Callable[[], None]:
        """The forward pass of a block in training mode, or that and the backward pass."""
        tf = self.tf
        with tf.device(self.backend.device):
            model = build(self.keras, graph)
            inputs = [self.backend.value(graph.tensors[i], batch_size) for i in graph.inputs]
            given = inputs[0] if len(inputs) == 1 else inputs
            if not backward:
                return self.backend.compiled(lambda x: model(x, training=True), given)
            behind = [self.backend.value(graph.tensors[i], batch_size) for i in graph.outputs]
            variables = model.trainable_variables

            def train(x: Any, flowing: Any) -> Any:
                sources = [v.value for v in variables]
                floating = [t for t in tf.nest.flatten(x) if t.dtype.is_floating]
                watched = floating if of_inputs else []
                with tf.GradientTape() as tape:
                    tape.watch(watched)
                    out = tf.nest.flatten(model(x, training=True))
                # The output too: what no gradient needs would not be computed otherwise.
                return out, tape.gradient(out, [*sources, *watched], output_gradients=flowing)

            return self.backend.compiled(train, given, behind)

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Callable[[], None]:
        """An update of variables of these shapes by `optimizer`, their gradients given."""
        tf, keras = self.tf, self.keras
        with tf.device(self.backend.device), standard(keras):
            variables = [keras.Variable(np.ones(s, np.float32)) for s in shapes]
            gradients = [tf.fill(tuple(s), 1e-3) for s in shapes]
            made = OPTIMIZERS[optimizer](keras)
            made.build(variables)

            def apply(given: Any) -> Any:
                made.apply(given, variables)
                return made.iterations.value

            return self.backend.compiled(apply, gradients)

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], None]:
        """An epoch of Keras' `fit` with next to nothing to compute: what the loop itself takes."""
        keras = self.keras
        with self.tf.device(self.backend.device), standard(keras):
            image = keras.Input(tuple(shape))
            pooled = keras.layers.GlobalAveragePooling2D()(image)
            model = keras.Model(image, keras.layers.Dense(CLASSES)(pooled))
        return self._fit(model, "sgd", _samples(shape, batch_size * steps), batch_size)

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """From a network made anew to the end of the first step of Keras' `fit`, ms."""
        with self.tf.device(self.backend.device):
            model = build(self.keras, graph)
        samples = _samples(graph.tensors[graph.inputs[0]].shape[1:], batch_size)
        started = time.perf_counter()
        self._fit(model, optimizer, samples, batch_size)()
        return (time.perf_counter() - started) * 1e3

    def layer(self, layer: Mapping[str, Any]) -> Callable[[], None]:
        """A layer's step; see `LayerStep`."""
        return LayerStep(self.backend, layer)

    def _fit(
        self, model: Any, optimizer: str, samples: tuple[np.ndarray, np.ndarray], batch_size: int
    ) -> Callable[[], None]:
        """An epoch over the samples, as Keras' users write it."""
        losses = self.keras.losses
        with self.tf.device(self.backend.device), standard(self.keras):
            model.compile(
                OPTIMIZERS[optimizer](self.keras),
                losses.SparseCategoricalCrossentropy(from_logits=True),
                jit_compile=self.backend.jit or "auto",
            )

        def call() -> None:
            with self.tf.device(self.backend.device):
                model.fit(*samples, batch_size=batch_size, epochs=1, verbose=0)

        return call


def _samples(shape: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, *shape), dtype=np.float32)
    return x, generator.integers(0, CLASSES, count)


def descend(
    tf: Any, model: Any, optimizer: Any, x: Any, target: Any = 1.0, of_input: bool = True
) -> tuple[Any, Any]:
    """A step of training: (loss, the gradient of `x`, None without `of_input`); the weights are updated.

    The loss is the mean squared difference of what `model` makes of `x` from `target`.
    """
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        if of_input:
            tape.watch(x)
        loss = tf.reduce_mean(tf.math.squared_difference(model(x, training=True), target))
    gradient, *others = tape.gradient(loss, [x, *(v.value for v in variables)])
    optimizer.apply(others, variables)
    return loss, gradient


class LayerStep:
    """A Keras layer, its input and, where it is trained, target and optimizer; a function of its own.

    `layer`: see `microbench.backends.Training.layer`.
    """

    def __init__(self, backend: TensorFlowBackend, layer: Mapping[str, Any]) -> None:
        tf, keras = backend.tf, backend.keras
        with tf.device(backend.device), standard(keras):
            self.layer, shape = _keras_layer(keras, layer)
            self.x = tf.random.stateless_normal(shape, seed=(1, 2))
            self.layer.build(self.x.shape)
            self.optimizer: Any = None
            self.given: tuple[Any, ...] = (self.x,)
            if layer["optimizer"] != "none":
                self.optimizer = OPTIMIZERS[layer["optimizer"]](keras)
                self.optimizer.build(self.layer.trainable_variables)
                self.given += (tf.ones(self.layer.compute_output_shape(self.x.shape)),)

            def step(x: Any, *target: Any) -> Any:
                if target:
                    return descend(tf, self.layer, self.optimizer, x, *target)
                return self.layer(x, training=True)

            function = tf.function(step, jit_compile=True if backend.jit else None)
            self.compiled = function.get_concrete_function(*self.given)
        self.run = waiting(tf, self.compiled, backend.is_gpu, *self.given)

    def __call__(self) -> None:
        """Run once and wait for the result."""
        self.run()


def _keras_layer(keras: Any, layer: Mapping[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """(the layer, the shape of its input)."""
    activation = None if layer["activation"] == "none" else layer["activation"]
    if layer["layer"] == "dense":
        made = keras.layers.Dense(layer["out_features"], activation=activation)
        return made, (layer["batch_size"], layer["in_features"])
    made = keras.layers.Conv2D(
        layer["out_channels"], layer["kernel_size"], strides=layer["stride"],
        padding=layer["padding"], use_bias=bool(layer["use_bias"]), activation=activation,
    )  # fmt: skip
    side = layer["input_size"]
    return made, (layer["batch_size"], side, side, layer["in_channels"])

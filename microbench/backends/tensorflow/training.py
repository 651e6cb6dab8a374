"""One layer in training mode as one compiled TensorFlow call: forward, or with backward and update too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lolat.graph import Graph
from microbench.backends.tensorflow import TensorFlowBackend, build, standard

# ---- Training with TensorFlow, in parts that can be timed: a block's passes, an update, Keras'
# own loop.

LEARNING_RATE = 1e-4  # so small that the numbers stay as they are, however often it is timed
MOMENTUM = 0.9

OPTIMIZERS: Mapping[str, Callable[[Any], Any]] = {
    "sgd": lambda keras: keras.optimizers.SGD(LEARNING_RATE),
    "momentum": lambda keras: keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
    "adadelta": lambda keras: keras.optimizers.Adadelta(LEARNING_RATE),
    "adagrad": lambda keras: keras.optimizers.Adagrad(LEARNING_RATE),
    "adam": lambda keras: keras.optimizers.Adam(LEARNING_RATE),
    "rmsprop": lambda keras: keras.optimizers.RMSprop(LEARNING_RATE),
}


class Training:
    """What `microbench.backends.training` asks of TensorFlow."""

    def __init__(self, backend: TensorFlowBackend) -> None:
        self.backend, self.tf, self.keras = backend, backend.tf, backend.keras

    def passes(
        self, graph: Graph, batch_size: int, backward: bool, of_inputs: bool
    ) -> Callable[[], None]:
        """The forward pass of a block in training mode, or that and the backward pass, and the wait.

        The gradients are those of the weights and, with `of_inputs`, of what the block reads. What comes
        back from the layers behind the block is made up.
        """
        tf = self.tf
        with tf.device(self.backend.device):
            model = build(self.keras, graph)
            inputs = [self.backend.value(graph.tensors[i], batch_size) for i in graph.inputs]
            given = inputs[0] if len(inputs) == 1 else inputs
            if not backward:
                return self._called(lambda x: model(x, training=True), given)
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

            return self._called(train, given, behind)

    def update(self, optimizer: str, shapes: Sequence[Sequence[int]]) -> Callable[[], None]:
        """An update of variables of these shapes by `optimizer`, their gradients given, and the wait."""
        tf, keras = self.tf, self.keras
        with tf.device(self.backend.device), standard(keras):
            variables = [keras.Variable(np.ones(s, np.float32)) for s in shapes]
            gradients = [tf.fill(tuple(s), 1e-3) for s in shapes]
            made = OPTIMIZERS[optimizer](keras)
            made.build(variables)

            def apply(given: Any) -> Any:
                made.apply(given, variables)
                return made.iterations.value

            return self._called(apply, gradients)

    def epoch(self, shape: Sequence[int], batch_size: int, steps: int) -> Callable[[], None]:
        """An epoch of Keras' `fit` with next to nothing to compute: what the loop itself takes."""
        keras = self.keras
        x, y = _samples(shape, batch_size * steps)
        with self.tf.device(self.backend.device), standard(keras):
            first = keras.Input(tuple(shape))
            middle = keras.layers.GlobalAveragePooling2D()(first)
            model = keras.Model(first, keras.layers.Dense(CLASSES)(middle))
            model.compile("sgd", _loss(keras), jit_compile=self.backend.jit or "auto")

        def call() -> None:
            with self.tf.device(self.backend.device):
                model.fit(x, y, batch_size=batch_size, epochs=1, verbose=0)

        return call

    def start(self, graph: Graph, batch_size: int, optimizer: str) -> float:
        """From a network made anew to the end of the first step of Keras' `fit`, ms."""
        keras = self.keras
        with self.tf.device(self.backend.device):
            model = build(keras, graph)
            x, y = _samples(graph.tensors[graph.inputs[0]].shape[1:], batch_size)
            with standard(keras):
                started = time.perf_counter()
                model.compile(
                    OPTIMIZERS[optimizer](keras),
                    _loss(keras),
                    jit_compile=self.backend.jit or "auto",
                )
                model.fit(x, y, batch_size=batch_size, epochs=1, verbose=0)
                return (time.perf_counter() - started) * 1e3

    def _called(self, function: Callable[..., Any], *given: Any) -> Callable[[], None]:
        """A compiled call that waits for its result."""
        tf = self.tf
        jit = True if self.backend.jit else None
        compiled = tf.function(function, jit_compile=jit).get_concrete_function(*given)
        wait = tf.test.experimental.sync_devices if self.backend.is_gpu else None

        def call() -> None:
            result = compiled(*given)
            if wait is not None:
                wait()
            else:
                for tensor in tf.nest.flatten(result, expand_composites=True):
                    np.asarray(tensor)  # waits and, unlike tensor.numpy(), does not copy

        return call


CLASSES = 10


def _samples(shape: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((count, *shape), dtype=np.float32)
    return x, generator.integers(0, CLASSES, count)


def _loss(keras: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# ---- tensorflow layer steps ----------------------------------------


class LayerStep:
    """A Keras layer, its input and, where it is trained, target and optimiser; a function of its own.

    `layer`: see `microbench.backends.layer_step`. The loss is the mean squared difference from a target
    of ones, as in the measurements of Justus et al. 2018; the gradient is that of the weights and of the
    input, as for a layer in the middle of a network; the optimiser updates the weights.
    """

    def __init__(self, backend: TensorFlowBackend, layer: Mapping[str, Any]) -> None:
        self.tf, keras = backend.tf, backend.keras
        self.wait = self.tf.test.experimental.sync_devices if backend.is_gpu else None
        with self.tf.device(backend.device), standard(keras):
            self.layer = _keras_layer(keras, layer)
            self.x = self.tf.random.stateless_normal(_input_shape(layer), seed=(1, 2))
            self.layer.build(self.x.shape)
            shape = self.layer.compute_output_shape(self.x.shape)
            self.optimizer: Any = None
            jit = True if backend.jit else None
            if layer["optimizer"] == "none":
                function = self.tf.function(self.forward, jit_compile=jit)
                self.given: tuple[Any, ...] = (self.x,)
            else:
                self.optimizer = OPTIMIZERS[layer["optimizer"]](keras)
                self.optimizer.build(self.layer.trainable_variables)
                function = self.tf.function(self.train, jit_compile=jit)
                self.given = (self.x, self.tf.ones(shape))
            self.compiled = function.get_concrete_function(*self.given)

    def forward(self, x: Any) -> Any:
        """The layer's output."""
        return self.layer(x, training=True)

    def train(self, x: Any, target: Any) -> tuple[Any, Any]:
        """Loss and the gradient of `x`; the weights are updated."""
        tf, variables = self.tf, self.layer.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(tf.math.squared_difference(self.layer(x, training=True), target))
        gradient, *others = tape.gradient(loss, [x, *(v.value for v in variables)])
        self.optimizer.apply(others, variables)
        return loss, gradient

    def __call__(self) -> None:
        """Run once and wait for the result."""
        result = self.compiled(*self.given)
        if self.wait is not None:
            self.wait()
        else:
            for tensor in self.tf.nest.flatten(result):
                np.asarray(tensor)  # waits and, unlike tensor.numpy(), does not copy


def prepare(backend: TensorFlowBackend, layer: Mapping[str, Any]) -> Callable[[], None]:
    """The step of a layer as one call; see `microbench.backends.layer_step`."""
    return LayerStep(backend, layer)


def _keras_layer(keras: Any, layer: Mapping[str, Any]) -> Any:
    activation = None if layer["activation"] == "none" else layer["activation"]
    if layer["layer"] == "dense":
        return keras.layers.Dense(layer["out_features"], activation=activation)
    return keras.layers.Conv2D(
        layer["out_channels"],
        layer["kernel_size"],
        strides=layer["stride"],
        padding=layer["padding"],
        use_bias=bool(layer["use_bias"]),
        activation=activation,
    )


def _input_shape(layer: Mapping[str, Any]) -> tuple[int, ...]:
    if layer["layer"] == "dense":
        return layer["batch_size"], layer["in_features"]
    return layer["batch_size"], layer["input_size"], layer["input_size"], layer["in_channels"]

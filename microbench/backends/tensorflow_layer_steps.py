"""One layer in training mode as one compiled TensorFlow call: forward, or with backward and update too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microbench.backends.tensorflow import TensorFlowBackend, standard
from microbench.backends.tensorflow_training import OPTIMIZERS


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

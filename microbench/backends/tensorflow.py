"""Builds a Graph, or opens a Keras network, as one compiled TensorFlow call, and waits for its result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lolat.errors import DeviceError, MeasuringError, MissingPackageError
from lolat.graph import Graph, Operation
from lolat.readers import open_network
from lolat.readers.keras import import_keras

FLAGS = (
    "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS", "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "KMP_AFFINITY", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
)  # fmt: skip
"""Environment variables that make times different."""


class TensorFlowBackend:
    """Graph -> something that runs, and how to wait for it, with TensorFlow and Keras layers."""

    name = "tensorflow"

    def __init__(self, device: str) -> None:
        """`device`: cpu or gpu. Raises DeviceError when TensorFlow has no such device."""
        if device == "cpu":
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        os.environ["KERAS_BACKEND"] = self.name  # this process is the backend's own
        self.keras = import_keras()
        try:
            import tensorflow
        except ImportError as error:
            raise MissingPackageError(
                f"the tensorflow backend needs TensorFlow, which cannot be imported ({error}); install "
                "it with: pip install 'lolat[tensorflow]'"
            ) from error
        self.tf: Any = tensorflow
        if self.keras.backend.backend() != "tensorflow":
            raise DeviceError(
                f"Keras runs on {self.keras.backend.backend()!r} here, but the tensorflow backend "
                "needs TensorFlow; import Keras with KERAS_BACKEND=tensorflow"
            )
        found = self.tf.config.list_physical_devices(device.upper())
        if not found:
            others = [d.name for d in self.tf.config.list_physical_devices()]
            raise DeviceError(
                f"no {device} here: TensorFlow {self.tf.__version__} looked for physical devices of "
                f"type {device.upper()} and has {', '.join(others)}; use `learn_model.py cpu`, or "
                "install a TensorFlow with CUDA and a driver"
            )
        self.device = f"/{device.upper()}:0"
        self.is_gpu = device == "gpu"
        self.physical = found[0]

    def environment(self) -> dict[str, Any]:
        """Versions, threads and flags: what makes times comparable."""
        threading = self.tf.config.threading
        flags = {name: os.environ[name] for name in FLAGS if name in os.environ}
        details = (
            self.tf.config.experimental.get_device_details(self.physical) if self.is_gpu else {}
        )
        name = details.get("device_name")
        return {
            "framework": "tensorflow",
            "framework_version": self.tf.__version__,
            "keras_version": self.keras.__version__,
            "intra_op_threads": threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": threading.get_inter_op_parallelism_threads(),
            "jit": False,
            "flags": flags,
            **({"device_name": name} if name else {}),
        }

    def prepare_graph(self, graph: Graph, batch_size: int) -> Callable[[], None]:
        """A predefined block as one call."""
        with self.tf.device(self.device):
            return self._call(build(self.keras, graph), batch_size)

    def prepare_network(
        self, spec: str, input_size: tuple[int, ...], batch_size: int
    ) -> Callable[[], None]:
        """A user's network as one call."""
        network = open_network(spec, input_size, weights=True)
        with self.tf.device(self.device):
            return self._call(network.model, batch_size, network.graph())

    def _call(self, model: Any, batch_size: int, graph: Graph | None = None) -> Callable[[], None]:
        """The compiled forward pass on inputs that lie on the device already."""
        inputs = [self._input(t, batch_size) for t in self._input_tensors(model, graph)]
        structure = getattr(model, "_inputs_struct", None)
        given = (
            self.keras.tree.pack_sequence_as(structure, inputs)
            if structure is not None
            else (inputs[0] if len(inputs) == 1 else inputs)
        )
        function = self.tf.function(lambda x: model(x, training=False))
        compiled = function.get_concrete_function(given)
        wait = self.tf.test.experimental.sync_devices if self.is_gpu else None

        def call() -> None:
            result = compiled(given)  # flat arguments would cost milliseconds of matching
            if wait is not None:
                wait()
            else:
                for tensor in self.tf.nest.flatten(result):
                    np.asarray(tensor)  # waits and, unlike tensor.numpy(), does not copy

        return call

    def _input_tensors(self, model: Any, graph: Graph | None) -> list[tuple[tuple[int, ...], str]]:
        if graph is not None:
            return [(graph.tensors[i].shape, graph.tensors[i].dtype) for i in graph.inputs]
        return [((1, *t.shape[1:]), str(t.dtype)) for t in model.inputs]

    def _input(self, tensor: tuple[tuple[int, ...], str], batch_size: int) -> Any:
        shape, dtype = (batch_size, *tensor[0][1:]), tensor[1]
        if "int" in dtype or dtype == "bool":
            return self.tf.ones(shape, dtype)
        return self.tf.cast(self.tf.random.stateless_normal(shape, seed=(1, 2)), dtype)


def build(keras: Any, graph: Graph) -> Any:
    """A Keras model of `graph` (float32, channels last); MeasuringError for a kind it cannot build."""
    with _standard(keras):
        return _build(keras, graph)


@contextlib.contextmanager
def _standard(keras: Any) -> Iterator[None]:
    """Without what a user's ~/.keras/keras.json says, which is for the user's own networks."""
    config = keras.config
    saved = config.image_data_format(), config.dtype_policy()
    config.set_image_data_format("channels_last")
    config.set_dtype_policy("float32")
    try:
        yield
    finally:
        config.set_image_data_format(saved[0])
        config.set_dtype_policy(saved[1])


def _build(keras: Any, graph: Graph) -> Any:
    values: dict[int, Any] = {
        i: keras.Input(graph.tensors[i].shape[1:], dtype=graph.tensors[i].dtype)
        for i in graph.inputs
    }
    for operation in graph.operations:
        inputs = [values[i] for i in operation.inputs]
        shape = graph.tensors[operation.outputs[0]].shape
        values[operation.outputs[0]] = _layer(keras, operation, inputs, shape)
    return keras.Model(
        [values[i] for i in graph.inputs], [values[i] for i in graph.outputs], name="block"
    )


def _layer(keras: Any, operation: Operation, inputs: list[Any], shape: tuple[int, ...]) -> Any:
    """Apply one operation to symbolic Keras tensors."""
    layers, a, kind = keras.layers, operation.attributes, operation.kind
    x = inputs[0]
    if kind in ("conv", "grouped_conv", "depthwise_conv"):
        return _convolution(layers, kind, a)(x)
    if kind == "transposed_conv":
        return layers.Conv2DTranspose(
            a["out_channels"], a["kernel"], a["strides"], a["padding"], use_bias=a["bias"]
        )(x)
    if kind == "dense":
        return layers.Dense(a["out_features"], use_bias=a["bias"])(x)
    if kind in ("max_pool", "average_pool"):
        pool = layers.MaxPooling2D if kind == "max_pool" else layers.AveragePooling2D
        return pool(a["kernel"], a["strides"], a["padding"])(x)
    if kind in ("reshape", "flatten"):
        return layers.Reshape(shape[1:])(x)
    if kind in ACTIVATIONS:
        return layers.Activation(kind)(x)
    made = MAKERS.get(kind)
    if made is None:
        raise MeasuringError(
            f"the tensorflow backend cannot build operation {kind!r} ({operation.name!r}); it builds "
            f"{', '.join(sorted(BUILDS))}"
        )
    return made(layers)(inputs if len(inputs) > 1 else x)


def _convolution(layers: Any, kind: str, a: Any) -> Any:
    """A 2-D convolution layer; depthwise has a layer of its own in Keras."""
    common = {"use_bias": a["bias"], "padding": a["padding"], "dilation_rate": a["dilation"]}
    if kind == "depthwise_conv":
        multiplier = a["out_channels"] // a["in_channels"]
        return layers.DepthwiseConv2D(
            a["kernel"], a["strides"], depth_multiplier=multiplier, **common
        )
    return layers.Conv2D(a["out_channels"], a["kernel"], a["strides"], groups=a["groups"], **common)


ACTIVATIONS = frozenset(
    ["relu", "relu6", "silu", "sigmoid", "hard_sigmoid", "hard_silu", "gelu", "softmax"]
)

MAKERS: dict[str, Callable[[Any], Any]] = {
    "batch_norm": lambda layers: layers.BatchNormalization(),
    "layer_norm": lambda layers: layers.LayerNormalization(epsilon=1e-6),
    "global_average_pool": lambda layers: layers.GlobalAveragePooling2D(),
    "add": lambda layers: layers.Add(),
    "multiply": lambda layers: layers.Multiply(),
    "concatenate": lambda layers: layers.Concatenate(),
    "rescale": lambda layers: layers.Rescaling(1 / 127.5, offset=-1),
}

BUILDS = frozenset(
    {"conv", "grouped_conv", "depthwise_conv", "transposed_conv", "dense", "max_pool",
     "average_pool", "reshape", "flatten"}
) | ACTIVATIONS | frozenset(MAKERS)  # fmt: skip

"""Keras networks exported to ONNX by PyTorch, Keras' other backend: the same counts, steps and memory.

In a process of its own, as a process has one backend: `python -m tests.readers.test_keras_exports`. Two
functions of that backend are those of PyTorch instead: batch normalization, which it takes apart, and the
padding of "same" with a stride, which it writes as an operation of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.modes import AMP, Mode
from lolat.graph.work import ATTENTION, BATCHED, CLASSES, PRODUCTS, work_of
from lolat.readers.keras import read_model
from tests.readers.test_one_network import facts

APPLICATIONS = ["ResNet50", "ResNet50V2", "VGG16", "InceptionV3", "MobileNet", "MobileNetV2",
                "MobileNetV3Small", "EfficientNetB0", "EfficientNetV2B0"]  # fmt: skip
TAKEN_APART = ["words", "masked", "MobileNetV3Small", "EfficientNetB0"]
"""Networks of which the exporter writes attention, a hard sigmoid or a rescaling as other operations."""


def own(layers: Any, ops: Any) -> dict[str, tuple[Callable[[Any], Any], tuple[int, ...], str]]:
    """Name -> (what is computed of the input, its shape, its data type)."""

    def images(x: Any) -> Any:
        x = layers.ReLU()(layers.BatchNormalization(axis=1)(layers.Conv2D(8, 3, 2, "same")(x)))
        x = layers.LeakyReLU()(layers.Conv2D(8, 3, strides=2)(layers.ZeroPadding2D(1)(x)))
        x = layers.Add()([x, layers.DepthwiseConv2D(3, padding="same")(x)])
        x = layers.Conv2D(16, 1, groups=2, activation="gelu")(layers.MaxPooling2D(2)(x))
        x = layers.Conv2DTranspose(4, 2, strides=2)(layers.AveragePooling2D(2)(x))
        x = layers.Concatenate(axis=1)([x, x])
        x = layers.Multiply()([x, layers.GlobalAveragePooling2D(keepdims=True)(x)])
        pooled = ops.mean(x, axis=(2, 3)) + layers.GlobalMaxPooling2D()(x)
        x = layers.SeparableConv2D(4, 3, padding="same")(layers.Dropout(0.5)(x))
        return layers.Dense(5, activation="softmax")(layers.Flatten()(x)), pooled

    def signals(x: Any) -> Any:
        x = layers.Conv1D(8, 3, padding="causal", dilation_rate=2)(layers.LayerNormalization()(x))
        x = layers.ELU()(layers.MaxPooling1D(2)(layers.Conv1D(8, 3, padding="same")(x)))
        x = layers.Permute((2, 1))(x)
        return layers.Maximum()(
            [layers.Dense(7, activation="gelu")(x), ops.cumsum(x, axis=1)[..., :7]]
        )

    def words(x: Any, **options: Any) -> Any:
        x = layers.Embedding(50, 16)(x)
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x, **options))
        x = x + layers.Dense(16)(layers.Dense(32, activation="gelu")(x))
        return layers.Dense(3)(layers.GlobalAveragePooling1D()(x))

    def products(x: Any) -> Any:
        a, b = ops.split(x, 2, axis=-1)
        return layers.Softmax()(ops.einsum("abc,abd->acd", a, b) * 2.0 + 1.0)

    return {
        "images": (images, (4, 32, 32), "float32"), "signals": (signals, (5, 16), "float32"),
        "words": (words, (9,), "int32"),
        "masked": (lambda x: words(x, use_causal_mask=True), (9,), "int32"),
        "products": (products, (5, 8), "float32"),
    }  # fmt: skip


def essentials(graph: Graph) -> list[Any]:
    """ACTS, INP, FLOPs and weights at two batch sizes, and the products but those of attention."""
    totals = [count(graph).total(n) for n in (1, 3)]
    found: list[Any] = [(c.acts, c.inp, c.flops, c.weights) for c in totals]
    for mode in (Mode(), Mode(AMP)):
        work = work_of(graph, 2, mode)
        kinds = [CLASSES.index(name) for name in PRODUCTS if name not in (ATTENTION, BATCHED)]
        rows = work.take(np.isin(work.kind, kinds))
        found.append(sorted(zip(rows.macs, rows.columns, rows.depth, rows.bytes, strict=True)))
    return found


def as_in_pytorch(torch: Any) -> None:
    """Replace the two functions."""
    from keras.src import backend
    from keras.src.backend.torch import nn

    def normalized(x: Any, mean: Any, variance: Any, axis: int, offset: Any = None,
                   scale: Any = None, epsilon: float = 1e-3) -> Any:  # fmt: skip
        assert axis == 1
        scale = torch.ones(len(mean)) if scale is None else scale
        vectors = map(nn.convert_to_tensor, (mean, variance, scale, offset))
        return torch.nn.functional.batch_norm(x, *vectors, eps=epsilon)

    def padded(x: Any, kernel: Any, strides: Any, data_format: Any, *rest: Any) -> Any:
        return x, tuple((n - 1) // 2 for n in kernel)

    backend.nn.batch_normalization = normalized
    nn._apply_same_padding = padded


def main() -> None:
    """Compare all networks; AssertionError where one differs."""
    from lolat.readers.torch.named import load_torchvision

    load_torchvision()
    import keras
    import torch

    as_in_pytorch(torch)
    keras.config.set_image_data_format("channels_first")
    networks: dict[str, Any] = {}
    for name, (call, shape, dtype) in own(keras.layers, keras.ops).items():
        given = keras.Input(shape, dtype=dtype)
        networks[name] = keras.Model(given, call(given))
    for name in APPLICATIONS:
        size = 96 if name == "InceptionV3" else 64
        options: dict[str, Any] = {"include_preprocessing": False} if "V2B" in name else {}
        make = getattr(keras.applications, name)
        networks[name] = make(weights=None, input_shape=(3, size, size), **options)
    for name, model in networks.items():
        ours, (given,) = read_model(model, name), model.inputs
        example = torch.ones((1, *given.shape[1:]), dtype=getattr(torch, given.dtype))
        options = {"dynamo": True, "optimize": False, "external_data": False}
        if name not in ("words", "masked"):
            preserve = torch.onnx.TrainingMode.PRESERVE
            options = {"dynamo": False, "training": preserve, "do_constant_folding": False}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            path = str(Path(folder) / "network.onnx")
            torch.onnx.export(model.eval(), (example,), path, **options)
            theirs = lolat.read(path)
        print(name, flush=True)
        assert count(theirs).warnings == count(ours).warnings == ()
        assert essentials(theirs) == essentials(ours)
        if name not in TAKEN_APART:
            assert facts(theirs, joins=False) == facts(ours, joins=False)


@pytest.mark.slow
def test_keras_networks_count_as_their_onnx_files() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", __name__], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        env={**os.environ, "KERAS_BACKEND": "torch", "LOLAT_CACHE": "off"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.split()) == len(APPLICATIONS) + 5


if __name__ == "__main__":
    main()

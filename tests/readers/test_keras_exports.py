"""Keras networks exported to ONNX by PyTorch, Keras' other backend: the same counts, products and bytes.

In a process of its own, as a process has one backend: `python -m tests.readers.test_keras_exports`.
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
from lolat.graph import Graph, Operation
from lolat.graph.analysis import channels, weights_bytes
from lolat.graph.counts import count
from lolat.graph.modes import AMP, Mode
from lolat.graph.work import CLASSES, PRODUCTS, work_of
from lolat.readers.keras import read_model

APPLICATIONS = ["ResNet50", "ResNet50V2", "VGG16", "InceptionV3", "MobileNet", "MobileNetV2",
                "MobileNetV3Small", "EfficientNetB0", "EfficientNetV2B0"]  # fmt: skip

AS_WRITTEN = [
    "images",
    "products",
    "ResNet50",
    "ResNet50V2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
]
"""Networks of which nothing but batch norms is taken apart."""


def own(layers: Any, ops: Any) -> dict[str, tuple[Callable[[Any], Any], tuple[int, ...], str]]:
    """Name -> (what is computed of the input, its shape, its data type)."""

    def images(x: Any) -> Any:
        x = layers.ReLU()(layers.BatchNormalization(axis=1)(layers.Conv2D(8, 3, 2, "same")(x)))
        x = layers.LeakyReLU()(layers.Conv2D(8, 3, strides=2)(layers.ZeroPadding2D(1)(x)))
        x = layers.Add()([x, layers.DepthwiseConv2D(3, padding="same")(x)])
        x = layers.Conv2D(16, 1, groups=2, activation="gelu")(layers.MaxPooling2D(2)(x))
        x = layers.Conv2DTranspose(4, 2, strides=2)(layers.AveragePooling2D(2)(x))
        x = layers.GlobalAveragePooling2D()(layers.Concatenate(axis=1)([x, x]))
        return layers.Dense(5, activation="softmax")(x)

    def words(x: Any, **options: Any) -> Any:
        x = layers.Embedding(50, 16)(x)
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x, **options))
        x = x + layers.Dense(16)(layers.Dense(32, activation="gelu")(x))
        return layers.Dense(3)(layers.GlobalAveragePooling1D()(x))

    def products(x: Any) -> Any:
        a, b = ops.split(x, 2, axis=-1)
        return layers.Softmax()(ops.einsum("abc,abd->acd", a, b) * 2.0 + 1.0)

    return {
        "images": (images, (4, 32, 32), "float32"), "words": (words, (9,), "int32"),
        "masked": (lambda x: words(x, use_causal_mask=True), (9,), "int32"),
        "products": (products, (5, 8), "float32"),
    }  # fmt: skip


def same(graph: Graph) -> tuple[Any, ...]:
    """Counts, bytes of weights, and products with their bytes: what no way to write batch norms changes."""
    counts, made = count(graph), []
    assert counts.warnings == ()
    for mode in (Mode(), Mode(AMP)):
        work = work_of(graph, 2, mode)
        rows = work.take(np.isin(work.kind, [CLASSES.index(name) for name in PRODUCTS]))
        made.append(sorted(zip(rows.macs, rows.columns, rows.depth, rows.bytes, strict=True)))
    totals = [counts.total(n) for n in (1, 3)]
    fused = any(o.kind == "attention" for o in graph.operations)
    vectors = sum(4 * 4 * channels(graph, o) for o in norms(graph))
    return (
        [(c.acts, c.inp, c.flops, c.weights) for c in totals], weights_bytes(graph) - vectors,
        [] if fused else made,
    )  # fmt: skip


def norms(graph: Graph) -> list[Operation]:
    return [o for o in graph.operations if o.kind == "batch_norm"]


def apart(graph: Graph, operation: Operation) -> int:
    """Elements that a batch norm moves more as a subtraction, a product and an addition of vectors."""
    return 4 * graph.tensors[operation.outputs[0]].elements() + 3 * channels(graph, operation)


def main() -> None:
    """Compare all networks; AssertionError where one differs."""
    from lolat.readers.torch.named import load_torchvision

    load_torchvision()
    import keras
    import torch

    keras.config.set_image_data_format("channels_first")
    networks: dict[str, Any] = {}
    for name, (call, shape, dtype) in own(keras.layers, keras.ops).items():
        given = keras.Input(shape, dtype=dtype)
        networks[name] = keras.Model(given, call(given))
    for name in APPLICATIONS:
        size = 96 if name == "InceptionV3" else 64
        networks[name] = getattr(keras.applications, name)(
            weights=None, input_shape=(3, size, size)
        )
    for name, model in networks.items():
        ours, (given,) = read_model(model, name), model.inputs
        example = torch.ones((1, *given.shape[1:]), dtype=getattr(torch, given.dtype))
        options: dict[str, Any] = {"dynamo": True, "optimize": False, "external_data": False}
        if name not in ("words", "masked"):
            preserve = torch.onnx.TrainingMode.PRESERVE
            options = {"dynamo": False, "training": preserve, "do_constant_folding": False}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            path = str(Path(folder) / "network.onnx")
            torch.onnx.export(model.eval(), (example,), path, **options)
            theirs = lolat.read(path)
        print(name, flush=True)
        found, expected = same(theirs), same(ours)
        assert found[:2] == expected[:2]
        assert expected[2] in ([], found[2])
        if name in AS_WRITTEN:
            more = sum(apart(ours, o) for o in norms(ours))
            assert count(theirs).total().traffic == count(ours).total().traffic + more


@pytest.mark.slow
def test_keras_networks_count_as_their_onnx_files() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", __name__], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        env={**os.environ, "KERAS_BACKEND": "torch", "LOLAT_CACHE": "off"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.split()) == len(APPLICATIONS) + 4


if __name__ == "__main__":
    main()

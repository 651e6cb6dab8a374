"""Train a small Keras network on made-up images; with --lolat-model, predict its latency first.

    python examples/train_keras.py --lolat-model epyc-2t

Copy the callback `Forecast` into a script of your own: `model.fit(..., callbacks=[Forecast(MODEL, 32)])`.
"""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np
from keras import layers

SIZE = (32, 32, 3)


def network() -> Any:
    """Three stages of convolutions and a classifier of ten classes."""
    x = inputs = keras.Input(SIZE)
    for width in (32, 64, 128):
        for stride in (1, 2):
            x = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)), name="small")


class Forecast(keras.callbacks.Callback):
    """Says before training how long a forward pass takes on the device of a LoLat model.

    `model_file`: a LoLat model, by file or name; `batch_size`: what `fit` is called with. Nothing is run,
    and the network stays as it is.
    """

    def __init__(self, model_file: str, batch_size: int) -> None:
        super().__init__()
        self.model_file, self.batch_size = model_file, batch_size

    def on_train_begin(self, logs: Any = None) -> None:
        """Print the time, and the three blocks that take most of it."""
        import lolat

        found = lolat.load(self.model_file).predict(lolat.read(self.model), self.batch_size)
        sure = "" if found.interval_ms is None else " ({:.3g} .. {:.3g})".format(*found.interval_ms)
        took = f"{found.latency_ms:.3g} ms{sure}"
        print(f"LoLat: a forward pass of {self.batch_size} takes {took}, most of it")
        for block in sorted(found.blocks, key=lambda b: b.latency_ms, reverse=True)[:3]:
            print(f"  {100 * block.share:3.0f} %  {block.name}: {block.latency_ms:.3g} ms")
        for warning in found.warnings:
            print(f"  note: {warning}")


def main() -> None:
    """Read the command line, train; LoLat is asked when training begins."""
    parser = argparse.ArgumentParser(description="Train a small network on made-up images.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lolat-model", metavar="MODEL", help="ask LoLat first: a file or a name")
    asked = parser.parse_args()

    keras.utils.set_random_seed(0)
    net = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss=loss)
    random = np.random.default_rng(0)
    images = random.standard_normal((asked.samples, *SIZE), dtype=np.float32)
    labels = random.integers(10, size=asked.samples)
    callbacks = [Forecast(asked.lolat_model, asked.batch_size)] if asked.lolat_model else []
    net.fit(images, labels, asked.batch_size, asked.epochs, verbose=2, callbacks=callbacks)


if __name__ == "__main__":
    main()

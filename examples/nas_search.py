"""Search a small space within a latency, train its candidates, and measure the front on this machine.

    python examples/nas_search.py [--model MODEL] [--candidates N] [--accuracy FILE]

Networks of three stages, each with a width, a depth and a kind of block of its own (1,728 in all), learn
to tell sixteen gratings apart. LoLat predicts the latency of each on the device of MODEL. The search trains
ten of those within the time and keeps the Pareto front. Then the front is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import lolat  # noqa: E402
from lolat.nas import Space, search  # noqa: E402

CLASSES, SIZE, TRAIN, TEST, EPOCHS = 16, 96, 500, 500, 4
STAGE = {"width": (4, 8, 16), "depth": (1, 2), "kind": ("plain", "inverted")}
CHOICES = {f"{what}{stage}": values for stage in (1, 2, 3) for what, values in STAGE.items()}
MAX_MS = 3.0


def network(**chosen: Any) -> Any:
    """The Keras network of these choices."""
    import keras
    from keras import layers

    def norm_act(x: Any) -> Any:
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))

    def block(x: Any, width: int, stride: int, kind: str) -> Any:
        if kind == "plain":
            y = norm_act(layers.Conv2D(width, 3, stride, "same", use_bias=False)(x))
            y = layers.Conv2D(width, 3, padding="same", use_bias=False)(y)
        else:
            y = norm_act(layers.Conv2D(4 * x.shape[-1], 1, use_bias=False)(x))
            y = norm_act(layers.DepthwiseConv2D(3, stride, "same", use_bias=False)(y))
            y = layers.Conv2D(width, 1, use_bias=False)(y)
        y = layers.BatchNormalization(momentum=0.9)(y)
        return layers.Add()([x, y]) if stride == 1 and x.shape[-1] == width else y

    inputs = keras.Input((SIZE, SIZE, 3))
    x = norm_act(layers.Conv2D(8, 3, 2, "same", use_bias=False)(inputs))
    for stage in (1, 2, 3):
        width = chosen[f"width{stage}"] * 2 ** (stage - 1)
        for index in range(chosen[f"depth{stage}"]):
            x = block(x, width, 2 if index == 0 and stage > 1 else 1, chosen[f"kind{stage}"])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gratings of eight directions and two distances between lines, with noise: (images, classes)."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, CLASSES, count)
    angle = np.pi * (classes % 8) / 8 + random.normal(0, 0.06, count)
    lines = np.where(classes < 8, 8.0, 12.0) * np.exp(random.normal(0, 0.06, count))
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    phase = random.uniform(0, 2 * np.pi, (count, 1, 1))
    wave = np.sin(2 * np.pi * lines[:, None, None] * along + phase)
    tint = random.uniform(0.2, 1.0, (count, 1, 1, 3))
    noise = random.normal(0, 3.0, (count, SIZE, SIZE, 3))
    return (wave[..., None] * tint + noise).astype(np.float32), classes


def accuracy(choices: dict[str, Any]) -> float:
    """The score: how many of new images a network tells right after a few epochs."""
    import keras

    keras.utils.set_random_seed(0)
    model = network(**choices)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    model.fit(*images(TRAIN, 1), batch_size=20, epochs=EPOCHS, verbose=0)
    return float(model.evaluate(*images(TEST, 2), batch_size=200, verbose=0)[1])


def measured(model: str, networks: list[Path]) -> list[dict[str, Any]]:
    """What `lolat evaluate` measures: a row per network."""
    command = [sys.executable, "-m", "lolat.cli.main", "evaluate", model, *map(str, networks)]
    done = subprocess.run(
        [*command, "--batch-size", "1", "--json"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)["networks"]
    return rows


def main() -> None:
    """Search, measure, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--model", default="epyc-2t", help="of this machine: a file, local or a name"
    )
    parser.add_argument("--candidates", type=int, default=10, help="networks that are trained")
    parser.add_argument("--accuracy", help="a file of scores, which is read when run again")
    options = parser.parse_args()
    model = lolat.load(options.model)
    start = time.perf_counter()
    space = Space.from_factory(network, CHOICES)
    print(f"{space.size:,} networks. {space.decomposition} ({time.perf_counter() - start:.0f} s)\n")
    start = time.perf_counter()
    result = search(
        space,
        model,
        accuracy,
        max_ms=MAX_MS,
        candidates=options.candidates,
        accuracy=options.accuracy,
    )
    print(f"{result.words()} ({time.perf_counter() - start:.0f} s)\n")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for candidate in result.front:
            paths.append(Path(folder) / f"{candidate.arch}.keras")
            network(**space.values(candidate.candidate)).save(paths[-1])
        times = {
            Path(row["network"]).stem: row["measured_ms"] for row in measured(options.model, paths)
        }
    print("| network | accuracy | predicted, ms | measured, ms | off by |")
    print("| --- | --: | --: | --: | --: |")
    for candidate in result.front:
        took = times[candidate.arch]
        print(
            f"| {candidate.arch} | {100 * candidate.score:.1f} % | {candidate.latency_ms:.2f} | "
            f"{took:.2f} | {100 * (candidate.latency_ms / took - 1):+.1f} % |"
        )


if __name__ == "__main__":
    main()

"""What a user times: networks of keras.applications by a plain script, with no code of LoLat's timing.

    python benchmarks/plain.py OUT.json [NAME:PIXELS:BATCH ...] [--threads N]
    python -m benchmarks run plain model=local times=OUT.json

The first command imports nothing of LoLat: each network is compiled once, then called in a loop of its own;
kept is the median of the calls in three shuffled rounds. The second compares them with a model.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

USUAL = (
    "ResNet50:224:1", "ResNet101:160:2", "ResNet50V2:192:4", "MobileNet:224:1", "MobileNet:128:16",
    "MobileNetV2:224:2", "MobileNetV2:160:8", "MobileNetV3Small:224:8", "EfficientNetB1:192:1",
    "EfficientNetV2B1:192:2", "DenseNet121:192:1", "DenseNet201:128:1", "InceptionV3:192:1", "VGG16:160:1",
    "Xception:192:1", "NASNetMobile:192:1",
)  # fmt: skip
"""Sixteen networks."""
ROUNDS, CALLS, WARM = 3, 12, 3


def timed(names: list[str], threads: int) -> dict[str, float]:
    """Median ms of each network; 0 threads: as many as TensorFlow takes."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    calls: dict[str, Any] = {}
    for name in names:
        network, pixels, batch = name.split(":")
        side = int(pixels)
        model = getattr(keras.applications, network)(weights=None, input_shape=(side, side, 3))
        function = tf.function(lambda x, model=model: model(x, training=False))
        x = tf.random.normal((int(batch), side, side, 3))
        calls[name] = (function, x)
        function(x)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in random.sample(names, len(names)):
            function, x = calls[name]
            for turn in range(WARM + CALLS):
                start = time.perf_counter()
                np.asarray(function(x))
                if turn >= WARM:
                    times[name].append((time.perf_counter() - start) * 1e3)
    return {name: float(np.median(values)) for name, values in times.items()}


def compared(model: str, times: str) -> tuple[list[str], list[list[str]]]:
    """A row of the errors and intervals of a model's predictions, and one of each network."""
    import lolat
    from benchmarks.runner import Errors

    known = lolat.load(model)
    off, inside, widths, rows = [], [], [], []
    for name, ms in json.loads(Path(times).read_text())["median_ms"].items():
        network, pixels, batch = name.split(":")
        found = known.predict(f"keras:{network}", int(batch), input_size=int(pixels))
        low, high = found.interval_ms or (0.0, np.inf)
        off.append(found.latency_ms / ms - 1)
        inside.append(bool(low <= ms <= high))
        widths.append((high - low) / found.latency_ms)
        rows.append([name, f"{ms:.1f} ms", f"{100 * off[-1]:+.1f} %", "", "", ""])
    errors = Errors(np.array(off), inside, widths)
    whole = ["all", "", errors.median, errors.bias, errors.within, errors.held]
    return ["network", "measured", "error", "bias", "within 10 %", "inside"], [whole, *rows]


def main(given: list[str]) -> None:
    """Time networks; see the module."""
    threads = 0
    if "--threads" in given:
        at = given.index("--threads")
        threads = int(given[at + 1])
        del given[at : at + 2]
    out, names = Path(given[0]), given[1:] or list(USUAL)
    document = {"at": time.time(), "median_ms": timed(names, threads)}
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])
else:
    from benchmarks.runner import Tables, benchmark

    @benchmark("plain", "accuracy", "extended")
    def plain(model: str, times: str) -> Tables:
        """Times of a plain script against a model's predictions (model=local times=OUT.json)."""
        return {"plain": compared(model, times)}

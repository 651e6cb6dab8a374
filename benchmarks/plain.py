"""Times networks of keras.applications by a plain script, as a user would, without LoLat's timing.

    python benchmarks/plain.py OUT.json [NAME:PIXELS:BATCH ...] [--threads N]
    python -m benchmarks run plain model=local times=OUT.json
    python -m benchmarks run asked

The first command imports nothing of LoLat: each network is compiled once, then called in a loop of its
own, in three shuffled rounds; every time is kept, and the median compared. The second compares them
with a model. The third does so for the learnings in benchmarks/asked: a folder each, with
`model.json.xz` as `lolat learn` wrote it and `script-N.json` of scripts that ran N minutes later; each
model is fitted again with today's formula.
"""

from __future__ import annotations

import json
import lzma
import random
import sys
import tempfile
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
ASKED = Path(__file__).resolve().parent / "asked"
ROUNDS, CALLS, WARM = 3, 12, 3


def timed(names: list[str], threads: int) -> dict[str, list[float]]:
    """Each call's ms of each network; 0 threads: as many as TensorFlow takes."""
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
    return times


def errors(known: Any, times: Path) -> tuple[Any, list[list[str]]]:
    """The errors of a model's predictions for a script's times, and a row of each network."""
    from benchmarks.runner import Errors

    off, inside, widths, rows = [], [], [], []
    for name, calls_ms in json.loads(times.read_text())["times_ms"].items():
        ms = float(np.median(calls_ms))
        network, pixels, batch = name.split(":")
        found = known.predict(f"keras:{network}", int(batch), input_size=int(pixels))
        low, high = found.interval_ms or (0.0, np.inf)
        off.append(found.latency_ms / ms - 1)
        inside.append(bool(low <= ms <= high))
        widths.append((high - low) / found.latency_ms)
        rows.append([name, f"{ms:.1f} ms", f"{100 * off[-1]:+.1f} %", "", "", ""])
    return Errors(np.array(off), inside, widths), rows


def learned(path: Path) -> Any:
    """A model as `lolat learn` wrote it, packed, fitted again to its points."""
    import lolat

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.json")
        file.write_bytes(lzma.decompress(path.read_bytes()))
        return lolat.fit(file)


def main(given: list[str]) -> None:
    """Time networks; see the module."""
    threads = 0
    if "--threads" in given:
        at = given.index("--threads")
        threads = int(given[at + 1])
        del given[at : at + 2]
    out, names = Path(given[0]), given[1:] or list(USUAL)
    every = timed(names, threads)
    rounded = {name: [round(ms, 3) for ms in times] for name, times in every.items()}
    out.write_text(json.dumps({"at": time.time(), "times_ms": rounded}) + "\n")
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])
else:
    from benchmarks.runner import Tables, benchmark, percent

    @benchmark("plain", "accuracy", "extended")
    def plain(model: str, times: str) -> Tables:
        """Times of a plain script against a model's predictions (model=local times=OUT.json)."""
        import lolat

        e, rows = errors(lolat.load(model), Path(times))
        columns = ["network", "measured", "error", "bias", "within 10 %", "inside"]
        return {"plain": (columns, [["all", "", e.median, e.bias, e.within, e.held], *rows])}

    @benchmark("asked", "accuracy", "extended")
    def asked() -> Tables:
        """A plain script minutes after a machine was learned, for each learning in benchmarks/asked."""
        rows = []
        for packed in sorted(ASKED.glob("*/model.json.xz")):
            known = learned(packed)
            for times in sorted(packed.parent.glob("script-*.json")):
                e, each = errors(known, times)
                minutes = int(times.stem.partition("-")[2])
                name = f"{packed.parent.name}, {minutes} min later"
                held = percent(float(np.mean(e.inside)), 0)
                rows.append([name, str(len(each)), e.median, e.bias, e.within, held, e.width])
        columns = ["learned, asked", "networks", "median error", "bias", "within 10 %"]
        return {"asked": ([*columns, "inside the 90 % interval", "its width"], rows)}

"""What a user times: networks of keras.applications by a plain script, with no code of LoLat's timing.

    python benchmarks/plain.py OUT.json [NAME:PIXELS:BATCH ...] [--threads N]

Each network is compiled once, then called in a loop of its own; kept is the median of the calls in three
shuffled rounds. `lolat` is not imported; `benchmarks/judge_plain.py OUT.json MODEL` compares.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

USUAL = (
    "ResNet50:224:1", "ResNet101:160:2", "ResNet50V2:192:4", "MobileNet:224:1", "MobileNet:128:16",
    "MobileNetV2:224:2", "MobileNetV2:160:8", "MobileNetV3Small:224:8", "EfficientNetB1:192:1",
    "EfficientNetV2B1:192:2", "DenseNet121:192:1", "DenseNet201:128:1", "InceptionV3:192:1", "VGG16:160:1",
    "Xception:192:1", "NASNetMobile:192:1",
)  # fmt: skip
"""Sixteen networks."""
ROUNDS, CALLS, WARM = 3, 12, 3


def main() -> None:
    """See the module."""
    given = sys.argv[1:]
    import keras
    import numpy as np
    import tensorflow as tf

    if "--threads" in given:
        at = given.index("--threads")
        threads = int(given[at + 1])
        del given[at : at + 2]
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    out, names = Path(given[0]), given[1:] or list(USUAL)
    calls: dict[str, Any] = {}
    for name in names:
        network, pixels, batch = name.split(":")
        model = getattr(keras.applications, network)(
            weights=None, input_shape=(int(pixels), int(pixels), 3)
        )
        function = tf.function(lambda x, model=model: model(x, training=False))
        x = tf.random.normal((int(batch), int(pixels), int(pixels), 3))
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
    rows = {name: float(np.median(values)) for name, values in times.items()}
    out.write_text(json.dumps({"at": time.time(), "median_ms": rows}, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    main()

"""Pairs of the probe of NumPy's kernels and of networks' times, while a machine changes.

    python -m benchmarks.probe OUT.jsonl [SECONDS]
    python -m benchmarks run probe trial=OUT.jsonl

The first command probes every twenty seconds in a new process, as `predict` does, then times four networks
in loops of their own, alone or beside neighbors, and appends a line. The second compares the lines: some
stand for a learning, each other one for a moment at which somebody asks.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

EVERY_S, CALLS, MOST_S, THREADS = 20.0, 11, 1.0, 2
LEARNING = 3
"""Lines, a minute, whose median stands for a learning."""
TRIAL = Path(__file__).resolve().parent / "asked" / "probe.jsonl.xz"
NEIGHBORS = {
    "computing": "a = np.ones((64, 64), np.float32)\nwhile True: a @ a",
    "copying": "a, b = np.ones(2**24), np.ones(2**24)\nwhile True: np.copyto(a, b)",
}
"""Programs that run beside the probe and the networks: each takes a processor."""
STATES = ((),) * 4 + (("computing",), ("computing",) * 2, ("copying",), ("copying",) * 2)
OPERATIONS = {
    "keras MobileNetV2": 152,
    "keras ResNet50": 176,
    "timm resnet18": 68,
    "timm vit_tiny": 223,
}
"""Networks and their operations (`lolat read`)."""
PROBE = "import json; from lolat.microbench import probe; print(json.dumps(probe.probe({})))"


def networks(threads: int) -> dict[str, Callable[[], object]]:
    """Four networks of two frameworks: what runs each once."""
    import keras
    import tensorflow as tf
    import torch

    from lolat.readers.torch.named import load_torchvision

    load_torchvision()
    import timm

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    torch.set_num_threads(threads)

    def of_keras(name: str, side: int) -> Callable[[], object]:
        model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3))
        x = tf.random.normal((1, side, side, 3))
        run = tf.function(lambda x: model(x, training=False)).get_concrete_function(x)
        return lambda: np.asarray(run(x))

    def of_timm(name: str, side: int) -> Callable[[], object]:
        model, x = timm.create_model(name, pretrained=False).eval(), torch.rand(1, 3, side, side)

        def run() -> object:
            with torch.inference_mode():
                return model(x)

        return run

    made = (
        of_keras("MobileNetV2", 192),
        of_keras("ResNet50", 128),
        of_timm("resnet18", 160),
        of_timm("vit_tiny_patch16_224", 224),
    )
    return dict(zip(OPERATIONS, made, strict=True))


def timed(run: Callable[[], object]) -> list[float]:
    """Each call's ms, without the first: CALLS, or fewer that take MOST_S."""
    times: list[float] = []
    while len(times) < CALLS and sum(times) < MOST_S * 1e3:
        start = time.perf_counter()
        run()
        times.append(round((time.perf_counter() - start) * 1e3, 3))
    return times[1:] or times


def probed(threads: int) -> dict[str, Any]:
    """The probe of a new process."""
    command = [sys.executable, "-c", PROBE.format(threads)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, check=True).stdout
    )
    return {name: [round(ms, 4) for ms in values] for name, values in found.items()}


@contextlib.contextmanager
def beside(state: Sequence[str]) -> Iterator[None]:
    """Run neighbors meanwhile."""
    started = []
    for name in state:
        words = "import numpy as np; print(flush=True)\n" + NEIGHBORS[name]
        process = subprocess.Popen(
            [sys.executable, "-c", words],
            stdout=subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        started.append(process)
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(0.5)
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def main(out: Path, seconds: float) -> None:
    """Append a line every EVERY_S."""
    from lolat.microbench import environment

    made, end = networks(THREADS), time.time() + seconds
    for run in made.values():
        timed(run)
    while (began := time.time()) < end:
        state = random.choice(STATES)
        with beside(state):
            line = {
                "at": round(began, 1),
                "state": state,
                "load": os.getloadavg()[0],
                "others": environment.others(0.2),
                "probe": probed(THREADS),
                "times_ms": {name: timed(run) for name, run in made.items()},
                "probe after": probed(THREADS),
            }
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        time.sleep(max(0.0, EVERY_S - (time.time() - began)))


def errors(
    learned: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]]
) -> dict[str, np.ndarray]:
    """Logarithms of networks' times in a line over what LEARNING others tell, by the way of telling."""
    from lolat.device.file import LIMIT
    from lolat.microbench import probe

    found: dict[str, list[np.ndarray]] = {}
    for first in range(len(learned) - LEARNING + 1):
        lines = learned[first : first + LEARNING]
        then = probe.middle([line["probe"] for line in lines])
        usual = np.median([times(line) for line in lines], axis=0)
        for line in asked:
            if line in lines:
                continue
            now, y = line["probe"], np.log(times(line) / usual)
            ratio = 1 + probe.waking_ms(then, now) * np.array([*OPERATIONS.values()]) / usual
            ratio = np.maximum(ratio, 0.5) if abs(np.median(ratio) - 1) > LIMIT else 1.0
            told = {"as learned": 0.0, "by half of a fork": np.log(ratio)}
            told["by three other networks"] = [np.median(np.delete(y, n)) for n in range(len(y))]
            for name in now:
                told[f"by the root of {name}"] = np.log(np.divide(now[name], then[name])).mean() / 2
            for way, x in told.items():
                found.setdefault(way, []).append(y - x)
    return {way: np.concatenate(e) for way, e in found.items()}


def times(line: dict[str, Any]) -> np.ndarray:
    """The median ms of each network."""
    return np.array([np.median(line["times_ms"][name]) for name in OPERATIONS])


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3600.0)
else:
    from benchmarks.runner import Tables, benchmark, percent

    @benchmark("probe", "probe", "extended")
    def judged(trial: str = str(TRIAL)) -> Tables:
        """Times of networks against when they were learned, and against what a probe tells."""
        opened = lzma.open if trial.endswith("xz") else open
        with opened(trial, "rt") as file:
            lines = [json.loads(line) for line in file]
        rows = []
        for half, part in (
            ("first", lines[: len(lines) // 2]),
            ("second", lines[len(lines) // 2 :]),
        ):
            alone = [line for line in part if not line["state"]]
            busy = [line for line in part if line["state"]]
            for state, asked in (("alone", alone), ("beside programs", busy)):
                for name, e in errors(alone, asked).items() if asked else ():
                    off = np.expm1(e)
                    figures = np.median(off), np.median(np.abs(off)), np.mean(np.abs(off) <= 0.1)
                    rms = f"{math.sqrt((e**2).mean()):.2f}"
                    rows.append([f"{state}, {half} half: {name}", *map(percent, figures), rms])
        columns = ["times", "bias", "median error", "within 10 %", "spread"]
        return {"quiet" if "quiet" in trial else "probe": (columns, rows)}

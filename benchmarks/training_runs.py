"""Training predicted, and trained for real: Keras' `fit` of networks that the formula was not made on.

MODEL has been learned here with `--mode training`. Each network is trained by `model.fit` on made-up data
in a process of its own: a first epoch, further ones, evaluations; half a minute each, some ten minutes in
all, on an idle machine. training-runs.json in the working directory keeps the times; a network that it
holds is not measured again. The networks were looked at once, after the terms were chosen on others.

The data come from a `tf.data.Dataset` without autotuning. With it the end of a short epoch waits for a
thread that sleeps for 10, 20, 40 ... milliseconds.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import generated
from benchmarks.runner import Errors, Table, Tables, benchmark, percent
from lolat.api.model import Model
from lolat.graph.modes import Mode
from lolat.optimizers import OPTIMIZERS
from lolat.readers import open_network, read
from lolat.training.memory import memory_at_peak
from lolat.training.plan import training_of
from lolat.training.prediction import predict
from lolat.training.predictor import TrainingPredictor
from lolat.training.recipe import recipe_for
from lolat.training.run import TrainingRun

KEPT = Path("training-runs.json")
EPOCHS = 5  # the first and four more
EVALUATIONS = 3
LEAST_STEPS = 2  # of the runs for the memory alone


@dataclass(frozen=True)
class Run:
    """A training: NETWORK, its input size, batch size, samples (the last batch is not full), optimiser."""

    network: str
    size: tuple[int, ...]
    batch_size: int
    samples: int
    optimizer: str


RUNS = (
    Run("keras:ResNet50", (128,), 16, 120, "sgd"),
    Run("keras:VGG16", (64,), 16, 120, "momentum"),
    Run("keras:MobileNetV2", (128,), 32, 240, "adam"),
    Run("keras:Xception", (128,), 8, 60, "rmsprop"),
    Run("keras:EfficientNetB0", (128,), 16, 120, "adam"),
    Run("keras:DenseNet169", (96,), 8, 60, "sgd"),
    Run("keras:MobileNetV3Small", (224,), 32, 240, "rmsprop"),
    Run("keras:ResNet101", (64,), 32, 240, "adagrad"),
    Run("keras:NASNetMobile", (96,), 16, 120, "adadelta"),
    Run("generate:inception?input=32", (), 64, 1000, "adam"),
    Run("generate:vgg?layers=1,1,2&filters=32,64,128&hidden=512&input=28,28,1", (), 128, 2000, "adam"),
    Run("generate:fc?layers=2000,500&input=3072", (), 64, 10000, "adadelta"),
)  # fmt: skip


def train(run: Run, epochs: int) -> dict[str, Any]:
    """Train in this process: seconds of each epoch and evaluation, and by how many bytes it grew."""
    from lolat.microbench.backends.tensorflow import TensorFlowBackend
    from lolat.microbench.backends.tensorflow.training import optimizer_of

    backend = TensorFlowBackend("cpu")
    tf, keras = backend.tf, backend.keras
    if run.network.startswith(generated.PREFIX):
        model = generated.build(run.network, weights=True)
    else:
        model = open_network(run.network, run.size, weights=True).model
    generator = np.random.default_rng(0)
    x = generator.standard_normal((run.samples, *model.input_shape[1:]), dtype=np.float32)
    y = generator.integers(0, model.output_shape[-1], run.samples)
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensor_slices((x, y))
    shuffled = data.shuffle(run.samples).batch(run.batch_size).prefetch(2).with_options(options)
    in_order = data.batch(run.batch_size).prefetch(2).with_options(options)
    model.compile(optimizer_of(keras, run.optimizer), "sparse_categorical_crossentropy")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    times = [_seconds(lambda: model.fit(shuffled, epochs=1, verbose=0)) for _ in range(epochs)]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    number = EVALUATIONS if epochs > 1 else 0
    evaluations = [_seconds(lambda: model.evaluate(in_order, verbose=0)) for _ in range(number)]
    grown = most - pages * os.sysconf("SC_PAGE_SIZE")
    return {"epochs_s": times, "evaluations_s": evaluations, "grown_bytes": grown}


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def in_own_process(run: Run, epochs: int) -> dict[str, Any]:
    """`train` in a new process."""
    command = [sys.executable, "-m", "benchmarks.training_runs", json.dumps([asdict(run), epochs])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(runs: Sequence[Run]) -> dict[str, Any]:
    """The times of each run, by its text; those of KEPT are not measured again.

    Two short runs, with the whole batch and with a quarter of it, tell how much memory grows with it.
    """
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for run in runs:
        key = json.dumps(asdict(run))
        if key not in known:
            found = in_own_process(run, EPOCHS)
            for name, batch_size in (("whole", run.batch_size), ("quarter", run.batch_size // 4)):
                short = replace(run, batch_size=batch_size, samples=LEAST_STEPS * batch_size)
                found[name] = in_own_process(short, 1)
            known[key] = found
            KEPT.write_text(json.dumps(known, indent=1))
    return known


TIMES = ("epoch", "start", "evaluation")


@dataclass(frozen=True)
class Row:
    """A run beside its prediction.

    `pairs`: TIMES, s, and "memory", MiB of three quarters of a batch -> measured and predicted. `inside`:
    True if the measured epoch lies in the interval.
    """

    run: Run
    pairs: dict[str, tuple[float, float]]
    inside: bool

    def off(self, name: str) -> float:
        """The relative error of a prediction."""
        measured, predicted = self.pairs[name]
        return predicted / measured - 1.0


def judge(model: TrainingPredictor, run: Run, found: dict[str, Any]) -> Row:
    """The prediction beside what was measured."""
    is_generated = run.network.startswith(generated.PREFIX)
    graph = read(generated.build(run.network) if is_generated else run.network, run.size)
    asked = TrainingRun(run.batch_size, run.samples, 1, run.optimizer, validation=run.samples)
    told: Any = predict(model, graph, asked)
    recipe = recipe_for(graph, OPTIMIZERS[run.optimizer], Mode())
    whole, quarter = (
        sum(memory_at_peak(graph, n, recipe)[1].values())
        for n in (run.batch_size, run.batch_size // 4)
    )
    epoch_s, predicted_s = (
        statistics.median(found["epochs_s"][1:]),
        told.epoch_s - told.evaluation_s,
    )
    grown = found["whole"]["grown_bytes"] - found["quarter"]["grown_bytes"]
    pairs = {
        "epoch": (epoch_s, predicted_s), "start": (found["epochs_s"][0] - epoch_s, told.startup_s),
        "evaluation": (min(found["evaluations_s"]), told.evaluation_s),
        "memory": (grown / 2**20, (whole - quarter) / 2**20),
    }  # fmt: skip
    half = math.log(told.interval_s[1] / told.total_s)
    return Row(run, pairs, abs(math.log(predicted_s / epoch_s)) <= half)


def tables(rows: Sequence[Row]) -> dict[str, Table]:
    """Epochs, starts and evaluations; their medians; and the memory of three quarters of a batch."""
    runs, memory = [], []
    for r in rows:
        name = " ".join([r.run.network, *map(str, r.run.size[:1])])
        epoch, start, evaluation = (
            [f"{s:.{2 - (t == 'start')}f} s" for s in r.pairs[t]] for t in TIMES
        )
        size = f"{r.run.batch_size}, {r.run.optimizer}"
        runs.append([name, size, *epoch, f"{100 * r.off('epoch'):+.0f} %", *start, *evaluation])
        grown = [f"{mib:.0f} MiB" for mib in r.pairs["memory"]]
        batches = f"{r.run.batch_size // 4} to {r.run.batch_size}"
        memory.append([name, batches, *grown, f"{100 * r.off('memory'):+.0f} %"])
    inside = [r.inside for r in rows]
    judged = {
        t: Errors(np.array([r.off(t) for r in rows]), *([inside] if t == "epoch" else []))
        for t in TIMES
    }
    summary = []
    for name, e in judged.items():
        within = f"{sum(np.abs(e.off) <= 0.1)} of {len(rows)}"
        most = percent(float(np.max(np.abs(e.off))), 0)
        summary.append([name, e.median, most, within, e.held if e.inside else ""])
    return {
        "summary": (
            ["what", "median error", "largest", "within 10 %", "inside the 90 % interval"], summary,
        ),
        "runs": (
            ["network", "batch, optimizer", "epoch", "predicted", "off by", "start", "predicted start",
             "evaluation", "predicted evaluation"], runs,
        ),
        "memory": (["network", "batch", "the process grew by", "predicted", "off by"], memory),
    }  # fmt: skip


@benchmark("training-runs", "training", "training")
def training_runs(model: str = "epyc-2t") -> Tables:
    """Epochs, starts and memory of networks that are trained here."""
    device = Model.load(model)
    training, known = training_of(device), measure(RUNS)
    return tables([judge(training, run, known[json.dumps(asdict(run))]) for run in RUNS])


if __name__ == "__main__":
    child, epochs = json.loads(sys.argv[1])
    print(json.dumps(train(Run(**{**child, "size": tuple(child["size"])}), epochs)))

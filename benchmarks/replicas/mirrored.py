"""TensorFlow's MirroredStrategy on this machine: measured, and predicted from one device and the link.

Two predictions: a replica, timed on one device with as many threads as each has, and the exchange of its
gradients over the measured link; and the study's way, layers timed alone on one device, the last one
under the strategy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.replicas import keras_networks
from benchmarks.replicas.layers import study_mirrored_ms
from lolat.training.replicas import parallel_iteration
from microbench.backends.tensorflow.training import OPTIMIZERS, Replicas, descend
from microbench.environment import cpu_count
from microbench.exchange import MeasuredLink, measure_link
from microbench.timing import Clock, timed
from microbench.worker import run_together

REPLICAS = (2, 4)
BATCH = 16
ONE_BYTES = 4
LIMIT_S = 300.0
RUN = "benchmarks.replicas.mirrored:run"


def run(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Iterations of each network, ms: {network: {what: ms}}.

    On one replica: "alone", and "layers", a list. On several: "beside" (all at once, exchanging nothing),
    "mirrored", and "last", its last layer as a network of its own, mirrored.
    """
    replicas = Replicas("cpu", request["replicas"], request["threads"])
    calls: list[Callable[[], None]] = []
    labels: list[tuple[str, str]] = []

    def step(build: Callable[[], Any], of_input: bool = False) -> Callable[[], Callable[[], Any]]:
        return training_step(replicas, build, BATCH, of_input)

    for name, build in keras_networks.NETWORKS.items():
        layers = keras_networks.layers(build)
        if replicas.strategy is None:
            made = {"alone": replicas.beside(step(build))}
            for number, layer in enumerate(layers):
                made[f"layer {number}"] = replicas.beside(step(layer, of_input=True))
        else:
            made = {"mirrored": replicas.mirrored(step(build))}
            if request["threads"]:
                made["beside"] = replicas.beside(step(build))
                made["last"] = replicas.mirrored(step(layers[-1], of_input=True))
        labels += [(name, what) for what in made]
        calls += made.values()
    found: dict[str, Any] = {name: {} for name in keras_networks.NETWORKS}
    for (name, what), times in zip(labels, timed(calls, clock), strict=True):
        found[name][what] = statistics.median(times)
    for name, build in keras_networks.NETWORKS.items():
        found[name]["bytes"] = [
            ONE_BYTES * int(v.shape.num_elements()) for v in build().trainable_weights
        ]
    return found


def training_step(
    replicas: Replicas, network: Callable[[], Any], batch_size: int, of_input: bool = False
) -> Callable[[], Callable[[], Any]]:
    """Makes a training step (forward, backward, SGD) of the Keras network that `network` builds.

    On a batch of `batch_size` that lies on the device. The loss is the mean squared difference from ones,
    as of single layers (`training`); `of_input`: the input's gradient too, as of those.
    """
    tf, keras = replicas.tf, replicas.keras

    def make() -> Callable[[], Any]:
        model = network()
        optimizer = OPTIMIZERS["sgd"](keras)
        optimizer.build(model.trainable_variables)
        values = np.random.default_rng(0).normal(size=(batch_size, *model.input_shape[1:]))
        batch = keras.Variable(values, trainable=False, dtype="float32")

        def step() -> Any:
            x = tf.identity(batch.value)
            loss, gradient = descend(tf, model, optimizer, x, of_input=of_input)
            return (loss, gradient) if of_input else loss

        return step

    return make


def measured(replicas: int, threads: int) -> dict[str, Any]:
    """`run` in a process of its own."""
    request = {"replicas": replicas, "threads": threads}
    found: dict[str, Any] = run_together(RUN, [request], LIMIT_S)[0]
    return found


def cell(predicted: float, measured_ms: float) -> str:
    """A prediction and how far it is off."""
    return f"{predicted:.1f} ms, {100 * (predicted / measured_ms - 1):+.0f} %"


def predictions(
    link: MeasuredLink, alone: Mapping[str, Any], several: Mapping[str, Any]
) -> tuple[float, float, float]:
    """(from one device, from replicas beside one another, the study's way), ms."""
    sizes = several["bytes"]
    # Replicas that have fewer processors than threads take turns.
    turns = max(1.0, link.replicas * link.threads / cpu_count())
    fixed = link.fixed_ms + link.variable_ms * len(sizes)
    whole = [
        parallel_iteration(
            replica, sizes, link.replicas, link.link, "mirrored", fixed_ms=fixed
        ).iteration_ms
        for replica in (turns * alone["alone"], several["beside"])
    ]
    layers = [turns * ms for what, ms in alone.items() if what.startswith("layer ")]
    return whole[0], whole[1], float(study_mirrored_ms(layers[:-1], [several["last"]])[0])


def tables() -> dict[str, list[str]]:
    """The tables `mirrored` and `threads`: a row for each network and number of replicas."""
    before = measured(1, threads=1)
    rows = [
        "| replicas | network | gradients | one device | beside others | measured | from one device "
        "| from beside others | the study's way |",
        "| --: | --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    threads = [
        "| replicas | network | one thread each | TensorFlow's own threads |",
        "| --: | --- | --: | --: |",
    ]
    for replicas in REPLICAS:
        link = measure_link("mirrored", replicas, threads=1)
        several, own = measured(replicas, threads=1), measured(replicas, threads=0)
        # A machine that others share is not always as fast: one device before and after several.
        after = measured(1, threads=1)
        alone = {
            name: {w: (before[name][w] + after[name][w]) / 2 for w in before[name] if w != "bytes"}
            for name in keras_networks.NETWORKS
        }
        before = after
        words = f"{replicas} (link {link.link.gbps:.1f} Gbit/s, {link.link.latency_ms:.2f} ms)"
        for name in keras_networks.NETWORKS:
            found = several[name]
            rows.append(
                f"| {words} | {name} | {sum(found['bytes']) / 1e6:.1f} MB in {len(found['bytes'])} "
                f"| {alone[name]['alone']:.1f} ms | {found['beside']:.1f} ms "
                f"| {found['mirrored']:.1f} ms | "
                + " | ".join(
                    cell(p, found["mirrored"]) for p in predictions(link, alone[name], found)
                )
                + " |"
            )
            threads.append(
                f"| {replicas} | {name} | {found['mirrored']:.1f} ms | {own[name]['mirrored']:.1f} ms |"
            )
    return {"mirrored": rows, "threads": threads}

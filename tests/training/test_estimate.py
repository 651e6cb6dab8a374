"""Training that was never measured: from a formula by operation, and from latencies of inference."""

from __future__ import annotations

import csv
import lzma
import math
import re
import statistics
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

import lolat
from lolat.api.model import Model
from lolat.device import predicting
from lolat.device.file import OF_TRAINING, DeviceFile
from lolat.device.lookup import find_model
from lolat.device.question import Question
from lolat.device.remedies import how_to_add
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.modes import dtype_named
from lolat.graph.work import CLASSES
from lolat.io.documents import read_json
from lolat.microbench.backends import check_trains
from lolat.optimizers import OPTIMIZERS
from lolat.training.estimate import RATIOS, ForwardTraining, Ratios
from lolat.training.plan import training_of
from lolat.training.prediction import TrainingPrediction, predict
from lolat.training.run import TrainingRun
from lolat.training.tuning import tuned
from tests import synthetic
from tests.training import known_device as known
from tests.training.epoch_tables import by_hand

SAID = "no training step was measured on this device: the backward pass is estimated from the forward one"
TRAINED = [0.02 * n for n in range(1, 21)]  # the 19th of 20 is what 90 % stay below
MANY = {"training_residuals": TRAINED, "training_optimizer": "none"}
MEASURED = ["dense", "elements"]


def model(classes: dict[str, Any] | None = None, **entry: Any) -> Any:
    return training_of(Model(known.document(classes, **{"measured": CLASSES, **entry}), "m.json"))


def asked(trained: Any, graph: Graph, *run: Any, **more: Any) -> TrainingPrediction:
    return predict(trained, graph, TrainingRun(*run, **more))


def ends(found: Any, half: float) -> Any:
    return pytest.approx((found.total_s * math.exp(-half), found.total_s * math.exp(half)))


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_an_iteration(optimizer: str) -> None:
    graph = known.network()
    found = asked(model(), graph, 32, optimizer=optimizer.upper())
    expected = known.by_hand(32, optimizer)
    assert found.parts_ms == pytest.approx(expected)
    assert found.iteration_ms == pytest.approx(sum(expected.values()))
    assert found.warnings == (SAID,)


def product_ms(n: int) -> float:
    return n * known.TOKENS * known.NARROW * known.WIDE / known.MACS_PER_MS


def test_a_frozen_layer_has_no_backward_pass_in_front_of_the_trained_ones() -> None:
    """Of the last layer alone: the gradient of its weights, the loss, and an update of half of them."""
    whole = known.by_hand(32)
    loss = 1.5 * 32 * known.TOKENS * known.NARROW * 2 * 4 / known.BYTES_PER_MS
    found = asked(model(), tuned(known.network(), "frozen", None), 32).parts_ms
    expected = {"backward": product_ms(32) + loss, "update": whole["update"] / 2}
    assert found == pytest.approx(whole | expected)


def moved_ms(n: int) -> float:
    """A relu and a dropout."""
    return n * known.TOKENS * known.WIDE * (2 * 4 + 4 + 4 + 1) / known.BYTES_PER_MS


def test_what_is_computed_again_takes_another_forward_pass() -> None:
    """The first layer, relu and dropout, whose mask is the last tensor that is saved."""
    graph = known.network()
    first = [o.changed(checkpoint=1) for o in graph.operations[:3]]
    again = replace(graph, operations=(*first, graph.operations[3]))
    whole = known.by_hand(32)
    found = asked(model(), again, 32).parts_ms
    more = product_ms(32) + moved_ms(32)
    assert found == pytest.approx(whole | {"backward": whole["backward"] + more})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_several_batches_have_one_update(optimizer: str) -> None:
    """Each gradient but the first is added: it is read, and the sum read and written."""
    one = known.by_hand(32, optimizer)
    found = asked(model(), known.network(), 32, 32 * 10, optimizer=optimizer, accumulate=4)
    added = 3 * 3 * 4 * known.PARAMETERS / known.BYTES_PER_MS
    update = one["update"] + added
    expected = {"forward": 4 * one["forward"], "backward": 4 * one["backward"], "update": update}
    assert found.parts_ms == pytest.approx(one | expected)
    assert found.samples_per_s == pytest.approx(1e3 * 4 * 32 / sum((one | expected).values()))
    assert found.iterations == 3
    passes = 10 * (one["forward"] + one["backward"])
    assert found.epoch_s == pytest.approx((passes + 3 * update) / 1e3)


@pytest.mark.parametrize("training", [False, True])
def test_an_evaluation_is_forward_passes_of_inference(training: bool) -> None:
    """Whatever the tables were of."""
    found = model(mode={"training": training})
    without = asked(found, known.network(), 32, samples=96, epochs=2)
    with_it = asked(found, known.network(), 32, samples=96, epochs=2, validation=70)
    steps = (32, 32, 6)
    expected = sum(map(known.inference_by_hand, steps)) / 1e3
    assert with_it.evaluation_s == pytest.approx(expected)
    assert with_it.epoch_s == pytest.approx(without.epoch_s + expected)
    assert with_it.total_s == pytest.approx(2 * with_it.epoch_s)


def test_it_trains_as_the_device_runs_networks() -> None:
    """In half precision what moves is half as much, parameters too, but for the loss, in float32."""
    modes = ({"dtype": d} for d in ("float32", "float16"))
    whole, half = (asked(model(mode=mode), known.network(), 8).parts_ms for mode in modes)
    elements = 8 * known.TOKENS * known.WIDE / known.BYTES_PER_MS
    fewer = elements * (2 * 2 + 2.25 * 2)
    assert whole["forward"] - half["forward"] == pytest.approx(fewer)
    back = known.MOVED_BACK * elements * (3 * 2 + 2.25 * 2)
    assert whole["backward"] - half["backward"] == pytest.approx(back)
    assert whole["update"] == 2 * (half["update"] or 0.0)


def test_the_interval_is_of_training_steps_left_out() -> None:
    found = asked(model(**MANY), known.network(), 8, samples=80)
    assert found.warnings == ()
    assert found.interval_s == ends(found, TRAINED[18])
    half = asked(model(**MANY), known.network(), 8, samples=80, coverage=0.5)
    assert half.interval_s == ends(half, TRAINED[10])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(("within", "said"), [
    ("momentum", "the update of momentum is part of the measured training steps"),
    ("", "the tables do not say whether their training steps contain an update; one is added"),
])  # fmt: skip
def test_an_update_that_was_timed_with_the_steps_is_not_added(
    within: str, said: str, optimizer: str
) -> None:
    """Only what an optimizer moves beyond it: with two numbers for each parameter, not one."""
    trained = model(**MANY | {"training_optimizer": within})
    found = asked(trained, known.network(), 8, optimizer=optimizer)
    updates = {name: known.by_hand(8, name)["update"] for name in (optimizer, "momentum")}
    less = updates["momentum"] if within else 0.0
    assert found.parts_ms["update"] == pytest.approx(max(updates[optimizer] - less, 0.0))
    assert found.warnings == (said,)


ONLY_19 = SAID.replace("no training step was", "only 19 training steps were") + ", at their level"


@pytest.mark.parametrize(("trained", "said"), [([], SAID), (TRAINED[:19], ONLY_19)])
def test_else_it_is_that_of_latencies(trained: list[float], said: str) -> None:
    found = asked(model(training_residuals=trained), known.network(), 8, samples=80)
    half, n = known.RESIDUALS[17], len(trained)
    if trained:  # as wide as they scatter
        half = max(half, stats.norm.ppf(0.95) * statistics.stdev(trained) * math.sqrt(1 + 1 / n))
    assert found.interval_s == ends(found, half)
    assert found.warnings == (said,)


def wider(half: float, share: float) -> float:
    """Where that share of the time may be twice as long or half, besides its own interval."""
    unlike = math.hypot(half, math.log(2))
    return math.log((1 - share) * math.exp(half) + share * math.exp(unlike))


def test_what_nothing_measured_is_like_widens_it() -> None:
    """The loss, of the class of norms, of which nothing was measured."""
    parts = known.by_hand(8)
    loss = 8 * known.TOKENS * known.NARROW * 8 * 2.5 / known.BYTES_PER_MS
    share = 100 * loss / (parts["forward"] + parts["backward"])
    assert share > 5
    found = asked(model(measured=MEASURED, **MANY), known.network(), 8, samples=80)
    assert found.warnings == (
        f"kinds of operations that were hardly timed on this device: layer norms ({share:.0f} %) of the "
        "time; they are assumed to be as on other GPUs",
    )
    assert found.interval_s == ends(found, wider(TRAINED[18], share / 100))
    every = [*MEASURED, "norm"]
    alike = asked(model(measured=every, **MANY), known.network(), 8)
    assert alike.warnings == ()


@pytest.mark.parametrize("trained", [[], TRAINED])
def test_what_is_smaller_than_the_measured_passes_widens_an_estimate(trained: list[float]) -> None:
    """Not of one whose training steps were measured: those were timed with smaller batches."""
    steps = {"training_residuals": trained, "training_optimizer": "none"}
    made = known.document(measured=[*MEASURED, "norm"], **steps)
    least_ms = (
        2.0 * known.by_hand(8)["forward"]
    )  # half of it: between inference at batch 8 and at 16
    made["domain"] = {"minimum": {"latency_ms": least_ms}}
    of_table = training_of(Model(made, "m.json"))
    small, large = (asked(of_table, known.network(), size, samples=80) for size in (8, 16))
    half = TRAINED[18] if trained else known.RESIDUALS[17]
    assert large.interval_s == ends(large, half)
    assert small.interval_s == ends(small, half if trained else wider(half, 1.0))
    inside = [of_table.batch(known.network(), n, OPTIMIZERS["sgd"]).in_domain for n in (8, 16)]
    assert inside == [bool(trained), True]
    assert any("99 in 100" in text for text in small.warnings) is not bool(trained)
    assert not any("17 or more" in text for text in large.warnings)


ROWS = Path(__file__).parents[2] / "benchmarks" / "h100" / "networks.csv"


@pytest.mark.parametrize(
    ("network", "precision", "error"),
    [
        ("efficientnet_b0", "amp", 0.15), ("regnety_016", "amp", 0.15), ("resnet50", "amp", 0.15),
        ("swin_tiny_patch4_window7_224", "amp", 0.2), ("vit_base_patch16_224", "fp32", 0.15),
        ("convnext_tiny", "fp32", 0.3),
    ],
)  # fmt: skip
def test_steps_of_an_h100_are_as_somebody_timed_them(
    network: str, precision: str, error: float
) -> None:
    """Eager steps of 64 images; the host bounds the first two. The launch overhead was chosen on others."""
    with open(ROWS, encoding="utf-8") as file:
        (row,) = (
            r for r in csv.DictReader(file)
            if (r["network"], r["pass"]) == (f"timm:{network}", "training")
            and dtype_named(precision) == r["precision"]
        )  # fmt: skip
    h100, batch = lolat.load("h100-fp32").run_as(precision), int(row["batch_size"])
    (found,) = h100.cost(row["network"], batch, 100 * batch, optimizer="momentum").options
    assert found.iteration_ms == pytest.approx(float(row["latency_ms"]), rel=error)
    low, high = (end * 1e3 / 100 for end in found.interval_s or (0, 0))
    assert low < float(row["latency_ms"]) < high


def test_a_data_sheet_alone_is_outside() -> None:
    """As wide as where all is unlike what was measured; a forward pass and an iteration say the same."""
    sheet = model(measured=[])
    found = asked(sheet, known.network(), 8, samples=80)
    latency = predicting.predict(sheet.latency, known.network(), Question(8))
    assert found.interval_s == ends(found, wider(known.RESIDUALS[17], 1.0))
    assert (
        sheet.batch(known.network(), 8, OPTIMIZERS["sgd"]).in_domain is latency.in_domain is False
    )
    said = [
        w for w in latency.warnings if w.startswith("nothing was measured on this device: its ")
    ]
    assert len(said) == 1
    assert found.warnings == (*said, SAID)


def test_what_was_launched_in_another_way_is_outside() -> None:
    """Of a model of operations that were started one by one, asked for a compiler."""
    eager = lolat.load("v100-fp32")
    for launch, inside in (("eager", True), ("compiled", False)):
        way = eager.run_as(None, launch)
        product = way.cost(known.network(), 512)
        assert product.in_domain is inside
        assert any("launched in another way" in text for text in product.warnings) is not inside


# ---- From latencies of inference: by hand, and against devices that were left out.

GRAPH = synthetic.network(2, 16, 28, "s2w16x28")
ZOO = Path(__file__).resolve().parents[2] / "benchmarks" / "zoo" / "graphs.json.xz"


def of_latencies(*known: Ratios, **changes: Any) -> ForwardTraining:
    return ForwardTraining(
        DeviceFile(synthetic.document(**changes)), "m.json", known or RATIOS.values()
    )


def norm_share(graph: Graph, batch_size: int) -> float:
    """What batch normalizations read and write of all that is moved, tensor by tensor."""
    total = count(graph).total(batch_size)
    norms = sum(
        graph.tensors[t].elements(batch_size)
        for o in graph.operations
        if o.kind == "batch_norm"
        for t in (*o.inputs, *o.outputs)
    )
    return norms / (total.acts + total.inp + total.traffic)


@pytest.mark.parametrize("batch_size", [1, 16])
def test_parts_by_hand(batch_size: int) -> None:
    trained = of_latencies((1.0, 2.0, 3.0, 4.0))
    latency = predicting.predict(trained.latency, GRAPH, Question(batch_size)).latency_ms
    share = norm_share(GRAPH, batch_size)
    assert 0.1 < share < 0.9
    parts = trained.batch(GRAPH, batch_size, OPTIMIZERS["adam"]).iteration.parts()
    assert parts["forward"] == pytest.approx(latency * (1 + 2 * share))
    assert parts["backward"] == pytest.approx(latency * (3 + 4 * share))
    element_ms = trained.file.document["predictors"]["extended"]["coefficients"]["pair_elements"]
    assert element_ms > 0
    # gradient read; weight and both slots read and written
    assert parts["update"] == pytest.approx(by_hand("s2w16x28") * 7 * element_ms)
    assert trained.evaluated_ms(GRAPH, batch_size) == latency


def test_an_answer_says_that_it_is_an_estimate() -> None:
    found = asked(of_latencies(), GRAPH, 8, 800, 2, validation=80)
    assert "never measured" in found.warnings[0]
    latency = Model(synthetic.document()).predict(GRAPH, 8)
    # surer of a forward pass than of what comes from it
    (low, high), (least, most) = found.interval_s or (0, 0), latency.interval_ms or (0, 0)
    assert high / low > most / least
    assert found.evaluation_s == pytest.approx(10 * latency.latency_ms / 1e3)


def test_to_measure_training_is_advised_on_a_backend_that_trains() -> None:
    """By the backends themselves; a profile of ONNX Runtime says that it does not train."""
    for name in ("epyc-2t", "epyc-2t-torch", "epyc-2t-onnxruntime"):
        file = lolat.load(name).file
        advice = how_to_add(file, name, OF_TRAINING)
        for backend in re.findall(r"--backend (\w+)(?: or (\w+))?", advice)[0]:
            if backend:
                check_trains(backend)
        assert ("onnxruntime does not train" in advice) == name.endswith("onnxruntime")
        assert ("--output" in advice) != name.endswith("onnxruntime")


def zoo() -> dict[str, Graph]:
    kept = msgspec.json.decode(lzma.decompress(ZOO.read_bytes()))
    return {name: Graph.from_dict(kept[name]) for name in sorted(kept)[::3]}


@pytest.mark.slow
@pytest.mark.parametrize("device", sorted(RATIOS))
def test_devices_that_are_left_out_lie_in_the_interval(device: str) -> None:
    """Their own training, as it was measured, against the estimate by the other devices."""
    path = str(find_model(device))
    document = read_json(path, "")
    document.pop("training", None)
    others = [ratios for name, ratios in RATIOS.items() if name != device]
    estimate, own = (
        ForwardTraining(DeviceFile(document), path, others),
        training_of(lolat.load(device)),
    )
    batch_size = 256 if device.startswith("rtx") else 32  # at 32 a GPU waits for the host
    inside, errors = [], []
    for graph in zoo().values():
        iteration_ms = asked(own, graph, batch_size).iteration_ms
        found = asked(estimate, graph, batch_size, batch_size)
        assert found.interval_s is not None
        inside.append(found.interval_s[0] <= iteration_ms / 1e3 <= found.interval_s[1])
        errors.append(np.log(iteration_ms / found.iteration_ms))
    assert np.mean(inside) >= 0.85
    assert abs(np.median(errors)) < 0.25

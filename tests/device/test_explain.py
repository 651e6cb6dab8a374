"""Receipts add up to the prediction; counterfactuals are predictions of networks built otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.api.model import Model
from lolat.device.attribution import SMALLEST_SAVING, Attribution, Explanation, explain, find_blocks
from lolat.device.question import Question
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import analyze
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS
from lolat.graph.layers import Layers
from lolat.graph.width import NOTE, widths
from lolat.io import paths as places
from tests import synthetic

DOCUMENT = synthetic.document()
# All terms cost something here; the made-up points say nothing of the last counts.
DOCUMENT["predictors"]["extended"]["coefficients"].update(patches=7e-7, border=2e-7, serial=0.02)
MODEL = Model(DOCUMENT)
NETWORK = synthetic.network()
close = pytest.approx


def at_size(side: int) -> Graph:
    return synthetic.network(size=side)


def mobile(mid: int = 96) -> Graph:
    """A stem, an inverted residual with squeeze-excite, and a head."""
    net = Layers.on("mobile", 32, 32, 3)
    x, block = net.conv(net.input, 24, 3), Layers(net.builder, "block1")
    y = block.depthwise(block.same("silu", block.conv(x, mid)), 5)
    y = block.squeeze_excite(y, mid, "relu", "hard_sigmoid")
    x = block.same("add", x, block.conv(y, 24))
    return net.done(net.dense(net.global_pool(x, flat=True), 10))


MOBILE = mobile()


def of(found: Explanation, kind: str) -> Any:
    """The counterfactuals of a kind, or the only one."""
    these = [c for c in found.counterfactuals if c.kind == kind]
    return these[0] if len(these) == 1 else these


def whole(attributions: tuple[Attribution, ...]) -> float:
    return sum(t.latency_ms for r in attributions for t in r.terms)


@pytest.mark.parametrize("predictor", ["extended", "two-regime"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_receipts_add_up(predictor: str, batch_size: int) -> None:
    prediction = MODEL.predict(NETWORK, batch_size, predictor)
    found = explain(MODEL, NETWORK, Question(batch_size, predictor))
    latency, call = prediction.latency_ms, prediction.call_ms
    assert whole(found.blocks) + call == close(latency, rel=1e-12)
    assert whole((found.total,)) + call == close(latency, rel=1e-12)
    assert sum(b.latency_ms for b in found.blocks) + call == close(latency, rel=1e-12)
    shares = sum(b.share for b in found.blocks) + call / latency
    assert shares == close(1.0, rel=1e-12)
    for each in (found.total, *found.blocks):
        for term in each.terms:
            assert term.count * term.rate_ms == close(term.latency_ms, rel=1e-12)
    for i, block in enumerate(cut(NETWORK)):
        parts = explain(MODEL, NETWORK, Question(batch_size, predictor), block=block.label)
        assert parts.blocks == (found.blocks[i],)
        assert whole(parts.operations) == close(whole(parts.blocks), rel=1e-12)
        assert len(parts.operations) == len(block.operations)
        assert find_blocks(analyze(NETWORK), str(block.name)) == [i]


def test_a_module_that_is_no_block_is_found_in_those_that_hold_it() -> None:
    """A module of whole blocks is their sum; one that shares a block with another names the blocks."""
    with pytest.raises(InputError, match=r"its operations are in stages\.1\.downsample"):
        find_blocks(analyze(lolat.read("timm:convnext_tiny")), "stages.1.blocks")
    analysis = analyze(lolat.read("timm:resnet50"))
    assert [analysis.blocks[i].label for i in find_blocks(analysis, "layer4")] == [
        f"layer4.{n}" for n in range(3)
    ]
    own = lolat.load("epyc-2t-torch")
    stage = own.explain(analysis.graph, block="layer4")
    parts = [own.explain(analysis.graph, block=f"layer4.{n}") for n in range(3)]
    assert stage.blocks[0].latency_ms == close(sum(p.blocks[0].latency_ms for p in parts))
    assert len(stage.operations) == sum(len(p.operations) for p in parts)
    assert (stage.block, stage.part) == ("layer4", "")
    (of_conv,) = find_blocks(analysis, "layer4.1.conv2")
    assert analysis.blocks[of_conv].label == "layer4.1"
    model = lolat.load("epyc-2t-torch")
    part, block = (model.explain(analysis.graph, block=b) for b in ("layer4.1.conv2", "layer4.1"))
    note = "layer4.1.conv2 is a part of the block layer4.1, which is explained"
    assert (part.blocks, part.notes) == (block.blocks, (note, *block.notes))


def test_a_block_that_spans_modules_is_dropped_whole_or_says_which_of_them() -> None:
    """Its time is the saving, in a network where the last of four modules has most of the operations."""
    graph = synthetic.chains(whole=True)
    found = explain(MODEL, graph)
    drop = of(found, "drop")
    (block,) = (b for b in found.blocks if b.named.label == "b3")
    assert drop.change.startswith("drop b3 (")
    assert drop.saves_ms == close(block.latency_ms, rel=1e-9)
    assert find_blocks(analyze(graph), "b3.0") == [found.blocks.index(block)]


def test_a_line_is_a_count_times_its_coefficient() -> None:
    found = explain(MODEL, NETWORK, Question(2))
    coefficients = DOCUMENT["predictors"]["extended"]["coefficients"]
    counts = synthetic.totals(NETWORK, 2)
    for term in found.total.terms:
        assert term.count == counts[term.name]
        assert term.latency_ms == close(counts[term.name] * coefficients[term.name], rel=1e-12)
    assert [t.name for t in found.total.terms] == [c for c in COLUMNS if c in coefficients]
    operation = explain(MODEL, NETWORK, Question(2), block="conv1_block1").operations[0]
    assert (operation.name, operation.kind) == ("conv1_block1_1_conv", "conv")
    flops = next(t for t in operation.terms if t.name == "spatial_macs")
    assert flops.count == 2 * 56 * 56 * 32 * 9 * 32


def test_memory_traffic_of_a_gpu_is_all_that_operations_move() -> None:
    """A convolution reads its input and its weights, and writes its output, as other operations do."""
    found = explain(lolat.load("rtx-4090-amp"), NETWORK, Question(2), block="conv1_block1")
    operation, pixels = found.operations[0], 2 * 56 * 56
    traffic = next(t for t in operation.terms if t.name == "traffic")
    assert operation.name == "conv1_block1_1_conv"
    assert traffic.count == pixels * (32 + 32) + 9 * 32 * 32
    counts = synthetic.totals(NETWORK, 2)
    moved = sum(counts[name] for name in ("acts", "inp", "traffic", "weights"))
    assert found.prediction.counts["acts"] == counts["acts"]
    whole_network = explain(lolat.load("rtx-4090-amp"), NETWORK, Question(2)).total
    assert whole_network.by_term["traffic"].count == moved


def saving(graph: Graph, instead: Graph, batch_size: int = 1) -> float:
    return (
        MODEL.predict(graph, batch_size).latency_ms - MODEL.predict(instead, batch_size).latency_ms
    )


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_change_of_a_block_saves_what_the_changed_network_saves(batch_size: int) -> None:
    """Each against the network written by hand with that change."""
    found = explain(MODEL, MOBILE, Question(batch_size), block="block1")
    block = found.blocks[0]
    half, narrow = of(found, "inner_width"), mobile(mid=48)
    assert half.change == "width x0.5 inside (96 -> 48)"
    assert half.saves_ms == close(saving(MOBILE, narrow, batch_size), rel=1e-9)
    assert half.latency_ms == close(MODEL.predict(narrow, batch_size).latency_ms, rel=1e-9)
    assert half.of_block == close(half.saves_ms / block.latency_ms)
    assert half.of_network == close(half.saves_ms / found.prediction.latency_ms)
    assert half.in_domain == MODEL.predict(narrow, batch_size).in_domain
    assert of(found, "drop").saves_ms == close(block.latency_ms, rel=1e-9)
    assert found.notes == (NOTE,)


def test_a_transformer_without_a_block_keeps_its_last_norm() -> None:
    """Its last block, which is listed with that norm, takes the longest."""
    pytest.importorskip("lolat.readers.torch.named").load_torchvision()
    timm = pytest.importorskip("timm")
    three, two = (
        lolat.read(timm.create_model("vit_tiny_patch16_224", depth=depth)) for depth in (3, 2)
    )
    model = lolat.load("epyc-2t-torch")
    found = model.explain(three)
    saves = model.predict(three).latency_ms - model.predict(two).latency_ms
    assert of(found, "drop").saves_ms == close(saves, rel=1e-9)


def test_a_saving_of_the_host_is_no_share_of_a_block_of_the_device() -> None:
    """Without the block the host starts fewer operations: more than the device takes for the block."""
    found = lolat.load("h100-fp16").explain(NETWORK, block="conv1_block1")
    assert found.prediction.host_bound
    assert of(found, "drop").of_block is None


def test_a_network_narrower_and_smaller() -> None:
    found = explain(MODEL, NETWORK, at_size=at_size)
    half = of(found, "width")
    assert half.saves_ms == close(saving(NETWORK, synthetic.network(width=16)), rel=1e-9)
    assert half.of_block is None
    smaller = of(found, "resolution")
    assert smaller.saves_ms == close(saving(NETWORK, at_size(28)), rel=1e-9)
    drop = of(found, "drop")
    assert drop.saves_ms == close(saving(NETWORK, synthetic.network(stages=2)), rel=1e-9)
    savings = [c.of_network for c in found.counterfactuals]
    assert savings == sorted(savings, reverse=True)
    assert savings[-1] > SMALLEST_SAVING
    note = "a smaller input was not tried"
    assert not any(note in warning for warning in found.warnings)
    assert any(note in warning for warning in explain(MODEL, NETWORK).warnings)
    # At its own resolution a network saves nothing.
    same = explain(MODEL, NETWORK, at_size=lambda side: NETWORK)
    assert of(same, "resolution") == []


@pytest.mark.parametrize("shapes", [[(1, 32, 32, 3)] * 2, [(1, 8, 32, 32, 3)], [(1, 32, 24, 3)]])
def test_images_that_no_smaller_input_is_tried_for_are_told(shapes: Any) -> None:
    """Two images, a video, an image that is not square."""
    b = GraphBuilder("images", "torch")
    for shape in shapes:
        kernel = (3,) * (len(shape) - 2)
        b.add(
            "conv", [b.input(shape)], shape, kernel=kernel, strides=(1,) * len(kernel), groups=1,
            in_channels=3, out_channels=3, bias=False,
        )  # fmt: skip
    found = explain(MODEL, b.build([len(b.tensors) - 1]), at_size=at_size)
    assert of(found, "resolution") == []
    assert any("a smaller input was not tried" in warning for warning in found.warnings)


def test_operations_that_are_timed_one_by_one_add_up() -> None:
    """A GPU model's operations take what its own formula says: together they are their block."""
    model, graph = lolat.load("rtx-4090-amp"), synthetic.network()
    for batch_size in (1, 7):
        for block in model.predict(graph, batch_size).blocks[:-1]:
            found = explain(model, graph, Question(batch_size), block=block.name)
            assert sum(o.latency_ms for o in found.operations) == pytest.approx(block.latency_ms)


@pytest.mark.parametrize("option", ["channels_last", "compile"])
def test_a_cpu_learned_with_an_option_too_says_what_that_saves(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "local_folder", lambda: tmp_path)
    for name, is_so in (("plain", False), ("other", True)):
        document = synthetic.document(name=name)
        document["environment"] |= {"framework": "torch", option: is_so}
        for rates in (document["predictors"]["extended"]["coefficients"],) if is_so else ():
            rates.update({term: rate / 2 for term, rate in rates.items()})
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    explanation = lolat.load("plain").explain(NETWORK)
    found = of(explanation, option)
    assert found.of_network == close(0.5)
    assert "(as other)" in found.change
    assert of(lolat.load("other").explain(NETWORK), option) == []
    not_learned = {"channels_last": "--compile", "compile": "--channels-last"}[option]
    told = (
        f"Is another mode faster? First learn it: lolat learn cpu --backend torch {not_learned}\n"
    )
    assert told in explanation.report()


@pytest.mark.parametrize(
    ("device", "fastest"), [("epyc-2t", "onnxruntime"), ("epyc-zen5-2t-torch", "onnxruntime")]
)
def test_another_framework_of_the_same_processor_is_a_change(device: str, fastest: str) -> None:
    chip = device.removesuffix("-torch")
    others = {f"{chip}{end}" for end in ("", "-torch", "-onnxruntime")} - {device}
    times = {n: lolat.load(n).predict("timm:resnet50", 4).latency_ms for n in others}
    model = lolat.load(device)
    found = of(model.explain("timm:resnet50", 4), "runtime")
    assert min(times, key=lambda name: times[name]) == f"{chip}-{fastest}"
    assert found.latency_ms == close(times[f"{chip}-{fastest}"])
    assert f"(as {chip}-{fastest})" in found.change
    assert of(lolat.load(f"{chip}-{fastest}").explain("timm:resnet50", 4), "runtime") == []


def test_a_profile_of_ones_own_is_not_compared_with_another_machine(tmp_path: Path) -> None:
    document = json.loads(Path(lolat.load("epyc-2t-torch").source).read_text())
    document["environment"]["threads_asked"] = 1
    (tmp_path / "mine.json").write_text(json.dumps(document))
    found = lolat.load(tmp_path / "mine.json").explain("timm:resnet50", 4)
    assert of(found, "runtime") == []
    learn = "lolat learn cpu --backend onnxruntime --threads 1"
    assert f"\nIs another framework faster? First learn it: {learn}\n" in found.report()
    assert "another framework" not in lolat.load("epyc-2t-torch").explain("timm:resnet50").report()


@pytest.mark.parametrize("host_us", [5, 60])
@pytest.mark.parametrize("device", ["rtx-3090-amp", "rtx-4090-amp", "h100-fp16"])
def test_a_network_run_in_another_way_keeps_the_host_that_was_given(
    device: str, host_us: float
) -> None:
    model = lolat.load(device)
    found = model.explain("timm:resnet50", 4, host_us=host_us).counterfactuals
    ways = {"compile": {"launch": "compiled"}, "channels_last": {"channels_last": True}}
    told = {c.kind: c.latency_ms for c in found if c.kind in ways}
    assert told
    for kind, ms in told.items():
        asked = lolat.load(device).run_as(host_us=host_us, **ways[kind])
        assert ms == close(asked.predict("timm:resnet50", 4).latency_ms)


@pytest.mark.parametrize(
    ("device", "kind", "mode", "other"),
    [
        ("rtx-3090-amp", "channels_last", (None, None), "rtx-3090-amp-nhwc"),
        ("rtx-4090-amp", "compile", (None, "compiled"), "rtx-4090-amp-compiled"),
        ("v100-fp32", "precision", ("fp16", None), "v100-fp32"),
    ],
)
def test_a_network_run_in_another_way_takes_what_the_device_of_that_way_says(
    device: str, kind: str, mode: tuple[str | None, str | None], other: str
) -> None:
    found = of(lolat.load(device).explain("timm:resnet50", 64), kind)
    wanted = lolat.load(other).predict("timm:resnet50", 64, precision=mode[0], launch=mode[1])
    assert found.latency_ms == close(wanted.latency_ms)
    assert ("--precision fp16" if kind == "precision" else f"(as {other})") in found.change
    again = lolat.load(other).run_as(*mode).explain("timm:resnet50", 64)
    assert of(again, kind) == []  # it is run so


def test_a_change_after_which_the_host_decides_is_told() -> None:
    """The changed network, asked alone: at half the width the GPU is faster than its launches."""
    device, graph = lolat.load("rtx-4090-amp"), lolat.read("timm:resnet50")
    told = set()
    for batch_size in (32, 128):
        now, half = (device.predict(g, batch_size) for g in (graph, widths(graph).at(0.5)))
        (found,) = (
            c for c in device.explain(graph, batch_size).counterfactuals if c.kind == "width"
        )
        assert found.becomes_host_bound == (bool(half.host_bound) and not now.host_bound)
        told.add(found.becomes_host_bound)
    assert told == {False, True}

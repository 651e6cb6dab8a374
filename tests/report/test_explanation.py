"""What the terminal shows of receipts, changes and budgets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import lolat
from lolat.api.model import Model
from lolat.device.attribution import Term, explain
from lolat.graph import GraphBuilder
from lolat.graph.blocks import BlockName, cut
from lolat.graph.width import NOTE, widths
from lolat.report.bottlenecks.page import page
from lolat.report.explanation import budget_lines, budgets_beside, explanation_lines, rate
from lolat.report.rows import TERMS
from lolat.report.tables import lines_of
from lolat.units import digits, milliseconds, percent
from tests import synthetic

MODEL = Model(synthetic.document(), "desk.json")
NETWORK = synthetic.network()


@pytest.mark.parametrize(
    ("term", "count", "each"),
    [
        (Term("spatial_macs", 3_860_000_000, 6.1e-9, 23.5), "3.86 GMACs", "6.10 ms/G"),
        (Term("dense_weights", 25_500, 1e-7, 0.0026), "25.5 k weights", "0.100 ms/M"),
        (Term("pair_elements", 41_000_000, 1e-7, 4.1), "41.0 M elements", "0.100 ms/M"),
        (Term("conv_ops", 53, 0.02, 1.06), "53 operations", "0.020 ms"),
        (Term("serial", 12, 0.02, 0.24), "12 operations", "0.020 ms"),
        (Term("serial", 1, 0.02, 0.02), "1 operation", "0.020 ms"),
    ],
)
def test_a_term_in_its_units(term: Term, count: str, each: str) -> None:
    assert rate(term) == (count, each)


def test_the_receipt_of_a_network() -> None:
    found = explain(MODEL, NETWORK, at_size=lambda side: synthetic.network(size=side))
    lines = list(lines_of(explanation_lines(found)))
    out = "\n".join(lines)
    latency = milliseconds(found.prediction.latency_ms)
    title = "hand made · batch 1 · 56x56x3 · fp32, TensorFlow"
    assert lines[0].startswith(f"{title}: {latency}, 90 % sure of ")
    compute = next(line for line in lines if line.startswith("  larger convolution "))
    flops = next(t for t in found.total.terms if t.name == "spatial_macs")
    assert " ".join(compute.split()).startswith(
        f"larger convolution compute {rate(flops)[0]} {rate(flops)[1]} {digits(flops.latency_ms)}"
    )
    assert any(line.startswith("  one call of the framework") for line in lines)
    (total,) = [line for line in lines if line.startswith("  together")]
    assert total.split()[1:] == [digits(found.prediction.latency_ms), "100", "%"]
    assert f"the longest of {len(found.blocks)} blocks" in lines
    assert "width x0.5: every channel count, in multiples of 8" in out
    assert "an input of 28 px instead of 56" in out
    assert f"note: {NOTE}" in out
    assert lines[-1].startswith("Next: model.explain(network, block='conv")
    named = replace(found, prediction=found.prediction.named("keras:X", 96))
    *_, last = lines_of(explanation_lines(named))
    assert last.startswith("Next: lolat explain desk.json keras:X --input-size 96 --block conv")


def test_causes_of_less_than_a_percent_are_a_row_together() -> None:
    found = explain(MODEL, NETWORK)
    whole_ms = found.prediction.latency_ms
    small = [t.latency_ms for t in found.total.terms if 0.0005 < t.latency_ms / whole_ms <= 0.01]
    lines = list(lines_of(explanation_lines(found)))
    (row,) = [line.split() for line in lines if "smaller causes" in line]
    assert (int(row[0]), row[3]) == (len(small), digits(sum(small)))


def test_the_frame_has_the_call_and_adds_up() -> None:
    found = explain(MODEL, NETWORK)
    frame = found.frame()
    assert frame.latency_ms.sum() == pytest.approx(found.prediction.latency_ms)
    assert frame.share.sum() == pytest.approx(1.0)
    assert frame.latency_ms.iloc[-1] == found.prediction.call_ms


@pytest.mark.parametrize(("launch", "by_hand"), [("eager", 10), ("compiled", 7)])
def test_operations_are_counted_as_they_are_started(launch: str, by_hand: int) -> None:
    """A compiler joins each normalization, its activation, and the addition behind them."""
    run = lolat.load("rtx-4090-amp").run_as("fp32", launch, 900.0)
    found = explain(run, synthetic.network(stages=1))
    assert found.total.by_term["ops"].count == by_hand
    assert sum(block.by_term["ops"].count for block in found.blocks) == by_hand
    assert f"launch {by_hand} operations, the device" in " ".join(found.warnings)


def test_most_of_a_block_is_what_the_report_says() -> None:
    found = explain(MODEL, NETWORK)
    lines = list(lines_of(explanation_lines(found)))
    for block in found.prediction.blocks[:-1]:
        (shown,) = [x for x in lines if x.startswith(f"  {block.name} ")] or [""]
        assert not shown or TERMS[block.bound_by] in shown


def test_blocks_that_differ_by_rounding_stay_in_order() -> None:
    found = explain(MODEL, NETWORK)
    one, shortest = found.blocks[0], min(found.blocks, key=lambda block: block.latency_ms)
    alike = [
        replace(one, named=BlockName(n), latency_ms=3.0 + 1e-9 * i) for i, n in enumerate("abc")
    ]
    shown = list(lines_of(explanation_lines(replace(found, blocks=(shortest, *alike)))))
    start = shown.index("the longest of 4 blocks") + 2
    assert [line.split()[0] for line in shown[start : start + 3]] == ["a", "b", "c"]
    assert "block='a')" in shown[-1]


def test_the_receipt_of_a_block() -> None:
    found = explain(MODEL, NETWORK, block="conv1_block1")
    lines = list(lines_of(explanation_lines(found)))
    assert any(line.startswith("conv1_block1 · ") and "of the network" in line for line in lines)
    first = next(line for line in lines if line.startswith("  1_conv "))
    # 56 x 56 x 32 x 9 x 32 MACs, 2 x 56 x 56 x 32 elements, 9 x 32 x 32 weights
    assert first.split()[1:8] == ["conv", "28.9", "M", "201", "k", "9.22", "k"]
    assert any("width x0.5 inside (32 -> 16)" in line for line in lines)
    assert lines[-1] == "Next: model.explain(network), other arguments as before"


def test_names_are_text_and_free_operations_not_listed() -> None:
    b = GraphBuilder("strange")
    x = b.input((1, 8, 8, 3))
    x = b.add("teleport", [x], (1, 8, 8, 3), "[red]t[/]\x1b[2J")
    x = b.add("dropout", [x], (1, 8, 8, 3), "free_one")
    graph = b.build([b.add("relu", [x], (1, 8, 8, 3), "act")])
    assert len(cut(graph)) == 1
    block = explain(MODEL, graph, block=cut(graph)[0].label)
    out = "\n".join(
        lines_of((*explanation_lines(explain(MODEL, graph)), *explanation_lines(block)))
    )
    assert "\x1b" not in out
    assert "note: no formula for operation teleport" in out
    assert "free_one" not in out


def test_a_change_that_leaves_the_domain_is_marked() -> None:
    now = MODEL.predict(NETWORK)
    document = synthetic.document()
    most = max(
        b.counts["flops"] / sum(b.counts[c] for c in ("acts", "inp", "traffic"))
        for b in now.blocks[:-1]
    )
    document["domain"]["ratios"]["FLOPs per element"][0] = 1.9 * most  # half is still inside
    found = explain(Model(document), NETWORK)
    assert {c.kind: c.in_domain for c in found.counterfactuals}["width"] is False
    lines = list(lines_of(explanation_lines(found)))
    (half,) = [line for line in lines if "width x0.5" in line]
    assert half.split("  ")[1].endswith(" *")
    assert "  * the changed network is outside the measured range" in lines


def test_a_budget_in_words() -> None:
    now = MODEL.predict(NETWORK).latency_ms
    lines = list(budget_lines(MODEL.budget(NETWORK, 2.5 * now, "batch")))
    assert lines[0].startswith(f"hand made: batch 2 is predicted within {2.5 * now:g} ms: ")
    assert any(line.startswith("next: batch 3 takes ") for line in lines)
    assert any(line.startswith("now: batch 1 takes ") for line in lines)
    lines = list(budget_lines(MODEL.budget(NETWORK, 0.8 * now, "width")))
    assert lines[1].startswith("  channels: 32 -> ")
    assert lines[-1] == f"note: {NOTE}"
    lines = list(budget_lines(MODEL.budget(NETWORK, 1e9, "batch")))
    assert any(" is the largest that is tried, and it keeps 1e+09 ms" in line for line in lines)
    assert " or more (largest tried) is predicted within 1e+09 ms" in lines[0]


def test_outside_the_range_itself_no_change_is_starred() -> None:
    found = lolat.load("l4").explain("timm:resnet18")
    assert found.prediction.in_domain is False  # of a data sheet
    assert any(c.in_domain is False for c in found.counterfactuals)
    text = found.report()
    assert "outside the measured range" in text
    assert " *" not in text


def test_a_change_has_the_time_and_the_interval_of_the_changed_network() -> None:
    """Those of the network of half the width, predicted by itself."""
    model, graph = lolat.load("l4"), lolat.read("timm:resnet18")
    now, then = model.predict(graph), model.predict(widths(graph).at(0.5))
    found = model.explain(graph)
    told = " .. ".join(map(milliseconds, then.interval_ms or ()))
    (half,) = [line for line in found.report().splitlines() if "width x0.5" in line]
    assert re.split(" {2,}", half)[-2:] == [milliseconds(then.latency_ms), told]
    changes = page(now).partition('id="changes"')[2]
    assert f">{told}</td>" in changes.partition("width x0.5")[2].partition("</tr>")[0]
    best = found.counterfactuals[0]
    assert found.words().splitlines()[-1].startswith(f"{best.change}: saves ")
    ends = " .. ".join(map(milliseconds, best.interval_ms or ()))
    assert found.words().endswith(f"; then {milliseconds(best.latency_ms)} ({ends})")


def test_a_value_just_beyond_the_limit_tells_by_how_much() -> None:
    """Both times are rounded to the limit's digits: the words have the difference itself."""
    model = lolat.load("rtx-4090")
    times = {n: model.predict("timm:resnet50", n).latency_ms for n in (442, 443)}
    limit = 100.0
    assert times[442] < limit < times[443] < 100.5
    lines = [*lines_of(budget_lines(model.budget("timm:resnet50", limit, "batch")))]
    (line,) = (x for x in lines if x.startswith("next: "))
    assert line.startswith(
        f"next: batch 443 takes {digits(times[443] - limit)} ms more than 100 ms: "
    )


@pytest.mark.parametrize(("vary", "limit"), [("batch", 100), ("resolution", 20)])
def test_devices_beside_each_other_begin_with_the_largest_answer(vary: str, limit: int) -> None:
    """Those of which a sample takes as long, within the intervals, are too close to call."""
    answers = {
        name: lolat.load(name).budget("timm:resnet50", limit, vary, 4, precision="amp")
        for name in ("a100", "rtx-4090", "l4")
    }
    largest, table = budgets_beside(answers)
    words = largest.words
    assert table.rows == sorted(answers, key=lambda name: -answers[name].best.value)
    first, *others = table.rows
    assert words.startswith(f"Largest: {first}, {answers[first].verdict.partition(' is ')[0]}")
    per_sample = {
        name: a.best.prediction.latency_ms / a.best.prediction.batch_size
        for name, a in answers.items()
    }
    close = words.partition("against ")[2]
    assert bool(close) == (vary == "batch")
    for name in others if close else ():
        low, high = answers[name].best.prediction.interval_ms or (0.0, 0.0)
        ratio = per_sample[name] / per_sample[first]
        if ratio < (high / low) ** 0.5:  # in half of its own interval
            assert f"{name} (+{percent(ratio - 1)}, " in close
        assert (name in close) <= (ratio < high / low)


def test_a_function_has_the_name_of_its_file_in_every_answer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    layers = "nn.Conv2d(3, 8, 3), nn.Conv2d(8, 3, 3)"
    code = f"from torch import nn\ndef net():\n    return nn.Sequential({layers})\n"
    (tmp_path / "own.py").write_text(code)
    asked = f"{tmp_path}/own.py:net"
    model = lolat.load("rtx-4090")
    assert model.predict(asked, input_size=32).title.startswith("own.py:net · ")
    for vary in ("batch", "resolution", "width"):
        found = model.budget(asked, 5, vary, input_size=32)
        assert found.report().startswith("own.py:net: ")
    assert model.cost(asked, 8, input_size=32).report().startswith("own.py:net · 3x32x32 · batch 8")

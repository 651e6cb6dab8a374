"""Pictures of answers: bars, curves, intervals and marks against the answers' own numbers."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import lolat
from lolat.errors import InputError
from lolat.llm.compare import compare
from lolat.report import pictures
from lolat.units import plural
from tests.report.test_notebook import ANSWERS, BLOCKS, GPU, SERVER, SIZES


def test_an_answer_without_a_time_has_no_picture() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="does not fit; its weights take") as caught:
        SERVER.llm("llama-3.1-70b", concurrency=8, tensor_parallel=1).plot()
    assert caught.value.code == "no-picture"


@pytest.fixture
def axes() -> Iterator[Any]:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    yield pyplot.subplots()[1]
    pyplot.close("all")


def test_bars_are_the_blocks(axes: Any) -> None:
    assert BLOCKS.plot(axes) is axes
    ends = [0.0] * len(BLOCKS.blocks)
    for bar in axes.patches:
        at = round(bar.get_y() + bar.get_height() / 2)
        assert bar.get_x() == pytest.approx(ends[at])
        ends[at] += bar.get_width()
    assert ends == pytest.approx([b.latency_ms for b in BLOCKS.blocks])
    assert axes.yaxis_inverted()
    assert {"compute", "memory traffic"} <= {t.get_text() for t in axes.get_legend().get_texts()}


def test_a_picture_tells_what_memory_rules_out(axes: Any) -> None:
    """The largest batch of a card is not twice the largest that fits."""
    most = int(GPU.predict("timm:resnet18", "auto").batch_size)
    GPU.predict("timm:resnet18", [1, most, 2 * most]).plot(axes)
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, most]]
    assert _notes(axes)[:2] == ["without room in memory: 1 of 3", "band: 90 % interval"]
    axes.clear()
    GPU.predict("timm:resnet18", 2 * most).plot(axes)
    assert "does not fit" in axes.get_xlabel()
    axes.clear()
    GPU.predict("timm:resnet18", most).plot(axes)
    assert "fit" not in axes.get_xlabel()


def _notes(axes: Any) -> list[str]:
    """The notes in the legend of a picture."""
    return [*axes.get_legend().get_title().get_text().split("\n")]


def test_a_picture_stays_inside_the_users_axes_and_leaves_their_title(axes: Any) -> None:
    """Nothing of it is over the axes or beyond the figure, whoever sets the title, before or after."""
    axes.set_title("mine")
    for answer in (SIZES, BLOCKS, ANSWERS["devices"], ANSWERS["costs"], ANSWERS["served"]):
        answer.plot(axes)
        assert axes.get_title("left") == "", answer
        assert axes.get_title() == "mine"
        axes.get_figure().canvas.draw()
        inside, figure = axes.get_legend().get_window_extent(), axes.get_figure().bbox
        assert figure.x0 <= inside.x0 <= inside.x1 <= figure.x1
        axes.clear()
        axes.set_title("mine")
    assert SIZES.plot().get_title("left") == ""  # of two networks
    assert SIZES[:3].plot().get_title("left") == "timm:resnet50"


def test_many_curves_have_a_short_legend() -> None:
    """A name for each device and network: the legend takes less than half of the width."""
    pytest.importorskip("matplotlib")
    networks = ["timm:resnet50", "timm:convnext_tiny", "timm:efficientnet_b0"]
    on = ["rtx-3090", "rtx-4090", "h100", "l4"]
    drawn = lolat.predict(networks, on, batch_size=[1, 64], precision="amp").plot()
    drawn.get_figure().canvas.draw()
    legend = drawn.get_legend()
    assert len(drawn.lines) == 12
    assert [t.get_text() for t in legend.get_texts()][-3:] == networks
    assert len(legend.get_texts()) == 7
    assert legend.get_window_extent().width < drawn.get_figure().bbox.width / 2


def test_a_network_of_many_blocks_is_folded(axes: Any) -> None:
    deep = GPU.predict("timm:resnet152", 64)
    deep.plot(axes)
    assert len(deep.blocks) > pictures.MOST_BARS >= len(axes.get_yticks())
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(deep.latency_ms)


def test_curves_are_the_batch_sizes_and_loads(axes: Any) -> None:
    SIZES.plot(axes)
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert drawn == [
        [[p.batch_size, p.latency_ms] for p in some] for some in (SIZES[:3], SIZES[3:])
    ]  # type: ignore[index]
    ends = [bar.get_segments() for bar in axes.collections[:2]]  # bars, as bands would overlap
    for some, segments in zip((SIZES[:3], SIZES[3:]), ends, strict=True):  # type: ignore[index]
        assert [tuple(s[:, 1]) for s in segments] == [p.interval_ms for p in some]
        assert [s[0, 0] for s in segments] == pytest.approx([p.batch_size for p in some], rel=0.03)
    axes.clear()
    GPU.predict("timm:resnet50", [1, 8, 64]).plot(axes)
    band = axes.collections[0].get_paths()[0].get_extents().intervaly
    low, high = zip(*(p.interval_ms or (0, 0) for p in SIZES[:3]), strict=True)  # type: ignore[index]
    assert tuple(band) == pytest.approx((min(low), max(high)))


@pytest.mark.parametrize(("count", "shown"), [(2, 2), (3, 3), (6, 6), (7, 0)])
def test_intervals_stand_at_their_points(axes: Any, count: int, shown: int) -> None:
    """Within 3 % of them and beside each other; those of more than six curves are not drawn, and told."""
    on = ["v100", "t4", "l4", "a10", "a100", "rtx-3090", "rtx-4090"][:count]
    found = lolat.predict("timm:resnet50", on=on, batch_size=[1, 64], precision="amp")
    found.plot(axes)
    bars = [bars.get_segments() for bars in axes.collections if hasattr(bars, "get_segments")]
    assert len(bars) == shown
    places = [segments[1][0, 0] for segments in bars]
    assert len({*places}) == shown
    assert all(64 / 1.03 <= x <= 64 * 1.03 for x in places)
    assert math.prod(x / 64 for x in places) == pytest.approx(1.0)  # as many left as right
    told = [
        "vertical bars: 90 % interval" in _notes(axes),
        any("no int" in n for n in _notes(axes)),
    ]
    assert told == [bool(shown), not shown]


@pytest.mark.parametrize(("batch_size", "is_log"), [(1, False), (64, True)])
def test_bars_of_unlike_lengths_are_on_a_logarithmic_axis(
    axes: Any, batch_size: int, is_log: bool
) -> None:
    """At 20 times the shortest; each bar and its whisker is in sight."""
    on = ["rtx-4090", "epyc-2t"] if is_log else ["rtx-4090", "l4"]
    found = lolat.predict("timm:resnet50", on=on, batch_size=batch_size)
    times = [p.latency_ms for p in found]
    assert (max(times) / min(times) > 20) == is_log
    found.plot(axes)
    assert (axes.get_xscale() == "log") == is_log == ("logarithmic" in axes.get_xlabel())
    low, high = axes.get_xlim()
    assert low < min(p.interval_ms[0] for p in found if p.interval_ms)
    assert high > max(p.interval_ms[1] for p in found if p.interval_ms)
    assert [bar.get_width() for bar in axes.patches] == times


def test_curves_of_networks_on_devices_differ_in_color_or_style(axes: Any) -> None:
    """A color for each device and a style for each network, on the user's axes too."""
    networks = ["timm:resnet50", "timm:resnet18", "timm:resnet34"]
    found = lolat.predict(networks, on=["rtx-4090", "t4", "l4"], batch_size=[1, 64])
    found.plot(axes)
    lines = {line.get_label(): line for line in axes.lines}
    assert len(lines) == 9
    looks = {name: (line.get_color(), line.get_linestyle()) for name, line in lines.items()}
    assert len({*looks.values()}) == 9
    assert axes.get_ylabel().endswith(", logarithmic")
    for part, n in ((0, 1), (1, 0)):
        of = {name.split(" on ")[n]: look[part] for name, look in looks.items()}
        assert len({*of.values()}) == 3
        assert all(look[part] == of[name.split(" on ")[n]] for name, look in looks.items())
    figure = axes.get_figure()
    figure.canvas.draw()
    inside = axes.get_legend().get_window_extent()
    assert figure.bbox.x0 <= inside.x0 <= inside.x1 <= figure.bbox.x1


def test_models_of_one_name_are_told_apart(axes: Any) -> None:
    """In the frame and as curves; a model that is given twice is one network, and each has its figures."""
    pytest.importorskip("pandas")
    nn = pytest.importorskip("torch").nn
    small, large = (nn.Sequential(nn.Conv2d(3, n, 7), nn.ReLU()) for n in (8, 512))
    ask = partial(GPU.predict, input_size=64)
    found = ask([small, large, small], [1, 64])
    own = [ask(n, b).latency_ms for n in (small, large, small) for b in (1, 64)]
    names = [name for name in ("Sequential", "Sequential 2", "Sequential") for _ in range(2)]
    assert [*found.frame()["network"]] == names == [p.query.network for p in found]
    assert [p.latency_ms for p in found] == own
    found[:4].plot(axes)
    assert [line.get_ydata().tolist() for line in axes.lines] == [own[:2], own[2:4]]
    assert ask(large).network == "Sequential"


def test_a_part_of_several_answers_is_such_an_answer(axes: Any) -> None:
    """A slice, and those that are kept, have a table, a picture and rows of their own."""
    pytest.importorskip("pandas")
    part, kept = SIZES[1:4], SIZES.filter(lambda p: p.batch_size == 64)
    assert type(part) is type(kept) is type(SIZES)
    assert [*part.frame()["latency_ms"]] == [p.latency_ms for p in [*SIZES][1:4]]
    assert [*kept.frame()["network"]] == ["timm:resnet50", "timm:resnet18"]
    with pytest.raises(lolat.InputError, match="no predictions to draw"):
        SIZES.filter(lambda p: False).plot()
    kept.plot(axes)
    assert [bar.get_width() for bar in axes.patches] == [p.latency_ms for p in kept]
    assert len(SIZES[9:].frame()) == 0
    budgets = GPU.budget("timm:resnet50", 50, "batch", batch_size=[1, 8])
    assert type(budgets[:1]) is type(budgets)
    assert SIZES[-1] is [*SIZES][-1]


def test_what_waits_for_a_host_is_hollow_and_the_extrapolated_is_light(axes: Any) -> None:
    from matplotlib.colors import to_hex

    sizes = [1, 16, 256]
    found = lolat.predict(
        "timm:resnet50", on=["rtx-4090", "l4"], batch_size=sizes, precision="fp16"
    )
    waits = {
        (p.batch_size, p.latency_ms) for p in found if (p.host_ms or 0.0) > 0.98 * p.latency_ms
    }
    assert 0 < len(waits) < len(found)
    found.plot(axes)
    dots = [d for d in axes.collections if hasattr(d, "get_sizes") and len(d.get_sizes())]
    at = {tuple(at): d for d in dots for at in d.get_offsets().tolist()}
    outside = {(p.batch_size, p.latency_ms) for p in found if p.in_domain is False}
    assert outside - waits
    assert {*at} == waits | outside
    assert {xy for xy, dot in at.items() if to_hex(dot.get_facecolor()[0]) == "#ffffff"} == waits
    strong = {to_hex(line.get_color()) for line in axes.lines}
    assert {xy for xy, dot in at.items() if to_hex(dot.get_edgecolor()[0]) not in strong} == outside
    notes = ["vertical bars: 90 % interval", "hollow: host-bound"]
    assert _notes(axes) == [*notes, "light: outside the measured range"]
    assert axes.get_legend_handles_labels()[1] == ["rtx-4090", "l4"]
    axes.clear()
    large = lolat.predict("timm:resnet50", on=["rtx-4090", "t4"], batch_size=256, precision="fp16")
    large.plot(axes)
    assert _notes(axes)[0] == "whiskers: 90 % interval"
    assert "hollow: host-bound" not in _notes(axes)
    assert "#ffffff" not in {to_hex(bar.get_facecolor()) for bar in axes.patches}


def test_served_models_are_curves_over_the_load(axes: Any) -> None:
    served: Any = ANSWERS["served"]
    served.plot(axes)
    rows = [r for r in served.served if r.gpus == 2]
    assert [r.tpot_ms for r in rows] == axes.lines[1].get_ydata().tolist()
    assert axes.lines[1].get_xdata().tolist() == [1, 8, 32]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["1 GPU", "2 GPUs"]
    late = dataclasses.replace(served.served[-1], fits=False)
    dataclasses.replace(served, served=(*served.served[:-1], late)).plot(axes)
    assert axes.lines[-1].get_xdata().tolist() == [1, 8]  # as far as there is room


def test_a_served_model_is_shown_at_the_percentile_and_the_limit_asked_for(axes: Any) -> None:
    pytest.importorskip("pandas")
    served = SERVER.llm(
        "llama-3.1-70b", request_rate=[3, 6], dtype="fp8", max_tpot_ms=40.0, percentile=90
    )
    frame = served.frame()
    assert frame["tpot_p90_ms"].tolist() == [row.tpot_p90_ms for row in served.served]
    ends = [(row.intervals_ms or {})["tpot_p90"] for row in served.served]
    assert [*zip(frame["tpot_p90_low_ms"], frame["tpot_p90_high_ms"], strict=True)] == ends
    assert (frame["replicas"] * frame["tensor_parallel"]).tolist() == frame["gpus"].tolist()
    keeps = ~frame["remark"].str.contains("overloaded|beyond the limits")
    assert keeps.tolist() == [row.within for row in served.served]
    best = frame[frame["remark"] == "best"]
    assert [*best.index] == [*served.bests]
    shown = best[["request_rate", "e2e_p90_ms", "largest_rate"]].to_numpy().tolist()
    rows = [served.served[n] for n in served.bests]
    assert [*best["tpot_verdict"]] == [row.verdicts["tpot"] for row in rows]
    assert shown == [[row.request_rate, row.e2e_p90_ms, row.largest_rate] for row in rows]
    served.plot(axes)
    *curves, limit = axes.lines
    assert {*limit.get_ydata()} == {40.0}
    for curve in curves:  # however many replicas
        of = [
            r
            for r in served.served
            if curve.get_label() == f"{plural(r.tensor_parallel, 'GPU')} a replica"
        ]
        assert [(r.request_rate, r.tpot_p90_ms) for r in of] == [
            *map(tuple, curve.get_xydata().tolist())
        ]
    assert axes.get_ylabel() == "ms per output token at P90, logarithmic"
    found = compare({"h100-vllm": SERVER.llm}, "qwen3-8b", request_rate=4, percentile=90)
    (row,) = found.best_rows.values()
    (cells,) = found.frame().to_dict("records")
    shown = cells["device"], cells["tpot_p90_ms"], cells["dollars_per_hour"]
    assert shown == ("h100-vllm", row.tpot_p90_ms, row.dollars_per_hour)
    assert {"tpot_verdict", "ttft_verdict"}.isdisjoint(cells)  # without limits
    axes.clear()
    found.plot(axes)
    assert [bar.get_width() for bar in axes.patches] == [row.tpot_p90_ms]
    assert axes.get_xlabel() == "ms per output token at P90"


def test_each_load_of_compared_devices_is_a_row_and_a_point(axes: Any) -> None:
    pytest.importorskip("pandas")
    names = ["b200-vllm", "b200-sglang"]
    found = lolat.compare("qwen3-8b", on=names, concurrency=[16, 64], tensor_parallel=1)
    each = {
        n: lolat.load(n).llm("qwen3-8b", concurrency=[16, 64], tensor_parallel=1) for n in names
    }
    points = {n: [(r.concurrency, r.tpot_ms) for r in of.served] for n, of in each.items()}
    frame = found.frame()
    assert [*zip(frame["device"], frame["concurrency"], frame["tpot_ms"], strict=True)] == [
        (name, *points[name][load]) for load in (0, 1) for name in names
    ]
    found.plot(axes)
    drawn = {line.get_label(): [*map(tuple, line.get_xydata().tolist())] for line in axes.lines}
    assert drawn == points


def test_devices_are_bars_with_their_intervals(axes: Any) -> None:
    devices: Any = ANSWERS["devices"]
    devices.plot(axes)
    assert [bar.get_width() for bar in axes.patches] == [p.latency_ms for p in devices]
    names = [f"{p.device}, {p.precision}" for p in devices]  # the processor has another precision
    assert [t.get_text() for t in axes.get_yticklabels()] == names


def test_an_answer_without_a_picture_says_which_have_one() -> None:
    with pytest.raises(InputError, match="Models has no picture; expected one of Prediction"):
        ANSWERS["models"].plot()


@pytest.mark.parametrize("name", ["cost", "costs"])
def test_dollars_are_drawn_over_hours(name: str, axes: Any) -> None:
    answer: Any = ANSWERS[name]
    answer.plot(axes)
    drawn = [(float(x), float(y)) for line in axes.lines for x, y in line.get_xydata()]
    costs = [answer] if name == "cost" else answer.answers
    assert drawn == [(o.total_s / 3600, o.dollars) for c in costs for o in c.options]

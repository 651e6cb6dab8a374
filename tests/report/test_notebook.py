"""Answers in a notebook: the terminal's cells, tidy tables that add up, pictures of the same numbers."""

from __future__ import annotations

import dataclasses
import html
import importlib
import math
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import lolat
from lolat.cli.main import lolat as commands
from lolat.errors import InputError, MissingPackageError
from lolat.io.results import Result
from lolat.llm.compare import compare
from lolat.parameters import in_python
from lolat.report import pictures
from lolat.report.notebook import REPORTS
from lolat.report.pictures import PICTURES
from lolat.report.tables import lines_of
from lolat.units import milliseconds, plural

GPU, SERVER = lolat.load("rtx-4090-amp"), lolat.load("h100-vllm")
BLOCKS = GPU.predict("timm:resnet50", 64)
SIZES = GPU.predict(["timm:resnet50", "timm:resnet18"], [1, 8, 64])
ANSWERS: dict[str, Result] = {
    "blocks": BLOCKS,
    "a CPU": lolat.load("epyc-2t").predict("keras:ResNet50"),
    "sizes": SIZES,
    "devices": lolat.predict("timm:resnet50", on=["v100", "t4", "epyc-2t"], precision="amp"),
    "cost": GPU.cost("timm:resnet50", 64, 1000, replicas=[1, 2]),
    "costs": lolat.compare("timm:resnet50", 64, on=["v100", "t4"], samples=1000),
    "explanation": GPU.explain("timm:resnet50", 64),
    "block": GPU.explain("timm:resnet50", 64, block="layer1.0"),
    "budget": GPU.budget("timm:resnet50", 50, "batch"),
    "served": SERVER.llm("qwen3-8b", concurrency=[1, 8, 32], tensor_parallel=[1, 2]),
    "served at a rate": SERVER.llm("qwen3-8b", request_rate=[1, 4], tensor_parallel=1),
    "models": lolat.models(),
    "device": GPU,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_html_has_the_lines_and_cells_of_the_terminal(name: str) -> None:
    answer = ANSWERS[name]
    shown = html.unescape(re.sub("<[^>]+>", " ", answer._repr_html_()))
    kind = next(c.__name__ for c in type(answer).__mro__ if c.__name__ in REPORTS)
    printed = "\n".join(map(in_python, lines_of(REPORTS[kind](answer))))
    assert len(printed) > 100
    assert "".join(shown.split()) == "".join(printed.split())


@pytest.mark.parametrize("ask", [SERVER.llm, partial(compare, {"h100-vllm": SERVER.llm})])
def test_warnings_of_a_language_model_are_lines(ask: Any) -> None:
    answer = ask("qwen3-8b", concurrency=8, input_tokens=30_000)
    shown = html.unescape(answer._repr_html_())
    assert answer.warnings
    assert [*re.findall("<p>note: (.*?)</p>", shown)] == [*answer.warnings]


def test_a_name_does_not_become_markup() -> None:
    graph = replace(lolat.read("timm:resnet18"), name="<script>alert(1)</script>")
    shown = GPU.predict(graph)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.parametrize("name", ANSWERS)
def test_a_frame_is_narrow_and_holds_scalars(name: str) -> None:
    pytest.importorskip("pandas")
    frame = ANSWERS[name].frame()
    assert 1 <= frame.shape[1] <= 19
    assert len(frame) >= 1
    assert not frame.map(lambda v: isinstance(v, (list, dict, tuple))).any().any()


def test_an_answer_without_a_time_has_no_picture() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="does not fit; its weights take") as caught:
        SERVER.llm("llama-3.1-70b", concurrency=8, tensor_parallel=1).plot()
    assert caught.value.code == "no-picture"


def test_a_frame_has_what_is_printed_and_drawn() -> None:
    """An explanation's causes and savings; the device without a precision that it was not asked in."""
    pytest.importorskip("pandas")
    found = lolat.load("rtx-4090").explain("timm:resnet50", 64)
    causes, changes = found.frame(), found.changes()
    assert not causes.isna().any().any() | changes.isna().any().any()
    assert not changes["change"].str.contains("--").any()
    assert causes["latency_ms"].sum() == pytest.approx(found.prediction.latency_ms)
    before = changes["latency_ms"] + changes["saves_ms"]
    assert before.to_numpy() == pytest.approx(found.prediction.latency_ms)
    assert len(changes) == len(found.counterfactuals) > 2
    on = lolat.predict("timm:resnet50", ["a100", "rtx-3090"], precision="bf16")
    assert [*on.frame()["device"]] == ["a100", "rtx-3090"]
    assert [*on.frame()["profile"]] == ["a100-fp32", "rtx-3090-amp"]
    assert all(f">{name}<" in on._repr_html_() for name in ("a100", "rtx-3090"))


@pytest.mark.parametrize("name", ["blocks", "a CPU"])
def test_blocks_and_their_causes_add_up(name: str) -> None:
    pytest.importorskip("pandas")
    answer: Any = ANSWERS[name]
    frame = answer.frame()
    causes = [c for c in frame if c.endswith("_ms") and c != "latency_ms"]
    assert frame["latency_ms"].sum() == pytest.approx(answer.latency_ms)
    assert frame[causes].sum(axis=1).to_numpy() == pytest.approx(frame["latency_ms"].to_numpy())
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["macs"].sum() == answer.counts["flops"]
    assert not frame["block"].str.contains(" · ").any()
    longest = frame.loc[frame["latency_ms"].idxmax()]
    words = longest["most_of_it_is"].replace(" ", "_") + "_ms"
    assert longest[words] == max(longest[causes])


def test_no_repr_names_a_time_that_memory_rules_out() -> None:
    """The largest batch of a card is not twice the largest that fits."""
    most = GPU.predict("timm:resnet18", "auto").batch_size
    assert "prediction" in (shown := repr(GPU.predict("timm:resnet18", [1, most])))
    assert "not fit" not in shown
    assert "1 of which does not fit" in repr(GPU.predict("timm:resnet18", [1, 2 * most]))
    trained = GPU.cost("timm:resnet18", [8, 2 * most])
    fits, without = trained.answers
    assert (fits.fits, without.fits) == (True, False)
    assert f"iterations of {milliseconds(fits.options[0].iteration_ms)};" in repr(trained)
    assert milliseconds(without.options[0].iteration_ms) not in repr(trained)
    assert "1 of 2 options without room" in repr(trained)
    # 8 G parameters of 16 bytes are 120 GiB, an eighth of them 15: one GPU of 80 is too small.
    sharded = SERVER.cost("llama-3.1-8b", 1, input_size=2048, replicas=[1, 8], sharding="fsdp")
    assert f"{milliseconds(sharded.options[1].iteration_ms)} an iteration on 8 dev" in repr(sharded)
    assert milliseconds(sharded.options[0].iteration_ms) not in repr(sharded)
    pytest.importorskip("pandas")
    assert sharded.frame()["fits"].tolist() == [False, True]
    assert without.frame()["fits"].tolist() == [False]


def test_several_are_a_row_each() -> None:
    pytest.importorskip("pandas")
    frame = SIZES.frame()
    assert frame["latency_ms"].tolist() == [p.latency_ms for p in SIZES]
    assert frame["batch_size"].tolist() == 2 * [1, 8, 64]
    assert frame["samples_per_s"].iloc[2] == pytest.approx(64e3 / SIZES[2].latency_ms)
    assert SIZES[2].samples_per_s == frame["samples_per_s"].iloc[2]
    assert ANSWERS["costs"].frame()["dollars"].min() == pytest.approx(
        min(o.dollars for c in ANSWERS["costs"].answers for o in c.options)  # type: ignore[attr-defined]
    )


def test_a_comparison_has_the_memory_of_each_device_asked_alone() -> None:
    pytest.importorskip("pandas")
    about = {"input_size": 2048, "sharding": "fsdp", "replicas": [4, 8]}
    found = lolat.compare("llama-3.1-8b", 1, ["h100-vllm"], **about)
    alone = {
        k: sum(SERVER.cost("llama-3.1-8b", 1, **about | {"replicas": k}).memory.values()) / 2**30
        for k in (4, 8)
    }
    frame = found.frame()
    assert frame.shape[1] <= 18
    assert dict(zip(frame["devices"], frame["memory_gib"], strict=True)) == pytest.approx(alone)
    for gib in alone.values():
        assert f">{gib:.1f} GiB<" in found._repr_html_()


def test_a_frame_of_budgets_tells_its_rows_apart() -> None:
    """Each row against its own questions: `predict` at the sizes that it names."""
    device = lolat.load("a100")
    rows = device.budget("timm:resnet50", 20, "batch", batch_size=[1, 8]).frame().to_dict("records")
    assert [row["now"] for row in rows] == [1, 8]
    for row in rows:
        for value, ms in (("now", "now_ms"), ("answer", "latency_ms"), ("next", "next_ms")):
            alone = device.predict("timm:resnet50", row[value])
            assert alone.latency_ms == pytest.approx(row[ms])
        assert row["latency_ms"] <= 20 < row["next_ms"]


def test_a_frame_has_what_is_rented_and_idle() -> None:
    """Three of a machine's eight V100 are used."""
    pytest.importorskip("pandas")
    (row,) = (
        lolat.load("v100").cost("timm:resnet50", 64, 1000, replicas=3).frame().to_dict("records")
    )
    assert row["idle_devices"] == 8 - 3
    assert "8x" in row["rented"]


@pytest.mark.parametrize("limit", [{"max_hours": 1e-3}, {"max_dollars": 1e-3}])
def test_a_limit_that_nothing_keeps_is_said_first(limit: dict[str, float]) -> None:
    words = "nothing within " + ("$0.001" if "max_dollars" in limit else "0.001 h")
    for answer in (
        GPU.cost("timm:resnet50", 64, 10**6, **limit),
        lolat.compare("timm:resnet50", 64, on=["v100", "t4"], samples=10**6, **limit),
    ):
        assert words in repr(answer)
        assert words in answer._repr_html_()
    limit = dict.fromkeys(limit, 1e6)
    assert "nothing" not in repr(GPU.cost("timm:resnet50", 64, 10**6, **limit))


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


def test_several_have_the_report_of_their_command() -> None:
    found = lolat.predict("timm:resnet18", on=["rtx-4090-amp", "t4"], batch_size=[1, 8])
    out = (
        CliRunner()
        .invoke(
            commands, ["predict", "timm:resnet18", "--on", "rtx-4090-amp,t4", "--batch-size", "1,8"]
        )
        .stdout
    )
    lines = found.report().splitlines()
    same = [line for line in out.splitlines() if "--" not in line]
    assert [line for line in lines if line in same] == same
    assert len(lines) == len(out.splitlines()) > len(same) > 5


def test_curves_of_networks_on_devices_differ_in_color_or_style(axes: Any) -> None:
    """A color for each device and a style for each network, on the user's axes too."""
    networks = ["timm:resnet50", "timm:resnet18", "timm:resnet34"]
    found = lolat.predict(networks, on=["rtx-4090", "t4", "l4"], batch_size=[1, 64])
    found.plot(axes)
    lines = {line.get_label(): line for line in axes.lines}
    assert len(lines) == 9
    looks = {name: (line.get_color(), line.get_linestyle()) for name, line in lines.items()}
    assert len({*looks.values()}) == 9
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


def test_a_device_alone_has_its_price() -> None:
    """As beside another one: US$ an hour times the hours of a million samples; None without a price."""
    alone = lolat.predict("timm:resnet50", on="rtx-4090-amp", batch_size=64)
    beside = lolat.predict("timm:resnet50", on=["rtx-4090-amp", "t4"], batch_size=64)[0]
    assert (alone.price_per_hour, alone.instance) == (beside.price_per_hour, beside.instance)
    hours = 1e6 / 64 * alone.latency_ms / 3.6e6
    assert alone.dollars_per_million == pytest.approx(hours * alone.price_per_hour)
    unpriced = lolat.predict("timm:resnet50", on="gtx-1080", batch_size=64)
    assert (unpriced.price_per_hour, unpriced.instance, unpriced.dollars_per_million) == 3 * (None,)


def test_tables_of_one_question_join_by_the_device() -> None:
    """By the card's name as it was asked, in each precision and layout; `load` takes the profile's."""
    pandas = pytest.importorskip("pandas")
    on = ["rtx-4090", "t4", "h100"]
    run = lolat.compare("timm:resnet50", [32, 128], on=on, samples=1000, replicas=1)
    assert {*run.frame()["device"]} == {*on}
    assert {*run.frame()["profile"]} == {row["device"] for row in run.rows()}
    for precision in (None, "amp", "best"):
        found = lolat.predict("timm:resnet50", on=on, batch_size=64, precision=precision)
        times = found.frame()
        assert [*times["device"]] == on
        assert [*times["profile"]] == [p.device for p in found]
        both = pandas.merge(times, run.frame(), on="device")
        assert [*both["device"].unique()] == on
    for name, profile in zip(times["device"], times["profile"], strict=True):
        device = lolat.load(profile)
        (budget,) = device.budget("timm:resnet50", 50, "batch").frame().to_dict("records")
        alone = device.cost("timm:resnet50", 64, 1000).frame()
        for row in (budget, *alone.to_dict("records")):
            assert (row["device"], row["profile"]) == (name, profile)
        assert {"estimated", "in_domain"} <= {*alone} & {*run.frame()}
    served: Any = ANSWERS["served"]
    frame = served.frame()
    assert {*frame["device"]} == {"h100-vllm"}
    gpus = frame["tokens_per_s_gpu"] * frame["gpus"]
    assert gpus.tolist() == pytest.approx(frame["tokens_per_s"].tolist())
    assert frame["tokens_per_s_user"].tolist() == [r.tokens_per_s_user for r in served.served]
    assert [*frame["remark"][[*served.bests]]] == ["cheapest tokens"] * len(served.bests)


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
    assert axes.get_ylabel() == "ms per output token at P90"
    found = compare({"h100-vllm": SERVER.llm}, "qwen3-8b", request_rate=4, percentile=90)
    (row,) = found.answers.values()
    (cells,) = found.frame().to_dict("records")
    shown = cells["device"], cells["tpot_p90_ms"], cells["dollars_per_hour"]
    assert shown == ("h100-vllm", row.tpot_p90_ms, row.dollars_per_hour)
    assert {"tpot_verdict", "ttft_verdict"}.isdisjoint(cells)  # without limits
    axes.clear()
    found.plot(axes)
    assert [bar.get_width() for bar in axes.patches] == [row.tpot_p90_ms]
    assert axes.get_xlabel() == "ms per output token at P90"


def test_no_two_rows_have_the_same_settings() -> None:
    """Expert parallel changes the time, and so do the framework and the language model."""
    pandas = pytest.importorskip("pandas")
    models = [lolat.load(f"b200-{framework}") for framework in ("vllm", "sglang")]
    asked: dict[str, Any] = {"concurrency": [16, 64], "tensor_parallel": 8, "max_tpot_ms": 60.0}
    answers = [model.llm("deepseek-r1", **asked, expert_parallel=[1, 8]) for model in models]
    answers.append(models[0].llm("qwen3.5-397b-a17b", **asked))
    frame = pandas.concat([answer.frame() for answer in answers])
    settings = [*frame.loc[:, :"gpus"], "expert_parallel"]
    assert frame["tpot_ms"].nunique() == len(frame) == 10
    assert not frame.duplicated(settings).any()
    ends = [row.ttft_interval_ms for answer in answers for row in answer.served]
    assert [*zip(frame["ttft_low_ms"], frame["ttft_high_ms"], strict=True)] == ends


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


def test_the_cheapest_row_of_each_rate_is_remarked_on() -> None:
    pytest.importorskip("pandas")
    ask: dict[str, Any] = {"request_rate": [4, 40], "max_tpot_ms": 20, "tensor_parallel": 1}
    found = lolat.compare("qwen3-8b", on=["h100-vllm", "b200-vllm"], price_per_hour=2.0, **ask)
    rows = found.rows()
    assert {(row["name"], row["request_rate"]) for row in rows} == {
        (name, rate) for name in ("h100-vllm", "b200-vllm") for rate in (4, 40)
    }
    frame = found.frame()
    for rate, of in frame.groupby("request_rate"):
        best = min(r["dollars_per_million"] for r in rows if r["request_rate"] == rate)
        cheapest = of[of["remark"].str.contains("cheapest")]
        assert [*cheapest["dollars_per_million"]] == [best]


def test_devices_are_bars_with_their_intervals(axes: Any) -> None:
    devices: Any = ANSWERS["devices"]
    devices.plot(axes)
    assert [bar.get_width() for bar in axes.patches] == [p.latency_ms for p in devices]
    names = [p.device.removesuffix("-fp32") for p in devices]  # asked in another precision
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


def test_every_choice_of_a_front_is_a_column() -> None:
    space = lolat.nas.spaces.fbnet.space()
    found = lolat.nas.search(space, GPU, lambda arch: arch.count("1"), candidates=3)
    assert {p.name for p in space.positions} <= {*found.frame().columns}


def test_html_speaks_python_and_leaves_commands() -> None:
    found = lolat.predict("timm:resnet18", on=["rtx-4090-amp", "h100-fp32"], batch_size=64)
    shown = found._repr_html_()
    assert "(one for all: precision=&quot;amp&quot;;" in shown
    assert "--" not in shown
    assert "(yours: prices=FILE)" in shown
    assert in_python("(--channels-last, or so)") == "(channels_last=True, or so)"
    assert in_python("all: --json, or --sure 90") == "all: .to_dict(), or sure=90"
    assert in_python("--launch graph and --host-us is, --lr") == 'launch="graph" and host_us is, lr'
    assert "timm:resnet50 --batch-size 64 --html report.html" in BLOCKS._repr_html_()


@pytest.mark.parametrize(
    ("package", "ask"),
    [("pandas", BLOCKS.frame), ("matplotlib", BLOCKS.plot)],
    ids=["table", "picture"],
)
def test_a_missing_package_is_one_line_that_installs_it(
    package: str, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError) as found:
        ask()
    line = rf"[^\n]*{package}; install it with: pip install [^\n]*\[notebook\]\S*"
    assert re.fullmatch(line, str(found.value))


def test_every_answer_has_its_parts() -> None:
    for module in ("api.measuring", "api.table_evaluation", "api.listing", "nas", "llm.compare"):
        importlib.import_module(f"lolat.{module}")
    kinds, todo = set[type](), [Result]
    while todo:
        found = todo.pop().__subclasses__()
        kinds |= {k for k in found if k.__module__.startswith("lolat")}
        todo += found
    made = {k for k in kinds if not k.__subclasses__()}
    without = {k.__name__ for k in made if not {c.__name__ for c in k.__mro__} & REPORTS.keys()}
    assert without == {"Diagnosis", "ServingConfig"}, "of these the words are shown"
    assert PICTURES.keys() <= {k.__name__ for k in kinds}

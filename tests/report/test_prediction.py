"""Predictions on a screen: the figures that each line shows, and names that are text."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from scipy.stats import norm

from lolat import predict
from lolat.api.loading import load
from lolat.api.model import Model
from lolat.api.predicting import Predictions, exceeded, kept_by_none
from lolat.device.attribution import find_blocks
from lolat.device.limits import Limits
from lolat.device.prediction import Prediction, memory_words
from lolat.device.ranking import cheapest, errors_of, fastest
from lolat.errors import AnswerIsNo, InputError, worded
from lolat.graph.analysis import analyze
from lolat.graph.blocks import BlockName
from lolat.io.results import Figure, Remark
from lolat.report import prediction as report
from lolat.report.best_devices import cheapest_lines
from lolat.report.ranked import Rated, apart_words, device_words, grouped_notes
from lolat.report.tables import lines_of
from lolat.units import byte_size, digits, milliseconds
from tests import synthetic

MODEL = Model(synthetic.document(), "my models/cpu.json")
PREDICTION = MODEL.predict(synthetic.network(), 4).named("keras:X", ())


def test_a_prediction_in_a_few_lines() -> None:
    first, held, second, third, *notes = report.summary(PREDICTION)
    low, high = PREDICTION.interval_ms or (0, 0)
    assert first == (
        "hand made · batch 4 · 56x56x3 · fp32, TensorFlow: "
        f"{milliseconds(PREDICTION.latency_ms)}, 90 % sure of "
        f"{milliseconds(low)[:-3]} .. {milliseconds(high)[:-3]}"
    )
    macs = synthetic.totals(synthetic.network(), 4)["flops"]
    assert f"{macs / 1e6:.0f} MMACs" in second or f"{macs / 1e9:.2f} GMACs" in second
    memory = PREDICTION.memory
    assert memory is not None
    assert third.startswith(f"{byte_size(memory.total_bytes)} of memory: ")
    points = len(synthetic.document()["points"])
    assert held.startswith(
        f"my models/cpu.json: a desk, 2 threads, by {points} measurements, batch 1 to 4, "
    )
    assert [f"note: {w}" for w in PREDICTION.warnings] == notes


def test_an_interval_of_more_than_a_hundred_times_is_not_shown() -> None:
    """Its numbers are in JSON alone; an interval of a hundred times is still shown."""
    shown = replace(PREDICTION, interval_ms=(0.5, 50.0))
    wide = replace(PREDICTION, interval_ms=(0.5, 75.0))
    assert ", 90 % sure of 0.500 .. 50.0" in next(iter(report.summary(shown)))
    apart = ", no usable interval: its ends are 150 times apart"
    assert next(iter(report.summary(wide))).endswith(apart)
    assert apart in wide.words()
    assert wide.to_dict()["interval_ms"] == [0.5, 75.0]
    text = "\n".join(lines_of(report.table_of_predictions([wide, shown])))
    assert "not usable" in text
    assert "0.500 .. 50.0" in text
    assert "75.0" not in text


def test_the_report_has_every_block_and_its_share() -> None:
    lines = PREDICTION.report().splitlines()
    assert lines[0].startswith("hand made · batch 4 · 56x56x3 · fp32, TensorFlow: ")
    assert lines[1].startswith("desk: a desk, 2 threads")
    for block in PREDICTION.blocks:
        (line,) = (x for x in lines if x.startswith(f"{block.block} "))
        assert f"{100 * block.share:.1f} %" in line
    command = "'my models/cpu.json' keras:X --batch-size 4"
    assert lines[-1] == (
        f"Next: lolat explain {command} · lolat report {command} --html report.html"
    )


def test_names_are_shown_as_text() -> None:
    names = (
        BlockName("[red]x[/]"),
        BlockName("[/]", ":smile:"),
        BlockName("\x1b[2J\x07"),
        BlockName("a\nb: c"),
    )
    graph = msgspec.structs.replace(PREDICTION.query.graph, name="[b]net[/b]: \x1b]0;x")
    strange = replace(
        PREDICTION, names=(*names, *PREDICTION.names[len(names) :]),
        query=replace(PREDICTION.query, graph=graph), warnings=("[i]w",),
    )  # fmt: skip
    shown = strange.report()
    for name in ("[red]x[/]", ":smile:", r"\x1b[2J\x07", r"a\nb: c", "[b]net[/b]: \\x1b]0;x",
                 "note: [i]w"):  # fmt: skip
        assert name in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown)


@pytest.mark.parametrize(
    ("share", "shown"),
    [(1.0, "█" * 12), (0.5, "█" * 6), (0.0, ""), (1 / 96, "▏"), (0.001, ""), (13 / 96, "█▋")],
)
def test_a_bar_is_as_long_as_its_share(share: float, shown: str) -> None:
    assert report.bar(share, 1.0) == shown
    assert report.bar(share / 4, 0.25) == shown
    assert report.bar(0.0, 0.0) == ""


def noted(*warnings: tuple[str, ...]) -> list[str]:
    """The lines below a table of predictions with these warnings, of networks n0, n1 ..."""
    plain = replace(MODEL.predict(synthetic.network()), warnings=())
    several = [
        replace(plain, warnings=said).named(f"keras:n{i}", ()) for i, said in enumerate(warnings)
    ]
    # Behind what is the same in all rows, the heads, and the rows.
    return list(lines_of(report.table_of_predictions(several)))[2 + len(warnings) :]


def test_a_note_of_some_predictions_names_them() -> None:
    on = "on my models/cpu.json"
    assert noted((), ("odd",)) == [f"note (keras:n1 {on}): odd"]
    assert noted(("odd",), ("odd",)) == ["note: odd"]
    four = noted(("odd",), ("odd",), ("odd",), ())
    assert four == [f"note (keras:n0 {on}, keras:n1 {on} and 1 more): odd"]


def test_a_note_names_its_batch_where_there_are_several() -> None:
    plain = [replace(MODEL.predict(synthetic.network(), n), warnings=()) for n in (1, 8)]
    several = [plain[0], replace(plain[1], warnings=("odd",))]
    assert [*lines_of(report.table_of_predictions(several))][-1] == "note (batch 8): odd"
    two = [*several, replace(plain[0].named("keras:n1", ()), warnings=("odd", "even"))]
    last = [*lines_of(report.table_of_predictions(two))][-1]
    assert last.startswith("note (keras:n1 on my models/cpu.json at batch 1): even")


def test_notes_that_differ_in_their_figures_are_one() -> None:
    larger = [Remark("larger than any block", "{n} blocks", n=Figure(str, n)) for n in (3, 7)]
    assert noted(*((remark,) for remark in larger)) == [
        "note: larger than any block: 3 to 7 blocks"
    ]
    other = Remark("larger than any block", "no block")
    assert noted((larger[0],), (other,)) == [
        "note (keras:n0 on my models/cpu.json): larger than any block: 3 blocks "
        "(other words for keras:n1 on my models/cpu.json)"
    ]
    other = Remark("no interval", "3 blocks")
    assert len(noted((larger[0],), (other,), ("larger than any block: all",))) == 3


def test_many_notes_are_two_lines() -> None:
    """Answers that are as unsure as each other have no least sure one."""
    lines = noted(("a", "b"), ("c",), ("d",))
    assert len(lines) == 2
    assert lines[0] == "note (keras:n0 on my models/cpu.json): a"
    x, y, z = (f"keras:n{n} on my models/cpu.json" for n in range(3))
    assert lines[1].startswith(f"3 more notes ({x}: b; {y}: c; {z}: d): --json")


def test_the_least_sure_answer_has_the_widest_interval() -> None:
    """By the ratio of its ends, whatever the order."""
    told = [("x", ("a", "b"), (1.0, 2.0)), ("y", ("c", "d"), (1.0, 4.0)), ("z", (), (9.0, 18.0))]
    for answers in (told, told[::-1]):
        assert next(grouped_notes(answers)) == "note on y, the least sure answer: c"
    told = [("w", ("c",), (1.0, 2.0)), *told]
    assert next(grouped_notes(told)) == "note on y, the least sure answer (1 more has the like): c"
    assert next(grouped_notes(told, 4)) == "note (y, w): c"


def test_the_notes_of_chosen_answers_come_first_and_are_all_told() -> None:
    told = [("x", ("a", "b"), (1.0, 2.0)), ("y", ("c", "d"), (1.0, 4.0)), ("z", (), (9.0, 9.0))]
    lines = [*grouped_notes(told, 3, {"x"})]
    assert lines[:2] == ["note (x): a", "note (x): b"]
    assert lines[2].startswith("2 more notes (y: c; y: d)")
    assert [*grouped_notes(told, 4, {"x"})][2:] == ["note (y): c", "note (y): d"]
    assert [*grouped_notes(told, 3, {"z"})] == [*grouped_notes(told, 3)]


APART = [
    ((10.0, (8.0, 12.0)), (13.0, (12.5, 14.0)), False),
    ((10.0, (8.0, 12.0)), (11.5, (11.0, 12.5)), True),
    ((10.0, (9.0, 11.0)), (20.0, (5.0, 80.0)), True),  # the one interval wholly in the other
    ((10.0, (9.0, 14.0)), (16.0, (13.0, 19.0)), False),  # they overlap; no time is in the other's
    ((10.0, (9.0, 11.0)), (50.0, None), True),
    (
        (24.0, (20.0, 28.0)),
        (606.0, (23.5, 1219.0)),
        False,
    ),  # 25 times as dear, its low end at the best
    ((10.0, (9.9, 10.1)), (10.2, (8.0, 13.0)), True),
]


@pytest.mark.parametrize(("best", "other", "alike"), APART)
def test_what_is_too_close_to_the_best_to_call(best: Any, other: Any, alike: bool) -> None:
    told = apart_words("a", {"a": Rated(*best), "b": Rated(*other)})
    # By hand, of 10.0: 11.5 is 15 % more, 20.0 100 %, 10.2 2 %, 50.0 400 %.
    more = {11.5: "15 %", 20.0: "100 %", 10.2: "2.0 %", 50.0: "400 %"}.get(other[0])
    why = "" if other[1] else ": not all have an interval"
    sure, near = "", "too close to call against"
    if other[1]:
        half = math.hypot(*(math.log(ends[1] / ends[0]) / 2 for _, ends in (best, other)))
        chance = norm.cdf(math.log(other[0] / best[0]), scale=half / norm.ppf(0.95))
        assert (chance < 0.95) == alike
        sure = f", {int(100 * chance)} % sure"
        near = "perhaps better than" if other[0] >= 1.25 * best[0] else near
        near = "probably better than" if chance >= 0.8 else near
    assert told == (f"{near} b (+{more}{sure}){why}" if alike else "")


def test_rivals_below_and_above_80_percent_have_words_of_their_own() -> None:
    """By hand: 1.2 both ways of each are 1.294 of a ratio, z = 6.38 ln(ratio): 1.05 is 62 %, 1.2 88 %."""
    each = {n: Rated(v, (v / 1.2, v * 1.2)) for n, v in (("a", 10.0), ("b", 10.5), ("c", 12.0))}
    assert apart_words("a", each, "; ") == (
        "; too close to call against b (+5.0 %, 62 % sure); probably better than c (+20 %, 87 % sure)"
    )
    more = each | {name: Rated(12.1, (12.1 / 1.2, 12.1 * 1.2)) for name in "defg"}
    assert apart_words("a", more).endswith(" and 4 more")
    # 2 both ways of each are 2.665 of a ratio, z = 1.68 ln(ratio): 1.24 is 64 %, 1.26 65 %, 1.7 81 %.
    unsure = {
        n: Rated(v, (v / 2, v * 2)) for n, v in zip("abcd", (10.0, 12.4, 12.6, 17.0), strict=True)
    }
    assert apart_words("a", unsure) == (
        "too close to call against b (+24 %, 64 % sure); perhaps better than c (+26 %, 65 % sure); "
        "probably better than d (+70 %, 81 % sure)"
    )
    assert apart_words("a", unsure | {"c": Rated(12.6, None)}).startswith(
        "too close to call against b (+24 %, 64 % sure), c (+26 %): not all have an interval; "
    )


def test_the_chance_to_be_the_better_one_does_not_depend_on_the_coverage() -> None:
    """By hand: 1.2 both ways at 90 % is as sure as 1.2 ** (1.2816 / 1.6449) at 80 %."""
    wide, narrow = 1.2, 1.2 ** (1.2816 / 1.6449)
    at_90 = {n: Rated(v, (v / wide, v * wide)) for n, v in (("a", 10.0), ("b", 11.0))}
    at_80 = {
        n: Rated(r.value, (r.value / narrow, r.value * narrow), coverage=0.8)
        for n, r in at_90.items()
    }
    assert apart_words("a", at_90) == apart_words("a", at_80) != ""
    even = {n: Rated(1.0, (0.9, 1.1)) for n in "ab"}
    assert apart_words("a", even) == "too close to call against b (the same, 50 % sure)"
    apart = {"a": Rated(10.0, (9.0, 11.0)), "b": Rated(5.0, (4.5, 5.5))}
    assert apart_words("a", apart) == ""  # the other one is surely less
    free = {"a": Rated(0.0, (0.0, 0.0)), "b": Rated(1.0, (0.9, 1.1))}
    assert apart_words("b", free).startswith("too close to call against a (-100 %")


def test_errors_in_common_leave_a_ratio_that_is_surer() -> None:
    """By hand: with 1.2 both ways for each, the ratio is 1.2 ** sqrt(2), and 1.2 ** sqrt(0.6) with 0.7 of
    the variance in common: 1.29 and 1.15.
    """
    fast, slow = (10.0, (10.0 / 1.2, 12.0)), (11.8, (11.8 / 1.2, 11.8 * 1.2))
    for one, other, alike in (("x", "x", False), ("x", "y", True), (None, None, True)):
        told = apart_words("a", {"a": Rated(*fast, one), "b": Rated(*slow, other)})
        assert bool(told) == alike
    nearer = Rated(11.4, (11.4 / 1.2, 11.4 * 1.2), "x")
    assert apart_words("a", {"a": Rated(*fast, "x"), "b": nearer})


def test_gpus_timed_in_half_precision_have_errors_in_common() -> None:
    """As the tables of timm say: in one layout, and both eager or both compiled."""

    def kind(name: str, precision: str | None = None, launch: Any = None) -> Any:
        device = load(name).run_as(precision, launch)
        return errors_of(device.predict("timm:convnext_tiny", 64))

    eager, compiled = kind("rtx-4090-amp"), kind("rtx-4090-amp-compiled")
    assert None not in (eager, compiled)
    assert eager != compiled
    assert eager == kind("rtx-3090-amp") == kind("rtx-5090-amp", "bf16") == kind("h100-fp16")
    assert eager != kind("rtx-3090-amp-nhwc")
    assert compiled == kind("rtx-pro-6000-bf16-compiled")
    not_timed = [("t4", "fp16"), ("rtx-4090-amp", "fp32"), ("a100", None), ("gtx-1080", None)]
    assert [kind(*one) for one in not_timed] == [None] * 4
    assert errors_of(load("epyc-2t").predict("timm:resnet18")) is None


def test_batches_of_one_device_are_no_rivals() -> None:
    """Their errors are the device's: only those of the other device are too close to call."""
    found = predict("timm:resnet50", on=["l4", "t4"], batch_size=[8, 64], precision="amp")
    best, *others = sorted(found, key=lambda p: p.dollars_per_million or math.inf)
    rivals = [("l4", f"{p.batch_size}") for p in others if device_words(p) == "l4"]
    assert (device_words(best), best.batch_size, len(rivals)) == ("t4", 64, 2)
    (line,) = cheapest_lines(found.answers, Limits(100.0))
    told = line.partition(";")[2]
    assert re.findall(r"(\w+) at batch (\d+)", told) == rivals
    alone = found.filter(lambda p: device_words(p) == "t4")
    assert "too close" not in "".join(cheapest_lines(alone.answers, Limits(100.0)))


def test_a_rival_below_the_best_is_less() -> None:
    told = apart_words("a", {"a": Rated(10.0, (8.0, 12.5)), "b": Rated(9.0, (8.0, 10.0))}, "; ")
    assert told.startswith("; too close to call against b (-10 %, ")


@pytest.mark.parametrize(
    ("name", "precision"),
    [("a100", "bf16"), ("a100", None), ("rtx-4090", "fp16"), ("a100-fp32", "bf16")],
)
def test_a_device_in_a_row_is_called_as_it_was_asked_for(name: str, precision: str | None) -> None:
    found = load(name).run_as(precision).predict(synthetic.network())
    assert device_words(found) == name
    (over,) = exceeded([found], Limits(1e-6))
    assert f" on {name} takes " in over


def test_a_gpu_by_its_data_sheet_is_named() -> None:
    found = load("gtx-1080").predict(synthetic.network())
    assert found.model == "gtx-1080"
    assert next(
        line for line in lines_of(report.summary(found)) if "data sheet only" in line
    ).startswith("gtx-1080: GTX 1080, ")


def test_the_bottleneck_of_a_folded_report_is_a_row_of_it() -> None:
    found = load("rtx-4090").predict("timm:resnet50", 256)
    lines = [*lines_of(report.report_lines(found, 1))]
    (told,) = [line for line in lines if line.startswith("Bottleneck")]
    names = told.split(": ")[1].split(" take")[0].replace(" and ", ", ").split(", ")
    assert {*names} <= {line.split(" ")[0] for line in lines}


def test_a_depth_that_folds_nothing_says_so() -> None:
    found = load("rtx-4090").predict("timm:resnet50", 256)
    for depth, is_told in ((0, False), (1, False), (9, True)):
        lines = [*lines_of(report.report_lines(found, depth))]
        told = f"--depth {depth} folds nothing: no module {depth} names deep holds several blocks"
        assert (told in lines) == is_told


def test_a_row_of_a_block_has_its_name_as_the_option_takes_it_and_all_that_it_does() -> None:
    """A cell of NASNet has more kinds of operations than fit into a table."""
    found = load("rtx-4090").predict("keras:NASNetMobile", 8)
    longest = max(found.blocks, key=lambda block: len(block.description))
    assert len(longest.description) > 48
    assert "..." not in longest.description
    row = next(r for r in found.block_rows() if r["block"] == longest.block)
    assert row["description"] == longest.description
    assert longest.name == f"{longest.block} · {longest.description}"
    assert find_blocks(analyze(found.query.graph), row["block"]) == [[*found.blocks].index(longest)]


def test_a_profile_learned_beside_other_programs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not compared with one of an idle machine, and no device is called the cheapest."""
    noise = {"floor": 0.1, "others": 1.59, "repeatability": 0.44}
    environment = MODEL.file.recorded | {"processor": {"threads": 2}}
    busy = Model(synthetic.document(noise=noise, environment=environment), "busy.json")
    answer = busy.predict(synthetic.network())
    assert "they used 1.6 of 2 processors; close them and learn again" in " ".join(answer.warnings)
    assert any("its times repeat within 44 %" in w for w in answer.warnings)
    monkeypatch.setattr(type(answer), "_offered", (1.0, "a machine", None))
    both = [answer, MODEL.predict(synthetic.network())]
    text = "\n".join(lines_of(report.table_of_predictions(both)))
    assert "Not compared: busy.json, which was learned while other programs ran" in text
    assert "Fastest" not in text
    assert "vs. first" not in text
    assert (fastest(both), cheapest(both)) == (both[1], both[1])
    assert fastest([answer]) is answer
    idle = Model(synthetic.document(noise=noise | {"others": 0.2}), "busy.json")
    text = "\n".join(
        lines_of(report.table_of_predictions([idle.predict(synthetic.network()), both[1]]))
    )
    assert "Not compared" not in text
    assert "Fastest" in text
    assert "Cheapest" not in text, "two CPUs have one price"
    # Beside two others these are compared with each other, although the busy one is the fastest.
    other = Model(synthetic.document(), "slow.json").predict(synthetic.network())
    slow = replace(other, latency_ms=2 * other.latency_ms, interval_ms=None)
    three = [replace(answer, latency_ms=1e-3), both[1], slow]
    table, *lines = report.table_of_predictions(three)
    (told,) = [line for line in lines_of(lines) if line.startswith("Fastest")]
    assert told.startswith(f"Fastest: {device_words(both[1])}, ")
    (column,) = (c for c in table.columns if c.head == "vs. first")  # type: ignore[union-attr]
    assert [column.value(p) for p in three] == [None, "1.00x", "2.00x"]


def test_a_limit_that_one_device_keeps_is_missed_by_none() -> None:
    """Of each network and batch size; of one device each row counts."""

    def on(name: str, size: int, ms: float) -> Prediction:
        found = Model(synthetic.document(), name).predict(synthetic.network(), size)
        return replace(found, latency_ms=ms, interval_ms=(0.5 * ms, 2 * ms))

    a, b, large = on("a", 1, 5.0), on("b", 1, 20.0), on("a", 8, 20.0)
    assert kept_by_none([a, b], Limits(10.0)) == []
    assert kept_by_none([b], Limits(10.0)) == [b]
    assert kept_by_none([a, b], Limits(9.0, sure=True)) == [a, b]
    assert kept_by_none([a, b, large], Limits(10.0)) == [large]
    assert kept_by_none([b, a], Limits(1.0)) == [a, b]  # the nearest first
    assert kept_by_none([a, b, large], Limits(10.0), by_size=False) == []


def _told(on: str, **asked: Any) -> tuple[str, Predictions]:
    """The table of a small network on devices, and the answers."""
    found = predict([synthetic.network()], on.split(","), 16, **asked)
    return "\n".join(lines_of(report.table_of_predictions(found.answers))), found


def test_gpus_of_different_launches_are_not_compared() -> None:
    """The compiled profile of a card beside an eager one; the same two eager, and one card both ways."""
    text, found = _told("rtx-pro-6000,rtx-4090", precision="best")
    assert [p.launch for p in found] == ["compiled", "eager"]
    told = "Launches differ, so these times do not compare the GPUs: compiled on rtx-pro-6000; eager on "
    assert f"{told}rtx-4090 (one for all: --launch eager)" in text
    assert told in found.words()
    assert "vs. first" not in text
    assert "Cheapest" not in text
    assert "Fastest" not in text
    assert found.fastest is found.cheapest is None
    text, _ = _told("rtx-pro-6000,rtx-4090", precision="best", launch="eager")
    assert "differ, so" not in text
    assert "Cheapest" in text
    text, _ = _told("rtx-4090-amp,rtx-4090-amp-compiled")
    assert "differ, so" not in text
    text, _ = _told("rtx-pro-6000,p4")
    assert "Launches differ" in text
    assert ": compiled on rtx-pro-6000; eager on p4" in text


def test_a_single_answer_says_the_memory_of_the_device_beside_the_need() -> None:
    """NVIDIA's 24 GB of an RTX 4090 (22.4 GiB), less what the driver and the framework keep."""
    answer = load("rtx-4090").predict(synthetic.network())
    line = memory_words(answer)
    found = re.match(r"(\S+ MiB) of the device's (\S+) GiB of free memory: ", line)
    assert found
    assert found[1] == byte_size(answer.memory.total_bytes)
    assert 21.0 < float(found[2]) < 24.0


@pytest.mark.slow
def test_all_devices_have_one_row_for_each_card_named_by_the_card() -> None:
    """The RTX PRO 6000 was timed compiled alone, in amp and in bf16: both profiles answer eager here."""
    text, found = _told("all", precision="best")
    rows = [
        line.split()[0] for line in text.splitlines() if "PyTorch" in line and "pro-6000" in line
    ]
    assert rows == ["rtx-pro-6000-max-q"]
    assert sum("pro-6000" in answer.device for answer in found) == 1
    most = predict("timm:resnet18", "all", "auto", max_ms=20)
    assert [sum(p.row_name == name for p in most) for name in rows] == [1]
    ask = {"precision": "best", "launch": "eager", "max_ms": 20}
    names = ("rtx-pro-6000-amp-compiled", "rtx-pro-6000-bf16-compiled")
    each = [load(n).predict("timm:resnet18", "auto", **ask) for n in names]
    best = min(each, key=lambda p: p.latency_ms / p.batch_size)
    assert [p.batch_size for p in most if p.row_name == rows[0]] == [best.batch_size]


def test_all_gpus_are_ranked_in_one_launch() -> None:
    """Eager; a CPU that was measured compiled alone stays so."""
    found = predict([synthetic.network()], "all", 16)
    assert {p.launch for p in found} <= {"eager", None}
    assert "Launches differ" not in found.words()


def test_with_a_limit_the_lowest_price_an_hour_is_told() -> None:
    """Of five devices, by the prices of the list; a device over the limit is none."""
    names = ("rtx-3090", "rtx-4090", "rtx-5090", "t4", "h100")
    found = [load(n).run_as("fp16").predict("timm:resnet50", 256) for n in names]
    prices = {device_words(p): p.price_per_hour for p in found}
    by_ms = {device_words(p): p.latency_ms for p in found}
    limit = 1.001 * by_ms["rtx-3090"]
    able = [n for n, ms in by_ms.items() if ms <= limit]
    assert 1 < len(able) < len(names)
    text = "\n".join(lines_of(report.table_of_predictions(found, Limits(limit))))
    cheapest = min(able, key=lambda name: prices[name] or 0.0)
    assert f"Lowest price an hour: {cheapest}, ${prices[cheapest]:.3g}" in text
    assert all(f"{name}: " in text for name in prices)
    assert "Lowest price" not in "\n".join(lines_of(report.table_of_predictions(found)))


def test_the_fastest_keeps_the_limits() -> None:
    """The second fastest if the fastest may exceed the limit; no device if none keeps it."""
    found = [
        load(n).run_as("fp16").predict("timm:resnet50", 256) for n in ("t4", "rtx-3090", "h100")
    ]
    t4, third, first = found
    unsure = replace(first, interval_ms=(first.latency_ms, 10.0 * t4.latency_ms))
    high = (third.interval_ms or (0.0, 0.0))[1]

    def told(limits: Limits) -> list[str]:
        lines = lines_of(report.table_of_predictions([t4, third, unsure], limits))
        return [line for line in lines if line.startswith("Fastest")]

    line, *_ = told(Limits(1.01 * high, sure=True))
    assert line == f"Fastest within {1.01 * high:g} ms: rtx-3090, {milliseconds(third.latency_ms)}"
    assert told(Limits(0.5 * first.latency_ms)) == []
    assert told(Limits(min_samples_per_s=1e9)) == []


def test_with_a_rate_the_lowest_price_an_hour_comes_first() -> None:
    """Devices that compute the samples a second at their batch size, of any number of milliseconds."""
    found = [
        load(n).run_as("fp16").predict("timm:resnet50", size)
        for n, size in (("rtx-3090", 256), ("rtx-4090", 64), ("t4", 256))
    ]
    rates = {device_words(p): 1e3 * p.batch_size / p.latency_ms for p in found}
    least = 0.999 * rates["rtx-3090"]
    assert rates["t4"] < least < rates["rtx-4090"]
    lines = [*lines_of(report.table_of_predictions(found, Limits(min_samples_per_s=least)))]
    (lowest, _), (cheapest, _) = (
        next((i, line) for i, line in enumerate(lines) if line.startswith(begin))
        for begin in ("Lowest price an hour: rtx-3090, $0.5", "Cheapest that keeps")
    )
    assert lowest < cheapest
    assert "not counted" not in lines[lowest]
    both = lines_of(report.table_of_predictions(found, Limits(1e6, least)))
    (line,) = (line for line in both if line.startswith("Lowest price an hour"))
    fill = milliseconds(1e3 * 256 / least)
    assert line.endswith(f"; the {fill} in which 256 samples come at {least:g}/s are not counted")
    (refused,) = exceeded(found, Limits(min_samples_per_s=least))
    assert f"on t4 computes {rates['t4']:.0f} samples/s" in refused
    assert exceeded(found, Limits(max_ms=1e6)) == []


def test_devices_that_share_a_load_are_told_where_they_cost_less() -> None:
    """By trying one to nine of each; alone no device keeps the second rate."""
    found = [
        load(n).run_as("fp16").predict("timm:resnet50", 256) for n in ("rtx-3090", "t4", "h100")
    ]
    rates = {device_words(p): 1e3 * p.batch_size / p.latency_ms for p in found}
    prices = {device_words(p): p.price_per_hour or 0.0 for p in found}
    for least in (1.9 * rates["rtx-3090"], 1.5 * rates["h100"]):
        able = [
            (number * prices[name], number, name)
            for name in rates
            for number in range(1, 10)
            if number * rates[name] >= least
        ]
        dollars, number, name = min(able)
        assert number > 1
        lines = lines_of(report.table_of_predictions(found, Limits(min_samples_per_s=least)))
        (line,) = (line for line in lines if line.startswith("Lowest price an hour"))
        assert f": {number} x {name}, ${digits(dollars)}, for a steady load that they share" in line
        alone = sorted((dollars, name) for dollars, number, name in able if number == 1)
        assert line.endswith(
            f"; alone: {alone[0][1]}, ${digits(alone[0][0])}" if alone else "share"
        )


def test_devices_with_batch_sizes_of_their_own_are_told_faster_modes() -> None:
    found = predict("timm:resnet50", ["rtx-3090", "t4"], "auto")
    assert len({p.batch_size for p in found}) == 2
    text = "\n".join(lines_of(report.table_of_predictions([*found], Limits(min_samples_per_s=300))))
    best = max(found, key=lambda p: p.samples_per_s or 0.0)
    told = f"{best.device} at batch {best.batch_size}, {digits(best.samples_per_s or 0.0)}"
    assert f"Most samples/s within the limits: {told}" in text
    assert "\nFastest" not in text
    assert "Cheapest with --launch compiled that keeps 300 samples/s: " in text
    assert "named for one network" not in text


def test_a_missed_limit_names_what_keeps_it() -> None:
    """By asking the T4 in each precision, and at each doubled batch size."""
    words, net = ("fp32", "amp", "fp16"), "timm:resnet50"
    t4 = load("t4")
    by_word = {w: t4.predict(net, input_size=512, precision=w).latency_ms for w in words}
    word = min(by_word, key=by_word.__getitem__)
    found, best = t4.predict(net, input_size=512), milliseconds(by_word[word])
    assert (found.precision, word) == ("fp32", "fp16")
    (line,) = exceeded([found], Limits(max_ms=1.1 * by_word[word]))
    assert f"; in {word} it takes {best} (" in line
    (line,) = exceeded([found], Limits(min_samples_per_s=900 / by_word[word]))
    assert f"; in {word} it computes {1e3 / by_word[word]:.0f} (" in line
    assert "batch_size" not in worded(line).partition(" it computes")[2]  # none computes as many
    (line,) = exceeded([found], Limits(min_samples_per_s=2500 / by_word[word]))
    assert line.endswith(f"; 3 such devices compute as many in {word}")
    (line,) = exceeded([found], Limits(0.9 * by_word[word], 2500 / by_word[word]))
    assert "devices" not in line  # none of them keeps the time
    with pytest.raises(AnswerIsNo, match=f"in {word} it takes {best} .precision=.best"):
        t4.budget(net, 0.5 * by_word["fp32"], "batch", input_size=512)
    with pytest.raises(AnswerIsNo) as no:
        t4.budget(net, 0.5 * by_word[word], "batch", input_size=512, precision="best")
    assert "precision" not in str(no.value)

    own = load("rtx-4090").run_as("bf16")
    ms = own.predict(net, 64).latency_ms
    for most in (0.999 * ms, 0.4 * ms):  # of the rate half the time is left
        (line,) = exceeded([own.predict(net, 64)], Limits(most, 2 * 64e3 / ms))
        assert f"than the {128e3 / ms:g} of min_samples_per_s" in worded(line)
        assert f"the {most:g} ms of max_ms" in worded(line)
        (line,) = exceeded([own.predict(net, 64)], Limits(most, 1.0))
        assert "samples/s" not in line
    rates = {n: own.predict(net, n).samples_per_s or 0.0 for n in (1, 2, 4, 8)}
    assert rates[1] < rates[2] < 0.99 * rates[4]
    least = (rates[2] + rates[4]) / 2
    (line,) = exceeded([own.predict(net)], Limits(min_samples_per_s=least))
    assert worded(line).endswith(f"; with batch_size 4 it computes {rates[4]:.0f}")


def test_an_answer_that_is_not_in_the_fastest_precision_says_so() -> None:
    """Of a H100 measured in TF32; no word of it in its fastest, in one asked for, and on a CPU."""
    h100, size = load("h100"), 64
    found, best = (h100.predict("timm:convnext_tiny", size, precision=p) for p in (None, "best"))
    takes = f"{best.precision} takes {milliseconds(best.latency_ms)}"
    said = f'not its fastest precision: {takes} (precision="best")'
    several = h100.predict("timm:convnext_tiny", [1, size])
    assert said in found.report()
    assert said.replace(" (", f" at batch {size} (") in several.report()
    asked = h100.predict("timm:convnext_tiny", size, precision="tf32")
    for other in (best, asked, PREDICTION):
        assert "not its fastest" not in other.report()
    assert f"in {found.precision}: " in repr(several)
    both = predict("timm:convnext_tiny", ["h100", "rtx-4090"], size)
    assert "each in its fastest precision, bf16: " in repr(both)


def test_cards_run_in_their_fastest_precisions_unless_they_are_told() -> None:
    """By asking each in each; two profiles of one card are compared as they are named."""
    words, size = ("fp32", "tf32", "amp", "fp16", "bf16"), 64
    found = predict("timm:resnet50", ["t4", "l4"], size)
    for p, name in zip(found, ("t4", "l4"), strict=True):
        times = []
        for word in words:
            with suppress(InputError):  # a T4 has no TF32
                times.append(load(name).predict("timm:resnet50", size, precision=word).latency_ms)
        assert p.latency_ms <= 1.01 * min(times)
    assert "differ, so" not in found.report()
    assert predict("timm:resnet50", ["t4", "l4"], size, precision="fp32")[0].precision == "fp32"
    own = predict("timm:resnet50", [load("t4").run_as("fp32"), load("l4")], size)
    assert own[0].precision == "fp32"
    assert own[1].latency_ms == found[1].latency_ms
    card = predict("timm:resnet50", ["h100-fp32", "h100-fp16"], size)
    assert [p.precision for p in card] == ["fp32", "fp16"]


def test_the_fastest_and_the_cheapest_are_told_and_given() -> None:
    """By the rows of the table; a network or a batch size is chosen before."""
    every = predict(["timm:resnet50", "timm:resnet18"], ["rtx-4090", "l4", "t4"], [64, 128])
    for name in ("fastest", "cheapest"):
        with pytest.raises(InputError, match=rf"2 networks; .*'timm:resnet50'\)\.{name}$"):
            getattr(every, name)
    found = every.filter(lambda p: p.network == "timm:resnet50")
    frame = sorted(found.rows(), key=lambda r: r["latency_ms"] / r["batch_size"])
    best = found.fastest
    assert best is not None
    assert (best.network, best.device, best.batch_size) == tuple(
        frame[0][key] for key in ("network", "device", "batch_size")
    )
    usd = min(row["dollars_per_million"] for row in frame)
    assert found.cheapest is not None
    assert found.cheapest.dollars_per_million == usd
    some = found.filter(lambda p: p.batch_size == 64)
    least = min(some, key=lambda p: p.latency_ms)
    assert some.fastest is least
    line = f"Fastest: {device_words(least)}, {milliseconds(least.latency_ms)}"
    assert line in some.report()
    assert some.report().index("Fastest") < some.report().index("Cheapest")
    assert found.filter(lambda p: False).fastest is None
    host = predict("timm:resnet18", ["rtx-4090", "l4"], 1)
    assert host.fastest is None  # their hosts are assumed
    assert "; the times of rtx-4090, l4 depend on assumed launch overheads; " in host.report()
    assert found[:1].words() == found[0].words()


def test_a_batch_that_fills_the_memory_is_too_close_to_be_sure() -> None:
    """Within a tenth of what there is, as a training's; with room there is no such word."""
    card = load("rtx-4090")
    full, half = card.predict("timm:resnet50", "auto"), card.predict("timm:resnet50", 1024)
    assert 0.9 * (full.available_bytes or 0) < full.memory_bytes <= (full.available_bytes or 0)
    assert ["too close to be sure" in p.report() for p in (full, half)] == [True, False]


def test_the_notes_of_the_fastest_device_are_not_hidden() -> None:
    """They would be, as intervals of others are wider."""
    on = ["v100", "t4", "l4"]
    found = predict("timm:vit_base_patch16_224", on=on, batch_size=256)
    best = found.fastest
    assert best is not None
    assert max(found, key=lambda p: p.interval_ms[1] / p.interval_ms[0]) is not best
    _, *lines = report.table_of_predictions(found.answers, most_notes=0)
    first, *_ = (str(line) for line in lines if str(line).startswith("note"))
    assert device_words(best) in first.partition(":")[0]


def test_channels_last_on_several_cards_is_their_fastest_precision_that_has_the_layout() -> None:
    """Brute force over the precisions; float32 and TF32 have no such layout."""
    for one in predict(
        "timm:resnet18", on=["rtx-3090", "a100", "h100"], batch_size=64, channels_last=True
    ):
        each = []
        for precision in ("amp", "fp16", "bf16"):
            device = load(one.device).run_as(precision, channels_last=True)
            each.append(device.predict("timm:resnet18", 64).latency_ms)
        assert one.latency_ms == pytest.approx(min(each), rel=0.03)
        assert one.channels_last


def test_rows_of_one_device_with_equal_times_are_printed() -> None:
    """bfloat16 and float16 are equal on an RTX 4090; graphs of the rows cannot be compared."""
    for on in (["rtx-4090"], ["rtx-3090", "h100"]):
        found = predict("timm:resnet50", on=on, batch_size=64, precision=["bf16", "fp16"])
        table, *_ = report.table_of_predictions(found.answers)
        assert len(table.rows) == 2 * len(on)


def test_titles_of_hidden_notes_are_not_cut_in_brackets() -> None:
    whole = "kinds that were hardly timed, of which (two: a) are, so they are like others"
    x = "keras:n0 on my models/cpu.json"
    lines = noted(("a", whole, "larger, or of other proportions", "c"), ("d",))
    assert (
        f"({x}: kinds that were hardly timed, of which; {x}: larger, or of other proportions; {x}: c and"
        in lines[1]
    )


def test_a_name_of_several_cards_is_shown_with_the_card_that_answers() -> None:
    """As is the card whose price it is, if that has another memory; what is shown can be asked again."""
    on = ["a100", "a100-80gb", "a100-sxm-80gb", "h100", "rtx-4090", "t4", "a100-fp32"]
    found = predict("timm:resnet18", on, 64)
    shown = ["PCIe 40 GB", "PCIe 80 GB", "", "SXM", "", "", ""]
    assert [p.card for p in found] == shown[: len(found)]
    lines = [*lines_of(report.table_of_predictions(found.answers))]
    for p in found:
        name = f"{p.device} ({p.card})" if p.card else p.device
        (row,) = (line for line in lines if line.startswith(f"{name}  "))
        assert ("  A100-80GB  " in row) == (p.device == "a100")  # 40 GiB, and the list has 80
        (again,) = predict("timm:resnet18", [name], 64, precision=p.precision)
        assert (again.latency_ms, again.price_per_hour) == (p.latency_ms, p.price_per_hour)
        assert again.card == ""
    assert "on a100 (PCIe 40 GB): " in repr(found[0])
    other = load("a100 (SXM 80 GB)").predict("timm:resnet18", 64)
    assert other.latency_ms == load("a100-sxm-80gb").predict("timm:resnet18", 64).latency_ms


def test_a_smaller_batch_that_is_nearly_as_fast_is_told() -> None:
    """It is the smallest power of two with 95 % of the samples a second; of a sweep, one of its sizes."""
    gpu, network = load("rtx-4090"), synthetic.network()
    rates = {n: gpu.predict(network, n).samples_per_s or 0.0 for n in (2**i for i in range(14))}
    sizes = [1, 64, 4096, 8192]
    smallest = min(n for n in rates if rates[n] >= 0.95 * rates[8192])
    (line,) = report.smaller_batch_lines(gpu.predict(network, 8192))
    of = f"{digits(rates[smallest])} of {digits(rates[8192])} samples/s"
    assert line.startswith(f"Nearly as fast: batch {smallest}, {of}, in ")
    assert [*report.smaller_batch_lines(gpu.predict(network, 1))] == []
    asked = [gpu.predict(network, n) for n in sizes]
    most = max(sizes, key=rates.__getitem__)
    enough = min(n for n in sizes if rates[n] >= 0.95 * rates[most])
    told = [*report.enough_lines(asked)]
    assert enough < most
    of = f"{digits(rates[enough])} of {digits(rates[most])} samples/s"
    assert told == [f"Nearly as fast as batch {most}: {enough}, {of}"]
    assert [*report.enough_lines([*asked, load("rtx-3090").predict(network, 1)])] == []
    assert [*report.enough_lines(asked[:2])] == []

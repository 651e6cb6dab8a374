"""Answers in a notebook: the terminal's cells, tidy tables that add up."""

from __future__ import annotations

import html
import importlib
import re
import sys
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import lolat
from lolat.api.predicting import Predictions
from lolat.cli.main import lolat as commands
from lolat.errors import MissingPackageError
from lolat.io.results import Result
from lolat.llm.compare import compare
from lolat.parameters import in_python
from lolat.report.notebook import REPORTS
from lolat.report.pictures import PICTURES
from lolat.report.tables import lines_of
from lolat.units import milliseconds

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


def lines_shown(answer: Any) -> list[str]:
    """The lines of an answer in a notebook, without its tables."""
    told = re.findall("<p .*?</p>", answer._repr_html_(), re.DOTALL)
    return [line for one in told for line in html.unescape(re.sub("<.*?>", "", one)).split("\n")]


@pytest.mark.parametrize("name", ["epyc-2t", "rtx-4090", "h100-vllm"])
def test_a_sentence_on_a_device_is_one_line(name: str) -> None:
    """A screen is narrower than a notebook: its broken lines are joined, and brackets close."""
    told = lines_shown(lolat.load(name))
    assert all(line.count("(") == line.count(")") for line in told)
    assert max(map(len, told)) > 96


@pytest.mark.parametrize("ask", [SERVER.llm, partial(compare, {"h100-vllm": SERVER.llm})])
def test_warnings_of_a_language_model_are_lines(ask: Any) -> None:
    answer = ask("qwen3-8b", concurrency=8, input_tokens=30_000)
    assert answer.warnings
    notes = [line for line in lines_shown(answer) if line.startswith("note: ")]
    assert [note.removeprefix("note: ") for note in notes] == [*answer.warnings]


def test_the_answer_is_first_and_bold() -> None:
    found = GPU.predict("timm:resnet50", 64)
    bold = re.findall("<b>(.*?)</b>", html.unescape(found._repr_html_()))
    low, high = found.interval_ms or (0.0, 0.0)
    assert bold == [lines_shown(found)[0]]
    assert f"{milliseconds(found.latency_ms)}, 90 % sure of {low:.1f} .. {high:.1f}" in bold[0]


def test_a_name_does_not_become_markup() -> None:
    graph = replace(lolat.read("timm:resnet18"), name="<script>alert(1)</script>")
    shown = GPU.predict(graph)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.parametrize("name", ANSWERS)
def test_a_frame_is_narrow_and_holds_scalars(name: str) -> None:
    pytest.importorskip("pandas")
    frame = ANSWERS[name].frame()
    assert 1 <= frame.shape[1] <= 20
    assert len(frame) >= 1
    assert not frame.map(lambda v: isinstance(v, (list, dict, tuple))).any().any()


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
    assert (changes["low_ms"] < changes["latency_ms"]).all()
    assert (changes["latency_ms"] < changes["high_ms"]).all()
    assert len(changes) == len(found.counterfactuals) > 2
    on = lolat.predict("timm:resnet50", ["a100", "rtx-3090"], precision="bf16")
    assert [*on.frame()["device"]] == ["a100", "rtx-3090"]
    assert [*on.frame()["profile"]] == ["a100-fp32", "rtx-3090-amp"]
    assert all(f">{name}<" in on._repr_html_() for name in ("a100 (PCIe 40 GB)", "rtx-3090"))


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
    words = "othing is within " + ("$0.001" if "max_dollars" in limit else "0.001 h")
    for answer in (
        GPU.cost("timm:resnet50", 64, 10**6, **limit),
        lolat.compare("timm:resnet50", 64, on=["v100", "t4"], samples=10**6, **limit),
    ):
        assert words in repr(answer)
        html = answer._repr_html_()
        assert 0 < html.index(f"N{words}") < html.index("<table")
    limit = dict.fromkeys(limit, 1e6)
    assert "nothing" not in repr(GPU.cost("timm:resnet50", 64, 10**6, **limit))


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
    """By the name that was asked, in each precision and layout; `load` takes the profile's too."""
    pandas = pytest.importorskip("pandas")
    on = ["rtx-4090", "t4", "h100"]
    run = lolat.compare("timm:resnet50", [32, 128], on=on, samples=1000, replicas=1)
    assert {*run.frame()["device"]} == {*on}
    assert {*run.frame()["profile"]} == {row["profile"] for row in run.rows()}
    for precision in (None, "amp", "best"):
        found = lolat.predict("timm:resnet50", on=on, batch_size=64, precision=precision)
        times = found.frame()
        assert [*times["device"]] == on
        assert [*times["profile"]] == [p.profile for p in found]
        both = pandas.merge(times, run.frame(), on="device")
        assert [*both["device"].unique()] == on
    for profile in times["profile"]:
        device = lolat.load(profile)
        (budget,) = device.budget("timm:resnet50", 50, "batch").frame().to_dict("records")
        alone = device.cost("timm:resnet50", 64, 1000).frame()
        for row in (budget, *alone.to_dict("records")):
            assert (row["device"], row["profile"]) == (profile, profile)
        assert {"estimated", "in_domain"} <= {*alone} & {*run.frame()}
    served: Any = ANSWERS["served"]
    frame = served.frame()
    assert {*frame["device"]} == {"h100-vllm"}
    gpus = frame["tokens_per_s_gpu"] * frame["gpus"]
    assert gpus.tolist() == pytest.approx(frame["tokens_per_s"].tolist())
    assert frame["tokens_per_s_user"].tolist() == [r.tokens_per_s_user for r in served.served]
    words = ["cheapest tokens" if n == served.best else "cheapest" for n in served.bests]
    assert [*frame["remark"][[*served.bests]]] == words


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


def test_every_choice_of_a_front_is_a_column() -> None:
    space = lolat.nas.spaces.fbnet.space()
    found = lolat.nas.search(space, GPU, lambda arch: arch.count("1"), candidates=3)
    assert {p.name for p in space.positions} <= {*found.frame().columns}


def test_html_speaks_python_and_leaves_commands() -> None:
    each = (lolat.load(name).predict("timm:resnet18", 64) for name in ("rtx-4090-amp", "h100-fp32"))
    shown = Predictions(tuple(each))._repr_html_()
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
    for module in (
        "api.doctor",
        "api.measuring",
        "api.table_evaluation",
        "api.listing",
        "nas",
        "llm.compare",
    ):
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

"""One language model on several GPUs: the command, its JSON, and who is the cheapest and the fastest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lolat as package
from lolat.api.model import Model
from lolat.api.serving import serving_model
from lolat.errors import AnswerIsNo, InputError, LolatError
from lolat.llm.answer import ServingAnswer
from lolat.llm.compare import compare
from lolat.llm.names import published
from lolat.report.llms import compared_lines, compared_table
from lolat.report.tables import lines_of
from lolat.training.compare import Costs
from tests.cli.commands import Command
from tests.llm.known_gpu import LARGE, SHEET, document, section

pytestmark = pytest.mark.slow  # They simulate loads.

SLOW = msgspec.structs.replace(SHEET, bandwidth_gb_s=500, bf16_tflops=200)
SMALL = msgspec.structs.replace(SHEET, memory_gib=10, gpus_per_node=1)
SHEETS = {"large": SHEET, "slow": SLOW, "small": SMALL}
PRICES = (
    "InstanceType,AcceleratorName,AcceleratorCount,Price\none,h100,1,40\none-slow,a100-80gb,1,0.5\n"
)
NAMES = {"large": "h100", "slow": "a100-sxm", "small": "t4"}


@pytest.fixture
def lolat(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`large.json`, `slow.json`, `small.json` and the configuration `eight.json`."""
    monkeypatch.chdir(tmp_path)
    for name, known in files().items():
        Path(f"{name}.json").write_text(json.dumps(known))
    Path("eight.json").write_text(json.dumps(LARGE))
    return Command(capsys)


def files() -> dict[str, dict[str, Any]]:
    known = {name: document(section(sheet=sheet)) for name, sheet in SHEETS.items()}
    return {name: one | {"device": f"{NAMES[name]} (vllm)"} for name, one in known.items()}


def asks(models: Mapping[str, Model]) -> dict[str, Callable[..., ServingAnswer]]:
    return {name: model.llm for name, model in models.items()}


ASK = ("eight.json", "--concurrency", "8", "--tensor-parallel", "1")


def test_a_row_a_model_and_a_reason_for_the_others(lolat: Command) -> None:
    found = lolat.json("llm", "large.json,slow.json,small.json", *ASK)
    each = {name: lolat.json("llm", name, *ASK)["rows"] for name in ("large.json", "slow.json")}
    assert {a["name"]: a["rows"] for a in found["answers"]} == each
    assert (found["fastest"], list(found["left_out"])) == ("large.json", ["small.json"])
    assert found["left_out"]["small.json"].startswith("does not fit on 1 GPU: at least 4 GPUs")
    text = lolat.text("llm", "large.json,slow.json,small.json", *ASK)
    rows = [line.split()[0] for line in text.splitlines() if ".json  " in line]
    assert rows == ["large.json", "slow.json"]
    assert "small.json: does not fit on 1 GPU: at least 4 GPUs" in text


def test_the_cheapest_and_the_fastest(tmp_path: Path) -> None:
    models = {name: Model(known) for name, known in files().items() if name != "small"}
    prices = tmp_path / "prices.csv"
    prices.write_text(PRICES)
    asked = {"concurrency": 8, "tensor_parallel": 1, "prices": str(prices)}
    found = compare(asks(models), LARGE, **asked)
    for row, price in zip(found.best_rows.values(), (40, 0.5), strict=True):
        dollars = price / 3600 / (row.tokens_per_s or 0.0) * 1e6
        assert row.dollars_per_million == pytest.approx(dollars)
    assert dollars < (found.best_rows["large"].dollars_per_million or 0.0)  # of the slow one
    assert (found.cheapest, found.fastest) == ("slow", "large")
    table = compared_table(found)
    assert [cells[0] for cells in table.cells] == ["slow", "large"]
    ask: Any = {"max_tpot_ms": 100.0, "prices": str(prices), "tensor_parallel": 1}
    rates = compare(
        asks(models), LARGE, input_tokens=512, output_tokens=128, request_rate=(0.1, 0.2), **ask
    )
    text = "\n".join(lines_of(compared_lines(rates)))
    for rate in (0.1, 0.2):
        assert re.search(f"Cheapest at {rate} requests/s: slow, .*\nThe limits hold up to ", text)
    assert text.count("$365.00  ") == 2  # 730 hours
    assert {row.request_rate for row in rates.best_rows.values()} == {0.2}
    told = re.findall(
        r"^cheapest of 2 answers: .* \(\S+, vllm\), (.*?) requests/s:", rates.words(), re.M
    )
    assert told == ["0.1", "0.2"]


def test_the_fastest_may_have_no_price() -> None:
    """Its time is the shortest in the table; the fastest with a price is named behind it."""
    slow, bare = Model(files()["slow"]), Model(document())
    of: dict[str, Callable[..., ServingAnswer]] = {
        "one": lambda config, **asked: slow.llm(config, **asked | {"price_per_hour": 1.0}),
        "bare": bare.llm,
    }
    found = compare(of, LARGE, concurrency=8, tensor_parallel=1)
    ms = {name: row.tpot_ms or 0.0 for name, row in found.best_rows.items()}
    assert ms["bare"] < ms["one"]
    assert (found.cheapest, found.fastest) == ("one", "bare")
    text = "\n".join(lines_of(compared_lines(found)))
    assert text.startswith("Cheapest tokens with a known price: one, 1 GPU, $")
    assert re.search(rf"^Fastest of these: bare, {ms['bare']:.1f} ms a token, 1 GPU\.$", text, re.M)
    assert "\nFastest of these with a known price: one, " in text
    assert found.words().startswith("cheapest of 1 answer with a price: ")
    alike = compare(dict.fromkeys(("a", "b"), bare.llm), LARGE, concurrency=8, tensor_parallel=1)
    assert (alike.cheapest, alike.fastest) == (None, "a")


def test_rejected_devices_keep_why_and_the_nearest_is_first() -> None:
    """Times by hand: a limit at 1.1 and 3 times below the time of a row alone."""
    model = Model(files()["large"])
    alone = model.llm(LARGE, concurrency=8, tensor_parallel=1).chosen

    def at(factor: float, host: str = "") -> Callable[..., ServingAnswer]:
        def llm(config: Any, **asked: Any) -> ServingAnswer:
            limit = (alone.tpot_ms or 0.0) / factor
            try:
                return model.llm(config, **asked | {"max_tpot_ms": limit})
            except AnswerIsNo as no:
                no.data["refusal"] = replace(no.data["refusal"], slow_host=host)
                raise

        return llm

    of = {"far": at(3.0, "x-host"), "good": at(0.9), "near": at(1.1, "x-host"), "other": at(2.0)}
    found = compare(of, LARGE, concurrency=8, gpus=1)
    assert [*found.left_out] == ["near", "other", "far"]
    assert found.left_out["near"].startswith("likely too slow on 1 GPU: ")
    assert found.left_out["other"].startswith("too slow on 1 GPU: ")
    (links,) = found.slow_links
    assert links in found.warnings
    assert links.startswith(
        "far, near: all-reduces take most of a prompt's time, as they were timed"
    )
    many = {str(n): at(float(n)) for n in (9, 2, 8, 3, 7, 4)}
    with pytest.raises(AnswerIsNo) as no:
        compare(many, LARGE, concurrency=8, gpus=1)
    assert re.findall(r"(\d): too slow", str(no.value)) == ["2", "3", "4", "7"]
    assert str(no.value).endswith("; 2 devices further off: --json has why")
    assert [*no.value.answer["left_out"]] == ["2", "3", "4", "7", "8", "9"]


def test_of_equal_prices_the_surely_kept_limits_then_the_shorter_time_are_cheapest() -> None:
    model, asked = Model(files()["large"]), {"concurrency": 8, "tensor_parallel": 1}
    row = model.llm(LARGE, **asked).chosen
    low, high = row.tpot_interval_ms
    asked |= {"price_per_hour": 2.0, "max_tpot_ms": 1.01 * high}

    def of(factor: float) -> Callable[..., ServingAnswer]:
        def llm(config: Any, **more: Any) -> ServingAnswer:
            found = model.llm(config, **more)
            ms, ends = factor * row.tpot_ms, (factor * low, factor * high)
            rows = tuple(replace(r, tpot_ms=ms, tpot_interval_ms=ends) for r in found.served)
            return replace(found, served=rows)

        return llm

    found = compare({"likely": of(1.1), "sure": of(0.95), "surer": of(0.9)}, LARGE, **asked)
    assert len({row.dollars_per_million for row in found.best_rows.values()}) == 1
    assert found.cheapest == "surer"


def test_under_a_rate_only_a_limit_that_may_break_makes_prices_uncertain() -> None:
    """By hand: one replica at 30, which another makes 60, one at 44, one at 61; a month has 730 hours."""
    model, ask = Model(files()["large"]), {"tensor_parallel": 1, "request_rate": 1.0}
    high = model.llm(LARGE, **ask).chosen.tpot_interval_ms[1]
    for factor, alike in ((1.01, False), (0.99, True)):

        def at(usd: float, limit: float = factor * high) -> Callable[..., ServingAnswer]:
            more = {"price_per_hour": usd, "max_tpot_ms": limit}
            return lambda config, **asked: model.llm(config, **asked | more)

        of = {"one": at(30.0), "two": at(44.0), "three": at(61.0)}
        found = compare(of, LARGE, max_tpot_ms=factor * high, **ask)
        text = "\n".join(lines_of(compared_lines(found)))
        (told,) = re.findall("^Cheapest: .*$", text, re.M)
        # A request a second, of 512 output tokens: a million of them take 1e6 / 512 seconds.
        million = f"${30 / 3600 * 1e6 / 512:.2f} a million output tokens"
        chance = "; keeps the limits with a chance of just under 95 %" * alike
        assert told == f"Cheapest: one, 1 GPU, $21,900 a month ($30.00 an hour, {million}){chance}."
        # Two replicas of the others cost twice as much, which is more than those of this one.
        surely = [line for line in text.splitlines() if line.startswith("Surely: ")]
        double = f"${60 / 3600 * 1e6 / 512:.2f} a million output tokens"
        words = f"one, 2 x 1 GPUs, $43,800 a month ($60.00 an hour, {double})"
        assert surely == [f"Surely: {words}."] * alike
        table = compared_table(found)
        names = [cells[0] for cells in table.cells]
        assert names == (["one", "two", "one", "three"] if alike else ["one", "two", "three"])
        remarks = [cells[-1] for cells in table.cells]
        assert [word.startswith("surely") for word in remarks] == [
            alike and n == 2 for n in range(len(names))
        ]


def test_rows_of_many_that_are_far_dearer_are_told_in_a_line() -> None:
    """Seven prices of one GPU; those above five times the lowest one."""
    model = Model(files()["large"])
    usd = dict(zip("abcdefg", (1.0, 1.5, 2.0, 3.0, 4.9, 5.1, 8.0), strict=True))

    def at(price: float) -> Callable[..., ServingAnswer]:
        return lambda config, **asked: model.llm(config, **asked | {"price_per_hour": price})

    for names, dear in (("abcdefg", "fg"), ("aefg", "")):
        found = compare(
            {n: at(usd[n]) for n in names}, LARGE, request_rate=1.0, max_tpot_ms=1e4,
            input_tokens=512, output_tokens=128,
        )  # fmt: skip
        shown = [cells[0] for cells in compared_table(found).cells]
        assert shown == sorted(set(names) - set(dear))
        told = [n for n in lines_of(compared_lines(found)) if n.startswith("Left out, at over 5 ")]
        assert [re.findall(r"(\w) \(\$", line) for line in told] == [[*dear]] * bool(dear)
        assert [row["name"] for row in found.rows()] == [*names]


def test_a_gpu_that_computes_no_bfloat16_is_left_out_of_several(lolat: Command) -> None:
    ask = ("eight.json", "--concurrency", "1", "--tensor-parallel", "1")
    found = lolat.json("llm", "t4,large.json", *ask)
    assert ([a["name"] for a in found["answers"]], [*found["left_out"]]) == (["large.json"], ["t4"])
    assert "computes no bfloat16" in lolat.refused("llm", "t4,t4", *ask)


def test_rows_of_different_loads_are_never_beside_each_other() -> None:
    """No load is common to all: those of the load that most can serve are compared."""

    class Few:
        """A model that keeps the limits with some numbers of requests alone."""

        def __init__(self, *loads: int) -> None:
            self.loads, self.model = loads, Model(files()["large"])

        def llm(self, config: Any, **asked: Any) -> Any:
            found = self.model.llm(config, **asked)
            rows = tuple(replace(r, within=r.concurrency in self.loads) for r in found.served)
            return replace(found, served=rows)

    models: Any = {"one": Few(1), "eight": Few(8), "both": Few(1, 8), "many": Few(8, 32)}
    found = compare(asks(models), LARGE, concurrency=(1, 8, 32), tensor_parallel=1)
    assert {name: row.concurrency for name, row in found.best_rows.items()} == {
        "eight": 8, "both": 8, "many": 8
    }  # fmt: skip
    assert found.left_out == {"one": "at most 1 concurrent request, not 8 as on the others"}
    assert found.remarks == (
        "the devices are compared under 8 concurrent requests, the largest load that 3 of 4 serve; "
        "32 concurrent requests are too many for eight, both",
    )


def test_gpus_whose_requests_wait_for_memory_are_left_out_for_that() -> None:
    """By hand: 8.03 G parameters, and 2 x 8 x 128 values of 1,536 tokens in 32 layers, of 2 bytes each."""
    sheets = {
        name: msgspec.structs.replace(SHEET, memory_gib=n) for name, n in (("a", 26), ("b", 28))
    }
    tight = {name: Model(document(section(sheet=one))) for name, one in sheets.items()}
    models, asked = {"large": Model(files()["large"]), **tight}, {"tensor_parallel": 1}
    found = compare(asks(models), LARGE, concurrency=100, **asked)
    assert [*found.best_rows] == ["large"]
    rooms = [
        re.findall(r"^room for (\d+) of 100 requests at once", found.left_out[name])
        for name in sheets
    ]
    for name, (room,) in zip(sheets, rooms, strict=True):
        free = sheets[name].memory_gib * 2**30 - 2 * 8.03e9
        assert 0.5 < int(room) / (free / (2 * 2 * 8 * 128 * 32 * 1536)) < 1.0
    with pytest.raises(
        AnswerIsNo, match=f"b: .*room for {rooms[1][0]} .*a: .*room for {rooms[0][0]} "
    ):
        compare(asks(tight), LARGE, concurrency=100, **asked)
    (remark,) = compare(asks(tight), LARGE, concurrency=(8, 100), **asked).remarks
    assert remark.endswith("that all 2 serve; 100 concurrent requests are too many for a, b")


def test_the_row_of_a_question_has_times_if_one_has() -> None:
    """The weights take 15 GiB, of which a GPU of 10 GiB holds none and four hold all."""
    row = Model(files()["small"]).llm(LARGE, concurrency=500, tensor_parallel=(1, 4)).chosen
    assert (row.tensor_parallel, row.fits, bool(row.tpot_ms)) == (4, False, True)


def test_within_limits_each_has_its_best_row_or_its_reason() -> None:
    models = {name: Model(known) for name, known in files().items() if name != "small"}
    times = {n: m.llm(LARGE, concurrency=8, tensor_parallel=1).chosen for n, m in models.items()}
    limit = times["large"].tpot_ms * 1.05
    found = compare(asks(models), LARGE, concurrency=8, max_tpot_ms=limit, gpus=1)
    assert list(found.best_rows) == ["large"]
    assert found.best_rows["large"].within is True
    assert found.left_out["slow"].startswith("too slow on 1 GPU: ")
    pytest.importorskip("pandas")
    frame = found.frame().set_index("device")
    assert frame["remark"]["slow"] == found.left_out["slow"]
    assert "replicas" not in frame
    deep = {**LARGE, "num_hidden_layers": 999}
    none = models["large"].llm(deep, concurrency=8, tensor_parallel=1)
    assert none.frame()["remark"].iloc[0] == f"does not fit: {none.warnings[0]}"
    both = compare(asks(models), LARGE, concurrency=(4, 8), max_tpot_ms=limit, gpus=1)
    assert both.left_out["slow"].startswith("too slow under 4 concurrent requests on 1 GPU: ")
    with pytest.raises(
        AnswerIsNo, match=r"large: too slow on 8.* 361 times .*slow: too slow on 8"
    ) as no:
        compare(asks(models), LARGE, concurrency=8, max_tpot_ms=0.01)
    assert [*no.value.answer["left_out"]] == ["large", "slow"]


def test_remarks_are_of_the_rows_that_are_shown() -> None:
    """128 requests, a default, do not fit at once in a GPU of 26 GiB, and are not shown."""
    tight = document(section(sheet=msgspec.structs.replace(SHEET, memory_gib=26), served=0))
    models = {"large": Model(files()["large"]), "tight": Model(tight), "again": Model(tight)}
    found = compare(asks(models), LARGE, tensor_parallel=1)
    assert found.full["tight"].chosen == found.best_rows["tight"]
    assert all(row.fits for row in found.best_rows.values())
    (remark,) = found.warnings
    assert remark.startswith("tight, again: no served model on this GPU")


def test_what_no_gpu_can_be_asked_is_refused_at_once() -> None:
    models = {name: Model(known) for name, known in files().items()}
    with pytest.raises(InputError) as error:
        compare(asks(models), LARGE, concurrency=0)
    assert error.value.code == "concurrency"
    with pytest.raises(InputError, match=r"large, slow, small: dtype nvfp4"):
        compare(asks(models), LARGE, dtype="nvfp4")
    sglang = Model(document(section(framework="sglang")))
    both = asks({"sglang": sglang, "vllm": models["large"]})
    found = compare(both, LARGE, max_num_seqs=9, max_num_batched_tokens=8)
    assert ([*found.best_rows], [*found.left_out]) == (["sglang"], ["vllm"])


def test_python_compares_as_the_command_does(lolat: Command) -> None:
    """Without a batch size the question is about serving, and else about training."""
    files = ["large.json", "slow.json", "small.json"]
    asked: dict[str, Any] = {"request_rate": [0.5, 1.0], "max_tpot_ms": 60.0, "percentile": 90}
    words = [f"--{name.replace('_', '-')}={str(one).strip('[]')}" for name, one in asked.items()]
    words = [word.replace(" ", "") for word in words]
    printed = json.loads(lolat.done("llm", ",".join(files), "eight.json", *words, "--json").out)
    found = package.compare("eight.json", on=files, **asked).to_dict()
    assert json.loads(json.dumps(found)) == {k: printed[k] for k in found}
    costs = package.compare("eight.json", 1, files, samples=8, input_size=64, tune="lora:8")
    assert isinstance(costs, Costs)
    with pytest.raises(InputError, match="batch_size 1 is for training"):
        package.compare("eight.json", 1, files, concurrency=8)


def test_several_language_models_are_each_as_if_asked_alone(lolat: Command) -> None:
    """In Python and in the terminal, on one device and on two."""
    models, asked = ["qwen3-8b", "eight.json"], {"concurrency": 8, "tensor_parallel": 1}
    for files in (["large.json"], ["large.json", "slow.json"]):
        found = package.compare(models, on=files, **asked)
        pairs = [(m, f) for m in models for f in files]
        alone = {f"{m} on {f}": package.load(f).llm(m, **asked).chosen for m, f in pairs}
        assert found.best_rows == alone
        assert found.fastest == min(alone, key=lambda name: alone[name].tpot_ms or 0.0)
        words = ("llm", ",".join(files), ",".join(models), "--concurrency=8", "--tensor-parallel=1")
        printed = lolat.text(*words)
        assert all(f"\n{name.partition(' on ')[0]} on" in printed for name in alone)
        assert "\n1,024 tokens in, 512 out" in printed
    with pytest.raises(InputError, match="expected each language model once"):
        package.compare([LARGE, LARGE], on=files)
    with pytest.raises(InputError, match="qwen3-9b"):
        package.compare(["qwen3-8b", "qwen3-9b"], on=files)


def test_an_answer_says_what_is_unusual_in_its_question(lolat: Command) -> None:
    """In the first line of each printer, and in Python's words; a usual question adds nothing."""
    Path("log.csv").write_text("arrival_s,input_tokens,output_tokens\n0,90,20\n3,50,20\n")
    model = package.load("large.json")
    drafts = {"draft_tokens": 3, "accepted": 0.7}
    drafted = "3 tokens drafted a step, each accepted at 70 %, drafting itself free"
    cached, log = "40 tokens of each prompt cached", "arrivals log.csv"
    steps: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 2048}
    for asked, told in (
        (drafts, [drafted]),
        (drafts | {"cached_tokens": 40, "arrivals": "log.csv"}, [cached, drafted, log]),
        (steps, ["at most 1 request a step", "at most 2,048 tokens a step"]),
        ({"request_rate": 1.0, "arrivals": "even"}, ["arrivals even"]),
        ({"concurrency": 1, "max_tpot_ms": 99.0}, []),
    ):
        alone = model.llm(LARGE, tensor_parallel=1, **asked)
        several = package.compare(LARGE, on=["large.json", "slow.json"], tensor_parallel=1, **asked)
        for answer, rest in ((alone, 0), (several, 1)):  # behind the tokens; then the kind of load
            lines = answer.report().splitlines()
            parts = next(n for n in lines if " tokens in, " in n).split(" · ")
            (at,) = (n for n, part in enumerate(parts) if " tokens in, " in part)
            assert parts[at + 1 : len(parts) - rest] == told
        words = [alone.words(), *several.words().splitlines()]
        kept = f"; limits: {alone.chosen.verdict}" * ("max_tpot_ms" in asked)
        assert all(one.endswith(kept + "; ".join(["", *told])) for one in words)


def test_exit_codes(lolat: Command) -> None:
    no = lolat("llm", "large.json,slow.json", *ASK, "--max-tpot-ms", "0.01")
    assert (no.code, len(no.err.splitlines())) == (3, 1)
    assert lolat("llm", "large.json,a30-trtllm", *ASK).code == 2
    of_sheet = lolat("llm", "large.json,rtx-4090", *ASK)
    assert (of_sheet.code, "rtx-4090" in of_sheet.out) == (0, True)
    several = lolat.done("llm", "h100", *ASK).out
    assert all(f"\nh100-{name} " in several for name in ("vllm", "sglang", "trtllm"))
    of_several = ("llm", "large.json,slow.json", "eight.json", "--concurrency")
    assert "Cheapest tokens at 64 concurrent requests: " in lolat(*of_several, "8,64").out
    assert "concurrent requests" not in lolat(*of_several, "8").err


def test_a_gpu_that_another_name_serves_is_named(lolat: Command) -> None:
    """A name with a framework that it lacks, and a device of networks asked in Python."""
    assert serving_model("h200-vllm").file.product == serving_model("h200").file.product
    error = lolat("llm", "h200-trtllm", "qwen3-32b").err
    assert "did you mean h200? it is known with vLLM" in error
    with pytest.raises(
        LolatError, match="by several frameworks: b200-vllm, b200-sglang, b200-trtllm"
    ):
        package.load("b200").llm("qwen3-32b")
    told = lolat("llm", "rtx-4090-amp", "qwen3-8b").err
    assert "for language models ask `rtx-4090`" in told
    assert "lolat: rtx-4090-amp knows " in told, "and not its file"


def test_free_gpus_are_compared() -> None:
    models = {str(n): Model(files()["large"]) for n in range(5)}
    found = compare(asks(models), LARGE, concurrency=8, price_per_hour=0.0)
    assert len(compared_table(found).rows) == 5


def test_of_equal_prices_the_sure_and_the_timed_are_named() -> None:
    """Three frameworks on one GPU: their 4-bit rows cost the same, and not all of them were timed so."""
    found = package.compare(
        "llama-3.1-70b", on="b200-sglang,b200-trtllm,b200-vllm", request_rate=2, max_ttft_ms=1000,
        min_tokens_per_s=30, percentile=90, input_tokens=1800, output_tokens=350,
    )  # fmt: skip
    rows = [(name, row) for name, some in found.other_dtypes.items() for row in some]
    usd = [f"{row.dollars_per_hour:.6g}" for _, row in rows]
    least = [(n, r) for (n, r), price in zip(rows, usd, strict=True) if price == min(usd)]
    best = {name for name, row in least if row.in_domain and row.is_sure(found.asked)}
    assert best
    assert any(row.in_domain is False for _, row in least)
    text = "\n".join(lines_of(compared_lines(found)))
    named = re.findall(r"Cheaper in \w+, another checkpoint: ([\w-]+), .*", text)
    assert named[0] in best
    assert "surely, extrapolated" not in text


@pytest.mark.parametrize("gpu", ["h100-vllm", "b200-vllm"])
def test_each_data_type_of_a_list_answers_as_if_asked_alone(gpu: str) -> None:
    """Of all known names: times, memory and remarks; what is refused alone has no row."""
    types = ("bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo")
    ask: dict[str, Any] = {"concurrency": 32, "tensor_parallel": 8}
    for model in published():
        alone = dict[str, Any]()
        for dtype in types:
            with suppress(LolatError):
                answer, n = (
                    package.load(gpu).llm(model, dtype=dtype, **ask),
                    f"{gpu} in {dtype}",
                )
                alone |= {n: answer.to_dict() | {"name": n}} if answer.compared else {}
        found = package.compare(model, on=[gpu], dtype=",".join(types), **ask).full if alone else {}
        assert {name: answer.to_dict() for name, answer in found.items()} == alone


def test_data_types_of_a_file_and_of_one_name_given_twice(lolat: Command) -> None:
    asked = {"concurrency": 8, "tensor_parallel": 1}
    alone = [package.load("large.json").llm("eight.json", dtype=t, **asked) for t in ("fp8", "")]
    found = package.compare("eight.json", on=["large.json"], dtype="FP8, bfloat16,fp8", **asked)
    names = ["large.json in fp8", "large.json in bfloat16"]
    assert [*found.full] == names
    for row in compared_table(found).on_screen[1:]:  # the data type has a column of its own
        assert row[0] == "large.json"
        assert row[1].partition(",")[0] in ("fp8", "bfloat16")
    assert [row.tpot_ms for row in found.best_rows.values()] == [a.chosen.tpot_ms for a in alone]
    one = package.compare("eight.json", on=["large.json"], dtype="fp8,", **asked)
    assert {name: row.dtype for name, row in one.best_rows.items()} == {"large.json": "fp8"}
    with pytest.raises(InputError, match="did you mean int4_wo"):
        package.compare("eight.json", on=["large.json"], dtype="fp8,awq", **asked)

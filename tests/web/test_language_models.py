"""The tab of language models: what it says is what `Model.llm` answers; configurations that are sent."""

from __future__ import annotations

import hashlib
import html
import json
import re
from math import log
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

pytest.importorskip("starlette")

import lolat
from lolat.api.serving import serving_model
from lolat.errors import AnswerIsNo
from lolat.io import paths as places
from lolat.units import between, digits, dollars, duration, milliseconds, percent, plural
from lolat.web.chart import LOADS
from lolat.web.fields import OF_LANGUAGE_MODEL
from tests.web.language_models import CONFIG
from tests.web.pages import Site, site
from tests.web.test_page import command_json

MODELS = Path(lolat.__file__).parent.parent / "models"
TAB = "?view=llm"
SMALL = "&config=llama-3.1-8b"


def cells(page: Site) -> list[list[str]]:
    """The rows of the first table."""
    body = page.raw.partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in body.split("</tr>")[:-1]]


def cells_of(page: Site, part: str) -> list[str]:
    """The texts in a part of the first table."""
    return re.findall(
        r"<(?:t[hd]|small)[^>]*>([^<]*)<",
        page.raw.partition(f"<{part}>")[2].partition(f"</{part}>")[0],
    )


def test_at_first_there_is_an_answer(page: Site, gpu: Path) -> None:
    page.get(TAB)
    wanted = lolat.load(gpu).llm("qwen3-32b", concurrency=32)
    tpot = wanted.chosen.tpot_ms
    assert tpot is not None
    assert (
        f"gpu a gpu (vllm) {plural(wanted.chosen.gpus, 'GPU')} {milliseconds(tpot)} a token, "
        f"{wanted.chosen.load_words}; 90 % sure of " in page.answer()
    )
    assert page.errors() == {}
    assert page.reader.calls == []
    assert page.commands()[0].startswith(f"lolat llm {gpu} qwen3-32b --concurrency 32 ")


def test_cards_follow_the_table_and_a_device_that_cannot_has_no_price(
    gpu: Path, tmp_path: Path
) -> None:
    """A GPU of a tenth of the bandwidth cannot keep the limit; of a triple one, one GPU is enough."""
    for name, factor in (("slow", 0.1), ("quick", 3)):
        document = json.loads(gpu.read_text())
        document["llm"]["sheet"]["bandwidth_gb_s"] *= factor
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    paths = [tmp_path / "slow.json", gpu, tmp_path / "quick.json"]
    asked = {"concurrency": "8", "max_tpot_ms": "5", "price_per_hour": "2"}
    with site(paths) as page:
        page.get(f"{TAB}{SMALL}&model=slow&model=gpu&model=quick", **asked)
    cards = re.findall(r'<section class="card" aria-label="(\w+)">(.*?)</section>', page.raw, re.S)
    usd = {
        path.stem: lolat.load(path)
        .llm("llama-3.1-8b", concurrency=8, max_tpot_ms=5.0, price_per_hour=2.0)
        .chosen.dollars_per_million
        or 0.0
        for path in paths[1:]
    }
    assert usd["quick"] < usd["gpu"]
    assert [name for name, _ in cards] == ["quick", "gpu", "slow"]
    assert "<dt>Price</dt>" in cards[1][1]
    assert "<dt>" not in cards[2][1]
    beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
    assert beside.index("Cheapest tokens: quick, ") < beside.index("<table>")
    assert "slow: not within the limits, as said below" in beside
    chart, _, below = page.raw.partition('class="front"')[2].partition("</svg>")
    assert "limit: 200 tokens/s</li>" in below  # 1000 / 5
    assert sorted(re.findall('class="chosen [^>]*>([^<]*)', chart)) == ["gpu", "quick"]


def test_devices_stand_side_by_side_under_one_load(gpu: Path, tmp_path: Path) -> None:
    """One device is cheapest under 64 requests, and the other holds but one: one is compared."""
    small = json.loads(gpu.read_text())
    small["llm"]["sheet"]["memory_gib"] = 20
    (tmp_path / "small.json").write_text(json.dumps(small))
    with site([gpu, tmp_path / "small.json"]) as page:
        page.get(f"{TAB}{SMALL}&model=gpu&model=small&concurrency=1,64&tensor_parallel=1")
        beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
        page.get(f"{TAB}{SMALL}&model=gpu&model=small&concurrency=64&tensor_parallel=1")
    assert "small: waits for memory" in page.raw.partition('id="beside"')[2]
    assert "compared under 1 concurrent request," in beside
    (row,) = lolat.load(gpu).llm("llama-3.1-8b", concurrency=1, tensor_parallel=1).served
    rows = re.findall(r">1</td>.*?>([\d.]+ ms)<.*?>([\d.]+ ms)<", beside.partition("</table>")[0])
    assert rows[:2] == 2 * [(milliseconds(row.ttft_ms or 0), milliseconds(row.tpot_ms or 0))]


@pytest.mark.parametrize("several", [False, True])
def test_one_chart_has_all_loads_and_joins_those_that_none_beats(
    gpu: Path, tmp_path: Path, several: bool
) -> None:
    other = json.loads(gpu.read_text())
    other["llm"]["sheet"] |= {"bandwidth_gb_s": 4000, "bf16_tflops": 400}
    (tmp_path / "other.json").write_text(json.dumps(other))
    files = [gpu, tmp_path / "other.json"][: 1 + several]
    with site(files) as page:
        page.get(f"{TAB}{SMALL}&concurrency=40" + several * "&model=gpu&model=other")
    served = [
        row
        for file in files
        for row in lolat.load(file)
        .llm("llama-3.1-8b", concurrency=(*LOADS, 40), tensor_parallel=(1, 2, 4, 8))
        .served
    ]
    speeds = [(row.tokens_per_s_user or 0, row.tokens_per_s_gpu or 0) for row in served if row.fits]
    front = [a for a in speeds if not any(b[0] >= a[0] and b[1] >= a[1] for b in speeds if b != a)]
    chart = page.raw.partition('class="front"')[2].partition("</details>")[0]
    assert len(re.findall('<circle class="s[0-3]"', chart)) == len(speeds)
    assert {*re.findall('<circle class="(s[0-3])"', chart)} == {
        f"s{n}" for n in range(4 - 2 * several)
    }
    assert "40 concurrent requests on 8 GPUs</title>" in chart
    assert len(re.findall('<circle class="ring"', chart)) == len(files)
    rows = chart.partition("<tbody>")[2].split("</tr>")[:-1]
    shown = [tuple(re.findall(r"<td[^>]*>([^<]*)<", row)[-2:]) for row in rows]
    assert shown == [(digits(user), digits(rate)) for user, rate in sorted(front, reverse=True)]
    line = re.findall(r"([\d.]+),([\d.]+)", chart.partition("<polyline")[2].partition(">")[0])
    places = [(float(x), float(y)) for x, y in line]
    assert len(places) == len(front)
    # Slower for a request, more from a GPU: higher up.
    assert places == sorted(places, reverse=True)


def test_the_chart_has_the_splits_that_were_asked_for_and_names_each() -> None:
    asked = {"config": "qwen3-30b-a3b", "tensor_parallel": "4", "expert_parallel": "1,4"}
    with site([MODELS / "h100-vllm.json"]) as page:
        page.get(TAB, **asked)
        chart = page.raw.partition('class="front"')[2].partition("</details>")[0]
    dots = re.findall(r"<title>(.*?)</title>", chart)
    assert len({*dots}) == len(dots) >= 2 * 15
    splits = ["4 GPUs", "4 GPUs, expert parallel 4"]
    assert sorted({dot.partition(" on ")[2] for dot in dots}) == splits
    assert re.findall(r"</b> (.*?)</li>", chart) == splits
    assert ">expert parallel<" in chart.partition("<thead")[2]


def test_a_limit_of_a_percentile_is_the_figure_in_large_letters(page: Site, gpu: Path) -> None:
    page.get(TAB + SMALL, request_rate="4", max_tpot_ms="40", percentile="90")
    row = (
        lolat.load(gpu).llm("llama-3.1-8b", request_rate=4, max_tpot_ms=40.0, percentile=90).chosen
    )
    assert milliseconds(row.tpot_p90_ms or 0.0) != milliseconds(row.tpot_ms or 0.0)
    assert (
        f"{milliseconds(row.tpot_p90_ms or 0.0)} a token at P90, {row.load_words}" in page.answer()
    )


def test_the_answer_names_gpus_machines_prices_and_headroom(page: Site) -> None:
    """A GPU costs 2 dollars an hour, a month has 730 hours; a link asks all devices."""
    page.get(
        TAB + SMALL, request_rate="4", max_ttft_ms="1000", tensor_parallel="2", price_per_hour="2"
    )
    told = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page.raw))
    gpus, _, split = told["GPUs"].partition(" x ")
    assert "tensor parallel 2" in split
    usd = 2 * int(gpus)
    # A million output tokens take 1e6 / (4 requests/s * 512 tokens) seconds.
    million = usd / 3600 * 1e6 / (4 * 512)
    hour, month, tokens = re.findall(r"\$([\d,.]+)", told["Price"])
    assert (float(hour), float(month.replace(",", ""))) == (usd, 730 * usd)
    assert float(tokens) == pytest.approx(million, rel=0.02)
    rate = float(re.findall(r"<p>The limits[^<]* up to ([\d.]+) requests/s", page.raw)[0])
    command = command_json(page.commands()[0])
    assert rate == pytest.approx(command["headroom_rate"], rel=0.01)
    title = f"{plural(int(gpus), 'GPU')}, {dollars(730 * usd)} a month"
    assert f'<p class="big">{title}</p>' in page.raw
    assert page.raw.partition('id="brief"')[2].partition("<b>")[2].startswith(title)


def test_a_headline_says_how_sure_it_is(gpu: Path, tmp_path: Path) -> None:
    """Without a limit by its interval, with one 5 % above the time by the chance of a normal error."""
    (tmp_path / "other.json").write_text(gpu.read_text())
    asked = f"{TAB}{SMALL}&tensor_parallel=1&concurrency=8"
    row = lolat.load(gpu).llm("llama-3.1-8b", tensor_parallel=1, concurrency=8).chosen
    low, high = row.tpot_interval_ms or (0.0, 0.0)
    ms = row.tpot_ms or 0.0
    # The upper end is 1.645 standard deviations above the logarithm of the time.
    error = NormalDist().cdf(log(1.05) / (log(high / ms) / NormalDist().inv_cdf(0.95)))
    chance = percent(round(20 * error) / 20)
    with site([gpu, tmp_path / "other.json"]) as page:
        page.get(f"{asked}&model=gpu")
        (then,) = re.findall('<p class="then">([^<]*)', page.raw)
        assert then.endswith(f"; 90 % sure of {between(low, high, ms)}")
        page.get(f"{asked}&model=gpu&max_tpot_ms={1.05 * ms}")
        (then,) = re.findall('<p class="then">([^<]*)', page.raw)
        assert then.endswith(f"; keeps the limits with a chance of about {chance}")
        page.get(f"{asked}&model=gpu&model=other&max_tpot_ms={1.05 * ms}")
        title = re.findall('<p class="big">[^<]*<span>([^<]*)', page.raw)[0]
        assert title == f"gpu, keeps the limits with a chance of about {chance}"
        assert title in page.raw.partition('id="brief"')[2].partition("</a>")[0]
        page.get(f"{asked}&model=gpu&model=other&max_tpot_ms={1.1 * high}")
        assert "<span>gpu, surely keeps the limits</span>" in page.raw


def test_a_card_has_a_headline_for_each_rate_and_says_nothing_twice(page: Site, gpu: Path) -> None:
    asked: dict[str, Any] = {"request_rate": (4, 40), "max_tpot_ms": 40.0, "price_per_hour": 2.0}
    found = lolat.load(gpu).llm("llama-3.1-8b", **asked)
    page.get(TAB + SMALL, **asked | {"request_rate": "4,40"})
    best = [found.served[n] for n in found.bests]
    assert [row.request_rate for row in best] == [4, 40]
    assert re.findall(r'<p class="big of-load">([^<]*) <span>([^<,]*), (\w+)', page.raw) == [
        (
            f"{plural(r.gpus, 'GPU')}, {dollars(1460 * r.gpus)} a month",
            f"at {r.requests_words}",
            "surely" if (r.tpot_interval_ms or (0, 99))[1] <= 40 else "keeps",
        )
        for r in best
    ]
    assert (
        "limits" not in re.findall('<p class="then">([^<]*)', page.raw)[0]
    )  # the headlines say it
    card, _, after = page.raw.partition('<section class="card"')[2].partition("<table>")
    sentences = re.findall("<p>([^<]*)</p>", card + after.partition("</section>")[0])
    assert len([*filter(re.compile("Cheapest within the limits").match, sentences)]) == 2
    assert len({*sentences}) == len(sentences)
    assert "<dt>Headroom</dt>" not in card
    assert "Cheapest within the limits" in card


def test_whole_requests_have_one_unit(page: Site, gpu: Path) -> None:
    """Some take more than ten seconds, others less: all are in seconds."""
    page.get(TAB + SMALL, request_rate="4", max_tpot_ms="80", output_tokens="800")
    rows = lolat.load(gpu).llm("llama-3.1-8b", request_rate=4, max_tpot_ms=80.0, output_tokens=800)
    times = [row.e2e_ms or 0.0 for row in rows.served]
    assert min(times) < 10_000 < max(times)
    body = page.raw.partition("<tbody>")[2].partition("</tbody>")[0]
    told = re.findall(r'data-head="whole request">([^<]*)<', body)
    assert [float(text.removesuffix(" s")) for text in told] == [
        pytest.approx(ms / 1e3, rel=6e-3) for ms in times
    ]


def test_all_devices_are_compared_by_one_name(gpu: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(gpu.read_text())
    with site([gpu, tmp_path / "other.json"]) as page:
        page.get(f"{TAB}{SMALL}&model=all")
        assert re.findall(r'value="([^"]*)" checked', page.raw) == ["all"]
        assert "Side by side" in page.answer()
        assert page.raw.count('<section class="card" ') == 2
        assert "More than 4 devices are not drawn" in page.answer()
        assert 'to add one: "Another GPU, by its name"' in page.answer()
        assert "all,a" not in page.answer().partition("Link and commands")[0]
        assert page.commands()[0].startswith("lolat llm all,")
        assert len(command_json(page.commands()[0])["answers"]) == 2
        assert page.get(page.link().removeprefix("/")) == page.raw
        assert page.answer().index("Side by side") < page.answer().index(
            "Where the time of a token"
        )


def test_several_devices_are_folded_below_their_table(gpu: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"gpu{n}.json" for n in range(2)]
    for path in paths:
        path.write_text(gpu.read_text())
    for number in (1, 2):
        with site(paths[:number]) as page:
            page.get(TAB + SMALL + "".join(f"&model={p.stem}" for p in paths[:number]))
            assert page.raw.count("<details><summary><h2>gpu") == (2 if number == 2 else 0)
            assert page.raw.count('<section class="card" ') == number


def test_the_limits_and_the_best_are_in_front(page: Site) -> None:
    page.get(TAB + SMALL, request_rate="4", max_tpot_ms="40")
    assert cells_of(page, "thead")[:3] == ["GPUs", "token &lt;=&nbsp;40&nbsp;ms", "remark"]
    assert ", 4 requests/s, which queue while the GPUs are busy</caption>" in page.raw  # each row
    assert any(row[2] == "best" for row in cells(page))


def test_a_field_that_is_given_twice_is_told(page: Site) -> None:
    said = "Given several times in the address, the first of which counts: "
    for more in ("&concurrency=8&concurrency=50", "&concurrency=8&llm.concurrency=50"):
        page.get(TAB + SMALL + more)
        assert f"{said}concurrency.<" in page.raw
        assert "8 at once" in page.answer() or "--concurrency 8" in page.raw
    page.get(TAB + SMALL + "&concurrency=8&concurrency=8&latency.batch_size=1&latency.batch_size=4")
    assert said not in page.raw


def test_unknown_names_in_the_address_are_told(page: Site) -> None:
    said = "Not known in the address, and ignored: "
    page.get(TAB + SMALL, cached="5", gpu="3", file="", **{"latency.batch_size": "4,8"})
    assert f"{said}cached, gpu.<" in page.raw
    page.get(TAB + SMALL, expert_parallel="2")
    assert "has no experts" in page.errors()["expert_parallel"]
    page.get(TAB + SMALL, attention_data_parallel="2")
    assert "attention_data_parallel" in page.errors()
    page.get("?view=serving")
    assert f"{said}view serving.<" in page.raw
    page.get(TAB + SMALL)
    assert said not in page.raw


def test_where_the_time_goes_is_a_bar(page: Site, gpu: Path) -> None:
    page.get(TAB + SMALL)
    row = lolat.load(gpu).llm("llama-3.1-8b", concurrency=32).chosen
    assert row.tpot_ms is not None
    assert row.breakdown is not None
    large = sorted((ms / row.tpot_ms for ms in row.breakdown.values()), reverse=True)
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', page.raw)]
    shown = [100 * share for share in large if share >= 0.02]
    assert widths[: len(shown)] == pytest.approx(shown, abs=1e-3)
    assert sum(widths) == pytest.approx(100, abs=0.05)  # with what is "other"
    assert f"on 1 GPU: {milliseconds(row.tpot_ms)} in the mean" in page.answer()
    ends = [float(x) for x in re.findall(r'<rect [^>]*x="([\d.]+)"', page.raw)]
    assert ends == pytest.approx([sum(widths[:i]) for i in range(len(widths))], abs=0.01)


def test_no_is_an_answer(page: Site, gpu: Path) -> None:
    page.get(TAB + SMALL + "&max_tpot_ms=0.01")
    with pytest.raises(AnswerIsNo) as no:
        lolat.load(gpu).llm("llama-3.1-8b", concurrency=32, max_tpot_ms=0.01)
    assert "not within the limits" in page.answer()
    assert str(no.value) in page.answer()
    assert len(cells(page)) == 4  # each is beyond the limits
    page.get(TAB + SMALL + "&request_rate=3&percentile=90&max_ttft_ms=1&gpus=2")
    heads = cells_of(page, "thead")
    told = [dict(zip(heads, row, strict=False)) for row in cells(page)]
    assert [(row["first token P90 &lt;=&nbsp;1&nbsp;ms"], row["remark"]) for row in told] == 2 * [
        ("no", "beyond the limits")
    ]
    page.get(TAB + "&config=llama-3.1-405b&tensor_parallel=8")
    assert "does not fit" in page.answer()
    assert "its weights take" in page.answer()
    assert 'class="front"' not in page.raw
    assert page.errors() == {}


def send(page: Site, name: str, content: bytes, **fields: str) -> Any:
    return page.send(name, content, view="llm", model="gpu", config="qwen3-8b", **fields)


@pytest.mark.parametrize(("name", "called"), [("config.json", "llama"), ("my own.json", "my own")])
def test_a_configuration_is_sent(
    page: Site, gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, called: str
) -> None:
    found = send(page, name, json.dumps(CONFIG).encode(), concurrency="7")
    assert (found.status_code, found.history[0].status_code) == (200, 303)
    row = lolat.load(gpu).llm(CONFIG, concurrency=7).chosen
    assert f"{called} · 1.35 G parameters" in page.answer()
    assert f"{milliseconds(row.tpot_ms or 0.0)} a token" in page.answer()
    digits = hashlib.sha256(json.dumps(CONFIG).encode()).hexdigest()[:6]
    assert page.value("config") == f"upload:{name}@{digits}"
    assert page.get(page.link().removeprefix("/")) == page.raw
    (tmp_path / name).write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert command_json(page.commands()[0])["rows"][0]["tpot_ms"] == row.tpot_ms


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"{", "config.json: not JSON"),
        ("net.onnx", b"\x08\x01", "net.onnx: not JSON"),
        (
            "bert.json",
            b'{"model_type": "bert"}',
            "bert.json: the architecture 'bert' is not known",
        ),
        ("big.json", bytes(OF_LANGUAGE_MODEL.most_bytes + 1), "big.json is larger than 1 MiB"),
        ("", b"", "no file is chosen; choose one of .json"),
    ],
)
def test_what_is_no_configuration_is_said_at_the_field(
    page: Site, name: str, content: bytes, words: str
) -> None:
    assert send(page, name, content, input_tokens="77").status_code == 400
    assert list(page.errors()) == ["upload"]
    assert words in page.errors()["upload"]
    assert page.value("input_tokens") == "77"


def test_devices_are_offered_where_they_can_answer(page: Site, laptop: Path, gpu: Path) -> None:
    page.get(TAB)
    assert 'value="laptop"' not in page.raw
    page.get()
    assert 'value="gpu"' not in page.raw
    with site([gpu, laptop]) as other:
        other.get()
        assert (
            "a token, 32 concurrent requests on" in other.answer()
        )  # the first that is named knows nothing else
    with site([laptop]) as other:
        other.get(TAB)
        assert "No device that knows language models" in other.answer()
        assert other.commands() == []


def to_tab(page: Site, view: str) -> str:
    """The hidden fields of a tab, once it is opened."""
    (address,) = re.findall(rf'<a href="(/\?view={view}&[^"]*)"', page.raw)
    page.get(html.unescape(address))
    hidden = re.findall(r'<input type="hidden" name="([\w.]+)" value="([^"]*)">', page.raw)
    return "?" + "&".join("=".join(pair) for pair in hidden)


def test_tabs_share_equal_fields_and_each_keeps_its_own(page: Site) -> None:
    page.get("?model=board&network=Mine&input_size=64&batch_size=4,8")
    to_tab(page, "budget")
    assert [page.value(n) for n in ("network", "input_size", "batch_size")] == ["Mine", "64", "1"]
    hidden = to_tab(page, "llm")  # without these fields and that device
    page.get(f"{hidden}&model=gpu&config=qwen3-8b")
    assert "llm.config=qwen3-8b" in to_tab(page, "latency")
    assert "board a board" in page.answer()
    assert "Mine 64x64x3 · batch 4, 8" in page.answer()


TRACE = (
    b"arrival_s,input_tokens,output_tokens\n0,1800,350\n0.2,900,200\n0.9,2500,420\n1.9,700,100\n"
)


def test_arrivals_are_sent_as_a_table(
    page: Site, gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = send(page, "day.csv", TRACE, max_num_seqs="3", sure="95", max_ttft_ms="5000")
    assert (found.status_code, page.errors()) == (200, {})
    (tmp_path / "day.csv").write_bytes(TRACE)
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {"max_num_seqs": 3, "sure": 95, "max_ttft_ms": 5000}
    row = lolat.load(gpu).llm("qwen3-8b", arrivals="day.csv", **asked).chosen
    assert (
        row.requests_per_s != lolat.load(gpu).llm("qwen3-8b", request_rate=2).chosen.requests_per_s
    )
    assert f"{milliseconds(row.tpot_ms or 0.0)} a token, {row.load_words}" in page.answer()
    assert " --arrivals day.csv " in f"{page.commands()[0]} "
    assert "-tokens" not in page.commands()[0]
    assert "file.csv" not in page.raw
    assert command_json(page.commands()[0])["rows"][0]["ttft_ms"] == row.ttft_ms
    assert send(page, "day.csv", TRACE.replace(b"0.9", b"0.1")).status_code == 400
    assert "day.csv" in page.errors()["upload"]


def test_each_load_has_its_best_rows_beside_each_other(gpu: Path, tmp_path: Path) -> None:
    quick = json.loads(gpu.read_text())
    quick["llm"]["sheet"]["bandwidth_gb_s"] *= 3
    (tmp_path / "quick.json").write_text(json.dumps(quick))
    with site([gpu, tmp_path / "quick.json"]) as page:
        page.get(f"{TAB}{SMALL}&model=gpu&model=quick&request_rate=2,9&max_tpot_ms=40")
        titles = re.findall(r"a token, (\d) requests/s on", page.answer())
        body = page.raw.partition("The best row of each under each load")[2].partition("</table>")[
            0
        ]
    assert titles == ["9", "9"]
    names = re.findall(r"<tr><t[hd][^>]*>([^<]*)<", body.partition("<tbody>")[2])
    assert names == ["quick", "gpu"] * 2  # of equal prices the faster one comes first
    times = [
        milliseconds(row.tpot_ms or 0.0)
        for rate in (2, 9)
        for path in (gpu, tmp_path / "quick.json")
        if (row := lolat.load(path).llm("llama-3.1-8b", request_rate=rate, max_tpot_ms=40.0).chosen)
    ]
    assert [time for time in times if time not in body] == []


def test_the_headline_of_a_training_is_the_cheapest_that_fits(page: Site, gpu: Path) -> None:
    """8 G parameters take 16 bytes each: one GPU of 80 GiB cannot hold them."""
    asked: dict[str, Any] = {"tokens": 10**8, "sharding": "fsdp", "price_per_hour": 2.0}
    options = (
        lolat.load(gpu)
        .cost("llama-3.1-8b", 1, input_size=4096, replicas=(1, 4, 8), **asked)
        .options
    )
    assert [option.fits for option in options] == [False, True, True]
    best = min(options[1:], key=lambda option: option.dollars or 0.0)
    page.get("?view=decoder&model=gpu", replicas="1,4,8", **asked)
    title = f"{best.devices} devices, {duration(best.total_s or 0)}, {dollars(best.dollars or 0)}"
    assert f'<p class="big">{title} <span>cheapest' in page.raw
    assert re.search("<td[^>]*>[^<]* GiB of 79.5 GiB</td>", page.raw)
    page.get("?view=decoder&model=gpu", replicas="1,4,8", max_hours="0.001", **asked)
    assert '<p class="big">not within the limits</p>' in page.raw
    assert "nothing is within 0.001 h; " in page.answer()
    assert re.search(r"Fastest and cheapest 8 x \S*gpu\S*, \d", page.answer())
    assert 'a higher "Limit of hours"' in page.answer()


def test_all_trainings_are_one_table_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "bundled_folder", lambda: MODELS)
    asked: dict[str, Any] = {"tokens": 10**8, "replicas": "8"}
    with site([]) as page:
        page.get("?view=decoder&model=all", **asked)
        (line,) = page.commands()
        costs = command_json(line)
        beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
    assert '<section class="card" ' not in page.raw
    options = [o for c in costs["answers"] for o in c["options"]]
    best = min((o for o in options if o["dollars"]), key=lambda option: option["dollars"])
    cheapest = f"{duration(best['total_s'])}, {dollars(best['dollars'])}"
    assert re.search(
        rf'"big">{best["devices"]} x \S+ {re.escape(cheapest)} <span>cheapest<', beside
    )
    brief = page.raw.partition('id="brief"')[2].partition("</a>")[0]
    assert cheapest in brief
    assert beside.partition("<tbody>")[2].count("<tr>") == sum(
        cost["fits"] is not False for cost in costs["answers"]
    )
    assert "--json" not in page.answer()


def test_a_gpu_of_a_data_sheet_is_asked_by_its_name(
    page: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "bundled_folder", lambda: MODELS)
    page.get(TAB + SMALL + "&model=rtx-4090")
    assert page.errors() == {}
    wanted = serving_model("rtx-4090").llm("llama-3.1-8b", concurrency=32).chosen
    assert f"{milliseconds(wanted.tpot_ms or 0.0)} a token" in page.answer()
    assert page.commands()[0].startswith("lolat llm rtx-4090 ")


def test_each_load_has_a_headline_and_stands_beside_the_device(gpu: Path, tmp_path: Path) -> None:
    """One of three times the price is never the cheapest; the load is the second figure of a row."""
    (tmp_path / "other.json").write_text(gpu.read_text())
    with site([gpu, tmp_path / "other.json"]) as page:
        page.get(f"{TAB}{SMALL}&model=gpu&model=other&request_rate=1,9&price_per_hour=2")
    rows = lolat.load(gpu).llm("llama-3.1-8b", request_rate=(1, 9), price_per_hour=2.0).served
    best = [min((r for r in rows if r.request_rate == n), key=lambda r: r.gpus) for n in (1, 9)]
    beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
    assert re.findall(r'<p class="big of-load">([^<]*) <span>([^<]*)</span>', beside) == [
        (
            f"{plural(r.gpus, 'GPU')}, {dollars(2 * 730 * r.gpus)} a month",
            f"gpu at {r.requests_words}, {milliseconds(r.tpot_ms or 0)} a token, "
            f"90 % sure of {between(*(r.tpot_interval_ms or (0, 0)), r.tpot_ms or 0)}",
        )
        for r in best
    ]
    assert re.findall(r"<tr><th[^>]*>(\w+)</th><td[^>]*>(\d)</td>", beside)[:4] == [
        ("gpu", "1"), ("other", "1"), ("gpu", "9"), ("other", "9")
    ]  # fmt: skip


def test_the_name_of_a_gpu_stands_for_each_framework_that_serves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "bundled_folder", lambda: MODELS)
    with site([]) as page:
        page.get(f"{TAB}{SMALL}&model=H100")
        cards = re.findall(r'<section class="card" aria-label="([^"]*)"', page.raw)
    assert sorted(cards) == ["h100-sglang", "h100-trtllm", "h100-vllm"]


def test_what_the_cheapest_is_warned_of_stands_beside_the_devices() -> None:
    """No framework but vLLM was compared under a rate: the row of each other one has a mark, too."""
    names = ("b200-trtllm", "b200-sglang")
    with site([MODELS / f"{name}.json" for name in names]) as page:
        page.get(
            f"{TAB}&config=llama-3.1-70b&dtype=nvfp4&request_rate=3&max_ttft_ms=1000&percentile=90"
            "&input_tokens=1800&output_tokens=350" + "".join(f"&model={name}" for name in names)
        )
    card = page.raw.partition('id="beside"')[2].partition("</section>")[0]
    before, _, table = card.partition("<table>")
    (cheapest,) = re.findall(r"Cheapest: ([\w-]+)", before)
    assert f"{cheapest}: requests at a rate were compared with served ones on vLLM alone" in before
    marks = dict(
        re.findall(
            r'"row" class="[^"]*" data-head="device">([\w-]+).*?data-head="remark">([^<]*)', table
        )
    )
    assert {n: "rate unchecked" in mark for n, mark in marks.items()} == dict.fromkeys(names, True)
    assert "rate unchecked: " in table

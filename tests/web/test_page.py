"""The page: what it says is what the library answers, every field matters, and every error has a place."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

pytest.importorskip("starlette")

import lolat
from lolat.cli.main import lolat as commands
from lolat.device.file import add_sections
from lolat.device.prediction import domain_words
from lolat.errors import LolatError
from lolat.graph import Graph, GraphBuilder
from lolat.io import paths as places
from lolat.units import digits, dollars, duration, milliseconds, quantity
from lolat.web.devices import devices
from lolat.web.fields import TABS
from lolat.web.form import Form
from lolat.web.values import EVERY, numbers
from tests import synthetic
from tests.strategies import queries
from tests.web.conftest import Write
from tests.web.pages import Site, site

BOTH = "?model=laptop&model=board&network=Mine"
MINE = "?model=laptop&network=Mine"


def command_json(command: str) -> Any:
    """The answer of a command of the page."""
    words = [*shlex.split(command)[1:], "--json"]
    return json.loads(CliRunner().invoke(commands, words, catch_exceptions=False).stdout)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1,000", (1000,)), ("8, 1,024", (8, 1024)), ("100,200", (100, 200)), ("1,64", (1, 64))],
)
def test_a_comma_of_thousands_is_none_between_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text, EVERY["batch_size"], 8) == expected


# ---- Latency


def test_at_first_there_is_an_answer(page: Site, laptop: Path) -> None:
    page.get()
    wanted = lolat.load(laptop).predict(lolat.read("keras:ResNet50"), 64)
    said = page.answer()
    assert wanted.interval_ms is not None
    rate = digits(64e3 / wanted.latency_ms)
    shown = f"{milliseconds(wanted.latency_ms)} {rate} samples/s 90 % sure of"
    assert f"laptop a laptop {shown}" in said
    assert f".. {milliseconds(wanted.interval_ms[1])[:-3]}" in said
    assert "ResNet50 224x224x3 · batch 64 · 247 GMACs" in said
    assert domain_words(wanted) in said
    assert page.errors() == {}
    assert page.reader.calls == []


def test_devices_are_compared_the_fastest_first(page: Site, laptop: Path, board: Path) -> None:
    page.get(BOTH + "&batch_size=1,4")
    models = {"laptop": lolat.load(laptop), "board": lolat.load(board)}
    table = page.raw.partition('<table id="compared">')[2].partition("</table>")[0]
    cells = r"</b> (\w+).*?<b>([^<]*)</b><small>([^<]*)</small></td>\s*<td[^>]*>([^<]*)<"
    rows = re.findall(cells, table, re.S)
    assert [name for name, *_ in rows] == ["laptop", "board"] * 2
    for (name, ms, sure, rate), size in zip(rows, (1, 1, 4, 4), strict=True):
        wanted = models[name].predict(synthetic.network(), size)
        assert wanted.interval_ms is not None
        assert ms == milliseconds(wanted.latency_ms)
        assert sure.endswith(f" .. {milliseconds(wanted.interval_ms[1])[:-3]}")
        assert rate == digits(1e3 * size / wanted.latency_ms)
    bars = [float(w) for w in re.findall(r'<progress class="bar s\d" value="([\d.]+)"', table)]
    times = [models[r[0]].predict(synthetic.network(), 1).latency_ms for r in rows[:2]]
    assert bars[0] / bars[1] == pytest.approx(times[0] / times[1], rel=0.01)
    ends = re.findall(r'<rect x="([\d.]+)" width="([\d.]+)"', table)
    low, high = models[rows[0][0]].predict(synthetic.network(), 1).interval_ms or (0, 0)
    x, width = map(float, ends[0])
    scale = 100 * bars[0] / times[0]  # a unit of the drawing, per ms
    assert (x, x + width) == pytest.approx((low * scale, high * scale), rel=0.01)
    assert max(float(x) + float(w) for x, w in ends) == pytest.approx(100, abs=0.01)
    page.get(MINE + "&batch_size=1")
    assert 'id="compared"' not in page.raw  # nothing to compare


def test_devices_that_cannot_be_told_apart_are_told(
    write: Write, laptop: Path, board: Path
) -> None:
    with site([laptop, write("given", "twin", slower=1.02), board]) as page:
        page.get("?network=Mine&model=twin&model=laptop&model=board&batch_size=1")
        (ms,) = re.findall(r"Fastest: laptop, ([\d.]+) ms; too close to call against twin \(\+2.0 %,",
                           page.answer())  # fmt: skip
        assert f"{ms} ms" == milliseconds(
            lolat.load(laptop).predict(synthetic.network()).latency_ms
        )
        page.get("?network=Mine&model=twin&model=board&batch_size=1")
        assert "too close to call" not in page.answer()
        assert "Fastest: " in page.answer()  # a clear one is named as well


def test_a_gpu_has_its_dollars_and_its_largest_batch() -> None:
    price = 0.526  # US$ an hour of g4dn.xlarge, the cheapest machine with a T4
    t4 = places.repository_root() / "models" / "t4-fp32.json"
    with site([t4]) as page:
        page.get("?model=t4-fp32&network=Mine&batch_size=8&precision=")
        said = page.answer()
    ms = lolat.load(t4).predict(synthetic.network(), 8).latency_ms
    paid = dollars(ms / 8 * 1e6 / 3.6e6 * price)
    assert (
        f"{paid} for a million samples: g4dn.xlarge (aws, 1 x T4), $0.53 an hour, always busy"
        in said
    )
    most = int(said.partition("the largest batch that fits is ")[2].split()[0].replace(",", ""))
    fits = [lolat.load(t4).predict(synthetic.network(), n).fits for n in (most, most + 1)]
    assert fits == [True, False]


def test_a_card_names_the_profile_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 that is asked for by its times in float32 has others in amp, in files of their own."""
    models = places.repository_root() / "models"
    monkeypatch.setattr(places, "bundled_folder", lambda: models)
    half, single = (
        json.loads((models / f"h100-{mode}.json").read_text())["device"]
        for mode in ("fp16", "fp32")
    )
    names = {
        "&precision=amp": f"h100-fp16: {half}",
        "&precision=amp&view=budget": f"h100-fp16: {half}",
        "&precision=amp&view=budget&max_ms=0.01": f"h100-fp16: {half}",
        "&precision=fp32": single,
        "&precision=amp&view=training": half,
    }
    with site([]) as page:
        for query, known in names.items():
            page.get(f"?model=h100-fp32&network=Mine{query}")
            assert f'h100-fp32 <span class="dim">{known}</span></h2>' in page.raw
        page.get("?model=a10&network=Mine")  # whose name is its file's
        assert 'a10 <span class="dim">data sheet</span></h2>' in page.raw


@pytest.mark.parametrize("order", [1, -1])
def test_a_cpu_has_a_call_beside_a_gpu_that_has_none(order: int) -> None:
    """The times of the network on both devices, as `predict` has them; a row for the CPU's call alone."""
    names = ["epyc-2t", "rtx-4090-amp"][::order]
    files = [places.repository_root() / "models" / f"{name}.json" for name in names]
    with site(files) as page:
        page.get("?model=epyc-2t&model=rtx-4090-amp&network=Mine")
    calls = [lolat.load(file).predict(synthetic.network()).call_ms > 0.0 for file in files]
    assert calls == [True, False][::order]
    assert len(re.findall(r"<th[^>]*>\s*call", page.raw)) == 1


def test_assumed_hosts_are_told_whatever_the_precisions() -> None:
    models = places.repository_root() / "models"
    with site([models / "h100-fp32.json", models / "rtx-4090-amp.json"]) as page:
        page.get("?model=h100-fp32&model=rtx-4090-amp&network=Mine&precision=&batch_size=1,128")
        assert "Precisions differ" in page.answer()
        assert "these times compare assumed hosts, not GPUs" in page.answer()


@pytest.mark.parametrize("order", [1, -1])
def test_the_overhead_of_a_host_is_of_the_gpus_beside_a_cpu(order: int) -> None:
    """The CPU's card has its time without it, a remark, and a command that a CPU answers."""
    names = ["epyc-2t", "rtx-4090-amp"][::order]
    files = [places.repository_root() / "models" / f"{name}.json" for name in names]
    with site(files) as page:
        query = "".join(f"&model={name}" for name in names) + "&network=Mine&batch_size=8"
        page.get(f"?{query}&host_us=300")
        said, told = page.answer(), page.raw.count("no host starts")
        commands = [next(c for c in page.commands() if f" {file} " in c) for file in files]
    cpu = lolat.load(files[names.index("epyc-2t")]).predict(synthetic.network(), 8)
    assert milliseconds(cpu.latency_ms) in said
    assert told == 1
    assert ["--host-us" in command for command in commands] == [False, True][::order]
    assert "No answer" not in said


def test_each_gpu_answers_in_its_fastest_precision_at_first() -> None:
    """So that GPUs which were measured in different ones are compared, as by --precision best."""
    names = ["h100-fp32", "rtx-4090-amp"]
    files = [places.repository_root() / "models" / f"{name}.json" for name in names]
    with site(files) as page:
        page.get("?network=Mine&batch_size=8" + "".join(f"&model={name}" for name in names))
        said, command = page.answer(), next(c for c in page.commands() if "--on" in c)
    assert "Precisions differ" not in said
    assert "--precision best" in command
    models = [lolat.load(file) for file in files]
    for p in lolat.predict(synthetic.network(), models, 8, precision="best"):
        assert milliseconds(p.latency_ms) in said
        assert p.runs_as in said


def test_devices_have_their_dollars_at_each_batch_size() -> None:
    prices = {"t4-fp32": 0.526, "rtx-4090-amp": 0.74}  # US$ an hour, g4dn.xlarge and RunPod's
    names, sizes = [*prices], (1, 8)
    paths = [places.repository_root() / "models" / f"{name}.json" for name in names]
    times = {
        (name, size): lolat.load(path).predict(synthetic.network(), size).latency_ms
        for name, path in zip(names, paths, strict=True)
        for size in sizes
    }
    paid = {of: ms / of[1] * 1e6 / 3.6e6 * prices[of[0]] for of, ms in times.items()}
    with site(paths) as page:
        page.get("?network=Mine&batch_size=1,8&model=t4-fp32&model=rtx-4090-amp&precision=")
        table = page.raw.partition('<table id="compared">')[2].partition("</table>")[0]
        rows = re.findall(
            r"</b> ([\w-]+)(?:<small.*?</small>)?</th>.*?<td[^>]*>([^<]*)</td></tr>", table, re.S
        )
        shown = {(name, size): usd for (name, usd), size in zip(rows, (1, 1, 8, 8), strict=True)}
        assert shown == {of: digits(usd) for of, usd in paid.items()}
        page.get(
            "?network=Mine&batch_size=1,8&model=rtx-4090-amp&precision="
        )  # one device has no verdict by host
        least = min(sizes, key=lambda size: paid["rtx-4090-amp", size])
        assert (
            f"at batch {least}, ${digits(paid['rtx-4090-amp', least])} a million" in page.answer()
        )
    with site([]) as page:
        page.get("?network=Mine&model=T4")  # typed in the field of other GPUs
        assert 'id="f-model-other"' in page.raw
        assert "lolat read writes a .json of any network" in page.raw


@pytest.mark.parametrize("view", ["latency", "training"])
def test_float32_and_half_precision_side_by_side_are_remarked(view: str) -> None:
    names = "h100-fp32", "rtx-4090-amp"
    asked = f"?view={view}&network=Mine&batch_size=8" + "".join(f"&model={n}" for n in names)
    folder = places.repository_root() / "models"
    with site([folder / f"{name}.json" for name in names]) as page:
        page.get(asked + "&precision=")
        before, told, after = page.answer().partition("Precisions differ")
        assert told
        assert '(one for all in "Precision"' in after
        assert " ms" not in before  # above the cards
        assert "--precision" not in after.partition("Link and commands")[0]
        page.get(asked + "&precision=amp")
        assert "Precisions differ" not in page.answer()


def test_a_training_is_compared_in_the_precisions_of_the_command() -> None:
    names = "a100-fp32", "rtx-4090-amp"
    paths = [places.repository_root() / "models" / f"{name}.json" for name in names]
    given = {"samples": 50_000, "epochs": 20, "replicas": 1}
    command = lolat.compare(synthetic.network(), 64, on=[*map(str, paths)], **given)
    assert [cost.precision for cost in command.answers] != [None, None]
    with site(paths) as page:
        page.get(
            "?view=training&network=Mine&batch_size=64" + "".join(f"&model={n}" for n in names)
        )
        assert "Precisions differ" not in page.answer()
        _, *titles = re.findall('<p class="big">([^<]*?) ?<', page.raw)  # behind the comparison's
    assert titles == [
        ", ".join(["1 device", duration(o.total_s or 0), dollars(o.dollars or 0)])
        for o in (cost.options[0] for cost in command.answers)
    ]


def test_the_winner_of_a_training_is_told_once_and_marks_stand_below_their_table(
    write: Write, laptop: Path
) -> None:
    with site([laptop, write("given", "twin", slower=1.02)]) as page:
        page.get("?view=training&network=Mine&model=twin&model=laptop&price_per_hour=1")
        beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
        page.get("?view=training&network=Mine&model=laptop&price_per_hour=1")
        card = page.raw.partition('<section class="card"')[2].partition("</section>")[0]
    for part in (beside, card):
        title, _, after = part.partition('<p class="big">')[2].partition("</p>")
        assert title.endswith(" <span>cheapest</span>")
        said = after.partition('<div class="wide')[0]
        assert title.partition(" <span>")[0] not in said
        assert "Fastest: " in said
        marks, _, below = after.partition("</table></div>")[2].partition("<details")
        assert '<p class="hint">* no other row is both faster and cheaper' in marks
        assert "no other row" not in below
    verdict = beside.partition("</p>")[2].partition("<dl")[0]
    assert verdict.lstrip().startswith("<p>Too close to call against twin (+2.0 %,")


@pytest.mark.parametrize(
    ("more", "update"),
    [("", 256), ("&replicas=3", 255), ("&samples=100", 96), ("&model=board", 256)],
)
def test_rows_of_a_training_have_equal_updates_at_first(page: Site, more: str, update: int) -> None:
    """The multiple of all numbers of devices that is next to 256 and no more than the data."""
    page.get(f"?view=training&model=laptop{more}")
    costs = command_json(page.commands()[0])["answers"]
    sizes = {
        o["batch_size"] * o["devices"] * cost["accumulate"]
        for cost in costs
        for o in cost["options"]
    }
    assert sizes == {update}
    assert "Updates differ" not in page.answer()
    page.get("?view=training&model=laptop&batch_size=64")
    assert "Updates differ" in page.answer()
    assert "--global-batch-size" not in page.commands()[0]


def test_a_device_without_a_price_is_not_within_a_limit_of_money() -> None:
    """A T4 is in the built-in table of prices, an MI250 is not."""
    paths = [places.repository_root() / "models" / f"{name}.json" for name in ("t4-fp32", "mi250")]
    asked = (
        "?view=training&network=Mine&samples=1000&epochs=1&replicas=1&max_dollars=50&max_hours=50"
    )
    with site(paths) as page:
        page.get(f"{asked}&model=t4-fp32&model=mi250")
        words = page.answer()
        assert "no price of mi250" in words
        assert len(re.findall('<p class="big">', page.raw)) == 1
        page.get(f"{asked}&model=mi250")
        assert any("no price of mi250" in error for error in page.errors().values())
        page.get(f"{asked}&model=mi250&price_per_hour=1")
        assert not page.errors()


def test_a_layout_that_keeps_the_money_is_told_on_one_device() -> None:
    """As the command does; with the layout the same question is within the limit."""
    path = places.repository_root() / "models" / "rtx-4090-amp.json"
    asked: dict[str, Any] = {"samples": 10**6, "replicas": 1, "price_per_hour": 1}
    first, last = (
        lolat.load(path).run_as("amp", channels_last=is_last)
        .cost(synthetic.network(), 64, **asked).options[0].dollars or 0.0
        for is_last in (False, True)
    )  # fmt: skip
    assert last < 0.97 * first
    asked |= {"network": "Mine", "batch_size": 64, "epochs": 1, "precision": "amp"}
    query, limit = "?view=training&model=rtx-4090-amp", f"{(first + last) / 2:.6f}"
    with site([path]) as page:
        page.get(query, **asked, max_dollars=limit)
        assert '; "Layout of images" (1 x ' in page.answer()
        assert f"in amp, channels last, {duration(last * 3600)}" in page.answer()
        page.get(query, **asked, max_dollars=limit, channels_last="last")
        assert "not within the limits" not in page.answer()


@pytest.mark.parametrize("typed", ["2,8", "8,2", "2;8"])
def test_what_is_of_one_batch_size_is_of_the_largest_and_says_so(page: Site, typed: str) -> None:
    page.get(f"{MINE}&batch_size={typed.replace(';', '%3B')}")
    macs = lolat.load(page.commands()[0].split()[2]).predict(synthetic.network(), 8)
    sizes = ", ".join(typed[::2])
    assert (
        f"batch {sizes} · at batch 8: {quantity(macs.counts['flops'], 'MACs')} ·" in page.answer()
    )
    rate = digits(8e3 / macs.latency_ms)
    shown = f"{milliseconds(macs.latency_ms)} at batch 8, {rate} samples/s 90 % sure"
    assert f"a laptop {shown}" in page.answer()
    assert "Where the time goes, at batch 8" in page.answer()
    (report,) = re.findall(r'href="(/report[^"]*)"', page.raw)
    assert "batch 8" in page.client.get(html.unescape(report)).text
    page.get(MINE + "&batch_size=8")
    assert "at batch" not in page.answer()


def strange() -> Graph:
    builder = GraphBuilder("strange")
    x = builder.input((1, 99, 99, 64))
    return builder.build([builder.add("a_new_kind", [x], (1, 99, 99, 64), "odd")])


def test_what_is_outside_says_why(
    page: Site, laptop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page.reader, "read", lambda *_: strange())
    page.get(BOTH + "&batch_size=1")
    wanted = lolat.load(laptop).predict(strange())
    assert wanted.in_domain is False
    assert page.answer().count(domain_words(wanted)) == 2, "on each card"
    table = page.raw.partition('<table id="compared">')[2].partition("</table>")[0]
    assert table.count('<small class="outside">outside</small>') == 2
    assert "outside: the network is outside the measured range, so that" in page.answer()
    assert "a_new_kind" in page.answer()


def test_the_full_report_is_the_page_of_the_command(
    page: Site, laptop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.get(BOTH + "&batch_size=2")
    first, second = (html.unescape(u) for u in re.findall(r'href="(/report\?[^"]*)"', page.raw))
    found = page.client.get(first)
    monkeypatch.setattr(
        "lolat.readers.read", lambda _, size=(): page.reader.read("Mine", size or ())
    )
    path = tmp_path / "report.html"
    line = ["report", str(laptop), "keras:Mine", "--batch-size", "2", "--html", str(path)]
    assert CliRunner().invoke(commands, line, catch_exceptions=False).exit_code == 0
    assert found.text == path.read_text(encoding="utf-8")
    assert "an input of 28 px instead of 56" in found.text  # read again, as the command does
    assert "a board" in page.client.get(second).text


def test_the_report_of_a_device_with_a_strange_name(write: Write) -> None:
    with site([write("given", "a+b & c", device="a laptop")]) as page:
        page.get("?network=Mine")
        (address,) = re.findall(r'href="(/report\?[^"]*)"', page.raw)
        assert page.client.get(html.unescape(address), follow_redirects=False).status_code == 200


@pytest.mark.parametrize("query", ["only=x", "only=laptop&batch_size=x", "only=laptop&network=Bad"])
def test_a_report_that_cannot_be_is_the_page_that_says_why(page: Site, query: str) -> None:
    found = page.client.get(f"/report?{query}", follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, f"/?{query}")


# ---- The form


WRONG = [
    ({"batch_size": "0"}, "batch_size"),
    ({"batch_size": "9" * 5000}, "batch_size"), ({"batch_size": "nan"}, "batch_size"),
    ({"network": "transformers:/etc/passwd"}, "network"),
    ({"network": "os:getcwd"}, "network"), ({"network": "BadNet"}, "network"),
    ({"network": "upload:gone.onnx"}, "network"), ({"input_size": "big"}, "input_size"),
    ({"view": "budget", "max_ms": ""}, "max_ms"), ({"view": "budget", "max_ms": "20m"}, "max_ms"),
    ({"view": "budget", "vary": "depth"}, "vary"),
    ({"view": "budget", "sure": "100"}, "sure"),
    ({"view": "training", "samples": "10", "batch_size": "64"}, "batch_size"),
    ({"view": "training", "epochs": "2.5"}, "epochs"),
    ({"view": "training", "replicas": "1,x"}, "replicas"),
    ({"view": "training", "price_per_hour": "-3"}, "price_per_hour"),
]  # fmt: skip
WRONG_SERVING = [
    ({"config": "gpt-5"}, "config"), ({"config": ""}, "config"),
    ({"config": "upload:gone.json"}, "config"), ({"concurrency": "0"}, "concurrency"),
    ({"concurrency": "many"}, "concurrency"), ({"input_tokens": "999999"}, "input_tokens"),
    ({"output_tokens": "1.5"}, "output_tokens"), ({"tensor_parallel": "3"}, "tensor_parallel"),
    ({"dtype": "nvfp4"}, "dtype"), ({"dtype": "int1"}, "dtype"), ({"max_tpot_ms": "-1"}, "max_tpot_ms"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("view", "field", "typed", "meant"),
    [
        ("training", "max_hours", "24h", "24"), ("training", "max_hours", "90 min", "1.5"),
        ("training", "max_dollars", "$50", "50"), ("training", "price_per_hour", "0.4$", "0.4"),
        ("training", "memory_gib", "24GB", "24"), ("training", "link_gbps", "100G", "100"),
        ("decoder", "tokens", "50 million", "50000000"), ("decoder", "sequence_length", "512 tok", "512"),
        ("budget", "max_ms", "0.5 s", "500"), ("budget", "sure", "0.9", "90"),
        ("latency", "batch_size", "8, 64x", "64"), ("latency", "input_size", "224x192x3", "224,192,3"),
        ("llm", "request_rate", "90/min", "1.5"), ("llm", "max_ttft_ms", "1s", "1000"),
        ("llm", "accepted", "70 %", "0.7"), ("llm", "percentile", "0.95", "95"),
    ],
)  # fmt: skip
def test_a_wrong_unit_has_a_hint_at_its_field(
    page: Site, view: str, field: str, typed: str, meant: str
) -> None:
    page.get(view=view, **{field: typed})
    error = page.errors()[field]
    assert typed.rpartition(", ")[2] in error
    assert error.endswith(f"; did you mean {meant}?")


def test_the_way_is_told_in_the_words_of_the_page(page: Site) -> None:
    page.get(network="mynet:make")
    assert "lolat read mynet:make --output net.json" in page.errors()["network"]
    page.get(network="resnet50")
    assert "keras:ResNet50 or timm:resnet50" in page.errors()["network"]
    page.get(MINE, view="budget", max_ms="0.0001", vary="width")
    assert '<p class="big">nothing fits</p>' in page.raw  # memory has nothing to do with it
    assert "; now, at width x1, it takes " in page.answer()
    page.get(MINE, view="training", replicas="2")
    said = page.answer().partition("Link and commands")[0]
    assert 'yours: "Link of a device, Gbit/s"' in said
    assert "--link" not in said


@pytest.mark.parametrize(
    ("fields", "name"),
    [*WRONG, *(({"view": "llm", "model": "gpu"} | fields, name) for fields, name in WRONG_SERVING)],
)
def test_an_error_stands_at_its_field_and_the_others_stay(
    page: Site, fields: dict[str, str], name: str
) -> None:
    others = {"gpu": {"price_per_hour": "3"}}.get(fields.get("model", ""), {"input_size": "64"})
    others = others if name != "input_size" else {"network": "Mine"}
    page.get(**{"model": "laptop", **others, **fields})
    assert list(page.errors()) == [name]
    assert page.errors()[name] in page.answer()  # at the top too, for who does not see the form
    assert len(page.errors()[name]) < 500
    assert not page.errors()[name].startswith('"')  # the label, which stands above or in front
    for other, text in {**others, **fields}.items():
        if other not in ("vary", "optimizer", "view", "model", "dtype", "kv_dtype"):
            assert page.value(other) == text
    assert len(re.findall(r'<(?:input|select)[^>]*aria-invalid="true"', page.raw)) == 1
    assert page.commands() == []
    page.get(page.link().removeprefix("/"))
    assert list(page.errors()) == [name]


@pytest.mark.parametrize("view", TABS)
def test_the_link_gives_the_same_view(page: Site, view: str) -> None:
    values = {"batch_size": "9", "samples": "4000", "sure": "80", "link_gbps": "25", "gpus": "2"}
    values |= {"max_tpot_ms": "90", "max_hours": "9"}  # of which it is sure
    values = {name: text for name, text in values.items() if name in TABS[view].every}
    asked = "?model=gpu" if TABS[view].subject.is_decoder else f"{BOTH}&input_size=64,64,3"
    page.get(f"{asked}&view={view}", **values)
    assert page.errors() == {}
    first, link = page.raw, page.link()
    assert page.get(link.removeprefix("/")) == first
    held = dict(parse_qsl(link.removeprefix("/?")))  # a link keeps its meaning if a default changes
    of_view = TABS[view].every.values()
    told = {f.name: f.default for f in of_view if f.default and f.name not in (*values, "network")}
    assert told == {name: held.get(name) for name in told}
    devices = 1 if TABS[view].subject.is_decoder else 2
    assert len(page.commands()) == devices + (view in ("latency", "training"))  # of the comparison


def test_a_model_that_cannot_answer_says_so_at_the_devices(page: Site, tmp_path: Path) -> None:
    folder = tmp_path / "shipped"
    folder.mkdir()
    add_sections(folder / "phone.json", {"spaces": {"fbnet": {}}}, "a phone")
    (folder / "broken.json").write_text("{")
    page.get(
        "?model=phone&model=laptop&network=Mine"
    )  # the one does not stand in the way of the other
    assert "phone No answer: " in page.answer()
    assert page.answer().count("no latencies of inference") == 1
    assert page.errors() == {}
    assert "laptop a laptop" in page.answer()
    assert 'value="broken"' not in page.raw
    page.get("?model=phone&network=Mine")  # but where there is no answer at all
    assert "no latencies of inference" in page.errors()["model"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("model=", "none is chosen"),
        ("model=gone", "'gone': no such device; choose one of the list"),
        ("model=gpu", "'gpu' answers language models only"),
        ("model=rtx-4091", "'rtx-4091': no such device; did you mean rtx-4090"),
        ("model=laptop&model=gone", "'gone': no such device"),
    ],
)
def test_no_other_device_answers_for_one_that_is_asked(page: Site, asked: str, words: str) -> None:
    page.get(f"?{asked}&network=Mine")
    assert list(page.errors()) == ["model"]
    assert words in page.errors()["model"]
    assert len(page.commands()) == asked.count("laptop")
    shown = page.answer()
    page.get(page.link().removeprefix("/"))
    assert page.answer() == shown


def test_the_hint_at_a_device_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """An a100 without its mode is no profile's name; both surfaces name it for an O in place of a 0."""
    monkeypatch.setattr(places, "bundled_folder", lambda: places.repository_root() / "models")
    with pytest.raises(LolatError) as refused:
        lolat.load("a10O")
    with site([]) as page:
        page.get("?model=a10O")
        hint = page.errors()["model"].partition("did you mean ")[2]
    assert "a100" in hint
    assert hint in str(refused.value)


@pytest.mark.parametrize("view", ["latency", "training"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("launch", "warp"), ("precision", "fp12"), ("host_us", "0.025")],
)
def test_of_several_devices_what_none_could_answer_is_an_error_at_its_field(
    page: Site, view: str, field: str, value: str
) -> None:
    page.get(f"{BOTH}&view={view}&{field}={value}")
    assert {*page.errors()} == {field}


def test_a_choice_that_there_is_not_stays_in_its_field(page: Site) -> None:
    page.get(MINE + "&precision=fp7")
    error = page.errors()["precision"]
    assert error.startswith("'fp7' is not known; choose one of best, as measured, fp32, ")
    assert "<option selected>fp7</option>" in page.raw  # or a browser would choose the first one


def test_the_first_example_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled devices that are ticked answer for the first network inside their measured range."""
    monkeypatch.setattr(
        places, "bundled_folder", lambda: Path(lolat.__file__).parents[1] / "models"
    )
    with site([]) as page:
        page.get()
        cards = re.findall(r'<p class="(inside|outside)">([^<]*)', page.raw)
    assert cards == 2 * [("inside", "inside the measured range")]


def test_the_models_that_are_ticked_at_first(tmp_path: Path, laptop: Path, write: Write) -> None:
    for name in ("a100", "epyc-2t", "rtx-3090-amp", "rtx-4090-amp"):
        write("shipped", name)
    assert list(devices([laptop])) == [
        "laptop", "a100", "epyc-2t", "rtx-3090-amp", "rtx-4090-amp",
    ]  # fmt: skip

    def ticked(*named: Path) -> list[str]:
        with site(named) as page:
            page.get()
            return re.findall(r'value="([^"]*)" checked', page.raw)

    assert ticked() == ["rtx-3090-amp", "rtx-4090-amp"]
    with site([]) as page:  # a GPU is known by its name as a command knows it, any name in any case
        page.get("?model=RTX-4090&model=Epyc-2T&model=t4&model=toaster&network=Mine")
        every, *each = [line.split() for line in page.commands()]
        assert [line[2] for line in each] == ["rtx-4090-amp", "epyc-2t", "t4"]
        assert every[2:5] == ["keras:Mine", "--on", "rtx-4090-amp,epyc-2t,t4"]
        assert page.errors()["model"].startswith("'toaster': no such device")
    assert ticked(laptop) == ["laptop"]
    form = Path("v100-sxm-16gb")  # known by its data sheet, it has no file
    assert ticked(form) == ["v100-sxm-16gb"]
    write("local", "here")
    assert ticked() == ["here"]


def test_every_model_of_lolat_models_is_offered_but_those_of_single_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "bundled_folder", lambda: places.repository_root() / "models")
    listed = CliRunner().invoke(commands, ["models"], catch_exceptions=False).stdout
    rows, _, layers = listed.partition("Single layers of 2018, for `lolat predict`: ")
    layers, _, _ = layers.partition("\n")
    with site([]) as page:
        shown = "".join(page.get(view=view) for view in TABS)
        offered = {*re.findall(r'name="model" id="[^"]*" value="([^"]+)"', shown)}
    described = re.findall(
        r'<b>([^<]+)</b>\s*<span class="hint" title="[^"]*">([^<]+)</span></label>', shown
    )
    assert {name for name, _ in described} == offered - {"all"}
    assert ("h200", "measured on h100-sxm-80gb") in described
    assert {*layers.split(", ")} & offered == set()
    assert {line.split()[0] for line in rows.splitlines()[1:]} == offered - {"all"}


def test_models_of_one_name_are_told_apart_and_read_again(write: Write) -> None:
    local, shipped = write("local", "gpu"), write("shipped", "gpu")
    assert len(places.list_models()) == 2
    with site([]) as page:
        page.get("?model=gpu-2&model=gpu&network=Mine")
        _, first, second = page.commands()
        assert first.startswith(f"lolat predict {shipped} ")
        assert second.startswith("lolat predict gpu ")
        local.write_text(json.dumps(synthetic.document(device="another one")))
        page.get()
        assert "another one" in page.answer()
        local.unlink()
        shipped.unlink()
        page.get()
        assert page.commands() == []
        assert "lolat learn cpu" in page.answer()


def test_what_is_typed_is_never_markup(page: Site) -> None:
    bad = "<script>alert(1)</script>\"'&"
    names = ("network", "input_size", "batch_size", "model", "view")
    page.get(**dict.fromkeys(names, bad))
    assert "<script>alert" not in page.raw
    assert page.value("network") == bad


ALL = {f.name for tab in TABS.values() for f in (*tab.subject.fields, *tab.fields)}


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(fields=queries([*sorted(ALL), "view", "model", "file", "only", "\0", "é"]))
def test_whatever_is_typed_there_is_a_page(page: Site, fields: list[tuple[str, str]]) -> None:
    found = page.client.get("/", params=fields)
    assert found.status_code == 200
    page.taken(found.text)
    assert page.errors() or page.commands()
    shown = page.answer()
    page.taken(page.client.get(page.link()).text)
    assert page.answer() == shown


def test_a_gpu_is_offered_once_for_training_and_by_each_framework_for_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A framework of serving runs no training; a tick of another one stands for the GPU there."""
    monkeypatch.setattr(places, "bundled_folder", lambda: places.repository_root() / "models")
    known = devices()
    h100 = {key for key, of in known.items() if key.startswith("h100-") and of.model.file.llm}
    assert {"h100-vllm", "h100-sglang"} <= h100
    assert h100 <= {*Form([("view", "llm")], known).devices}
    asked = [("view", "decoder"), ("model", "h100-sglang"), ("model", "h100-vllm")]
    form = Form(asked, known)
    assert h100 & {*form.devices} == {"h100-vllm"}
    assert form.ticked == ["h100-vllm"]
    assert not form.refused


def test_what_fits_on_several_devices_is_side_by_side(page: Site) -> None:
    """The board takes three times as long; a device on which nothing fits is told, and one is no table."""
    page.get(BOTH, view="budget", vary="batch", max_ms="200")
    beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
    answers = {n: page.raw.partition(f'aria-label="{n}"')[2] for n in ("laptop", "board")}
    largest = {
        n: int(
            re.findall(r'class="big">batch ([\d,]+) <span>within 200 ms<', text)[0].replace(",", "")
        )
        for n, text in answers.items()
    }
    assert largest["laptop"] > 2 * largest["board"] > 0
    rows = re.findall(r"batch ([\d,]+)</td>", beside)
    assert [int(row.replace(",", "")) for row in rows] == [largest["laptop"], largest["board"]]
    assert f'class="big">batch {largest["laptop"]:,} <span>laptop<' in beside
    assert "Largest" not in beside  # a second time
    page.get(MINE, view="budget", vary="batch", max_ms="200")
    assert 'id="beside"' not in page.raw

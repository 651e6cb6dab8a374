"""The tabs of latency: what they say is what the library answers, and every field matters."""

from __future__ import annotations

import base64
import copy
import hashlib
import html
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("starlette")

import lolat
from lolat.cli.main import lolat as commands
from lolat.errors import AnswerIsNo
from lolat.graph import Graph, GraphBuilder
from lolat.io import paths as places
from lolat.model.budget import budget
from lolat.model.prediction import domain_words
from lolat.units import milliseconds
from lolat.web.devices import CPUS, GPUS, YOURS, DeviceModels
from lolat.web.form import FIELDS, OF_VIEW
from tests import synthetic
from tests.web.pages import FakeReader, Site, site
from tests.web.test_uploads import send


def written(folder: Path, name: str, slower: float = 1.0, **changes: Any) -> Path:
    """A model file; of another device, that takes so many times as long."""
    document = copy.deepcopy(synthetic.document(name=name, **changes))
    extended = document["predictors"]["extended"]
    extended["coefficients"] = {k: v * slower for k, v in extended["coefficients"].items()}
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def laptop(tmp_path: Path) -> Path:
    return written(tmp_path / "given", "laptop", device="a laptop")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return written(tmp_path / "given", "board", slower=3.0, device="a board")


@pytest.fixture
def page(laptop: Path, board: Path) -> Iterator[Site]:
    with site([laptop, board], view="latency") as running:
        yield running


BOTH = "?view=latency&model=laptop&model=board&name=Mine"


def test_at_first_there_is_an_answer(page: Site, laptop: Path) -> None:
    page.get("?view=latency")
    told = lolat.load(laptop).predict(lolat.read("keras:ResNet50"))
    said = page.answer()
    assert told.interval_ms is not None
    assert f"laptop a laptop {milliseconds(told.latency_ms)} 90 % sure of" in said
    assert f"to {milliseconds(told.interval_ms[1])}" in said
    assert "ResNet50 224x224x3, batch 1 · 3.86 GMACs" in said
    assert domain_words(told) in said
    assert page.errors() == {}
    assert page.reader.calls == []
    assert page.client.get("/").text == page.raw  # the first tab


def test_devices_are_compared_the_fastest_first(page: Site, laptop: Path, board: Path) -> None:
    page.get(BOTH + "&batch=1,4")
    models = {"laptop": lolat.load(laptop), "board": lolat.load(board)}
    table = page.raw.partition('<table id="compared">')[2].partition("</table>")[0]
    rows = re.findall(
        r"</b> (\w+).*?<b>([^<]*)</b><small>([^<]*)</small></td><td>([^<]*)<", table, re.S
    )
    assert [name for name, *_ in rows] == ["laptop", "board"] * 2
    for (name, ms, sure, each), size in zip(rows, (1, 1, 4, 4), strict=True):
        told = models[name].predict(synthetic.network(), size)
        assert told.interval_ms is not None
        assert ms == milliseconds(told.latency_ms)
        assert sure.endswith(f" to {milliseconds(told.interval_ms[1])}")
        assert each == milliseconds(told.latency_ms / size)
    bars = [
        float(w) for w in re.findall(r'<progress class="bar s\d" value="([\d.]+)" max="1"', table)
    ]
    times = [models[r[0]].predict(synthetic.network(), 1).latency_ms for r in rows[:2]]
    assert bars[0] / bars[1] == pytest.approx(times[0] / times[1], rel=0.01)
    assert "laptop is 3 times as fast as board" in page.answer()
    page.get("?view=latency&model=laptop&name=Mine")
    assert 'id="compared"' not in page.raw  # nothing to compare


def test_blocks_add_up_to_the_latency(page: Site, laptop: Path) -> None:
    page.get("?view=latency&model=laptop&name=Mine")
    table = page.raw.partition('<table id="blocks">')[2]
    times = [float(t) for t in re.findall(r"<td>([\d.]+) ms</td>", table)]
    told = lolat.load(laptop).predict(synthetic.network())
    assert sum(times) == pytest.approx(told.latency_ms, rel=0.01)
    assert len(times) == len(told.blocks)
    page.get(BOTH)
    assert page.raw.partition('<table id="blocks">')[2].count('class="bar ') == 2 * len(times)


def strange() -> Graph:
    builder = GraphBuilder("strange")
    x = builder.input((1, 99, 99, 64))
    x = builder.add("a_new_kind", [x], (1, 99, 99, 64), "odd")
    return builder.build([x])


def test_what_is_outside_says_why(
    page: Site, laptop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page.reader, "read", lambda *_: strange())
    page.get(BOTH + "&name=Strange")
    told = lolat.load(laptop).predict(strange())
    assert told.in_domain is False
    assert page.answer().count(domain_words(told)) >= 2  # of each device
    assert "a_new_kind" in page.answer()


WRONG = [
    ({"view": "other"}, "view", "'other' is not known; choose one of latency, budget, training"),
    ({"batch": "0"}, "batch", "'0'; expected a whole number, or up to 8 of them, from 1"),
    ({"batch": "99999999"}, "batch", "from 1 to 65,536"),
    ({"name": "transformers:/etc/passwd"}, "name", "is no name of a network; expected one of"),
    ({"name": "timm:../x"}, "name", "is no name of a network"),
    ({"max_ms": ""}, "max_ms", "nothing is given; expected a number from"),
    ({"max_ms": "0"}, "max_ms", "'0'; expected a number from"),
    ({"max_ms": "soon"}, "max_ms", "'soon'; expected a number from"),
    ({"vary": "depth"}, "vary", "'depth' is not known; choose one of width"),
    ({"sure": "100"}, "sure", "'100'; expected a number from 1 to 99.9"),
    ({"at_batch": "0"}, "at_batch", "'0'; expected a whole number from 1"),
]


@pytest.mark.parametrize(("fields", "name", "said"), WRONG)
def test_what_is_wrong_is_said_at_its_field(
    page: Site, fields: dict[str, str], name: str, said: str
) -> None:
    page.get(**{"view": "budget" if name in OF_VIEW["budget"] else "latency", **fields})
    found = page.errors() or {"view": page.answer()}
    assert list(found) == [name]
    assert said in found[name]
    assert page.commands() == []


def test_at_most_six_devices(tmp_path: Path) -> None:
    models = [written(tmp_path / "many", f"d{i}") for i in range(7)]
    with site(models, view="latency") as page:
        page.get("?view=latency&" + "&".join(f"model=d{i}" for i in range(7)))
        assert "7 devices are ticked; tick 1 to 6" in page.errors()["model"]


@pytest.mark.parametrize("name", ["timm:net_50.a1_in1k", "torchvision:net18", "keras:Net"])
def test_a_network_of_another_package(page: Site, name: str) -> None:
    page.get(name=name)
    assert page.reader.calls == [(name, ())]
    assert name in page.commands()[0]


def test_the_list_has_its_groups_and_examples(tmp_path: Path, laptop: Path) -> None:
    shipped = tmp_path / "shipped"
    environment = synthetic.document()["environment"]
    kinds = {"epyc-2t": "cpu", "i9": "x", "rtx-4090-amp": "x", "a100": "gpu"}
    labels = {"i9": "Intel Core i9-10940X", "rtx-4090-amp": "RTX 4090"}
    for name, kind in kinds.items():
        where = {**environment, "device": kind}
        written(shipped, name, device=labels.get(name, "a desk"), environment=where)
    found = {d.key: d.group for d in DeviceModels([laptop]).all()}
    assert list(found) == ["laptop", "a100", "epyc-2t", "i9", "rtx-4090-amp"]
    assert list(found.values()) == [YOURS, GPUS, CPUS, CPUS, GPUS]

    def ticked(*given: Path) -> list[str]:
        with site(given, view="latency") as page:
            page.get("?view=latency")
            return re.findall(r'value="([^"]*)" checked aria-describedby="e-model"', page.raw)

    assert ticked() == ["epyc-2t", "rtx-4090-amp"]
    assert ticked(laptop) == ["laptop"]
    written(places.local_folder(), "here")
    assert ticked() == ["here"]


# ---- The full report.


def test_the_full_report_is_the_page_of_the_command(
    page: Site, laptop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.get(BOTH + "&batch=2")
    links = [html.unescape(u) for u in re.findall(r'href="(/report\?[^"]*)"', page.raw)]
    assert len(links) == 2
    found = page.client.get(links[0])
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network(name="Mine"))
    path = tmp_path / "report.html"
    line = ["report", str(laptop), "keras:Mine", "--batch-size", "2", "--html", str(path)]
    assert CliRunner().invoke(commands, line, catch_exceptions=False).exit_code == 0
    assert found.text == path.read_text(encoding="utf-8")
    policy = found.headers["content-security-policy"]
    script = re.findall(r"<script>(.*?)</script>", found.text, re.S)[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "a board" in page.client.get(links[1]).text


@pytest.mark.parametrize("query", ["batch=x", "model=nothing", "name=Bad", "view=training", ""])
def test_a_report_that_cannot_be_is_the_page_that_says_why(page: Site, query: str) -> None:
    found = page.client.get(f"/report?{query}", follow_redirects=False)
    if query:
        assert (found.status_code, found.headers["location"]) == (303, f"/?{query}")
    else:
        assert found.status_code == 200


# ---- What fits in a time.


@pytest.mark.parametrize(("vary", "shown"), [("width", "width × {:g}"), ("batch", "batch {:.0f}")])
@pytest.mark.parametrize("sure", ["", "90"])
def test_what_fits_is_what_the_library_finds(
    page: Site, laptop: Path, vary: str, shown: str, sure: str
) -> None:
    limit = 3 * lolat.load(laptop).predict(synthetic.network()).latency_ms
    page.get("?view=budget&model=laptop&name=Mine", vary=vary, max_ms=f"{limit:.6g}", sure=sure)
    options: Any = {"coverage": 0.9, "sure": True} if sure else {}
    found = budget(lolat.load(laptop), synthetic.network(), float(f"{limit:.6g}"), vary, **options)
    said = page.answer()
    assert f"laptop a laptop {shown.format(found.best.value)} takes" in said
    assert found.next is not None
    assert (
        f"Next, {shown.format(found.next.value)} {milliseconds(found.next.prediction.latency_ms)}"
        in said
    )
    assert f"Now, {shown.format(1)} {milliseconds(found.now.prediction.latency_ms)}" in said
    assert ("--sure 90" in page.commands()[0]) == bool(sure)
    assert page.get(page.link().removeprefix("/")) == page.raw


def test_what_does_not_fit_says_what_would(page: Site, laptop: Path) -> None:
    page.get("?view=budget&model=laptop&name=Mine&vary=batch&max_ms=0.0001")
    with pytest.raises(AnswerIsNo) as no:
        budget(lolat.load(laptop), synthetic.network(), 0.0001, "batch")
    assert no.value.code == "over-budget"
    needed = f"{no.value.data['enough_ms']:.3g}"
    assert f"give max_ms {needed} or more" in str(no.value)
    assert "does not fit" in page.answer()
    assert f'give "{FIELDS["max_ms"].label}" {needed} or more' in page.answer()
    assert "--ms" not in page.answer().partition("Take it along")[0]


class Sized(FakeReader):
    """Reads networks whose time grows with the input."""

    def read(self, network: str, size: tuple[int, ...] = ()) -> Graph:
        super().read(network, size)
        return synthetic.network(size=size[0] if size else 64, name="Mine")


def test_the_largest_input_is_read_anew(laptop: Path) -> None:
    reader = Sized()
    limit = lolat.load(laptop).predict(synthetic.network(size=160)).latency_ms
    with site([laptop], reader, view="budget") as page:
        page.get(
            "?view=budget&model=laptop&name=Mine&vary=resolution", max_ms=f"{limit * 1.0001:.9g}"
        )
        assert "160 px takes" in page.answer()
        assert ("keras:Mine", (160,)) in reader.calls
        before = len(reader.calls)
        page.get(page.link().removeprefix("/"))
        assert len(reader.calls) == before  # each is read once


def test_a_file_cannot_be_read_at_another_size(page: Site) -> None:
    send(page, "a.onnx", b"abc", view="budget", vary="resolution", model="laptop")
    assert "cannot be varied" in page.answer()


# ---- The command lines.


def test_the_commands_give_the_same_figures(
    page: Site, monkeypatch: pytest.MonkeyPatch, laptop: Path
) -> None:
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    page.get("?view=latency&model=laptop&name=Mine&batch=4")
    predict, report = page.commands()
    assert predict == f"lolat predict {laptop} keras:Mine --batch-size 4"
    assert report.startswith(f"lolat report {laptop} keras:Mine --batch-size 4 --html ")
    run = CliRunner().invoke(
        commands, [*shlex.split(predict)[1:], "--json"], catch_exceptions=False
    )
    assert milliseconds(json.loads(run.stdout)["latency_ms"]) in page.answer()
    page.get("?view=budget&model=laptop&name=Mine&vary=batch&max_ms=99&at_batch=2&sure=80")
    line = shlex.split(page.commands()[0])[1:]
    assert "--sure 80" in " ".join(line)
    run = CliRunner().invoke(commands, [*line, "--json"], catch_exceptions=False)
    assert f"batch {json.loads(run.stdout)['answer']:g} takes" in page.answer()


def test_the_commands_of_several_devices_and_batch_sizes_run(
    page: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    monkeypatch.chdir(tmp_path)
    page.get(BOTH + "&batch=1,4")
    predict, report = page.commands()
    run = CliRunner().invoke(commands, shlex.split(predict)[1:], catch_exceptions=False)
    for time in re.findall(r"<b>([\d.]+) ms</b><small>", page.raw):
        assert re.search(rf"\b{re.escape(time)}\b", run.stdout), time
    run = CliRunner().invoke(commands, shlex.split(report)[1:], catch_exceptions=False)
    assert run.exit_code == 0
    assert (tmp_path / "report.html").is_file()

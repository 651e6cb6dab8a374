"""The form and the tab of training: every field, every error, and the same figures as the command."""

from __future__ import annotations

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

from lolat.cli.main import lolat
from lolat.io import paths as places
from lolat.model.file import put
from lolat.units import dollars, duration
from lolat.web.form import FIELDS, OF_VIEW
from tests import synthetic
from tests.strategies import queries
from tests.web.pages import Site, site


def v100(made: Path, folder: Path, name: str = "v100", **environment: object) -> Path:
    """The same model of a device that is in the list of prices."""
    document = json.loads(made.read_text())
    document["environment"] = {"device": "Tesla V100-SXM2-16GB", **environment}
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


def command_json(command: str) -> Any:
    """The answer of a command of the page."""
    run = CliRunner().invoke(lolat, [*shlex.split(command)[1:], "--json"], catch_exceptions=False)
    return json.loads(run.stdout)


def test_at_first_there_is_an_answer(page: Site, made: Path) -> None:
    page.get()
    (command,) = page.commands()
    run = "--samples 50000 --epochs 20 --batch-size 64"
    assert command == f"lolat cost {made} keras:ResNet50 {run} --replicas 1,2,4,8"
    assert page.answer().startswith('id="answer"')
    assert page.errors() == {}
    assert page.reader.calls == []  # nothing had to be read
    for name in ("samples", "epochs", "batch_size", "devices", "compare", "name"):
        assert page.value(name) == FIELDS[name].default


def test_the_command_gives_the_same_figures(page: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    page.get(
        name="torchvision:resnet18", devices=4, batch_size=16, samples=5000, epochs=3, optimizer="adam",
        link_gbps=25, coverage=0.8, **{"price.desk": 2.5},
    )  # fmt: skip
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    (command,) = page.commands()
    told = command_json(command)
    said = page.answer()
    for option in told["options"]:
        ends = " to ".join(map(duration, option["interval_s"]))
        money = " to ".join(map(dollars, option["dollars_interval"]))
        row = f"{duration(option['total_s'])} {ends} {dollars(option['dollars'])} {money}"
        assert f"{option['devices']} {row}" in said


def test_a_long_network_has_its_shortest_blocks_in_one_row(
    page: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = synthetic.network(stages=60)
    monkeypatch.setattr(page.reader, "read", lambda *_: many)
    page.get(name="Long", view="latency")
    assert page.raw.count('<progress class="bar') == 25
    assert re.search(r"\d+ shorter ones together", page.answer())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"samples": "1281167"}, "20 epochs of 1,281,167 samples"),
        ({"samples": "60000", "epochs": 1}, "1 epoch of 60,000 samples"),
        ({"devices": 4}, "batch 64 on each of 4 devices"),
        ({"optimizer": "adam"}, "one device, adam"),
        ({"coverage": 0.5}, "50 % sure of"),
        ({"price.desk": "2.5", "model": "desk", "devices": 2}, "An hour costs $5.00"),
        ({"price.desk": "0", "model": "desk"}, "An hour costs $0.00"),
        ({"memory.desk": "12.5"}, " --memory-gib 12.5"),
        ({"size": "160, 160,3"}, "--input-size 160,160,3"),
    ],
)
def test_each_field_changes_the_answer(page: Site, fields: dict[str, object], words: str) -> None:
    page.get(**fields)
    assert page.errors() == {}
    assert words in page.answer()


def test_devices_whose_batches_are_larger_than_the_data_set_are_left_out(page: Site) -> None:
    page.get(name="Mine", samples=1000, batch_size=300, compare="1,2,3,4,16")
    assert re.findall(r'<th scope="row">([\d,]+)</th>', page.raw) == ["1", "2", "3"]
    assert "Not shown: 4, 16 devices" in page.answer()
    assert "--replicas 1,2,3" in page.commands()[0]
    assert page.value("compare") == "1,2,3,4,16"


WRONG = [
    ({"name": ""}, "name"), ({"name": "../x.keras"}, "name"), ({"name": "os:getcwd"}, "name"),
    ({"name": "BadNet"}, "name"), ({"size": "big"}, "size"), ({"size": "0"}, "size"),
    ({"source": "path"}, "source"),
    ({"source": "upload"}, "upload"), ({"source": "upload", "upload": "/etc/passwd"}, "upload"),
    ({"source": "upload", "upload": "0" * 64}, "upload"), ({"model": "other"}, "model"),
    ({"model": "/tmp/x.json"}, "model"), ({"asked": 1}, "model"), ({"price.desk": "-3"}, "price.desk"),
    ({"memory.desk": "lots"}, "memory.desk"), ({"memory.desk": "0"}, "memory.desk"),
    ({"samples": ""}, "samples"), ({"samples": "10"}, "batch_size"), ({"epochs": "2.5"}, "epochs"),
    ({"batch_size": "x"}, "batch_size"), ({"optimizer": "lion"}, "optimizer"),
    ({"devices": "0"}, "devices"),
    ({"compare": "1,x"}, "compare"), ({"compare": "2000,4096"}, "compare"),
    ({"link_gbps": "0"}, "link_gbps"), ({"link_gbps": "fast"}, "link_gbps"),
    ({"coverage": "1"}, "coverage"), ({"coverage": ""}, "coverage"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "name"), WRONG)
def test_an_error_stands_at_its_field_and_the_others_stay(
    page: Site, fields: dict[str, object], name: str
) -> None:
    others = {"epochs": 5} if name not in ("epochs", "samples", "batch_size") else {}
    page.get(**{"price.desk": "7", **others, **fields})
    assert list(page.errors()) == [name]
    assert page.errors()[name] in page.answer()  # at the top too, for who does not see the form
    for other, text in {**others, **fields}.items():
        if other not in ("model", "asked") and not (other in FIELDS and FIELDS[other].choices):
            assert page.value(other) == str(text)
    marked = re.findall(r'<(?:input|select)[^>]*aria-invalid="true"', page.raw)
    assert len(marked) == (name != "source")
    assert page.commands() == []
    page.get(page.link().removeprefix("/"))
    assert list(page.errors()) == [name]


@pytest.mark.parametrize("view", OF_VIEW)
@pytest.mark.parametrize("text", ["9" * 5000, "1e999", "-1", "nan", "1\0", "²"])
def test_numbers_that_are_none_whatever_their_length(made: Path, view: str, text: str) -> None:
    """Python's int() takes 4,300 digits and raises another error for more."""
    fields = {"size"} | {f for f in OF_VIEW[view] if FIELDS[f].numbers}
    of_device = {"memory.desk", "price.desk"}
    with site([made], view=view) as page:
        page.get("?model=desk", **dict.fromkeys(fields | of_device, text))
        found = page.errors()
        assert set(found) == fields | (of_device if view == "training" else set())
        assert all(len(said) < 400 for said in found.values())


def test_the_link_gives_the_same_view(page: Site) -> None:
    page.get(
        "?name=torchvision:resnet18&model=desk&price.desk=&memory.desk=24"
        "&samples=4000&epochs=3&batch_size=16&optimizer=adam&devices=2&compare=1,2,3"
        "&link_gbps=25&coverage=0.8&asked=1"
    )
    assert page.errors() == {}
    first, link = page.raw, page.link()
    assert page.get(link.removeprefix("/")) == first
    assert page.link() == link
    fields = dict(parse_qsl(link.partition("?")[2], keep_blank_values=True))
    assert fields["price.desk"] == ""  # else the example's price would come back
    assert "asked" not in link


def test_several_models_are_compared(made: Path, tmp_path: Path) -> None:
    fast = v100(made, tmp_path / "fast", memory_bytes=16 * 2**30)
    with site([made, fast]) as page:
        page.get("?model=desk&model=v100&price.desk=2&name=Mine&compare=1,8")
        assert page.errors() == {}
        assert "An hour costs $2.00" in page.answer()
        first, second = page.commands()
        assert "--price-per-hour 2" in first
        assert "--price-per-hour" not in second  # the list knows it


def test_a_model_that_is_listed_is_named_in_the_command(made: Path, tmp_path: Path) -> None:
    v100(made, tmp_path / "local", "gpu")
    with site([]) as page:
        page.get()
        assert page.commands()[0].startswith("lolat cost gpu keras:ResNet50 ")


def test_a_model_without_inference_says_how_to_get_it(page: Site, tmp_path: Path) -> None:
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "laptop.json").write_text(json.dumps(synthetic.document()))
    put(folder / "phone.json", {"spaces": {"fbnet": {}}}, "a phone")
    (folder / "layers.json").write_text(json.dumps({"schema": "lolat-layer-model"}))
    (folder / "broken.json").write_text("{")
    page.get()
    assert re.findall(r"<b>([^<]*)</b>\n", page.raw) == ["desk", "laptop", "phone"]
    page.get("?model=phone&model=desk&name=Mine")  # the one does not stand in the way of the other
    assert page.errors() == {}
    assert "phone cannot answer this" in page.answer()
    assert "Mine 20 epochs" in page.answer()


def test_models_of_one_name_are_told_apart(made: Path, tmp_path: Path) -> None:
    v100(made, tmp_path / "local", "gpu")
    v100(made, tmp_path / "shipped", "gpu")
    assert len(places.list_models()) == 2
    with site([]) as page:
        page.get("?model=gpu-2&name=Mine")
        assert page.errors() == {}
        assert str(tmp_path / "shipped" / "gpu.json") in page.commands()[0]


def test_a_model_that_changes_is_read_again(made: Path, tmp_path: Path) -> None:
    path = v100(made, tmp_path / "local", "gpu")
    with site([]) as page:
        page.get()
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "device": "another one"}))
        page.get()
        assert "another one" in page.answer() + page.raw
        path.unlink()
        page.get()
        assert page.commands() == []


def test_what_is_typed_is_never_markup(page: Site) -> None:
    bad = "<script>alert(1)</script>\"'&"
    names = ("name", "size", "samples", "compare", "link_gbps", "price.desk")
    page.get(**dict.fromkeys(names, bad))
    assert "<script>alert" not in page.raw
    assert page.value("name") == bad
    page.get(model=bad)
    assert "<script>alert" not in page.raw


NAMES = [*FIELDS, "model", "asked", "price.desk", "memory.desk", "file", "\0", "é"]


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(fields=queries(NAMES))
def test_whatever_is_typed_there_is_a_page(page: Site, fields: list[tuple[str, str]]) -> None:
    found = page.client.get("/", params=[*fields, ("view", "training")])
    assert found.status_code == 200
    page.taken(found.text)
    said = ("epoch", "cannot answer this", "needs another value")
    assert page.errors() or any(words in page.answer() for words in said)
    again = page.client.get(page.link())
    assert again.status_code == 200
    shown = page.answer()
    page.taken(again.text)
    assert page.answer() == shown

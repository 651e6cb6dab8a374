"""The page as it is asked and answers: every field, every error, and the same figures as the commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

pytest.importorskip("starlette")

import lolat as lolat_package
from lolat.cli.main import lolat
from lolat.io import paths as places
from lolat.model.file import put
from lolat.readers import read
from lolat.training.prices import read_prices
from lolat.units import byte_size, dollars, duration
from lolat.web.form import FIELDS, OF_VIEW
from tests import synthetic
from tests.strategies import queries
from tests.training import known_device
from tests.web.pages import Site, site


def v100(made: Path, folder: Path, name: str = "v100", **environment: object) -> Path:
    """The same model of a device that is in the list of prices."""
    document = json.loads(made.read_text())
    document["environment"] = {"device": "Tesla V100-SXM2-16GB", **environment}
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


def test_at_first_there_is_an_answer(page: Site, made: Path) -> None:
    page.get()
    cost = lolat_package.load(made).cost(read("keras:ResNet50"), 64, 50000, 20)
    (told,) = cost.options
    assert told.total_s is not None
    assert told.interval_s is not None
    said = page.answer()
    assert said.startswith('id="answer"')
    assert "ResNet50 20 epochs of 50,000 samples, batch 64 on one device, sgd" in said
    assert duration(told.total_s) in said
    assert dollars(told.total_s / 3600) in said  # a dollar an hour
    assert f"90 % sure of {duration(told.interval_s[0])} to {duration(told.interval_s[1])}" in said
    assert byte_size(cost.memory_bytes) in said
    assert page.errors() == {}
    assert page.reader.calls == []  # nothing had to be read
    for name in ("samples", "epochs", "batch_size", "devices", "compare", "name"):
        assert page.value(name) == FIELDS[name].default


def test_the_table_has_each_number_of_devices(page: Site) -> None:
    page.get(name="Mine", compare="1,2,16")
    rows = re.findall(r'<th scope="row">([\d,]+)</th>', page.raw)
    assert rows == ["1", "2", "16"]
    assert "Cheapest: 1 device" in page.answer()


def test_blocks_add_up_to_the_iteration(page: Site, made: Path) -> None:
    page.get(name="Mine", batch_size=8)
    times = re.findall(r"<td>([\d.]+) ms</td>", page.raw)
    names = re.findall(r'<th scope="row" class="left">([^<]*)</th>', page.raw)
    assert names[-2:] == ["update", "call"]
    assert page.raw.count('<progress class="bar') == len(names)
    (told,) = lolat_package.load(made).cost(synthetic.network(), 8).options
    assert sum(map(float, times)) == pytest.approx(told.iteration_ms, rel=0.005)
    assert f"An iteration {told.iteration_ms:.1f} ms" in page.answer()


def test_a_long_network_has_its_shortest_blocks_in_one_row(
    page: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = synthetic.network(stages=60)
    monkeypatch.setattr(page.reader, "read", lambda *_: many)
    page.get(name="Long")
    assert page.raw.count('<progress class="bar') == 25
    assert re.search(r"\d+ shorter ones together", page.answer())
    shares = re.findall(r"<td>([\d.]+) %</td>", page.raw)
    assert sum(map(float, shares)) == pytest.approx(100, abs=3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"samples": "1,281,167"}, "20 epochs of 1,281,167 samples"),
        ({"samples": "60 000", "epochs": 1}, "1 epoch of 60,000 samples"),
        ({"batch_size": 7}, "batch 7 on one device"),
        ({"devices": 4}, "batch 64 on each of 4 devices"),
        ({"optimizer": "adam"}, "one device, adam"),
        ({"coverage": 0.5}, "50 % sure of"),
        ({"price.desk": "2.5", "model": "desk"}, "An hour costs $2.50 the price given"),
        ({"price.desk": "$2.5", "model": "desk", "devices": 2}, "An hour costs $5.00"),
        ({"price.desk": "0", "model": "desk"}, "An hour costs $0.00"),
        ({"memory.desk": "500"}, "fits into 500 GiB; the largest batch that fits is"),
        ({"memory.desk": "0.001"}, "does not fit into 1.02 MiB; the largest batch that fits is 0"),
        ({"memory.desk": "12.5"}, " --memory-gib 12.5"),
        ({"size": "160, 160,3"}, "--input-size 160,160,3"),
        ({"optimizer": "adadelta"}, "used adadelta"),
    ],
)  # fmt: skip
def test_each_field_changes_the_answer(page: Site, fields: dict[str, object], words: str) -> None:
    page.get(**fields)
    assert page.errors() == {}
    assert words in page.answer()


def test_devices_whose_batches_are_larger_than_the_data_set_are_left_out(page: Site) -> None:
    page.get(name="Mine", samples=1000, batch_size=300, compare="1,2,3,4,16")
    assert re.findall(r'<th scope="row">([\d,]+)</th>', page.raw) == ["1", "2", "3"]
    said = "Not shown: 4, 16 devices, whose batches of 300 together are larger than the data set of 1,000"
    assert said in page.answer()
    assert "--replicas 1,2,3 " in page.commands()[0]
    assert page.value("compare") == "1,2,3,4,16"


def test_what_the_rest_of_the_fields_do(page: Site) -> None:
    def total(**fields: object) -> str:
        page.get(name="Mine", devices=8, samples=1000, epochs=1, **fields)
        found = re.search(r'<p class="big">([^<]*)', page.raw)
        assert found is not None
        return found[1]

    usual = total()
    assert total(link_gbps=0.1) != usual
    assert total(strategy="one-to-all") != usual
    assert total(batch_size=1) != usual


WRONG = [
    ({"name": ""}, "name", "no name is given; expected one of keras.applications"),
    ({"name": "../x.keras"}, "name", "'../x.keras' is no name of a network"),
    ({"name": "os:getcwd"}, "name", "'os:getcwd' is no name of a network"),
    ({"name": "BadNet"}, "name", "no network 'keras:BadNet' in keras.applications; did you mean"),
    ({"size": "big"}, "size", "'big' is no input size; expected"),
    ({"size": "0"}, "size", "'0' is no input size; expected"),
    ({"source": "path"}, "source", "'path' is not known; choose one of keras, upload"),
    ({"name": "generate:vgg?config={}"}, "name", "'generate:vgg?config={}' is no name of a network"),
    ({"source": "upload"}, "upload", "no file has been given yet; choose one of .keras, .onnx"),
    ({"source": "upload", "upload": "/etc/passwd"}, "upload", "no file has been given yet"),
    ({"source": "upload", "upload": "0" * 64}, "upload", "this file is not known (any more)"),
    ({"model": "other"}, "model", "no model 'other' here; tick one of the list"),
    ({"model": "/tmp/x.json"}, "model", "no model '/tmp/x.json' here"),
    ({"asked": 1}, "model", "no device is ticked; tick 1 to 6"),
    ({"price.desk": "-3"}, "price.desk", "'-3' is not a price; expected a number of at least 0"),
    ({"price.desk": "1e400"}, "price.desk", "'1e400' is not a price"),
    ({"memory.desk": "lots"}, "memory.desk", "'lots' is not an amount of memory; expected"),
    ({"memory.desk": "0"}, "memory.desk", "'0' GiB hold nothing; give more"),
    ({"samples": ""}, "samples", "nothing is given; expected a whole number from 1, such as 50000"),
    ({"samples": "0"}, "samples", "'0'; expected a whole number from 1, such as 50000"),
    ({"samples": "10"}, "batch_size", "a batch of 64 is larger than the data set of 10 samples; give"),
    ({"epochs": "2.5"}, "epochs", "'2.5'; expected a whole number from 1, such as 20"),
    ({"epochs": "1" * 30}, "epochs", "expected a whole number from 1"),
    ({"batch_size": "x"}, "batch_size", "'x'; expected a whole number from 1, such as 64"),
    ({"optimizer": "lion"}, "optimizer", "expected one of sgd"),
    ({"devices": "0"}, "devices", "'0'; expected a whole number from 1 to 4,096, such as 1"),
    ({"devices": "1000"}, "devices", "a batch of 64 on each of 1000 devices is larger than the data"),
    ({"compare": "1,x"}, "compare", "'1,x' is no list of numbers of devices; expected at most 16"),
    ({"compare": "0"}, "compare", "'0' is no list of numbers of devices"),
    ({"compare": "2000,4096"}, "compare", "a batch of 64 on each of 2000 devices is larger"),
    ({"strategy": "star"}, "strategy", "'star': expected one of ring"),
    ({"link_gbps": "0"}, "link_gbps", "0: expected more than 0"),
    ({"link_gbps": "fast"}, "link_gbps", "'fast' is not a number; expected"),
    ({"link_gbps": "-1"}, "link_gbps", "'-1' is not a number; expected a number of at least 0"),
    ({"coverage": "1"}, "coverage", "expected a number above 0 and below 1"),
    ({"coverage": ""}, "coverage", "nothing is given; expected a number"),
]  # fmt: skip


@pytest.mark.parametrize("view", OF_VIEW)
@pytest.mark.parametrize(
    "text", ["9" * 5000, "1e999", "-1", "nan", "1\0", "²", "1e", "--", "-" + "0" * 5000 + "1"]
)
def test_numbers_that_are_none_whatever_their_length(
    made: Path, tmp_path: Path, view: str, text: str
) -> None:
    """Python's int() takes 4,300 digits and raises another error for more."""
    laptop = tmp_path / "laptop.json"
    laptop.write_text(json.dumps(synthetic.document(name="laptop", device="a laptop")))
    fields = {"size"} | {f for f in OF_VIEW[view] if FIELDS[f].numeric}
    of_device = {"memory.desk", "price.desk"}
    given = dict.fromkeys(fields | of_device, text)
    with site([made, laptop], view=view) as page:
        page.get("?model=desk&model=laptop", **given)
        found = page.errors()
        assert set(found) == fields | (of_device if view == "training" else set())
        assert all(len(said) < 400 for said in found.values())
        page.get("?model=desk&model=laptop", source="upload", upload="0" * 64, file_size=text)
        assert "input size" in page.errors()["file_size"]


def test_zeros_before_a_size(page: Site) -> None:
    page.get(size="0064")
    assert page.reader.calls == [("keras:ResNet50", (64,))]
    page.get(size="0" * 5000 + "1")
    assert set(page.errors()) == {"size"}


@pytest.mark.parametrize(("fields", "name", "said"), WRONG)
def test_what_is_wrong_is_said_at_its_field_and_the_others_stay(
    page: Site, fields: dict[str, object], name: str, said: str
) -> None:
    others = {"samples": 777, "epochs": 5, "batch_size": 32, "devices": 3, "compare": "1,3,6"}
    if fields.get("devices") == "1000" or fields.get("samples") == "10" or "4096" in str(fields):
        others = {}
    if name in ("batch_size", "samples"):
        others = {"epochs": 5}
    page.get(**{"price.desk": "7", **others, **fields})
    assert list(page.errors()) == [name]
    assert said in page.errors()[name]
    assert "One field needs another value" in page.answer()
    assert said in page.answer()  # at the top too, for who does not see the form
    for other, text in {**others, **fields}.items():
        if (
            other != "model"
            and not (other in FIELDS and FIELDS[other].choices)
            and other != "asked"
        ):
            assert page.value(other) == str(text)
    marked = re.findall(r'<(?:input|select)[^>]*aria-invalid="true"', page.raw)
    assert len(marked) == (name != "source")
    assert page.commands() == []
    page.get(page.link().removeprefix("/"))
    assert list(page.errors()) == [name]


def test_a_generated_network_by_its_name(page: Site) -> None:
    spec = "generate:vgg?layers=1,1&filters=8,16&hidden=none&input=64,32,1"
    page.get(name=spec)
    assert page.errors() == {}
    assert page.reader.calls == [(spec, ())]
    assert shlex.split(page.commands()[0])[3] == spec


def test_the_link_gives_the_same_view(page: Site) -> None:
    page.get(
        "?name=generate:resnet?layers%3D1,1,1,1&model=desk&price.desk=&memory.desk=24"
        "&samples=4,000&epochs=3&batch_size=16&optimizer=adam&devices=2&compare=1,2,3&strategy=tree"
        "&link_gbps=25&coverage=0.8&asked=1"
    )
    assert page.errors() == {}
    first, link = page.raw, page.link()
    assert page.get(link.removeprefix("/")) == first
    assert page.link() == link
    kept = dict(parse_qsl(link.partition("?")[2], keep_blank_values=True))
    assert kept["price.desk"] == ""  # else the example's price would come back
    assert "asked" not in link


def test_the_commands_give_the_same_figures(
    page: Site, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.get(
        name="generate:vgg?layers=2,2", devices=4, batch_size=16, samples=5000, epochs=3, optimizer="adam",
        strategy="tree", link_gbps=25, coverage=0.8, **{"price.desk": 2.5},
    )  # fmt: skip
    (command,) = page.commands()
    assert command.startswith(f"lolat cost {made} 'generate:vgg?layers=2,2' ")
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    run = CliRunner().invoke(lolat, [*shlex.split(command)[1:], "--json"], catch_exceptions=False)
    cost = json.loads(run.stdout)
    said = page.answer()
    for option in cost["options"]:
        ends = " to ".join(map(duration, option["interval_s"]))
        money = " to ".join(map(dollars, option["dollars_interval"]))
        row = f"{duration(option['total_s'])} {ends} {dollars(option['dollars'])} {money}"
        assert f"{option['devices']} {row}" in said
    (four,) = (o for o in cost["options"] if o["devices"] == 4)
    assert f"An epoch {duration(four['epoch_s'])}" in said


def test_options_that_are_as_without_them_are_left_out(page: Site, made: Path) -> None:
    page.get()
    run = "--samples 50000 --epochs 20 --batch-size 64"
    expected = f"lolat cost {made} keras:ResNet50 {run} --replicas 1,2,4,8 --price-per-hour 1"
    assert page.commands() == [expected]


def test_a_device_from_tables_has_its_price_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "sheet.json"
    path.write_text(json.dumps(known_device.document()))
    with site([path]) as page:
        page.get(name="Mine", devices=4)
        assert page.errors() == {}
        said = page.answer()
    cost = lolat_package.load(path).cost(synthetic.network(), 64, 50000, 20, replicas=4)
    assert duration(cost.options[0].total_s or 0) in said
    assert "1 × V100-32Gx4, V100-32GB in the built-in table" in said
    assert "Gradients travel over PCIe 3.0 x16 63 Gbit/s assumed" in said
    assert "no training step was measured on this device" in said
    assert "no training step was measured" not in said.partition("How many devices?")[2]


def test_devices_in_several_instances_are_linked_by_a_network(made: Path, tmp_path: Path) -> None:
    """Two H100 are two instances in the list, eight are one."""
    path = v100(made, tmp_path / "more", "h100", device="NVIDIA H100 80GB HBM3")
    with site([path]) as page:
        page.get(model="h100", name="Mine", devices=2)
        assert (
            "Gradients travel over the network between machines 10 Gbit/s assumed" in page.answer()
        )
        page.get(model="h100", name="Mine", devices=8)
        assert "Gradients travel over NVLink 4 2880 Gbit/s assumed" in page.answer()
        assert "--link-gbps" not in "".join(page.commands())
        page.get(model="h100", name="Mine", devices=2, link_gbps=100)
        assert "Gradients travel over a link of 100 Gbit/s the link given" in page.answer()
        assert all(c.endswith(" --link-gbps 100") for c in page.commands())


def test_several_models_are_compared(made: Path, tmp_path: Path) -> None:
    fast = v100(made, tmp_path / "fast", memory_bytes=16 * 2**30)
    with site([made, fast]) as page:
        page.get("?model=desk&model=v100&price.desk=2&name=Mine&compare=1,8")
        assert page.errors() == {}
        said = page.answer()
        listed = next(o for o in read_prices().offers if o.instance_type == "p3.2xlarge")
        assert (
            f"An hour costs ${listed.price:.2f} 1 × p3.2xlarge, V100 in the built-in table" in said
        )
        assert "An hour costs $2.00 the price given" in said
        assert said.count("fits into 16.0 GiB") == 1
        assert len(page.commands()) == 2
        assert re.search(r"Cheapest and fastest: . devices?, .* of (desk|v100)", said)
        cost = page.commands()[1]
        assert "--price-per-hour" not in cost
        run = CliRunner().invoke(lolat, [*shlex.split(cost)[1:4], "--help"])
        assert run.exit_code == 0


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"device": "cpu", "available_bytes": 6 * 2**30}, "into 6.00 GiB"),
        ({"device": "gpu", "available_bytes": 6 * 2**30}, "estimated"),
        ({"device": "gpu", "memory_bytes": 6 * 2**30}, "into 6.00 GiB"),
        ({"device": "gpu", "memory_bytes": True}, "estimated"),
        ({"device": "cpu", "threads": 4}, "1 × cpu_4x_general, cpu in the built-in table"),
        # A GPU that was measured is known by the model's name.
        ({"device": "gpu"}, "p3.2xlarge, V100 in the built-in table"),
    ],
)  # fmt: skip
def test_what_a_model_says_of_its_device(
    made: Path, tmp_path: Path, environment: dict[str, object], words: str
) -> None:
    path = v100(made, tmp_path / "m", **environment)
    if "V100" in words:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"device": "Tesla V100"}))
    with site([path]) as page:
        page.get(batch_size=1)
        assert words in page.answer()


def test_a_model_that_is_listed_is_named_in_the_command(made: Path, tmp_path: Path) -> None:
    v100(made, tmp_path / "local", "gpu")
    with site([]) as page:
        page.get()
        assert page.commands()[0].startswith("lolat cost gpu keras:ResNet50 ")


def test_a_device_without_any_price_has_times_alone(page: Site) -> None:
    page.get("?model=desk&price.desk=")
    assert page.errors() == {}
    said = page.answer()
    assert "Nobody knows its price; give one to see the cost." in said
    assert "$" not in said
    assert [c.split()[1] for c in page.commands()] == ["cost"]


def test_a_model_without_training_or_inference_says_how_to_get_them(
    page: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "laptop.json").write_text(json.dumps(synthetic.document()))
    put(folder / "phone.json", "spaces", {"fbnet": {}}, "a phone")
    (folder / "layers.json").write_text(json.dumps({"schema": "lolat-layer-model"}))
    (folder / "broken.json").write_text("{")
    page.get()
    assert re.findall(r"<b>([^<]*)</b>\n", page.raw) == ["desk", "laptop", "phone"]
    page.get(model="phone")
    assert page.errors() == {}
    assert "phone cannot answer this" in page.answer()
    assert "`lolat fit EPOCHS.csv" in page.answer()
    page.get("?model=phone&model=desk&name=Mine")  # the one does not stand in the way of the other
    assert "phone cannot answer this" in page.answer()
    assert "Mine 20 epochs" in page.answer()
    page.get(model="laptop")
    assert "training was never measured on this device: an estimate" in page.raw


def test_where_no_model_knows_of_training(tmp_path: Path) -> None:
    with site([]) as page:
        page.get()
        assert "No device here knows of training yet" in page.answer()
        assert "lolat fit EPOCHS.csv --output gpu.json" in page.answer()
        page.get(epochs="x")
        assert page.value("epochs") == "x"


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
        document["environment"]["memory_bytes"] = 8 * 2**30
        path.write_text(json.dumps(document))
        page.get()
        assert "into 8.00 GiB" in page.answer()
        path.unlink()
        page.get()
        assert "No device here knows of training yet" in page.answer()


def test_a_model_that_never_saw_sgd_begins_with_what_it_saw(made: Path, tmp_path: Path) -> None:
    document = json.loads(made.read_text())
    document["epochs"]["optimizers"] = ["momentum"]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document))
    with site([path]) as page:
        page.get()
        assert "one device, momentum" in page.answer()
        assert "optimizer=momentum" in page.link()
        page.get(optimizer="sgd")
        assert "one device, sgd" in page.answer()


def test_what_is_typed_is_never_markup(page: Site) -> None:
    bad = "<script>alert(1)</script>\"'&"
    page.get(
        **dict.fromkeys(("name", "size", "samples", "compare", "link_gbps", "price.desk"), bad)
    )
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
    said = ("epoch", "knows of latency yet", "cannot answer this")
    assert page.errors() or any(words in page.answer() for words in said)
    again = page.client.get(page.link())
    assert again.status_code == 200
    shown = page.answer()
    page.taken(again.text)
    assert page.answer() == shown

"""`lolat predict` and `report`, of one network or several; made by hand, so no framework is needed."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import FEATURES
from lolat.model import load
from lolat.units import milliseconds
from tests import synthetic
from tests.cli.commands import Command, one_line, process

READ: list[tuple[Any, ...]] = []
BOTH = pytest.mark.parametrize("command", ["predict", "report"])


def read(network: str, input_size: Any = None) -> Graph:
    """A reader of networks that come by name."""
    READ.append((network, input_size))
    if network.startswith("keras:Missing"):
        raise NetworkError(f"no network {network!r}: expected keras:NAME")
    if network == "keras:Strange":
        builder = GraphBuilder("Strange")
        x = builder.input((1, 8, 8, 3))
        return builder.build([builder.add("teleport", [x], (1, 8, 8, 3), "[red]t[/]\x1b[2J")])
    made = synthetic.network(name=network.removeprefix("keras:"))
    return replace(made, framework="torch") if network.startswith("timm:") else made


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    READ.clear()
    monkeypatch.setattr("lolat.readers.read", read)
    return Command(capsys)


@BOTH
def test_json_is_the_prediction(lolat: Command, model: Path, command: str) -> None:
    answer = lolat.json(command, model, "keras:ResNet", "--batch-size", 8)
    wanted = load(model).predict(synthetic.network(name="ResNet"), 8).to_dict()
    assert answer == json.loads(json.dumps(wanted))
    assert answer["batch_size"] == 8
    assert list(answer["counts"])[:6] == list(FEATURES)
    assert sum(b["latency_ms"] for b in answer["blocks"]) == pytest.approx(answer["latency_ms"])


def test_what_is_not_known_is_said_and_names_are_not_acted_on(lolat: Command, model: Path) -> None:
    answer = lolat.json("predict", model, "keras:Strange")
    assert 0.0 < answer["inside_share"] < 1.0  # a call of nothing is known
    assert any("teleport" in w for w in answer["warnings"])
    out = lolat("report", model, "keras:Strange").out
    assert "\x1b" not in out
    assert "note: no formula for operation teleport" in out


@BOTH
def test_a_network_of_another_framework_is_remarked_on(
    lolat: Command, model: Path, command: str
) -> None:
    remark = "the model was learned with tensorflow 2.21.0 and this is a PyTorch network"
    assert f"note: {remark}" in lolat.text(command, model, "timm:net")
    answer = lolat.json(command, model, "timm:net")
    assert [remark in w for w in answer["warnings"]] == [True]
    assert answer["in_domain"] is True
    assert "learned with" not in lolat("predict", model, "keras:ResNet").out


def test_options_go_where_they_belong(lolat: Command, model: Path) -> None:
    lolat("predict", model, "keras:A", "--input-size", "224,192,3")
    lolat("predict", model, "keras:B", "--input-size", "96")
    extended = lolat.json("predict", model, "keras:C")
    assert READ == [("keras:A", (224, 192, 3)), ("keras:B", (96,)), ("keras:C", ())]
    two = lolat.json("predict", model, "keras:C", "--predictor", "two-regime")
    assert (extended["predictor"], two["predictor"]) == ("extended", "two-regime")
    assert extended["latency_ms"] != two["latency_ms"]


@BOTH
def test_what_is_wrong_is_said_in_one_line(lolat: Command, model: Path, command: str) -> None:
    assert "no network 'keras:Missing'" in lolat.refused(command, model, "keras:Missing")
    line = lolat.refused(command, model, "keras:A", "--predictor", "best")
    assert "'best' is not one of 'two-regime', 'extended'" in line
    assert "keras:A" not in {a[0] for a in READ}  # before the network is built
    assert "too large" in lolat.refused(command, model, "keras:A", "--batch-size", 10**15)


@BOTH
def test_coverage(lolat: Command, model: Path, command: str) -> None:
    widths = []
    for coverage in (0.5, 0.9, 0.975):
        ask = (command, model, "keras:A", "--coverage", coverage)
        answer = lolat.json(*ask)
        low, high = answer["interval_ms"]
        assert answer["coverage"] == coverage
        assert low < answer["latency_ms"] < high
        widths.append(high / low)
        assert f"{100 * coverage:g} % sure of " in lolat(*ask).out
    assert widths == sorted(set(widths))
    usual = lolat.json(command, model, "keras:A")
    assert usual["coverage"] == 0.9
    assert usual["interval_ms"][1] / usual["interval_ms"][0] == pytest.approx(widths[1])


@BOTH
@pytest.mark.parametrize(
    ("coverage", "words"),
    [
        *((wrong, "above 0 and below 1") for wrong in (0, 1, 1.5, -0.2, "nan", "inf")),
        ("much", "--coverage"),
        (0.999, "expected at most 0.99, which is all that 105 left-out points can tell"),
    ],
)
def test_a_coverage_that_cannot_be_had(
    lolat: Command, model: Path, command: str, coverage: object, words: str
) -> None:
    assert words in lolat.refused(command, model, "keras:A", "--coverage", coverage)
    assert READ == []  # before the network is built


def test_a_model_that_cannot_tell(lolat: Command, tmp_path: Path) -> None:
    document = synthetic.document()
    for entry in document["predictors"].values():
        entry.pop("residuals", None)
        entry.pop("interval", None)
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(document))
    line = lolat.refused("predict", path, "keras:A", "--coverage", 0.9)
    assert "no errors of left-out points" in line
    out = lolat("predict", path, "keras:A").out
    assert "sure of" not in out
    assert "note: no interval: the model has no errors of left-out points" in out
    answer = lolat.json("predict", path, "keras:A")
    assert (answer["coverage"], answer["interval_ms"]) == (None, None)


def test_words_and_a_table_of_blocks(lolat: Command, model: Path, tmp_path: Path) -> None:
    out = lolat.text("predict", model, "keras:ResNet")
    assert out.startswith("ResNet · batch 1 · 56x56x3: ")
    assert "MACs" in out
    path = tmp_path / "blocks.csv"
    out = lolat.done("report", model, "keras:ResNet", "--batch-size", 2, "--csv", path).out
    for words in ("ResNet · batch 2", "conv1_block1", "call", "Bottleneck", "Next: lolat explain"):
        assert words in out
    with path.open(newline="") as file:
        assert list(csv.DictReader(file))[-1]["name"] == "call"


def test_a_network_of_ones_own_without_any_framework(model: Path, tmp_path: Path) -> None:
    """The entry point as a process; what the network's code prints is not in the JSON."""
    (tmp_path / "mine.py").write_text("def net():  # no torch\n    print('hello')\n    return 17\n")
    done = process(["predict", model, "mine:net", "--json"], cwd=tmp_path,
                   env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    printed, line = done.stderr.splitlines()
    assert printed == "hello"
    assert line.startswith("lolat: ")
    assert "int" in line


@pytest.mark.slow
def test_a_network_of_keras(model: Path) -> None:
    done = process(["predict", model, "keras:MobileNetV2", "--batch-size", "4", "--json"])
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    answer = json.loads(line)
    # 0.30 GMACs an image is the published figure.
    assert answer["counts"]["flops"] == pytest.approx(4 * 0.30e9, rel=0.02)
    assert answer["network"] == "MobileNetV2"


def test_a_budget(lolat: Command, model: Path) -> None:
    latency = load(model).predict(synthetic.network(name="A")).latency_ms
    ask = ("predict", model, "keras:A", "--max-ms")
    lolat.text(*ask, latency * 1.001)
    lolat.text(*ask, latency)  # not more than that
    over = lolat(*ask, latency / 1.25)
    assert over.code == 3
    assert over.out.startswith("A · batch 1 · 56x56x3: ")
    line = one_line(over.err)
    assert f"A · batch 1 · 56x56x3 takes {milliseconds(latency)}, 25 % more than the " in line
    assert "--max-ms" in line
    over = lolat(*ask, "0.5", "--json")
    assert (over.code, json.loads(over.out)["latency_ms"]) == (3, latency)


def test_a_check_of_a_pull_request(lolat: Command, model: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    base.write_text(lolat.text("predict", model, "keras:A", "--json"))
    ask = ("predict", model, "keras:A")
    upper = lolat.json(*ask, "--coverage", "0.95")["interval_ms"][1]
    sure = (*ask, "--sure", "95", "--max-ms")
    lolat.text(*sure, upper * 1.001)
    assert lolat(*sure, upper / 1.001).code == 3
    assert lolat.json(*sure, upper * 1.001, "--json")["coverage"] == 0.95
    for against in (base, "keras:B"):  # networks by other names, as they are here, are the same
        assert lolat.done(*ask, "--max-ratio", "1", "--against", against).err == ""
    slower = lolat(*ask, "--max-ratio", "0.99", "--against", base, "--json")
    assert (slower.code, json.loads(slower.out)["model"]) == (3, "desk")
    assert "1 times the " in one_line(slower.err)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sure",), "expected --max-ms too"),
        (("--max-ms", "3", "--sure", "100"), "expected percent above 0 and below 100"),
        (("--max-ms", "3", "--sure", "90", "--coverage", "0.8"), "--sure and --coverage are two"),
        (("--max-ratio", "1.05"), "expected both"),
        (("--against", "keras:B"), "expected both"),
        (("--max-ratio", "0", "--against", "keras:B"), "expected a number above 0, such as 1.05"),
        (
            ("--max-ratio", "2", "--against", "base.json"),
            "expected what `lolat predict MODEL NETWORK",
        ),
    ],
)
def test_a_check_that_is_none(
    lolat: Command,
    model: Path,
    options: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.json").write_text('{"schema": "lolat-predictions"}')
    assert said in lolat.refused("predict", model, "keras:A", *options)


def test_a_folded_report(lolat: Command, model: Path) -> None:
    out = lolat.text("report", model, "keras:A", "--depth", 0, "--columns", "ms, MACs,weights,ms")
    lines = [line.split() for line in out.splitlines()]
    assert ["block", "ms", "MACs", "weights"] in lines
    assert "parameters" in out
    assert "activations (one sample, as torchinfo and fvcore count)" in out
    assert any(line[:3] == ["A", "5", "blocks"] for line in lines)
    by_time = lolat("report", model, "keras:A", "--sort", "time").out.splitlines()
    blocks = load(model).predict(synthetic.network(name="A")).blocks
    slowest = max(blocks, key=lambda b: b.latency_ms)
    at = next(i for i, line in enumerate(by_time) if "───" in line)
    assert by_time[at + 1].split()[0] == slowest.name.split(" · ")[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--depth", "-1"), "'-1': expected a whole number from 0"),
        (("--depth", "deep"), "'deep': expected a whole number"),
        (("--columns", "ms,speed"), "no column 'speed'; expected some of ms, share, most, macs, acts"),
        (("--columns", " , "), "expected at least one column"),
        (("--sort", "size"), "'size' is not one of 'order', 'time', 'macs', 'name'"),
        (("--json", "--sort", "time"), "are for the table"),
        (("--html", "no/such/a.html"), "--html no/such/a.html: no folder no/such"),
        (("--html", "/"), "--html /: is a folder"),
        (("--csv", "/"), "--csv"),
    ],
)  # fmt: skip
def test_what_a_report_cannot_do(
    lolat: Command, model: Path, options: tuple[str, ...], words: str
) -> None:
    assert words in lolat.refused("report", model, "keras:A", *options)
    assert READ == [] or "--csv" in options  # before the network is built


def sides(path: Path) -> Any:
    """The data inside a page."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])["sides"]


def test_a_page(lolat: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    options = ("--batch-size", 2, "--coverage", 0.8)
    found = lolat.done("report", model, "keras:A", "--html", path, *options)
    assert found.out == lolat("report", model, "keras:A", *options).out
    assert one_line(found.err) == f"lolat: written: {path}"
    (side,) = sides(path)
    assert side["network"] == "A"
    assert {a["coverage"] for a in side["answers"]} == {0.8}
    assert lolat.answer("report", model, "keras:A", "--html", path)["network"] == "A"


def test_a_page_of_two_networks_or_two_models(lolat: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    page = ("report", model, "--html", path, "keras:A")
    lolat.done(*page, "keras:B", "--input-size", 56)
    assert [s["name"] for s in sides(path)] == ["A", "B"]
    assert READ[:2] == [("keras:A", (56,)), ("keras:B", (56,))]
    # What half the input would save.
    assert READ[2:] == [("keras:A", (28,)), ("keras:B", (28,))]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(synthetic.document(device="a laptop")))
    READ.clear()
    lolat.done(*page, "--device", other)
    assert [s["name"] for s in sides(path)] == ["a desk, 2 threads", "a laptop"]
    assert [read for read in READ if read[1] == ()] == [("keras:A", ())]  # read once


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"processor": {"family": 25, "model": 1}},
         "this is another processor: learned on a desk (family 25 model 1), here a desk (family 25 model "
         "17)"),
        ({"processor": {"family": 25, "model": 17}, "threads": 1, "threads_asked": 1}, ""),
        ({"device": "gpu", "processor": {"family": 6, "model": 1}}, ""),
    ],
)  # fmt: skip
def test_the_local_model_of_another_processor(
    lolat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, Any], words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    monkeypatch.setattr("microbench.environment.cpu_model", lambda: "a desk")
    monkeypatch.setattr("microbench.environment.cpu_count", lambda: 2)
    facts = {"family": 25, "model": 17}
    monkeypatch.setattr("microbench.environment.processor_facts", lambda: facts)
    local = tmp_path / "mine.json"
    document = synthetic.document()
    document["environment"] |= {"cpu": "a desk", "threads": 2, **environment}
    local.write_text(json.dumps(document))
    found = lolat.done("predict", "local", "keras:A", "--json")
    if words:
        assert one_line(found.err).startswith(f"lolat: warning: local: {words}")
        assert found.err.endswith("lolat learn cpu\n")
    else:
        assert found.err == ""
    json.loads(found.out)
    # Another name asks about that model, not about this machine.
    assert lolat("predict", local, "keras:A").err == ""


# ---- Several networks, batch sizes and devices at once.


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """A model of a device that takes three times as long for everything."""
    path = tmp_path / "slower.json"
    document = synthetic.document()
    for entry in document["predictors"].values():
        for name, value in entry["coefficients"].items():
            entry["coefficients"][name] = 3 * value
    path.write_text(json.dumps(document))
    return path


def test_every_network_batch_size_and_device(lolat: Command, model: Path, slower: Path) -> None:
    ask = ("keras:A", "keras:B", "--batch-size", "1,4", "--batch-size", 16, "--device", slower)
    found = lolat.json("predict", model, *ask)
    assert [name for name, _ in READ] == ["keras:A", "keras:B"]  # each once
    assert found["failures"] == {}
    rows = [(a["network"], a["batch_size"], a["device"]) for a in found["answers"]]
    devices = (str(model), str(slower))
    assert rows == [(n, b, d) for n in "AB" for b in (1, 4, 16) for d in devices]
    for answer in found["answers"]:
        alone = lolat.json("predict", answer["device"], f"keras:{answer['network']}",
                           "--batch-size", answer["batch_size"])  # fmt: skip
        del answer["device"]
        same = {k: v for k, v in alone.items() if k not in ("schema", "version")}
        assert answer == same
    assert lolat.json("report", model, *ask)["answers"][3] == found["answers"][3] | {
        "device": str(slower)
    }


def test_the_table(lolat: Command, model: Path, slower: Path) -> None:
    out = lolat.text("predict", model, "keras:A", "keras:B", "--device", slower)
    lines = [line.split() for line in out.splitlines() if not line.startswith("note")]
    assert len(lines) == 5
    alone = load(model).predict(read("keras:A")).latency_ms
    assert [line[0] for line in lines[1:]] == ["A", "A", "B", "B"]
    assert float(lines[1][3]) == pytest.approx(alone, rel=0.005)
    assert float(lines[2][3]) == pytest.approx(3 * alone, rel=0.005)
    assert ratio(lines[1]) == 1.0
    assert lines[1][lines[1].index("1.00x") + 1].startswith("inside")
    assert ratio(lines[2]) == 3.0
    by_sample = lolat.text("predict", model, "keras:A", "--batch-size", "1,8").splitlines()
    eight = load(model).predict(read("keras:A"), 8).latency_ms
    last = next(line for line in by_sample if " 8 " in line).split()
    assert ratio(last) == pytest.approx(eight / 8 / alone, abs=0.006)


def ratio(cells: list[str]) -> float:
    """What a row says of its time over the first row's."""
    (found,) = (cell for cell in cells if cell.endswith("x"))
    return float(found.removesuffix("x"))


def test_the_blocks_beside_each_other(lolat: Command, model: Path, slower: Path) -> None:
    out = lolat.text("report", model, "keras:A", "keras:B", "--device", slower)
    tables = out.split("\n\n")
    assert len(tables) == 3  # all, then each network
    for name, table in zip("AB", tables[1:], strict=True):
        lines = table.splitlines()
        assert lines[0] == name
        assert "ratio" in lines[1]
        found = load(model).predict(read(f"keras:{name}"))
        assert len(lines) == 3 + len(found.blocks)
        cells = lines[-1].split()
        assert cells[0] == "together"
        assert float(cells[1]) == pytest.approx(found.latency_ms, rel=0.005)
        assert cells[-1] == "3.00x"
    folded = lolat.text("report", model, "keras:A", "--batch-size", "1,2", "--depth", 0)
    assert "batch 2" in folded
    assert "5 blocks" in folded


def test_one_that_cannot_be_read_costs_itself_alone(lolat: Command, model: Path) -> None:
    for command in ("predict", "report"):
        result = lolat(command, model, "keras:A", "keras:Missing", "--json")
        assert result.code == 2
        assert "keras:Missing" in one_line(result.err)
        found = json.loads(result.out)
        assert [a["network"] for a in found["answers"]] == ["A"]
        assert list(found["failures"]) == ["keras:Missing"]
    result = lolat("predict", model, "keras:Missing too", "keras:A", "keras:Missing")
    assert (result.code, len(result.err.splitlines())) == (2, 2)
    assert any(line.startswith("A ") for line in result.out.splitlines())
    lolat.refused("predict", model, "keras:Missing")


def test_tables_for_a_spreadsheet(
    lolat: Command, model: Path, slower: Path, tmp_path: Path
) -> None:
    ask = (model, "keras:A", "--device", slower, "--batch-size", "1,2", "--csv", tmp_path / "t.csv")
    assert lolat.done("predict", *ask).err == f"lolat: written: {tmp_path / 't.csv'}\n"
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    answers = lolat.json("predict", *ask)["answers"]
    assert len(rows) == len(answers) == 4
    for row, answer in zip(rows, answers, strict=True):
        assert row["device"] == answer["device"]
        assert float(row["latency_ms"]) == pytest.approx(answer["latency_ms"], rel=1e-5)
        assert float(row["high_ms"]) == pytest.approx(answer["interval_ms"][1], rel=1e-5)
        assert int(row["flops"]) == answer["counts"]["flops"]
    assert lolat.done("report", *ask).err == f"lolat: written: {tmp_path / 't.csv'}\n"
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    total = sum(float(r["latency_ms"]) for r in rows if r["device"] == str(model))
    both = [a["latency_ms"] for a in answers if a["device"] == str(model)]
    assert total == pytest.approx(sum(both), rel=1e-4)


def test_a_budget_of_several(lolat: Command, model: Path, slower: Path) -> None:
    limit = 2 * load(model).predict(read("keras:A")).latency_ms
    over = lolat("predict", model, "keras:A", "--device", slower, "--max-ms", limit)
    assert over.code == 3
    line = one_line(over.err)
    assert str(model) not in line
    for words in ("A · batch 1 · 56x56x3 on ", "--max-ms", str(slower)):
        assert words in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("predict MODEL keras:A keras:B --max-ratio 2 --against b.json", "--max-ratio is of one"),
        ("predict MODEL keras:A --batch-size 1,2 --max-ratio 2 --against b.json", "give one NETWORK"),
        ("report MODEL keras:A keras:B --columns ms", "--columns is for one answer"),
        ("report MODEL keras:A --batch-size 1,2 --html r.html", "at one batch size"),
        ("report MODEL keras:A keras:B keras:C --html r.html", "at most two devices"),
        ("report MODEL keras:A keras:B --device SLOWER --html r.html", "at most two devices"),
        ("explain MODEL keras:A --batch-size 1 --batch-size 2", "1 and 2: this command takes one"),
        ("explain MODEL keras:A --batch-size 1,4", "1,4"),
        ("predict MODEL keras:A --batch-size 1,x", "1,x"),
        ("predict MODEL keras:A --device nothing", "nothing"),
    ],
)  # fmt: skip
def test_what_is_of_one_answer(
    lolat: Command, model: Path, slower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: str, said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    files = {"MODEL": model, "SLOWER": slower}
    assert said in lolat.refused(*(files.get(word, word) for word in words.split()))
    assert READ == []
    assert not (tmp_path / "r.html").exists()

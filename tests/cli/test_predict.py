"""`lolat predict` and `lolat report`; the networks are made by hand, so no framework is needed."""

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
from lolat.readers import read as read_really
from lolat.units import milliseconds
from microbench.doctor import Again, Examination
from microbench.environment import UNSAID, Difference
from tests import synthetic
from tests.cli.commands import Command, one_line, process

ASKED: list[tuple[Any, ...]] = []


def read(network: str, input_size: Any = None) -> Graph:
    """A reader of networks that come by name."""
    ASKED.append((network, input_size))
    if network == "keras:Missing":
        raise NetworkError("no network 'keras:Missing': expected keras:NAME")
    if network == "keras:Strange":
        builder = GraphBuilder("Strange")
        x = builder.input((1, 8, 8, 3))
        return builder.build([builder.add("teleport", [x], (1, 8, 8, 3), "[red]t[/]\x1b[2J")])
    made = synthetic.network(name=network.removeprefix("keras:"))
    return replace(made, framework="torch") if network.endswith(".pt2") else made


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    ASKED.clear()
    monkeypatch.setattr("lolat.readers.read", read)
    return Command(capsys)


@pytest.mark.parametrize("command", ["predict", "report"])
def test_json_is_one_object_and_nothing_else(lolat: Command, model: Path, command: str) -> None:
    found = lolat(command, model, "keras:ResNet", "--batch-size", 8, "--json")
    assert found.code == 0
    assert found.err == ""
    answer = json.loads(found.out)
    assert len(found.out.splitlines()) == 1
    wanted = load(model).predict(synthetic.network(name="ResNet"), 8).to_dict()
    assert answer == json.loads(json.dumps(wanted))
    assert answer["batch_size"] == 8
    assert list(answer["counts"])[:6] == list(FEATURES)
    assert sum(b["latency_ms"] for b in answer["blocks"]) == pytest.approx(answer["latency_ms"])


def test_json_of_a_strange_network_is_still_one_object(lolat: Command, model: Path) -> None:
    found = lolat("predict", model, "keras:Strange", "--json")
    answer = json.loads(found.out)
    assert answer["in_domain"] is False
    assert any("teleport" in w for w in answer["warnings"])
    assert len(found.out.splitlines()) == 1


def test_text(lolat: Command, model: Path) -> None:
    found = lolat("predict", model, "keras:ResNet")
    assert found.code == 0
    assert found.out.startswith("ResNet · batch 1: ")
    assert "90 % sure of" in found.out
    assert "MACs" in found.out


@pytest.mark.parametrize("command", ["predict", "report"])
def test_a_network_of_another_framework_is_remarked_on(
    lolat: Command, model: Path, command: str
) -> None:
    remark = "the model was learned with tensorflow 2.21.0 and this is a PyTorch network"
    text = lolat(command, model, "net.pt2")
    assert (text.code, text.err) == (0, "")
    assert f"note: {remark}" in text.out
    found = lolat(command, model, "net.pt2", "--json")
    assert found.err == ""
    answer = json.loads(found.out)
    assert [remark in w for w in answer["warnings"]] == [True]
    assert answer["in_domain"] is True
    assert "learned with" not in lolat("predict", model, "keras:ResNet").out


def test_options_go_where_they_belong(lolat: Command, model: Path) -> None:
    lolat("predict", model, "keras:A", "--input-size", "224,192,3")
    lolat("predict", model, "keras:B", "--input-size", "96")
    lolat("predict", model, "keras:C")
    assert ASKED == [("keras:A", (224, 192, 3)), ("keras:B", (96,)), ("keras:C", ())]
    extended = json.loads(lolat("predict", model, "keras:A", "--json").out)
    two = json.loads(lolat("predict", model, "keras:A", "--json", "--predictor", "two-regime").out)
    assert (extended["predictor"], two["predictor"]) == ("extended", "two-regime")
    assert extended["latency_ms"] != two["latency_ms"]


@pytest.mark.parametrize("command", ["predict", "report"])
def test_what_is_wrong_is_said_in_one_line(lolat: Command, model: Path, command: str) -> None:
    assert "no network 'keras:Missing'" in lolat.refused(command, model, "keras:Missing")
    line = lolat.refused(command, model, "keras:A", "--predictor", "best")
    assert "no predictor 'best'; it has" in line
    assert "keras:A" not in {a[0] for a in ASKED}  # found out before the network is built
    assert "too large" in lolat.refused(command, model, "keras:A", "--batch-size", 10**15)


@pytest.mark.parametrize("command", ["predict", "report"])
def test_coverage(lolat: Command, model: Path, command: str) -> None:
    widths = []
    for coverage in (0.5, 0.9, 0.975):
        found = lolat(command, model, "keras:A", "--json", "--coverage", coverage)
        answer = json.loads(found.out)
        assert answer["coverage"] == coverage
        low, high = answer["interval_ms"]
        assert low < answer["latency_ms"] < high
        widths.append(high / low)
        text = lolat(command, model, "keras:A", "--coverage", coverage).out
        assert f"{100 * coverage:g} % sure of " in text
    assert widths == sorted(set(widths))
    usual = json.loads(lolat(command, model, "keras:A", "--json").out)
    assert usual["coverage"] == 0.9
    assert usual["interval_ms"][1] / usual["interval_ms"][0] == pytest.approx(widths[1])


@pytest.mark.parametrize("command", ["predict", "report"])
def test_a_coverage_that_cannot_be_had(lolat: Command, model: Path, command: str) -> None:
    ASKED.clear()
    for wrong in (0, 1, 1.5, -0.2, "nan", "inf"):
        line = lolat.refused(command, model, "keras:A", "--coverage", wrong)
        assert "expected a number above 0 and below 1, such as 0.9" in line
    assert "--coverage" in lolat.refused(command, model, "keras:A", "--coverage", "much")
    line = lolat.refused(command, model, "keras:A", "--coverage", 0.999)
    assert "expected at most 0.99, which is all that 105 left-out points can tell; ask for" in line
    assert ASKED == []  # found out before the network is built


def test_a_model_that_cannot_tell(lolat: Command, tmp_path: Path) -> None:
    document = synthetic.document()
    for entry in document["predictors"].values():
        for field in {"residuals", "interval"} & entry.keys():
            del entry[field]
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(document))
    line = lolat.refused("predict", path, "keras:A", "--coverage", 0.9)
    assert "this model has no errors of left-out points, so it cannot compute intervals" in line
    found = lolat("predict", path, "keras:A")
    assert found.code == 0
    assert "sure of" not in found.out
    assert "note: no interval: the model has no errors of left-out points; learn it" in found.out
    answer = json.loads(lolat("predict", path, "keras:A", "--json").out)
    assert (answer["coverage"], answer["interval_ms"]) == (None, None)


def test_report(lolat: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "blocks.csv"
    found = lolat("report", model, "keras:ResNet", "--batch-size", 2, "--csv", path)
    assert found.code == 0
    assert found.err == ""
    for words in ("ResNet · batch 2", "conv1_block1", "call", "Bottleneck", "Next: lolat explain"):
        assert words in found.out
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["name"] == "call"


def test_a_report_does_not_act_on_names(lolat: Command, model: Path) -> None:
    out = lolat("report", model, "keras:Strange").out
    assert "\x1b" not in out
    assert "note: no formula for operation teleport" in out


def test_a_csv_that_cannot_be_written(lolat: Command, model: Path, tmp_path: Path) -> None:
    assert "is a folder" in lolat.refused("report", model, "keras:A", "--csv", tmp_path)


def test_a_network_of_ones_own_without_any_framework(model: Path, tmp_path: Path) -> None:
    """The entry point as a process; what the network's code prints is not in the JSON."""
    (tmp_path / "mine.py").write_text("def net():\n    print('hello')\n    return 17\n")
    done = process(["predict", model, "mine:net", "--json"], cwd=tmp_path,
                   env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"})  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    *printed, line = done.stderr.splitlines()
    assert printed == ["hello"]
    assert line.startswith("lolat: ")
    assert "int" in line


@pytest.mark.slow
def test_a_network_of_keras(model: Path) -> None:
    done = process(["predict", model, "keras:MobileNetV2", "--batch-size", "4", "--json"])
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert len(done.stdout.splitlines()) == 1
    # 0.30 GMACs an image is the published figure.
    assert answer["counts"]["flops"] == pytest.approx(4 * 0.30e9, rel=0.02)
    assert answer["network"] == "MobileNetV2"


def test_a_budget(lolat: Command, model: Path) -> None:
    latency = load(model).predict(synthetic.network(name="A")).latency_ms
    found = lolat("predict", model, "keras:A", "--max-ms", latency * 1.001)
    assert (found.code, found.err) == (0, "")
    found = lolat("predict", model, "keras:A", "--max-ms", latency)
    assert found.code == 0  # not more than that
    found = lolat("predict", model, "keras:A", "--max-ms", latency / 1.25)
    assert found.code == 3
    assert found.out.startswith("A · batch 1: ")
    line = one_line(found.err)
    assert f"A · batch 1 takes {milliseconds(latency)}, 25 % more than the " in line
    assert line.endswith("ms of --max-ms; `lolat report` says where the time goes")
    found = lolat("predict", model, "keras:A", "--max-ms", "0.5", "--json")
    assert found.code == 3
    assert len(found.out.splitlines()) == 1
    assert json.loads(found.out)["latency_ms"] == latency


@pytest.mark.parametrize("wrong", ["0", "-3", "nan", "inf", "soon"])
def test_a_budget_that_is_none(lolat: Command, model: Path, wrong: str) -> None:
    line = lolat.refused("predict", model, "keras:A", "--max-ms", wrong)
    assert f"{wrong!r}: expected a number of milliseconds above 0, such as 15" in line
    assert ASKED == []


def test_a_folded_report(lolat: Command, model: Path) -> None:
    found = lolat("report", model, "keras:A", "--depth", 0, "--columns", "ms, MACs,weights,ms")
    assert found.code == 0
    lines = [line.split() for line in found.out.splitlines()]
    assert ["block", "ms", "MACs", "weights"] in lines
    assert "parameters" in found.out
    assert "activations (one sample, as torchinfo and fvcore count)" in found.out
    assert any(line[:3] == ["A", "5", "blocks"] for line in lines)
    by_time = lolat("report", model, "keras:A", "--sort", "time").out.splitlines()
    slowest = max(
        load(model).predict(synthetic.network(name="A")).blocks, key=lambda b: b.latency_ms
    )
    at = next(i for i, line in enumerate(by_time) if "───" in line)
    assert by_time[at + 1].split()[0] == slowest.name.split(" · ")[0]


def test_what_is_not_chosen_changes_nothing(lolat: Command, model: Path) -> None:
    usual = lolat("report", model, "keras:A").out
    said = ("--columns", "ms,share,most", "--sort", "order")
    assert lolat("report", model, "keras:A", *said).out == usual
    assert "mult-adds" not in usual


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--depth", "-1"), "--depth -1: expected a whole number from 0"),
        (("--depth", "deep"), "'deep' is not a valid integer"),
        (
            ("--columns", "ms,speed"),
            "no column 'speed'; expected some of ms, share, most, macs, acts",
        ),
        (("--columns", " , "), "expected at least one column, such as ms,share,macs"),
        (("--sort", "size"), "--sort size: expected one of order, time, macs, name"),
        (("--against", "keras:B"), "--against is for the page; give --html FILE too"),
        (("--json", "--sort", "time"), "are for the table, --json has every block"),
        (("--html", "no/such/a.html"), "--html no/such/a.html: no folder no/such"),
        (("--html", "/"), "--html /: is a folder; expected the name of a file"),
    ],
)
def test_what_a_report_cannot_do(
    lolat: Command, model: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in lolat.refused("report", model, "keras:A", *options)
    assert ASKED == []  # found out before the network is built


def sides(path: Path) -> Any:
    """The data inside a page."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])["sides"]


def test_a_page(lolat: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    found = lolat("report", model, "keras:A", "--html", path, "--batch-size", 2, "--coverage", 0.8)
    assert found.code == 0
    assert found.out == lolat("report", model, "keras:A", "--batch-size", 2, "--coverage", 0.8).out
    assert one_line(found.err) == f"lolat: written: {path}"
    (side,) = sides(path)
    assert side["network"] == "A"
    assert {a["coverage"] for a in side["answers"]} == {0.8}
    found = lolat("report", model, "keras:A", "--html", path, "--json")
    assert json.loads(found.out)["network"] == "A"


def test_a_page_against_a_network_or_a_model(lolat: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    lolat("report", model, "keras:A", "--html", path, "--against", "keras:B", "--input-size", 56)
    assert [s["name"] for s in sides(path)] == ["A", "B"]
    assert ASKED == [("keras:A", (56,)), ("keras:B", (56,))]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(synthetic.document(device="a laptop")))
    ASKED.clear()
    found = lolat("report", model, "keras:A", "--html", path, "--against", other)
    assert [s["name"] for s in sides(path)] == ["a desk, 2 threads", "a laptop"]
    assert ASKED == [("keras:A", ())]  # read once
    assert found.code == 0


def test_against_what_is_neither(
    lolat: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ("--html", tmp_path / "page.html", "--against")
    line = lolat.refused("report", model, "keras:A", *page, "keras:Missing")
    assert "no network 'keras:Missing'" in line
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "broken.json" in lolat.refused("report", model, "keras:A", *page, broken)

    def either(network: str, input_size: Any = None) -> Graph:
        return (
            read(network, input_size) if network == "keras:A" else read_really(network, input_size)
        )

    monkeypatch.setattr("lolat.readers.read", either)
    line = lolat.refused("report", model, "keras:A", *page, "nonsense")
    assert (
        "--against nonsense: neither a model nor a network; expected a model file, `local`" in line
    )
    assert "or a network: no network 'nonsense': expected keras:NAME" in line
    two = tmp_path / "bare.json"
    document = synthetic.document()
    del document["predictors"]["two-regime"]
    two.write_text(json.dumps(document))
    line = lolat.refused("report", model, "keras:A", *page, two, "--predictor", "two-regime")
    assert "bare.json has no predictor 'two-regime'" in line
    assert not (tmp_path / "page.html").exists()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of local models, on a desk of two threads."""
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    monkeypatch.setattr("microbench.environment.cpu_model", lambda: "a desk")
    monkeypatch.setattr("microbench.environment.cpu_count", lambda: 2)
    facts = {"family": 25, "model": 17}
    monkeypatch.setattr("microbench.environment.processor_facts", lambda: facts)
    return tmp_path / "mine.json"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"processor": {"family": 25, "model": 17}}, ""),
        ({"processor": {"family": 25, "model": 1}},
         "this is another processor: learned on a desk (family 25 model 1), here a desk (family 25 model "
         "17); learn again with: python learn_model.py cpu"),
        ({"processor": {"family": 25, "model": 17}, "threads": 8},
         "this is another processor: learned with threads 8, this is 2; learn again with: python "
         "learn_model.py cpu"),
        ({"processor": {"family": 25, "model": 17}, "threads": 1, "threads_asked": 1}, ""),
        ({}, UNSAID),
        ({"device": "gpu", "processor": {"family": 6, "model": 1}}, ""),
    ],
)  # fmt: skip
def test_the_local_model_of_another_processor(
    lolat: Command, local: Path, environment: dict[str, Any], said: str
) -> None:
    document = synthetic.document()
    document["environment"] |= {"cpu": "a desk", "threads": 2, **environment}
    local.write_text(json.dumps(document))
    found = lolat("predict", "local", "keras:A", "--json")
    assert found.code == 0
    assert found.err == (f"lolat: warning: {local}: {said}\n" if said else "")
    json.loads(found.out)
    # Another name asks about that model, not about this machine.
    assert lolat("predict", local, "keras:A").err == ""


STATE = {"computing": 2.0, "moving": 1.5, "starting": 1.0}


@pytest.mark.parametrize("wrapped", [False, True])
def test_in_a_state_of_the_machine(
    lolat: Command, model: Path, tmp_path: Path, wrapped: bool
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"state": STATE, "verdict": "drifted"} if wrapped else STATE))
    found = lolat("predict", model, "keras:ResNet", "--state", path, "--json")
    assert (found.code, found.err) == (0, "")
    answer = json.loads(found.out)
    usual = json.loads(lolat("predict", model, "keras:ResNet", "--json").out)
    assert answer["state"] == STATE
    assert usual["state"] is None
    wanted = sum(
        ms * (2.0 if term.endswith("_macs") or term in ("exps", "gelus")
              else 1.0 if term.endswith("_ops") or term in ("serial", "groups") else 1.5)
        for block in usual["blocks"] for term, ms in block["terms_ms"].items()
    ) + usual["blocks"][-1]["latency_ms"]  # fmt: skip
    assert answer["latency_ms"] == pytest.approx(wanted)
    assert answer["latency_ms"] > 1.1 * usual["latency_ms"]
    told = lolat("predict", model, "keras:ResNet", "--state", path).out.splitlines()[0]
    assert told.startswith(f"ResNet · batch 1: {milliseconds(wanted)}, 90 % sure of ")
    assert told.endswith(", in the state of the machine that was given")


def test_a_wrong_state_is_said_before_a_network_is_read(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"computing": 2.0}')
    found = lolat("predict", model, "keras:ResNet", "--state", path)
    assert (found.code, found.out, ASKED) == (2, "", [])
    assert "it holds no state; expected a file that `lolat doctor MODEL --json`" in one_line(
        found.err
    )


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_state_now_is_measured(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Networks that take twice as long as they did; of another machine they tell nothing."""
    point = replace(synthetic.measured(1, (1,))[0], whole=True)
    again = Again(point, 2.0 * point.latency_ms)
    differences = (Difference("cpu", "an old one", "a new one"),) if elsewhere else ()
    monkeypatch.setattr(
        "lolat.cli.evaluate.examined", lambda loaded: Examination((again,), differences)
    )
    found = lolat("predict", model, "keras:ResNet", "--state", "now", "--json")
    if elsewhere:
        assert (found.code, found.out) == (2, "")
        assert f"--state now: {model} is not of this machine or its framework" in one_line(
            found.err
        )
        return
    usual = json.loads(lolat("predict", model, "keras:ResNet", "--json").out)
    answer = json.loads(found.out)
    assert answer["state"] == {"computing": 2.0, "moving": 2.0, "starting": 2.0}
    assert answer["latency_ms"] == pytest.approx(2.0 * usual["latency_ms"])

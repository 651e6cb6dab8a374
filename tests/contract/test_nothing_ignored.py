"""Each option that a command takes changes its answer or what it says, or is refused.

A call is made as it stands, then once more with each option of its command in turn. Its answer changes
(the option's own echo does not count), or a line refuses the option by its name or value. Over all calls of
a command each option changes an answer at least once. Every option needs a value here, so a new one that
nobody covers fails.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import pytest

import lolat as package
from benchmarks.command_line import leaves
from lolat.cli.main import lolat as commands
from lolat.cli.main import run
from lolat.microbench import environment, probe
from tests import synthetic
from tests.cli.commands import Measuring
from tests.contract import world

LEAVES = dict(leaves(commands))
VALUES = {
    "--accepted": "0.5",
    "--accumulate": "2",
    "--accuracy": "new.csv",
    "--among": "archs.csv",
    "--arrivals": "even",
    "--as-learned": "",
    "--backend": "torch",
    "--batch-size": "8",
    "--attention-data-parallel": "2",
    "--best": "2",
    "--block": "conv2_block1",
    "--cached-tokens": "512",
    "--candidates": "7",
    "--channels-last": "",
    "--checkpointing": "full",
    "--compile": "",
    "--concurrency": "3",
    "--coverage": "0.5",
    "--csv": "new.csv",
    "--depth": "0",
    "--draft-tokens": "3",
    "--dtype": "fp8",
    "--epochs": "3",
    "--expert-parallel": "2",
    "--facts": "facts.csv",
    "--formula": "",
    "--global-batch-size": "64",
    "--framework": "trtllm",
    "--gpus": "2",
    "--half": "",
    "--host-us": "900",
    "--html": "new.html",
    "--input-size": "64",
    "--input-tokens": "777",
    "--jit": "",
    "--json": "",
    "--kv-dtype": "fp8",
    "--launch": "graph",
    "--link-gbps": "0.01",
    "--lower-is-better": "",
    "--max-dollars": "1e-9",
    "--max-hours": "1e-9",
    "--max-latency-ms": "1e-9",
    "--max-ms": "1e-9",
    "--max-num-batched-tokens": "64",
    "--max-num-seqs": "1",
    "--max-tpot-ms": "1e-9",
    "--max-ttft-ms": "1e-9",
    "--mean-tokens": "300",
    "--memory-gib": "0.7",
    "--min-samples-per-s": "1e9",
    "--min-tokens-per-s": "1e5",
    "--mode": "training",
    "--name": "t4",
    "--now": "",
    "--objective": "user_made:cells",
    "--on": "t4-fp32",
    "--only": "t4",
    "--optimizer": "adam",
    "--output": "new.json",
    "--output-tokens": "99",
    "--percentile": "90",
    "--port": "8001",
    "--precision": "fp16",
    "--predictions": "new.csv",
    "--predictor": "two-regime",
    "--price-per-hour": "7",
    "--prices": "prices.csv",
    "--recipe": "paper",
    "--replicas": "4",
    "--request-rate": "2",
    "--restart": "",
    "--samples": "5000",
    "--seed": "2",
    "--sequence-length": "64",
    "--served-model": "llama-3.1-8b",
    "--sharding": "fsdp",
    "--sure": "80",
    "--table": "networks.csv",
    "--tensor-parallel": "2",
    "--threads": "1",
    "--tokens": "2e6",
    "--training": "",
    "--tune": "frozen",
    "--validation-samples": "100",
    "--vary": "width",
    "--wait": "",
}
"""Option -> a value that differs from its default."""


class Call(NamedTuple):
    """A call of a command; `options`: the values of some in place of those of `VALUES`."""

    words: str
    options: Mapping[str, str] = MappingProxyType({})

    @property
    def command(self) -> str:
        """The name of the command."""
        words = self.words.split()
        return next(name for n in (2, 1) if (name := " ".join(words[:n])) in LEAVES)

    @property
    def needs(self) -> list[str]:
        """The packages that its networks need."""
        return [
            world.NEEDS[k]
            for k, n in world.NETWORKS.items()
            if n in self.words.split() and k in world.NEEDS
        ]


OF_MODEL = {
    "three.json": {"--predictor": "extended"},
    "rtx-4090-amp": {"--precision": "fp32"},
    "rtx-4090-amp-compiled": {"--precision": "fp32"},
}
"""Profile -> values that differ from how it answers without them."""
COST = "--batch-size 4 --samples 1000 --price-per-hour 2 --replicas 1,2"
NO_LATENCIES = ("epochs.json", "cells.json", "gpu.json")
FITTED = (
    "networks.csv --name v100",
    "networks.csv --name v100 --facts facts.csv",
    "operations.csv --name v100 --facts facts.csv",
    "three.csv",
    "epochs.csv",
    "desk.json",
    "kernels.csv --name v100 --facts llm_facts.csv",
    "kernels.csv served.csv --name v100 --facts llm_facts.csv",
    "gpu.json one_layout.csv --tensor-parallel 1 --served-model qwen3-8b",
    "gpu.json served.csv",
    "gpu.json runs.csv",
    "--name v100 --facts facts.csv",
)
JUDGED = (
    "desk.json --table networks.csv --only v100",
    "rtx-4090-amp --table networks.csv --only v100",
    "rtx-4090-amp --table steps.csv",
    "desk.json --table operations.csv --only v100",
    "desk.json --table three.csv",
    "gpu.json --table kernels.csv",
    "gpu.json --table served.csv",
    "gpu.json --table one_layout.csv --tensor-parallel 1 --served-model qwen3-8b",
    "gpu.json --table runs.csv",
)


def calls() -> Iterator[Call]:
    """A call of each command for each kind of profile and of network that it answers for.

    The commands read networks with one function: `predict` is asked of each kind, and `cost` of it on one
    device; the others, which tell the same of it, of one that has counts, images of an open size, or text.
    """
    of_all = {"net.json", world.NETWORKS["onnx"], world.NETWORKS["configuration"]}
    pairs = [(m, "net.json") for m in world.MODELS.values()]
    for kind, network in world.NETWORKS.items():
        size = f" --input-size {world.SIZES[kind]}" if kind in world.SIZES else ""
        pairs += [(m, network + size) for m in ("desk.json", "rtx-4090-amp")]
        yield Call(f"read {network} --output net2.json{size}")
    for model, network in dict.fromkeys(pairs):
        asked, other = f"{model} {network}", OF_MODEL.get(model, {})
        is_of_all = network.partition(" ")[0] in of_all
        if model not in NO_LATENCIES:
            for command in ("predict", "report", "explain") if is_of_all else ("predict",):
                yield Call(f"{command} {asked}", other)
            if is_of_all:
                yield Call(f"budget {asked} --vary batch --max-ms 20", other)
        trains = model not in ("cells.json", "gpu.json") and not network.startswith("quantized")
        if trains and (is_of_all or model == "rtx-4090-amp"):
            yield Call(f"cost {asked} {COST}", other)
    for command in ("predict", "report", "explain", "budget --vary batch --max-ms 20"):
        yield Call(f"{command} probed.json net.json")
    yield Call("predict net.json --on desk.json,rtx-4090-amp --batch-size 2")
    yield Call("predict desk.json net.json slow.json --batch-size 2")
    yield Call("predict desk.json net.json --max-ms 20")
    yield Call("cost net.json --on v100-fp32,rtx-4090-amp --batch-size 4 --samples 1000")
    yield Call(f"cost rtx-4090-amp net.json {COST} --max-hours 9", OF_MODEL["rtx-4090-amp"])
    for model in world.MODELS.values():
        yield Call(f"show {model}")
    for words in ("models", "prices", "serve", "doctor desk.json"):
        yield Call(words)
    yield Call("llm sheet.json config.json --concurrency 4")
    for words in ("--concurrency 4", "--concurrency 4 --draft-tokens 2 --accepted 0.7"):
        yield Call(f"llm gpu.json config.json {words}")
    for words in ("", " --max-ttft-ms 22"):
        yield Call(f"llm gpu.json config.json --request-rate 3 --tensor-parallel 8{words}")
    decoder = "llama.json --sequence-length 512 --batch-size 4 --price-per-hour 2 --replicas 1,2"
    yield Call(f"cost gpu.json {decoder} --tokens 5e5", {"--optimizer": "lion"})
    yield Call("llm gpu.json,other_gpu.json config.json --concurrency 4 --tensor-parallel 1")
    yield Call("evaluate desk.json net.json slow.json --batch-size 2")
    for words in JUDGED:
        other = "networks.csv" if "networks" in words else "none.csv"  # its rows are copies then
        asked = {"--table": other, **OF_MODEL.get(words.split()[0], {})}
        if "three.csv" in words:
            asked["--predictor"] = "extended"  # of three counts there is one formula
        yield Call(f"evaluate {words}", asked)
    for words in FITTED:
        yield Call(f"fit {words} --output old.json", {"--facts": "other_facts.csv"})
    for model in ("cells.json", "rtx-4090-amp"):
        among = {"--among": "few.csv", "--precision": "fp32"}
        objective = {"--objective": "other_scores.csv", "--precision": "fp32"}
        yield Call(f"nas search nasbench201 {model} --objective scores.csv", objective)
        yield Call(f"nas score nasbench201 {model} --output all.csv --among archs.csv", among)
    several = "nas search nasbench201 rtx-4090-amp,v100-fp32 --objective scores.csv"
    yield Call(several, objective)
    tiny = {"--among": "tiny.csv", "--objective": "user_made:other", "--precision": "fp32"}
    yield Call("nas score user_made:space rtx-4090-amp --output all.csv", tiny)
    made = "nas search user_made:space rtx-4090-amp --objective user_made:score --candidates 9"
    yield Call(made, tiny)
    yield Call(f"{made} --max-ms 20", tiny)
    yield Call("learn cpu --output old.json --backend tensorflow")
    yield Call("nas fit nasbench201 cells.csv --output cells2.json")
    yield Call("mlp fit many_layers.csv --output old.json --epochs 2")
    yield Call("mlp predict dense_layers.json layers.csv", {"--output": "new.csv"})


CALLS = [*calls()]


FOR_PEOPLE = ("--formula", "--percentile")
"""Options of what is printed for people alone: --json has all of it."""


class Outcome(NamedTuple):
    """What a call did: exit code, stdout, stderr, the files that it wrote."""

    code: int
    out: str
    err: str
    files: tuple[tuple[str, bytes], ...] = ()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory, in which measuring takes no time and nothing is served."""
    here, measuring = tmp_path_factory.mktemp("world"), Measuring()

    def asked_for(*asked: Any) -> tuple[str, Path, dict[str, Any]]:
        print(asked[:-1], file=sys.stderr)
        return "torch", Path("desk.json"), {}

    def learned(*asked: Any) -> Any:
        print(asked[-1].restart, file=sys.stderr)
        return package.load("desk.json").file.document

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.syspath_prepend(str(here))
        patch.setenv("LOLAT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "100")
        world.make(here)
        patch.setattr(probe, "probe", lambda threads: (9.0, 9.0))
        document = synthetic.document()
        document["environment"] |= environment.describe("cpu") | {
            "date": "2026-01-01T00:00:00+00:00"
        }
        document["noise"]["probe"] = {"forks": (1.0, 1.0)}
        (here / "probed.json").write_text(json.dumps(document))
        patch.setattr("lolat.web.server.serve", lambda *asked: print(asked[:2]))
        patch.setattr("lolat.api.learning._backend_and_output", asked_for)
        patch.setattr("lolat.api.learning._model_in", lambda *_: None)
        for name in ("_learn_latencies", "_add_training"):
            patch.setattr(f"lolat.api.learning.{name}", learned)
        measuring.install(patch)
        measuring.model, measuring.ratio = package.load("desk.json"), 1.02
        yield here


def outcome(words: str, capsys: pytest.CaptureFixture[str], folder: Path) -> Outcome:
    """Make a call; the files that it writes are removed."""
    before = {*folder.rglob("*")}
    capsys.readouterr()
    code = run(commands, shlex.split(words), "lolat")
    out, err = capsys.readouterr()
    new = sorted(p for p in {*folder.rglob("*")} - before if "__pycache__" not in p.parts)
    written = tuple((p.name, p.read_bytes()) for p in new)
    for path in new:
        path.unlink()
    return Outcome(code, out, err, written)


def same(one: Outcome, other: Outcome, echo: str) -> bool:
    """Whether two calls did the same, but for the keys of JSON that repeat the option."""
    texts = [one.out, other.out]
    if all(text.startswith('{"schema"') for text in texts):
        texts = [json.dumps(without(json.loads(text), echo)) for text in texts]
    return texts[0] == texts[1] and one._replace(out="") == other._replace(out="")


def without(answer: Any, echo: str) -> Any:
    """An answer without the keys that repeat the option itself."""
    if isinstance(answer, list):
        return [without(a, echo) for a in answer]
    if not isinstance(answer, dict):
        return answer
    return {k: without(v, echo) for k, v in answer.items() if k != echo}


class Judged(NamedTuple):
    """The options of a call: those that change its answer, and those that nothing is said of."""

    changing: set[str]
    ignored: list[str]


def judged(call: Call, capsys: pytest.CaptureFixture[str], folder: Path) -> Judged:
    """Make a call, which has an answer, then with each option of its command."""
    options = [p for p in LEAVES[call.command].params if isinstance(p, click.Option)]
    mode = " --json" * any("--json" in p.opts for p in options)
    base = {m: outcome(call.words + m, capsys, folder) for m in {mode, ""}}
    assert all(found.code in (0, 3) for found in base.values()), base
    changing, ignored = set(), []
    for param in options:
        name = next(o for o in param.opts if o in VALUES)
        shown = "" if name in ("--json", *FOR_PEOPLE) else mode
        value = call.options.get(name, VALUES[name])
        words = call.words  # an option with one value is given once
        if not (param.multiple or param.is_flag):
            words = re.sub(rf" {name} \S+", "", words)
        found, usual = outcome(f"{words} {name} {value}{shown}", capsys, folder), base[shown]
        if found.code == 2:
            said = found.err
            if "its reason is above" in said:  # in the answer, where JSON has the names of Python
                said += found.out + " --".join(re.findall(r"\w+", found.out)).replace("_", "-")
            if not names(said, param.opts, value):
                ignored.append(f"{name} {value}: {found.err}")
        elif not same(found, usual, str(param.name)):
            changing.add(name)
        else:
            ignored.append(name)
    return Judged(changing, ignored)


def names(line: str, options: Sequence[str], value: str) -> bool:
    """Whether a refusal says which option it is of, or repeats its value, unless that is a number."""
    value, is_number = value.partition(" ")[0], value.replace(".", "").isdigit()
    return any(o in line for o in options) or (bool(value) and not is_number and value in line)


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=[pytest.mark.slow] * (c == "mlp fit")) for c in LEAVES],
)
def test_nothing_is_ignored(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changing, ignored = set(), {}
    for call in (c for c in CALLS if c.command == command):
        if all(map(importlib.util.find_spec, call.needs)):
            found = judged(call, capsys, folder)
            changing |= found.changing
            ignored |= {call.words: found.ignored} if found.ignored else {}
    assert ignored == {}, "\n".join(f"{k}: {v}" for k, v in ignored.items())
    options = (p for p in LEAVES[command].params if isinstance(p, click.Option))
    assert [p.opts for p in options if changing.isdisjoint(p.opts)] == []


def test_every_option_and_command_is_covered() -> None:
    """A new one that nobody covers fails here."""
    assert {call.command for call in CALLS} == {*LEAVES}
    options = {(n, p) for n, c in LEAVES.items() for p in c.params if isinstance(p, click.Option)}
    lacking = [f"{n} {p.opts}" for n, p in options if VALUES.keys().isdisjoint(p.opts)]
    assert lacking == []


@pytest.mark.parametrize(
    ("command", "name"), [("predict", "--launch"), ("cost", "--validation-samples")]
)
def test_a_disconnected_option_is_found(
    command: str, name: str, folder: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    call = next(c for c in CALLS if c.words.startswith(f"{command} rtx-4090-amp net.json"))
    param = next(p for p in LEAVES[command].params if name in p.opts)
    words = shlex.split(call.words)
    kept = words[words.index(name) + 1] if name in words else None

    def disconnected(context: click.Context, its: click.Parameter, value: Any) -> Any:
        usual = its.get_default(context) if kept is None else kept
        is_usual = isinstance(usual, (str, int, float, tuple))
        return its.type_cast_value(context, usual) if is_usual else None

    monkeypatch.setattr(param, "callback", disconnected)
    assert name in judged(call, capsys, folder).ignored

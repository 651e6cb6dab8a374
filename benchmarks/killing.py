"""The commands that kills.py kills: how each is given, and what is there of it on disk."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.model.file import read as read_model
from microbench.journal import read as read_journal

ROOT = Path(__file__).resolve().parent.parent
MODEL = str(ROOT / "models" / "epyc-2t.json")

# Imported by every process of a command, workers too: writing to the disk is slow, so that many kills meet
# it, and `begin` notes that a unit of work has begun.
NOTES = """
import os, time
FOLDER = os.path.dirname(os.path.abspath(__file__))
def begin(unit):
    handle = os.open(os.path.join(FOLDER, "units.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, (unit + chr(10)).encode())
    os.close(handle)
real = os.fsync
def fsync(handle):
    link = f"/proc/self/fd/{handle}"
    regular = os.path.isfile(link) or "(deleted)" in os.readlink(link)
    if regular and FILES:
        begin("file")
    time.sleep(0.005)
    real(handle)
    time.sleep(0.005)
os.fsync = fsync
"""

CLI = "from lolat.cli.main import main\nimport sys\nsys.exit(main(sys.argv[1:]))\n"

# `lolat learn` as a user gives it, but on tiny blocks and networks.
LEARN = """
import functools
from sitecustomize import begin
from lolat.graph.layers import Layers
from microbench import learn, learn_training, runner, worker
from microbench.blocks import Predefined
from microbench.runner import Settings

def tiny(size, channels):
    n = Layers.on("tiny", size, size, 3)
    return n.done(n.conv_norm_act(n.input, channels, 3))

def blocks(sizes, name, counts, *more):
    return tuple(
        Predefined(f"{name} {c}", functools.partial(tiny, 8 * c, 2 * c), sizes, *more) for c in counts
    )

learn.BLOCKS, learn.NETWORKS = blocks((1, 4), "tiny", range(1, 6)), blocks((1,), "net", (3, 4), True)
learn.USUAL = Settings(rounds=6)
learn_training.STARTED = ("tiny 1", "tiny 2")
learn_training.measure_training = functools.partial(
    learn_training.measure_training,
    blocks=blocks((1, 4), "tiny", range(1, 17)),
    settings=Settings(rounds=2),
)

class Noted(worker.WorkerProcess):
    def request(self, document, limit_s):
        if document["do"] in ("sample", "start"):
            begin(f"{document['do']} {document.get('key')}")
        return super().request(document, limit_s)

runner.WorkerProcess = Noted
""" + CLI.replace("cli.main", "cli.learn")  # fmt: skip

EPOCHS = """
from sitecustomize import begin
from lolat.mlp import training
real = training.KerasNetwork.epoch
def epoch(self):
    begin("epoch")
    return real(self)
training.KerasNetwork.epoch = epoch
""" + CLI  # fmt: skip

RANGES = """
from sitecustomize import begin
from lolat.nas import scoring
real = scoring.score_range
def score_range(job, start):
    begin(f"range {start}")
    return real(job, start)
scoring.score_range, scoring.CHUNK = score_range, 400
""" + CLI  # fmt: skip

OBJECTIVE = """
import time
from sitecustomize import begin
def score(candidate):
    begin("candidate")
    time.sleep(0.01)
    return float(sum(c * c * i for i, c in enumerate(candidate, 1)) % 97)
"""


@dataclass(frozen=True)
class Command:
    """A command that is killed; see `kills.py`.

    `make` fills its folder; `kept`: the units that are on disk; `half`: why a file of `outputs` is not
    whole, "" if it is; `result`: what must be as undisturbed (None: it is measured); `wrong`: what else is
    wrong in the end; `is_done`: whether nothing is left to do. A kill may lose at most `chunk` units.
    """

    name: str
    shown: str
    code: str
    arguments: Sequence[str]
    unit: str
    chunk: int
    make: Callable[[Path], object]
    kept: Callable[[Path], list[str]]
    outputs: tuple[str, ...]
    half: Callable[[Path], str]
    result: Callable[[Path], Any] | None = None
    wrong: Callable[[Path, list[str]], str] = lambda folder, kept: ""
    is_done: Callable[[Path], bool] = lambda folder: False
    while_running: tuple[str, ...] = ()
    some_units: int = 12


def commands() -> list[Command]:
    """All of them."""
    return [_learn(), _training(), _search(), _score(), _layers(), _networks(), _read(), _table()]


def _notes(folder: Path, files: bool = False) -> None:
    (folder / "sitecustomize.py").write_text(NOTES.replace("FILES", str(files)))


def _is_model(path: Path) -> str:
    try:
        read_model(path)
    except Exception as error:
        return str(error)
    return ""


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- Measuring


def _records(name: str) -> Callable[[Path], list[str]]:
    def records(folder: Path) -> list[str]:
        path = folder / name
        if not path.exists():
            return []
        _, *found = read_journal(path) or [{}]
        return [f"{i} {json.dumps(r)}" for i, r in enumerate(found)]

    return records


def _kept_samples(folder: Path, kept: list[str]) -> str:
    """Why the measurements that were kept are not in the model, each once and as they were."""
    points = read_model(folder / "m.json")["points"]
    samples = {f"{p['name']} x{p['batch_size']}": p["samples_ms"] for p in points}
    return _prefixes(samples, kept)


def _prefixes(samples: dict[str, list[float]], kept: list[str]) -> str:
    before: dict[str, list[float]] = {}
    for line in kept:
        record = json.loads(line.partition(" ")[2])
        before.setdefault(record["key"], []).extend(record.get("visit", {}).get("samples_ms", ()))
    for key, times in before.items():
        if key in samples and samples[key][: len(times)] != [round(t, 4) for t in times]:
            return f"{key}: not the measurements that were kept"
    return ""


def _learn() -> Command:
    return Command(
        "learn", "lolat learn cpu", LEARN, ("cpu", "--output", "m.json", "--backend", "onnxruntime"),
        "measurements", 1, _notes, _records("m.json.journal.jsonl"), ("m.json",), _is_model,
        wrong=_kept_samples, while_running=("m.json.journal.jsonl",),
        is_done=lambda f: (f / "m.json").exists() and not (f / "m.json.journal.jsonl").exists(),
    )  # fmt: skip


@functools.cache
def _learned() -> bytes:
    """The model of tiny blocks that training is added to."""
    with tempfile.TemporaryDirectory() as name:
        _notes(Path(name))
        command = [sys.executable, "-c", LEARN, "cpu", "--output", "m.json", "--backend", "torch"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{name}", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=name, check=True, env=environment)
        return (Path(name) / "m.json").read_bytes()


def _training() -> Command:
    journal = "m.json.training.journal.jsonl"

    def make(folder: Path) -> None:
        _notes(folder)
        (folder / "m.json").write_bytes(_learned())

    def wrong(folder: Path, kept: list[str]) -> str:
        section = read_model(folder / "m.json")["training"]
        way = ("forward", "forward+backward")
        samples = {
            f"{p['name']} x{p['batch_size']} {way[p['backward']]}": p["samples_ms"]
            for p in section["points"]
        }
        return _prefixes(samples, [line for line in kept if '"visit"' in line])

    return Command(
        "training", "lolat learn cpu --mode training", LEARN,
        ("cpu", "--output", "m.json", "--backend", "torch", "--mode", "training"),
        "measurements", 1, make, _records(journal), ("m.json",), _is_model, wrong=wrong,
        is_done=lambda f: "training" in read_model(f / "m.json") and not (f / journal).exists(),
        while_running=(journal,), some_units=20,
    )  # fmt: skip


# ---- Searching and scoring


def _search() -> Command:
    def make(folder: Path) -> None:
        _notes(folder)
        (folder / "objective.py").write_text(OBJECTIVE)

    def kept(folder: Path) -> list[str]:
        path = folder / "front.scores.csv"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [line for line in lines[1:] if line.endswith("\n")]

    def wrong(folder: Path, before: list[str]) -> str:
        archs = [line.split(",")[0] for line in kept(folder)]
        return "" if len(set(archs)) == len(archs) else "a candidate is scored twice"

    return Command(
        "search", "lolat nas search", CLI,
        ("nas", "search", "nasbench201", MODEL, "--objective", "objective:score", "--output", "front.csv"),
        "candidates", 1, make, kept, ("front.csv",),
        lambda p: "" if p.read_text().endswith("\n") else "no end of line",
        result=lambda f: (_hash(f / "front.csv"), sorted(kept(f))), wrong=wrong,
        while_running=("front.scores.csv",), some_units=60,
    )  # fmt: skip


def _score() -> Command:
    def kept(folder: Path) -> list[str]:
        return [f"{p.name} {_hash(p)}" for p in sorted((folder / "out").glob("part-*.parquet"))]

    def half(path: Path) -> str:
        import pyarrow.parquet

        for part in path.glob("part-*.parquet"):
            try:
                pyarrow.parquet.read_table(part)
            except Exception as error:
                return str(error)
        return ""

    return Command(
        "score", "lolat nas score", RANGES,
        ("nas", "score", "nasbench201", MODEL, "--output", "out"),
        "files of candidates", 1, _notes, kept, ("out",), half,
        result=lambda f: sorted((p.name, _hash(p)) for p in (f / "out").iterdir()), some_units=10,
    )  # fmt: skip


# ---- Training a layer model


def _layers() -> Command:
    def make(folder: Path) -> None:
        _notes(folder)
        draw = np.random.default_rng(0)
        lines = ["gpu,run,batch_size,in_features,out_features,activation,optimizer,time_ms_median,"
                 "time_ms_min,time_ms_max,time_ms_std"]  # fmt: skip
        for batch, inputs, outputs in draw.integers(1, 2000, (600, 3)):
            ms = 0.1 + 1e-9 * batch * inputs * outputs
            lines.append(f"V100,0,{batch},{inputs},{outputs},relu,none,{ms},{ms},{ms},0.01")
        (folder / "layers.csv").write_text("\n".join(lines) + "\n")

    def kept(folder: Path) -> list[str]:
        path = folder / "m.json.checkpoint.npz"
        if not path.exists():
            return []
        with np.load(path) as found:
            return [
                f"{name} {i} {loss!r}"
                for name in sorted(found.files) if name.endswith("losses")
                for i, loss in enumerate(found[name].tolist())
            ]  # fmt: skip

    def result(folder: Path) -> str:
        document = json.loads((folder / "m.json").read_text())
        document["training"].pop("date")
        return json.dumps(document, sort_keys=True)

    def half(path: Path) -> str:
        try:
            json.loads(path.read_text())
        except ValueError as error:
            return str(error)
        return ""

    return Command(
        "layers", "lolat mlp fit", EPOCHS,
        ("mlp", "fit", "layers.csv", "--layer", "dense", "--recipe", "paper", "--epochs", "40",
         "--output", "m.json"),
        "epochs", 2, make, kept, ("m.json",), half, result=result,
        while_running=("m.json.checkpoint.npz",), some_units=30,
        is_done=lambda f: (f / "m.json").exists() and not (f / "m.json.checkpoint.npz").exists(),
    )  # fmt: skip


# ---- Reading networks, fitting tables


def _onnx(path: Path, width: int) -> None:
    """A network of 20 layers."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[1, 1, 1, 1])
        for i in range(20)
    ]
    weights = [
        numpy_helper.from_array(np.ones((width, width if i else 3, 3, 3), np.float32), f"w{i}")
        for i in range(20)
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x0", (1, 3, 16, 16)), ("x20", (1, width, 16, 16)))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    sets = [helper.make_opsetid("", 20)]
    path.write_bytes(helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString())


def _cached(folder: Path) -> list[str]:
    return [f"{p.name} {_hash(p)}" for p in sorted((folder / "cache").glob("[!.]*"))]


def _networks() -> Command:
    def make(folder: Path) -> None:
        _notes(folder, files=True)
        lines = ["network,batch_size,latency_ms"]
        for width in range(2, 62):
            _onnx(folder / f"n{width}.onnx", width)
            lines.append(f"n{width}.onnx,1,{0.1 + 0.001 * width**2}")
        (folder / "networks.csv").write_text("\n".join(lines) + "\n")

    return Command(
        "networks", "lolat fit NETWORKS.csv", CLI, ("fit", "networks.csv", "--output", "m.json"),
        "files of networks", 3, make, _cached, ("m.json",), _is_model, while_running=("cache",),
        result=lambda f: _hash(f / "m.json"), some_units=60,
    )  # fmt: skip


def _read() -> Command:
    def make(folder: Path) -> None:
        _notes(folder, files=True)
        _onnx(folder / "n.onnx", 8)

    def half(path: Path) -> str:
        from lolat.graph import Graph

        try:
            Graph.from_dict(json.loads(path.read_text()))
        except Exception as error:
            return str(error)
        return ""

    return Command(
        "read", "lolat read", CLI, ("read", "n.onnx", "--output", "n.json"), "files", 2, make,
        _cached, ("n.json",), half, result=lambda f: _hash(f / "n.json"),
        while_running=("cache", "n.json"), some_units=2,
    )  # fmt: skip


def _table() -> Command:
    def make(folder: Path) -> None:
        _notes(folder, files=True)
        draw = np.random.default_rng(0)
        counts = draw.integers(10_000, 10_000_000, (5_000, 3))
        ms = counts @ [2e-6, 1e-6, 3e-8] * np.exp(draw.normal(0, 0.1, len(counts)))
        rows = (f"{a},{i},{f},{t:.6f}" for (a, i, f), t in zip(counts, ms, strict=True))
        (folder / "points.csv").write_text("\n".join(["acts,inp,flops,latency_ms", *rows]) + "\n")
        (folder / "m.json").write_bytes(
            Path(MODEL).read_bytes()
        )  # which is to be whole, or replaced

    return Command(
        "table", "lolat fit POINTS.csv", CLI, ("fit", "points.csv", "--output", "m.json"), "files", 1,
        make, lambda folder: [], ("m.json",), _is_model, result=lambda f: _hash(f / "m.json"),
        some_units=1,
    )  # fmt: skip

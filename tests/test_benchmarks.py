"""Scripts in benchmarks/: repeatability.py by hand; what design, kills, importing and fuzz find."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import killing, kills, repeatability
from lolat.devices.tables import read_networks, read_operations
from lolat.model import Model
from tests import synthetic

ROOT = Path(__file__).resolve().parent.parent
ASKED = [("keras:A", 1), ("keras:A", 4), ("keras:B", 1)]


def test_a_pair_by_hand() -> None:
    a, b = np.array([100.0, 10.0, 1.0]), np.array([102.0, 10.0, 3.0])
    assert repeatability.differences(a, b) == pytest.approx([2 / 101, 0.0, 1.0])
    assert repeatability.differences(b, a) == pytest.approx([2 / 101, 0.0, 1.0])
    assert repeatability.pair(a, b, ASKED) == {
        "median": pytest.approx(2 / 101), "largest": pytest.approx(1.0),
        "largest_of": ["keras:B", 1], "within_goal": pytest.approx(2 / 3),
        "bias": pytest.approx(0.02),
    }  # fmt: skip


def test_every_two_models_are_a_pair() -> None:
    times = {n: np.array([t, t, t]) for n, t in (("a", 1.0), ("b", 1.0), ("c", 3.0))}
    found = repeatability.pairs(times, ASKED)
    assert [(p["models"], p["median"]) for p in found] == [
        (["a", "b"], 0.0), (["a", "c"], 1.0), (["b", "c"], 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["x/a.json", "y/b.json"], ["a", "b"]),
        (["x/a.json", "y/a.json"], ["x/a.json", "y/a.json"]),
        (["a.json", "a.json"], ["1: a.json", "2: a.json"]),
    ],
)
def test_models_are_told_apart(sources: list[str], expected: list[str]) -> None:
    assert repeatability.labels(sources) == expected


def slower(document: dict[str, Any], factor: float) -> Model:
    """A model all of whose times are `factor` times as long."""
    for predictor in document["predictors"].values():
        for part in (predictor, predictor.get("six_counts", {})):
            named = part.get("coefficients", {})
            named.update({k: v * factor for k, v in named.items()})
    return Model(document)


def test_the_tables() -> None:
    models = {"one": Model(synthetic.document()), "two": slower(synthetic.document(), 1.05)}
    graphs = {"keras:Small": synthetic.network(), "keras:Big": synthetic.network(size=112)}
    result = json.loads(json.dumps(repeatability.examine(models, graphs), allow_nan=False))
    assert [(n["network"], n["batch_size"]) for n in result["networks"]] == [
        ("keras:Small", 1), ("keras:Small", 4), ("keras:Big", 1), ("keras:Big", 4),
    ]  # fmt: skip
    (pair,) = result["pairs"]
    assert (pair["median"], pair["bias"]) == (pytest.approx(0.05 / 1.025), pytest.approx(0.05))
    once, twice = result["coefficients"]["spatial_macs"]
    assert twice == pytest.approx(1.05 * once) != 0
    text = list(repeatability.lines(result))
    assert "| one | 105 | - | 3.0 % |" in text
    assert any(line.startswith("| one and two | 4.9 % | 4.9 % | ") for line in text)
    assert "0 of 1 pairs" in text[-1]
    assert "4.9 %" in text[-1]
    tables = [line for line in text if line.startswith("|")]
    assert {line.count("|") for line in tables[:4]} == {5}


def test_given_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeatability, "networks", lambda only: {"n": synthetic.network()})
    files = [str(tmp_path / f"{n}.json") for n in "ab"]
    for file in files:
        Path(file).write_text(json.dumps(synthetic.document()))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(repeatability.main, arguments)

    done = run(*files, "--json")
    assert (done.exit_code, [p["largest"] for p in json.loads(done.stdout)["pairs"]]) == (0, [0.0])
    assert run(files[0]).exit_code == run(*files, "--folder", "x").exit_code == 2
    done = run(files[0], "no such model")
    assert done.exit_code == 1
    assert "no such model" in done.output


def test_models_are_learned_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **unused: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        Path(command[command.index("--output") + 1]).write_text(json.dumps(synthetic.document()))
        return subprocess.CompletedProcess(command, 130 if len(commands) == 4 else 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(repeatability, "networks", lambda only: {"n": synthetic.network()})
    folder = tmp_path / "new"
    options = ["--runs", "3", "--folder", str(folder), "--json"]
    done = CliRunner().invoke(repeatability.main, options)
    assert len(json.loads(done.stdout)["pairs"]) == 3
    for command in commands:
        assert (Path(command[1]).name, command[2]) == ("learn_model.py", "cpu")
        assert "--restart" in command
    assert sorted(p.name for p in folder.iterdir()) == ["run-1.json", "run-2.json", "run-3.json"]
    # One that is interrupted ends it all.
    assert CliRunner().invoke(repeatability.main, []).exit_code == 130
    assert len(commands) == 4


@pytest.mark.slow
def test_without_a_model_the_shipped_one_of_tensorflow_is_judged() -> None:
    def design(*arguments: object) -> list[str]:
        """Its lines from the condition numbers on."""
        command = [sys.executable, ROOT / "benchmarks/design.py", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        lines = done.stdout.splitlines()
        return lines[next(i for i, line in enumerate(lines) if "condition number" in line) :]

    shipped = ROOT / "models" / "epyc-2t.json"
    lines = design()
    assert lines == design(shipped)
    assert lines[0].startswith(f"{len(json.loads(shipped.read_text())['points'])} points of ")


# ---- kills.py finds what it looks for.

WHOLE = """
import os, sitecustomize
for i in range(60):
    sitecustomize.begin(str(i)) if i >= len(open("kept").read().split()) else None
    with open("kept") as file: before = file.read().split()
    if i >= len(before):
        with open("new", "w") as file: file.write(" ".join([*before, str(i)]))
        os.fsync(os.open("new", os.O_RDONLY))
        os.replace("new", "kept")
"""
HALF = """
import os, time, sitecustomize
for i in range(60):
    sitecustomize.begin(str(i))
    with open("kept", "w") as file:
        for j in range(i + 1):
            file.write(f"{j} ")
            file.flush()
            time.sleep(0.001)
        file.write("whole")
"""


@pytest.mark.parametrize(("code", "kinds"), [(WHOLE, set()), (HALF, {"half", "lost"})])
def test_kills_are_judged(code: str, kinds: set[str]) -> None:
    def make(folder: Path) -> None:
        killing._notes(folder)
        (folder / "kept").write_text("" if code == WHOLE else "0 whole")

    def kept(folder: Path) -> list[str]:
        return [n for n in (folder / "kept").read_text().split() if n != "whole"]

    def half(path: Path) -> str:
        text = path.read_text()
        return "" if code == WHOLE or text.endswith("whole") else "no end"

    command = killing.Command(
        "x", "x", code, (), "units", 1, make, kept, ("kept",), half, result=lambda f: kept(f),
        while_running=("new",), some_units=50,
    )  # fmt: skip
    told = kills.kill_often(command, 6, 1)
    assert told.kills == 6
    found = {kind for kind, faults in told.faults.items() if faults}
    assert found & {"half", "lost"} == kinds if kinds else found == set()


# ---- importing.py: published files become the tables that are read.


def imported(source: str, checkout: Path, folder: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks/importing.py", source, checkout, folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def save(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_operations_and_networks_of_neusight(tmp_path: Path) -> None:
    checkout, base = tmp_path / "checkout", "scripts/asplos"
    collected = checkout / base / "data/dataset/train/collect"
    save(
        collected / "bmm/p2.1.0/Tesla V100-PCIE-32GB.csv",
        "OPName,Latency,Device,Kernels,B,M,N,K\nbmm,0.0354,Tesla V100-PCIE-32GB,;a,13,27,15,29\n",
    )
    save(
        collected / "add/p2.1.0/Tesla V100-PCIE-32GB.csv",
        "OPName,Latency,Device,B,H\nadd,0.026,Tesla V100-PCIE-32GB,127,168\n",
    )
    save(checkout / base / "data/dataset/dims/test.csv", "B,H\n1,2\n")
    label = {"num_layer": 24, "e2e_latency": 12.5, "fw_latency": 5.0, "bwall_latency": 7.5}
    save(checkout / base / "label/Tesla_T4/bert_large-train-512-2-dp4.json", json.dumps(label))
    sheet = {"Device": "Tesla T4", "Dev_Mem": 15, "Mem_Bw": 320, "Num_Sm": 40, "Core_Per_SM": 64,
             "Freq": 1590, "SingleFLOPs": 8141, "L2Cache": 4}  # fmt: skip
    save(checkout / base / "data/device_configs/Tesla_T4.json", json.dumps(sheet))
    imported("neusight", checkout, tmp_path)
    timed = read_operations(tmp_path / "neusight/kernels-v100-pcie-32gb.csv.gz")
    assert sorted(t.latency_ms for t in timed) == [0.026, 0.0354]
    with (tmp_path / "neusight/networks.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["device"], row["network"], row["pass"]) == ("t4", "bert_large", "training")
    assert (row["sequence_length"], row["batch_size"], row["parallel"]) == ("512", "2", "dp4")
    assert float(row["forward_ms"]) + float(row["backward_ms"]) == float(row["latency_ms"])
    with (tmp_path / "neusight/devices.csv").open() as file:
        (facts,) = csv.DictReader(file)
    wanted = {"device": "t4", "bandwidth_gb_s": "320", "fp32_matrix_gflops": "8141"}
    assert wanted.items() <= facts.items()


def test_results_of_timm(tmp_path: Path) -> None:
    save(
        tmp_path / "checkout/results/benchmark-infer-amp-nchw-pt1-gpu.csv",
        "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,infer_gmacs,"
        "infer_macts,param_count\nresnet18,1,12.5,64,224,1.82,2.48,11.69\n",
    )
    imported("timm", tmp_path / "checkout", tmp_path)
    (found,) = read_networks(tmp_path / "timm/infer-amp-nchw-pt1-gpu.csv.gz").rows
    assert (found.latency_ms, found.batch_size) == (12.5, 64)


def test_spaces_of_help(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = tmp_path / "checkout/data"
    for space, archs in (("nasbench201", {"|a|": 0, "|b|": 1}), ("fbnet", [[0] * 22, [8] * 22])):
        (data / space / "latency").mkdir(parents=True)
        torch.save([1.5, 2.5], data / space / "latency/phone_1.pt")
        torch.save(
            archs, data / space / ("str_arch2idx.pt" if space == "nasbench201" else "arch.pt")
        )
    imported("help", tmp_path / "checkout", tmp_path)
    with gzip.open(tmp_path / "fbnet_latency.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    assert [(r["arch"], float(r["phone_1"])) for r in rows] == [("0" * 22, 1.5), ("8" * 22, 2.5)]


# ---- fuzz.py: a fixed number of hostile inputs; by itself it runs as many as one likes.


FOUND_ONCE = (
    "models:930017", "models:930144", "models:940316", "networks:300335", "options:300337",
    "options:500129", "sections:940425", "tables:900013", "tables:930134",
)  # fmt: skip
"""What it found once; another generator of cases would need others."""


@pytest.mark.slow
def test_nothing_is_found() -> None:
    """Every command answers what is right, or damaged input would be refused for another reason; what was
    found stays mended; what is damaged ends in one line. In one run: it imports much once.
    """
    pytest.importorskip("onnx")
    pytest.importorskip("starlette.testclient")
    from benchmarks.fuzzing.cases import KINDS, commands

    cases = [f"whole:{seed}" for seed in range(len(commands()))]
    cases += [f"{kind}:{seed}" for kind in KINDS for seed in range(18, 24)]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/fuzz.py", "--case", *FOUND_ONCE, *cases],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    found = re.findall(r"^\w+:\d+  (?!nothing wrong).*", done.stdout, re.MULTILINE)
    assert (done.returncode, found) == (0, []), done.stderr

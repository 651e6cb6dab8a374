"""Tables of operations of language models and of served models compared with a model of their GPU."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lolat.api.fitting import fit
from lolat.api.model import Model
from lolat.errors import InputError
from tests.cli.commands import Command
from tests.llm.known_gpu import LARGE, document

OPERATIONS = """\
op,dtype,kv_dtype,latency_ms,m,n,k,batch,length,heads,kv_heads,head_dim,window,gpus,elements
gemm,bfloat16,,1.0,8192,8192,8192,,,,,,,,
gemm,nvfp4,,1.0,64,4096,4096,,,,,,,,
decode_attention,bfloat16,fp8,0.5,,,,64,8192,32,8,128,0,,
all_reduce,bfloat16,,0.01,,,,,,,,,,4,4096
"""
SERVED = """\
model,device,framework,input_tokens,output_tokens,concurrency,tensor_parallel,ttft_ms,tpot_ms,requests,range_ratio
config.json,made-up,vllm,1000,500,8,1,60,9,0,1
config.json,made-up,vllm,1000,500,32,2,80,8,0,1
config.json,other,vllm,1000,500,8,1,60,9,0,1
nobody-knows-it,made-up,vllm,1000,500,8,1,60,9,0,1
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("gpu.json").write_text(json.dumps(document()))
    Path("config.json").write_text(json.dumps(LARGE))
    Path("operations.csv").write_text(OPERATIONS)
    Path("served.csv").write_text(SERVED)
    return "gpu.json"


def test_operations_are_compared_as_they_are_timed_alone(
    capsys: pytest.CaptureFixture[str], gpu: str
) -> None:
    done = Command(capsys)("evaluate", gpu, "--table", "operations.csv", "--predictions", "out.csv")
    assert (done.code, len(done.out.splitlines())) == (0, 4)
    assert "nothing is known of gemm of nvfp4" in done.err
    rows = [*csv.DictReader(Path("out.csv").read_text().splitlines())]
    assert [row["op"] for row in rows] == ["gemm", "decode_attention", "all_reduce"]
    flops = 2 * 8192**3 / 1e12  # ms at the data sheet's 1,000 TFLOPS
    product = float(rows[0]["predicted_ms"])
    assert flops / 0.88 < product < 1.3 * flops / 0.88
    cache_ms = 64 * 8192 * 8 * 128 * 2 / 2e9  # bytes at 2,000 GB/s
    assert cache_ms < float(rows[1]["predicted_ms"]) < 1.5 * cache_ms
    for row in rows:
        assert float(row["low_ms"]) < float(row["predicted_ms"]) < float(row["high_ms"])


def test_served_models_are_compared_as_they_are_answered(gpu: str) -> None:
    model = Model.load(gpu)
    found = model.evaluate_table("served.csv")
    loads = [one.row["concurrency"] for one in found.compared]
    assert (found.content, loads) == ("served", ["8", "32"])
    assert [*found.skipped.values()] == [1]
    for row, requests, parallel in zip(found.rows(), (8, 32), (1, 2), strict=True):
        [asked] = model.llm("config.json", 1000, 500, requests, parallel).served
        assert row["predicted_ms"] == pytest.approx(asked.tpot_ms, rel=1e-4)
        assert row["predicted_ttft_ms"] == pytest.approx(asked.ttft_ms)
        assert row["interval_ms"] == pytest.approx(asked.tpot_interval_ms, rel=1e-4)
    assert found.to_dict()["summary"]["served"] == 2


def test_a_table_of_another_gpu_is_refused(gpu: str) -> None:
    header, *_, other, _ = SERVED.splitlines()
    Path("served.csv").write_text(f"{header}\n{other}\n")
    with pytest.raises(InputError, match="none is of this GPU") as error:
        Model.load(gpu).evaluate_table("served.csv")
    assert error.value.code == "nothing-comparable"


def test_served_rows_that_a_file_was_fitted_to_are_told(
    capsys: pytest.CaptureFixture[str], gpu: str
) -> None:
    """By the user's file, not the one that it began with."""
    header, first, second, *_ = SERVED.splitlines()
    Path("own.csv").write_text(
        f"{header}\n{first}\n{second}\n".replace("made-up", "NVIDIA Made Up")
    )
    fit([gpu, "own.csv"], "mine.json")
    shown = " ".join(Command(capsys)("show", "mine.json").out.split())
    model = Model.load("mine.json")
    off, off_first = (100 * error for error in model.language_models.own_error)
    assert shown.startswith("mine: ")
    assert (
        f" times as long as usual; held out, at the median: time per output token off by {off:.2g} %, "
        f"first token off by {off_first:.2g} %"
    ) in shown
    assert "2 own rows (own.csv): " in shown
    Path("part.csv").write_text(f"{header}\n{second}\n{first.replace(',9,', ',9.3,')}\n")
    warnings = model.evaluate_table("part.csv").warnings
    assert [w.partition(":")[0] for w in warnings if "fitted" in w] == [
        "mine.json was fitted to 1 of the 2 rows"
    ]

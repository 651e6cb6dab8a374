"""examples/time_operations.py: its table, what is left out of it, and how a GPU would be asked."""

from __future__ import annotations

import csv
import importlib
import inspect
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROW = (
    "op,dtype,latency_ms,m,n,k,kv_dtype,batch,length,heads,kv_heads,head_dim,window,tokens,hidden,intermediate,"
    "top_k,experts,tensor_parallel,expert_parallel,distribution,gpus,elements"
)
DEVICE = (
    "device,multiprocessors,bandwidth_gb_s,memory_gib,bf16_tflops,fp8_tflops,fp4_tflops,power_w,link_gb_s,"
    "gpus_per_node"
)
ATTENTION = {"kv_dtype", "batch", "length", "heads", "kv_heads", "head_dim", "window"}
FILLED = {
    "gemm": {"m", "n", "k"},
    "prefill_attention": ATTENTION,
    "decode_attention": ATTENTION,
    "moe": {"tokens", "hidden", "intermediate", "top_k", "experts", "tensor_parallel", "expert_parallel",
            "distribution"},
    "all_reduce": {"gpus", "elements"},
}  # fmt: skip
Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def example() -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    yield importlib.import_module("examples.time_operations")
    torch.set_num_threads(threads)


@pytest.fixture
def run(example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, what is printed, and what is told besides, a line each."""

    def called(*arguments: object) -> tuple[int, list[str], list[str]]:
        monkeypatch.setattr(sys, "argv", ["example", *map(str, arguments)])
        try:
            code = example.main()
        except SystemExit as end:
            code = end.code
        found = capsys.readouterr()
        return code, found.out.splitlines(), found.err.splitlines()

    return called


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def check(rows: list[dict[str, str]]) -> None:
    """They are whole rows, with a time and what belongs to their operation."""
    for row in rows:
        assert 0 < float(row["latency_ms"]) < math.inf
        values = {name for name, value in row.items() if value} - {"op", "dtype", "latency_ms"}
        assert values == FILLED[row["op"]]


def test_the_table_of_operations(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "mine.csv"
    code, said, told = run(out, "--device", "cpu", "--name", "trial")
    assert code == 0
    assert out.read_text().splitlines()[0] == ROW
    rows = table(out)
    check(rows)
    kinds = Counter((row["op"], row["dtype"]) for row in rows)
    assert kinds.pop(("gemm", "fp8"), 4) == 4  # where PyTorch has it on this processor
    expected = [(op, "bfloat16") for op in FILLED if op != "all_reduce"]
    assert kinds == dict.fromkeys(expected, 4)
    facts = tmp_path / "mine-device.csv"
    assert facts.read_text().splitlines()[0] == DEVICE
    (device,) = table(facts)
    assert device["device"] == "trial"
    assert float(device["bf16_tflops"]) > 0
    assert float(device["bandwidth_gb_s"]) > 0
    assert sorted(tmp_path.iterdir()) == [facts, out]
    assert said[-1] == f"lolat fit {out} --facts {facts} --device trial --output trial.json"
    assert any("to try the script" in line for line in said)
    assert any(line.startswith("moe bfloat16") and "4 of 4" in line for line in said)
    assert "20 operations" in told[0] or "16 operations" in told[0]


def test_ctrl_c_writes_what_was_timed(
    tmp_path: Path, example: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count(1)

    def timed(*_: object) -> float:
        if next(calls) == 7:
            raise KeyboardInterrupt
        return 0.25

    monkeypatch.setattr(example.Bench, "timed", timed)
    out = tmp_path / "mine.csv"
    code, _, _ = run(out, "--device", "cpu")
    assert code == 130
    rows = table(out)
    check(rows)
    assert len(rows) == 6
    assert len(list(tmp_path.iterdir())) == 2


def test_what_does_not_fit_into_the_minutes_is_left_out(
    tmp_path: Path, example: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=seconds.__next__, perf_counter=time.perf_counter)
    monkeypatch.setattr(example, "time", clock)
    times = itertools.count(1)
    monkeypatch.setattr(example.Bench, "timed", lambda *_: float(next(times)))
    out = tmp_path / "mine.csv"
    code, said, _ = run(out, "--device", "cpu", "--minutes", 0.5)
    assert code == 0
    rows = table(out)
    check(rows)
    assert 3 < len(rows) < 16
    assert sum(int(line.split()[2]) for line in said[:5] if " of 4" in line) == len(rows)
    # Some are timed a second time, and their median is written.
    assert any(float(row["latency_ms"]) % 1 == 0.5 for row in rows)
    out.unlink()
    code, _, told = run(out, "--device", "cpu", "--minutes", 1e-9)
    assert (code, told[-1], out.exists()) == (1, "nothing was timed, nothing is written", False)


def test_what_pytorch_refuses_is_counted(
    tmp_path: Path, example: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    call_of = example.call_of

    def refused(row: dict[str, Any], bench: Any) -> Any:
        if row["op"] == "decode_attention":
            raise torch.OutOfMemoryError("not so much")
        if row["op"] == "moe":
            raise RuntimeError("no kernel\nC++ frames")
        return call_of(row, bench)

    monkeypatch.setattr(example, "call_of", refused)
    out = tmp_path / "mine.csv"
    code, said, _ = run(out, "--device", "cpu")
    assert code == 0
    assert "decode_attention bfloat16: too large for the memory (4)" in said
    assert "moe bfloat16: no kernel (4)" in said
    assert {row["op"] for row in table(out)} == {"gemm", "prefill_attention"}


def test_experts_are_the_products_of_each_token(example: Any) -> None:
    import torch

    bench = example.Bench(torch.device("cpu"), 2**22)
    bench.cache = 2**20
    for grouped in {bench.grouped, False}:
        bench.grouped = grouped
        call, copies = example.moe(bench, 5, 64, 32, 8, 2)
        inside = inspect.getclosurevars(call).nonlocals
        x, (up, down) = inside["x"].float(), inside["weights"][copies - 1]
        expected = torch.zeros(5, 64)
        for token, place in itertools.product(range(5), range(2)):
            expert = (2 * token + place) % 8
            gate, value = (up[expert].float() @ x[token]).chunk(2)
            y = down[expert].float() @ (torch.nn.functional.silu(gate) * value)
            expected[token] += inside["shares"][token, place].float() * y
        found = call(copies - 1).float()
        assert torch.allclose(found, expected, rtol=0.05, atol=0.02 * expected.abs().max())
        assert call(0).ne(call(1)).any()  # another copy of the weights


def test_fp8_is_the_same_product(example: Any) -> None:
    import torch

    bench = example.Bench(torch.device("cpu"), 2**22)
    if "fp8" not in bench.numbers:
        pytest.skip("PyTorch has no FP8 on this processor")
    call, copies = example.gemm(bench, True, 3, 32, 64)
    inside = inspect.getclosurevars(call).nonlocals
    expected = inside["x"].float() @ inside["weights"][1][0].float().t()
    assert copies > 1
    assert (call(1) - expected).abs().max() < 0.05 * expected.abs().max()


def test_copies_are_more_than_the_cache_holds(example: Any) -> None:
    import torch

    bench = example.Bench(torch.device("cpu"), 2**22)
    bench.cache = 2**18
    found = bench.copies((32, 64), (16, 64))
    assert [[t.shape for t in copy] for copy in found] == [[(32, 64), (16, 64)]] * len(found)
    starts = {t.data_ptr() for copy in found for t in copy}
    assert len(starts) == 2 * len(found)
    assert 2 * 48 * 64 * len(found) >= 3 * 2**18
    assert len(bench.copies((32, 64), (16, 64), used=0.5)) == pytest.approx(2 * len(found), abs=1)
    with pytest.raises(MemoryError):
        bench.copies((2**11, 2**11))


def test_sizes_are_those_of_models(example: Any) -> None:
    numbers = 2**32
    for op in ("gemm", "prefill_attention", "decode_attention", "moe"):
        for row in (example.drawn(op, example.LARGE, numbers) for _ in range(300)):
            assert set(row) == FILLED[op]
            if op == "gemm":
                assert 1 <= row["m"] <= 8192
                assert row["n"] % 16 == row["k"] % 16 == 0
            elif op == "moe":
                assert row["intermediate"] % 8 == 0
                assert row["top_k"] <= row["experts"]
            else:
                assert row["heads"] % row["kv_heads"] == 0
                assert 1 <= row["batch"] <= 256
                cache = row["batch"] * row["length"] * row["kv_heads"] * row["head_dim"]
                assert 2 * cache <= numbers or row["length"] <= 128


def test_all_reduce_over_two_processes(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("PyTorch without gloo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows: list[dict[str, Any]] = []
    assert example.reduced(2, "cpu", [64, 4096], time.monotonic() + 500, rows) == ""
    assert [(row["gpus"], row["elements"]) for row in rows] == [(2, 64), (2, 4096)]
    assert all(row["latency_ms"] > 0 for row in rows)
    rows.clear()
    late = example.reduced(2, "cpu", [64], time.monotonic(), rows)
    assert (late, rows) == ("all_reduce over 2 GPUs: the time was up", [])
    wrong = example.reduced(2, "cpu", [-1], time.monotonic() + 500, rows)
    assert "negative" in wrong


@pytest.mark.parametrize(
    ("title", "rates"),
    [
        ("NVIDIA H100 80GB HBM3", (3352, 989, 1978, 700, 450)),
        ("NVIDIA GeForce RTX 4090", (3352, 165, 330, 450, 32)),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (3352, "2000", None, None, "300")),
    ],
)
def test_facts_of_a_gpu(
    example: Any, monkeypatch: pytest.MonkeyPatch, title: str, rates: tuple[object, ...]
) -> None:
    import torch

    known = SimpleNamespace(
        multi_processor_count=132, total_memory=80 * 2**30, memory_clock_rate=2619000,
        memory_bus_width=5120,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: known)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    rows = [
        {"op": "gemm", "dtype": "bfloat16", "m": 1000, "n": 1000, "k": 1000, "latency_ms": 0.001},
        {"op": "gemm", "dtype": "bfloat16", "m": 1000, "n": 1000, "k": 1000, "latency_ms": 0.002},
        {"op": "all_reduce", "dtype": "bfloat16", "gpus": 4, "elements": 10**8, "latency_ms": 1.0},
    ]
    found, guessed = example.facts_of(torch.device("cuda", 0), title, rows)
    names = ("bandwidth_gb_s", "bf16_tflops", "fp8_tflops", "power_w", "link_gb_s")
    assert tuple(map(found.get, names)) == rates
    assert (found["multiprocessors"], found["memory_gib"], found["gpus_per_node"]) == (132, 80, 4)
    assert guessed == [
        name for name, rate in zip(names, rates, strict=True) if isinstance(rate, str)
    ]


def test_without_a_gpu_one_line(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, said, told = run(tmp_path / "out.csv")
    assert (code, said, len(told)) == (2, [], 1)
    assert "no GPU" in told[0]
    assert "--device cpu" in told[0]

"""Fits to rows whose terms are known; tables and files of benchmarks as they come."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import lolat
from lolat.errors import InputError
from lolat.io.writing import write_text
from lolat.llm.calibration import SPREADS, Timed, fit_overheads, served_by, timed_steps
from lolat.llm.fit import (
    IN_GENERAL,
    MOST_SIZE,
    complete,
    fit_operation,
    read_operations,
    section_from,
)
from lolat.llm.frameworks import frameworks_in
from lolat.llm.gpu import GPU, Operation, Section, operation_ms
from lolat.llm.kernels import KERNEL_MODELS
from lolat.llm.served import ServedRow, read_served
from lolat.llm.serving import Deployment, Load, serve, steps_of
from tests.llm import known_gpu
from tests.llm.known_gpu import DTYPES, EIGHT, OVERHEADS, SHEET, SPECS, random_rows, section, terms

OPERATIONS = {name: dtypes[0] for name, dtypes in DTYPES.items()}


def off_center(name: str, dtype: str) -> dict[str, float]:
    """Terms half a width away from where they are drawn to, up and down in turns."""
    centers = KERNEL_MODELS[name].terms(dtype, KERNEL_MODELS[name].variants(dtype)[0])
    signs = (-1.0) ** np.arange(len(centers))
    return {
        t: c * float(np.exp(0.5 * w * s))
        for (t, (c, w)), s in zip(centers.items(), signs, strict=True)
    }


def timed(name: str, number: int, seed: int, noise: float = 0.0, outliers: float = 0.0) -> Any:
    """(rows, ms) of an operation with known terms."""
    dtype, random = OPERATIONS[name], np.random.default_rng(seed)
    rows = random_rows(name, number, seed)
    ms = known_gpu.kernel_ms(name, dtype, rows, alone=True, **off_center(name, dtype))
    ms = ms * np.exp(noise * random.standard_normal(number))
    far = random.random(number) < outliers
    return rows, np.where(far, ms * random.choice([0.3, 4.0], number), ms)


def errors(name: str, fitted: Operation, rows: Any, ms: Any) -> Any:
    return np.log(operation_ms(name, fitted, rows, SPECS, OPERATIONS[name], alone=True) / ms)


# ---- Operations


@pytest.mark.parametrize(("name", "dtype"), OPERATIONS.items())
def test_rows_of_known_terms_are_foretold_despite_outliers(name: str, dtype: str) -> None:
    rows, ms = timed(name, 240, 1, noise=0.02, outliers=0.05)
    fitted = fit_operation(name, dtype, rows, ms, SPECS)
    left_out, right = timed(name, 400, 2)
    off = np.abs(errors(name, fitted, left_out, right))
    assert fitted.rows == 240
    assert np.median(off) < 0.02
    assert np.quantile(off, 0.9) < 0.1


@pytest.mark.parametrize("name", ["gemm", "decode_attention", "moe"])
def test_the_spread_covers_what_is_left_out(name: str) -> None:
    rows, ms = timed(name, 300, 3, noise=0.12)
    fitted = fit_operation(name, OPERATIONS[name], rows, ms, SPECS)
    off = np.abs(errors(name, fitted, *timed(name, 2000, 4, noise=0.12)))
    assert 0.85 <= (off < 1.645 * fitted.spread).mean() <= 0.96
    assert fitted.spread == pytest.approx(0.12, rel=0.35)


def test_few_rows_stay_near_what_is_usual() -> None:
    rows, ms = timed("gemm", 4, 5)
    fitted = fit_operation("gemm", "bfloat16", rows, ms, SPECS)
    assert (fitted.rows, fitted.spread, fitted.centers) == (4, 0.3, ())
    usual = Operation(terms=terms("gemm", "bfloat16"), variant=fitted.variant)
    others, right = timed("gemm", 300, 6)
    median = [np.median(np.abs(errors("gemm", one, others, right))) for one in (fitted, usual)]
    assert median[0] < 1.1 * median[1]
    rate = KERNEL_MODELS["gemm"].terms("bfloat16", "library")["rate"]
    assert abs(np.log(fitted.terms["rate"] / rate[0])) < rate[1]


def test_the_correction_follows_what_terms_do_not_and_fades_away() -> None:
    """A library that is half as slow again between 256 and 2048 rows."""
    rows, ms = timed("gemm", 500, 7)
    slow = 1.0 + 0.35 * np.exp(-0.5 * (np.log2(rows["m"]) - 9.5) ** 2)
    fitted = fit_operation("gemm", "bfloat16", rows, ms * slow, SPECS)
    plain = msgspec.structs.replace(fitted, centers=(), weights=())
    with_it, without = (np.abs(errors("gemm", o, rows, ms * slow)).mean() for o in (fitted, plain))
    assert with_it < 0.7 * without
    far = dict.fromkeys("mnk", np.array([2.0**40, 1.0]))
    for sizes, least, most in ((far, 0.0, 1e-6), (rows, 0.1, 1.0)):
        both = (operation_ms("gemm", o, sizes, SPECS, "bfloat16", True) for o in (fitted, plain))
        assert least <= np.abs(np.log(np.divide(*both))).max() < most


def test_a_section_is_small(tmp_path: Path) -> None:
    """Of a GPU with as many data types as any has, with whole corrections."""
    fitted = {n: fit_operation(n, d, *timed(n, 120, 8, 0.1), SPECS) for n, d in OPERATIONS.items()}
    many = {"gemm": 5, "moe": 5, "prefill_attention": 3, "decode_attention": 3, "all_reduce": 1}
    operations = {n: {f"type-{i}": fitted[n] for i in range(k)} for n, k in many.items()}
    assert all(o.centers or n == "all_reduce" for n, o in fitted.items())
    encoded = msgspec.json.encode(section(operations=operations))
    assert len(encoded) <= 20_000
    assert msgspec.json.decode(encoded, type=Section) == section(operations=operations)


def test_what_was_not_timed_is_as_on_a_gpu_that_is_alike() -> None:
    of = section().operations
    mine = section(operations={"gemm": {"bfloat16": of["gemm"]["bfloat16"]}})
    twin_moe = msgspec.structs.replace(of["moe"]["bfloat16"], spread=0.07)
    fp4 = msgspec.structs.replace(of["gemm"]["fp8"], spread=0.06)
    alike = section(operations={"moe": {"bfloat16": twin_moe}, "gemm": {"nvfp4": fp4}})
    slow = msgspec.structs.replace(SHEET, bf16_tflops=100, bandwidth_gb_s=300, fp8_tflops=None)
    odd = msgspec.structs.replace(of["all_reduce"]["bfloat16"], terms={"launch": 9.0})
    unlike = section(sheet=slow, operations={"moe": of["moe"], "all_reduce": {"bfloat16": odd}})
    found = complete(mine, {"far": unlike, "twin": alike}).operations
    assert found["gemm"] == {
        "bfloat16": of["gemm"]["bfloat16"]
    }  # its own, and no FP4, which it lacks
    assert found["moe"]["bfloat16"] == msgspec.structs.replace(twin_moe, rows=0, like="twin")
    assert found["moe"]["fp8"].like == IN_GENERAL
    reduce = found["all_reduce"][
        "bfloat16"
    ]  # of a GPU that is unlike only that there is such a thing
    assert (reduce.like, reduce.terms) == (IN_GENERAL, terms("all_reduce", "bfloat16"))


def test_from_a_data_sheet_alone() -> None:
    made = section_from(SHEET, "trtllm", [], {"known": section()})
    assert {n: {*d} for n, d in made.operations.items()} == {n: {*d} for n, d in DTYPES.items()}
    assert (made.framework, made.served, made.spread) == ("trtllm", 0, SPREADS["sheet"])
    assert frameworks_in("kernels-h100-TRTLLM.csv") == "trtllm"
    assert frameworks_in("mine.csv") == "vllm"


# ---- Tables of operations

HEAD = (
    "op,dtype,kv_dtype,latency_ms,m,n,k,batch,length,heads,kv_heads,head_dim,window,gpus,elements\n"
)
GEMM = "gemm,bfloat16,,0.1,1,64,64,,,,,,,,\n"
EXPERTS = (
    "op,dtype,latency_ms,tokens,hidden,intermediate,experts,top_k,tensor_parallel,expert_parallel,"
    "distribution\nmoe,fp8,0.5,8,64,32,4,2,1,1,"
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        write_text(tmp_path / name, text)
        return tmp_path / name

    return write


def test_a_table_of_operations(write: Callable[[str, str], Path]) -> None:
    path = write("k.csv", HEAD + GEMM + "gemm,fp8,,0.2,2,64,128,,,,,,,,\n" + GEMM.replace("0.1", "0.3")
                 + "decode_attention,bfloat16,fp8,0.4,,,,2,100,8,4,64,,,\n"
                 + "all_reduce,bfloat16,,0.5,,,,,,,,,,4,1e6\n")  # fmt: skip
    found = read_operations(path)
    assert {name: [*dtypes] for name, dtypes in found.items()} == {
        "gemm": ["bfloat16", "fp8"], "decode_attention": ["bfloat16/fp8"], "all_reduce": ["bfloat16"]
    }  # fmt: skip
    rows, ms = found["gemm"]["bfloat16"]
    assert ms.tolist() == [0.1, 0.3]
    assert {c: v.tolist() for c, v in rows.items()} == {"m": [1, 1], "n": [64, 64], "k": [64, 64]}
    rows, _ = found["decode_attention"]["bfloat16/fp8"]
    assert rows["window"] == [0.0]
    assert found["all_reduce"]["bfloat16"][0]["elements"] == [1e6]


@pytest.mark.parametrize(
    ("text", "skew"), [("", 0.0), ("balanced", 0.0), ("power_law_1.2", 1.2), ("power_law_1", 1.001)]
)
def test_how_evenly_tokens_fall_on_experts(
    text: str, skew: float, write: Callable[[str, str], Path]
) -> None:
    rows, _ = read_operations(write("k.csv", EXPERTS + text + "\n"))["moe"]["fp8"]
    assert rows["skew"] == pytest.approx(skew)
    assert np.isfinite(known_gpu.kernel_ms("moe", "fp8", rows, alone=True)).all()


@pytest.mark.parametrize(
    ("old", "new", "given"),
    [
        ("gemm", "conv", "line 2: op is 'conv'"),
        ("bfloat16", "int3", "line 2: dtype is 'int3'"),
        ("0.1", "0", "line 2: latency_ms is '0'"),
        ("0.1", "-1", "line 2: latency_ms is '-1'"),
        ("0.1", "1e300", "line 2: latency_ms is '1e300'"),
        ("0.1", "", "line 2: latency_ms is empty"),
        (",64,64", ",,64", "line 2: n is empty"),
        (",64,64", ",64,0", "line 2: k is '0'"),
        (",64,64", f",64,{MOST_SIZE * 10}", "line 2: k is"),
        ("gemm,bfloat16,", "prefill_attention,bfloat16,int8", "line 2: kv_dtype is 'int8'"),
        ("latency_ms", "time", "latency_ms"),
    ],
)
def test_a_wrong_row_is_named(
    old: str, new: str, given: str, write: Callable[[str, str], Path]
) -> None:
    with pytest.raises(InputError) as caught:
        read_operations(write("k.csv", (HEAD + GEMM).replace(old, new, 1)))
    assert given in str(caught.value)


@pytest.mark.parametrize("text", ["power_law_", "power_law_x", "power_law_-1", "uniform"])
def test_a_wrong_distribution_is_named(text: str, write: Callable[[str, str], Path]) -> None:
    with pytest.raises(InputError, match="line 2: distribution"):
        read_operations(write("k.csv", EXPERTS + text + "\n"))


# ---- Served rows

VLLM: dict[str, Any] = {
    "date": "20261001-101500", "endpoint_type": "openai", "backend": "vllm", "label": None,
    "model_id": "Qwen/Qwen3-32B", "tokenizer_id": "Qwen/Qwen3-32B", "num_prompts": 200,
    "tensor_parallel": "2", "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 50,
    "duration": 71.3, "completed": 200, "failed": 0, "total_input_tokens": 400000,
    "total_output_tokens": 100000, "request_throughput": 2.8, "request_goodput": None,
    "output_throughput": 1402.5, "total_token_throughput": 7012.6, "max_output_tokens_per_s": 1700.0,
    "max_concurrent_requests": 55, "mean_ttft_ms": 700.5, "median_ttft_ms": 650.0, "std_ttft_ms": 100.0,
    "p99_ttft_ms": 1200.0, "mean_tpot_ms": 34.25, "median_tpot_ms": 34.0, "std_tpot_ms": 1.0,
    "p99_tpot_ms": 36.0, "mean_itl_ms": 34.2, "median_itl_ms": 30.0, "std_itl_ms": 9.0, "p99_itl_ms": 80.0,
}  # fmt: skip
"""As `vllm bench serve --save-result --metadata tensor_parallel=2` writes it."""
SGLANG: dict[str, Any] = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"),
    "max_concurrency": 16, "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 256,
    "random_range_ratio": 1.0, "server_info": {"model_path": "qwen3-32b", "tp_size": 4, "dp_size": 1},
    "duration": 30.0, "completed": 64, "total_input_tokens": 65536, "total_input_text_tokens": 65536,
    "total_input_vision_tokens": 0, "total_output_tokens": 16384, "total_output_tokens_retokenized": 16380,
    "request_throughput": 2.1, "input_throughput": 2184.5, "output_throughput": 546.1,
    "total_throughput": 2730.6, "mean_e2e_latency_ms": 7000.0, "median_e2e_latency_ms": 6900.0,
    "mean_ttft_ms": 210.0, "median_ttft_ms": 200.0, "std_ttft_ms": 20.0, "p99_ttft_ms": 300.0,
    "mean_tpot_ms": 26.5, "median_tpot_ms": 26.0, "std_tpot_ms": 1.0, "p99_tpot_ms": 29.0,
    "mean_itl_ms": 26.4, "median_itl_ms": 25.0, "std_itl_ms": 2.0, "p99_itl_ms": 60.0,
    "concurrency": 15.7, "accept_length": None,
}  # fmt: skip
"""As SGLang's bench_serving adds it to its file, a line for each run."""


def test_the_result_of_vllm(write: Callable[[str, str], Path]) -> None:
    for text in (json.dumps(VLLM), json.dumps(VLLM, indent=4)):
        (row,) = read_served(write("vllm.json", text))
        assert row == ServedRow("Qwen/Qwen3-32B", 2000, 500, 50, 34.25, 700.5, 2)


def test_the_results_of_sglang(write: Callable[[str, str], Path]) -> None:
    text = "".join(json.dumps(one) + "\n" for one in (SGLANG, SGLANG | {"max_concurrency": 21}))
    first, second = read_served(write("sglang.jsonl", text))
    assert first == ServedRow("qwen3-32b", 1024, 256, 16, 26.5, 210.0, 4)
    assert second.concurrency == 21


SERVED = (
    "model,device,input_tokens,output_tokens,concurrency,tensor_parallel,tpot_ms,ttft_ms,dtype\n"
)


def test_a_table_of_served_models(write: Callable[[str, str], Path]) -> None:
    path = write(
        "s.csv", SERVED + "a,,1000,100,8,2,12.5,300,fp8\nb,other,1,1,1,1,1,1,\nb,,1e3,99,4,1,9,,\n"
    )
    found = [
        (r.model, r.tpot_ms, r.ttft_ms, r.tensor_parallel, r.dtype)
        for r in read_served(path, "mine")
    ]
    assert found == [("a", 12.5, 300.0, 2, "fp8"), ("b", 9.0, 0.0, 1, "")]


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"completed": 0}, "no request was completed"), ({"mean_tpot_ms": 0}, "tpot_ms is 0"),
        ({"completed": 0, "failed": 200}, "200 failed"),
        ({"completed": 150, "failed": 50}, "50 of 200 requests failed"),
        ({"mean_tpot_ms": None}, "float"),
        ({"mean_ttft_ms": float("nan")}, "above 0"), ({"mean_tpot_ms": -3}, "above 0"),
        ({"total_output_tokens": 0}, "above 0"), ({"tensor_parallel": "0"}, "above 0"),
        ({"max_concurrency": None}, "--max-concurrency"), ({"request_rate": 4.0}, "steady load"),
        # No more than are there at once is one burst, and less than three times as many nearly one.
        ({"max_concurrency": 200}, "steady load; expected 600"), ({"max_concurrency": 67}, "201 requests"),
        ({"max_concurrency": None, "concurrency": 15.7}, "start at once"),
        # Tokens of drafts, stages and replicas are not those of one server as it is predicted.
        ({"spec_decode_num_drafts": 900, "spec_decode_acceptance_length": 2.4}, "speculatively"),
        ({"accept_length": 2.1}, "speculatively"), ({"pipeline_parallel_size": "2"}, "is above 1"),
        ({"server_info": {"speculative_algorithm": "EAGLE"}}, "speculatively"),
        ({"server_info": {"dp_size": 2}}, "dp_size is above 1"),
        ({"server_info": {"kv_cache_dtype": "fp8_e4m3"}}, "has kv_cache_dtype fp8_e4m3; expected the keys"),
        ({"server_info": {"quantization": "fp8"}, "dtype": "fp8"}, "has quantization fp8"),
    ],
)  # fmt: skip
def test_a_result_that_cannot_be(
    changes: dict[str, Any], given: str, write: Callable[[str, str], Path]
) -> None:
    with pytest.raises(InputError, match=given) as caught:
        read_served(write("v.json", json.dumps(VLLM | changes)))
    assert caught.value.code in ("served", "concurrency", "request-rate", "dtype")
    assert "\n" not in str(caught.value)


def test_a_server_with_its_own_data_types_says_them_as_keys(
    write: Callable[[str, str], Path],
) -> None:
    info = {"server_info": {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3", "dp_size": 1}}
    [row] = read_served(
        write("v.json", json.dumps(VLLM | info | {"dtype": "fp8", "kv_dtype": "fp8"}))
    )
    assert row.deployment == (2, 1, "fp8", "fp8")


@pytest.mark.parametrize(
    ("column", "cells", "given"),
    [
        ("dtype", ",1,9,,", "concurrency is empty"), ("dtype", "4,,9,,", "tensor_parallel is empty"),
        ("pipeline_parallel", "4,1,9,,2", "pipeline_parallel is '2'"),
        ("dp_size", "4,1,9,,2", "dp_size is '2'"),
    ],
)  # fmt: skip
def test_a_row_of_another_load_or_split_is_named(
    column: str, cells: str, given: str, write: Callable[[str, str], Path]
) -> None:
    path = write("s.csv", SERVED.replace("dtype", column) + f"qwen3-8b,,99,99,{cells}\n")
    with pytest.raises(InputError, match=f"line 2: {given}"):
        read_served(path)


def test_the_number_of_gpus_is_an_option(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    """Of files and rows that do not say it; a file that says it is as it says."""
    silent = {key: value for key, value in VLLM.items() if key != "tensor_parallel"}
    table = write("s.csv", SERVED.replace("tensor_parallel,", "") + "qwen3-8b,,99,99,4,9,,\n")
    two, none = write("two.json", json.dumps(VLLM)), write("none.json", json.dumps(silent))
    assert [read_served(p, tensor_parallel=4)[0].tensor_parallel for p in (two, none, table)] == [
        2, 4, 4
    ]  # fmt: skip
    for path in (none, table):
        with pytest.raises(InputError, match="tensor_parallel"):
            read_served(path)
    model = tmp_path / "gpu.json"
    model.write_text(json.dumps(known_gpu.document()))
    made = lolat.fit([model, none], tensor_parallel=4)
    assert [row[6] for row in made.language_models.own] == [4]
    for tables, number in (([model], 4), ([model, none], 0)):
        with pytest.raises(InputError) as caught:
            lolat.fit(tables, tensor_parallel=number)
        assert caught.value.code == "tensor-parallel"


# ---- The overheads of a framework


def served(noise: float = 0.0) -> list[ServedRow]:
    """What a framework of known overheads shows, on a GPU whose operations are known."""
    random, rows = np.random.default_rng(9), []
    for parallel, dtype in ((1, "bfloat16"), (1, "fp8"), (4, "bfloat16"), (2, "fp8")):
        deployment = Deployment(EIGHT, parallel, 1, dtype, dtype, "bfloat16")
        requests = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
        ins, outs = (
            np.resize(values, 8).astype(float) for values in ((200, 1000, 4000), (100, 400))
        )
        load = Load(ins, outs, requests, np.full(8, 1e9))
        found = serve(OVERHEADS, steps_of(GPU(section()), deployment, load), load)
        tpot = found.tpot_ms * np.exp(noise * random.standard_normal(8))
        rows += [
            ServedRow(
                "eight", ins[i], outs[i], requests[i], tpot[i], found.ttft_ms[i], parallel, 1, dtype
            )
            for i in range(8)
        ]
    return rows


def steps(rows: list[ServedRow]) -> Timed:
    return timed_steps(section(), rows, lambda name: EIGHT)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_overheads_of_served_rows_are_found(noise: float) -> None:
    others = {"kernel_ms": 3e-3, "step_ms": 0.2, "small": 2.5, "api_ms": 35.0, "burst_share": 0.4}
    start = msgspec.structs.replace(OVERHEADS, **others)
    rows = steps(served(noise))
    right = steps(served())
    before, after = (
        np.abs(np.log(serve(w, rows.steps, rows.load).tpot_ms / right.tpot_ms))
        for w in (start, fit_overheads(rows, start))
    )
    assert after.max() < 0.5 * before.max()
    assert np.median(after) < 0.01 + noise / 3
    assert fit_overheads(rows, start).api_ms == pytest.approx(OVERHEADS.api_ms, rel=0.25)


def few(loads: tuple[int, ...], factors: Any, noise: float = 0.02) -> list[ServedRow]:
    """Rows of one server whose times are `factors` times what the known overheads say."""
    requests, random = np.array(loads, float), np.random.default_rng(4)
    load = Load(
        np.full(len(requests), 1000.0), np.full(len(requests), 300.0), requests, requests + 1e9
    )
    found = serve(
        OVERHEADS,
        steps_of(GPU(section()), Deployment(EIGHT, 1, 1, "bfloat16", "bfloat16", "bfloat16"), load),
        load,
    )
    tpot = found.tpot_ms * factors * np.exp(noise * random.standard_normal(len(requests)))
    columns = zip(requests, tpot, found.ttft_ms * factors, strict=True)
    return [ServedRow("eight", 1000.0, 300.0, *map(float, c), dtype="bfloat16") for c in columns]


def tpot_at(known: Section, requests: int) -> float:
    (row,) = served_steps(known, few((requests,), 1.0, 0.0))
    return row


def served_steps(known: Section, rows: list[ServedRow]) -> list[float]:
    """Their times per output token as `known` says."""
    timed = timed_steps(known, rows, lambda name: EIGHT)
    found: list[float] = serve(known.overheads, timed.steps, timed.load).tpot_ms.tolist()
    return found


def left_out_percent(words: str) -> float:
    return float(re.findall(r"([\d.]+) % now", words)[0])


@pytest.mark.parametrize("factor", [1.4, 0.7])
def test_a_level_that_rows_share_holds_beyond_their_largest_load(factor: float) -> None:
    """Six loads up to 32 requests; asked are 64 and 128."""
    known = section(spread=(0.14, 0.4))
    made, words = served_by(known, few((1, 2, 4, 8, 16, 32), factor), lambda name: EIGHT)
    off = [tpot_at(made, n) / (tpot_at(known, n) * factor) for n in (1, 8, 32, 64, 128)]
    assert np.abs(np.log(off)).max() < 0.05
    assert np.abs(np.log(off)).max() < made.spread[0] < known.spread[0]
    assert left_out_percent(words) < 5.0


def test_rows_that_agree_make_the_interval_no_wider_and_one_that_does_not_changes_little() -> None:
    known, loads = section(spread=(0.14, 0.4)), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    agree, words = served_by(known, few(loads, 1.0), lambda name: EIGHT)
    assert agree.spread[0] < known.spread[0]
    assert left_out_percent(words) < 3.0
    factors = np.ones(len(loads))
    factors[4] = 2.5
    odd, _ = served_by(known, few(loads, factors), lambda name: EIGHT)
    assert odd.overheads.level == 1.0
    for n in (1, 8, 64):
        assert tpot_at(odd, n) == pytest.approx(tpot_at(known, n), rel=0.03)
    # Rows that no way explains widen it: each twice or half as long as the last.
    wild, words = served_by(known, few(loads, np.resize([0.5, 2.0], 10)), lambda name: EIGHT)
    assert wild.spread[0] > 2 * known.spread[0]
    assert left_out_percent(words) > 30.0


def test_a_row_alone_moves_the_level_by_a_part() -> None:
    levels = []
    for loads in ((8,), (4, 8), (1, 2, 4, 8, 16, 32)):
        made, _ = served_by(section(), few(loads, 1.4, 0.0), lambda name: EIGHT)
        levels.append(made.overheads.level)
    assert 1.1 < levels[0] < levels[1] < levels[2] < 1.42
    assert levels[0] < 1.4**0.75


def test_a_file_that_is_given_twice_counts_once(
    write: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, but for the date; and all rows at once are as one file after the other."""

    def table(name: str, loads: range, model: str) -> Path:
        rows = "".join(f"{model},,500,100,{n},1,{14 + n / 5},,\n" for n in loads)
        return write(name, SERVED + rows)

    def fitted(*files: tuple[Path, ...]) -> str:
        out = tmp_path / "gpu.json"
        out.write_text(json.dumps(known_gpu.document()))
        for some in files:
            lolat.fit([out, *some], out)
        document = json.loads(out.read_text())
        assert document["llm"]["served"] == 20 + 8
        return json.dumps(document | {"created": None})

    write("large.json", json.dumps(known_gpu.LARGE))
    monkeypatch.chdir(tmp_path)
    first = table("first.csv", range(1, 5), "large.json")
    second = table("second.csv", range(5, 9), "qwen3-8b")
    once = fitted((first, second))
    assert fitted((first, second), (first, second)) == once
    with_path = table("first.csv", range(1, 5), str(tmp_path / "large.json"))
    assert fitted((with_path,), (second,), (second,)) == once


def test_rows_that_wait_for_memory_tell_nothing() -> None:
    good = ServedRow("eight", 1000, 100, 8, 10.0, 300.0)
    too_many = ServedRow("eight", 1000, 100, 10**7, 10.0, 1.0)
    # Where requests come together, prompts of 4,000 tokens take as long without any lack of memory.
    burst = section(overheads=msgspec.structs.replace(OVERHEADS, burst_share=0.97))
    long = ServedRow("eight", 4000, 64, 64, 40.0, 40.0 * 64)
    for known, kept in ((burst, [8, 64]), (section(), [8])):
        found = timed_steps(known, [good, long], lambda name: EIGHT).load
        assert sorted(found.concurrency.tolist()) == kept
    waits = ServedRow("eight", 1000, 100, 8, 10.0, 600.0)
    assert steps([good, too_many, waits, good]).load.concurrency.tolist() == [8, 8]
    with pytest.raises(InputError) as caught:
        steps([too_many, waits])
    assert caught.value.code == "served"


# ---- `lolat fit`

SHEETS = (
    "device,multiprocessors,bandwidth_gb_s,memory_gib,bf16_tflops,fp8_tflops,link_gb_s\n"
    "gpu,100,2000,80,1000,2000,400\nbare,,2000,80,1000,,\n"
)


def test_from_tables_to_a_file(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    table, specs = write("k-sglang.csv", HEAD + GEMM * 3), write("devices.csv", SHEETS)
    out = tmp_path / "gpu.json"
    made = lolat.fit([table], out, name="gpu", facts=specs)
    assert made.language_models.framework == "sglang"
    assert made.language_models.sheet == SHEET
    assert made.language_models.operations["gemm"]["bfloat16"].rows == 3
    assert lolat.load(out).language_models == made.language_models
    many = "".join(f"qwen3-8b,,500,100,{n},1,{10 + n / 10},,\n" for n in range(1, 13))
    again = lolat.fit([out, write("s.csv", SERVED + many)])
    assert (again.language_models.served, again.language_models.kinds) == (12, ("dense",))
    assert again.language_models.overheads != made.language_models.overheads
    assert again.language_models.operations == made.language_models.operations
    told: list[str] = []
    once = {**VLLM, "model_id": "qwen3-8b", "mean_tpot_ms": 12.0, "tensor_parallel": 1}
    third = lolat.fit([out, write("run.json", json.dumps(once))], warn=told.append)
    assert told[0].startswith("taken are qwen3-8b in bfloat16, cache bfloat16: the keys dtype")
    assert told[1].startswith("1 served row: time per output token off by ")
    assert third.document["environment"]["source"] == "k-sglang.csv, run.json"
    assert "warnings" not in third.document
    of_others = write("o.csv", SERVED + many.replace(",,500", ",other,500"))
    with pytest.raises(InputError) as caught:
        lolat.fit([out, of_others])
    assert caught.value.code == "served"


SHEET_RATES = {
    "l40s": (733, None), "h100-sxm": (1978, None), "h200": (1978, None), "b200": (4500, 9000),
    "rtx-4090": (330.3, None), "l4": (242, None), "a100-sxm-80gb": (None, None), "a10g": (None, None),
    "rtx-a6000": (None, None),
}  # fmt: skip
"""TFLOPS of FP8 and FP4 without sparsity, as the makers' sheets say."""


@pytest.mark.parametrize("name", SHEET_RATES)
def test_a_known_gpu_is_made_of_its_name_alone(name: str) -> None:
    made = lolat.fit(name=name)
    assert made.predictors
    sheet = made.language_models.sheet
    for rate, wanted in zip((sheet.fp8_tflops, sheet.fp4_tflops), SHEET_RATES[name], strict=True):
        assert rate == (None if wanted is None else pytest.approx(wanted, rel=0.02))
    (row,) = made.llm("llama-3.1-8b", concurrency=1, tensor_parallel=1).served
    reads = (8.03e9 - 128256 * 4096) * 2 / (1e6 * sheet.bandwidth_gb_s)  # ms, all but the embedding
    assert reads < row.tpot_ms < 2 * reads


def test_a_gpu_without_bfloat16_knows_no_language_models() -> None:
    assert "llm" not in lolat.fit(name="t4").document


def test_served_rows_of_something_else_are_refused() -> None:
    rows, known = served(), section()
    made, words = served_by(known, [*rows, *rows], lambda name: EIGHT)  # a row twice is one
    assert made.served == known.served + len(rows)
    assert re.fullmatch(r"\d+ served rows: .* at the median before, .* now, on rows .*", words)
    # Of all measured times 1.5 times what it predicts, it is off by a third of them.
    late = [dataclasses.replace(row, tpot_ms=row.tpot_ms * 1.5) for row in rows]
    _, words = served_by(known, late, lambda name: EIGHT)
    assert "off by 33 % at the median before" in words
    seconds = [dataclasses.replace(row, tpot_ms=row.tpot_ms / 1e3, ttft_ms=0.0) for row in rows]
    with pytest.raises(InputError, match="expected tpot_ms in ms") as caught:
        served_by(known, seconds, lambda name: EIGHT)
    assert caught.value.code == "served-unlike"

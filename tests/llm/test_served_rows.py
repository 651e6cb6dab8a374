"""Served rows: tables, and what benchmarks of vLLM and SGLang write."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.errors import InputError
from lolat.llm.calibration import timed_of
from lolat.llm.gpu import ServedRow
from lolat.llm.load import Load
from lolat.llm.served_rows import read_served
from lolat.report.evaluation import table_lines
from lolat.units import between, milliseconds
from tests.llm import known_gpu
from tests.llm.conftest import Write
from tests.llm.served_rows import SERVED, SGLANG, VLLM


def test_the_result_of_vllm(write: Write) -> None:
    for text in (json.dumps(VLLM), json.dumps(VLLM, indent=4)):
        (row,) = read_served(write("vllm.json", text))
        assert row == ServedRow("Qwen/Qwen3-32B", 2000, 500, 50, 34.25, 700.5, 2, requests=200)


def test_the_results_of_sglang(write: Write) -> None:
    text = "".join(json.dumps(one) + "\n" for one in (SGLANG, SGLANG | {"max_concurrency": 21}))
    first, second = read_served(write("sglang.jsonl", text))
    assert first == ServedRow("qwen3-32b", 1024, 256, 16, 26.5, 210.0, 4, requests=64)
    assert second.concurrency == 21
    info = SGLANG["server_info"] | {"ep_size": 4}
    (row,) = read_served(write("experts.jsonl", json.dumps(SGLANG | {"server_info": info})))
    assert row.expert_parallel == 4
    shared = SGLANG | {"dataset_name": "generated-shared-prefix"}
    for known in ({"cached_tokens": 512}, {"server_info": info | {"disable_radix_cache": True}}):
        [row] = read_served(write("shared.jsonl", json.dumps(shared | known)))
        assert row.cached_tokens == known.get("cached_tokens", 0)


def test_a_table_of_served_models(write: Write) -> None:
    rows = "a,,1000,100,8,2,12.5,300,fp8\nb,other,1,1,1,1,1,1,\nb,,1e3,99,4,1,9,,\n"
    # As InferenceMAX measures: all start at once, ten for each concurrent one, lengths from 0.8 to 1.
    of_a, of_b = {"requests": 80, "range_ratio": 0.8}, {"requests": 40, "range_ratio": 0.8}
    assert read_served(write("s.csv", SERVED + rows), "mine") == [
        ServedRow("a", 1000, 100, 8, 12.5, 300.0, 2, dtype="fp8", **of_a),
        ServedRow("b", 1000, 99, 4, 9.0, **of_b),
    ]
    more = SERVED.replace("\n", ",requests,range_ratio\n") + "a,,1000,100,8,2,12.5,300,fp8,0,1\n"
    [steady] = read_served(write("t.csv", more))
    assert (steady.requests, steady.range_ratio) == (0, 1.0)


def test_a_table_of_requests_at_a_rate(write: Write) -> None:
    head = (
        "model,requests_per_s,input_tokens,cached_tokens,distinct_prompts,duration_s,output_tokens,"
        "tensor_parallel,ttft_mean_ms,itl_mean_ms,max_num_batched_tokens,max_num_seqs\n"
    )
    [row] = read_served(write("r.csv", head + "a,2.5,600,592,40,100,200,2,45,14,2048,128\n"))
    assert row == ServedRow(
        "a", 600, 200, 0, 14.0, 45.0, 2, request_rate=2.5, cached_tokens=592, distinct_prompts=40,
        requests=250, max_num_batched_tokens=2048, max_num_seqs=128,
    )  # fmt: skip
    assert (Load.of(row).request_rate, Load.of(row).concurrency) == (2.5, 0)
    assert row.limits(known_gpu.section())[1:] == (128, 2048)
    with pytest.raises(InputError, match="line 2: requests_per_s and concurrency") as caught:
        read_served(
            write("b.csv", f"concurrency,{head}8,a,2.5,600,592,40,100,200,2,45,14,2048,128\n")
        )
    assert caught.value.code == "request-rate"
    with pytest.raises(InputError, match="cached_tokens is '700'; expected at most the 600"):
        read_served(write("w.csv", head + "a,2.5,600,700,40,100,200,2,45,14,2048,128\n"))


def test_benchmarks_at_a_rate_and_without_a_limit(write: Write) -> None:
    text = json.dumps(VLLM | {"max_concurrency": None, "request_rate": 4.0})
    [row] = read_served(write("rate.json", text))
    assert (row.request_rate, row.concurrency, row.requests) == (4.0, 0, 200)
    [row] = read_served(write("all.json", json.dumps(VLLM | {"max_concurrency": None})))
    assert (row.request_rate, row.concurrency, row.requests) == (0, 200, 200)


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"completed": 0}, "no request was completed"), ({"mean_tpot_ms": 0}, "tpot_ms is 0"),
        ({"completed": 150, "failed": 50}, "50 of 200 requests failed"),
        ({"mean_tpot_ms": None}, "float"),
        ({"mean_ttft_ms": float("nan")}, "above 0"), ({"mean_tpot_ms": -3}, "above 0"),
        ({"tensor_parallel": "0"}, "above 0"),
        ({"request_rate": 4.0}, "up to 105 at times, so that --max-concurrency 50 held"),
        ({"model_id": ""}, "the model is not in it; expected served_model NAME$"),
        # Tokens of drafts, stages and replicas are not those of one server as it is predicted.
        ({"spec_decode_num_drafts": 900, "spec_decode_acceptance_length": 2.4}, "speculatively"),
        ({"accept_length": 2.1}, "speculatively"), ({"pipeline_parallel_size": "2"}, "is above 1"),
        ({"server_info": {"speculative_algorithm": "EAGLE"}}, "speculatively"),
        ({"draft_tokens": "3"}, "draft_tokens"), ({"num_speculative_tokens": "3"}, "speculatively"),
        ({"speculative_config": {"method": "eagle3"}}, "speculatively"),
        ({"cached_tokens": "2001"}, "at most the 2,000 tokens of the prompt"),
        ({"server_info": {"dp_size": 2}}, "dp_size is above 1"),
        ({"server_info": {"kv_cache_dtype": "fp8_e4m3"}}, "has kv_cache_dtype fp8_e4m3; expected the keys"),
        ({"server_info": {"quantization": "fp8"}, "dtype": "fp8"}, "has quantization fp8"),
        ({"request_rate": 4.0, "max_concurrency": None, "burstiness": 0.25}, "burstiness 0.25"),
        ({"server_info": {"disable_cuda_graph": True}}, "disable_cuda_graph True"),
        ({"server_info": {"disaggregation_mode": "decode"}}, "disaggregation_mode decode"),
        ({"enforce_eager": "True"}, "enforce_eager True"),
        ({"server_info": {"chunked_prefill_size": -1}}, "chunked_prefill_size -1"),
        ({"dataset_name": "generated-shared-prefix"}, 'expected a key "cached_tokens"'),
        ({"total_input_vision_tokens": 2956}, "total_input_vision_tokens 2956, which is not predicted"),
    ],
)  # fmt: skip
def test_a_result_that_cannot_be(changes: dict[str, Any], given: str, write: Write) -> None:
    with pytest.raises(InputError, match=given) as caught:
        read_served(write("v.json", json.dumps(VLLM | changes)))
    assert caught.value.code in ("served", "concurrency", "request-rate", "dtype")
    assert "\n" not in str(caught.value)


def test_keys_of_a_result_are_read_as_columns_are(write: Write) -> None:
    """A benchmark's own keys are no news; one that nobody reads is named, and another device's left out."""
    said = list[str]()
    meta = {"attention_data_parallel": "4", "distinct_prompts": "40", "device": "NVIDIA H100",
            "gpu": "H100", "framework": "vLLM", "num_speculative_tokens": "0",
            "enable_prefix_caching": "true"}  # fmt: skip
    [row] = read_served(write("v.json", json.dumps(VLLM | meta)), "h100", "vllm", warn=said.append)
    assert (row.attention_data_parallel, row.distinct_prompts, row.tensor_parallel) == (4, 40, 2)
    assert [one.partition(".json: ")[2] for one in said] == [
        "keys that are not read: enable_prefix_caching, gpu"
    ]
    for name, other in (("device", "a100-sxm"), ("framework", "trtllm")):
        path = write("o.json", json.dumps(VLLM | {name: other}))
        assert not read_served(path, "h100", "vllm", warn=said.append)
        assert f"left out: {name} {other}" in said[-1]
    with pytest.raises(InputError, match="a list of results; expected each run's own file"):
        read_served(write("l.json", json.dumps([VLLM])))


def test_a_result_that_lacks_a_mean_or_is_cut_says_so(write: Write) -> None:
    without = {key: value for key, value in VLLM.items() if key != "mean_tpot_ms"}
    with pytest.raises(InputError, match=r"v\.json: lacks mean_tpot_ms; expected the JSON of"):
        read_served(write("v.json", json.dumps(without)))
    two = json.dumps(SGLANG) + "\n" + json.dumps(SGLANG)[:-9]
    with pytest.raises(InputError, match=r"s\.jsonl: line 2: not JSON"):
        read_served(write("s.jsonl", two))


def test_lengths_that_sglang_draws(write: Write) -> None:
    """Its own draw with numpy: from the range's part of the longest to that, 0 by default."""
    rng, longest = np.random.default_rng(3), np.array([2048, 512])
    for ratio in (0.0, 0.5):
        lengths = rng.integers(np.maximum(ratio * longest, 1), longest + 1, (4000, 2))
        inputs, outputs = lengths.sum(0).tolist()
        totals = {"total_input_tokens": inputs, "total_output_tokens": outputs}
        asked = {"completed": 4000, "dataset_name": "random", "random_range_ratio": ratio}
        said = list[str]()
        [row] = read_served(write("s.json", json.dumps(SGLANG | asked | totals)), warn=said.append)
        assert not said
        assert (row.input_tokens, row.output_tokens) == pytest.approx(longest, rel=0.03)
        found = Load.of(row).drawn(16, 0.0)
        for mine, own in zip((found.inputs, found.outputs), lengths.T, strict=True):
            shares = np.linspace(0.0, 1.0, 11)
            near = pytest.approx(np.quantile(own, shares), abs=0.04 * own.max())
            assert np.quantile(mine, shares) == near


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"input_lens": [0, 500, 3500], "output_lens": [500, 500, 480]}, "input_lens from 500 to 3,500"),
        ({"dataset_name": "sharegpt", "random_range_ratio": 0.0}, "dataset_name sharegpt"),
    ],
)  # fmt: skip
def test_lengths_that_are_not_known_are_told(
    changes: dict[str, Any], told: str, write: Write
) -> None:
    said = list[str]()
    [row] = read_served(write("v.json", json.dumps(VLLM | changes)), warn=said.append)
    assert [one.partition("mean: ")[2] for one in said] == [told]
    assert (row.input_tokens, row.output_tokens, row.range_ratio) == (2000, 500, 1.0)


def test_lengths_one_by_one_are_simulated_in_their_order(write: Write) -> None:
    """One request after the other: the means are those of both lengths, each alone; a failed one has no
    answer.
    """
    config = write("config.json", json.dumps(known_gpu.LARGE))
    saved = {
        "input_lens": [200, 999, *[7800, 200] * 20, 7800], "output_lens": [30, 0, *[400, 30] * 20, 400],
        "completed": 42, "total_input_tokens": 21 * 8000, "total_output_tokens": 21 * 430,
    }  # fmt: skip
    said = list[str]()
    alone = {"model": str(config), "max_concurrency": 1, "dataset_name": "sharegpt"}
    path = write("v.json", json.dumps(VLLM | saved | alone))
    [row] = read_served(path, warn=said.append)
    assert not said
    assert (row.input_tokens, row.output_tokens) == (4000, 215)
    drawn = Load.of(row).drawn(1, 0.0)
    assert drawn.inputs.tolist() == [200, 7800] * 21
    of_group = Load.of(replace(row, attention_data_parallel=2)).drawn(1, 0.0)
    assert of_group.inputs.tolist() == [200] * 21
    alone = replace(row, lengths=())
    each = [replace(alone, input_tokens=n, output_tokens=m) for n, m in ((200, 30), (7800, 400))]
    overheads = known_gpu.section().overheads
    tpot, ttft = timed_of(known_gpu.section(), [row, *each]).predicted(overheads)
    assert tpot[0] == pytest.approx(tpot[1:].mean(), rel=0.01)
    assert ttft[0] == pytest.approx(ttft[1:].mean(), rel=0.01)


def test_lines_without_a_server_are_told_what_is_missing_and_read_with_it(write: Write) -> None:
    bare = {key: value for key, value in SGLANG.items() if key != "server_info"}
    path = write("s.json", json.dumps(bare))
    silent = r"GPUs and the model are not in it; expected (.*), or a run"
    with pytest.raises(InputError, match=silent) as no:
        read_served(path)
    assert "tensor_parallel N and served_model NAME" in str(no.value)
    [row] = read_served(path, tensor_parallel=4, served_model="qwen3-32b")
    [same] = read_served(write("t.json", json.dumps(SGLANG)))
    assert row == same
    gpu = write("gpu.json", json.dumps(known_gpu.document()))
    given = {"tensor_parallel": 4, "served_model": "qwen3-32b"}
    assert lolat.fit([gpu, path], **given).language_models.own == (row,)
    [found] = lolat.load(gpu).evaluate_table(path, **given).compared
    assert found.timed.name == "qwen3-32b"
    with pytest.raises(
        InputError, match="served_model: every serving measurement says its own model"
    ):
        lolat.load(gpu).evaluate_table(write("t.json", json.dumps(SGLANG)), served_model="qwen3-8b")


def test_a_server_that_was_overloaded_is_told(write: Write) -> None:
    """A server of deterministic speed: requests come evenly at a rate, each leaves 1 / speed after the one
    before it, and the last one's 499 tokens take 34.25 ms each.
    """
    for rate, speed, done, is_told in (
        (2.0, 2.5, 200, False), (2.0, 1.9, 200, False), (4.0, 2.5, 200, True), (8.0, 9.0, 1000, False),
        (8.0, 3.0, 1000, True),
    ):  # fmt: skip
        seconds = max(done / rate, done / speed) + 499 * 0.03425
        run = {"request_rate": rate, "completed": done, "num_prompts": done, "max_concurrency": None,
               "total_input_tokens": 2000 * done, "total_output_tokens": 500 * done,
               "duration": seconds, "request_throughput": done / seconds}  # fmt: skip
        said = list[str]()
        read_served(write("r.json", json.dumps(VLLM | run)), warn=said.append)
        assert [f"only {speed:.2f} were served" in one for one in said] == [True] * is_told


def test_percentiles_are_compared_with_those_of_the_simulated_requests(write: Write) -> None:
    """One request after the other, each alone: P50 and P99 of two lengths are those of each, alone."""
    gpu = lolat.load(write("gpu.json", json.dumps(known_gpu.document())))
    config = str(write("config.json", json.dumps(known_gpu.LARGE)))
    lens = {"input_lens": [*[200] * 30, *[7800] * 10], "output_lens": [100] * 40, "completed": 40}
    tokens = {"total_input_tokens": 84000, "total_output_tokens": 4000}
    times = {"mean_tpot_ms": 9.0, "mean_ttft_ms": 150.0}
    alone = {"model": config, "max_concurrency": 1, "tensor_parallel": 1}
    run = {**VLLM, **lens, **tokens, **times, **alone}
    path = write("v.json", json.dumps(run | {"p99_ttft_ms": 500.0, "median_ttft_ms": 50.0}))
    [found] = gpu.evaluate_table(path).compared
    short, long = (gpu.llm(config, n, 100, 1, 1).chosen.ttft_ms for n in (200, 7800))
    for name, measured, alone in (("median_ttft_ms", 50.0, short), ("p99_ttft_ms", 500.0, long)):
        assert found.further_errors[name] == pytest.approx(alone / measured - 1.0, abs=0.02)
    lines = "\n".join(table_lines(gpu.evaluate_table(path)))
    (line,) = (
        one for one in lines.splitlines() if one.startswith("  P99 first token: 500 ms measured, ")
    )
    ms, off = re.findall(r"([-+.\d]+) (?:ms pred|%)", line)
    assert float(ms) == pytest.approx(long, rel=0.02)
    assert float(off) == pytest.approx(100.0 * (long / 500.0 - 1.0), abs=2.0)
    low, high = found.interval_ms
    time = found.predicted_ms
    both = f"9.00 ms measured, {milliseconds(time)} ({between(low, high, time)}) predicted, "
    assert f"  mean time per output token: {both}" in lines
    told = " ".join(gpu.evaluate_table(path).warnings)
    assert f"assumed: {config} in bfloat16 with cache bfloat16; the keys dtype" in told
    said = list[str]()
    lolat.fit([write("gpu.json", json.dumps(known_gpu.document())), path], warn=said.append)
    (told,) = (one for one in said if one.startswith("percentiles are compared"))
    assert told.endswith(": median_ttft_ms, p99_tpot_ms, p99_ttft_ms")


def test_a_range_of_lengths_is_read_or_refused(write: Write) -> None:
    """Means of 2,000 and 500 tokens are those of a draw from 0.6 of the longest to that."""
    [row] = read_served(write("v.json", json.dumps(VLLM | {"range_ratio": "0.6"})))
    assert (row.input_tokens, row.output_tokens, row.range_ratio) == (2500, 625, 0.6)
    with pytest.raises(InputError, match="range_ratio is 3: expected a number from 0 to 1"):
        read_served(write("v.json", json.dumps(VLLM | {"range_ratio": 3})))


def test_one_limit_of_a_step_alone(write: Write) -> None:
    """The other is the framework's: 8,192 tokens, and on vLLM no more requests than tokens."""
    for info, limits in (
        ({"max_running_requests": 16}, (16, 8192)), ({"chunked_prefill_size": 512}, (2048, 512))
    ):  # fmt: skip
        off = {"disaggregation_mode": "null", "disable_cuda_graph": False}
        info = SGLANG["server_info"] | info | off
        [row] = read_served(write("s.json", json.dumps(SGLANG | {"server_info": info})))
        assert row.limits(known_gpu.section(framework="sglang"))[1:] == limits
    for given, limits in (
        ({}, (1024, 8192)), ({"max_num_seqs": 8}, (8, 8192)), ({"max_num_batched_tokens": 64}, (64, 64))
    ):  # fmt: skip
        [row] = read_served(write("v.json", json.dumps(VLLM | given)))
        assert row.limits(known_gpu.section(framework="vllm"))[1:] == limits


def test_requests_beyond_the_limit_wait(write: Write) -> None:
    """Tokens come as with four requests, and eight of each twelve wait: three times until the first."""
    config = write("config.json", json.dumps(known_gpu.LARGE))
    row = ServedRow(str(config), 512, 256, 4, 9.0, requests=240)
    rows = [row, replace(row, concurrency=12, max_num_seqs=4), replace(row, concurrency=12)]
    timed = timed_of(known_gpu.section(), rows)
    tpot, ttft = timed.predicted(known_gpu.section().overheads)
    assert tpot[1] == pytest.approx(tpot[0], rel=0.02)
    assert tpot[2] > 1.03 * tpot[0]
    assert ttft[1] == pytest.approx(2 * 255 * tpot[0], rel=0.2)


def test_rows_that_do_not_count_are_told(write: Write, tmp_path: Path) -> None:
    text = SERVED.replace("\n", ",batch_size\n") + "".join(
        f"qwen3-8b,other,99,99,{n},1,9,,,{most}\n" for n, most in ((4, 4), (8, 4), (16, 4))
    )
    path, said = write("s.csv", text), list[str]()
    assert len(read_served(path, warn=said.append)) == 1
    assert ["2 rows left out" in one for one in said] == [True]
    model = tmp_path / "gpu.json"
    model.write_text(json.dumps(known_gpu.document()))
    with pytest.raises(InputError, match="no serving measurement is of this device and framework"):
        lolat.fit([model, path])


def test_a_server_with_its_own_data_types_says_them_as_keys(write: Write) -> None:
    info = {"server_info": {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3", "dp_size": 1}}
    text = json.dumps(VLLM | info | {"dtype": "fp8", "kv_dtype": "fp8"})
    [row] = read_served(write("v.json", text))
    assert row.deployment == (2, 1, 1, "fp8", "fp8")


@pytest.mark.parametrize(
    ("column", "cells", "given"),
    [
        ("dtype", ",1,9,,", "concurrency is empty"), ("dtype", "4,,9,,", "tensor_parallel is empty"),
        ("pipeline_parallel", "4,1,9,,2", "pipeline_parallel is '2'"),
        ("dp_size", "4,1,9,,2", "dp_size is '2'"),
    ],
)  # fmt: skip
def test_a_row_of_another_load_or_split_is_named(
    column: str, cells: str, given: str, write: Write
) -> None:
    path = write("s.csv", SERVED.replace("dtype", column) + f"qwen3-8b,,99,99,{cells}\n")
    with pytest.raises(InputError, match=f"line 2: {given}"):
        read_served(path)


def test_the_number_of_gpus_is_an_option(write: Write, tmp_path: Path) -> None:
    """The option is for files and rows without the number."""
    silent = {key: value for key, value in VLLM.items() if key != "tensor_parallel"}
    table = write("s.csv", SERVED.replace("tensor_parallel,", "") + "qwen3-8b,,99,99,4,9,,\n")
    two, none = write("two.json", json.dumps(VLLM)), write("none.json", json.dumps(silent))
    assert [read_served(p, tensor_parallel=4)[0].tensor_parallel for p in (two, none, table)] == [
        2, 4, 4
    ]  # fmt: skip
    for path in (none, table):
        with pytest.raises(InputError, match="tensor_parallel") as caught:
            read_served(path)
        words = caught.value.worded(lambda _: "--tensor-parallel")
        assert path == table or "--tensor-parallel N" in words
    eight = write("eight.json", json.dumps(silent | {"max_concurrency": 8}))
    model = tmp_path / "gpu.json"
    model.write_text(json.dumps(known_gpu.document()))
    made = lolat.fit([model, none, eight], tensor_parallel=(4, 2))
    rows = made.language_models.own
    assert {(row.concurrency, row.tensor_parallel) for row in rows} == {(50, 4), (8, 2)}
    with pytest.raises(InputError, match="says its own number"):
        lolat.load(model).evaluate_table(two, tensor_parallel=4)
    for tables, number in (([model], 4), ([model, none], 0), ([model, none, eight], (1, 2, 4))):
        with pytest.raises(InputError) as caught:
            lolat.fit(tables, tensor_parallel=number)
        assert caught.value.code == "tensor-parallel"


def test_every_line_of_a_result_is_compared(write: Write, tmp_path: Path) -> None:
    """As one file, as several, and as the table that `evaluate --predictions` writes."""
    (tmp_path / "gpu.json").write_text(json.dumps(known_gpu.document()))
    model, loads = lolat.load(tmp_path / "gpu.json"), (1, 8, 16)
    lines = [json.dumps(VLLM | {"max_concurrency": n}) for n in loads]
    files = [write(f"{n}.json", line) for n, line in zip(loads, lines, strict=True)]
    together = write("all.jsonl", "\n".join([*lines, lines[0]]))
    for asked in (together, files):
        found = model.evaluate_table(asked)
        assert [float(row["concurrency"]) for row in found.rows()] == [*loads]
        assert any("1 of 4 rows are copies" in one for one in found.warnings) == (asked == together)
    again = model.evaluate_table(write("table.csv", found.to_csv()))
    for one, same in zip(found.compared, again.compared, strict=True):
        assert same.predicted_ms == pytest.approx(one.predicted_ms)
        assert one.first_error == pytest.approx(one.more["predicted_ttft_ms"] / 700.5 - 1)


@pytest.mark.parametrize(
    ("result", "framework", "told"),
    [
        (VLLM, "vllm", ""), (SGLANG, "sglang", ""), (VLLM | {"backend": "openai"}, "sglang", ""),
        (VLLM, "sglang", "a benchmark of vLLM"), (SGLANG | {"backend": "vllm"}, "vllm", "of SGLang"),
        (VLLM | {"backend": "tensorrt-llm"}, "vllm", "of TensorRT-LLM"),
        *((VLLM | {"backend": other}, "vllm", f"benchmark of {other}; its times are taken as those of vLLM")
          for other in ("tgi", "lmdeploy", "deepspeed-mii", "scalellm", "llama.cpp")),
        *((VLLM | {"backend": same}, "vllm", "") for same in ("openai-chat", "openai-audio", "vllm-chat")),
    ],
)  # fmt: skip
def test_a_result_of_another_framework_is_told(
    result: dict[str, Any], framework: str, told: str, write: Write
) -> None:
    said = list[str]()
    read_served(write("r.json", json.dumps(result)), "", framework, warn=said.append)
    assert [told in one for one in said] == [True] * bool(told)


def test_a_limit_that_no_load_at_a_rate_reaches(write: Write) -> None:
    """By Little's law 2 requests a second of 17.8 s are 36 at once; with 4 deviations of 6, 60."""
    for most, at_rate in ((64, 2.0), (256, 2.0), (64, 0.5)):
        text = json.dumps(VLLM | {"max_concurrency": most, "request_rate": at_rate})
        [row] = read_served(write("r.json", text))
        assert (row.request_rate, row.concurrency) == (at_rate, 0)
    runs = [json.dumps(VLLM | {"max_concurrency": n, "request_rate": 2.0}) for n in (64, 48)]
    with pytest.raises(
        InputError,
        match=r"r.jsonl: line 2: .* 36 at once .* 60 at times, so that --max-concurrency 48",
    ):
        read_served(write("r.jsonl", "\n".join(runs)))


def test_an_alias_names_its_remedy(write: Write) -> None:
    alias = VLLM | {"model_id": "our-chat"}
    path = write("a.json", json.dumps(alias))
    with pytest.raises(InputError, match=r"a.json: our-chat: .*; served_model states") as caught:
        read_served(path)
    assert caught.value.code == "decoder"
    [row] = read_served(path, served_model="qwen3-32b")
    [same] = read_served(write("b.json", json.dumps(alias | {"model": "qwen3-32b"})))
    assert row.model == same.model == "qwen3-32b"


def test_rows_of_another_framework_or_card_are_told_and_other_names_of_these_are_not(
    write: Write,
) -> None:
    head = "model,input_tokens,output_tokens,tensor_parallel,tpot_ms,concurrency,framework,device"
    row = "qwen3-8b,1000,200,1,9.0,4"
    names = (
        "vllm 0.11.0,NVIDIA H100 80GB HBM3",
        "vLLM,",
        ",h100-sxm",
        "SGLang,h100-sxm",
        "sglang,",
        "vllm,b200",
    )
    both = [head, *(f"{row},{name}" for name in names)]
    said = list[str]()
    of = {"device": "h100-sxm", "framework": "vllm"}
    found = read_served(write("s.csv", "\n".join(both) + "\n"), **of, warn=said.append)
    assert len(found) == 3
    (told,) = (one for one in said if "left out" in one)
    assert (
        "3 rows left out, of another: framework SGLang (1), framework sglang (1), device b200 (1)"
        in told
    )

"""Reads served rows, configurations with measured times, from a table or from a server's benchmark."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lolat.errors import InputError, arg
from lolat.io.tables import ABOVE_ZERO, device_key, is_table, read_table
from lolat.llm.frameworks import FRAMEWORKS
from lolat.llm.frameworks import USUAL as USUAL_FRAMEWORK
from lolat.llm.gpu import ServedRow
from lolat.units import one_line

SERVED = (
    "expected a table with the columns model, input_tokens, output_tokens, tensor_parallel, tpot_ms, and "
    "concurrency or requests_per_s, and where known ttft_ms, dtype, kv_dtype, expert_parallel, "
    "attention_data_parallel, "
    "cached_tokens, requests, range_ratio; or the JSON of `vllm bench serve --save-result` or of SGLang's "
    "bench_serving"
)
SERVED_COLUMNS = ("model", "input_tokens", "output_tokens", "tensor_parallel")
OTHER_NAMES = {"tpot_ms": "itl_mean_ms", "ttft_ms": "ttft_mean_ms"}
"""Columns of the same means in tables of requests at a rate."""
NUMBERS = (*SERVED_COLUMNS[1:], "tpot_ms", "ttft_ms", "expert_parallel")
MOST = 1e12
USUAL = (None, "", "auto", "bfloat16")
ALONE = ("pipeline_parallel", "pipeline_parallel_size", "pp_size", "data_parallel", "data_parallel_size",
         "dp_size", "pp", "dp", "replicas", "num_replicas")  # fmt: skip
"""Columns of other ways to split a language model or its load, which are not predicted: all must be 1."""
INFERENCEMAX = (10, 0.8)
"""`rounds` and `range_ratio`, as of Framework, of the benchmark that published rows with a date are of."""
MOST_FAILED = 0.01
"""The largest fraction of failed requests: more of them, and fewer run at once than it says."""


def read_served(
    path: str | Path, device: str = "", framework: str = "", tensor_parallel: int | None = None
) -> list[ServedRow]:
    """Read the served rows of a table or of a benchmark's JSON; InputError for anything else.

    `tensor_parallel`: the GPUs of rows that do not state them. Rows of another device or framework are left
    out, and so are rows with fewer requests at once than are there.
    """
    if not is_table(str(path)):
        return [*_of_json(Path(path), tensor_parallel)]
    return [*_of_table(Path(path), {"device": device, "framework": framework}, tensor_parallel)]


def refuse_unused(rows: Sequence[ServedRow], gpus: Collection[int]) -> None:
    """InputError for numbers of `gpus` that no row needed."""
    if rows and gpus and all(row.tensor_parallel not in gpus for row in rows):
        raise InputError(
            f"{arg('tensor_parallel')}: every served row says its own number of GPUs; leave it out"
        )


def _of_table(path: Path, of: Mapping[str, str], parallel: int | None) -> Iterator[ServedRow]:
    framework = FRAMEWORKS.get(of["framework"], FRAMEWORKS[USUAL_FRAMEWORK])
    columns = [name for name in SERVED_COLUMNS if name != "tensor_parallel" or parallel is None]
    for row in read_table(path, columns, expected=SERVED):
        given = ((row.get(column) or name, name) for column, name in of.items() if name)
        others = any(device_key(one) != device_key(name) for one, name in given)
        batch = row.number("batch_size", 1.0, default=MOST)
        rate = row.number("requests_per_s", ABOVE_ZERO, default=0.0)
        usual = 0.0 if rate else batch if row.get("batch_size") else None
        concurrency = row.number("concurrency", 1.0, default=usual)
        groups = max(row.whole("attention_data_parallel", 0, default=1), 1)
        if others or concurrency > batch * groups:
            continue
        for column in ALONE:
            row.number(column, 1.0, 1.0, "1: others are not predicted", default=1.0)
        tpot, ttft = (
            name if row.get(name) else OTHER_NAMES[name] for name in ("tpot_ms", "ttft_ms")
        )
        inputs = row.whole("input_tokens")
        cached = row.whole("cached_tokens", 0, default=0)
        if cached > inputs:
            raise row.wrong("cached_tokens", f"at most the {inputs:,} tokens of the prompt")
        number = int(rate * row.number("duration_s", ABOVE_ZERO, default=0.0))
        rounds, ratio = (
            INFERENCEMAX if row.get("measured") else (framework.rounds, framework.range_ratio)
        )
        number = number or int(rounds * concurrency)
        yield ServedRow(
            row["model"], inputs, row.whole("output_tokens", 2), concurrency,
            row.milliseconds(tpot if row.get(tpot) else "tpot_ms"),
            row.milliseconds(ttft) if row.get(ttft) else 0.0,
            row.whole("tensor_parallel", default=parallel),
            max(row.whole("expert_parallel", 0, default=1), 1),
            row.get("dtype", ""), row.get("kv_dtype", ""), rate, cached,
            row.whole("distinct_prompts", 0, default=0), row.whole("requests", 0, default=number),
            row.number("range_ratio", ABOVE_ZERO, 1.0, default=1.0 if rate else ratio),
            row.whole("max_num_batched_tokens", 0, default=0), row.whole("max_num_seqs", 0, default=0),
            groups, row,
        )  # fmt: skip


def _of_json(path: Path, parallel: int | None) -> Iterator[ServedRow]:
    """Read one object (vLLM), or one from each line (SGLang)."""
    try:
        text = path.read_text("utf-8").strip()
        for found in map(json.loads, text.splitlines() if "\n{" in text else [text]):
            yield _of_benchmark(found, parallel)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"not the result of a server's benchmark ({type(error).__name__}: {one_line(error)})"
        raise InputError(f"{path}: {why}; {SERVED}", code="served") from None
    except InputError as error:
        raise error.reworded(f"{path}: {error.message}") from None


def _of_benchmark(found: Mapping[str, Any], given: int | None) -> ServedRow:
    """Return a benchmark's row; `given`: its GPUs if it does not state them."""
    info, done = found.get("server_info") or {}, found["completed"]
    names = ("tensor_parallel", "tensor_parallel_size", "tp", "tp_size")
    parallel = [int(place[name]) for place in (found, info) for name in names if name in place]
    keys = ("expert_parallel", "expert_parallel_size", "ep_size")
    experts = [int(place[key]) for place in (found, info) for key in keys if key in place]
    parallel += [] if given is None else [given]
    rate = float(found.get("request_rate") or math.inf)
    rate = 0.0 if math.isinf(rate) else rate
    # Without either, all requests start at once.
    concurrency = float(found.get("max_concurrency") or (0.0 if rate else done))
    _check(found, info, parallel, rate and concurrency)
    row = ServedRow(
        str(found.get("model") or found.get("model_id") or info["model_path"]),
        found["total_input_tokens"] / done, found["total_output_tokens"] / done, concurrency,
        float(found["mean_tpot_ms"]), float(found["mean_ttft_ms"]), parallel[0],
        [*experts, 1][0], str(found.get("dtype", "")), str(found.get("kv_dtype", "")),
        rate, float(found.get("cached_tokens") or 0.0), requests=done,
    )  # fmt: skip
    for name in NUMBERS:
        if not 0 < (number := getattr(row, name)) <= MOST:
            raise ValueError(f"{name} is {number:g}: expected a number above 0")
    return row


def _check(
    found: Mapping[str, Any], info: Mapping[str, Any], parallel: list[int], at_most: float
) -> None:
    """Refuse a benchmark that failed, or whose server or load is not predicted.

    `at_most`: the most concurrent requests of a benchmark at a rate, 0 if they were not limited.
    """
    done, failed = found["completed"], found.get("failed") or 0
    split = [name for name in ALONE for place in (found, info) if int(place.get(name) or 1) > 1]
    drafts = found.get("spec_decode_num_drafts") or info.get("speculative_algorithm")
    drafts = drafts or (found.get("accept_length") or 1.0) > 1.0
    options = ("quantization", "kv_cache_dtype")
    dtypes = [f"{name} {info[name]}" for name in options if info.get(name) not in USUAL]
    typed = found.get("dtype") and found.get("kv_dtype")
    for wrong, expected, code in (
        (not done, f"no request was completed, {failed} failed; expected a benchmark that ended well",
         "served"),
        (failed > MOST_FAILED * (done + failed), f"{failed} of {done + failed} requests failed, so that "
         "fewer ran at once than it says; expected a benchmark that ended well", "served"),
        (not parallel, f"the number of GPUs is not in it; expected {arg('tensor_parallel')} N, or a run "
         "with `vllm bench serve --metadata tensor_parallel=N`", "tensor-parallel"),
        (at_most, f"its requests came at a rate, but {at_most:g} at most at once; expected one of "
         "--request-rate and --max-concurrency", "request-rate"),
        (drafts, "its server decodes speculatively; expected a server that does not", "served"),
        (split, f"{', '.join(split)} is above 1; expected a model that is split by tensor_parallel alone, "
         "and one server", "served"),
        (dtypes and not typed, f"its server has {' and '.join(dtypes)}; expected the keys dtype and "
         "kv_dtype too, as `lolat llm` calls them", "dtype"),
    ):  # fmt: skip
        if wrong:
            raise InputError(expected, code=code)

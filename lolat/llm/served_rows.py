"""Reads served rows (configurations with measured times) from a table or from a server's benchmark."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lolat.errors import InputError, arg, argument_code
from lolat.hardware.card_names import device_key, is_one_card
from lolat.io.progress import Warn, nobody
from lolat.io.tables import ABOVE_ZERO, is_table, read_table
from lolat.llm.frameworks import FRAMEWORKS, framework_row
from lolat.llm.gpu import ServedRow
from lolat.llm.names import find_decoder
from lolat.units import digits, one_line, plain, plural

SERVED = (
    "expected a table with the columns model, input_tokens, output_tokens, tensor_parallel, tpot_ms, and "
    "concurrency or requests_per_s, and where known ttft_ms, dtype, kv_dtype, expert_parallel, "
    "attention_data_parallel, cached_tokens, requests, range_ratio; or "
) + (RESULT := "the JSON of `vllm bench serve --save-result` or of SGLang's bench_serving")
SERVED_COLUMNS = ("model", "input_tokens", "output_tokens", "tensor_parallel")
RATE_NAMES = {"tpot_ms": "itl_mean_ms", "ttft_ms": "ttft_mean_ms"}
"""Column of a mean time -> another name of it, in tables of requests at a rate."""
NUMBERS = (*SERVED_COLUMNS[1:], "tpot_ms", "ttft_ms", "expert_parallel", "attention_data_parallel")
GPUS = ("tensor_parallel", "tensor_parallel_size", "tp", "tp_size")
MODEL = ("model", "model_id", "model_path")
EXPERT_KEYS = ("expert_parallel", "expert_parallel_size", "ep_size")
MOST = 1e12
DTYPE_KEYS = ("quantization", "kv_cache_dtype")
DEFAULT_DTYPES = (None, "", "auto", "bfloat16")
ALONE = ("pipeline_parallel", "pipeline_parallel_size", "pp_size", "data_parallel", "data_parallel_size",
         "dp_size", "pp", "dp", "replicas", "num_replicas")  # fmt: skip
"""Columns of parallelism that is not predicted: all values must be 1."""
SEQUENCES = ("max_num_seqs", "max_running_requests")
TOKENS = ("max_num_batched_tokens", "chunked_prefill_size")
DRAFTS = ("draft_tokens", "num_speculative_tokens", "speculative_num_draft_tokens", "speculative_config",
          "speculative_algorithm", "spec_decode_num_drafts")  # fmt: skip
"""Keys of speculative decoding; a row with one of them is refused unless its value is in SWITCHED_OFF."""
UNLIKE = ("disable_cuda_graph", "enforce_eager", "disaggregation_mode", "lora_paths",
          "ramp_up_strategy")  # fmt: skip
"""Keys of servers and loads that are not predicted; refused unless their value is in SWITCHED_OFF."""
SHARED_PREFIX = "generated-shared-prefix"
"""The dataset of SGLang's benchmark whose prompts share prefixes."""
VISION = "total_input_vision_tokens"
"""The key for tokens of images in SGLang's benchmark."""
SWITCHED_OFF = ("", "none", "null", "false", "0", "[]")
INFERENCEMAX = (10, 0.8)
"""`rounds` and `range_ratio` (see Framework) of InferenceMAX, whose published rows have the column
"measured"."""
BENCHMARK_FRAMEWORKS = {
    "vllm": "vLLM", "sglang": "SGLang", "trt": "TensorRT-LLM", "tensorrt": "TensorRT-LLM", "openai": "",
}  # fmt: skip
"""Beginning of a benchmark's `backend` -> the framework's title; "" for a protocol that many frameworks
have."""
AT_ONCE_DEVIATIONS = 4.0
"""A limit of concurrent requests delays none if it is this many standard deviations above their mean."""
PERCENTILE = re.compile(r"(median|p[\d.]+)_(ttft|tpot|e2el)_ms")
"""Matches a benchmark's name of a percentile over requests."""
ARRIVAL_DEVIATIONS = 3.0
"""A run is overloaded if it exceeds the time of its arrivals by more than this many standard deviations."""
READ = {*GPUS, *MODEL, *EXPERT_KEYS, *ALONE, *SEQUENCES, *TOKENS, *DRAFTS, *UNLIKE, *DTYPE_KEYS,
        "attention_data_parallel", "backend", "burstiness", "cached_tokens", "dataset_name", "device",
        "disable_radix_cache", "distinct_prompts", "dtype", "framework", "kv_dtype", "max_concurrency",
        "random_range_ratio", "range_ratio", "request_rate"}  # fmt: skip
"""Keys of a benchmark's JSON that are read, among those whose values may be strings."""
WRITTEN = {"date", "endpoint_type", "label", "tag", "tokenizer_id"}
"""Further keys with strings that benchmarks write themselves; they are ignored without a warning."""
MOST_FAILED = 0.01
"""Largest fraction of failed requests; with more, the real concurrency is below the stated one."""


def read_served(
    path: str | Path, device: str = "", framework: str = "", tensor_parallel: int | None = None,
    warn: Warn = nobody, served_model: str | None = None,
) -> list[ServedRow]:  # fmt: skip
    """Read the served rows of a table or of a benchmark's JSON; InputError for anything else.

    `tensor_parallel`: the GPUs of rows that do not state them; `served_model`: the model of rows that state
    none or an unknown one. Rows of another device or framework are left out. Rows whose `batch_size` is
    below the number of requests are left out with a warning. `warn` is also called for a benchmark of
    another framework, keys that are not read, and an overloaded server.
    """
    path, of = Path(path), {"device": device, "framework": framework}
    reader = _of_table if is_table(str(path)) else _of_json
    rows = reader(path, of, tensor_parallel, served_model, warn)
    return [replace(row, source=path.name) for row in rows]


def refuse_unused(rows: Sequence[ServedRow], gpus: Collection[int], model: str | None) -> None:
    """Raise InputError if the user gave numbers of `gpus`, or a `model`, that no row needs."""
    for name, what, given, used in (
        ("tensor_parallel", "number of GPUs", {*gpus}, {row.tensor_parallel for row in rows}),
        ("served_model", "model", {*filter(None, [model])}, {row.model for row in rows}),
    ):
        if rows and given and not given & used:
            raise InputError(
                f"{arg(name)}: every serving measurement says its own {what}; leave it out",
                code=argument_code(name),
            )


def percentiles(row: ServedRow) -> dict[str, float]:
    """The measured percentiles of a row's times, in ms, by their names in the benchmark."""
    names = [name for name in row.row if PERCENTILE.fullmatch(name)]
    return {name: float(row.row[name]) for name in names if row.row[name]}


def _other(row: Mapping[str, Any], of: Mapping[str, str]) -> str:
    """Words on the device or framework of a row if it is not the one in `of`; "" if it is.

    The name of a framework may end in a version, and a card may have another of its names.
    """
    for column, name in of.items():
        one = str(row.get(column) or name)
        if column == "framework":
            is_own = device_key(one.split()[0] if one.split() else "") == device_key(name)
        else:
            is_own = device_key(one) == device_key(name) or is_one_card(one, name)
        if name and not is_own:
            return f"{column} {plain(one)}"
    return ""


def _of_table(
    path: Path, of: Mapping[str, str], parallel: int | None, model: str | None, warn: Warn
) -> Iterator[ServedRow]:
    framework = framework_row(of["framework"])
    given = {"tensor_parallel": parallel, "model": model}
    columns = [name for name in SERVED_COLUMNS if given.get(name) is None]
    waiting, left_out = 0, dict[str, int]()
    for row in read_table(path, columns, expected=SERVED):
        other = _other(row, of)
        batch = row.number("batch_size", 1.0, default=MOST)
        rate = row.number("requests_per_s", ABOVE_ZERO, default=0.0)
        usual = 0.0 if rate else batch if row.get("batch_size") else None
        concurrency = row.number("concurrency", 1.0, default=usual)
        groups = max(row.whole("attention_data_parallel", 0, default=1), 1)
        if other:
            left_out[other] = left_out.get(other, 0) + 1
            continue
        if concurrency > batch * groups:
            waiting += 1
            continue
        if rate and concurrency:
            raise InputError(
                f"{row.where}: requests_per_s and concurrency: requests a second, or requests at any time; "
                "expected one of them", code="request-rate",
            )  # fmt: skip
        for column in ALONE:
            row.number(column, 1.0, 1.0, "1: others are not predicted", default=1.0)
        tpot, ttft = (
            one if row.get(one) and not row.get(name) else name for name, one in RATE_NAMES.items()
        )  # fmt: skip
        inputs, cached = row.whole("input_tokens"), row.whole("cached_tokens", 0, default=0)
        if cached > inputs:
            raise row.wrong("cached_tokens", f"at most the {inputs:,} tokens of the prompt")
        rounds, ratio = framework.rounds, 1.0 if rate else framework.range_ratio
        if row.get("measured"):
            rounds, ratio = INFERENCEMAX[0], 1.0 if rate else INFERENCEMAX[1]
        number = int(
            rate * row.number("duration_s", ABOVE_ZERO, default=0.0) or rounds * concurrency
        )
        for name in filter(PERCENTILE.fullmatch, row):
            row.number(name, 0.0, default=0.0)
        yield ServedRow(
            row.get("model") or model or "", inputs, row.whole("output_tokens", 2), concurrency,
            row.milliseconds(tpot), ttft_ms=row.milliseconds(ttft) if row.get(ttft) else 0.0,
            tensor_parallel=row.whole("tensor_parallel", default=parallel),
            expert_parallel=max(row.whole("expert_parallel", 0, default=1), 1),
            attention_data_parallel=groups, dtype=row.get("dtype", ""), kv_dtype=row.get("kv_dtype", ""),
            request_rate=rate, requests=row.whole("requests", 0, default=number), cached_tokens=cached,
            distinct_prompts=row.whole("distinct_prompts", 0, default=0),
            range_ratio=row.number("range_ratio", ABOVE_ZERO, 1.0, default=ratio),
            max_num_batched_tokens=row.whole("max_num_batched_tokens", 0, default=0),
            max_num_seqs=row.whole("max_num_seqs", 0, default=0), row=row,
        )  # fmt: skip
    if left_out:
        told = ", ".join(f"{name} ({number})" for name, number in left_out.items())
        warn(f"{path}: {plural(sum(left_out.values()), 'row')} left out, of another: {told}")
    if waiting:
        why = "with a concurrency above batch_size, the most that run at once"
        warn(f"{path}: {plural(waiting, 'row')} left out, {why}")


def _of_json(
    path: Path, of: Mapping[str, str], parallel: int | None, model: str | None, warn: Warn
) -> Iterator[ServedRow]:
    """Read a row from the JSON object of a file (vLLM), or from each of its lines (SGLang)."""
    frameworks, unread, where, framework = set[str](), set[str](), f"{path}", of["framework"]
    try:
        text = path.read_text("utf-8").strip()
        lines = text.splitlines() if "\n{" in text else [text]
        for number, line in enumerate(lines, 1):
            where = f"{path}: line {number}" if len(lines) > 1 else where
            found = json.loads(line)
            if isinstance(found, list):
                raise InputError("a list of results; expected each run's own file", code="served")
            if other := _other(found, of):
                warn(f"{where}: left out: {other}")
                continue
            row = _of_benchmark(found, parallel, model)
            unread |= {n for n, v in found.items() if v and isinstance(v, str)} - READ - WRITTEN
            more = {
                n: f"{ms:.10g}" for n, ms in found.items() if PERCENTILE.fullmatch(n) and ms > 0
            }
            yield replace(row, row=_cells(row) | more)
            frameworks |= {_framework_of(found)} - {""}
            if tower := find_decoder(row.model).tower_remark:
                warn(f"{path}: {tower}")
            if words := ", ".join(() if row.lengths else _varying(found)):
                warn(f"{path}: all requests are taken as long as their mean: {words}")
            if words := _overload_words(found, row):
                warn(f"{where}: {words}")
    except KeyError as error:
        why = f"lacks {error.args[0]}; expected {RESULT}"
        raise InputError(f"{where}: {why}", code="served") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error}); expected {RESULT}", code="served") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = f"not the result of a server's benchmark ({type(error).__name__}: {one_line(error)})"
        raise InputError(f"{where}: {why}; {SERVED}", code="served") from None
    except InputError as error:
        raise error.reworded(f"{where}: {error.message}") from None
    if unread:
        warn(f"{path}: keys that are not read: {', '.join(sorted(unread))}")
    own = FRAMEWORKS[framework].title if framework in FRAMEWORKS else ""
    for other in sorted(frameworks - {own}) if own else ():
        warn(f"{path}: by its keys a benchmark of {other}; its times are taken as those of {own}")


def _framework_of(found: Mapping[str, Any]) -> str:
    """The title of the framework that a benchmark names; "" if it names none."""
    if found.get("framework"):
        return ""  # the row's own word, by which it was left out or not
    if found.get("server_info"):  # of SGLang's server alone
        return "SGLang"
    backend = str(found.get("backend") or "").casefold()
    return next(
        (name for begin, name in BENCHMARK_FRAMEWORKS.items() if backend.startswith(begin)), backend
    )


def _cells(row: ServedRow) -> dict[str, str]:
    """The cells that a row of a benchmark has in a table."""
    own = {n: value for n, value in vars(row).items() if n not in ("row", "source", "lengths")}
    texts = {n: v if isinstance(v, str) else (f"{v:.10g}" if v else "") for n, v in own.items()}
    return {"requests_per_s" if n == "request_rate" else n: text for n, text in texts.items()}


def _overload_words(found: Mapping[str, Any], row: ServedRow) -> str:
    """Remark that requests left more slowly than they came; "" if they did not.

    All requests arrive within about requests / rate seconds, with the standard deviation of a Poisson
    process. The last request's tokens come after that.
    """
    throughput = float(found.get("request_throughput") or 0.0)
    if not row.request_rate or not throughput:
        return ""
    number, tokens_s = row.requests, 1e-3 * (row.output_tokens - 1.0) * row.tpot_ms
    seconds = max(number / throughput - tokens_s, 1e-9)
    if seconds <= number / row.request_rate * (1.0 + ARRIVAL_DEVIATIONS / math.sqrt(number)):
        return ""
    return (
        f"overloaded: requests came at {row.request_rate:g} a second, and only {digits(number / seconds)} "
        f"were served, so that more and more waited: these times describe this burst of {number:,} "
        "requests, not a steady load; measure again at a lower --request-rate"
    )


def _of_benchmark(found: Mapping[str, Any], gpus: int | None, model: str | None) -> ServedRow:
    """A benchmark's row; `gpus`: the number if the benchmark has none; `model`: the model if it has none,
    or an unknown one.
    """
    every = {**(found.get("server_info") or {}), "dtype": "", **found}
    done, rate = every["completed"], float(every.get("request_rate") or math.inf)
    rate = 0.0 if math.isinf(rate) else rate
    parallel = next((int(every[name]) for name in GPUS if name in every), gpus)
    own = str(next(filter(None, map(every.get, MODEL)), ""))
    _check(every, parallel, own or model, rate)
    # SGLang draws lengths evenly from this fraction of the longest one to that, so that their mean is
    # (1 + fraction) / 2 of it.
    drawn = every.get("range_ratio", every.get("random_range_ratio") if _is_random(every) else None)
    lengths = _lengths(every)
    ratio = 1.0 if lengths or drawn is None else float(drawn)
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"range_ratio is {ratio:g}: expected a number from 0 to 1")
    longest = 2.0 / (1.0 + ratio) / done
    sequences, tokens = (
        next((int(every[name]) for name in names if every.get(name)), 0)
        for names in (SEQUENCES, TOKENS)
    )
    row = ServedRow(
        _known(own, model),
        every["total_input_tokens"] * longest, every["total_output_tokens"] * longest,
        # Without a rate and a limit, all requests start at once.
        0.0 if rate else float(every.get("max_concurrency") or done),
        float(every["mean_tpot_ms"]), float(every["mean_ttft_ms"]), tensor_parallel=parallel or 0,
        expert_parallel=next((int(every[name]) for name in EXPERT_KEYS if name in every), 1),
        attention_data_parallel=int(every.get("attention_data_parallel") or 1),
        distinct_prompts=int(every.get("distinct_prompts") or 0),
        dtype=str(every["dtype"]), kv_dtype=str(every.get("kv_dtype", "")), request_rate=rate,
        cached_tokens=float(every.get("cached_tokens") or 0.0), requests=done,
        range_ratio=max(ratio, 1e-6), max_num_batched_tokens=tokens, max_num_seqs=sequences,
        lengths=lengths,
    )  # fmt: skip
    for name in NUMBERS:
        if not 0 < (number := getattr(row, name)) <= MOST:
            raise ValueError(f"{name} is {number:g}: expected a number above 0")
    if row.cached_tokens > row.input_tokens:
        most = f"at most the {row.input_tokens:,.0f} tokens of the prompt"
        raise ValueError(f"cached_tokens is {row.cached_tokens:g}: expected {most}")
    _refuse_capped(row, float(every.get("max_concurrency") or math.inf))
    return row


def _known(own: str, given: str | None) -> str:
    """A benchmark's own model if it is known, else the `given` model; InputError if neither is known."""
    try:
        find_decoder(own or given or "")
    except InputError as error:
        if given is None or not own:
            states = f"{arg('served_model')} states a known name, or the path of a config.json"
            raise error.reworded(f"{error.message}; {states}") from None
        return _known(given, None)
    return own or given or ""


def _refuse_capped(row: ServedRow, most: float) -> None:
    """Raise InputError if a limit of `most` concurrent requests may have delayed requests at a rate.

    The number of concurrent requests follows a Poisson distribution with the mean of Little's law.
    """
    stay_ms = row.ttft_ms + (row.output_tokens - 1.0) * row.tpot_ms
    at_once = 1e-3 * row.request_rate * stay_ms
    if (peak := math.ceil(at_once + AT_ONCE_DEVIATIONS * math.sqrt(at_once))) > most:
        raise InputError(
            f"its requests came at a rate, {at_once:.0f} at once on average and up to {peak:.0f} at times, "
            f"so that --max-concurrency {most:g} held some back; expected one of --request-rate and "
            "--max-concurrency, or a higher --max-concurrency",
            code="request-rate",
        )  # fmt: skip


def _is_random(every: Mapping[str, Any]) -> bool:
    """True if a benchmark's lengths were drawn at random."""
    return str(every.get("dataset_name") or "random").startswith("random")


def _lengths(every: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """(tokens of each completed prompt, tokens of each answer); () if some are unknown, or all equal."""
    pairs = zip(every.get("input_lens") or (), every.get("output_lens") or (), strict=False)
    done = [(int(inputs), int(outputs)) for inputs, outputs in pairs if inputs and outputs]
    differ = len({*done}) > 1 and len(done) == every["completed"]
    return tuple(zip(*done, strict=True)) if differ else ()


def _varying(found: Mapping[str, Any]) -> Iterator[str]:
    """Name the keys that show that a benchmark's requests differ in length, if the lengths are not
    known.
    """
    if not _is_random(found):
        yield f"dataset_name {found['dataset_name']}"
    if {"random_range_ratio", "range_ratio"} & {*found}:
        return
    for name in ("input_lens", "output_lens"):
        lengths = [*filter(None, found.get(name) or [])]
        if lengths and min(lengths) < 0.9 * max(lengths):
            yield f"{name} from {min(lengths):,} to {max(lengths):,}"


def _check(every: Mapping[str, Any], parallel: int | None, model: str | None, rate: float) -> None:
    """Raise InputError for a benchmark that failed, or whose server or load is not predicted."""
    done, failed = every["completed"], every.get("failed") or 0
    split = [name for name in ALONE if int(every.get(name) or 1) > 1]
    drafts = [name for name in DRAFTS if str(every.get(name)).lower() not in SWITCHED_OFF]
    drafts += ["accept_length"] if (every.get("accept_length") or 1.0) > 1.0 else []
    dtypes = [
        f"{name} {every[name]}" for name in DTYPE_KEYS if every.get(name) not in DEFAULT_DTYPES
    ]
    typed = every["dtype"] and every.get("kv_dtype")
    unlike = [name for name in UNLIKE if str(every.get(name)).lower() not in SWITCHED_OFF]
    unlike += [name for name in TOKENS if int(every.get(name) or 0) < 0]  # prompts are not cut
    unlike += [VISION] if every.get(VISION) else []  # the work of a tower is in its times
    burst = float(every.get("burstiness") or 1.0)
    shares = str(every.get("dataset_name")).startswith(SHARED_PREFIX)
    how, name = (
        "with `vllm bench serve --metadata tensor_parallel=N`",
        f"{arg('served_model')} NAME",
    )
    if _framework_of(every) == "SGLang":
        how = "of a newer bench_serving, which saves the key server_info"
    shares &= every.get("cached_tokens") is None and every.get("disable_radix_cache") is not True
    for wrong, expected, code in (
        (not done, f"no request was completed, {failed} failed; expected a benchmark that ended well",
         "served"),
        (failed > MOST_FAILED * (done + failed), f"{failed} of {done + failed} requests failed, so that "
         "fewer ran at once than it says; expected a benchmark that ended well", "served"),
        (parallel is None, f"the number of GPUs {'is' if model else 'and the model are'} not in it; "
         f"expected {arg('tensor_parallel')} N{'' if model else f' and {name}'}, or a run {how}",
         "tensor-parallel"),
        (not model, f"the model is not in it; expected {name}", "served"),
        (rate and burst != 1.0, f"its requests came with burstiness {burst:g}; expected 1: others are not "
         "predicted", "served"),
        (unlike, f"it has {', '.join(f'{name} {every[name]}' for name in unlike)}, which is not predicted; "
         "expected a benchmark without", "served"),
        (shares, f"its prompts share a prefix ({SHARED_PREFIX}), and the cache's part is not told; "
         'expected a key "cached_tokens", the mean for a prompt, or a server with --disable-radix-cache',
         "served"),
        (drafts, f"its server decodes speculatively ({', '.join(drafts)}); expected a server that does not",
         "served"),
        (split, f"{', '.join(split)} is above 1; expected a model that is split by tensor_parallel alone, "
         "and one server", "served"),
        (dtypes and not typed, f"its server has {' and '.join(dtypes)}; expected the keys dtype and "
         "kv_dtype too, as `lolat llm` calls them", "dtype"),
    ):  # fmt: skip
        if wrong:
            raise InputError(expected, code=code)

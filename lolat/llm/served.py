"""Reads served rows, configurations with measured times, from a table or from a server's benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lolat.errors import InputError, arg
from lolat.io.tables import is_table, read_table
from lolat.llm.gpu import OwnRow
from lolat.units import one_line

SERVED = (
    "expected a table with the columns model, input_tokens, output_tokens, concurrency, tensor_parallel, "
    "tpot_ms, and where known ttft_ms, dtype, kv_dtype, expert_parallel; or the JSON of `vllm bench serve "
    "--save-result` or of SGLang's bench_serving"
)
SERVED_COLUMNS = (
    "model",
    "input_tokens",
    "output_tokens",
    "concurrency",
    "tensor_parallel",
    "tpot_ms",
)
NUMBERS = (*SERVED_COLUMNS[1:], "ttft_ms", "expert_parallel")
MOST = 1e12
USUAL = (None, "", "auto", "bfloat16")
ALONE = ("pipeline_parallel", "pipeline_parallel_size", "pp_size", "data_parallel", "data_parallel_size",
         "dp_size", "pp", "dp", "replicas", "num_replicas")  # fmt: skip
"""Columns of other ways to split a language model or its load, which are not predicted: all must be 1."""
MOST_FAILED, ROUNDS = 0.01, 3
"""The largest fraction of failed requests, and the fewest requests for each concurrent one: the first ones
start at once, so fewer are no steady load."""


@dataclass(frozen=True)
class ServedRow:
    """A served configuration with its times; `ttft_ms`: 0 if unknown; `row`: its row in a table."""

    model: str
    input_tokens: float
    output_tokens: float
    concurrency: float
    tpot_ms: float
    ttft_ms: float = 0.0
    tensor_parallel: int = 1
    expert_parallel: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    row: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def own(self) -> OwnRow:
        """All fields but `row`, as a device file keeps them."""
        return (
            self.model, float(self.input_tokens), float(self.output_tokens), float(self.concurrency),
            float(self.tpot_ms), float(self.ttft_ms), *self.deployment,
        )  # fmt: skip

    @property
    def deployment(self) -> tuple[int, int, str, str]:
        """The split and the data types, as `deployment_of` takes them."""
        return self.tensor_parallel, self.expert_parallel, self.dtype, self.kv_dtype


def read_served(
    path: str | Path, device: str = "", framework: str = "", tensor_parallel: int | None = None
) -> list[ServedRow]:
    """Read the served rows of a table or of a benchmark's JSON; InputError for anything else.

    `tensor_parallel`: the GPUs of rows that do not state them. Rows of another device or framework, and
    rows with data-parallel attention (more requests than a group's batch), are left out.
    """
    if not is_table(str(path)):
        return [*_of_json(Path(path), tensor_parallel)]
    return [*_of_table(Path(path), {"device": device, "framework": framework}, tensor_parallel)]


def _of_table(path: Path, of: Mapping[str, str], parallel: int | None) -> Iterator[ServedRow]:
    columns = [name for name in SERVED_COLUMNS if name != "tensor_parallel" or parallel is None]
    for row in read_table(path, columns, expected=SERVED):
        others = any(row.get(column) not in (None, "", name) for column, name in of.items() if name)
        batch = row.number("batch_size", 1.0, default=MOST)
        usual = batch if row.get("batch_size") else None
        concurrency = row.number("concurrency", 1.0, default=usual)
        attention = row.number("attention_data_parallel", default=1.0)
        if others or concurrency > batch or attention > 1.0:
            continue
        for column in ALONE:
            row.number(column, 1.0, 1.0, "1: others are not predicted", default=1.0)
        yield ServedRow(
            row["model"], row.whole("input_tokens"), row.whole("output_tokens", 2), concurrency,
            row.milliseconds("tpot_ms"), row.milliseconds("ttft_ms") if row.get("ttft_ms") else 0.0,
            row.whole("tensor_parallel", default=parallel),
            max(row.whole("expert_parallel", 0, default=1), 1),
            row.get("dtype", ""), row.get("kv_dtype", ""), row,
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
        raise InputError(f"{path}: {error}", code=error.code) from None


def _of_benchmark(found: Mapping[str, Any], given: int | None) -> ServedRow:
    """Return a benchmark's row; `given`: its GPUs if it does not state them."""
    info, done = found.get("server_info") or {}, found["completed"]
    names = ("tensor_parallel", "tensor_parallel_size", "tp", "tp_size")
    parallel = [int(place[name]) for place in (found, info) for name in names if name in place]
    keys = ("expert_parallel", "expert_parallel_size", "ep_size")
    experts = [int(place[key]) for place in (found, info) for key in keys if key in place]
    parallel += [] if given is None else [given]
    concurrency = float(found.get("max_concurrency") or 0.0)
    _check(found, info, parallel, concurrency)
    row = ServedRow(
        str(found.get("model") or found.get("model_id") or info["model_path"]),
        found["total_input_tokens"] / done, found["total_output_tokens"] / done, concurrency,
        float(found["mean_tpot_ms"]), float(found["mean_ttft_ms"]), parallel[0],
        [*experts, 1][0], str(found.get("dtype", "")), str(found.get("kv_dtype", "")),
    )  # fmt: skip
    for name in NUMBERS:
        if not 0 < (number := getattr(row, name)) <= MOST:
            raise ValueError(f"{name} is {number:g}: expected a number above 0")
    return row


def _check(
    found: Mapping[str, Any], info: Mapping[str, Any], parallel: list[int], concurrency: float
) -> None:
    """Refuse a benchmark that failed, had no steady load, or whose server is not predicted."""
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
        (str(found.get("request_rate", "inf")) not in ("inf", "Infinity"), "its requests came at a rate; "
         "expected a steady load: a run with --max-concurrency N and no --request-rate", "request-rate"),
        (drafts, "its server decodes speculatively; expected a server that does not", "served"),
        (split, f"{', '.join(split)} is above 1; expected a model that is split by tensor_parallel alone, "
         "and one server", "served"),
        (dtypes and not typed, f"its server has {' and '.join(dtypes)}; expected the keys dtype and "
         "kv_dtype too, as `lolat llm` calls them", "dtype"),
        (not concurrency, "all its requests start at once; expected a steady load: a run with "
         "--max-concurrency N", "concurrency"),
        (done < ROUNDS * concurrency, f"{done} requests, {concurrency:g} at once: too many of them start "
         f"at once for a steady load; expected {ROUNDS * concurrency:g} requests or more (--num-prompts)",
         "concurrency"),
    ):  # fmt: skip
        if wrong:
            raise InputError(expected, code=code)

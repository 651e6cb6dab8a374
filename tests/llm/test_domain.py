"""Intervals outside of what was served or timed are wider, and told."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lolat.api.model import Model
from lolat.errors import AnswerIsNo
from lolat.llm.domain import BETWEEN_GB_S, DOUBLING, MOST_SERVED, UNTIMED, half_widths
from lolat.llm.gpu import OWN_FITS, FrameworkFit, ServedRow, section_of
from lolat.units import percent
from tests.llm.known_gpu import LARGE, LLAMA, MIXTURE, SHEET, document, operation, section


def row(asked: dict[str, Any], config: Any = LLAMA, **changes: Any) -> tuple[Any, str]:
    """(the one row, all remarks)."""
    answer = Model(document(section(**changes))).llm(config, **{"tensor_parallel": 1, **asked})
    [found] = answer.served
    return found, "\n".join(answer.warnings)


def ends(row: Any) -> tuple[float, float]:
    """Logarithms of the ends of the interval, of the time per output token."""
    low, high = row.tpot_interval_ms
    return math.log(low / row.tpot_ms), math.log(high / row.tpot_ms)


def test_inside_the_interval_is_that_of_the_served_rows() -> None:
    found, said = row({"concurrency": 512, "input_tokens": 4000, "output_tokens": 100})
    assert ends(found) == pytest.approx((-0.2, 0.2))
    assert (found.in_domain, "extrapolating" in said) == (True, False)
    assert found.extrapolated == ()


@pytest.mark.parametrize(
    ("asked", "doublings"),  # of tokens
    [
        ({"concurrency": 2048, "input_tokens": 100, "output_tokens": 100}, 0.0),
        ({"concurrency": 8, "input_tokens": 32768, "output_tokens": 100}, 2.0),
        ({"concurrency": 1024, "input_tokens": 16384, "output_tokens": 16384}, 2.0),
        # No more than memory holds run at once.
        ({"concurrency": 10**6, "input_tokens": 8000, "output_tokens": 100}, 0.0),
    ],
)
def test_a_load_that_nobody_served_is_outside(asked: dict[str, Any], doublings: float) -> None:
    config = {**LLAMA, "max_position_embeddings": 10**6}
    found, said = row(asked, config)
    at_once = min(asked["concurrency"], found.largest_concurrency, 1024)  # vLLM's limit
    doublings += max(math.log2(at_once / MOST_SERVED["requests at once"]), 0.0)
    assert doublings >= 1.0
    off = math.hypot(0.2, DOUBLING * doublings)
    assert ends(found) == pytest.approx((-off, off))
    assert found.in_domain is False
    assert "1 row extrapolating: outside what was served on any GPU" in said
    assert [
        why.startswith("no serving measurement had more than ") for why in found.extrapolated
    ] == [True]


def test_gpus_of_several_machines_may_be_linked_as_machines_are() -> None:
    """All-reduces of 16 GPUs at up to 400 GB/s in a node of 8, or at what links machines."""
    config = {**LARGE, "num_attention_heads": 32, "num_key_value_heads": 16}
    found, said = row({"concurrency": 8, "tensor_parallel": 16}, config)
    assert found.breakdown is not None
    low, high = ends(found)
    reduced = found.breakdown["all_reduce"] / found.tpot_ms
    most = math.exp(0.2) * (1.0 + (SHEET.link_gb_s / BETWEEN_GB_S - 1.0) * reduced)
    assert low == pytest.approx(-0.2)
    assert 1.2 < math.exp(high) < 1.1 * most
    assert (found.in_domain, "more GPUs than the 8 of a node" in said) == (False, True)
    assert found.extrapolated == ("more GPUs than a node has",)
    within, _ = row({"concurrency": 8, "tensor_parallel": 8}, config)
    assert (ends(within)[1], within.in_domain) == (pytest.approx(0.2), True)


def test_an_operation_that_was_not_timed_widens_by_its_share() -> None:
    operations = {name: dict(dtypes) for name, dtypes in section().operations.items()}
    like = msgspec.structs.replace(operation("gemm", "bfloat16"), like="other", rows=0)
    operations["gemm"]["bfloat16"] = like
    found, _ = row({"concurrency": 8}, LARGE, operations=operations)
    usual, _ = row({"concurrency": 8}, LARGE)
    assert (found.in_domain, usual.in_domain) == (False, True)
    share = math.sqrt(ends(found)[1] ** 2 - 0.2**2) / UNTIMED
    token, first = found.extrapolated
    assert (
        token == f"{percent(share)} of the time per token: gemm in bfloat16, not timed on this GPU"
    )
    assert first.endswith(" of the first token: gemm in bfloat16, not timed on this GPU")
    high = ends(found)[1]
    assert math.hypot(0.2, 0.5 * UNTIMED) < high < math.hypot(0.2, UNTIMED)
    # Weights of 4 bits were timed nowhere: their products are those of bfloat16.
    four, said = row({"concurrency": 8, "dtype": "int4_wo"}, LARGE)
    assert (four.in_domain, "its products in bfloat16" in said) == (False, True)
    assert ends(four)[1] > 0.21


def test_a_table_is_compared_with_the_same_interval(tmp_path: Path) -> None:
    """One way to predict: inside and outside, at a rate that is kept and one that is not."""
    (tmp_path / "net.json").write_text(json.dumps(LARGE))
    table = tmp_path / "served.csv"
    loads = [(8, "", 1000, 1, ""), ("", 2, 1000, 1, ""), ("", 500, 9000, 1, ""), (8, "", 1000, 16, "fp8"),
             (4, "", 32000, 1, "int4_wo")]  # fmt: skip
    lines = [f"{tmp_path}/net.json,{n},100,{c},{r},{t},9,{d},0,1" for c, r, n, t, d in loads]
    head = (
        "model,input_tokens,output_tokens,concurrency,requests_per_s,tensor_parallel,tpot_ms,dtype"
    )
    head += ",requests,range_ratio"  # a steady load of equal lengths, as `llm` answers
    table.write_text("\n".join([head, *lines]))
    model = Model(document(section(kinds=("experts",))))
    rows = model.evaluate_table(str(table)).rows()
    for seen, (requests, rate, tokens, parallel, dtype) in zip(rows, loads, strict=True):
        load: Any = {"request_rate": rate, "gpus": 1} if rate else {"concurrency": requests}
        try:
            more = {"tensor_parallel": parallel, "dtype": dtype, **load}
            found = model.llm(LARGE, tokens, 100, **more).to_dict()
        except AnswerIsNo as no:
            found = no.answer or {}
        [asked] = found["rows"]
        assert asked["saturated"] == (rate > 100 if rate else None)
        assert seen["interval_ms"] == pytest.approx(asked["tpot_interval_ms"])


@pytest.mark.parametrize("config", [LLAMA, MIXTURE])
def test_percentiles_have_intervals_of_their_own(config: dict[str, Any]) -> None:
    """The errors of rows left out, by hand: P99 of the first token is known worst, with experts most; a
    third of the way from P90 to P99 has a third of its error.
    """
    ask = {"request_rate": 0.05, "input_tokens": 1000, "output_tokens": 100, "percentile": 93}
    found, _ = row(ask, config, kinds=())
    assert found.intervals_ms is not None
    means = {"tpot": 0.17, "ttft": 0.5}  # at a rate
    tails = {"tpot": (0.12, 0.12), "ttft": (0.3, 0.3)}
    if config is MIXTURE:
        tails = {"tpot": (0.12, 0.65), "ttft": (1.2, 2.2)}
    for time, (below, above) in tails.items():
        mean = means[time]
        of_99 = math.hypot(mean, below), math.hypot(mean, above)
        of_93 = math.hypot(mean, below / 3.0), math.hypot(mean, above / 3.0)
        offs = {50: (mean, mean), 90: (mean, mean), 93: of_93, 99: of_99}
        for percentile, off in offs.items():
            ms = found.time(time, percentile)
            low, high = found.intervals_ms[f"{time}_p{percentile}"]
            assert (math.log(ms / low), math.log(high / ms)) == pytest.approx(off, abs=0.01)
    low, high = found.intervals_ms["e2e"]  # the first token, and those behind it
    after = found.e2e_ms - found.ttft_ms
    assert low == pytest.approx(found.ttft_ms * math.exp(-0.5) + after * math.exp(-0.17), rel=0.01)
    assert high == pytest.approx(found.ttft_ms * math.exp(0.5) + after * math.exp(0.17), rel=0.01)


@pytest.mark.parametrize(
    ("changes", "rate", "half"),
    [
        ({}, 0.01, 0.17),
        ({}, 9e5, math.hypot(0.25, 0.07)),  # they pile up, twice as many as were ever served
        ({"served": 0}, 0.01, 0.25),
        ({"served": 2}, 0.01, 0.25),
        ({"framework": "sglang"}, 0.01, 0.25),
        ({"framework": "sglang", "spread": (0.3, 0.4)}, 0.01, 0.3),
        ({"spread": (0.1, 0.3)}, 0.01, 0.17),
    ],
)
def test_times_at_a_rate_are_known_better_where_models_were_served(
    changes: dict[str, Any], rate: float, half: float
) -> None:
    ask = {"request_rate": rate, "input_tokens": 4000, "output_tokens": 1000}
    found, _ = row(ask, **changes)
    assert ends(found) == pytest.approx((-half, half), abs=0.01)


SERVING = {
    path.stem: llm
    for path in sorted((Path(__file__).parents[2] / "models").glob("*.json"))
    if (llm := json.loads(path.read_text()).get("llm"))
}
"""The sections of the bundled profiles that serve language models."""


@pytest.mark.parametrize("name", SERVING)
def test_less_evidence_is_never_a_narrower_interval(name: str) -> None:
    """At a rate no profile is surer than vLLM on an H100, of which most rows at a rate were compared; nor
    in a steady load one of which fewer than ten rows of its kind of decoder were.
    """
    compared, one = (section_of(SERVING[n], n) for n in ("h100-vllm", name))
    for kind in ("dense", "experts", *OWN_FITS):
        known = one.of(kind)
        for load in ((True, False), (True, True), (False, False)):
            least, here = half_widths(compared, "dense", *load), half_widths(known, kind, *load)
            is_served = known.served >= 10 and kind in {*known.kinds, *OWN_FITS}
            if load[0] or not is_served:
                assert all(a <= b for a, b in zip(least, here, strict=True)), (kind, load)
            else:  # as its own rows say
                assert here == known.spread


def test_a_slower_server_is_busier_too() -> None:
    """Near the largest rate the ends are those of servers that are faster and slower throughout."""
    ask = {"input_tokens": 1000, "output_tokens": 500}
    idle, _ = row(ask | {"request_rate": 0.01})
    most = idle.largest_rate
    offs = [ends(row(ask | {"request_rate": part * most})[0]) for part in (0.01, 0.5, 0.9)]
    assert offs[0] == pytest.approx((-0.17, 0.17), abs=0.02)
    assert all(a[1] < b[1] for a, b in itertools.pairwise(offs))
    busy, _ = row(ask | {"request_rate": 0.9 * most})
    assert busy.ttft_interval_ms[1] is busy.intervals_ms["e2e"][1] is None  # requests pile up there
    assert busy.token_times(None).first.ends[1] == math.inf
    low, high = busy.largest_rate_interval
    assert low < 0.9 * most < most < high


def test_own_rows_at_a_rate_narrow_the_interval_at_a_rate() -> None:
    """A third of the half width of all rows is a third of it at a rate, by own rows at a rate alone."""
    before = FrameworkFit(overheads=section().overheads, spread=(0.3, 0.4), served=20)
    own = ServedRow("llama-3.1-8b", 500, 200, 0.0, 9.0, tensor_parallel=1, request_rate=4.0)
    at_rate = {"request_rate": 0.002}
    for rows, half in (
        ([own], 0.17 / 3.0),
        ([replace(own, request_rate=0.0, concurrency=4)], 0.17),
    ):
        found, _ = row(at_rate, served=20, spread=(0.1, 0.4), before=before, own=tuple(rows))
        assert ends(found) == pytest.approx((-half, half), abs=0.01)


def test_the_first_token_behind_a_cached_prompt_is_known_as_well_as_the_others() -> None:
    ask = {"request_rate": 5.0, "input_tokens": 1000, "output_tokens": 100}
    for cached, half in ((0, 0.5), (750, 0.3125), (1000, 0.25)):
        found, _ = row({**ask, "cached_tokens": cached})
        assert found.ttft_interval_ms is not None
        low, high = found.ttft_interval_ms
        assert math.log(found.ttft_ms / low) == pytest.approx(half)
        assert math.log(high / found.ttft_ms) == pytest.approx(half)

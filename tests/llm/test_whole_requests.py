"""A limit of the whole request: from its arrival to its last token."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.api.model import Model
from lolat.errors import AnswerIsNo, InputError
from lolat.report.llm import llm_lines
from lolat.report.tables import lines_of
from tests.llm.known_gpu import LARGE, document

pytestmark = pytest.mark.slow  # They simulate loads.

MODEL = Model(document() | {"device": "h100 (vllm)"})
ASK: dict[str, Any] = {"input_tokens": 1000, "output_tokens": 200, "tensor_parallel": 1}


@pytest.mark.parametrize("percentile", [None, 90])
def test_the_fewest_gpus_keep_the_limit_and_surely_if_asked(percentile: int | None) -> None:
    """Each number of replicas is asked alone, at its share of the rate; a share is no simulation of all."""
    ask = ASK | {"percentile": percentile}
    alone = MODEL.llm(LARGE, **ask, request_rate=9.0).chosen
    name = "e2e" if percentile is None else f"e2e_p{percentile}"
    ms, (_, high) = alone.time("e2e", percentile), alone.intervals_ms[name]
    assert ms < high
    for limit, verdict in ((1.01 * high, "yes"), ((ms * high) ** 0.5, "likely")):
        kept = MODEL.llm(LARGE, **ask, request_rate=9.0, max_latency_ms=limit)
        assert (kept.chosen.replicas, kept.chosen.verdicts) == (1, {"e2e": verdict})
        assert f"  {verdict}  " in "\n".join(lines_of(llm_lines(kept)))
    sure = MODEL.llm(
        LARGE, **ask, request_rate=9.0, max_latency_ms=(ms * high) ** 0.5, sure=90
    ).chosen
    assert sure.replicas > 1
    assert sure.intervals_ms[name][1] <= (ms * high) ** 0.5
    more = MODEL.llm(LARGE, **ask, request_rate=9.0, max_latency_ms=0.9 * ms).chosen
    assert more.replicas > 1
    assert more.time("e2e", percentile) <= 0.9 * ms


def test_in_a_steady_load_it_is_the_first_token_and_all_others() -> None:
    """By hand: 200 tokens, of which 199 come after the first."""
    row = MODEL.llm(LARGE, **ASK, concurrency=8).chosen
    whole = row.ttft_ms + 199 * row.tpot_ms
    kept = MODEL.llm(LARGE, **ASK, concurrency=8, max_latency_ms=1.001 * whole).chosen
    assert (kept.within, kept.replicas) == (True, 1)
    with pytest.raises(AnswerIsNo, match=r" a request; nearest: .* times the .* a request"):
        MODEL.llm(LARGE, **ASK, concurrency=1, max_latency_ms=0.3 * whole, gpus=1)


def test_the_certainty_of_no_limit_is_refused_and_this_is_one() -> None:
    assert MODEL.llm(LARGE, **ASK, concurrency=1, max_latency_ms=1e6, sure=90).chosen.within
    with pytest.raises(InputError, match="max_latency_ms too"):
        MODEL.llm(LARGE, **ASK, concurrency=1, gpus=1, sure=90)

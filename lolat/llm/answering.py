"""Answers what a served language model costs: times and dollars by load and GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from lolat.arrays import np
from lolat.device.question import several
from lolat.errors import AnswerIsNo, InputError
from lolat.llm.answer import ServingAnswer, ServingConfig, best_of
from lolat.llm.decoder import Decoder
from lolat.llm.gpu import GPU, ServingSection
from lolat.llm.question import ServingQuestion
from lolat.llm.remarks import remarks_on
from lolat.llm.serving import Deployment, deployment_of, requests_that_fit
from lolat.llm.sizing import Sizing
from lolat.parameters import COVERAGE, MOST_GPUS
from lolat.units import milliseconds, plural

if TYPE_CHECKING:
    from lolat.hardware.prices import Rental


def answer(
    section: ServingSection, device: str, decoder: Decoder, asked: ServingQuestion,
    rental: Rental | None = None, remark: str = "",
) -> ServingAnswer:  # fmt: skip
    """Answer a question about a decoder on a GPU; `remark`: a warning if nothing is rented.

    InputError for an impossible question; AnswerIsNo if no row keeps the limits.
    """
    asked.check(decoder)
    section = section.of(decoder.kind)
    gpu, deployments = GPU(section), deployments_of(section, decoder, asked)
    sizings = {one.tensor_parallel: Sizing(gpu, device, one, asked, rental) for one in deployments}
    rows = [row for one in sizings.values() for row in one.rows()]
    rows.sort(key=lambda row: (row.request_rate or row.concurrency, row.tensor_parallel))
    loads = dict[float | None, list[ServingConfig]]()
    for row in rows:
        loads.setdefault(row.request_rate, []).append(row)
    good = (best_of([r for r in some if r.is_good], asked.is_sure) for some in loads.values())
    bests = [rows.index(row) for row in good if row]
    if asked.has_limits and asked.request_rate:
        for n in bests:
            headroom = sizings[rows[n].tensor_parallel].headroom(rows[n])
            rows[n] = replace(rows[n], headroom_rate=headroom)
    best = best_of([rows[n] for n in bests], asked.is_sure)
    row = best or rows[0]
    remarks = [*remarks_on(sizings[row.tensor_parallel], rows)]
    remarks += [remark] * bool(remark and not rental)
    made = ServingAnswer(
        decoder.name, device, section.framework, decoder.parameters, decoder.active_parameters, COVERAGE,
        asked.max_tpot_ms, asked.max_ttft_ms, tuple(rows), rows.index(best) if best else None,
        rental.prices if rental else None, tuple(remarks), row, asked.percentile, tuple(bests),
    )  # fmt: skip
    if asked.has_limits and best is None:
        raise _no(made, asked)
    return made


def deployments_of(
    section: ServingSection, decoder: Decoder, asked: ServingQuestion
) -> list[Deployment]:
    """Return the deployments asked for; else those on 1, 2, 4, 8 GPUs of a node that hold the weights.

    If none holds the weights: the deployment on the most GPUs that divide the decoder.
    """
    found, refused = list[Deployment](), None
    groups = asked.attention_data_parallel
    most = min(asked.gpus or MOST_GPUS, int(section.sheet.gpus_per_node)) // groups or 1
    more = asked.expert_parallel, asked.dtype, asked.kv_dtype, groups
    for parallel in several(asked.tensor_parallel) or (1 << n for n in range(most.bit_length())):
        try:
            found.append(deployment_of(section, decoder, parallel, *more))
        except InputError as error:
            if asked.tensor_parallel or error.code not in ("tensor-parallel", "expert-parallel"):
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    if asked.tensor_parallel:
        return found
    return [d for d in found if requests_that_fit(section, d, np.ones(1))[0]] or found[-1:]


def _no(made: ServingAnswer, asked: ServingQuestion) -> AnswerIsNo:
    near = min(
        made.served,
        key=lambda r: (not r.fits, r.saturated or False, asked.off(r), r.tpot_ms or math.inf),
    )
    room = "" if near.fits else f", with room for {near.largest_concurrency:,} at once"
    room = f", which serves {near.largest_rate:.3g} requests/s" if near.saturated else room
    room = f"; {made.warnings[0]}" if near.tpot_ms is None else room
    limits = {"per output token": asked.max_tpot_ms, "to the first": asked.max_ttft_ms}
    at = "" if asked.percentile is None else f" at P{asked.percentile}"
    kept = " and ".join(f"{milliseconds(ms)} {what}{at}" for what, ms in limits.items() if ms)
    kept = kept or (f"{asked.loads()[0].request_rate:g} requests/s" if asked.request_rate else "")
    most = asked.gpus or max(MOST_GPUS * bool(asked.request_rate), *(r.gpus for r in made.served))
    gpus = f"of up to {most:,} GPUs"
    if near.tpot_ms is None:  # however many replicas
        gpus = f"on up to {plural(max(r.gpus // r.replicas for r in made.served), 'GPU')} a replica"
    return AnswerIsNo(
        f"no configuration {gpus} keeps "
        f"{kept or 'all requests in memory'}; nearest is {near.words(asked.percentile)}{room}",
        made.to_dict(),
    )

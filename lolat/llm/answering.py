"""Answers a question about serving a language model on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lolat.errors import AnswerIsNo, InputError
from lolat.llm.alternatives import (
    enough_in_other_dtypes,
    in_other_dtypes,
    near_miss,
    probable_rows,
    surely_row,
)
from lolat.llm.answer import ServingAnswer, ServingConfig
from lolat.llm.decoder import Decoder
from lolat.llm.gpu import GPU, ServingSection
from lolat.llm.question import ServingQuestion
from lolat.llm.ranking import best_of, cost_of
from lolat.llm.refusal import Ways, no_row
from lolat.llm.remarks import (
    links_words,
    needed_gpus,
    needed_words,
    own_copies,
    remarks_on,
    replicas_left_out,
    slower_links,
)
from lolat.llm.row_parts import ServedNames, Split
from lolat.llm.sizing import Sizing
from lolat.llm.steps import deployments_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lolat.hardware.rental import Rental

MOST_REPLICATED = 64
"""Most GPUs that are tried for concurrent requests if one node is not enough."""


def answer(
    section: ServingSection, device: str, decoder: Decoder, asked: ServingQuestion,
    rental: Rental | None = None, remark: str = "", label: str = "", profile: str = "",
) -> ServingAnswer:  # fmt: skip
    """Answer a question about a decoder on a GPU. `remark`: a warning if nothing is rented; `label`: the
    device's name in the question; `profile`: the profile's name.

    InputError for an impossible question; AnswerIsNo if no row keeps the limits.
    """
    asked.check(decoder)
    given, section = section, section.of(decoder.kind).usual
    gpu, deployments = GPU(section), deployments_of(section, decoder, asked)
    named = ServedNames(label or device, profile, section.framework, device)
    sizings = {one.split: Sizing(gpu, device, one, asked, rental, named) for one in deployments}
    rows = [row for one in sizings.values() for row in one.rows()]
    full = [one for row in rows if (one := sizings[row.split].full_row(row))]
    if not asked.concurrency:
        rows = [*{id(row): row for row in (*rows, *full)}.values()]
    rows.sort(key=lambda row: (row.load, row.split))
    kept = {row.request_rate for row in rows if row.within}
    never = [row for row in rows if row.request_rate in kept and row.is_hopeless]
    rows = [row for row in rows if row not in never]
    loads = dict[float, list[ServingConfig]]()
    for row in rows:  # with one row a load, only the best load is to choose
        load = row.concurrency if len(sizings) > 1 else 0.0
        loads.setdefault(row.request_rate or load, []).append(row)
    good = (best_of([r for r in some if r.is_good], asked) for some in loads.values())
    bests = [rows.index(row) for row in good if row]
    near, surer = list[ServingConfig](), list[ServingConfig]()
    if asked.has_limits:
        surer = _take_sure_rows(sizings, rows, bests, asked)
    if asked.has_limits and asked.request_rate:
        for n in bests:
            rows[n] = sizings[rows[n].split].with_headroom(rows[n])
        surer = [sizings[row.split].with_headroom(row) for row in surer]
        near += filter(None, (near_miss(sizings, rows, rows[n]) for n in bests))
    here = sizings[rows[0].split]
    others = in_other_dtypes(here, [rows[n] for n in bests], surer)
    best = best_of([rows[n] for n in bests], asked)
    row = best or max(rows, key=lambda row: row.tpot_ms is not None)
    none = next((one for one in rows if not one.largest_concurrency), None)
    missing = "" if rental else remark
    made = ServingAnswer(
        model=decoder.name, **named._asdict(), name=named.device,
        parameters=decoder.parameters, active=decoder.active_parameters, asked=asked,
        served=tuple(rows), best=rows.index(best) if best else None, bests=tuple(bests), chosen=row,
        near=tuple(near), surer=tuple(surer), other_dtypes=others.cheaper,
        probable=probable_rows(sizings, [rows[n] for n in bests], surer),
        surer_other_dtypes=others.surely_cheaper, surer_at_price=others.surer, fuller=_fuller(full, best),
        prices=rental.basis if rental else None, price_list=rental.listed + rental.note if rental else "",
        largest_machine=max((offer.devices for offer in rental.offers), default=0) if rental else 0,
        warnings=(*_remarks(sizings, rows, row, missing), *replicas_left_out(never, asked)),
        needs=needed_words(sizings[none.split]) if none else "",
        remarks_on=partial(_remarks_on_row, sizings, missing),
        find_ways=lambda: _ways(given, asked, rental, sizings[row.split], made),
    )  # fmt: skip
    if asked.has_limits and best is None:
        links, copies = slower_links(sizings.values()), own_copies(sizings[row.split], rows)
        raise no_row(made, asked, links, copies)
    return made


def _fuller(full: Sequence[ServingConfig], best: ServingConfig | None) -> ServingConfig | None:
    """The cheapest of the `full` rows within the limits, if its tokens cost less than those of `best`."""
    most = (best and best.dollars_per_million) or 0.0
    cheaper = [row for row in full if row.is_good and (row.dollars_per_million or most) < most]
    return min(cheaper, key=cost_of, default=None)


def _take_sure_rows(
    sizings: Mapping[Split, Sizing], rows: list[ServingConfig], bests: list[int], asked: ServingQuestion
) -> list[ServingConfig]:  # fmt: skip
    """Replace each best row by the one that surely keeps the limits if it costs little more; return those
    that cost more.
    """
    dearer = list[ServingConfig]()
    for place, n in enumerate(bests):
        if (sure := surely_row(sizings, rows, rows[n])) is None:
            continue
        same = [n for n, one in enumerate(rows) if (one.load, one.split) == (sure.load, sure.split)]
        if same and best_of([rows[n], sure], asked) is sure:
            rows[same[0]], bests[place] = sure, same[0]
        else:
            dearer.append(sure)
    return dearer


def _remarks(
    every: Mapping[Split, Sizing], rows: Sequence[ServingConfig], row: ServingConfig, missing: str
) -> Iterator[str]:
    """Yield the remarks on `rows` and on the chosen `row`; `missing`: the remark if nothing is rented."""
    yield from remarks_on(every, rows, row)
    links = links_words(*slower_links(every.values()))
    yield from filter(None, [links, own_copies(every[row.split], rows), missing])


def _remarks_on_row(
    every: Mapping[Split, Sizing], missing: str, row: ServingConfig
) -> Iterator[str]:
    """Yield the remarks on a row as if the question had asked only for its load and GPUs."""
    sizing, rate = every[row.split], row.request_rate
    number: int | tuple[()] = () if rate else int(row.concurrency)
    alone = replace(
        sizing, asked=replace(sizing.asked, request_rate=rate or (), concurrency=number)
    )
    yield from _remarks({row.split: alone}, [row], row, missing)


def _ways(
    section: ServingSection, asked: ServingQuestion, rental: Rental | None, sizing: Sizing,
    made: ServingAnswer,
) -> Ways:  # fmt: skip
    """The rows that keep the limits on more GPUs, or in another data type, if none of an answer does."""
    ask = partial(answer, section, made.gpu, sizing.deployment.decoder, rental=rental)
    more = None if asked.request_rate else MOST_REPLICATED
    questions = list[ServingQuestion]()
    if asked.has_limits and asked.gpus != more and not (more and (asked.gpus or 0) > more):
        questions = [replace(asked, gpus=more)]
    if made.chosen.tpot_ms is None and (needed := needed_gpus(sizing)):  # as many for a replica
        questions.append(replace(asked, gpus=None, tensor_parallel=needed))
    for question in questions:
        with suppress(AnswerIsNo, InputError):
            if (row := ask(asked=question).compared) and row.tpot_ms:
                return Ways(row, enough_in_other_dtypes(sizing))
    return Ways(None, enough_in_other_dtypes(sizing))

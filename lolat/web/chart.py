"""The chart of a served language model: many loads, by tokens/s per request and tokens/s per GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lolat.api.model import Model
from lolat.arrays import np
from lolat.llm.answer import ServingAnswer, ServingConfig
from lolat.llm.decoder import Decoder
from lolat.llm.load import Trace
from lolat.report.tables import Column, ReportTable
from lolat.units import digits, milliseconds, plain
from lolat.web.cards import Card, Chart, ServingCard
from lolat.web.form import Form

LOADS = tuple(round(2 ** (n / 2)) for n in (0, *range(2, 21)))
"""The numbers of concurrent requests in the chart."""
LINE = 0.06
"""The smallest vertical distance of labels in the chart, as a share of its height."""
MOST_DRAWN = 4
"""The largest number of devices in a chart: more are hard to read and slow to compute."""
NO_LIMITS = dict.fromkeys(
    (
        "max_tpot_ms",
        "min_tokens_per_s",
        "max_ttft_ms",
        "max_latency_ms",
        "gpus",
        "percentile",
        "sure",
    )
)


def is_crowded(form: Form) -> bool:
    """True if there are more devices than a chart can show."""
    return form.is_all or len(form.ticked) > MOST_DRAWN


def loads_of(
    model: Model, decoder: Decoder, asked: dict[str, Any], answer: ServingAnswer
) -> list[ServingConfig]:
    """Rows for many loads, on the requested numbers of GPUs, or on all numbers that hold the model."""
    free = asked | NO_LIMITS | {"request_rate": (), "arrivals": None}
    if isinstance(trace := asked.get("arrivals"), Trace):
        tokens = map(round, trace.mean_tokens)
        free |= dict(zip(("input_tokens", "output_tokens"), tokens, strict=True))
    if not (parallel := asked["tensor_parallel"]):
        usual = model.llm(decoder, **free | {"concurrency": 1})
        parallel = sorted({row.tensor_parallel for row in (*usual.served, *answer.served)})
    every = sorted({*LOADS, *asked["concurrency"]})
    found = model.llm(decoder, **free | {"concurrency": every, "tensor_parallel": parallel})
    return [row for row in found.served if row.fits and row.tpot_ms and row.tokens_per_s_gpu]


def chart(form: Form, question: Mapping[str, Any], cards: Sequence[Card]) -> Chart | None:
    """The chart of all loads and numbers of GPUs; None if nothing is served.

    For too many devices it has no dots.
    """
    if form.view == "llm" and is_crowded(form):
        return Chart(
            crowded=f"More than {MOST_DRAWN} devices are not drawn in one chart: choose fewer."
        )
    served = [card for card in cards if isinstance(card, ServingCard)]
    loads = [(card.device.key, row) for card in served for row in card.loads]
    if not loads:
        return None
    is_one = len({key for key, _ in loads}) == 1

    def name(key: str, row: ServingConfig) -> str:
        return row.gpus_words + row.split_words if is_one else plain(key)

    names = [name(key, row) for key, row in loads]
    colors = [*dict.fromkeys(names)]
    speeds = [(row.tokens_per_s_user or 0.0, row.tokens_per_s_gpu or 0.0) for _, row in loads]
    chosen = [(card.device.key, card.row) for card in served if card.is_compared]
    rings = [(row.tokens_per_s_user, row.tokens_per_s_gpu) for _, row in chosen]
    front: list[int] = []
    for n in sorted(range(len(loads)), key=lambda n: speeds[n], reverse=True):
        if not front or speeds[n][1] > speeds[front[-1]][1]:
            front.append(n)
    logs = np.log(speeds + rings)
    low, high = logs.min(0) - 0.1, logs.max(0) + np.array([0.1, 0.4])  # words above

    def place(speeds: Any) -> list[float]:
        return ((np.log(speeds) - low) / (high - low)).tolist()

    ticks = [n * 10.0**power for power in range(-3, 6) for n in (1, 2, 5)]
    at_percentile = f" at P{p}" if (p := question["percentile"]) else ""
    fewest = question["min_tokens_per_s"] or 1e3 / (question["max_tpot_ms"] or math.inf)
    at = place((fewest, 1.0))[0] if fewest else 0.0
    words = list[tuple[float, float, str]]()
    places = [place(ring) for ring in rings]
    for (x, y), one in sorted(zip(places, chosen, strict=True), key=lambda ring: ring[0][1]):
        words.append((x, max(y, words[-1][1] + LINE) if words else y, name(*one)))
    return Chart(
        dots=[
            (place(speeds[n]), colors.index(names[n]), f"{plain(key)}: {row.load_words}")
            for n, (key, row) in enumerate(loads)
        ],
        colors=colors,
        front=[place(speeds[n]) for n in front],
        rings=places,
        words=words,
        limit=(at, f"{fewest:.3g} tokens/s" + at_percentile) if 0.0 < at < 1.0 else None,
        ticks=[
            [(f"{tick:g}", at) for tick in ticks if 0.0 < (at := place((tick, tick))[axis]) < 1.0]
            for axis in (0, 1)
        ],
        table=_front_table([loads[n] for n in front]),
    )


def _front_table(loads: Sequence[tuple[str, ServingConfig]]) -> str:
    """A table, as HTML, of the configurations on the Pareto front."""
    splits = {row.expert_parallel for _, row in loads} != {1}
    columns = [
        Column("device", lambda load: plain(load[0]), is_text=True),
        Column("GPUs", lambda load: load[1].gpus),
        Column("expert parallel", lambda load: load[1].expert_parallel if splits else None),
        Column("requests", lambda load: load[1].concurrency, "{:,}".format),
        Column("per token", lambda load: load[1].tpot_ms, milliseconds),
        Column("tokens/s a request", lambda load: load[1].tokens_per_s_user, digits),
        Column("tokens/s a GPU", lambda load: load[1].tokens_per_s_gpu, digits),
    ]
    return ReportTable(columns, loads).html("The configurations on the line")

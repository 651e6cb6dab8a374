"""Compares GPUs for one or several language models: the best row of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lolat.device.limits import best_or_sure
from lolat.device.question import ask_each, no_device
from lolat.errors import AnswerIsNo, InputError, in_options
from lolat.hardware.rental import given_list
from lolat.io import results
from lolat.io.progress import OnProgress
from lolat.io.results import Result
from lolat.llm.answer import LIMITS, ServingAnswer, ServingConfig, requests_words
from lolat.llm.names import find_decoders
from lolat.llm.question import ServingQuestion
from lolat.llm.ranking import best_of, cost_of, rank
from lolat.llm.refusal import Refusal, no_room, refusal_of
from lolat.llm.remarks import links_words
from lolat.parameters import check_names
from lolat.units import by_text, dollars, names_in, plural

MOST_TOLD = 4
"""A comparison of at most so many devices shows all rows, headroom and warnings."""
LITTLE_MORE, MUCH_MORE, MORE = 1.1, 1.25, 1.1
"""A row is roomier if it costs at most LITTLE_MORE times the cheapest row and serves MUCH_MORE times its
requests; at the same price, or below it, MORE times is enough."""
OF_SPLITS = frozenset(["tensor-parallel", "expert-parallel", "attention-data-parallel"])
"""Codes of errors that say that a language model in a data type cannot be split as asked."""


@dataclass(frozen=True, repr=False)
class ComparedModels(Result):
    """Language models on devices, under the same load: concurrent requests, or requests at a rate.

    `answers`: a `ServingAnswer` of each device that keeps the limits, with its best row as `chosen`. If
    there are several language models or data types, there is an answer for each of them on each device,
    and its `name`, such as "qwen3-8b on h100-vllm" or "h100-vllm in fp8", stands for the device.
    `cheapest`: the device with the lowest price of a million tokens, None without prices. `fastest`: the
    device with the shortest time per output token, at the percentile asked for. For several loads these
    three belong to the largest load among those that the greatest number of devices serve. `by_load`: the
    best row of each device under each load. `words` describes every load. `left_out`: reasons why other
    devices have no answer, by device, the nearest to the limits first. `surer`, `near`, `other_dtypes`,
    `price_lists`: these fields of the answers, by device. `warnings`: remarks on the rows.

    The limits, `percentile`, `sure` and `coverage` of the question are keys in JSON.
    """

    full: Mapping[str, ServingAnswer]
    """The answers with all their rows."""
    left_out: Mapping[str, str]
    asked: ServingQuestion
    remarks: tuple[str, ...] = ()
    slow_links: tuple[str, ...] = ()
    """Remarks on devices left out because of the links between their GPUs."""
    by_load: Mapping[str, Sequence[ServingConfig]] = field(default_factory=dict)
    KEYS = (*results.nested("asked", *LIMITS), "answers", "cheapest", "fastest", "by_load", "near", "surer",
            "other_dtypes", "price_lists", "left_out", "warnings")  # fmt: skip

    @property
    def answers(self) -> tuple[ServingAnswer, ...]:
        """The answer of each device, with its best row alone."""
        return tuple(self.full.values())

    @property
    def best_rows(self) -> dict[str, ServingConfig]:
        """The best row of each device."""
        return {name: answer.compared for name, answer in self.full.items() if answer.compared}

    @property
    def cheapest(self) -> str | None:
        """The device with the cheapest tokens, by `leaders`; None if no price is known."""
        return self.leaders(self.best_rows)["cheapest"]

    @property
    def fastest(self) -> str | None:
        """The device with the shortest time per output token."""
        return self.leaders(self.best_rows)["fastest"]

    @property
    def loads(self) -> dict[float, dict[str, ServingConfig]]:
        """Each load, with the best row of each device that serves it."""
        loads = dict[float, dict[str, ServingConfig]]()
        for name, rows in (self.by_load or {n: [r] for n, r in self.best_rows.items()}).items():
            for row in rows:
                loads.setdefault(row.load, {})[name] = row
        return dict(sorted(loads.items()))

    @staticmethod
    def priced(rows: Mapping[str, ServingConfig]) -> dict[str, ServingConfig]:
        """The rows with a known price, by device."""
        return {n: row for n, row in rows.items() if row.dollars_per_million is not None}

    def leaders(self, rows: Mapping[str, ServingConfig]) -> dict[str, str | None]:
        """The cheapest and the fastest device of rows under one load; None if there is none."""
        priced, at = self.priced(rows), self.asked.percentile
        cheapest = best_or_sure(
            [*priced], lambda name: self.order(name, priced[name]),
            lambda name: priced[name].is_sure(self.asked), lambda name: cost_of(priced[name]),
        )  # fmt: skip
        ms = {n: row.time("tpot", at) or math.inf for n, row in rows.items()}
        return {"cheapest": cheapest, "fastest": min(ms, key=ms.__getitem__, default=None)}

    def order(self, name: str, row: ServingConfig) -> tuple[Any, ...]:
        """A sort key of a device's row: see `rank`."""
        return rank(row, self.asked, self.full[name].is_rate_unchecked)

    def least_a_month(self, priced: Mapping[str, ServingConfig]) -> str:
        """The device with the lowest price a month; `rank` decides among equal ones."""
        return min(
            priced,
            key=lambda name: (priced[name].dollars_per_hour, self.order(name, priced[name])[1:]),
        )

    def sure_rows(self, rows: Mapping[str, ServingConfig]) -> dict[str, ServingConfig]:
        """The rows of one load whose whole intervals keep the limits, by device; includes `surer` rows."""
        loads = {row.load for row in rows.values()}
        sure = {n: r for n, r in rows.items() if r.is_sure(self.asked)}
        return sure | {n: r for n, more in self.surer.items() for r in more if r.load in loads}

    def roomier(self, rows: Mapping[str, ServingConfig]) -> str | None:
        """The device that serves the most requests a second among those that cost little more than the
        cheapest, under one load; None if no device serves many more.
        """
        best = rows.get(self.leaders(rows)["cheapest"] or "")
        if best is None or not best.headroom_rate or not best.dollars_per_hour:
            return None
        most = LITTLE_MORE * best.dollars_per_hour
        able = {
            name: row.headroom_rate
            for name, row in self.priced(rows).items()
            if (usd := row.dollars_per_hour or math.inf) <= most
            and (row.headroom_rate or 0.0)
            >= (MUCH_MORE if usd > best.dollars_per_hour else MORE) * best.headroom_rate
        }
        return max(able, key=lambda name: able[name] or 0.0, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """The best row of each device under each load."""
        return [
            row.rows()[0] | {"name": name}
            for best in self.loads.values()
            for name, row in best.items()
        ]

    @property
    def near(self) -> dict[str, tuple[ServingConfig, ...]]:
        """Cheaper rows that miss the limits by less than the error, by device."""
        return {name: answer.near for name, answer in self.full.items() if answer.near}

    @property
    def surer(self) -> dict[str, tuple[ServingConfig, ...]]:
        """Rows that surely keep the limits, of devices whose best rows keep them by times alone."""
        return {name: answer.surer for name, answer in self.full.items() if answer.surer}

    @property
    def other_dtypes(self) -> dict[str, tuple[ServingConfig, ...]]:
        """Cheaper rows with weights of another data type, by device."""
        return {
            name: answer.other_dtypes for name, answer in self.full.items() if answer.other_dtypes
        }

    @property
    def price_lists(self) -> dict[str, str]:
        """The names of the lists of prices, by device."""
        return {name: answer.price_list for name, answer in self.full.items() if answer.price_list}

    @property
    def leading(self) -> list[str]:
        """The devices to describe: all if at most MOST_TOLD, else the cheapest and the fastest."""
        names = [*self.best_rows]
        best = {*self.leaders(self.best_rows).values()}
        return names if len(names) <= MOST_TOLD else [name for name in names if name in best]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings, each once, after the names of its devices."""
        return (*self.warnings_of(self.full), *self.slow_links)

    def warnings_of(self, names: Collection[str]) -> tuple[str, ...]:
        """The warnings on some devices, each once, after the names of its devices."""
        told = ((name, remark) for name in names for remark in self.full[name].warnings)
        each = (f"{', '.join(of)}: {remark}" for remark, of in by_text(told).items())
        return (*self.remarks, *each)

    def words(self) -> str:
        """The cheapest and the fastest device under each load in words."""
        return "\n".join(line for rows in self.loads.values() for line in self._words_of(rows))

    def _words_of(self, rows: Mapping[str, ServingConfig]) -> Iterator[str]:
        """Lines on the cheapest and the fastest device of rows under one load."""
        priced, of = len(self.priced(rows)), f"of {plural(len(rows), 'answer')}"
        with_price = of if priced == len(rows) else f"of {plural(priced, 'answer')} with a price"
        for word, name in self.leaders(rows).items():
            if name:
                words = [rows[name].words(self.asked.percentile), *self.asked.unusual]
                yield f"{word} {with_price if word == 'cheapest' else of}: {'; '.join(words)}"


def _none_within(
    skipped: Mapping[str, str], refusals: Mapping[str, Refusal], noes: Mapping[str, AnswerIsNo],
    links: Sequence[str], made: ComparedModels,
) -> AnswerIsNo:  # fmt: skip
    """The error if no device keeps the limits; the device nearest to them comes first."""
    first, *others = skipped
    sorted_ones = {name: refusals[name] for name in skipped if name in refusals}
    if skipped.keys() == noes.keys() and all(map(_is_hopeless, noes.values())):
        further = f"{plural(len(others), 'device')} further off: --json has why"
        if len(others) < MOST_TOLD:
            further = f"further off: {', '.join(others)}"
        nearest = f"{first} is nearest ({further})" if others else f"{first} is nearest"
        words = f"no device can answer; {nearest}: {noes[first].message}"
        return AnswerIsNo(words, made.to_dict(), refusals=sorted_ones)
    marked = {name: refusal.short for name, refusal in sorted_ones.items()}
    shown = dict([*{**skipped, **marked}.items()][:MOST_TOLD])
    more, reason = len(skipped) - len(shown), no_device(shown).message
    more_words = f"; {plural(more, 'device')} further off: --json has why" if more > 0 else ""
    hint = refusals[first].hint if first in refusals else ""
    words = "; ".join(filter(None, [f"{reason}{more_words}", *links, hint]))
    return AnswerIsNo(words, made.to_dict(), refusals=sorted_ones)


def _is_hopeless(no: AnswerIsNo) -> bool:
    refusal = refusal_of(no)
    return refusal is not None and refusal.is_hopeless


def compare(
    devices: Mapping[str, Callable[..., ServingAnswer]], config: Any,
    left_out: Mapping[str, str] | None = None, *, on_progress: OnProgress | None = None, **question: Any,
) -> ComparedModels:  # fmt: skip
    """Ask several devices the same question about one or several language models.

    `devices`: the method `Model.llm` of each device, by name; `config`: see `find_decoders`; `question`:
    the arguments of the method; `dtype` may be several, with commas. `left_out`: reasons why other
    devices are not asked. `on_progress`: see `ask_each`. The answers are compared under the largest load
    among those that the greatest number of devices serve. AnswerIsNo if no device holds the language
    model within the limits; InputError if no device can answer.
    """
    check_names(ServingQuestion, question)
    given = question.get("dtype", "")
    several = names_in(given.lower()) if isinstance(given, str) else []
    types = [*dict.fromkeys(several)] or [given]
    asked = ServingQuestion(**question | {"dtype": types[0] if len(types) == 1 else ""})
    question = {**vars(asked)}  # files are read once
    question["prices"] = given_list(question["price_per_hour"], question["prices"])
    skipped, noes = dict[str, str](), dict[str, AnswerIsNo]()
    asks = _asks(devices, config, types, question)

    def ask(name: str) -> ServingAnswer:
        try:
            answer = asks[name]()
            if answer.compared is None:
                raise no_room(answer)
        except AnswerIsNo as no:
            noes[name] = no
            refusal = refusal_of(no)
            raise no.reworded(refusal.short if refusal else no.message) from None
        except InputError as error:
            if len(asks) <= len(devices) or error.code not in OF_SPLITS:
                raise
            # Other language models may be split so.
            raise InputError(error.message, code=error.code, of_device=True, **error.data) from None
        return answer

    def far(name: str) -> tuple[float, float]:
        one = refusals.get(name)
        return (one.log_excess, -(one.near.requests_per_s or 0.0)) if one else (math.inf, 0.0)

    found = ask_each({name: name for name in asks}, ask, skipped, on_progress)
    refusals = {n: refusal for n, no in noes.items() if (refusal := refusal_of(no))}
    skipped = {name: skipped[name] for name in sorted(skipped, key=far)}
    shorts = {name: in_options(refusal.short) for name, refusal in refusals.items()}
    made = side_by_side(found, asked, {**(left_out or {}), **skipped, **shorts})
    made = replace(made, left_out={**made.left_out, **_briefly(made, refusals)})
    slow = by_text((n, one.linked_host) for n, one in refusals.items() if one.linked_host)
    links = tuple(f"{', '.join(names)}: {links_words(host)}" for host, names in slow.items())
    made = replace(made, slow_links=links)
    if asked.price_per_hour is not None and len(made.full) > 1:
        price = f"each GPU of {', '.join(made.full)} is priced at {dollars(asked.price_per_hour)} an hour"
        made = replace(made, remarks=(price, *made.remarks))
    if made.full:
        return made
    if not noes:
        raise no_device(skipped or made.left_out)
    raise _none_within(skipped, refusals, noes, links, made)


def _briefly(made: ComparedModels, refusals: Mapping[str, Refusal]) -> dict[str, str]:
    """The reasons why devices have no answer, without their offers of another data type that have no price
    or cost at least as much as the cheapest device. {} without a cheapest device.
    """
    best = made.best_rows.get(made.cheapest or "")
    if best is None or not best.dollars_per_hour:
        return {}
    return {
        name: in_options(refusal.brief)
        for name, refusal in refusals.items()
        if (row := refusal.in_other_dtype) is None
        or (row.dollars_per_hour or math.inf) >= best.dollars_per_hour
    }


def _asks(
    devices: Mapping[str, Callable[..., ServingAnswer]], config: Any, types: Sequence[str],
    question: Mapping[str, Any],
) -> dict[str, Callable[[], ServingAnswer]]:  # fmt: skip
    """The question about each language model in each data type on each device, by its name."""
    decoders = find_decoders(config)
    return {
        (f"{model} on {name}" if len(decoders) > 1 else name) + (f" in {dtype}" if len(types) > 1 else ""):
            partial(of_device, decoder, **{**question, "dtype": dtype})
        for model, decoder in decoders.items()
        for dtype in types
        for name, of_device in devices.items()
    }  # fmt: skip


def side_by_side(
    found: Mapping[str, ServingAnswer], asked: ServingQuestion, skipped: Mapping[str, str]
) -> ComparedModels:
    """Compare the answers of devices to one question, under the largest load that the most of them serve;
    the warnings are those of the best rows alone.
    """
    is_rate, left_out, several = bool(asked.request_rate), {**skipped}, dict[str, ServingAnswer]()
    load = "request_rate" if is_rate else "concurrency"
    shared = {one.request_rate or one.concurrency for one in asked.loads()}
    best = dict[str, dict[float, ServingConfig]]()
    for name, answer in found.items():
        rows = dict[float, list[ServingConfig]]()
        for row in (row for row in answer.served if row.is_good and row.load in shared):
            rows.setdefault(row.load, []).append(row)
        best[name] = {n: one for n in sorted(rows) if (one := best_of(rows[n], asked))}
    every = set[float]().union(*best.values())
    loads = every.union(getattr(asked, load))
    most = max(every, key=lambda n: (sum(n in some for some in best.values()), n), default=0.0)
    able = [name for name, some in best.items() if most in some]
    serve = "all" if len(able) == len(found) else f"{len(able)} of"
    load_words = requests_words(most, is_rate)
    remark = f"the devices are compared under {load_words}, the largest load that {serve} "
    remark += f"{len(found)} serve"
    if more := min((n for n in loads if n > most), default=None):
        others = ", ".join(name for name in able if more not in best[name])
        remark += f"; {requests_words(more, is_rate)} are too many for {others}"
    for name, some in best.items():
        if most in some:
            several[name] = replace(found[name].alone(some[most]), name=name)
        else:
            largest = requests_words(max(some), is_rate)
            left_out[name] = f"at most {largest}, not {most:,} as on the others"
    if not every or len(loads) < 2 or not getattr(asked, load):
        return ComparedModels(several, left_out, asked)
    by_load = {name: [*some.values()] for name, some in best.items()}
    remarks = (remark,) if more or len(able) < len(found) else ()
    return ComparedModels(several, left_out, asked, remarks, by_load=by_load)

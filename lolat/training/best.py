"""Chooses the best option of a training within limits of time and money."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lolat.device.fastest import clearly_least
from lolat.device.limits import NO_PRICE, VERDICTS, best_or_sure, within_limit
from lolat.training.choice import Choice
from lolat.training.prediction import TrainingPrediction
from lolat.training.run import TrainingLimits

if TYPE_CHECKING:
    from lolat.training.compare import Costs


def best_of(
    options: Sequence[TrainingPrediction], limits: TrainingLimits
) -> tuple[TrainingPrediction | None, TrainingPrediction | None, list[TrainingPrediction]]:
    """(cheapest option within the limits, fastest option within the limit of money, frontier).

    Options without a time are left out. The frontier, the options that no other beats in both time and
    money, begins with the cheapest.
    """
    timed = [o for o in options if o.total_s is not None]
    paid = sorted((o for o in timed if o.dollars is not None), key=lambda o: o.dollars or 0.0)
    both = {by_price(o)[:2] for o in paid}
    frontier = [
        o for o in paid for s, usd in [(o.total_s or 0.0, o.dollars or 0.0)]
        if not any(d <= usd and t <= s for d, t in both - {(usd, s)})
    ]  # fmt: skip
    return _best(paid, limits, by_price), _best(timed, limits.of_money, by_time), frontier


ALIKE = 1.02
"""Two prices of one device whose ratio is at most this count as equal."""


def smallest_update(
    best: TrainingPrediction | None,
    choices: Sequence[tuple[TrainingPrediction, Choice]],
    limits: TrainingLimits,
) -> TrainingPrediction | None:
    """The option with the fewest samples in an update among options that are as good as the `best`: on the
    same device in the same mode, as cheap, and as sure to keep the limits.

    `choices`: (option, the same option as a choice).
    """
    of_best = next((c for o, c in choices if o is best), None)
    if best is None or of_best is None:
        return best

    def is_alike(option: TrainingPrediction, choice: Choice) -> bool:
        return (
            (choice.device, choice.mode_words) == (of_best.device, of_best.mode_words)
            and (option.dollars or math.inf) <= ALIKE * (best.dollars or 0.0)
            and option.keeps(limits)
            and VERDICTS.index(verdict(option, limits)) <= VERDICTS.index(verdict(best, limits))
        )

    alike = [(best, of_best), *(one for one in choices if is_alike(*one))]
    return min(alike, key=lambda one: one[1].in_all)[0]


Worth = Callable[[TrainingPrediction], tuple[float, ...]]


def by_price(option: TrainingPrediction) -> tuple[float, ...]:
    """A sort key by price; an unknown price counts as infinite."""
    usd = math.inf if option.dollars is None else option.dollars
    return usd, option.total_s or 0.0, option.devices


def by_time(option: TrainingPrediction) -> tuple[float, ...]:
    """A sort key by time; an unknown time counts as infinite."""
    seconds = math.inf if option.total_s is None else option.total_s
    return seconds, option.dollars or 0.0, option.devices


class Aim(NamedTuple):
    """A sense in which an option is the best of an answer: the price or the time.

    `word`, `less`: the words for best and for better; `field`: the field of an answer that has the best
    option; `worth`: the sort key of options; `amount`, `interval`: the fields of an option with its US$ or
    seconds, and their interval.
    """

    word: str
    field: Literal["cheapest", "fastest"]
    worth: Worth
    less: str
    amount: Literal["dollars", "total_s"]
    interval: Literal["dollars_interval", "interval_s"]

    def value(self, option: Any) -> float:
        """The amount of an option or choice; infinite if it is not known."""
        amount = getattr(option, self.amount)
        return math.inf if amount is None else amount


CHEAPEST = Aim("Cheapest", "cheapest", by_price, "cheaper", "dollars", "dollars_interval")
FASTEST = Aim("Fastest", "fastest", by_time, "less time", "total_s", "interval_s")


def _best(
    options: Sequence[TrainingPrediction], limits: TrainingLimits, worth: Worth
) -> TrainingPrediction | None:
    """The best option within the limits, or the best that surely keeps them if it is little worse (see
    LITTLE).
    """
    kept = [o for o in options if o.keeps(limits)]
    return best_or_sure(kept, worth, lambda o: _is_sure(o, limits), lambda o: worth(o)[0])


def surest(
    options: Iterable[TrainingPrediction], limits: TrainingLimits, worth: Worth
) -> TrainingPrediction | None:
    """The best option that fits and surely keeps the limits; None if there is none."""
    return min((o for o in options if _is_sure(o, limits)), key=worth, default=None)


def _is_sure(option: TrainingPrediction, limits: TrainingLimits) -> bool:
    return option.fits is not False and verdict(option, limits) == "yes"


def nearest(
    choices: Iterable[tuple[TrainingPrediction, Choice]], limits: TrainingLimits
) -> Choice | None:
    """The choice whose time and price are the smallest share of the limits; None without choices.

    `choices`: each option, as a choice.
    """

    def share(one: tuple[TrainingPrediction, Choice]) -> float:
        return limits.share(*one[0].amounts(limits.sure))

    return min(choices, key=share, default=(None, None))[1]


def verdict(option: TrainingPrediction, limits: TrainingLimits) -> str:
    """The verdict (see `within_limit`) on the limit that an option is least sure to keep; "yes" without
    limits.

    NO_PRICE if money is limited and the price is not known.
    """
    words = ["yes"]
    if limits.max_hours is not None and option.total_s is not None:
        most_s = 3600 * limits.max_hours
        words.append(within_limit(option.total_s, option.interval_s, most_s, limits.sure))
    if limits.max_dollars is not None and option.dollars is not None:
        ends = option.dollars_interval
        words.append(within_limit(option.dollars, ends, limits.max_dollars, limits.sure))
    elif limits.max_dollars is not None and option.rented is None and option.fits is not False:
        words.append(NO_PRICE)
    return max(words, key=VERDICTS.index)


def verdict_on(option: TrainingPrediction, limits: TrainingLimits) -> str:
    """The `verdict` on an option; "" without limits, or if the question is how much data they allow."""
    has_limit = limits.max_hours is not None and option.total_s is not None
    has_limit |= limits.max_dollars is not None
    is_judged = has_limit and option.data_within_limits is None
    return verdict(option, limits) if is_judged else ""


def clearly_better(
    costs: Costs, others: Iterable[Costs], as_sure: bool = False
) -> dict[str, Choice]:
    """Field of an aim -> the best choice of the `others` if it is clearly better (see `clearly_least`) than
    the choice of `costs` or, if none keeps the limits, than all of its options.

    `as_sure`: a choice must also be as sure to keep the limits.
    """
    others, found = [*others], dict[str, Choice]()
    for aim, limits in (CHEAPEST, costs.limits), (FASTEST, costs.limits.of_money):
        every = [c for one in (costs, *others) for c in one.answers]
        sure = {Choice.of(c, o): VERDICTS.index(verdict(o, limits)) for c in every for o in c.timed}
        own = (Choice.of(c, o) for c in costs.answers for o in c.timed)
        best: Choice | None = getattr(costs, aim.field) or min(own, key=aim.value, default=None)
        if best is None:
            continue
        most = sure[best] if as_sure else len(VERDICTS)
        bests = (getattr(one, aim.field) for one in others)
        able = (one for one in bests if one and sure[one] <= most)
        if one := clearly_least(able, aim.value, aim.value(best)):
            found[aim.field] = one
    return found

"""Other ways to run one training on its device: another execution mode, or no checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from lolat.device.fastest import SHORTER
from lolat.graph.modes import COMPILED, GRAPH
from lolat.parameters import BEST
from lolat.training.auto_batch import NEAR_SPEED
from lolat.training.best import nearest
from lolat.training.choice import Choice, offer_words
from lolat.training.cost import Cost, RepeatableQuestion
from lolat.training.parallel import NONE

AskAbout = Callable[..., Cost | None]
"""A function of (a choice, changed arguments) that asks the choice's question again; None if it is
refused."""


@dataclass(frozen=True)
class Alternative:
    """Another way to run a training; `share`: its time as a fraction of the time asked for; `options`: its
    command-line options.
    """

    cost: Cost
    share: float
    options: str


def ask_about(again: RepeatableQuestion | None, one: Choice, **changed: Any) -> Cost | None:
    """Ask a device's question again about one choice; None without a question, or if it is refused."""
    whole = one.devices * one.batch_size
    about = {"batch_size": one.batch_size, "replicas": one.devices, "global_batch_size": None,
             "checkpointing": one.checkpointing, "accumulate": one.in_all // whole}  # fmt: skip
    return again.ask(**about | changed) if again else None


def uncheckpointed(one: Choice, asked: AskAbout) -> Cost | None:
    """Answer about a choice without checkpointing; None if no batch fits.

    The updates keep their size. The batch is halved until it fits.
    """
    of_each, size = one.in_all // one.devices, one.batch_size
    while size:
        changed = {"checkpointing": NONE, "batch_size": size, "accumulate": of_each // size}
        found = asked(one, **changed) if of_each % size == 0 else None
        if found and found.fits is not False:
            return found
        size //= 2
    return None


def without_checkpointing(cost: Cost) -> Alternative | None:
    """The answer without checkpointing, if it fits and is clearly faster (SHORTER); else None."""
    if cost.checkpointing in (None, NONE):
        return None
    one = Choice.of(cost, cost.best)
    other = uncheckpointed(one, partial(ask_about, cost.question))
    if other is None or not other.fits:
        return None
    options, share = f"--checkpointing {NONE}", other.best.iteration_ms / cost.best.iteration_ms
    if other.best.batch_size != one.batch_size:
        options += f" --batch-size {other.best.batch_size} --accumulate {other.accumulate}"
    return Alternative(other, share, options) if share <= SHORTER else None


def remedy(cost: Cost) -> Choice | None:
    """The best choice in the first of the `ways` to let an iteration fit; None if it has no total time."""
    if cost.question is None or not cost.ways:
        return None
    found = cost.question.ask(**cost.ways[0].given)
    return Choice.of(found, found.best) if found and found.timed else None


def other_modes(cost: Cost) -> Iterator[Cost | None]:
    """Yield the answers in other execution modes; None for a mode that is refused.

    The first mode has the best precision or, if a precision was given, channels last; and a CUDA graph if
    the answer is host-bound. If no option keeps the limits, answers in other launches follow.
    """
    if cost.question is None:
        return
    asked = cost.question.asked
    more: dict[str, Any] = {"channels_last": True} if asked.precision else {"precision": BEST}
    more = {} if cost.sequence_length or asked.precision == BEST else more
    changes = [more | ({"launch": GRAPH} if cost.host_bound else {})]
    if cost.missed and not asked.launch:
        changes += [more | {"launch": launch} for launch in (COMPILED, GRAPH)]
    yield from (cost.question.ask(**change) for change in changes if change)


def faster(cost: Cost) -> Alternative | None:
    """The first answer of `other_modes` if it is clearly faster (see NEAR_SPEED); else None."""
    other = next(other_modes(cost), None)
    if cost.question is None or other is None:
        return None
    asked, share = (
        cost.question.asked,
        cost.options[0].samples_per_s / other.options[0].samples_per_s,
    )
    is_last = other.channels_last and not asked.channels_last
    options = [f"--precision {BEST}"] if asked.precision is None else []
    options += ["--channels-last"] if is_last and asked.precision not in (None, BEST) else []
    options += [f"--launch {other.launch}"] if other.launch != cost.launch else []
    return Alternative(other, share, " ".join(options)) if share < NEAR_SPEED else None


def offered(cost: Cost) -> str:
    """The first option in another execution mode that keeps the limits, in words, if no option as asked
    does; else "".
    """
    others = other_modes(cost) if cost.missed else ()
    kept = (Choice.of(one, option) for one in others if one for option in one.within())
    return _words(cost, next(kept, None))


def nearly(cost: Cost) -> str:
    """The option in another execution mode that is nearest to the limits; "" if none is nearer."""
    others = (one for one in other_modes(cost) if one)
    options = ((option, Choice.of(one, option)) for one in (cost, *others) for option in one.timed)
    found = nearest(options, cost.limits)
    own = [Choice.of(cost, option) for option in cost.timed]
    return "" if found in own else _words(cost, found)


def _words(cost: Cost, choice: Choice | None) -> str:
    if choice is None or cost.question is None:
        return ""
    return offer_words(choice, with_precision=not cost.question.asked.precision)

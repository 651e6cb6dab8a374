"""Compares devices, numbers of devices, precisions and batch sizes for one training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf, lcm
from pathlib import Path
from typing import Any

from lolat.device.device import Device
from lolat.device.execution_modes import HALVES, TIED
from lolat.device.question import (
    AUTO,
    as_whole,
    ask_each,
    by_name,
    each_batch,
    is_one,
    no_device,
    several,
)
from lolat.errors import AnswerIsNo, InputError, LolatError, arg
from lolat.graph import Graph
from lolat.graph.modes import AMP, BFLOAT16, COMPILED, EAGER, FLOAT16, GRAPH, PRECISION_OF
from lolat.hardware.card_names import find_gpu, is_card, short_name
from lolat.hardware.gpus import usable_bytes
from lolat.hardware.prices import price_list
from lolat.hardware.rental import ALMOST, rental_of
from lolat.io.progress import OnProgress
from lolat.io.results import Remark
from lolat.parameters import BEST
from lolat.training.auto_batch import NEAR_SPEED
from lolat.training.best import best_of, clearly_better, nearest, smallest_update
from lolat.training.choice import Choice, choice_words, offer_words
from lolat.training.cost import Cost, RepeatableQuestion, cost_on, is_close
from lolat.training.parallel import FSDP, NONE
from lolat.training.prediction import Limited, TrainingPrediction
from lolat.training.question import TrainingQuestion
from lolat.training.run import SHARING
from lolat.training.trained import Trained, data_of, read_question
from lolat.training.tuning import tuned
from lolat.units import byte_size, dollars, duration, milliseconds, plain, plural


@dataclass(frozen=True, repr=False)
class Costs(Limited):
    """The cost of one training on several devices or with several batch sizes.

    - `answers`: the cost on each device that can answer.
    - `left_out`: reasons why other devices cannot answer, by device.
    - `cheapest`, `fastest`, `frontier`: choices, chosen as in `Cost`.
    - `precision`: the argument; "best": each device runs in its fastest precision and layout of images.
    - `better_launch`: the "cheapest" and the "fastest" choice within the limits in another launch than
      eager, if that is at least a tenth cheaper or faster.
    - `by_launch`: the answers in each launch.
    - `better_memory`: like `better_launch`, of a decoder with FSDP or, if no checkpointing was asked for,
      selective checkpointing; only choices that are as sure to keep the limits.
    - `offer`: a choice in another execution mode that keeps the limits, if no choice does or none fits.
    - `nearest`: of all choices, in these execution modes too, the nearest to the limits that none keeps.
    """

    network: str
    samples: int | None
    epochs: int
    optimizer: str
    coverage: float
    max_hours: float | None
    max_dollars: float | None
    answers: tuple[Cost, ...]
    left_out: Mapping[str, str]
    cheapest: Choice | None
    fastest: Choice | None
    frontier: tuple[Choice, ...]
    precision: str | None = None
    better_launch: Mapping[str, Choice] = field(default_factory=dict)
    by_launch: Mapping[str, Costs] = field(default_factory=dict, repr=False)
    better_memory: Mapping[str, Choice] = field(default_factory=dict)
    offer: Choice | None = None
    nearest: Choice | None = None
    sure: bool = False

    @property
    def data(self) -> str:
        """The word for the data: "samples" or "tokens"; see `Cost.data`."""
        return self.answers[0].data

    @property
    def timed(self) -> list[TrainingPrediction]:  # type: ignore[override]
        """The options of all answers that fit and have a time."""
        return [option for cost in self.answers for option in cost.timed]

    @property
    def no_room(self) -> str:
        """Words that no device has enough memory; "" if a device has."""
        fits = any(cost.fits is not False for cost in self.answers)
        return "" if fits else "it fits on none of these devices"

    def named(self, option: TrainingPrediction) -> str:
        """The number and the name of the devices of an option: "8 x h100"."""
        return next(c.named(option) for c in self.answers if any(o is option for o in c.options))

    @property
    def offered(self) -> str:
        """The `offer` in words, with its command-line options; "" without an offer."""
        return self._with_options(self.offer)

    @property
    def nearly(self) -> str:
        """The `nearest` choice in words, with its command-line options; "" without one, or if `missed` has
        it.
        """
        own = {Choice.of(c, o): o for c in self.answers for o in c.timed}
        if self.nearest is None or self.nearest not in own:
            return self._with_options(self.nearest)
        is_told = any(own[self.nearest] is option for option in self.least())
        return "" if is_told else choice_words(self.nearest, self.tells_batch)

    def _with_options(self, choice: Choice | None) -> str:
        if choice is None:
            return ""
        asked = self.answers[0].sharding
        choice = replace(choice, sharding=NONE) if choice.sharding == asked else choice
        return offer_words(choice, self.tells_batch, with_precision=self.precision is None)

    @property
    def tells_batch(self) -> bool:
        """True if batches and updates differ in size."""
        every = [Choice.of(c, o) for c in self.answers for o in c.options]
        return all(
            len(sizes) > 1 for sizes in ({c.batch_size for c in every}, {c.in_all for c in every})
        )

    def words(self) -> str:
        """The cheapest and the fastest choice with intervals, in words; without data the times of
        iterations.
        """
        each = {Choice.of(c, o): o for c in self.answers for o in c.options}
        parts = [self.missed] if self.missed else []
        for name, best, ends_of, form in (
            ("cheapest", self.cheapest, "dollars_interval", dollars),
            ("fastest", self.fastest, "interval_s", duration),
        ):
            if best and not self.missed:  # which has both
                ends = " .. ".join(map(form, getattr(each[best], ends_of) or ()))
                sure = f" ({ends})" if ends else ""
                parts.append(f"{name} {choice_words(best, self.tells_batch)}{sure}")
        able = (o for c in self.answers if c.fits is not False for o in c.options)
        times = sorted(o.iteration_ms for o in able if o.fits is not False)
        if not parts and times:
            words = dict.fromkeys(milliseconds(ms) for ms in (times[0], times[-1]))
            parts = [f"iterations of {' to '.join(words)}"]
        if lost := len(each) - len(times):
            parts.append(f"{lost} of {plural(len(each), 'option')} without room in memory")
        devices = plural(len({c.device for c in self.answers}), "device")
        return f"{plain(self.network)} on {devices}: {'; '.join(parts)}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each device and number of devices, as `Cost.rows` does."""
        return [row for c in self.answers for row in c.rows()]


def check_room(costs: Costs) -> None:
    """Raise AnswerIsNo if no device has enough memory."""
    if costs.no_room:
        raise AnswerIsNo(costs.no_room, code="no-room")


def check_priced(answers: Sequence[Cost]) -> None:
    """Raise InputError if money is limited and no device with enough memory has a price."""
    able = [cost for cost in answers if cost.fits is not False]
    if not able or able[0].max_dollars is None or any(cost.prices for cost in able):
        return
    names = ", ".join(dict.fromkeys(plain(Path(cost.device).stem) for cost in able))
    raise InputError(
        f"{arg('max_dollars')} {able[0].max_dollars:g}: no price of {names} in "
        f"{plain(able[0].price_list or '')}; expected {arg('price_per_hour')}, or a list that has it "
        f"({arg('prices')})",
        code="no-price",
        of_device=True,
    )


USUAL_UPDATE = 256
"""Samples of an update in many recipes, such as ResNet-50 on ImageNet (Goyal et al. 2017)."""
MOST_UPDATE = 1024
"""The most samples of an update whose size the user did not give."""


def with_update(asked: TrainingQuestion, trained: Trained) -> TrainingQuestion:
    """Complete a question to several devices: a batch size, or an update of the same size on all devices.

    Without a batch size the update has about USUAL_UPDATE samples, a multiple of all numbers of devices,
    and no more than the data; the batch size stays None. If `global_batch_size` or `accumulate` is given,
    or no such size exists, the batch size is AUTO.
    """
    if asked.batch_size is not None:
        return asked
    update = usual_update(asked.replicas, data_of(trained, asked).samples)
    if asked.global_batch_size or asked.accumulate or not update:
        return replace(asked, batch_size=AUTO)
    return replace(asked, global_batch_size=update)


def usual_update(replicas: Any, samples: int | None) -> int:
    """A default number of samples in an update that all numbers of devices divide; 0 if there is none."""
    each = lcm(*(as_whole(k, "replicas") for k in several(replicas) or SHARING))
    most = MOST_UPDATE if samples is None else min(samples, MOST_UPDATE)
    return each * min(max(round(USUAL_UPDATE / each), 1), most // each)


def _most_devices(asked: TrainingQuestion) -> int:
    """The largest number of devices in the question."""
    numbers = [as_whole(k, "replicas") for k in several(asked.replicas)]
    most_sharing = SHARING[-1] if asked.global_batch_size is not None else 1
    return max(numbers, default=most_sharing)


def _questions(asked: TrainingQuestion) -> list[TrainingQuestion]:
    """A question for each combination of checkpointing and batch size and, for a global batch, number of
    devices.

    InputError for a number of devices that cannot share the global batch equally.
    """
    questions = [replace(asked, checkpointing=mode) for mode in several(asked.checkpointing)]
    whole, each = asked.global_batch_size, [one for mode in questions for one in each_batch(mode)]
    if whole is None:
        return each
    numbers = [as_whole(k, "replicas") for k in several(asked.replicas)]
    found, refused = list[TrainingQuestion](), dict[int, str]()
    for one in each:
        micro = 1 if one.batch_size in (AUTO, None) else as_whole(one.batch_size)
        for k in numbers or SHARING:
            if whole % (k * micro):
                refused[k * micro] = f"{k} x {micro:,}" if micro > 1 else f"{k}"
            else:
                found.append(replace(one, replicas=k))
    if (numbers and refused) or not found:
        parts, parted = lcm(*refused) if numbers else min(refused), ", ".join(refused.values())
        of = (
            "devices x batch size"
            if not {AUTO, None} & {one.batch_size for one in each}
            else "devices"
        )
        raise InputError(
            f"{arg('global_batch_size')} {whole:,}: not a multiple of {parted} ({of}); "
            f"expected a multiple of {parts:,}, or another {arg('batch_size')}",
            code="global-batch",
        )
    return found


def _shared(ask: Callable[[TrainingQuestion], Cost], asked: TrainingQuestion, network: Any) -> Cost:
    """Answer a question by `_of_part`; the answer keeps the question, to ask it again with changes."""
    answer = partial(_of_part, ask)
    return replace(answer(asked), question=RepeatableQuestion(asked, answer, network))


def _of_part(ask: Callable[[TrainingQuestion], Cost], asked: TrainingQuestion) -> Cost:
    """Answer for a device's part of a global batch.

    Its micro-batches have the size asked for; for AUTO and None they are the largest equal micro-batches
    that fit. If these hardly fit or are outside the measured range, smaller micro-batches that are as fast
    replace them.
    """
    if asked.global_batch_size is None:
        return ask(asked)
    part = asked.global_batch_size // as_whole(asked.replicas)
    own = replace(asked, global_batch_size=None)
    if asked.batch_size not in (AUTO, None):
        return ask(replace(own, accumulate=part // as_whole(asked.batch_size)))
    found, micro = ask(replace(own, batch_size=part)), part
    while found.fits is False and micro > 1:  # the gradients of several micro-batches need room too
        most = min(found.largest_batch or 1, micro - 1)
        micro = max(n for n in range(1, most + 1) if part % n == 0)
        found = ask(replace(own, batch_size=micro, accumulate=part // micro))
    surer, near = found, NEAR_SPEED * found.best.samples_per_s
    while micro > 1 and (_hardly_fits(surer) or not surer.in_domain):
        micro = max(n for n in range(1, micro) if part % n == 0)
        surer = ask(replace(own, batch_size=micro, accumulate=part // micro))
        if surer.best.samples_per_s < near:
            break
        if _hardly_fits(found) or surer.in_domain:
            found = surer
    return found


def _hardly_fits(cost: Cost) -> bool:
    return is_close(cost.best.memory_bytes, cost.available_bytes)


TRIED = ("tf32", "amp")
"""Precisions to try on each device, besides the profile's own; half ones are also tried channels last. A
device measured in half precision is tried only in AMP, because only the user can choose weights, gradients
and states of two bytes."""


def compare(
    models: Sequence[Device], network: Any, asked: TrainingQuestion, left_out: Mapping[str, str],
    on_progress: OnProgress | None = None, is_alike: bool = False,
) -> Costs:  # fmt: skip
    """Compare devices for one training, with each batch size.

    `left_out`: reasons why other devices cannot answer, by device. `on_progress`: called with (done, all,
    name) for each device. `is_alike`: profiles of compiled networks answer in eager launch unless a launch
    was asked for. InputError if no device can answer, or if money is limited and no device has a price.
    """
    trained = read_question(network, asked.input_size)
    asked = replace(with_update(asked, trained), precision=asked.precision or BEST)
    if isinstance(trained, Graph):
        for checkpointing in several(asked.checkpointing):
            tuned(trained, asked.tune, checkpointing)  # an error of the question is raised once
    named, most = by_name(models), _most_devices(asked)
    left_out = {name: why for name, why in left_out.items() if name not in named}

    def ask(device: Device, one: TrainingQuestion) -> Cost:
        if why := _too_small(device, one):
            raise AnswerIsNo(why)
        is_compiled = device.file.has_latencies and device.file.mode.launch == COMPILED
        if is_alike and is_compiled and one.launch is None:
            one = replace(one, launch=EAGER)
        return _shared(partial(_fastest, device, trained, most), one, network)

    answers = list[Cost]()
    for one in _questions(asked):
        found = ask_each(named, partial(ask, one=one), left_out, on_progress)
        # The fastest of two files of one GPU answers, of equal ones the first; each may have tried other
        # precisions.
        ranked = sorted(found.values(), key=partial(_rank, one))
        best = {(short_name(c.profile), c.launch): id(c) for c in reversed(ranked)}.values()
        answers += [c for c in found.values() if id(c) in best]
    if not answers:
        raise no_device(left_out)
    check_priced(answers)
    return with_modes(joined(answers, left_out, asked.precision))


def costs_of(device: Device, network: Any, asked: TrainingQuestion) -> Cost | Costs:
    """Predict the cost of training on `device`, for each batch size and way to checkpoint or, with a global
    batch, for each number of devices; the network is read once.

    For the precision BEST the device answers in its fastest precision and layout of images. So does a
    device that was loaded by the name of a card; in a given half precision it takes the faster layout.
    Profiles with other names, such as "a100-fp32", and files answer as measured.
    """
    trained, most = read_question(network, asked.input_size), _most_devices(asked)
    asked = replace(asked, batch_size=AUTO) if asked.batch_size is None else asked
    is_limited = asked.max_hours or asked.max_dollars
    if not (several(asked.replicas) or asked.global_batch_size):
        # A card is rented in several numbers, of which more may keep the limits.
        asked = replace(asked, replicas=() if is_limited and is_card(device.label) else 1)
    if isinstance(trained, Graph) and asked.precision is None and _is_free(device):
        asked = replace(asked, precision=BEST)
    ask = partial(_ask, device, trained, most)
    answers = [_shared(ask, one, network) for one in _questions(asked)]
    check_priced(answers)
    is_single = is_one(asked.batch_size) and is_one(asked.checkpointing)
    if is_single and asked.global_batch_size is None:
        return answers[0]
    return with_modes(joined(answers, {}, asked.precision))


def _ask(device: Device, trained: Trained, most: int, asked: TrainingQuestion) -> Cost:
    """Answer a question on a device; `most`: the largest number of devices in all questions."""
    if asked.precision == BEST or _is_free(device):
        return _fastest(device, trained, most, asked)
    return _on_cards(asked.device(device), trained, asked, most)


def _is_free(device: Device) -> bool:
    """True if a device was loaded by the name of a card alone, and no precision was asked of it."""
    return is_card(device.label) and not device.asked.precision


def joined(
    answers: Sequence[Cost], left_out: Mapping[str, str], precision: str | None = None
) -> Costs:
    """Join the answers of several devices or batch sizes into one."""
    first = answers[0]
    about = ("network", "samples", "epochs", "optimizer", "coverage")
    options = [(option, Choice.of(cost, option)) for cost in answers for option in cost.timed]
    choices = {id(option): choice for option, choice in options}
    cheapest, fastest, frontier = best_of([option for option, _ in options], first.limits)
    cheapest = smallest_update(cheapest, options, first.limits)
    return Costs(
        **{name: getattr(first, name) for name in about}, **asdict(first.limits), answers=tuple(answers),
        left_out=left_out, precision=precision, cheapest=choices.get(id(cheapest)),
        fastest=choices.get(id(fastest)), frontier=tuple(choices[id(option)] for option in frontier),
    )  # fmt: skip


def choices_of(costs: Iterable[Cost | None]) -> list[Choice]:
    """The options, as choices, that fit and have a time; None stands for a question that was refused."""
    return [Choice.of(cost, option) for cost in costs if cost for option in cost.timed]


def with_modes(costs: Costs) -> Costs:
    """Ask each device again to add `better_launch`, `by_launch`, `better_memory` and `offer`."""

    def all_asked(**changed: Any) -> Costs | None:
        eager = (cost.question for cost in costs.answers if cost.launch == EAGER and cost.question)
        found = [*filter(None, (one.ask(**changed) for one in eager))]
        return joined(found, {}, costs.precision) if found else None

    every = choices_of(costs.answers)
    buys_data = any(o.data_within_limits for cost in costs.answers for o in cost.options)
    launches = (COMPILED, GRAPH) if every or buys_data else ()
    each = {launch: all_asked(launch=launch) for launch in launches}
    by_launch: dict[str, Costs] = {launch: found for launch, found in each.items() if found}
    better_launch = clearly_better(costs, by_launch.values())
    other = {"channels_last": True} if costs.precision else {"precision": BEST}
    others = [all_asked(**other)] if costs.missed and costs.precision != BEST else []
    others += by_launch.values()
    first = costs.answers[0]
    is_whole = bool(first.sequence_length) and first.sharding == NONE
    sharded = [all_asked(sharding=FSDP)] if is_whole else []
    if costs.missed or costs.no_room:
        compiled = [all_asked(sharding=FSDP, launch=COMPILED)] if is_whole else []
        others = [*sharded, *others, *compiled]
    elif is_whole:
        is_free = first.question is not None and first.question.asked.checkpointing is None
        checkpointed = [all_asked(checkpointing="selective")] if is_free else []
        better = clearly_better(costs, filter(None, [*sharded, *checkpointed]), as_sure=True)
        costs = replace(costs, better_memory=better)
    keeping = (found for found in others if found and not found.missed)
    kept = (one for found in keeping if (one := found.cheapest or found.fastest))
    offer = next(kept, None) if costs.missed or costs.no_room else None
    found = replace(costs, better_launch=better_launch, by_launch=by_launch, offer=offer)
    if offer or not costs.missed:
        return found
    answers = [c for one in (costs, *filter(None, others)) for c in one.answers]
    options = ((option, Choice.of(c, option)) for c in answers for option in c.timed)
    return replace(found, nearest=nearest(options, costs.limits))


def _fastest(device: Device, trained: Trained, most: int, asked: TrainingQuestion) -> Cost:
    """Answer in the precision asked for, or in the fastest one; a card in the faster layout of images.

    Among answers within TIED of the fastest, the one that needs the least memory is chosen.
    """
    costs, errors = list[Cost](), list[LolatError]()
    is_best = asked.precision == BEST
    questions = [replace(asked, precision=None if is_best else asked.precision)]
    if is_best and isinstance(trained, Graph):
        was_half = device.file.has_latencies and device.file.mode.dtype in (FLOAT16, BFLOAT16)
        precisions = (PRECISION_OF[AMP],) if was_half else (None, *TRIED)
        questions = [replace(asked, precision=precision) for precision in precisions]
    is_half = questions[-1].precision in (PRECISION_OF[AMP], *HALVES) and (
        is_best or _is_free(device)
    )
    if isinstance(trained, Graph) and is_half and not asked.channels_last:
        questions.append(replace(questions[-1], channels_last=True))
    for question in questions:
        try:
            costs.append(_on_cards(question.device(device), trained, asked, most))
        except LolatError as error:
            errors.append(error)
    if not costs:
        raise errors[0]
    order = partial(_rank, asked)
    best = min(costs, key=order)
    tied = (c for c in costs if c.batch_size == best.batch_size)
    tied = (c for c in tied if c.fits == best.fits and order(c)[1] <= order(best)[1] / TIED)
    return min(tied, key=lambda c: (c.options[0].memory_bytes or c.memory_bytes, order(c)))


def _rank(asked: TrainingQuestion, cost: Cost) -> tuple[bool, float]:
    """A sort key: the fastest answer that fits comes first. Channels last, if not asked for, must be faster
    by 2 %.
    """
    is_tried = bool(cost.channels_last) and not asked.channels_last
    speed = cost.options[0].samples_per_s
    return cost.fits is False, -speed * (NEAR_SPEED if is_tried else 1.0)


def _on_cards(device: Device, trained: Trained, asked: TrainingQuestion, most: int) -> Cost:
    """Answer by `cost_on`; with AUTO, cards with less memory are tried too, and the cheapest answer is
    chosen.
    """
    is_given = asked.memory_gib is not None or asked.price_per_hour is not None
    if asked.batch_size != AUTO or is_given:
        return cost_on(device, trained, asked, most)
    asked = replace(asked, prices=price_list(asked.prices))
    first = cost_on(device, trained, asked, most)
    rental = rental_of(device.file, None, asked.prices, step_bytes=0)
    cards = {find_gpu(o.accelerator) for o in rental.offers} if rental else set()
    own = (rental and rental.memory_gib) or 0.0
    sizes = {card.memory_gib or own for card in cards if card}
    needed = max((o.memory_bytes or 0 for o in first.options if o.fits), default=inf)
    smaller = (
        cost_on(device, trained, replace(asked, memory_gib=gib), most)
        for gib in sorted(sizes, reverse=True)
        if gib < ALMOST * own and usable_bytes(gib) < needed
    )
    best = min((first, *smaller), key=lambda cost: (not cost.within(), _least_dollars(cost)))
    if best is first:
        return first
    less, more = (f"{c.batch_size:,} in {byte_size(c.available_bytes or 0)}" for c in (best, first))
    why = f"cards with less memory cost less; of all cards: {more} (--memory-gib {own:g})"
    return replace(best, warnings=(Remark(f"batch {less}", why), *best.warnings))


def _least_dollars(cost: Cost) -> float:
    """The lowest price of the options within the limits, else of all options; infinite without a price."""
    options = cost.within() or cost.timed
    return min((o.dollars for o in options if o.dollars is not None), default=inf)


def _too_small(device: Device, asked: TrainingQuestion) -> str | None:
    """The reason to leave out a device if neither it nor a rented one has `memory_gib`; else None."""
    gpu, least_gib = device.file.gpu, asked.memory_gib
    if least_gib is None or gpu is None or (gpu.memory_gib or least_gib) >= least_gib:
        return None
    has_larger = rental_of(device.file, None, asked.prices, least_gib) is not None
    return None if has_larger else f"less than {least_gib:g} GiB of memory"

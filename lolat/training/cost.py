"""Predicts time, memory and price of training on one device or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lolat.device.execution_modes import HALVES
from lolat.device.largest_batch import no_memory
from lolat.device.prediction import CLOSE, no_room_words
from lolat.device.question import AUTO, as_whole, several
from lolat.errors import LolatError, arg
from lolat.graph.modes import AMP
from lolat.hardware.card_names import form_and_memory, form_of, has_several_chips, short_name
from lolat.hardware.links import MACHINE, Link
from lolat.hardware.prices import Offer, price_list
from lolat.hardware.rental import Rental, instances_of, rental_of, slower_words
from lolat.io.results import Remark, in_one, plain_data
from lolat.parameters import COVERAGE, DECODER_OPTIMIZER, NETWORK_OPTIMIZER
from lolat.training.auto_batch import At, Plan, auto_batch, with_batch
from lolat.training.best import best_of, verdict_on
from lolat.training.decoder import TrainedDecoder
from lolat.training.decoder_plan import DecoderPlan
from lolat.training.parallel import NONE
from lolat.training.plan import NetworkPlan
from lolat.training.prediction import Limited, TrainingPrediction
from lolat.training.question import TrainingQuestion
from lolat.training.run import SHARING, TrainingLimits, TrainingRun
from lolat.training.trained import Trained, data_of
from lolat.training.ways import MOST_WAYS, WayToFit, would_words
from lolat.units import byte_size, dollars, duration, milliseconds, percent, plain, plural

if TYPE_CHECKING:
    from lolat.device.device import Device

NEARLY = 1.1
"""Offers whose prices differ by less than this factor count as equal, because links and times are
estimates."""


@dataclass(frozen=True)
class RepeatableQuestion:
    """A question about a device, the network as the user gave it, and the function that answers the
    question.
    """

    asked: TrainingQuestion
    answer: Callable[[TrainingQuestion], Cost]
    network: Any = None

    def ask(self, **changed: Any) -> Cost | None:
        """Answer with some arguments changed; None if the question is refused."""
        with suppress(LolatError):
            return self.answer(replace(self.asked, **changed))
        return None


@dataclass(frozen=True, repr=False)
class Cost(Limited):
    """Time, memory and money of training on each number of devices.

    `options`: an answer for each number of devices, in the order asked for. `cheapest`: the number of
    devices that costs least within `max_hours` and `max_dollars`. A number whose whole interval is within
    the limits is preferred if it costs at most 5 % more; if `sure`, only such numbers count. `fastest`: the
    fastest number within `max_dollars`, chosen in the same way. `frontier`: the numbers that no other
    number beats in both time and money. `prices`: the source of the price. These fields are None or empty
    without samples, a price or enough memory.

    `input_sizes`: shapes of a network's inputs without the batch axis. `batch_size`: samples of a
    micro-batch, of which an iteration has `accumulate`. `tune`, `checkpointing`: the arguments; None: the
    network's own choice. `frozen_up_to`: the last block of frozen:N. `precision`, `launch`,
    `channels_last`: the execution mode; `channels_last` is None if no time depends on the layout. `tf32`:
    True if float32 convolutions run in TF32. `estimated`: True if the times are estimated from times of
    inference. `in_domain`: True if most of the time is inside the measured range; None if unknown.
    `host_bound`: True if the host takes longer to launch the operations than the GPU to run them.
    `form`: the form and memory of the GPU if `device` leaves them open ("PCIe 40 GB"). `own_runs`: the
    user's runs that set the level of the times. `padding`: the share of the computed tokens
    that is padding.

    `memory_bytes`: memory that an iteration needs on each device at its `peak`; `memory`: its parts in
    bytes; `recipe`: bytes of a parameter, in words. `available_bytes`: memory of a device. `fits`: True if
    it is enough; None if unknown. `largest_batch`: the largest batch that fits. `is_auto`: True if each
    option has the smallest sure batch within 2 % of the best speed ("auto").

    Batch size and memory belong to the `best` option. A decoder's answer also has `sequence_length` (tokens
    of a sequence; `batch_size` counts sequences), `machine` (GPUs of each of several machines) and
    `would_fit` (options with which it would fit). In `rows()`, `memory_bytes` is the memory that an
    iteration needs, and `device_memory_gib` the memory of the rented device (None: as much as the profile's
    device).
    """

    model: str
    device: str
    profile: str
    precision: str | None
    launch: str | None
    network: str
    batch_size: int
    samples: int | None
    epochs: int
    optimizer: str
    coverage: float
    estimated: bool
    in_domain: bool | None
    memory_bytes: int
    available_bytes: int | None
    fits: bool | None
    largest_batch: int | None
    max_hours: float | None
    max_dollars: float | None
    prices: str | None
    price_list: str | None
    options: tuple[TrainingPrediction, ...]
    cheapest: int | None
    fastest: int | None
    frontier: tuple[int, ...]
    warnings: tuple[str, ...]
    sequence_length: int | None = None
    accumulate: int = 1
    sharding: str = NONE
    checkpointing: str | None = None
    tune: str | None = None
    frozen_up_to: str | None = None
    peak: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)
    would_fit: tuple[str, ...] = field(init=False, default=())
    recipe: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    parameters: int | None = None
    trained_parameters: int | None = None
    channels_last: bool | None = None
    tf32: bool = False
    own_runs: int = 0
    machine: int = MACHINE
    is_auto: bool = False
    host_bound: bool = False
    padding: float = 0.0
    sure: bool = False
    form: str = ""
    ways: tuple[WayToFit, ...] = field(default=(), repr=False)
    question: RepeatableQuestion | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "would_fit", tuple(way.options for way in self.ways))

    @property
    def card(self) -> str:
        """The device's name without the execution mode of its profile."""
        return short_name(self.device)

    @property
    def data(self) -> str:
        """The word for the data: "tokens" of a decoder, else "samples"."""
        return "samples" if self.sequence_length is None else "tokens"

    @property
    def timed(self) -> list[TrainingPrediction]:  # type: ignore[override]
        """The options that fit and have a time."""
        fitting = () if self.fits is False else self.options
        return [o for o in fitting if o.fits is not False and o.total_s is not None]

    @property
    def option_rows(self) -> list[CostRow]:
        """The options as rows, each with this cost."""
        return [CostRow(self, option) for option in self.options]

    @property
    def best(self) -> TrainingPrediction:
        """The cheapest option, else the fastest, else the first that fits, else the smallest in memory."""
        return headline(self.options, self.cheapest, self.fastest)

    def option(self, devices: int) -> TrainingPrediction:
        """The option with this number of devices."""
        return next(o for o in self.options if o.devices == devices)

    def named(self, option: TrainingPrediction) -> str:
        """The number and the name of the devices of an option: "8 x h100"."""
        return f"{option.devices} x {self.card}{f' ({self.form})' if self.form else ''}"

    def words(self) -> str:
        """The cheapest and the fastest option in words; without them the time of an iteration."""
        title = f"{plain(self.network)} on {plain(self.device)}, batch {self.batch_size}"
        if self.fits is False:
            return f"{title}: {no_room(self)}"
        if self.fastest is None:
            on = (
                f" on {plural(self.best.devices, 'device')}"
                if self.best is not self.options[0]
                else ""
            )
            title += f": {milliseconds(self.best.iteration_ms)} an iteration{on}"
        names = dict[int, list[str]]()
        for name, devices in (("cheapest", self.cheapest), ("fastest", self.fastest)):
            if devices and not self.missed:  # which has both
                names.setdefault(devices, []).append(name)
        is_choice = len(self.timed) > 1
        best = (
            (f"{' and '.join(n)}: " if is_choice else "") + self.summary(k)
            for k, n in names.items()
        )
        return "\n".join(filter(None, [title, self.missed, *best]))

    def summary(self, devices: int) -> str:
        """An option in words: devices, time, dollars."""
        option = self.option(devices)
        price = "" if option.dollars is None else f", {dollars(option.dollars)}"
        return f"{plural(devices, 'device')}, {duration(option.total_s or 0.0)}{price}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each number of devices: the mode, times in ms and s, US$, and the ends of intervals."""
        about, rows = {name: getattr(self, name) for name in OF_ROWS}, []
        for option in self.options:
            row: dict[str, Any] = about | plain_data(option)
            row |= {f"{name}_ms": ms for name, ms in row.pop("parts_ms").items()}
            row |= {RENAMED.get(name, name): v for name, v in (row.pop("rented") or {}).items()}
            row["total_low_s"], row["total_high_s"] = row.pop("interval_s") or (None, None)
            row["dollars_low"], row["dollars_high"] = row.pop("dollars_interval") or (None, None)
            rows.append({k: v for k, v in row.items() if not isinstance(v, list)})
        return rows


OF_ROWS = ("device", "profile", "precision", "launch", "channels_last", "checkpointing", "batch_size",
           "accumulate", "memory_bytes", "available_bytes", "fits", "host_bound", "estimated",
           "in_domain")  # fmt: skip
"""Attributes of a cost that each row repeats."""
RENAMED = {"memory_gib": "device_memory_gib"}
"""Attribute of a rented device -> its column. Beside `memory_bytes`, which training needs, the name
`memory_gib` would be misread."""


class CostRow(NamedTuple):
    """One option, with the cost that it belongs to."""

    cost: Cost
    option: TrainingPrediction


def close_words(needed: float, available: float) -> str:
    """A clause that the needed memory is too close to the available memory to be sure; "" if it is not."""
    return f", too close to be sure: within {percent(CLOSE)}" if is_close(needed, available) else ""


def is_close(needed: float | None, available: float | None) -> bool:
    """True if the needed memory is too close to the available memory (CLOSE) to be sure that it fits."""
    return bool(needed and available and abs(needed - available) <= CLOSE * available)


def no_room(cost: Cost) -> str:
    """The sentence that an iteration does not fit, with the largest batch, and options, that would."""
    needed, room = cost.memory_bytes, cost.available_bytes or 0
    words = no_room_words(needed, room, cost.largest_batch or 0, cost.best.devices)
    return f"{words}{close_words(needed, room)}{would_words(cost.ways)}"


# ---- The answer.


def cost_on(
    device: Device, trained: Trained, asked: TrainingQuestion, most_devices: int = 1
) -> Cost:
    """Predict the cost of training on `device` with one batch size; errors as of `lolat.api.Model.cost`.

    `most_devices`: the largest number of devices in all questions that belong to one answer.
    """
    largest = bool(asked.batch_size == AUTO)
    given = tuple(dict.fromkeys(as_whole(n, "replicas") for n in several(asked.replicas)))
    is_decoder = isinstance(trained, TrainedDecoder)
    samples, length, useful = data_of(trained, asked)
    run = TrainingRun(
        batch_size=1 if largest else as_whole(asked.batch_size), samples=samples, epochs=asked.epochs,
        optimizer=asked.optimizer or (DECODER_OPTIMIZER if is_decoder else NETWORK_OPTIMIZER),
        coverage=COVERAGE if asked.coverage is None else asked.coverage,
        validation=asked.validation_samples,
        accumulate=1 if asked.accumulate is None else asked.accumulate,
        sharding=asked.sharding, link_gbps=asked.link_gbps, most=max((most_devices, *given)),
        data="" if asked.tokens is None else f"{arg('tokens')} {asked.tokens:,.15g} "
        f"({plural(samples or 0, 'sequence')} of {length:,})",
    )  # fmt: skip
    run.check_batch(max(given, default=1))
    plan: Plan
    if isinstance(trained, TrainedDecoder):
        plan = DecoderPlan.of(device, trained, run, asked, useful)
    else:
        plan = NetworkPlan.of(device, trained, run, asked, length, useful)
    listed = price_list(asked.prices) if asked.price_per_hour is None else None
    rent = partial(rental_of, plan.file, asked.price_per_hour, listed, plan.gib)
    if rental := rent() if is_decoder else rent(0):  # a small step fits into any card
        plan = replace(plan, machine=rental.largest_machine)
    limits, numbers = TrainingLimits(asked.max_hours, asked.max_dollars, bool(asked.sure)), given
    if not given and listed is None and limits != TrainingLimits():
        numbers = run.most_devices(SHARING)
    elif not given:
        needed = 0 if largest else None  # a card with less memory may hold a smaller iteration
        if not (largest or is_decoder or run.sharding != NONE):
            needed = plan.memory((), run.batch_size).total
        numbers = run.most_devices(instances_of(rent(needed)))
    if largest and plan.available is None:
        raise no_memory(device.label)
    at = partial(_option_at, rent=rent, limits=limits)
    groups = list[Group]()
    alike = tuple(k for k in numbers if k == 1), tuple(k for k in numbers if k > 1)  # have buckets
    for some in filter(None, alike) if run.sharding == NONE else [(k,) for k in numbers]:
        most = None if plan.available is None else plan.largest(some, plan.available)
        if most and largest:
            sizes = {k: auto_batch(plan, k, most, at) for k in some}
            groups += [(with_batch(plan, n), (k,), most) for k, n in sizes.items()]
        else:
            groups.append((plan, some, most))
    source = None if listed is None else listed.prices
    padding = 1.0 - useful / length if length else 0.0
    found = _answer(device, groups, limits, at, source)
    if listed is not None and found.prices is None:
        found = replace(found, price_list=f"{source}{slower_words(plan.file, listed)}")
    return replace(found, is_auto=largest, padding=padding)


Group = tuple[Plan, Sequence[int], int | None]
"""(plan, the numbers of devices that have this plan, the largest batch that fits on them)."""


def _group_of(option: TrainingPrediction, groups: Sequence[Group]) -> Group:
    return next(group for group in groups if option.devices in group[1])


def _option_at(
    plan: Plan, some: Sequence[int], devices: int, rent: Callable[[int], Rental | None],
    limits: TrainingLimits,
) -> tuple[TrainingPrediction, Rental | None]:  # fmt: skip
    """Predict training on `devices` devices; return the prediction and the offers (None if the iteration
    does not fit).

    `some`: the numbers of devices that have this plan. `rent`: bytes that an iteration needs -> offers of
    devices with so much memory.
    """
    size = plan.memory(some, plan.run.batch_size).total
    holds = None if plan.available is None else size <= plan.available
    rented = None if holds is False else rent(size)
    link = partial(plan.link, devices)
    option = option_of(plan, devices, link, plan.rental(rented, devices), limits)
    if option.memory_bytes is None:
        option = replace(option, fits=holds, memory_bytes=size)
    return option, rented


def headline(
    options: Sequence[TrainingPrediction], cheapest: int | None, fastest: int | None
) -> TrainingPrediction:
    """The option that stands for an answer: see `Cost.best`; `cheapest`, `fastest`: numbers of devices."""
    if number := cheapest or fastest:
        return next(o for o in options if o.devices == number)
    able = (o for o in options if o.fits is not False)
    return next(able, min(options, key=lambda o: (o.memory_bytes or 0, o.devices)))


def _answer(
    device: Device, groups: Sequence[Group], limits: TrainingLimits, at: At, price_list: str | None
) -> Cost:
    """Answer for all numbers of devices in `groups`; an option that does not fit has no price."""
    numbers, available = [k for _, some, _ in groups for k in some], groups[0][0].available
    options, rental = list[TrainingPrediction](), None
    for plan, some, most in groups:
        for k in some:
            option, rented = at(plan, some, k)
            options.append(replace(option, largest_batch=most, verdict=_verdict(option, limits)))
            rental = rental or rented
    able = [o for o in options if o.fits is not False]
    *bests, frontier = best_of(able, limits)
    cheapest, fastest = (o.devices if o else None for o in bests)
    about = ("batch_size", "accumulate", "samples", "epochs", "optimizer", "coverage", "sharding")
    plan, some, most = _group_of(headline(options, cheapest, fastest), groups)
    peak = plan.memory(some, plan.run.batch_size)
    lacking = (o for o in options if o.fits is False and able)
    warnings = [
        *plan.remarks(peak.parts, numbers),
        *(w for o in options for w in o.warnings),
        *(_no_room_on(_group_of(o, groups)[0], o) for o in lacking),
    ]
    about_plan, most_mfu = plan.about(numbers), max(o.mfu or 0.0 for o in options)
    # In other precisions convolutions may run in TF32, or by Winograd's algorithm.
    if about_plan["precision"] in {AMP, *HALVES} and most_mfu > 1.0:
        warnings.append(
            f"{percent(most_mfu)} of the data sheet's peak (MFU) is more than there is: the profile was "
            "fitted to wrong times, or to those of another number of GPUs"
        )
    if plan.run.sharding != NONE and max(numbers) == 1:
        warnings.append(
            f"--sharding {plan.run.sharding}: one device divides nothing (--replicas K)"
        )
    return Cost(
        form=form_and_memory(short_name(device.label), plan.gpu),
        model=plan.file.device, device=device.label, profile=device.profile, **about_plan,
        **{name: getattr(plan.run, name) for name in about}, **asdict(limits), cheapest=cheapest,
        fastest=fastest, frontier=tuple(o.devices for o in frontier), options=tuple(options),
        peak=peak.moment, memory=peak.parts, memory_bytes=peak.total, available_bytes=available,
        fits=None if available is None else bool(able), largest_batch=most,
        ways=() if able else tuple(plan.would_fit(numbers)),
        prices=rental.basis if rental else None, price_list=price_list,
        warnings=tuple(in_one(warnings)),
    )  # fmt: skip


def _verdict(option: TrainingPrediction, limits: TrainingLimits) -> str | None:
    """The field `verdict` of an option; None without limits."""
    word = verdict_on(option, limits)
    return (word and "no" if option.fits is False else word) or None


def _no_room_on(plan: Plan, option: TrainingPrediction) -> str:
    """The remark that an option lacks memory, with the largest batch and the options that would fit."""
    room, needed, devices = plan.available or 0, option.memory_bytes or 0, option.devices
    batch = plan.largest([devices], room)
    words = f"{byte_size(needed)} of {byte_size(room)}{close_words(needed, room)}"
    words += f"; batch {batch:,} fits" if batch else ""
    ways = [*plan.would_fit([devices])][:MOST_WAYS]
    helps = would_words(ways) or "; it fits with more devices"
    return f"{plural(devices, 'device')}: does not fit: {words}{helps}"


# ---- Prices.


def option_of(
    plan: Plan, devices: int, link: Callable[[int], Link | None], rental: Rental | None,
    limits: TrainingLimits,
) -> TrainingPrediction:  # fmt: skip
    """Predict training on `devices` rented devices, with the fastest of the cheapest offers.

    Among the offers within the limits, those with a total price of at most NEARLY times the lowest count as
    cheapest. If no offer is within the limits, the result is the cheapest of the fastest offers within the
    limit of money (times of at most NEARLY times the least). If no offer is within that limit, the result
    is the fastest of the cheapest of all offers.

    `link`: number of devices in a machine -> the link that the user gave; None: the link of the offer or,
    if nothing is rented, of the device.
    """
    if rental is None:
        usual = link(plan.file.machine) or (plan.file.link_of(devices) if devices > 1 else None)
        return plan.predicted(devices, usual).bought(limits)

    form = form_of(rental.hardware.kind)

    def on(offer: Offer) -> TrainingPrediction:
        its = link(offer.devices if offer.instance_type else plan.file.machine)
        its = its or (rental.link(devices, offer) if devices > 1 else None)
        found = plan.predicted(devices, its).bought(limits, rental.rented(devices, offer))
        rented = f"{offer.form} is rented, with its link"
        if not offer.form and has_several_chips(offer.accelerator):
            rented = f"{plain(offer.instance_type)} may have another: the price list does not say"
        elif offer.form in ("", form or offer.form):
            return found
        said = Remark(f"the times are those of the {form or 'PCIe'} card", rented)
        return replace(found, warnings=(*found.warnings, said))

    def price(option: TrainingPrediction) -> float:
        assert option.rented is not None
        return (option.total_s or option.iteration_ms) * option.rented.price_per_hour

    found = [*map(on, rental.offers_for(devices))]
    kept = [o for o in found if o.keeps(limits)]
    paid = [o for o in found if o.keeps(limits.of_money)]
    first, second = lambda o: o.iteration_ms, price
    if kept or not paid:
        first, second = second, first
    near = NEARLY * min(map(first, kept or paid or found))
    return min((o for o in kept or paid or found if first(o) <= near), key=second)

"""Predicts time, memory and price of training on one device or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lolat import readers
from lolat.device.file import OF_TRAINING, lacks
from lolat.device.predicting import no_memory
from lolat.device.prediction import no_room_words
from lolat.device.predictors.roofline import Roofline
from lolat.device.question import AUTO, as_whole, several
from lolat.device.running import as_written
from lolat.graph import Graph
from lolat.graph.analysis import as_trained, largest_fitting
from lolat.graph.backward import learns
from lolat.graph.modes import FLOAT32
from lolat.graph.network import ON_CPU
from lolat.hardware.gpus import (
    CPU,
    PRECISION_OF,
    Gpu,
    available_bytes,
    find_gpu,
    form_of,
    gpu_of,
    has_several_chips,
)
from lolat.hardware.links import Link, assumed_link, check_amount
from lolat.hardware.prices import (
    Offer,
    Prices,
    Rental,
    Rented,
    check_price,
    find_rental,
    hardware_of,
    instances_of,
    price_list,
    rental_of,
)
from lolat.io.results import Remark, Result, plain_data
from lolat.parameters import COVERAGE, optimizer_named
from lolat.training.epochs import EpochTraining
from lolat.training.estimate import EstimatedTraining, ForwardTraining
from lolat.training.measured import MeasuredGpuTraining, MeasuredTraining
from lolat.training.memory import Recipe, memory_at_peak, mixed_remarks, numbers_of, recipe_for
from lolat.training.model import Limits, Training, TrainingPrediction, TrainingRun, predict
from lolat.training.parallel import NONE, Parallel
from lolat.training.tuning import TIED, is_lora, is_tied, tuned
from lolat.units import dollars, duration, milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.device import Device


@dataclass(frozen=True, repr=False)
class Cost(Result):
    """Time, memory and money of training on each number of devices.

    `batch_size`: that of a micro-batch, of which an iteration has `accumulate`. `tune`, `checkpointing`:
    as asked for, None as the network says. `device`: the device profile as it was given. `precision`,
    `launch`: its execution mode; None if unknown. `channels_last`: True if images lie so. `estimated`:
    True if the answer follows from inference, because too little training was measured. `in_domain`: True
    if most of the time is inside the measured range; None if unknown.

    `options`: an answer for each number of devices, in the order asked for. `cheapest`, `fastest`: numbers
    of devices, the cheapest within `max_hours` and `max_dollars`, the fastest within `max_dollars`.
    `frontier`: numbers of devices that no other beats in both time and money, from the cheapest on. These
    are None or empty without samples or a price, and if an iteration does not fit into memory.

    `prices`: the source of the price; `price_list`: the list that was searched. `memory_bytes`: bytes of an
    iteration on each device at its `peak`, `memory`: by part; `recipe`: what a parameter takes of it, in
    words; `available_bytes`: those that a device has, None if unknown; `largest_batch`: the largest batch
    that fits. `other_cards`: remarks on cards of the same name with another memory, if an iteration does
    not fit or the largest batch is asked for.

    Of a decoder: `sequence_length`: tokens of a sequence; `batch_size`: sequences; `would_fit`: options
    with which it would, if it does not; `memory_bytes` is then that of the number of devices that needs the
    least.
    """

    KEYS = (
        "model", "device", "precision", "launch", "network", "batch_size", "samples", "epochs", "optimizer",
        "coverage", "estimated", "in_domain", "memory_bytes", "available_bytes", "fits", "largest_batch",
        "max_hours", "max_dollars", "prices", "price_list", "options", "cheapest", "fastest", "frontier",
        "other_cards", "warnings", "sequence_length", "accumulate", "sharding", "checkpointing", "tune",
        "peak", "memory", "would_fit", "recipe", "parameters", "trained_parameters", "channels_last",
    )  # fmt: skip

    model: str
    device: str
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
    largest_batch: int | None
    max_hours: float | None
    max_dollars: float | None
    prices: str | None
    price_list: str | None
    options: tuple[TrainingPrediction, ...]
    cheapest: int | None
    fastest: int | None
    frontier: tuple[int, ...]
    other_cards: tuple[str, ...]
    warnings: tuple[str, ...]
    sequence_length: int | None = None
    accumulate: int = 1
    sharding: str = NONE
    checkpointing: str | None = None
    tune: str | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    peak: str = ""
    would_fit: tuple[str, ...] = ()
    recipe: str = ""
    parameters: int | None = None
    trained_parameters: int | None = None
    channels_last: bool = False

    @property
    def limits(self) -> Limits:
        """The longest time and the most money."""
        return Limits(self.max_hours, self.max_dollars)

    @property
    def fits(self) -> bool | None:
        """True if an iteration fits into a device's memory; None if unknown."""
        return None if self.available_bytes is None else self.memory_bytes <= self.available_bytes

    def option(self, devices: int) -> TrainingPrediction:
        """Return the option with that number of devices."""
        return next(o for o in self.options if o.devices == devices)

    def words(self) -> str:
        """Return an iteration's time, or the cheapest and the fastest option, in words."""
        title = f"{plain(self.network)} on {plain(self.model)}, batch {self.batch_size}"
        if self.fits is False:
            return f"{title}: {no_room(self)}"
        if self.fastest is None:
            return f"{title}: {milliseconds(self.options[0].iteration_ms)} an iteration"
        names = {"cheapest": self.cheapest, "fastest": self.fastest}
        return "\n".join([title, *(f"{n}: {self.summary(k)}" for n, k in names.items() if k)])

    def summary(self, devices: int) -> str:
        """Return an option in words: devices, time, dollars."""
        option = self.option(devices)
        words = [plural(devices, "device"), duration(option.total_s or 0.0)]
        words += [] if option.dollars is None else [dollars(option.dollars)]
        return ", ".join(words)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each number of devices: times in ms and s, US$, both ends of each interval."""
        rows = []
        for option in self.options:
            row: dict[str, Any] = plain_data(option)
            row |= {f"{name}_ms": ms for name, ms in row.pop("parts_ms").items()}
            row |= row.pop("rented") or {}
            row["total_low_s"], row["total_high_s"] = row.pop("interval_s") or (None, None)
            row["dollars_low"], row["dollars_high"] = row.pop("dollars_interval") or (None, None)
            rows.append({k: v for k, v in row.items() if not isinstance(v, list)})
        return rows


def no_room(cost: Cost) -> str:
    """Return the sentence that an iteration does not fit, with the largest batch that does."""
    least = min((o.memory_bytes or cost.memory_bytes, o.devices) for o in cost.options)[1]
    room = cost.available_bytes or 0, cost.largest_batch or 0
    words = no_room_words(cost.memory_bytes, *room, least)
    others = f"; it would with {', or '.join(cost.would_fit)}" if cost.would_fit else ""
    return words + others


def training_of(document: Mapping[str, Any], source: str) -> Training:
    """Return how a device trains, by its file.

    The best source is taken: timed epochs, else measured training, else a formula of operations, else
    latencies of inference. ModelFileError, which begins with `source`, for a damaged section, or without
    any source.
    """
    if "epochs" in document:
        return EpochTraining(document, source)
    if "training" in document:
        kernels = document.get("predictors", {}).get(Roofline.name, {})
        if (kernels.get("host") or {}).get("training"):
            return MeasuredGpuTraining(document, source)
        return MeasuredTraining(document, source)
    if "predictors" not in document:
        raise lacks(document, source, OF_TRAINING)
    if Roofline.name in document["predictors"]:
        return EstimatedTraining(document)
    return ForwardTraining(document, source)


NEARLY = 1.1
"""Offers whose prices differ by less than this factor cost the same: links are assumed, times estimated."""
MUCH_MORE = 1.2
"""Another card is remarked on if it has this times the memory of the device."""


def read_trained(network: Any, input_size: Any = None) -> Graph:
    """Read a network and check that all of it can be trained; errors as of `lolat.read`."""
    return as_trained(readers.read(network, input_size))


def cost_on(
    device: Device, network: Any, batch_size: int | str, samples: int | None = None, epochs: int = 1,
    optimizer: str | None = None, coverage: float | None = None, *, replicas: int | Sequence[int] = 1,
    link_gbps: float | None = None, validation_samples: int | None = None,
    memory_gib: float | None = None, max_hours: float | None = None, max_dollars: float | None = None,
    price_per_hour: float | None = None, prices: str | Prices | None = None, input_size: Any = None,
    accumulate: int = 1, checkpointing: str | None = None, tune: str | None = None, sharding: str = NONE,
) -> Cost:  # fmt: skip
    """Predict the cost of training on `device`; arguments and errors as of `lolat.api.model.Model.cost`."""
    largest, limits = batch_size == AUTO, Limits(max_hours, max_dollars)
    run = TrainingRun(
        1 if largest else as_whole(batch_size), samples, epochs, optimizer or "sgd",
        COVERAGE if coverage is None else coverage, validation_samples, accumulate, sharding,
    )  # fmt: skip
    training = training_of(device.document, device.source)
    check_limits(price_per_hour, prices, memory_gib, **asdict(limits))
    available = available_bytes(training.document)
    if memory_gib is not None:
        available = max(Gpu("", memory_gib).usable_bytes or 0, 0)
    if largest and available is None:
        raise no_memory(device.label)
    link = None if link_gbps is None else Link(link_gbps)
    listed = price_list(prices) if price_per_hour is None else None
    asked = (training.document, price_per_hour, listed, memory_gib)
    numbers = given = tuple(dict.fromkeys(as_whole(n, "replicas") for n in several(replicas)))
    if largest and not numbers:
        numbers = run.most_devices(instances_of(rental_of(*asked)))
    run.check_batch(max(numbers, default=1))
    graph = tuned(read_trained(network, input_size), tune, checkpointing)  # last, as it takes long
    training = training_of(as_written(device, graph).document, device.source)
    recipe = recipe_for(graph, optimizer_named(run.optimizer), training.mode, is_lora(tune))

    def at_peak(batch_size: int) -> tuple[str, dict[str, int]]:
        shards = Parallel(min(numbers, default=1), None, sharding).shards
        several = max(numbers, default=2) > 1
        return memory_at_peak(graph, batch_size, recipe, training.mode, several, shards, accumulate)

    batch_for = partial(largest_fitting, lambda n: sum(at_peak(n)[1].values()))
    most = None if available is None else batch_for(available)
    if most and largest:
        run = replace(run, batch_size=run.filled(most, max(numbers) * run.accumulate))
    # A card with less memory may hold this iteration.
    rental = rental_of(*asked, sum(at_peak(run.batch_size)[1].values()))
    numbers = numbers or run.most_devices(instances_of(rental))
    peak, memory = at_peak(run.batch_size)
    fits = available is None or sum(memory.values()) <= available
    rental = rental if fits else None  # what does not run has no price
    more = training.document, link, rental, limits
    options = tuple(option_of(partial(predict, training, graph, run), k, *more) for k in numbers)
    return Cost(
        device=device.label,
        **_about(training, graph, run, recipe), tune=tune or None, checkpointing=checkpointing or None,
        peak=peak, memory=memory, memory_bytes=sum(memory.values()), available_bytes=available,
        largest_batch=most, **asdict(limits), prices=rental.prices if rental else None, options=options,
        price_list=listed.prices if listed else None, **best_numbers(options if fits else (), limits),
        other_cards=tuple(_other_cards(asked, rental, given, batch_for if largest else None)),
        warnings=(*_assumed(training, graph, optimizer, device.asked_precision),
                  *_remarks(graph, run, recipe, memory, tune), *warnings_of(options)),
    )  # fmt: skip


def _remarks(
    graph: Graph, run: TrainingRun, recipe: Recipe, memory: Mapping[str, int], tune: str | None
) -> Iterator[str]:
    """Yield remarks on half precision, a tied head, and what is in training only, which is not counted."""
    if is_tied(graph, tune):
        yield TIED
    needed, optimizer = sum(memory.values()), optimizer_named(run.optimizer)
    yield from mixed_remarks(numbers_of(graph).trained, needed, recipe, optimizer)
    still = any(o.kind == "batch_norm" and not learns(o) for o in graph.operations)
    if still and graph.framework == "torch":
        yield (
            "batch normalizations that are frozen still compute the statistics of the batch, as they do in "
            "training mode"
        )
    kinds = {o.kind for o in graph.operations}
    if graph.framework == "onnx" and kinds.isdisjoint(("batch_norm", "dropout")):
        yield Remark(
            "an ONNX file without batch normalization and dropout",
            "exports for inference lack them, and training takes more time and memory with them; "
            "expected the network itself, or an export with training=TrainingMode.TRAINING",
        )


def _assumed(
    training: Training, graph: Graph, optimizer: str | None, precision: str | None
) -> Iterator[str]:
    """Yield remarks on the optimizer assumed of networks with attention, and on what is not counted."""
    mode, on_cpu = training.mode, training.document["environment"].get("device") == CPU
    if optimizer is None and any(o.kind in ("attention", "softmax") for o in graph.operations):
        full = precision is None and not on_cpu and mode is not None and mode.dtype == FLOAT32
        yield (
            f"sgd{' in fp32' * full} is assumed, and networks with attention are mostly trained by "
            f"adamw{' in half precision' * full}: --optimizer adamw{', --precision amp or bf16' * full}"
        )
    if found := [what for what in graph.training_only if on_cpu or ON_CPU not in what]:
        yield f"in training only, and not counted: {', '.join(found)}"


def check_limits(
    price_per_hour: float | None = None, prices: str | Prices | None = None,
    memory_gib: float | None = None, **limits: Any,
) -> None:  # fmt: skip
    """Raise InputError for two prices, and impossible numbers."""
    check_price(price_per_hour, prices)
    if memory_gib is not None:
        check_amount("memory_gib", memory_gib)
    for name in ("max_hours", "max_dollars"):
        if limits.get(name) is not None:
            check_amount(name, limits[name])


def _about(training: Training, graph: Graph, run: TrainingRun, recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a Cost about the question, the network and the execution mode."""
    learned = numbers_of(graph)
    names = ("batch_size", "accumulate", "samples", "epochs", "optimizer", "coverage", "sharding")
    mode = training.mode
    return {
        **{name: getattr(run, name) for name in names},
        "model": training.name,
        "network": graph.name,
        "parameters": learned.trained + learned.frozen,
        "trained_parameters": learned.trained,
        "recipe": recipe.words(learned.frozen > 0),
        "precision": None if mode is None else PRECISION_OF[mode.dtype],
        "launch": None if mode is None else mode.launch,
        "channels_last": mode is not None and mode.channels_last,
        "estimated": training.estimated,
        "in_domain": training.in_domain(graph, run.batch_size),
    }


def _other_cards(
    asked: tuple[Any, ...], rental: Rental | None, replicas: Sequence[int],
    batch_for: Callable[[float], int] | None,
) -> Iterator[str]:  # fmt: skip
    """Yield remarks on cards with another memory, see `Cost.other_cards`.

    `asked`: arguments of `rental_of`. `rental`: None if the iteration does not fit. `batch_for`: bytes ->
    the largest batch; None if nobody asks for it.
    """
    document, price_per_hour, listed, memory_gib = asked
    own = gpu_of(document)
    if price_per_hour is not None or memory_gib or (rental is not None and batch_for is None):
        return
    if own is not None and own.memory_gib is not None:
        larger = find_rental(document, listed, MUCH_MORE * own.memory_gib)
        names = {o.accelerator: find_gpu(o.accelerator) for o in larger.offers} if larger else {}
        if known := {gpu.memory_gib: n for n, gpu in names.items() if gpu and gpu.memory_gib}:
            gib = min(known)
            yield f"{plain(known[gib])} with {gib:g} GiB is rented too: --memory-gib {gib:g} counts on it"
    if rental is not None and batch_for is not None:
        # All offers, those with cards too small for this batch too.
        every = rental_of(document, None, listed, step_bytes=0) or rental
        said = every.cheaper_than(rental, replicas or instances_of(every), batch_for)
        yield from [said] if said else []


def option_of(
    predicted: Callable[[int, Link | None], TrainingPrediction], devices: int,
    document: Mapping[str, Any], link: Link | None, rental: Rental | None, limits: Limits,
) -> TrainingPrediction:  # fmt: skip
    """Predict training on `devices` devices of an offer: the fastest of those that cost least.

    These are the offers within the limits with a total price of at most NEARLY that of the cheapest.

    `predicted`: (devices, link) -> the prediction without a price. `document`: the device's file. `link`:
    None stands for the offer's link, or the device's usual one if nothing is rented.
    """
    if rental is None:
        if link is None and devices > 1:
            link = assumed_link(hardware_of(document), devices)
        return predicted(devices, link).bought(limits)

    form = form_of(rental.device)

    def on(offer: Offer) -> TrainingPrediction:
        its = link or (rental.link(devices, offer) if devices > 1 else None)
        found = _priced(predicted(devices, its), rental.rented(devices, offer)).bought(limits)
        rented = f"{offer.form} is rented, with its link"
        if not offer.form and has_several_chips(offer.accelerator):
            rented = f"{plain(offer.instance_type)} may have another: the price list does not say"
        elif not offer.form and form and devices > 1 and offer.instance_type:
            rented = "and so are the links, as the price list does not say what form is rented"
        elif offer.form in ("", form or offer.form):
            return found
        said = Remark(f"the times are those of the {form or 'PCIe'} card", rented)
        return replace(found, warnings=(*found.warnings, said))

    def price(option: TrainingPrediction) -> float:
        assert option.rented is not None
        return (option.total_s or option.iteration_ms) * option.rented.price_per_hour

    found = [*map(on, rental.offers_for(devices, linked=False))]
    kept = [o for o in found if limits.keeps(o.total_s or 0.0, o.dollars or 0.0)] or found
    most = NEARLY * min(map(price, kept))
    return min((o for o in kept if price(o) <= most), key=lambda o: (o.iteration_ms, price(o)))


def warnings_of(options: Sequence[TrainingPrediction]) -> tuple[str, ...]:
    """Return the remarks on these options, each once."""
    return tuple(dict.fromkeys(remark for option in options for remark in option.warnings))


def best_of(options: Sequence[Any], limits: Limits) -> dict[str, Any]:
    """Return the cheapest option within the limits, the fastest within that of money, and the frontier.

    The frontier has the options that no other beats in both time and money, from the cheapest on. An option
    has `total_s`, `dollars` and `devices`; those without a time are left out.
    """
    timed = [o for o in options if o.total_s is not None]
    paid = [o for o in timed if o.dollars is not None]
    of_both = {(o.total_s, o.dollars) for o in paid}
    good = [
        o for o in paid
        if not any(t <= o.total_s and d <= o.dollars for t, d in of_both - {(o.total_s, o.dollars)})
    ]  # fmt: skip
    return {
        "cheapest": min((o for o in paid if limits.keeps(o.total_s, o.dollars)),
                        key=lambda o: (o.dollars, o.total_s, o.devices), default=None),
        "fastest": min((o for o in timed if limits.of_money.keeps(o.total_s, o.dollars)),
                       key=lambda o: (o.total_s, o.dollars or 0.0, o.devices), default=None),
        "frontier": tuple(sorted(good, key=lambda o: o.dollars)),
    }  # fmt: skip


def best_numbers(options: Sequence[TrainingPrediction], limits: Limits) -> dict[str, Any]:
    """Return `best_of` these options, by their numbers of devices."""
    best = best_of(options, limits)
    named = {name: best[name] and best[name].devices for name in ("cheapest", "fastest")}
    return named | {"frontier": tuple(o.devices for o in best["frontier"])}


def _priced(option: TrainingPrediction, rented: Rented) -> TrainingPrediction:
    """Add the rented instances and their price, paid by the second, to an option."""
    times_s = None if option.total_s is None else (option.total_s, *(option.interval_s or ()))
    if times_s is None:
        return replace(option, rented=rented)
    total, *ends = (seconds / 3600 * rented.price_per_hour for seconds in times_s)
    both = (ends[0], ends[1]) if ends else None
    return replace(option, rented=rented, dollars=total, dollars_interval=both)

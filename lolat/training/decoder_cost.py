"""Answers what training or fine-tuning a decoder costs, on one GPU or several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lolat.device.file import OF_LANGUAGE_MODELS, lacks
from lolat.device.intervals import conformal_quantile
from lolat.device.question import AUTO, as_whole, several
from lolat.errors import InputError, arg
from lolat.graph.analysis import largest_fitting
from lolat.graph.modes import BFLOAT16, EAGER
from lolat.hardware.gpus import GIB, UNUSABLE_BYTES, find_gpu, name_of
from lolat.hardware.links import MACHINE, UNKNOWN_NETWORK, Link, assumed_link
from lolat.hardware.prices import (
    Prices,
    Rental,
    hardware_of,
    instances_of,
    price_list,
    rental_of,
)
from lolat.io.results import Remark
from lolat.llm.domain import UNTIMED
from lolat.llm.gpu import GPU, ServingSection, section_of
from lolat.parameters import COVERAGE, PARAMETERS, optimizer_named
from lolat.training.cost import Cost, best_numbers, check_limits, option_of, warnings_of
from lolat.training.decoder import DecoderStep, TrainedDecoder, tuned_recipe
from lolat.training.memory import Recipe, mixed_remarks
from lolat.training.model import Limits, TrainingPrediction, TrainingRun
from lolat.training.parallel import FSDP, HYBRID, NONE, Parallel, check_sharding
from lolat.training.passes import DecoderPasses, Tuning
from lolat.training.tuning import TIED

if TYPE_CHECKING:
    from lolat.device import Device

PRECISION, OPTIMIZER = "amp", "adamw"
"""Those of a decoder if not given."""
SMALL = "adamw8bit"
"""An optimizer with states of a byte."""
KNOWN = ("A100 SXM", "H100 SXM")
"""GPUs with published runs, by their data sheets' names; on others times are estimated."""
LONGEST, MOST_GPUS = 65536, 512
"""Tokens of the longest sequences, and the most GPUs, of published runs."""
LEFT_OUT = (
    0.001, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01, 0.011, 0.012, 0.016, 0.019, 0.02, 0.02, 0.022, 0.024,
    0.026, 0.027, 0.031, 0.033, 0.034, 0.038, 0.039, 0.042, 0.05, 0.053, 0.054, 0.057, 0.058, 0.06, 0.065,
    0.07, 0.077, 0.087, 0.093, 0.102, 0.113, 0.181, 0.26, 0.287,
)  # fmt: skip
"""Quantiles of |log(published / predicted)| of runs of decoders that the constants are not chosen on;
benchmarks/training_decoders.py prints them."""
UNMEASURED = 1.5
"""Factor of the interval on a GPU without published runs, and of what none of them did: LoRA, frozen
layers, another way to checkpoint."""


def is_known(section: ServingSection, device: str, step: DecoderPasses) -> bool:
    """Return True if own rows set the level of a GPU, or runs like this one were published for it."""
    if step.tuning.is_partial or step.checkpointing == "selective" or step.length > LONGEST:
        return False
    gpu = find_gpu(device)
    is_published = gpu is not None and gpu.name.startswith(KNOWN)
    return section.trained is not None or (section.is_timed and is_published)


def half_width(section: ServingSection, device: str, step: DecoderPasses, coverage: float) -> float:
    """Return half of the width of a time's interval, as a logarithm."""
    half, usual = (conformal_quantile(LEFT_OUT, c) for c in (coverage, COVERAGE))
    if is_known(section, device, step):
        return half
    of_sheet = 0.0 if section.trained or section.is_timed else UNTIMED
    return half * max(UNMEASURED, of_sheet / usual)


def card_gib(document: Mapping[str, Any], section: ServingSection) -> float:
    """Return the GiB of a card that the driver tells, or without a data sheet those of the section."""
    gib = section.sheet.memory_gib
    gpu = find_gpu(f"{name_of(document)} {gib:.0f}gb")
    return gpu.memory_gib if gpu and gpu.memory_gib else gib


@dataclass(frozen=True)
class DecoderRun:
    """Training a decoder on a GPU: `trained`, how, and `run`, how long.

    `batch`: sequences of a micro-batch on a GPU, `accumulate` of which make an iteration of `run`.
    `useful`: tokens of a sequence that are no padding.
    """

    section: ServingSection
    device: str
    trained: TrainedDecoder
    run: TrainingRun
    recipe: Recipe
    batch: int
    accumulate: int
    useful: float
    sharding: str
    checkpointing: str
    tuning: Tuning
    launch: Any

    def step(self, batch: int | None = None) -> DecoderStep:
        """Return a micro-batch of the run, or one of another size."""
        passes = DecoderPasses(
            *self.trained, batch or self.batch, self.checkpointing, self.tuning, self.launch
        )
        return DecoderStep(passes, self.recipe)

    def tuned(self, tuning: Tuning, dtype: str = "", optimizer: str = "") -> DecoderRun:
        """Return the run with another tuning, data type or optimizer."""
        recipe = self.recipe
        updates = optimizer_named(optimizer or recipe.optimizer)
        return replace(
            self, tuning=tuning, recipe=tuned_recipe(dtype or recipe.dtype, updates, tuning)
        )

    def parallel(self, devices: int, link: Link | None = None) -> Parallel:
        """Return so many GPUs that train together."""
        within = assumed_link(self.device, min(devices, MACHINE))
        return Parallel(devices, link, self.sharding, within)

    def link(self, devices: int, gbps: float) -> Link:
        """Return the link of GPUs whose own has so many Gbit/s; those of a machine use all of theirs.

        Nothing is faster between machines than inside one.
        """
        within = assumed_link(self.device, min(devices, MACHINE))
        return Link(gbps if devices <= MACHINE else min(MACHINE * gbps, max(within.gbps, gbps)))

    def at_most(self, devices: int, gbps: float | None) -> Iterator[str]:
        """Yield a remark if `link` is slower than those of all GPUs of a machine together."""
        every = MACHINE * (gbps or 0.0)
        if devices > MACHINE and gbps and (used := self.link(devices, gbps).gbps) < every:
            yield (
                f"--link-gbps {gbps:g}: {MACHINE} x {gbps:g} = {every:g} Gbit/s between machines, at most "
                f"the {used:g} of {assumed_link(self.device, MACHINE).name}"
            )

    def memory(self, devices: int, batch: int | None = None) -> tuple[str, dict[str, int]]:
        """Return the moment at which a GPU needs most, and its bytes by part."""
        moment, parts = self.step(batch).memory(self.parallel(devices), self.accumulate)
        return moment, {name: int(size) for name, size in parts.items()}

    def needed(self, devices: int, batch: int) -> int:
        """Return the bytes that a GPU needs."""
        return sum(self.memory(devices, batch)[1].values())

    @property
    def is_known(self) -> bool:
        """True if own rows set the level, or runs like this one were published for the GPU."""
        return is_known(self.section, self.device, self.step().passes)

    def predicted(self, available: float, devices: int, link: Link | None) -> TrainingPrediction:
        """Predict training on `devices` GPUs, each with so many bytes, joined by `link`."""
        self.run.check_batch(devices)
        own = self.section.trained
        level, gpu, step = own.level if own else 1.0, GPU(self.section), self.step()

        def parts(over: Link | None, its: DecoderStep = step) -> dict[str, float]:
            found = its.iteration_ms(gpu, self.parallel(devices, over), self.accumulate)
            return {name: level * ms for name, ms in found.items()}

        found, ends = parts(link), () if link is None else link.ends
        hidden, exchange = found.pop("hidden"), found["exchange"]
        total = sum(found.values())
        is_slow = False
        if step.passes.casts:  # adapters in float32
            full = parts(link, self.tuned(Tuning()).step())
            is_slow = total > sum(full.values()) - full["hidden"]
        sequences = devices * self.batch * self.accumulate
        per_s = 1e3 * sequences / total
        each_s = per_s * self.useful / devices
        peak = 1e12 * self.section.sheet.bf16_tflops
        needed = self.needed(devices, self.batch)
        made = TrainingPrediction(
            devices, None if link is None else link.name, None if link is None else link.gbps, total,
            dict(found), hidden, per_s, tokens_per_s=each_s * devices, tokens_per_s_per_gpu=each_s,
            mfu=each_s * step.passes.flops() / peak, memory_bytes=needed, fits=needed <= available,
            warnings=tuple(self._remarks(devices, needed, is_slow)),
        )  # fmt: skip
        if self.run.samples is None:
            return made
        iterations = -(-self.run.samples // sequences)
        times = self.run.epochs * iterations / 1e3
        factor = math.exp(half_width(self.section, self.device, step.passes, self.run.coverage))
        short, long = [parts(end)["exchange"] for end in ends] or [exchange] * 2
        alone = total - exchange
        return replace(
            made, iterations=iterations, epoch_s=iterations * total / 1e3, total_s=times * total,
            interval_s=(times * (alone / factor + short), times * (alone * factor + long)),
        )  # fmt: skip

    def _remarks(self, devices: int, needed: int, is_slow: bool) -> Iterator[str]:
        """Yield remarks; `is_slow`: adapters in float32 take longer than full training."""
        step, optimizer = self.step(), optimizer_named(self.recipe.optimizer)
        states = float(step.numbers()[0].sum()) / self.parallel(devices).shards.states
        yield from mixed_remarks(states, needed, self.recipe, optimizer)
        if step.passes.casts and (is_slow or not self.recipe.copy):
            half = f"--tune {replace(self.tuning, half=True).words()}"
            slow = ", and slower than full training" * is_slow
            yield (
                f"adapters are in float32, as PEFT makes them{slow}; {half} has them "
                "in bfloat16 (PEFT: autocast_adapter_dtype=False)"
            )
        rest = ", with a wider interval; own runs set the level: `lolat fit`"
        if not (self.section.trained or self.section.is_timed):
            sheet = "its time is from its data sheet and the operations of other GPUs"
            yield Remark("no operation was timed on this GPU", sheet + rest)
        elif not self.is_known and not self.section.trained:
            alone = "its time is from the kernels alone"
            yield Remark("no published run is like this one", alone + rest)
        if self.tuning.frozen > step.passes.untouched:
            yield TIED
        if self.trained.decoder.tower_remark:
            yield self.trained.decoder.tower_remark
        context = self.trained.decoder.context
        if 0 < context < self.trained.length:
            yield f"{self.trained.decoder.name} was published for {context:,} tokens"

    def would_fit(self, available: float, devices: int) -> Iterator[str]:
        """Yield options of `lolat cost` with which an iteration fits, the smallest changes first."""
        checkpointed = replace(self, checkpointing="full")
        more = [k for k in (2, 4, *range(MACHINE, MOST_GPUS + 1, MACHINE)) if k > devices]
        lora = self.tuned(Tuning(rank=16))
        ways: list[tuple[str, DecoderRun, Sequence[int]]] = [
            ("--checkpointing full", checkpointed, [devices]),
            (f"--optimizer {SMALL}", self.tuned(self.tuning, optimizer=SMALL), [devices]),
            ("--precision bf16", self.tuned(self.tuning, BFLOAT16), [devices]),
            ("--sharding fsdp", replace(self, sharding=FSDP), [devices, *more]),
            ("--sharding fsdp --checkpointing full", replace(checkpointed, sharding=FSDP),
             [devices, *more]),
            ("--tune lora:16", lora, [devices]),
            ("--tune lora:16 --checkpointing full", replace(lora, checkpointing="full"), [devices]),
        ]  # fmt: skip
        tried = [(self, devices)]
        for words, run, numbers in ways:
            if (run, numbers[-1]) in tried:
                continue
            tried.append((run, numbers[-1]))
            fitting = (k for k in numbers if run.needed(k, self.batch) <= available)
            if number := next(fitting, None):
                yield words + f" --replicas {number}" * (number != devices)


def decoder_cost_on(
    device: Device, trained: TrainedDecoder, batch_size: int | str, samples: int | None = None,
    epochs: int = 1, optimizer: str | None = None, coverage: float | None = None, *,
    replicas: int | Sequence[int] = 1, link_gbps: float | None = None,
    validation_samples: int | None = None, memory_gib: float | None = None,
    max_hours: float | None = None, max_dollars: float | None = None,
    price_per_hour: float | None = None, prices: str | Prices | None = None,
    accumulate: int = 1, checkpointing: str = "none", tune: str = "full", sharding: str = NONE,
    tokens: float | None = None, mean_tokens: float | None = None,
) -> Cost:  # fmt: skip
    """Predict the cost of training a decoder; arguments and errors as of `lolat.api.model.Model.cost`."""
    if "llm" not in device.document:
        raise lacks(device.document, device.source, OF_LANGUAGE_MODELS)
    if validation_samples is not None:
        raise InputError(
            f"{arg('validation_samples')}: only of networks; leave it out", code="no-evaluation"
        )
    check_sharding(sharding)
    section = section_of(device.document, device.source)
    useful = useful_tokens(mean_tokens, trained.length)
    samples = samples_of(samples, tokens, useful)
    limits, tuning = Limits(max_hours, max_dollars), Tuning.named(tune, trained.decoder.layers)
    check_limits(price_per_hour, prices, memory_gib, **asdict(limits))
    largest, each = batch_size == AUTO, as_whole(accumulate, "accumulate")
    batch = 1 if largest else as_whole(batch_size)
    name = optimizer or OPTIMIZER
    updates = optimizer_named(name)
    recipe = tuned_recipe(device.asked_precision or PRECISION, updates, tuning)
    sure = COVERAGE if coverage is None else coverage
    run = TrainingRun(batch * each, samples, epochs, name, sure)
    asked = DecoderRun(
        section, hardware_of(device.document), trained, run, recipe, batch, each, useful, sharding,
        checkpointing, tuning, device.asked_launch or EAGER,
    )  # fmt: skip
    listed = price_list(prices) if price_per_hour is None else None
    gib = memory_gib or card_gib(device.document, section)
    priced = device.document, price_per_hour, listed, gib
    given = tuple(dict.fromkeys(as_whole(n, "replicas") for n in several(replicas)))
    numbers = given or run.most_devices(instances_of(rental_of(*priced)))
    available = max(int(gib * GIB) - UNUSABLE_BYTES, 0)
    # On each number of GPUs that was asked for and on which one sequence fits, else on the largest number.
    found = (largest_fitting(partial(asked.needed, k), available) for k in given or [max(numbers)])
    most = min(filter(None, found), default=0)
    if largest and most:
        fitting = run.filled(most, max(numbers) * each)
        asked = replace(asked, batch=fitting, run=replace(run, batch_size=fitting * each))
    return _answer(device, asked, numbers, link_gbps, available, most, limits, priced)


def _of_machines(rental: Rental | None, devices: int, is_linked: bool) -> Rental | None:
    """Keep the offers of whole machines, if there are some, as `Parallel` takes them.

    Unless `is_linked`, the network between them is known; InputError if there is none.
    """
    offers = rental.offers if rental else ()
    if rental is not None and not is_linked:
        offers = tuple(o for o in offers if rental.link(devices, o).name != UNKNOWN_NETWORK)
    if not offers and not is_linked:
        raise InputError(
            f"{arg('replicas')} {devices}: no offer in the price list says how its machines are joined; "
            f"expected {arg('link_gbps')}, the Gbit/s of each GPU's network, such as 400",
            code="no-network",
        )
    whole = tuple(o for o in offers if o.devices >= MACHINE or not o.instance_type)
    return rental and replace(rental, offers=whole or offers)


def useful_tokens(mean_tokens: float | None, length: int) -> float:
    """Return the tokens of a sequence that are no padding."""
    if mean_tokens is None:
        return float(length)
    PARAMETERS["mean_tokens"].check([mean_tokens])
    if mean_tokens > length:
        raise InputError(
            f"{arg('mean_tokens')} {mean_tokens:g}: more than the {length:,} tokens of a sequence; "
            "expected the mean of the samples, each of which is padded to a sequence"
        )
    return float(mean_tokens)


def samples_of(samples: int | None, tokens: float | None, useful: float) -> int | None:
    """Return the sequences of the data, given as such or in tokens."""
    if tokens is None:
        return samples
    if samples is not None:
        raise InputError(
            f"{arg('tokens')} and {arg('samples')}: both say how much data; expected one"
        )
    PARAMETERS["tokens"].check([tokens])
    return max(math.ceil(tokens / useful), 1)


def _answer(
    device: Device, asked: DecoderRun, numbers: Sequence[int], link_gbps: float | None, available: int,
    most: int, limits: Limits, priced: tuple[Mapping[str, Any], Any, Any, Any],
) -> Cost:  # fmt: skip
    """Answer for each number of GPUs; those whose memory does not suffice have no price."""
    needed = {k: asked.needed(k, asked.batch) for k in numbers}
    least = min(numbers, key=needed.__getitem__)
    fits, run = needed[least] <= available, asked.run
    rental = rental_of(*priced, needed[least]) if fits else None

    def option(k: int) -> TrainingPrediction:
        # Beside several machines, that of one keeps its own.
        is_own = link_gbps is None or k <= MACHINE < max(numbers)
        link = None if is_own else asked.link(k, link_gbps or 0.0)
        renting = rental if needed[k] <= available else None
        if k > MACHINE and needed[k] <= available:
            renting = _of_machines(renting, k, link is not None)
        predicted = partial(asked.predicted, available)
        return option_of(predicted, k, device.document, link, renting, limits)

    try:
        options = tuple(map(option, numbers))
    except InputError as error:
        within = tuple(k for k in numbers if k <= MACHINE)
        if error.code != "no-network" or not within:
            raise
        others = ", ".join(str(k) for k in numbers if k > MACHINE)
        left = (
            f"{others} GPUs are left out: no offer in the price list says how its machines are joined "
            "(--link-gbps N: the Gbit/s of each GPU's network)"
        )
        found = _answer(device, asked, within, link_gbps, available, most, limits, priced)
        return replace(found, warnings=(left, *found.warnings))
    step = asked.step()
    trained, every = (round(n.sum()) for n in step.numbers())
    peak, memory = asked.memory(least)
    whole = asked.sharding not in (FSDP, HYBRID)
    recipe = asked.recipe if whole else replace(asked.recipe, copy=0.0)
    told = f"{asked.trained.decoder.name} {asked.trained.length:,} tokens"
    return Cost(
        model=str(device.document["device"]), device=device.label,
        precision=device.asked_precision or PRECISION, launch=asked.launch, network=told,
        batch_size=asked.batch, samples=run.samples, epochs=run.epochs, optimizer=run.optimizer,
        coverage=run.coverage, estimated=not asked.is_known,
        in_domain=asked.is_known and max(numbers) <= MOST_GPUS,
        memory_bytes=needed[least], available_bytes=available, largest_batch=most, **asdict(limits),
        prices=rental.prices if rental else None, price_list=priced[2].prices if priced[2] else None,
        options=options,
        **best_numbers([o for o in options if o.fits], limits), other_cards=(),
        warnings=(*asked.at_most(max(numbers), link_gbps), *warnings_of(options)),
        sequence_length=asked.trained.length, accumulate=asked.accumulate,
        sharding=asked.sharding, checkpointing=asked.checkpointing, tune=asked.tuning.words(),
        memory=memory, peak=peak,
        recipe=recipe.words(asked.tuning.is_partial), trained_parameters=trained,
        parameters=every + trained * bool(asked.tuning.rank),
        would_fit=() if fits else tuple(asked.would_fit(available, least)),
    )  # fmt: skip

"""The prediction of training on a number of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lolat.errors import AnswerIsNo, InputError, arg
from lolat.graph import Graph
from lolat.graph.dtypes import FLOAT_BYTES
from lolat.graph.modes import DEFAULT_MODE
from lolat.hardware.links import CLUSTER, UNKNOWN_NETWORK, Link
from lolat.hardware.rental import Rented
from lolat.io.results import Remark, Result
from lolat.optimizers import OPTIMIZERS
from lolat.training.parallel import FSDP, ZERO2, Parallel, frozen_weights, gradients
from lolat.training.predictor import Iteration, TrainingPredictor
from lolat.training.run import TrainingLimits, TrainingRun
from lolat.units import dollars, duration


@dataclass(frozen=True)
class TrainingPrediction:
    """The prediction of training on `devices` devices.

    `batch_size`: samples of a micro-batch; `largest_batch`: the largest that fits. `link`, `link_gbps`:
    name and Gbit/s of the link that joins the devices; the user's link has no name. `iteration_ms`: time of
    an update with all its micro-batches, with the interval `interval_ms`. `parts_ms`: forward, backward,
    update (None if they are only known together) and the wait for the exchange; they add up to
    `iteration_ms`. `hidden_ms`: the exchange during the backward pass, which adds no time. `samples_per_s`:
    samples of all devices in full iterations. `epoch_s`: an epoch after the first, with `evaluation_s` for
    the validation samples; `startup_s`: the additional time of the first epoch; `total_s`: the whole
    training, with the interval `interval_s`. `dollars`: the price of `total_s` on the `rented` machines. A
    field is None if it is unknown or was not asked for.

    `tokens_per_s`: tokens of all devices, `tokens_per_s_per_gpu`: tokens of each device, both without
    padding; None if samples are not texts. `mfu`: FLOPs a second divided by the data sheet's peak in the
    precision. FLOPs of a sample are those of its products in both passes; a token of a decoder has 6 for
    each parameter and 12 x layers x width x length, without frozen weights and padding. `memory_bytes`:
    memory that a device needs; `fits`: True if the device has it.

    `verdict` on the limits of time and money: "yes" if the whole intervals keep them, "likely" if the
    predicted time and price keep them, "unlikely" if only a part of an interval does, "no" if no part does
    or memory lacks; "no price" if money is limited and no price is known. Without a data set there is no
    verdict: `data_within_limits` has the samples (of texts: tokens) that the limits allow, with the
    interval `data_within_interval`.
    """

    devices: int
    link: str | None
    link_gbps: float | None
    iteration_ms: float
    parts_ms: Mapping[str, float | None]
    hidden_ms: float
    samples_per_s: float
    iterations: int | None = None
    epoch_s: float | None = None
    evaluation_s: float | None = None
    startup_s: float | None = None
    total_s: float | None = None
    interval_s: tuple[float, float] | None = None
    rented: Rented | None = None
    dollars: float | None = None
    dollars_interval: tuple[float, float] | None = None
    warnings: tuple[str, ...] = ()
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    fits: bool | None = None
    data_within_limits: int | None = None
    data_within_interval: tuple[int, int] | None = None
    interval_ms: tuple[float, float] | None = None
    batch_size: int = 1
    largest_batch: int | None = None
    verdict: str | None = None

    @property
    def machines(self) -> int | None:
        """Number of machines that the devices are in; None: several machines, of unknown number."""
        # A price that is given is of a device, whatever machine has it.
        number = self.rented.instances if self.rented and self.rented.instance_type else 1
        return None if number == 1 and self.link in (CLUSTER, UNKNOWN_NETWORK) else number

    def amounts(self, sure: bool = False) -> tuple[float, float | None]:
        """(seconds, US$) to compare with limits: the predicted values or, if `sure`, the upper ends of
        their intervals (infinite without an interval).
        """
        if not sure or self.total_s is None:
            return self.total_s or 0.0, self.dollars
        _, seconds = self.interval_s or (0.0, math.inf)
        _, usd = self.dollars_interval or (0.0, math.inf)
        return seconds, None if self.dollars is None else usd

    def keeps(self, limits: TrainingLimits) -> bool:
        """True if the option is within the limits."""
        return limits.keeps(*self.amounts(limits.sure))

    def bought(self, limits: TrainingLimits, rented: Rented | None = None) -> TrainingPrediction:
        """Add the rented instances and the price; without a data set, the amount of data that the limits
        allow.
        """
        found, price = replace(self, rented=rented), rented.price_per_hour if rented else None
        if self.total_s is not None and price is not None:
            total, *both = (s / 3600 * price for s in (self.total_s, *(self.interval_s or ())))
            between = (both[0], both[1]) if both else None
            return replace(found, dollars=total, dollars_interval=between)
        hours = limits.hours_of(price)
        if hours is None or self.total_s is not None or self.fits is False:
            return found
        each = 3600 * hours * (self.tokens_per_s or self.samples_per_s)
        short, long = self.interval_ms or (math.nan, math.nan)
        ends = each * self.iteration_ms / long, each * self.iteration_ms / short
        interval = (int(ends[0]), int(ends[1])) if self.interval_ms else None
        return replace(found, data_within_limits=int(each), data_within_interval=interval)


class Limited(Result):
    """An answer with limits of time and money; `timed`: its options that fit and have a time."""

    max_hours: float | None
    max_dollars: float | None
    sure: bool
    timed: list[TrainingPrediction]

    @property
    def limits(self) -> TrainingLimits:
        """The limits of time and money."""
        return TrainingLimits(self.max_hours, self.max_dollars, self.sure)

    def within(self) -> list[TrainingPrediction]:
        """The options within the limits."""
        return [o for o in self.timed if o.keeps(self.limits)]

    def least(self) -> tuple[TrainingPrediction, TrainingPrediction]:
        """The options with the fewest seconds and with the fewest US$; with `sure`, of their upper ends."""

        def order(option: TrainingPrediction, of_money: bool) -> tuple[float, float]:
            seconds, usd = option.amounts(self.sure)
            both = seconds, math.inf if usd is None else usd
            return both[::-1] if of_money else both

        fastest, cheapest = (min(self.timed, key=lambda o: order(o, way)) for way in (False, True))
        return fastest, cheapest

    def named(self, option: TrainingPrediction) -> str:
        """The number and the name of the devices of an option: "8 x h100"."""
        raise NotImplementedError

    @property
    def missed(self) -> str:
        """Words that no option is within the limits, with the fastest and cheapest one; "" if one is."""
        return f"{self.refusal}: {self.least_words()}" if self.refusal else ""

    @property
    def refusal(self) -> str:
        """Words that no option is within the limits; "" if one is."""
        return "" if self.within() or not self.timed else f"nothing is{self.limits.words()}"

    def least_words(self) -> str:
        """Words on the fastest and the cheapest option, with the time and price of each."""
        of = dict[str, str]()
        for way, option in zip(("fastest", "cheapest"), self.least(), strict=True):
            seconds, usd = option.amounts(self.sure)
            costs = ", no price is known" if usd is None else f", {dollars(usd)}"
            words = f"{self.named(option)}, {'up to ' * self.sure}{duration(seconds)}{costs}"
            of[words] = f"{of[words]} and {way}" if words in of else way
        found = [*of] if len(self.timed) == 1 else [f"{way} {words}" for words, way in of.items()]
        return "; ".join(found)

    @property
    def offered(self) -> str:
        """An option in another execution mode that keeps the limits, in words; "" without one."""
        return ""


def check_limits(answer: Limited, offered: str = "") -> None:
    """Raise AnswerIsNo if no option keeps the limits; `offered`: words on a way that would keep them."""
    limits, timed = answer.limits, answer.timed
    if not answer.refusal:
        return
    names = (arg(name) for name in ("max_hours", "max_dollars") if getattr(limits, name))
    higher = f"a higher {' or '.join(names)}"
    one, other = answer.least()
    fastest, cheapest = one.amounts(answer.sure)[0], other.amounts(answer.sure)[1]
    helps = f"expected more devices (--replicas), or {higher}"
    if not limits.of_money.keeps(fastest, cheapest):
        data = "samples" if timed[0].tokens_per_s is None else "tokens"
        helps = f"expected fewer {data} or epochs, or {higher}"
    elif limits.keeps(fastest, cheapest):
        helps = "raise one of the limits: no row keeps both"
    if offered := offered or answer.offered:
        helps = f"{offered} is within; or {helps.removeprefix('expected ')}"
    raise AnswerIsNo(f"{answer.refusal}; {helps}")


def predict(
    model: TrainingPredictor,
    graph: Graph,
    run: TrainingRun,
    devices: int = 1,
    link: Link | None = None,
    frozen_bytes: float = FLOAT_BYTES,
) -> TrainingPrediction:
    """Predict training on `devices` devices; several need the `link` that joins them.

    `frozen_bytes`: bytes of a frozen parameter, which zero2 and fsdp gather too. Samples are divided among
    the devices, rounded up. InputError for batches that together are larger than the data set, and for an
    optimizer that was not measured.
    """
    run.check_batch(devices)
    optimizer = OPTIMIZERS[run.optimizer]
    batch = model.batch(graph, run.batch_size, optimizer)
    micro = batch.iteration
    parallel = Parallel(devices, link, run.sharding, machine=model.file.machine)
    alone = micro.accumulated(run.accumulate, optimizer, parallel.shards)
    sizes, backward_ms = gradients(graph, micro.backward, model.mode or DEFAULT_MODE)
    share = micro.forward / max(sum(backward_ms), 1e-9)
    forward_ms, weights, again = [share * ms for ms in backward_ms], sizes, sizes
    if run.sharding in (ZERO2, FSDP):
        weights, again = (frozen_weights(graph, frozen_bytes, len(sizes)) + sizes).tolist()
    passes = sizes, backward_ms, weights, forward_ms, run.accumulate, again
    (waited_ms, hidden_ms), (short, _), (long, _) = (
        replace(parallel, link=each).exchange_ms(*passes)
        for each in ((None,) * 3 if link is None else (link, *link.ends))
    )
    parts_ms, total_ms = alone.parts() | {"exchange": waited_ms}, alone.total + waited_ms
    interval_ms, warnings = None, batch.warnings
    try:
        factor = math.exp(batch.half_width(run.coverage))
        interval_ms = alone.total / factor + short, alone.total * factor + long
    except InputError:
        few = f"too few measurements were held out of the fit for {100 * run.coverage:g} % coverage"
        warnings = (*warnings, Remark("no interval", few))
    prediction = TrainingPrediction(
        devices=devices, link=link.name if link else None, link_gbps=link.gbps if link else None,
        iteration_ms=total_ms, parts_ms=parts_ms, hidden_ms=hidden_ms,
        samples_per_s=1e3 * devices * run.batch_size * run.accumulate / max(total_ms, 1e-9),
        warnings=warnings, interval_ms=interval_ms, batch_size=run.batch_size,
    )  # fmt: skip
    if run.samples is None:
        return prediction
    return _with_epochs(prediction, model, graph, run, micro, alone, (short, long))


def _with_epochs(
    prediction: TrainingPrediction, model: TrainingPredictor, graph: Graph, run: TrainingRun,
    micro: Iteration, alone: Iteration, ends_ms: tuple[float, float],
) -> TrainingPrediction:  # fmt: skip
    """Add the times of epochs; the last iteration of an epoch has the remaining samples of a device.

    `micro`: a micro-batch; `alone`: an iteration on one device; `ends_ms`: the wait for the exchange over
    the fastest and the slowest possible link. The lower ends of computing and exchanging are added up, and
    so are the upper ends, because the root of summed squares would give a narrower relative interval than
    either part has.
    """
    assert run.samples is not None
    optimizer = OPTIMIZERS[run.optimizer]

    def trained_ms(size: int) -> float:
        found = micro if size == run.batch_size else model.batch(graph, size, optimizer).iteration
        return found.total - found.update

    def all_ms(samples: int, batch_ms: Callable[[int], float]) -> float:
        """ms of a pass over the samples of one device."""
        full, rest = divmod(-(-samples // prediction.devices), run.batch_size)
        batches = ((full, run.batch_size), (1, rest))
        return model.epoch_ms + sum(n * batch_ms(size) for n, size in batches if n and size)

    iterations = -(-run.samples // (prediction.devices * run.batch_size * run.accumulate))
    epoch_s = (all_ms(run.samples, trained_ms) + iterations * alone.update) / 1e3
    evaluation_s = None
    if run.validation is not None:
        evaluation_s = all_ms(run.validation, lambda n: model.evaluated_ms(graph, n)) / 1e3
        epoch_s += evaluation_s
    startup_s = model.startup_s(graph, optimizer)
    exchange_s = iterations * (prediction.parts_ms["exchange"] or 0.0) / 1e3
    alone_s, exchanges_s = (startup_s or 0.0) + run.epochs * epoch_s, run.epochs * exchange_s
    low_s, high_s = (run.epochs * iterations * ms / 1e3 for ms in ends_ms)
    interval_s = None
    if prediction.interval_ms is not None:
        factor = (prediction.interval_ms[1] - ends_ms[1]) / alone.total if alone.total else 1.0
        interval_s = (alone_s / factor + low_s, alone_s * factor + high_s)
    return replace(
        prediction, iterations=iterations, epoch_s=epoch_s + exchange_s, evaluation_s=evaluation_s,
        startup_s=startup_s, total_s=alone_s + exchanges_s, interval_s=interval_s,
    )  # fmt: skip

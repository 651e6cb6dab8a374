"""Compares devices, their numbers, precisions and batch sizes for one training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from lolat.device import Device
from lolat.device.question import ask_each, no_device
from lolat.device.running import mode_of
from lolat.errors import AnswerIsNo, InputError, LolatError, arg
from lolat.graph import Graph
from lolat.graph.modes import AMP, BFLOAT16, FLOAT16
from lolat.hardware.gpus import PRECISION_OF, gpu_of, name_of
from lolat.hardware.prices import rental_of
from lolat.io.results import Result
from lolat.llm.decoder import Decoder
from lolat.llm.names import find_decoder, is_decoder
from lolat.parameters import CHECKPOINTING, LENGTH, SIZE
from lolat.readers.children import OnProgress
from lolat.readers.size import as_sizes, length_of, of_images
from lolat.training.cost import Cost, best_of, check_limits, cost_on, read_trained
from lolat.training.decoder import TrainedDecoder
from lolat.training.decoder_cost import decoder_cost_on, samples_of, useful_tokens
from lolat.training.model import Limits
from lolat.training.parallel import HYBRID
from lolat.training.tuning import tuned
from lolat.units import dollars, duration, plain, plural, shortened


@dataclass(frozen=True)
class Choice:
    """An option of a comparison: so many devices of one kind, in one precision, with one batch size."""

    device: str
    precision: str | None
    batch_size: int
    devices: int
    total_s: float
    dollars: float | None


@dataclass(frozen=True, repr=False)
class Costs(Result):
    """The cost of one training on several devices, or with several batch sizes.

    `answers`: the cost on each device that can answer; `left_out`: reasons why others cannot, by device.
    `cheapest`: the cheapest choice within both limits; `fastest`: the fastest within the limit of money;
    None without samples, without a price, or if no choice keeps the limits. `frontier`: choices that no
    other beats in both time and money, from the cheapest on.
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

    @property
    def limits(self) -> Limits:
        """The longest time and the most money."""
        return Limits(self.max_hours, self.max_dollars)

    @property
    def batches(self) -> int:
        """Number of batch sizes."""
        return len({c.batch_size for c in self.answers})

    def words(self) -> str:
        """Return the cheapest and the fastest choice in words."""
        best = {"cheapest": self.cheapest, "fastest": self.fastest}
        several = self.batches > 1
        parts = [f"{name} {choice_words(c, several)}" for name, c in best.items() if c is not None]
        devices = plural(len({c.device for c in self.answers}), "device")
        return f"{plain(self.network)} on {devices}: {'; '.join(parts)}"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each device and number of devices, as `Cost.rows` does."""
        about = ("device", "precision", "batch_size", "memory_bytes", "available_bytes", "fits")
        return [
            {**{name: getattr(c, name) for name in about}, **row}
            for c in self.answers
            for row in c.rows()
        ]


def choice_words(choice: Choice, with_batch: bool = False) -> str:
    """Return a choice in words: "4 x a100-fp32 in amp, 2 h 10 min, $20"."""
    words = [f"{choice.devices} x {plain(choice.device)}"]
    words[0] += f" in {choice.precision}" if choice.precision else ""
    words += [f"batch {choice.batch_size:,}"] * with_batch
    words += [duration(choice.total_s)] + (
        [] if choice.dollars is None else [dollars(choice.dollars)]
    )
    return ", ".join(words)


Mode = tuple[str | None, str | None, float | None]
"""The arguments of `Device.run_as`: precision, launch, host_us."""
TRIED = ("tf32", "amp")
"""Precisions that each device is tried in, beside its own; AMP alone if it was measured in half precision,
as weights, gradients and states in two bytes have to be asked for."""


PURE_HALF = frozenset([FLOAT16, BFLOAT16])


def compare(
    models: Sequence[Device], network: Any, mode: Mode, batch_sizes: Sequence[int | str],
    left_out: Mapping[str, str], on_progress: OnProgress | None = None, **asked: Any,
) -> Costs:  # fmt: skip
    """Compare devices for one training, with each batch size.

    `mode`: see `Mode`; None stands for the fastest precision, and for the launch and host as measured.
    `left_out`: reasons why other devices cannot answer, by device. `on_progress`: called with (done, all,
    name) for each device. `asked`: arguments of `lolat.api.model.Model.cost`. InputError if no device can
    answer.
    """
    check_limits(**asked)
    graph = read_question(network, asked.pop("input_size", None))
    if isinstance(graph, Graph):
        tuned(graph, asked.get("tune"), asked.get("checkpointing"))  # what is wrong is said once
    left_out = dict(left_out)
    answers = [
        answer
        for size in batch_sizes
        for answer in _answers(models, graph, mode, size, left_out, asked, on_progress)
    ]
    if not answers:
        raise no_device(left_out)
    return joined(answers, left_out)


def costs_on(
    device: Device, network: Any, batch_sizes: Sequence[int | str], *args: Any, **asked: Any
) -> Costs:
    """Predict the cost of training on `device` with each batch size; the network is read once."""
    if not len(batch_sizes):  # an array has no truth value
        raise InputError(f"{arg('batch_size')}: no size is given; expected one or more")
    graph = read_question(network, asked.pop("input_size", None))
    return joined([answer_on(device, graph, size, *args, **asked) for size in batch_sizes], {})


Trained = Graph | TrainedDecoder


def read_question(network: Any, input_size: Any = None) -> Trained:
    """Read what is trained: a network, or a decoder with the length of its sequences."""
    if not is_decoder(network):
        return read_trained(network, input_size)
    sizes, decoder = as_sizes(input_size), _decoder(network)
    numbers = (*of_images(sizes), *length_of(sizes))
    if len(numbers) != 1:
        raise InputError(
            f"{arg(SIZE if of_images(sizes) else LENGTH)}: {decoder.name} is trained on sequences; "
            f"expected the tokens of one alone, such as {arg(LENGTH)} 4096",
            code="sequence-length",
        )
    return TrainedDecoder(decoder, numbers[0])


def _decoder(network: Any) -> Decoder:
    """Find a decoder whose weights are not quantized; InputError for others."""
    try:
        decoder = find_decoder(network)
        name, dtype = decoder.name, decoder.dtype
    except InputError as error:
        if error.code != "decoder-dtype":
            raise
        name, dtype = plain(shortened(str(network))), "no timed data type"
    if dtype == "bfloat16":
        return decoder
    raise InputError(
        f"{name}: its weights are quantized ({dtype}), and training beside quantized weights (QLoRA) is "
        "not predicted; expected its configuration without quantization_config, or its name without the "
        f"quantization: a frozen weight then takes 2 bytes ({arg('tune')} lora:16)",
        code="quantized-decoder",
    )


OF_DECODERS = ("tokens", "mean_tokens")
"""Arguments of decoders alone."""


def _sequence_length(graph: Graph) -> int | None:
    """Return the tokens of a sample: the size of the first input of whole numbers with one axis, if any."""
    shapes = zip(graph.input_sizes, graph.inputs, strict=True)
    whole = (s for s, i in shapes if len(s) == 1 and graph.tensors[i].dtype.startswith("int"))
    return next(whole, (None,))[0]


def answer_on(
    device: Device, trained: Any, batch_size: int | str, samples: int | None = None, *args: Any,
    **asked: Any,
) -> Cost:  # fmt: skip
    """Predict the cost of training on a device; arguments as of `lolat.api.model.Model.cost`."""
    if is_decoder(trained):
        trained = read_question(trained, asked.pop("input_size", None))
    if isinstance(trained, TrainedDecoder):
        asked["checkpointing"] = asked.get("checkpointing") or CHECKPOINTING[0]
        asked["tune"] = asked.get("tune") or "full"
        return decoder_cost_on(device, trained, batch_size, samples, *args, **asked)
    if asked.get("tokens") is not None:
        trained = read_trained(trained, asked.pop("input_size", None))
        if length := _sequence_length(trained):
            useful = useful_tokens(asked.pop("mean_tokens", None), length)
            samples = samples_of(samples, asked.pop("tokens"), useful)
    wrong = {name for name in OF_DECODERS if asked.pop(name, None) is not None}
    wrong |= {"sharding"} if asked.get("sharding") == HYBRID else set()
    if wrong:
        raise InputError(
            f"{arg(min(wrong))}: of a decoder's configuration only, or of a network whose samples are "
            "tokens; leave it out",
            code="decoder-only",
        )
    return cost_on(device, trained, batch_size, samples, *args, **asked)


def joined(answers: Sequence[Cost], left_out: Mapping[str, str]) -> Costs:
    """Join the answers of several devices or batch sizes to one question."""
    choices = [
        Choice(c.device, c.precision, c.batch_size, o.devices, o.total_s, o.dollars)
        for c in answers
        for o in c.options
        if False not in (c.fits, o.fits) and o.total_s is not None
    ]
    first = answers[0]
    about = ("network", "samples", "epochs", "optimizer", "coverage")
    return Costs(
        **{name: getattr(first, name) for name in about}, **asdict(first.limits), answers=tuple(answers),
        left_out=left_out, **best_of(choices, first.limits),
    )  # fmt: skip


def _answers(
    models: Sequence[Device], graph: Trained, mode: Mode, batch_size: int | str, left_out: dict[str, str],
    asked: dict[str, Any], on_progress: OnProgress | None,
) -> list[Cost]:  # fmt: skip
    """Answer for each device in its fastest precision; add reasons why others cannot to `left_out`."""
    by_label = {model.label: model for model in models}
    if launch := mode[1]:  # if a GPU was measured so, its other files are left out
        measured = {name_of(m.document) for m in models if _launch(m) == launch}
        by_label = {
            n: m for n, m in by_label.items()
            if _launch(m) == launch or name_of(m.document) not in measured
        }  # fmt: skip
    number = count(1)

    def ask(model: Device) -> Cost:
        if on_progress is not None:
            on_progress(next(number), len(by_label), model.label)
        if why := _too_small(model, asked.get("memory_gib"), asked.get("prices")):
            raise AnswerIsNo(why)
        return _fastest(model, graph, mode, batch_size, asked)

    found = ask_each(by_label, ask, left_out)
    # Two files of one GPU may answer alike in a third mode.
    return list({(c.device, c.precision, c.launch): c for c in found.values()}.values())


def _fastest(
    model: Device, graph: Trained, mode: Mode, batch_size: int | str,
    asked: dict[str, Any],
) -> Cost:  # fmt: skip
    """Answer in the precision asked for, or the fastest; the first error if none answers."""
    costs, errors = list[Cost](), list[LolatError]()
    only = mode[:1] if mode[0] or isinstance(graph, TrainedDecoder) else (None, *TRIED)
    if (
        len(only) > 1
        and "predictors" in model.document
        and mode_of(model.document).dtype in PURE_HALF
    ):
        only = (PRECISION_OF[AMP],)
    for precision in only:
        try:
            costs.append(answer_on(model.run_as(precision, *mode[1:]), graph, batch_size, **asked))
        except LolatError as error:
            errors.append(error)
    if not costs:
        raise errors[0]
    return min(costs, key=lambda c: (c.fits is False, _per_sample_ms(c)))


def _launch(model: Device) -> str | None:
    """Return the launch mode of a device's measurements; None if it has no latencies."""
    return mode_of(model.document).launch if "predictors" in model.document else None


def _too_small(model: Device, least_gib: float | None, prices: Any) -> str | None:
    """Return why a device is left out: it has too little memory, and so have rented ones; else None."""
    gpu = gpu_of(model.document)
    own_gib = None if gpu is None else gpu.memory_gib
    if own_gib is None or least_gib is None or own_gib >= least_gib:
        return None
    if rental_of(model.document, None, prices, least_gib) is not None:
        return None
    return f"less than {least_gib:g} GiB of memory"


def _per_sample_ms(cost: Cost) -> float:
    return cost.options[0].iteration_ms / cost.batch_size

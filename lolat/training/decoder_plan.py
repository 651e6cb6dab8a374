"""The plan of training or fine-tuning a decoder, on one GPU or several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.device.file import OF_LANGUAGE_MODELS, DeviceFile
from lolat.device.intervals import LARGEST, conformal_quantile, t_quantile
from lolat.device.remedies import lacking_error
from lolat.errors import InputError, arg
from lolat.graph.memory import largest_fitting
from lolat.graph.modes import EAGER, Launch
from lolat.hardware.card_names import find_gpu
from lolat.hardware.gpus import UNUSABLE_BYTES, Gpu
from lolat.hardware.links import Link
from lolat.hardware.rental import Rental
from lolat.io.results import Figure, Remark
from lolat.llm.domain import UNTIMED
from lolat.llm.gpu import GPU, ServingSection, section_of
from lolat.optimizers import OPTIMIZERS
from lolat.parameters import COVERAGE
from lolat.training.decoder import DecoderStep, TrainedDecoder, tuned_recipe
from lolat.training.memory import PeakMemory
from lolat.training.parallel import FSDP, HYBRID, Parallel
from lolat.training.passes import DecoderPasses
from lolat.training.prediction import TrainingPrediction
from lolat.training.question import TrainingQuestion
from lolat.training.recipe import PrecisionRecipe, mixed_remarks
from lolat.training.run import TrainingRun
from lolat.training.tuning import TIED, Tuning, check_rank
from lolat.training.ways import WayToFit
from lolat.units import GIB, byte_size, plural

if TYPE_CHECKING:
    from lolat.device.device import Device

PRECISION = "amp"  # of a decoder if not given
SMALL = "adamw8bit"
"""The optimizer to propose if memory lacks: its states have one byte."""
PUBLISHED_ON = ("A100 SXM", "H100 SXM")
"""GPUs with published runs, by their data sheets' names; times on other GPUs are estimates."""
LONGEST, MOST_GPUS = 65536, 512
"""The longest sequence in tokens, and the most GPUs, of published runs."""
DECODER_ERRORS = (
    0.001, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01, 0.011, 0.012, 0.016, 0.019, 0.02, 0.02, 0.022, 0.024,
    0.026, 0.027, 0.031, 0.033, 0.034, 0.038, 0.039, 0.042, 0.05, 0.053, 0.054, 0.057, 0.058, 0.06, 0.065,
    0.07, 0.077, 0.087, 0.093, 0.102, 0.113, 0.181, 0.26, 0.287,
)  # fmt: skip
"""Quantiles of |log(published / predicted)| of decoder runs that were not used to choose the constants;
benchmarks/training_decoders.py prints them."""
UNMEASURED = 1.5
"""Factor that widens the interval on a GPU without published runs, or with a method without published runs:
LoRA, frozen layers, selective checkpointing."""


def is_own(section: ServingSection, step: DecoderPasses, parallel: Parallel) -> bool:
    """True if a run of the user is of the same kind (see `DecoderPasses.kind`)."""
    return section.trained is not None and step.kind(parallel) in section.trained.kinds


def is_known(section: ServingSection, device: str, step: DecoderPasses, parallel: Parallel) -> bool:
    """True if the user's or published runs on this GPU are like this training."""
    if step.length > LONGEST:
        return False
    gpu = find_gpu(device)
    is_published = gpu is not None and gpu.name.startswith(PUBLISHED_ON) and section.is_timed
    is_usual = not step.tuning.is_partial and step.checkpointing != "selective"
    return is_own(section, step, parallel) or (is_published and is_usual)


def half_width(
    section: ServingSection, device: str, step: DecoderPasses, parallel: Parallel, coverage: float
) -> float:
    """Half width of a time's interval, as a logarithm.

    With n runs of the user it is the interval of one more run: Student's t times their spread (at least the
    usual half width) times sqrt(1 + 1 / n). A training of another kind may have another level, so the
    logarithm of the level is added as an independent error.
    """
    half_width, usual = (conformal_quantile(DECODER_ERRORS, c) for c in (coverage, COVERAGE))
    if not is_known(section, device, step, parallel):
        half_width *= max(UNMEASURED, 0.0 if section.is_timed else UNTIMED / usual)
    if (own := section.trained) is None:
        return half_width
    if own.rows > 1:
        half_width = max(half_width, t_quantile(coverage, own.rows - 1) * own.spread)
    half_width *= math.sqrt(1.0 + 1.0 / own.rows)
    apart = 0.0 if is_own(section, step, parallel) else math.log(own.level)
    return min(math.hypot(half_width, apart), LARGEST)


def card_with(card: str, section: ServingSection) -> Gpu | None:
    """The data sheet of a GPU that has the memory of the section; None if there is none."""
    return find_gpu(f"{card} {section.sheet.memory_gib:.0f}gb")


def card_gib(card: str, section: ServingSection) -> float:
    """A GPU's GiB as the driver reports them; the section's if no data sheet is known."""
    gib = section.sheet.memory_gib
    gpu = card_with(card, section)
    return gpu.memory_gib if gpu and gpu.memory_gib else gib


MUCH_LESS = 0.95
"""Adapters in half precision are offered if they need less than this fraction of the time or memory."""


@dataclass(frozen=True)
class DecoderPlan:
    """The plan of training a decoder on any number of GPUs of one kind; has the methods of a NetworkPlan.

    `available`: bytes of memory of a GPU; `gib`: GiB that a rented GPU must have; `useful`: mean tokens of
    a sequence without padding; `machine`: GPUs in a machine.
    """

    file: DeviceFile
    precision: str
    section: ServingSection
    trained: TrainedDecoder
    run: TrainingRun
    available: int
    gib: float
    useful: float
    checkpointing: str
    tuning: Tuning
    launch: Launch
    machine: int

    @classmethod
    def of(
        cls, device: Device, trained: TrainedDecoder, run: TrainingRun, asked: TrainingQuestion,
        useful: float,
    ) -> DecoderPlan:  # fmt: skip
        """Make the plan of a decoder; ModelFileError if the device file has no section `llm`."""
        if device.file.llm is None:
            raise lacking_error(device.file, device.source, OF_LANGUAGE_MODELS)
        ours = {"host_us": device.asked.host_us, "channels_last": device.asked.channels_last}
        for name, given in (*ours.items(), ("validation_samples", run.validation)):
            if given:
                raise InputError(
                    f"{arg(name)}: only of networks; leave it out", code="no-evaluation"
                )
        section = section_of(device.file.llm, device.source)
        tuning = Tuning.named(asked.tune or "full", trained.decoder.layers)
        check_rank(tuning.rank, trained.decoder.hidden, trained.decoder.name)
        precision = device.asked.precision or PRECISION
        gib = asked.memory_gib or card_gib(device.file.kind, section)
        available = max(int(gib * GIB) - UNUSABLE_BYTES, 0)
        return cls(
            file=device.file, precision=precision, section=section, trained=trained, run=run,
            available=available, gib=gib, useful=useful, checkpointing=asked.recomputed or "none",
            tuning=tuning, launch=device.asked.launch or EAGER,  # type: ignore[arg-type]
            machine=device.file.machine,
        )  # fmt: skip

    @cached_property
    def recipe(self) -> PrecisionRecipe:
        """The bytes of a parameter in training; InputError for a precision that is not predicted."""
        return tuned_recipe(self.precision, OPTIMIZERS[self.run.optimizer], self.tuning)

    def step(self, batch_size: int | None = None) -> DecoderStep:
        """A micro-batch of `batch_size` sequences; None: of the run's size."""
        size = batch_size or self.run.batch_size
        passes = DecoderPasses(*self.trained, size, self.checkpointing, self.tuning, self.launch)
        return DecoderStep(passes, self.recipe)

    def parallel(self, devices: int, link: Link | None = None) -> Parallel:
        """`devices` GPUs that train together; `link`: between all of them."""
        return Parallel(devices, link, self.run.sharding, self.file.link, self.machine)

    def link(self, devices: int, machine: int) -> Link | None:
        """The link that the user gave, for machines of at most `self.machine` GPUs."""
        machine = min(machine, self.machine)
        if devices > self.machine:
            machine = self.machine
        return self.run.link(self.file.link, devices, machine, self.machine)

    def rental(self, rental: Rental | None, devices: int) -> Rental | None:
        """The offers for `devices` GPUs; None if the training does not fit.

        Several machines are whole machines, if these are offered, as `Parallel` requires.
        """
        if rental is None or self.needed(devices, self.run.batch_size) > self.available:
            return None
        rental = replace(rental, memory_gib=card_gib(self.file.kind, self.section))
        return rental.of_machines(self.machine) if devices > self.machine else rental

    def needed(self, devices: int, batch_size: int) -> int:
        """The bytes that an iteration needs on each of `devices` GPUs."""
        return self.memory([devices], batch_size).total

    def memory(self, numbers: Sequence[int], batch_size: int) -> PeakMemory:
        """The memory peak of an iteration, for the number of GPUs in `numbers` that needs least."""
        step, accumulate = self.step(batch_size), self.run.accumulate
        each = [step.memory(self.parallel(k), accumulate) for k in numbers]
        found = (
            PeakMemory(moment, {n: int(size) for n, size in parts.items()})
            for moment, parts in each
        )
        return min(found, key=lambda peak: peak.total)

    def largest(self, numbers: Sequence[int], available: int) -> int:
        """The largest batch that fits on every number of GPUs that holds the run's batch; if no number
        holds it, the largest batch on any number.
        """
        found = [largest_fitting(partial(self.needed, k), available) for k in numbers]
        return min((n for n in found if n >= self.run.batch_size), default=max(found))

    def is_known(self, devices: int) -> bool:
        """True if the runs that set the level are like this training on `devices` GPUs."""
        is_level = self.section.trained is None or self._is_own(devices)
        return is_level and self._is_like(devices)

    def _is_own(self, devices: int) -> bool:
        return is_own(self.section, self.step().passes, self.parallel(devices))

    def _is_like(self, devices: int) -> bool:
        return is_known(self.section, self.file.kind, self.step().passes, self.parallel(devices))

    def predicted(self, devices: int, link: Link | None) -> TrainingPrediction:
        """Predict training on `devices` GPUs, joined by `link`, without a price."""
        run, own = self.run, self.section.trained
        run.check_batch(devices)
        level, gpu, step = own.level if own else 1.0, GPU(self.section), self.step()

        about = self.section, self.file.kind, step.passes, self.parallel(devices)
        factor = math.exp(half_width(*about, run.coverage))

        def iteration(batches: int) -> tuple[dict[str, float], np.ndarray]:
            """(ms by part of an iteration of `batches` micro-batches, array of its ms, lower end, upper
            end).
            """
            links = (link, *link.ends) if link else (None,) * 3
            each = [step.iteration_ms(gpu, self.parallel(devices, one), batches) for one in links]
            found = {name: level * ms for name, ms in each[0].items()}
            alone = sum(ms for name, ms in found.items() if name not in ("hidden", "exchange"))
            exchanges = level * np.array([parts["exchange"] for parts in each])
            return found, alone * np.array([1.0, 1.0 / factor, factor]) + exchanges

        found, times = iteration(run.accumulate)
        hidden, (total, low, high) = found.pop("hidden"), times.tolist()
        per_s = 1e3 * devices * run.batch_size * run.accumulate / total
        each_s = per_s * self.useful / devices
        peak = 1e12 * self.section.sheet.bf16_tflops
        needed = self.needed(devices, run.batch_size)
        made = TrainingPrediction(
            devices=devices, link=link.name if link else None, link_gbps=link.gbps if link else None,
            iteration_ms=total, parts_ms=found, hidden_ms=hidden, samples_per_s=per_s,
            tokens_per_s=each_s * devices, tokens_per_s_per_gpu=each_s,
            mfu=each_s * step.passes.flops() / peak, memory_bytes=needed,
            fits=needed <= self.available, warnings=tuple(self._remarks(devices, needed)),
            interval_ms=(low, high), batch_size=run.batch_size,
        )  # fmt: skip
        if run.samples is None:
            return made
        batches = -(-run.samples // (devices * run.batch_size))
        full, rest = divmod(batches, run.accumulate)
        epoch_ms = full * times + (iteration(rest)[1] if rest else 0.0)
        total_s, *ends = (run.epochs * epoch_ms / 1e3).tolist()
        return replace(
            made, iterations=full + bool(rest), epoch_s=float(epoch_ms[0]) / 1e3, total_s=total_s,
            interval_s=tuple(ends),
        )  # fmt: skip

    def _remarks(self, devices: int, needed: int) -> Iterator[str]:
        """Yield remarks on training on `devices` GPUs; `needed`: bytes of memory of each."""
        step = self.step()
        if not self.tuning.rank:  # adapters in half precision are what PEFT calls them
            states = float(step.numbers()[0].sum()) / self.parallel(devices).shards.states
            yield from mixed_remarks(states, needed, self.recipe)
        yield from self._adapter_remarks(devices, needed)
        if not self.is_known(devices):
            yield from self._unlike_remarks(devices)
        if self.tuning.frozen > step.passes.untouched:
            yield TIED
        if self.run.sharding == HYBRID and self.run.accumulate > 1 and devices > self.machine:
            yield (
                "machines sum their gradients once in an iteration, as FSDP2 does with "
                "set_requires_all_reduce; FSDP1 does so after each micro-batch, which takes longer"
            )
        if dies := self.file.gpu and self.file.gpu.dies_remark:
            yield dies
        decoder, length = self.trained
        if decoder.score_cap:
            more = "transformers' own choice for it is eager, which keeps "
            more += byte_size(step.passes.eager_bytes) + " more"
            yield Remark("attention is taken to be fused (flash_attention_2)", more)
        elif any(0 < window < length for window in step.passes.windows):
            yield Remark(
                "sliding windows are taken to skip the rest (flash_attention_2)",
                "transformers' own choice, sdpa, computes the whole sequence, which takes longer",
            )
        if decoder.tower_remark:
            yield decoder.tower_remark
        if 0 < decoder.context < length:
            yield f"{decoder.name} was published for {decoder.context:,} tokens"

    def _unlike_remarks(self, devices: int) -> Iterator[str]:
        """Yield remarks that no run like this training is known on the GPU."""
        own = self.section.trained
        rest = ", with a wider interval; own runs set the level: `lolat fit`"
        if not self.section.is_timed:
            sheet = "its time is from its data sheet and the operations of other GPUs"
            yield Remark("no operation was timed on this GPU", sheet + rest)
        if own and not self._is_own(devices):
            runs = "own" if self._is_like(devices) else "own or published"
            level = f"its level is from {plural(own.rows, 'run')} of another kind"
            yield Remark(f"no {runs} run is like this one", level + rest)
        elif self.section.is_timed:
            alone = "its time is from the kernels alone"
            yield Remark("no published run is like this one", alone + rest)

    def _adapter_remarks(self, devices: int, needed: int) -> Iterator[str]:
        """Yield a remark if adapters in half precision take much less time or memory."""
        if not self.tuning.rank or self.tuning.half or self.precision == "fp32":
            return
        other = replace(self, tuning=replace(self.tuning, half=True))
        parallel = self.parallel(devices, self.link(devices, self.machine))
        ms, own_ms = (
            sum(one.step().iteration_ms(GPU(self.section), parallel, 1).values())
            for one in (other, self)
        )
        size = other.needed(devices, self.run.batch_size)
        if min(size / needed, ms / own_ms) < MUCH_LESS:
            yield Remark(
                f"adapters are in float32, as PEFT makes them; --tune {other.tuning.words()} (PEFT: "
                "autocast_adapter_dtype=False) takes less",
                "{ratio} times as long, and {size}",
                ratio=Figure("{:.2f}".format, ms / own_ms),
                size=Figure(byte_size, size),
            )

    def remarks(self, memory: Mapping[str, int], numbers: Sequence[int]) -> Iterator[str]:
        """Yield the remarks on a given link."""
        yield from self.run.link_remarks(self.file.link, self.machine)

    @property
    def gpu(self) -> Gpu | None:
        """The data sheet of the GPU; None if it is not known."""
        return card_with(self.file.kind, self.section)

    def about(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The fields of a Cost about the decoder and the execution mode."""
        trained, every = (round(n.sum()) for n in self.step().numbers())
        is_whole = self.parallel(max(numbers)).shards.parameters == 1
        recipe = self.recipe if is_whole else replace(self.recipe, copy=0.0)
        decoder, length = self.trained
        is_known = all(map(self.is_known, numbers))
        return {
            "network": f"{decoder.name} {length:,} tokens",
            "sequence_length": length,
            "parameters": every + trained * bool(self.tuning.rank),
            "trained_parameters": trained,
            "recipe": recipe.words(self.tuning.is_partial),
            "tune": self.tuning.words(),
            "checkpointing": self.checkpointing,
            "precision": self.precision,
            "launch": self.launch,
            "machine": self.machine,
            "estimated": not is_known,
            "in_domain": is_known and max(numbers) <= MOST_GPUS,
            "own_runs": self.section.trained.rows if self.section.trained else 0,
        }

    def would_fit(self, numbers: Sequence[int]) -> Iterator[WayToFit]:
        """Yield the ways to let an iteration fit, the smallest changes first."""
        batch_size = self.run.batch_size
        devices = min(numbers, key=lambda k: self.needed(k, batch_size))
        more = [
            k
            for k in sorted({*map((2).__pow__, range(1, 10)), *numbers})
            if devices < k <= MOST_GPUS
        ]
        checkpointed = replace(self, checkpointing="full")
        lora = replace(self, tuning=Tuning(rank=16))
        sharded, both = (
            replace(one, run=replace(self.run, sharding=FSDP)) for one in (self, checkpointed)
        )
        fsdp = {} if self.run.sharding == FSDP else {"sharding": FSDP}
        adapters, selective, full = (
            {"tune": "lora:16"}, {"checkpointing": "selective"}, {"checkpointing": "full"}
        )  # fmt: skip
        changed: list[tuple[dict[str, str], DecoderPlan, list[int]]] = [
            (selective, replace(self, checkpointing="selective"), []),
            (full, checkpointed, []),
            ({"optimizer": SMALL}, replace(self, run=replace(self.run, optimizer=SMALL)), []),
            ({"precision": "bf16"}, replace(self, precision="bf16"), []),
            (fsdp, sharded, more),
            (fsdp | full, both, more),
            (adapters, lora, []),
            (adapters | selective, replace(lora, checkpointing="selective"), []),
            (adapters | full, replace(lora, checkpointing="full"), []),
        ]
        several = replace(self, run=self.run.accumulated())
        if most := several.largest([devices], self.available):
            size, accumulate = self.run.split(most)
            able = (k for k in sorted(numbers) if several.needed(k, size) <= self.available)
            yield WayToFit({"batch_size": size, "accumulate": accumulate}, next(able))
        named = list[DecoderPlan]()  # an option that was asked for makes two of them one
        enough = list[dict[str, str]]()
        for options, plan, others in changed:
            # More than fits already: full checkpointing is slower than selective.
            slower = (options, options | selective if "checkpointing" in options else options)
            is_more = any(fewer.items() <= one.items() for fewer in enough for one in slower)
            if plan in named or is_more or (plan == self and not others):
                continue
            fitting = (
                k for k in (devices, *others) if plan.needed(k, batch_size) <= self.available
            )
            if number := next(fitting, None):
                named.append(plan)
                if number == devices:
                    enough.append(options)
                given = options | ({} if number == devices else {"replicas": number})
                able = (k for k in sorted(numbers) if plan.needed(k, batch_size) <= self.available)
                yield WayToFit(given, next(able, number))

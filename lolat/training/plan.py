"""The plan of training a network: what is trained, on which device, by which run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.device.execution_modes import as_written
from lolat.device.file import OF_TRAINING, DeviceFile
from lolat.device.profile_remarks import LAID_BY_COMPILER
from lolat.device.remedies import lacking_error
from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.images import has_convolutions
from lolat.graph.kinds import CONVOLUTIONS, MULTIPLYING
from lolat.graph.memory import largest_fitting
from lolat.graph.modes import DEFAULT_MODE, FLOAT32, PRECISION_OF, TF32, layout_of
from lolat.graph.weights import parameters
from lolat.hardware.gpus import Gpu, usable_bytes
from lolat.hardware.links import Link
from lolat.hardware.rental import Rental
from lolat.io.results import Remark
from lolat.optimizers import OPTIMIZERS
from lolat.training.epochs import EpochTraining
from lolat.training.estimate import EstimatedTraining, ForwardTraining
from lolat.training.measured import MeasuredTraining
from lolat.training.memory import PeakMemory, memory_at_peak, numbers_of
from lolat.training.parallel import HYBRID, Parallel
from lolat.training.pass_counts import flops
from lolat.training.prediction import TrainingPrediction, predict
from lolat.training.predictor import TrainingPredictor
from lolat.training.question import TrainingQuestion
from lolat.training.recipe import PrecisionRecipe, mixed_remarks, recipe_for
from lolat.training.run import TrainingRun
from lolat.training.tuning import Tuning, frozen_up_to, tuned
from lolat.training.ways import WayToFit

if TYPE_CHECKING:
    from lolat.device.device import Device


def training_of(device: Device) -> TrainingPredictor:
    """The best predictor of training that a device file allows.

    In this order: timed epochs, measured training, a formula for operations, latencies of inference.
    ModelFileError for a damaged section, or a file with none of these.
    """
    file, source = device.file, device.source
    if file.epochs is not None:
        return EpochTraining(file, source)
    if file.training is not None:
        return MeasuredTraining(file, source)
    if not file.has_latencies:
        raise lacking_error(file, source, OF_TRAINING)
    return EstimatedTraining(file) if file.kernels else ForwardTraining(file, source)


LARGE = 8192  # samples of all devices in an update
OF_DECODERS = "of a decoder's configuration only"


@dataclass(frozen=True)
class NetworkPlan:
    """The plan of training a network on any number of devices of one kind.

    `available`: bytes of memory of a device, None if unknown; `gib`: GiB that a rented device must have,
    None: enough for an iteration; `length`: tokens of a sample, 0 if it is not a text; `useful`: mean
    tokens of a sample without padding; `machine`: devices in the largest machine.
    """

    training: TrainingPredictor
    file: DeviceFile
    graph: Graph
    run: TrainingRun
    available: int | None
    gib: float | None
    asked: TrainingQuestion
    length: int
    useful: float
    machine: int

    @classmethod
    def of(
        cls, device: Device, graph: Graph, run: TrainingRun, asked: TrainingQuestion, length: int,
        useful: float,
    ) -> NetworkPlan:  # fmt: skip
        """Make the plan of a network; ModelFileError if the device has neither training nor latencies."""
        if run.sharding == HYBRID:
            raise InputError(f"{arg('sharding')} {HYBRID}: {OF_DECODERS}", code="decoder-only")
        graph, gib = tuned(graph, asked.tune, asked.recomputed), asked.memory_gib
        training = training_of(as_written(device, graph))
        own = training.file.available_bytes
        available = own if gib is None else max(usable_bytes(gib), 0)
        asked = replace(asked, channels_last=device.asked.channels_last)
        return cls(
            training=training, file=training.file, graph=graph, run=run, available=available, gib=gib,
            asked=asked, length=length, useful=useful, machine=training.file.machine,
        )  # fmt: skip

    @property
    def tuning(self) -> Tuning:
        """The part that is trained."""
        return Tuning.named(self.asked.tune or "full")

    @cached_property
    def recipe(self) -> PrecisionRecipe:
        """The bytes of a parameter in training."""
        optimizer = OPTIMIZERS[self.run.optimizer]
        mode = self.training.mode or DEFAULT_MODE
        foreach = self.graph.framework != "keras" and not self.file.is_cpu
        return recipe_for(self.graph, optimizer, mode, self.tuning.rank > 0, foreach)

    def memory(self, numbers: Sequence[int], batch_size: int) -> PeakMemory:
        """The moment of an iteration at which a device needs most memory, and its bytes by part.

        `numbers`: numbers of devices; buckets count if one of them is above 1, and the least number decides
        the shards.
        """
        shards = Parallel(min(numbers, default=1), None, self.run.sharding).shards
        several, mode = max(numbers, default=2) > 1, self.training.mode or DEFAULT_MODE
        each = several, shards, self.run.accumulate
        return memory_at_peak(self.graph, batch_size, self.recipe, mode, *each)

    def largest(self, numbers: Sequence[int], available: int) -> int:
        """The largest batch whose iteration fits into `available` bytes; 0 if none does."""
        most = largest_fitting(lambda n: self.memory(numbers, n).total, available)
        return self.graph.largest_batch(most)

    def link(self, devices: int, machine: int) -> Link | None:
        """The link that the user gave, for machines of `machine` devices."""
        return self.run.link(self.file.link, devices, machine, self.machine)

    def rental(self, rental: Rental | None, devices: int) -> Rental | None:
        """The offers for `devices` devices; only single machines if the given link is as fast as inside a
        machine.
        """
        is_inside = self.run.is_inside(self.file.link)
        return rental.of_machines(devices) if rental and is_inside else rental

    def would_fit(self, numbers: Sequence[int]) -> Iterator[WayToFit]:
        """Yield the smaller micro-batches with which an iteration fits, if any."""
        several, room = replace(self, run=self.run.accumulated()), self.available or 0
        if most := several.largest(numbers, room):
            size, accumulate = self.run.split(most)
            able = (k for k in sorted(numbers) if several.memory([k], size).total <= room)
            yield WayToFit({"batch_size": size, "accumulate": accumulate}, next(able))

    def predicted(self, devices: int, link: Link | None) -> TrainingPrediction:
        """Predict training on `devices` devices, joined by `link`, without a price."""
        found = predict(self.training, self.graph, self.run, devices, link, self.recipe.frozen)
        each_s = found.samples_per_s / devices
        useful = self.useful / self.length if self.length else 1.0
        return replace(
            found,
            mfu=None if self._least_s is None else each_s * useful * self._least_s,
            tokens_per_s=found.samples_per_s * self.useful if self.length else None,
            tokens_per_s_per_gpu=each_s * self.useful if self.length else None,
        )

    @cached_property
    def _least_s(self) -> float | None:
        """The s of a sample's products at the peak rate of the units that compute them; None if unknown."""
        gpu, mode = self.file.gpu, self.training.mode
        if gpu is None or mode is None or not (peak := gpu.peak(mode.dtype)):
            return None
        of_convolutions = (gpu.peak(TF32) or peak) if self._has_tf32 else peak
        kinds = [o.kind in CONVOLUTIONS for o in self.graph.operations]
        return float(flops(self.graph) @ np.where(kinds, 1.0 / of_convolutions, 1.0 / peak)) / 1e12

    @property
    def _has_tf32(self) -> bool:
        """True if convolutions in float32 are computed in TF32."""
        is_float32 = self.training.mode is not None and self.training.mode.dtype == FLOAT32
        return is_float32 and self.file.has_tf32 and has_convolutions(self.graph)

    @property
    def gpu(self) -> Gpu | None:
        """The data sheet of the GPU; None if it is not known."""
        return self.file.gpu

    def about(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The fields of a Cost about the network, its trained part and the execution mode."""
        learned, mode = numbers_of(self.graph), self.training.mode
        number = parameters(self.graph)
        optimizer = OPTIMIZERS[self.run.optimizer]
        batch = self.training.batch(self.graph, self.run.batch_size, optimizer)
        return {
            "network": self.graph.name,
            "input_sizes": tuple(self.graph.input_sizes),
            "parameters": number,
            "trained_parameters": learned.trained,
            "recipe": self.recipe.words(number > learned.trained),
            "tune": self.asked.tune or None,
            "frozen_up_to": frozen_up_to(self.graph, self.tuning),
            "checkpointing": self.asked.recomputed,
            "precision": mode and PRECISION_OF[mode.dtype],
            "tf32": self._has_tf32,
            "launch": mode and mode.launch,
            "channels_last": mode and layout_of(mode, self.graph, self.asked.channels_last),
            "estimated": batch.estimated,
            "in_domain": batch.in_domain,
            "own_runs": self.training.own_runs,
            "host_bound": batch.host_bound,
            "machine": self.file.machine,
        }

    def remarks(self, memory: Mapping[str, int], numbers: Sequence[int]) -> Iterator[str]:
        """Yield remarks on the optimizer, half precision, and operations that are not counted."""
        graph, kinds = self.graph, {o.kind for o in self.graph.operations}
        if self.asked.optimizer is None and ("attention" in kinds or _has_single_attention(graph)):
            yield (
                "sgd is assumed, and networks with attention are mostly trained by adamw: "
                "--optimizer adamw"
            )
        if found := graph.training_only + graph.training_only_on_cpu * self.file.is_cpu:
            yield f"in training only, and not counted: {', '.join(found)}"
        if self.asked.channels_last and self.training.mode and self.training.mode.fused:
            yield LAID_BY_COMPILER
        if self.training.mode and self.training.mode.fused:
            why = "a compiler keeps other tensors for the backward pass"
            yield Remark("the memory is that of eager code", why)
        if self.tuning.rank:
            yield Remark(
                "each adapter adds four operations that read and write its layer's output",
                "this may take longer than the skipped gradients of frozen weights",
            )
        yield from self.run.link_remarks(self.file.link, self.machine)
        most = max(numbers)
        if (whole := most * self.run.batch_size * self.run.accumulate) > LARGE:
            yield Remark(
                f"a batch of {whole:,} in all",
                "the epochs are as given, but training with so large a batch mostly takes more of them for "
                f"the same accuracy (ResNet-50 with sgd: above {LARGE:,}, Goyal et al. 2017)",
            )
        yield from mixed_remarks(numbers_of(graph).trained, sum(memory.values()), self.recipe)
        if graph.framework == "onnx" and kinds.isdisjoint(("batch_norm", "dropout")):
            yield Remark(
                "an ONNX file without batch normalization and dropout",
                "exports for inference lack them, and training takes more time and memory with them; "
                "expected the network itself, or an export with training=TrainingMode.TRAINING",
            )


def _has_single_attention(graph: Graph) -> bool:
    """True if a network has attention as single operations: a softmax between two products of activations.

    A softmax that follows a layer with weights, as in channel attention, does not count.
    """
    products, softmaxes = set[int](), set[int]()  # tensors made from their results
    for operation in graph.operations:
        inputs, outputs = operation.inputs, operation.outputs
        is_scored = not products.isdisjoint(inputs)
        is_attending = not softmaxes.isdisjoint(inputs)
        if operation.kind == "matmul":
            if is_attending:
                return True
            products.update(outputs)
        elif operation.kind not in MULTIPLYING:
            products.update(outputs if is_scored else ())
            is_softmax = operation.kind == "softmax" and is_scored
            softmaxes.update(outputs if is_attending or is_softmax else ())
    return False

"""Remarks on a profile: the framework, the source and the image layout of its measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lolat.device.file import DeviceFile, readable_models
from lolat.device.summary import FRAMEWORK_TITLES
from lolat.graph import Graph
from lolat.graph.images import has_convolutions, has_images
from lolat.graph.modes import AMP, BFLOAT16
from lolat.io.results import Remark

if TYPE_CHECKING:
    from lolat.device.device import Device

STEPS_ALONE = Remark(
    "only training steps were timed on this device",
    "the answer takes a forward pass to be at their level; fit it with timed networks too",
)
NO_IMAGES = (
    "the convolutions of this profile were timed channels last, which those over one or three dimensions "
    "cannot be in PyTorch: take the profile that was timed channels first"
)
FLOAT16_AMP = Remark("amp is in float16 here", "the GPU has no units for bfloat16")
LAID_BY_COMPILER = Remark(
    "channels last", "torch.compile lays images so itself, and the times stay"
)


BACKEND_OF = {"keras": "tensorflow", "torch": "torch", "onnx": "onnxruntime"}
"""Framework of a network (`Graph.framework`) -> the backend that runs it."""


def other_framework(file: DeviceFile, framework: str, known: str = "networks") -> Iterator[str]:
    """Yield a remark if a network is of another framework than the measurements.

    `framework`: the network's `Graph.framework`; `known`: an entry of `answers_for` that the profile
    suggested in the remark must have. There is no remark if either framework is unknown. Counts are the
    same for all frameworks, latencies are not.
    """
    where = file.environment
    backend, learned = BACKEND_OF.get(framework), where.framework
    if backend is None or learned in (None, backend):
        return
    other = _learned_with(backend, file.name.removesuffix(f"-{learned}"), known)
    learn = where.learn_command(backend) if where.is_learned else ""
    remedy = f"the profile {other}" if other else learn  # none for published times
    its, own = (FRAMEWORK_TITLES.get(name, name) for name in (learned or "", backend))
    as_read = (
        f"the answer is for {its} running the operations of the file one by one; exporters fold batch "
        "norms and split attention"
        if framework == "onnx"
        else f"the answer is for the same network run by {its}"
    )
    yield Remark(
        f"this profile is of {its}, and {own} "
        + ("is the usual backend of Keras" if framework == "keras" else "runs this network"),
        as_read + (f"; for {own}: {remedy}" if remedy else ""),
    )


def _learned_with(backend: str, device: str, known: str) -> str | None:
    """The name of the listed profile of a device that was learned with `backend`; None if there is none.

    `device`: the start of the profile's name, without the framework.
    """
    for name, _, _, file in readable_models((device, f"{device}-{backend}").__contains__):
        if file.environment.framework == backend and known in file.answers_for:
            return name
    return None


def of_its_source(file: DeviceFile) -> tuple[str, ...]:
    """The remarks on where a profile's times come from.

    They may be published, learned while other programs ran, or changed by a data sheet or a check.
    """
    kernels = file.kernels
    gpu = file.gpu if kernels else None
    dies = gpu.dies_remark if gpu else ""
    power = gpu.power_remark(file.mode.dtype) if gpu and kernels and not kernels.measured else ""
    remarks = filter(
        None, (file.loaded, *file.changes, file.other_form, file.estimated, dies, power)
    )
    return *remarks, *(file.warnings if file.environment.of_layers else ())


def amp_remarks(file: DeviceFile) -> Iterator[str]:
    """Yield a remark on mixed precision if the GPU has no units for bfloat16."""
    if file.kernels and file.mode.dtype == AMP and file.gpu and not file.gpu.peak(BFLOAT16):
        yield FLOAT16_AMP


def layout_remarks(device: Device, graph: Graph) -> Iterator[str]:
    """Yield remarks on a layout chosen by a compiler, or impossible for a network's convolutions."""
    mode = device.file.mode
    if mode.fused and device.asked.channels_last:
        yield LAID_BY_COMPILER
    if mode.channels_last and not mode.fused and has_convolutions(graph) and not has_images(graph):
        yield NO_IMAGES

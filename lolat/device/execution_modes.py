"""A device in another execution mode (precision, launch, layout), on another card, or at today's speed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace as replaced

from lolat.device.file import DeviceFile, readable_models
from lolat.device.predictors.host import FACTOR, GIVEN
from lolat.device.predictors.precision import in_precision, no_precision, on_sheet
from lolat.device.predictors.roofline import Roofline, TrainingSteps
from lolat.device.question import RunAs
from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.images import has_images
from lolat.graph.modes import (
    AMP,
    FLOAT32,
    PRECISION_OF,
    Mode,
    dtype_named,
    has_wide_adapters,
    run_dtype,
)
from lolat.graph.work import (
    BATCH_NORM,
    CONVOLUTION,
    DEPTHWISE,
    ELEMENTS,
    GROUPED,
    POINTWISE,
)
from lolat.hardware.card_names import card_of, find_gpu
from lolat.hardware.gpus import Gpu
from lolat.io.paths import SHIPPED, list_models
from lolat.io.results import Remark
from lolat.parameters import BACKENDS

if TYPE_CHECKING:
    from lolat.device.device import Device
    from lolat.device.state import Check

D = TypeVar("D", bound="Device")
MODE_WORDS = ("half", "mode", "compile", "own_networks")
"""Keys of a file's environment that record the execution mode and the user's own runs in it."""
CARD_SPREAD = 0.1
"""Standard deviation of the log error when one card's times are predicted from another card of the same
chip by data sheets; assumed."""
GENERATION_SPREAD = 0.2
"""CARD_SPREAD for a card of another generation. RTX 3090, 4090, 5090 and PRO 6000, each predicted from
another one, have median log errors of 0.02 to 0.15 in half precision, and of 0.10 to 0.27 by the usual
shares of a data sheet; A100 and H100 in TF32 have 0.22 and 0.27 (10 networks, batch 128)."""
LAYOUT_SPREAD = 0.15
"""Standard deviation of the log error when channels last is predicted by the terms of channels first. The
error has a median of 0.00 and a spread of 0.03 on an RTX 3090, of 0.14 and 0.11 on an H100 (14 networks,
batch 128)."""
TIED = 1.01
"""Precisions within this factor of the shortest time count as equally fast; of these the one with the least
memory is chosen. A host-bound GPU takes equally long in all of them."""
HALVES = frozenset(["fp16", "bf16"])
"""Precisions of a network that is itself in half precision, as after `module.half()`."""
ABOVE_FLOAT32 = frozenset(["float64", "complex64", "complex128"])
"""Data types of a network that are wider than float32."""


def before_fit(file: DeviceFile) -> dict[str, Any]:
    """The section `before` for a file that is fitted from this one; see `lolat.device.schema.Before`."""
    document = file.document
    where = {n: v for n, v in file.recorded.items() if n in MODE_WORDS}
    kept = {n: document[n] for n in ("device", "predictors", "estimated") if n in document}
    return {**kept, "environment": where, "warnings": [*file.warnings]}


def as_before_fit(file: DeviceFile) -> DeviceFile:
    """The file as it was before it was fitted in another precision; the fitted part is its `before`."""
    before = file.document["before"]
    where = {n: v for n, v in file.recorded.items() if n not in MODE_WORDS} | before["environment"]
    parts = {"estimated": None, **before, "environment": where, "before": before_fit(file)}
    return file.but(**parts)


# ---- A device in another execution mode


def run_as(device: D, asked: RunAs) -> D:
    """The device in a precision, launch and layout (see `_in_mode`), with the host's launch overhead.

    A field of `asked` that is None stays as it was. InputError if the device cannot run in this mode or has
    no host.
    """
    device = _in_mode(device, asked)
    host_us = device.asked.host_us
    if host_us is None:
        return device
    kernels = (f for f in device.predictors.values() if isinstance(f, Roofline))
    hosted = [(f, f.host) for f in kernels if f.host]
    if not hosted:
        raise InputError(
            f"{arg('host_us')} {host_us:g}: {device.name} has no host that starts its operations; expected "
            "the profile of a GPU, or leave it out",
            code="no-host",
            of_device=True,
        )
    given = {"start_ms": host_us / 1e3, "source": GIVEN, "factor": FACTOR[GIVEN]}
    hosts = (replaced(f, host=replaced(host, **given)) for f, host in hosted)
    # Training was measured with another host.
    file = device.file.with_formulas(*hosts).but(epochs=None, training=None)
    return _asked(device, file, asked)


def as_now(
    device: D, spread: float, remark: Remark, ratio: float = 1.0, check: Check | None = None
) -> D:
    """The device of a machine that now takes `ratio` times as long as when it was learned.

    `spread`: standard deviation of the log ratio over networks, which replaces the machine's repeatability
    in intervals. `remark`: says that times are adjusted. `check`: the probe that measured the ratio.
    Training is dropped, since it was measured at another time.
    """
    formulas = [formula.scaled(ratio) for formula in device.predictors.values()]
    for place, formula in enumerate(formulas):
        if type(formula) is Roofline and (host := formula.host):
            slower = replaced(host, start_ms=ratio * host.start_ms, call_ms=ratio * host.call_ms)
            formulas[place] = replaced(formula, host=slower)
    noise = device.latencies_file.document["noise"] | {"repeatability": math.expm1(spread)}
    file = device.file.with_formulas(*formulas).but(epochs=None, training=None, noise=noise)
    return _asked(device, file.changed(remark, check), RunAs())


def with_file(device: D, file: DeviceFile, source: str = "", profile: str = "") -> D:
    """The device with the contents of another file; `source` and `profile` default to the device's own."""
    made = type(device)(file, source or device.source, device.label)
    made.profile, made.row = profile or device.profile, device.row
    return made


def on_card(device: D, name: str, gpu: Gpu) -> D:
    """The device profile for another card, changed by the ratios of the two data sheets.

    The card is another form of the measured one (SXM, PCIe, more memory), another card of its chip, or one
    of the next generation. `name`: the other card's name; `gpu`: its data sheet.
    """
    formula, measured = device.file.kernels, device.file.product
    was = find_gpu(measured) or device.file.gpu  # both cards by their makers' sheets
    assert formula is not None
    assert was is not None
    is_of_chip = card_of(gpu.name) == card_of(was.name) or gpu.chip == was.chip
    spread = CARD_SPREAD if is_of_chip else GENERATION_SPREAD
    formula, faster, wider = on_sheet(formula, was, gpu)
    spread = math.hypot(formula.elsewhere, spread)
    formula = replaced(formula, elsewhere=spread, own_steps=())
    remark = (
        f"measured on {measured}",
        f"{name} has {wider:.2f} times its bandwidth and {faster:.2f} times its rate, by the data sheets",
    )
    file = device.file.but(
        name=name, device=name, predictors={Roofline.name: formula.to_dict()}, other_form=remark,
        environment={n: v for n, v in device.file.recorded.items() if n != "sheet"},
        epochs=None, training=None, llm=None, before=None,
    )  # fmt: skip
    return type(device)(file, device.source)


def _in_mode(device: D, asked: RunAs) -> D:
    """The device in a precision, a launch mode and a layout of images.

    A bundled profile of the same GPU measured in that mode is preferred to this device's formula, changed
    by the GPU's data sheet. InputError if neither is possible.
    """
    launch = asked.launch
    dtype = asked.precision and dtype_named(asked.precision)
    given = {"dtype": dtype, "launch": launch, "channels_last": asked.channels_last}
    changes: dict[str, Any] = {n: value for n, value in given.items() if value}
    file = device.file
    if not file.has_latencies and (file.epochs is not None or file.llm is not None):
        return _without_latencies(device, changes, asked)
    file = device.latencies_file
    if (timed := file.epochs_mode) and replace(timed, **changes) != timed:
        file = file.but(epochs=None)  # epochs were timed in another mode
    mode = file.mode
    if replace(mode, **changes).fused:
        changes.pop("channels_last", None)  # a compiler chooses channels last itself
    wanted = replace(mode, **changes)
    if wanted == mode:
        return _asked(device, file, asked)
    if "before" in file.document:

        def nearness(its: Mode) -> tuple[bool, bool]:
            return its.dtype == wanted.dtype, its.half == wanted.half

        old = as_before_fit(file)
        if nearness(old.mode) > nearness(mode):
            return _in_mode(_asked(device, old, RunAs()), replace(asked, launch=wanted.launch))
    kernels = file.kernels
    if kernels is None or (wanted.launch != mode.launch and not kernels.host):
        raise _impossible(device, wanted)
    if measured := measured_in(device, wanted.__eq__):
        return _asked(measured, measured.file, asked, device.asked)
    if near := _near(device, mode, wanted):
        if near.file.mode.dtype != wanted.dtype:
            asked = replace(asked, precision=PRECISION_OF[wanted.dtype])
        if wanted.fused and not near.file.mode.fused and mode.half:
            near = with_file(near, _as_laid_out_by_a_compiler(near.file, file))
        return _in_mode(near, asked.after(device.asked))
    return _asked(device, _changed(file, kernels, wanted), asked)


def _impossible(device: Device, wanted: Mode) -> InputError:
    """The error for a launch, layout or precision in which a device cannot be predicted."""
    mode = device.file.mode
    if wanted.launch != mode.launch:
        return InputError(
            f"{arg('launch')} {wanted.launch}: {device.name} was measured in {mode.launch} mode only; "
            "expected a GPU, or a CPU's profile learned so (lolat learn --compile)",
            code="no-launch",
            of_device=True,
        )
    if wanted.dtype == mode.dtype:
        expected = (
            "expected a GPU's profile, or one that was learned so (lolat learn --channels-last)"
        )
        measured = f"measured channels first; {expected}"
        if (device.file.environment.framework or BACKENDS[0]) == BACKENDS[0]:
            measured = (
                "measured in TensorFlow, whose images lie channels last already; leave it out"
            )
        return InputError(
            f"{arg('channels_last')}: {device.name} was {measured}",
            code="no-layout",
            of_device=True,
        )
    return no_precision(wanted.dtype, mode.dtype, None, device.name)


def _near(device: D, mode: Mode, wanted: Mode) -> D | None:
    """The bundled device measured in a mode closer to `wanted` than this device's; None without one."""

    def fused(its: Mode) -> bool:
        """True if a mode is fused as the wanted one, and equal up to the half precision and the launch."""
        as_wanted = replace(its, dtype=wanted.dtype, launch=wanted.launch)
        return its.half and its.fused == wanted.fused and as_wanted == wanted

    def in_half(its: Mode) -> bool:
        return its.half and replace(its, dtype=mode.dtype) == mode

    if not wanted.half:
        return None
    if not mode.half:
        return measured_in(device, in_half)
    if wanted.fused != mode.fused and (found := measured_in(device, fused)):
        return found
    # A compiler takes channels last, so its convolutions convert nothing.
    if not wanted.runs_channels_last or mode.runs_channels_last:
        return None
    return measured_in(device, replace(mode, channels_last=True).__eq__)


LAID_OUT = frozenset([POINTWISE, CONVOLUTION, GROUPED, DEPTHWISE, BATCH_NORM, ELEMENTS])
"""Classes of operations that a compiled network runs channels last. Other classes may have slower eager
kernels in that layout; a compiler generates kernels for either layout."""


def _as_laid_out_by_a_compiler(last: DeviceFile, first: DeviceFile) -> DeviceFile:
    """The file for channels last, with classes outside LAID_OUT at the higher bandwidth of both layouts."""
    predictors = dict(last.document["predictors"])
    own, other = predictors[Roofline.name], first.document["predictors"][Roofline.name]
    classes = {
        name: rates
        if name in LAID_OUT
        else max(rates, other["classes"][name], key=itemgetter("bandwidth"))
        for name, rates in own["classes"].items()
    }
    return last.but(predictors=predictors | {Roofline.name: own | {"classes": classes}})


def _changed(file: DeviceFile, kernels: Roofline, wanted: Mode) -> DeviceFile:
    """The file with its formulas changed to the mode `wanted`; `kernels`: the formula of the file."""
    # A compiler chooses the layout of images.
    wanted = replace(wanted, channels_last=wanted.channels_last and not wanted.fused)
    mode, gpu = kernels.mode, file.gpu
    is_last = wanted.channels_last and not mode.channels_last
    is_taken_out = is_last and mode.half and not kernels.channels_last_terms
    doubt = LAYOUT_SPREAD if is_taken_out else 0.0
    formulas = dict(file.document["predictors"])
    if is_last:
        formulas.pop(TrainingSteps.name, None)  # the terms of training steps hold for one layout
    for name in formulas:
        if isinstance(formula := file.formulas.get(name), Roofline):
            formula = in_precision(formula, wanted.dtype, gpu)
            elsewhere = math.hypot(formula.elsewhere, doubt)
            formulas[name] = replaced(formula, mode=wanted, elsewhere=elsewhere).to_dict()
    remark = file.estimated
    is_timed = kernels.measured and remark is None
    is_alike = wanted.half and mode.half and gpu and gpu.rate(wanted.dtype) == gpu.rate(mode.dtype)
    if wanted.dtype != mode.dtype and is_timed and not is_alike:
        assert gpu is not None  # else the precision was refused earlier
        sheet = f"the data sheet of {gpu.name} ({gpu.rate_words(wanted.dtype)})"
        asked_in = f"the time of products in {PRECISION_OF[wanted.dtype]} is estimated from {sheet}"
        remark = Remark(f"measured in {PRECISION_OF[mode.dtype]}", asked_in)
    elif is_taken_out and is_timed:
        less = "the conversion of tensors to channels last and back is taken off each convolution's time"
        remark = Remark("measured channels first", less)
    # Training was measured in another mode.
    return file.but(training=None, predictors=formulas, estimated=remark)


def _without_latencies(device: D, changes: Mapping[str, Any], asked: RunAs) -> D:
    """The device of a file without latencies; InputError if its epochs were timed in another mode."""
    timed = device.file.epochs_mode
    if timed and replace(timed, **changes) != timed:
        name = next((n for n in ("launch", "channels_last") if n in changes), "precision")
        value = "" if name == "channels_last" else f" {getattr(asked, name)}"
        raise InputError(
            f"{arg(name)}{value}: the profile {device.name} has only epochs timed in {timed}; ask for "
            f"{timed}, or use a profile with latencies",
            code="no-layout" if name == "channels_last" else f"no-{name}",
            of_device=True,
        )
    return _asked(device, device.file, asked)


def _asked(device: D, file: DeviceFile, asked: RunAs, before: RunAs | None = None) -> D:
    """The device with another file, in the mode that is asked for.

    `before`: the mode asked for earlier; None for the device's own.
    """
    made = with_file(device, file)
    made.asked = asked.after(before or device.asked)
    return made


def check_layout(device: Device, graph: Graph) -> None:
    """Raise InputError if channels last is asked for and the device or the network has no such layout."""
    if not device.asked.channels_last:
        return
    mode, expected = device.file.mode, ""
    if not has_images(graph):
        why = "the network has no convolution over two dimensions, so it has no images to lay"
    elif not mode.half:
        why = f"{device.name} has no times of it in {PRECISION_OF[mode.dtype]}"
        expected = f"expected {arg('precision')} amp, fp16 or bf16, or "
    else:
        return
    raise InputError(
        f"{arg('channels_last')}: {why}; {expected}leave it out", code="no-layout", of_device=True
    )


def as_written(device: D, graph: Graph) -> D:
    """The device in the network's own precision if that is half or mixed; else the device as it is.

    InputError if another precision was asked for, if the device has no units for the network's precision,
    if the network is wider than float32 (no GPU was timed in that), or if the layout asked for changes
    nothing.
    """
    if Roofline.name not in device.predictors:
        return device
    device = _in_its_precision(device, graph)
    check_layout(device, graph)
    return device


def _in_its_precision(device: D, graph: Graph) -> D:
    """The device in the network's own precision; see `as_written`."""
    dtype = run_dtype(graph) or ""
    own = None if dtype == FLOAT32 else PRECISION_OF.get(dtype)
    if dtype in ABOVE_FLOAT32:
        raise InputError(
            f"the network is in {dtype} itself: {device.name} was not timed in it; expected the network in "
            "float32",
            code="no-precision",
            of_device=True,
        )
    if own is None or device.asked.precision == own or {device.asked.precision, own} <= HALVES:
        return device  # fp16 and bf16 move the same bytes
    if device.asked.precision == AMP and has_wide_adapters(graph):
        return device
    if device.asked.precision is not None:
        raise InputError(
            f"{arg('precision')} {device.asked.precision}: the network is in {own} itself; expected {own}, "
            "or the network in float32",
            code="no-precision",
            of_device=True,
        )
    if device.file.mode.dtype == dtype_named(own):
        return device
    try:
        return device.run_as(own)
    except InputError as error:
        other = f"{arg('precision')} fp16, or " if own == "bf16" else ""
        raise InputError(
            f"the network is stored in {own}, but {error.data['why']}; expected "
            f"{other}the network in float32",
            code=error.code,
            of_device=True,
        ) from None


def measured_models(
    name: str, asked: Callable[[Mode], bool], gpu: Gpu | None = None, origin: str | None = None
) -> list[tuple[Path, DeviceFile]]:
    """(path, contents) of each profile with networks measured on a device in a mode that `asked` accepts.

    `name`: the device's name. `gpu`: its data sheet; if given, other forms of the card, other cards of its
    chip and, for a server GPU since Hopper, other server GPUs since Hopper count too. `origin`: the origin
    of the files; None for any. The nearest device comes first, float32 before half precision.
    """
    found = []
    card, chip = (None, None) if gpu is None else (card_of(gpu.name), gpu.chip)
    for _, path, where, file in readable_models():
        if origin not in (None, where):
            continue
        if not file.has_latencies or not file.is_measured:
            continue
        own, sheet = file.product, file.gpu
        has_chip = bool(chip and sheet and sheet.chip == chip)
        has_chip |= bool(gpu and sheet and gpu.channels_last and sheet.channels_last)
        is_alike = gpu is not None and (card_of(own) == card or has_chip)
        if asked(file.mode) and (own == name or (is_alike and file.kernels)):
            found.append(((own != name, card_of(own) != card, file.mode.half), path, file))
    return [(path, file) for _, path, file in sorted(found, key=lambda one: one[0])]


def measured_in(device: D, asked: Callable[[Mode], bool], origin: str = SHIPPED) -> D | None:
    """The device measured by the same framework in a mode that `asked` accepts; None if there is none.

    Both files have one `origin`: a bundled file never takes a user's measurements. Another card of a
    measured chip gets that chip's profile, changed by the data sheets.
    """
    name = device.file.product
    gpu = find_gpu(name) if device.file.other_form else None
    source, files = (
        Path(device.source),
        [path for _, path, where in list_models() if where == origin],
    )
    if source not in files and (gpu is None or source.is_file()):  # a fitted file has its own times
        return None
    framework = device.file.environment.framework
    for path, file in measured_models(name, asked, gpu, origin):
        if file.environment.framework != framework:
            continue
        made = with_file(device, file, str(path), path.stem)
        if gpu is None or file.product == name:
            return made
        return with_file(device, on_card(made, name, gpu).file)
    return None


def in_precisions(device: D, precisions: Sequence[str]) -> Iterator[D]:
    """Yield the device as measured, then in each of these precisions that it has."""
    yield device
    for precision in precisions if Roofline.name in device.predictors else ():
        with contextlib.suppress(InputError):
            yield device.run_as(precision)

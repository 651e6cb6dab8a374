"""Execution modes of a device (precision, framework, launch), and words on its measurements."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lolat.device.file import read
from lolat.device.predictors.host import FACTOR, GIVEN
from lolat.device.predictors.precision import in_precision, no_precision
from lolat.device.predictors.roofline import Roofline, TrainingSteps
from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.modes import (
    COMPILED,
    EAGER,
    FLOAT16,
    FLOAT32,
    LAUNCHES,
    Mode,
    own_dtype,
)
from lolat.hardware.gpus import PRECISION_OF, Gpu, card_of, dtype_named, find_gpu, gpu_of, name_of
from lolat.io.paths import SHIPPED, list_models
from lolat.io.results import Remark
from lolat.parameters import PARAMETERS
from lolat.units import plain, plural, shortened

if TYPE_CHECKING:
    from lolat.device import Device

D = TypeVar("D", bound="Device")
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "onnxruntime": "ONNX Runtime"}
ESTIMATED = "estimated"
"""Key of a document in memory, never in a file: a remark on the part from a data sheet."""
OF_FORM = "of_form"
"""Key of a document in memory, never in a file: a remark on the card that was measured."""
AS_NOW = "as_now"
"""Key of a document in memory, never in a file: a remark on the machine's speed now."""
CARD_SPREAD = 0.1
"""Standard deviation, a logarithm, of the error by the data sheets of two cards of a chip. Assumed."""
HALVES = frozenset(["fp16", "bf16"])
"""Precisions of a network in half precision itself, as after `module.half()`."""
ABOVE_FLOAT32 = frozenset(["float64", "complex64", "complex128"])
"""Data types of a network that are more than float32."""


def mode_of(document: Mapping[str, Any]) -> Mode:
    """The execution mode of a model file."""
    kernels, where = document["predictors"].get(Roofline.name), document["environment"]
    if kernels is not None:
        return msgspec.convert(kernels.get("mode", {}), Mode)
    dtype = FLOAT16 if where.get("half") is True else FLOAT32
    launch = COMPILED if where.get("compile") is True else EAGER
    return Mode(dtype, launch, where.get("channels_last") is True)


def epochs_mode(document: Mapping[str, Any]) -> Mode:
    """The execution mode of the timed epochs of a model file; float32 if it does not say."""
    return msgspec.convert(document["epochs"].get("mode") or {}, Mode)


# ---- A device in another execution mode


def run_as(model: D, precision: str | None, launch: str | None, host_us: float | None = None) -> D:
    """The device in a precision and a launch (see `_in_mode`), with a host of a given launch overhead, µs.

    None: as the model was asked before. InputError if it cannot run so, has no host, or for another unit.
    """
    model = _in_mode(model, precision, launch)
    host_us = model.asked_host_us if host_us is None else host_us
    if host_us is None:
        return model
    of = PARAMETERS["host_us"]
    if not isinstance(host_us, (int, float)) or not of.least <= host_us <= of.most:
        raise InputError(
            f"{arg('host_us')} {shortened(repr(host_us))}: expected {of.least:g} to {of.most:g} "
            "microseconds, such as 25 (0.025 ms)",
            code="host-us",
        )
    predictors = dict(model.document.get("predictors", {}))
    hosts = {n: entry["host"] for n, entry in predictors.items() if "host" in entry}
    if not hosts:
        raise InputError(
            f"{arg('host_us')} {host_us:g}: {model.name} has no host that starts its operations; expected "
            "the profile of a GPU, or leave it out",
            code="no-host",
        )
    for name, host in hosts.items():
        given = {"start_ms": host_us / 1e3, "source": GIVEN, "factor": FACTOR[GIVEN]}
        predictors[name] = {**predictors[name], "host": {**host, **given}}
    # Training was measured with another host.
    others = {n: v for n, v in model.document.items() if n not in ("epochs", "training")}
    made = _asked(model, others | {"predictors": predictors}, None, None)
    made.asked_host_us = host_us
    return made


def as_now(model: D, spread: float, remark: Remark, ratio: float = 1.0) -> D:
    """The device of a machine that now takes `ratio` times as long as learned; `remark`: on that.

    `spread`: standard deviation, a logarithm, of the change from network to network; it takes the place of
    the machine's repeatability in intervals. Training, measured at another time, is left out.
    """
    document = {n: v for n, v in model.inference.items() if n not in ("epochs", "training")}
    document["predictors"] = {n: f.scaled(ratio).to_dict() for n, f in model.predictors.items()}
    if (host := document["predictors"].get(Roofline.name, {}).get("host")) is not None:
        for name in ("start_ms", "call_ms"):
            host[name] = ratio * host.get(name, 0.0)
    document["noise"] = {**document["noise"], "repeatability": math.expm1(spread)}
    document[AS_NOW] = remark
    return _asked(model, document, None, None)


def on_card(model: D, name: str, gpu: Gpu) -> D:
    """The device profile of another form of a card (SXM, PCIe, more memory), or of another card of the same
    chip, by their data sheets' ratios.

    `name`: of the form; `gpu`: its sheet. Bandwidths and rates follow the sheets, launches stay.
    """
    formula, measured = model.predictors[Roofline.name], name_of(model.document)
    was = find_gpu(measured) or gpu_of(model.document)  # both by the makers' sheets
    assert isinstance(formula, Roofline)
    assert was is not None
    dtype = formula.mode.dtype
    faster = (gpu.rate(dtype) or 1.0) / (was.rate(dtype) or 1.0)
    wider = (gpu.bandwidth_gb_s or 1.0) / (was.bandwidth_gb_s or 1.0)
    by = {"rate": faster, "bandwidth": wider}
    classes = {
        kind: {term: by[term] * value for term, value in terms.items()}
        for kind, terms in formula.classes.items()
    }
    formula = msgspec.structs.replace(
        formula.of_terms(classes),
        multiprocessors=gpu.multiprocessors or formula.multiprocessors,
        sustained=formula.sustained and faster * formula.sustained,
        most=formula.most and (faster * formula.most[0], wider * formula.most[1]),
        elsewhere=math.hypot(formula.elsewhere, CARD_SPREAD),
    )
    document = {n: v for n, v in model.document.items() if n not in ("epochs", "training", "llm")}
    document |= {"name": name, "device": name, "predictors": {Roofline.name: formula.to_dict()}}
    document["environment"] = {n: v for n, v in document["environment"].items() if n != "sheet"}
    document[OF_FORM] = Remark(
        f"measured on {measured}",
        f"{name} has {wider:.2f} times its bandwidth and {faster:.2f} times its rate, by the data sheets",
    )
    return type(model)(document, model.source)


def _in_mode(model: D, precision: str | None, launch: str | None) -> D:
    """The device run in a precision (`hardware.gpus.PRECISIONS`) and a launch mode; None: as measured.

    It is a bundled model of the same GPU measured in that mode, if there is one, else the device with a
    formula changed by the GPU's data sheet. InputError if neither is possible.
    """
    if launch is not None and launch not in LAUNCHES:
        raise InputError(
            f"{arg('launch')} {shortened(str(launch))}: expected {', '.join(LAUNCHES)}",
            code="no-launch",
        )
    given = {"dtype": precision and dtype_named(precision), "launch": launch}
    asked: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    if "predictors" not in model.document and not {"epochs", "llm"}.isdisjoint(model.document):
        return _without_latencies(model, asked, precision, launch)
    document = dict(model.inference)
    if "epochs" in document and replace(timed := epochs_mode(document), **asked) != timed:
        del document["epochs"]  # they were timed in another mode
    mode = mode_of(document)
    wanted = replace(mode, **asked)
    kernels = document["predictors"].get(Roofline.name, {})
    if wanted.launch != mode.launch and "host" not in kernels:
        raise InputError(
            f"{arg('launch')} {launch}: {model.name} was measured in {mode.launch} mode only; expected a "
            "GPU's profile that has the launch overhead",
            code="no-launch",
        )
    if wanted == mode:
        return _asked(model, document, precision, launch)
    if not kernels:
        raise no_precision(wanted.dtype, mode.dtype, None)
    turned = mode.half and wanted.half and not mode.fused and not mode.channels_last
    for so in (wanted, replace(mode, channels_last=True)) if wanted.fused and turned else (wanted,):
        if other := measured_so(model, so):
            measured = _asked(model, read(other), precision, launch)
            measured.source, measured.label = str(other), other.stem
            # A compiler takes channels last, so its convolutions turn nothing.
            return measured if so == wanted else _in_mode(measured, precision, launch)
    if wanted.half and not mode.half and (in_half := _measured_in_half(model, mode)):
        made = _in_mode(in_half, precision, launch)
        made.asked_host_us = model.asked_host_us
        return made
    predictors, gpu = dict(document["predictors"]), gpu_of(document)
    for kind in (Roofline, TrainingSteps):
        if kind.name in predictors:
            formula = in_precision(msgspec.convert(predictors[kind.name], kind), wanted.dtype, gpu)
            predictors[kind.name] = msgspec.structs.replace(formula, mode=wanted).to_dict()
    # Training was measured in another mode.
    changed = {n: v for n, v in document.items() if n != "training"} | {"predictors": predictors}
    other_units = wanted.dtype != mode.dtype and not (wanted.half and mode.half)
    if other_units and is_measured(document):
        assert gpu is not None  # or the precision was refused
        rate, peak = gpu.rate(wanted.dtype) or 0.0, gpu.peak(wanted.dtype) or 0.0
        sustained = f", of which its power sustains {rate:.3g}" if rate < 0.99 * peak else ""
        sheet = f"the data sheet of {gpu.name} ({peak:.3g} TFLOPS{sustained})"
        asked_in = f"what products take in {PRECISION_OF[wanted.dtype]} is from {sheet}"
        changed[ESTIMATED] = Remark(f"measured in {PRECISION_OF[mode.dtype]}", asked_in)
    return _asked(model, changed, precision, launch)


def _without_latencies(
    model: D, asked: Mapping[str, Any], precision: str | None, launch: str | None
) -> D:
    """The device of a file without latencies; InputError if its epochs were timed in another mode."""
    if (
        "epochs" in model.document
        and replace(timed := epochs_mode(model.document), **asked) != timed
    ):
        name, code = ("launch", "no-launch") if launch else ("precision", "no-precision")
        raise InputError(
            f"{arg(name)} {launch or precision}: {model.name} has epochs of {timed} alone; expected "
            "that, or a model of latencies",
            code=code,
        )
    return _asked(model, {**model.document}, precision, launch)


def _asked(model: D, document: dict[str, Any], precision: str | None, launch: str | None) -> D:
    """A model of the same file in the asked mode."""
    made = type(model)(document, model.source)
    made.label, made.asked_precision = model.label, precision or model.asked_precision
    made.asked_launch, made.asked_host_us = launch or model.asked_launch, model.asked_host_us
    return made


def as_written(model: D, graph: Graph) -> D:
    """The device in the network's own precision if that is half or mixed, else as it is.

    InputError if another was asked for, the device has no units for it, or the network is in more than
    float32, in which no GPU was timed.
    """
    if Roofline.name not in model.predictors:
        return model
    dtype = own_dtype(graph) or ""
    own = None if dtype == FLOAT32 else PRECISION_OF.get(dtype)
    if dtype in ABOVE_FLOAT32:
        raise InputError(
            f"the network is in {dtype} itself: {model.name} was not timed in it; expected the network in "
            "float32",
            code="no-precision",
        )
    if own is None or model.asked_precision == own or {model.asked_precision, own} <= HALVES:
        return model  # fp16 and bf16 move equal bytes and use the same units
    if model.asked_precision is not None:
        raise InputError(
            f"{arg('precision')} {model.asked_precision}: the network is in {own} itself; expected {own}, "
            "or the network in float32",
            code="no-precision",
        )
    if mode_of(model.document).dtype == dtype_named(own):
        return model
    try:
        return model.run_as(own)
    except InputError as error:
        other = f"{arg('precision')} fp16, or " if own == "bf16" else ""
        raise InputError(
            f"the network is in {own} itself: {error.message.partition('; expected')[0]}; expected "
            f"{other}the network in float32",
            code=error.code,
        ) from None


def measured_models(
    name: str, asked: Callable[[Mode], bool], gpu: Gpu | None = None, origin: str | None = None
) -> list[tuple[Path, dict[str, Any]]]:
    """(file, contents) of each model of networks measured on a device in a mode that is `asked`.

    `name`: the device's; `gpu`: a sheet, so that other forms of its card and other cards of its chip count
    too; `origin`: of the files, None: any. The nearest device first, float32 before half precision.
    """
    found = []
    card, chip = (None, None) if gpu is None else (card_of(gpu.name), gpu.chip)
    for _, path, where in list_models():
        document = read(path) if origin in (None, where) else {}
        if "predictors" not in document or not is_measured(document):
            continue
        own, sheet, mode = name_of(document), gpu_of(document), mode_of(document)
        has_chip = bool(chip and sheet and sheet.chip == chip)
        is_alike = gpu is not None and (card_of(own) == card or has_chip)
        if asked(mode) and (own == name or (is_alike and Roofline.name in document["predictors"])):
            found.append(((own != name, card_of(own) != card, mode.half), path, document))
    return [(path, document) for _, path, document in sorted(found, key=lambda one: one[0])]


def measured_so(model: Device, wanted: Mode, origin: str = SHIPPED) -> Path | None:
    """The file of a model of the same device and framework that was measured in the `wanted` mode.

    Both are of one `origin`: a user's own measurements would not count in a bundled file.
    """
    if all(path != Path(model.source) for _, path, where in list_models() if where == origin):
        return None
    own = model.inference
    others = measured_models(name_of(own), wanted.__eq__, origin=origin)
    framework = own["environment"].get("framework")
    return next((p for p, d in others if d["environment"].get("framework") == framework), None)


def _measured_in_half(model: D, mode: Mode) -> D | None:
    """The bundled device in half precision, launched as in `mode`; None if nobody timed it so.

    For another card of a measured chip: that chip's, changed by the data sheets.
    """
    name, is_carried = name_of(model.document), OF_FORM in model.document
    bundled = [path for _, path, where in list_models() if where == SHIPPED]
    if not is_carried and Path(model.source) not in bundled:
        return None

    def asked(its: Mode) -> bool:
        return its.half and replace(its, dtype=mode.dtype) == mode

    gpu = find_gpu(name) if is_carried else None
    for path, document in measured_models(name, asked, gpu, SHIPPED):
        made = type(model)(document, str(path))
        if gpu is None or name_of(document) == name:
            made.label = path.stem
            return made
        made = on_card(made, name, gpu)
        made.source, made.label = model.source, model.label
        return made
    return None


def is_measured(document: Mapping[str, Any]) -> bool:
    """True if anything was measured on the device in the precision of the document."""
    kernels = document["predictors"].get(Roofline.name)
    is_other = ESTIMATED in document or OF_FORM in document
    return not is_other and (kernels is None or bool(kernels["measured"]))


def in_precisions(model: D, precisions: Sequence[str]) -> Iterator[D]:
    """The device as measured, and in each of these precisions that it has."""
    yield model
    for precision in precisions if Roofline.name in model.predictors else ():
        with contextlib.suppress(InputError):
            yield model.run_as(precision)


# ---- In words


def mode_words(document: Mapping[str, Any]) -> str:
    """Precision, framework and launch: "fp32, PyTorch, eager"."""
    where, mode = document["environment"], mode_of(document)
    precision = PRECISION_OF[mode.dtype]
    if (
        mode.dtype == FLOAT32
        and document["predictors"].get(Roofline.name, {}).get("tf32", 1.0) > 1.0
    ):
        precision += " (convolutions in TF32)"  # PyTorch's default
    framework = FRAMEWORKS.get(str(where.get("framework")), where.get("framework"))
    parts = [precision, plain(str(framework)) if framework else ""]
    parts += [mode.launch if framework == FRAMEWORKS["torch"] or mode.launch != EAGER else ""]
    parts += ["channels last" if mode.channels_last else ""]
    return ", ".join(filter(None, parts))


def precisions_differ(models: Iterable[Device]) -> str:
    """A remark on GPUs of which some run in half precision and some do not, although no precision was asked
    for; "" without them.
    """
    by_precision: dict[str, dict[str, bool]] = {}
    for model in models:
        if model.asked_precision is None and Roofline.name in model.predictors:
            mode = mode_of(model.document)
            by_precision.setdefault(PRECISION_OF[mode.dtype], {})[plain(model.label)] = mode.half
    if len({half for labels in by_precision.values() for half in labels.values()}) < 2:
        return ""
    each = "; ".join(f"{name} on {', '.join(labels)}" for name, labels in by_precision.items())
    return (
        f"Precisions differ, so these times do not compare the GPUs: {each} (one for all: "
        "--precision fp16; each GPU's fastest: --precision best)"
    )


def batch_sizes_of(document: Mapping[str, Any]) -> tuple[int, int] | None:
    """The smallest and the largest batch size of the measurements; None if the file does not say."""
    fitted_on = document["environment"].get("held") or {}
    sizes = fitted_on.get("batch_sizes") or [p["batch_size"] for p in document.get("points", ())]
    return (min(sizes), max(sizes)) if sizes else None


def span(sizes: tuple[int, int]) -> str:
    """A range in words: "1 to 64"."""
    low, high = sizes
    return str(low) if low == high else f"{low} to {high}"


def fitted_on_words(document: Mapping[str, Any]) -> str:
    """The measurements of a device: the number of operations, networks or blocks, their batch sizes and
    the version of the framework.
    """
    where, points = document["environment"], document.get("points", ())
    fitted_on = where.get("held") or {}
    parts = [plural(fitted_on[n], n[:-1]) for n in ("operations", "networks") if fitted_on.get(n)]
    parts += [plural(len(points), "block")] if points and not parts else []
    if sizes := batch_sizes_of(document):
        parts.append(f"batch {span(sizes)}")
    if where.get("framework_version"):
        framework = FRAMEWORKS.get(str(where.get("framework")), where.get("framework"))
        parts.append(plain(f"{framework} {where['framework_version']}"))
    return ", ".join(parts)

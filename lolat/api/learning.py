"""Learning a device: measured here, fitted and written."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lolat.api import Model
from lolat.errors import InputError, LolatError, arg
from lolat.fitting.points import Point
from lolat.io import paths
from lolat.io.progress import Progress, Silent
from lolat.io.writing import check_writable
from lolat.model import learning as fitting
from lolat.model.file import SECTIONS, read, write
from microbench import backends, doctor, environment, worker
from microbench import learn as of_blocks
from microbench import learn_training as of_training
from microbench.journal import interruptible

USUAL = "tensorflow"  # the backend that the default name of a model file does not mention


def learn(
    device: str = "cpu",
    output: str | os.PathLike[str] | None = None,
    *,
    backend: str | None = None,
    options: Sequence[str] = (),
    training: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Measure about a hundred predefined blocks on this device and fit a model: a few minutes.

    `device`: "cpu" or "gpu". `output`: the model file; models/local/<device>.json (or your data folder)
    if None. `backend`: tensorflow, torch or onnxruntime; the usual one that is there if None. `options`:
    of the backend, such as "compile", "half" or "threads=2". `training`: measure forward, backward and
    update too, some minutes more. `restart`: throw away what an interrupted run measured. `progress`: is
    told how far it is (start, step, note).

    Returns the `Model`. What was measured before Ctrl-C is kept, and the same call goes on. Raises
    MissingPackageError or DeviceError where there is nothing to measure with, InputError where `output`
    cannot be written or is of another device.
    """
    path = None if output is None else Path(output)
    shown = progress or Silent()
    made, is_new = learn_device(device, path, backend, options, training, restart, shown)
    for remark in made.document["warnings"] if is_new else ():
        shown.note(f"warning: {remark}")
    return made


def learn_device(
    device: str,
    output: Path | None,
    backend: str | None,
    options: Sequence[str],
    training: bool,
    restart: bool,
    shown: Progress,
) -> tuple[Model, bool]:
    """As `learn`; with the model, whether its latencies are new (else only training was added)."""
    started = time.monotonic()
    joined, target = _backend_and_output(device, output, backend, options, shown)
    known = None
    if training:
        backends.check_trains(joined)
        known = None if restart else known_model(target, device, backends.threads_of(joined))
        if known is not None and "predictors" in known:
            shown.note(
                f"{paths.near(target)} is of this device: its latencies are kept, training is added"
            )
            return _with_training(known, target, joined, device, restart, shown), False
    kept_sections(target, device, joined, restart)  # or refused, before minutes are spent
    journal_path = target.with_name(target.name + ".journal.jsonl")
    with interruptible(journal_path):
        points, where, noise, warnings, journal = of_blocks.measure_blocks(
            joined, device, journal_path, time.time(), restart, shown
        )
        noise = _repeated(points, joined, device, target, where, noise, shown)
        warnings = [*warnings, *of_blocks.slow_spell(noise, where)]
        where["seconds"] = round(time.monotonic() - started, 1)
        label = environment.label_of(device, where)
        document = fitting.model_document(target.stem, label, points, where, noise, warnings)
        document |= kept_training(target, document)
        document |= kept_sections(target, device, joined, restart)
        write(target, document)
    journal.remove()
    if training:
        return _with_training(document, target, joined, device, restart, shown), True
    return Model(document, str(target)), True


def _repeated(
    points: Sequence[Point], backend: str, device: str, target: Path, where: dict[str, Any],
    noise: Mapping[str, Any], shown: Progress,
) -> dict[str, Any]:  # fmt: skip
    """`noise` with how well times repeat here: see `doctor.repeatability`, and `doctor.ratio_to` of the
    model of this machine that stands in `target`. `peak_share` is put into `where`, the environment.
    """
    found = dict(noise)
    shown.note("timing some networks once more, by another process")
    try:
        again = doctor.once_more(points, backend, device, shown)
    except LolatError as error:
        again = ()
        shown.note(f"warning: networks could not be timed once more: {error}")
    found["repeatability"] = round(doctor.repeatability(again, noise), 4)
    if again:
        found["again"] = [
            {
                "name": a.point.name,
                "batch_size": a.point.batch_size,
                "first_ms": a.point.latency_ms,
                "last_ms": round(a.now_ms, 6),
            }
            for a in again
        ]
    if (share := of_blocks.peak_share(points, where)) is not None:
        where["peak_share"] = share
    with contextlib.suppress(LolatError, KeyError, TypeError, AttributeError):
        old = read(target)
        learned = old["environment"]
        ratio = doctor.ratio_to([Point.from_dict(p) for p in old["points"]], points)
        if ratio and not environment.differences(str(old["device"]), learned, where):
            found["former"] = {"ratio": round(ratio, 4), "date": learned["date"]}
    return found


def _with_training(
    document: Mapping[str, Any], output: Path, backend: str, device: str, restart: bool,
    progress: Progress,
) -> Model:  # fmt: skip
    """Measure training on this device and write it to `output`, in `document`, a latency model's.

    Where the file was changed meanwhile, training is added to what it is then. InputError where the
    framework or its settings are not those that `document` was learned with.
    """
    started = time.monotonic()
    if unsaid := environment.unsaid(document["environment"]):
        progress.note(f"warning: {paths.near(output)}: {unsaid}")
    journal_path = output.with_name(output.name + ".training.journal.jsonl")
    with interruptible(journal_path):
        section, journal = of_training.measure_training(
            backend, device, journal_path, time.time(), restart, progress,
            check=partial(_refuse, document),
        )  # fmt: skip
        section["environment"]["seconds"] = round(time.monotonic() - started, 1)
        now = known_model(output, device, backends.threads_of(backend)) or document
        _refuse(now, section["environment"])
        learned = {**now, "training": section}
        write(output, learned)
    journal.remove()
    for remark in section["warnings"]:
        progress.note(f"warning: {remark}")
    return Model(learned, str(output))


def known_model(output: Path, device: str, threads: int | None = None) -> dict[str, Any] | None:
    """The model in `output`, to which training can be added; None where there is none.

    `threads`: that were asked for, if so. What else stands there is replaced, as by any learning.
    InputError for a model of another device.
    """
    if not output.exists():
        return None
    try:
        document = read(output)
    except LolatError:
        return None
    if "predictors" not in document:  # nothing of it was measured: whoever gives it knows
        return document
    learned, label = document["environment"], str(document["device"])
    here = environment.here({"threads_asked": threads}, device)
    other = device == "cpu" and environment.differences_of_device(label, learned, here)
    if learned.get("device") != device or other:
        own = environment.label_of(device, here) if device == "cpu" else f"a {device}"
        raise InputError(
            f"{output} is a model of another device: {label}, and this is {own}; give another "
            f"{arg('output')}, or {arg('restart')} to replace it",
            code="other-device",
        )
    return document


def kept_sections(output: Path, device: str, backend: str, restart: bool) -> dict[str, Any]:
    """What the model in `output` knows besides inference and training, which learning leaves as it is.

    InputError for a model of another device, unless it is to be replaced: `restart`.
    """
    try:
        old = read(output)
    except LolatError:
        return {}
    kept = {s: old[s] for s in SECTIONS if s in old and s != "training"}
    try:
        if kept:
            known_model(output, device, backends.threads_of(backend))
    except InputError:
        if not restart:
            raise
        return {}
    return kept


def kept_training(output: Path, learned: Mapping[str, Any]) -> dict[str, Any]:
    """{"training": ...} of the model in `output`, if its latencies now are `learned` on the same device.

    What took minutes to measure is not lost where the latencies are learned again; {} where there is none.
    """
    try:
        old = read(output)
        section = old["training"]
        other = environment.differences(
            str(old["device"]), section["environment"], learned["environment"]
        )
    except (LolatError, KeyError, TypeError, AttributeError):
        return {}
    return {} if other else {"training": section}


def _refuse(document: Mapping[str, Any], where: Mapping[str, Any]) -> None:
    """InputError where training would be measured otherwise than the latencies of the file were."""
    found = environment.differences(str(document["device"]), document["environment"], where)
    if found:
        each = "; ".join(f"{d.field}: {d.learned}, here {d.now}" for d in found)
        raise InputError(
            f"the model was learned elsewhere ({each}) and times of two places are not to be mixed; "
            f"give the {arg('backend')} and options that it was learned with, another {arg('output')}, or "
            f"{arg('restart')} to learn all anew",
            code="other-device",
        )


def _backend_and_output(
    device: str, output: Path | None, name: str | None, options: Sequence[str], progress: Progress
) -> tuple[str, Path]:
    """What measures, and where the model goes: checked before minutes are spent."""
    if output is not None:  # before a GPU is looked for, which takes seconds
        check_writable(output)
    if name is None:
        backend, remark = worker.pick(device, options)
        if remark:
            progress.note(remark)
    else:
        backend = backends.joined(name, options)
    if output is None:  # what a GPU is called is not known before the backend has started
        threads, plain = backends.threads_of(backend), backends.without_threads(backend)
        own = environment.device_label(device, threads=threads)  # which says the threads
        label = f"cpu {own}" if device == "cpu" else device
        with_what = "" if plain == USUAL else f" {plain}"
        output = paths.local_folder() / f"{environment.slug(label + with_what)}.json"
        check_writable(output)
    return backend, output

"""Learns this device: measures it, fits a profile and writes it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lolat.api.model import Model
from lolat.device.file import DeviceFile, read, write
from lolat.errors import InputError, LolatError, ModelFileError, arg
from lolat.fitting import blocks as fitting
from lolat.fitting.int8 import with_int8
from lolat.fitting.measured_gpu import with_operations, with_training
from lolat.hardware.environment_section import ANY_GPU
from lolat.hardware.gpus import CPU
from lolat.io import paths
from lolat.io.progress import Progress
from lolat.io.writing import check_file
from lolat.microbench import backends, blocks, check, choice, environment, learn_training
from lolat.microbench import journal as journals
from lolat.microbench import learn as learn_blocks
from lolat.parameters import check_given
from lolat.units import value_words

DEFAULT_BACKEND = "tensorflow"
"""The backend that is not part of a profile's default name."""


def learn(
    device: str = "cpu",
    output: str | os.PathLike[str] | None = None,
    *,
    backend: str | None = None,
    options: Sequence[str] = (),
    training: bool = False,
    restart: bool = False,
    wait: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Measure 80 blocks and 13 networks on this device and fit a profile, in two to three minutes.

    `device`: "cpu" or "gpu". `output`: the file of the profile; None: models/local/<device>.json (or your
    data folder). `backend`: tensorflow, torch or onnxruntime; None: chosen among the installed backends.
    `options`: options of the backend, such as "compile", "half" or "threads=2". `training`: measure
    forward, backward and update too. `restart`: discard the measurements of an interrupted run, and a
    profile of another device or backend in `output`. `wait`: wait for a calm moment, ten minutes at most.
    `progress`: gets stages, steps and notes.

    Returns the `Model`. After Ctrl-C the same call resumes the run. Raises MissingPackageError or
    DeviceError if there is nothing to measure with, InputError if `output` cannot be written or is of
    another device or backend.
    """
    check_given(training=training, restart=restart, wait=wait)
    chosen = device.casefold() if isinstance(device, str) else None
    if chosen not in (CPU, ANY_GPU):
        raise InputError(
            f"{arg('device')} {value_words(device)}: expected cpu or gpu", code="device"
        )
    device = chosen
    shown = progress or Progress()
    path = None if output is None else Path(output)
    joined, target, here = _backend_and_output(device, path, backend, options, shown)
    if training:
        backends.check_trains(joined)
    if wait:
        choice.check_installed(joined)  # before minutes are spent
        learn_blocks.wait_until_calm(shown)
    journal = target.with_name(target.name + paths.JOURNAL)
    run = learn_blocks.Run(joined, device, journal, time.time(), restart, shown)
    old = _model_in(target, here, restart)
    if not training or restart or old is None or not old.has_latencies:
        file = _learn_latencies(old, target, run)
    else:
        shown.note(
            f"{paths.relative_path(target)} is of this device: its latencies are kept, training is added"
        )
        file = old
    if training:
        file = _add_training(file, target, run)
    return Model(file, str(target))


def _learn_latencies(old: DeviceFile | None, target: Path, run: learn_blocks.Run) -> DeviceFile:
    """Measure the blocks, fit and write a profile; the other sections of the `old` profile are kept."""
    started = time.monotonic()
    latencies = old if old is not None and old.has_latencies else None
    if latencies and not run.restart:
        run = replace(run, check=partial(_refuse_other, latencies, fields=environment.OF_BACKEND))
    with journals.interruptible(run.journal):
        measured, where, noise, failures, journal = learn_blocks.measure_blocks(run)
        points, quantized = ([p for p in measured if bool(p.scheme) is q] for q in (False, True))
        run.progress.note("timing some networks once more, by another process")
        again: Sequence[check.NetworkAgain] = ()
        lacking = []
        try:
            again = check.measure_again(points, run.backend, run.device, run.progress)
        except LolatError as error:
            lacking = [f"networks could not be timed once more: {error}"]
        noise["repeatability"] = round(check.repeatability(again, noise), 4)
        warnings = [*learn_blocks.warnings(where, noise, failures), *lacking]
        label = environment.label_of(run.device, where)
        where["seconds"] = round(time.monotonic() - started, 1)
        file = fitting.fitted_file(target.stem, label, points, where, noise, warnings)
        graphs = blocks.known_graphs(run.backend) if quantized or run.device == "gpu" else {}
        if run.device == "gpu":
            file = with_operations(file, points, graphs)
        file = with_int8(file, quantized, graphs)
        if old and not (latencies and _differences(latencies, where, environment.OF_BACKEND)):
            file = file.but(**old.sections)
        if file.training and environment.differences(label, file.training["environment"], where):
            file = file.but(training=None)  # times of two frameworks are not mixed
        if run.device == "gpu" and file.training:
            file = with_training(file, learn_training.training_graphs(run.backend))
        write(target, file.document)
    journal.remove()
    for remark in file.warnings:
        run.progress.note(f"warning: {remark}")
    return file


def _add_training(file: DeviceFile, target: Path, run: learn_blocks.Run) -> DeviceFile:
    """Measure training on this device, and write it to `target` together with the latencies in `file`."""
    started = time.monotonic()
    path = target.with_name(target.name + ".training" + paths.JOURNAL)
    run = replace(run, journal=path, check=partial(_refuse_other, file))
    with journals.interruptible(path):
        section, journal = learn_training.measure_training(run)
        section["environment"]["seconds"] = round(time.monotonic() - started, 1)
        file = file.but(training=section)
        if run.device == "gpu":
            file = with_training(file, learn_training.training_graphs(run.backend))
        write(target, file.document)
    journal.remove()
    for remark in section["warnings"]:
        run.progress.note(f"warning: {remark}")
    return file


def _model_in(target: Path, here: Mapping[str, Any], restart: bool) -> DeviceFile | None:
    """The profile that is already in `target` or None; learning keeps its other sections.

    `here`: this device, as `environment.differences` takes it. ModelFileError for a file of another kind. A
    measured profile of another device raises InputError, or with `restart` is ignored.
    """
    if not target.exists():
        return None
    try:
        file = read(target)
    except ModelFileError as error:  # a table, or a profile of another version: not ours to replace
        raise error.reworded(
            f"{error.message}; give another {arg('output')}, or remove it"
        ) from None
    if not file.has_latencies:  # the user says that its other sections are of this device
        return file
    other = environment.differences_of_device(file.device, file.recorded, here)
    if file.environment.device == here["device"] and not other:
        return file
    if restart:
        return None
    raise InputError(
        f"{target} is the profile of another device: {file.device}; give another {arg('output')}, or "
        f"{arg('restart')} to replace it",
        code="other-device",
    )


def _differences(file: DeviceFile, where: Mapping[str, Any], fields: Collection[str]) -> list[str]:
    """The differences of a file's environment from `where`, in `fields` or, if empty, in all fields."""
    found = environment.differences(file.device, file.recorded, where)
    return [str(one) for one in found if not fields or one.field in fields]


def _refuse_other(file: DeviceFile, where: Mapping[str, Any], fields: Collection[str] = ()) -> None:
    """Raise InputError if training would run on another device or with other options than the latencies."""
    if found := _differences(file, where, fields):
        raise InputError(
            f"times of two places are not to be mixed: {'; '.join(found)}; give the {arg('backend')} and "
            f"options that the profile was learned with, another {arg('output')}, or {arg('restart')} to "
            "learn all anew",
            code="other-device",
        )


def _backend_and_output(
    device: str, output: Path | None, name: str | None, options: Sequence[str], progress: Progress
) -> tuple[str, Path, dict[str, Any]]:
    """(backend, path of the profile, facts of this device), checked before minutes are spent."""
    if output is not None:  # before a GPU is looked for, which takes seconds
        check_file(output, "output", make_folder=True)
    if name is None:
        backend, remark, own = choice.pick(device, options)
    else:
        backend, remark, own = backends.join_name(name, options), "", None
    threads = backends.threads_of(backend, device)
    if remark:
        progress.note(remark)
    if own is None:  # a GPU is known by its name, which its backend tells
        own = choice.environment_in_child(backend, device) if device == "gpu" else {}
    here = environment.here({"threads_asked": threads}, device) | own
    if output is None:
        label = environment.label_of(device, here)
        words = device if label == device else f"{device} {label}"
        words += f" {backend.replace(f'+threads={threads}', '')}".removesuffix(
            f" {DEFAULT_BACKEND}"
        )
        file_name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
        output = paths.local_folder() / f"{file_name}.json"
        check_file(output, "output", make_folder=True)
    return backend, output, here

"""Loads a profile by file or name, or makes one for a GPU from another card or from its data sheet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from shlex import quote

from lolat.api.model import Model
from lolat.api.profile_names import card_named, full_name
from lolat.api.serving import serving_model
from lolat.api.sheets import model_of_sheet
from lolat.device.execution_modes import measured_models, on_card, with_file
from lolat.device.remedies import bundled_twin
from lolat.device.state import is_noisy
from lolat.errors import InputError, ModelFileError, arg
from lolat.hardware.card_names import find_gpu
from lolat.hardware.gpus import CPU, Gpu
from lolat.io.paths import LOCAL
from lolat.io.progress import Progress, Warn
from lolat.units import value_words


def load(path: str | os.PathLike[str]) -> Model:
    """Load a device's profile.

    `path`: a JSON file, "local" (the profile learned last on this machine), a name from `lolat.models()`,
    or the name of a GPU ("a100", "RTX 4090"). A GPU's name stands for its profile of networks, eager before
    compiled; a GPU without a profile is predicted from another card with its chip, or from its data sheet.
    Returns a `Model`. Raises ModelFileError if there is no such profile, or the file is damaged or of
    another kind, and InputError for a GPU with an incomplete data sheet.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ModelFileError(
            f"load got {value_words(path)}; expected a device's name or a profile's path, as in "
            'lolat.load("epyc-2t")',
            code="unknown-model",
        )
    name = os.fspath(path)
    full = full_name(name)
    try:
        model = Model.load(full)
    except ModelFileError as error:
        if error.code != "unknown-model" or (gpu := card_named(full)) is None:
            raise
        model = Model((_profile_of_chip(full, gpu) or model_of_sheet(full)).file, full)
    else:
        kernels, product = model.file.kernels, model.file.product
        known = kernels is None or kernels.measured or model.file.environment.sheet is not None
        gpu = None if known else find_gpu(product)
        if gpu and (made := _profile_of_chip(product, gpu)):
            model = with_file(model, model.file.but(**made.file.document))
    model.label, model.serving = name, partial(_serving, name, model)
    return model


def _serving(name: str, model: Model) -> Model:
    """The profile of language models for a GPU's name; for any other name `model` itself."""
    return serving_model(name) if card_named(name) else model


def open_here(
    name: str,
    say: Warn,
    progress: Callable[[str], AbstractContextManager[Progress]],
    now: bool = False,
    as_learned: bool | None = None,
) -> Model:
    """`load` on this machine. `say` gets remarks on an old profile, or a `local` one of another processor.

    `now`: measure some networks and scale the profile to the current speed; `progress`: called with the
    expected duration, shows the progress. `as_learned`: False: probe the machine if it may have changed.
    InputError if both are True, and if `as_learned` is True for a profile without a probe.
    """
    loaded = load(name)
    name = loaded.label
    file, state = loaded.file, loaded.state
    differences: Sequence[object] = ()
    if file.is_cpu and (name == LOCAL or state is not None):
        from lolat.microbench import environment as machine

        here = machine.here(file.recorded, CPU)
        differences = machine.differences_of_device(file.device, file.recorded, here)
        if name == LOCAL and differences:
            learn = file.environment.learn_command(threads=here.get("threads_asked"))
            say(f"warning: {name}: {differences[0]}; learn again with: {learn}")
    if as_learned and now:
        raise InputError(
            f"{arg('as_learned')} and {arg('now')}: expected one of them", code="two-speeds"
        )
    if as_learned and file.noise.probe is None:
        raise InputError(
            f"{arg('as_learned')}: {name} has no probe (CPUs learned with several threads have one), so it "
            "always answers as learned; expected no such option",
            code="no-probe",
        )
    if now:
        with progress("some 20 seconds") as bar:
            return loaded.as_now(progress=bar)
    if state is None or differences:  # of another processor nothing can be checked here
        return loaded
    if state.remark is not None:
        say(f"{name}: {state.remark}; `lolat doctor {quote(name)}` takes 20 seconds")
    if is_noisy(file) and (twin := bundled_twin(file, loaded.source)):
        say(f"{name}: its interval is wide, as it was learned on an unsteady machine; {twin}")
    if as_learned is not False:
        return loaded
    from lolat.api.doctor import as_probed

    return as_probed(loaded)


def _profile_of_chip(name: str, gpu: Gpu) -> Model | None:
    """A profile of a GPU's networks from another form of its card or another card of its chip, or None."""
    for path, file in measured_models(name, lambda _: True, gpu):
        if file.kernels:
            return on_card(Model(file, str(path)), name, gpu)
    return None

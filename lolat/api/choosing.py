"""Finds the devices to compare: by name, in an execution mode, or among the devices for rent.

Only profiles of networks are found here; `serving` finds the profiles of language models.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

from lolat.api.loading import load
from lolat.api.model import Model
from lolat.api.profile_names import ALL, contents, full_name, full_names, in_one_mode, known_models
from lolat.api.serving import serving_model
from lolat.device.execution_modes import with_file
from lolat.device.question import LatencyQuestion, RunAs, by_name
from lolat.errors import InputError, LolatError, ModelFileError, arg
from lolat.hardware.card_names import device_name, find_gpu, full_card, is_card, of_form, short_name
from lolat.hardware.prices import Prices, price_list
from lolat.hardware.rental import rental_of
from lolat.io.paths import SHIPPED, list_models
from lolat.io.results import Remark
from lolat.units import names_in, value_words

NO_HOST = Remark(
    "no host starts the operations of this device, so its time is the same for each launch overhead",
    "--host-us applies to GPUs only",
)
OPTIONS = {"no-launch": "launch", "no-precision": "precision", "no-layout": "channels_last"}
"""Error code -> the option with which a device cannot run."""
A = TypeVar("A", bound=RunAs)


def devices(
    on: Sequence[str | Model],
    question: LatencyQuestion | None = None,
    opened: Callable[[str], Model] | None = None,
    every: bool = False,
    launch: str | None = None,
) -> tuple[list[Model], dict[str, str]]:
    """(distinct profiles of these names, {name: reason why it cannot answer}).

    `on`: profiles, or names separated by commas. "all": every local and bundled profile of networks. A
    GPU's name ("a100"): its first profile, with `every` all of them. Both are in `launch` (None: eager).
    `opened`: loads a profile; None: `load`. ModelFileError for an unknown name.
    """
    names: dict[str, Model | None] = {}
    for given in on:
        if isinstance(given, Model) and given.label not in names:
            names[given.label] = given
        elif isinstance(given, str):
            names |= {name: names.get(name) for name in names_in(given)}
        else:
            raise InputError(
                f"{arg('on')} {value_words(getattr(given, 'label', given))}: expected names of devices, as "
                "lolat.models() lists them, or loaded profiles of different names",
                code="no-device",
            )
    if not names:
        raise InputError(
            f"{arg('on')}: no device is given; expected one or several, as `lolat models` lists them",
            code="no-device",
        )
    if question is not None:
        launch = question.launch if isinstance(question.launch, str) else None
    left_out: dict[str, LolatError] = {}
    distinct: dict[Hashable, Model] = {}  # two names may be one profile
    without: dict[str, LolatError] = {}  # devices that run in their own mode instead
    for name, loaded in names.items():
        is_strict = name == ALL or len(names) == 1
        profiles = [name] if loaded else _profiles(name, launch, every)
        for one in profiles:
            try:
                if name == ALL and "networks" not in contents(one).answers_for:
                    continue
                model = loaded or (opened or load)(one)
                if loaded is None:
                    model.label = _name_in_all(model, launch) if name == ALL else name
                for made in _in_modes(model, question, left_out, None if is_strict else without):
                    distinct.setdefault((made.profile, made.asked), made)
            except LolatError as error:
                if name != ALL and (len(names) == 1 or isinstance(error, ModelFileError)):
                    raise
                left_out[name if len(profiles) == 1 else one] = error
    if len(without) >= len(distinct):  # none runs as asked
        left_out, distinct = without | left_out, {}
    if not distinct:
        why = "; ".join(dict.fromkeys(error.message for error in left_out.values()))
        why = f"no device can answer ({why or 'there is none'})"
        raise InputError(f"{arg('on')}: {why}", code="no-device")
    if question and question.host_us is not None and not any(m.has_host for m in distinct.values()):
        next(iter(distinct.values())).run_as(host_us=question.host_us)  # raises the error
    return [*distinct.values()], {one: str(error) for one, error in left_out.items()}


def in_mode_if_possible(model: Model, asked: A, without: MutableMapping[str, LolatError]) -> Model:
    """The device in the execution mode `asked`; a CPU without this mode keeps its own, with a remark.

    `without`: receives profile -> error of the devices that keep their own mode.
    """
    try:
        return in_mode_without_host(model, asked)
    except LolatError as error:
        option = OPTIONS.get(error.code)
        given = option and getattr(asked, option)
        if model.has_host or not option or not given:
            raise
        without.setdefault(model.profile or model.row_name, error)
        made = in_mode_if_possible(
            model, replace(asked, **{option: RunAs.__dict__[option]}), without
        )
        value = "" if given is True else f" {given}"
        remark = Remark(
            f"{option.replace('_', ' ')}{value} does not apply to this device, which runs in its own mode",
            "it is of the GPUs",
        )
        changed = with_file(made, made.file.changed(remark))
        changed.asked = made.asked
        return changed


def in_mode_without_host(model: Model, asked: RunAs | None) -> Model:
    """The device in the execution mode `asked`; unchanged for None.

    A device without a host ignores `host_us`, with a remark.
    """
    if asked is None:
        return model
    if asked.host_us is None or model.has_host:
        return asked.device(model)
    alone = replace(asked, host_us=None).device(model)
    made = with_file(alone, alone.file.changed(NO_HOST))
    made.asked = alone.asked
    return made


def _profiles(name: str, launch: str | None, every: bool) -> list[str]:
    """The names of the profiles that a name in `devices` stands for."""
    if name != ALL:
        return full_names(name, launch) if every else [full_name(name)]
    files = known_models()
    damaged = (n for n, _, _ in list_models() if n not in files)  # listed after the others
    return [*in_one_mode([*files], launch), *damaged]


def _name_in_all(model: Model, launch: str | None) -> str:
    """The name of a device in "all": the GPU's name if it stands for this profile, else the profile's.

    `launch`: as in `devices`.
    """
    gpu = find_gpu(model.file.product)
    cards = (short_name(model.profile), device_name(gpu)) if gpu else ()
    named = (n for n in cards if is_card(n) and model.profile in full_names(n, launch))
    return next(named, model.profile)


def _in_modes(
    model: Model, question: LatencyQuestion | None, left_out: dict[str, LolatError],
    without: dict[str, LolatError] | None,
) -> Iterator[Model]:  # fmt: skip
    """Yield the profile in each execution mode of a question; with several, `left_out` gets the errors.

    `without`: as in `in_mode_if_possible`; None: raise an error for a mode in which the device cannot run.
    """
    modes = [("", question)] if question is None else question.modes
    if len(modes) == 1:
        if question is None or without is None:
            yield in_mode_without_host(model, question)
        else:
            yield in_mode_if_possible(model, question, without)
        return
    for words, mode in modes:
        row = f"{model.label} {words}"
        try:
            made = copy(in_mode_without_host(model, mode))
            made.row = row
            yield made
        except LolatError as error:
            left_out[row] = error


NO_TIMES = "a price, but no times of networks here"


def _as_rented(model: Model) -> Model:
    """The profile of the full card in place of a Max-Q; any other profile unchanged."""
    gpu = model.file.gpu
    if gpu is None or full_card(gpu) == gpu:
        return model
    return load(device_name(full_card(gpu)))


def with_a_price(
    models: Sequence[Model], prices: str | Prices | None, of_decoders: bool = False
) -> tuple[list[Model], dict[str, str]]:
    """(profiles of devices with a price, {name: reason} of the other GPUs).

    A GPU of the price list that is not among `models`, or has more memory there, gets a profile from its
    data sheet. `of_decoders`: True if the profiles are of language models.
    """
    listed = price_list(prices)
    places = {name: where for name, _, where in reversed(list_models())}
    others = by_name(
        [
            _as_rented(m) if places.get(m.profile) == SHIPPED else m
            for m in models
            if not m.file.is_cpu
        ]
    )
    # A card with less memory too, since the network is not known yet.
    rentals = {n: rental_of(m.file, None, listed, step_bytes=0) for n, m in others.items()}
    priced = {n: m for n, m in others.items() if rentals[n]}
    why = f"no price in {listed.prices}"
    left_out = {n: why for n, m in others.items() if n not in priced and m.file.gpu}
    rented = ((r, o) for r in rentals.values() if r for o in r.offers)
    known = {
        o.accelerator
        for r, o in rented
        if (r.rented(1, o).memory_gib or 0.0) <= (r.memory_gib or 0.0)
    }
    forms = {o.accelerator: "" for o in listed.offers if o.accelerator not in known | {""}}
    forms |= {o.accelerator: o.form for o in listed.offers if o.accelerator in forms and o.form}
    for accelerator, form in sorted(forms.items()):
        if (gpu := find_gpu(accelerator)) is None:
            left_out[accelerator] = NO_TIMES
            continue
        name = device_name(of_form(gpu.name, f"{form} {gpu.memory_gib or 0.0:.0f}gb") or gpu)
        try:
            model = serving_model(name, of_any=True) if of_decoders else load(name)
            priced.setdefault(model.label, model)
        except LolatError as error:
            left_out[name] = error.data.get("why", str(error))
    return [*priced.values()], left_out

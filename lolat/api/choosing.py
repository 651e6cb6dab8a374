"""Choose devices by file, by name, by GPU, or all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from lolat.api.model import Model
from lolat.api.sheets import of_sheet
from lolat.device.execution_modes import measured_models, on_card
from lolat.device.file import DeviceFile, read, readable_models
from lolat.device.question import LatencyQuestion
from lolat.errors import InputError, LolatError, ModelFileError, arg
from lolat.graph.modes import EAGER
from lolat.hardware.gpus import (
    CPU,
    Gpu,
    card_of,
    device_name,
    device_names,
    find_gpu,
    full_card,
    is_card,
    of_form,
)
from lolat.hardware.prices import Prices, price_list
from lolat.hardware.rental import rental_of
from lolat.io.paths import LOCAL, SHIPPED, find_model, list_models
from lolat.io.progress import Progress, Warn
from lolat.io.results import Remark
from lolat.llm.frameworks import FRAMEWORKS
from lolat.parameters import LAUNCHES, PARAMETERS
from lolat.units import names_in, plain, value_words

ALL = "all"
NO_HOST = Remark(
    "no host starts the operations of this device, so its time is the same for each launch overhead",
    "the overhead that was given is of the GPUs",
)
SAME_SHEET = 0.05  # relative difference of two data sheets of one GPU


def devices(
    on: Sequence[str | Model],
    question: LatencyQuestion | None = None,
    opened: Callable[[str], Model] | None = None,
    every: bool = False,
    launch: str | None = None,
) -> tuple[list[Model], dict[str, str]]:
    """(the models of these names, each once; name -> reason why it cannot answer).

    `on`: loaded models, or names with commas between them; "all": every local and bundled one that answers
    for networks; "a100": the one of that GPU, or `every` one; both in `launch`, eager if None, where there
    is one. `question`: has the execution mode, their own if None. `opened`: opens one by its name, `load`
    if None. ModelFileError for a name that is not there.
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
                "lolat.models() lists them, or loaded models of different names",
                code="no-device",
            )
    if not names:
        raise InputError(
            f"{arg('on')}: no device is given; expected one or several, as `lolat models` lists them",
            code="no-device",
        )
    launch = launch if question is None else question.launch
    left_out: dict[str, LolatError] = {}
    distinct: dict[str, Model] = {}  # of one precision two may be the same
    for name, loaded in names.items():
        if loaded is not None:
            known = [name]
        elif name == ALL:
            files = known_models()
            damaged = (n for n, _, _ in list_models() if n not in files)  # told below the others
            known = [*_in_one_mode([*files], launch), *damaged]
        else:
            known = full_names(name, launch) if every else [full_name(name)]
        for one in known:
            try:
                if name == ALL and "networks" not in contents(one).answers_for:
                    continue
                distinct |= _as_asked(loaded or (opened or load)(one), question, left_out)
            except LolatError as error:
                # Among several, one without the precision or the launch is told below the others.
                if name != ALL and (len(names) == 1 or isinstance(error, ModelFileError)):
                    raise
                left_out[one] = error
    if not distinct:
        why = "; ".join(dict.fromkeys(error.message for error in left_out.values()))
        why = f"no device can answer ({why or 'there is none'})"
        raise InputError(f"{arg('on')}: {why}", code="no-device")
    if question and question.host_us is not None and not any(m.has_host for m in distinct.values()):
        next(iter(distinct.values())).run_as(host_us=question.host_us)  # raises the error
    return [*distinct.values()], {one: str(error) for one, error in left_out.items()}


def run_beside(model: Model, asked: LatencyQuestion | None) -> Model:
    """The device in the execution mode that is `asked`, beside others; None: in its own.

    One without a host runs without `host_us`, and says so.
    """
    if asked is None:
        return model
    if asked.host_us is None or model.has_host:
        return asked.device(model)
    alone = replace(asked, host_us=None).device(model)
    made = Model(alone.file.but(no_host=NO_HOST), alone.source, alone.label)
    made.asked = alone.asked
    return made


def _as_asked(
    model: Model, question: LatencyQuestion | None, left_out: dict[str, LolatError]
) -> dict[str, Model]:
    """The model in each execution mode of a question, by name; `left_out` takes the errors of several."""
    if question is None or not isinstance(question.precision, tuple):
        made = run_beside(model, question)
        return {made.label: made}
    found = dict[str, Model]()
    choices = PARAMETERS["precision"].choices
    name = "-".join(word for word in model.label.split("-") if word not in choices)
    for precision in question.precision:
        label = f"{name}-{precision}"
        try:
            found[label] = copy(run_beside(model, replace(question, precision=precision)))
            found[label].label = label
        except LolatError as error:
            left_out[label] = error
    return found


def contents(name: str) -> DeviceFile:
    """The contents of a model file by its path or the model's name; errors as `Model.load`."""
    return read(find_model(name))


def known_models(begin: str | None = None) -> dict[str, DeviceFile]:
    """Name -> contents of each device profile that can be read; of two of one name the local one.

    `begin`: the first words of their names, in any case; None: all profiles.
    """
    known = dict[str, DeviceFile]()
    wanted = bool if begin is None else lambda n: _begins(n.casefold(), begin.casefold())
    for name, _, _, file in readable_models(wanted):
        known.setdefault(name, file)
    return known


def full_name(name: str) -> str:
    """The first of `full_names`; ModelFileError if they are of several devices."""
    names = full_names(name)
    if names[1:] and len({contents(n).product for n in names}) > 1:
        raise _unknown(
            name, f"several devices are called so: {', '.join(names)}; expected one of these"
        )
    return names[0]


def _unknown(name: str, why: str, **data: Any) -> ModelFileError:
    """The error for a name that is not one device's."""
    return ModelFileError(f"{plain(name)}: {why}", code="unknown-model", model=name, **data)


def full_names(name: str, launch: str | None = None) -> list[str]:
    """The names of the models that `name` stands for.

    A file stays as it is; a model's name, in any case, becomes the name as written; a GPU's ("a100",
    "RTX4090", "5090") the names of its models of networks, in `launch` as of `devices`. The name of
    a GPU without one ("a100-80gb", "rtx-3080") stays: `load` makes it. ModelFileError for any other name.
    """
    try:
        found = find_model(name, device_names)
    except ModelFileError as error:
        if name == LOCAL:
            from lolat.api.measuring import with_bundled

            raise with_bundled(error) from None
        files = known_models(name)
        known = [*files]
        if gpu := _card(name):  # a Max-Q is another card than the one whose name it begins with
            cards = None, card_of(gpu.name)
            known = [n for n in known if card_of(files[n].kind) in cards]
        if gpu and not known:
            files = {n: f for n, f in known_models().items() if find_gpu(f.product) == gpu}
            known = [*files]
        able = [n for n in known if "networks" in files[n].answers_for]
        if able:
            return sorted(_in_one_mode(able, launch), key=_usual)
        if gpu:
            return [name]
        raise _of_instance(name, error) from None
    return [found.stem if found.stem.casefold() == name.casefold() else name]


def _of_instance(name: str, error: ModelFileError) -> ModelFileError:
    """The error for an unknown device; of an instance type it names the accelerators, by the price list."""
    offers = (o for o in price_list().offers if o.instance_type.casefold() == name.casefold())
    if not (rented := sorted({plain(o.accelerator).casefold() for o in offers} - {""})):
        return error
    return error.reworded(
        f"{plain(name)}: no such device, but an instance type; did you mean {' or '.join(rented)}?"
    )


def _in_one_mode(names: Sequence[str], launch: str | None) -> list[str]:
    """The models without those of channels last whose device was measured channels first too, and without
    those of another launch than `launch`, eager if None, whose device was measured in that too.
    """
    files = {name: contents(name) for name in names}
    modes = {
        name: (file.product, file.environment.framework, file.mode)
        for name, file in files.items()
        if file.has_latencies
    }
    usual = {
        of
        for of in modes.values()
        if of[-1].launch == (launch or EAGER) and not of[-1].channels_last
    }
    unusual = {
        (*of, replace(mode, launch=other, channels_last=last))
        for *of, mode in usual for other in LAUNCHES for last in (False, True)
    }  # fmt: skip
    return [n for n in names if modes.get(n) not in unusual - usual]


def _usual(name: str) -> tuple[bool, bool, str]:
    """The order of a GPU's models: eager before compiled, float32 before half precision."""
    mode = contents(name).mode
    return mode.launch != EAGER, mode.half, name


ONE_FORM = "which has one form of each card with a bundled profile; to add one"
NOT_ALL = f"not in `{ALL}`, {ONE_FORM}"
USUAL_FRAMEWORK = "vllm"
"""The framework whose kernels training is predicted from, where several serve on a GPU."""


def serving_model(name: str, of_any: bool = False) -> Model:
    """The model of language models that a name or a GPU's stands for ("l40s": l40s-vllm).

    A GPU with no such model is known by its data sheet; a model of another name that lacks language models
    is returned. ModelFileError for an unknown name, and for a GPU that several frameworks serve on, unless
    `of_any`: as for training, which none of them runs.
    """
    model, unknown = None, None
    try:
        model = Model.load(name)
    except ModelFileError as error:
        unknown = error
    if model is not None and model.file.llm is not None:
        return model
    gpu = _card(name)
    of_gpu = [n for n, file in known_models(name).items() if file.llm is not None]
    if gpu and not of_gpu and model is None:
        of_gpu = [n for n, file in known_models().items() if _serves(file, gpu)]
    of_gpu.sort(key=lambda n: not n.endswith(USUAL_FRAMEWORK))
    if len(of_gpu) > 1 and not of_any:
        several = f"by several frameworks: {', '.join(of_gpu)}; expected one of these"
        raise _unknown(name, f"language models are served on it {several}", several=of_gpu)
    if of_gpu:
        return Model.load(of_gpu[0])
    if gpu and gpu.bf16:
        return of_sheet(name)
    if gpu:
        raise ModelFileError(
            f"{plain(name)}: language models are answered in bfloat16 or less, and {gpu.name} computes no "
            "bfloat16; expected a newer GPU",
            code="dtype", why="it computes no bfloat16, which language models are answered in",
        )  # fmt: skip
    if model is not None:
        return model
    card, _, framework = name.rpartition("-")
    if framework.casefold() in FRAMEWORKS and _card(card):
        known = serving_model(card)
        if known.file.llm and known.file.llm["framework"] == framework.casefold():
            return known
        title = known.language_models.server.title
        hint = f"did you mean {plain(card)}? it is known with {title}"
        raise _unknown(name, f"no such device; {hint}")
    from lolat.llm.names import is_decoder

    assert unknown is not None
    if is_decoder(name):
        raise unknown.reworded(f"{plain(name)}: a language model; the GPU comes first")
    raise _of_instance(name, unknown)


def _serves(file: DeviceFile, gpu: Gpu) -> bool:
    """True if a model file knows language models on this GPU, by card, memory and bandwidth."""
    if file.llm is None:
        return False
    sheet = file.llm["sheet"]
    pairs = (sheet["memory_gib"], gpu.memory_gib), (sheet["bandwidth_gb_s"], gpu.bandwidth_gb_s)
    is_card_of = card_of(file.product) == card_of(gpu.name)
    return is_card_of and all(abs(its / (own or its) - 1.0) < SAME_SHEET for its, own in pairs)


def serving_models(
    text: str, of_any: bool = False, left_out: dict[str, str] | None = None
) -> dict[str, Model]:
    """The models of language models that a text names: a file, or names with commas, ALL among them; of a
    GPU that several frameworks serve the model of each.

    `left_out`: takes the reasons of GPUs among several that compute no bfloat16, and of those that ALL has
    not; None: a GPU without bfloat16 is an error.

    `of_any`: see `serving_model`; ALL then has one model of each GPU. ALL has the GPUs of other models
    too, by their data sheets, but not each variant of a card: of a Max-Q the full card, which is rented.
    """
    names = names_in(text)
    if ALL in names:
        given = [name for name in names if name != ALL]
        known = known_models()
        names = [name for name, file in known.items() if file.llm is not None]
        served = {card_of(known[name].product) for name in names}
        if of_any:
            names.sort(key=lambda n: n.endswith(USUAL_FRAMEWORK))  # the last one of a GPU stays
            names = sorted({known[n].product: n for n in names}.values())
        gpus = (full_card(gpu) for file in known.values() if (gpu := find_gpu(file.product)))
        new = (gpu for gpu in gpus if gpu.bf16 and card_of(gpu.name) not in served)
        names += [*sorted({device_name(gpu) for gpu in new}), *given]
        if left_out is not None:
            others = ((n, find_gpu(n)) for n in device_names() if n not in names)
            more = [
                n
                for n, gpu in others
                if gpu and gpu.bf16 and not any(_serves(d, gpu) for d in known.values())
            ]
            left_out |= dict.fromkeys(more, Remark(NOT_ALL, f"{ALL},{more[0]}"))
            damaged = [n for n, _, _ in list_models() if n not in known]
            left_out |= dict.fromkeys(damaged, "its file is damaged: `lolat models`")
    elif Path(text).exists() or not names:
        names = [text]
    found = dict[str, Model]()
    for name in names:
        try:
            found[name] = serving_model(name, of_any)
        except ModelFileError as error:
            if several := error.data.get("several"):
                found |= {one: serving_model(one) for one in several}
                continue
            if left_out is None or len(names) == 1 or error.code != "dtype":
                raise
            left_out[name] = error.data["why"]
    return found


def _begins(model: str, name: str) -> bool:
    """Return whether the first words of a model's name are `name`; a GPU's needs no hyphens: "rtx4090"."""
    words, mark = model.split("-"), "" if find_gpu(name) else "-"
    return name.replace("-", mark) in [mark.join(words[:n]) for n in range(1, len(words))]


def _card(name: str) -> Gpu | None:
    """The data sheet of a GPU by its name and nothing more."""
    return find_gpu(name) if is_card(name) else None


def load(path: str | os.PathLike[str]) -> Model:
    """Load a device's profile.

    `path`: a JSON file, "local" (the one learned last on this machine), a name of `lolat.models()`, or a
    GPU's ("a100", "RTX 4090"), which stands for the profile of its networks, the eager one first; a GPU
    without times is known by a card of its chip, or by its data sheet. Returns a `Model`. Raises
    ModelFileError where there is none, or the file is something else or damaged, and InputError for a GPU
    with an incomplete sheet.
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
        if error.code != "unknown-model" or (gpu := _card(full)) is None:
            raise
        model = Model((_of_chip(full, gpu) or of_sheet(full)).file, full)
    else:
        kernels, product = model.file.kernels, model.file.product
        known = kernels is None or kernels.measured or model.file.environment.sheet is not None
        gpu = None if known else find_gpu(product)
        if gpu and (made := _of_chip(product, gpu)):
            model = Model(model.file.but(**made.file.document), model.source, model.label)
    model.serving = partial(_serving, name, model)
    return model


def _serving(name: str, model: Model) -> Model:
    """The model that serves language models by a GPU's name; by any other name that one itself."""
    return serving_model(name) if _card(name) else model


def open_here(
    name: str,
    say: Warn,
    progress: Callable[[str], AbstractContextManager[Progress]],
    now: bool = False,
    as_learned: bool | None = None,
) -> Model:
    """`load` on this machine: `say` gets a remark if it is old, or `local` is of another processor.

    `now`: the machine is measured as it is now; `progress`: shows how far that is, which takes as long as
    it is told. `as_learned` False: the machine is probed if it may have changed. InputError if both are
    given, and for `as_learned` of a model without a probe.
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
            backend = f" --backend {own}" if (own := file.environment.framework) else ""
            say(f"warning: {name}: {differences[0]}; learn again with: lolat learn cpu{backend}")
    if as_learned and now:
        raise InputError(
            f"{arg('as_learned')} and {arg('now')}: expected one of them", code="two-speeds"
        )
    if as_learned and file.noise.probe is None:
        raise InputError(
            f"{arg('as_learned')}: {name} has no probe, as a CPU learned with several threads has, so it "
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
    if as_learned is not False:
        return loaded
    from lolat.api.measuring import as_probed

    return as_probed(loaded)


def _of_chip(name: str, gpu: Gpu) -> Model | None:
    """The networks of a GPU by a measured form of its card, or another card of its chip; None without."""
    for path, file in measured_models(name, lambda _: True, gpu):
        if file.kernels:
            return on_card(Model(file, str(path)), name, gpu)
    return None


NO_TIMES = "a price, but no times of networks here"


def _as_rented(model: Model) -> Model:
    """Return the model of the full card for a Max-Q."""
    gpu = model.file.gpu
    if gpu is None or full_card(gpu) == gpu:
        return model
    return load(device_name(full_card(gpu)))


def with_a_price(
    models: Sequence[Model], prices: str | Prices | None, of_decoders: bool = False
) -> tuple[list[Model], dict[str, str]]:
    """The models that have a price, and why each other GPU has none: name -> reason.

    GPUs of the list that none of the models is, or with more memory, are known by their data sheets.
    `of_decoders`: the models are of language models.
    """
    listed = price_list(prices)
    places = {name: where for name, _, where in reversed(list_models())}
    others = [
        _as_rented(m) if places.get(m.label) == SHIPPED else m for m in models if not m.file.is_cpu
    ]
    # A card with less memory too, since the network is not known yet.
    rentals = {m.label: rental_of(m.file, None, listed, step_bytes=0) for m in others}
    priced = {m.label: m for m in others if rentals[m.label]}
    why = f"no price in {listed.prices}"
    left_out = {m.label: why for m in others if m.label not in priced and m.file.gpu}
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

"""Choose devices by file, by name, by GPU, or all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from lolat.api.model import Model, load
from lolat.device.file import answers_for
from lolat.device.running import mode_of
from lolat.errors import (
    InputError,
    LolatError,
    ModelFileError,
    arg,
)
from lolat.graph.modes import EAGER
from lolat.hardware.gpus import Gpu, find_gpu, gpu_of, name_of
from lolat.hardware.prices import Prices, price_list, rental_of
from lolat.io.paths import find_model, list_models
from lolat.units import plain

ALL = "all"
CPU = "cpu"


def devices(
    on: Sequence[str], opened: Callable[[str], Model] = load, every: bool = False
) -> tuple[list[Model], dict[str, str]]:
    """(the models of these names, each once; name -> reason why it cannot answer).

    `on`: names with commas between them; "all": every local and bundled one that answers for networks;
    "a100": the one of that GPU, eager if there is one, or `every` one. `opened`: opens one by its name.
    ModelFileError for names that are not there, all in one.
    """
    names = [name.strip() for text in on for name in text.split(",") if name.strip()]
    models, left_out = [], {}
    for name, named in _named(names, every).items():
        for known in named:
            try:
                if name != ALL or "networks" in answers_for(load(known).document):
                    models.append(opened(known))
            except LolatError as error:
                # Among several, one without the precision or the launch is told below the others.
                if name != ALL and (len(names) == 1 or isinstance(error, ModelFileError)):
                    raise
                left_out[known] = str(error)
    distinct = {model.label: model for model in models}  # of one precision two may be the same
    models = list(distinct.values())
    if not names:
        raise InputError(
            f"no device is given; expected MODEL in front of the networks, or {arg('on')}",
            code="no-device",
        )
    if not models:
        why = "; ".join(left_out.values()) or "there is none"
        raise InputError(f"{arg('on')}: no device can answer ({why})", code="no-device")
    return models, left_out


def _named(names: Sequence[str], all_of_a_gpu: bool) -> dict[str, list[str]]:
    """Name -> the full names of its models; one ModelFileError for all unknown names."""
    found: dict[str, list[str]] = {}
    unknown: list[ModelFileError] = []
    for name in dict.fromkeys(names):
        try:
            if name == ALL:
                every = [known for known, _, _ in list_models()]
            else:
                every = full_names(name) if all_of_a_gpu else [full_name(name)]
        except ModelFileError as error:
            unknown.append(error)
            continue
        found[name] = every
    if len(unknown) == 1:
        raise unknown[0]
    if unknown:
        why = [f"{plain(str(e.data['model']))}: {e.data.get('why', e.message)}" for e in unknown]
        raise ModelFileError(
            f"{'; '.join(why)}; expected names of models: `lolat models` lists them",
            code="unknown-model",
            models=[e.data["model"] for e in unknown],
        )
    return found


def full_name(name: str) -> str:
    """The first of `full_names`; ModelFileError if they are of several devices."""
    names = full_names(name)
    if names[1:] and len({name_of(load(n).document) for n in names}) > 1:
        why = f"several devices are called so: {', '.join(names)}"
        raise ModelFileError(
            f"{plain(name)}: {why}; expected one of these",
            code="unknown-model",
            model=name,
            why=why,
        )
    return names[0]


def full_names(name: str) -> list[str]:
    """The names of the models that `name` stands for.

    A file stays as it is; a model's name, in any case, becomes the name as written; a GPU's ("a100",
    "RTX4090", "5090") the names of its models of networks, the eager ones first. ModelFileError for any
    other name.
    """
    try:
        found = find_model(name)
    except ModelFileError as error:
        known = [n for n, _, _ in list_models() if _begins(n, name)]
        if not known and (gpu := _gpu_named(name)):
            known = [n for n, _, _ in list_models() if gpu_of(load(n).document) == gpu]
        able = [n for n in known if "networks" in answers_for(load(n).document)]
        if not able:
            raise _of_its_sheet(name, error) from None
        return sorted(able, key=lambda n: (mode_of(load(n).document).launch != EAGER, n))
    if str(found) == name:  # a file
        return [name]
    alike = (n for n, path, _ in list_models() if path == found and _same(n, name))
    return [next(alike, name)]


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()


def _begins(model: str, name: str) -> bool:
    """Return whether the first words of a model's name are `name`; a GPU's needs no hyphens: "rtx4090"."""
    words, mark = model.split("-"), "" if find_gpu(name) else "-"
    parts = [mark.join(words[:n]) for n in range(1, len(words))]
    return any(_same(part, name.replace("-", mark)) for part in parts)


def _gpu_named(name: str) -> Gpu | None:
    """The GPU with a bundled data sheet and this name; None for a path, for example."""
    return find_gpu(name) if re.fullmatch(r"[\w -]+", name) else None


def _is_same_chip(one: Gpu, other: Gpu | None, model: str) -> bool:
    """Return whether `other`, the GPU of a model of networks, has the same chip as `one`."""
    if other is None or (one.multiprocessors, one.half_tflops) != (
        other.multiprocessors,
        other.half_tflops,
    ):
        return False
    return "networks" in answers_for(load(model).document)


def _of_its_sheet(name: str, error: ModelFileError) -> ModelFileError:
    """The error of an unknown name, with the command that makes a model if a GPU has a data sheet."""
    if (gpu := _gpu_named(name)) is None:
        return error
    alike = [n for n, _, _ in list_models() if _is_same_chip(gpu, gpu_of(load(n).document), n)]
    same = f", or ask {alike[0]}, the same chip with another memory" if alike else ""
    new = "-".join(name.casefold().split())
    wrong = str(error.data["why"])
    why = (
        f"{wrong}{' ' if wrong.endswith('?') else '; '}its data sheet is bundled: "
        f"`lolat fit --name {new} --output {new}.json` makes a model of it{same}"
    )
    said = (
        f"{plain(name)}: {why}; expected a model file, `local` or a name that `lolat models` lists"
    )
    found = error.reworded(said)
    found.data = {**error.data, "why": why}
    return found


NO_TIMES = "a price, but no times of networks here"
OF_ITS_SHEET = f"{NO_TIMES}; of its sheet: `lolat fit --name NAME --output FILE`"


def with_a_price(
    models: Sequence[Model], prices: str | Prices | None
) -> tuple[list[Model], dict[str, str]]:
    """(the models of GPUs with a price; name -> reason, for GPUs without a price or without a model)."""
    listed = price_list(prices)
    others = [m for m in models if m.document["environment"].get("device") != CPU]
    # A card with less memory too, since the network is not known yet.
    rentals = {m.label: rental_of(m.document, None, listed, step_bytes=0) for m in others}
    priced = [m for m in others if rentals[m.label]]
    why = f"no price in {listed.prices}"
    left_out = {m.label: why for m in others if m not in priced and gpu_of(m.document)}
    known = {o.accelerator for rental in rentals.values() if rental for o in rental.offers}
    unknown = {o.accelerator for o in listed.offers} - known - {""}
    return priced, left_out | {
        n: OF_ITS_SHEET if find_gpu(n) else NO_TIMES for n in sorted(unknown)
    }

"""Finds the profiles that a name stands for: a file, a profile's own name, or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lolat.device.file import DeviceFile, read, readable_models
from lolat.device.lookup import find_model
from lolat.errors import ModelFileError
from lolat.graph.modes import EAGER
from lolat.hardware.card_names import (
    card_of,
    cards_meant,
    device_names,
    find_gpu,
    is_card,
    without_brackets,
)
from lolat.hardware.gpus import Gpu
from lolat.hardware.prices import price_list
from lolat.io.paths import LOCAL
from lolat.parameters import LAUNCHES
from lolat.units import plain

ALL = "all"


def contents(name: str) -> DeviceFile:
    """The contents of a profile by its path or name; errors as in `load`."""
    return read(find_model(name))


def known_models(begin: str | None = None) -> dict[str, DeviceFile]:
    """Name -> contents of each readable device profile; a local profile hides a bundled one of its name.

    `begin`: the first words of the names, ignoring case; None: all profiles.
    """
    known = dict[str, DeviceFile]()
    wanted = bool if begin is None else lambda n: _begins(n.casefold(), begin.casefold())
    for name, _, _, file in readable_models(wanted):
        known.setdefault(name, file)
    return known


def full_name(name: str) -> str:
    """The first of `full_names`; ModelFileError if the names are of several devices."""
    names = full_names(name)
    if names[1:] and len({contents(n).product for n in names}) > 1:
        raise unknown_device(
            name, f"several devices are called so: {', '.join(names)}; expected one of these"
        )
    return names[0]


def unknown_device(name: str, why: str, **data: Any) -> ModelFileError:
    """The error for a name that stands for no device, or for several."""
    return ModelFileError(f"{plain(name)}: {why}", code="unknown-model", model=name, **data)


def full_names(name: str, launch: str | None = None) -> list[str]:
    """The names of the profiles that `name` stands for.

    A file stays as it is. A profile's name, ignoring case, becomes its exact name. A GPU's name ("a100",
    "RTX4090", "5090") becomes the names of its profiles of networks, those with this `launch` if they
    exist. A GPU without a profile ("a100-80gb", "rtx-3080") keeps its name: `load` makes a profile from its
    data sheet. ModelFileError for any other name.
    """
    name = without_brackets(name)
    try:
        found = find_model(name, device_names)
    except ModelFileError as error:
        if name == LOCAL:
            from lolat.api.measuring import with_bundled

            raise with_bundled(error) from None
        files = known_models(name)
        known = [*files]
        # A Max-Q is another card than the one whose name it begins with.
        if gpu := card_named(name):
            cards = None, card_of(gpu.name)
            known = [n for n in known if card_of(files[n].kind) in cards]
        if gpu and not known:
            files, meant = known_models(), cards_meant(name)
            known = [n for n, f in files.items() if find_gpu(f.product) == gpu] or [
                n for n, f in files.items() if find_gpu(f.product) in meant
            ]
        able = [n for n in known if "networks" in files[n].answers_for]
        if able:
            return sorted(in_one_mode(able, launch), key=_usual)
        if gpu:
            return [name]
        raise instance_error(name, error) from None
    return [found.stem if found.stem.casefold() == name.casefold() else name]


def instance_error(name: str, error: ModelFileError) -> ModelFileError:
    """The error for an unknown device; for a cloud instance type it names the instance's accelerators."""
    offers = (o for o in price_list().offers if o.instance_type.casefold() == name.casefold())
    if not (rented := sorted({plain(o.accelerator).casefold() for o in offers} - {""})):
        return error
    return error.reworded(
        f"{plain(name)}: no such device, but an instance type; did you mean {' or '.join(rented)}?"
    )


def in_one_mode(names: Sequence[str], launch: str | None) -> list[str]:
    """Drop profiles in other execution modes if the usual mode has one for the same device.

    A profile that is channels last, or of another launch than `launch` (None: eager), is dropped if there
    is a profile with the same device, framework and precision that is channels first and of this launch.
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
    """A sort key for a GPU's profiles: eager before compiled, float32 before half precision."""
    mode = contents(name).mode
    return mode.launch != EAGER, mode.half, name


def _begins(model: str, name: str) -> bool:
    """True if a profile's name begins with the words `name`; a GPU's name needs no hyphens: "rtx4090"."""
    words, mark = model.split("-"), "" if find_gpu(name) else "-"
    return name.replace("-", mark) in [mark.join(words[:n]) for n in range(1, len(words))]


def card_named(name: str) -> Gpu | None:
    """The data sheet of a GPU if the name is exactly a GPU's, else None."""
    return find_gpu(name) if is_card(name) else None

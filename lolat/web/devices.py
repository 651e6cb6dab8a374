"""The devices that the page offers: named when the server starts, local and bundled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lolat.api.loading import load
from lolat.api.model import Model
from lolat.api.profile_names import ALL
from lolat.api.serving import NOT_ALL, ONE_FORM, serving_models
from lolat.device.device import Device
from lolat.device.lookup import find_model
from lolat.errors import LolatError
from lolat.hardware.card_names import device_names, is_card
from lolat.io import paths as places
from lolat.io.results import topic
from lolat.llm.frameworks import DEFAULT_FRAMEWORK
from lolat.units import did_you_mean, plain, shortened

OTHER = "Another GPU, by its name"
"""The label of the field for a device that is not listed."""
ALL_OF_THEM = "All of them"
"""The label of the box for all devices."""
TO_ADD = f'not in "{ALL_OF_THEM}", {ONE_FORM}: "{OTHER}"'


@dataclass(frozen=True)
class ListedDevice:
    """A device in the page's list. `key`: its name in links; `is_own`: named at start or learned here."""

    key: str
    path: Path
    is_own: bool
    model: Model

    @property
    def name(self) -> str:
        """The device and the source of its times, by `known_as`."""
        return known_as(self.key, self.model)

    @property
    def short(self) -> str:
        """The product name of a timed device; for other devices, `name`."""
        product = plain(self.model.file.product)
        is_timed = self.name.startswith(product) and not self.model.file.llm
        return product if is_timed else self.name

    def answered_by(self, device: Device) -> str:
        """A text on the profile that answers for this device, with its name if it is another one."""
        known = known_as(self.key, device)
        return (
            known if device.profile == self.model.profile else f"{plain(device.profile)}: {known}"
        )

    def answers(self, of_decoders: bool) -> bool:
        """True if tabs of language models (`of_decoders`), or else tabs of networks, offer the device.

        No tab offers a profile that only knows single layers.
        """
        known = self.model.file.answers_for
        if of_decoders:
            return "language models" in known
        return "layers" not in known and known != ("language models",)

    @property
    def argument(self) -> str:
        """The argument MODEL of a command that runs in the server's working directory."""
        return argument_of(self.path)


def known_as(key: str, device: Device) -> str:
    """A profile's device and the source of its times, as text; "" if `key` already says both.

    For a profile of language models the serving framework takes the place of the source.
    """
    file = device.file
    if (served := file.served_on) and not file.has_latencies:
        return plain(f"{file.product} ({served.framework})")
    form = f" ({file.other_form.topic})" if file.other_form else ""
    words, own = plain(device.device) + form, plain(key)
    more = words.removeprefix(own)
    return more[2:-1] if more != words and more[:2] in ("", " (") else words


def argument_of(path: Path) -> str:
    """A profile as an argument of a command: its name if it has one, else its path."""
    with contextlib.suppress(LolatError, OSError):
        if find_model(path.stem).resolve() == path:
            return path.stem
    return str(path)


def devices(named: Sequence[Path] = ()) -> dict[str, ListedDevice]:
    """Key -> device, for named, local and bundled devices. InputError if a folder cannot be read.

    A page only sends keys and cannot name a file. A file that is not a profile is left out. A named GPU
    without a profile file, known by another form or by its data sheet, has its name as its path.
    """
    is_own = dict.fromkeys((path.resolve() if path.exists() else path for path in named), True)
    for _, path, origin in places.list_models():
        is_own.setdefault(path.resolve(), origin == places.LOCAL)
    found: dict[str, ListedDevice] = {}
    for path, own in is_own.items():
        key, number = path.stem, 2
        while key in found:  # a local and a bundled one of the same name
            key, number = f"{path.stem}-{number}", number + 1
        with contextlib.suppress(LolatError, OSError):
            found[key] = ListedDevice(key, path, own, _loaded(argument_of(path), _changed_ns(path)))
    return found


def every_device(others: Iterable[ListedDevice]) -> tuple[list[ListedDevice], dict[str, str]]:
    """(the devices of `lolat llm all` and `others`, {name: reason} of left-out devices)."""
    models, left_out = serving_models(ALL)
    found = {model.profile: _listed_by_name(model) for model in models.values()} | {
        d.key: d for d in others
    }
    return [*found.values()], {n: w for n, w in on_page(left_out).items() if n not in found}


def on_page(left_out: Mapping[str, str]) -> dict[str, str]:
    """Device -> reason why "all" leaves it out, reworded for the page."""
    return {name: TO_ADD if topic(why) == NOT_ALL else why for name, why in left_out.items()}


def _listed_by_name(model: Model) -> ListedDevice:
    """A listed device for a profile that a command opens by its name."""
    return ListedDevice(model.profile, Path(model.source or model.profile), False, model)


def of_each_gpu(listed: Mapping[str, ListedDevice]) -> dict[str, str]:
    """Key -> key of the device that represents its GPU, of the default framework if there is one.

    The user's own devices represent themselves.
    """
    best: dict[str, str] = {}
    for key in sorted(listed, key=lambda key: not key.endswith(DEFAULT_FRAMEWORK)):
        if not listed[key].is_own:
            best.setdefault(listed[key].model.file.product, key)
    return {key: key if of.is_own else best[of.model.file.product] for key, of in listed.items()}


def keys_of(name: str, listed: dict[str, ListedDevice], view: str) -> list[str]:
    """The keys of the devices that a name stands for, ignoring case.

    A GPU's name stands for the same profiles as in the command of this tab; they are added to the list if
    necessary. Any other name is returned unchanged and never loaded, because it could name a file.
    """
    by_case = {key.casefold(): key for key in listed}
    if name not in listed and name.casefold() not in by_case and is_card(name):
        with contextlib.suppress(LolatError):
            is_llm = view in ("llm", "decoder")
            served = serving_models(name, view == "decoder").models.values() if is_llm else ()
            models = served or [load(name)]
            for model in models:
                listed.setdefault(model.profile, _listed_by_name(model))
            return [model.profile for model in models]
    return [name if name in listed else by_case.get(name.casefold(), name)]


def unlisted(
    names: Iterable[str], every: Mapping[str, ListedDevice], listed: Mapping[str, ListedDevice]
) -> str:
    """A message why devices are not `listed` in a tab; `every`: the devices of all tabs."""
    # A profile's name without its mode is the name of its GPU.
    gpus = (gpu for known in listed if is_card(gpu := known.rpartition("-")[0]))
    near, whys = {n.casefold(): n for n in (*listed, *gpus, *device_names())}, list[str]()
    for name in names:
        known = every[name].model.file.answers_for if name in every else ()
        hint = did_you_mean(name.casefold(), near, "choose one of the list")
        why = f" answers {' and '.join(known)} only" if known else f": no such device; {hint}"
        whys.append(f"{shortened(name)!r}{why}")
    return "; ".join(whys)


def _changed_ns(path: Path) -> int:
    """The modification time of a device's file in ns; 0 for a GPU without a file."""
    return path.stat().st_mtime_ns if path.is_absolute() else 0


@lru_cache(maxsize=256)
def _loaded(argument: str, changed_ns: int) -> Model:
    """Load a device's profile, again if its file has changed; its remarks name it as a command does."""
    return load(argument)

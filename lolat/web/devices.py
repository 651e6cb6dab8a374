"""The device models that a page offers, each with what it can answer, and the prices of their devices."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from lolat.errors import LolatError
from lolat.io import paths as places
from lolat.model import Model, load
from lolat.training.cost import training_of
from lolat.training.model import Training
from lolat.training.prices import Rental, device_of, find_rental, read_prices
from lolat.units import plain

GROUPS = YOURS, CPUS, GPUS = "Yours", "CPUs", "GPUs"
"""The first ones were named when the server was started, or learned here."""
_CPU = re.compile(r"\b(CPU|EPYC|Xeon|Ryzen|Threadripper|Core i\d|Core Ultra|Cortex|Graviton)", re.I)


@dataclass(frozen=True)
class DeviceModel:
    """A model in the list: `key` names it in links; `lacking`: what it cannot answer, tab -> why."""

    key: str
    path: Path
    device: str
    group: str
    latency: Model | None = None
    training: Training | None = None
    rental: Rental | None = None  # where its device is rented
    lacking: Mapping[str, str] = field(default_factory=dict)

    def answers(self, view: str) -> bool:
        """Whether it can be asked in a tab of `lolat.web.form.VIEWS`."""
        return view not in self.lacking


def shown_path(path: Path) -> str:
    """A model as it is typed in the server's working directory: its name if that finds it, or its path."""
    with contextlib.suppress(LolatError, OSError):
        if places.find_model(path.stem).resolve() == path:
            return path.stem
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


class DeviceModels:
    """The list, looked up anew for each page; a file is read again only where it has changed."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        """`named`: files that whoever started the server gave; a page can never name a file."""
        self.named = [path.resolve() for path in named]

    def all(self) -> list[DeviceModel]:
        """The models in order: named, learned here, shipped. InputError where a folder cannot be read."""
        is_own = dict.fromkeys(self.named, True)
        for _, path, origin in places.list_models():
            is_own.setdefault(path.resolve(), origin == places.LOCAL)
        models: dict[str, DeviceModel] = {}
        for path, own in is_own.items():
            key, number = path.stem, 2
            while key in models:  # a local and a shipped one of the same name
                key, number = f"{path.stem}-{number}", number + 1
            # A file may be removed since the folder was listed, or be one of something else.
            with contextlib.suppress(LolatError, OSError):
                status = path.stat()
                models[key] = opened(path, key, own, status.st_mtime_ns, status.st_size)
        return list(models.values())


PRICES = read_prices()
"""What `lolat cost` takes without --price-per-hour or --prices."""


@lru_cache(maxsize=256)
def opened(path: Path, key: str, own: bool, changed_ns: int = 0, size: int = 0) -> DeviceModel:
    """A file as it is listed, with what it cannot answer and why; ModelFileError where it is no model.

    `changed_ns`, `size`: they change with the contents of the file, which is then read again.
    """
    model = load(path)
    latency, training, lacking = None, None, {}
    try:
        latency = model if model.inference else None
    except LolatError as error:
        lacking = dict.fromkeys(("latency", "budget"), plain(str(error)))
    try:
        training = training_of(model.document, str(path))
    except LolatError as error:
        lacking["training"] = plain(str(error))
    rental = find_rental(training.document, PRICES) if training else None
    environment = model.document.get("environment")
    device = plain(model.document.get("device") or device_of(model.document))
    kind = environment.get("device") if isinstance(environment, dict) else None
    cpu = kind == "cpu" if kind in ("cpu", "gpu") else _CPU.search(device)
    group = YOURS if own else CPUS if cpu else GPUS
    return DeviceModel(key, path, device, group, latency, training, rental, lacking)

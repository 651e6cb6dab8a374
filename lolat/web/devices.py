"""The device models that a page offers, each with what it can answer, and the prices of their devices."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lolat.errors import LolatError
from lolat.io import paths as places
from lolat.model import Model, load
from lolat.training.file import training_of
from lolat.training.model import Training
from lolat.training.prices import Prices, read_prices
from lolat.training.rental import Rental, device_of, find_rental
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
    lacking: Mapping[str, str] = field(default_factory=dict)

    def answers(self, view: str) -> bool:
        """Whether it can be asked in a tab of `lolat.web.form.VIEWS`."""
        return view not in self.lacking

    @property
    def memory_bytes(self) -> float | None:
        """The memory of its device, where its file says that."""
        known = self.latency or self.training
        environment = known.document.get("environment") if known else None
        if not isinstance(environment, dict):
            return None
        # What was free when a CPU was learned; of a GPU that is the host's.
        free = environment.get("available_bytes") if environment.get("device") == "cpu" else None
        size = environment.get("memory_bytes", free)
        if isinstance(size, bool) or not isinstance(size, int | float) or not size > 0:
            return None
        return float(size)


def shown_path(path: Path) -> str:
    """A model as it is typed in the server's working directory: its name if that finds it, or its path."""
    with contextlib.suppress(LolatError, OSError):
        if places.find_model(path.stem).resolve() == path:
            return path.stem
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes with a file's contents; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class DeviceModels:
    """The list, looked up anew for each page; a file is read again only where it has changed."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        """`named`: files that whoever started the server gave; a page can never name a file."""
        self.named = [path.resolve() for path in named]
        self._cache: dict[tuple[Path, str], tuple[object, DeviceModel | None]] = {}
        self._lock = threading.Lock()

    def all(self) -> list[DeviceModel]:
        """The models in order: named, learned here, shipped. InputError where a folder cannot be read."""
        paths = dict.fromkeys(self.named, True)
        for _, path, origin in places.list_models():
            paths.setdefault(path.resolve(), origin == places.LOCAL)
        models: dict[str, DeviceModel] = {}
        for path, own in paths.items():
            key, number = path.stem, 2
            while key in models:  # a local and a shipped one of the same name
                key, number = f"{path.stem}-{number}", number + 1
            stamp = _stamp(path)
            if stamp is None:  # removed since the folder was listed
                continue
            with self._lock:
                if self._cache.get((path, key), (None,))[0] != stamp:
                    try:
                        self._cache[path, key] = stamp, opened(path, key, own)
                    except LolatError:  # one of something else, such as of single layers
                        self._cache[path, key] = stamp, None
                model = self._cache[path, key][1]
            if model is not None:
                models[key] = model
        return list(models.values())


def opened(path: Path, key: str, own: bool) -> DeviceModel:
    """A file as it is listed, with what it cannot answer and why; ModelFileError where it is no model."""
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
    label, where = model.document.get("device"), model.document.get("environment")
    shown = plain(label if isinstance(label, str) else device_of(model.document))
    kind = where.get("device") if isinstance(where, dict) else None
    cpu = kind == "cpu" if kind in ("cpu", "gpu") else _CPU.search(shown)
    group = YOURS if own else CPUS if cpu else GPUS
    return DeviceModel(key, path, shown, group, latency, training, lacking)


class PriceList:
    """The prices of `lolat prices`."""

    def __init__(self) -> None:
        self._current = read_prices()
        self._rented: dict[Path, tuple[Training, Rental | None]] = {}

    def current(self) -> Prices:
        """What `lolat cost` takes without --price-per-hour or --prices."""
        return self._current

    def rented(self, device: DeviceModel, prices: Prices) -> Rental | None:
        """Where a model's device is rented, looked for again only where the model has changed."""
        model = device.training
        if model is None:
            return None
        found = self._rented.get(device.path)
        if found is None or found[0] is not model:
            found = self._rented[device.path] = model, find_rental(model.document, prices)
        return found[1]

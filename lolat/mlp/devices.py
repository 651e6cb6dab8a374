"""Facts of GPUs that the companion knows, and reading those of others from a file.

The first six are what Justus et al. 2018 measured on, with the figures that they trained on; the M60 and
the K80 are boards of two GPUs, and these are one half's. The others are from the makers' data sheets
(boost clock, cores that do one float32 multiply-accumulate per clock).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lolat.errors import InputError, arg
from lolat.io.documents import NotJsonError, read_json
from lolat.io.tables import read_table
from lolat.mlp.table import mapped
from lolat.units import as_number, plain


@dataclass(frozen=True)
class Device:
    """What a data sheet says of a GPU: GB/s (1e9 bytes), number of cores, MHz; memory in GB (1e9 bytes)."""

    name: str
    bandwidth_gbs: float
    cores: int
    clock_mhz: float
    memory_gb: float | None = None
    year: int | None = None
    bus: str | None = None

    @property
    def peak_macs(self) -> float:
        """Float32 multiply-accumulates per second at most: one per core and clock."""
        return self.cores * self.clock_mhz * 1e6

    @property
    def bandwidth(self) -> float:
        """Bytes per second at most."""
        return self.bandwidth_gbs * 1e9

    def to_dict(self) -> dict[str, Any]:
        """The facts by name, without those that are not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            # name, GB/s, cores, MHz, GB, launched, bus
            Device("V100", 900, 5120, 1455, 16, 2017),
            Device("P100", 732, 3584, 1303, 16, 2016, "PCIe 3.0"),
            Device("1080ti", 484, 3584, 1582, 11, 2017, "PCIe 3.0"),
            Device("M60", 160, 2048, 1178, 8, 2015, "PCIe 3.0"),
            Device("K40", 288, 2880, 875, 12, 2013, "PCIe 3.0"),
            Device("K80", 240, 2496, 875, 12, 2014, "PCIe 3.0"),
            Device("T4", 320, 2560, 1590, 16, 2018, "PCIe 3.0"),
            Device("P40", 346, 3840, 1531, 24, 2016, "PCIe 3.0"),
            Device("GTX 1080", 320, 2560, 1733, 8, 2016, "PCIe 3.0"),
            Device("RTX 2080 Ti", 616, 4352, 1545, 11, 2018, "PCIe 3.0"),
            Device("RTX 3090", 936, 10496, 1695, 24, 2020, "PCIe 4.0"),
            Device("RTX 4090", 1008, 16384, 2520, 24, 2022, "PCIe 4.0"),
            Device("A100", 1555, 6912, 1410, 40, 2020),
            Device("L4", 300, 7424, 2040, 24, 2023, "PCIe 4.0"),
            Device("H100", 3350, 16896, 1980, 80, 2022),
        )
    }
)
"""The built-in facts, by name. A100: 40 GB; H100: SXM."""

HOW_TO_GIVE_FACTS = (
    f"give the facts of a new one with {arg('facts')}, a CSV with the columns name,bandwidth,cores,clock "
    "(GB/s, number, MHz)"
)


@dataclass(frozen=True)
class _Fact:
    """A fact in a file: its names there, and for numbers what it can be: a figure outside is in another
    unit (GHz, bytes per second).
    """

    names: tuple[str, ...]
    least: float = 0.0
    most: float = 0.0
    unit: str = ""
    whole: bool = False


_FACTS = {
    "name": _Fact(("name", "gpu", "device")),
    "bandwidth_gbs": _Fact(("bandwidth", "bandwidth_gbs"), 0.5, 1e6, "GB/s"),
    "cores": _Fact(("cores",), 1, 1e7, "a whole number of cores", whole=True),
    "clock_mhz": _Fact(("clock", "clock_mhz"), 50, 2e4, "MHz"),
    "memory_gb": _Fact(("memory", "memory_gb"), 0.1, 1e5, "GB"),
    "year": _Fact(("year", "launch_year"), 1990, 2100, "a year", whole=True),
    "bus": _Fact(("bus",)),
}
_REQUIRED = ("name", "bandwidth_gbs", "cores", "clock_mhz")
_EXPECTED = (
    "expected the columns name,bandwidth,cores,clock (GB/s, number, MHz), maybe memory,year,bus"
)
_MAKER = re.compile(r"^(nvidia|tesla|geforce|quadro)+")


def key(name: str) -> str:
    """What is compared of a name: "NVIDIA Tesla V100" and "v100" are one, "GTX 1080" and "gtx1080" too."""
    text = re.sub(r"[\s_-]+", "", name.casefold())
    text = _MAKER.sub("", text) or text
    return "1080ti" if text == "gtx1080ti" else text


def find(name: str, devices: Mapping[str, Device]) -> Device | None:
    """The device of that name, without regard to case; None where there is none."""
    if name in devices:
        return devices[name]
    wanted = key(name)
    return next((d for n, d in devices.items() if key(n) == wanted), None)


def known(names: Iterable[str], devices: Mapping[str, Device]) -> dict[str, Device]:
    """The device of each name, by the device's own name, each once, in the order of `devices`.

    Raises InputError for a name that is not among `devices`.
    """
    own = set()
    for name in dict.fromkeys(names):
        device = find(name, devices)
        if device is None:
            raise InputError(
                f"unknown GPU {plain(name)!r}; known are {', '.join(devices)}: {HOW_TO_GIVE_FACTS}"
            )
        own.add(device.name)
    return {name: device for name, device in devices.items() if device.name in own}


def facts(names: np.ndarray, devices: Mapping[str, Device], fact: str) -> np.ndarray:
    """(n,) float64: one fact (a field or property of Device) of the GPU of each of n rows; NaN: not known.

    Raises InputError for a GPU that is not among `devices`.
    """

    def fact_of(name: str) -> float:
        (device,) = known([name], devices).values()
        value = getattr(device, fact)
        return math.nan if value is None else float(value)

    return mapped(names, fact_of)


def merged(*more: Mapping[str, Device]) -> dict[str, Device]:
    """Devices of several sources, in order of the first that has one; the last one's facts count."""
    by_key: dict[str, tuple[str, Device]] = {}
    for devices in more:
        by_key |= {key(name): (name, device) for name, device in devices.items()}
    return dict(by_key.values())


def read_devices(path: str | Path) -> dict[str, Device]:
    """Facts of devices from a CSV or JSON file, by name.

    CSV: columns name (or gpu), bandwidth (GB/s), cores, clock (MHz), where known memory (GB), year, bus.
    JSON: a list of objects with these keys, or an object of such objects by name. Raises InputError that
    names the file, the entry and what is wrong with it.
    """
    source = plain(str(path))
    try:
        entries = _from_json(read_json(path, _EXPECTED), source)
    except NotJsonError:
        table = read_table(path, expected=_EXPECTED, rows="GPU")
        entries = [(f"line {row.line}", row) for row in table]
    if not entries:
        raise InputError(f"{source} has no devices; {_EXPECTED}")
    devices: dict[str, Device] = {}
    for place, entry in entries:
        device = device_from(entry, f"{source}, {place}")
        if find(device.name, devices):
            raise InputError(
                f"{source}, {place}: {device.name!r} is there twice; give each GPU once"
            )
        devices[device.name] = device
    return devices


def device_from(entry: Mapping[str, Any], place: str) -> Device:
    """A device from facts by name (those of a file's columns or of `to_dict`); InputError names `place`."""
    given = {str(k).strip().lower(): v for k, v in entry.items()}
    values: dict[str, Any] = {}
    for field, fact in _FACTS.items():
        value = next((given[n] for n in fact.names if _filled(given.get(n))), None)
        if value is not None:
            values[field] = _value(value, fact, place)
        elif field in _REQUIRED:
            raise InputError(f"{place}: lacks {fact.names[0]}; {_EXPECTED}")
    return Device(**values)


def _filled(value: Any) -> bool:
    return value is not None and str(value).strip() != ""


def _value(value: Any, fact: _Fact, place: str) -> Any:
    if not fact.unit:
        return plain(str(value).strip())
    # A number of JSON, or a cell. str() of what else there may be is none.
    number = as_number(str(value))
    if not fact.least <= number <= fact.most or (fact.whole and number != int(number)):
        raise InputError(
            f"{place}: {fact.names[0]} is {plain(str(value))!r}; expected {fact.unit}, from {fact.least:g} "
            f"to {fact.most:g}"
        )
    return int(number) if fact.whole else number


def _from_json(document: Any, source: str) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(document, dict) and isinstance(document.get("devices"), list | dict):
        document = document["devices"]
    if isinstance(document, dict) and any(_filled(document.get(n)) for n in _FACTS["name"].names):
        document = [document]
    if isinstance(document, dict):
        document = [{"name": n, **d} if isinstance(d, dict) else d for n, d in document.items()]
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise InputError(f"{source}: not objects of facts; {_EXPECTED}")
    return [(f"entry {number}", entry) for number, entry in enumerate(document, 1)]

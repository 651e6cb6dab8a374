"""Data sheets of GPUs: those in gpus.csv beside this file, and those that a user gives in such a file.

The first six are what Justus et al. 2018 measured on, with the figures that they trained on; the M60 and
the K80 are boards of two GPUs, and these are one half's. The others are from the makers' data sheets
(boost clock, cores that do one float32 multiply-accumulate per clock). A100: 40 GB; H100: SXM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lolat.errors import InputError, arg
from lolat.io.tables import Row, read_table
from lolat.mlp.table import mapped
from lolat.units import plain


@dataclass(frozen=True)
class Device:
    """The data sheet of a GPU: GB/s (1e9 bytes), number of cores, MHz."""

    name: str
    bandwidth_gbs: float
    cores: int
    clock_mhz: float
    year: int | None = None

    @property
    def peak_macs(self) -> float:
        """Float32 multiply-accumulates per second at most: one per core and clock."""
        return self.cores * self.clock_mhz * 1e6

    @property
    def bandwidth(self) -> float:
        """Bytes per second at most."""
        return self.bandwidth_gbs * 1e9


_NAMES = {"gpu": "name", "device": "name", "bandwidth_gbs": "bandwidth", "clock_mhz": "clock"}
"""Further names of columns."""
_REQUIRED = ("name", "bandwidth", "cores", "clock")
_EXPECTED = "expected the columns name,bandwidth,cores,clock (GB/s, number, MHz), maybe year"


def read_devices(path: str | Path) -> dict[str, Device]:
    """The GPUs in a CSV file, by name: columns name, bandwidth (GB/s), cores, clock (MHz), and where
    known year. InputError that names the file, the line and what is wrong with it.
    """
    devices: dict[str, Device] = {}
    for row in read_table(path, expected=_EXPECTED, rows="GPU"):
        device = _device(row)
        if find(device.name, devices):
            raise row.refused(f"{device.name!r} is there twice; give each GPU once")
        devices[device.name] = device
    return devices


def _device(row: Row) -> Device:
    """A row as a device; a figure outside the limits is in another unit (GHz, bytes per second)."""
    cells = {_NAMES.get(name, name): name for name, text in row.items() if text}
    if missing := [name for name in _REQUIRED if name not in cells]:
        raise row.refused(f"lacks {missing[0]}; {_EXPECTED}")
    return Device(
        plain(row[cells["name"]]),
        row.number(cells["bandwidth"], 0.5, 1e6, "GB/s, from 0.5 to 1e+06"),
        row.whole(cells["cores"], 1, 10**7),
        row.number(cells["clock"], 50, 2e4, "MHz, from 50 to 20000"),
        row.whole("year", 1990, 2100, "a year") if "year" in cells else None,
    )


# ---- Names.

_MAKER = re.compile(r"^(nvidia|tesla|geforce|quadro)+")


def key(name: str) -> str:
    """A name as it is compared: "NVIDIA Tesla V100" and "v100" are one, "GTX 1080" and "gtx1080" too."""
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

    InputError for a name that is not among `devices`.
    """
    wanted = set()
    for name in dict.fromkeys(names):
        device = find(name, devices)
        if device is None:
            raise InputError(
                f"unknown GPU {plain(name)!r}; known are {', '.join(devices)}: give the data sheet of a "
                f"new one with {arg('facts')}, a CSV with the columns name,bandwidth,cores,clock (GB/s, "
                "number, MHz)",
                code="unknown-gpu",
            )
        wanted.add(device.name)
    return {name: device for name, device in devices.items() if device.name in wanted}


def facts(names: np.ndarray, devices: Mapping[str, Device], fact: str) -> np.ndarray:
    """(n,) float64: one fact (a field or property of Device) of the GPU of each of n rows.

    InputError for a GPU that is not among `devices`.
    """
    return mapped(names, lambda name: getattr(device_named(name, devices), fact))


def device_named(name: str, devices: Mapping[str, Device]) -> Device:
    """The device of that name; InputError where there is none."""
    (device,) = known([name], devices).values()
    return device


def merged(*more: Mapping[str, Device]) -> dict[str, Device]:
    """Devices of several sources, in order of the first that has one; the last one's facts count."""
    by_key: dict[str, tuple[str, Device]] = {}
    for devices in more:
        by_key |= {key(name): (name, device) for name, device in devices.items()}
    return dict(by_key.values())


DEVICES: Mapping[str, Device] = read_devices(Path(__file__).with_name("gpus.csv"))
"""Those of gpus.csv, by name."""

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

from lolat.errors import InputError, arg
from lolat.io.tables import read_table
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


Devices = Mapping[str, Device]
"""Data sheets by `key` of the name."""


def key(name: str) -> str:
    """A name as it is compared: "NVIDIA Tesla V100" and "v100" are one, "GTX 1080" and "gtx1080" too."""
    text = re.sub(r"[\s_-]+", "", name.casefold())
    text = re.sub(r"^(nvidia|tesla|geforce|quadro)+", "", text) or text
    return "1080ti" if text == "gtx1080ti" else text


def read_devices(path: str | Path) -> dict[str, Device]:
    """The GPUs in a CSV file: columns name, bandwidth (GB/s), cores, clock (MHz), and where known year.

    InputError that names the file, the line and what is wrong with it: a figure outside the limits is in
    another unit (GHz, bytes per second).
    """
    devices = {}
    for row in read_table(path, ("name", "bandwidth", "cores", "clock"), rows="GPU"):
        devices[key(row["name"])] = Device(
            plain(row["name"]),
            row.number("bandwidth", 0.5, 1e6, "GB/s, from 0.5 to 1e+06"),
            row.whole("cores", 1, 10**7),
            row.number("clock", 50, 2e4, "MHz, from 50 to 20000"),
            row.whole("year", 1990, 2100, "a year") if row.get("year") else None,
        )
    return devices


def known(names: Iterable[str], devices: Devices) -> dict[str, Device]:
    """The devices of these names, each once. InputError for a name that is not among `devices`."""
    found = {}
    for name in names:
        if key(name) not in devices:
            raise InputError(
                f"unknown GPU {plain(name)!r}; known are {', '.join(d.name for d in devices.values())}: "
                f"give the data sheet of a new one with {arg('facts')}",
                code="unknown-gpu",
            )
        found[key(name)] = devices[key(name)]
    return found


DEVICES: Devices = read_devices(Path(__file__).with_name("gpus.csv"))
"""Those of gpus.csv."""

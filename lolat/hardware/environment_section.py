"""The section `environment` of a device's file: the machine, the framework, the origin of its times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from lolat.hardware.gpus import CPU

ANY_GPU = "gpu"
OF_A_BACKEND = ("jit", "compile", "channels_last", "half")
"""Boolean fields of `Environment` that are options of `lolat learn`."""


class FittedOn(Struct, frozen=True):
    """The numbers of timed operations and networks in a device's tables, and their batch sizes.

    `network_rows`: timed rows of these networks; 0 for one row per network. `inference`: False if only
    training steps were timed.
    """

    operations: int = 0
    networks: int = 0
    network_rows: int = 0
    batch_sizes: tuple[int, int] | None = None
    inference: bool = True


class Environment(Struct, frozen=True):
    """The section `environment` of a device's file: the machine, the framework, the origin of its times.

    `device`: CPU or ANY_GPU if LoLat measured the device, else any word; `card`: the GPU of a device with a
    user's own name; `source`: names of the tables, or facts on the single layers of 2018; `sheet`: fields
    of `Gpu` that the user gave; `rows`: keys of the fitted rows; `own_networks`: number of the user's timed
    networks, which scaled all times; `mode`: the execution mode in words; `threads_asked`: the `--threads`
    of `lolat learn`. Further fields are in the file alone; `lolat.microbench.environment` compares them.
    """

    device: str = ""
    card: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    threads: int | None = None
    threads_asked: int | None = None
    half: bool = False
    compile: bool = False
    channels_last: bool = False
    jit: bool = False
    flags: dict[str, Any] | None = None
    date: str | None = None
    seconds: float | None = None
    source: str | dict[str, Any] = ""
    sheet: dict[str, Any] | None = None
    fitted_on: FittedOn = FittedOn()
    rows: tuple[str, ...] = ()
    own_networks: int = 0
    mode: str | None = None
    available_bytes: int | None = None
    memory_bytes: int | None = None
    operating_system: str = ""
    processor: dict[str, Any] | None = None

    @property
    def is_learned(self) -> bool:
        """True if LoLat measured the device."""
        return self.device in (CPU, ANY_GPU)

    @property
    def keeps_freed_memory(self) -> bool:
        """True if the measuring process kept freed memory, as PyTorch's does on a CPU with Linux."""
        is_torch = self.device == CPU and self.framework == "torch"
        return is_torch and self.operating_system.startswith("Linux")

    def learn_command(self, backend: str | None = None, threads: int | None = None) -> str:
        """The command that learns this device again, or with another backend or number of threads."""
        words = ["lolat learn", ANY_GPU if self.device == ANY_GPU else CPU]
        if name := backend or self.framework:
            words.append(f"--backend {name}")
        if name == self.framework:  # another one has other options
            chosen = [option for option in OF_A_BACKEND if getattr(self, option)]
            words += [f"--{option.replace('_', '-')}" for option in chosen]
        if number := threads or self.threads_asked:
            words.append(f"--threads {number}")
        return " ".join(words)

    @property
    def of_layers(self) -> bool:
        """True if the file was fitted to the single layers of Justus et al. (2018)."""
        return isinstance(self.source, Mapping)

    @property
    def sources(self) -> list[str]:
        """The names of the tables that the device was fitted to."""
        return [] if isinstance(self.source, dict) else [*filter(None, self.source.split(", "))]

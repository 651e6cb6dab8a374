"""Backends: a Graph or a network -> something that runs, and how to wait for it. One module each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from lolat.errors import InputError
from lolat.graph import Graph

BACKENDS = {"tensorflow": "microbench.backends.tensorflow:TensorFlowBackend"}


class Backend(Protocol):
    """What a backend can do; made with the device's name (cpu or gpu)."""

    name: str

    def environment(self) -> dict[str, Any]:
        """Versions, threads and flags: what makes times comparable; `device_name` where it has one."""

    def prepare_graph(self, graph: Graph, batch_size: int) -> Callable[[], None]:
        """A call that runs `graph` once on inputs that lie on the device, and waits for the result."""

    def prepare_network(
        self, spec: str, input_size: tuple[int, ...], batch_size: int
    ) -> Callable[[], None]:
        """The same for a user's NETWORK."""


def check(name: str) -> None:
    """InputError when there is no backend `name`."""
    if name not in BACKENDS:
        raise InputError(f"no backend {name!r}; this version has {', '.join(sorted(BACKENDS))}")


def create(name: str, device: str) -> Backend:
    """The backend `name` for `device`; InputError, MissingPackageError or DeviceError if there is none."""
    check(name)
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(device)

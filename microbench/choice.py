"""The choice of a backend: the first one that is installed and, for a GPU, finds a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from lolat.errors import InputError, LolatError, MissingPackageError

from .backends import BACKENDS, has_option, join_name, split, with_dashes
from .worker import WorkerProcess, ask_environment

ORDER = {"cpu": ("tensorflow", "torch"), "gpu": ("torch", "tensorflow")}
"""Device -> backends, the preferred one first."""


def environment_in_child(backend: str, device: str) -> dict[str, Any]:
    """The environment of a backend on a device, from a child process; LolatError if it refuses."""
    with WorkerProcess(backend, device) as process:
        return dict(ask_environment(process)["environment"])


def missing(name: str) -> list[str]:
    """The packages of a backend that are not installed."""
    return [
        package for package in BACKENDS[name].packages if importlib.util.find_spec(package) is None
    ]


def check_installed(backend: str) -> None:
    """Raise MissingPackageError if a package of a backend (name and options) is not installed."""
    name, _ = split(backend)
    if needed := missing(name):
        raise MissingPackageError(f"the {name} backend needs {' and '.join(needed)}", name)


def pick(device: str, options: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """(backend with `options`, a remark on an unusual choice or "", the environment of a GPU).

    A child process looks for a GPU. InputError if no backend has these options, MissingPackageError if no
    backend is installed, DeviceError or MeasuringError if no backend finds a GPU.
    """
    able = [n for n in ORDER[device] if all(has_option(n, o) for o in options)]
    if not able:
        wanted = " and ".join(map(with_dashes, options))
        raise InputError(f"no backend has {wanted} together; expected options of one --backend")
    problems: list[LolatError] = []
    for name in able:
        if missing(name):
            continue
        backend = join_name(name, options)
        try:
            where = environment_in_child(backend, device) if device == "gpu" else {}
        except LolatError as problem:
            problems.append(problem)
            continue
        return backend, _chosen(name, able, device), where
    if problems:
        raise problems[0]
    first = "torch" if "torch" in able else able[0]
    needs = f"{' and '.join(map(with_dashes, options))} needs {' or '.join(able)}, which is not installed"
    nothing = f"nothing is installed to measure with, for example {first}"
    raise MissingPackageError(needs if options else nothing, first)


def _chosen(name: str, able: Sequence[str], device: str) -> str:
    """A remark on the chosen backend: another one of a CPU that is installed, an unusual choice, or ""."""
    others = [other for other in able if other != name and device == "cpu" and not missing(other)]
    if others:
        learn = f"`lolat learn cpu --backend {others[0]}`"
        return f"measuring with {name}; for networks in {others[0]}: {learn}"
    return "" if name == ORDER["cpu"][0] else f"measuring with {name}"

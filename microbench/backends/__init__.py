"""Backends: a Graph or a network -> something that runs, and how to wait for it. One module each.

A backend is written as its name and the options it is to run with: `torch`, `torch+compile+threads=2`.
Options make times different, so they are part of what a run is called, and of the environment that it
records.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph
from microbench.backends import threads

BACKENDS = {
    "tensorflow": "microbench.backends.tensorflow:TensorFlowBackend",
    "torch": "microbench.backends.torch:TorchBackend",
    "onnxruntime": "microbench.backends.onnxruntime:OnnxRuntimeBackend",
}
LAYER_STEPS = {
    "tensorflow": "microbench.backends.tensorflow.training:prepare",
    "torch": "microbench.backends.torch.training:prepare",
}
"""Backends that can train a layer."""
OPTIONS = {"tensorflow": ("jit",), "torch": ("compile", "channels_last", "half")}
"""Backend -> options that it has; each is a field of its environment, true or false. All have threads=N."""


@dataclass(frozen=True)
class Prepared:
    """A call that runs something once and waits for the result; `inputs`, where they lie on the host."""

    run: Callable[[], object]
    inputs: tuple[np.ndarray, ...] = ()

    def __call__(self) -> None:
        self.run()

    def touch(self) -> None:
        """Read the inputs, so that they lie in a cache as if something had just written them."""
        for values in self.inputs:
            values.max()


class Backend(Protocol):
    """What a backend can do; made with the device's name (cpu or gpu) and its options."""

    name: str

    def environment(self) -> dict[str, Any]:
        """Versions, threads, flags, options: what makes times comparable; `device_name` where known."""

    def available_bytes(self) -> int | None:
        """Free memory of a device that has its own; None where it is the host's, or not known."""

    def prepare_graph(self, graph: Graph, batch_size: int) -> Prepared:
        """A call that runs `graph` once on inputs that lie on the device, and waits for the result."""

    def prepare_network(self, spec: str, input_size: tuple[int, ...], batch_size: int) -> Prepared:
        """The same for a user's NETWORK."""


def layer_step(backend: Backend, layer: Mapping[str, Any]) -> Callable[[], None]:
    """A call that runs one layer: forward, or with backward and update too, and waits for the result.

    `layer`: its kind under "layer", and what `lolat.mlp.table.COLUMNS` has for that kind but for the GPU;
    optimizer "none" is forward only. InputError where the backend trains nothing.
    """
    if backend.name not in LAYER_STEPS:
        raise InputError(
            f"the {backend.name} backend trains no layers; expected {' or '.join(LAYER_STEPS)}"
        )
    module, _, attribute = LAYER_STEPS[backend.name].partition(":")
    found: Callable[[], None] = getattr(importlib.import_module(module), attribute)(backend, layer)
    return found


def flag(option: str) -> str:
    """How an option is given on the command line."""
    return f"--{option.replace('_', '-').replace('=', ' ')}"


def has(name: str, option: str) -> bool:
    """Whether a backend has an option, such as `half` or `threads=2`."""
    return option in OPTIONS.get(name, ()) or option.startswith(threads.PREFIX)


def joined(name: str, options: Collection[str] = ()) -> str:
    """A backend with options, as `create` takes it. InputError when there is no such thing."""
    if name not in BACKENDS:
        raise InputError(f"no backend {name!r}; this version has {', '.join(sorted(BACKENDS))}")
    own = OPTIONS.get(name, ())
    strange = [flag(o) for o in options if not has(name, o)]
    if strange:
        known = f"it has {', '.join(map(flag, own))}" if own else "it has no options"
        raise InputError(f"the {name} backend has no {', '.join(strange)}; {known}")
    asked = [threads.number(o) for o in options if o.startswith(threads.PREFIX)]
    valued = [f"{threads.PREFIX}{n}" for n in asked[-1:]]
    return "+".join([name, *(o for o in own if o in options), *valued])


def split(backend: str) -> tuple[str, list[str]]:
    """(name, options) of what `joined` gave."""
    name, *options = backend.split("+")
    return name, options


def threads_of(backend: str) -> int | None:
    """How many threads `backend` is to use; None where that was not asked for."""
    asked = [threads.number(o) for o in split(backend)[1] if o.startswith(threads.PREFIX)]
    return asked[-1] if asked else None


def without_threads(backend: str) -> str:
    """`backend` as it is without the option `threads=N`."""
    name, options = split(backend)
    return joined(name, [o for o in options if not o.startswith(threads.PREFIX)])


def check(backend: str) -> None:
    """InputError when there is no such backend, or it has not these options."""
    joined(*split(backend))


def of_model(environment: Mapping[str, Any]) -> str:
    """The backend that a model was learned with, its options too; TensorFlow if the file does not say."""
    name = str(environment.get("framework", "tensorflow"))
    options = [o for o in OPTIONS.get(name, ()) if environment.get(o) is True]
    asked = environment.get("threads_asked")
    if type(asked) is int and asked > 0:
        options.append(f"{threads.PREFIX}{asked}")
    return joined(name, options)


def create(backend: str, device: str) -> Backend:
    """The backend for `device`; InputError, MissingPackageError or DeviceError if there is none."""
    check(backend)
    asked = threads_of(backend)
    threads.check(asked, device)
    name, options = split(without_threads(backend))
    module, _, attribute = BACKENDS[name].partition(":")
    found: Backend = getattr(importlib.import_module(module), attribute)(
        device, **dict.fromkeys(options, True), **({} if asked is None else {"threads": asked})
    )
    return found

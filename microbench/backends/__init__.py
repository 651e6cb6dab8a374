"""Backends: each one makes calls that run a block or network once and wait for the result.

A backend is written as its name and its options: `torch`, `torch+compile+threads=2`. Options change times,
so they are part of a run's name and of the environment that it records.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from lolat.device.profile_remarks import BACKEND_OF
from lolat.errors import InputError, NetworkError, arg
from lolat.graph import Graph, Tensor
from lolat.parameters import TRAINING_BACKENDS
from lolat.readers import open_network
from lolat.readers.size import Size
from lolat.units import shortened

from ..environment import cpu_count

Shape = tuple[int, ...]


class Capabilities(NamedTuple):
    """A backend's class, the packages that it needs, its options, and whether it runs quantized blocks.

    An option is a boolean field of its environment; all backends also have threads=N.
    """

    backend: str
    packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    quantizes: bool = False


BACKENDS = {
    "tensorflow": Capabilities(
        f"{__name__}.tensorflow:TensorFlowBackend", ("keras", "tensorflow"), ("jit",)
    ),
    "torch": Capabilities(
        f"{__name__}.torch:TorchBackend", ("torch",), ("compile", "channels_last", "half")
    ),
    "onnxruntime": Capabilities(
        f"{__name__}.onnxruntime:OnnxRuntimeBackend",
        ("onnxruntime", "onnx", "onnxscript", "torch"),
        quantizes=True,
    ),
}
THREADS = "threads="
"""The option that sets the number of threads; without it the framework chooses."""
LEARNING_RATE = 1e-4
"""Learning rate so small that the weights hardly change, however often a training step is timed."""
OPTIMIZERS: Mapping[str, tuple[str, dict[str, float]]] = {
    "sgd": ("SGD", {}), "momentum": ("SGD", {"momentum": 0.9}), "adadelta": ("Adadelta", {}),
    "adagrad": ("Adagrad", {}), "adam": ("Adam", {}), "rmsprop": ("RMSprop", {}),
}  # fmt: skip
"""Optimizer -> (its class, its options) in both frameworks; options not listed keep their defaults."""
FLAGS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "OMP_PROC_BIND",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY",
    "ONEDNN_DEFAULT_FPMATH_MODE", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS",
    "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip
"""Environment variables that change times."""
NUM_CLASSES = 10
"""Number of classes of the networks with which a training loop is timed."""
WAKING_ELEMENTS = 2**15
"""Elements per thread of the tensor whose computation wakes the threads: the fewest that PyTorch gives a
thread."""
KERNELS_KEPT = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
"""Environment variable and value that keep all code that oneDNN generates. It generates code for each shape
and keeps 1024 pieces by default. A run needs more in one process (PyTorch: 1150), so a block would pay for
generating code anew: 0.3 ms a convolution, up to three times the block."""


@dataclass(frozen=True)
class Prepared:
    """A call that runs a block or network once and waits for the result.

    `inputs`: the inputs that are in host memory. `wake`: a short computation on all threads of the
    framework.
    """

    run: Callable[[], object]
    inputs: tuple[np.ndarray, ...] = ()
    wake: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        """Run the block or network once and wait for the result."""
        self.run()

    def touch(self) -> None:
        """Leave caches and threads as if the inputs had just been written.

        Reading the inputs puts them into a cache. Meanwhile the framework's threads fall asleep, unlike
        inside a network; waking them takes longer than a small block.
        """
        for values in self.inputs:
            values.max()
        self.wake()


class Backend(Protocol):
    """The interface of all backends; they are constructed with a device (cpu or gpu) and options."""

    name: str

    def environment(self) -> dict[str, Any]:
        """All that makes times comparable: versions, threads, flags, options; `device_name` if known."""

    def available_bytes(self) -> int | None:
        """Free bytes of a device with its own memory; None if it uses the host's, or if unknown."""
        return None

    def prepare_graph(self, graph: Graph, batch_size: int) -> Prepared:
        """A call that runs a block once, with inputs on the device, and waits for the result."""

    def prepare_network(self, spec: str, input_size: Size, batch_size: int) -> Prepared:
        """A call that runs a user's NETWORK once, with inputs on the device, and waits for the result."""


# ---- Names and options


def with_dashes(option: str) -> str:
    """An option of a backend as the command line writes it, for errors."""
    name, _, value = option.partition("=")
    return f"{arg(name)} {value}".rstrip()


def has_option(name: str, option: str) -> bool:
    """True if a backend has an option, such as `half` or `threads=2`."""
    return option in BACKENDS[name].options or option.startswith(THREADS)


def join_name(name: str, options: Collection[str] = ()) -> str:
    """The name of a backend with options, as `create` takes it; InputError if the backend lacks one."""
    if name not in BACKENDS:
        raise InputError(f"no backend {name!r}; this version has {', '.join(sorted(BACKENDS))}")
    own = BACKENDS[name].options
    if unknown := [with_dashes(o) for o in options if not has_option(name, o)]:
        known = ", ".join(map(with_dashes, (*own, "threads")))
        raise InputError(f"the {name} backend has no {', '.join(unknown)}; it has {known}")
    threads = [o for o in options if o.startswith(THREADS)]
    return "+".join([name, *(o for o in own if o in options), *threads[-1:]])


def split(backend: str) -> tuple[str, list[str]]:
    """(name, options) in the written form of a backend."""
    name, *options = backend.split("+")
    return name, options


def backend_of(environment: Mapping[str, Any]) -> str:
    """The backend, with options, that a profile was learned with; TensorFlow if the file does not say."""
    name = str(environment.get("framework", "tensorflow"))
    known = BACKENDS[name].options if name in BACKENDS else ()
    options = [o for o in known if environment.get(o) is True]
    if threads := environment.get("threads_asked"):
        options.append(f"{THREADS}{threads}")
    return join_name(name, options)


def threads_of(backend: str, device: str) -> int | None:
    """The number of threads in a backend's options; None if not given. InputError for too many."""
    options = [o for o in split(backend)[1] if o.startswith(THREADS)]
    if not options:
        return None
    digits = options[0].removeprefix(THREADS)
    if device == "cpu" and digits.isdecimal() and 1 <= int(digits) <= cpu_count():
        return int(digits)
    if device != "cpu":
        raise InputError(
            f"{arg('threads')} {digits} is for `lolat learn cpu`; leave it out", code="threads"
        )
    raise InputError(
        f"{arg('threads')} {digits}: expected a number of this process' processors, 1 to {cpu_count()}",
        code="threads",
    )


# ---- Objects


def create(backend: str, device: str) -> Backend:
    """The backend for `device`; InputError, MissingPackageError or DeviceError if it is not available."""
    name, options = split(join_name(*split(backend)))
    threads = threads_of(backend, device)
    switches = {option: True for option in options if not option.startswith(THREADS)}
    os.environ.setdefault(*KERNELS_KEPT)
    made: Backend = pkgutil.resolve_name(BACKENDS[name].backend)(
        device, threads=threads, **switches
    )
    return made


def check_trains(backend: str) -> None:
    """Raise InputError if `backend` (name and options) cannot train."""
    name, _ = split(backend)
    if name not in TRAINING_BACKENDS:
        expected = " or ".join(TRAINING_BACKENDS)
        raise InputError(f"the {name} backend cannot train; expected {expected}")


def training_of(backend: Backend) -> Any:
    """The object with a backend's `passes`, `update`, `epoch`, `start`; InputError if it cannot train."""
    check_trains(backend.name)
    return pkgutil.resolve_name(f"{type(backend).__module__}.training:TrainingBenchmark")(backend)


# ---- What the backends share


def open_own_network(spec: str, input_size: Size, is_own: Callable[[Any], bool], name: str) -> Any:
    """A user's network; NetworkError if its framework is not that of the backend `name`."""
    network = open_network(spec, input_size, weights=True)
    if not is_own(network.model):
        raise _of_another(spec, name)
    return network


def check_runs(backend: str, spec: str, graph: Graph) -> None:
    """Raise NetworkError if `backend` cannot run the network `spec`, which was read as `graph`."""
    name, _ = split(backend)
    own = BACKEND_OF.get(graph.framework, name)
    if own != name:
        raise _of_another(spec, name, f" (--backend {own})")


def _of_another(spec: str, name: str, how: str = "") -> NetworkError:
    return NetworkError(
        f"{shortened(spec)!r} is no network of the {name} backend, which runs only those of its framework; "
        f"take a profile that was learned with the network's own{how}"
    )


def environment_of(
    name: str, version: str, asked: int | None, used: int, between: int
) -> dict[str, Any]:
    """The fields that every environment has.

    `asked`, `used`: threads of an operation that were asked for and that are used; `between`: threads that
    run operations side by side.
    """
    threads = {"threads": used, "inter_op_threads": between}
    flags = {n: os.environ[n] for n in FLAGS if n in os.environ}
    fields = {"framework": name, "framework_version": version, "flags": flags, **threads}
    return fields if asked is None else {**fields, "threads_asked": asked}


def at_batch(tensor: Tensor, batch_size: int, shape: Shape | None = None) -> Shape:
    """The shape of a tensor at a batch size; `shape`: at batch size 1, in another order of axes."""
    shape = tensor.shape if shape is None else shape
    batch = tensor.batch_axis if shape == tensor.shape else 0
    return tuple(
        n * batch_size if axis == batch and tensor.batched else n for axis, n in enumerate(shape)
    )

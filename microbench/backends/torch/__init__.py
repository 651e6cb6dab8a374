"""Calls of a Graph or a PyTorch network without gradients, which wait for their result."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from lolat.errors import DeviceError
from lolat.graph import Graph, Tensor
from lolat.readers.size import Size
from lolat.readers.torch import import_torch, is_network

from .. import WAKING_ELEMENTS, Backend, Prepared, Shape, at_batch, environment_of, open_own_network
from .layers import block_module

PLACE = "cuda:0"
"""The device that is measured (PyTorch calls AMD's GPUs CUDA, too); CUDA_VISIBLE_DEVICES chooses it."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt (malloc.h)."""
MOST_COMPILED = 10_000
"""Number of compiled versions of one piece of code that torch.compile may keep; beyond it, torch.compile
silently runs the code uncompiled."""
LIMITS = ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit",
          "accumulated_cache_size_limit")  # fmt: skip
"""The names of the limit MOST_COMPILED in different versions of PyTorch."""


def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the system.

    PyTorch allocates the memory of every result anew. By default glibc returns large pieces or keeps them,
    depending on the sizes seen so far in the process; getting them again costs a page fault for every 4
    KiB. The same block took up to twice as long in one process as in another.
    """
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)  # musl has no mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


class TorchBackend(Backend):
    """The backend that runs PyTorch modules."""

    name = "torch"

    def __init__(
        self, device: str, compile: bool = False, channels_last: bool = False, half: bool = False,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        """`device`: cpu or gpu. The options are torch.compile, images channels last, float16, and threads.

        MissingPackageError without PyTorch, DeviceError if PyTorch finds no such device.
        """
        if device == "cpu":
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        self.torch: Any = import_torch()
        self.cuda = self.torch.cuda if device == "gpu" else None
        self.place = PLACE if device == "gpu" else "cpu"
        if self.cuda is not None and not self.cuda.is_available():
            raise DeviceError(
                f"no gpu here: PyTorch {self.torch.__version__} found no CUDA device; use `lolat learn "
                "cpu`, or install PyTorch with CUDA, and a driver"
            )
        self.threads = threads
        if threads is not None:  # before anything runs, for then it is too late
            self.torch.set_num_threads(threads)
            self.torch.set_num_interop_threads(threads)
        self.options = {"compile": compile, "channels_last": channels_last, "half": half}
        # Untrained weights give numbers so small that they are slow; trained ones do not.
        self.torch.set_flush_denormal(True)
        keep_freed_memory()
        for limit in LIMITS if compile else ():
            if hasattr(self.torch._dynamo.config, limit):
                setattr(self.torch._dynamo.config, limit, MOST_COMPILED)

    def environment(self) -> dict[str, Any]:
        """The environment of PyTorch; see `Backend.environment`."""
        torch, gpu = self.torch, {}
        if self.cuda is not None:
            version = torch.version.cuda or getattr(torch.version, "hip", None)
            gpu = {"device_name": self.cuda.get_device_name(PLACE), "cuda_version": version}
        threads = self.threads, torch.get_num_threads(), torch.get_num_interop_threads()
        return {**environment_of(self.name, torch.__version__, *threads), **self.options, **gpu}

    def available_bytes(self) -> int | None:
        """Free memory of the CUDA device, including PyTorch's unused reserve; None for the host."""
        if self.cuda is None:
            return None
        held = self.cuda.memory_reserved(PLACE) - self.cuda.memory_allocated(PLACE)
        return int(self.cuda.mem_get_info(PLACE)[0] + held)

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.cuda is not None:
            self.cuda.synchronize(PLACE)

    def prepare_graph(self, graph: Graph, batch_size: int) -> Prepared:
        """A call of a block; see `Backend.prepare_graph`."""
        module, inputs = self.block(graph, batch_size)
        return self._call(self.with_options(module), inputs)

    def block(self, graph: Graph, batch_size: int) -> tuple[Any, list[Any]]:
        """(the module of a block, its inputs), both on the device."""
        with self.torch.device(self.place):
            module, shapes = block_module(self.torch, graph)
        inputs = zip(graph.inputs, shapes, strict=True)
        return module, [self.value(graph.tensors[i], shape, batch_size) for i, shape in inputs]

    def prepare_network(self, spec: str, input_size: Size, batch_size: int) -> Prepared:
        """A call of a network (see `Backend.prepare_network`); NetworkError if it is not PyTorch's."""
        network = open_own_network(spec, input_size, is_network, self.name)
        graph = network.graph()
        module = network.model.eval().to(self.place)
        tensors = [graph.tensors[i] for i in graph.inputs]
        inputs = [self.value(t, t.shape, batch_size) for t in tensors]
        return self._call(self.with_options(module), inputs)

    def with_options(self, module: Any) -> Any:
        """Apply the options to a module: precision, memory format, torch.compile."""
        if self.options["half"]:
            module = module.half()
        if self.options["channels_last"]:
            module = module.to(memory_format=self.torch.channels_last)
        if self.options["compile"]:
            module = self.torch.compile(module, dynamic=False)  # compiled anew for each batch size
        return module

    def value(self, tensor: Tensor, shape: Shape, batch_size: int) -> Any:
        """Values for a graph's input on the device; `shape`: at batch size 1."""
        torch, grown = self.torch, at_batch(tensor, batch_size, shape)
        dtype = getattr(torch, tensor.dtype)
        if not dtype.is_floating_point:
            return torch.ones(grown, dtype=dtype, device=self.place)
        return self.on_device(torch.randn(grown, dtype=dtype, device=self.place))

    def on_device(self, x: Any) -> Any:
        """Values moved to the device, with the options applied."""
        if self.options["half"] and x.is_floating_point():
            x = x.half()
        x = x.to(self.place)
        if self.options["channels_last"] and x.dim() == 4:
            x = x.to(memory_format=self.torch.channels_last)
        return x

    def _call(self, module: Any, inputs: Sequence[Any]) -> Prepared:
        """A call of the forward pass, which waits for its end."""
        inference, wait = self.torch.inference_mode, self.wait

        def call() -> None:
            with inference():
                module(*inputs)
            wait()

        host = tuple(self.array(x) for x in inputs if x.device.type == "cpu")
        if not host:
            return Prepared(call)
        waking = self.torch.zeros(self.torch.get_num_threads() * WAKING_ELEMENTS)
        return Prepared(call, host, lambda: waking.add_(1.0))

    def array(self, x: Any) -> np.ndarray:
        """The host memory of a tensor as an array; types that NumPy lacks (bfloat16) become integers."""
        try:
            found: np.ndarray = x.numpy()
        except TypeError:
            found = x.view(getattr(self.torch, f"int{8 * x.itemsize}")).numpy()
        return found

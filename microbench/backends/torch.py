"""Builds a Graph, or opens a PyTorch network, as one call without gradients, and waits for its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from lolat.errors import MeasuringError, NetworkError
from lolat.graph import Graph, Tensor
from lolat.readers import open_network
from lolat.readers.torch import import_torch, is_network
from lolat.readers.wording import one_line, shortened
from microbench.backends import Prepared
from microbench.backends import threads as of_threads
from microbench.backends.channels_first import Shape
from microbench.backends.torch_cuda import Cuda, Host
from microbench.backends.torch_libraries import libraries
from microbench.backends.torch_memory import keep_freed_memory
from microbench.backends.torch_program import runnable
from microbench.backends.torch_tape import block_module, materialise

FLAGS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY", "LD_PRELOAD", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY",
    "ONEDNN_DEFAULT_FPMATH_MODE", "TORCH_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "CUDNN_LOGINFO_DBG", "TORCH_CUDNN_V8_API_DISABLED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FREEZING",
)  # fmt: skip
"""Environment variables that make times different."""
MOST_COMPILED = 10_000
"""Versions of the same code that torch.compile may hold; beyond, it would run it uncompiled, unasked."""


class TorchBackend:
    """Graph -> something that runs, and how to wait for it, with PyTorch."""

    name = "torch"

    def __init__(
        self,
        device: str,
        compile: bool = False,
        channels_last: bool = False,
        half: bool = False,
        threads: int | None = None,
    ) -> None:
        """`device`: cpu or gpu. Options: torch.compile, images channels last in memory, float16.

        `threads`: None for as many as PyTorch takes by itself.
        Raises MissingPackageError without PyTorch, DeviceError when it finds no such device.
        """
        if device == "cpu":
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        self.torch: Any = import_torch()
        self.device: Host = Cuda(self.torch) if device == "gpu" else Host()
        self.threads = threads
        if threads is not None:  # before anything runs, for then it is too late
            self.torch.set_num_threads(threads)
            self.torch.set_num_interop_threads(threads)
        self.options = {"compile": compile, "channels_last": channels_last, "half": half}
        # Weights that nobody trained make numbers that trained ones do not: so small that they are slow.
        self.torch.set_flush_denormal(True)
        self.keeps_memory = keep_freed_memory()
        if compile:
            config = self.torch._dynamo.config
            for limit in ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit",
                          "accumulated_cache_size_limit"):  # fmt: skip
                if hasattr(config, limit):
                    setattr(config, limit, MOST_COMPILED)

    def environment(self) -> dict[str, Any]:
        """Versions, threads, flags and options: what makes times comparable."""
        torch = self.torch
        return {
            "framework": "torch",
            "framework_version": torch.__version__,
            "intra_op_threads": torch.get_num_threads(),
            "inter_op_threads": torch.get_num_interop_threads(),
            "float32_products": torch.get_float32_matmul_precision(),
            "keeps_freed_memory": self.keeps_memory,
            "libraries": libraries(torch),
            **self.options,
            "flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
            **of_threads.environment(self.threads),
            **self.device.environment(),
        }

    def available_bytes(self) -> int | None:
        """Free memory of the CUDA device; None for the host."""
        return self.device.free_bytes()

    def prepare_graph(self, graph: Graph, batch_size: int) -> Prepared:
        """A block as one call."""

        def make() -> Prepared:
            module, shapes = block_module(self.torch, graph)
            module = materialise(self.torch, module, self.device.place)
            inputs = [
                self.value(graph.tensors[i], shape, batch_size)
                for i, shape in zip(graph.inputs, shapes, strict=True)
            ]
            return self._call(self.as_asked(module), inputs)

        return self.within_memory(make)()

    def prepare_network(self, spec: str, input_size: tuple[int, ...], batch_size: int) -> Prepared:
        """A user's network as one call; NetworkError when it is none of PyTorch."""
        if spec.startswith(("keras:", "generate:")) or spec.lower().endswith((".keras", ".onnx")):
            raise NetworkError(_other_kind(spec))
        program = spec.lower().endswith(".pt2")
        network = open_network(spec, input_size, weights=not program)
        if not program and not is_network(network.model):
            raise NetworkError(_other_kind(spec))
        graph = network.graph()

        def make() -> Prepared:
            module = network.model
            if program or not isinstance(module, self.torch.nn.Module):
                module = runnable(self.torch, module, input_size, network.name, batch_size)
            module = module.eval().to(self.device.place)
            inputs = [self.value(t, t.shape, batch_size) for t in _inputs(graph)]
            return self._call(self.as_asked(module), inputs)

        return self.within_memory(make)()

    def as_asked(self, module: Any) -> Any:
        """A module with the options: precision, memory format, compiled."""
        torch = self.torch
        if self.options["half"]:
            module = module.half()
        if self.options["channels_last"]:
            module = module.to(memory_format=torch.channels_last)
        if self.options[
            "compile"
        ]:  # for each batch size by itself, as blocks and networks alike are asked
            module = torch.compile(module, dynamic=False)
        return module

    def value(self, tensor: Tensor, shape: Shape, batch_size: int) -> Any:
        """Values of a graph's input, on the device; some other axis than the first never grows."""
        torch = self.torch
        grown = (shape[0] * batch_size if tensor.batched else shape[0], *shape[1:]) if shape else ()
        dtype = getattr(torch, tensor.dtype)
        if not dtype.is_floating_point:
            return torch.ones(grown, dtype=dtype, device=self.device.place)
        if self.options["half"]:
            dtype = torch.float16
        x = torch.randn(grown, dtype=dtype, device=self.device.place)
        if self.options["channels_last"] and x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        return x

    def _call(self, module: Any, inputs: Sequence[Any]) -> Prepared:
        """The forward pass and the wait for its end."""
        inference, wait = self.torch.inference_mode, self.device.wait

        def call() -> None:
            with inference():
                module(*inputs)
            wait()

        host = tuple(x.numpy() for x in inputs if x.device.type == "cpu")
        return Prepared(self.within_memory(call), host)

    def within_memory(self, act: Callable[[], Any]) -> Callable[[], Any]:
        """`act`, but MeasuringError where the device's memory does not suffice, which is then tidied up."""
        refusals = self.device.refusals

        def guarded() -> Any:
            try:
                return act()
            except refusals as error:
                said = one_line(error)
            # Behind the except clause, when the error no longer holds what was under way.
            self.device.tidy()
            raise MeasuringError(f"the device's memory does not suffice: {said}")

        return guarded if refusals else act


def _inputs(graph: Graph) -> list[Tensor]:
    return [graph.tensors[i] for i in graph.inputs]


def _other_kind(spec: str) -> str:
    return (
        f"{shortened(spec)!r} is no PyTorch network, and the torch backend runs those alone; expected "
        "package.module:callable that returns a torch.nn.Module, or a .pt2 file (a model learned with "
        "tensorflow or onnxruntime is for the others)"
    )

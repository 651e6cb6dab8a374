"""Blocks that PyTorch exports, and users' `.onnx` files, as sessions of ONNX Runtime.

ONNX Runtime's own tools quantize a block, in a process of their own: the tools open sessions with their own
threads, which ONNX Runtime refuses once sessions share threads.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import DeviceError, MeasuringError, MissingPackageError, NetworkError
from lolat.graph import Graph
from lolat.graph.quantized import DYNAMIC, INT8, STATIC
from lolat.io.process import Child, Handler
from lolat.readers.onnx import read_inputs
from lolat.readers.size import Size
from lolat.readers.torch import import_torch
from lolat.units import shortened

from ...environment import core_count, cpu_count
from .. import Backend, Prepared, at_batch, environment_of
from ..torch.layers import block_module

QUANTIZER = f"{__name__}:quantizer"
QUANTIZING_LIMIT_S = 240.0


class OnnxRuntimeBackend(Backend):
    """The backend that runs sessions of ONNX Runtime."""

    name = "onnxruntime"

    def __init__(self, device: str, threads: int | None = None) -> None:
        """`threads`: None for the usual number. DeviceError for a GPU; MissingPackageError."""
        if device == "gpu":
            raise DeviceError("the onnxruntime backend measures only a cpu: use --backend torch")
        try:
            import onnxruntime as runtime
        except ImportError as error:
            words = f"the onnxruntime backend cannot import onnxruntime ({error})"
            raise MissingPackageError(words, "onnxruntime") from error
        self.runtime = runtime
        self._quantizer: Child | None = None
        self.torch = import_torch()
        self.torch.set_num_threads(1)  # to export; more threads would stay in this process
        # Threads within an operation, and between operations, which run in turn. 0: the usual number.
        self.threads, self.pools = threads, (0, 0) if threads is None else (threads, 1)
        # Sessions share their memory, so that a hundred of them fit, and their threads.
        arena, usual = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, runtime.OrtMemType.DEFAULT
        memory = runtime.OrtMemoryInfo("Cpu", arena, 0, usual)
        with contextlib.suppress(Exception):  # it exists already; the error has a class of its own
            runtime.create_and_register_allocator(memory, runtime.OrtArenaCfg(0, -1, -1, -1))
        with contextlib.suppress(Exception):
            runtime.set_global_thread_pool_sizes(*self.pools)

    def environment(self) -> dict[str, Any]:
        """The environment of ONNX Runtime; see `Backend.environment`."""
        used = self.threads or core_count() or cpu_count()
        version = self.runtime.__version__
        return environment_of(self.name, version, self.threads, used, self.pools[1])

    def prepare_graph(self, graph: Graph, batch_size: int) -> Prepared:
        """A call of a block (see `Backend.prepare_graph`); a graph marked with INT8 is quantized first."""
        model, inputs = self.exported(graph, batch_size)
        if scheme := next(
            (o.attributes[INT8] for o in graph.operations if INT8 in o.attributes), ""
        ):
            model = self.quantized(model, inputs, str(scheme))
        return self._call(model, inputs)

    def quantized(self, model: bytes, inputs: Mapping[str, np.ndarray], scheme: str) -> bytes:
        """An ONNX model quantized by a scheme, calibrated with its inputs; RequestFailed, ProcessDied."""
        if self._quantizer is None:
            self._quantizer = Child(QUANTIZER, name="the quantizing process")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            (path / "float.onnx").write_bytes(model)
            np.savez(path / "inputs.npz", **inputs)  # type: ignore[arg-type]
            self._quantizer.request({"folder": folder, "scheme": scheme}, QUANTIZING_LIMIT_S)
            return (path / "quantized.onnx").read_bytes()

    def exported(self, graph: Graph, batch_size: int) -> tuple[bytes, dict[str, np.ndarray]]:
        """(the ONNX model that PyTorch exports for a block, random inputs by name)."""
        module, sizes = block_module(self.torch, graph)
        model = io.BytesIO()
        tensors = zip((graph.tensors[i] for i in graph.inputs), sizes, strict=True)
        arrays = [_values(at_batch(t, batch_size, s), np.dtype(t.dtype)) for t, s in tensors]
        named = {f"x{i}": array for i, array in enumerate(arrays)}
        with warnings.catch_warnings(action="ignore"), self.torch.no_grad():
            inputs = tuple(map(self.torch.from_numpy, arrays))
            # Exporting by tracing takes a tenth of the time of the newer exporter.
            self.torch.onnx.export(module, inputs, model, dynamo=False, input_names=list(named))
        return model.getvalue(), named

    def prepare_network(self, spec: str, input_size: Size, batch_size: int) -> Prepared:
        """A call of a user's network, see `Backend.prepare_network`; NetworkError unless it is `.onnx`."""
        if not spec.lower().endswith(".onnx"):
            raise NetworkError(f"the onnxruntime backend runs .onnx files, not {shortened(spec)!r}")
        inputs = read_inputs(spec, input_size)
        if others := {one.fixed for one in inputs.values()} - {0, batch_size}:
            raise MeasuringError(f"{shortened(spec)!r} is made only for batch size {max(others)}")
        values = {n: _values(one.at(batch_size), one.dtype) for n, one in inputs.items()}
        return self._call(spec, values)

    def _call(self, model: str | bytes, inputs: dict[str, np.ndarray]) -> Prepared:
        """A call of a session whose inputs and outputs are bound to memory, so that nothing is copied."""
        options = self.runtime.SessionOptions()
        options.log_severity_level = 3
        # Versions without threads shared by all sessions have threads for each session.
        options.use_per_session_threads = not hasattr(self.runtime, "set_global_thread_pool_sizes")
        options.intra_op_num_threads, options.inter_op_num_threads = self.pools
        # No numbers so small that they are slow; idle threads of a session's own keep no processor busy.
        for key in ("use_env_allocators=1", "set_denormal_as_zero=1", "intra_op.allow_spinning=0"):
            options.add_session_config_entry(f"session.{key[:-2]}", key[-1])
        session = self.runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in inputs.items():
            value = self.runtime.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)

        def call() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return Prepared(call, tuple(inputs.values()))


def _values(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    random = np.random.default_rng(1).standard_normal(shape, np.float32)
    return (random if np.issubdtype(dtype, np.floating) else np.ones(shape)).astype(dtype)


# ---- The process that quantizes


def quantizer() -> Handler:
    """A handler that quantizes a folder's `float.onnx`, with its `inputs.npz`, into `quantized.onnx`."""
    from onnxruntime import quantization as tools
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.disable(logging.WARNING)

    def quantize(request: dict[str, str]) -> None:
        folder, scheme = Path(request["folder"]), request["scheme"]
        source, ready, target = (
            str(folder / f"{name}.onnx") for name in ("float", "ready", "quantized")
        )
        quant_pre_process(source, ready)  # the first step on ONNX Runtime's page on quantization
        if scheme == DYNAMIC:
            tools.quantize_dynamic(ready, target)
            return
        with np.load(folder / "inputs.npz") as stored:
            samples = iter([dict(stored)])
        data = type(
            "Data", (tools.CalibrationDataReader,), {"get_next": lambda _: next(samples, None)}
        )
        kind = tools.QuantType.QUInt8 if scheme == STATIC else tools.QuantType.QInt8
        tools.quantize_static(ready, target, data(), per_channel=True, activation_type=kind)

    return quantize

"""Builds a Graph, or opens an `.onnx` file, as a session of ONNX Runtime, and waits for its result."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from typing import Any

import numpy as np

from lolat.errors import DeviceError, MeasuringError, NetworkError
from lolat.graph import Graph
from lolat.readers.onnx import file as onnx_file
from lolat.readers.onnx import shapes as onnx_inputs
from lolat.units import shortened
from microbench.backends import Prepared, environment_of, imported
from microbench.backends.onnxruntime.layers import block_model
from microbench.backends.tape import at_batch

FLAGS = ("OMP_NUM_THREADS", "ORT_DISABLE_TELEMETRY", "MLAS_GEMM_DISABLE_SPIN", "NVIDIA_TF32_OVERRIDE",
         "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES")  # fmt: skip
"""Environment variables that make times different."""
PROVIDERS = {"cpu": "CPUExecutionProvider", "gpu": "CUDAExecutionProvider"}
SETTINGS = {
    "session.use_env_allocators": "1",
    "session.set_denormal_as_zero": "1",
}
"""Of every session: sessions share their memory, so that a hundred of them fit; and weights that nobody
trained do not make numbers so small that they are slow."""
ALONE = {"session.intra_op.allow_spinning": "0"}
"""Where sessions have threads of their own: those of an idle session must not keep a processor busy."""
ASK = ("nvidia-smi", "--query-gpu=name,memory.free", "--format=csv,noheader,nounits")
ASK_LIMIT_S = 20.0


class OnnxRuntimeBackend:
    """Graph -> something that runs, and how to wait for it, with ONNX Runtime."""

    name = "onnxruntime"

    def __init__(self, device: str, threads: int | None = None) -> None:
        """`device`: cpu or gpu; `threads`: None for as many as cores.

        Raises MissingPackageError or DeviceError when it is not there.
        """
        self.onnx = onnx_file.import_onnx()
        hint = " (a GPU needs onnxruntime-gpu)"
        self.runtime: Any = imported("onnxruntime", "the onnxruntime backend", hint)
        self.provider = PROVIDERS[device]
        self.place = "cuda" if device == "gpu" else "cpu"
        providers = self.runtime.get_available_providers()
        if self.provider not in providers:
            why = (
                f"ONNX Runtime {self.runtime.__version__} looked for {self.provider} and has "
                f"{', '.join(providers)}"
            )
            raise DeviceError(
                f"no {device} here: {why}; use `lolat learn cpu`, or install onnxruntime-gpu",
                why=why,
            )
        self.device_name, _ = self._graphics_card() if device == "gpu" else (None, None)
        self.threads = threads
        self.shares_threads = share_pools(self.runtime, threads)

    def environment(self) -> dict[str, Any]:
        """Versions, threads and flags: what makes times comparable. 0 threads: as many as cores."""
        options = self.session_options()
        return {
            "framework": "onnxruntime",
            "framework_version": self.runtime.__version__,
            "execution_provider": self.provider,
            "intra_op_threads": options.intra_op_num_threads,
            "inter_op_threads": options.inter_op_num_threads,
            "shared_threads": self.shares_threads,
            "libraries": self.libraries(),
            "optimisation": options.graph_optimization_level.name,
            **environment_of(self.threads, FLAGS),
            **({"device_name": self.device_name} if self.device_name else {}),
        }

    def libraries(self) -> dict[str, Any]:
        """How ONNX Runtime was built, as it says; older versions do not."""
        build_info = getattr(self.runtime, "get_build_info", None)
        return {} if build_info is None else {"build": str(build_info())}

    def available_bytes(self) -> int | None:
        """Free memory of the GPU, as its driver says; None for the host."""
        return self._graphics_card()[1] if self.place == "cuda" else None

    def prepare_graph(self, graph: Graph, batch_size: int) -> Prepared:
        """A block as one call."""
        model, weights, inputs = block_model(self.onnx, graph, batch_size)
        options = self.session_options()
        held = [self.runtime.OrtValue.ortvalue_from_numpy(v) for v in weights.values()]
        if held:
            options.add_external_initializers(list(weights), held)
        session = self._session(model.SerializeToString(), options)
        given = {
            name: _values(at_batch(tensor, shape, batch_size), np.dtype(tensor.dtype))
            for name, tensor, shape in inputs
        }
        return self._call(session, given)

    def prepare_network(self, spec: str, input_size: tuple[int, ...], batch_size: int) -> Prepared:
        """An `.onnx` file as one call; NetworkError for anything else."""
        shown = shortened(spec)
        if not spec.lower().endswith(".onnx"):
            raise NetworkError(
                f"{shown!r} is no .onnx file, and the onnxruntime backend runs those alone; export the "
                "network, with an open batch size, and give the file"
            )
        inputs = onnx_inputs.read_inputs(onnx_file.load(spec), input_size, shown)
        if inputs.fixed is not None and inputs.fixed != batch_size:
            raise MeasuringError(
                f"{shown!r} is made for batch size {inputs.fixed} and cannot run at {batch_size}; export "
                "it with an open batch size"
            )
        session = self._session(spec, self.session_options())
        types = {n: self.onnx.helper.tensor_dtype_to_np_dtype(t) for n, t in inputs.dtypes.items()}
        sizes = inputs.at(batch_size)
        return self._call(session, {name: _values(sizes[name], types[name]) for name in sizes})

    def session_options(self) -> Any:
        """Of every session of this process."""
        options = self.runtime.SessionOptions()
        options.log_severity_level = 3
        options.use_per_session_threads = not self.shares_threads
        # Where threads are shared, these say how large the shared pool is.
        options.intra_op_num_threads, options.inter_op_num_threads = _pools(self.threads)
        for key, value in (SETTINGS if self.shares_threads else SETTINGS | ALONE).items():
            options.add_session_config_entry(key, value)
        return options

    def _session(self, model: Any, options: Any) -> Any:
        return self.runtime.InferenceSession(model, options, providers=[self.provider])

    def _call(self, session: Any, given: Mapping[str, np.ndarray]) -> Prepared:
        """A run on inputs that lie on the device; what comes out stays there."""
        binding = session.io_binding()
        for name, array in given.items():
            value = self.runtime.OrtValue.ortvalue_from_numpy(array, self.place, 0)
            binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name, self.place)

        def call() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return Prepared(call, tuple(given.values()) if self.place == "cpu" else ())

    def _graphics_card(self) -> tuple[str | None, int | None]:
        """(name, free bytes) of the first GPU, which ONNX Runtime does not say; None where not known."""
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
            answer = subprocess.run(
                ASK, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=True
            )
            name, _, free = answer.stdout.strip().splitlines()[0].rpartition(",")
            return name.strip(), int(free) * 2**20
        return None, None


def _pools(threads: int | None) -> tuple[int, int]:
    """Threads (within an operation, between operations); 0: as many as cores.

    Operations run one after the other here, so that those between them have nothing to do.
    """
    return (0, 0) if threads is None else (threads, 1)


def share_pools(runtime: Any, threads: int | None = None) -> bool:
    """Let all sessions of this process have one pool of memory, and of threads where there can be one.

    Whether they share threads: where there is a pool of these already and `threads` are given, each
    session has its own.
    """
    kind = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = runtime.OrtMemoryInfo("Cpu", kind, 0, runtime.OrtMemType.DEFAULT)
    with contextlib.suppress(Exception):  # there already; a class of its own
        runtime.create_and_register_allocator(memory, runtime.OrtArenaCfg(0, -1, -1, -1))
    if not hasattr(runtime, "set_global_thread_pool_sizes"):
        return False
    try:
        runtime.set_global_thread_pool_sizes(*_pools(threads))
    except Exception as error:  # a class of its own
        return threads is None and "already" in str(error)
    return True


def _values(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if np.issubdtype(dtype, np.floating):
        return np.random.default_rng(1).standard_normal(shape, np.float32).astype(dtype)
    return np.ones(shape, dtype)

"""Measures devices of the zoo: each in a process of its own, all jobs in the same random rounds.

    python -m benchmarks.zoo.measure DEVICE ... [--folder benchmarks/zoo/results/PROCESSOR]
    python -m benchmarks.zoo.measure --graphs   # read the networks once: benchmarks/zoo/graphs.json.xz

A device is a backend with its switches (DEVICES). Per device: the predefined blocks and networks, blocks
cut from networks, whole networks. Kept is every raw time, with its moment.
"""

from __future__ import annotations

import gc
import json
import lzma
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.zoo.networks import rows

HERE = Path(__file__).resolve().parent
GRAPHS = HERE / "graphs.json.xz"
DEVICES: dict[str, tuple[str, dict[str, str], int]] = {
    "tf": ("tensorflow", {}, 0),
    "torch": ("torch", {}, 0),
    "ort": ("onnxruntime", {}, 0),
    "tf-1t": ("tensorflow", {}, 1),
    "torch-1t": ("torch", {}, 1),
    "tf-sse41": ("tensorflow", {"ONEDNN_MAX_CPU_ISA": "SSE41"}, 0),
    "tf-avx": ("tensorflow", {"ONEDNN_MAX_CPU_ISA": "AVX"}, 0),
    "tf-avx2": ("tensorflow", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, 0),
    "tf-avx512": ("tensorflow", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, 0),
    "tf-no-onednn": ("tensorflow", {"TF_ENABLE_ONEDNN_OPTS": "0"}, 0),
    "torch-no-onednn": ("torch", {"LOLAT_ZOO_NO_MKLDNN": "1"}, 0),
    "torch-default-isa": ("torch", {"ATEN_CPU_CAPABILITY": "default"}, 0),
    "torch-avx2": ("torch", {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, 0),
    "torch-avx512": ("torch", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, 0),
    "ort-1t": ("onnxruntime", {}, 1),
    "ort-2t": ("onnxruntime", {}, 2),
    "torch-gpu": ("torch", {}, 0),
    "torch-gpu-half": ("torch+half", {}, 0),
}
ROUNDS = int(os.environ.get("ZOO_ROUNDS", "10"))
RECUT = (
    "keras:NASNetMobile", "examples.networks:unet", "examples.torch_networks:unet",
    "examples.torch_networks:vit_tiny",
)  # fmt: skip
"""Their blocks are cut in another way than when devices were measured: these times are left out."""
FILLER_MS, LONG_MS = 45, 150
"""Blocks are measured after networks that are shorter; longer networks are measured every other round."""


def read_graphs() -> None:
    """Read all networks and keep their Graphs."""
    from lolat.readers import open_network

    found: dict[str, Any] = {}
    for backend in ("tensorflow", "torch"):
        for _, _, spec, pixels, _ in rows(backend):
            key = f"{spec} {pixels}"
            if key not in found:
                torch = "torch_networks" in spec
                size = () if not pixels else (3, pixels, pixels) if torch else (pixels,)
                graph = open_network(spec, size).graph()
                found[key] = graph.to_dict()
                print(key, len(graph.operations), flush=True)
    content = json.dumps(found, separators=(",", ":"), sort_keys=True).encode()
    GRAPHS.write_bytes(lzma.compress(content, preset=9))
    print(len(content), GRAPHS.stat().st_size)


def graphs() -> dict[str, Any]:
    """Load the graphs that `read_graphs` kept: name and size -> Graph."""
    from lolat.graph import Graph

    return {
        k: Graph.from_dict(v) for k, v in json.loads(lzma.decompress(GRAPHS.read_bytes())).items()
    }


def part(graph: Any, positions: tuple[int, ...], name: str) -> Any:
    """Some operations of a network as a network: its inputs are what they read of the rest, its outputs
    what the rest reads, or else what is left over.
    """
    from lolat.graph import GraphBuilder

    b, number, operations = GraphBuilder(name), {}, [graph.operations[p] for p in positions]
    b.channels_first = graph.channels_first
    fed = {t for o in graph.operations for t in o.outputs}.union(graph.inputs)
    for o in operations:
        for t in o.inputs:
            if t not in number:
                x = graph.tensors[t]
                add = b.input if t in fed else b.tensor
                number[t] = add(x.shape, batched=x.batched, dtype=x.dtype)
        shapes, (dtype, *_) = graph.shapes(o.outputs), [graph.tensors[t].dtype for t in o.outputs]
        made = b.add_several(
            o.kind, [number[t] for t in o.inputs], shapes, o.name, o.path, dtype, **o.attributes
        )
        number.update(zip(o.outputs, made, strict=True))
    written = [t for o in operations for t in o.outputs]
    outside = [o for p, o in enumerate(graph.operations) if p not in positions]
    read = {t for o in outside for t in o.inputs}.union(graph.outputs)
    inside = {t for o in operations for t in o.inputs}
    ends = [t for t in written if t in read] or [t for t in written if t not in inside]
    return b.build([number[t] for t in ends])


def jobs(backend: str) -> list[tuple[dict[str, Any], Any]]:
    """(what is kept of a job, its Graph) of everything to measure."""
    from lolat.graph.blocks import cut
    from lolat.microbench.blocks import BLOCKS, NETWORKS, as_known

    found = []
    for block in (*BLOCKS, *NETWORKS):
        what = "level" if block.whole else "block"
        for n in block.batch_sizes:
            entry = {"what": what, "name": block.name, "batch": n}
            found.append((entry, as_known(backend, block.make())))
    kept = graphs()
    draw = random.Random(7)
    whole, parts = [], []
    for half, family, spec, pixels, n in rows(backend):
        key = f"{spec} {pixels}"
        graph = kept[key] if "torch_networks" in spec else as_known(backend, kept[key])
        entry = {"half": half, "family": family, "name": key, "batch": n}
        whole.append(({"what": "network", **entry}, graph))
        number = draw.randrange(len(cut(graph)))
        parts.append(
            (
                {"what": "cut", **entry, "block": number},
                part(graph, cut(graph)[number].operations, f"{key}/{number}"),
            )
        )
    return found + whole + parts[::2]


def prepared(made: Any, backend: str, entry: dict[str, Any], graph: Any) -> Any:
    """The call of a job: a network of the backend's own framework natively, else from its Graph."""
    if entry["what"] == "network":
        spec, _, pixels = entry["name"].partition(" ")
        of_torch, side = "torch_networks" in spec, int(pixels)
        size = () if not side else (3, side, side) if of_torch else (side,)
        if backend == ("torch" if of_torch else "tensorflow"):
            return made.prepare_network(spec, size, entry["batch"])
    return made.prepare_graph(graph, entry["batch"])


def prepare(
    made: Any, backend: str, wanted: list[tuple[dict[str, Any], Any]]
) -> list[tuple[int, Any]]:
    """(number, call) of every job that can be built; what cannot says so in its entry."""
    ready = []
    for number, (entry, graph) in enumerate(wanted):
        try:
            call = prepared(made, backend, entry, graph)
            for _ in range(3):
                began = time.perf_counter()
                call()
                took = time.perf_counter() - began
            entry["rough_ms"] = round(took * 1e3, 3)
            ready.append((number, call))
        except Exception as error:  # whatever a framework raises for what it cannot do
            entry["failed"] = f"{type(error).__name__}: {error}"[:300]
            print("failed", entry, flush=True)
    gc.collect()
    return ready


def sample(ready: list[tuple[int, Any]], entries: list[dict[str, Any]]) -> list[list[float]]:
    """[job, mode, at s, ms] of every sample: rounds in random order over all jobs.

    Mode 3: a block right after a network that takes up to FILLER_MS, and that network; 0 to 2: the calls of
    a network in a row, the first of which comes after something else.
    """
    start = time.perf_counter()
    samples: list[list[float]] = []

    def take(number: int, mode: int, call: Any) -> None:
        began = time.perf_counter()
        call()
        ms = (time.perf_counter() - began) * 1e3
        samples.append([number, mode, round(began - start, 3), round(ms, 4)])

    before = [
        (number, call) for number, call in ready
        if entries[number]["what"] == "level" and entries[number]["rough_ms"] < FILLER_MS
    ]  # fmt: skip
    draw = random.Random(2026)
    for turn in range(ROUNDS):
        for number, call in draw.sample(ready, len(ready)):
            entry = entries[number]
            if entry["what"] in ("block", "cut"):
                which, network = draw.choice(before)
                take(which, 3, network)
                call.touch()
                take(number, 3, call)
            elif entry["rough_ms"] < LONG_MS or turn % 2 == 0:
                for mode in range(3):
                    take(number, mode, call)
    return samples


def measure(device: str, folder: Path) -> None:
    """Measure one device, in this process."""
    backend, switches, threads = DEVICES[device]
    from lolat.microbench import backends, environment

    where = "gpu" if "gpu" in device else "cpu"
    made = backends.create(backend + (f"+threads={threads}" if threads else ""), where)
    backend = backend.partition("+")[0]
    if "LOLAT_ZOO_NO_MKLDNN" in os.environ:
        import torch

        torch.backends.mkldnn.set_flags(False)
    wanted = jobs(backend)
    entries = [entry for entry, _ in wanted]
    ready = prepare(made, backend, wanted)
    print(device, "built", len(ready), flush=True)
    document = {
        "device": device,
        "environment": {
            **environment.describe(where),
            **made.environment(),
            "switches": switches,
            "threads_asked": threads,
        },
        "samples": sample(ready, entries),
        "jobs": entries,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{device}.json.xz"
    path.write_bytes(lzma.compress(json.dumps(document, separators=(",", ":")).encode(), preset=6))
    print(path, path.stat().st_size, flush=True)
    os._exit(0)  # a framework's threads would make the end long


def main() -> None:
    """See the module."""
    given = sys.argv[1:]
    if "--graphs" in given:
        read_graphs()
        return
    folder = HERE / "results"
    if "--folder" in given:
        at = given.index("--folder")
        folder = Path(given[at + 1])
        del given[at : at + 2]
    if len(given) == 1 and os.environ.get("ZOO_CHILD"):
        measure(given[0], folder)
        return
    for device in given:
        _, switches, _ = DEVICES[device]
        env = {**os.environ, **switches, "ZOO_CHILD": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, "-m", "benchmarks.zoo.measure", device, "--folder", str(folder)]
        subprocess.run(command, env=env, check=False, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

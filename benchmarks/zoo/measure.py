"""Measures the devices of the zoo: every one in a process of its own, all jobs in the same random rounds.

    python benchmarks/zoo/measure.py DEVICE ... [--folder benchmarks/zoo/results]
    python benchmarks/zoo/measure.py --graphs   # read the networks once: benchmarks/zoo/graphs.json.xz

A device is a backend with its switches (DEVICES). Per device: the predefined blocks, candidates for
them, blocks cut from networks, whole networks. Kept is every raw time, with the moment and how long the
process's threads waited for a processor meanwhile.
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

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

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
ROUNDS = int(os.environ.get("ZOO_ROUNDS", "6"))


def delay_ms() -> float:
    """How long the threads of this process have waited for a processor so far."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
        except OSError:
            pass
    return total / 1e6


def read_graphs() -> None:
    """Read all networks and keep their Graphs."""
    from networks import rows

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
    """What `read_graphs` kept: name and size -> Graph."""
    from lolat.graph import Graph

    return {
        k: Graph.from_dict(v) for k, v in json.loads(lzma.decompress(GRAPHS.read_bytes())).items()
    }


def jobs(backend: str) -> list[tuple[dict[str, Any], Any]]:
    """(what is kept of a job, its Graph) of everything to measure."""
    from candidates import CANDIDATES, NETWORKS
    from networks import rows

    from lolat.blocks import cut
    from lolat.subgraph import block_graph
    from microbench.backends.known import as_known
    from microbench.blocks import BLOCKS

    found = []
    for block in (*BLOCKS, *CANDIDATES):
        for n in block.batch_sizes:
            found.append(
                ({"what": "block", "name": block.name, "batch": n}, as_known(backend, block.make()))
            )
    for block in NETWORKS:
        for n in block.batch_sizes:
            found.append(
                ({"what": "level", "name": block.name, "batch": n}, as_known(backend, block.make()))
            )
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
                block_graph(graph, number, f"{key}/{number}"),
            )
        )
    return found + whole + parts[::2]


def measure(device: str, folder: Path) -> None:
    """Measure one device, in this process."""
    backend, switches, threads = DEVICES[device]
    from lolat.graph import GraphBuilder
    from microbench import backends, environment

    where = "gpu" if "gpu" in device else "cpu"
    made = backends.create(backend + (f"+threads={threads}" if threads else ""), where)
    backend = backend.partition("+")[0]
    if "LOLAT_ZOO_NO_MKLDNN" in os.environ:
        import torch

        torch.backends.mkldnn.set_flags(False)

    def probe(kind: str) -> Any:
        b = GraphBuilder(kind)
        if kind == "computing":
            x = b.input((1, 256, 512))
            for _ in range(2):
                x = b.add("dense", [x], (1, 256, 512), in_features=512, out_features=512, bias=True)
        elif kind == "moving":
            x = b.input((1, 64, 256, 512))
            x = b.add("add", [x, b.input((1, 64, 256, 512))], (1, 64, 256, 512))
        else:
            x = b.input((1, 64))
            y = b.input((1, 64))
            for _ in range(40):
                x = b.add("multiply", [b.add("add", [x, y], (1, 64)), y], (1, 64))
        return b.build([x])

    probes = {k: made.prepare_graph(probe(k), 1) for k in ("computing", "moving", "starting")}
    began = time.perf_counter()
    ready: list[tuple[int, Any]] = []
    wanted = jobs(backend)
    for number, (entry, graph) in enumerate(wanted):
        try:
            if entry["what"] == "network":
                spec, _, pixels = entry["name"].partition(" ")
                native = (backend == "tensorflow" and "torch_networks" not in spec) or (
                    backend == "torch" and "torch_networks" in spec
                )
                size = (
                    ()
                    if pixels == "0"
                    else (int(pixels),)
                    if backend == "tensorflow"
                    else (3, int(pixels), int(pixels))
                )
                if native:
                    call = made.prepare_network(spec, size, entry["batch"])
                else:
                    call = made.prepare_graph(graph, entry["batch"])
            else:
                call = made.prepare_graph(graph, entry["batch"])
            for _ in range(3):
                t = time.perf_counter()
                call()
                t = time.perf_counter() - t
            entry["rough_ms"] = round(t * 1e3, 3)
            ready.append((number, call))
        except Exception as error:  # a backend that cannot build something: say so, go on
            entry["failed"] = f"{type(error).__name__}: {error}"[:300]
            print("failed", entry, flush=True)
    gc.collect()
    print(device, "built", len(ready), "in", round(time.perf_counter() - began), "s", flush=True)

    start = time.perf_counter()
    samples: list[list[float]] = []  # job, mode, at s, ms, delay ms
    states: list[list[Any]] = []

    def timed(call: Any) -> tuple[float, float, float]:
        before = delay_ms()
        t = time.perf_counter()
        call()
        ms = (time.perf_counter() - t) * 1e3
        return round(t - start, 3), round(ms, 4), round(delay_ms() - before, 3)

    def state() -> None:
        for kind, call in probes.items():
            call()
            for _ in range(1 if kind == "moving" else 3):
                states.append([kind, *timed(call)])

    generator = random.Random(2026)
    last = 0.0
    flag = os.environ.get("ZOO_FLAG")
    if flag:
        Path(flag).touch()
        time.sleep(1.0)
    for turn in range(ROUNDS):
        order = list(ready)
        generator.shuffle(order)
        for number, call in order:
            entry = wanted[number][0]
            if time.perf_counter() - last > 1.0:
                state()
                last = time.perf_counter()
            if entry["what"] in ("block", "cut"):
                which, filler = generator.choice(fillers(ready, wanted))
                samples.append([which, 3, *timed(filler)])
                call.touch()
                samples.append([number, 3, *timed(call)])
            elif entry["rough_ms"] < 150 or turn % 2 == 0:
                samples.append([number, 0, *timed(call)])
                for mode in (1, 2):
                    samples.append([number, mode, *timed(call)])
    if flag:
        Path(flag).unlink()
    state()
    print(device, "measured in", round(time.perf_counter() - start), "s", flush=True)
    document = {
        "device": device,
        "environment": {
            **environment.describe(where),
            **made.environment(),
            "switches": switches,
            "threads_asked": threads,
        },
        "cpuinfo": Path("/proc/cpuinfo").read_text().split("\n\n")[0],
        "jobs": [e for e, _ in wanted],
        "samples": samples,
        "states": states,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{device}.json.xz"
    path.write_bytes(lzma.compress(json.dumps(document, separators=(",", ":")).encode(), preset=6))
    print(path, path.stat().st_size, flush=True)
    os._exit(0)


_FILLERS: list[Any] = []


def fillers(ready: list[tuple[int, Any]], wanted: Any) -> list[Any]:
    """Calls of networks that take 10 to 40 ms and have weights of some 10 to 30 M."""
    if not _FILLERS:
        _FILLERS.extend(
            (number, call)
            for number, call in ready
            if wanted[number][0]["what"] == "level" and wanted[number][0]["rough_ms"] < 45
        )
    return _FILLERS


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
        command = [sys.executable, __file__, device, "--folder", str(folder)]
        subprocess.run(command, env=env, check=False, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

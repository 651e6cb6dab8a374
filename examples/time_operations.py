"""Time the operations of language models on this machine's GPU with PyTorch: tables for `lolat fit`.

    python examples/time_operations.py kernels.csv [--minutes 5] [--name mygpu]

Writes kernels.csv and, beside it, kernels-device.csv with the GPU's data sheet; prints the call of
`lolat fit`. Needs PyTorch 2.6 or later and nothing else. Sizes are those of decoders of 0.5 to 70 billion
parameters, split over 1 to 8 GPUs. The operations, in bfloat16:

  gemm               a product of matrices. Also in FP8 where the GPU has it, with one scale a tensor;
                     quantizing the input is part of the time, and takes four operations that are not fused
  prefill_attention  causal attention of new tokens, nothing cached before
  decode_attention   one new token of each sequence
  moe                the routed experts of a layer: gather, two products, gate, sum; not the router
  all_reduce         with NCCL, where there are several GPUs

A time is that of one call in a CUDA graph of many. Weights and caches come from memory: each call takes
another copy. A graph is warmed up until its times settle. All operations are timed in random order, three
times where the minutes suffice; the median is written. Ctrl-C writes what was timed until then.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as f

# Of a mode that Bench.works turns on.
warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
COLUMNS = [
    "op", "dtype", "latency_ms", "m", "n", "k", "kv_dtype", "batch", "length", "heads", "kv_heads",
    "head_dim", "window", "tokens", "hidden", "intermediate", "top_k", "experts", "tensor_parallel",
    "expert_parallel", "distribution", "gpus", "elements",
]  # fmt: skip
FACTS = ["device", "multiprocessors", "bandwidth_gb_s", "memory_gib", "bf16_tflops", "fp8_tflops",
         "fp4_tflops", "power_w", "link_gb_s", "gpus_per_node"]  # fmt: skip
SHEET = ("bf16_tflops", "fp8_tflops", "fp4_tflops", "bandwidth_gb_s", "power_w", "link_gb_s")
# Data sheets: dense, added up in float32; the link in one direction. The first that fits the GPU's name.
SHEETS = {
    r"A100.*SXM": (312, None, None, 2039, 400, 300),
    r"A100": (312, None, None, 1935, 300, 32),
    r"\bH100 PCIe": (756, 1513, None, 2000, 350, 64),
    r"\bH100 NVL": (835, 1671, None, 3938, 400, 300),
    r"\bH100\b": (989, 1978, None, 3350, 700, 450),
    r"\bH200 NVL": (835, 1671, None, 4800, 600, 450),
    r"\bH200\b": (989, 1978, None, 4800, 700, 450),
    r"\bB200\b": (2250, 4500, 9000, 7700, 1000, 900),
    r"\bL40S\b": (362, 733, None, 864, 350, 32),
    r"\bL4\b": (121, 242, None, 300, 72, 32),
    r"RTX 4090$": (165, 330, None, 1008, 450, 32),
    r"RTX 5090$": (209.5, 419, 1676, 1792, 575, 64),
}
NUMBERS = {("gemm", "bfloat16"): 200, ("gemm", "fp8"): 120, ("prefill_attention", "bfloat16"): 100,
           ("decode_attention", "bfloat16"): 160, ("moe", "bfloat16"): 80}  # fmt: skip
# decoders: hidden, heads, heads of keys, head size, intermediate, words; experts: hidden, intermediate,
# experts, experts a token; few, most: tokens.
LARGE = SimpleNamespace(
    decoders=((896, 14, 2, 64, 4864, 151936), (2048, 32, 8, 64, 8192, 128256),
              (2560, 32, 8, 128, 9728, 151936), (3072, 24, 8, 128, 8192, 128256),
              (3584, 28, 4, 128, 18944, 152064), (3584, 16, 8, 256, 14336, 256000),
              (4096, 32, 8, 128, 14336, 128256), (5120, 40, 8, 128, 17408, 151936),
              (5120, 64, 8, 128, 25600, 151936), (8192, 64, 8, 128, 28672, 128256)),
    experts=((2048, 768, 128, 8), (2048, 1024, 64, 8), (2048, 1408, 64, 6), (2880, 2880, 32, 4),
             (2880, 2880, 128, 4), (3584, 2560, 64, 8), (4096, 1536, 128, 8), (4096, 6400, 16, 2),
             (4096, 14336, 8, 2), (6144, 16384, 8, 2)),
    numbers=NUMBERS, rounds=3, few=256, most=8192, batch=256, length=(128, 32768),
)  # fmt: skip
TINY = SimpleNamespace(
    decoders=((64, 4, 2, 16, 128, 256),), experts=((64, 32, 8, 2),),
    numbers=dict.fromkeys(NUMBERS, 4), rounds=2, few=16, most=64, batch=4, length=(8, 64),
)  # fmt: skip
ELEMENTS = [2**i for i in range(11, 27)]  # of all_reduce
WARM, SETTLING, REPLAYS, MOST_CALLS = 3, 10, 7, 1024
TARGET_MS, SETTLED = 2.0, 0.03  # of a graph; two times in a row that differ by less
OF_CACHE = 3  # all copies of an operand, as a multiple of the L2 cache
FIRST, REDUCING = 0.6, 0.2  # of the minutes: the first round; all_reduce
FP8_MOST = 448.0
REFUSED = (RuntimeError, ValueError)  # PyTorch's errors
NO_MEMORY = (torch.OutOfMemoryError, MemoryError)
Row = dict[str, Any]
Call = Callable[[int], object]
"""One call of an operation, with the copy of its weights or of its cache that has this number."""
Timed = tuple[Call, int]
"""What is timed, and with how many copies."""


class Bench:
    """The device, the memory that operands lie in, and the clock."""

    def __init__(self, device: torch.device, memory: int = 0) -> None:
        """`memory`: bytes for weights and caches in bfloat16; half as many more are for FP8."""
        self.device, self.on_gpu = device, device.type == "cuda"
        self.graphs, self.eager, self.cache = self.on_gpu, set[str](), 2**15
        self.stream = torch.cuda.Stream(device) if self.on_gpu else None
        if self.on_gpu:
            known = torch.cuda.get_device_properties(device)
            self.cache = getattr(known, "L2_cache_size", 0) or 2**26
        numbers = torch.empty(memory // 2, dtype=torch.bfloat16, device=device).normal_(std=0.1)
        self.numbers, self.grouped = {"bfloat16": numbers}, True
        if memory:
            self.grouped = self.works(moe(self, 4, 64, 64, 2, 1)[0])
            self.numbers["fp8"] = numbers.to(torch.float8_e4m3fn)
            if not self.works(gemm(self, True, 16, 32, 32)[0]):
                del self.numbers["fp8"]

    def works(self, call: Call) -> bool:
        """Whether PyTorch has this here, and does not wait for the GPU in it, as no graph may."""
        try:
            call(0)
            if self.on_gpu:
                torch.cuda.set_sync_debug_mode("error")
            call(0)
        except (*REFUSED, AttributeError, TypeError):
            return False
        finally:
            if self.on_gpu:
                torch.cuda.set_sync_debug_mode("default")
        return True

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device).normal_(std=0.1)

    def copies(self, *shapes: tuple[int, ...], dtype: str = "bfloat16", used: float = 1.0) -> Any:
        """Tensors of these shapes, as often as the L2 cache cannot hold; MemoryError where not once.

        `used`: the part of their bytes that a call reads.
        """
        numbers, sizes = self.numbers[dtype], [math.prod(shape) for shape in shapes]
        span = sum(sizes)
        wanted = math.ceil(OF_CACHE * self.cache / (used * span * numbers.element_size()))
        number = min(wanted, numbers.numel() // span, MOST_CALLS)
        if not number:
            raise MemoryError
        parts = (numbers[i * span : (i + 1) * span].split(sizes) for i in range(number))
        return [[t.view(s) for t, s in zip(part, shapes, strict=True)] for part in parts]

    def captured(self, call: Call, copies: int, calls: int) -> Callable[[], object] | None:
        """Replays a CUDA graph of the calls; None where there can be none."""
        if not (self.graphs and self.works(call)):
            return None
        graph = torch.cuda.CUDAGraph()
        try:  # threads of NCCL may ask for events meanwhile
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                each(call, copies, calls)
        except NO_MEMORY:
            raise
        except REFUSED:
            self.graphs = False  # after a capture that broke off PyTorch allows no other
            return None
        return graph.replay

    def spans(self, run: Callable[[], object], number: int) -> list[float]:
        """Milliseconds of each run. On a GPU they queue: only the first can include a start."""
        marks = [self.mark()]
        for _ in range(number):
            run()
            marks.append(self.mark())
        self.wait()
        return [a.elapsed_time(b) if self.on_gpu else (b - a) * 1e3 for a, b in pairwise(marks)]

    def mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, kind: str, call: Call, copies: int) -> float:
        """Milliseconds of one call; `kind` is kept where a GPU's is not in a CUDA graph."""
        each(call, copies, WARM)
        one = max(min(self.spans(lambda: call(0), WARM)), 1e-3)
        calls = max(copies, min(MOST_CALLS, math.ceil(TARGET_MS / one)))
        run = self.captured(call, copies, calls)
        if run is None:
            run = partial(each, call, copies, calls)
            self.eager |= {kind} if self.on_gpu else set()
        last = math.inf
        for _ in range(SETTLING):
            before, last = last, self.spans(run, 1)[0]
            if abs(last - before) < SETTLED * last:
                break
        replays = REPLAYS if last < 10 * TARGET_MS else REPLAYS // 2
        return statistics.median(self.spans(run, 1 + replays)[1:]) / calls


def each(call: Call, copies: int, calls: int) -> None:
    for i in range(calls):
        call(i % copies)


# ---- The operations: their sizes; a call, and with how many copies.


def whole(low: int, high: int) -> int:
    """A whole number between two, as likely in each decade."""
    return round(math.exp(random.uniform(math.log(low), math.log(high))))


def drawn(op: str, sizes: SimpleNamespace, numbers: int) -> Row:
    """The sizes of one operation; `numbers`: the most that a cache holds."""
    if op == "moe":
        hidden, inner, experts, top_k = random.choice(sizes.experts)
        return {"tokens": whole(1, sizes.most), "hidden": hidden, "top_k": top_k, "experts": experts,
                "intermediate": inner // random.choice((1, 1, 2, 4)), "tensor_parallel": 1,
                "expert_parallel": 1, "distribution": "balanced"}  # fmt: skip
    hidden, heads, kv_heads, size, inner, words = random.choice(sizes.decoders)
    split = random.choice([parts for parts in (1, 2, 4, 8) if heads % parts == 0])
    heads, kv_heads, inner = heads // split, max(1, kv_heads // split), inner // split
    if op == "gemm":
        n, k = random.choice([((heads + 2 * kv_heads) * size, hidden), (hidden, heads * size),
                              (2 * inner, hidden), (hidden, inner), (words // split, hidden)])  # fmt: skip
        m = whole(1, sizes.few) if random.random() < 0.7 else whole(sizes.few, sizes.most)
        return {"m": m, "n": n, "k": k}
    (low, high), batch = sizes.length, whole(1, sizes.batch)
    if op == "prefill_attention":
        low, high = low // 8, max(low, high // batch)
    high = max(low, min(high, numbers // (2 * batch * kv_heads * size)))
    return {"kv_dtype": "bfloat16", "batch": batch, "length": whole(low, high), "heads": heads,
            "kv_heads": kv_heads, "head_dim": size, "window": 0}  # fmt: skip


def call_of(row: Row, bench: Bench) -> Timed:
    if row["op"] == "gemm":
        return gemm(bench, row["dtype"] == "fp8", row["m"], row["n"], row["k"])
    if row["op"] == "moe":
        names = ("tokens", "hidden", "intermediate", "experts", "top_k")
        return moe(bench, *(row[name] for name in names))
    attend, heads, kv_heads = f.scaled_dot_product_attention, row["heads"], row["kv_heads"]
    batch, length, size = row["batch"], row["length"], row["head_dim"]
    if row["op"] == "decode_attention":
        cache = (batch, kv_heads, length, size)
        q, caches = bench.new(batch, heads, 1, size), bench.copies(cache, cache)
        return lambda i: attend(q, caches[i][0], caches[i][1], enable_gqa=True), len(caches)
    q, k, v = (bench.new(batch, number, length, size) for number in (heads, kv_heads, kv_heads))
    return lambda _: attend(q, k, v, is_causal=True, enable_gqa=True), 1  # no weights, no copies


def gemm(bench: Bench, fp8: bool, m: int, n: int, k: int) -> Timed:
    x, weights = bench.new(m, k), bench.copies((n, k), dtype="fp8" if fp8 else "bfloat16")
    one = torch.ones((), device=bench.device)

    def quantized(i: int) -> Tensor:
        scale = torch.linalg.vector_norm(x, math.inf, dtype=torch.float32) / FP8_MOST
        a, b = (x * scale.reciprocal()).to(torch.float8_e4m3fn), weights[i][0].t()
        return torch._scaled_mm(a, b, scale, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return quantized if fp8 else lambda i: f.linear(x, weights[i][0]), len(weights)


def moe(bench: Bench, tokens: int, hidden: int, inner: int, experts: int, top_k: int) -> Timed:
    chosen = torch.arange(tokens * top_k) % experts  # balanced; a token's experts differ
    order = chosen.argsort(stable=True)
    token, back = (order // top_k).to(bench.device), order.argsort().to(bench.device)
    ends = chosen.bincount(minlength=experts).cumsum(0).int()
    bounds, ends = list(pairwise([0, *ends.tolist()])), ends.to(bench.device)
    x, shares = bench.new(tokens, hidden), bench.new(tokens, top_k, 1)
    used = min(experts, tokens * top_k) / experts
    weights = bench.copies((experts, 2 * inner, hidden), (experts, hidden, inner), used=used)

    def products(a: Tensor, matrices: Tensor) -> Tensor:
        if bench.grouped:
            return torch._grouped_mm(a, matrices.transpose(1, 2), offs=ends)
        out = a.new_empty(a.shape[0], matrices.shape[1])
        for (begin, end), matrix in zip(bounds, matrices, strict=True):
            if begin < end:
                torch.mm(a[begin:end], matrix.t(), out=out[begin:end])
        return out

    def call(i: int) -> Tensor:
        gate, value = products(x[token], weights[i][0]).chunk(2, 1)
        y = products(f.silu(gate) * value, weights[i][1])
        return (y[back].view(tokens, top_k, hidden) * shares).sum(1)

    return call, len(weights)


def reduce_on(rank: int, gpus: int, kind: str, elements: list[int], folder: str) -> None:
    """One of the GPUs, in a process of its own; writes a line for each number of elements."""
    from torch import distributed

    device = torch.device(kind, rank if kind == "cuda" else 0)
    if kind == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=f"file://{folder}/meeting", rank=rank,
        world_size=gpus, timeout=timedelta(seconds=60),
    )  # fmt: skip
    bench = Bench(device)
    with torch.no_grad(), torch.cuda.stream(bench.stream), open(f"{folder}/{rank}", "w") as file:
        for number in elements:
            x = torch.zeros(number, dtype=torch.bfloat16, device=device)
            calls = 50 if number < 2**20 else 10  # all GPUs make as many, whatever their times

            def call(_: int, x: Tensor = x) -> None:
                distributed.all_reduce(x)

            each(call, 1, WARM)
            run = bench.captured(call, 1, calls)
            times = bench.spans(run or partial(each, call, 1, calls), WARM + REPLAYS)[WARM:]
            ms = statistics.median(times) / calls
            print(number, f"{ms:.5g}", int(run is None), file=file, flush=True)
            del run  # before the group that it belongs to
    distributed.destroy_process_group()


def reduced(gpus: int, kind: str, elements: list[int], end: float, rows: list[Row]) -> str:
    """Adds the rows of all_reduce over so many GPUs; says what was amiss, if anything."""
    from torch import multiprocessing

    said = ""
    with tempfile.TemporaryDirectory() as folder:
        options = (gpus, kind, elements, folder)
        group = multiprocessing.spawn(reduce_on, options, nprocs=gpus, join=False)
        try:
            while not said and not group.join(timeout=0.5):
                said = "the time was up" if time.monotonic() > end else ""
        except Exception as error:  # of one of the processes, with its traceback
            said = str(error).strip().splitlines()[-1]
        finally:
            for process in group.processes:
                process.kill()
                process.join()
            file = Path(folder, "0")
            for line in file.read_text().splitlines() if file.exists() else ():
                number, ms, eager = line.split()
                said = said or int(eager) * (kind == "cuda") * "outside a CUDA graph"
                rows.append({"op": "all_reduce", "dtype": "bfloat16", "gpus": gpus,
                             "elements": int(number), "latency_ms": float(ms)})  # fmt: skip
    return said and f"all_reduce over {gpus} GPUs: {said}"


# ---- All of them, and what is written.


def measure(bench: Bench, rows: list[Row], ends: list[float], said: Counter[str]) -> None:
    """Adds a time of each round to each row's `times`; counts in `said` why others have none.

    `ends`: when each round is over. Later rounds are of what the first timed.
    """
    told = 0.0
    for number, end in enumerate(ends, 1):
        order = [row for row in rows if number == 1 or row["times"]]
        for done, row in enumerate(random.sample(order, len(order))):
            if time.monotonic() > end:
                break
            try:
                row["times"].append(bench.timed(row["kind"], *call_of(row, bench)))
            except NO_MEMORY:
                said[f"{row['kind']}: too large for the memory"] += number == 1
            except REFUSED as error:
                said[f"{row['kind']}: {str(error).strip().splitlines()[0]}"] += 1
            if time.monotonic() > told + 10:
                told = time.monotonic()
                tell(f"round {number} of {len(ends)}: {done + 1} of {len(order)} operations")


def rates(row: Row) -> dict[str, float]:
    """What an operation reached, by columns of FACTS."""
    ms, size = row["latency_ms"], 1 if row["dtype"] == "fp8" else 2
    if row["op"] == "gemm":
        weights, name = row["n"] * row["k"], "bf16_tflops" if size == 2 else "fp8_tflops"
        return {name: 2e-9 * row["m"] * weights / ms, "bandwidth_gb_s": 1e-6 * size * weights / ms}
    if row["op"] == "decode_attention":
        cache = 2 * row["batch"] * row["length"] * row["kv_heads"] * row["head_dim"]
        return {"bandwidth_gb_s": 1e-6 * size * cache / ms}
    if row["op"] == "all_reduce":  # what each GPU sends, in a ring
        return {"link_gb_s": 2e-6 * size * row["elements"] * (1 - 1 / row["gpus"]) / ms}
    return {}


def facts_of(device: torch.device, title: str, rows: list[Row]) -> tuple[Row, list[str]]:
    """The device's row, and which of its rates are only the best that was timed."""
    sheet = next((values for name, values in SHEETS.items() if re.search(name, title)), ())
    found: Row = {"multiprocessors": torch.get_num_threads(), "gpus_per_node": 1}
    found |= {name: value for name, value in zip(SHEET, sheet, strict=False) if value}
    if device.type == "cuda":
        known = torch.cuda.get_device_properties(device)
        found |= {"multiprocessors": known.multi_processor_count,
                  "gpus_per_node": torch.cuda.device_count(),
                  "memory_gib": round(known.total_memory / 2**30, 1)}  # fmt: skip
        khz, bits = getattr(known, "memory_clock_rate", 0), getattr(known, "memory_bus_width", 0)
        if khz > 0 and bits > 0:  # two transfers a cycle
            found["bandwidth_gb_s"] = round(2 * khz * bits / 8 / 1e6)
    best: dict[str, float] = {}
    for row in rows:
        for name, rate in rates(row).items():
            if name not in found:
                best[name] = max(best.get(name, 0.0), rate)
    return found | {name: f"{rate:.4g}" for name, rate in best.items()}, [*best]


def write(path: Path, columns: list[str], rows: list[Row]) -> None:
    """The whole table; nothing where that fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    """The command's options; exit 2 for one that cannot be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path, help="the table to write")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it takes at most")
    parser.add_argument("--name", help="the device's name; default: the GPU's")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "PyTorch finds no GPU; to try the script on a CPU: --device cpu\n")
    if not given.minutes > 0:
        parser.exit(2, f"expected --minutes above 0, got {given.minutes:g}\n")
    if not given.output.parent.is_dir():
        parser.exit(2, f"{given.output}: expected a folder that exists\n")
    return given


def summarize(bench: Bench, rows: list[Row], said: Counter[str]) -> None:
    """Print how many operations of each kind were timed, how far their rounds are apart, and remarks."""
    for kind, number in Counter(row["kind"] for row in rows).items():
        found = [row["times"] for row in rows if row["times"] and row["kind"] == kind]
        apart = [(max(times) - min(times)) / min(times) for times in found if len(times) > 1]
        line = f"{kind:27}{len(found):3} of {number} timed"
        line += f", rounds {statistics.median(apart):.1%} apart" if apart else ""
        line += ", outside a CUDA graph" if kind in bench.eager else ""
        print(line + (", expert by expert" if kind[:3] == "moe" and not bench.grouped else ""))
    if "fp8" not in bench.numbers:
        print("gemm fp8: not on this device")
    for line in filter(None, +said):
        print(f"{line} ({said[line]})" if said[line] > 1 else line)


def main() -> int:
    """Times, writes, says what was left out and what comes next."""
    given = options()
    begun, on_gpu = time.monotonic(), given.device == "cuda"
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(torch.get_num_threads() if on_gpu else 1)
    device = torch.device(given.device, 0)
    title = torch.cuda.get_device_name(device) if on_gpu else "CPU"
    short = re.sub(r"\W+", "-", re.sub("NVIDIA |GeForce ", "", title)).lower()
    name, sizes, end = given.name or short, LARGE if on_gpu else TINY, begun + 60 * given.minutes
    bench = Bench(device, min(2**33, torch.cuda.mem_get_info(device)[0] // 4) if on_gpu else 2**25)
    numbers = bench.numbers["bfloat16"].numel()
    rows: list[Row] = [
        drawn(op, sizes, numbers) | {"op": op, "dtype": dtype, "kind": f"{op} {dtype}", "times": []}
        for (op, dtype), number in sizes.numbers.items()
        for _ in range(number * (dtype in bench.numbers))
    ]
    tell(f"{title}: {len(rows)} operations in at most {given.minutes:g} minutes")
    timed: list[Row] = []
    said: Counter[str] = Counter()
    stopped = False
    try:
        for gpus in [n for n in (2, 4, 8, 16) if on_gpu and n <= torch.cuda.device_count()]:
            late = begun + REDUCING * (end - begun)
            said[reduced(gpus, given.device, ELEMENTS, late, timed)] += 1
        with torch.no_grad(), torch.cuda.stream(bench.stream):
            x, now = bench.new(2048, 2048), time.monotonic()
            while on_gpu and time.monotonic() < now + 1:  # the clock of the GPU goes up
                torch.mm(x, x)
                bench.wait()
            first = now + FIRST * (end - now)
            measure(bench, rows, [first] + [end] * (sizes.rounds - 1), said)
    except KeyboardInterrupt:
        stopped = True
        print("stopped by Ctrl-C")
    summarize(bench, rows, said)
    for row in filter(lambda row: row["times"], rows):
        timed.append(row | {"latency_ms": float(f"{statistics.median(row['times']):.5g}")})
    if not timed:
        tell("nothing was timed, nothing is written")
        return 130 if stopped else 1
    facts, guessed = facts_of(device, title, timed)
    sheet = given.output.with_name(f"{given.output.name.partition('.')[0]}-device.csv")
    write(given.output, COLUMNS, timed)
    write(sheet, FACTS, [{"device": name, **facts}])
    if guessed:
        print(f"in {sheet} the best that was timed, not a data sheet's: {', '.join(guessed)}")
    if not on_gpu:
        print("tiny operations on a CPU, to try the script: a model of them tells nothing")
    print(f"written: {given.output} ({len(timed)} operations) and {sheet}; next:")
    print(f"lolat fit {given.output} --facts {sheet} --device {name} --output {name}.json")
    return 130 if stopped else 0


if __name__ == "__main__":
    sys.exit(main())

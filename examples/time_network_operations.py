"""Time single operations on this machine's GPU (or CPU) with PyTorch: the table that `lolat fit` takes.

    python examples/time_network_operations.py operations.csv [--rows 200] [--precision float32]
    lolat fit operations.csv --output mygpu.json

The operations have random sizes as in networks: a third are dense layers, a third products of two
tensors, the others convolutions, norms, softmax and element-wise operations. Each is warmed up and
timed some 20 times; the fastest half is averaged. A row is written as soon as it is timed.
Needs PyTorch alone; 200 rows take a minute or two.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import time
from collections.abc import Callable

import torch
from torch.nn import functional as f

COLUMNS = [
    "op", "batch", "m", "n", "k", "in_channels", "out_channels", "kernel", "input_size", "stride",
    "padding", "groups", "rows", "width", "precision", "channels_last", "latency_ms",
]  # fmt: skip
LARGEST = 2**28  # elements of a tensor: 1 GiB
RUNS, WARM = 20, 3


def size(low: int, high: int, of: int = 1) -> int:
    """A size between two, as likely in each decade, a multiple of `of`."""
    return max(of, round(math.exp(random.uniform(math.log(low), math.log(high))) / of) * of)


def drawn(number: int) -> dict[str, int | str]:
    """The sizes of one operation: of the kind that stands at `number`."""
    kind = ("linear", "bmm", ("conv", "softmax", "ln", "gelu", "add", "mul")[number // 3 % 6])[
        number % 3
    ]
    if kind == "linear":
        found = {
            "batch": size(1, 64),
            "m": size(1, 1024),
            "n": size(64, 8192, 8),
            "k": size(64, 8192, 8),
        }
    elif kind == "bmm":
        found = {
            "batch": size(8, 512),
            "m": size(32, 1024),
            "n": size(32, 1024),
            "k": size(32, 1024),
        }
    elif kind == "conv":
        kernel = random.choice((1, 3, 3, 5, 7))
        found = {
            "batch": size(1, 64), "in_channels": size(16, 1024, 8), "out_channels": size(16, 1024, 8),
            "kernel": kernel, "input_size": size(7, 112), "stride": random.choice((1, 1, 2)),
            "padding": kernel // 2, "groups": 1,
        }  # fmt: skip
        if random.random() < 0.3:  # depthwise
            found["out_channels"] = found["groups"] = found["in_channels"]
    else:
        found = {"rows": size(64, 65536), "width": size(64, 16384, 8)}
    return {"op": kind, **found}


def call(row: dict[str, int | str], device: str) -> Callable[[], object]:
    """What is timed; its operands are on the device already."""
    dtype = getattr(torch, str(row["precision"]))
    layout = torch.channels_last if row["channels_last"] == "yes" else torch.contiguous_format

    def tensor(*shape: int | str) -> torch.Tensor:
        if math.prod(map(int, shape)) > LARGEST:
            raise MemoryError
        x = torch.randn(*map(int, shape), device=device, dtype=dtype)
        return x.to(memory_format=layout) if x.dim() == 4 else x

    kind = row["op"]
    if kind == "linear":
        x, w = tensor(row["batch"], row["m"], row["n"]), tensor(row["k"], row["n"])
        b = tensor(row["k"])
        return lambda: f.linear(x, w, b)
    if kind == "bmm":
        x, y = tensor(row["batch"], row["m"], row["n"]), tensor(row["batch"], row["n"], row["k"])
        return lambda: torch.bmm(x, y)
    if kind == "conv":
        x = tensor(row["batch"], row["in_channels"], row["input_size"], row["input_size"])
        stride, padding, groups = int(row["stride"]), int(row["padding"]), int(row["groups"])
        w = tensor(
            row["out_channels"], int(row["in_channels"]) // groups, row["kernel"], row["kernel"]
        )
        return lambda: f.conv2d(x, w, stride=stride, padding=padding, groups=groups)
    x = tensor(row["rows"], row["width"])
    if kind in ("add", "mul"):
        y, of = tensor(row["rows"], row["width"]), getattr(torch, str(kind))
        return lambda: of(x, y)
    if kind == "ln":
        return lambda: f.layer_norm(x, x.shape[-1:])
    if kind == "softmax":
        return lambda: torch.softmax(x, -1)
    return lambda: f.gelu(x)


def timed(run: Callable[[], object], device: str) -> float:
    """Milliseconds of one call: the mean of the fastest half of RUNS."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    found = []
    for i in range(WARM + RUNS):
        wait()
        begun = time.perf_counter()
        run()
        wait()
        if i >= WARM:
            found.append((time.perf_counter() - begun) * 1e3)
    fastest = sorted(found)[: RUNS // 2]
    return sum(fastest) / len(fastest)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--precision", default="float32", choices=("float32", "float16", "bfloat16")
    )
    parser.add_argument("--channels-last", action="store_true", help="how images lie in memory")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random.seed(given.seed)
    with open(given.output, "w", newline="") as file, torch.no_grad():
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        layout = "yes" if given.channels_last else "no"
        for number in range(given.rows):
            row = {**drawn(number), "precision": given.precision, "channels_last": layout}
            try:
                ms = timed(call(row, given.device), given.device)
            except (MemoryError, torch.OutOfMemoryError):
                continue
            writer.writerow({**row, "latency_ms": f"{ms:.6f}"})
            file.flush()
    print(f"written: {given.output}; next: lolat fit {given.output} --output mygpu.json")


if __name__ == "__main__":
    main()

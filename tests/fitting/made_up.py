"""A GPU that never was, whose times are known, and tables of operations timed on it."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

MULTIPROCESSORS = 40
MACS_PER_MS, BYTES_PER_MS = 4e9, 4e8
LAUNCH_MS = 0.02
FACTS = "device,multiprocessors,fp32_matrix_gflops,bandwidth_gb_s\ndesk,40,9400,500\n"
COLUMNS = "op,batch,m,n,k,rows,width,latency_ms"


def product_ms(number: float, rows: float, columns: float, depth: float) -> float:
    """Tiles of 64 x 64 in whole waves, or the bytes; by hand, float32."""
    tiles = number * math.ceil(rows / 64) * math.ceil(columns / 64)
    waves = math.ceil(tiles / MULTIPROCESSORS)
    computing = waves * MULTIPROCESSORS * 64 * 64 * depth / MACS_PER_MS
    moving = 4 * number * (rows * depth + depth * columns + rows * columns) / BYTES_PER_MS
    return max(computing, moving)


LAUNCHES = {"add": 1.0, "softmax": 1.49, "ln": 1.49, "bmm": 1.56, "linear": 2.05}
"""Launch of an operation timed alone over that of an addition, as NeuSight's shortest ones have it."""


def moves_ms(name: str, elements: float) -> float:
    return max(LAUNCHES[name] * LAUNCH_MS, 4 * elements / BYTES_PER_MS)


def rows(seed: int, number: int = 40) -> list[str]:
    """Lines of a table: as many linear and bmm, half as many additions, softmax, layer norms."""
    draw = random.Random(seed)

    def size(low: int, high: int) -> int:
        return 32 * round(2 ** draw.uniform(math.log2(low), math.log2(high)) / 32) or 32

    found = []
    for _ in range(number):
        b, m, n, k = draw.randint(1, 16), size(64, 2048), size(64, 4096), size(64, 4096)
        ms = LAUNCHES["linear"] * LAUNCH_MS + product_ms(1, b * m, k, n)
        found.append(f"linear,{b},{m},{n},{k},,,{ms:.6f}")
        b, m, n, k = draw.randint(8, 256), size(64, 512), size(64, 512), size(64, 512)
        ms = LAUNCHES["bmm"] * LAUNCH_MS + product_ms(b, m, k, n)
        found.append(f"bmm,{b},{m},{n},{k},,,{ms:.6f}")
    for name, tensors in (("add", 3), ("softmax", 2), ("ln", 2)):
        for _ in range(number // 2):
            r, w = draw.randint(16, 16384), size(64, 4096)
            found.append(f"{name},,,,,{r},{w},{moves_ms(name, tensors * r * w):.6f}")
    return found


def write_tables(folder: Path, seed: int = 1) -> tuple[Path, Path]:
    """(operations, facts) as files."""
    operations, facts = folder / "operations.csv", folder / "devices.csv"
    operations.write_text("\n".join([COLUMNS, *rows(seed)]) + "\n")
    facts.write_text(FACTS)
    return operations, facts


def encoder() -> Any:
    """A PyTorch network of tokens: an embedding, two times two dense layers, each with a norm and relu."""
    import torch

    half = [
        torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512),
    ]  # fmt: skip
    again = [
        torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512),
    ]  # fmt: skip
    return torch.nn.Sequential(torch.nn.Embedding(1000, 512), *half, *again)

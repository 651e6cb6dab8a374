"""Devices made up for tests: latencies from the text of a network, by the plainest code."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
PHONE = {
    "none": 0.4,
    "skip_connect": 0.0,
    "nor_conv_1x1": 2.0,
    "nor_conv_3x3": 6.5,
    "avg_pool_3x3": 1.2,
}
FIXED = 5.0
PATHS = ((0, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3))


def cell(operations: Sequence[str]) -> str:
    """The text of a cell, written out."""
    a, b, c, d, e, f = operations
    return f"|{a}~0|+|{b}~0|{c}~1|+|{d}~0|{e}~1|{f}~2|"


def edges(arch: str) -> dict[tuple[int, int], str]:
    """The operation on each edge, read character by character rather than looked up."""
    found = {}
    for node, part in enumerate(arch.split("+"), start=1):
        for item in part.strip("|").split("|"):
            operation, begin = item.split("~")
            found[int(begin), node] = operation
    return found


def everything(arch: str) -> float:
    """Latency of a device that executes all operations."""
    return FIXED + sum(PHONE[operation] for operation in edges(arch).values())


def needed_edges(arch: str) -> set[tuple[int, int]]:
    """Edges on a path to the output that no `none` interrupts behind them."""
    on = edges(arch)
    found = set()
    for path in PATHS:
        steps = list(pairwise(path))
        for place in range(len(steps)):
            if all(on[step] != "none" for step in steps[place:]):
                found.add(steps[place])
    return found


def folded_edges(arch: str) -> set[tuple[int, int]]:
    """Convolutions that alone make a node's value which is then multiplied by zero."""
    on = edges(arch)
    into_second = [edge for edge in ((0, 2), (1, 2)) if on[edge] != "none"]
    if on[1, 2] == "skip_connect" and on[0, 1] == "none":
        into_second = [edge for edge in into_second if edge != (1, 2)]
    found = set()
    if on[2, 3] == "none" and len(into_second) == 1 and "conv" in on[into_second[0]]:
        found.add(into_second[0])
        if into_second[0] == (1, 2) and on[0, 1] != "none":
            found.add((0, 1))
    nothing_else = on[0, 2] == "none" and on[1, 2] in ("none", "skip_connect")
    if "conv" in on[0, 1] and on[1, 3] == "none" and (on[2, 3] != "none" or nothing_else):
        found.add((0, 1))
    return found


def only_needed(arch: str) -> float:
    """Latency of a device that removes what the output does not need, where it can."""
    on = edges(arch)
    return 1.5 + sum(PHONE[on[edge]] for edge in needed_edges(arch) | folded_edges(arch))


def some_cells(count: int, seed: int = 0) -> list[str]:
    """Different cells at random."""
    chance = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[cell(chance.choices(OPERATIONS, k=6))] = None
    return list(found)


def write_samples(
    path: Path, archs: Sequence[str], device: Callable[[str], float] = everything
) -> Path:
    """A table of samples of a device."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arch", "latency_ms"])
        writer.writerows([arch, f"{device(arch):.5f}"] for arch in archs)
    return path

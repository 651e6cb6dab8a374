"""Memory that is freed stays with the process, so that the next call finds it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from microbench.backends import torch as torch_memory

PROGRAM = """
import resource, sys
import numpy as np
from microbench.backends.torch import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def call():  # 64 MiB, more than the C library ever keeps by itself
    np.empty(2**23).fill(1.0)
call()
before = faults()
for _ in range(4):
    call()
print(kept, (faults() - before) / 4)
"""


def faults_per_call(how: str) -> tuple[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, float(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a switch of Linux' C library")
def test_memory_that_was_freed_is_not_fetched_again() -> None:
    _, without = faults_per_call("leave")
    kept, with_switch = faults_per_call("keep")
    if kept == "False":
        pytest.skip("a C library without the switch")
    # Pages are of 4 KiB, or of 2 MiB where the system hands out huge ones.
    assert without >= 64 / 2
    assert with_switch < without / 10


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_nothing_is_switched(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(torch_memory.sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("asked for the C library"))
    assert torch_memory.keep_freed_memory() is False


def test_a_c_library_without_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_memory.sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert torch_memory.keep_freed_memory() is False

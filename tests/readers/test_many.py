"""Many networks read at once: equal to reading each, and what goes wrong costs one network alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat import readers
from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.readers import apart, many
from lolat.readers.cache import Cache
from lolat.readers.many import arrays_of
from tests.processes import is_running, wait_until
from tests.readers.onnx_networks import model, node, saved

ROOT = Path(__file__).parents[2]
NAME = "lolat_many_nets"
FILES = [(f"{name}.onnx", 8) for name in "abcd"]
# Says torch, and so spares its networks the import of Keras.
MODULE = """
import ctypes, os, signal, sys, time
from pathlib import Path
import numpy as np

LOG = Path(__file__).with_name("log")

def log(text):
    with open(LOG, "a") as file:
        file.write(f"{text}\\n")

def sleeps():
    log(os.getpid())
    time.sleep(100)

def dies():
    os._exit(0)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def hungry():
    return np.ones(2**28)

def leaves():
    raise SystemExit(0)

def good():
    import torch
    print("building")
    os.write(1, b"noise")
    log(os.getpid())
    return torch.nn.Linear(3, 4)
"""
SCRIPT = """
import sys
from pathlib import Path
import lolat_many_nets as nets
import numpy as np
from lolat.readers.cache import Cache
from lolat.readers.many import arrays_of

specs = [("a.onnx", 8), *((f"lolat_many_nets:{name}", None) for name in ("sleeps", "sleeps.__call__"))]
try:
    for _ in arrays_of(specs, "a", lambda graph: np.ones(1), Cache(Path("cache")), processes=2):
        pass
except KeyboardInterrupt:
    sys.exit(130)
"""


def sizes(graph: Graph) -> np.ndarray:
    return np.array([t.elements() for t in graph.tensors])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module and four networks, a.onnx to d.onnx, of one to four channels."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    for i, name in enumerate("abcd", start=1):
        nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node("Relu", "h", "y")]
        open_size = ("N", 3, "H", "W")
        saved(tmp_path, model(nodes, open_size, w=(i, 3, 3, 3)), f"{name}.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(NAME, None)


@pytest.fixture
def kept(here: Path) -> Cache:
    return Cache(here / "cache")


def logged(here: Path) -> list[str]:
    return (here / "log").read_text().split() if (here / "log").exists() else []


def pids(here: Path) -> list[int]:
    """Of the processes, which they have logged."""
    return [int(word) for word in logged(here) if word.isdigit()]


def are_gone(here: Path) -> None:
    wait_until(lambda: not any(map(is_running, pids(here))), 10, "the end of the processes")


def direct(spec: str, size: Any = None) -> np.ndarray:
    return np.array([t.elements() for t in readers.read(spec, size).tensors])


def all_read(found: dict[Any, Any]) -> bool:
    """Whether the arrays of the files are all there."""
    return all(np.array_equal(found[a], direct(*a)) for a in FILES)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(apart, "Child", refuse)


def test_arrays_are_those_of_each_network(kept: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, int, str]] = []
    asked, say = [*FILES, ("a.onnx", 16), FILES[0]], lambda *words: said.append(words)
    found = list(arrays_of(asked, "sizes", sizes, kept, processes=2, said=say))
    assert len(found) == 5  # each once
    assert {a for a, _ in found} == set(asked)
    for (spec, size), array in found:
        assert np.array_equal(array, direct(spec, size)), (spec, size)
        assert kept.graph(spec, size) == readers.read(spec, size)
        assert np.array_equal(kept.array(spec, size, "sizes"), array)
    assert said == [(i, 5, spec) for i, ((spec, _), _) in enumerate(found, start=1)]


@pytest.mark.usefixtures("no_processes")
def test_arrays_of_the_cache_come_first_and_one_network_is_read_here(kept: Cache) -> None:
    list(arrays_of(FILES[2:], "sizes", sizes, kept, processes=1))
    found = arrays_of(FILES, "sizes", sizes, kept, processes=2)
    assert [next(found)[0], next(found)[0]] == FILES[2:]
    with pytest.raises(AssertionError, match="a process was started"):
        next(found)
    assert [spec for spec, _ in arrays_of(FILES[1:], "sizes", sizes, kept)] == [
        *FILES[2:],
        FILES[1],
    ]
    assert list(arrays_of([], "sizes", sizes, kept)) == []


def test_a_network_that_cannot_be_read_costs_itself_alone(kept: Cache) -> None:
    bad = [("gone.onnx", None), ("a.onnx", "big"), (f"{NAME}:none", None), (f"{NAME}:leaves", 3)]
    for processes in (2, 1):
        found = dict(arrays_of([*FILES, *bad], "sizes", sizes, kept, processes=processes))
        assert set(found) == {*FILES, *bad}
        for spec in bad:
            assert isinstance(found[spec], InputError)
            assert found[spec].__traceback__ is None  # its frames would hold on to the network
        assert all_read(found)


def test_errors_of_the_function(kept: Cache) -> None:
    def unknown(graph: Graph) -> np.ndarray:
        raise NetworkError(f"{graph.name} has no such thing")

    def wrong(graph: Graph) -> np.ndarray:
        raise KeyError("wrong")

    found = dict(arrays_of(FILES, "sizes", unknown, kept, processes=1))
    assert {str(error) for error in found.values()} == {f"{n} has no such thing" for n in "abcd"}
    with pytest.raises(KeyError, match="wrong"):
        list(arrays_of(FILES, "sizes", wrong, kept, processes=1))


# ---- Limits, and children that die


def test_limits_and_deaths_cost_their_networks_alone(kept: Cache) -> None:
    names = ("sleeps", "dies", "killed", "hungry")
    bad = [(f"{NAME}:{name}", None) for name in names]
    asked = [*bad, *FILES]
    found = dict(arrays_of(asked, "sizes", sizes, kept, processes=2, limit_s=15, memory_gib=1))
    assert all(isinstance(found[spec], NetworkError) for spec in bad)
    assert "within 15 s" in str(found[bad[0]])
    assert "1 GiB" in str(found[bad[3]])
    assert all_read(found)


def test_children_are_renewed_and_have_one_thread_and_a_quiet_stdout(
    kept: Cache, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "RENEWED", 2)
    asked = [(f"{NAME}:good", (n,)) for n in (3, (4, 3), (5, 3), (6, 3), (7, 3))]
    found = dict(arrays_of(asked, "sizes", sizes, kept, processes=2))
    assert all(isinstance(array, np.ndarray) for array in found.values())
    used = pids(here)
    assert max(used.count(pid) for pid in used) <= 2
    assert (
        many._ENVIRONMENT.items() >= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}.items()
    )
    written = capfd.readouterr()
    assert written.out == ""
    assert "building" in written.err
    assert "noise" in written.err
    are_gone(here)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_child_is_left_of_a_run_that_ends(kept: Cache, here: Path, number: int) -> None:
    """By Ctrl-C or by a kill; the arrays that were made are kept."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "script.py"], cwd=here, env=environment)
    try:
        wait_until(lambda: len(pids(here)) >= 2, 60, "two children")
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else -number)
    finally:
        process.kill()
    are_gone(here)
    assert kept.array("a.onnx", 8, "a") is not None


def test_a_caller_that_stops_asking_leaves_no_child(kept: Cache, here: Path) -> None:
    asked = [FILES[0], (f"{NAME}:sleeps", None), (f"{NAME}:sleeps", 3)]
    found = arrays_of(asked, "sizes", sizes, kept, processes=2)
    next(found)
    wait_until(lambda: len(pids(here)) >= 1, 60, "a child")
    found.close()
    are_gone(here)

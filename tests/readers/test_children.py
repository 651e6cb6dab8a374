"""Networks read by child processes: as in this process, and what goes wrong costs one network alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from lolat import readers
from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.readers import children
from lolat.readers.cache import Cache
from lolat.readers.children import Spec, arrays_of, read_in_child
from tests.processes import PATIENCE_S, is_running, wait_until
from tests.readers.onnx_networks import model, node, saved

NAME = "lolat_nets"
FILES: list[Spec] = [(f"{name}.onnx", 8) for name in "abcd"]
MODULE = """
import os, signal, time
from pathlib import Path

def sleeps():
    with open(Path(__file__).with_name("log"), "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)

def leaves():
    os._exit(0)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def raises():
    raise KeyError("x")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the module and four networks, a.onnx to d.onnx, of one to four channels."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    for i, name in enumerate("abcd", start=1):
        nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node("Relu", "h", "y")]
        saved(tmp_path, model(nodes, ("N", 3, "H", "W"), w=(i, 3, 3, 3)), f"{name}.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LOLAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(children, "default_processes", lambda: 2)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return tmp_path


def sizes(graph: Graph) -> np.ndarray:
    return np.array([t.elements() for t in graph.tensors])


def direct(spec: Spec) -> np.ndarray:
    return sizes(readers.open_network(spec[0], (spec[1],)).graph())


def test_a_network_read_by_a_child_is_the_same() -> None:
    assert read_in_child("a.onnx", (8,)) == readers.open_network("a.onnx", (8,)).graph()


@pytest.mark.parametrize(
    ("network", "said"),
    [("gone.onnx", "gone.onnx"), (f"{NAME}:leaves", "exited with code 0"), (f"{NAME}:raises", "KeyError"),
     (f"{NAME}:sleeps", "within 9 s")],
)  # fmt: skip
def test_a_network_that_a_child_cannot_read(here: Path, network: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        read_in_child(network, limit_s=9 if "sleeps" in network else PATIENCE_S)
    if (here / "log").exists():
        assert not is_running(int((here / "log").read_text()))


def test_arrays_are_those_of_each_network(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, int, str]] = []
    specs: list[Spec] = [*FILES, ("a.onnx", 16)]
    arrays = list(arrays_of(specs, "sizes", sizes, lambda *words: said.append(words)))
    assert {spec for spec, _ in arrays} == set(specs)
    for spec, array in arrays:
        assert np.array_equal(array, direct(spec))
        assert np.array_equal(Cache().array(*spec, "sizes"), array)
    assert said == [(i, 5, spec) for i, ((spec, _), _) in enumerate(arrays, start=1)]


def test_arrays_on_disk_come_first_and_one_network_is_read_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "Child", None)
    for spec in FILES[2:]:
        assert len(list(arrays_of([spec], "sizes", sizes))) == 1
    arrays = arrays_of(FILES, "sizes", sizes)
    assert [next(arrays)[0], next(arrays)[0]] == FILES[2:]
    assert [spec for spec, _ in arrays_of(FILES[1:], "sizes", sizes)] == [*FILES[2:], FILES[1]]


def test_what_goes_wrong_costs_its_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = children._answer

    def impatient(child: Any, spec: str, size: Any, limit_s: float) -> Graph:
        return answer(child, spec, size, 9 if "sleeps" in spec else limit_s)

    monkeypatch.setattr(children, "_answer", impatient)
    names = (f"{NAME}:sleeps", f"{NAME}:leaves", f"{NAME}:killed", "gone.onnx")
    arrays = dict(arrays_of([*((name, None) for name in names), *FILES], "sizes", sizes))
    for name in names:
        error = arrays[name, None]
        assert isinstance(error, NetworkError)
        assert error.__traceback__ is None  # its frames would hold on to the network
    assert all(np.array_equal(arrays[spec], direct(spec)) for spec in FILES)


def test_errors_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(graph: Graph) -> np.ndarray:
        raise NetworkError(f"{graph.name} has no such thing")

    def wrong(graph: Graph) -> np.ndarray:
        raise KeyError("wrong")

    monkeypatch.setattr(children, "default_processes", lambda: 1)
    arrays = dict(arrays_of(FILES, "sizes", unknown))
    assert {str(error) for error in arrays.values()} == {f"{n} has no such thing" for n in "abcd"}
    with pytest.raises(KeyError, match="wrong"):
        list(arrays_of(FILES, "sizes", wrong))


def test_a_caller_that_stops_asking_leaves_no_child(here: Path) -> None:
    specs = [FILES[0], (f"{NAME}:sleeps", None), (f"{NAME}:sleeps", 3)]
    arrays = arrays_of(specs, "sizes", sizes)
    next(arrays)
    wait_until(lambda: (here / "log").exists(), "a child")
    arrays.close()
    pids = [int(word) for word in (here / "log").read_text().split()]
    wait_until(lambda: not any(map(is_running, pids)), "the end of the children")
    assert os.getpid() not in pids

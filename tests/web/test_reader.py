"""The process that reads networks: a real one, with real files, and what it survives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("keras")

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.readers import apart
from lolat.web.networks import Reader
from tests.processes import is_running, wait_until

SMALL = "generate:fc?layers=8&input=4"


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    found = Reader()
    yield found
    found.close()


@pytest.fixture
def bare() -> Iterator[Reader]:
    """One that has no framework to load."""
    found = Reader(ending="")
    found.start()
    yield found
    found.close()


def keras_file(path: Path) -> Path:
    import keras

    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu")]).save(path)
    return path


def onnx_file(path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    values = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 3, 8, 8]) for n in "xy"
    ]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:])), path
    )
    return path


def test_networks_of_every_kind(reader: Reader, tmp_path: Path) -> None:
    made = reader.read(SMALL)
    assert isinstance(made, Graph)
    assert [o.kind for o in made.operations].count("dense") == 2
    assert reader.read("keras:MobileNet", (32,)).tensors[0].shape == (1, 32, 32, 3)
    kinds = [o.kind for o in reader.read(str(keras_file(tmp_path / "n.keras"))).operations]
    assert kinds == ["dense", "relu"]
    found = reader.read(str(onnx_file(tmp_path / "n.onnx")))
    assert [o.kind for o in found.operations] == ["relu"]


def test_what_the_library_refuses_is_said(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="did you mean keras:ResNet50"):
        reader.read("keras:ResNet5O")
    bad = tmp_path / "n.onnx"
    bad.write_bytes(b"these are words, not a network\n" * 5)
    with pytest.raises(NetworkError, match=r"n\.onnx"):
        reader.read(str(bad))
    half = tmp_path / "h.onnx"
    half.write_bytes(onnx_file(tmp_path / "n.onnx").read_bytes()[:-20])
    with pytest.raises(NetworkError):
        reader.read(str(half))


def test_a_process_that_dies_is_replaced(bare: Reader, tmp_path: Path) -> None:
    first = bare.start()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not first.is_running(), 30, "its end")
    assert bare.read(str(onnx_file(tmp_path / "n.onnx"))).operations
    assert bare.start().pid != first.pid


def test_one_that_takes_too_long_is_ended(bare: Reader) -> None:
    stopped = bare.start().pid
    os.kill(stopped, signal.SIGSTOP)
    bare.limit_s = 0.3
    with pytest.raises(NetworkError, match=r"within 0\.3 s"):
        bare.read(SMALL)
    assert not is_running(stopped)


def test_a_reader_that_is_closed_reads_nothing() -> None:
    closed = Reader()
    closed.close()
    with pytest.raises(NetworkError, match="read no more"):
        closed.read(SMALL)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "reading it needs more than 2 GiB of memory"),
        (RecursionError(), "nested too deeply"),
        (KeyError("x"), "it cannot be read (KeyError)"),
        (NetworkError("no such network"), "no such network"),
    ],
)
def test_whatever_a_framework_raises_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def read(*_: object) -> Graph:
        raise error

    monkeypatch.setattr("lolat.readers.open_network", read)
    with pytest.raises(NetworkError) as caught:
        apart.answer({"network": "n", "size": []})
    assert said in str(caught.value)

"""Networks that are kept, each read once; and networks that are really read, by a process of their own."""

from __future__ import annotations

import threading
from io import BytesIO
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.web import networks
from lolat.web.networks import Networks
from tests.processes import PATIENCE_S
from tests.web.pages import FakeReader


def test_two_who_ask_at_once_have_it_read_once() -> None:
    reader = FakeReader()
    cache = Networks(reader.read)
    reader.go.clear()
    found: list[Graph] = []
    asking = [threading.Thread(target=lambda: found.append(cache.get("keras:A"))) for _ in "ab"]
    for thread in asking:
        thread.start()
    reader.go.set()
    for thread in asking:
        thread.join(PATIENCE_S)
    assert found[0] is found[1]
    cache.get("keras:A", (64,))
    assert reader.calls == [("keras:A", ()), ("keras:A", (64,))]


def test_a_file_that_went_has_to_be_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "MOST_KEPT", 3)
    cache = Networks(FakeReader().read)
    spec = cache.put(BytesIO(b"abc"), "x.onnx")
    assert cache.get(spec).name == "x"
    for name in "ABC":
        cache.get(f"keras:{name}")
    with pytest.raises(NetworkError, match="give the file again"):
        cache.get(spec)


def keras_file(path: Path) -> Path:
    keras = pytest.importorskip("keras")
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu")]).save(path)
    return path


def onnx_file(path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    values = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 3, 8, 8]) for n in "xy"
    ]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def test_files_and_names_are_read(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    cache = Networks()
    assert cache.get("keras:MobileNet", (33,)).tensors[0].shape == (1, 33, 33, 3)
    keras, onnx = keras_file(tmp_path / "n.keras"), onnx_file(tmp_path / "n.onnx")
    for path, kinds in ((keras, ["dense", "relu"]), (onnx, ["relu"])):
        spec = cache.put(BytesIO(path.read_bytes()), path.name)
        assert [o.kind for o in cache.get(spec).operations] == kinds
    with pytest.raises(NetworkError, match=r"half\.onnx"):
        cache.put(BytesIO(onnx.read_bytes()[:-20]), "half.onnx")

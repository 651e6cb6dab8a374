"""Networks that are really read: by name and from files, by a process of their own."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("keras")

from lolat.errors import NetworkError
from lolat.web.networks import NetworkCache, NetworkKey


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
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def test_networks_of_every_kind(tmp_path: Path) -> None:
    cache = NetworkCache()
    found = cache.get(NetworkKey("keras:MobileNet", (33,))).graph
    assert found.tensors[0].shape == (1, 33, 33, 3)
    keras, onnx = keras_file(tmp_path / "n.keras"), onnx_file(tmp_path / "n.onnx")
    for path, kinds in ((keras, ["dense", "relu"]), (onnx, ["relu"])):
        key = cache.put_file(BytesIO(path.read_bytes()), path.name)
        assert [o.kind for o in cache.get(key).graph.operations] == kinds


def test_the_reason_of_a_refusal_names_the_file_as_the_user_does(tmp_path: Path) -> None:
    cache, half = NetworkCache(), onnx_file(tmp_path / "n.onnx").read_bytes()[:-20]
    with pytest.raises(NetworkError, match="did you mean keras:ResNet50"):
        cache.get(NetworkKey("keras:ResNet5O"))
    for content in (b"these are words, not a network\n" * 5, half):
        with pytest.raises(NetworkError, match=r"half\.onnx"):
            cache.put_file(BytesIO(content), "half.onnx")

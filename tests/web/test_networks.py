"""Networks that are kept, each read once; and networks that are really read, by a process of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from lolat.errors import InputError, NetworkError
from lolat.readers import children
from lolat.readers.bundled import bundled_networks
from lolat.readers.size import Size
from lolat.web import networks
from lolat.web.networks import NetworkCache
from lolat.web.values import spec_of
from tests.processes import PATIENCE_S, wait_until
from tests.web.pages import FakeReader


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


@pytest.fixture
def cache(reader: FakeReader) -> NetworkCache:
    return NetworkCache(reader.read)


def test_one_is_read_at_a_time_and_each_once(reader: FakeReader, cache: NetworkCache) -> None:
    reader.go.clear()
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(cache.get, f"keras:{name}") for name in "ABBA"]
        wait_until(lambda: len(reader.calls) == 1, "the start of reading")
        assert cache.get("keras:ResNet50").name == "ResNet50"  # a bundled one waits for nobody
        assert len(reader.calls) == 1
        reader.go.set()
        first, second, third, fourth = (one.result(PATIENCE_S) for one in asked)
    assert first is fourth
    assert second is third
    cache.get("keras:A", Size((64,)))
    assert sorted(reader.calls) == [("keras:A", ()), ("keras:A", (64,)), ("keras:B", ())]


def test_a_file_that_went_has_to_be_given_again(
    cache: NetworkCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "MOST_KEPT", 3)
    monkeypatch.setattr(networks, "MOST_BYTES", 6)
    spec, other = (cache.put(BytesIO(content), "x.onnx") for content in (b"abc", b"defg"))
    assert cache.get(spec).name == "x"  # its graph is there
    for name in "ABC":
        cache.get(f"keras:{name}")
    assert cache.get(other, Size((64,))).name == "x"
    with pytest.raises(NetworkError, match="give the file again"):
        cache.get(spec)


def test_a_misspelled_name_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """All names of keras.applications are known without it; those that it has are read."""

    def start() -> None:
        raise AssertionError("a process")

    monkeypatch.setattr(children, "_child", start)
    with pytest.raises(NetworkError, match=r"did you mean .*keras:ResNet50"):
        NetworkCache().get("keras:ResNet5")
    with pytest.raises(AssertionError, match="a process"):
        NetworkCache().get("keras:resnet50", Size((333,)))


def test_the_bundled_names_are_all_of_keras() -> None:
    applications = pytest.importorskip("keras").applications
    names = {f"keras:{n}" for n in dir(applications) if n[0].isupper()}
    assert names == {n for n in bundled_networks() if n.startswith("keras:")}


def keras_file(path: Path) -> Path:
    keras = pytest.importorskip("keras")
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu")]).save(path)
    return path


def onnx_file(path: Path, side: int | str = 8, length: str = "") -> Path:
    """A ReLU of images of a side, or with a name in its place of any; with a `length` one of texts too."""
    onnx = pytest.importorskip("onnx")
    shapes = {"x": [1, 3, side, side]} | ({"text": [1, length, 4]} if length else {})
    info, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    values = [[info(end + n, kind, s) for n, s in shapes.items()] for end in ("", "y_")]
    nodes = [onnx.helper.make_node("Relu", [n], [f"y_{n}"]) for n in shapes]
    graph = onnx.helper.make_graph(nodes, "g", *values)
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def test_files_and_names_are_read(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    cache = NetworkCache()
    assert cache.get("keras:MobileNet", Size((33,))).tensors[0].shape == (1, 33, 33, 3)
    keras, onnx = keras_file(tmp_path / "n.keras"), onnx_file(tmp_path / "n.onnx")
    for path, kinds in ((keras, ["dense", "relu"]), (onnx, ["relu"])):
        spec = cache.put(BytesIO(path.read_bytes()), path.name)
        assert [o.kind for o in cache.get(spec).operations] == kinds
    with pytest.raises(NetworkError, match=r"half\.onnx"):
        cache.put(BytesIO(onnx.read_bytes()[:-20]), "half.onnx")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen3-8b", "is a language model; the two tabs of language models answer"),
        ("vit_b_16", "in front, timm:vit_b_16 or torchvision:vit_b_16"),
    ],
)
def test_a_name_of_another_kind_says_where_it_belongs(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        spec_of(name)

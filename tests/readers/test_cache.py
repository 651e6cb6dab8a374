"""Networks kept on disk: equal to what was read, found while all that they depend on is the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from lolat.errors import LolatError, MissingPackageError
from lolat.graph import Graph
from lolat.readers import bundled
from lolat.readers import cache as module
from lolat.readers import reading as readers
from lolat.readers.bundled import bundled_graph
from lolat.readers.cache import Cache
from tests.readers.onnx_networks import model, node, saved


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def network(folder: Path, name: str = "net.onnx", op: str = "Relu") -> str:
    """The path of a network of a convolution and an activation."""
    folder.mkdir(exist_ok=True)
    nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node(op, "h", "y")]
    return saved(folder, model(nodes, w=(4, 3, 3, 3)), name)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return network(tmp_path)


@pytest.fixture
def graph(spec: str) -> Graph:
    return replace(readers.read(spec), warnings=("the padding is not known",))


def never() -> Graph:
    raise AssertionError("read again")


def test_a_graph_comes_back_equal_with_its_warnings(cache: Cache, spec: str, graph: Graph) -> None:
    assert cache.read(spec, None, lambda: graph) is graph
    again = cache.read(spec, None, never)
    assert again == graph
    assert (again.warnings, again.framework) == (graph.warnings, "onnx")
    with pytest.raises(AssertionError):
        cache.read(spec, 64, never)


def test_a_string_is_read_once(tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, really = [], readers.open_network
    monkeypatch.setattr(
        readers, "open_network", lambda *words: (opened.append(words), really(*words))[1]
    )
    for folder, times in (("off", 4), (str(tmp_path / "own"), 6)):
        monkeypatch.setenv("LOLAT_CACHE", folder)
        for size in (None, (3, 8, 8), None, (3, 8, 8)):
            assert readers.read(spec, size).operations
        assert len(opened) == times


def test_an_array_comes_back_equal(cache: Cache, spec: str) -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    cache.put_array(spec, None, "work-amp", array)
    again = cache.array(spec, None, "work-amp")
    assert again is not None
    assert again.dtype == array.dtype
    assert np.array_equal(again, array)
    assert cache.array(spec, None, "work") is cache.array(spec, 32, "work-amp") is None


def test_a_damaged_file_is_not_there(cache: Cache, spec: str, graph: Graph) -> None:
    cache.read(spec, None, lambda: graph)
    cache.put_array(spec, None, "a", np.arange(40.0))
    for path in list(cache.folder.iterdir()) if cache.folder else []:
        path.write_bytes(path.read_bytes()[:-9])
    assert cache.array(spec, None, "a") is None
    assert cache.read(spec, None, lambda: graph) is graph  # read again, and kept
    assert cache.read(spec, None, never) == graph


def test_code_and_missing_files_have_no_key(cache: Cache, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    specs = ["nets:make", f"{gone}.onnx", f"{gone}.keras", f"transformers:{gone}.json", "resnet18"]
    assert {cache.key(spec) for spec in specs} == {None}


def test_classes_of_the_user_are_not_kept(cache: Cache, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    path = tmp_path / "net.keras"
    path.write_bytes(b"")
    assert cache.key(str(path)) is not None
    keras.saving.get_custom_objects()["Mine"] = object
    try:
        assert cache.key(str(path)) is None
    finally:
        del keras.saving.get_custom_objects()["Mine"]


def test_a_size_is_one_however_it_is_written(cache: Cache) -> None:
    assert len({cache.key("timm:a", size) for size in (32, (32,), [32], (np.int64(32),))}) == 1
    several = [None, 32, (3, 32), (3, 32, 32), [(3,), (32,)], [(3, 32)]]
    assert len({cache.key("timm:a", size) for size in several}) == len(several)


def test_a_file_is_known_by_its_content_and_name(cache: Cache, tmp_path: Path, spec: str) -> None:
    first = cache.key(spec)
    assert cache.key(network(tmp_path, op="Sigmoid")) != first
    assert cache.key(network(tmp_path)) == first
    assert cache.key(network(tmp_path / "elsewhere")) == first  # another checkout, say
    assert cache.key(network(tmp_path, "other.onnx")) != first  # as its graph's name
    config = tmp_path / "config.json"
    keys = set()
    for content in ("one", "two"):
        config.write_text(content)
        keys |= {cache.key(f"transformers:{config}{head}") for head in ("", "?AutoModel")}
    assert len(keys - {None}) == 4


@pytest.mark.parametrize("name", ["READERS", "FORMAT_VERSION", "__version__", "installed_version"])
def test_another_lolat_or_package_is_another_network(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = cache.key("timm:a")
    new = (lambda package: "1" * (package == "torch")) if "installed" in name else 10**6
    monkeypatch.setattr(module, name, new)
    assert cache.key("timm:a") != first


@pytest.mark.parametrize("setting", ["loaded", "file", "environment"])
def test_settings_of_keras_are_part_of_a_network(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str
) -> None:
    """The settings of Keras, its file or the environment; bundled networks have the usual ones."""
    keras = pytest.importorskip("keras")
    for reads in (module, bundled):  # whichever is installed here
        monkeypatch.setattr(reads, "installed_version", lambda _: "")
    first, other = cache.key("keras:VGG16"), cache.key("timm:a")
    assert bundled_graph("keras:VGG16") is not None
    if setting == "loaded":
        monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    else:
        monkeypatch.delitem(sys.modules, "keras")
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        assert cache.key("keras:VGG16") == first
        if setting == "file":
            (tmp_path / "keras.json").write_text('{"floatx": "float16"}')
        else:
            monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert cache.key("keras:VGG16") != first
    assert bundled_graph("keras:VGG16") is None
    assert cache.key("timm:a") == other


def test_settings_of_pytorch_and_timm_are_part_of_a_network(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """timm's attention taken apart is about three times as long; a data type changes each weight."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(bundled, "installed_version", lambda _: "")  # whichever is installed here
    monkeypatch.delenv("TIMM_FUSED_ATTN", raising=False)
    name, usual = "timm:vit_tiny_patch16_384", cache.key("timm:vit_tiny_patch16_384")
    assert usual is not None
    assert bundled_graph("timm:vit_base_patch16_224") is not None
    monkeypatch.delitem(sys.modules, "timm.layers.config", raising=False)
    monkeypatch.setenv("TIMM_FUSED_ATTN", "0")
    assert cache.key(name) != usual
    assert bundled_graph("timm:vit_base_patch16_224") is None
    monkeypatch.delenv("TIMM_FUSED_ATTN")
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert cache.key(name) != usual
    finally:
        torch.set_default_dtype(torch.float32)
    assert cache.key(name) == usual


def test_what_was_not_used_for_longest_goes(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, graph: Graph
) -> None:
    folder = cache.folder
    assert folder is not None
    for age, name in enumerate(["timm:a", "timm:b", "timm:c"]):
        cache.put_array(name, None, "a", np.arange(1000.0))
        for path in folder.iterdir():
            found = path.stat()
            os.utime(path, (found.st_atime - age, found.st_mtime - 60))
    assert cache.array("timm:a", None, "a") is not None  # used now
    (folder / "mine.npy").write_bytes(bytes(30_000))
    monkeypatch.setattr(module, "MOST_BYTES", 25_000)
    cache.put_array("timm:d", None, "a", np.arange(1000.0))
    left = [cache.array(f"timm:{n}", None, "a") is not None for n in "abcd"]
    assert left == [True, False, True, True]
    assert (folder / "mine.npy").exists()


@pytest.mark.parametrize(
    ("name", "near"), [("resnt50", "keras:ResNet50"), ("Own", ""), ("VGG16", "")]
)
def test_the_nearest_name_comes_before_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    """Without Keras, the names that come with LoLat are all that there are."""
    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.setattr(bundled, "installed_version", lambda package: "")
    with pytest.raises(LolatError) as caught:
        readers.read(f"keras:{name}", 64)
    assert isinstance(caught.value, MissingPackageError) == (name == "VGG16")
    words = str(caught.value)
    assert near in words.partition("TensorFlow")[0]
    assert ("did you mean" in words) == bool(near)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path, graph: Graph) -> None:
    (tmp_path / "file").write_text("")
    for folder in (None, tmp_path / "file" / "cache"):  # permissions do not stop root
        for _ in range(2):
            assert Cache(folder).read("timm:a", None, lambda: graph) is graph

"""Networks kept on disk: equal to what was read, found while all that they depend on is the same."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lolat import readers
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.readers import cache as module
from lolat.readers.cache import Cache
from tests.processes import python
from tests.readers.onnx_networks import model, node, saved

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kept(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def network(folder: Path, name: str = "net.onnx", op: str = "Relu") -> str:
    """The path of a network of a convolution and an activation."""
    nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node(op, "h", "y")]
    return saved(folder, model(nodes, w=(4, 3, 3, 3)), name)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return network(tmp_path)


@pytest.fixture
def graph(spec: str) -> Graph:
    return readers.read(spec)


def files(kept: Cache) -> list[str]:
    return sorted(p.name for p in kept.folder.iterdir()) if kept.folder.is_dir() else []


def test_a_graph_comes_back_equal_with_its_warnings(kept: Cache, spec: str, graph: Graph) -> None:
    said = msgspec.structs.replace(graph, warnings=("the padding is not known",))
    assert kept.graph(spec) is None
    assert kept.read(spec, None, lambda: said) is said
    again = kept.read(spec, None, lambda: graph)
    assert kept.graph(spec, 64) is None
    assert again == said == kept.graph(spec)
    assert again is not said
    assert (again.warnings, again.framework) == (said.warnings, "onnx")
    (path,) = kept.folder.iterdir()
    assert Graph.from_dict(json.loads(gzip.decompress(path.read_bytes()))) == said


def test_a_string_is_read_once(
    tmp_path: Path, spec: str, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, really = [], readers.open_network

    def counting(*asked: object) -> readers.Network:
        opened.append(asked)
        return really(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(readers, "open_network", counting)
    monkeypatch.setenv("LOLAT_CACHE", "off")
    for _ in range(2):
        assert readers.read(spec) == graph
    assert len(opened) == 2
    monkeypatch.setenv("LOLAT_CACHE", str(tmp_path / "own"))
    for size in (None, (3, 8, 8), None, (3, 8, 8)):
        readers.read(spec, size)
    assert len(opened) == 4
    (kept_file, _) = sorted((tmp_path / "own").iterdir())
    for path in (tmp_path / "own").iterdir():
        path.write_bytes(kept_file.read_bytes()[:-9])
    assert readers.read(spec) == graph  # a damaged file: read again, and kept
    assert readers.read(spec) == graph
    assert len(opened) == 5


def test_what_the_caller_added_to_a_framework_is_not_kept(
    kept: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras = pytest.importorskip("keras")
    path = tmp_path / "net.keras"
    path.write_bytes(b"")
    assert kept.key(str(path)) is not None
    keras.saving.get_custom_objects()["Mine"] = object
    try:
        assert kept.key(str(path)) is None
    finally:
        del keras.saving.get_custom_objects()["Mine"]
    if importlib.util.find_spec("timm") is None:
        return
    readers.read("timm:resnet18", 32)  # which has timm imported
    timm = sys.modules["timm"]
    assert kept.key("timm:resnet18.a1_in1k?reparameterized") is not None
    monkeypatch.setattr(timm, "is_model", lambda name: True)
    monkeypatch.setattr(timm, "model_entrypoint", lambda name: network)
    assert kept.key("timm:resnet18") is None


def test_an_array_comes_back_equal(kept: Cache, spec: str) -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    kept.put_array(spec, None, "work-amp", array)
    again = kept.array(spec, None, "work-amp")
    assert again.dtype == array.dtype
    assert np.array_equal(again, array)
    assert kept.array(spec, None, "work") is None
    assert kept.array(spec, 32, "work-amp") is None
    assert kept.graph(spec) is None
    with pytest.raises(ValueError, match=r"[Oo]bject arrays"):
        kept.put_array(spec, None, "a", np.array([{}], dtype=object))


@pytest.mark.parametrize("spec", ["timm:../../é\n\0", "timm:", "timm:" + "x" * 500])
def test_a_key_is_the_name_of_a_file(kept: Cache, spec: str) -> None:
    key = kept.key(spec)
    assert re.fullmatch(r"timm[A-Za-z0-9_.-]{0,60}-[0-9a-f]{32}", key)


def test_code_and_missing_files_have_no_key(kept: Cache, tmp_path: Path, graph: Graph) -> None:
    gone = tmp_path / "gone"
    specs = ["nets:make", "package.module:name", f"{gone}.onnx", f"{gone}.keras",
             f"transformers:{gone}.json", "resnet18", "", str(tmp_path), "\0.onnx"]  # fmt: skip
    for spec in specs:
        kept.put(spec, None, graph)
        kept.put_array(spec, None, "a", np.ones(1))
        assert kept.key(spec) is kept.graph(spec) is kept.array(spec, None, "a") is None
    assert files(kept) == []


def test_a_size_is_one_however_it_is_written(kept: Cache) -> None:
    sizes = [32, (32,), [32], (np.int64(32),)]
    assert len({kept.key("timm:a", s) for s in sizes}) == 1
    assert kept.key("timm:a") == kept.key("timm:a", None) == kept.key("timm:a", ())
    several = [None, 32, (3, 32), (3, 32, 32), [(3,), (32,)], [(3, 32)], {"x": 3}, {"y": 3}]
    assert len({kept.key("timm:a", s) for s in several}) == len(several)
    assert kept.key("timm:a", {"x": 3, "y": 4}) == kept.key("timm:a", {"y": (4,), "x": (3,)})
    with pytest.raises(InputError, match="input size 'big'"):
        kept.key("timm:a", "big")


def test_a_changed_file_is_another_network(
    kept: Cache, tmp_path: Path, spec: str, graph: Graph
) -> None:
    first = kept.key(spec)
    kept.put(spec, None, graph)
    network(tmp_path, op="Sigmoid")
    assert kept.key(spec) != first
    assert kept.graph(spec) is None
    network(tmp_path)
    assert kept.key(spec) == first
    assert kept.graph(spec) == graph
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert kept.key(network(elsewhere)) == first  # another checkout, say
    assert kept.key(network(elsewhere, "other.onnx")) != first  # as its graph's name


OF_KERAS = {"keras", "tensorflow", "tensorflow-cpu"}
OF_TRANSFORMERS = {"transformers", "torch"}


@pytest.mark.parametrize(
    ("spec", "packages"),
    [
        ("timm:a", {"timm", "torch"}), ("torchvision:a", {"torchvision", "torch"}),
        ("transformers:FILE", OF_TRANSFORMERS), ("transformers:FILE?AutoModel", OF_TRANSFORMERS),
        ("keras:a", OF_KERAS), ("generate:vgg", OF_KERAS),
        ("FILE.keras", OF_KERAS), ("FILE.ONNX", {"onnx", "onnxscript"}),
    ],
)  # fmt: skip
def test_the_versions_of_its_packages_and_the_content_of_its_file_count(
    kept: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, packages: set[str]
) -> None:
    spec = spec.replace("FILE", str(tmp_path / "net"))
    file = Path(spec.removeprefix("transformers:").partition("?")[0])
    keys = []
    for content in (b"one", b"two") if "net" in spec else ():
        file.write_bytes(content)
        keys.append(kept.key(spec))
    assert len({*keys, None}) == len(keys) + 1
    monkeypatch.setattr(module, "installed_version", lambda package: "1")
    first, changing = kept.key(spec), set()
    others = "timm torch torchvision transformers onnx onnxscript numpy"
    for package in OF_KERAS | {*others.split()}:
        version = {package: "2"}
        monkeypatch.setattr(module, "installed_version", lambda p, new=version: new.get(p, "1"))
        if kept.key(spec) != first:
            changing.add(package)
    assert changing == packages


@pytest.mark.parametrize("name", ["READERS", "FORMAT_VERSION", "__version__"])
def test_a_change_of_lolat_is_another_network(
    kept: Cache, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = kept.key("timm:a")
    monkeypatch.setattr(module, name, 10**6)
    assert kept.key("timm:a") != first


def test_settings_of_keras_count(
    kept: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    first, timm = kept.key("keras:A"), kept.key("timm:a")
    (tmp_path / "keras.json").write_text('{"image_data_format": "channels_first"}')
    second = kept.key("keras:A")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert len({first, second, kept.key("keras:A")}) == 3
    assert kept.key("timm:a") == timm


def test_a_damaged_or_foreign_graph_is_not_there(kept: Cache, spec: str, graph: Graph) -> None:
    kept.put(spec, None, graph)
    (path,) = kept.folder.iterdir()
    good = path.read_bytes()
    document = graph.to_dict()
    wrong = [
        b"", good[:-1], gzip.compress(b"[" * 10**5), gzip.compress(b"\xff"),
        gzip.compress(json.dumps({**document, "inputs": [10**6]}).encode()),
    ]  # fmt: skip
    wrong += [good[:i] + bytes([good[i] ^ 255]) + good[i + 1 :] for i in range(10, len(good), 7)]
    for content in wrong:
        path.write_bytes(content)
        assert kept.graph(spec) is None, content[:80]
    path.write_bytes(good)
    assert kept.graph(spec) == graph


def test_a_damaged_or_foreign_array_is_not_there(kept: Cache, tmp_path: Path, spec: str) -> None:
    array = np.arange(40.0)
    kept.put_array(spec, None, "a", array)
    (path,) = kept.folder.iterdir()
    good = path.read_bytes()
    mark = tmp_path / "ran"
    np.save(tmp_path / "objects.npy", np.array([_Runs(mark)]), allow_pickle=True)
    wrong = [b"", good[:-1], good[:5], good.replace(b"(40,)", b"(9**9999999,)"),
             (tmp_path / "objects.npy").read_bytes()]  # fmt: skip
    for content in wrong:
        path.write_bytes(content)
        assert kept.array(spec, None, "a") is None, content[:80]
    assert not mark.exists()
    path.write_bytes(good)
    assert np.array_equal(kept.array(spec, None, "a"), array)


class _Runs:
    """Makes a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return Path.touch, (self.mark,)


def test_a_folder_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, spec: str, graph: Graph
) -> None:
    (tmp_path / "file").write_text("")
    for kept in (Cache(None), Cache(tmp_path / "file" / "cache")):  # permissions do not stop root
        for _ in range(2):
            kept.put(spec, None, graph)
            kept.put_array(spec, None, "a", np.ones(1))
            kept.trim(0)
            assert kept.graph(spec) is None


def test_trim_removes_what_was_not_used_for_longest_and_is_ours(kept: Cache, graph: Graph) -> None:
    names = ["timm:a", "timm:b", "timm:c", "timm:d"]
    for i, name in enumerate(names):
        kept.put(name, None, graph)
        os.utime(kept.folder / f"{kept.key(name)}.json.gz", (i + 1, i + 1))
    size = (kept.folder / f"{kept.key('timm:a')}.json.gz").stat().st_size
    kept.trim(4 * size)
    assert len(files(kept)) == 4
    assert kept.graph("timm:a") == graph  # used: now the newest
    kept.trim(2 * size)
    assert [n for n in names if kept.graph(n)] == ["timm:a", "timm:d"]
    # What is not ours is left.
    kept.put_array("timm:a", None, "work-amp", np.ones(100))
    others = ["weights.npy", "notes.json.gz", f"a-{'0' * 32}.txt", "folder"]
    for name in others:
        (kept.folder / name).write_bytes(b"0" * 10**4)
    kept.trim(0)
    assert files(kept) == sorted(others)


def test_put_trims_now_and_then(kept: Cache, graph: Graph) -> None:
    tight = Cache(kept.folder, most_bytes=0)
    held = []
    for i in range(100):
        tight.put(f"timm:{i}", None, graph)
        held.append(len(files(kept)))
    assert 0 < max(held) < 100


def test_another_process_has_the_same_key(kept: Cache, spec: str) -> None:
    code = f"from lolat.readers.cache import Cache\nprint(Cache(None).key({spec!r}, (3, 8, 8)))"
    done = python(code, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert done.stdout.strip() == kept.key(spec, (3, 8, 8))

"""Networks kept on disk: equal to what was read, found while all that they depend on is the same."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lolat import readers
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.readers import cache as module
from lolat.readers.cache import Kept, cache_folder
from tests.readers.onnx_networks import model, node, saved

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "cache")


def network(folder: Path, name: str = "net.onnx", op: str = "Relu") -> str:
    """The path of a network of a convolution and an activation."""
    nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node(op, "h", "y")]
    return saved(folder, model(nodes, w=(4, 3, 3, 3)), name)


def files(kept: Kept) -> list[str]:
    return sorted(p.name for p in kept.folder.iterdir()) if kept.folder.is_dir() else []


def test_a_graph_comes_back_equal(kept: Kept, tmp_path: Path) -> None:
    spec = network(tmp_path)
    graph = readers.read(spec)
    assert kept.graph(spec) is None
    kept.put(spec, None, graph)
    found = kept.graph(spec)
    assert found == graph
    assert found is not graph
    assert found.framework == graph.framework == "onnx"
    assert kept.remarks == []


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_a_network_of_timm_comes_back_equal(kept: Kept) -> None:
    graph = readers.read("timm:resnet18", 64)
    kept.put("timm:resnet18", 64, graph)
    assert kept.graph("timm:resnet18", 64) == graph
    assert kept.graph("timm:resnet18", (64,)) == graph
    assert kept.graph("timm:resnet18") is None
    assert kept.graph("timm:resnet34", 64) is None


def test_an_array_comes_back_equal(kept: Kept, tmp_path: Path) -> None:
    spec = network(tmp_path)
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    kept.put_array(spec, None, "work-amp", array)
    found = kept.array(spec, None, "work-amp")
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert kept.array(spec, None, "work") is None
    assert kept.array(spec, 32, "work-amp") is None
    assert kept.graph(spec) is None


def test_an_array_of_objects_is_refused(kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"[Oo]bject arrays"):
        kept.put_array(network(tmp_path), None, "a", np.array([{}], dtype=object))


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.b", "a b", "a\n"])
def test_the_name_of_an_array_is_safe(kept: Kept, tmp_path: Path, name: str) -> None:
    spec = network(tmp_path)
    with pytest.raises(InputError, match="expected a name of letters, digits, - and _"):
        kept.put_array(spec, None, name, np.ones(1))
    with pytest.raises(InputError, match="expected a name of letters, digits, - and _"):
        kept.array(spec, None, name)


def test_a_key_is_readable_and_safe(kept: Kept, tmp_path: Path) -> None:
    key = kept.key("timm:vit_base_patch16_224.augreg", 224)
    assert key.startswith("timm-vit_base_patch16_224.augreg-")
    assert kept.key("timm:" + "x" * 500).startswith("timm-" + "x" * 50)
    folder = tmp_path / "a folder"
    folder.mkdir()
    specs = ["generate:vgg?layers=2,2&filters=16/32", "timm:../../é\n\0", "timm:", "keras:ResNet50"]
    keys = [key, kept.key(network(folder, "ä b.onnx")), *(kept.key(s) for s in specs)]
    assert len(set(keys)) == len(keys)
    for one in keys:
        assert one.isascii()
        assert len(one) < 100
        assert set(one) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
        assert not one.startswith(".")


def test_code_and_missing_files_have_no_key(kept: Kept, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    specs = ["nets:make", "package.module:name", f"{gone}.onnx", f"{gone}.keras", f"{gone}.pt2",
             f"transformers:{gone}.json", "resnet18", "", str(tmp_path), "\0.onnx"]  # fmt: skip
    assert [kept.key(s) for s in specs] == [None] * len(specs)
    graph = readers.read(network(tmp_path))
    for spec in specs:
        kept.put(spec, None, graph)
        kept.put_array(spec, None, "a", np.ones(1))
        assert kept.graph(spec) is None
        assert kept.array(spec, None, "a") is None
    assert files(kept) == []


def test_a_size_is_one_however_it_is_written(kept: Kept) -> None:
    sizes = [32, (32,), [32], (np.int64(32),)]
    assert len({kept.key("timm:a", s) for s in sizes}) == 1
    assert kept.key("timm:a") == kept.key("timm:a", None) == kept.key("timm:a", ())
    several = [None, 32, (3, 32), (3, 32, 32), [(3,), (32,)], [(3, 32)], {"x": 3}, {"y": 3}]
    assert len({kept.key("timm:a", s) for s in several}) == len(several)
    assert kept.key("timm:a", {"x": 3, "y": 4}) == kept.key("timm:a", {"y": (4,), "x": (3,)})
    with pytest.raises(InputError, match="input size 'big'"):
        kept.key("timm:a", "big")


def test_a_changed_file_is_another_network(kept: Kept, tmp_path: Path) -> None:
    spec = network(tmp_path)
    first, graph = kept.key(spec), readers.read(spec)
    kept.put(spec, None, graph)
    network(tmp_path, op="Sigmoid")
    assert kept.key(spec) != first
    assert kept.graph(spec) is None
    network(tmp_path)
    assert kept.key(spec) == first
    assert kept.graph(spec) == graph


@pytest.mark.parametrize("ending", [".keras", ".pt2", ".ONNX"])
def test_the_content_of_other_files_counts(kept: Kept, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"net{ending}"
    path.write_bytes(b"one")
    first = kept.key(str(path))
    path.write_bytes(b"two")
    assert first.startswith("net-")
    assert kept.key(str(path)) not in (None, first)


def test_the_content_of_a_configuration_counts(kept: Kept, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "bert"}')
    specs = [f"transformers:{path}", f"transformers:{path}?AutoModel"]
    first = [kept.key(s) for s in specs]
    assert len(set(first)) == 2
    path.write_text('{"model_type": "gpt2"}')
    assert not set(first) & {kept.key(s) for s in specs}


@pytest.mark.parametrize(
    ("spec", "packages"),
    [
        ("timm:a", {"timm", "torch"}),
        ("torchvision:a", {"torchvision", "torch"}),
        ("transformers:FILE", {"transformers", "torch"}),
        ("keras:a", {"keras", "tensorflow", "tensorflow-cpu"}),
        ("generate:vgg", {"keras", "tensorflow", "tensorflow-cpu"}),
        ("FILE.keras", {"keras", "tensorflow", "tensorflow-cpu"}),
        ("FILE.onnx", {"onnx"}),
        ("FILE.pt2", {"torch"}),
    ],
)
def test_the_versions_of_its_packages_count(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, packages: set[str]
) -> None:
    spec = spec.replace("FILE", str(tmp_path / "net"))
    for ending in ("", ".keras", ".onnx", ".pt2"):
        (tmp_path / f"net{ending}").write_text("{}")
    monkeypatch.setattr(module, "_version", lambda package: "1")
    first, changing = kept.key(spec), set()
    for package in ("timm", "torch", "torchvision", "transformers", "keras", "tensorflow",
                    "tensorflow-cpu", "onnx", "numpy"):  # fmt: skip
        monkeypatch.setattr(module, "_version", lambda p, new=package: "2" if p == new else "1")
        if kept.key(spec) != first:
            changing.add(package)
    assert changing == packages


def test_versions_are_those_that_are_installed() -> None:
    onnx = pytest.importorskip("onnx")
    assert module._version("onnx") == onnx.__version__
    assert module._version("no-such-package-at-all") == ""


@pytest.mark.parametrize("name", ["READERS", "FORMAT_VERSION", "__version__"])
def test_a_change_of_lolat_is_another_network(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first = kept.key("timm:a")
    monkeypatch.setattr(module, name, 10**6)
    assert kept.key("timm:a") != first


def test_settings_of_keras_count(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    found = [(kept.key("keras:A"), kept.key("timm:a"))]
    (tmp_path / "keras.json").write_text('{"image_data_format": "channels_first"}')
    found.append((kept.key("keras:A"), kept.key("timm:a")))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    found.append((kept.key("keras:A"), kept.key("timm:a")))
    assert len({keras for keras, _ in found}) == 3
    assert len({timm for _, timm in found}) == 1


def test_a_damaged_or_foreign_graph_is_not_there(kept: Kept, tmp_path: Path) -> None:
    spec = network(tmp_path)
    graph = readers.read(spec)
    kept.put(spec, None, graph)
    (path,) = kept.folder.iterdir()
    good = path.read_bytes()
    document = graph.to_dict()
    wrong = [
        b"", good[:-1], good[: len(good) // 2], b"\0" * len(good), good + b"more", b"[]",
        gzip.compress(b""), gzip.compress(b"[" * 10**5), gzip.compress(b"\xff"), gzip.compress(b"[]"),
        gzip.compress(json.dumps({**document, "version": 10**6}).encode()),
        gzip.compress(json.dumps({**document, "inputs": [10**6]}).encode()),
        gzip.compress(json.dumps({**document, "tensors": None}).encode()),
    ]  # fmt: skip
    wrong += [good[:i] + bytes([good[i] ^ 255]) + good[i + 1 :] for i in range(10, len(good), 7)]
    for content in wrong:
        path.write_bytes(content)
        assert kept.graph(spec) is None, content[:80]
    path.write_bytes(good)
    assert kept.graph(spec) == graph


def test_a_damaged_or_foreign_array_is_not_there(kept: Kept, tmp_path: Path) -> None:
    spec, array = network(tmp_path), np.arange(40.0)
    kept.put_array(spec, None, "a", array)
    (path,) = kept.folder.iterdir()
    good = path.read_bytes()
    mark = tmp_path / "ran"
    np.savez(tmp_path / "two.npz", a=array, b=array)
    np.save(tmp_path / "objects.npy", np.array([_Runs(mark)]), allow_pickle=True)
    wrong = [b"", good[:-1], good[:20], good[:5], b"\0" * len(good), b"text",
             good.replace(b"(40,)", b"(41,)"), good.replace(b"(40,)", b"(4e,)"),
             good.replace(b"(40,)", b"(9**9999999,)"), (tmp_path / "two.npz").read_bytes(),
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


def test_nothing_half_written_is_left(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = network(tmp_path)
    graph = readers.read(spec)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept.put(spec, None, graph)
    assert files(kept) == []
    kept.put(spec, None, graph)
    assert len(files(kept)) == 1


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    spec = network(tmp_path)
    (tmp_path / "file").write_text("")
    kept = Kept(tmp_path / "file" / "cache")  # permissions would not stop root
    for _ in range(2):
        kept.put(spec, None, readers.read(spec))
        kept.put_array(spec, None, "a", np.ones(1))
        assert kept.graph(spec) is None
    assert kept.remarks == [
        f"networks that were read are not kept: {tmp_path}/file/cache cannot be written to "
        "(Not a directory); LOLAT_CACHE can name another folder"
    ]


def test_no_folder_keeps_nothing(tmp_path: Path) -> None:
    spec, kept = network(tmp_path), Kept(None)
    kept.put(spec, None, readers.read(spec))
    kept.trim(0)
    assert kept.graph(spec) is None
    assert kept.remarks == []


def test_trim_removes_what_was_not_used_for_longest(kept: Kept, tmp_path: Path) -> None:
    spec = network(tmp_path)
    graph = readers.read(spec)
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
    kept.trim(0)
    assert files(kept) == []


def test_trim_leaves_what_is_not_ours(kept: Kept, tmp_path: Path) -> None:
    kept.put("timm:a", None, readers.read(network(tmp_path)))
    kept.put_array("timm:a", None, "work-amp", np.ones(100))
    for name in ("weights.npy", "notes.json.gz", f"a-{'0' * 32}.txt", "folder"):
        (kept.folder / name).write_bytes(b"0" * 10**4)
    now, old = ".lolat-1-0123abcd.tmp", ".lolat-2-0123abcd.tmp"
    for name in (now, old):
        (kept.folder / name).write_text("half")
    os.utime(kept.folder / old, (1, 1))
    kept.trim(0)
    assert files(kept) == sorted(
        [now, "weights.npy", "notes.json.gz", f"a-{'0' * 32}.txt", "folder"]
    )


def test_put_trims_now_and_then(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = readers.read(network(tmp_path))
    asked = []
    monkeypatch.setattr(Kept, "trim", lambda self, most_bytes: asked.append(most_bytes))
    for i in range(200):
        kept.put(f"timm:{i}", None, graph)
    assert set(asked) == {2 * 2**30}
    assert len(asked) < 100
    monkeypatch.undo()
    tight = Kept(kept.folder, most_bytes=0)
    for i in range(200):
        tight.put(f"timm:{i}", None, graph)
    assert len(files(kept)) < 200


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have their own folders")
def test_the_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOLAT_CACHE", "/given")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/me")
    assert Kept().folder == cache_folder() == Path("/given")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOLAT_CACHE", "here")
    assert cache_folder() == tmp_path / "here"
    monkeypatch.setenv("LOLAT_CACHE", "")
    assert cache_folder() == Path("/xdg/lolat")
    for given in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder() == Path("/home/me/.cache/lolat")

    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder() is None


def test_no_framework_is_imported(tmp_path: Path) -> None:
    spec = network(tmp_path)
    Kept(tmp_path).put(spec, None, readers.read(spec))
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from lolat.readers.cache import Kept\n"
        f"kept = Kept(Path({str(tmp_path)!r}))\n"
        f"assert kept.graph({spec!r}) is not None\n"
        f"kept.put({spec!r}, 32, kept.graph({spec!r}))\n"
        "for spec in ('timm:a', 'keras:A', 'torchvision:a'):\n"
        "    kept.put_array(spec, None, 'a', np.ones(2))\n"
        "    assert kept.array(spec, None, 'a') is not None\n"
        "print(*sorted(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "lolat" in loaded
    assert not loaded & {
        "torch",
        "torchvision",
        "timm",
        "keras",
        "tensorflow",
        "onnx",
        "transformers",
    }


def test_another_process_has_the_same_key(kept: Kept, tmp_path: Path) -> None:
    spec = network(tmp_path)
    code = f"from lolat.readers.cache import Kept\nprint(Kept(None).key({spec!r}, (3, 8, 8)))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT, capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        assert done.stdout.strip() == kept.key(spec, (3, 8, 8))


def test_what_is_kept_is_a_graph_document(kept: Kept, tmp_path: Path) -> None:
    spec = network(tmp_path)
    graph = readers.read(spec)
    kept.put(spec, None, graph)
    (path,) = kept.folder.iterdir()
    assert Graph.from_dict(json.loads(gzip.decompress(path.read_bytes()))) == graph

"""NETWORK as a string: what is found, and one line for everything that is not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lolat
from lolat.errors import InputError, MissingPackageError
from lolat.io.forms import unknown_network

MODULE = """
import keras
from keras import layers

def good():
    print("building")
    return keras.Sequential([keras.Input((5,)), layers.Dense(3)])

class Loud(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        print("calling")
        return self.dense(x)

class Holder:
    @staticmethod
    def make():
        return good()

made = keras.Sequential([keras.Input((5,)), layers.Dense(3)], name="made")
number = 3

def raises():
    raise RuntimeError("no\\nway")

def rings():
    raise RuntimeError("\\n\\x1b[1mbell \\x07 \\tand " + "long " * 100)

def leaves():
    raise SystemExit(0)

def needs(argument):
    return good()

def text():
    return "keras:ResNet50"

def optimizer():
    return keras.optimizers.SGD()

def tensor():
    return keras.Input((5,))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module `nets`."""
    (tmp_path / "lolat_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("lolat_nets"):
            del sys.modules[name]


def refused(network: Any, size: Any = None) -> str:
    """The code of the error with which a network is refused; its message is one line."""
    with pytest.raises(InputError) as caught:
        lolat.read(network, size)
    assert str(caught.value).isprintable()
    return caught.value.code


# ---- keras:Name ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [("MobileNet", None, (224, 224, 3)), ("mobilenet", 96, (96, 96, 3)),
     ("MOBILENET", (96, 64), (96, 64, 3)), ("MobileNet", (96, 64, 1), (96, 64, 1))],
)  # fmt: skip
def test_names_do_not_depend_on_case_and_sizes_may_be_others(
    name: str, size: Any, shape: tuple[int, ...]
) -> None:
    graph = lolat.read(f"keras:{name}", size)
    assert (graph.name, len(graph.operations)) == (name, 86)
    assert graph.shapes(graph.inputs) == [(1, *shape)]


@pytest.mark.parametrize(
    ("spec", "size", "code"),
    [
        *((f"keras:{name}", None, "unknown-network") for name in ("ResNet5O", "", "bad\nname")),
        *(("keras:VGG16", size, "network") for size in (1, (3, 224, 224), (4, 4, 4, 4))),
    ],
)  # fmt: skip
def test_names_and_sizes_that_keras_has_not(spec: str, size: Any, code: str) -> None:
    assert refused(spec, size=size) == code


# ---- module:callable -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["good", "Holder.make", "made"])
def test_a_callable_of_the_working_directory(here: Path, name: str, capsys: Any) -> None:
    graph = lolat.read(f"lolat_nets:{name}")
    assert graph.name == name
    assert [o.kind for o in graph.operations] == ["dense"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "size", "said"), [("good", None, "building"), ("Loud", (5, 2), "calling")]
)
def test_what_a_network_prints_is_not_on_stdout(
    here: Path, name: str, size: Any, said: str, capfd: Any
) -> None:
    assert [o.kind for o in lolat.read(f"lolat_nets:{name}", size).operations] == ["dense"]
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("lolat_nets:god", "user-code"), ("lolat_nets:Holder.made", "user-code"),
        *((f"lolat_nets:{name}", "network") for name in
          ("raises", "rings", "leaves", "needs", "number", "text", "optimizer", "tensor")),
        ("lolat_netz:good", "user-code"), ("lolat_nets.deeper:good", "user-code"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_callable(here: Path, spec: str, code: str) -> None:
    assert refused(spec) == code


@pytest.mark.parametrize(
    "text",
    ["import lolat_no_such_package", "1 / 0", "def broken(:", "import sys; sys.exit(3)"],
)  # fmt: skip
def test_a_module_that_cannot_be_imported(here: Path, text: str) -> None:
    (here / "lolat_nets_bad.py").write_text(f"\n{text}\n")
    for spec in ("lolat_nets_bad:make", "lolat_nets_bad.py:make"):
        with pytest.raises(InputError) as caught:
            lolat.read(spec)
        assert caught.value.code == "user-code"
        said = str(caught.value).replace("py, line ", "py:")
        assert said.isprintable()
        assert "lolat_nets_bad.py:2" in said
        assert "expected package" not in said


def test_the_line_that_raises_is_named(here: Path) -> None:
    line = MODULE.splitlines().index('    raise RuntimeError("no\\nway")') + 1
    for spec in ("lolat_nets:raises", "lolat_nets.py:raises"):
        with pytest.raises(InputError, match=f"RuntimeError: no at lolat_nets.py:{line}$"):
            lolat.read(spec)


@pytest.mark.parametrize("text", ["import torch", "def make():\n    import torch"])
def test_a_framework_that_the_users_code_lacks_is_installed_by_a_line(
    here: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (here / "lolat_nets_torch.py").write_text(text)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[torch\]'$"):
        lolat.read("lolat_nets_torch:make")


def test_a_function_of_a_file_by_its_path(here: Path) -> None:
    folder = here / "my nets" / "lolat_nets_inner"
    folder.mkdir(parents=True)
    (folder.parent / "a net.v2.py").write_text("from lolat_nets_beside import good")
    (folder.parent / "lolat_nets_beside.py").write_text(MODULE)
    (folder / "__init__.py").touch()
    (folder / "layers.py").write_text(MODULE)
    (folder / "net.py").write_text("from .layers import Holder, good")
    for spec in (
        "my nets/a net.v2.py:good",
        f"{folder}/net.py:Holder.make",
        "./lolat_nets.py:good",
    ):
        graph = lolat.read(spec)
        assert graph.name == spec.rpartition(":")[2]
        assert [o.kind for o in graph.operations] == ["dense"]
    with pytest.raises(InputError, match=r"did you mean lolat_nets\.py:good\?$"):
        lolat.read("lolat_net.py:good")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("resnet5O", "resnet50"), ("resnet-50", "resnet50"), ("vit_b16", "vit_base_patch16_224")],
)
def test_a_typing_error_goes_before_a_shorter_name(given: str, meant: str) -> None:
    names = ["resnetv2_50d_evos", "resnet50", "vit_base_patch16_224"]
    message = str(unknown_network(f"timm:{given}", names, "timm.list_models()"))
    assert f"did you mean timm:{meant}" in message


@pytest.mark.parametrize("name", ["types", "telnetlib3"])
def test_a_file_with_the_name_of_a_loaded_module_leaves_that_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    loaded = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, loaded)
    (here / f"{name}.py").write_text(MODULE)
    assert [o.kind for o in lolat.read(f"{name}.py:good").operations] == ["dense"]
    assert sys.modules[name] is loaded


# ---- other strings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    ["", ":", "a:", ":b", "a b:c", "x" * 5000, "x\0y", "a\nb", "a:b:c", "1a:b", "tests"],
)  # fmt: skip
def test_other_strings_are_no_network(spec: str) -> None:
    assert refused(spec) == "unknown-network"


@pytest.mark.parametrize(
    ("spec", "meant", "wrong"),
    [
        (
            "bert-base-uncased",
            "https://huggingface.co/bert-base-uncased/raw/main/config.json",
            "timm:b",
        ),
        (
            "google/vit-base",
            "https://huggingface.co/google/vit-base/raw/main/config.json",
            "timm:g",
        ),
        ("resnet-50", "did you mean keras:ResNet50 or timm:resnet50?", "huggingface"),
        ("mynet", "if timm or torchvision has it, write its package in front (timm:my", "mean"),
        ("timm/resnet50", "did you mean timm:resnet50?", "huggingface"),
        ("timm/resnet50.a1_in1k", "did you mean timm:resnet50.a1_in1k?", "expected"),
        ("hf_hub:timm/resnet50.a1_in1k", "did you mean timm:resnet50.a1_in1k?", "expected"),
        ("hf-hub:timm/vit_tiny", "did you mean timm:vit_tiny?", "expected"),
        ("torchvision.models.resnet50", "did you mean torchvision:resnet50?", "expected"),
        ("torchvision.models.video.r3d_18", "did you mean torchvision:r3d_18?", "expected"),
        ("keras.applications.ResNet50", "did you mean keras:ResNet50?", "expected"),
        ("tf.keras.applications.vgg16.VGG16", "did you mean keras:VGG16?", "expected"),
        ("notes.txt", "expected keras:NAME", "huggingface"),
    ],
)
def test_a_name_without_a_package_is_told_what_can_be_read(
    spec: str, meant: str, wrong: str
) -> None:
    with pytest.raises(InputError) as caught:
        lolat.read(spec)
    assert meant in str(caught.value)
    assert wrong not in str(caught.value)


@pytest.mark.parametrize("network", [Path("missing.keras"), None, 3, [], object(), lolat])
def test_other_objects_are_no_network(network: Any) -> None:
    refused(network)


@pytest.mark.parametrize("spec", ["keras:ResNet50", "there.keras"])
def test_keras_missing_says_what_to_install(
    tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    (tmp_path / "there.keras").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingPackageError, match=r"\[tensorflow\]'"):
        lolat.read(spec, 96)  # at its own size, ResNet50 comes with LoLat


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("config.json", "it is a configuration of transformers; expected transformers:config.json"),
        ("adapter.json", "of an adapter (PEFT); expected the config.json of meta/base"),
        ("missing.json", "missing.json: no such file; expected what `lolat read"),
        ("folder", "it is a folder; expected the path of a file in it"),
        ("mine.py::made", "did you mean mine.py:made?"),
        ("mine.Made", "did you mean mine.py:made?"),
        ("mine.onnx.data", "did you mean mine.onnx?"),
        (
            "mined.py:made",
            "no file 'mined.py' (network 'mined.py:made'); did you mean mine.py:made?",
        ),
    ],
)
def test_what_a_user_meant_is_told(here: Path, spec: str, said: str) -> None:
    (here / "folder").mkdir()
    (here / "mine.py").write_text("def made():\n    return None\n")
    (here / "mines.py").write_text("def other():\n    return None\n")
    (here / "mine.onnx").write_bytes(b"")
    (here / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    adapter = '{"peft_type": "LORA", "base_model_name_or_path": "meta/base"}'
    (here / "adapter.json").write_text(adapter)
    with pytest.raises(InputError) as error:
        lolat.read(spec)
    assert said in str(error.value)
    assert str(error.value).count("; expected") == ("did you mean" not in said)

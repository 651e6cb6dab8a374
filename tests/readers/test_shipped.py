"""Networks that come with LoLat: as the installed framework reads them, and without any framework."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lolat.readers import bundled, open_network
from lolat.readers.bundled import FILE, bundled_graph, bundled_networks
from lolat.readers.size import as_size
from tests.processes import python

ROOT = Path(__file__).parents[2]
AGAIN = "python -m benchmarks.shipped_networks, then raise READERS in lolat/readers/cache.py"
SLOW = pytest.param("timm:mobilenetv3_small_100", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "network", ["keras:MobileNetV2", "keras:EfficientNetB1", "keras:NASNetMobile", SLOW]
)
def test_a_graph_is_what_the_framework_reads(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(network.partition(":")[0]) is None:
        pytest.skip(f"{network} needs a package that is not installed")
    if network.startswith("keras"):  # a session counts the names that it gives to layers
        pytest.importorskip("keras").backend.clear_session()
    # Whatever version is installed: a newer one must not count other things unnoticed.
    monkeypatch.setattr(bundled, "installed_version", lambda package: "")
    assert bundled_graph(network) == open_network(network).graph(), AGAIN


def test_all_of_keras_applications_come_along() -> None:
    applications = pytest.importorskip("keras").applications
    names = {n for n in dir(applications) if n[0].isupper()}
    assert {n.removeprefix("keras:") for n in bundled_networks() if n.startswith("keras:")} == names
    assert FILE.stat().st_size < 300_000


@pytest.fixture
def of_any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "installed_version", lambda package: "")


@pytest.mark.usefixtures("of_any_version")
def test_every_graph_can_be_read() -> None:
    for network in bundled_networks():
        graph = bundled_graph(network)
        assert graph is not None
        assert f"{'keras' if graph.framework == 'keras' else 'timm'}:{graph.name}" == network


@pytest.mark.usefixtures("of_any_version")
@pytest.mark.parametrize("network", ["keras:ResNet50", "timm:resnet50"])
def test_its_own_size_however_it_is_written_and_no_other(network: str) -> None:
    shape = (224, 224, 3) if network.startswith("keras") else (3, 224, 224)
    graph = bundled_graph(network)
    assert graph is not None
    assert graph.tensors[graph.inputs[0]].shape == (1, *shape)
    for size in ((224,), (224, 224), shape):
        assert bundled_graph(network, as_size(size)) == graph
    for size in ((192,), shape[::-1], ((224,), (224,))):
        assert bundled_graph(network, as_size(size)) is None


@pytest.mark.usefixtures("of_any_version")
def test_names_as_the_framework_takes_them() -> None:
    for name in ("keras:resnet50", "timm:resnet50.a1_in1k"):
        graph = bundled_graph(name)
        assert graph is not None
        assert graph.name == name.partition(":")[2]
    for other in ("timm:convnext_base.fb_in22k", "timm:convnext_base.fb_in22k_ft_in1k_384",
                  "timm:convnext_base.banana", "timm:resnet50.", "timm:ResNet50",
                  "timm:resnet50?reparameterized", "timm:nonsense", "keras:", "resnet50",
                  "torchvision:resnet50", "ResNet50.keras", ""):  # fmt: skip
        assert bundled_graph(other) is None


def test_of_another_version_the_framework_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "installed_version", lambda package: "0.0.1")
    assert bundled_graph("keras:ResNet50") is bundled_graph("timm:resnet50") is None


WITHOUT = """
import importlib.metadata, sys
names = ("keras", "tensorflow", "tensorflow-cpu", "torch", "timm", "torchvision")
sys.modules.update(dict.fromkeys(names))
really = importlib.metadata.version
def version(name):
    if name in names:
        raise importlib.metadata.PackageNotFoundError(name)
    return really(name)
importlib.metadata.version = version
"""


def test_no_framework_is_needed(tmp_path: Path) -> None:
    code = WITHOUT + (
        "from lolat.cli.main import main\n"
        "main(['predict', 'rtx-4090-amp', sys.argv[1], *sys.argv[2:]])"
    )
    for arguments, code_expected, said in (
        (["timm:resnet50"], 0, "4.09 GMACs"),  # as timm's own tables have it, 4.1
        (["keras:VGG16"], 0, "15.5 GMACs"),  # as published
        (["keras:VGG16", "--input-size", "192"], 2, "tensorflow"),
        (["timm:convnext_base.banana"], 2, "timm:convnext_base.banana is not bundled"),
    ):
        done = python(code, *arguments)
        assert done.returncode == code_expected, done.stderr
        assert said in done.stdout + done.stderr

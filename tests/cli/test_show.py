"""Models and networks in files: `lolat show`, `models` and `read`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lolat import load
from lolat.graph import Graph
from lolat.readers import open_network, read
from tests import synthetic
from tests.cli.commands import Command
from tests.readers.onnx_networks import model as onnx_model
from tests.readers.onnx_networks import node, saved


def test_show(lolat: Command, model: Path) -> None:
    out = lolat.text("show", model)
    assert out.startswith(
        "desk: a desk, 2 threads, by 105 measurements, batch 1 to 4, TensorFlow 2.21.0 · noise 3.0 %\n"
    )
    formula = lolat.text("show", model, "--formula")
    assert "  computing, " in formula
    assert "two-regime: t = " in formula
    answer = lolat.json("show", model)
    names = [family["rate"]["name"] for family in answer["families"]["families"]]
    assert names == ["flops", "elements", "weights", "ops"]
    assert (answer["state"], answer["language_models"]) == (None, None)
    keeps = "PyTorch was measured with freed memory kept"
    assert [keeps in lolat.text("show", n) for n in ("epyc-2t-torch", "epyc-2t", "h100-fp16")] == [
        True, False, False,
    ]  # fmt: skip
    told = lolat.json("show", "h100-vllm")["language_models"]
    part = load("h100-vllm").file.document["llm"]
    assert told["served"][""]["served"] == part["served"]
    assert told["operations"].keys() == part["operations"].keys()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    local, shipped = tmp_path / "local", tmp_path / "shipped"
    local.mkdir()
    shipped.mkdir()
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: local)
    monkeypatch.setattr("lolat.io.paths.bundled_folder", lambda: shipped)
    return local, shipped


def test_no_models_yet(lolat: Command, folders: tuple[Path, Path]) -> None:
    assert lolat.text("models") == "no profiles yet: learn one with `lolat learn cpu`\n"
    assert "no profile of this machine yet" in lolat.refused("show", "local")
    (folders[0] / "cpu.json.journal.jsonl").touch()
    assert "a `lolat learn` still runs, or was interrupted: give it again" in lolat.refused(
        "show", "local"
    )


def test_models_are_listed_with_their_device(lolat: Command, folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    (local / "mine.json").write_text(json.dumps(synthetic.document(device="a desk")))
    (shipped / "a-longer-name.json").write_text(json.dumps(synthetic.document(device="a \x1brack")))
    (local / "broken.json").write_text("{")
    layers = synthetic.document(device="a card")
    layers["environment"]["source"] = {"sample": "200 convolutions"}
    (shipped / "layers.json").write_text(json.dumps(layers))
    found = lolat.done("models")
    heads, *lines = found.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["broken", "mine", "a-longer-name"]
    assert [" (local) " in line for line in lines[:3]] == [True, True, False]
    assert "cannot be read" in lines[0]
    assert "error" in heads
    assert "fp32, TensorFlow" in lines[1]
    assert lines[3] == "Single layers of 2018, for `lolat predict`: layers"
    by_name = {m["name"]: m for m in lolat.json("models")["models"]}
    assert by_name["a-longer-name"]["device"] == "a \x1brack"
    sizes = [p["batch_size"] for p in synthetic.document()["points"]]
    assert by_name["mine"]["batch_sizes"] == [min(sizes), max(sizes)]
    assert by_name["layers"]["answers_for"] == ["layers"]


def test_a_model_by_its_name(lolat: Command, folders: tuple[Path, Path]) -> None:
    local, _ = folders
    (local / "mine.json").write_text(json.dumps(synthetic.document()))
    assert lolat("show", "mine").out == lolat("show", "local").out
    assert "did you mean mine?" in lolat.refused("show", "mina")
    for name in ("a100-sxm-80", "a100-sxn"):
        hint = lolat.refused("show", name).partition("did you mean ")[2]
        assert "a100-sxm-80gb" in hint.partition("?")[0]


# ---- `lolat read`, and files that it wrote as NETWORK.


@pytest.fixture
def network(tmp_path: Path) -> str:
    """A convolution of 3 to 4 channels, 3x3, and an activation, at 8x8: 36 x 4 x 27 MACs."""
    nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node("Relu", "h", "y")]
    return saved(tmp_path, onnx_model(nodes, w=(4, 3, 3, 3)), "net.onnx")


def test_a_written_network_is_the_network(
    lolat: Command, model: Path, network: str, tmp_path: Path
) -> None:
    output = tmp_path / "net.json"
    said = lolat.text("read", network, "--output", output)
    assert "net" in said
    assert "2 operations" in said
    assert read(output) == read(network)
    document = json.loads(output.read_text())
    assert (document["schema"], document["version"]) == ("lolat-network", 1)
    assert Graph.from_dict(document) == read(network)
    for command in ("predict", "report", "explain"):
        answer, same = (lolat.json(command, model, n) for n in (output, network))
        assert answer | {"network": network} == same | {"network": network}
    answer = lolat.json("read", network, "--output", output)
    assert answer["operations"] == 2
    assert answer["counts"]["flops"] == 36 * 4 * 27
    assert answer["output"] == str(output)


def test_a_written_network_of_keras_is_the_network(lolat: Command, tmp_path: Path) -> None:
    pytest.importorskip("keras")
    output = tmp_path / "net.json"
    lolat.done("read", "keras:VGG16", "--input-size", 64, "--output", output)
    assert read(output) == read("keras:VGG16", 64)
    assert read(output, 64) == read(output, (64, 64, 3)) == read(output)


def test_another_size_or_a_run_is_refused(
    lolat: Command, model: Path, network: str, tmp_path: Path
) -> None:
    output = tmp_path / "net.json"
    lolat.done("read", network, "--output", output)
    found = lolat.json("predict", model, output, "--input-size", "3,8,8")
    assert found["network"] == str(output)
    line = lolat.refused("predict", model, output, "--input-size", 16)
    for words in ("net.json", "3x8x8", "16", "lolat read"):
        assert words in line
    with pytest.raises(Exception, match=r"net\.json .*cannot run"):
        open_network(str(output), weights=True)

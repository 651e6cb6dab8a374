"""`lolat mlp network`: the sum of a network's layers, what is not in it, and wrong calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.graph import GraphBuilder
from lolat.mlp.layer_model import write_layer_model
from tests import synthetic
from tests.cli.commands import Command
from tests.mlp.tables import hand_model


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, str]:
    """Models of 0.25 and 0.5 ms a sample, and a network of two convolutions and a dense layer."""
    b = GraphBuilder("tiny")
    shape = (1, 8, 8, 4)
    attributes: dict[str, Any] = {
        "kernel": (3, 3), "strides": (1, 1), "in_channels": 4, "out_channels": 4, "groups": 1,
        "bias": True, "padding": "same",
    }  # fmt: skip
    x = b.add("conv", [b.input(shape)], shape, "first", **attributes)
    x = b.add("relu", [x], shape, "first_relu")
    for name in ("bn_1", "bn_2", "bn_3", "bn_4"):
        x = b.add("batch_norm", [x], shape, name, channels=4)
    x = b.add("conv", [x], shape, "second", **attributes)
    x = b.add("depthwise_conv", [x], shape, "third", **{**attributes, "groups": 4})
    x = b.add("global_average_pool", [x], (1, 4), "pool")
    x = b.add("dense", [x], (1, 10), "head", in_features=4, out_features=10, bias=True)
    graph = b.build([x])

    def open_network(spec: str, size: tuple[int, ...] = ()) -> SimpleNamespace:
        assert (spec, size) == ("some:network", (32,))
        return SimpleNamespace(graph=lambda: graph)

    monkeypatch.setattr("lolat.readers.open_network", open_network)
    monkeypatch.setattr("lolat.io.paths.shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path / "local")
    paths = (tmp_path / "convolution.json", tmp_path / "dense.json")
    for path, slope in zip(paths, (0.25, 0.5), strict=True):
        write_layer_model(path, hand_model(path.stem, ("V100", "K80"), slope=slope))
    return (*paths, "some:network")


@pytest.fixture
def formula(tmp_path: Path) -> None:
    """A LoLat model of the V100 among the shipped ones."""
    (tmp_path / "shipped").mkdir()
    document = synthetic.document(name="justus2018-v100")
    (tmp_path / "shipped" / "justus2018-v100.json").write_text(json.dumps(document))


USUAL = ("--gpu", "V100", "--batch-size", 8, "--input-size", 32)


def test_one_json_object(lolat: Command, asked: tuple[Any, ...], formula: None) -> None:
    found = lolat.done("mlp", "network", *asked, *USUAL, "--samples", 20, "--json")
    answer = json.loads(found.out)
    assert answer["batch_ms"] == pytest.approx(2 + 2 + 4)
    assert (answer["batches"], answer["epoch_s"]) == (3, pytest.approx(0.024))
    assert {k: answer[k] for k in ("network", "gpu", "optimizer", "batch_size", "samples")} == {
        "network": "tiny", "gpu": "V100", "optimizer": "none", "batch_size": 8, "samples": 20,
    }  # fmt: skip
    assert [layer["name"] for layer in answer["layers"]] == ["first", "second", "head"]
    assert answer["layers"][0] == {
        "name": "first", "kind": "convolution", "what": "conv 3x3 4x8x8 to 4, relu",
        "predicted_ms": pytest.approx(2), "share": pytest.approx(0.25),
    }  # fmt: skip
    others = answer["unpredicted"]
    assert [other["name"] for other in others] == ["bn_1", "bn_2", "bn_3", "bn_4", "third", "pool"]
    assert others[4]["reason"] == "a depthwise convolution"
    assert answer["formula_model"] == "justus2018-v100"
    assert answer["unpredicted_formula_ms"] == pytest.approx(sum(o["formula_ms"] for o in others))
    assert len(answer["warnings"]) == 2
    assert all(f"warning: {warning}" in found.err for warning in answer["warnings"])


def test_a_table_for_people(lolat: Command, asked: tuple[Any, ...], formula: None) -> None:
    found = lolat("mlp", "network", *asked, *USUAL, "--samples", 20)
    lines = found.out.splitlines()
    assert lines[0] == "tiny · batch 8 · V100 · forward only"
    assert lines[1] == "8.00 ms a batch: 2 convolutions and 1 dense layer, each as if alone"
    assert lines[2] == (
        "0.024 s an epoch of 20 samples: 3 batches, the last one counted as a whole one"
    )
    assert " ".join(lines[4].split()) == "first 2.00 ms 25.0 % conv 3x3 4x8x8 to 4, relu"
    at = next(i for i, line in enumerate(lines) if line.startswith("Not in the sum: 6 operations"))
    assert "by LoLat's formula (justus2018-v100) some" in lines[at]
    assert lines[at].endswith("more, not added")
    assert lines[at + 1].endswith("ms  batch_norm: bn_1, bn_2, bn_3 and 1 more")
    assert lines[at + 2].endswith("ms  depthwise_conv (a depthwise convolution): third")
    assert max(map(len, lines)) <= 110


def test_training_and_gpus_without_a_formula(
    lolat: Command, asked: tuple[Any, ...], formula: None
) -> None:
    found = lolat("mlp", "network", *asked, *USUAL, "--optimizer", "adam")
    assert found.out.startswith("tiny · batch 8 · V100 · training with adam\n")
    assert "(LoLat's model justus2018-v100 knows forward passes only, so it cannot" in found.out
    other = ("--gpu", "K80", *USUAL[2:])
    assert "6 operations (no LoLat model of K80 to" in lolat("mlp", "network", *asked, *other).out
    answer = lolat.answer("mlp", "network", *asked, *other)
    assert (answer["formula_model"], answer["unpredicted_formula_ms"]) == (None, None)


def test_facts_of_another_gpu(lolat: Command, asked: tuple[Any, ...], tmp_path: Path) -> None:
    other = ("--gpu", "New", *USUAL[2:])
    refused = lolat.refused("mlp", "network", *asked, *other)
    assert "unknown GPU 'New'" in refused
    assert "give the facts of a new one with --facts, a CSV" in refused
    facts = tmp_path / "gpus.csv"
    facts.write_text("name,bandwidth,cores,clock\nNew,1000,5000,1500\n")
    found = lolat.done("mlp", "network", *asked, *other, "--facts", facts)
    assert found.out.splitlines()[1].startswith("8.00 ms a batch")


def test_models_of_the_other_kind(lolat: Command, asked: tuple[Any, ...]) -> None:
    convolution, dense, network = asked
    refused = lolat.refused("mlp", "network", dense, convolution, network, *USUAL)
    said = f"CONV_LAYER_MODEL {dense} is a model of dense layers; expected one of convolution"
    assert said in refused
    refused = lolat.refused("mlp", "network", convolution, convolution, network, *USUAL)
    assert f"DENSE_LAYER_MODEL {convolution} is a model of convolution layers" in refused


def test_a_wrong_call(lolat: Command, asked: tuple[Any, ...]) -> None:
    for options in (("--optimizer", "adamax"), ("--samples", "0"), ("--gpu",)):
        assert options[0] in lolat.refused("mlp", "network", *asked, *USUAL, *options)
    assert "--gpu" in lolat.refused("mlp", "network", *asked)


def test_a_model_of_one_gpu_is_asked_about_another(
    lolat: Command, asked: tuple[Any, ...], tmp_path: Path
) -> None:
    alone = replace(hand_model("dense", ("V100",)), layer="dense")
    write_layer_model(tmp_path / "alone.json", alone)
    other = ("--gpu", "K80", *USUAL[2:])
    refused = lolat.refused("mlp", "network", asked[0], tmp_path / "alone.json", asked[2], *other)
    assert "the model is of V100 alone" in refused

"""The Python interface: one call for each question, of networks of every framework, with typed answers."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from msgspec.structs import replace

import lolat
from lolat.io.results import Result, json_text
from tests import synthetic

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "python.md"


@pytest.fixture
def model(tmp_path: Path) -> lolat.Model:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    return lolat.load(path)


def keras_network() -> Any:
    keras = pytest.importorskip("keras")
    x = inputs = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(8, 3, padding="same")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def torch_network() -> Any:
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 10),
    )  # fmt: skip


def onnx_network() -> Any:
    pytest.importorskip("onnx")
    from tests.readers.onnx_networks import model, node

    nodes = [
        node("Conv", "x conv bias", "a", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", "a", "b"),
        node("Flatten", "b", "c"),
        node("Gemm", "c dense dense_bias", "y", transB=1),
    ]
    shapes = {"conv": (8, 3, 3, 3), "bias": (8,), "dense": (10, 8), "dense_bias": (10,)}
    return model(nodes, ("N", 3, 32, 32), **shapes)


# By hand: the convolution has 8 x 32 x 32 outputs of 3 x 3 x 3 products each, the dense layer 8 x 10.
MACS = 8 * 32 * 32 * 27 + 80


@pytest.mark.parametrize("network", [keras_network, torch_network, onnx_network])
def test_a_network_of_any_framework_is_predicted(model: lolat.Model, network: Any) -> None:
    made = network()
    size = {"input_size": 32} if network is torch_network else {}
    one, four = model.predict(made, batch_size=[1, 4], **size)
    assert (one.counts["flops"], four.counts["flops"]) == (MACS, 4 * MACS)
    assert one.batch_size == 1
    assert one.latency_ms == model.predict(made, **size).latency_ms


@pytest.mark.parametrize("eight", [np.int64(8), np.uint8(8), np.array(8)])
def test_a_number_of_numpy_is_one_number(model: lolat.Model, eight: Any) -> None:
    """One answer, the same as for the int; an array with an axis is several."""
    small = synthetic.network(1)
    for ask in (model.predict, model.cost):
        assert json.dumps(ask(small, eight).to_dict()) == json.dumps(ask(small, 8).to_dict())
        assert ask(small, np.array([8])).rows() == ask(small, [8]).rows()


def test_a_precision_may_be_a_data_type_of_pytorch() -> None:
    torch, device = pytest.importorskip("torch"), lolat.load("rtx-4090")
    for given, word in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")):
        for ask in (device.predict, device.cost):
            answers = [ask("timm:resnet18", 8, precision=p).to_dict() for p in (given, word)]
            assert answers[0] == answers[1]
    with pytest.raises(lolat.InputError, match="expected one of fp32"):
        device.predict("timm:resnet18", 8, precision=torch.int8)


def test_one_and_several_answers_have_the_same_rows(model: lolat.Model) -> None:
    """A list of networks or batch sizes is a list of answers; one that cannot be read is among them."""
    small, large = synthetic.network(1), replace(synthetic.network(3), name="large")
    several = model.predict([small, large, "nothing.onnx"], [1, 8])
    assert [p.query.graph for p in several] == [small, small, large, large]
    assert list(several.failures) == ["nothing.onnx"]
    assert several.rows() == [
        r for g in (small, large) for b in (1, 8) for r in model.predict(g, b).rows()
    ]
    assert "nothing.onnx" in repr(several)
    twice = model.predict([small, small, large], 8)
    assert [p.query.graph for p in twice] == [small, small, large]
    assert len(model.cost(small, [8, 16, 8], 100).answers) == 3
    with pytest.raises(lolat.NetworkError):
        model.predict(["nothing.onnx"])


def test_networks_of_one_class_are_told_apart_by_number_or_by_their_names(
    model: lolat.Model,
) -> None:
    """As modules and as graphs; a dictionary gives the names; the one that cannot be read is counted."""
    graphs = [synthetic.network(width=width) for width in (4, 8, 16)]  # all of one name
    name = graphs[0].name
    found = model.predict(graphs, 1)
    assert [p.network for p in found] == [name, f"{name} 2", f"{name} 3"]
    assert [p.latency_ms for p in found] == [model.predict(one).latency_ms for one in graphs]
    both = model.predict({"narrow": graphs[0], "known": "keras:MobileNetV2"}, 1)
    assert [p.network for p in both] == list(both.frame()["network"]) == ["narrow", "known"]
    assert "narrow" in both.report()
    assert "known" in both.report()
    assert len(model.predict({"narrow": graphs[0]})) == 1
    lost = model.predict([graphs[0], object(), graphs[1]])
    assert "network 2 of 3" in lost.words()
    with pytest.raises(lolat.InputError, match="as a name"):
        model.predict({1: graphs[0]})


def test_a_network_has_one_name_in_fields_frame_and_json(model: lolat.Model) -> None:
    names = ["keras:ResNet50", "keras:MobileNetV2"]
    found = model.predict(names)
    assert [p.network for p in found] == list(found.frame()["network"]) == names
    assert [p.to_dict()["network"] for p in found] == names
    assert len(found.filter(lambda p: p.network == names[0])) == 1


def test_training_and_its_cost() -> None:
    """Of one device, and of four with a price: hours are those of training, dollars hours and price."""
    model = lolat.load("rtx-5090-amp")
    graph = synthetic.network()
    found = model.cost(graph, 32, 3200, 2, replicas=[1, 4], price_per_hour=3.0)
    assert len(found.rows()) == len(found.options) == 2
    one, four = found.rows()
    assert one["dollars"] == pytest.approx(3.0 * one["total_s"] / 3600)
    assert four["dollars"] == pytest.approx(12.0 * four["total_s"] / 3600)


def results(model: lolat.Model) -> list[Result]:
    graph = synthetic.network(name="<b>net</b>")
    trained = lolat.load("rtx-5090-amp")
    run = {"batch_size": 8, "samples": 80}
    return [
        model, model.predict(graph), model.predict(graph, [1, 8]), model.explain(graph),
        model.explain(graph, block=model.explain(graph).blocks[0].name),
        model.budget(graph, 100.0, "batch"), lolat.models(),
        trained.cost(graph, **run), trained.cost(graph, **run, price_per_hour=1.0),
    ]  # fmt: skip


def test_a_result_is_plain_data_rows_words(model: lolat.Model) -> None:
    for result in results(model):
        name = type(result).__name__
        assert repr(result).startswith(f"<{name}: ")
        assert 1 <= len(result.words().splitlines()) <= 3, name
        assert json.loads(json_text("x", result.to_dict()))["version"] == 1
        frame = pandas.DataFrame(result.rows())
        assert not frame.dropna(axis="columns", how="all").empty, name


def test_a_repr_tells_the_answer(model: lolat.Model) -> None:
    found = model.predict(synthetic.network())
    assert f"{found.latency_ms:.3g} ms" in repr(found)
    assert "sure of" in repr(found)
    assert f" on {model.label}: " in repr(found)
    assert found.device == found.to_dict()["device"] == model.label
    assert "inside the measured range" in repr(found)
    assert "a desk, 2 threads" in repr(model)
    assert "extended" in repr(model)
    assert "median error" in repr(model)
    assert re.search(r" on [\d,]+ points>", repr(lolat.load("a100-80gb")))


def test_json_is_strict() -> None:
    with pytest.raises(lolat.LolatError, match="finite"):
        json_text("prediction", {"latency_ms": float("nan")})


def test_fit_returns_what_it_writes(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    columns = ["name", "batch_size", "latency_ms", *synthetic.FEATURES]
    table.write_text(synthetic.table(synthetic.measured(), columns))
    made = lolat.fit(table, tmp_path / "made.json", name="a shelf")
    again = lolat.load(tmp_path / "made.json")
    assert made.device == again.device == "a shelf"
    graph = synthetic.network()
    assert made.predict(graph).latency_ms == again.predict(graph).latency_ms
    assert lolat.fit(table).predict(graph).latency_ms == made.predict(graph).latency_ms


# ---- What is public, and that the documents say it.


def test_each_public_name_is_documented_and_typed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for package in (lolat, lolat.nas):
        for name in package.__all__:
            value = getattr(package, name)
            assert inspect.getdoc(value), name
            assert f"{package.__name__}.{name}" in page or f"## {name}" in page, name
            if inspect.isfunction(value):
                assert inspect.signature(value).return_annotation is not inspect.Signature.empty
    for name, method in inspect.getmembers(lolat.Model, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
            of_answers = ("frame", "plot", "report", "rows", "to_dict", "words")
            of = "answer" if name in of_answers else "Model"
            assert f"### {of}.{name}\n" in page, name


USER = """
import lolat
from lolat import InputError, Model, Prediction

model: Model = lolat.load("epyc-2t")
one: Prediction = model.predict("keras:ResNet50", batch_size=32, input_size=224)
many = model.predict("keras:ResNet50", batch_size=[1, 4])
times: list[float] = [p.latency_ms for p in many]
try:
    widest: float = model.budget("keras:ResNet50", 15.0, "width", sure=True).best.value
except InputError as error:
    print(error)
print(one.report(), many.rows(), model.explain("keras:ResNet50").words())
rows = model.cost("keras:ResNet50", 32, 50_000, 10, replicas=[1, 2]).rows()
fitted: Model = lolat.fit("points.csv", "mine.json", name="mine")
names: list[str] = [m.name for m in lolat.models()]
"""
"""What somebody writes who has mypy look at it."""
WRONG = 'text: str = one.latency_ms\nmodel.predict("a", batch_sizes=3)\n'


@pytest.mark.slow
def test_a_users_script_passes_strict_mypy_but_for_what_is_wrong_in_it(tmp_path: Path) -> None:
    """With the settings of `make lint` and a copy of its cache, as it has read the package already."""
    script, cache = tmp_path / "script.py", ROOT / ".mypy_cache"
    script.write_text(USER + WRONG)
    for made in cache.glob("3.*"):
        shutil.copytree(made, cache / "user" / made.name, dirs_exist_ok=True)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
               "--cache-dir", cache / "user", script]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    wrong = {int(line) for line in re.findall(r"script.py:(\d+): error", done.stdout)}
    right = len(USER.splitlines())
    assert wrong == {right + 1, right + 2}, done.stdout


def test_a_loaded_model_is_a_device_as_its_name_is(model: lolat.Model) -> None:
    network = lolat.read("timm:resnet18")
    found = lolat.predict(network, model, 8)
    assert found.to_dict() == model.predict(network, batch_size=8).to_dict()
    several = lolat.predict(network, [model, "t4", lolat.load("v100")], 8)
    assert [p.query.device.label for p in several] == [model.label, "t4", "v100"]
    assert several[0].latency_ms == found.latency_ms


def test_a_lack_of_memory_is_in_the_words_of_a_prediction() -> None:
    """Activations of one convolution alone are 64 x 112 x 112 x 4 bytes x 8,192 = 24.5 GiB; a T4 has 15."""
    found = lolat.load("t4-fp32").predict("timm:resnet50", [1, 8192])
    assert ["does not fit" in p.words() for p in found] == [False, True]
    assert [row["fits"] for row in found.rows()] == [True, False]


def test_an_attribute_of_several_answers_names_the_way_to_each() -> None:
    found = lolat.predict("timm:resnet18", "rtx-4090", batch_size=[1, 8])
    with pytest.raises(AttributeError, match=r"expected \[one.latency_ms for one in found\]"):
        found.latency_ms  # noqa: B018
    with pytest.raises(AttributeError, match="compare"):
        lolat.cost  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'latency'"):
        found.latency  # noqa: B018
    for same in (copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert [p.latency_ms for p in same] == [p.latency_ms for p in found]

"""The layer model: its network in numpy, its file, its answers, what it refuses, how far off it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lolat.errors import InputError, ModelFileError
from lolat.mlp.layer_model import DenseLayer, output_of, read_layer_model, write_layer_model
from tests.mlp.tables import hand_model, table_of


def saved(tmp_path: Path, **options: Any) -> Path:
    path = tmp_path / "model.json"
    write_layer_model(path, hand_model(**options))
    return path


def test_a_written_model_is_read_as_it_was(tmp_path: Path) -> None:
    model = hand_model(gpus=("V100", "K80"))
    width = len(model.mean)
    odd = replace(model, mean=np.linspace(0.1, 3, width).tolist(), scale=[1 / 3] * width)
    path = tmp_path / "new" / "model.json"
    write_layer_model(path, odd)
    found = read_layer_model(path)
    for name in ("mean", "scale", "layer", "recipe", "devices", "ranges", "training", "errors"):
        assert getattr(found, name) == getattr(odd, name)
    (weights, known) = (m.network[0].weights for m in (found, odd))
    assert weights.dtype == np.float32
    assert (weights == known).all()
    document = json.loads(path.read_text())
    assert (document["schema"], document["version"]) == ("lolat-layer-model", 2)


def test_a_prediction_by_hand(tmp_path: Path) -> None:
    model = read_layer_model(saved(tmp_path, slope=0.25))
    rows = table_of("dense", *({"batch_size": n} for n in ("4", "1", "9")))
    assert model.predict(rows).tolist() == [1, 0.25, 2.25]
    assert model.predict(rows.select(np.array([], int))).shape == (0,)

    scaled = replace(hand_model(slope=1), mean=[2.0] * 12, scale=[4.0] * 12)
    assert scaled.predict(rows).tolist() == [0.5, 0.0, 1.75]  # (n - 2) / 4, from 0


def test_a_model_of_several_gpus_answers_for_others_with_a_data_sheet(tmp_path: Path) -> None:
    model = read_layer_model(saved(tmp_path, gpus=("V100", "K80"), feature="cores", slope=1))
    assert model.predict(table_of("dense", {"gpu": "k80"}, {"gpu": "T4"})).tolist() == [2496, 2560]
    with pytest.raises(InputError) as caught:
        model.predict(table_of("dense", {"gpu": "X1"}))
    assert caught.value.code == "unknown-gpu"


def test_a_model_of_one_gpu_is_of_no_other_nor_of_another_kind_of_layer() -> None:
    model = hand_model()
    assert len(model.predict(table_of("dense", {"gpu": "tesla v100"}))) == 1
    with pytest.raises(InputError) as caught:
        model.predict(table_of("dense", {"gpu": "K80"}))
    assert caught.value.code == "other-device"
    with pytest.raises(InputError, match="convolution layers"):
        model.predict(table_of("convolution", {}))


def test_rows_outside_are_counted_by_column() -> None:
    covers = table_of("dense", {}, {"batch_size": "32", "optimizer": "sgd"})
    model = hand_model(covers=covers)
    inside = table_of("dense", {"batch_size": "20", "gpu": "v100"})
    assert model.outside(inside) is None
    adam = {"batch_size": "7", "optimizer": "adam"}
    rows = table_of("dense", {}, {"batch_size": "64"}, adam, {"gpu": "K80"})
    assert model.outside(rows) == (
        "3 of 4 rows lie outside what the model was trained on (gpu v100; batch_size 8..32; optimizer "
        "none, sgd)"
    )


def set_at(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_at("schema", value="lolat-model"),
        set_at("recipe", value="worst"),
        set_at("devices", "v100", "cores", value="x"),
        set_at("network", 0, "weights", "shape", value=[11, 1]),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: Callable[[Any], None]) -> None:
    path = saved(tmp_path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFileError) as caught:
        read_layer_model(path)
    assert str(caught.value).startswith(f"{path}: ")


def layer(rng: np.random.Generator, inputs: int, outputs: int, activation: str) -> DenseLayer:
    weights = rng.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32)
    return DenseLayer(weights, rng.normal(size=outputs).astype(np.float32), activation)


def test_a_network_is_what_pytorch_makes_of_it() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    widths = ((7, 33, "relu"), (33, 20, "relu"), (20, 1, "linear"))
    layers = [layer(rng, *width) for width in widths]
    functions = {"relu": torch.relu, "linear": lambda x: x}
    x = rng.normal(size=(100, 7))
    y = torch.from_numpy(x)
    for item in layers:
        weights, biases = torch.from_numpy(item.weights), torch.from_numpy(item.biases)
        y = functions[item.activation](y @ weights.double() + biases.double())
    found = output_of(layers, x)
    assert found.dtype == np.float64
    assert found.shape == (100,)
    np.testing.assert_allclose(found, y[:, 0].numpy(), rtol=1e-4, atol=1e-5)

"""One file for a device: old kinds are read, a section is added and the others stay, lacks are told."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.errors import InputError, ModelFileError
from lolat.mlp.layer_model import read_layer_model
from lolat.model.file import read, write
from lolat.model.sections import OF_TRAINING, lacks, put, with_sections
from lolat.training.file import load_training
from tests import synthetic
from tests.training import epoch_tables

LINK = {
    "replicas": 2, "gbps": 8.0, "latency_ms": 0.1, "variable_ms": 0.01, "fixed_ms": 0.5, "error": 0.1,
}  # fmt: skip


def test_a_file_of_epochs_of_before_is_one_of_the_device(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(epoch_tables.of_before()))
    assert read(path) == epoch_tables.document()
    write(tmp_path / "new.json", epoch_tables.document())
    asked = (synthetic.network(), 8, 800)
    assert load_training(path).predict(*asked) == load_training(tmp_path / "new.json").predict(
        *asked
    )
    model = lolat.load(path)
    assert (model.device, model.predictors) == ("V100", {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "made by a newer LoLat (format version 2"),
        ({"name": None}, "`name` is null; expected text"),
        ({"coefficients_ms": []}, "`epochs.coefficients_ms` is a list of 0"),
    ],
)
def test_a_damaged_file_of_before(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(epoch_tables.of_before(**change)))
    with pytest.raises(ModelFileError) as caught:
        load_training(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_a_layer_model_is_told_from_a_device(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"schema": "lolat-layer-model", "version": 1}))
    for ask in (lolat.load, load_training):
        with pytest.raises(
            ModelFileError, match=r"a layer model, .*`lolat mlp predict`.*expected the"
        ):
            ask(path)
    path.write_text(json.dumps(epoch_tables.of_before()))
    with pytest.raises(ModelFileError, match="is a model of a device, which `lolat predict` takes"):
        read_layer_model(path)


def test_a_model_without_inference_says_what_adds_it(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, epoch_tables.document())
    model = lolat.load(path)
    for ask in (
        lambda: model.predict(synthetic.network()),
        lambda: model.predict_counts(1, 1, 1),
        lambda: model.predictor("extended"),
        lambda: model.domain,
    ):
        with pytest.raises(ModelFileError) as caught:
            ask()
        said = str(caught.value)
        assert said.startswith(
            f"{path} knows epochs of training, but no latencies of inference; add"
        )
        assert f"`lolat fit TABLE.csv --output {path}`" in said
        assert f"`lolat learn cpu --output {path}`" in said


def test_each_lack_says_the_command() -> None:
    document = {"environment": {"device": "gpu"}, "links": {"ddp": LINK}}
    said = str(lacks(document, "a b.json", OF_TRAINING))
    assert "a b.json knows the link of ddp, but no training" in said
    assert "`lolat learn gpu --mode training --output 'a b.json'`" in said
    assert "`lolat training fit EPOCHS.csv --output 'a b.json'`" in said
    said = str(lacks(document, "m.json", "fbnet"))
    assert "but no networks of fbnet; add them with `lolat nas fit fbnet SAMPLES.csv" in said


def test_a_shipped_file_is_not_to_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lolat.model.sections.shipped_folder", lambda: tmp_path)
    said = str(lacks({"environment": {}}, str(tmp_path / "v100.json"), OF_TRAINING))
    assert said.endswith("--output v100.json`")


def test_sections_are_added_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "desk.json"
    inference = synthetic.document()
    write(path, inference)
    added: dict[str, Any] = {
        "epochs": epoch_tables.section(), "spaces": {"fbnet": {"x": 1}}, "links": {"ddp": LINK},
    }  # fmt: skip
    for section, content in added.items():
        put(path, section, content)
    assert read(path) == {**inference, **added}
    put(path, "spaces", {"nasbench201": {"y": 2}})
    put(path, "links", {"ddp": {**LINK, "gbps": 9.0}}, inference["device"])
    found = read(path)
    assert found["spaces"] == {"fbnet": {"x": 1}, "nasbench201": {"y": 2}}
    assert found["links"]["ddp"]["gbps"] == 9.0
    network = synthetic.network()
    before = lolat.Model(inference).predict(network)  # numbers of what was known stay
    assert lolat.load(path).predict(network).to_dict() == before.to_dict()


def test_another_device_is_refused_and_nothing_lost(tmp_path: Path) -> None:
    path = tmp_path / "desk.json"
    write(path, synthetic.document())
    content = path.read_bytes()
    with pytest.raises(InputError, match=r"another device: a desk, 2 threads, and this is a GPU"):
        put(path, "links", {"ddp": LINK}, "a GPU")
    path.with_name("note.json").write_text("{}")
    with pytest.raises(ModelFileError, match="not a LoLat model"):
        put(path.with_name("note.json"), "links", {"ddp": LINK})
    assert path.read_bytes() == content
    assert path.with_name("note.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ("V100", None, "V100"),
        ("V100", "v100", "V100"),
        ("V100 (from 3 networks, float32)", "V100", "V100 (from 3 networks, float32)"),
        ("unknown", "V100", "V100"),
        ("V100", "unknown", "V100"),
    ],
)
def test_what_a_device_is_called(
    own: str, given: str | None, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.json"
    put(path, "links", {"ddp": LINK}, own)
    assert put(path, "spaces", {"fbnet": {}}, given)["device"] == expected


def test_new_latencies_keep_the_other_sections(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, epoch_tables.document())
    new = synthetic.document(device="unknown (from a table)")
    found = with_sections(path, new)
    assert found == {**new, "device": "V100 (from a table)", "epochs": epoch_tables.section()}
    assert with_sections(tmp_path / "none.json", new) == new
    with pytest.raises(InputError, match="another device: V100, and this is T4"):
        with_sections(path, synthetic.document(device="T4 (from a table)"))


@pytest.mark.parametrize("section", ["epochs", "spaces", "links"])
def test_a_section_of_another_shape_is_refused(section: str) -> None:
    document = copy.deepcopy(synthetic.document()) | {section: 3}
    with pytest.raises(ModelFileError, match=f"`{section}` is 3; expected an object"):
        write(Path("never.json"), document)


def test_numbers_of_epochs_do_not_depend_on_what_else_is_known(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, epoch_tables.document())
    asked = (synthetic.network(), 8, 800)
    before = load_training(path).predict(*asked)
    write(path, with_sections(path, synthetic.document(device="V100")))
    after = load_training(path).predict(*asked)
    assert np.isclose(after.total_s or 0.0, before.total_s or 1.0, rtol=0)

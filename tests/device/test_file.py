"""A profile: what is accepted, what is refused, written whole or not at all, sections added."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import lolat
from lolat.api.model import Model
from lolat.device import schema
from lolat.device.file import (
    OF_INFERENCE,
    OF_TRAINING,
    DeviceFile,
    add_sections,
    merged,
    new_document,
    read,
    write,
)
from lolat.device.remedies import lacking_error
from lolat.errors import InputError, LolatError, ModelFileError
from tests import synthetic
from tests.strategies import models
from tests.training import known_device

Place = tuple[str | int, ...]
EPOCHS = {**new_document("gpu", "V100", {"device": "gpu"}), "epochs": {"rows": 3}}
"""A model of timed epochs alone."""


def small() -> dict[str, Any]:
    """A valid document; a new one each time, free to be changed."""
    return {
        "schema": "lolat-model",
        "version": 1,
        "name": "desk",
        "device": "cpu",
        "default": "extended",
        "predictors": {
            "two-regime": {
                "coefficients": {"acts": 2e-7, "inp": 0, "flops": 3.5e-9, "call": 0.25},
                "breakpoint_ms": 1.5,
                "slope": 0.5,
                "offset_ms": -0.01,
                "residuals": [-0.1, 0.2],
                "error": {"left_out": {"median": 0.14}},
            },
            "extended": {"coefficients": {"acts": 1e-7}, "error": {"left_out": {"median": 0.07}}},
        },
        "points": [
            {
                "name": "conv 3x3", "batch_size": 8, "acts": 100352, "inp": 50176, "flops": 115605504,
                "traffic": 0, "weights": 36864, "ops": 3, "latency_ms": 1.25,
                "samples_ms": [1.25, 1, 1.5],
            },
            {
                "name": "from a table", "batch_size": 1, "acts": 1, "inp": 1, "flops": 1,
                "traffic": None, "weights": None, "ops": None, "latency_ms": 3, "samples_ms": None,
            },
        ],
        "environment": {"cpu": "AMD EPYC", "threads": 2},
        "noise": {"drift": 0.01},
        "domain": {},
        "warnings": ["noisy"],
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A profile that is there already."""
    write(tmp_path / "model.json", small())
    return tmp_path / "model.json"


def unchanged(path: Path) -> bool:
    """True if the file is as it was, and alone."""
    return read(path).document == small() and os.listdir(path.parent) == [path.name]


def refusal(document: Any) -> LolatError:
    with pytest.raises(ModelFileError) as caught:
        schema.validate(document, "here")
    message = str(caught.value)
    assert message.isprintable(), "one line, and nothing that a terminal would act on"
    assert message.startswith("here: ")
    assert caught.value.exit_code == 2
    return caught.value


# ---- Reading


def test_later_minor_additions_are_accepted_and_kept(path: Path) -> None:
    document = small()
    later = {"anything": [1, "two", None, {"three": True}]}
    for holder in (document, *document["predictors"].values(), *document["points"]):
        holder["added_later"] = later
    document["predictors"]["mlp"] = {"coefficients": {}, "layers": [[1.5], [-2]]}
    path.write_bytes(json.dumps(document).encode())
    assert read(path).document == document


@pytest.mark.parametrize(
    "document",
    [
        [1, 2], None, "text", {}, {"schema": "lolat-layer-model", "version": 1},
        {"schema": ["lolat-model"], "version": 1},
        *(small() | {"version": v, "points": "elsewhere"} for v in (2, 10**40, 0, None)),
    ],
    ids=lambda document: "",
)  # fmt: skip
def test_a_file_that_is_no_model_of_this_version(document: Any) -> None:
    assert refusal(document).code == "not-a-model"


@pytest.mark.parametrize(("field", "value"), [("date", 17), ("device", None), ("threads", "2")])
def test_a_field_of_the_environment_has_its_type(field: str, value: Any) -> None:
    error = refusal(small() | {"environment": {field: value}})
    assert f"$.environment.{field}" in str(error)


def full() -> dict[str, Any]:
    """A valid document with the fields that may be left out, too."""
    document = small()
    document["predictors"]["extended"] |= {
        "six_counts": {
            "coefficients": {"acts": 1e-7, "ops": 0},
            "error": {"fitted": {"median": 0.1}},
        },
        "interval": {"exponent": 0.25, "ops": [3, 60.0], "scores": [0.1, 0]},
        "networks": {"ops": 98.5, "spread": 0.05, "count": 12},
        "families": {"flops": 1e-8},
    }
    document["predictors"]["kernels"] = known_device.document(
        shape_residuals={"dense": [[1, 512, 64, 64, -0.25]]},
        sustained=1e9,
        host={"start_ms": 0.04, "factor": 2.0, "source": "assumed", "launch": "eager"},
    )["predictors"]["kernels"]
    document["noise"] = {"floor": 0.01, "quiet": 0.9, "busy": 1.25, "repeatability": 0.02}
    document["domain"] = {
        "kinds": ["conv", "relu"],
        "dtypes": ["float32"],
        "ratios": {"FLOPs per element": [2.5, 25]},
        "sizes": {"weights": [0, 1e6]},
        "minimum": {"operation_ms": 0.1},
    }
    document["points"][0] |= {"kinds": ["conv"], "reference_ms": [1, 1.5], "spread": 0.01}
    document["points"][0] |= {"whole": True, "border": 7}
    document["points"][1] |= {"kinds": [], "reference_ms": None, "spread": None, "exps": None}
    return document


UNREAD = {"environment", "schema", "version"}
"""Not checked, or refused otherwise."""


def places(value: Any, before: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every place in a document (of a list the first two), and the value there."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, inner in items:
        if (not before and key in UNREAD) or key in ("offset_ms", "mode"):
            continue
        yield (*before, key), inner
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*before, key))


def changed(place: Place, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(full())
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return document


PLACES = [pytest.param(p, v, id=".".join(map(str, p))) for p, v in places(full())]


@pytest.mark.parametrize(("place", "value"), PLACES)
def test_each_field_has_a_type_and_a_range(place: Place, value: Any) -> None:
    """Something of another type, not a number, or of no size is refused, and its place is named."""
    wrong: list[Any] = (
        [{"x": "y"}, 10**400] if isinstance(value, bool | str | list | None) else [[], "x"]
    )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        wrong += [math.nan, math.inf, True, "1", -1e300]
    for other in wrong:
        assert " - at `$" in str(refusal(changed(place, other)))


@pytest.mark.parametrize(("place", "value"), PLACES)
def test_a_field_that_is_missing_is_refused_or_changes_nothing(place: Place, value: Any) -> None:
    """A file without it predicts as before, or an error names what lacks."""
    document = changed(place, ...)
    try:
        schema.validate(document, "here")
        model = Model(document)
    except ModelFileError:
        return
    counts = (1e6, 1e6, 1e8)
    if "coefficients" not in place and place[:2] != ("predictors", "two-regime"):
        assert model.predict_counts(*counts) == Model(full()).predict_counts(*counts)


# ---- Writing; of any file: tests/io/test_writing.py


@given(models())
@settings(max_examples=40)
def test_what_is_written_is_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("written") / "model.json"
    document["points"] = [document["points"][0] | {"extra": document["environment"]}]
    write(path, document)
    # As text as well: 1 == 1.0 == True, and a reader must not change one to another.
    oracle = json.loads(path.read_bytes())
    assert oracle == document
    texts = [json.dumps(d, sort_keys=True) for d in (oracle, document, read(path).document)]
    assert set(texts) == {json.dumps(oracle)}, "keys are sorted"
    content = path.read_bytes()
    write(path, read(path).document)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "document", [{}, small() | {"points": None}, small() | {"extra": math.nan}]
)
def test_what_is_no_model_or_no_json_changes_nothing(path: Path, document: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError):
        write(path, document)
    assert unchanged(path)


# ---- One file for a device: a section is added and the others stay, lacks have a remedy


def test_a_model_without_inference(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, EPOCHS)
    model = lolat.load(path)
    for ask in (
        lambda: model.predict(synthetic.network()),
        lambda: model.predict_counts(1, 1, 1),
        lambda: model.predictor("extended"),
    ):
        with pytest.raises(ModelFileError, match="knows epochs of training, but no latencies"):
            ask()


@pytest.mark.parametrize(
    ("section", "command"),
    [
        (OF_INFERENCE, "lolat learn gpu --backend torch --output 'a b.json'`"),
        (OF_TRAINING, "`lolat learn gpu --backend torch --mode training --output"),
        ("fbnet", "lolat nas fit fbnet SAMPLES.csv --output 'a b.json'`"),
    ],
)  # fmt: skip
def test_a_lacking_section_has_its_command(section: str, command: str) -> None:
    where = {"device": "gpu", "framework": "torch"}
    error = lacking_error(
        DeviceFile(new_document("a", "b", where) | {"spaces": {"darts": {}}}), "a b.json", section
    )
    assert "a b.json knows networks of darts, but no" in str(error)
    assert command in str(error)


def test_sections_are_added_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "desk.json"
    inference = synthetic.document()
    write(path, inference)
    add_sections(path, {"epochs": EPOCHS["epochs"]})
    add_sections(path, {"spaces": {"fbnet": {"x": 1}}})
    assert read(path).document == {
        **inference,
        "epochs": EPOCHS["epochs"],
        "spaces": {"fbnet": {"x": 1}},
    }
    add_sections(path, {"spaces": {"nasbench201": {"y": 2}}})
    add_sections(path, {"spaces": {"fbnet": {"x": 3}}}, inference["device"])
    assert read(path).document["spaces"] == {"fbnet": {"x": 3}, "nasbench201": {"y": 2}}
    network = synthetic.network()
    before = lolat.Model(inference).predict(network)  # numbers of what was known stay
    after = lolat.load(path).predict(network)
    assert after.to_dict() == before.to_dict() | {"device": str(path), "profile": str(path)}


def test_another_device_is_refused_and_nothing_lost(path: Path) -> None:
    with pytest.raises(InputError) as error:
        add_sections(path, {"spaces": {"fbnet": {}}}, "a GPU")
    assert error.value.code == "other-device"
    assert unchanged(path)
    path.write_text("{}")
    with pytest.raises(ModelFileError):
        add_sections(path, {"spaces": {"fbnet": {}}})
    assert path.read_text() == "{}"


def test_new_latencies_keep_the_other_sections(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, EPOCHS)
    new = DeviceFile(synthetic.document(device="unknown (from a table)"))
    expected = {**new.document, "device": "V100 (from a table)", "epochs": EPOCHS["epochs"]}
    assert merged(path, new).document == expected
    assert merged(tmp_path / "none.json", new) is new
    assert merged(path, DeviceFile(synthetic.document(device="V100"))).device == "V100"
    with pytest.raises(InputError):
        merged(path, DeviceFile(synthetic.document(device="T4 (from a table)")))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("h100-fp32", {"fitted_on": "held", "minimum": "least", "shape_residuals": "nearby",
                       "sheet_peak": "most", "layout_factor": "turning"}),
        ("h100-fp16-nhwc", {"channels_last_terms": "turns", "sheet_peak": "most"}),
        ("b200-vllm", {"overheads": "ways"}),
    ],
)  # fmt: skip
def test_a_file_with_the_keys_of_an_earlier_day_is_read(
    name: str, keys: dict[str, str], tmp_path: Path
) -> None:
    """None of them is passed over in silence, as an unknown key would be."""
    bundled = Path("models", f"{name}.json")
    text = bundled.read_text(encoding="utf-8")
    for key, earlier in keys.items():
        assert f'"{key}": ' in text
        text = text.replace(f'"{key}": ', f'"{earlier}": ')
    (tmp_path / "old.json").write_text(text)
    assert read(tmp_path / "old.json").document == read(bundled).document

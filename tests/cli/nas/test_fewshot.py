"""`lolat nas fit` and `predict`: a few measured networks, and the latencies of many by them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import lolat as package
from lolat.errors import InputError
from lolat.nas.fewshot import fit as fit_space
from lolat.nas.fewshot import read_samples, space_terms
from lolat.nas.fewshot import write as write_space
from lolat.nas.objective import find_space
from lolat.nas.space import scorer_for
from lolat.nas.spaces import nasbench201
from tests.cli.commands import Command
from tests.nas.few_devices import (
    everything,
    layered,
    only_needed,
    some_cells,
    some_layers,
    write_samples,
)
from tests.nas.test_space import small

# ---- fit


@pytest.fixture
def fit(lolat: Command, tmp_path: Path) -> Any:
    """Fits a table (or networks of a device) and returns what the command did."""

    def call(samples: Any, *options: Any, device: Any = everything, refused: bool = False) -> Any:
        if isinstance(samples, list):
            samples = write_samples(tmp_path / "samples.csv", samples, device)
        space = "fbnet" if device is layered else "nasbench201"
        do = lolat.refused if refused else lolat
        output = tmp_path / "model.json"
        return do("nas", "fit", space, samples, "--output", output, *options)

    return call


def test_a_model_is_written_and_described(fit: Any, tmp_path: Path) -> None:
    found = fit(some_cells(12))
    assert (found.code, found.err) == (0, "")
    first, assumption, error, last = found.out.splitlines()
    assert first.startswith("nasbench201 from 12 samples · noise ")
    assert "every operation is executed: 100 % sure" in assumption
    assert "Half of all networks of the space should be within" in error
    assert last == f"written: {tmp_path / 'model.json'}"
    assert max(map(len, found.out.splitlines()[:3])) <= 80
    assert fit(some_layers(10), device=layered).out.startswith("fbnet from 10 samples")
    document = json.loads((tmp_path / "model.json").read_text())
    assert {n: len(s["samples"]) for n, s in document["spaces"].items()} == {
        "nasbench201": 12, "fbnet": 10,
    }  # fmt: skip


def test_json_says_the_same(fit: Any) -> None:
    told = json.loads(fit(some_cells(12), "--json", device=only_needed).out)
    assert (told["samples"], told["space"], told["warnings"]) == (12, "nasbench201", [])
    assert told["assumptions"][0]["words"].startswith("operations that the output does not need")
    assert told["assumptions"][0]["weight"] > 0.9
    assert 0.0 < told["typical_error"] < 0.05


@pytest.mark.parametrize("count", [1, 9])
def test_few_samples_are_warned_of(fit: Any, count: int) -> None:
    found = fit(some_cells(count))
    assert found.code == 0
    (line,) = found.err.splitlines()
    assert line.startswith(f"lolat: warning: {count} sample")
    assert "measure more" in line
    assert "noise" not in found.out  # of so few readings it is not known


def test_samples_that_no_formula_explains_are_not_to_be_trusted(fit: Any) -> None:
    times = {arch: 10.0 ** (3 * (i % 3)) + 0.001 for i, arch in enumerate(some_cells(6))}
    found = fit(list(times), device=times.__getitem__)
    assert found.code == 0
    assert "4 of 6 samples lie far from what the others say: trust no answer" in found.err


def test_a_wrong_call_of_fit_writes_nothing(fit: Any, lolat: Command, tmp_path: Path) -> None:
    arch = some_cells(1)[0]
    samples = tmp_path / "s.csv"
    samples.write_text(f"arch,latency_ms\n{arch},-1.5\n")
    assert "expected a time above 0" in fit(samples, refused=True)
    assert not (tmp_path / "model.json").exists()
    assert "'SAMPLES'" in lolat.refused("nas", "fit", "s.csv", "--output", "m.json")
    assert "--output" in lolat.refused("nas", "fit", "fbnet", "s.csv")
    wrong = lolat.refused("nas", "fit", "darts", "s.csv", "--output", "m.json")
    assert "nasbench201" in wrong
    (tmp_path / "model.json").mkdir()
    assert "is a folder" in fit(some_cells(3), refused=True)


# ---- predict


@pytest.fixture
def cells(fit: Any, tmp_path: Path) -> Path:
    """A model of NAS-Bench-201."""
    assert fit(some_cells(14)).code == 0
    return tmp_path / "model.json"


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def table(folder: Path, archs: list[str]) -> Path:
    path = folder / "archs.csv"
    path.write_text("\n".join(["index,arch", *(f"{i},{a}" for i, a in enumerate(archs))]) + "\n")
    return path


def test_the_table_has_all_networks_in_their_order(
    lolat: Command, tmp_path: Path, cells: Path
) -> None:
    archs = some_cells(60, seed=9)
    archs += archs[:5]
    output = tmp_path / "new" / "out.csv"
    told = lolat.text("nas", "predict", cells, table(tmp_path, archs), "--output", output)
    by = "14 measured networks of nasbench201"
    assert told == f"written: {output}, 65 networks of nasbench201; latencies by {by}\n"
    assert output.read_text().splitlines()[0] == "arch,latency_ms"
    assert [row["arch"] for row in rows(output)] == archs
    wanted = [everything(arch) for arch in archs]
    assert [float(row["latency_ms"]) for row in rows(output)] == pytest.approx(wanted, rel=0.02)
    lolat("nas", "predict", cells, table(tmp_path, []), "--output", output)
    assert output.read_text() == "arch,latency_ms\n"


def test_intervals_come_when_asked_for(lolat: Command, tmp_path: Path, cells: Path) -> None:
    archs, output = table(tmp_path, some_cells(30, seed=9)), tmp_path / "out.csv"
    call = ("nas", "predict", cells, archs, "--output", output, "--coverage")
    assert lolat(*call, "0.9").code == 0
    columns = ("latency_low_ms", "latency_ms", "latency_high_ms")
    for row in rows(output):
        low, middle, high = (float(row[c]) for c in columns)
        assert low < middle < high
        assert low < everything(row["arch"]) < high


def test_a_wrong_call_of_predict(lolat: Command, tmp_path: Path, cells: Path) -> None:
    output = tmp_path / "out.csv"

    def refused(space_model: Path, archs: Path) -> str:
        return lolat.refused("nas", "predict", space_model, archs, "--output", output)

    message = refused(cells, table(tmp_path, some_layers(2)))
    assert "line 2 (row 1): unknown operation" in message
    assert f"{cells} is a model of the space nasbench201" in message
    archs = table(tmp_path, some_cells(2))
    assert "no such model" in refused(tmp_path / "absent.json", archs)
    archs.write_text("network\nx\n")
    assert "lacks the column arch" in refused(cells, archs)
    assert not output.exists()


# ---- What was fitted answers `nas search`, `score` and `predict`; else inference does.


CELLS = "nasbench201"


@pytest.fixture
def both(model: Path, tmp_path: Path) -> Path:
    """A model of inference that has samples of one space too."""
    samples = write_samples(tmp_path / "samples.csv", some_cells(14))
    write_space(model, fit_space(CELLS, read_samples(samples, space_terms(CELLS))))
    return model


def scores(tmp_path: Path, archs: list[str]) -> Path:
    path = tmp_path / "scores.csv"
    path.write_text("arch,score\n" + "".join(f"{a},{n}\n" for n, a in enumerate(archs)))
    return path


def test_a_search_by_samples(lolat: Command, both: Path, tmp_path: Path) -> None:
    ask = ("nas", "search", CELLS, both, "--objective", scores(tmp_path, some_cells(20, seed=3)))
    answer = lolat.json(*ask)
    assert answer["predictor"] == "samples"
    for found in answer["front"]:
        assert found["latency_ms"] == pytest.approx(everything(found["arch"]), rel=0.05)
        low, high = found["interval_ms"]
        assert low < found["latency_ms"] < high
        assert found["in_domain"] is None
    told = lolat.done(*ask).out
    assert "latencies by 14 measured networks of nasbench201" in told
    # what is asked for by name, or at another batch size, is answered by the formula
    for more in (("--predictor", "extended"), ("--batch-size", 2)):
        assert lolat.answer(*ask, *more)["predictor"] == "extended"


def test_a_space_without_samples_is_answered_by_inference(
    lolat: Command, both: Path, tmp_path: Path
) -> None:
    layers = some_layers(4)
    ask = ("nas", "search", "fbnet", both, "--objective", scores(tmp_path, layers), "--json")
    assert json.loads(lolat.done(*ask).out)["predictor"] == "extended"


def test_samples_of_another_space_of_the_same_name_do_not_answer(both: Path) -> None:
    loaded = package.load(both)
    known = nasbench201.space()
    rows = known.sample(3)
    assert scorer_for(known, loaded).latency(rows).shape == (3,)
    for other in (nasbench201.space(size=64), small(CELLS)):
        with pytest.raises(
            InputError, match="has samples of LoLat's space nasbench201; this space of"
        ):
            scorer_for(other, loaded)
        assert scorer_for(other, loaded, 1, "extended").predictor == "extended"


def test_networks_of_two_sizes_are_kept_apart(lolat: Command, both: Path, tmp_path: Path) -> None:
    """Digits are of `fbnet`, or of `fbnet-cifar` where the model has samples of that."""
    layers = some_layers(12)
    samples = write_samples(tmp_path / "layers.csv", layers, layered)
    archs, output = tmp_path / "archs.csv", tmp_path / "out.csv"
    archs.write_text("arch\n" + "\n".join(layers) + "\n")
    ask = ("nas", "predict", both, archs, "--output", output)
    assert lolat.json(*ask)["space"] == "fbnet"
    lolat.done("nas", "fit", "fbnet-cifar", samples, "--output", both)
    told = lolat.json(*ask)
    assert (told["space"], told["predictor"]) == ("fbnet-cifar", "samples")
    search = ("nas", "search", "fbnet", both, "--objective", scores(tmp_path, layers))
    assert lolat.json(*search)["predictor"] == "extended"
    lolat.done("nas", "fit", "fbnet", samples, "--output", both)
    assert "are of fbnet and of fbnet-cifar, and the model has samples of both" in lolat.refused(
        *ask
    )
    assert lolat.json(*search)["predictor"] == "samples"


def test_a_model_of_another_space_alone_says_what_adds_it(
    lolat: Command, both: Path, tmp_path: Path
) -> None:
    document = json.loads(both.read_text())
    path = tmp_path / "space.json"
    kept = ("schema", "version", "name", "device", "environment", "spaces")
    path.write_text(json.dumps({key: document[key] for key in kept}))
    ask = ("--objective", scores(tmp_path, some_layers(3)))
    said = lolat.refused("nas", "search", "fbnet", path, *ask)
    assert f"{path} knows networks of nasbench201, but no networks of fbnet" in said
    assert f"`lolat nas fit fbnet SAMPLES.csv --output {path}`" in said
    found = lolat.done("nas", "search", CELLS, path, "--objective", scores(tmp_path, some_cells(5)))
    assert "latencies by 14 measured networks" in found.out
    said = lolat.refused("predict", path, "generate:fc")
    assert f"{path} knows networks of nasbench201, but no latencies of inference" in said


def test_predict_by_samples_or_inference(lolat: Command, both: Path, tmp_path: Path) -> None:
    archs, output = tmp_path / "archs.csv", tmp_path / "out.csv"
    for texts, by in ((some_cells(3), "samples"), (some_layers(3), "extended")):
        archs.write_text("arch\n" + "\n".join(texts) + "\n")
        ask = ("nas", "predict", both, archs, "--output", output, "--coverage", "0.8", "--json")
        told = json.loads(lolat.done(*ask).out)
        assert told["predictor"] == by
        with output.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["arch"] for row in rows] == texts
        assert all(
            float(r["latency_low_ms"]) < float(r["latency_ms"]) < float(r["latency_high_ms"])
            for r in rows
        )
    space = find_space("fbnet")
    wanted = package.load(both).predict(space.network(space.codec.parse_many(texts, str)[0]))
    assert float(rows[0]["latency_ms"]) == pytest.approx(wanted.latency_ms, rel=1e-5)


def test_a_whole_space_scored_by_samples(lolat: Command, both: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    ask = ("nas", "score", CELLS, both, "--output", tmp_path / "out", "--best", 3, "--limit", 50)
    told = lolat.done(*ask).out
    assert "latencies by 14 measured networks of nasbench201" in told
    answer = lolat.answer(*ask)
    assert (answer["predictor"], len(answer["best"])) == ("samples", 3)
    for found in answer["best"]:
        assert found["latency_ms"] == pytest.approx(everything(found["arch"]), rel=0.05)
    assert "another run" in lolat.refused(*ask, "--predictor", "extended")

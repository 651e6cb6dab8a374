"""What `lolat nas fit` wrote answers `nas search`, `score` and `predict`; else inference does."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import lolat as package
from lolat.nas.fewshot import fit, read_samples, space_terms
from lolat.nas.fewshot import write as write_space
from lolat.nas.objective import find_space
from tests.cli.commands import Command
from tests.nas.few_devices import everything, some_cells, some_layers, write_samples

CELLS = "nasbench201"


@pytest.fixture
def both(model: Path, tmp_path: Path) -> Path:
    """A model of inference that has samples of one space too."""
    samples = write_samples(tmp_path / "samples.csv", some_cells(14))
    write_space(model, fit(CELLS, read_samples(samples, space_terms(CELLS))))
    return model


def scores(tmp_path: Path, archs: list[str]) -> Path:
    path = tmp_path / "scores.csv"
    path.write_text("arch,score\n" + "".join(f"{a},{n}\n" for n, a in enumerate(archs)))
    return path


def test_a_search_by_samples(lolat: Command, both: Path, tmp_path: Path) -> None:
    ask = ("nas", "search", CELLS, both, "--objective", scores(tmp_path, some_cells(20, seed=3)))
    answer = json.loads(lolat.done(*ask, "--json").out)
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
        answer = json.loads(lolat.done(*ask, *more, "--json").out)
        assert answer["predictor"] == "extended"


def test_a_space_without_samples_is_answered_by_inference(
    lolat: Command, both: Path, tmp_path: Path
) -> None:
    layers = some_layers(4)
    ask = ("nas", "search", "fbnet", both, "--objective", scores(tmp_path, layers), "--json")
    assert json.loads(lolat.done(*ask).out)["predictor"] == "extended"


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
    answer = json.loads(lolat.done(*ask, "--json").out)
    assert (answer["predictor"], len(answer["best"])) == ("samples", 3)
    for found in answer["best"]:
        assert found["latency_ms"] == pytest.approx(everything(found["arch"]), rel=0.05)
    assert "another run" in lolat.refused(*ask, "--predictor", "extended")

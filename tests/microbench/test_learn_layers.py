"""From layers to a table of times, with a fake worker whose times are known."""

from __future__ import annotations

import gzip
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.mlp.devices import Device, read_devices
from lolat.mlp.table import LayerTable, read_table
from microbench import learn, learn_layers
from microbench.learn_layers import draw, measure_layers, name, write_csv, write_record
from microbench.runner import Runner
from tests.microbench.fakes import FakeDevice, FakeWorker

JUSTUS = (
    "gpu,run,batch_size,input_size,kernel_size,in_channels,out_channels,stride,padding,use_bias,"
    "activation,optimizer,time_ms_median,time_ms_min,time_ms_max,time_ms_std"
)
JUSTUS_DENSE = (
    "gpu,run,batch_size,in_features,out_features,activation,optimizer,time_ms_median,time_ms_min,"
    "time_ms_max,time_ms_std"
)


class Timed(FakeDevice):
    """Gives each visit of each layer a time of its own: 1, 2 ... ms in the order of the visits."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, list[float]] = {}
        self.disturbed: set[int] = set()  # visits beside a slow reference

    def start(self, backend: str, device: str) -> Any:
        super().start(backend, device)
        self.workers[-1] = TimedWorker(self, len(self.workers) - 1)
        return self.workers[-1]


class TimedWorker(FakeWorker):
    device: Timed

    def request(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        answer = super().request(document, limit_s)
        if document["do"] == "time":
            assert document["calls"] == 1
            times = self.device.given.setdefault(document["key"], [])
            times.append(float(len(times) + 1))
            slow = len(times) - 1 in self.device.disturbed
            return {"samples_ms": [times[-1]], "reference_ms": [5.0, 50.0 if slow else 5.0]}
        return answer


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Timed:
    found = Timed()
    monkeypatch.setattr(learn, "Runner", lambda b, d, p: Runner(b, d, p, found.start, found.clock))
    monkeypatch.setattr(
        learn_layers.environment,
        "device_label",
        lambda device, name=None, threads=None: name or "EPYC, 2 threads",
    )
    return found


def measure(path: Path, layers: LayerTable, **options: Any) -> Any:
    found = measure_layers("fake", options.pop("device", "cpu"), layers, path, 1e9, **options)
    found.journal.close()
    return found


def samples(measured: learn_layers.MeasuredLayers) -> list[list[float]]:
    """All raw times of each row."""
    return [[t for v in row for t in v.samples] for row in measured.visits]


def test_a_layer_is_asked_for_as_plain_data(device: Timed, tmp_path: Path) -> None:
    layers = draw("convolution", 30, 1, 1e9)
    measure(tmp_path / "j", layers)
    built = {r["key"]: r["job"] for r in device.requests if r["do"] == "prepare"}
    (reference,) = (key for key in built if key.startswith("reference"))
    assert "graph" in built.pop(reference)
    assert set(built) == {name(layers, row) for row in range(30)}
    wanted = {c: layers[c][4].item() for c in layers.columns}
    assert built[name(layers, 4)] == {"layer": {"layer": "convolution", **wanted}}
    assert json.loads(json.dumps(built)) == built


def test_each_layer_is_timed_five_times_in_random_order(device: Timed, tmp_path: Path) -> None:
    layers = draw("dense", 30, 1, 1e9)
    settings = replace(learn_layers.SETTINGS, together=20)
    measured = measure(tmp_path / "j", layers, settings=settings)
    timed = device.keys("time")
    assert len(timed) == 5 * 30
    # twenty at a time, each five times, and no round in the order of another
    first = [timed[i * 20 : (i + 1) * 20] for i in range(5)]
    assert all(set(r) == {name(layers, row) for row in range(20)} for r in first)
    assert len({tuple(r) for r in first}) == 5
    assert samples(measured) == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 30
    assert [[t for v in row for t in v.beside()] for row in measured.visits] == [[5.0] * 5] * 30


def test_times_are_median_least_most_and_deviation(device: Timed, tmp_path: Path) -> None:
    table = measure(tmp_path / "j", draw("dense", 20, 1, 1e9)).table
    assert table["time_ms_median"].tolist() == [3.0] * 20
    assert table["time_ms_min"].tolist() == [1.0] * 20
    assert table["time_ms_max"].tolist() == [5.0] * 20
    assert table["time_ms_std"] == pytest.approx(np.std([1, 2, 3, 4, 5]))
    assert table["gpu"].tolist() == ["EPYC 2 threads"] * 20, "a comma separates names"
    assert table["run"].tolist() == [0] * 20


def test_disturbed_repetitions_do_not_count(device: Timed, tmp_path: Path) -> None:
    device.disturbed = {1, 3}  # the times 2 and 4
    measured = measure(tmp_path / "j", draw("dense", 20, 1, 1e9))
    assert set(measured.table["time_ms_median"]) == {3.0}
    assert set(measured.table["time_ms_max"]) == {5.0}
    assert measured.table["time_ms_std"] == pytest.approx(statistics.pstdev([1, 3, 5]))
    assert samples(measured) == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 20, "every raw time is kept"
    assert measured.noise["calm_share"] == pytest.approx(1 - 2 / 10)
    assert len(device.keys("time")) == 100, "three calm ones are enough"


def test_the_csv_is_read_back_with_exactly_the_columns_of_the_paper(
    device: Timed, tmp_path: Path
) -> None:
    for kind, header in (("convolution", JUSTUS), ("dense", JUSTUS_DENSE)):
        layers = draw(kind, 25, 2, 1e9)
        table = measure(tmp_path / kind, layers).table
        path, zipped = tmp_path / f"{kind}.csv", tmp_path / f"{kind}.csv.gz"
        write_csv(path, table)
        write_csv(zipped, table)
        assert path.read_text().splitlines()[0] == header
        assert gzip.decompress(zipped.read_bytes()) == path.read_bytes()
        again = read_table(path, kind)
        assert len(again) == 25
        for column in layers.columns:
            assert again[column].tolist() == layers[column].tolist()
        assert again.times_ms.tolist() == table.times_ms.tolist()


def test_the_record_has_the_facts_and_every_raw_time(device: Timed, tmp_path: Path) -> None:
    measured = measure(tmp_path / "j", draw("dense", 20, 1, 1e9))
    facts = Device("EPYC 2 threads", 7.5, 64, 2596.0)
    path = tmp_path / "t.csv.devices.json"
    write_record(path, measured, facts, {"seed": 1, "most_work_macs": 1e9})
    assert read_devices(path) == {"EPYC 2 threads": facts}
    document = json.loads(path.read_text())
    assert document["layers"] == {"seed": 1, "most_work_macs": 1e9}
    assert document["environment"]["framework"] == "fake"
    assert len(document["points"]) == 20
    assert document["points"][3] == {
        "name": name(measured.table, 3), "samples_ms": [1.0, 2.0, 3.0, 4.0, 5.0],
        "reference_ms": [5.0] * 5,
    }  # fmt: skip


class TestRuns:
    def test_a_layer_that_kills_the_worker_is_left_out_and_said(
        self, device: Timed, tmp_path: Path
    ) -> None:
        layers = draw("convolution", 40, 1, 1e9)
        device.dies["prepare", name(layers, 7)] = 10**6
        measured = measure(tmp_path / "j", layers)
        kept = [name(measured.table, row) for row in range(len(measured.table))]
        assert kept == [name(layers, row) for row in range(40) if row != 7]
        assert "1 point could not be measured (first: conv" in measured.warnings[-1]
        assert set(measured.table["time_ms_median"]) == {3.0}

    def test_a_run_goes_on_with_its_own_layers(self, device: Timed, tmp_path: Path) -> None:
        layers = draw("dense", 20, 1, 1e9)
        first = measure(tmp_path / "j", layers)
        again = measure(tmp_path / "j", layers)
        assert len(device.keys("time")) == 100, "nothing twice"
        assert samples(again) == samples(first)
        measure(tmp_path / "j", draw("dense", 20, 2, 1e9))
        assert len(device.keys("time")) == 200
        assert (tmp_path / "j.old").exists()


def test_what_does_not_fit_into_memory_is_left_out(device: Timed, tmp_path: Path) -> None:
    layers = draw("dense", 40, 1)
    device.free_bytes = 64 * 2**20
    measured = measure(tmp_path / "j", layers, device="gpu")
    # 32 MiB for the function, weights twice over and what the optimizer keeps
    weights = 4 * layers["in_features"] * layers["out_features"]
    few = {name(layers, row) for row in range(40) if weights[row] > 32 * 2**20}
    kept = {name(measured.table, row) for row in range(len(measured.table))}
    assert few
    assert not kept & few
    assert 0 < len(kept) < 40

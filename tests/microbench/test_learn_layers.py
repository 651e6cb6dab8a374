"""From random layers to a table of times, with a fake worker whose times are known; facts of the device."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.graph.counts import count
from lolat.mlp.devices import DEVICES, Device, read_devices
from lolat.mlp.table import ACTIVATIONS, COLUMNS, OPTIMIZERS, LayerTable, read_table
from microbench import learn_layers
from microbench import learn_layers as facts_module
from microbench.journal import Journal
from microbench.learn_layers import (
    COPIES,
    EARLY_VISITS,
    MOST_NOTES,
    Pace,
    copy_bandwidth,
    cpu_facts,
    description,
    device_facts,
    draw,
    measure_layers,
    name,
    work,
    write_csv,
    write_record,
)
from microbench.runner import Job, Runner, Settings
from tests.microbench.conftest import measured_by
from tests.microbench.fakes import FakeDevice, FakeWorker, Watcher
from tests.mlp.tables import layer_graph

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
    measured_by(monkeypatch, found)
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


# ---- What a watcher sees of a run in groups: one stage, and how long the rest takes


JOBS = [Job(str(i), {}) for i in range(40)]
SETTINGS = Settings(rounds=2, slice_s=0.0, extra_s=1e9, together=16, least_quiet=2)


def run(device: FakeDevice, watcher: Watcher, journal: Journal | None = None) -> None:
    with Runner("fake", "cpu", watcher, device.start, device.clock) as runner:
        runner.progress = Pace(watcher, len(JOBS), SETTINGS.rounds, runner.clock)
        runner.run(JOBS, Job("reference", {}), SETTINGS, journal)


def test_one_stage_whose_steps_are_builds_and_visits() -> None:
    device, watcher = FakeDevice(), Watcher()
    device.noisy = {"3", "20"}  # visited once more and again
    run(device, watcher)
    assert watcher.stages == [("measuring", 120)]
    assert watcher.steps == 120
    assert device.keys("time").count("20") > 2


@pytest.mark.parametrize(("each_s", "unit_s", "unit"), [(2.0, 60, "minutes"), (0.1, 1, "s")])
def test_the_time_left_is_that_of_the_pace_so_far(each_s: float, unit_s: int, unit: str) -> None:
    device, watcher = FakeDevice(), Watcher()
    device.request_s = each_s
    run(device, watcher)
    # After 16 builds and 30 visits: 24 builds and 80 - 30 visits to go, each as long as a request. (The
    # reference was built too, in the first visit's time: 31 requests in 30 visits.)
    left = each_s * (24 + 50 * 31 / EARLY_VISITS) / unit_s
    assert watcher.notes == [f"about {left:.0f} {unit} for the layers that are left"]
    assert watcher.steps_at_note == [16 + 30]


@pytest.mark.parametrize("after", [1, 32, 44, 79, 80])
def test_what_was_measured_before_is_passed_over(tmp_path: Path, after: int) -> None:
    journal = Journal(tmp_path / "j", {}, 0.0)
    run(FakeDevice(), Watcher(), journal)
    del journal.records[after:]
    device, watcher = FakeDevice(), Watcher()
    device.request_s = 2.0
    run(device, watcher, journal)
    journal.close()
    assert len(device.keys("time")) == 80 - after
    assert watcher.stages == [("measuring", 120)]
    assert watcher.steps == 120
    assert len(watcher.notes) == (1 if 80 - after > EARLY_VISITS else 0)


def test_only_the_first_of_many_remarks_are_shown() -> None:
    device, watcher = FakeDevice(), Watcher()
    device.request_s = 2.0
    for job in JOBS[:20]:
        device.refuses["prepare", job.key] = 1
    run(device, watcher)
    refused = [n for n in watcher.notes if "ResourceExhausted" in n]
    assert len(refused) == MOST_NOTES
    assert "more remarks like these are not shown" in watcher.notes
    assert any("layers that are left" in n for n in watcher.notes)


# ---- Facts of the device: given, built in, or found on this computer


CPUINFO = "model name\t: Some CPU\ncpu MHz\t\t: 2100.5\nflags\t\t: fpu sse2 {flags}\ncpu MHz\t\t: 2300.0\n"


def system(folder: Path, cpuinfo: str = "", clock_khz: str = "") -> Path:
    """A folder with what the system says of its processors."""
    clock = "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    for said, text in {"proc/cpuinfo": cpuinfo, clock: clock_khz}.items():
        if text:
            (folder / said).parent.mkdir(parents=True, exist_ok=True)
            (folder / said).write_text(text)
    return folder


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "cpu_count", lambda: 2)
    monkeypatch.setattr(facts_module, "copy_bandwidth", lambda threads, clock: 10.04 * threads)


@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize(("flags", "lanes"), [("avx2 fma avx512f", 32), ("avx2 fma", 16), ("", 4)])
def test_a_processor_in_the_terms_of_a_gpu(tmp_path: Path, flags: str, lanes: int) -> None:
    found = cpu_facts("desk", system(tmp_path, CPUINFO.format(flags=flags)))
    assert found == Device("desk", 20.1, 2 * lanes, 2300.0)


@pytest.mark.usefixtures("two_processors")
def test_the_highest_clock_where_the_system_says_it(tmp_path: Path) -> None:
    found = cpu_facts("desk", system(tmp_path, CPUINFO.format(flags=""), "3700000\n"))
    assert found.clock_mhz == 3700.0


@pytest.mark.usefixtures("two_processors")
def test_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert cpu_facts("desk", tmp_path) == Device("desk", 20.1, 8, 2500.0)
    monkeypatch.setattr("sys.platform", "darwin")
    assert cpu_facts("desk", tmp_path).cores == 16


def test_bandwidth_is_twice_the_copied_bytes_in_the_fastest_time() -> None:
    def ticks() -> Iterator[float]:
        now = 0.0
        for number in range(COPIES + 1):
            yield now
            now += 0.5 if number == 3 else 2.0
            yield now

    clock = ticks()
    # 1,000,000 bytes read and as many written in 0.5 s
    assert copy_bandwidth(3, lambda: next(clock), 1_000_000) == pytest.approx(0.004)


def test_given_facts_come_first_then_built_in_ones_then_those_found() -> None:
    given = {"desk": Device("desk", 1.0, 2, 3000.0), "V100": Device("V100", 5.0, 2, 1000.0)}

    def found(name: str) -> Device:
        return Device(name, 9.0, 9, 900.0)

    assert device_facts("cpu", "desk", given, found) is given["desk"]
    assert device_facts("gpu", "NVIDIA V100", given, found) is given["V100"]
    assert device_facts("gpu", "Tesla P100", {}, found) is DEVICES["P100"]
    assert device_facts("cpu", "lap", given, found).bandwidth_gbs == 9.0


def test_a_gpu_that_nobody_knows() -> None:
    with pytest.raises(InputError, match=r"unknown GPU 'Banana 9000'.*--facts FILE"):
        device_facts("gpu", "Banana 9000", {})


# ---- Random layers: the paper's ranges, the cap on work, the same ones for the same seed


KINDS = ("convolution", "dense")


def rows(table: LayerTable) -> list[tuple[object, ...]]:
    columns = [c for c in COLUMNS[table.layer] if c != "gpu"]
    return list(zip(*(table[c].tolist() for c in columns), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_layers_and_fewer_are_the_first_of_more(kind: str) -> None:
    many = rows(draw(kind, 500, 3, 1e9))
    assert rows(draw(kind, 500, 3, 1e9)) == many
    assert rows(draw(kind, 60, 3, 1e9)) == many[:60]
    assert rows(draw(kind, 500, 4, 1e9)) != many
    assert len(set(many)) == 500


def test_convolutions_cover_the_ranges_of_the_paper() -> None:
    table = draw("convolution", 20_000, 1)
    for column, low, high in (
        ("batch_size", 1, 64), ("input_size", 1, 512), ("kernel_size", 1, 7), ("stride", 1, 4),
        ("use_bias", 0, 1),
    ):  # fmt: skip
        assert (table[column].min(), table[column].max()) == (low, high), column
    for channels in ("in_channels", "out_channels"):
        product = table[channels] * table["input_size"]
        assert table[channels].min() == 1
        assert 9_900 < product.max() <= 10_000
        # uniform up to a limit that depends on the size: half of the limit on average
        assert np.mean(table[channels] / (10_000 // table["input_size"])) == pytest.approx(
            0.5, abs=0.02
        )
    assert (table["kernel_size"] <= table["input_size"]).all()
    # as likely as the others, but for the few inputs that are smaller than 7
    shares = Counter(table["kernel_size"].tolist())
    assert all(abs(shares[k] / 20_000 - 1 / 7) < 0.015 for k in range(1, 8))


def test_dense_layers_cover_the_ranges_of_the_paper() -> None:
    table = draw("dense", 20_000, 1)
    for features in ("in_features", "out_features"):
        assert 1 <= table[features].min() < 10
        assert 4_085 < table[features].max() <= 4_095
        assert table[features].mean() == pytest.approx(2_048, rel=0.02)


@pytest.mark.parametrize("most", [None, 1e9])
@pytest.mark.parametrize("kind", KINDS)
def test_half_are_forward_only_and_every_word_is_as_likely(kind: str, most: float | None) -> None:
    table = draw(kind, 6_000, 2, most)
    optimizers = Counter(table["optimizer"].tolist())
    assert set(optimizers) == set(OPTIMIZERS)
    assert optimizers.pop("none") == pytest.approx(3_000, rel=0.06)
    assert all(n == pytest.approx(500, rel=0.2) for n in optimizers.values())
    activations = Counter(table["activation"].tolist())
    assert set(activations) == set(ACTIVATIONS)
    assert all(n == pytest.approx(1_500, rel=0.2) for n in activations.values())


@pytest.mark.parametrize("kind", KINDS)
def test_no_layer_has_more_work_than_allowed(kind: str) -> None:
    small = draw(kind, 300, 5, 2e8)
    assert work(small).max() <= 2e8
    assert work(draw(kind, 300, 5)).max() > 2e9


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.integers(0, 1_000))
def test_work_is_that_of_the_layer_as_a_network(kind: str, seed: int) -> None:
    table = draw(kind, 3, seed, 1e9)
    for row, found in enumerate(work(table)):
        total = count(layer_graph(table, row)).total(int(table["batch_size"][row]))
        moved = total.acts + total.inp + total.traffic + total.weights
        passes = 1 if table["optimizer"][row] == "none" else 3
        assert found == passes * (total.flops + 64 * moved)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_as_plain_data_and_in_words(kind: str) -> None:
    table = draw(kind, 400, 6, 1e9)
    assert len({name(table, row) for row in range(400)}) == 400
    plain = description(table, 7)
    assert plain["layer"] == kind
    assert tuple(plain.values())[1:] == rows(table)[7]
    assert {type(v) for v in plain.values()} == {int, str}


def test_words_for_a_layer_by_hand() -> None:
    columns = {
        "batch_size": [8], "input_size": [56], "kernel_size": [3], "in_channels": [64],
        "out_channels": [128], "stride": [2], "padding": ["valid"], "use_bias": [1],
        "activation": ["relu"], "optimizer": ["adam"],
    }  # fmt: skip
    table = LayerTable("convolution", {c: np.array(v) for c, v in columns.items()})
    assert name(table, 0) == "conv 3x3/2 valid 64x56x56 to 128, relu, bias, x8, adam"
    # 27x27 outputs: 3 x (MACs + 64 x (outputs + inputs + what ReLU reads and writes + weights))
    out = 8 * 27 * 27 * 128
    inside, weights = 8 * 56 * 56 * 64, 3 * 3 * 64 * 128 + 128
    assert work(table)[0] == 3 * (out * 9 * 64 + 64 * (3 * out + inside + weights))


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(
        InputError, match=r"random convolution layers 0 have at most 10 MACs of work"
    ):
        draw("convolution", 20, 1, 10.0)
    with pytest.raises(
        InputError, match="unknown kind of layer 'lstm'; expected convolution or dense"
    ):
        draw("lstm", 20, 1)

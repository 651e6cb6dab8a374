"""Measures random layers of this device, for the companion to be trained on: times as in its table."""

from __future__ import annotations

import gzip
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.io.documents import to_json
from lolat.io.progress import Progress
from lolat.io.tables import to_csv
from lolat.io.writing import write_bytes
from lolat.mlp.devices import DEVICES, Device, find, known, merged
from lolat.mlp.table import (
    ACTIVATIONS,
    COLUMNS,
    LAYERS,
    OPTIMIZERS,
    PADDINGS,
    SPREADS,
    TIME,
    LayerTable,
    layer_counts,
    layer_name,
)
from microbench import environment
from microbench.environment import SYSTEM, cpu_count, text
from microbench.journal import Journal
from microbench.learn import Check, noise_beside, run_jobs, warnings
from microbench.runner import (
    ITEM_BYTES,
    OVERHEAD_BYTES,
    Job,
    Outcome,
    Settings,
    reference_job,
)
from microbench.timing import (
    ENOUGH_QUIET,
    Clock,
    Visit,
    center,
    final_limit,
    is_quiet,
    quiet_samples,
)

# ---- Random layers to measure, drawn as Justus et al. 2018 drew theirs, without those that
# take too long.
#
# The ranges are those of the measurements behind the paper (all ends are included, each value is as likely
# as the others):
#
#     both         batch 1 to 64; activation none, relu, tanh, sigmoid; half of the layers forward only, the
#                  others with one of six optimizers
#     convolution  input size 1 to 512, kernel 1 to 7 but no larger than the input, channels in and out 1 to
#                  10,000 / input size, stride 1 to 4, padding same or valid, with or without a bias
#     dense        features in and out 1 to 4095, always a bias

LARGEST_BATCH = 64
LARGEST_SIZE = 512
LARGEST_KERNEL = 7
LARGEST_STRIDE = 4
LARGEST_FEATURES = 4095
SHARE_FORWARD = 0.5
CHANNELS_TIMES_SIZE = 10_000  # at most, on either side

ELEMENT_MACS = 64
"""Multiply-accumulates that take as long as moving an element: of a processor of 64 GMAC/s and 4 GB/s."""
PASSES = 3
"""Forward and backward against forward: the gradients of weights and of input cost about as much each."""
MOST_WORK = {"cpu": 1e9, "gpu": None}
"""Device -> the most work of a layer (see `work`) that is measured; None: there is no limit."""

_BATCH = 4096  # drawn at a time; always the same, so that fewer points are the first ones of more
_MOST_BATCHES = 200


def draw(layer: str, points: int, seed: int, most_work: float | None = None) -> LayerTable:
    """`points` different layers of a kind, "convolution" or "dense", without GPU and times.

    Where one has more than `most_work` (see `work`) another is drawn with an optimizer if it has one,
    else without, so that half of them stay forward only; they are smaller than the paper's. The same seed
    gives the same layers, and fewer points the first ones of more. Raises InputError where hardly any
    layer is that small.
    """
    if layer not in LAYERS:
        raise InputError(f"unknown kind of layer {layer!r}; expected {' or '.join(LAYERS)}")
    generator, coin = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    wanted = coin.random(points) < SHARE_FORWARD
    columns = _columns(layer)
    rows: dict[bool, dict[tuple[Any, ...], None]] = {True: {}, False: {}}  # forward only or not
    for _ in range(_MOST_BATCHES):
        if all(len(rows[forward]) >= (wanted == forward).sum() for forward in rows):
            left = {forward: iter(drawn) for forward, drawn in rows.items()}
            values = zip(*(next(left[bool(forward)]) for forward in wanted), strict=True)
            return LayerTable(layer, {c: np.array(v) for c, v in zip(columns, values, strict=True)})
        drawn = _drawn(layer, generator)
        if most_work is not None:
            drawn = drawn.select(work(drawn) <= most_work)
        for row in zip(*(drawn[c].tolist() for c in columns), strict=True):
            rows[row[-1] == "none"][row] = None
    raise InputError(
        f"of {_BATCH * _MOST_BATCHES} random {layer} layers {sum(map(len, rows.values()))} have at most "
        f"{most_work:g} MACs of work; expected {points}: allow larger ones"
    )


def work(table: LayerTable) -> np.ndarray:
    """(n,) how much there is to do in each layer of n, in MACs: comparable to time on a processor.

    Multiply-accumulates, and ELEMENT_MACS for each element read or written (input, output, weights,
    what the activation reads and writes); PASSES times where there is an optimizer.
    """
    acts, inp, flops, traffic, weights, _ = layer_counts(table).T
    passes = np.where(table["optimizer"] == "none", 1, PASSES)
    macs: np.ndarray = passes * (flops + ELEMENT_MACS * (acts + inp + traffic + weights))
    return macs


def description(table: LayerTable, row: int) -> dict[str, Any]:
    """One layer as plain data: its kind under "layer", and its columns."""
    return {"layer": table.layer, **{c: table[c][row].item() for c in _columns(table.layer)}}


def name(table: LayerTable, row: int) -> str:
    """One layer in words that tell it from every other: "conv 3x3 64x56x56 to 128, bias, x8, adam"."""
    bias = ", bias" if "use_bias" in table and table["use_bias"][row] else ""
    optimizer = str(table["optimizer"][row])
    return (
        f"{layer_name(table, row)}{bias}, x{int(table['batch_size'][row])}, "
        f"{'forward' if optimizer == 'none' else optimizer}"
    )


def _columns(layer: str) -> tuple[str, ...]:
    return tuple(c for c in COLUMNS[layer] if c != "gpu")


def _drawn(layer: str, generator: np.random.Generator) -> LayerTable:
    """_BATCH layers of the paper's ranges."""

    def whole(low: int, high: int | np.ndarray) -> np.ndarray:
        return generator.integers(low, high, _BATCH, endpoint=True)

    columns: dict[str, np.ndarray] = {"batch_size": whole(1, LARGEST_BATCH)}
    if layer == "convolution":
        size = whole(1, LARGEST_SIZE)
        columns |= {
            "input_size": size,
            "kernel_size": whole(1, np.minimum(size, LARGEST_KERNEL)),
            "in_channels": whole(1, CHANNELS_TIMES_SIZE // size),
            "out_channels": whole(1, CHANNELS_TIMES_SIZE // size),
            "stride": whole(1, LARGEST_STRIDE),
            "padding": generator.choice(PADDINGS, _BATCH),
            "use_bias": whole(0, 1),
        }
    else:
        columns |= {f: whole(1, LARGEST_FEATURES) for f in ("in_features", "out_features")}
    columns["activation"] = generator.choice(ACTIVATIONS, _BATCH)
    backward = generator.choice([o for o in OPTIMIZERS if o != "none"], _BATCH)
    columns["optimizer"] = np.where(generator.random(_BATCH) >= SHARE_FORWARD, backward, "none")
    return LayerTable(layer, columns)


# ---- How far a run of many small jobs is: one stage for all its groups, and early on how long
# it will take.

EARLY_VISITS = 30  # after so many the pace is known
PASSED_OVER_S = 1e-3  # a step that takes less was no visit
MOST_NOTES = 10  # of thousands of jobs many may fail, and the run says at its end how many


class Pace:
    """Progress for a runner that passes a single stage on to `shown`: a step per job built and per visit.

    `jobs` are visited `rounds` times each, in groups of which one is done before the next begins; what
    was measured before is passed over in a step, and visits made once more are not shown. After some
    visits it says how long the rest takes.
    """

    def __init__(self, shown: Progress, jobs: int, rounds: int, clock: Clock) -> None:
        self.shown, self.jobs, self.rounds, self.clock = shown, jobs, rounds, clock
        self.stage = ""
        self.last = 0.0  # when the stage or its last step began
        self.told = False
        self.notes = 0
        self.seen = self.left = 0  # jobs of the groups so far; steps of this group
        self.building: list[float] = []  # seconds of each job of this group
        self.visiting: list[float] = []  # of each visit

    def start(self, text: str, total: int) -> None:
        """A stage of a group begins."""
        if not self.stage:
            self.shown.start("measuring", self.jobs * (1 + self.rounds))
        if text == "building":
            self.building = []
        elif text == "measuring":
            group = total // self.rounds
            self.seen += group
            self.left = total
            for _ in range(group - len(self.building)):
                self.shown.step()
        self.stage, self.last = text, self.clock()

    def step(self) -> None:
        """A step of the stage: a job was built, or a visit begins."""
        now = self.clock()
        took, self.last = now - self.last, now
        if self.stage == "building":
            self.building.append(took)
        elif self.stage == "measuring":
            if took > PASSED_OVER_S:  # of the visit before
                self.visiting.append(took)
            if len(self.visiting) >= EARLY_VISITS and self.building and not self.told:
                self._tell()
            self.left -= 1
        else:
            return
        self.shown.step()

    def note(self, text: str) -> None:
        """A remark for the user; what comes after MOST_NOTES is not shown."""
        self.notes += 1
        if self.notes <= MOST_NOTES:
            self.shown.note(text)
        elif self.notes == MOST_NOTES + 1:
            self.shown.note("more remarks like these are not shown")

    def _tell(self) -> None:
        """How long the rest takes, if it goes on like this."""
        self.told = True
        rest = self.jobs - self.seen
        visit_s, build_s = map(statistics.fmean, (self.visiting, self.building))
        left = rest * build_s + (rest * self.rounds + self.left) * visit_s
        words = f"{left / 60:.0f} minutes" if left >= 90 else f"{left:.0f} s"
        self.shown.note(f"about {words} for the layers that are left")


# ---- Facts of the device that layers were measured on, as the companion knows those of GPUs.

COPY_BYTES = 256 * 2**20  # more than caches hold
COPIES = 5
USUAL_CLOCK_MHZ = 2500.0  # where the system does not say

# Vector units -> float32 multiply-accumulates per processor and clock: two units of 16, 8 or 4 numbers.
_LANES = (("avx512f", 32), ("fma", 16), ("asimd", 8))
_FEWEST_LANES = 4


def device_facts(
    device: str,
    name: str,
    given: Mapping[str, Device],
    measure: Callable[[str], Device] | None = None,
) -> Device:
    """The facts of the device called `name`: those `given`, or built in, or, of a CPU, found here.

    `measure`: how they are found, `cpu_facts` if None. InputError for a GPU that is not known.
    """
    devices = merged(DEVICES, given)
    if (device_known := find(name, devices)) is not None:
        return device_known
    if device == "cpu":
        return (measure or cpu_facts)(name)
    return known([name], devices)[name]


def cpu_facts(name: str, system: Path = SYSTEM, clock: Clock = time.perf_counter) -> Device:
    """What this computer's processors can do, in the terms of a GPU.

    Bandwidth: a copy of COPY_BYTES by all processors, counted as read and written, the fastest of
    COPIES. Cores: what multiplies and accumulates one float32 number per clock, so 16 or 32 per processor
    with wide vector units. Clock: the highest that the system says, USUAL_CLOCK_MHZ if it says none.
    """
    return Device(
        name,
        bandwidth_gbs=round(copy_bandwidth(cpu_count(), clock), 1),
        cores=cpu_count() * _lanes(system),
        clock_mhz=_clock_mhz(system),
    )


def copy_bandwidth(threads: int, clock: Clock, size_bytes: int = COPY_BYTES) -> float:
    """GB/s (1e9 bytes) that `threads` threads read and write while copying `size_bytes`; best of COPIES."""
    source = np.ones(size_bytes, np.uint8)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES + 1):  # the first one gets the memory from the system
            start = clock()
            list(pool.map(lambda part: np.copyto(*part), parts))
            best = min(best, clock() - start)
    return 2 * size_bytes / best / 1e9


def _lanes(system: Path) -> int:
    sets = environment.facts(system).get("instruction_sets")
    if not sets and sys.platform == "darwin":
        sets = ["asimd"]
    return next((lanes for word, lanes in _LANES if word in (sets or ())), _FEWEST_LANES)


def _clock_mhz(system: Path) -> float:
    said = text(system / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if said.isdigit() and int(said) > 0:
        return int(said) / 1e3
    now = re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", text(system / "proc/cpuinfo"), re.MULTILINE)
    return max(map(float, now), default=USUAL_CLOCK_MHZ)


# ---- A run, and the files of what it measured

SETTINGS = Settings(
    rounds=5,  # repetitions, as in the paper
    slice_s=0.0,  # one call each
    extra_s=60.0,
    least_quiet=ENOUGH_QUIET,
    together=100,
)
SLOTS = 2  # at most: numbers that an optimizer keeps per weight
TENSORS_AT_ONCE = 5  # of the size of input and output while a layer is trained, at most
TIMES = (TIME, *SPREADS)


@dataclass(frozen=True)
class MeasuredLayers:
    """What a run measured; the journal is still on disk.

    `table`: the layers that could be measured, with GPU, run and times; `visits`: all times of each row.
    """

    table: LayerTable
    visits: Sequence[Sequence[Visit]]
    environment: Mapping[str, Any]
    noise: Mapping[str, Any]
    warnings: Sequence[str]
    journal: Journal


def measure_layers(
    backend: str,
    device: str,
    layers: LayerTable,
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    settings: Settings = SETTINGS,
    check: Check | None = None,
) -> MeasuredLayers:
    """Time each of `layers` (without GPU and times) several times, in random order; see `run_jobs`."""
    jobs = [_job(layers, row) for row in range(len(layers))]

    with run_jobs(
        backend, device, jobs, reference_job(), settings, journal_path, now, restart, progress, check,
        "layers", lambda r: Pace(r.progress, len(jobs), settings.rounds, r.clock),
    ) as (_, outcome, journal):  # fmt: skip
        return _measured(layers, jobs, gpu_name(device, outcome.environment), outcome, journal)


def gpu_name(device: str, where: Mapping[str, Any]) -> str:
    """What the column `gpu` says: the device's name, without the commas that separate names."""
    return environment.label_of(device, where).replace(",", "")


def write_csv(path: Path, table: LayerTable) -> None:
    """The table as a CSV with the columns of the data behind Justus et al. 2018; see `write_bytes`.

    Gzipped where the name ends in .gz.
    """
    names = ("gpu", "run", *COLUMNS[table.layer][1:], *TIMES)
    columns = [[f"{t:.6g}" for t in table[n]] if n in TIMES else table[n].tolist() for n in names]
    content = to_csv(names, zip(*columns, strict=True)).encode()
    write_bytes(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_record(
    path: Path, measured: MeasuredLayers, fact: Device, drawn: Mapping[str, Any]
) -> None:
    """What a CSV has no column for: the device's facts as `--facts` reads them, where, how, raw times.

    `drawn`: how the layers were chosen. See `write_bytes`.
    """
    document = {
        "devices": {fact.name: fact.to_dict()},
        "layers": dict(drawn),
        "environment": dict(measured.environment),
        "noise": dict(measured.noise),
        "warnings": list(measured.warnings),
        "points": [
            {
                "name": name(measured.table, row),
                "samples_ms": [round(t, 5) for v in visits for t in v.samples],
                "reference_ms": [round(t, 5) for v in visits for t in v.beside()],
            }
            for row, visits in enumerate(measured.visits)
        ],
    }
    write_bytes(path, to_json(document).encode("ascii"))


def _job(layers: LayerTable, row: int) -> Job:
    """A row as a job, with the memory that it needs (float32)."""
    one = layers.select(np.array([row]))
    acts, inp, _, traffic, weights, _ = (int(n) for n in layer_counts(one)[0])
    trained = one["optimizer"][0] != "none"
    moved = acts + inp + traffic  # of a dense layer, its input and output are traffic
    keep = moved + weights * (1 + SLOTS * trained)
    need = keep + moved * (TENSORS_AT_ONCE if trained else 1) + weights * (1 + trained)
    return Job(
        key=name(layers, row),
        payload={"layer": description(layers, row)},
        need_bytes=ITEM_BYTES * need + OVERHEAD_BYTES,
        keep_bytes=ITEM_BYTES * keep,
    )


def _measured(
    layers: LayerTable, jobs: Sequence[Job], gpu: str, outcome: Outcome, journal: Journal
) -> MeasuredLayers:
    limit = final_limit(outcome.visits.values())
    rows = [row for row, job in enumerate(jobs) if outcome.visits.get(job.key)]
    visits = [outcome.visits[jobs[row].key] for row in rows]
    times = np.array([_times(v, limit) for v in visits])
    table = LayerTable(
        layers.layer,
        {
            "gpu": np.full(len(rows), gpu),
            "run": np.zeros(len(rows), np.int64),
            **layers.select(np.array(rows)).columns,
            **dict(zip(TIMES, times.T, strict=True)),
        },
    )
    noisy = [jobs[row].key for row, v in zip(rows, visits, strict=True) if not is_quiet(v, limit)]
    relative = [float(std / median) for median, _, _, std in times]
    noise = noise_beside(outcome.reference(), limit, relative, len(noisy))
    return MeasuredLayers(
        table,
        visits,
        outcome.environment,
        noise,
        warnings(outcome.environment, noise, outcome.failures, noisy),
        journal,
    )


def _times(visits: Sequence[Visit], limit: float) -> tuple[float, float, float, float]:
    """(center, least, most, standard deviation) in ms: of quiet moments where there are enough."""
    counted = quiet_samples(visits, limit)
    if not is_quiet(visits, limit):
        counted = [t for v in visits for t in v.samples]
    return center(visits, limit), min(counted), max(counted), statistics.pstdev(counted)

"""A space scored into files in this process: rows, the best, going on, and what is refused."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import math
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError, MissingPackageError
from lolat.model import Model
from lolat.nas import scoring_job
from lolat.nas.scoring import ScoreAnswer, here, make_job, require_run, run, size_bytes
from lolat.nas.scoring_job import Job, Range, score_range
from lolat.nas.space import Position, Space
from lolat.nas.spaces import nasbench201
from tests import synthetic
from tests.nas.ray_spaces import most_convolutions, wrong_shape

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

SIZE = 5**6
SPACE = nasbench201.space()
MODEL = Model(synthetic.document(), "desk")
JobOf = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path) -> JobOf:
    """Makes a job of the space in a folder below the test's own."""
    return lambda folder="out", **options: make_job(SPACE, MODEL, tmp_path / folder, **options)


@pytest.fixture(scope="module")
def truth() -> tuple[np.ndarray, np.ndarray]:
    """All rows in the order of an odometer, and their latencies from their whole counts."""
    rows = np.array(list(itertools.product(range(5), repeat=6)), np.int8)
    formula = MODEL.predictor(None)
    columns = [synthetic.COLUMNS.index(f) for f in formula.features]
    counts = SPACE.counts(rows)[:, columns]
    return rows, counts @ np.asarray(formula.slopes) + formula.constant


def table(done: ScoreAnswer) -> Any:
    """All rows that a run wrote, as its user reads them."""
    return pandas.read_parquet(done.job.folder)


def same(a: ScoreAnswer, b: ScoreAnswer) -> bool:
    pandas.testing.assert_frame_equal(table(a), table(b))
    return (a.scored, a.kept, a.best) == (b.scored, b.kept, b.best)


def test_every_candidate_is_there_once_and_in_order(job: JobOf, truth: Any, tmp_path: Path) -> None:
    rows, times = truth
    found = run(job(chunk=4000))
    frame = table(found)
    assert list(frame.columns) == ["index", "latency_ms", *nasbench201.POSITIONS]
    assert frame["index"].tolist() == list(range(SIZE))
    np.testing.assert_allclose(frame["latency_ms"], times, rtol=1e-12)
    assert (frame[list(nasbench201.POSITIONS)].to_numpy() == rows).all()
    assert (found.scored, found.kept, found.reused) == (SIZE, SIZE, 0)
    assert sorted(p.name for p in (tmp_path / "out").glob("*.parquet")) == [
        "part-00000-04000.parquet", "part-04000-08000.parquet", "part-08000-12000.parquet",
        "part-12000-15625.parquet",
    ]  # fmt: skip
    for index in (0, 7777, SIZE - 1):
        predicted = MODEL.predict(SPACE.network(rows[index])).latency_ms
        assert frame["latency_ms"][index] == pytest.approx(predicted)


def test_what_takes_longer_is_dropped_and_the_best_are_the_fastest(
    job: JobOf, truth: Any, tmp_path: Path
) -> None:
    rows, times = truth
    limit = float(np.quantile(times, 0.3))
    found = run(job(max_ms=limit, chunk=1000, best=17))
    frame = table(found)
    assert frame["index"].tolist() == np.flatnonzero(times <= limit).tolist()
    assert found.kept == len(frame) < SIZE
    written_ms = dict(zip(frame["index"], frame["latency_ms"], strict=True))
    fastest = sorted(written_ms, key=lambda i: (written_ms[i], i))[:17]
    assert [index for _, index, _ in found.best] == fastest
    written = list(csv.DictReader((tmp_path / "out/_best.csv").open()))
    assert [int(row["index"]) for row in written] == fastest
    archs = [nasbench201.parse(row["arch"]).tolist() for row in written]
    assert archs == [list(rows[i]) for i in fastest]
    assert found.to_dict()["best"][0] == {
        "index": fastest[0], "arch": written[0]["arch"], "latency_ms": float(written[0]["latency_ms"])
    }  # fmt: skip


def test_the_best_by_a_value_of_ones_own(job: JobOf, truth: Any) -> None:
    rows, times = truth
    # Between two times, that the order in which terms are added does not decide: some are alike.
    ordered = np.sort(times)
    middle = len(times) // 2
    above = ordered[middle:][ordered[middle:] > ordered[middle] * (1 + 1e-9)][0]
    limit = float(above + ordered[ordered < above * (1 - 1e-9)][-1]) / 2
    options = {"chunk": 2000, "best": 30, "label": "arch", "value_name": "most_convolutions"}
    found = run(job(max_ms=limit, value=most_convolutions, **options))
    able = np.flatnonzero(times <= limit)
    convolutions = (rows == 3).sum(axis=1)
    expected = sorted(able, key=lambda i: (-convolutions[i], i))[:30]
    assert [index for _, index, _ in found.best] == expected
    assert [-v for v, _, _ in found.best] == convolutions[expected].tolist()
    frame = table(found)
    assert list(frame.columns) == ["index", "latency_ms", "value", "arch"]
    assert (nasbench201.parse_many(list(frame["arch"])) == rows[able]).all()
    assert frame["value"].tolist() == convolutions[able].tolist()
    assert found.to_dict()["best"][0]["value"] == convolutions[expected[0]]


def test_a_value_that_is_no_number_is_never_the_best(job: JobOf) -> None:
    def mostly_nan(rows: np.ndarray) -> np.ndarray:
        return np.where(rows[:, 5] == 2, rows[:, 4].astype(float), math.nan)

    found = run(job(best=5, limit=25, value=mostly_nan, value_name="f"))
    assert [(i, -v) for v, i, _ in found.best] == [(22, 4), (17, 3), (12, 2), (7, 1), (2, 0)]
    with pytest.raises(InputError, match=r"value returned an array of shape \(100, 2\)"):
        run(job("wrong", limit=100, value=wrong_shape, value_name="w"))
    with pytest.raises(InputError, match=r"value failed: SystemExit: 0; expected a number for"):
        run(job("left", limit=100, value=lambda rows: sys.exit(0), value_name="w"))


def test_only_the_best_of_each_range(job: JobOf) -> None:
    whole = run(job("all", chunk=3000, best=7))
    found = run(job("best", chunk=3000, best=7, only_best=True))
    assert (found.best, found.kept) == (whole.best, whole.kept)
    frame, every = table(found), table(whole)
    assert len(frame) == 7 * 6
    assert {i for _, i, _ in whole.best} <= set(frame["index"])
    of_all = every.set_index("index").loc[frame["index"]].reset_index()
    pandas.testing.assert_frame_equal(frame, of_all)


@pytest.mark.parametrize("piece", [64, 1000])
def test_pieces_do_not_show(piece: int, job: JobOf, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(job("whole", best=40, max_ms=7.0, limit=5000))
    monkeypatch.setattr(scoring_job, "PIECE", piece)
    assert same(run(job("parts", best=40, max_ms=7.0, limit=5000, chunk=1700)), whole)


def test_a_range_of_which_nothing_is_kept(job: JobOf) -> None:
    for reused in (0, 2):
        found = run(job(max_ms=1e-6, chunk=8000))
        assert (found.kept, found.best, len(table(found)), found.reused) == (0, (), 0, reused)


class Stop(Exception):
    pass


def test_a_run_that_stopped_goes_on_where_it_was(job: JobOf, tmp_path: Path) -> None:
    undisturbed = run(job("a", chunk=2000, best=12))
    folder = tmp_path / "b"

    def breaks(job: Job, starts: list[int]) -> Iterator[Range]:
        yield from here(job, [2000, 8000])
        (folder / ".part-00000-02000-1-abc.tmp").write_bytes(b"half")
        raise Stop

    with pytest.raises(Stop):
        run(job("b", chunk=2000, best=12), breaks)
    times = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.parquet")}
    assert sorted(times) == ["part-02000-04000.parquet", "part-08000-10000.parquet"]
    left: list[int] = []

    def rest(job: Job, starts: list[int]) -> Iterator[Range]:
        left.extend(starts)
        return here(job, starts)

    begun: list[tuple[int, int]] = []
    again = job("b", chunk=2000, best=12)
    found = run(again, rest, lambda done, left: begun.append((done, left)))
    assert left == [0, 4000, 6000, 10000, 12000, 14000]
    assert begun == [(2, 6)]
    assert same(found, undisturbed)
    assert found.reused == 2
    for name, time in times.items():
        assert (folder / name).stat().st_mtime_ns == time
    assert not list(folder.glob("*.tmp"))
    assert (tmp_path / "a/_best.csv").read_text() == (folder / "_best.csv").read_text()


@pytest.mark.parametrize("content", [b"", b"half a file", "cut"])
def test_a_damaged_file_is_made_again(content: Any, job: JobOf, tmp_path: Path) -> None:
    first = run(job("a", chunk=4000))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    victim = tmp_path / "b/part-04000-08000.parquet"
    victim.write_bytes(victim.read_bytes()[:-20] if content == "cut" else content)
    found = run(job("b", chunk=4000))
    assert same(found, first)
    assert found.reused == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_ms": 5.0}, "max_ms was left out, not 5"),
        ({"best": 11}, "best was 10, not 11"),
        ({"chunk": 5000}, "chunk was 4000, not 5000"),
        ({"limit": 100}, "limit was 15625, not 100"),
        ({"label": "arch"}, "label was choices, not arch"),
        ({"only_best": True}, "only_best was left out, not given"),
        ({"value": most_convolutions, "value_name": "m:f"}, "value was left out, not m:f"),
        ({"predictor": "two-regime"}, "predictor was extended, not two-regime"),
        ({"batch_size": 2}, "batch_size was 1, not 2; its space has changed"),
    ],
)  # fmt: skip
def test_the_folder_of_another_run_is_refused(
    changes: dict[str, Any], said: str, job: JobOf
) -> None:
    job(chunk=4000)
    with pytest.raises(InputError, match=r"is of another run .*; give another output") as caught:
        job(**{"chunk": 4000, **changes})
    assert said in str(caught.value)


def test_another_space_or_model_is_another_run(job: JobOf, tmp_path: Path) -> None:
    job(max_ms=3.5)
    folder = tmp_path / "out"
    told = json.loads((folder / "_run.json").read_text())
    known = {"space": "nasbench201", "model": "desk", "batch_size": 1, "max_ms": 3.5}
    assert {key: told[key] for key in known} == known
    assert told["positions"][1] == {"name": "0->2", "choices": list(nasbench201.CHOICES)}
    with pytest.raises(InputError, match="its space has changed"):
        make_job(nasbench201.space(classes=100), MODEL, folder)
    other = synthetic.document(synthetic.measured(seed=5))
    with pytest.raises(InputError, match=r"its model has changed\)"):
        make_job(SPACE, Model(other, "desk"), folder)
    with pytest.raises(InputError, match=r"its model is desk\)"):
        make_job(SPACE, Model(other, "table"), folder)


def test_a_folder_that_is_none_of_ours_is_refused(job: JobOf, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is no folder"):
        job("file")
    with pytest.raises(InputError, match=r"holds other files \(file\)"):
        job(".")
    with pytest.raises(InputError, match=r"cannot write .*output"):
        job("file/below")
    for text, said in (("{", "cannot be read"), ("[]", "not of this"), ('{"schema": 1}', "not of")):
        folder = tmp_path / f"folder{len(text)}"
        folder.mkdir()
        (folder / "_run.json").write_text(text)
        with pytest.raises(InputError, match=said):
            job(folder.name)


@pytest.mark.parametrize("names", [("index", "b"), ("value", "b"), ("b", "b")])
def test_a_position_that_cannot_be_a_column(names: tuple[str, ...], tmp_path: Path) -> None:
    positions = [*(Position(n, (1, 2)) for n in names), *SPACE.positions[2:]]
    odd = Space("odd", positions, [], lambda values, name: synthetic.network())
    with pytest.raises(InputError, match=r"which cannot be a column .* label arch"):
        make_job(odd, MODEL, tmp_path / "o")
    make_job(odd, MODEL, tmp_path / "o", label="arch")


@pytest.mark.parametrize("options", [{}, {"max_ms": 7.0}, {"label": "none"}, {"only_best": True}])
def test_what_the_files_will_take_is_known_before(
    options: dict[str, Any], job: JobOf, tmp_path: Path
) -> None:
    wanted = job(chunk=5000, **options)
    guess = size_bytes(wanted)
    run(wanted)
    real = sum(p.stat().st_size for p in (tmp_path / "out").glob("*.parquet"))
    assert 0.6 < guess / real < 2.5


def test_a_disk_that_is_too_small_is_said_before_scoring(
    job: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 5000, 5000))
    with pytest.raises(InputError, match=r"the files would take about .* kB, and 5.00 kB are free"):
        run(job())
    assert not list((tmp_path / "out").glob("*.parquet"))
    monkeypatch.undo()
    run(job())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 0))
    assert run(job()).reused == 1  # what is done needs no room


def test_a_disk_that_fills_up(job: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = job(chunk=8000)
    score_range(wanted, 0)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LolatError, match="the disk is full") as caught:
        run(wanted)
    assert caught.value.exit_code == 1
    assert [p.name for p in (tmp_path / "out").glob("*part*")] == ["part-00000-08000.parquet"]
    monkeypatch.undo()
    assert run(wanted).reused == 1


def test_a_folder_that_this_machine_does_not_see(job: JobOf, tmp_path: Path) -> None:
    wanted = job()
    require_run(wanted)
    for other in (replace(wanted, folder=str(tmp_path / "x")), replace(wanted, run="another")):
        with pytest.raises(LolatError, match=r"does not see the folder .* that all machines"):
            require_run(other)


def test_without_pyarrow_the_install_line_is_said(
    job: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[parquet\]'"):
        job()
    assert not (tmp_path / "out").exists()

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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError, MissingPackageError
from lolat.model import Model
from lolat.nas import scoring_job as files
from lolat.nas import scoring_job as jobs
from lolat.nas.scoring import Scores, here, make_job, run
from lolat.nas.scoring_job import Job, Range, score_range
from lolat.nas.space import Position, Space
from lolat.nas.spaces import fbnet, nasbench201
from lolat.nas.spaces import nasbench201 as encoding
from tests import synthetic
from tests.nas.ray_spaces import most_convolutions, wrong_shape

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

SIZE = 5**6


@pytest.fixture(scope="module")
def space() -> Space:
    return nasbench201.space()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(synthetic.document(), "desk")


@pytest.fixture(scope="module")
def truth(space: Space, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """All rows in the order of an odometer, and their latencies from their whole counts."""
    rows = np.array(list(itertools.product(range(5), repeat=6)), np.int8)
    counts = space.counts(rows)
    formula = model.predictor(None)
    columns = [synthetic.COLUMNS.index(f) for f in formula.features]
    return rows, counts[:, columns] @ np.asarray(formula.coefficients) + formula.constant


def table(folder: Path) -> Any:
    """All rows that a run wrote, as its user reads them."""
    return pandas.read_parquet(folder)


def test_every_candidate_is_there_once_and_in_order(
    space: Space, model: Model, truth: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    rows, times = truth
    found = run(make_job(space, model, tmp_path, chunk=4000))
    frame = table(tmp_path)
    assert list(frame.columns) == ["index", "latency_ms", *encoding.POSITIONS]
    assert frame["index"].tolist() == list(range(SIZE))
    np.testing.assert_allclose(frame["latency_ms"], times, rtol=1e-12)
    assert (frame[list(encoding.POSITIONS)].to_numpy() == rows).all()
    assert (found.scored, found.kept, found.reused) == (SIZE, SIZE, 0)
    names = sorted(p.name for p in tmp_path.glob("*.parquet"))
    assert names == [
        "part-00000-04000.parquet", "part-04000-08000.parquet", "part-08000-12000.parquet",
        "part-12000-15625.parquet",
    ]  # fmt: skip
    for index in (0, 7777, SIZE - 1):
        network = space.network(rows[index])
        assert frame["latency_ms"][index] == pytest.approx(model.predict(network).latency_ms)


def test_what_takes_longer_is_dropped_and_the_best_are_the_fastest(
    space: Space, model: Model, truth: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    _, times = truth
    limit = float(np.quantile(times, 0.3))
    found = run(make_job(space, model, tmp_path, max_ms=limit, chunk=1000, best=17))
    frame = table(tmp_path)
    assert frame["index"].tolist() == np.flatnonzero(times <= limit).tolist()
    assert found.kept == len(frame) < SIZE
    written_ms = dict(zip(frame["index"], frame["latency_ms"], strict=True))
    fastest = sorted(written_ms, key=lambda i: (written_ms[i], i))
    assert [index for _, index, _ in found.best] == fastest[:17]
    written = list(csv.DictReader((tmp_path / "_best.csv").open()))
    assert [int(row["index"]) for row in written] == fastest[:17]
    assert [encoding.parse(row["arch"]).tolist() for row in written] == [
        list(truth[0][i]) for i in fastest[:17]
    ]
    assert found.to_dict()["best"][0] == {
        "index": fastest[0], "arch": written[0]["arch"], "latency_ms": float(written[0]["latency_ms"])
    }  # fmt: skip


def test_the_best_by_a_value_of_ones_own(
    space: Space, model: Model, truth: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    rows, times = truth
    # Between two times, that the order in which terms are added does not decide: some are alike.
    ordered = np.sort(times)
    middle = len(times) // 2
    above = ordered[middle:][ordered[middle:] > ordered[middle] * (1 + 1e-9)][0]
    limit = float(above + ordered[ordered < above * (1 - 1e-9)][-1]) / 2
    job = make_job(
        space, model, tmp_path, max_ms=limit, chunk=2000, best=30, columns="arch",
        value=most_convolutions, value_name="most_convolutions",
    )  # fmt: skip
    found = run(job)
    able = np.flatnonzero(times <= limit)
    convolutions = (rows == 3).sum(axis=1)
    expected = sorted(able, key=lambda i: (-convolutions[i], i))[:30]
    assert [index for _, index, _ in found.best] == expected
    assert [-v for v, _, _ in found.best] == convolutions[expected].tolist()
    frame = table(tmp_path)
    assert list(frame.columns) == ["index", "latency_ms", "value", "arch"]
    assert (encoding.parse_many(list(frame["arch"])) == rows[able]).all()
    assert frame["value"].tolist() == convolutions[able].tolist()
    assert found.to_dict()["best"][0]["value"] == convolutions[expected[0]]


def test_a_value_that_is_no_number_is_never_the_best(
    space: Space, model: Model, tmp_path: Path
) -> None:
    def mostly_nan(rows: np.ndarray) -> np.ndarray:
        return np.where(rows[:, 5] == 2, rows[:, 4].astype(float), math.nan)

    found = run(
        make_job(space, model, tmp_path, best=5, limit=25, value=mostly_nan, value_name="f")
    )
    assert [(i, -v) for v, i, _ in found.best] == [(22, 4), (17, 3), (12, 2), (7, 1), (2, 0)]


def test_only_the_best_of_each_range(space: Space, model: Model, tmp_path: Path) -> None:
    whole = run(make_job(space, model, tmp_path / "all", chunk=3000, best=7))
    found = run(make_job(space, model, tmp_path / "best", chunk=3000, best=7, only_best=True))
    assert (found.best, found.kept) == (whole.best, whole.kept)
    frame, every = table(tmp_path / "best"), table(tmp_path / "all")
    assert len(frame) == 7 * 6
    assert {i for _, i, _ in whole.best} <= set(frame["index"])
    same = every.set_index("index").loc[frame["index"]].reset_index()
    pandas.testing.assert_frame_equal(frame, same)


@pytest.mark.parametrize("piece", [64, 1000])
def test_pieces_do_not_show(
    piece: int, space: Space, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(make_job(space, model, tmp_path / "whole", best=40, max_ms=7.0, limit=5000))
    monkeypatch.setattr(jobs, "PIECE", piece)
    parts = run(
        make_job(space, model, tmp_path / "parts", best=40, max_ms=7.0, limit=5000, chunk=1700)
    )
    assert parts.best == whole.best
    pandas.testing.assert_frame_equal(table(tmp_path / "parts"), table(tmp_path / "whole"))


def test_a_range_of_which_nothing_is_kept(space: Space, model: Model, tmp_path: Path) -> None:
    found = run(make_job(space, model, tmp_path, max_ms=1e-6, chunk=8000))
    assert (found.kept, found.best, len(table(tmp_path))) == (0, (), 0)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert run(make_job(space, model, tmp_path, max_ms=1e-6, chunk=8000)).reused == 2


class Stop(Exception):
    pass


def test_a_run_that_stopped_goes_on_where_it_was(
    space: Space, model: Model, tmp_path: Path
) -> None:
    undisturbed = run(make_job(space, model, tmp_path / "a", chunk=2000, best=12))
    job = make_job(space, model, tmp_path / "b", chunk=2000, best=12)

    def breaks(job: Job, starts: list[int]) -> Iterator[Range]:
        yield from here(job, [2000, 8000])
        left_behind = tmp_path / "b" / ".part-00000-02000-1-abc.tmp"
        left_behind.write_bytes(b"half")
        raise Stop

    with pytest.raises(Stop):
        run(job, breaks)
    times = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "b").glob("*.parquet")}
    assert sorted(times) == ["part-02000-04000.parquet", "part-08000-10000.parquet"]

    asked: list[int] = []

    def rest(job: Job, starts: list[int]) -> Iterator[Range]:
        asked.extend(starts)
        return here(job, starts)

    begun: list[tuple[int, int]] = []
    again = make_job(space, model, tmp_path / "b", chunk=2000, best=12)
    found = run(again, rest, lambda done, left: begun.append((done, left)))
    assert asked == [0, 4000, 6000, 10000, 12000, 14000]
    assert begun == [(2, 6)]
    assert same(found, undisturbed)
    assert found.reused == 2
    for name, time in times.items():
        assert (tmp_path / "b" / name).stat().st_mtime_ns == time
    pandas.testing.assert_frame_equal(table(tmp_path / "b"), table(tmp_path / "a"))
    assert not list((tmp_path / "b").glob("*.tmp"))
    assert (tmp_path / "a/_best.csv").read_text() == (tmp_path / "b/_best.csv").read_text()


def same(a: Scores, b: Scores) -> bool:
    return (a.scored, a.kept, a.best) == (b.scored, b.kept, b.best)


@pytest.mark.parametrize("content", [b"", b"half a file", "cut"])
def test_a_damaged_file_is_made_again(
    content: Any, space: Space, model: Model, tmp_path: Path
) -> None:
    first = run(make_job(space, model, tmp_path, chunk=4000))
    frame = table(tmp_path)
    victim = tmp_path / "part-04000-08000.parquet"
    victim.write_bytes(victim.read_bytes()[:-20] if content == "cut" else content)
    found = run(make_job(space, model, tmp_path, chunk=4000))
    assert same(found, first)
    assert found.reused == 3
    pandas.testing.assert_frame_equal(table(tmp_path), frame)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_ms": 5.0}, "--max-ms was left out, not 5"),
        ({"best": 11}, "--best was 10, not 11"),
        ({"chunk": 5000}, "--chunk was 4000, not 5000"),
        ({"limit": 100}, "--limit was 15625, not 100"),
        ({"columns": "arch"}, "--columns was choices, not arch"),
        ({"only_best": True}, "--only-best was left out, not given"),
        ({"value": most_convolutions, "value_name": "m:f"}, "--value was left out, not m:f"),
        ({"predictor": "two-regime"}, "--predictor was extended, not two-regime"),
    ],
)  # fmt: skip
def test_the_folder_of_another_run_is_refused(
    changes: dict[str, Any], said: str, space: Space, model: Model, tmp_path: Path
) -> None:
    make_job(space, model, tmp_path, chunk=4000)
    with pytest.raises(InputError, match="is of another run") as caught:
        make_job(space, model, tmp_path, **{"chunk": 4000, **changes})
    assert said in str(caught.value)
    assert "give another --output, or what that run was given to go on with it" in str(caught.value)


def test_another_space_batch_size_or_model_is_another_run(
    space: Space, model: Model, tmp_path: Path
) -> None:
    make_job(space, model, tmp_path)
    with pytest.raises(InputError, match="--batch-size was 1, not 2; its space has changed"):
        make_job(space, model, tmp_path, 2)
    with pytest.raises(InputError, match="its space has changed"):
        make_job(nasbench201.space(classes=100), model, tmp_path)
    other = synthetic.document(synthetic.measured(seed=5))
    with pytest.raises(InputError, match=r"its model has changed\)"):
        make_job(space, Model(other, "desk"), tmp_path)
    with pytest.raises(InputError, match=r"its model is desk\)"):
        make_job(space, Model(other, "table"), tmp_path)


def test_a_folder_that_is_none_of_ours_is_refused(
    space: Space, model: Model, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="is no folder; expected the name of a new one"):
        make_job(space, model, file)
    with pytest.raises(InputError, match=r"holds other files \(file\); expected a new folder"):
        make_job(space, model, tmp_path)
    with pytest.raises(InputError, match=r"cannot write .*; give --output elsewhere"):
        make_job(space, model, file / "below")
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read"), ("[]", "is not of this command"), ('{"schema": "x"}', "is not of this")],
)  # fmt: skip
def test_a_manifest_that_is_none(
    text: str, said: str, space: Space, model: Model, tmp_path: Path
) -> None:
    (tmp_path / "_run.json").write_text(text)
    with pytest.raises(InputError, match=said):
        make_job(space, model, tmp_path)


def test_the_manifest_says_what_the_run_was(space: Space, model: Model, tmp_path: Path) -> None:
    make_job(space, model, tmp_path, 4, max_ms=3.5)
    told = json.loads((tmp_path / "_run.json").read_text())
    assert (told["space"], told["model"], told["batch_size"], told["max_ms"]) == (
        "nasbench201", "desk", 4, 3.5
    )  # fmt: skip
    assert told["positions"][1] == {"name": "0->2", "choices": list(encoding.CHOICES)}


def test_more_candidates_than_an_int64_can_index(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"9\.8e\+20 candidates, more than an int64 can index"):
        make_job(fbnet.space(), model, tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("names", [("index", "b"), ("value", "b"), ("b", "b")])
def test_a_position_that_cannot_be_a_column(
    names: tuple[str, ...], space: Space, model: Model, tmp_path: Path
) -> None:
    odd = Space(
        "odd", [*[Position(n, (1, 2)) for n in names], *space.positions[2:]], [], space._build
    )
    with pytest.raises(InputError, match="which cannot be a column") as caught:
        make_job(odd, model, tmp_path / "o")
    assert "rename it, or give --columns arch" in str(caught.value)
    make_job(odd, model, tmp_path / "o", columns="arch")


def test_a_value_of_another_shape(space: Space, model: Model, tmp_path: Path) -> None:
    job = make_job(space, model, tmp_path, limit=100, value=wrong_shape, value_name="w")
    with pytest.raises(InputError, match=r"--value returned an array of shape \(100, 2\)"):
        run(job)


@pytest.mark.parametrize("options", [{}, {"max_ms": 7.0}, {"columns": "none"}, {"only_best": True}])
def test_what_the_files_will_take_is_known_before(
    options: dict[str, Any], space: Space, model: Model, tmp_path: Path
) -> None:
    job = make_job(space, model, tmp_path, chunk=5000, **options)
    guess = files.size_bytes(job)
    run(job)
    real = sum(p.stat().st_size for p in tmp_path.glob("*.parquet"))
    assert 0.6 < guess / real < 2.5


def test_a_disk_that_is_too_small_is_said_before_scoring(
    space: Space, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 5000, 5000))
    job = make_job(space, model, tmp_path)
    with pytest.raises(InputError, match=r"the files would take about .* KB, and 5 KB are free"):
        run(job)
    assert not list(tmp_path.glob("*.parquet"))
    monkeypatch.undo()
    run(job)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 0))
    assert run(job).reused == 1  # what is done needs no room


def test_a_disk_that_fills_up(
    space: Space, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(space, model, tmp_path, chunk=8000)
    score_range(job, 0)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LolatError, match="is not whole: the disk is full; make room") as caught:
        run(job)
    assert caught.value.exit_code == 1
    assert [p.name for p in tmp_path.glob("*part*")] == ["part-00000-08000.parquet"]
    monkeypatch.undo()
    assert run(job).reused == 1


def test_a_folder_that_this_machine_does_not_see(
    space: Space, model: Model, tmp_path: Path
) -> None:
    job = make_job(space, model, tmp_path / "o")
    files.require_run(job)
    with pytest.raises(
        LolatError, match=r"does not see the folder .* expected one that all machines"
    ):
        files.require_run(replace(job, folder=str(tmp_path / "elsewhere")))
    with pytest.raises(LolatError, match="does not see the folder"):
        files.require_run(replace(job, run="another"))


def test_without_pyarrow_the_install_line_is_said(
    space: Space, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'lolat\[parquet\]'"):
        make_job(space, model, tmp_path / "o")
    assert not (tmp_path / "o").exists()

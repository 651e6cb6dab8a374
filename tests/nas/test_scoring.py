"""A space scored into files, a table of networks: rows, the best, going on, and what is refused."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, MissingPackageError
from lolat.model import Model
from lolat.nas import Position, Space, score, scoring, spaces
from lolat.nas.scoring import ScoreResult
from lolat.nas.spaces import nasbench201
from tests import synthetic
from tests.nas.few_devices import some_cells
from tests.nas.ray_spaces import most_convolutions, wrong_shape

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

SIZE = 5**6
SPACE = spaces.nasbench201.space()
MODEL = Model(synthetic.document(), "desk")
Run = Callable[..., ScoreResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Scores the space into a folder below the test's own."""
    return lambda folder="out", **options: score(SPACE, MODEL, tmp_path / folder, **options)


@pytest.fixture(scope="module")
def truth() -> tuple[np.ndarray, np.ndarray]:
    """All rows in the order of an odometer, and their latencies from their whole counts."""
    rows = np.array(list(itertools.product(range(5), repeat=6)), np.int8)
    formula = MODEL.predictor(None)
    columns = [synthetic.COLUMNS.index(f) for f in formula.features]
    counts = SPACE.counts(rows)[:, columns]
    return rows, counts @ np.asarray(formula.slopes) + formula.constant


def table(result: ScoreResult) -> Any:
    """All rows that a run wrote, as its user reads them."""
    return pandas.read_parquet(result.output)


def assert_same(a: ScoreResult, b: ScoreResult) -> None:
    pandas.testing.assert_frame_equal(table(a), table(b))
    assert (a.scored, a.kept, a.best) == (b.scored, b.kept, b.best)


def test_every_candidate_is_there_once_and_in_order(run: Run, truth: Any, tmp_path: Path) -> None:
    rows, times = truth
    result = run(chunk=4000)
    frame = table(result)
    assert list(frame.columns) == ["index", "latency_ms", *nasbench201.POSITIONS]
    assert frame["index"].tolist() == list(range(SIZE))
    np.testing.assert_allclose(frame["latency_ms"], times, rtol=1e-12)
    assert (frame[list(nasbench201.POSITIONS)].to_numpy() == rows).all()
    assert (result.scored, result.kept, result.files, result.reused) == (SIZE, SIZE, 4, 0)
    assert sorted(p.name for p in (tmp_path / "out").glob("*.parquet")) == [
        "part-00000-04000.parquet", "part-04000-08000.parquet", "part-08000-12000.parquet",
        "part-12000-15625.parquet",
    ]  # fmt: skip
    for index in (0, 7777, SIZE - 1):
        predicted = MODEL.predict(SPACE.network(rows[index])).latency_ms
        assert frame["latency_ms"][index] == pytest.approx(predicted)


def test_slower_candidates_are_dropped_and_the_best_are_the_fastest(
    run: Run, truth: Any, tmp_path: Path
) -> None:
    rows, times = truth
    limit = float(np.quantile(times, 0.3))
    result = run(max_ms=limit, chunk=1000)
    frame = table(result)
    assert frame["index"].tolist() == np.flatnonzero(times <= limit).tolist()
    assert result.kept == len(frame) < SIZE
    written_ms = dict(zip(frame["index"], frame["latency_ms"], strict=True))
    fastest = sorted(written_ms, key=lambda i: (written_ms[i], i))[:10]
    assert [c.index for c in result.best] == fastest
    written = list(csv.DictReader((tmp_path / "out/_best.csv").open()))
    assert [int(row["index"]) for row in written] == fastest
    assert [nasbench201.parse(row["arch"]) for row in written] == [list(rows[i]) for i in fastest]
    assert result.to_dict()["best"][0] == {
        "index": fastest[0], "arch": written[0]["arch"], "latency_ms": float(written[0]["latency_ms"])
    }  # fmt: skip


def test_the_best_by_a_value_of_ones_own(run: Run, truth: Any) -> None:
    rows, times = truth
    # Between two times, that the order in which terms are added does not decide: some are alike.
    ordered = np.sort(times)
    middle = len(times) // 2
    above = ordered[middle:][ordered[middle:] > ordered[middle] * (1 + 1e-9)][0]
    limit = float(above + ordered[ordered < above * (1 - 1e-9)][-1]) / 2
    able = np.flatnonzero(times <= limit)
    convolutions = (rows == 3).sum(axis=1)
    expected = sorted(able, key=lambda i: (-convolutions[i], i))[:30]
    options = {"max_ms": limit, "chunk": 2000, "value": most_convolutions}
    best = run(best=30, **options)
    assert [c.index for c in best.best] == expected
    assert [c.value for c in best.best] == convolutions[expected].tolist()
    # All are kept without `best`, and the best of each file with it.
    frame, kept = table(run("all", **options)), table(best)
    assert list(frame.columns[:3]) == ["index", "latency_ms", "value"]
    assert frame["index"].tolist() == able.tolist()
    assert frame["value"].tolist() == convolutions[able].tolist()
    assert len(kept) <= 30 * 8
    assert set(expected) <= set(kept["index"])
    of_all = frame.set_index("index").loc[kept["index"]].reset_index()
    pandas.testing.assert_frame_equal(kept, of_all)


def test_a_value_that_is_no_number_is_never_the_best(run: Run) -> None:
    def mostly_nan(rows: np.ndarray) -> np.ndarray:
        return np.where(rows[:, 5] == 2, rows[:, 4].astype(float), math.nan)

    assert {c.value for c in run(best=5, value=mostly_nan).best} == {4.0}
    for name, wrong in (("shape", wrong_shape), ("left", lambda rows: sys.exit(0))):
        with pytest.raises(InputError):
            run(name, value=wrong)


@pytest.mark.parametrize("piece", [64, 1000])
def test_pieces_do_not_show(piece: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("whole", max_ms=7.0)
    monkeypatch.setattr(scoring, "PIECE", piece)
    assert_same(run("parts", max_ms=7.0, chunk=1700), whole)


@pytest.mark.parametrize("best", [None, 3])
def test_no_candidate_is_within_the_time(best: int | None, run: Run) -> None:
    for reused in (0, 2):
        result = run(max_ms=1e-6, chunk=8000, best=best)
        assert (result.kept, result.best, result.reused) == (0, (), reused)
        assert len(table(result)) == 0


def test_a_run_that_stopped_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = run("a", chunk=2000)
    folder, scored = tmp_path / "b", list[int]()
    real = scoring.score_range

    def stops(job: Any, start: int) -> Any:
        if start == 6000:
            (folder / ".lolat-1-abc.tmp").write_bytes(b"half")
            raise KeyboardInterrupt
        scored.append(start)
        return real(job, start)

    monkeypatch.setattr(scoring, "score_range", stops)
    with pytest.raises(KeyboardInterrupt):
        run("b", chunk=2000)
    times = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.parquet")}
    assert scored == [0, 2000, 4000]
    monkeypatch.undo()
    (folder / "part-02000-04000.parquet").write_bytes(b"half a file")
    result = run("b", chunk=2000)
    assert_same(result, undisturbed)
    assert result.reused == 2
    for name in ("part-00000-02000.parquet", "part-04000-06000.parquet"):
        assert (folder / name).stat().st_mtime_ns == times[name]
    assert not list(folder.glob(".lolat*"))
    assert (tmp_path / "a/_best.csv").read_text() == (folder / "_best.csv").read_text()


@pytest.mark.parametrize(
    "changes",
    [{"max_ms": 5.0}, {"best": 11}, {"chunk": 5000}, {"value": most_convolutions},
     {"predictor": "two-regime"}, {"batch_size": 2}],
)  # fmt: skip
def test_the_folder_of_another_run_is_refused(changes: dict[str, Any], run: Run) -> None:
    run(chunk=4000)
    with pytest.raises(InputError, match="holds another run"):
        run(**{"chunk": 4000, **changes})


def test_another_space_or_model_is_another_run(run: Run, tmp_path: Path) -> None:
    run(max_ms=3.5)
    folder = tmp_path / "out"
    manifest = json.loads((folder / "_run.json").read_text())
    assert (manifest["space"], manifest["max_ms"]) == ("nasbench201", 3.5)
    assert manifest["positions"][1] == {"name": "0->2", "choices": list(nasbench201.CHOICES)}
    other = Model(synthetic.document(synthetic.measured(seed=5)), "desk")
    for space, model in ((nasbench201.space(classes=100), MODEL), (SPACE, other)):
        with pytest.raises(InputError, match="another run"):
            score(space, model, folder, max_ms=3.5)


def test_another_folder_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", ".", "file/below"):
        with pytest.raises(InputError):
            run(name)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_position_that_cannot_be_a_column(tmp_path: Path) -> None:
    space = Space("odd", [Position("index", (1, 2))], [], lambda values, name: synthetic.network())
    with pytest.raises(InputError, match="'index'"):
        score(space, MODEL, tmp_path / "o")


def test_networks_of_a_table(run: Run, tmp_path: Path) -> None:
    archs = [*some_cells(40, seed=9), *some_cells(3, seed=9)]
    (tmp_path / "archs.csv").write_text("\n".join(["index,arch", *(f"1,{a}" for a in archs)]))
    options: dict[str, Any] = {"among": tmp_path / "archs.csv"}
    rows = SPACE.parse(archs)
    times = SPACE.scorer(MODEL).latency(rows)
    result = run("out.csv", **options)
    frame = pandas.read_csv(tmp_path / "out.csv")
    assert list(frame.columns) == ["arch", "latency_ms"]
    assert frame["arch"].tolist() == archs
    np.testing.assert_allclose(frame["latency_ms"], times, rtol=1e-6)
    assert (result.scored, result.kept, result.size) == (43, 43, SIZE)
    assert [c.index for c in result.best[:2]] == np.lexsort((np.arange(43), times))[:2].tolist()
    limit = float(np.median(times))
    run("best.csv", max_ms=limit, best=5, value=most_convolutions, **options)
    frame = pandas.read_csv(tmp_path / "best.csv")
    convolutions = np.where(times <= limit, most_convolutions(rows), -1)
    best = sorted(np.lexsort((np.arange(43), -convolutions))[:5])
    assert frame["arch"].tolist() == [archs[i] for i in best]
    assert frame["value"].tolist() == convolutions[best].tolist()
    (tmp_path / "archs.csv").write_text("arch\nnone of this\n")
    with pytest.raises(InputError, match="line 2"):
        run("other.csv", **options)
    assert not (tmp_path / "other.csv").exists()


def test_without_pyarrow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError):
        run()
    assert not (tmp_path / "out").exists()

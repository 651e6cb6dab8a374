"""A space and a table of networks scored into a table: rows and the best against brute force."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat import nas
from lolat.api.model import Model
from lolat.errors import AnswerIsNo, InputError
from lolat.nas import estimators, rank, ranking, spaces
from lolat.nas.space import Position, Space
from lolat.units import milliseconds
from tests import synthetic
from tests.nas.few_devices import some_cells

SPACE = spaces.nasbench201.space()
MODEL = Model(synthetic.document(), "desk")
ROWS = np.array(list(itertools.product(range(5), repeat=6)), np.int8)
Run = Callable[..., tuple[Any, list[dict[str, str]]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Scores the space, and reads the table."""

    def call(**options: Any) -> tuple[Any, list[dict[str, str]]]:
        path = tmp_path / "scores.csv"
        result = rank(SPACE, MODEL, path, **options)
        with open(path, newline="") as file:
            return result, list(csv.DictReader(file))

    return call


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    """Latencies of all rows from their whole counts."""
    formula = MODEL.predictor(None)
    columns = [synthetic.COLUMNS.index(f) for f in formula.features]
    times: np.ndarray = SPACE.counts(ROWS)[:, columns] @ formula.slopes + formula.constant
    return times


def test_the_listed_times_are_those_of_whole_networks() -> None:
    """A host bounds the fastest: the sum over parts is off there, by as much as the source says."""
    model = lolat.load("rtx-4090")
    result = rank(SPACE, model, batch_size=64, best=5)
    networks = [SPACE.network(SPACE.parse([c.arch])[0]) for c in result.best]
    found = [model.predict(n, 64).latency_ms for n in networks]
    assert [c.latency_ms for c in result.best] == pytest.approx(sorted(found), rel=1e-9)
    summed = nas.estimator(SPACE, model, 64).latency(SPACE.parse([result.best[0].arch]))
    off = re.search(r"within ([\d.]+) %", result.source)
    assert off is not None
    assert float(off[1]) >= 100 * abs(summed[0] / found[0] - 1) - 0.5


def test_the_file_is_said_to_have_sums_where_these_are_off_for_whole_networks(
    tmp_path: Path,
) -> None:
    model, path = lolat.load("rtx-4090").run_as(launch="compiled"), tmp_path / "scores.csv"
    result = rank(SPACE, model, path, best=10)
    with open(path, newline="") as file:
        written = {row["arch"]: float(row["latency_ms"]) for row in csv.DictReader(file)}
    ratios = [
        written[c.arch] / model.predict(SPACE.network(SPACE.parse([c.arch])[0])).latency_ms
        for c in result.best
    ]
    (told,) = (w for w in result.warnings if "sums over parts" in w)
    assert told.endswith(f"for these 10 are {min(ratios):.2f} to {max(ratios):.2f} times as long")
    assert not [w for w in rank(SPACE, MODEL, best=10).warnings if "sums over parts" in w]


def archs(indices: Any) -> list[str]:
    return [SPACE.arch(ROWS[i]) for i in indices]


@pytest.mark.parametrize("quantile", [1.0, 0.3])
def test_every_candidate_within_the_time_is_there_once_and_in_order(
    run: Run, truth: np.ndarray, quantile: float
) -> None:
    limit = float(np.quantile(truth, quantile)) * (1 + 1e-9)  # sums in another order
    result, table = run(max_ms=limit)
    within = np.flatnonzero(truth <= limit)
    assert (result.scored, result.within, result.size) == (5**6, len(within), 5**6)
    assert [row["arch"] for row in table] == archs(within)
    times = [float(row["latency_ms"]) for row in table]
    np.testing.assert_allclose(times, truth[within], rtol=1e-6)
    best = [c.latency_ms for c in result.best]
    np.testing.assert_allclose(best, np.sort(truth[within])[:10], rtol=1e-12)


def test_the_fastest_of_many_pieces(
    run: Run, truth: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimators, "DECODED", 1000)
    levels = np.unique(truth.round(9))  # equal sums differ in the last digit
    limit = float(levels[len(levels) // 3 :][:2].mean())
    expected = sorted(range(len(truth)), key=lambda i: (round(truth[i], 9), i))[:30]
    result, table = run(max_ms=limit, best=30)
    assert [c.arch for c in result.best] == archs(expected)
    assert [row["arch"] for row in table] == archs(expected)
    assert result.within == (truth <= limit).sum()


@pytest.mark.parametrize("best", [None, 3, 30])
def test_candidates_that_tie_with_the_last_listed_are_counted(
    monkeypatch: pytest.MonkeyPatch, truth: np.ndarray, best: int | None
) -> None:
    """In three digits, wherever the space is cut into pieces; the listed ones are the first of them."""
    monkeypatch.setattr(estimators, "DECODED", 1000)
    result = rank(SPACE, MODEL, best=best)
    rounded = [f"{ms:.3g}" for ms in truth]
    last = sorted(truth)[(best or 10) - 1]
    assert result.tied == rounded.count(f"{last:.3g}") > 1
    told = f"{result.tied:,} candidates tie at {milliseconds(last)}: the "
    listed = [f"{c.latency_ms:.3g}" for c in result.best].count(f"{last:.3g}")
    assert (told in result.report()) == (result.tied > listed)


def test_no_tie_is_told_of_sums_that_differ_from_whole_networks() -> None:
    result = rank(SPACE, lolat.load("rtx-4090").run_as(launch="compiled"), best=10)
    assert result.tied is None
    assert "tie at" not in result.report()


def test_a_table_of_other_choices_is_refused(tmp_path: Path) -> None:
    """A table that `rank` wrote is read by a space with the same choices in another order."""
    build, table = SPACE.build, tmp_path / "table.csv"
    table.write_text("arch,latency_ms,Width,depth\n0-1,3,16,2\n2-0, 5,64.0,1\n")

    def space(*widths: int) -> Space:
        return Space("own", [Position("Width", widths), Position("depth", (1, 2))], [], build)

    read = space(16, 32, 64).read_table(table, ["latency_ms"])
    assert space(16, 32, 64).parse_table(read).tolist() == [[0, 1], [2, 0]]
    assert read.unread == ("latency_ms",)
    with pytest.raises(InputError, match="line 2: arch 0-1 is Width 64, its column says 16: the"):
        space(64, 32, 16).parse_table(read)
    table.write_text("arch,latency_ms,width\n0-1,3,16\n")  # maybe of something else
    read = space(64, 32, 16).read_table(table, ["latency_ms"])
    assert space(64, 32, 16).parse_table(read).tolist() == [[0, 1]]
    assert read.unread == ("latency_ms", "width")


def test_a_device_by_its_path(tmp_path: Path) -> None:
    desk, among = tmp_path / "desk.json", tmp_path / "among.csv"
    desk.write_text(json.dumps(synthetic.document()))
    among.write_text("\n".join(["arch", *some_cells(9)]))
    found = rank(SPACE, desk, tmp_path / "x.csv", among=among, best=3)
    assert [c.latency_ms for c in found.best] == sorted(c.latency_ms for c in found.best)
    assert found.device == lolat.load(desk).predict(SPACE.network(SPACE.sample(1)[0])).device


@pytest.mark.parametrize(
    ("device", "asked", "how"),
    [
        ("rtx-4090-amp", {}, "amp, PyTorch, eager"),
        ("rtx-4090-amp", {"precision": "fp32"}, "fp32 (convolutions in TF32), PyTorch, eager"),
        ("v100", {"precision": "fp16", "launch": "graph"}, "fp16, PyTorch, graph"),
        ("epyc-2t", {}, "fp32, TensorFlow"),
    ],
)
def test_a_ranking_tells_the_execution_mode(
    tmp_path: Path, device: str, asked: dict[str, str], how: str
) -> None:
    """As `predict` heads its answer about the same network."""
    among = tmp_path / "among.csv"
    among.write_text("\n".join(["arch", *some_cells(2)]))
    model = lolat.load(device).run_as(**asked)  # type: ignore[arg-type]
    for size in (1, 64):
        ranked = rank(SPACE, model, tmp_path / "x.csv", among=among, batch_size=size)
        assert f" in {how}" in ranked.source
        assert (ranked.device, ranked.profile) == (device, model.profile)  # as in `predict`
        network = SPACE.network(SPACE.parse(some_cells(1))[0])
        assert how in model.predict(network, size).words()


def test_networks_of_a_table(run: Run, tmp_path: Path) -> None:
    texts = [*some_cells(40, seed=9), *some_cells(3, seed=9)]
    among = tmp_path / "archs.csv"
    among.write_text("\n".join(["index,arch", *(f"1,{a}" for a in texts)]))
    result, table = run(among=among)
    assert result.warnings[0] == f"{among}: columns that are not read: index"
    assert [row["arch"] for row in table] == texts
    times = [MODEL.predict(SPACE.network(row)).latency_ms for row in SPACE.parse(texts)]
    np.testing.assert_allclose([float(row["latency_ms"]) for row in table], times, rtol=1e-6)
    assert (result.scored, result.best[0].latency_ms) == (43, pytest.approx(min(times)))
    among.write_text("arch\nnone of this\n")
    with pytest.raises(InputError, match="line 2"):
        run(among=among)
    among.write_text(f"arch,batch_size\n{texts[0]},\n{texts[1]},8\n")
    with pytest.raises(InputError, match=r"line 3: batch_size is '8'; expected 1, the batch_size"):
        run(among=among)
    times = [MODEL.predict(SPACE.network(row), 8).latency_ms for row in SPACE.parse(texts[1:2])]
    among.write_text(f"arch,batch_size\n{texts[1]},8\n")
    assert run(among=among, batch_size=8)[0].best[0].latency_ms == pytest.approx(times[0])


def test_a_list_of_batch_sizes_is_a_ranking_at_each(run: Run, tmp_path: Path) -> None:
    texts, among = some_cells(7, seed=3), tmp_path / "archs.csv"
    networks = [SPACE.network(row) for row in SPACE.parse(texts)]
    among.write_text("\n".join(["arch", *texts]))
    ranked, table = run(among=among, batch_size=[8, 1])
    times = [[MODEL.predict(n, size).latency_ms for n in networks] for size in (8, 1)]
    assert [(r["arch"], r["batch_size"]) for r in table] == [(a, s) for s in "81" for a in texts]
    np.testing.assert_allclose([float(r["latency_ms"]) for r in table], np.ravel(times), rtol=1e-6)
    assert [(one.batch_size, len(one.best)) for one in ranked] == [(8, 7), (1, 7)]
    assert [row["latency_ms"] for row in ranked.rows()] == pytest.approx(np.ravel(np.sort(times)))
    # A row with a batch size of its own counts at this one alone.
    among.write_text(f"arch,batch_size\n{texts[0]},1\n{texts[1]},8\n{texts[2]},\n")
    table = run(among=among, batch_size=(1, 8))[1]
    where = [(texts.index(row["arch"]), row["batch_size"]) for row in table]
    assert where == [(0, "1"), (2, "1"), (1, "8"), (2, "8")]
    with pytest.raises(AnswerIsNo, match=r"within 0\.1 ms at batch size 8"):
        run(batch_size=[8, 1], max_ms=0.1)


def test_more_rows_than_a_table_should_have_are_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "MOST_WRITTEN", 1000)
    with pytest.raises(InputError):
        run()
    assert len(run(best=1000)[1]) == 1000


def test_each_of_the_fastest_has_the_interval_of_its_own_prediction() -> None:
    """Those beyond PREDICTED are sums over parts and have none."""
    model = lolat.load("epyc-2t")
    found = rank(SPACE, model, best=ranking.PREDICTED + 2)
    networks = [SPACE.network(SPACE.parse([one.arch])[0]) for one in found.best[:3]]
    for one, row, network in zip(found.best, found.rows(), networks, strict=False):
        alone = model.predict(network)
        assert one.latency_ms == pytest.approx(alone.latency_ms)
        assert one.interval_ms == pytest.approx(alone.interval_ms)
        assert (row["low_ms"], row["high_ms"]) == one.interval_ms
    assert [one.interval_ms for one in found.best[ranking.PREDICTED :]] == [None] * 2

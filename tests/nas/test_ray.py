"""On the real Ray, which is started once: scoring, the same row by row when a worker is killed in the
middle; the tuner of the documentation."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import InputError, LolatError
from lolat.model import Model
from lolat.nas import score
from lolat.nas.ray_tasks import on_ray
from lolat.nas.scoring import ScoreResult
from lolat.nas.spaces import nasbench201
from tests import ray_cluster, synthetic
from tests.nas.ray_spaces import (
    CHUNK,
    KillsOnce,
    disturbed,
    fail,
    most_convolutions,
    wrong_shape,
)
from tests.nas.test_search_page import EXAMPLES, RAY
from tests.nas.test_search_page import run as run_example
from tests.processes import is_running

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

OPTIONS: dict[str, Any] = {"chunk": CHUNK, "max_ms": 7.5, "value": most_convolutions}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:  # before the workers start
        patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
        patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        with ray_cluster.small_ray() as ray:
            yield ray


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(synthetic.document(), "desk")


@pytest.fixture(scope="module")
def undisturbed(model: Model, tmp_path_factory: pytest.TempPathFactory) -> ScoreResult:
    """The same run in one process."""
    return score(nasbench201.space(), model, tmp_path_factory.mktemp("u"), **OPTIONS)


def assert_same(result: ScoreResult, expected: ScoreResult) -> None:
    assert (result.scored, result.kept, result.best) == (
        expected.scored, expected.kept, expected.best
    )  # fmt: skip
    folder, there = Path(result.output), Path(expected.output)
    pandas.testing.assert_frame_equal(pandas.read_parquet(folder), pandas.read_parquet(there))
    for path in there.glob("*.parquet"):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert (folder / "_best.csv").read_text() == (there / "_best.csv").read_text()
    assert not list(folder.glob(".lolat*"))


def test_a_killed_worker_loses_nothing(
    cluster: Any, model: Model, undisturbed: ScoreResult, tmp_path: Path
) -> None:
    mark = tmp_path / "killed"
    deadly = disturbed(KillsOnce(str(mark), 6 * CHUNK + 5), os.getpid())
    result = score(deadly, model, tmp_path / "out", ray="", **OPTIONS)
    assert int(mark.read_text()) != os.getpid()
    assert not is_running(int(mark.read_text()))
    assert 100 < undisturbed.kept < 15625 - 100
    assert result.files == 16
    assert_same(result, undisturbed)


def test_an_error_of_a_worker_is_one_line(cluster: Any, model: Model, tmp_path: Path) -> None:
    space = nasbench201.space()
    with pytest.raises(InputError, match=r"value returned an array of shape \(15625, 2\)"):
        score(space, model, tmp_path / "a", value=wrong_shape, ray="")
    with pytest.raises(LolatError, match="RuntimeError: an unforeseen error") as caught:
        score(disturbed(fail, os.getpid()), model, tmp_path / "b", ray="")
    assert (caught.value.exit_code, "\n" in str(caught.value)) == (1, False)


def test_a_folder_that_a_worker_cannot_write(cluster: Any, tmp_path: Path) -> None:
    def task(job: Any, start: int) -> None:
        raise InputError("cannot write", code="not-written", path=job)

    with pytest.raises(InputError) as caught:
        list(on_ray(cluster, task, str(tmp_path), [0]))
    assert (caught.value.code, caught.value.data) == ("not-written", {"path": str(tmp_path)})


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import tune

    # Instead of ~/ray_results, whose path Ray has fixed when it was imported.
    for module in ("ray.train.constants", "ray.tune.experiment.experiment"):
        monkeypatch.setattr(f"{module}.DEFAULT_STORAGE_PATH", str(tmp_path / "results"))
    one_process = functools.partial(tune.TuneConfig, reuse_actors=True, max_concurrent_trials=1)
    monkeypatch.setattr(tune, "TuneConfig", one_process)
    run_example(EXAMPLES[RAY], tmp_path, monkeypatch)
    assert (tmp_path / "results").is_dir()

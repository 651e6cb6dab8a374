"""On the real Ray, which is started once: scoring, the same row by row also when a worker or the driver is
killed in the middle; a tuner, with its metrics and trials over the budget."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError, not_written, sent
from lolat.model import Model
from lolat.nas.adapters.ray_tune import TrialLatency
from lolat.nas.scoring import ScoreAnswer, answer_of, in_short, make_job, on_ray, run
from lolat.nas.spaces import nasbench201
from tests import ray_cluster, synthetic
from tests.nas.adapters.test_adapters_doc import EXAMPLES
from tests.nas.adapters.test_adapters_doc import run as run_example
from tests.nas.adapters.test_ray_tune import fastest_and_slowest
from tests.nas.ray_spaces import CHUNK, GATE, KillsOnce, most_convolutions, wrong_shape
from tests.nas.test_space import small
from tests.processes import is_running, wait_until

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

OPTIONS: dict[str, Any] = {
    "chunk": CHUNK, "best": 15, "max_ms": 7.5,
    "value": most_convolutions, "value_name": "tests.nas.ray_spaces:most_convolutions",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    gate = tmp_path_factory.mktemp("gate") / "open"
    with pytest.MonkeyPatch.context() as patch:  # before the workers start
        patch.setenv(GATE, str(gate))
        patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
        patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        with ray_cluster.small_ray() as ray:
            yield ray


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(synthetic.document(), "desk")


@pytest.fixture(scope="module")
def undisturbed(model: Model, tmp_path_factory: pytest.TempPathFactory) -> ScoreAnswer:
    """The same run in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return run(make_job(nasbench201.space(), model, folder, **OPTIONS))


def assert_same(folder: Path, found: ScoreAnswer, expected: ScoreAnswer) -> None:
    assert (found.scored, found.kept, found.best) == (
        expected.scored, expected.kept, expected.best
    )  # fmt: skip
    there = Path(expected.job.folder)
    pandas.testing.assert_frame_equal(pandas.read_parquet(folder), pandas.read_parquet(there))
    for path in there.glob("*.parquet"):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert (folder / "_best.csv").read_text() == (there / "_best.csv").read_text()
    assert not list(folder.glob(".part*"))


def test_a_killed_worker_loses_nothing(
    cluster: Any, model: Model, undisturbed: ScoreAnswer, tmp_path: Path
) -> None:
    mark = tmp_path / "killed"
    job = make_job(nasbench201.space(), model, tmp_path / "out", **OPTIONS)
    about = {"mark": str(mark), "at": 6 * CHUNK + 5, "home": os.getpid()}
    deadly = KillsOnce(**vars(job.scorer), **about)
    steps: list[int] = []
    found = run(replace(job, scorer=deadly), on_ray, step=lambda: steps.append(1))
    assert int(mark.read_text()) != os.getpid()
    assert not is_running(int(mark.read_text()))
    assert 100 < undisturbed.kept < 15625 - 100
    assert len(steps) == 16
    assert_same(tmp_path / "out", found, undisturbed)


def test_a_killed_driver_loses_nothing(
    cluster: Any, model: Model, undisturbed: ScoreAnswer, tmp_path: Path
) -> None:
    file = tmp_path / "desk.json"
    file.write_text(json.dumps(model.document))
    folder = tmp_path / "out"
    address = cluster.get_runtime_context().gcs_address
    arguments = [
        "tests.nas.ray_spaces:gated", file, "--output", folder, "--ray", address, "--chunk", CHUNK,
        "--best", 15, "--max-ms", 7.5, "--value", OPTIONS["value_name"],
    ]  # fmt: skip
    with (tmp_path / "said").open("wb") as said:
        driver = subprocess.Popen(
            [sys.executable, "-m", "lolat.cli.main", "nas", "score", *map(str, arguments)],
            cwd=ray_cluster.ROOT, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        wait_until(
            lambda: len(list(folder.glob("*.parquet"))) == 3 or driver.poll() is not None,
            120, "three ranges",
        )  # fmt: skip
        assert driver.poll() is None, (tmp_path / "said").read_text()
    finally:
        driver.kill()
        driver.wait()
    done = {p: p.stat().st_mtime_ns for p in folder.glob("*.parquet")}
    assert len(done) == 3
    Path(os.environ[GATE]).touch()
    job = make_job(nasbench201.space(), model, folder, **OPTIONS)
    found = run(job, on_ray)
    assert found.reused == 3
    assert {p: p.stat().st_mtime_ns for p in done} == done
    assert_same(folder, found, undisturbed)


def test_what_a_worker_cannot_do_is_said_in_one_line(
    cluster: Any, model: Model, tmp_path: Path
) -> None:
    job = make_job(nasbench201.space(), model, tmp_path / "a", limit=2000, chunk=CHUNK)
    with pytest.raises(InputError, match=r"value returned an array of shape \(1000, 2\)"):
        list(on_ray(replace(job, value=wrong_shape), [0, 1000]))
    with pytest.raises(LolatError, match="does not see the folder") as caught:
        list(on_ray(replace(job, folder=str(tmp_path / "elsewhere")), [0]))
    assert caught.value.exit_code == 1
    broken: Any = replace(job, scorer=None)  # what nobody foresaw
    with pytest.raises(LolatError, match="scoring failed in a worker: AttributeError") as caught:
        list(on_ray(broken, [0]))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_trial_over_the_budget_is_not_trained_or_stopped(
    cluster: Any, model: Model, tmp_path: Path
) -> None:
    (fastest, slowest), times = fastest_and_slowest()
    from ray import tune

    space = small()

    def build(config: Any) -> Any:
        values = config["trial"]["candidate"]
        return space.network([p.choices.index(values[p.name]) for p in space.positions])

    def train(config: Any) -> None:
        for step in range(3):
            tune.report({"score": 1.0 + step})

    latency = TrialLatency(model, build, float(np.median(times)))
    guarded = latency.trainable(train, over_budget={"score": 0.0})

    def either(config: Any) -> None:
        (guarded if config["trial"]["guarded"] else train)(config)

    trials = [(fastest, True), (slowest, True), (slowest, False)]
    searched = tune.grid_search([{"candidate": c, "guarded": g} for c, g in trials])
    found = tune.Tuner(
        either,
        param_space={"trial": searched},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), verbose=0, callbacks=[latency.callback()], stop=latency.stop
        ),
    ).fit()
    assert not found.errors
    # The callback has added what `train` did not report; a trial is trained, not trained, or stopped.
    names = ("over_budget", "latency_ms", "score", "training_iteration")
    told = {
        (r.metrics["config"]["trial"]["guarded"], *(r.metrics[name] for name in names))
        for r in found
    }
    fast, slow = times.min(), times.max()
    assert sorted(told) == [
        (False, True, pytest.approx(slow, rel=1e-12), 1.0, 1),
        (True, False, pytest.approx(fast, rel=1e-12), 3.0, 3),
        (True, True, pytest.approx(slow, rel=1e-12), 0.0, 1),
    ]


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
    run_example(EXAMPLES["ray_tune", 1], tmp_path, monkeypatch)
    assert (tmp_path / "results").is_dir()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ray::f()\n  File x\nModuleNotFoundError: No module named 'lolat'\n", "a machine has no module "
         "lolat; install the same LoLat on all of them"),
        ("ray::f()\n  File x\nValueError: no\n\nThe above", "ValueError: no"),
        ("it\nbroke", "Exception: it broke"),
    ],
)  # fmt: skip
def test_an_error_of_ray_in_short(text: str, said: str) -> None:
    assert in_short(Exception(text)) == said


def test_a_range_in_which_workers_die_again_and_again(
    cluster: Any, model: Model, tmp_path: Path
) -> None:
    job = make_job(nasbench201.space(), model, tmp_path, limit=2000, chunk=CHUNK)
    for number in range(10):
        (tmp_path / f".part-1000-2000-{number}-ab.tmp").touch()
    with pytest.raises(LolatError, match="10 workers died scoring the candidates 1000 to 1999"):
        run(job, on_ray)
    assert not list(tmp_path.glob("*.tmp"))
    assert run(job).scored == 2000


def test_a_full_disk_of_a_worker(model: Model, tmp_path: Path) -> None:
    job = make_job(nasbench201.space(), model, tmp_path)
    full = not_written(tmp_path, OSError(errno.ENOSPC, "No space left on device"), "output")
    with pytest.raises(LolatError, match="is not whole: the disk is full") as caught:
        answer_of(job, {"line": "", "error": json.dumps(sent(full))})
    assert (caught.value.code, caught.value.data) == ("not-written", {"path": str(tmp_path)})


def test_without_ray_data_the_install_line_is_said(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(nasbench201.space(), model, tmp_path)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(InputError, match=r"Ray Data is needed .*pip install .*\[ray\]'"):
        list(on_ray(job, [0]))

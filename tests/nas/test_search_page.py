"""docs/how-to/search.md: every example runs, and its figures are those of whole networks."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest

import lolat
from lolat import nas
from lolat.graph.counts import count
from lolat.nas.user_code import find_space
from tests.processes import script

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/how-to/search.md").read_text(encoding="utf-8")
EXAMPLES = {
    (section.splitlines()[0].lower().replace(" ", "_"), number): code
    for section in re.split(r"^##+ ", TEXT, flags=re.M)
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S), 1)
}
RAY, FRAGMENTS = ("ray_tune", 1), {("spaces", 2), ("spaces", 3), ("ten_measurements", 2)}


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {RAY} - FRAGMENTS), ids=str)
def test_an_example_runs(
    name: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("optuna", "torch"):
        if f"import {package}" in EXAMPLES[name]:
            pytest.importorskip(package)
    script(EXAMPLES[name], tmp_path, monkeypatch)
    numbers = [float(n) for n in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", capsys.readouterr().out)]
    assert bool(numbers) == ("print(" in EXAMPLES[name]), "a latency, or how many"
    assert all(0 <= number < 1e4 for number in numbers)


@pytest.mark.slow
def test_the_tuner_runs_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray, tune = pytest.importorskip("ray"), pytest.importorskip("ray.tune")
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    # Instead of ~/ray_results, whose path Ray has fixed when it was imported.
    for module in ("ray.train.constants", "ray.tune.experiment.experiment"):
        monkeypatch.setattr(f"{module}.DEFAULT_STORAGE_PATH", str(tmp_path / "results"))
    one_process = functools.partial(tune.TuneConfig, reuse_actors=True, max_concurrent_trials=1)
    monkeypatch.setattr(tune, "TuneConfig", one_process)
    memory = int(100e6)
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=memory)
    try:
        script(EXAMPLES[RAY], tmp_path, monkeypatch)
    finally:
        ray.shutdown()
    assert (tmp_path / "results").is_dir()


def test_the_differentiable_term_is_the_expectation_over_all_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    known = script(EXAMPLES["a_differentiable_term", 1], tmp_path, monkeypatch)
    space, expected_ms = known["space"], known["expected_ms"]
    rows = space.decode(np.arange(space.size))
    times = nas.estimator(space, lolat.load("epyc-2t")).latency(rows)
    for seed in range(2):
        p = np.random.default_rng(seed).dirichlet(np.ones(5), size=6)
        chances = np.prod([p[i, rows[:, i]] for i in range(6)], axis=0)
        assert float(expected_ms(torch.tensor(p))) == pytest.approx(float(chances @ times))
    certain = torch.nn.functional.one_hot(torch.tensor(rows[777].astype(int)), 5).double()
    assert float(expected_ms(certain)) == pytest.approx(times[777])
    assert known["alpha"].grad.abs().min() > 0


def test_the_tutorials_space_of_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first candidate by hand: a convolution on 32 x 32, one on 16 x 16, and a dense layer."""
    pytest.importorskip("torch")
    page = (ROOT / "docs/tutorial/search.md").read_text(encoding="utf-8")
    found = re.search(r'^```python title="torch_space.py"\n(.*?)^```$', page, re.M | re.S)
    assert found is not None
    (tmp_path / "torch_space.py").write_text(found[1])
    monkeypatch.chdir(tmp_path)
    space = find_space("torch_space:space")
    first = count(space.network([0, 0, 0])).total()
    assert first.flops == 9 * 3 * 8 * 32**2 + 9 * 8 * 16 * 16**2 + 16 * 4

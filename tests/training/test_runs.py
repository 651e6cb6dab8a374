"""The formula fitted to iterations that somebody timed, and an iteration from layers timed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.replicas.layers import fit_launch_ms, overlapped_ms, study_mirrored_ms, summed_ms
from benchmarks.replicas.runs import Runs, RunsFormula
from lolat.errors import InputError


def table(rows: int = 80, devices: tuple[int, ...] = (1, 2, 4)) -> Runs:
    """Rows whose columns vary one apart from the other."""
    draw = np.random.default_rng(1)
    return Runs(
        batch_size=draw.integers(1, 256, rows).astype(float),
        acts=10 ** draw.uniform(4, 6, rows),
        flops=10 ** draw.uniform(6, 9, rows),
        parameters=10 ** draw.uniform(4, 8, rows),
        variables=draw.integers(4, 200, rows).astype(float),
        devices=draw.choice(devices, rows),
        optimizer=draw.choice(["sgd", "adam", "rmsprop"], rows),
    )


def timed(runs: Runs) -> np.ndarray:
    """A machine that follows its own words, row by row: 40 Gbit/s are 5,000,000 bytes per ms."""
    found = []
    for i in range(len(runs.acts)):
        ms = 1.5 + 0.05 * runs.variables[i] + 2e-7 * runs.parameters[i]
        ms += runs.batch_size[i] * (1e-7 * runs.acts[i] + 2e-10 * runs.flops[i])
        if runs.optimizer[i] == "rmsprop":
            ms += 0.02 * runs.variables[i]
        if runs.devices[i] > 1:
            k = runs.devices[i]
            ms += 1.25 + 2 * (k - 1) / k * 4 * runs.parameters[i] / 5e6
        found.append(ms)
    return np.array(found)


def test_a_machine_that_follows_the_formula_is_learned() -> None:
    runs = table()
    formula = RunsFormula.fit(runs, timed(runs))
    assert formula.coefficients["call"] == pytest.approx(1.5, rel=1e-3)
    assert formula.coefficients["synchronisation"] == pytest.approx(1.25, rel=1e-3)
    assert formula.coefficients["unfused"] == pytest.approx(0.02, rel=1e-3)
    assert formula.link.gbps == pytest.approx(40, rel=1e-3)
    other = replace(table(), batch_size=np.full(80, 512.0))
    assert formula.predict(other) == pytest.approx(timed(other), rel=1e-3)


def test_rows_of_one_device_tell_no_link() -> None:
    runs = table(devices=(1,))
    formula = RunsFormula.fit(runs, timed(runs))
    assert formula.predict(runs) == pytest.approx(timed(runs), rel=1e-3)
    with pytest.raises(InputError, match="tell nothing about the link; expected some on several"):
        _ = formula.link


def test_tables_that_cannot_be() -> None:
    runs = table()
    few = runs.select(np.arange(8))
    with pytest.raises(InputError, match="8 points are too few to fit 8 coefficients"):
        RunsFormula.fit(few, timed(few))
    with pytest.raises(InputError, match="iterations of 0 ms or less"):
        RunsFormula.fit(runs, np.zeros(80))
    with pytest.raises(InputError, match=r"80 batch_size, 2 acts, .* expected as many of each"):
        replace(runs, acts=np.ones(2))
    with pytest.raises(InputError, match="devices of 0; expected at least 1"):
        replace(runs, devices=np.zeros(80))


def test_the_studys_own_figures() -> None:
    # Batch 8 of the study: the single layers' sum of 37.07 ms, 4.79 ms of the last, 37.82 ms measured.
    layers = [6.196, 9.621, 2.711, 3.832, 4.490, 7.598, 1.089, 0.900, 0.634]
    for given, off in (((), 0.107), ((1.5,), -0.220)):
        found = study_mirrored_ms(layers, [4.790], *given)[0]
        assert found / 37.822 - 1 == pytest.approx(off, abs=1e-3)


def test_launching_and_computing_at_the_same_time() -> None:
    # Three layers, a call of 1 ms: two launches of 0.4 against 0.2 + 0.1, then against 2 + 1.
    layers = [[1.2, 1.1, 1.0], [3.0, 2.0, 1.0]]
    assert summed_ms(layers) == pytest.approx([3.3, 6.0])
    assert overlapped_ms(layers, 1.0, 0.4) == pytest.approx([1.8, 4.0])
    assert fit_launch_ms(layers, [1.8, 4.0], 1.0) == pytest.approx(0.4)


def test_layers_that_cannot_be() -> None:
    for call, words in [
        (lambda: summed_ms([1.0, 0.0]), "missing, 0 or negative"),
        (lambda: summed_ms([]), "missing, 0 or negative"),
        (lambda: study_mirrored_ms([1.0], [1.0], 0), "correction of 0 cannot divide"),
        (lambda: fit_launch_ms([[1.0]], [1.0], 0.5), "network of one layer"),
        (lambda: fit_launch_ms([[1.0, 1.0]], [1.0, 2.0], 0.5), "1 rows of layers, but 2"),
    ]:
        with pytest.raises(InputError, match=words):
            call()

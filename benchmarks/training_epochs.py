"""A device's training time, learned from a table of epochs that somebody timed.

DATA holds benchmarked_insights_epochs.csv, epochs of generated networks on one GPU (Keras, SGD with
momentum 0.9): columns family, batch_size, samples, config (the network, as JSON), epoch_s_median. Rows are
drawn at random, the model is fitted on them and the rest predicted. The terms were chosen on one half of
the table; its other half was left out of that, and has rows of its own.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lolat
from benchmarks.generated import FAMILIES, build
from benchmarks.runner import Tables, benchmark
from lolat.device.intervals import conformal_quantile
from lolat.optimizers import OPTIMIZERS
from lolat.parameters import COVERAGE
from lolat.training.epochs import epoch_row, fit_terms, pass_counts

OPTIMIZER = "momentum"
SEED = 2027  # of the draws that are reported; those that terms were chosen on had 0


@dataclass(frozen=True)
class Data:
    """`rows`: (epochs, EPOCH_TERMS); `times`: (epochs,) ms; `same`: which rows are of one network."""

    families: np.ndarray
    rows: np.ndarray
    times: np.ndarray
    same: list[str]

    def some(self, chosen: np.ndarray) -> Data:
        """Some of the rows."""
        same = [self.same[i] for i in chosen]
        return Data(self.families[chosen], self.rows[chosen], self.times[chosen], same)


def network_of(row: dict[str, str]) -> str:
    """The network of a row: its configuration, in the keys of `benchmarks.generated`."""
    family, said = row["family"], []
    keys = {f"{family}_layers": "layers", "hidden_layers": "hidden", "input_shape": "input",
            "output_shape": "output"}  # fmt: skip
    for name, value in json.loads(row["config"]).items():
        key = keys.get(name, name)
        if key in FAMILIES[family]:
            listed = value if isinstance(value, list) else [value]
            # Filters by stage and block: within a stage they are the same.
            numbers = [n[0] if isinstance(n, list) else n for n in listed]
            said.append(f"{key}={','.join(map(str, numbers)) or 'none'}".lower())
    return f"generate:{family}?{'&'.join(said)}"


def table(path: Path) -> Data:
    """The terms and times of the study's epochs; each network is read once."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    graphs: dict[str, lolat.Graph] = {}
    found, same = [], []
    for row in rows:
        name, batch_size, samples = network_of(row), int(row["batch_size"]), int(row["samples"])
        if name not in graphs:
            graphs[name] = lolat.read(build(name))
        full = samples - samples % batch_size  # the last batch was left out
        found.append(epoch_row(graphs[name], batch_size, full, OPTIMIZERS[OPTIMIZER]))
        same.append(str(pass_counts(graphs[name], 1)))
    times = np.array([1e3 * float(r["epoch_s_median"]) for r in rows])
    return Data(np.array([r["family"] for r in rows]), np.array(found), times, same)


def judge(data: Data, rows: int, draws: int, part: int) -> list[str]:
    """The line of a table: mean over draws of the median errors, by family too."""
    errors: dict[str, list[float]] = {}
    far, inside, worst = [], [], []
    for draw in range(draws):
        random = np.random.default_rng([SEED, part, rows, draw])
        chosen = random.choice(len(data.times), rows, replace=False)
        kept, rest = data.some(chosen), np.setdiff1d(np.arange(len(data.times)), chosen)
        coefficients, residuals = fit_terms(kept.rows, kept.times, kept.same)
        ratio = data.rows[rest] @ coefficients / data.times[rest]
        error = np.abs(ratio - 1.0)
        for family in ("all", *sorted(set(data.families))):
            of = error if family == "all" else error[data.families[rest] == family]
            errors.setdefault(family, []).append(float(np.median(of)))
        worst.append(errors["all"][-1])
        far.append(float(np.quantile(error, 0.9)))
        half = conformal_quantile(residuals.tolist(), COVERAGE) if rows >= 9 else np.inf
        inside.append(float(np.mean(np.abs(np.log(ratio)) <= half)))
    means = [float(np.mean(v)) for v in errors.values()]
    figures = [means[0], max(worst), float(np.mean(far)), *means[1:]]
    return [*(f"{100 * f:.1f} %" for f in figures), f"{100 * np.mean(inside):.0f} %"]


def unseen(data: Data, family: str, rows: int, draws: int) -> str:
    """The median error on a family of which no row was fitted on, mean over draws."""
    of = data.families == family
    others, found = np.flatnonzero(~of), []
    for draw in range(draws):
        chosen = np.random.default_rng([SEED, rows, draw]).choice(others, rows, replace=False)
        kept = data.some(chosen)
        coefficients, _ = fit_terms(kept.rows, kept.times, kept.same)
        found.append(np.median(np.abs(data.rows[of] @ coefficients / data.times[of] - 1.0)))
    return f"{100 * float(np.mean(found)):.0f} %"


@benchmark("training-epochs", "training", "training", data="benchmarked_insights_epochs.csv")
def training_epochs(data: Path, draws: str = "20") -> Tables:
    """A device from 10 to 80 timed epochs."""
    every = table(data / "benchmarked_insights_epochs.csv")
    half = np.random.default_rng(7).permutation(len(every.times))
    development, test = every.some(half[:120]), every.some(half[120:])
    parts = {
        "of all rows": every,
        "rows of the development split": development,
        "rows of the test split": test,
    }
    names = sorted(set(every.families))
    lines = [
        [f"{number} {words}", *judge(some, number, int(draws), part)]
        for part, (words, some) in enumerate(parts.items())
        for number in (10, 20, 40, 80)
    ]
    far = [unseen(every, name, 40, int(draws)) for name in names]
    lines.append(["40 rows of the other families", "", "", "", *far, ""])
    heads = ["fitted to", "median", "worst draw", "90 % within", *names, "inside"]
    return {"epochs": (heads, lines)}

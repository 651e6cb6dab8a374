"""How well a device's training time is learned from a table of epochs that somebody timed.

    python benchmarks/training_epochs.py DATA [--rows 40] [--draws 20] [--write EPOCHS.csv]

DATA: benchmarked_insights_epochs.csv, epochs of generated networks on one GPU (Keras, SGD with momentum
0.9): columns family, batch_size, samples, config (the network, as JSON), epoch_s_median. Rows are drawn at
random, the model is fitted on them and the rest predicted. The terms were chosen on one half of the table
(CHOSEN_ON); its other half was left out of that, and has a table of its own. With --write, the table goes
into a file as `lolat fit` reads it.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import lolat  # noqa: E402
from lolat.fitting.intervals import COVERAGE, conformal_quantile  # noqa: E402
from lolat.readers.generated import FAMILIES  # noqa: E402
from lolat.training.epochs import epoch_row, fit_terms, operation_rows  # noqa: E402
from lolat.training.iteration import OPTIMIZERS  # noqa: E402

OPTIMIZER = "momentum"
SEED = 2027  # of the draws that are reported; those that terms were chosen on had 0


@dataclass(frozen=True)
class Data:
    """`rows`: (epochs, TERMS); `times`: (epochs,) ms; `same`: which rows are of one network."""

    families: np.ndarray
    rows: np.ndarray
    times: np.ndarray
    same: list[str]

    def some(self, chosen: np.ndarray) -> Data:
        """Some of the rows."""
        return Data(
            self.families[chosen],
            self.rows[chosen],
            self.times[chosen],
            [self.same[i] for i in chosen],
        )


def network_of(row: dict[str, str]) -> str:
    """NETWORK of a row: its configuration, in the keys of `generate:`."""
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


def table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """(families, rows as `lolat fit` reads them) of the study's table."""
    with open(path, newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    rows = [
        {
            "network": network_of(r),
            "batch_size": r["batch_size"],
            "samples": r["samples"],
            "optimizer": OPTIMIZER,
            "epoch_s": r["epoch_s_median"],
        }
        for r in found
    ]
    return [r["family"] for r in found], rows


def counted(families: list[str], rows: list[dict[str, str]]) -> Data:
    """The terms of each epoch; each network is read once."""
    graphs: dict[str, lolat.Graph] = {}
    found, same = [], []
    for row in rows:
        graph = graphs.get(row["network"])
        if graph is None:
            graph = graphs[row["network"]] = lolat.read(row["network"])
        batch_size, samples = int(row["batch_size"]), int(row["samples"])
        full = samples - samples % batch_size  # the last batch was left out
        found.append(epoch_row(graph, batch_size, full, OPTIMIZERS[OPTIMIZER]))
        same.append(str(operation_rows(graph, 1).sum(axis=0)))
    times = np.array([1e3 * float(r["epoch_s"]) for r in rows])
    return Data(np.array(families), np.array(found), times, same)


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


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="the study's table")
    parser.add_argument("--rows", type=int, action="append", help="fitted on; 40 if not given")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--write", type=Path, metavar="EPOCHS.csv")
    asked = parser.parse_args()
    families, rows = table(asked.data)
    if asked.write:
        with open(asked.write, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    data = counted(families, rows)
    half = np.random.default_rng(7).permutation(len(rows))
    parts = {
        "all rows": data,
        "half that the terms were chosen on": data.some(half[:120]),
        "other half": data.some(half[120:]),
    }
    names = sorted(set(families))
    print(
        f"| rows fitted on, of | median | worst draw | 90 % within | {' | '.join(names)} | inside |"
    )
    print(f"| --- |{' --: |' * (4 + len(names))}")
    for part, (words, some) in enumerate(parts.items()):
        for count in asked.rows or [40]:
            print(
                f"| {count}, {words} | {' | '.join(judge(some, count, asked.draws, part))} |",
                flush=True,
            )
    far = [unseen(data, name, 40, asked.draws) for name in names]
    print(f"| 40, of the other families only | | | | {' | '.join(far)} | |")


if __name__ == "__main__":
    main()

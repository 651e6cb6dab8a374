"""Predicts training by a formula that is fitted to a table of timed epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.device.domain import OUTSIDE_WIDENING
from lolat.device.file import DeviceFile, new_document
from lolat.device.intervals import conformal_quantile
from lolat.errors import InputError
from lolat.fitting.cross_validation import cross_validate, folds_of
from lolat.fitting.least_squares import fit_relative, require_points
from lolat.graph import Graph
from lolat.graph.backward import checkpoints
from lolat.graph.counts import behaviors, count
from lolat.graph.edits import as_trained
from lolat.graph.modes import Mode, other_dtype
from lolat.io.documents import NotNegative, Number, converted
from lolat.io.progress import Warn
from lolat.io.tables import Table, read_table
from lolat.optimizers import OPTIMIZERS, Optimizer
from lolat.tables.copies import copies_words
from lolat.tables.devices import rows_of_devices
from lolat.tables.modes import MODE_COLUMNS, mode_of_row
from lolat.tables.networks import RowSize, on_several, size_of
from lolat.training.memory import numbers_of
from lolat.training.pass_counts import PASS_TERMS, pass_rows, shares
from lolat.training.predictor import Iteration, TrainedBatch, TrainingPredictor, unmeasured
from lolat.training.run import TrainingRun

EPOCH_COLUMNS = ("network", "batch_size", "samples", "optimizer", "epoch_s")
EPOCH_TERMS = ("ops", "flat_norms", "flops", "elements", "update", "steps")
"""The counts that an iteration's time depends on: operations, normalizations of tensors without positions
(many operations each in TensorFlow), multiply-accumulates, elements moved, elements that the update moves,
and iterations (a constant each)."""
EpochCoefficients: Any = msgspec.defstruct(
    "EpochCoefficients", [(term, NotNegative) for term in EPOCH_TERMS]
)
FEWER = (
    "two rows are enough beside a bundled profile, in a table with the columns network, batch_size, "
    "precision, optimizer and samples_per_s: lolat fit rtx-4090 nets.csv --output mine.json"
)
"""The way to use a few timed epochs; docs/reference/files.md has all columns of that table."""
ReadNetwork = Callable[[str, RowSize], Graph]
"""A function of (NETWORK, its input size or None for the default) that returns the graph."""
BALANCE = 800.0  # multiply-accumulates in the time of moving an element, more than on any device


class EpochSection(msgspec.Struct):
    """The section `epochs` of a device file.

    `residuals`: log(measured / predicted) of networks held out of the fit. `optimizers`, `kinds`:
    optimizers and kinds of operation in the timed epochs. `mode`: the execution mode; None if the table
    does not say it (float32 is assumed). `batch_sizes`: the smallest and the largest batch; `inputs`: the
    smallest and the largest number of elements of a sample.
    """

    coefficients_ms: EpochCoefficients
    residuals: list[Number]
    optimizers: tuple[str, ...]
    kinds: list[str]
    mode: Mode | None = None
    batch_sizes: tuple[int, int] | None = None
    inputs: tuple[int, int] | None = None


def input_elements(graph: Graph) -> int:
    """Number of elements in the inputs of a sample."""
    return sum(graph.tensors[t].elements(1) for t in graph.inputs)


def pass_counts(graph: Graph, batch_size: int) -> np.ndarray:
    """(4,) the first four EPOCH_TERMS of both passes, counted as one forward pass.

    Both passes together run three products for each kernel. An operation that runs fewer (in a frozen part)
    or more (computed again) counts in proportion.
    """
    back, again = shares(graph)
    rows = pass_rows(graph, batch_size) * ((1 + again + 2 * back) / 3)[:, None]
    counts = dict(zip(PASS_TERMS, rows.sum(axis=0), strict=True))
    elements = counts["acts"] + counts["inp"] + counts["traffic"]
    return np.array([counts["ops"], counts["flat_norms"], counts["flops"], elements])


def epoch_row(graph: Graph, batch_size: int, samples: int, optimizer: Optimizer) -> np.ndarray:
    """(EPOCH_TERMS,) counts of an epoch; the last iteration has the remaining `samples`."""
    full, rest = divmod(samples, batch_size)
    work, steps = full * pass_counts(graph, batch_size), full + bool(rest)
    if rest:
        work += pass_counts(graph, rest)
    return np.array([*work, steps * numbers_of(graph).trained * optimizer.accesses, steps])


class EpochTraining(TrainingPredictor):
    """Predicts an iteration by a formula of the network's counts; `coefficients`: (EPOCH_TERMS,) ms."""

    def __init__(self, file: DeviceFile, source: str) -> None:
        """Read the section `epochs` of a device file; ModelFileError if it is damaged."""
        self.file = file
        self.section = converted(file.epochs, EpochSection, source, "$.epochs")
        self.coefficients = np.array(msgspec.structs.astuple(self.section.coefficients_ms))

    @property
    def mode(self) -> Mode | None:
        """The execution mode of the timed epochs; None if the table does not say it."""
        return self.section.mode

    def batch(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> TrainedBatch:
        """See `TrainingPredictor`; the times of both passes are only known together.

        Widths and depths outside those of the timed networks give no warning.
        """
        row = epoch_row(graph, batch_size, batch_size, optimizer)
        *passes, update, step = (row * self.coefficients).tolist()
        remarks, no_row = list[str](), "no row that the profile was fitted to"
        if optimizer.name not in self.section.optimizers:
            optimizers = ", ".join(self.section.optimizers)
            remarks.append(f"{no_row} used {optimizer.name}, only {optimizers}")
        if unknown := unmeasured(graph, self.section.kinds):
            remarks.append(f"{no_row} has the operations {', '.join(unknown)}")
        remarks += (other := other_dtype(graph, (self.mode or Mode()).dtype))
        remarks += (beyond := [*self._beyond(graph, batch_size)])

        def half_width(coverage: float) -> float:
            wider = OUTSIDE_WIDENING if beyond else 1.0
            return min(wider * conformal_quantile(self.section.residuals, coverage), 100.0)

        return TrainedBatch(
            Iteration(sum(passes), None, update, step), (*remarks, *count(graph).warnings), half_width,
            in_domain=False if other or beyond or unknown else None,
        )  # fmt: skip

    def _beyond(self, graph: Graph, batch_size: int) -> Iterator[str]:
        """Yield remarks on batches, samples or frozen parts outside the range of the timed epochs."""
        size = input_elements(graph)
        for what, asked, timed in (
            (f"a batch of {batch_size:,}", batch_size, self.section.batch_sizes),
            (f"samples of {size:,} elements", size, self.section.inputs),
        ):
            if timed and not timed[0] <= asked <= timed[1]:
                yield f"no timed epoch has {what}, only {timed[0]:,} to {timed[1]:,}: the interval is wider"
        if numbers_of(graph).frozen or checkpoints(graph):
            yield (
                "a part of the network is frozen or computed again, which epochs do not tell apart: its "
                "time is taken from the counts, with a wider interval"
            )


def epochs_document(
    path: str, name: str, device: str | None, read: ReadNetwork, warn: Warn
) -> dict[str, Any]:
    """Make a device file from a CSV table with EPOCH_COLUMNS and a row for each timed epoch.

    Equal rows count once. `read` is called once for each network and size. InputError for too few rows, a
    wrong row, or a row in another execution mode than the first.
    """
    table = read_table(path, EPOCH_COLUMNS, rows="timed epoch")
    table = rows_of_devices(table, [device] if device else ())
    is_told = not {*MODE_COLUMNS}.isdisjoint(table.names)
    if not is_told:
        warn(f"{path} has no precision: its epochs are taken to be of float32")
    points, rows, graphs, mode = _timed_epochs(table, read)
    if copies := len(table) - len(points):
        warn(copies_words(copies, len(table)))
    table.say_unread(warn)
    try:
        require_points(len(rows), len(EPOCH_TERMS))
    except InputError as error:
        raise error.reworded(f"{error}; {FEWER}") from error
    times_ms = np.array([1e3 * p["epoch_s"] for p in points])
    # Networks of the same work are held out together, whatever their names.
    work = {n: str(pass_counts(graph, 1)) for n, graph in graphs.items()}
    coefficients, residuals = fit_terms(
        np.array(rows), times_ms, [work[p["network"], p.get("input_size")] for p in points]
    )
    environment = {"device": device or Path(path).stem, "source": "a table of epochs"}
    sizes, inputs = [p["batch_size"] for p in points], [*map(input_elements, graphs.values())]
    section = {
        "coefficients_ms": dict(zip(EPOCH_TERMS, coefficients.tolist(), strict=True)),
        "residuals": residuals.tolist(),
        "optimizers": sorted({p["optimizer"] for p in points}),
        "kinds": sorted({k for graph in graphs.values() for k in behaviors(graph.operations)}),
        "points": points,
        "batch_sizes": (min(sizes), max(sizes)),
        "inputs": (min(inputs), max(inputs)),
        **({"mode": msgspec.to_builtins(mode)} if is_told else {}),
    }
    return {**new_document(name, environment["device"], environment), "epochs": section}


def _timed_epochs(
    table: Table, read: ReadNetwork
) -> tuple[list[dict[str, Any]], list[np.ndarray], dict[tuple[str, RowSize], Graph], Mode]:
    """(distinct points of a table, their (EPOCH_TERMS,) rows, graphs by network and size, the execution
    mode).
    """
    points: list[dict[str, Any]] = []
    rows, graphs, first = [], dict[tuple[str, RowSize], Graph](), None
    for row in table:
        if on_several(row):
            raise row.refused("run on several devices; expected epochs of one")
        seconds = row.number("epoch_s", 1e-9, 1e12, "a time above 0, in seconds")
        batch_size, samples = row.whole("batch_size"), row.whole("samples")
        network = row["network"], size_of(row, row["network"], training=True)
        try:
            mode = mode_of_row(row).inference
            first = first or mode
            if mode != first:
                raise row.refused(f"run in {mode}, the first row in {first}; expected one way")
            run = TrainingRun(batch_size, samples, optimizer=row["optimizer"])
            if network not in graphs:
                graphs[network] = as_trained(read(*network))
        except InputError as error:
            raise error.reworded(f"{row.where}: {error.message}") from error
        optimizer = OPTIMIZERS[run.optimizer]
        values = (network[0], batch_size, samples, optimizer.name, seconds)
        point = dict(zip(EPOCH_COLUMNS, values, strict=True))
        point |= {"input_size": network[1]} if network[1] else {}
        if point not in points:
            points.append(point)
            rows.append(epoch_row(graphs[network], batch_size, samples, optimizer))
    return points, rows, graphs, first or Mode()


def fit_terms(
    rows: np.ndarray, times_ms: np.ndarray, networks: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Fit; return ((EPOCH_TERMS,) coefficients in ms, (epochs,) log(measured / predicted) when held out).

    `rows`: (epochs, EPOCH_TERMS) counts; `networks`: (epochs,) names; each network is held out whole.
    """
    rows, flops, moved = rows.copy(), EPOCH_TERMS.index("flops"), EPOCH_TERMS.index("elements")
    rows[:, moved] += rows[:, flops] / BALANCE  # if they cannot be separated, neither is free

    def predict(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        if not kept.any():
            return np.zeros(int(out.sum()))
        return np.asarray(rows[out] @ fit_relative(rows[kept], times_ms[kept]))

    predicted = cross_validate(folds_of(networks), predict)
    coefficients = fit_relative(rows, times_ms)
    coefficients[flops] += coefficients[moved] / BALANCE
    residuals = np.log(times_ms / np.maximum(predicted, 1e-6 * times_ms))
    return coefficients, np.round(residuals, 6)

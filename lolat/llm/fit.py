"""Fits the kernel models of a GPU's operations to a few hundred timed rows.

Robust least squares on logarithms fits the terms of each variant of a kernel model; the variant with the
lowest cost is kept. With few rows the terms stay near the centers of their priors. A correction, a sparse
Gaussian process of CENTERS radial basis functions, follows the residuals, and vanishes far from timed sizes
(Smola and Bartlett 2001).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from lolat.device.intervals import normal_quantile
from lolat.fitting.cross_validation import cross_validate, log_errors
from lolat.llm.calibration import SPREADS
from lolat.llm.frameworks import FRAMEWORKS
from lolat.llm.gpu import (
    CALIBRATED_AT,
    IN_GENERAL,
    LINK_GB_S,
    MOST_CHANGE,
    UNSEEN,
    FittedKernel,
    ServedFit,
    ServingSection,
    Sheet,
    lacks_rate,
    operation_ms,
    rbf,
    short,
    specs_of,
)  # fmt: skip
from lolat.llm.kernel_models import KERNEL_MODELS
from lolat.llm.kernels import GpuRates, Sizes
from lolat.llm.operation_tables import TimedTables

OUTLIER_ERRORS = {"gemm": 0.05, "all_reduce": 0.04}
OFF_OTHERS = 0.1
"""Scale of the robust loss: rows with a larger error, as a logarithm, count as outliers."""
CENTERS = 24
AMPLITUDE, NOISE = 0.1, 0.07
"""Standard deviations of the correction and of the noise, as logarithms of a time."""
FOLDS = 5


def fit_operation(
    name: str, dtype: str, rows: Sizes, ms: np.ndarray, specs: GpuRates
) -> FittedKernel:
    """Fit an operation to timed `rows`; `ms`: their (rows,) times."""
    every = _Timed(name, dtype, rows, ms, specs)
    fits = [every.fit_terms(variant) for variant in KERNEL_MODELS[name].variants(dtype)]
    _, operation = min(fits, key=lambda fit: fit[0])
    spread = 0.3
    if len(ms) > 2 * FOLDS:

        def of_others(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
            rest = every.take(kept)
            fitted = rest.corrected(rest.fit_terms(operation.variant, operation.terms)[1])
            return operation_ms(name, fitted, take(rows, out), specs, dtype, alone=True)

        left = log_errors(ms, cross_validate(np.arange(len(ms)) % FOLDS, of_others))
        spread = float(np.quantile(np.abs(left), CALIBRATED_AT) / normal_quantile(CALIBRATED_AT))
    return msgspec.structs.replace(every.corrected(operation), spread=short(spread), rows=len(ms))


def take(rows: Sizes, which: np.ndarray) -> Sizes:
    """Some of the rows."""
    return {column: values[which] for column, values in rows.items()}


@dataclass(frozen=True)
class _Timed:
    """Timed rows of an operation in one data type."""

    name: str
    dtype: str
    rows: Sizes
    ms: np.ndarray
    specs: GpuRates

    def take(self, which: np.ndarray) -> _Timed:
        """Some of the rows."""
        return _Timed(self.name, self.dtype, take(self.rows, which), self.ms[which], self.specs)

    def log_errors(self, terms: Mapping[str, float], variant: str) -> Any:
        """(rows,) log(measured / predicted), without a correction."""
        model = KERNEL_MODELS[self.name]
        return np.log(self.ms / model.ms(terms, self.rows, self.specs, self.dtype, variant, True))

    def fit_terms(
        self, variant: str, start: Mapping[str, float] | None = None
    ) -> tuple[float, FittedKernel]:
        """Fit the terms of a variant; return (cost of the fit, the operation without a correction)."""
        from scipy.optimize import least_squares

        centers = KERNEL_MODELS[self.name].terms(self.dtype, variant)
        middle, width = np.array([*centers.values()]).T
        middle, scale = np.log(middle), OUTLIER_ERRORS.get(self.name, OFF_OTHERS)

        def errors(unknowns: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                off = -self.log_errors(dict(zip(centers, np.exp(unknowns), strict=True)), variant)
            off = np.nan_to_num(off, nan=10.0, posinf=10.0) / scale
            return np.concatenate([off, (unknowns - middle) / width])

        begin = middle if start is None else np.log([*start.values()])
        found = least_squares(errors, begin, loss="soft_l1", diff_step=1e-3, max_nfev=60)
        terms = {n: short(v) for n, v in zip(centers, np.exp(found.x), strict=True)}
        return float(found.cost), FittedKernel(terms=terms, variant=variant)

    def corrected(self, operation: FittedKernel) -> FittedKernel:
        """The operation with a correction fitted to its residuals; unchanged with too few rows."""
        log_sizes = KERNEL_MODELS[self.name].log_sizes
        if log_sizes is None or len(self.ms) < CENTERS:
            return operation
        left = MOST_CHANGE * np.tanh(
            self.log_errors(operation.terms, operation.variant) / MOST_CHANGE
        )
        places = log_sizes(self.rows).round(2)
        near, trust, ridge = rbf(places, places), np.ones(len(left)), (NOISE / AMPLITUDE) ** 2
        smooth = left
        for _ in range(5):  # outliers count less
            smooth = near @ np.linalg.solve(near + np.diag(ridge / trust), left)
            trust = 1.0 / (1.0 + ((left - smooth) / (2 * NOISE)) ** 2)
        chosen, rest, part = list[int](), smooth, near[:, :0]
        for _ in range(CENTERS):
            gain = (near @ rest) ** 2 / (near**2).sum(0)
            gain[chosen] = -1.0
            chosen.append(int(gain.argmax()))
            part = near[:, chosen]
            square = part.T @ part + 1e-3 * np.eye(len(chosen))
            rest = smooth - part @ np.linalg.solve(square, part.T @ smooth)
        penalty = ridge * near[np.ix_(chosen, chosen)] + 1e-5 * np.eye(len(chosen))
        weights = np.linalg.solve((part.T * trust) @ part + penalty, (part.T * trust) @ left)
        return msgspec.structs.replace(
            operation, centers=tuple(tuple(map(float, place)) for place in places[chosen]),
            weights=tuple(short(weight) for weight in weights),
        )  # fmt: skip


# ---- A section.

LIKE = 0.5
"""Two GPUs are similar if their `_unlike` is below this."""
EXCHANGE = "all_reduce"
PCIE_GB_S = 64.0
"""GB/s in one direction of PCI Express 5.0 with 16 lanes; every NVLink is faster."""


def complete(section: ServingSection, others: Mapping[str, ServingSection]) -> ServingSection:
    """Add to a section the operations and overheads that it lacks; `others`: sections of other GPUs by
    name.

    An untimed operation comes from a similar GPU, else it has the usual terms. All-reduces over PCI Express
    come from a GPU that was timed over PCI Express. Data types that the GPU lacks are left out. Without
    served rows the overheads come from a similar GPU; the overheads of decoders in OWN_FITS come from any
    GPU, preferably with the same framework.
    """
    known = {name: dict(dtypes) for name, dtypes in section.operations.items()}
    order = sorted(others.items(), key=lambda one: (_unlike(section, one[1]), not one[1].served))
    timed = (other for other, one in order if _over_pcie(one) and _times(one, EXCHANGE))
    exchanging = next(timed, "") if _over_pcie(section) else ""
    for other, one in order:
        for name, dtypes in one.operations.items():
            is_alike = _unlike(section, one) < LIKE
            if exchanging and name == EXCHANGE:
                if other != exchanging:
                    continue
                is_alike = True
            for dtype, operation in dtypes.items():
                types, whole = dtype.split("/"), name.removesuffix("_module")
                if (whole if whole != name else f"{name}_module") in known:
                    continue
                if dtype in known.get(name, {}) or any(lacks_rate(section.sheet, t) for t in types):
                    continue
                if not is_alike:
                    operation = usual_operation(name, dtype, operation.variant)
                like = (operation.like or other) if is_alike else IN_GENERAL
                operation = msgspec.structs.replace(operation, rows=0, like=like)
                known.setdefault(name, {})[dtype] = operation
    near = order[0][1] if order else section
    if not section.served and near.served and _unlike(section, near) < LIKE:
        section = msgspec.structs.replace(section, overheads=near.overheads)
    fits = dict(section.fits)
    for _, one in sorted(order, key=lambda item: item[1].framework != section.framework):
        for kind, fit in one.fits.items():
            own = ServedFit(overheads=fit.overheads, spread=UNSEEN, dtypes=fit.dtypes)
            fits.setdefault(kind, own)
    return msgspec.structs.replace(section, operations=known, fits=fits)


def _times(section: ServingSection, name: str) -> bool:
    """True if an operation was timed on the GPU itself."""
    return any(operation.rows for operation in section.operations.get(name, {}).values())


def _over_pcie(section: ServingSection) -> bool:
    """True if only PCI Express joins the GPUs of a node."""
    return (section.sheet.link_gb_s or LINK_GB_S) <= PCIE_GB_S


def usual_operation(name: str, dtype: str, variant: str) -> FittedKernel:
    """Make an untimed operation: its terms are the centers of their priors."""
    centers = KERNEL_MODELS[name].terms(dtype, variant).items()
    return FittedKernel(terms={term: center for term, (center, _) in centers}, variant=variant)


def _unlike(a: ServingSection, b: ServingSection) -> float:
    """The distance of two GPUs: differences of log(rate of a multiprocessor), of data types and of
    framework.
    """

    def place(sheet: Sheet) -> np.ndarray:
        rates = np.array([sheet.bf16_tflops, sheet.bandwidth_gb_s]) / sheet.multiprocessors
        has = (rate is not None for rate in (sheet.fp8_tflops, sheet.fp4_tflops))
        return np.array([*np.log(rates), *has])

    distance = np.abs(place(a.sheet) - place(b.sheet)).sum()
    return float(distance + 0.25 * (a.framework != b.framework))


def _of_use(name: str, timed: TimedTables) -> list[str]:
    """The data types of a timed operation that a step needs.

    A module (attention timed with its projections) is needed only if attention was not timed alone: then
    one for each data type of the cache, preferably with fp8_block weights.
    """
    dtypes = sorted(timed[name], key=lambda dtype: (dtype.startswith("fp8_block/"), dtype))
    if not name.endswith("_module"):
        return [*timed[name]]
    if name.removesuffix("_module") in timed:
        return []
    return [*{dtype.partition("/")[2]: dtype for dtype in dtypes}.values()]


def section_from(
    sheet: Sheet, framework: str, timed: TimedTables, others: Mapping[str, ServingSection]
) -> ServingSection:
    """Fit a GPU from its data sheet and timed operations, and complete it from `others`."""
    specs, fitted = specs_of(sheet), dict[str, dict[str, FittedKernel]]()
    for name in timed:
        if dtypes := _of_use(name, timed):
            fitted[name] = {d: fit_operation(name, d, *timed[name][d], specs) for d in dtypes}
    section = ServingSection(
        sheet=sheet, operations=fitted, overheads=FRAMEWORKS[framework].overheads, framework=framework,
        spread=SPREADS["timed" if fitted else "sheet"],
    )  # fmt: skip
    return complete(section, others)

"""What each part of the formula by operation is worth.

DATA holds the folders timm and neusight. Each part is left out in turn, or a class of operations takes the
terms of another. Networks: the median error, families left out, the mean of tables; products, moves: that
of single operations left out at random; transformers: the mean error of whole ones from 180 operations,
three draws. Each on the tables that the formula was chosen on, and on others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.gpus import drawn
from benchmarks.networks import read_timed
from benchmarks.runner import Tables, benchmark, percent
from lolat.devices import fit
from lolat.devices.fit import fit_kernels
from lolat.devices.from_tables import Timed, _thinned, left_out_of_folds, seen_facts
from lolat.devices.sheets import Facts, read_facts
from lolat.devices.tables import MULTIPLYING, counts_of, read_networks, read_operations
from lolat.devices.times import Times
from lolat.fitting.predictors import kernels
from lolat.graph import work as c
from lolat.graph.modes import Mode
from lolat.graph.work import CLASSES, PRODUCTS, Work

CHOSEN_ON, REPORTED = "chosen on", "others"
NETWORKS = {
    CHOSEN_ON: (
        "infer-amp-nchw-pt240-cu124-rtx4090", "infer-amp-nchw-pt240-cu124-rtx4090-dynamo",
        "infer-amp-nchw-pt240-cu124-rtx3090", "infer-amp-nhwc-pt240-cu124-rtx3090",
    ),
    REPORTED: (
        "infer-amp-nchw-pt291-cu128-4090", "infer-amp-nchw-pt291-cu128-4090-dynamo",
        "infer-amp-nchw-pt291-cu130-5090", "infer-amp-nchw-pt291-cu130-5090-dynamo",
        "infer-amp-nchw-pt291-cu130-pro6000maxq-dynamo", "infer-bf16-nchw-pt291-cu130-pro6000maxq-dynamo",
    ),
}  # fmt: skip
OPERATIONS = {
    CHOSEN_ON: ("v100-pcie-32gb", "p4"),
    REPORTED: ("t4", "p100-pcie-16gb", "a100-pcie-40gb", "h100-sxm-80gb"),
}
ROWS, DRAWS = 180, 3
Volumes = Callable[[Work, float, Mode], np.ndarray]


@dataclass(frozen=True)
class Variant:
    """`volumes`, `sharp`: of the formula; `merged`: class -> the one whose terms it takes."""

    volumes: Volumes = kernels.volumes
    sharp: float = kernels.SHARP
    merged: dict[str, str] = field(default_factory=dict)
    waves: bool = True
    near: bool = True
    power: bool = True

    def use(self) -> None:
        """From now on."""
        kernels.volumes = fit.volumes = self.volumes
        kernels.SHARP = self.sharp
        fit._nearby = _NEARBY if self.near else lambda formula, times: {}

    def of_work(self, work: Work) -> Work:
        """Steps of merged classes are of others."""
        kind = work.kind.copy()
        for name, other in self.merged.items():
            kind[work.kind == CLASSES.index(name)] = CLASSES.index(other)
        return replace(work, kind=kind)

    def of_times(self, times: Times) -> Times:
        """The same of what was timed."""
        return replace(times, work=self.of_work(times.work))

    def of_facts(self, facts: Facts) -> Facts:
        """What is told of the device."""
        multiprocessors = facts.multiprocessors if self.waves else 1.0
        return replace(facts, multiprocessors=multiprocessors, bound=facts.bound and self.power)

    @property
    def terms(self) -> int:
        """How many a file has."""
        own = set(CLASSES) - self.merged.keys()
        return len(own) + len(own & PRODUCTS.keys()) + 1


_NEARBY = fit._nearby


def _no_tiles(work: Work, multiprocessors: float, mode: Mode) -> np.ndarray:
    return work.macs


def _shallow(work: Work, multiprocessors: float, mode: Mode) -> np.ndarray:
    return VOLUMES(work, multiprocessors, Mode())


VOLUMES = kernels.volumes
LIKE = {
    c.BATCHED: c.DENSE, c.POINTWISE: c.DENSE, c.CONVOLUTION: c.POINTWISE, c.GROUPED: c.CONVOLUTION,
    c.DEPTHWISE: c.GROUPED, c.ATTENTION: c.BATCHED,
    **{n: c.ELEMENTS for n in CLASSES if n not in PRODUCTS and n != c.ELEMENTS}, c.GROUP_NORM: c.NORM,
}  # fmt: skip
VARIANTS = {
    "nothing": Variant(),
    "whole tiles": Variant(_no_tiles),
    "steps of depth in half precision": Variant(_shallow),
    "waves": Variant(waves=False),
    "the sum of the parts": Variant(sharp=1.0),
    "nearly the longest (norm of order 4)": Variant(sharp=4.0),
    "shapes near by": Variant(near=False),
    "power": Variant(power=False),
    **{f"{name} as {other}": Variant(merged={name: other}) for name, other in LIKE.items()},
}


@dataclass(frozen=True)
class Device:
    """Of a table of operations: what is timed, products' folds, draws, transformers."""

    timed: Timed
    facts: Facts
    draws: list[Times]
    transformers: list[tuple[Work, float]]

    @classmethod
    def of(cls, folder: Path, device: str) -> Device:
        """From its tables."""
        rows = read_operations(folder / f"kernels-{device}.csv.gz")
        timed = [
            r for r in read_networks(folder / "networks.csv", [device]).rows if r.mode == Mode()
        ]
        pairs = zip(timed, counts_of(timed), strict=True)
        return cls(
            Timed(_thinned(rows), [], Mode()),
            read_facts(folder / "devices.csv", device),
            [Timed(drawn(rows, ROWS, seed), [], Mode()).times for seed in range(DRAWS)],
            [(known.work(row.batch_size), row.latency_ms) for row, known in pairs],  # type: ignore[union-attr]
        )

    def judged(self, variant: Variant) -> tuple[float, float, float]:
        """(products, moves, transformers) as the header says."""
        facts, times = variant.of_facts(self.facts), variant.of_times(self.timed.times)
        off = left_out_of_folds(times, self.timed.folds(), facts, Mode()) / times.latency_ms - 1.0
        products = np.array([o.name in MULTIPLYING for o in self.timed.operations])
        found = []
        for draw in self.draws:
            own = fit_kernels(variant.of_times(draw), facts)
            ms = [own.times(variant.of_work(work))[0].sum() for work, _ in self.transformers]
            found += [
                one / measured - 1.0
                for one, (_, measured) in zip(ms, self.transformers, strict=True)
            ]
        apart = (np.abs(off[which]) for which in (products, ~products))
        medians = [float(np.median(some)) if len(some) else np.nan for some in apart]
        return medians[0], medians[1], float(np.mean(np.abs(found)))


@benchmark("kernels-ablation", "gpus", "kernels", data="the folders timm and neusight")
def kernels_ablation(data: Path, names: str = "") -> Tables:
    """The GPU formula without a part, or with classes merged (names=A,B: of these alone)."""
    timed = {
        group: [read_timed(data / "timm" / f"{table}.csv.gz")[0] for table in tables]
        for group, tables in NETWORKS.items()
    }
    every = {
        group: [Device.of(data / "neusight", device) for device in tables]
        for group, tables in OPERATIONS.items()
    }
    kinds = ("networks", "products", "moves", "transformers")
    heads = [f"{kind}: {group}" for kind in kinds for group in (CHOSEN_ON, REPORTED)]
    lines = []
    for name in names.split(",") if names else VARIANTS:
        variant = VARIANTS[name]
        variant.use()
        cells = [
            float(np.mean([left_out(variant, t) for t in timed[g]])) for g in (CHOSEN_ON, REPORTED)
        ]
        both = [
            np.nanmean([d.judged(variant) for d in every[g]], axis=0) for g in (CHOSEN_ON, REPORTED)
        ]
        cells += [float(both[group][kind]) for kind in (0, 1, 2) for group in (0, 1)]
        lines.append([name, str(variant.terms), *map(percent, cells)])
    return {"ablation": (["left out", "terms", *heads], lines)}


def left_out(variant: Variant, timed: Timed) -> float:
    """The median error of a table's networks, families left out."""
    own, facts = variant.of_times(timed.times), seen_facts(timed.times)
    off = left_out_of_folds(own, timed.folds(), facts, timed.mode) / timed.times.latency_ms - 1.0
    return float(np.median(np.abs(off)))

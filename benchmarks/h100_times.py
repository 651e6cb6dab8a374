"""An H100 that was timed by `benchmarks/gpu_times.py`, against its bundled profiles.

`learned`: by `lolat learn gpu --mode training` on another machine with such a card, fitted again with
today's formula. `carried`: by the profile of float32 and the data sheet alone, as other cards are answered
in half precision. `held out`: by the fit to the other families of networks. These two are of the device's
times, without the host (`benchmarks.published.of_h100`).
"""

from __future__ import annotations

import lzma
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

import lolat
from benchmarks.published import NETWORKS, OF_H100, of_h100
from benchmarks.runner import Errors, Tables, benchmark
from lolat.api.table_rows import Comparison, compare_rows
from lolat.device.predictors.precision import in_precision
from lolat.device.predictors.roofline import Roofline
from lolat.device.question import TableQuestion
from lolat.graph.modes import PRECISION_OF
from lolat.tables.counted import counts_of
from lolat.tables.networks import read_networks

HEADER = ("precision, layout, way", "times", "median", "bias", "beyond 1.5 times")


def row_of(name: str, off: np.ndarray) -> list[str]:
    """The row of relative errors, predicted / measured - 1."""
    errors, far = Errors(off), np.abs(np.log1p(off)) > np.log(1.5)
    return [name, str(len(off)), errors.median, errors.bias, str(int(far.sum()))]


def carried(name: str, folder: Path) -> np.ndarray:
    """Relative errors of the device's times in a mode, by the profile of float32 and the sheet."""
    float32, mode = lolat.load("h100-fp32"), lolat.load(name).file.mode
    formula = in_precision(float32.predictors[Roofline.name], mode.dtype, float32.file.gpu)  # type: ignore[arg-type]
    formula = msgspec.structs.replace(formula, mode=mode)
    rows = read_networks(of_h100(name, folder)).rows
    pairs = [
        (r, c) for r, c in zip(rows, counts_of(rows), strict=True) if not isinstance(c, Exception)
    ]
    ms = [formula.times(counts.work(row.batch_size))[0].sum() for row, counts in pairs]
    return np.array(ms) / [row.latency_ms for row, _ in pairs] - 1.0


def learned() -> lolat.Model:
    """The H100 that LoLat measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "learned.json"
        file.write_bytes(lzma.decompress((NETWORKS.parent / "learned.json.xz").read_bytes()))
        return lolat.fit(file)


def asked(model: lolat.Model, training: bool) -> np.ndarray:
    """Relative errors of whole times, the host's too, as `lolat evaluate` has them."""
    table = read_networks(NETWORKS)
    table = replace(table, rows=[r for r in table.rows if r.mode.training == training])
    found = compare_rows(model, table, Comparison(str(NETWORKS), TableQuestion(training=training)))
    return np.array([r.predicted_ms / r.latency_ms - 1.0 for r in found])


@benchmark("h100", "gpus", "kernels")
def h100() -> Tables:
    """An H100 in each precision and layout: forward passes and training steps."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in OF_H100:
            model = lolat.load(name)
            mode = model.file.mode
            words = (
                f"{PRECISION_OF[mode.dtype]}, channels {'last' if mode.channels_last else 'first'}"
            )
            if mode.half:
                rows.append(row_of(f"{words}, carried", carried(name, Path(folder))))
                residuals = np.array(model.predictors[Roofline.name].residuals)
                rows.append(row_of(f"{words}, held out", np.expm1(-residuals)))
    h100 = lolat.load("h100")
    for precision in ("fp32", "amp"):
        rows.append(row_of(f"{precision}, training", asked(h100.run_as(precision), training=True)))
    known = learned()
    rows.append(row_of("fp32, learned", asked(known, training=False)))
    rows.append(row_of("fp32, learned, training", asked(known, training=True)))
    return {"h100": (HEADER, rows)}

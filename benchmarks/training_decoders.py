"""Published runs that train decoders, predicted from the kernels of GPUs that serve them.

Of each half of the decoders the constants are fitted to the runs of the other half, so no run is judged by
constants that it chose. Network of a machine, which the runs do not state: 400 Gbit/s (A100 40 GB, as AWS
p4d), 800 (A100 80 GB), 3,200 (H100).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import least_squares

import lolat
from benchmarks.runner import Errors, Table, Tables, benchmark, percent
from lolat.hardware.gpus import UNUSABLE_BYTES
from lolat.hardware.hardware import Hardware
from lolat.hardware.links import MACHINE, assumed_link
from lolat.llm.gpu import GPU
from lolat.llm.names import find_decoder
from lolat.optimizers import OPTIMIZERS
from lolat.training.decoder import DecoderStep, tuned_recipe
from lolat.training.decoder_plan import card_gib
from lolat.training.decoder_rows import TrainedRow, read_runs
from lolat.training.parallel import FSDP, Parallel
from lolat.training.passes import CONSTANTS, Constants, DecoderPasses
from lolat.training.recipe import recipe_of
from lolat.training.tuning import Tuning
from lolat.units import GIB

DEVICES = {"a100-sxm-40gb": ("a100-vllm", 400.0), "a100-sxm-80gb": ("a100-vllm", 800.0),
           "h100-sxm": ("h100-vllm", 3200.0)}  # fmt: skip
"""Device of the rows -> the model, and Gbit/s of a machine's network."""
SHEET_40 = {"bandwidth_gb_s": 1555.0, "memory_gib": 40.0}
FIRST_HALF = ("mpt-125m", "mpt-760m", "mpt-3b", "mpt-13b", "mpt-70b")
FITTED = {"products": (1.2, 0.3), "attention": (1.3, 0.4), "growth": (0.8, 0.4), "backward": (1.25, 0.3),
          "waiting": (0.005, 1.0)}  # fmt: skip
"""Constants that are fitted, each with the center of its prior, and the change of its logarithm that costs
as much as an error of OFF. FlashAttention-2 reaches 0.8 of its forward rate in the backward pass (Dao
2023)."""
OFF = 0.05
MEASURED = (
    ("full", "sgd", 221.4, 30.3), ("lora:16", "adamw", 270.1, 36.5), ("lora:16:bf16", "sgd", 192.1, 29.4)
)  # fmt: skip
"""(Tuning of Llama 3.1 8B, optimizer) -> ms and GiB of a step on an H100 (tests/training/test_decoder.py
has how)."""
DRAWS, TEN = 20, 10
QUANTILES = np.arange(1, 40) / 39


class Runs:
    """The runs of all devices: `rows`, their `device`, and in `half` True for the first half."""

    def __init__(self, path: Path) -> None:
        self.rows: list[TrainedRow] = []
        self.device: list[str] = []
        self.gpus = {}
        for device, (model, gbps) in DEVICES.items():
            section = lolat.load(model).language_models
            if device.endswith("40gb"):
                section = msgspec.structs.replace(
                    section, sheet=msgspec.structs.replace(section.sheet, **SHEET_40)
                )
            self.gpus[device] = GPU(section)
            for row in read_runs(path, Hardware(device), devices=[device])[0]:
                self.rows.append(_linked(row, gbps))
                self.device.append(device)
        self.half = np.array([row.step.passes.decoder.name in FIRST_HALF for row in self.rows])
        self.of = np.array(self.device)

    def off(self, constants: Constants, which: np.ndarray) -> np.ndarray:
        """(runs,) log of predicted over published time of some of the runs."""
        pairs = [(self.rows[i], self.gpus[self.device[i]]) for i in np.flatnonzero(which)]
        return np.log([row.predicted_ms(gpu, constants) / row.ms for row, gpu in pairs])

    def fit(self, which: np.ndarray) -> Constants:
        """Fit the constants to some of the runs, by robust least squares with a prior."""
        start, widths = np.array([*FITTED.values()]).T

        def at(changes: np.ndarray) -> Constants:
            values = (start * np.exp(changes)).tolist()
            return CONSTANTS._replace(**dict(zip(FITTED, values, strict=True)))

        def residuals(changes: np.ndarray) -> np.ndarray:
            return np.concatenate([self.off(at(changes), which) / OFF, changes / widths])

        found = least_squares(residuals, np.zeros(len(start)), loss="soft_l1", diff_step=1e-3)
        return at(found.x)


def _linked(row: TrainedRow, gbps: float) -> TrainedRow:
    """Give a run over several machines the network of its device."""
    parallel = row.parallel
    if parallel.devices <= MACHINE or parallel.link is None:
        return row
    return replace(row, parallel=replace(parallel, link=replace(parallel.link, gbps=gbps)))


def _after_ten(off: np.ndarray, generator: np.random.Generator) -> str:
    """The median error of other rows at the level of ten rows, in DRAWS draws."""
    found = []
    for _ in range(DRAWS):
        order = generator.permutation(len(off))
        found.append(off[order[TEN:]] - np.median(off[order[:TEN]]))
    return percent(float(np.median(np.abs(np.concatenate(found)))))


def _judged(runs: Runs, off: np.ndarray, half_widths: np.ndarray) -> Table:
    generator, rows = np.random.default_rng(0), []
    for device in (*DEVICES, "all"):
        which = (runs.of == device) | (device == "all")
        e = Errors(np.expm1(off[which]), [*(np.abs(off) <= half_widths)[which]])
        ten = "" if device == "all" else _after_ten(off[which], generator)
        inside = percent(float(np.mean(e.inside)), 0)
        rows.append([device, str(which.sum()), e.median, e.bias, inside, ten])
    return ["GPU", "runs", "median", "bias", "inside the 90 % interval", "after ten rows"], rows


def _memory(runs: Runs) -> Table:
    rows = []
    for device in DEVICES:
        gib = card_gib(device, runs.gpus[device].section)
        room = gib * GIB - UNUSABLE_BYTES
        some = [row for row, of in zip(runs.rows, runs.device, strict=True) if of == device]
        fit = [sum(row.step.memory(row.parallel, row.batches)[1].values()) <= room for row in some]
        rows.append([device, str(len(fit)), percent(float(np.mean(fit)), 0)])
    return ["GPU", "runs", "said to fit"], rows


def _others() -> Table:
    """Torchtitan's Llama 3.1 8B on 8 H100 (its docs/performance.md), and LoRA against full."""
    gpu, decoder = GPU(lolat.load("h100-vllm").language_models), find_decoder("llama-3.1-8b")
    link, adamw, rows = assumed_link("H100 SXM", 8), OPTIMIZERS["adamw"], []
    for launch, published in (("eager", 5762.0), ("compiled", 6667.0)):
        step = DecoderStep(
            DecoderPasses(decoder, 8192, 2, "selective", launch=launch), recipe_of("amp", adamw)
        )
        parallel = Parallel(8, link, FSDP, link)
        parts = step.iteration_ms(gpu, parallel)
        each = 1e3 * step.passes.tokens / sum(ms for name, ms in parts.items() if name != "hidden")
        off = percent(each / published - 1)
        told = [f"{number:,.0f} tokens/s" for number in (published, each)]
        rows.append([f"torchtitan, {launch}", *told, off])
    gib = sum(step.memory(parallel)[1].values()) / GIB
    rows.append(["torchtitan, memory", "77 to 82 GiB", f"{gib:.1f} GiB", ""])
    full = None
    for tune, optimizer, ms, measured in MEASURED:
        tuning = Tuning.named(tune)
        recipe = tuned_recipe("bf16", OPTIMIZERS[optimizer], tuning)
        step = DecoderStep(DecoderPasses(decoder, 2048, 1, tuning=tuning), recipe)
        its = ms, sum(step.iteration_ms(gpu, Parallel()).values())
        if full is None:
            full = its
            continue
        known, ours = (one / of_full for one, of_full in zip(its, full, strict=True))
        gib = sum(step.memory(Parallel())[1].values()) / GIB
        told = [f"{measured:.1f} GiB", f"{gib:.1f} GiB", percent(gib / measured - 1)]
        rows.append([f"{tune}, memory", *told])
        told = [f"{known:.2f}", f"{ours:.2f}", percent(ours / known - 1)]
        rows.append([f"{tune}, time over that of full", *told])
    return ["what", "known", "predicted", "off by"], rows


@benchmark("training-decoders", "training-decoders", "language-models", "training.csv")
def training_decoders(data: Path) -> Tables:
    """Published runs that train decoders, from kernels alone and after ten rows."""
    runs = Runs(data / "training.csv")
    (off, widths), constants = np.zeros((2, len(runs.rows))), list[Sequence[str]]()
    for name, which in (("first half", runs.half), ("second half", ~runs.half)):
        found = runs.fit(which)
        off[~which] = runs.off(found, ~which)
        constants.append([name, *(f"{getattr(found, c):.3g}" for c in FITTED)])
    for which in (
        runs.half,
        ~runs.half,
    ):  # by the errors of the other half, each left out of its fit
        widths[which] = np.quantile(np.abs(off[~which]), 0.9, method="higher")
    quantiles = np.quantile(np.abs(off), QUANTILES, method="higher")
    used = ["used", *(f"{getattr(CONSTANTS, c):.3g}" for c in FITTED)]
    return {
        "left-out": _judged(runs, off, widths),
        "constants": (["fitted to", *FITTED], [*constants, used]),
        "fits": _memory(runs),
        "others": _others(),
        "quantiles": (["of the errors left out"], [[", ".join(f"{v:.3f}" for v in quantiles)]]),
    }  # fmt: skip

"""A GPU's formula, changed by data sheets to another precision or another card.

Operations that only move data keep their time per byte. Products get the data sheet's rate and bandwidth in
the other precision, times the shares that they usually reach.
"""

from __future__ import annotations

import dataclasses
import math

import msgspec

from lolat.device.predictors.operation_classes import IN_TF32, OPERATION_CLASSES
from lolat.device.predictors.roofline import LAYOUT_FACTORS, Roofline
from lolat.errors import InputError, arg
from lolat.graph.modes import BFLOAT16, FLOAT32, PRECISION_OF, TF32
from lolat.hardware.card_names import is_card
from lolat.hardware.gpus import MACS_MS_OF_TFLOPS, OF_PEAK, Gpu

PRECISION_SPREAD = 0.2
"""Standard deviation of the log error that all networks share: RTX 3090, 4090, 5090 and PRO 6000 in half
precision, each predicted by the shares of the others, have median errors of 0.03 to 0.23."""
IN_HALF = {name: of.in_half for name, of in OPERATION_CLASSES.items() if of.in_half}
IN_FLOAT32 = dict.fromkeys(IN_HALF, (OF_PEAK, 0.7))
"""Class of products -> (share of a data sheet's rate, share of its bandwidth) in float32."""
REACHED_BANDWIDTH = 0.87
"""Share of a data sheet's bandwidth above which only memory limits. The A100 PCIe with 80 GB has 1.24 times
the bandwidth of the A100 PCIe with 40 GB (1,935 and 1,555 GB/s; NeuSight). Operations that reach 0.87 of
the bandwidth (additions) are 1.24 times faster on it, at 0.65 to 0.71 (layer norms, softmax) 1.17 times, at
0.02 to 0.25 (products) 1.10 times."""


def in_precision(formula: Roofline, dtype: str, gpu: Gpu | None) -> Roofline:
    """The formula in another data type; InputError if the GPU has no units for it or no data sheet."""
    before, mode = formula.mode, dataclasses.replace(formula.mode, dtype=dtype)
    if mode == before:
        return formula
    rate = None if gpu is None else gpu.rate(dtype)
    if gpu is None or rate is None or gpu.bandwidth_gb_s is None:
        raise no_precision(dtype, before.dtype, gpu)
    most = (gpu.peak(dtype) or rate) if mode.half else (gpu.peak(FLOAT32) or rate)
    changes = {"mode": mode, "elsewhere": math.hypot(formula.elsewhere, PRECISION_SPREAD)}
    changes["sheet_peak"] = most * MACS_MS_OF_TFLOPS, gpu.bandwidth_gb_s * 1e6
    if mode.half and before.half:
        faster = rate / (gpu.rate(before.dtype) or rate)
        if faster == 1.0:
            changes["elsewhere"] = formula.elsewhere  # the same units
        else:
            classes = formula.classes | {
                name: terms | {"rate": faster * terms["rate"]}
                for name, terms in formula.classes.items()
                if name in IN_HALF
            }
            formula = formula.of_terms(classes)
            changes["sustained"] = formula.sustained and faster * formula.sustained
    elif not (mode.half or before.half):
        # Convolutions stay as measured: PyTorch computes them in TF32 in both.
        changes["tf32"] = max(formula.tf32, gpu.tf32)
        changes["shape_residuals"] = {
            n: rows for n, rows in formula.shape_residuals.items() if n in IN_TF32
        }
    else:
        reached, changes["channels_last_terms"] = (
            IN_HALF if mode.half else IN_FLOAT32,
            mode.half,
        )
        changes["layout_factor"] = LAYOUT_FACTORS[gpu.channels_last]
        peak = (rate if mode.half else gpu.rate(FLOAT32) or rate) * MACS_MS_OF_TFLOPS
        classes = formula.classes | {
            name: {"rate": of_rate * peak, "bandwidth": of_bandwidth * gpu.bandwidth_gb_s * 1e6}
            for name, (of_rate, of_bandwidth) in reached.items()
        }
        formula = formula.of_terms(classes)
        changes |= {"shape_residuals": {}, "sustained": None, "tf32": gpu.tf32}
    return msgspec.structs.replace(formula, **changes)


def on_sheet(formula: Roofline, was: Gpu, gpu: Gpu) -> tuple[Roofline, float, float]:
    """(the formula scaled to another card by data sheets, ratio of their rates, ratio of their bandwidths).

    Launch overheads stay. The time that the bytes would take at REACHED_BANDWIDTH scales with the
    bandwidths; any further time on the measured card came from its compute units, and scales with their
    rates.
    """
    dtype = formula.mode.dtype
    faster = (gpu.rate(dtype) or 1.0) / (was.rate(dtype) or 1.0)
    wider = (gpu.bandwidth_gb_s or 1.0) / (was.bandwidth_gb_s or 1.0)
    vectors = (gpu.vector_tflops or 1.0) / (was.vector_tflops or 1.0)
    classes = {}
    for name, terms in formula.classes.items():
        at_most = max(
            terms["bandwidth"], REACHED_BANDWIDTH * (was.bandwidth_gb_s or math.inf) * 1e6
        )
        longer = (1.0 / terms["bandwidth"] - 1.0 / at_most) / (
            faster if "rate" in terms else vectors
        )
        classes[name] = {term: faster * value for term, value in terms.items()}
        classes[name]["bandwidth"] = 1.0 / (1.0 / (wider * at_most) + longer)
    changed = msgspec.structs.replace(
        formula.of_terms(classes),
        multiprocessors=gpu.multiprocessors or formula.multiprocessors,
        sustained=formula.sustained and faster * formula.sustained,
        sheet_peak=formula.sheet_peak
        and (faster * formula.sheet_peak[0], wider * formula.sheet_peak[1]),
        tf32=max(formula.tf32 * gpu.tf32 / was.tf32, 1.0),
    )
    return changed, faster, wider


def no_precision(
    dtype: str, measured: str, gpu: Gpu | None, device: str = "the device"
) -> InputError:
    """The error for a precision that a device does not have."""
    name, asked = device if gpu is None else gpu.name, PRECISION_OF[dtype]
    has = [d for d in PRECISION_OF if d == measured or (gpu is not None and gpu.rate(d))]
    known = " or ".join(dict.fromkeys(PRECISION_OF[d] for d in has))
    why, expected = f"no rate of {name} in {asked} is known", f"expected {known}"
    if gpu and dtype in (BFLOAT16, TF32) and is_card(name):  # so the sheet is complete
        why = f"{name} has no units for {asked}"
    if gpu is None:
        why = f"{name} has no data sheet here, and was measured in {known}"
        expected = f"leave {arg('precision')} out"
    message = f"{arg('precision')} {asked}: {why}; {expected}"
    return InputError(message, code="no-precision", of_device=True, why=why)

"""A formula in another precision: products by hand, from the data sheet of an A100."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lolat.device.predictors.precision import PRECISION_SPREAD, in_precision
from lolat.errors import InputError
from lolat.graph import work as c
from lolat.graph.modes import AMP, BFLOAT16, FLOAT16, FLOAT32, TF32, Mode, dtype_named
from lolat.hardware.card_names import find_gpu
from lolat.tables.modes import MODE_COLUMNS, mode_of_name
from tests.device.test_roofline import MOVING_BANDWIDTH, RATE, formula, work_of

A100 = find_gpu("A100")
V100 = find_gpu("V100")
LARGE = (1, 8192, 8192, 8192, 1.0)  # number, rows, columns, depth, bytes
MACS = 8192.0**3


def ms(found: object, name: str, moved: float = 1.0) -> float:
    rows = (
        [(*LARGE[:4], moved)]
        if name in (c.DENSE, c.CONVOLUTION, c.DEPTHWISE)
        else [(0, 0, 0, 0, moved)]
    )
    times, _ = found.times(work_of(rows, name))  # type: ignore[attr-defined]
    return float(times[0])


@pytest.mark.parametrize("dtype", [AMP, FLOAT16, BFLOAT16])
def test_large_products_reach_their_part_of_the_sheets_rate(dtype: str) -> None:
    """312 TFLOPS are 156e9 multiply-accumulates a ms; 0.85 of it."""
    found = in_precision(formula(), dtype, A100)
    assert ms(found, c.DENSE) == pytest.approx(MACS / (0.85 * 156e9), rel=0.01)
    assert ms(found, c.CONVOLUTION) == pytest.approx(MACS / (0.85 * 156e9), rel=0.01)
    assert found.mode.dtype == dtype


def test_what_only_moves_and_depthwise_convolutions_stay_as_measured() -> None:
    found = in_precision(formula(), AMP, A100)
    assert ms(found, c.ELEMENTS, 1e9) == pytest.approx(1e9 / MOVING_BANDWIDTH, rel=0.01)
    assert ms(found, c.DEPTHWISE) == pytest.approx(ms(formula(), c.DEPTHWISE))


@pytest.mark.parametrize(("gpu", "gb_s", "turned"), [("A100", 1555, 1.2), ("H100 SXM", 3350, 3.1)])
def test_channels_first_turn_tensors_more_on_an_h100(gpu: str, gb_s: float, turned: float) -> None:
    """By the sheet's bandwidth; RTX 3090 and H100 in both layouts gave the bytes for each byte."""
    found = in_precision(formula(), FLOAT16, find_gpu(gpu))
    last = replace(found, mode=Mode(FLOAT16, channels_last=True))
    more = ms(found, c.CONVOLUTION, 1e10) - ms(last, c.CONVOLUTION, 1e10)
    assert more == pytest.approx(turned * 1e10 / (gb_s * 1e6), rel=0.01)
    assert ms(found, c.DENSE, 1e10) == ms(last, c.DENSE, 1e10)


def test_tf32_is_for_products_of_matrices_too() -> None:
    """Convolutions alone by default; half of the sheet's 156 TFLOPS against 0.85 of 19.5 in float32."""
    measured = replace(formula(), tf32=A100.tf32)  # type: ignore[union-attr]
    times = 0.5 * 156 / (0.85 * 19.5)
    found = in_precision(measured, TF32, A100)
    assert ms(measured, c.DENSE) == pytest.approx(MACS / RATE, rel=0.01)
    assert ms(found, c.DENSE) == pytest.approx(MACS / RATE / (1.5 * times), rel=0.01)
    assert ms(found, c.CONVOLUTION) == pytest.approx(ms(measured, c.CONVOLUTION))
    assert ms(measured, c.CONVOLUTION) == pytest.approx(MACS / RATE / times, rel=0.01)


def test_from_half_to_float32_and_between_halves() -> None:
    half = formula(mode=Mode(AMP))
    found = in_precision(half, FLOAT32, V100)  # 14 TFLOPS; no TF32
    assert ms(found, c.CONVOLUTION) == pytest.approx(MACS / (0.85 * 7e9), rel=0.01)
    assert found.tf32 == 1.0
    other = in_precision(half, FLOAT16, V100)
    assert (other.classes, other.elsewhere) == (half.classes, half.elsewhere)


def test_an_estimate_is_less_sure() -> None:
    found = in_precision(replace(formula(), elsewhere=0.15), AMP, A100)
    assert found.elsewhere == pytest.approx((0.15**2 + PRECISION_SPREAD**2) ** 0.5)
    assert in_precision(formula(), FLOAT32, None) is not None  # as it is: nothing to look up


@pytest.mark.parametrize(
    ("dtype", "gpu", "said"),
    [
        (BFLOAT16, V100, "V100 PCIe 16 GB has no units for bf16; expected fp32 or amp or fp16$"),
        (TF32, V100, "V100 PCIe 16 GB has no units for tf32"),
        (AMP, None, "has no data sheet here"),
    ],
)
def test_a_precision_that_a_device_lacks(dtype: str, gpu: object, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        in_precision(formula(), dtype, gpu)  # type: ignore[arg-type]
    assert error.value.code == "no-precision"


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        *((word, "amp") for word in ("mixed", "fp16-mixed", "bf16-mixed", "amp_fp16", "amp_bf16")),
        *((word, "amp") for word in ("amp_float16", "amp_bfloat16", "autocast", "16-mixed")),
        *((word, "amp") for word in ("mixed_float16", "mixed_bfloat16")),
        ("half", "float16"),
        ("float", "float32"),
    ],
)
def test_an_option_and_a_column_take_the_same_words(word: str, dtype: str) -> None:
    """Words of Lightning, Keras, timm and PyTorch."""
    assert dtype_named(word) == dtype
    assert MODE_COLUMNS["precision"][1][word] == dtype
    assert mode_of_name("times-mixed.csv").dtype == FLOAT32  # of mixed networks

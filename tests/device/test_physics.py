"""Nothing beats the data sheet: every kind of operation on every bundled GPU, in each precision."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lolat
from lolat.api.model import Model
from lolat.device.predictors import roofline
from lolat.device.predictors.roofline import Roofline
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph import work as c
from lolat.graph.modes import Mode
from lolat.graph.work import CLASSES, PRODUCTS, STEP_COLUMNS, Workload, step_table
from lolat.io.paths import list_models

SHEETS = {
    "a100": "A100 PCIe 40 GB", "h100": "H100 SXM", "p100": "P100 PCIe", "p4": "P4", "t4": "T4",
    "v100": "V100 PCIe 32 GB", "rtx-3090": "RTX 3090", "rtx-4090": "RTX 4090", "rtx-5090": "RTX 5090",
    "rtx-pro-6000": "RTX PRO 6000 Max-Q",
}  # fmt: skip
"""Beginning of the names of bundled profiles -> row of gpus.csv, by hand."""
PEAKS = {"fp32": "fp32_tflops", "tf32": "tf32_tflops", "amp": "half_tflops", "fp16": "half_tflops",
         "bf16": "half_tflops"}  # fmt: skip
SIDES = (64, 1024, 16384)  # of products; the square is the number of elements of what only moves
ROUNDED = 1.05
"""Boost clocks and bandwidths of sheets, which others round (NeuSight: H100 3,430 GB/s for 3,350)."""
GPUS = sorted(
    name
    for name, path, _ in list_models()
    if any(name.startswith(f"{gpu}-") for gpu in SHEETS)
    and "kernels" in lolat.load(name).file.document.get("predictors", {})
)


def sheet(name: str) -> dict[str, str]:
    gpu = next(SHEETS[gpu] for gpu in sorted(SHEETS, key=len) if name.startswith(f"{gpu}-"))
    path = Path(lolat.__file__).with_name("hardware") / "gpus.csv"
    lines = [n for n in path.read_text("utf-8").splitlines() if not n.startswith("#")]
    return next(row for row in csv.DictReader(lines) if row["name"] == gpu)


def of_every_class(size: int, depth: int) -> Workload:
    """A step of each class: products of `size` x `depth` by `depth` x `size`; else 256 `size`**2 bytes."""
    is_product = np.isin(CLASSES, [*PRODUCTS])
    ones, kind = np.ones(len(CLASSES)), np.arange(len(CLASSES))
    sides = [np.where(is_product, n, 0.0) for n in (1, size, size, depth)]
    moved = np.where(is_product, 2.0 * size * (size + 2 * depth), 256.0 * size**2)
    return Workload(kind, *sides, moved * ones, kind * 0, kind < 0, 0.0 * ones)


def answered(model: Model) -> Iterator[str]:
    """The precisions that the device is asked in."""
    for precision in PEAKS:
        with contextlib.suppress(InputError):
            model.run_as(precision)
            yield precision


def formulas(model: Model) -> list[tuple[str, Roofline]]:
    """The formulas of inference and of training steps in each precision that is answered."""
    found: list[tuple[str, Roofline]] = []
    for precision in answered(model):
        run = model.run_as(precision)
        for predictor in ("kernels", "training-steps"):
            if predictor in run.predictors:
                found.append((precision, run.predictors[predictor]))
    assert found
    return found


def test_every_gpu_is_here() -> None:
    assert len(GPUS) == 16


@pytest.mark.parametrize("name", GPUS)
def test_nothing_beats_the_data_sheet(name: str) -> None:
    """Depths: few and many multiply-accumulates a byte, of 3x3 convolutions and of others."""
    said = sheet(name)
    for precision, formula in formulas(lolat.load(name)):
        # Units of TF32 compute convolutions of float32 too, by PyTorch's default.
        peaks = [said[PEAKS[precision]]] + [said["tf32_tflops"]] * (precision == "fp32")
        most = ROUNDED * max(float(p) for p in peaks if p) * 1e9 / 2
        moved = ROUNDED * float(said["bandwidth_gb_s"]) * 1e6
        for side in SIDES:
            for depth in (64, 576, 640, 18432, 20480):
                work = of_every_class(side, depth)
                by_winograd = (work.kind == CLASSES.index(c.CONVOLUTION)) & (depth % 9 == 0)
                plain = precision in ("fp32", "tf32") and not said["tf32_tflops"]
                allowed = np.where(by_winograd & plain, roofline.WINOGRAD, 1.0)
                for ms in (formula.times(work)[0], formula.times_alone(work)):
                    where = f"{name} {precision} {side} {depth}"
                    for fastest, limit in (
                        (work.bytes / ms, moved),
                        (work.macs / ms, most * allowed),
                    ):
                        beats = [CLASSES[i] for i in np.flatnonzero(fastest > limit)]
                        assert not beats, where


def test_batch_norms_of_a_large_image_take_what_their_bytes_say() -> None:
    """537 M elements of bfloat16, read and written, at 1,008 GB/s."""
    model = lolat.load("rtx-4090-amp").run_as("bf16")
    b = GraphBuilder("norm", "torch")
    x = b.input((64, 1024, 1024))
    graph = b.build([b.add("batch_norm", [x], (64, 1024, 1024))])
    assert model.predict(graph, 8).latency_ms >= 8 * 64 * 1024**2 * 2 * 2 / 1.008e9


def enlarged(side: int, times: int = 1) -> Graph:
    """An image of 16 channels that is added to itself, then enlarged twice, so many times over."""
    b = GraphBuilder("enlarged")
    image = b.input((1, 16, side, side))
    small = b.add("add", [image, image], (1, 16, side, side))
    return b.build([b.add("resize", [small], (1, 16, 2 * side, 2 * side)) for _ in range(times)])


@pytest.mark.parametrize(("batch", "side", "ms"), [(16, 512, 0.883), (16, 1024, 3.464)])
def test_large_images_are_enlarged_as_fast_as_pytorch_was_timed(
    batch: int, side: int, ms: float
) -> None:
    """Nearest neighbors in half precision, by FlagGems, pull request 1426 (the card is not named)."""
    for name in ("h100-fp16", "a100-fp32", "rtx-4090-amp"):
        device = lolat.load(name)
        both = [
            device.predict(enlarged(side, n), batch_size=batch, precision="fp16") for n in (1, 3)
        ]
        found = (both[1].latency_ms - both[0].latency_ms) / 2.0
        assert ms / 2 < found < 2.5 * ms, name


def test_autocast_enlarges_large_images_in_float32() -> None:
    """Both images are float32, and the input is converted; small ones are as they were fitted."""
    device = lolat.load("rtx-4090-amp")
    steps = step_table(enlarged(512), Mode("amp"))
    pools = steps[steps[:, 1] == CLASSES.index(c.POOLS)]
    assert pools[:, STEP_COLUMNS.index("sample")].tolist() == [16 * (512**2 + 1024**2) * 4.0]
    answer = device.predict(enlarged(512), batch_size=16)
    assert not answer.in_domain
    assert any("resized to more than 96 x 96 pixels" in told for told in answer.warnings)
    assert not any(
        "resized" in told for told in device.predict(enlarged(28), batch_size=16).warnings
    )


@pytest.mark.parametrize(("tokens", "told"), [(512, False), (2048, True)])
def test_large_products_of_two_tensors_are_outside_where_only_networks_were_timed(
    tokens: int, told: bool
) -> None:
    """An RTX 4090 was fitted to networks of at most 785 tokens; of an H100 products were timed alone."""
    b = GraphBuilder("scores")
    query, key = b.input((1, 8, tokens, 64)), b.input((1, 8, 64, tokens))
    graph = b.build([b.add("matmul", [query, key], (1, 8, tokens, tokens), contracted=64)])
    words = "product of two tensors with matrices of more than 1,000,000 elements was timed"
    for name, is_told in (("rtx-4090-amp", told), ("h100-fp32", False)):
        answer = lolat.load(name).predict(graph, batch_size=32)
        assert any(words in warning for warning in answer.warnings) == is_told, name
        assert not (is_told and answer.in_domain)


def test_a_larger_card_computes_large_products_faster() -> None:
    """Attention by hand of 1,024 and 2,048 tokens: an RTX 4090 has more of everything than an RTX 3090.

    No share of a bandwidth or rate is beyond the data sheet's.
    """
    for tokens in (1024, 2048):
        b = GraphBuilder("scores", "torch")
        query, key = b.input((1, 8, tokens, 64)), b.input((1, 8, 64, tokens))
        product = b.add("matmul", [query, key], (1, 8, tokens, tokens), contracted=64)
        value = b.input((1, 8, tokens, 64))
        scores = b.add("softmax", [product], (1, 8, tokens, tokens))
        out = b.add("matmul", [scores, value], (1, 8, tokens, 64), contracted=tokens)
        graph = b.build([out])
        large, small = (
            lolat.load(n).predict(graph, 64, precision="bf16").latency_ms
            for n in ("rtx-4090-amp", "rtx-3090-amp")
        )
        moved = 2 * 64 * 8 * (4 * tokens * tokens + 4 * 64 * tokens)  # bytes
        assert moved / 1.008e9 < large < small


@pytest.mark.parametrize(("rows", "is_told"), [(1, True), (4, True), (8, False)])
def test_large_dense_layers_of_few_rows_are_told(rows: int, is_told: bool) -> None:
    """NeuSight's tables have none below 8 rows with large weights (one of 3 rows)."""
    b = GraphBuilder("dense", "torch")
    x = b.input((1, 8192))
    for _ in range(2):
        x = b.add("dense", [x], (1, 8192), in_features=8192, out_features=8192, bias=False)
    answer = lolat.load("a100-fp32").predict(b.build([x]), batch_size=rows)
    assert any("of one to four rows" in told for told in answer.warnings) == is_told
    assert answer.in_domain or is_told


def test_a_sort_is_told_as_untimed() -> None:
    """It is counted as one pass over its tensor; a radix sort takes four, with positions."""
    b = GraphBuilder("sorted", "torch")
    x = b.input((1024, 1024))
    answer = lolat.load("rtx-4090-amp").predict(
        b.build([b.add("sort", [x], (1024, 1024))]), batch_size=32
    )
    assert any("no sort or choice of the largest was timed" in told for told in answer.warnings)
    assert answer.in_domain is False

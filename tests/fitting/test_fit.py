"""A device fitted to operations: what is known of it is found again."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import lolat
from lolat.api.model import Model
from lolat.device.predictors.roofline import Roofline
from lolat.device.schema import validate
from lolat.fitting.from_tables import TimedRows, _of_operations, tables_document
from lolat.fitting.roofline import fit_roofline, predicted
from lolat.fitting.times import Times, seen_specs
from lolat.graph import Graph, GraphBuilder
from lolat.graph.modes import COMPILED, FLOAT16, Mode
from lolat.graph.work import work_of
from lolat.hardware.specs import listed_specs, read_specs
from lolat.tables.counted import Counted
from lolat.tables.networks import TimedNetwork
from lolat.tables.operations import TimedOperation, read_operations
from tests.fitting import made_up


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[TimedOperation], Path]:
    operations, facts = made_up.write_tables(tmp_path_factory.mktemp("tables"))
    return read_operations(operations), facts


def of(rows: list[TimedOperation], networks: Sequence[Any] = ()) -> TimedRows:
    return TimedRows(rows, networks, Mode())


def layer(tokens: int, width: int, heads: int) -> Graph:
    """The products, sums and norms of an encoder's layer."""
    b = GraphBuilder("layer", "torch")
    x = b.input((1, tokens, width))

    def dense(x: int, inside: int, out: int) -> int:
        return b.add(
            "dense", [x], (1, tokens, out), in_features=inside, out_features=out, bias=True
        )

    q, k, v = (dense(x, width, width) for _ in range(3))
    scores = b.add("matmul", [q, k], (1, heads, tokens, tokens), contracted=width // heads)
    soft = b.add("softmax", [scores], (1, heads, tokens, tokens))
    mixed = b.add("matmul", [soft, v], (1, heads, tokens, width // heads), contracted=tokens)
    y = b.add("add", [x, dense(mixed, width, width)], (1, tokens, width))
    y = b.add("layer_norm", [y], (1, tokens, width))
    return b.build([dense(dense(y, width, 4 * width), 4 * width, width)])


def by_hand(batch: int, tokens: int, width: int, heads: int) -> float:
    """The layer's time on the made-up device, operation by operation."""
    m, ms = batch * tokens, made_up.product_ms
    dense = 4 * ms(1, m, width, width) + ms(1, m, 4 * width, width) + ms(1, m, width, 4 * width)
    heads_ = batch * heads
    products = ms(heads_, tokens, tokens, width // heads) + ms(
        heads_, tokens, width // heads, tokens
    )
    moves = ("softmax", 2 * heads_ * tokens**2), ("add", 3 * m * width), ("ln", 2 * m * width)
    return dense + products + sum(made_up.moves_ms(*move) for move in moves)


def test_networks_of_a_known_device(timed: tuple[list[TimedOperation], Path]) -> None:
    rows, facts = timed
    document = tables_document("desk", "desk", of(rows), read_specs(facts, "desk"), {}, print)
    validate(document, "desk")
    model = Model(document)
    assert model.default == Roofline.name
    for sizes in ((8, 512, 1024, 16), (2, 128, 768, 12), (16, 384, 512, 8)):
        batch, tokens, width, heads = sizes
        found = model.predict(layer(tokens, width, heads), batch)
        assert found.latency_ms == pytest.approx(by_hand(*sizes), rel=0.1)
        assert sum(b.latency_ms for b in found.blocks) == pytest.approx(found.latency_ms)
        low, high = found.interval_ms or (0.0, 0.0)
        assert low < by_hand(*sizes) < high
    assert document["predictors"]["kernels"]["error"]["left_out"]["median"] < 0.05


def test_what_a_launch_costs_is_not_in_a_network(timed: tuple[list[TimedOperation], Path]) -> None:
    rows, facts = timed
    times = of(rows).times
    found = fit_roofline(times, read_specs(facts, "desk"))
    products = times.total(times.work.macs) > 0
    inside = times.total(found.times(times.work)[0])
    assert np.median(np.abs(predicted(found, times) / times.latency_ms - 1)) < 0.05
    waited = np.median((times.latency_ms - inside)[products])
    assert waited == pytest.approx(1.8 * made_up.LAUNCH_MS, rel=0.3)  # 1.56 or 2.05


@pytest.mark.parametrize(
    "mode", [Mode(FLOAT16), Mode(FLOAT16, channels_last=True), Mode(FLOAT16, COMPILED)]
)
def test_a_fit_to_networks_has_their_level_in_each_layout(mode: Mode) -> None:
    """Convolutions that take three times what their bytes take at the data sheet's bandwidth."""
    specs = listed_specs("rtx-3090").of_dtype(FLOAT16)
    parts = [
        work_of(convolutions(channels), batch, mode)
        for channels in (32, 48, 64)
        for batch in (16, 64)
    ]
    ms = np.array([3.0 * part.bytes.sum() / specs.bandwidth for part in parts])
    times = Times.of(parts, ms, np.ones(len(ms), bool))
    off = predicted(fit_roofline(times, specs, mode), times) / ms - 1.0
    assert abs(np.median(off)) < 0.05


def convolutions(channels: int) -> Graph:
    """Eight 1x1 convolutions of an image of 112 x 112."""
    b = GraphBuilder("convolutions", "torch")
    x = b.input((1, channels, 112, 112))
    for _ in range(8):
        x = b.add(
            "conv", [x], (1, channels, 112, 112), in_channels=channels, out_channels=channels,
            kernel=(1, 1), stride=(1, 1), groups=1, bias=False,
        )  # fmt: skip
    return b.build([x])


def test_it_is_the_same_from_its_file(timed: tuple[list[TimedOperation], Path]) -> None:
    rows, _ = timed
    document = tables_document("desk", "desk", of(rows), None, {}, print)
    found = msgspec.convert(document["predictors"]["kernels"], Roofline)
    assert found.to_dict() == document["predictors"]["kernels"]
    assert "no data sheet of the device" in document["warnings"][-1]


def test_the_errors_of_a_class_go_together() -> None:
    """Of one class a network is off as one product is; of two by the root of two less."""
    off = 0.1 * np.random.default_rng(2).standard_normal(400)
    one, two = (_of_operations(off, np.arange(400) % n)["networks"] for n in (1, 2))
    assert one["spread"] == pytest.approx(0.1, rel=0.1)
    assert two["spread"] == pytest.approx(0.1 / 2**0.5, rel=0.1)
    assert one["count"] == 400, "products, not draws"


def networks_of(*names: str) -> TimedRows:
    rows = [
        TimedNetwork(name, (name, None, Mode()), size, 1.0, None, {})  # type: ignore[arg-type]
        for name in names
        for size in (1, 8)
    ]
    each = {name: np.full((2, 1), float(n)) for n, name in enumerate(names)}
    counted = [Counted(row.network, np.zeros((1, 1)), each[row.name], 0.0) for row in rows]
    return TimedRows([], [*zip(rows, counted, strict=True)], Mode())


def test_what_is_left_out_together() -> None:
    """A family; of one family a network, with all its batch sizes: never all."""
    one, two, three = (f"vit_{n}" for n in ("tiny", "small", "base"))
    for names, together in (
        ([one, two, "resnet50"], [[0, 1, 2, 3], [4, 5]]),
        ([one, two, three], [[0, 1], [2, 3], [4, 5]]),
    ):
        fold = networks_of(*names).folds()
        found = [np.flatnonzero(fold == f).tolist() for f in dict.fromkeys(fold.tolist())]
        assert found == together


def test_facts_that_the_operations_tell(timed: tuple[list[TimedOperation], Path]) -> None:
    rows, _ = timed
    seen = seen_specs(of(rows).times)
    assert seen.rate == pytest.approx(made_up.MACS_PER_MS / 0.9, rel=0.1)
    assert seen.bandwidth == pytest.approx(made_up.BYTES_PER_MS / 0.9, rel=0.1)


def test_a_data_sheet(tmp_path: Path) -> None:
    """Rates by hand: GFLOP/s are half as many macs; a device short of power sustains a part of its rate."""
    path = tmp_path / "devices.csv"
    path.write_text(
        "device,multiprocessors,fp32_matrix_gflops,fp32_vector_gflops,bandwidth_gb_s,l2_mb,power_w,tf32_gflops\n"
        "plain,40,9400,,500,,,\nshort,40,9400,9400,500,3,50,\ntensor,40,9400,,500,,,75200\n"
    )
    plain, short, tensor = (read_specs(path, name) for name in ("plain", "short", "tensor"))
    assert (plain.multiprocessors, plain.rate, plain.bandwidth) == (40, 4.7e9, 5e8)
    # 44 GFLOPS a watt at 3 MiB of L2; the rate goes down less than the power.
    assert short.rate == pytest.approx((44 * 50 / 9400) ** 0.65 * 4.7e9)
    assert (plain.power_bound, short.power_bound) == (False, True)
    assert (plain.tf32, tensor.tf32) == (1.0, pytest.approx(0.5 * 8 / 0.85))


@pytest.mark.parametrize(
    ("power", "cache", "vector", "lacking"),
    [
        ("10", "", "", "l2_mb and fp32_vector_gflops"),
        ("10", "3", "", "fp32_vector_gflops"),
        ("10", "", "30000", "l2_mb"),
        ("10", "3", "30000", ""),
        ("", "", "", ""),
    ],
)
def test_a_power_limit_that_is_not_used_is_told(
    tmp_path: Path, power: str, cache: str, vector: str, lacking: str
) -> None:
    """10 W sustain a part of 30 TFLOPS; without the columns that tell it, fit and answer say so."""
    path, times = tmp_path / "devices.csv", list[float]()
    head = "device,multiprocessors,fp32_matrix_gflops,bandwidth_gb_s,memory_gib"
    for watts in (power, ""):
        path.write_text(
            f"{head},power_w,l2_mb,fp32_vector_gflops\nmine,40,30000,400,16,{watts},{cache},{vector}\n"
        )
        said: list[str] = []
        model = lolat.fit([], name="mine", facts=path, warn=said.append)
        answer = model.predict(layer(512, 1024, 16), 16)
        times.append(answer.latency_ms)
        expected = f"power_w (10) changes no time: the data sheet also needs {lacking}"
        is_told = bool(lacking and watts)
        assert [any(expected in line for line in lines) for lines in (said, answer.warnings)] == (
            [is_told] * 2
        )
    assert (times[0] > 2 * times[1]) == bool(power and not lacking)
    assert (times[0] == times[1]) == bool(lacking or not power)


def test_rows_of_float32_that_were_timed_in_tf32(tmp_path: Path) -> None:
    """Dense rows at 60 TFLOPS on an A100, which has 19.5, are told; convolutions are in TF32 by default."""
    rates = {"linear": 18.0, "bmm": 18.0, "conv": 60.0}

    def fitted(tflops: dict[str, float], precision: str = "") -> tuple[Model, str]:
        draw, work = random.Random(5), {}
        columns = "op,batch,m,n,k,in_channels,out_channels,kernel,input_size,stride,padding"
        for _ in range(12):
            b, n, k = (2 ** draw.randint(*ends) for ends in ((3, 6), (8, 11), (8, 11)))
            work[f"linear,{b},1024,{n},{k},,,,,,"] = b * 1024 * n * k
            work[f"bmm,{b},1024,{n},{k},,,,,,"] = b * 1024 * n * k
            work[f"conv,{b},,,,{n // 4},{k // 4},3,32,1,1"] = b * 32 * 32 * n * k // 16 * 9
        each = {row: (2 * macs / 1e9 / tflops[row.split(",")[0]]) for row, macs in work.items()}
        lines = [f"{row},{ms + made_up.LAUNCH_MS},{precision}" for row, ms in each.items()]
        path = tmp_path / "rows.csv"
        path.write_text("\n".join([f"{columns},latency_ms,precision", *lines]) + "\n")
        # The launch overhead counts least in the longest row.
        dense = {row: ms for row, ms in each.items() if "conv" not in row}
        longest = max(dense, key=lambda row: dense[row])
        speed = tflops["linear"] * dense[longest] / (dense[longest] + made_up.LAUNCH_MS)
        line = 2 + list(work).index(longest)
        of_line = f"line {line}: {longest.split(',')[0]}"
        remark = f"{of_line} computes {speed:.3g} TFLOPS, {speed / 19.5:.3g} times"
        return lolat.fit(path, name="a100-sxm-80gb"), remark

    builder = GraphBuilder("dense", "torch")
    x = builder.input((1024, 2048))
    graph = builder.build(
        [builder.add("dense", [x], (1024, 2048), in_features=2048, out_features=2048, bias=True)]
    )
    for speeds, precision in ((rates, ""), (dict.fromkeys(rates, 60.0), "tf32")):
        model, _ = fitted(speeds, precision)
        answer = model.predict(graph, batch_size=32)
        assert answer.in_domain
        assert "TF32" not in " ".join([*answer.warnings, *model.file.document["warnings"]])
    model, remark = fitted(dict.fromkeys(rates, 60.0))
    answer = model.predict(graph, batch_size=32)
    error = model.file.document["predictors"]["kernels"]["error"]["left_out"]["median"]
    (told,) = [words for words in answer.warnings if "TF32" in words]
    assert remark in told
    assert f"{100 * error:.0f} % off at the median" in told
    assert answer.in_domain is False


def winograd_ms(batch: int, channels: int, wide: int, side: int) -> float:
    """Of a 3x3 convolution on the made-up GPU: as the product that it is, or as 36 smaller ones."""
    rows, squares = batch * side * side, batch * math.ceil(side / 4) ** 2
    plain = made_up.product_ms(1, rows, wide, 9 * channels)
    turned = 2 * 36 * 4 * (squares * (channels + wide) + channels * wide) / made_up.BYTES_PER_MS
    return min(plain, made_up.product_ms(36, squares, wide, channels) + turned)


def test_convolutions_that_a_library_computes_by_winograd(tmp_path: Path) -> None:
    draw = random.Random(3)
    lines = ["op,batch,in_channels,out_channels,kernel,input_size,stride,padding,latency_ms"]
    for _ in range(400):
        batch, side = draw.randint(1, 64), draw.randint(5, 60)
        channels, wide = (32 * draw.randint(1, 20) for _ in "io")
        ms = made_up.LAUNCH_MS + winograd_ms(batch, channels, wide, side)
        lines.append(f"conv,{batch},{channels},{wide},3,{side},1,1,{ms:.6f}")
    path = tmp_path / "convolutions.csv"
    path.write_text("\n".join(lines) + "\n")
    facts = tmp_path / "devices.csv"
    facts.write_text(made_up.FACTS)
    rows = read_operations(path)
    found = fit_roofline(of(rows[:200]).times, read_specs(facts, "desk"))
    plain = replace(found, shape_residuals={})
    times = of(rows[200:]).times
    for formula, limit in ((plain, 0.15), (found, 0.10)):
        off = predicted(formula, times) / times.latency_ms - 1
        assert np.median(np.abs(off)) < limit
        assert abs(np.median(off)) < 0.06


def test_power_keeps_down_networks_and_not_operations_alone(
    timed: tuple[list[TimedOperation], Path], tmp_path: Path
) -> None:
    rows, _ = timed
    facts = tmp_path / "power.csv"
    facts.write_text(
        "device,multiprocessors,fp32_matrix_gflops,fp32_vector_gflops,bandwidth_gb_s,l2_mb,power_w\n"
        "desk,40,9400,9400,500,3,50\ncool,40,9400,9400,500,3,500\n"
    )
    bound, cool = (fit_roofline(of(rows).times, read_specs(facts, n)) for n in ("desk", "cool"))
    assert cool.sustained is None
    assert bound.sustained == pytest.approx(0.85 * (44 * 50 / 9400) ** 0.65 * 4.7e9)
    times = of([r for r in rows if r.name == "linear"]).times
    assert predicted(bound, times) == pytest.approx(predicted(cool, times), rel=0.1)
    in_a_network = bound.times(times.work)[0]
    assert (in_a_network >= times.work.macs / bound.sustained * (1 - 1e-9)).all()
    assert in_a_network.sum() > 1.5 * cool.times(times.work)[0].sum()
    again = msgspec.convert(bound.to_dict(), Roofline)
    assert again.times(times.work)[0] == pytest.approx(in_a_network)


def test_tf32_counts_once(tmp_path: Path) -> None:
    """Convolutions timed in TF32, as PyTorch computes them in float32, take in a network what they took."""
    draw = random.Random(4)
    lines = ["op,batch,in_channels,out_channels,kernel,input_size,stride,padding,latency_ms"]
    for _ in range(60):
        batch, side, channels = draw.randint(8, 64), draw.randint(20, 60), 64 * draw.randint(2, 10)
        ms = made_up.product_ms(1, batch * side**2, channels, 9 * channels) / 4
        lines.append(
            f"conv,{batch},{channels},{channels},3,{side},1,1,{ms + made_up.LAUNCH_MS:.6f}"
        )
    (tmp_path / "convolutions.csv").write_text("\n".join(lines) + "\n")
    head, row = made_up.FACTS.splitlines()
    (tmp_path / "devices.csv").write_text(f"{head},tf32_gflops\n{row},75200\n")
    facts = read_specs(tmp_path / "devices.csv", "desk")
    times = of(read_operations(tmp_path / "convolutions.csv")).times
    found = fit_roofline(times, facts)
    assert found.tf32 == facts.tf32 > 4.0
    inside = times.total(found.times(times.work)[0]) + made_up.LAUNCH_MS
    assert np.median(inside / times.latency_ms) == pytest.approx(1.0, abs=0.1)

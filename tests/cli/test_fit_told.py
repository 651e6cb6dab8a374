"""What `lolat fit` and `lolat evaluate --table` tell of a table: what lacks, is left out, or is odd."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest

from lolat.api.model import Model
from lolat.graph.counts import FEATURES
from lolat.units import percent
from tests import synthetic
from tests.cli.commands import Command


@pytest.mark.parametrize(
    ("columns", "emptied", "said"),
    [
        ([*FEATURES[:5]], "", "no ops in 105 of 105 rows: acts, inp, flops alone are used; "),
        ([*FEATURES], "weights", "no weights in 2 of 105 rows: acts, inp, flops alone are used; "),
        ([*FEATURES], "", None),
    ],
)
def test_counts_that_a_table_of_blocks_lacks_are_told(
    lolat: Command, tmp_path: Path, columns: list[str], emptied: str, said: str | None
) -> None:
    header = [*columns, "latency_ms"]
    head, *lines = synthetic.table(synthetic.measured(), header).splitlines()
    rows = [line.split(",") for line in lines]
    for row in rows[3:5] if emptied else ():
        row[header.index(emptied)] = ""
    path, out = tmp_path / "blocks.csv", tmp_path / "m.json"
    path.write_text("\n".join([head, *map(",".join, rows)]))
    told = lolat.done("fit", path, "--output", out).err.splitlines()
    if said is None:
        assert told == []
        return
    assert f"lolat: {path}: {said}answers get closer" in told[0]
    assert len(told) == 1
    assert Model.load(out).default == "two-regime"


# ---- Rows that are left out.


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_bare_names_are_told_once_with_the_networks_that_they_may_be(
    lolat: Command, model: Path, tmp_path: Path, command: str
) -> None:
    """Forty rows of names without package, rows of three other causes, and one that can be read."""
    names = ["resnet50", "vgg16", "mobilenetv2", "nothing-like-this"]
    rows = [f"{name},{batch},9" for name in names for batch in range(1, 11)]
    rows += ["keras:NoSuch,1,9", "keras:VGG16,1,-1", "keras:VGG16,x,9", "no_file.onnx,1,9"]
    path = tmp_path / "networks.csv"
    path.write_text("\n".join(["network,batch_size,latency_ms", *rows, "keras:VGG16,1,50"]))
    if command == "fit":
        found = lolat.done("fit", model, path, "--output", tmp_path / "m.json")
    else:
        found = lolat.done("evaluate", model, "--table", path)
    told = [line for line in found.err.splitlines() if re.search(r"\d .*left out(:| for )", line)]
    assert len(told) == 3
    assert all(len(line) < 300 for line in told)
    assert "no network 'resnet50'; expected the package before it (torchvision:resnet50)" in told[0]
    assert sum(int(line.split()[1]) for line in told) == len(rows)


def test_a_table_of_bare_names_alone_is_refused_with_one_of_each_cause(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "networks.csv"
    rows = [f"{name},{b},9" for name in ("resnet50", "vgg16") for b in (1, 2)]
    path.write_text("\n".join(["network,batch_size,latency_ms", *rows]))
    told = [lolat.refused("evaluate", model, "--table", path)]
    found = lolat("fit", path, "--output", tmp_path / "m.json")
    assert found.code == 2
    told.append(found.err.splitlines()[-1])
    assert all("(4 x no network 'resnet50'; expected the package" in line for line in told)
    assert [line.count("expected the package") for line in told] == [1, 1]


# ---- Columns that lack.


@pytest.mark.parametrize(
    ("column", "cells", "said"),
    [
        ("", ("", ""), "has no batch_size in 2 of 2 rows: these are taken to be of a batch of 1"),
        (
            ",batch_size",
            (",", ",4"),
            "has no batch_size in 1 of 2 rows: these are taken to be of a ",
        ),
        (",infer_batch_size", (",1", ",4"), None),
    ],
)
def test_a_batch_size_that_is_not_given_is_told(
    lolat: Command,
    model: Path,
    tmp_path: Path,
    column: str,
    cells: tuple[str, str],
    said: str | None,
) -> None:
    path = tmp_path / "networks.csv"
    rows = [f"keras:VGG16,500{cells[0]}", f"keras:VGG19,600{cells[1]}"]
    path.write_text("\n".join([f"network,latency_ms{column}", *rows]))
    for found in (
        lolat.done("evaluate", model, "--table", path),
        lolat.done("fit", model, path, "--output", tmp_path / "m.json"),
    ):
        told = [line for line in found.err.splitlines() if "no batch_size in" in line]
        assert len(told) == int(said is not None)
        assert all(line.startswith(f"lolat: {path} {said}") for line in told)


# ---- Times that cannot be right.

BLOCK_ROWS = [
    f"{2**i * 7919},{3**i * 101},{5**i * 11},{0.1 * 2**i + 0.01 * 3**i}" for i in range(9)
]
LINEAR_ROWS = [f"linear,1,{2**i},{3 * 2**i},64,{0.01 + 1e-6 * 4**i}" for i in range(25)]


@pytest.mark.parametrize(("second", "is_said"), [(9.8 * 1.9, False), (99.9, True)])
@pytest.mark.parametrize("content", ["networks", "operations", "blocks", "named blocks"])
def test_two_times_of_the_same_thing_that_are_far_apart(
    lolat: Command, model: Path, tmp_path: Path, content: str, second: float, is_said: bool
) -> None:
    head, others, same = {
        "networks": ("network,batch_size,latency_ms", ["keras:MobileNet,2,20"], "keras:MobileNet,1"),
        "operations": (
            "op,batch,m,n,k,latency_ms", LINEAR_ROWS, "linear,2,999,999,999",
        ),
        "blocks": ("acts,inp,flops,latency_ms", BLOCK_ROWS, "100000,100000,1000000"),
        "named blocks": ("acts,inp,flops,latency_ms", BLOCK_ROWS, "100000,100000,1000000"),
    }[content]  # fmt: skip
    rows = [f"{same},9.8", *others, f"{same},{second}"]
    if content == "named blocks":
        head, rows = f"{head},name", [f"{row},block{i}" for i, row in enumerate(rows)]
    path = tmp_path / "times.csv"
    path.write_text("\n".join([head, *rows]))
    more = (model,) if content == "networks" else ()
    said = lolat.done("fit", *more, path, "--output", tmp_path / "m.json").err
    lines = [line for line in said.splitlines() if "times apart" in line]
    assert len(lines) == int(is_said)
    for line in lines:
        assert f"{path}, line 2 and {path}, line {len(rows) + 1}: " in line
        assert " takes 9.8 ms and 99.9 ms, 10.2 times apart; remove the wrong time" in line


# ---- Tables of several GPUs.


def test_gpus_in_the_names_of_tables_are_told(lolat: Command, tmp_path: Path) -> None:
    """Two cards, or one that is not the profile's; a form of the same card, a column device: nothing."""
    said = []
    for names, name in (
        (["rtx3090.csv", "rtx4090.csv"], "desk"),
        (["rtx3090.csv"], "RTX 4090"),
        (["a100-sxm.csv", "times-a100.csv"], "A100 PCIe"),
        (["times.csv"], "RTX 4090"),
    ):
        paths = [tmp_path / f"operations-{file}" for file in names]
        for path in paths:
            path.write_text("\n".join(["op,batch,m,n,k,latency_ms", *LINEAR_ROWS]))
        found = lolat.done(
            "fit", *paths, "--name", name, "--output", tmp_path / f"{len(said)}.json"
        )
        said.append([line for line in found.err.splitlines() if "several GPUs" in line])
    assert [len(lines) for lines in said] == [1, 1, 0, 0]
    assert "RTX 3090 (operations-rtx3090.csv), RTX 4090 (operations-rtx4090.csv)" in said[0][0]
    assert "RTX 4090 (the profile), RTX 3090 (operations-rtx3090.csv)" in said[1][0]
    path.write_text("\n".join(["op,batch,m,n,k,latency_ms,device", "linear,1,9,9,9,1,RTX 4090"]))
    path = path.rename(tmp_path / "rtx3090.csv")
    found = lolat("fit", path, "--name", "RTX 4090", "--output", tmp_path / "m.json")
    assert "several GPUs" not in found.err


def test_a_model_of_one_gpu_is_not_called_another(lolat: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "times.csv", tmp_path / "m.json"
    path.write_text("network,batch_size,precision,latency_ms\nkeras:ResNet50,8,amp,9\n")
    line = lolat.refused("fit", "rtx-4090-amp", path, "--name", "RTX 3080", "--output", out)
    assert "rtx-4090-amp is the profile of another device, RTX 4090" in line
    for same in ("GeForce RTX 4090", "my own"):
        out = tmp_path / f"{same}.json"
        lolat.done("fit", "rtx-4090-amp", path, "--name", same, "--output", out)
        assert Model.load(out).device == same


def test_rows_of_the_card_that_a_profile_is_of_are_its_own(lolat: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "times.csv", tmp_path / "m.json"
    head, row = "network,device,batch_size,precision,latency_ms", "keras:ResNet50,{},8,amp,9"
    path.write_text(
        "\n".join([head, row.format("NVIDIA GeForce RTX 4090"), row.format("RTX 3090")])
    )
    said = lolat.done("fit", "rtx-4090-amp", path, "--output", out).err
    assert "of another device, RTX 3090" in said


def test_a_column_of_another_name_is_told_by_its_own(lolat: Command, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(
        "network,gpu,batch_size,precision,latency_ms\nkeras:ResNet50,RTX 3090,8,amp,9\n"
    )
    said = lolat.done("fit", "rtx-4090-amp", path, "--output", tmp_path / "m.json").err
    assert "columns that are not read: gpu (did you mean device?)" in said


# ---- Rows of the same block.


@pytest.mark.parametrize("named", ["{row}", "{row},block{block}", "{row},row{number}"])
def test_a_block_ten_times_over_says_no_more_than_once(
    lolat: Command, tmp_path: Path, named: str
) -> None:
    """Copies change nothing; a block that was timed again is left out with all its rows, however called."""
    draw, once = random.Random(2), []
    for _ in range(30):
        acts, inp, macs = (
            int(math.exp(draw.uniform(*ends))) for ends in ((7, 15), (7, 15), (10, 20))
        )
        ms = (0.05 + macs / 8e7 + (acts + inp) / 5e6) * math.exp(draw.gauss(0.0, 0.15))
        once.append((acts, inp, macs, ms if once else 2 * ms))
    *counts, ms = once[0]
    copies, again = ([(*counts, ms * (1 + off * i)) for i in range(1, 10)] for off in (0.0, 1e-4))
    made = []
    for more in ([], copies, again):
        rows = [
            named.format(row=",".join(map(str, row)), block=number * (number < 30), number=number)
            for number, row in enumerate([*once, *more])
        ]
        path, out = tmp_path / "blocks.csv", tmp_path / "m.json"
        path.write_text(
            "\n".join(["acts,inp,flops,latency_ms" + ",name" * (named != "{row}"), *rows])
        )
        said = lolat.done("fit", path, "--output", out).err
        assert ("9 of 39 rows are copies of others, and count once" in said) == (more is copies)
        made.append(Model.load(out).file.document["predictors"]["two-regime"])
    assert made[0] == made[1]
    # Without any of the block's rows the others say what they did.
    assert made[2]["residuals"][0] == pytest.approx(made[0]["residuals"][0], rel=0.05)


# ---- Times in another unit.

GMACS = {"VGG16": 15.5, "VGG19": 19.6, "ResNet50": 3.9, "ResNet101": 7.6, "ResNet152": 11.3,
         "InceptionV3": 5.7, "Xception": 8.4, "DenseNet121": 2.8}  # fmt: skip
"""As their authors and keras.io have them, of one image."""


def timed_networks(folder: Path, macs_ms: float, factor: float, share: float = 1.0) -> Path:
    """Forty rows of a device of this rate; a `share` of them times `factor`."""
    rows = [(n, b, b * 1e9 * g / macs_ms) for n, g in GMACS.items() for b in (1, 2, 4, 8, 16)]
    wrong = {*random.Random(3).sample(range(len(rows)), int(share * len(rows)))}
    lines = [
        f"keras:{n},{b},{ms * (factor if i in wrong else 1)}" for i, (n, b, ms) in enumerate(rows)
    ]
    path = folder / "networks.csv"
    path.write_text("\n".join(["network,batch_size,latency_ms", *lines]))
    return path


@pytest.mark.parametrize(
    ("macs_ms", "factor", "share", "said"),
    [
        (5e7, 1.0, 1.0, ""),
        (5e7, 1e3, 1.0, "the times look like microseconds: half of the large rows compute "),
        (2e8, 1e-3, 1.0, "the times look like seconds: half of the large rows take 0."),
        (5e7, 1e-3, 0.25, "measure it again"),
        (5e7, 1e3, 0.25, "measure it again"),
    ],
)
def test_times_that_are_all_in_another_unit_are_told_so(
    lolat: Command, tmp_path: Path, macs_ms: float, factor: float, share: float, said: str
) -> None:
    path = timed_networks(tmp_path, macs_ms, factor, share)
    found = lolat.done("fit", path, "--output", tmp_path / "m.json").err
    told = [line for line in found.splitlines() if re.search("look like|measure it again", line)]
    assert len(told) == bool(said) if share == 1.0 else 1 <= len(told) <= 3
    assert all(said in line for line in told)


def test_times_that_can_only_be_seconds_are_refused(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    """Of 10 TFLOP/s: 2 x 5e9 x 1000 operations in what is read as a millisecond, 10,000 TFLOP/s."""
    path, out = timed_networks(tmp_path, 5e9, 1e-3), tmp_path / "m.json"
    for more in ((), (model,)):
        found = lolat("fit", *more, path, "--output", out)
        assert (found.code, out.exists()) == (2, False)
        told = found.err.splitlines()[-1]
        assert f"{path}: the times look like seconds" in told
        rate = float((re.search(r"compute ([\d,]+) TFLOPS", told) or ["", "0"])[1].replace(",", ""))
        assert rate == pytest.approx(10_000, rel=0.1)
        assert "multiply the times by 1000" in told


@pytest.mark.parametrize("head", ["op,batch,m,n,k,latency_ms", "acts,inp,flops,latency_ms"])
def test_large_products_and_blocks_in_seconds_are_refused_too(
    lolat: Command, tmp_path: Path, head: str
) -> None:
    """Of 20 TFLOP/s, 1e10 multiply-accumulates a millisecond."""
    draw, rows, path = random.Random(0), [head], tmp_path / "times.csv"
    for _ in range(40):
        m, n, k = (draw.randint(1000, 8000) for _ in range(3))
        cells = (
            f"linear,1,{m},{n},{k}" if "op" in head.split(",") else f"{m * k},{m * n},{m * n * k}"
        )
        rows.append(f"{cells},{m * n * k / 1e10 / 1e3:.6g}")
    path.write_text("\n".join(rows))
    found = lolat("fit", path, "--output", tmp_path / "m.json")
    assert found.code == 2
    words = "the times look like seconds: half of the large rows compute 20,000 TFLOPS"
    assert words in found.err.splitlines()[-1]


RATES = {"fp32_matrix_gflops": "30000", "memory_gib": "24", "bf16_tflops": "120"}


@pytest.mark.parametrize(
    ("without", "answers"),
    [((), {"predictors", "llm"}), (("fp32_matrix_gflops",), {"llm"}),
     (("bf16_tflops", "memory_gib"), {"predictors"})],
)  # fmt: skip
def test_a_data_sheet_answers_for_all_that_its_columns_tell(
    lolat: Command, tmp_path: Path, without: tuple[str, ...], answers: set[str]
) -> None:
    sheet = {"device": "x1", "multiprocessors": "60", "bandwidth_gb_s": "900"}
    sheet |= {name: value for name, value in RATES.items() if name not in without}
    facts, out = tmp_path / "devices.csv", tmp_path / "x1.json"
    facts.write_text(f"{','.join(sheet)}\n{','.join(sheet.values())}\n")
    said = lolat.done("fit", "--facts", facts, "--name", "x1", "--output", out).err
    assert {"predictors", "llm"} & json.loads(out.read_text()).keys() == answers
    assert all(name in said for name in without)


def test_a_row_in_seconds_is_refused(lolat: Command, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("network,latency_ms\nkeras:VGG16,420\nkeras:VGG19,0.52\n")
    found = lolat("fit", model, path, "--output", tmp_path / "m.json")
    assert found.code == 2
    assert f"{path}: keras:VGG19 at batch size 1 takes 0.52 ms, " in found.err
    assert " times shorter than desk predicts" in found.err


def test_a_fit_tells_the_errors_of_its_rows_before_and_after(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "times.csv"
    path.write_text("network,latency_ms\nkeras:VGG16,400\nkeras:VGG19,500\n")
    made = tmp_path / "m.json"
    said = lolat.done("fit", model, path, "--output", made).err
    (line,) = (one for one in said.splitlines() if "before the fit" in one)
    errors = []
    for of in (model, made):
        rows = json.loads(lolat.done("evaluate", of, "--table", path, "--json").out)
        errors.append(percent(rows["summary"]["median"]))
    expected = f"off by {errors[0]} at the median before the fit, by {errors[1]} after it"
    assert line == f"lolat: the 2 rows of the tables: {expected}"

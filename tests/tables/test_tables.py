"""Tables of networks, against a model; of operations: what a row asks of a device, by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat import fit, load
from lolat.api.model import Model
from lolat.api.table_evaluation import TableEvaluation
from lolat.api.table_rows import Compared, Comparison, compare_rows
from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.modes import Mode
from lolat.graph.work import CLASSES, work_of
from lolat.io.tables import read_table
from lolat.tables.blocks import family_of
from lolat.tables.contents import BLOCKS, NETWORKS, OPERATIONS, SERVED, content_of_columns
from lolat.tables.counted import Counted
from lolat.tables.devices import rows_of_devices
from lolat.tables.networks import NetworkTable, TimedNetwork, read_networks
from lolat.tables.operations import BINARY, UNARY, read_operations
from tests import synthetic

MODEL = Model(synthetic.document())
NETWORK = synthetic.network()


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The networks that were read, in place of a reader."""
    specs: list[tuple[str, Any]] = []

    def read(spec: str, size: Any) -> Graph:
        specs.append((spec, size))
        if spec == "bad":
            raise NetworkError("no network 'bad'")
        return NETWORK

    def counted(rows: list[TimedNetwork], said: object) -> list[Counted]:
        return [Counted(row.network, np.zeros((0, 0)), np.zeros((0, 0)), 0.0) for row in rows]

    monkeypatch.setattr("lolat.api.table_rows.read", read)
    monkeypatch.setattr("lolat.api.table_rows.counts_of", counted)
    return specs


def compare(read: NetworkTable) -> list[Compared]:
    return compare_rows(MODEL, read, Comparison(read.path, left_out=read.left_out))


def table(folder: Path, text: str) -> Path:
    path = folder / "networks.csv"
    path.write_text(text)
    return path


def test_the_rows_and_their_predictions(tmp_path: Path) -> None:
    one, four = (MODEL.predict(NETWORK, n).latency_ms for n in (1, 4))
    path = table(
        tmp_path,
        f"network,batch_size,latency_ms,note\na,1,{one / 1.2},x\nb,4,{four},y\nbad,1,3,z\n",
    )
    read = read_networks(path)
    rows, skipped, columns = compare(read), read.left_out.reasons, read.columns
    assert [r.predicted_ms for r in rows] == pytest.approx([one, four])
    assert skipped == {"bad: no network 'bad'": 1}
    result = TableEvaluation("networks", rows, read.left_out, columns, ())
    found = result.summary
    assert found["median"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.1)
    assert (found["networks"], found["within_10"], found["intervals"]) == (2, 0.5, 2)
    written = list(csv.DictReader(result.to_csv().splitlines()))
    assert list(written[0]) == [*columns, "predicted_ms", "low_ms", "high_ms"]
    assert float(written[1]["predicted_ms"]) == pytest.approx(four)
    assert float(written[1]["low_ms"]) < four < float(written[1]["high_ms"])
    assert written[0]["note"] == "x"


def test_what_a_model_of_inference_does_not_answer(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "device,network,pass,compiled,parallel,batch_size,latency_ms\n"
        "one,a,inference,no,,1,3\n"
        "one,a,training,no,,1,3\n"
        "one,a,inference,yes,,1,3\n"
        "one,a,inference,no,dp4,1,3\n"
        "two,a,inference,no,,1,3\n",
    )
    read = read_networks(path, ["one"])
    assert len(compare(read)) == 1
    assert read.left_out.reasons == {
        "on several devices": 1, "of another device, two": 1,
        "run in another way (float32, compiled; asked for: float32)": 1,
        "a training step; --training (in Python training=True) compares these": 1,
    }  # fmt: skip


def test_a_row_with_an_optimizer_is_a_training_step(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "network,optimizer,pass,latency_ms\na,adam,,3\na,none,,3\na,,,3\na,adam,inference,3\n",
    )
    assert [row.mode.training for row in read_networks(path).rows] == [True, False, False, False]


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1e-3, "like seconds"), (1e3, "like microseconds"), (0.02, ""), (50.0, ""), (1.0, "")],
)
def test_times_in_another_unit_are_told(tmp_path: Path, factor: float, said: str) -> None:
    rows = [f"a{n},fp32,{n},{MODEL.predict(NETWORK, n).latency_ms * factor}" for n in (1, 2, 8)]
    path = table(tmp_path, "\n".join(["network,precision,batch_size,ms", *rows]))
    told = [w for w in MODEL.evaluate_table(path).warnings if "look like" in w]
    assert len(told) == bool(said)
    assert all(said in line and "1000 times" in line for line in told)


def test_the_precision_that_compares_the_rows_of_another_is_named(tmp_path: Path) -> None:
    """A profile without a data sheet knows no other precision, and none is named."""
    path = table(tmp_path, "network,precision,batch_size,ms\na,fp16,1,3\nb,fp16,1,3\n")
    for model, named in ((MODEL, False), (load("rtx-4090"), True)):
        with pytest.raises(InputError) as caught:
            model.evaluate_table(path)
        assert ("--precision fp16" in str(caught.value)) == named
    assert len(load("rtx-4090").evaluate_table(path, precision="fp16").compared) == 2


def test_names_as_the_published_tables_have_them(
    tmp_path: Path, asked: list[tuple[str, Any]]
) -> None:
    (tmp_path / "networks").mkdir()
    config = tmp_path / "networks" / "bert.json"
    config.write_text('{"model_type": "bert", "architectures": ["BertLMHeadModel"]}')
    path = table(
        tmp_path, "network,sequence_length,latency_ms\nbert,512,3\nkeras:X,,4\nbert,512,5\n"
    )
    compare(read_networks(path))
    spec = f"transformers:{config}?AutoModelForSequenceClassification,eager"
    assert asked == [(spec, 512), ("keras:X", None)], "each is read once"
    asked.clear()
    path = table(tmp_path, "model,pixels,batch_size,step_ms\nvit,160,8,3\n")
    compare(read_networks(path))
    assert asked == [("timm:vit", 160)]


def test_tokens_are_no_pixels(tmp_path: Path, asked: list[tuple[str, Any]]) -> None:
    """As `lolat predict timm:x --sequence-length 128`, which is refused."""
    rows = "x,128,,3", "x,,96,3", "x,77,160,3"
    path = table(tmp_path, "\n".join(["model,sequence_length,input_size,latency_ms", *rows]) + "\n")
    read = read_networks(path)
    compare(read)
    assert asked == [("timm:x", 96), ("timm:x", 160)]
    assert "sequence_length is '128', and timm:x takes images" in str(read.left_out)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column of networks (it has a, b)"),
        ("network,b\na,1\n", "no column of times (it has network, b)"),
        ("network,latency_ms,batch_size\na,1,2.5\n", "batch_size is '2.5'"),
        ("network,latency_ms\n,1\n", "line 2: no network"),
        ("network,latency_ms\na,\n", "line 2: no time"),
        ("network,latency_s\na,1e13\n", "latency_s is '1e13', 1e+16 ms"),
        ("network,samples_per_s\na,0\n", "samples_per_s is '0'; expected a number above 0"),
        ("network,latency_ms,dtype\na,1,fp8\n", "dtype is 'fp8'"),
        ("network,latency_ms\nbad,1\nbad,2\n", "(2 x bad: no network 'bad')"),
    ],
)
def test_a_table_that_cannot_be_compared(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        compare(read_networks(table(tmp_path, text)))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("header", "cells", "ms"),
    [
        ("Network,Batch size,Latency (ms)", "a,4,8", 8.0),
        ("Network,Batch size,Latency/ms", "a,4,8", 8.0),
        ("network,batch,latency_s", "a,4,0.008", 8.0),
        ("network,batch,latency_us", "a,4,8000", 8.0),
        ("model,batch_size,samples_per_s", "a,4,500", 8.0),
        ("network,batch,time (ms)", "a,4,8", 8.0),
    ],
)
def test_times_in_other_units(tmp_path: Path, header: str, cells: str, ms: float) -> None:
    (row,) = read_networks(table(tmp_path, f"{header}\n{cells}\n")).rows
    assert (row.batch_size, row.latency_ms) == (4, pytest.approx(ms))


def test_a_rate_that_contradicts_the_time_of_its_row(tmp_path: Path) -> None:
    """64 samples at 4,400 a second are 14.5 ms, 0.227 ms is one; those of training are not compared."""
    text = "model,batch_size,infer_step_time,infer_samples_per_sec,train_samples_per_sec\n"
    rows = "a,64,0.227,4400,900\nb,64,14.5,4400,900\nc,64,14.5,,900\n"
    read = read_networks(table(tmp_path, text + rows))
    assert [row.name for row in read.rows] == ["b", "c"]
    (told,) = read.left_out.lines("T")
    assert (
        "is 0.227, but infer_samples_per_sec 4400 at batch 64 is 14.5 ms; expected the time of"
        in told
    )


def test_a_second_time_that_contradicts_the_first(tmp_path: Path) -> None:
    """57.7 ms are 0.0577 s and 57,700 us; other columns of times may be of something else."""
    text = "network,latency_ms,latency_s,latency_us,time_s\n"
    rows = "a,57.7,0.2,,\nb,57.7,0.0577,57700,9\nc,,0.2,57.7,\nd,,0.2,,\ne,57.7,,0.0577,\n"
    read = read_networks(table(tmp_path, text + rows))
    assert [(row.name, row.latency_ms) for row in read.rows] == [("b", 57.7), ("d", 200.0)]
    told = " ".join(read.left_out.lines("T"))
    assert "latency_ms is 57.7, but latency_s 0.2; expected one time" in told


def test_an_image_that_is_not_square(tmp_path: Path, asked: list[tuple[str, Any]]) -> None:
    """Height and width, or a whole shape; a thousands separator or a word is no size."""
    cells = {'"128,256"': (128, 256), "128x256": (128, 256), '"3, 128, 256"': (3, 128, 256)}
    rows = "".join(f"torchvision:resnet18,{cell},1\n" for cell in (*cells, '"1,024"', "128xwide"))
    read = read_networks(table(tmp_path, f"network,input_size,ms\n{rows}"))
    assert [row.network[1] for row in read.rows] == [*cells.values()]
    (told,) = read.left_out.lines("T")
    assert "expected a whole number from 1, or height,width" in told
    compare(read)
    assert asked == [("torchvision:resnet18", size) for size in dict.fromkeys(cells.values())]


def test_how_it_ran_in_other_words(tmp_path: Path) -> None:
    text = "network,resolution,precision,launch,ms\na,160,fp16,graph,1\n"
    (row,) = read_networks(table(tmp_path, text)).rows
    assert (row.network[1], str(row.mode)) == (160, "float16, compiled, from a CUDA graph")


def test_columns_that_are_not_read(tmp_path: Path) -> None:
    said: list[str] = []
    read_networks(
        table(tmp_path, "network,batchsizes,note,device,precision,ms\na,8,x,l4,fp32,1\n")
    ).say_assumed(said.append)
    assert len(said) == 2
    assert "columns that are not read: batchsizes (did you mean " in said[0]
    assert said[0].endswith(", note")
    (row,) = read_networks(table(tmp_path, "network,BatchSize,precision,ms\na,8,fp32,1\n")).rows
    assert row.batch_size == 8
    read_networks(table(tmp_path, "network,n,ms\na,8,1\n")).say_assumed(said.append)
    assert "read: n" in said[2]
    assert "mean ," not in said[2]
    assert said[1].endswith("in 1 of 1 rows: these are taken to be of a batch of 1")


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("own.csv", "", "neither precision nor launch: its times are taken to be of amp, compiled"),
        ("own.csv", ",launch", "no precision: its times are taken to be of amp"),
        ("own.csv", ",precision", ""),
        ("infer-amp-nhwc-pt240.csv", "", ""),
    ],
)
def test_the_precision_of_a_profile_is_assumed_aloud(
    tmp_path: Path, name: str, more: str, said: str
) -> None:
    path, told = tmp_path / name, list[str]()
    cell = {"": "", ",launch": ",eager", ",precision": ",fp32"}[more]
    path.write_text(f"network,batch_size,ms{more}\na,8,1{cell}\n")
    read_networks(path, mode=Mode("amp", "compiled")).say_assumed(told.append)
    assert told == ([f"{path} has {said}"] if said else [])


def test_the_columns_tell_the_content() -> None:
    assert content_of_columns(["op", "rows", "width", "latency_ms"]) == OPERATIONS
    assert content_of_columns(["model", "infer_batch_size", "infer_step_time"]) == NETWORKS
    served = ["model", "input_tokens", "output_tokens", "tensor_parallel", "tpot_s"]
    assert content_of_columns(served) == SERVED  # its reader says which column is missing
    assert content_of_columns(["name", "acts", "inp", "flops", "latency_ms"]) == BLOCKS


def test_how_networks_were_run(tmp_path: Path) -> None:
    path = tmp_path / "infer-amp-nhwc-pt240-cu124-rtx3090-dynamo.csv"
    path.write_text("model,infer_img_size,infer_batch_size,infer_step_time\nvit,160,8,3\n")
    (row,) = read_networks(path).rows
    assert row.mode == Mode("amp", "compiled", True)
    assert (row.network[:2], row.batch_size, row.latency_ms) == (("timm:vit", 160), 8, 3.0)
    path = table(tmp_path, "network,latency_ms,dtype,compiled\na,1,bf16,no\nb,1,,yes\n")
    one, other = read_networks(path, mode=Mode("amp", "compiled")).rows
    assert (one.mode, other.mode) == (Mode("bfloat16"), Mode("amp", "compiled"))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("timm:tf_efficientnet_b0?reparameterized", "efficientnet"),
        ("vit_base_patch16_224.augreg", "vit"),
        ("transformers:/a/b/bert-large.json", "bert"),
        ("resnet50", "resnet"),
        ("legacy_seresnet18", "seresnet"),
    ],
)
def test_families(name: str, family: str) -> None:
    assert family_of(name) == family


# ---- Tables of operations: what a row asks of a device, by hand, and what is wrong with a bad one


HEADER = (
    "op,batch,m,n,k,rows,width,in_channels,out_channels,kernel,input_size,stride,padding,latency_ms"
)
GOOD = {
    "linear": "linear,4,128,256,512,,,,,,,,,0.5",
    "bmm": "bmm,6,128,64,32,,,,,,,,,0.1",
    "conv": "conv,2,,,,,,16,32,3,28,2,1,0.2",
    "add": "add,,,,,10,100,,,,,,,0.03",
    "gelu": "gelu,,,,,10,100,,,,,,,0.03",
    "softmax": "softmax,,,,,10,100,,,,,,,0.03",
}


def operations(folder: Path, *lines: str) -> Path:
    path = folder / "ops.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_the_work_of_each_by_hand(tmp_path: Path) -> None:
    found = {o.name: o for o in read_operations(operations(tmp_path, *GOOD.values()))}
    work = {name: work_of(o.graph, o.batch_size) for name, o in found.items()}
    assert [float(work["linear"].rows[0]), float(work["linear"].columns[0])] == [512, 512]
    assert float(work["linear"].macs[0]) == 4 * 128 * 256 * 512
    # input, output, kernel and bias
    assert float(work["linear"].bytes[0]) == 4 * (4 * 128 * (256 + 512) + 256 * 512 + 512)
    assert float(work["bmm"].macs[0]) == 6 * 128 * 64 * 32
    assert float(work["bmm"].bytes[0]) == 4 * 6 * (128 * 64 + 64 * 32 + 128 * 32)
    assert float(work["conv"].macs[0]) == 2 * 14 * 14 * 32 * 9 * 16
    assert float(work["conv"].bytes[0]) == 4 * (2 * (16 * 28 * 28 + 32 * 14 * 14) + 9 * 16 * 32)
    assert float(work["add"].bytes[0]) == 4 * 3 * 1000
    assert float(work["gelu"].bytes[0]) == 4 * 2 * 1000
    kinds = {name: CLASSES[int(w.kind[0])] for name, w in work.items()}
    assert kinds == {
        "linear": "dense", "bmm": "batched", "conv": "convolution", "add": "elements",
        "gelu": "elements", "softmax": "norm",
    }  # fmt: skip


@pytest.mark.parametrize("name", [*BINARY, *UNARY])
def test_every_name_is_counted_as_a_known_operation(tmp_path: Path, name: str) -> None:
    (found,) = read_operations(operations(tmp_path, f"{name},,,,,8,16,,,,,,,0.03"))
    assert count(found.graph).warnings == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pool,,,,,1,2,,,,,,,0.1", "op is 'pool'; expected one of linear, bmm, conv"),
        ("add,,,,,1.5,2,,,,,,,0.1", "line 2: rows is '1.5'"),
        ("add,,,,,,2,,,,,,,0.1", "rows is empty"),
        ("add,,,,,1,2,,,,,,,-1", "latency_ms is '-1'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        read_operations(operations(tmp_path, line))
    assert words in str(error.value)


@pytest.mark.slow
def test_a_device_is_fitted_to_its_own_operations(tmp_path: Path) -> None:
    """A table of two devices, one of them three times slower."""
    rows = ["op,device,batch,m,n,k,latency_ms"]
    for i in range(30):
        m, n, k = 64 * (1 + i % 5), 128 * (1 + i % 3), 256 * (1 + i % 4)
        ms = 0.01 + m * n * k / 1e9
        rows += [f"linear,a,1,{m},{n},{k},{ms}", f"linear,b,1,{m},{n},{k},{3 * ms}"]
    path = tmp_path / "both.csv"
    path.write_text("\n".join(rows) + "\n")
    alone = tmp_path / "alone.csv"
    alone.write_text("\n".join([rows[0], *rows[1::2]]) + "\n")
    of_both, of_one = (lolat.fit(p, name="a").file.document["predictors"] for p in (path, alone))
    assert of_both == of_one
    assert {row.row["device"] for row in read_operations(path, ["b"])} == {"b"}


def test_copies_of_operations_count_once(tmp_path: Path) -> None:
    """A table with a row forty more times fits as the table without; another time of it is no copy."""
    rows = [
        f"linear,1,{64 * (1 + i % 5)},{128 * (1 + i % 3)},{256 * (1 + i % 4)},{10 + i}"
        for i in range(60)
    ]

    def fitted(rows: list[str]) -> tuple[dict[str, Any], list[str]]:
        path, said = tmp_path / "rows.csv", list[str]()
        path.write_text("\n".join(["op,batch,m,n,k,latency_ms", *rows]) + "\n")
        return lolat.fit(path, name="mine", warn=said.append).file.document, said

    (once, silent), (copied, said) = fitted(rows), fitted([*rows, *40 * rows[-1:]])
    assert (once["predictors"], once["domain"]) == (copied["predictors"], copied["domain"])
    assert not any("copies" in remark for remark in silent)
    assert "40 of 100 rows are copies of others, and count once" in said
    again, said = fitted([*rows, rows[-1] + ".5"])
    assert again["environment"]["fitted_on"]["operations"] == 61
    assert not any("copies" in remark for remark in said)


def test_groups_and_precision_of_operations(tmp_path: Path) -> None:
    names = "op,batch,in_channels,out_channels,kernel,input_size,stride,padding,groups,latency_ms"
    path = tmp_path / "operations.csv"
    path.write_text(f"{names}\nconv,2,8,8,3,16,1,1,8,1\nconv,2,8,8,3,16,1,1,,1\n")
    depthwise, full = read_operations(path)
    macs = [count(row.graph).total(2).flops for row in (depthwise, full)]
    assert macs == [2 * 16 * 16 * 8 * 9, 2 * 16 * 16 * 8 * 9 * 8]
    assert depthwise.same != full.same
    assert [row.graph.operations[0].kind for row in (depthwise, full)] == ["depthwise_conv", "conv"]
    path.write_text(f"{names}\nconv,2,8,8,3,16,1,1,3,1\n")
    with pytest.raises(InputError, match="line 2: groups is '3'"):
        read_operations(path)
    rows = "add,8,8,fp32,1\nadd,8,8,fp16,1\nmul,8,8,,1\n"
    path.write_text(f"op,rows,width,precision,latency_ms\n{rows}")
    with pytest.raises(InputError, match=r"line 3: an operation in float16; expected float32"):
        fit(path, name="V100")


def test_operations_in_half_precision_make_a_model_of_it(tmp_path: Path) -> None:
    """Additions at 2 TB/s and products at 500 TFLOPS, both in float16, after 5 µs."""
    path, facts = tmp_path / "operations.csv", tmp_path / "facts.csv"
    lines = ["op,batch,m,n,k,rows,width,precision,latency_ms"]
    for n in range(1, 21):
        lines.append(f"add,,,,,{2048 * n},4096,fp16,{0.005 + 3 * 2 * 2048 * n * 4096 / 2e9}")
        macs = n * 4096 * 1024 * 4096
        lines.append(f"linear,{n},4096,1024,4096,,,fp16,{0.005 + 2 * macs / 5e11}")
    path.write_text("\n".join(lines))
    facts.write_text(
        "device,multiprocessors,fp32_matrix_gflops,bandwidth_gb_s,half_tflops\nx,100,60000,2400,600\n"
    )
    model = fit(path, name="x", facts=facts)
    assert model.file.mode.dtype == "float16"
    row = read_operations(path)[-1]
    found = model.predict(row.graph, 20).latency_ms
    assert found == pytest.approx(0.005 + 2 * 20 * 4096 * 1024 * 4096 / 5e11, rel=0.1)


def test_tables_of_two_devices_are_not_mixed(tmp_path: Path) -> None:
    one, other = tmp_path / "a.csv", tmp_path / "b.csv"
    for path, device in ((one, "V100"), (other, "T4")):
        path.write_text(f"op,rows,width,device,latency_ms\nadd,8,8,{device},1\n")
    with pytest.raises(InputError, match=r"V100 \(.*a.csv\), T4 \(.*b.csv\)"):
        fit([one, other])


def test_the_precision_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "blocks.csv"
    names = "acts,inp,flops,precision,latency_ms"
    rows = [f"{1000 * i},{900 * i},{10**6 * i},fp16,{0.1 + i}" for i in range(1, 30)]
    path.write_text("\n".join([names, *rows]))
    assert fit(path).file.mode.dtype == "float16"
    path.write_text("\n".join([names, *rows, "1,1,1,fp32,1"]))
    with pytest.raises(InputError, match=r"line 31: run in float32"):
        fit(path)


def test_the_batch_size_of_a_compared_network_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "networks.csv"
    path.write_text("network,batch_size,latency_ms\ntimm:resnet18,8,5\n")
    result = load("v100-fp32").evaluate_table(path)
    assert result.rows()[0]["batch_size"] == 8
    assert result.to_csv().splitlines()[1].startswith("timm:resnet18,8,5,")


def test_rows_of_another_device_and_copies_are_told_by_evaluate(tmp_path: Path) -> None:
    path = tmp_path / "operations.csv"
    row = "add,100000,64,T4,x,1\n"
    path.write_text("op,rows,width,device,host,latency_ms\n" + 2 * row + "mul,100000,64,T4,x,1\n")
    found = load("v100-fp32").evaluate_table(path)
    assert len(found.operations) == 2
    assert [
        any(words in remark for remark in found.warnings)
        for words in ("of T4, the predictions of v100", "1 of 3 rows are copies", "read: host")
    ] == [True] * 3
    assert not any("T4" in remark for remark in load("t4-fp32").evaluate_table(path).warnings)
    path.write_text("op,rows,width,device,latency_ms\nadd,9,9,T4,1\nadd,9,9,V100,1\n")
    with pytest.raises(InputError, match="rows of T4, V100"):
        load("v100-fp32").evaluate_table(path)
    path = tmp_path / "operations-t4.csv"
    path.write_text("op,rows,width,latency_ms\nadd,9,9,1\n")
    (remark,) = load("v100-fp32").evaluate_table(path).warnings
    assert remark.startswith("by its name the table is of T4, the predictions are of v100")
    assert not load("t4-fp32").evaluate_table(path).warnings


@pytest.mark.parametrize("asked", ["rtx-4090", "NVIDIA GeForce RTX 4090", "rtx4090"])
def test_a_device_has_one_name_however_it_is_written(tmp_path: Path, asked: str) -> None:
    path = table(
        tmp_path,
        "device,network,batch_size,latency_ms\nRTX 4090,a,1,3\nrtx-4090,a,2,4\nRTX 4090 Ti,a,1,9\n,a,1,9\n",
    )
    read = read_networks(path, [asked])
    assert [row.latency_ms for row in read.rows] == [3.0, 4.0]
    assert read.left_out.reasons == {"of another device, RTX 4090 Ti": 1, "of no device": 1}
    assert [row["latency_ms"] for row in rows_of_devices(read_table(path), [asked])] == ["3", "4"]


BOTH = (
    "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,"
    "train_samples_per_sec,train_step_time,train_batch_size,train_img_size\n"
    "resnet50,3200,20,64,224,500,64,32,160\n"
)


@pytest.mark.parametrize(
    ("name", "asked", "training"),
    [("train-amp-rtx4090.csv", False, False), ("both.csv", False, False), ("both.csv", True, True)],
)  # fmt: skip
def test_times_of_timm_of_both_passes_are_those_that_are_asked_for(
    tmp_path: Path, name: str, asked: bool, training: bool
) -> None:
    path = tmp_path / name
    path.write_text(BOTH)
    told = list[str]()
    read = read_networks(path, training=asked)
    read.say_assumed(told.append)
    (row,) = read.rows
    assert (row.mode.training, row.latency_ms) == ((True, 64.0) if training else (False, 20.0))
    assert (row.batch_size, row.network[1]) == ((32, 160) if training else (64, 224))
    assert row.optimizer == ("momentum" if training else "")
    left_out = f"the columns {'infer_' if training else 'train_'}... are left out"
    assert sum(left_out in line for line in told) == 1
    unread = next((line for line in told if "not read" in line), "")
    assert left_out.split()[2].removesuffix("...") not in unread


def test_rows_with_cells_of_other_columns_are_not_like_each_other(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = ("x,9,224", "y,9,224", "1,OOM,224", "1,9,wide", "1,9,224")
    path.write_text(
        "\n".join(["network,batch_size,latency_ms,input_size", *(f"timm:a,{r}" for r in rows)])
    )
    told = [*read_networks(path).left_out.lines()]
    for line, number in zip(told, (2, 1, 1), strict=True):
        assert line.startswith(f"{number} left out: line ")
    assert "batch_size is 'x'" in told[0]
    assert "(and 1 more like it: line 3)" in told[0]
    assert [line.count("more like it") for line in told] == [1, 0, 0]


def test_a_column_of_inference_is_no_training_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "train-amp-rtx4090.csv"
    path.write_text("model,infer_batch_size,infer_step_time\nresnet50,64,20\n")
    assert not read_networks(path).rows[0].mode.training
    path.write_text("model,train_batch_size,train_samples_per_sec\nresnet50,64,640\n")
    (row,) = read_networks(path).rows
    assert (row.mode.training, row.latency_ms) == (True, pytest.approx(100.0))

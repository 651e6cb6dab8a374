"""Input of LoLat's commands that is right, written into a folder: models, tables, networks, answers."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("epyc-2t.json", "a100-fp32.json", "justus2018-v100.json", "rtx-3090-amp.json")
SECTIONS = "sections.json"
"""A model with every section that there is."""


# ---- Tables and models.


def make_whole(folder: Path) -> None:
    """Models, tables and networks that are right, in `folder`."""
    for name in MODELS:
        shutil.copy(ROOT / "models" / name, folder / name)
    draw = random.Random(1)
    for i, (width, depth) in enumerate(((16, 2), (32, 3), (48, 4))):
        (folder / f"net{i}.onnx").write_bytes(_onnx(width, depth))
    rows = []
    for i in range(40):
        acts, inp, flops = (int(10 ** draw.uniform(low, low + 2)) for low in (4, 4, 6))
        counts = (acts, inp, flops, 2 * acts, 1000 + i, 5 + i % 7)
        prices = (1e-6, 2e-6, 5e-9, 1e-7, 1e-6, 0.01)
        ms = 0.05 + sum(count * price for count, price in zip(counts, prices, strict=True))
        rows.append((f"block {i}", 1 + i % 3, *counts, f"{ms:.6g}"))
    _write(
        folder / "points.csv", "name,batch_size,acts,inp,flops,traffic,weights,ops,latency_ms", rows
    )
    nets = [(i, f"net{i}.onnx", 2**b) for i in range(3) for b in range(6)]
    timed = [(net, b, f"{0.2 * (i + 1) * b + 0.1:.4f}") for i, net, b in nets]
    _write(folder / "networks.csv", "network,batch_size,latency_ms", timed)
    epochs = [
        (n, b, 1000 + b, o, (1 + i) * 0.5 + 0.1 * b) for i, n, b in nets for o in ("sgd", "adam")
    ]
    _write(folder / "epochs.csv", "network,batch_size,samples,optimizer,epoch_s", epochs)
    names = ["none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"]
    drawn = [[draw.choice(names) for _ in range(6)] for _ in range(14)]
    cells = list(dict.fromkeys("|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|".format(*six) for six in drawn))
    _write(folder / "samples.csv", "arch,latency_ms", [(c, 10.5 + i) for i, c in enumerate(cells)])
    _write(folder / "scores.csv", "arch,score", [(c, i / 10) for i, c in enumerate(cells)])
    layers = [
        ("conv", 1 + i % 4, 8 + 8 * (i % 5), 16, 1 + 2 * (i % 3), 14 * (1 + i % 4), 1, 1, i + 1)
        for i in range(20)
    ]  # fmt: skip
    head = "op,batch,in_channels,out_channels,kernel,input_size,stride,padding,latency_ms"
    _write(folder / "convolutions.csv", head, layers)
    head = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,GpuInfo,Price"
    offers = [(f"p3.{k}", "V100", k, 8 * k, 61 * k, "us-east-1", "", 3.06 * k) for k in (1, 4, 8)]
    _write(folder / "prices.csv", head, offers)
    rows = [("linear", 1, 2**i, 64, 128, "", "", 0.01 * (i + 1)) for i in range(8)]
    rows += [
        (op, "", "", "", "", 2**i, 512, 0.01 + 1e-3 * i) for op in ("relu", "add") for i in range(8)
    ]
    _write(folder / "operations.csv", "op,batch,m,n,k,rows,width,latency_ms", rows)
    head = "device,multiprocessors,fp32_matrix_gflops,bandwidth_gb_s"
    _write(folder / "facts.csv", head, [("l4", 58, 30300, 300)])
    _write(folder / "gpus.csv", "name,bandwidth,cores,clock", [("X1", 900, 5120, 1380)])
    _of_layers(folder)
    _answers(folder)


def _answers(folder: Path) -> None:
    """What LoLat's own commands write: sections of a model, a network, a prediction."""
    shutil.copy(folder / "epyc-2t.json", folder / SECTIONS)
    for command in (
        f"training fit epochs.csv --output {SECTIONS}",
        f"nas fit nasbench201 samples.csv --output {SECTIONS}",
        "read keras:MobileNetV2 --output read.json",
    ):
        _run(folder, command)
    document = json.loads((folder / SECTIONS).read_text(encoding="utf-8"))
    # One whose training is as `lolat learn --mode training` measured it, which comes after epochs.
    document.pop("epochs")
    (folder / "measured.json").write_text(json.dumps(document), encoding="utf-8")
    answer = _run(folder, "predict epyc-2t.json net0.onnx --json")
    (folder / "before.json").write_text(answer, encoding="utf-8")


def _run(folder: Path, command: str) -> str:
    """What a command writes to stdout; RuntimeError where it fails."""
    from click.testing import CliRunner

    from lolat.cli.main import lolat

    with contextlib.chdir(folder):
        done = CliRunner().invoke(lolat, command.split(), catch_exceptions=False)
    if done.exit_code:
        raise RuntimeError(f"{command}: {done.output}")
    return done.stdout


def _of_layers(folder: Path) -> None:
    """Layer models, and tables of layers."""
    from lolat.mlp.layer_model import write_layer_model
    from tests.mlp.tables import hand_model, random_rows, write

    for layer in ("convolution", "dense"):
        of_several = hand_model(layer, ("V100", "K80"))
        write_layer_model(folder / f"{layer}.json", of_several)
        write(folder / f"{layer}.csv", random_rows(layer, 12))


def _write(path: Path, head: str, rows: Sequence[Sequence[object]]) -> None:
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def make_archives(folder: Path) -> None:
    """A .keras file; its framework takes seconds to import."""
    import keras

    layers = [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.Dense(3)]
    keras.Sequential(layers).save(folder / "net.keras")


def _onnx(width: int, depth: int) -> bytes:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, channels, last = [], [], 3, "x"
    for i in range(depth):
        kernel = np.zeros((width, channels, 3, 3), np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        nodes.append(
            helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1], strides=[2, 2])
        )
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        channels, last = width, f"r{i}"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)  # fmt: skip
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)]
    ).SerializeToString()
    return made

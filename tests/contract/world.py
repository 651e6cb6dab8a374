"""A folder with a network of each kind, a profile of each kind, and tables of each kind."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import lolat
from lolat.mlp.layer_model import write_layer_model
from tests import synthetic
from tests.llm import known_gpu
from tests.mlp.tables import hand_model, random_rows, rows_of, write
from tests.nas.few_devices import everything, some_cells, write_samples

MODULES = '''
"""Networks, a space and functions of a user."""

from lolat.nas import Part, Position, Space


def conv():
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))


def half():
    return conv().half()


def keras_net():
    import keras

    layers = keras.layers
    x = keras.Input((None, None, 3))
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="relu")(x))
    return keras.Model(x, layers.Dense(10)(y))


def shape(*chosen):
    return (1, 16, 16, 8)


def write(layers, x, kernel, width):
    return layers.conv(layers.conv(x, width, kernel), 8, 1)


def space():
    positions = [Position("kernel", (1, 3, 5)), Position("width", (8, 16, 32, 64, 128, 256))]
    return Space.of_parts("tiny", positions, [Part("only", (0, 1), shape, write)])


def score(choices):
    return choices["kernel"] * 10 + choices["width"] % 50


def other(choices):
    return choices["width"] - choices["kernel"]


def cells(arch):
    return sum(map(ord, arch)) % 101
'''
TEXT = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
NETWORKS = {
    "counts": "net.json", "onnx": "net.onnx", "quantized": "quantized.onnx", "torch": "user_made:conv",
    "half": "user_made:half", "timm": "timm:resnet18", "configuration": "transformers:text/config.json",
    "keras": "user_made:keras_net",
}  # fmt: skip
"""Kind of network -> one."""
NEEDS = {
    "onnx": "onnx", "quantized": "onnx", "torch": "torch", "half": "torch", "timm": "timm",
    "configuration": "transformers", "keras": "tensorflow",
}  # fmt: skip
"""Kind of network -> the package that reads it."""
SIZES = {"onnx": 32, "quantized": 16, "torch": 32, "half": 32, "keras": 32}
"""Kind of network -> an input size, where it leaves that open."""
MODELS = {
    "extended": "desk.json", "two-regime": "three.json", "kernels": "rtx-4090-amp",
    "compiled": "rtx-4090-amp-compiled", "training": "epyc-2t", "sheet": "sheet.json",
    "epochs": "epochs.json", "space": "cells.json", "llm": "gpu.json",
}  # fmt: skip
"""Kind of profile -> one."""


def make(folder: Path) -> None:
    """Write everything into `folder`, the working directory."""
    (folder / "user_made.py").write_text(MODULES)
    (folder / "text").mkdir()
    _json(folder / "text" / "config.json", TEXT)
    _json(folder / "desk.json", synthetic.document())
    _json(folder / "gpu.json", known_gpu.document())
    other = known_gpu.document() | {"device": "other (vllm)", "name": "other"}
    _json(folder / "other_gpu.json", other)
    _json(folder / "config.json", known_gpu.MIXTURE)
    _json(folder / "llama.json", known_gpu.LLAMA)
    for name, stages in (("net", 3), ("slow", 4), ("small", 1)):
        _json(folder / f"{name}.json", synthetic.network(stages=stages, name=name).to_dict())
    _onnx(folder)
    for name, rows in tables().items():
        _csv(folder / name, rows)
    (folder / "three.csv").write_text(
        synthetic.table(synthetic.measured(), ("acts", "inp", "flops", "latency_ms"))
    )
    (folder / "blocks.csv").write_text(
        synthetic.table(
            synthetic.measured(), ("name", "acts", "inp", "flops", "batch_size", "latency_ms")
        )
    )
    lolat.fit("three.csv", "three.json")
    lolat.fit((), "sheet.json", name="RTX 4080")
    lolat.fit("epochs.csv", "epochs.json")
    write_samples(folder / "cells.csv", some_cells(12), everything)
    lolat.nas.fit("nasbench201", "cells.csv", "cells.json")
    model = hand_model("dense", gpus=("V100", "K80"))
    weights = np.full_like(model.network[0].weights, 0.001)
    model = replace(model, network=[replace(model.network[0], weights=weights)])
    write_layer_model("dense_layers.json", model)
    write(folder / "layers.csv", rows_of("dense", *({"gpu": g} for g in ("V100", "K80"))))
    write(folder / "many_layers.csv", random_rows("dense", 60, gpus=("V100", "K80")))


def _json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document))


def _csv(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _onnx(folder: Path) -> None:
    """A convolution, and a product in INT8 as ONNX Runtime quantizes it."""
    try:
        from tests.readers.onnx_networks import model, node, saved
    except ImportError:
        return
    same = {"kernel_shape": [3, 3], "pads": [1] * 4}
    convs = [node("Conv", "x w", "h", **same), node("Conv", "h v", "y", **same)]
    saved(folder, model(convs, ("N", 3, "H", "W"), w=(8, 3, 3, 3), v=(8, 8, 3, 3)), "net.onnx")
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "i"),
        node("Cast", "i", "f", to=1),
        node("Mul", "f s", "h"),
        node("MatMul", "h v", "y"),
    ]
    weights = {"w": np.ones((64, 64), np.int8), "v": np.ones((64, 64), np.float32)}
    saved(folder, model(nodes, ("N", "L", 64), **weights), "quantized.onnx")


def tables() -> dict[str, list[dict[str, object]]]:
    """Tables by name: networks, operations, epochs, operations of language models, served models."""
    return {name: [*rows] for name, rows in (
        ("networks.csv", _networks()),
        ("steps.csv", _steps()),
        ("operations.csv", _operations()),
        ("epochs.csv", _epochs()),
        ("kernels.csv", _kernels()),
        ("served.csv", _served()),
        ("runs.csv", ({"model": "llama-3.1-8b", "gpus": 1, "sequence_length": n, "micro_batch_size": 4,
                       "tokens_per_s_per_gpu": 8000} for n in (1024, 2048, 4096))),
        ("one_layout.csv", ({n: v for n, v in r.items() if n not in ("model", "tensor_parallel")}
                            for r in _served())),
        ("prices.csv", _prices()),
        ("facts.csv", [{"device": "v100", "multiprocessors": 80, "bandwidth_gb_s": 900,
                        "fp32_matrix_gflops": 15000}, {"device": "t4", "multiprocessors": 40,
                        "bandwidth_gb_s": 320, "fp32_matrix_gflops": 8000}]),
        ("llm_facts.csv", [{"device": name, "multiprocessors": 100, "bandwidth_gb_s": 2000,
                            "memory_gib": 80, "bf16_tflops": tflops} for name, tflops in
                           (("v100", 1000), ("t4", 900))]),
        ("other_facts.csv", [{"device": name, "multiprocessors": 80, "bandwidth_gb_s": 500,
                              "fp32_matrix_gflops": 15000} for name in ("v100", "t4")]),
        ("scores.csv", [{"arch": a, "score": i} for i, a in enumerate(some_cells(12, seed=2))]),
        ("tiny.csv", [{"arch": a} for a in ("0-1", "1-2", "2-3")]),
        ("few.csv", [{"arch": a} for a in some_cells(3, seed=4)]),
        ("other_scores.csv", [{"arch": a, "score": 9 - i} for i, a in enumerate(some_cells(9, seed=2))]),
        ("archs.csv", [{"arch": a} for a in some_cells(5, seed=3)]),
    )}  # fmt: skip


def _networks() -> Iterator[dict[str, object]]:
    for device, slower in (("v100", 1.0), ("t4", 2.0)):
        for name, ms in (
            ("net.json", 3.0), ("slow.json", 4.0), ("small.json", 1.0), ("timm:resnet18", 6.0),
            ("timm:resnet34", 11.0),
        ):  # fmt: skip
            for batch, more in ((4, 1.0), (16, 3.5), (64, 13.0)):
                yield {"network": name, "device": device, "batch_size": batch,
                       "latency_ms": ms * more * slower}  # fmt: skip


def _steps() -> Iterator[dict[str, object]]:
    for name, ms in (("net.json", 3.0), ("slow.json", 4.0), ("small.json", 1.0)):
        for mode, more in (("inference", 1.0), ("training", 3.5)):
            yield {"network": name, "batch_size": 16, "pass": mode, "latency_ms": ms * more}


def _operations() -> Iterator[dict[str, object]]:
    for device, slower in (("v100", 1.0), ("t4", 2.0)):
        for i in range(40):
            m, n, k = 64 * (1 + i % 5), 128 * (1 + i % 3), 256 * (1 + i % 4)
            yield {"op": "linear", "device": device, "batch": 1, "m": m, "n": n, "k": k,
                   "latency_ms": slower * (0.01 + m * n * k / 1e10)}  # fmt: skip


def _epochs() -> Iterator[dict[str, object]]:
    for batch in (16, 32, 64, 128):
        for samples in (1000, 5000):
            yield {"network": "net.json", "batch_size": batch, "samples": samples, "optimizer": "sgd",
                   "epoch_s": samples * (0.001 + 0.01 / batch)}  # fmt: skip


def _kernels() -> Iterator[dict[str, object]]:
    rows = known_gpu.random_rows("gemm", 60, 1)
    ms = known_gpu.kernel_ms("gemm", "bfloat16", rows)
    for i in range(60):
        sizes = {name: int(values[i]) for name, values in rows.items()}
        yield {"op": "gemm", "dtype": "bfloat16", **sizes, "latency_ms": float(ms[i])}


def _served() -> Iterator[dict[str, object]]:
    for n in (1, 4, 16, 64):
        yield {"model": "qwen3-8b", "input_tokens": 500, "output_tokens": 100, "concurrency": n,
               "tensor_parallel": 1, "tpot_ms": 8.0 + n / 10}  # fmt: skip


def _prices() -> Iterator[dict[str, object]]:
    for name, count, price in (("RTX4090", 1, 0.5), ("V100", 1, 3.0), ("", 0, 0.25)):
        yield {"InstanceType": f"x{name}", "AcceleratorName": name, "AcceleratorCount": count,
               "Price": price}  # fmt: skip

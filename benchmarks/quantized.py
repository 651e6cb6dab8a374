"""Times networks in float and quantized by ONNX Runtime's own tools, without LoLat's timing.

    python benchmarks/quantized.py FOLDER [TIMM_NAME ...] [--threads N]
    python -m benchmarks run quantized model=local times=FOLDER

The first command takes two minutes: each network is exported by PyTorch and quantized in three ways; all
files are then timed in shuffled rounds by sessions of their own, so that the ratio of two of them is
known where the machine's speed is not. The second compares a model's predictions with the median times,
and its ratios to the network in float with the measured ones. No constant was chosen on USUAL.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

USUAL = (
    "resnet18", "mnasnet_100", "regnetx_004", "deit_tiny_patch16_224", "mixer_s32_224", "repvgg_a0",
    "hrnet_w18_small", "tf_efficientnetv2_b0",
)  # fmt: skip
FLOAT, STATIC, SIGNED, DYNAMIC = "float", "static", "signed", "dynamic"
WAYS = (FLOAT, STATIC, SIGNED, DYNAMIC)
"""In float; with zero points at both ends and unsigned activations; QDQ by default; dynamic by default."""
ROUNDS, CALLS, WARM, SIDE = 4, 12, 3, 224


def made(folder: Path, name: str) -> None:
    """Write a network's four files."""
    import torch
    from onnxruntime import quantization as tools
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from lolat.readers.torch.named import load_torchvision

    load_torchvision()  # of another build than PyTorch's; timm imports it
    import timm

    path = {way: str(folder / f"{name}.{way}.onnx") for way in WAYS}
    x = torch.rand(1, 3, SIDE, SIDE)
    module = timm.create_model(name, pretrained=False).eval()
    with torch.no_grad():
        torch.onnx.export(module, (x,), path[FLOAT], dynamo=False, input_names=["x"])
    ready = str(folder / f"{name}.ready.onnx")
    quant_pre_process(path[FLOAT], ready)
    for way, kind in ((STATIC, tools.QuantType.QUInt8), (SIGNED, tools.QuantType.QInt8)):
        samples = iter([{"x": x.numpy()}])
        data = type(
            "Data", (tools.CalibrationDataReader,), {"get_next": lambda _, s=samples: next(s, None)}
        )
        tools.quantize_static(ready, path[way], data(), per_channel=True, activation_type=kind)
    tools.quantize_dynamic(ready, path[DYNAMIC])


def timed(folder: Path, files: list[str], threads: int) -> dict[str, list[float]]:
    """Each call's ms of each file; 0 threads: as many as ONNX Runtime takes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    x = np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32)
    times: dict[str, list[float]] = {file: [] for file in files}
    for _ in range(ROUNDS):
        for file in random.sample(files, len(files)):
            session = onnxruntime.InferenceSession(str(folder / file), options)
            for turn in range(WARM + CALLS):
                start = time.perf_counter()
                session.run(None, {"x": x})
                if turn >= WARM:
                    times[file].append((time.perf_counter() - start) * 1e3)
    return times


def main(given: list[str]) -> None:
    """Make and time the files; see the module."""
    threads = 0
    if "--threads" in given:
        at = given.index("--threads")
        threads = int(given[at + 1])
        del given[at : at + 2]
    logging.disable(logging.WARNING)
    folder, names = Path(given[0]), given[1:] or list(USUAL)
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / f"{name}.{DYNAMIC}.onnx").exists():  # the last one
            made(folder, name)
    every = timed(folder, [f"{name}.{way}.onnx" for name in names for way in WAYS], threads)
    rounded = {name: [round(ms, 3) for ms in times] for name, times in every.items()}
    (folder / "times.json").write_text(json.dumps({"at": time.time(), "times_ms": rounded}) + "\n")
    print(folder / "times.json")


if __name__ == "__main__":
    main(sys.argv[1:])
else:
    from benchmarks.runner import Errors, Tables, benchmark, percent

    @benchmark("quantized", "accuracy", "extended")
    def quantized(model: str, times: str) -> Tables:
        """Networks quantized by ONNX Runtime against a model's predictions (model=local times=FOLDER)."""
        import lolat

        known, folder = lolat.load(model), Path(times)
        calls = json.loads((folder / "times.json").read_text())["times_ms"]
        found: dict[str, Any] = {file: known.predict(str(folder / file)) for file in calls}
        ms = {file: float(np.median(each)) for file, each in calls.items()}
        rows = []
        for way in WAYS:
            files = [file for file in calls if file.endswith(f".{way}.onnx")]
            off = np.array([found[f].latency_ms / ms[f] - 1 for f in files])
            ends = [found[f].interval_ms for f in files]
            inside = [low <= ms[f] <= high for f, (low, high) in zip(files, ends, strict=True)]
            base = [f.replace(way, FLOAT) for f in files]
            ratio = np.array([ms[f] / ms[b] for f, b in zip(files, base, strict=True)])
            said = [
                found[f].latency_ms / found[b].latency_ms for f, b in zip(files, base, strict=True)
            ]
            e, shape = Errors(off, inside), Errors(np.array(said) / ratio - 1)
            largest = percent(float(np.max(np.abs(shape.off))))
            rows.append([way, str(len(files)), f"{np.median(ratio):.2f}", e.median, e.bias, e.held,
                         shape.median, shape.bias, largest])  # fmt: skip
        columns = ["quantized", "networks", "time over that in float", "median error", "bias",
                   "inside the 90 % interval", "of the ratio: median error", "of the ratio: bias",
                   "of the ratio: largest"]  # fmt: skip
        return {"quantized": (columns, rows)}

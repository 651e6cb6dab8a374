"""Times networks by a plain script, as a user would, without LoLat's timing; and predictions against that.

    python benchmarks/plain.py keras OUT.json [NAME:PIXELS:BATCH ...] [--threads N]
    python benchmarks/plain.py quantized FOLDER [TIMM_NAME ...] [--threads N]
    python -m benchmarks run plain model=local times=OUT.json
    python -m benchmarks run quantized model=local times=FOLDER
    python -m benchmarks run asked

The first two commands take two minutes. Every call is timed in a loop of its own, in shuffled rounds; all
times are kept, and the median compared. `keras`: networks of keras.applications. `quantized`: networks of
timm, exported by PyTorch and quantized by ONNX Runtime's own tools in three ways, in sessions of their own;
the ratio of two of them is known where the machine's speed is not; no constant was chosen on them.
`asked` compares for the learnings in benchmarks/asked: a folder each, with `model.json.xz` as `lolat learn`
wrote it, fitted again with today's formula, and `script-N.json` of scripts that ran N minutes later. `now`
in such a file is what `--now` measured right before the script.
"""

from __future__ import annotations

import argparse
import json
import logging
import lzma
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

KERAS = (
    "ResNet50:224:1", "ResNet101:160:2", "ResNet50V2:192:4", "MobileNet:224:1", "MobileNet:128:16",
    "MobileNetV2:224:2", "MobileNetV2:160:8", "MobileNetV3Small:224:8", "EfficientNetB1:192:1",
    "EfficientNetV2B1:192:2", "DenseNet121:192:1", "DenseNet201:128:1", "InceptionV3:192:1", "VGG16:160:1",
    "Xception:192:1", "NASNetMobile:192:1",
)  # fmt: skip
TIMM = (
    "resnet18", "mnasnet_100", "regnetx_004", "deit_tiny_patch16_224", "mixer_s32_224", "repvgg_a0",
    "hrnet_w18_small", "tf_efficientnetv2_b0",
)  # fmt: skip
FLOAT, STATIC, SIGNED, DYNAMIC = "float", "static", "signed", "dynamic"
WAYS = (FLOAT, STATIC, SIGNED, DYNAMIC)
"""Ways to run a network: in float; with zero points at both ends and unsigned activations; QDQ by default;
dynamic by default."""
ASKED = Path(__file__).resolve().parent / "asked"
ROUNDS, CALLS, WARM, SIDE = 4, 12, 3, 224

Call = Callable[[], object]


def timed(makers: Mapping[str, Callable[[], Call]]) -> dict[str, list[float]]:
    """Each call's ms, by name; a call is made anew for each round."""
    times: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(ROUNDS):
        for name in random.sample(list(makers), len(makers)):
            call = makers[name]()
            for turn in range(WARM + CALLS):
                start = time.perf_counter()
                call()
                if turn >= WARM:
                    times[name].append(round((time.perf_counter() - start) * 1e3, 3))
    return times


def keras_calls(names: list[str], threads: int) -> dict[str, Callable[[], Call]]:
    """Networks of keras.applications, each compiled once; 0 threads: as many as TensorFlow takes."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    calls: dict[str, Callable[[], Call]] = {}
    for name in names:
        network, pixels, batch = name.split(":")
        side = int(pixels)
        model = getattr(keras.applications, network)(weights=None, input_shape=(side, side, 3))
        function = tf.function(lambda x, model=model: model(x, training=False))
        x = tf.random.normal((int(batch), side, side, 3))
        function(x)
        calls[name] = lambda f=function, x=x: lambda: np.asarray(f(x))
    return calls


def quantized_calls(folder: Path, names: list[str], threads: int) -> dict[str, Callable[[], Call]]:
    """Files of networks in all WAYS, made where they are not there; 0 threads: as many as usual."""
    import onnxruntime

    logging.disable(logging.WARNING)
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / f"{name}.{DYNAMIC}.onnx").exists():  # the last one
            quantize(folder, name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    x = {"x": np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32)}

    def opened(file: str) -> Call:
        return partial(onnxruntime.InferenceSession(str(folder / file), options).run, None, x)

    files = [f"{name}.{way}.onnx" for name in names for way in WAYS]
    return {file: partial(opened, file) for file in files}


def quantize(folder: Path, name: str) -> None:
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


def main() -> None:
    """Time networks; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("keras", "quantized"))
    parser.add_argument("output", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    if given.what == "keras":
        output, calls = given.output, keras_calls(given.names or list(KERAS), given.threads)
    else:
        output = given.output / "times.json"
        calls = quantized_calls(given.output, given.names or list(TIMM), given.threads)
    output.write_text(json.dumps({"at": time.time(), "times_ms": timed(calls)}) + "\n")
    print(output)


def measured(file: Path) -> dict[str, float]:
    """The median ms of each network in a file of times."""
    times = json.loads(file.read_text())["times_ms"]
    return {name: float(np.median(calls_ms)) for name, calls_ms in times.items()}


if __name__ == "__main__":
    main()
else:
    import lolat
    from benchmarks.runner import Errors, Tables, benchmark, percent
    from lolat.device.execution_modes import as_now
    from lolat.io.results import Remark

    def errors(known: lolat.Model, ms: Mapping[str, float]) -> Errors:
        """The errors of a model's predictions for networks of keras.applications."""
        off, inside, widths = [], [], []
        for name, measured_ms in ms.items():
            network, pixels, batch = name.split(":")
            found = known.predict(f"keras:{network}", int(batch), input_size=int(pixels))
            low, high = found.interval_ms or (0.0, np.inf)
            off.append(found.latency_ms / measured_ms - 1)
            inside.append(bool(low <= measured_ms <= high))
            widths.append((high - low) / found.latency_ms)
        return Errors(np.array(off), inside, widths)

    @benchmark("plain", "accuracy", "extended")
    def plain(model: str, times: str) -> Tables:
        """Times of a plain script against a model's predictions (model=local times=OUT.json)."""
        ms = measured(Path(times))
        e = errors(lolat.load(model), ms)
        rows = [
            [name, f"{one:.1f} ms", f"{100 * off:+.1f} %", "", "", ""]
            for (name, one), off in zip(ms.items(), e.off, strict=True)
        ]
        columns = ["network", "measured", "error", "bias", "within 10 %", "inside"]
        return {"plain": (columns, [["all", "", e.median, e.bias, e.within, e.held], *rows])}

    @benchmark("asked", "accuracy", "extended")
    def asked() -> Tables:
        """A plain script minutes after a machine was learned, for each learning in benchmarks/asked."""
        rows = []
        for packed in sorted(ASKED.glob("*/model.json.xz")):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "model.json")
                file.write_bytes(lzma.decompress(packed.read_bytes()))
                known = lolat.fit(file)
            scripts = packed.parent.glob("script-*.json")
            for times in sorted(scripts, key=lambda file: int(file.stem.partition("-")[2])):
                minutes = int(times.stem.partition("-")[2])
                name = f"{packed.parent.name} learning, {minutes} min later"
                models = {name: known}
                if now := json.loads(times.read_text()).get("now"):
                    remark = Remark("as the machine is now", f"{now['ratio']:.2f} times")
                    models[f"{name}, --now"] = as_now(known, now["spread"], remark, now["ratio"])
                for which, model in models.items():
                    e = errors(model, measured(times))
                    held = percent(float(np.mean(e.inside)), 0)
                    rows.append([which, str(len(e.off)), e.median, e.bias, e.within, held, e.width])
        columns = ["learning, asked", "networks", "median error", "bias", "within 10 %"]
        return {"asked": ([*columns, "inside the 90 % interval", "its width"], rows)}

    @benchmark("quantized", "accuracy", "extended")
    def quantized(model: str, times: str) -> Tables:
        """Networks quantized by ONNX Runtime against a model's predictions (model=local times=FOLDER)."""
        known, folder = lolat.load(model), Path(times)
        ms, rows = measured(folder / "times.json"), []
        found = {file: known.predict(str(folder / file)) for file in ms}
        for way in WAYS:
            files = [file for file in ms if file.endswith(f".{way}.onnx")]
            base = [file.replace(way, FLOAT) for file in files]
            real, of_float = (np.array([ms[f] for f in some]) for some in (files, base))
            told, told_float = (
                np.array([found[f].latency_ms for f in some]) for some in (files, base)
            )
            ends = np.array([found[f].interval_ms for f in files]).T
            e = Errors(told / real - 1, [*((ends[0] <= real) & (real <= ends[1]))])
            ratio = real / of_float
            shape = Errors(told / told_float / ratio - 1)
            largest = percent(float(np.max(np.abs(shape.off))))
            rows.append([way, str(len(files)), f"{np.median(ratio):.2f}", e.median, e.bias, e.held,
                         shape.median, shape.bias, largest])  # fmt: skip
        columns = ["quantized", "networks", "time over that in float", "median error", "bias",
                   "inside the 90 % interval", "of the ratio: median error", "of the ratio: bias",
                   "of the ratio: largest"]  # fmt: skip
        return {"quantized": (columns, rows)}

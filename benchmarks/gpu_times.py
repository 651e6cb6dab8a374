"""Times networks on this machine's GPU in each precision and layout, by a plain script without LoLat.

    python benchmarks/gpu_times.py networks OUT.csv [--seconds 150] [--but OTHER.csv]
    python benchmarks/gpu_times.py training OUT.csv [--seconds 60]
    python benchmarks/gpu_times.py decoder OUT.csv [--layers 32]

Needs PyTorch, timm, transformers and (for decoder) peft. The rows have the columns that `lolat fit` and
`lolat evaluate --table` take, and: `kernels_ms`, the same forward pass replayed from a CUDA graph, which
leaves out the host; `peak_bytes`, the most that PyTorch's allocator held. A time is that of one call with
the wait for its end, the input on the device: the median of some twenty calls, after a warm-up. `networks`
are forward passes, in random order, until the seconds are over; `training` are forward, backward and
update (SGD with momentum); `decoder` is a training step of Llama 3.1 8B's layers in bfloat16, of all
weights and with LoRA, with and without checkpoints.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

COLUMNS = ["network", "precision", "launch", "channels_last", "pass", "optimizer", "batch_size",
           "input_size", "sequence_length", "latency_ms", "kernels_ms", "peak_bytes"]  # fmt: skip
NETWORKS = (
    "resnet18", "resnet50", "resnet152", "wide_resnet50_2", "resnext50_32x4d", "regnetx_032", "regnety_016",
    "densenet121", "vgg16", "inception_v3", "mobilenetv2_100", "mobilenetv3_large_100", "mnasnet_100",
    "ghostnet_100", "efficientnet_b0", "efficientnet_b3", "tf_efficientnetv2_s", "rexnet_100",
    "convnext_tiny", "convnext_base", "vit_tiny_patch16_224", "vit_small_patch16_224",
    "vit_base_patch16_224", "vit_large_patch16_224", "swin_tiny_patch4_window7_224",
    "swin_base_patch4_window7_224", "mixer_b16_224", "resmlp_24_224", "poolformer_s12", "dla60",
    "hrnet_w18", "resnest50d", "xception41", "levit_256", "twins_svt_small", "cait_s24_224",
)  # fmt: skip
TEXTS = {
    "bert-base": ("BertConfig", {}, 128),
    "bert-large": ("BertConfig", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                                  "intermediate_size": 4096}, 384),
    "gpt2": ("GPT2Config", {}, 512),
    "distilbert": ("DistilBertConfig", {}, 128),
}  # fmt: skip
"""Name -> class of its configuration in transformers, what differs from its defaults, tokens."""
TRAINED = (
    "resnet50", "efficientnet_b0", "mobilenetv3_large_100", "convnext_tiny", "vit_base_patch16_224",
    "swin_tiny_patch4_window7_224", "densenet121", "regnety_016", "bert-base", "resnext50_32x4d",
)  # fmt: skip
DECODERS = (
    ("full", "sgd", False), ("full", "sgd", True), ("lora", "adamw", False), ("lora", "adamw", True),
    ("lora in bfloat16", "adamw", False), ("lora in bfloat16", "adamw", True), ("full", "adamw", True),
)  # fmt: skip
"""The part of a decoder that is trained, by which optimizer, with checkpoints or not."""
MODES = (("float32", False), ("amp", False), ("float16", False), ("float16", True))
BATCHES = (8, 128)
TRAINED_BATCH = 64
CALLS, CALLS_S, LONGEST_MS = 20, 0.1, 250.0
DTYPES = {"float32": torch.float32, "amp": torch.float32, "float16": torch.float16,
          "bfloat16": torch.bfloat16}  # fmt: skip


class Bench:
    """Writes rows of times, each as soon as it is there."""

    def __init__(self, path: str, device: str) -> None:
        """`device`: cuda or cpu (which tries the script out)."""
        self.device = device
        self.cuda = device == "cuda"
        self.file = open(path, "w", newline="")  # noqa: SIM115  (open until the script ends)
        self.rows = csv.DictWriter(self.file, COLUMNS, restval="", lineterminator="\n")
        self.rows.writeheader()

    def wait(self) -> None:
        """Wait until the device has finished."""
        if self.cuda:
            torch.cuda.synchronize()

    def write(self, **row: Any) -> None:
        """Write a row, and print it."""
        self.rows.writerow(row)
        self.file.flush()
        print(",".join(str(row.get(c, "")) for c in COLUMNS), flush=True)

    def fresh(self) -> None:
        """Give back freed memory and begin the count of the peak anew."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int | str:
        """Most bytes that the allocator held since `fresh`."""
        return torch.cuda.max_memory_allocated() if self.cuda else ""

    def ms(self, call: Callable[[], object]) -> float:
        """The median of CALLS calls, or of as many as CALLS_S seconds hold."""
        for _ in range(3):
            call()
        self.wait()
        found: list[float] = []
        begun = time.perf_counter()
        while len(found) < 3 or (len(found) < CALLS and time.perf_counter() - begun < CALLS_S):
            start = time.perf_counter()
            call()
            self.wait()
            found.append((time.perf_counter() - start) * 1e3)
        return round(statistics.median(found), 5)

    def kernels_ms(self, call: Callable[[], object]) -> float | str:
        """Time of a call replayed from a CUDA graph, in ms; "" where it cannot be captured."""
        if not self.cuda:
            return ""
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                call()
            self.wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            return self.ms(graph.replay)
        except Exception:  # what cannot be captured has no such time
            self.wait()
            return ""


def built(name: str, device: str) -> tuple[Any, Callable[[int], Any], dict[str, Any]]:
    """(a network, its input at a batch size, the columns that name both)."""
    if name in TEXTS:
        import transformers

        kind, changed, tokens = TEXTS[name]
        config = getattr(transformers, kind)(**changed, use_cache=False)
        with torch.device(device):
            model = transformers.AutoModel.from_config(config)
        words = config.vocab_size
        return (
            model,
            lambda n: torch.randint(0, words, (n, tokens), device=device),
            {"network": name, "sequence_length": tokens},
        )
    import timm

    with torch.device(device):
        model = timm.create_model(name, num_classes=1000)
    side = model.default_cfg["input_size"][-1] if hasattr(model, "default_cfg") else 224
    return (
        model,
        lambda n: torch.randn(n, 3, side, side, device=device),
        {"network": f"timm:{name}", "input_size": side},
    )


def in_mode(precision: str, device: str) -> Any:
    """The context of a precision: autocast to float16 for amp."""
    if precision != "amp":
        return nullcontext()
    return torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16)


def as_input(x: Any, precision: str, last: bool) -> Any:
    """An input in a precision and layout."""
    if x.is_floating_point():
        x = x.to(DTYPES[precision])
    return x.to(memory_format=torch.channels_last) if last and x.dim() == 4 else x


def jobs(seconds: float, names: list[str]) -> Iterator[str]:
    """The names until the seconds are over."""
    begun = time.perf_counter()
    for name in names:
        if time.perf_counter() - begun < seconds:
            yield name


def networks(bench: Bench, seconds: float, but: set[str]) -> None:
    """Forward passes of all networks in all modes and batch sizes."""
    names = [n for n in (*NETWORKS, *TEXTS) if n not in but and f"timm:{n}" not in but]
    for name in jobs(seconds, random.sample(names, len(names))):
        try:
            model, make, row = built(name, bench.device)
            model = model.eval()
            for precision, last in MODES:
                if last and name in TEXTS:
                    continue
                layout = torch.channels_last if last else torch.contiguous_format
                model = model.to(DTYPES[precision])
                if name not in TEXTS:
                    model = model.to(memory_format=layout)
                forward_passes(bench, model, make, precision, last, row)
        except Exception as problem:  # one network that fails leaves the others
            print(f"{name}: {problem!r}"[:300], flush=True)
        model = None
        bench.fresh()


def forward_passes(
    bench: Bench,
    model: Any,
    make: Callable[[int], Any],
    precision: str,
    last: bool,
    row: dict[str, Any],
) -> None:
    """Rows of a network in one mode, until a batch takes LONGEST_MS or memory ends."""
    ms, before = 0.0, 1
    for batch in BATCHES:
        if ms * batch / before > LONGEST_MS:
            continue
        bench.fresh()
        try:
            x = as_input(make(batch), precision, last)
            with torch.no_grad(), in_mode(precision, bench.device):
                ms, before = bench.ms(lambda x=x: model(x)), batch
                peak = bench.peak()
                kernels = bench.kernels_ms(lambda x=x: model(x)) if batch == BATCHES[0] else ""
        except torch.OutOfMemoryError:
            return
        bench.write(**row, precision=precision, launch="eager", channels_last="yes" if last else "no",
                    optimizer="", batch_size=batch, latency_ms=ms, kernels_ms=kernels,
                    peak_bytes=peak, **{"pass": "inference"})  # fmt: skip


def training(bench: Bench, seconds: float) -> None:
    """Training steps of some networks, in float32 and amp."""
    for name in jobs(seconds, list(TRAINED)):
        for precision in ("float32", "amp"):
            model = call = None
            bench.fresh()
            try:
                model, make, row = built(name, bench.device)
                call = step_of(model.train(), make(TRAINED_BATCH), precision, bench.device)
                ms, peak = bench.ms(call), bench.peak()
            except Exception as problem:
                print(f"{name}: {problem!r}"[:300], flush=True)
                continue
            bench.write(**row, precision=precision, launch="eager", channels_last="no",
                        optimizer="momentum", batch_size=TRAINED_BATCH, latency_ms=ms,
                        peak_bytes=peak, **{"pass": "training"})  # fmt: skip


def step_of(model: Any, x: Any, precision: str, device: str) -> Callable[[], None]:
    """A training step: forward, the mean of its outputs, backward, SGD with momentum."""
    update = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        update.zero_grad()
        with in_mode(precision, device):
            found = model(x)
            found = found if torch.is_tensor(found) else found[0]
            loss = found.float().mean()
        loss.backward()
        update.step()

    return step


def decoder(bench: Bench, layers: int) -> None:
    """Training steps of Llama 3.1 8B, one sequence of 2,048 tokens, bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, use_cache=False,
        rope_theta=500000.0,  # type: ignore[call-arg]
    )  # fmt: skip
    tokens = 2048 if bench.cuda else 64
    words = torch.randint(0, config.vocab_size, (1, tokens), device=bench.device)
    for tuned, optimizer, checkpoints in DECODERS:
        model = update = step = trained = None
        bench.fresh()
        try:
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.bfloat16)
            with torch.device(bench.device):
                model = LlamaForCausalLM(config)
            torch.set_default_dtype(before)
            if checkpoints:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            if tuned != "full":
                model = with_lora(model, tuned == "lora")
            trained = [p for p in model.parameters() if p.requires_grad]
            if optimizer == "adamw":
                update = torch.optim.AdamW(trained, fused=True)
            else:
                update = torch.optim.SGD(trained, lr=1e-6)
            bench.fresh()
            model.train()

            def step(model: Any = model, update: Any = update) -> None:
                update.zero_grad()
                model(words, labels=words).loss.backward()
                update.step()

            ms = bench.ms(step)
            name = f"llama-3.1-8b {tuned}{' checkpoints' if checkpoints else ''}"
            bench.write(network=name, precision="bfloat16", launch="eager", batch_size=1,
                        optimizer=optimizer, sequence_length=tokens,
                        latency_ms=ms, peak_bytes=bench.peak(), **{"pass": "training"})  # fmt: skip
        except Exception as problem:
            print(f"{tuned} {optimizer} {checkpoints}: {problem!r}"[:400], flush=True)


def with_lora(model: Any, in_float32: bool) -> Any:
    """LoRA of rank 16 beside each dense layer of the blocks; `in_float32`: its weights, PEFT's default."""
    from peft import LoraConfig, get_peft_model

    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    tuned = get_peft_model(
        model, LoraConfig(r=16, target_modules=names), autocast_adapter_dtype=in_float32
    )
    tuned.enable_input_require_grads()
    return tuned


def main() -> None:
    """Time what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("networks", "training", "decoder"))
    parser.add_argument("output")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--but", default="", help="a table whose networks are left out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    random.seed(given.seed)
    bench = Bench(given.output, given.device)
    if given.what == "decoder":
        decoder(bench, given.layers)
    elif given.what == "training":
        training(bench, given.seconds)
    else:
        with open(given.but or os.devnull) as file:
            networks(bench, given.seconds, {row["network"] for row in csv.DictReader(file)})


if __name__ == "__main__":
    main()

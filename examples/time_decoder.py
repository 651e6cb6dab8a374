"""Time a decoder of random weights, of Llama's kind, on this machine's GPU with PyTorch alone.

    python examples/time_decoder.py config.json steps.csv [--batch 1,8] [--context 1024,4096] [--layers N]

config.json is a model's, as Hugging Face has it. step_ms: one decode step of `batch` sequences, each with
`context` tokens in its cache, the new one included. prefill_ms: one sequence of `context` tokens. Both in
bfloat16, with a static cache, in a CUDA graph. Compare them with `lolat llm`. Rows that do not fit in
memory are left out. --layers N times the first N layers and no layers, and scales the difference up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as f

SIZES = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
         "num_hidden_layers")  # fmt: skip
HEADER = "batch,context,step_ms,prefill_ms"
WARM, REPLAYS, LONG_MS = 3, 9, 2000.0


class Decoder:
    """Embedding, layers (normalization, attention, normalization, gated products), head."""

    def __init__(self, config: dict[str, int], layers: int, device: torch.device) -> None:
        hidden, self.heads, inner, words, _ = (config[name] for name in SIZES)
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.size = config.get("head_dim") or hidden // self.heads
        self.device, rows = device, (self.heads + 2 * self.kv_heads) * self.size
        shapes = {"before": (hidden,), "qkv": (rows, hidden), "out": (hidden, self.heads * self.size),
                  "after": (hidden,), "up": (2 * inner, hidden), "down": (hidden, inner)}  # fmt: skip
        self.layers = [{n: self.new(*shape) for n, shape in shapes.items()} for _ in range(layers)]
        self.embedding, self.head = self.new(words, hidden), self.new(words, hidden)
        self.last = self.new(hidden)

    def new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device).normal_(std=0.02)

    def call(self, batch: int, tokens: int, context: int, layers: int) -> Callable[[], object]:
        """The last `tokens` of `context` tokens of each sequence; the others are in the cache."""
        ids = torch.randint(len(self.embedding), (batch, tokens), device=self.device)
        cache = [self.new(2, batch, self.kv_heads, context, self.size) for _ in range(layers)]
        first = context - tokens
        powers = torch.arange(0, self.size, 2, device=self.device) / self.size
        angles = torch.arange(first, context, device=self.device)[:, None] / 10000**powers
        cos, sin = (t.repeat(1, 2).bfloat16() for t in (angles.cos(), angles.sin()))
        attend = f.scaled_dot_product_attention

        def turned(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

        def run() -> Tensor:
            x = f.embedding(ids, self.embedding)
            for w, (keys, values) in zip(self.layers, cache, strict=False):
                y = f.linear(f.rms_norm(x, x.shape[-1:], w["before"]), w["qkv"])
                y = y.view(batch, tokens, -1, self.size).transpose(1, 2)
                q, k, v = y.split((self.heads, self.kv_heads, self.kv_heads), 1)
                keys[:, :, first:], values[:, :, first:] = turned(k), v
                y = attend(turned(q), keys, values, is_causal=tokens > 1, enable_gqa=True)
                x = x + f.linear(y.transpose(1, 2).reshape(batch, tokens, -1), w["out"])
                gate, up = f.linear(f.rms_norm(x, x.shape[-1:], w["after"]), w["up"]).chunk(2, -1)
                x = x + f.linear(f.silu(gate) * up, w["down"])
            x = f.rms_norm(x[:, -1], x.shape[-1:], self.last)
            return f.linear(x, self.head).argmax(-1)

        return run


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one run, the median; on a GPU in a CUDA graph."""
    if device.type == "cpu":
        return statistics.median(wall_ms(run) for _ in range(WARM + REPLAYS))
    stream = torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        wall_ms(run)
        replays = max(2, min(REPLAYS, round(LONG_MS / wall_ms(run))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(WARM + replays + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        torch.cuda.synchronize(device)
    return statistics.median([a.elapsed_time(b) for a, b in pairwise(events)][WARM:])


def wall_ms(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun)


def write(path: Path, lines: list[str]) -> None:
    """The whole table; nothing where that fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text("\n".join(lines) + "\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Times, writes, says what was left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", type=Path, help="the model's config.json")
    parser.add_argument("output", type=Path, help="the table to write")
    parser.add_argument("--batch", type=numbers, default="1,8,32,64,128")
    parser.add_argument("--context", type=numbers, default="1024,4096")
    parser.add_argument("--layers", type=int, help="time the first N and scale up; default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "PyTorch finds no GPU; to try the script on a CPU: --device cpu\n")
    try:
        config = json.loads(given.config.read_text(encoding="utf-8"))
        whole = [config[name] for name in SIZES][-1]
    except (OSError, ValueError, TypeError, KeyError) as error:
        parser.exit(2, f"{given.config}: expected a model's config.json, found {error!r}\n")
    layers = whole if given.layers is None else given.layers
    if any("experts" in name for name in config):
        parser.exit(2, f"{given.config}: a mixture of experts; expected a dense decoder\n")
    if min(layers, whole - layers + 1, *given.batch, *given.context) < 1:
        parser.exit(2, f"expected batches and contexts above 0, and 1 to {whole} layers\n")
    if not given.output.parent.is_dir():
        parser.exit(2, f"{given.output}: expected a folder that exists\n")
    device, stopped, lines, left_out = torch.device(given.device, 0), False, [HEADER], 0
    torch.manual_seed(0)
    torch.set_num_threads(1 if given.device == "cpu" else torch.get_num_threads())

    def ms(batch: int, tokens: int, context: int) -> str:
        """Of all layers; empty where it does not fit in the memory."""
        parts = [layers, 0] if layers < whole else [layers]
        try:
            found = [timed(decoder.call(batch, tokens, context, part), device) for part in parts]
        except (torch.OutOfMemoryError, MemoryError):
            return ""
        rest = found[1] if layers < whole else 0.0
        return f"{rest + (found[0] - rest) * whole / layers:.5g}"

    try:
        with torch.no_grad():
            decoder = Decoder(config, layers, device)
            for context in given.context:
                prefill_ms = ms(1, context, context)
                for batch in given.batch:
                    step_ms = ms(batch, 1, context)
                    left_out += not step_ms
                    lines += [f"{batch},{context},{step_ms},{prefill_ms}"] if step_ms else []
                    print(f"batch {batch}, context {context}: {step_ms or '-'} ms", file=sys.stderr)
    except (torch.OutOfMemoryError, MemoryError):
        parser.exit(2, f"{layers} layers do not fit in the memory; time fewer: --layers N\n")
    except KeyboardInterrupt:
        stopped = True
    if len(lines) > 1:
        write(given.output, lines)
        print(f"written: {given.output} ({len(lines) - 1} rows)")
    if layers < whole:
        print(f"{layers} of {whole} layers were timed, the times are scaled up")
    if left_out:
        print(f"too large for the memory: {left_out} of {len(given.batch) * len(given.context)}")
    return 130 if stopped else int(len(lines) == 1)


if __name__ == "__main__":
    sys.exit(main())

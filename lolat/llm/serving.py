"""A decoder served under a steady load: what a step computes, time to first token, time per output token.

A step runs all its tokens through all layers: one token of each sequence that is decoded, and all tokens
of the prompts that begin. With tensor parallel every matrix is split over the GPUs, and two all-reduces a
layer put the parts together (Megatron-LM, Shoeybi et al. 2019).

So many requests are always there (a closed loop); each one that ends is followed by the next. Every request
costs its prompt once and one step for each output token, and a step serves all that are decoded:

    cycle = concurrency * prompt + output_tokens * step = ttft + (output_tokens - 1) * tpot

What is not waiting for the first token is time per output token: the sum is the same whoever waits. The
first token waits for the front end, for the step that runs, for the own prompt, and for prompts of others:
as in a queue of random arrivals (M/D/1), or for half of all where requests come together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from lolat.arrays import np
from lolat.errors import InputError, arg
from lolat.llm.decoder import CACHE_BYTES, DTYPES, WEIGHT_BYTES, Decoder
from lolat.llm.frameworks import Limits, framework_of
from lolat.llm.gpu import GPU, SKEW, Operation, Section, Ways, dtypes_of, lacks

PARTS = ("products", "head", "attention", "experts", "all_reduce", "moved")
"""What computing and moving of a step goes to; `moved`: normalization, rotation, activation and such."""
STARTS = ("kernels", "fp8", "fp8_block", "nvfp4", "layers_of_experts", "exchanges", "steps",
          "parallel")  # fmt: skip
"""What a step starts: kernels, those that quantize to a data type, layers of experts, all-reduces, itself,
itself on several GPUs."""
NORM, ROTATION, ACTIVATION = 4, 4, 3
"""Tensors that a normalization (with the addition before it), rotary positions and a gated activation read
and write."""
OWN_KERNELS = 4
"""Small kernels of a layer besides normalizations: rotation, writing the cache, activation, one of
attention that puts its parts together."""
HALF = 2  # bytes of an activation
MOST_AT_ONCE, STEADY_SHARE = 0.5, 0.13
"""`Ways.together`: beyond the first served rows were measured in a load that starts at once; the second is
that of vLLM and of TensorRT-LLM, whose rows were measured in a steady load."""


class Product(NamedTuple):
    """A product of matrices with (n, k) weights, `times` a step; its rows are the tokens of the step."""

    dtype: str
    n: float
    k: float
    times: int


@dataclass(frozen=True)
class Layout:
    """A decoder on `tensor_parallel` GPUs, of which `expert_parallel` groups share the experts whole.

    `dtype`: of products; `expert_dtype`: of routed experts; `kv_dtype`: of the cache.
    """

    decoder: Decoder
    tensor_parallel: int
    expert_parallel: int
    dtype: str
    expert_dtype: str
    kv_dtype: str

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """All products but those of the head and of routed experts, equal ones together."""
        d, parts = self.decoder, self.tensor_parallel
        query = d.heads * d.head_dim / parts
        cached = max(d.kv_heads / parts, 1.0) * d.head_dim
        up, hidden = 2 if d.gated else 1, float(d.hidden)
        found: dict[tuple[str, float, float], int] = {}
        for layer in d.kinds:
            attention = "bfloat16" if "attention" in layer.kept else self.dtype
            forward = "bfloat16" if "feed_forward" in layer.kept else self.dtype
            width = (d.shared_width if layer.experts else d.intermediate) / parts
            shapes = [(attention, query + 2 * cached, hidden), (attention, hidden, query)]
            if width:
                shapes += [(forward, up * width, hidden), (forward, hidden, width)]
            if layer.experts:
                shapes.append(("bfloat16", float(d.experts), hidden))
            for shape in shapes:
                found[shape] = found.get(shape, 0) + layer.number
        return tuple(Product(*shape, times) for shape, times in found.items())

    @cached_property
    def starts(self) -> np.ndarray:
        """(STARTS,) of a step."""
        d, several = self.decoder, self.tensor_parallel > 1
        count = dict.fromkeys(STARTS, 0.0) | {"steps": 1.0, "parallel": float(several)}
        for layer in d.kinds:
            count["kernels"] += layer.number * (d.norms + OWN_KERNELS + 2 * bool(d.head_norm))
            count["layers_of_experts"] += layer.number * layer.experts
            count["exchanges"] += layer.number * 2 * several
        for product in self.products:
            count["kernels"] += product.times
            if product.dtype in count:
                count[product.dtype] += product.times
        return np.array([count[name] for name in STARTS])

    @cached_property
    def moved_bytes(self) -> float:
        """Bytes that the small operations of all layers read and write, for each token."""
        d, parts = self.decoder, self.tensor_parallel
        heads = (d.heads + d.kv_heads) / parts * d.head_dim
        each = NORM * d.norms * d.hidden + ROTATION * heads
        total = 0.0
        for layer in d.kinds:
            width = d.shared_width if layer.experts else d.intermediate
            total += layer.number * (each + ACTIVATION * width / parts)
        return HALF * total

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights of one GPU."""
        return self.decoder.weight_bytes(self.dtype, self.expert_dtype) / self.tensor_parallel

    @cached_property
    def read_bytes(self) -> float:
        """Bytes of the weights of one GPU that a step reads at most: all but an embedding, of which a row
        a token is read; a head that is the embedding is read whole.
        """
        d = self.decoder
        return self.weight_bytes - HALF * d.vocab * d.hidden * (not d.tied) / self.tensor_parallel

    @cached_property
    def dense_bytes(self) -> float:
        """Bytes of the weights that every step reads on one GPU: all but routed experts."""
        head = HALF * self.decoder.vocab * self.decoder.hidden / self.tensor_parallel
        return head + sum(WEIGHT_BYTES[p.dtype] * p.n * p.k * p.times for p in self.products)

    def cache_bytes(self, tokens: float) -> float:
        """Bytes that a sequence of so many tokens has in the cache of one GPU."""
        heads = self.decoder.kv_heads
        share = max(heads / self.tensor_parallel, 1.0) / heads
        return self.decoder.cache_bytes(int(tokens), self.kv_dtype) * share


# ---- A step.


class Steps(NamedTuple):
    """(rows, PARTS + STARTS) each: a step that decodes alone, with a prompt, and of a prompt alone; the
    last two of as many steps as the prompt takes, `chunks` (rows,), less than one where prompts share it.
    """

    decode: np.ndarray
    mixed: np.ndarray
    prompt: np.ndarray
    chunks: np.ndarray


def steps_of(gpu: GPU, layout: Layout, load: Load, prompts: Any = 1.0) -> Steps:
    """The steps of a load; a sequence that is decoded has half of its output in the cache.

    `prompts`: so many whole prompts share a step.
    """
    served, rows = load.served, len(load.concurrency)
    prompt = load.input_tokens
    chunks = np.maximum(np.ceil(prompt / limits_of(gpu.section).tokens), 1.0) / prompts
    each = prompt / chunks
    # Tokens of the three steps, and of those the ones that the head sees; asked for at once.
    tokens = np.concatenate([served, served + each, each])
    last = np.concatenate([served, served + 1.0 / chunks, 1.0 / chunks])
    parts = dict.fromkeys(PARTS, np.zeros(3 * rows)) | _products(gpu, layout, tokens, last)
    decode, first = _attention(gpu, layout, load)
    first = first / chunks
    parts["attention"] = np.concatenate([decode, decode + first, first])
    parts["moved"] = tokens * layout.moved_bytes / gpu.facts.bandwidth
    ms = np.column_stack([parts[name] for name in PARTS])
    table = np.concatenate([ms, np.broadcast_to(layout.starts, (3 * rows, len(STARTS)))], axis=1)
    table[rows:] *= np.concatenate([chunks, chunks])[:, None]
    return Steps(table[:rows], table[rows : 2 * rows], table[2 * rows :], chunks)


def _products(
    gpu: GPU, layout: Layout, tokens: np.ndarray, last: np.ndarray
) -> dict[str, np.ndarray]:
    """(rows,) ms of products, head, experts and all-reduces of steps; equal steps are computed once."""
    d, parts = layout.decoder, layout.tensor_parallel
    m, back = np.unique(tokens, return_inverse=True)
    made: dict[str, np.ndarray] = {"products": np.zeros(len(m))}
    for dtype in {product.dtype for product in layout.products}:
        rows = [p for p in layout.products if p.dtype == dtype]
        n, k, times = np.array([(p.n, p.k, p.times) for p in rows]).T
        made["products"] = made["products"] + gpu.ms("gemm", dtype, m[:, None], n, k) @ times
    routed = sum(layer.number for layer in d.kinds if layer.experts)
    if routed:
        made["experts"] = routed * gpu.ms(
            "moe", layout.expert_dtype, m, d.hidden, d.expert_width, d.experts, d.top_k,
            parts / layout.expert_parallel, layout.expert_parallel, SKEW,
        )  # fmt: skip
    if parts > 1:
        made["all_reduce"] = 2 * d.layers * gpu.ms("all_reduce", "bfloat16", parts, m * d.hidden)
    made = {name: ms[back] for name, ms in made.items()}
    seen, back = np.unique(np.maximum(last, 1.0), return_inverse=True)
    return made | {"head": gpu.ms("gemm", "bfloat16", seen, d.vocab / parts, d.hidden)[back]}


def _attention(gpu: GPU, layout: Layout, load: Load) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) ms of attention: decoding all that are served, and of one prompt."""
    d, parts = layout.decoder, layout.tensor_parallel
    sizes = d.heads / parts, max(d.kv_heads / parts, 1.0), float(d.head_dim)
    cached = load.input_tokens + load.output_tokens / 2.0
    decode = prompt = np.zeros(len(cached))
    for window in {layer.window for layer in d.kinds}:
        times = sum(layer.number for layer in d.kinds if layer.window == window)
        args = (*sizes, float(window))
        decode = decode + times * gpu.ms(
            "decode_attention", layout.kv_dtype, load.served, cached, *args
        )
        lengths, back = np.unique(load.input_tokens, return_inverse=True)
        one = gpu.ms("prefill_attention", layout.kv_dtype, 1.0, lengths, *args)
        prompt = prompt + times * one[back]
    return decode, prompt


def operations_of(gpu: GPU, layout: Layout) -> dict[tuple[str, str], Operation]:
    """The operations of a step and a prompt, by name and data type."""
    used = {("gemm", product.dtype) for product in layout.products} | {("gemm", "bfloat16")}
    used |= {("prefill_attention", layout.kv_dtype), ("decode_attention", layout.kv_dtype)}
    used |= {("moe", layout.expert_dtype)} if layout.decoder.experts else set()
    used |= {("all_reduce", "bfloat16")} if layout.tensor_parallel > 1 else set()
    return {(name, dtype): gpu.operation(name, dtype) for name, dtype in sorted(used)}


# ---- What requests see.


class Load(NamedTuple):
    """(rows,) arrays: what is asked. `users`: requests whose cache fits at once."""

    input_tokens: np.ndarray
    output_tokens: np.ndarray
    concurrency: np.ndarray
    users: np.ndarray

    @property
    def served(self) -> np.ndarray:
        """(rows,) requests that run at once."""
        return np.minimum(self.concurrency, np.maximum(self.users, 1.0))


class Served(NamedTuple):
    """(rows,) ms: of the first token, of each output token, of the own prompt, of a step that decodes;
    `cycle_ms`: from a request to the next.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    prompt_ms: np.ndarray
    step_ms: np.ndarray
    cycle_ms: np.ndarray


def each_ms(ways: Ways) -> np.ndarray:
    """(PARTS + STARTS,) what one of each takes: ms of a ms, ms of a start."""
    return ways.level * np.array(
        [1.0, 1.0, 1.0, 1.0, 1.0, ways.small, ways.kernel_ms, ways.fp8_ms, ways.block_ms, ways.fp4_ms,
         ways.experts_ms, ways.exchange_ms, ways.step_ms, ways.parallel_ms]
    )  # fmt: skip


def serve(ways: Ways, steps: Steps, load: Load) -> Served:
    """What requests see of these steps; see the top of this file."""
    each, served = each_ms(ways), load.served
    step, mixed, alone = steps.decode @ each, steps.mixed @ each, steps.prompt @ each
    prompt = ways.mixed * (mixed - steps.chunks * step) + (1.0 - ways.mixed) * alone
    own = ways.mixed * mixed + (1.0 - ways.mixed) * alone
    busy = served * prompt + load.output_tokens * step
    share = served * prompt / busy
    others = (served - 1.0) / 2.0
    queue = np.minimum(share / (2.0 * (1.0 - share)), others)
    waits = ((1.0 - ways.together) * queue + ways.together * others) * prompt
    first = own + np.minimum(others, 0.5) * step + waits  # a single user meets no running step
    after = np.maximum(load.output_tokens - 1.0, 1.0)
    tpot = np.maximum((busy - first) / after, step)
    # Requests whose cache does not fit wait for those that end.
    cycle = busy * load.concurrency / served
    ttft = ways.front_ms + np.where(load.concurrency > served, cycle - after * tpot, first)
    return Served(ttft, tpot, own, step, cycle + ways.front_ms)


# ---- Data types, memory and limits.

GIB = 2.0**30


def layout_of(
    section: Section, decoder: Decoder, tensor_parallel: int = 1, expert_parallel: int = 1,
    dtype: str = "", kv_dtype: str = "", expert_dtype: str = "",
) -> Layout:  # fmt: skip
    """A decoder on GPUs of `section`; "" is as published, of a cache of which nothing was published as the
    framework usually has it.

    FP8 of a model that was published in blocks is in blocks; experts in MXFP4 stay so, computed in FP8
    where the GPU has FP4. InputError for a data type that the GPU lacks, and for a number of GPUs that does
    not divide the model.
    """
    if (
        expert_parallel < 1
        or tensor_parallel % expert_parallel
        or (decoder.experts and decoder.experts % expert_parallel)
    ):
        raise InputError(
            f"{arg('expert_parallel')} {expert_parallel}: expected a divisor of {tensor_parallel} GPUs and "
            f"of {decoder.experts} experts"
        )
    sheet, mxfp4 = section.sheet, decoder.expert_dtype.endswith("mxfp4")
    if dtype and dtype not in WEIGHT_BYTES:
        raise InputError(f"{arg('dtype')} {dtype}: expected one of {', '.join(DTYPES)}")
    if dtype == "fp8" and "fp8_block" in (decoder.dtype, decoder.expert_dtype):
        dtype = "fp8_block"
    products = decoder.dtype if mxfp4 or not dtype else dtype
    experts = expert_dtype or (decoder.expert_dtype if mxfp4 or not dtype else dtype)
    if mxfp4 and sheet.fp4_tflops:
        experts = "w4a8_mxfp4_mxfp8"
    for one in {products, experts} if decoder.experts else {products}:
        if lacks(sheet, one):
            has = ", ".join(dtypes_of(section.operations))
            raise InputError(f"{arg('dtype')} {one}: this GPU computes {has}", code="dtype")
    decoder.check_tensor_parallel(tensor_parallel, expert_parallel, products, experts)
    if not kv_dtype and products == decoder.dtype:
        kv_dtype = decoder.kv_dtype
    if not kv_dtype:
        quantized = {products, experts if decoder.experts else products} != {"bfloat16"}
        eight = framework_of(section.framework).narrow or sheet.fp4_tflops is not None
        kv_dtype = "fp8" if quantized and eight else "bfloat16"
    if kv_dtype not in CACHE_BYTES:
        raise InputError(f"{arg('kv_dtype')} {kv_dtype}: expected one of {', '.join(CACHE_BYTES)}")
    return Layout(decoder, tensor_parallel, expert_parallel, products, experts, kv_dtype)


def limits_of(section: Section) -> Limits:
    """The sequences and tokens that a step takes at most where nothing else is asked for."""
    return framework_of(section.framework).of_card(section.sheet)


def steady(section: Section) -> Ways:
    """The ways of a framework in a steady load, where its served rows were measured in one that starts at
    once too.
    """
    is_burst = section.ways.together > MOST_AT_ONCE
    return (
        msgspec.structs.replace(section.ways, together=STEADY_SHARE) if is_burst else section.ways
    )


def users_that_fit(section: Section, layout: Layout, tokens: np.ndarray) -> np.ndarray:
    """(rows,) requests of so many tokens whose caches fit beside the weights; 0: not even the weights."""
    framework = framework_of(section.framework)
    free = framework.rest * (GIB * framework.room_gib(section.sheet) - layout.weight_bytes)
    each = np.array([layout.cache_bytes(float(number)) for number in tokens])
    return np.floor(np.maximum(free, 0.0) / each)

"""Time to the first token and time per output token of a decoder under a steady load.

A step runs all its tokens through all layers: one token of each sequence that is being decoded, and all
tokens of the prompts that begin. Tensor parallelism splits every matrix over the GPUs, and two all-reduces
a layer put the parts together (Megatron-LM, Shoeybi et al. 2019).

The load is a closed loop: when a request ends, the next one starts. A request costs its prompt once and
one step for each output token. All requests that are being decoded share a step, so

    cycle = concurrency * prompt + output_tokens * step = ttft + (output_tokens - 1) * tpot

The first token waits for the API, the running step, its own prompt, and the prompts of other requests. If
requests arrive at random, that wait is that of an M/D/1 queue; if they arrive together, it is half of all
prompts. Output tokens get the rest of the cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from lolat.arrays import np
from lolat.errors import InputError, arg
from lolat.llm.decoder import CACHE_BYTES, DTYPES, WEIGHT_BYTES, Decoder
from lolat.llm.frameworks import FrameworkOverheads
from lolat.llm.gpu import GPU, ServingSection, TimedOperation, dtypes_of, lacks

GIB = 2.0**30
PARTS = ("products", "head", "attention", "experts", "all_reduce", "moved")
"""The parts of a step that compute or move; `moved`: normalization, rotation, activation and the like."""
STARTS = ("kernels", "fp8", "fp8_block", "nvfp4", "layers_of_experts", "exchanges", "steps",
          "parallel")  # fmt: skip
"""Events of a step that cost an overhead each: kernels, kernels that quantize to a data type, layers with
experts, all-reduces, the step itself, the step on several GPUs."""
NORM, ROTATION, ACTIVATION = 4, 4, 3
"""Tensors that are read and written by a normalization (with the addition before it), by rotary positions,
and by a gated activation."""
OWN_KERNELS = 4
"""Small kernels of a layer besides normalizations: rotation, writing the cache, activation, and the one
that merges the parts of attention."""
HALF = 2  # bytes of an activation
SKEW = 1.2
"""Exponent of the power law that distributes tokens over experts; served rows agree with it."""


class Product(NamedTuple):
    """A matrix product of a step's tokens with (n, k) weights, which runs `times` in a step."""

    dtype: str
    n: float
    k: float
    times: int


@dataclass(frozen=True)
class Deployment:
    """A decoder on `tensor_parallel` GPUs; each of `expert_parallel` groups of them has whole experts.

    Data types: `dtype` of products, `expert_dtype` of routed experts, `kv_dtype` of the cache.
    """

    decoder: Decoder
    tensor_parallel: int
    expert_parallel: int
    dtype: str
    expert_dtype: str
    kv_dtype: str

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The products of a step without the head and routed experts; equal ones are one row."""
        d, parts = self.decoder, self.tensor_parallel
        query = d.heads * d.head_dim / parts
        cached = max(d.kv_heads / parts, 1.0) * d.head_dim
        up, hidden = 2 if d.gated else 1, float(d.hidden)
        found: dict[tuple[str, float, float], int] = {}
        for layer in d.kinds:
            attention = "bfloat16" if "attention" in layer.unquantized else self.dtype
            forward = "bfloat16" if "feed_forward" in layer.unquantized else self.dtype
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
        """(STARTS,) numbers of the events in a step."""
        d, several = self.decoder, self.tensor_parallel > 1
        count = dict.fromkeys(STARTS, 0.0) | {"steps": 1.0, "parallel": float(several)}
        count["kernels"] = d.layers * (d.norms + OWN_KERNELS + 2.0 * bool(d.head_norm))
        count["layers_of_experts"] = sum(layer.number for layer in d.kinds if layer.experts)
        count["exchanges"] = 2.0 * d.layers * several
        for product in self.products:
            count["kernels"] += product.times
            if product.dtype in count:
                count[product.dtype] += product.times
        return np.array([count[name] for name in STARTS])

    @cached_property
    def moved_bytes(self) -> float:
        """Bytes that the small operations of all layers read and write for each token."""
        d, parts = self.decoder, self.tensor_parallel
        heads = (d.heads + d.kv_heads) / parts * d.head_dim
        each = NORM * d.norms * d.hidden + ROTATION * heads
        widths = (
            layer.number * (d.shared_width if layer.experts else d.intermediate)
            for layer in d.kinds
        )
        return HALF * (d.layers * each + ACTIVATION * sum(widths) / parts)

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights on each GPU."""
        return self.decoder.weight_bytes(self.dtype, self.expert_dtype) / self.tensor_parallel

    @cached_property
    def read_bytes(self) -> float:
        """The most bytes of weights that a step reads on each GPU: all but an embedding beside a head."""
        d = self.decoder
        return self.weight_bytes - HALF * d.vocab * d.hidden * (not d.tied) / self.tensor_parallel

    @cached_property
    def dense_bytes(self) -> float:
        """Bytes of weights that every step reads on each GPU: all but those of routed experts."""
        head = HALF * self.decoder.vocab * self.decoder.hidden / self.tensor_parallel
        return head + sum(WEIGHT_BYTES[p.dtype] * p.n * p.k * p.times for p in self.products)

    def cache_bytes(self, tokens: float) -> float:
        """Return the bytes that the cache of a sequence of `tokens` takes on each GPU."""
        heads = self.decoder.kv_heads
        share = max(heads / self.tensor_parallel, 1.0) / heads
        return self.decoder.cache_bytes(int(tokens), self.kv_dtype) * share


# ---- A step.


class ServingSteps(NamedTuple):
    """(rows, PARTS + STARTS) ms of parts and numbers of events: of a decode step, of a step with a prompt
    (`mixed`), and of a prompt alone.

    `chunks`: (rows,) steps that a prompt takes, less than one if prompts share a step; `mixed` and `prompt`
    are sums over them.
    """

    decode: np.ndarray
    mixed: np.ndarray
    prompt: np.ndarray
    chunks: np.ndarray


def steps_of(gpu: GPU, deployment: Deployment, load: Load, prompts: Any = 1.0) -> ServingSteps:
    """Compute the steps of a load; a sequence has half of its output in the cache, on average.

    `prompts`: the number of whole prompts that share a step.
    """
    served, rows, prompt = load.served, len(load.concurrency), load.input_tokens
    limit = gpu.section.server.limits_on(gpu.section.sheet).tokens
    chunks = np.maximum(np.ceil(prompt / limit), 1.0) / prompts
    each = prompt / chunks
    # Tokens of the three steps, and those of them that the head sees.
    tokens = np.concatenate([served, served + each, each])
    last = np.concatenate([served, served + 1.0 / chunks, 1.0 / chunks])
    parts = dict.fromkeys(PARTS, np.zeros(3 * rows)) | _products(gpu, deployment, tokens, last)
    decode, first = _attention(gpu, deployment, load)
    first = first / chunks
    parts["attention"] = np.concatenate([decode, decode + first, first])
    parts["moved"] = tokens * deployment.moved_bytes / gpu.specs.bandwidth
    ms = np.column_stack([parts[name] for name in PARTS])
    starts = np.broadcast_to(deployment.starts, (3 * rows, len(STARTS)))
    table = np.concatenate([ms, starts], axis=1)
    table[rows:] *= np.concatenate([chunks, chunks])[:, None]
    decode_step, mixed, prompts_alone = np.split(table, 3)
    return ServingSteps(decode_step, mixed, prompts_alone, chunks)


def _products(
    gpu: GPU, deployment: Deployment, tokens: np.ndarray, last: np.ndarray
) -> dict[str, np.ndarray]:
    """(rows,) ms of products, head, experts and all-reduces, by part; equal steps are computed once.

    `tokens`: (rows,) tokens of a step; `last`: those of them that the head reads.
    """
    d, parts = deployment.decoder, deployment.tensor_parallel
    m, back = np.unique(tokens, return_inverse=True)
    made: dict[str, np.ndarray] = {"products": np.zeros(len(m))}
    for dtype in {product.dtype for product in deployment.products}:
        rows = [p for p in deployment.products if p.dtype == dtype]
        n, k, times = np.array([(p.n, p.k, p.times) for p in rows]).T
        made["products"] = made["products"] + gpu.ms("gemm", dtype, m[:, None], n, k) @ times
    if routed := sum(layer.number for layer in d.kinds if layer.experts):
        made["experts"] = routed * gpu.ms(
            "moe", deployment.expert_dtype, m, d.hidden, d.expert_width, d.experts, d.top_k,
            parts / deployment.expert_parallel, deployment.expert_parallel, SKEW,
        )  # fmt: skip
    if parts > 1:
        made["all_reduce"] = 2 * d.layers * gpu.ms("all_reduce", "bfloat16", parts, m * d.hidden)
    made = {name: ms[back] for name, ms in made.items()}
    seen, back = np.unique(np.maximum(last, 1.0), return_inverse=True)
    return made | {"head": gpu.ms("gemm", "bfloat16", seen, d.vocab / parts, d.hidden)[back]}


def _attention(gpu: GPU, deployment: Deployment, load: Load) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) ms of attention each: of a decode step, and of one prompt."""
    d, parts, dtype = deployment.decoder, deployment.tensor_parallel, deployment.kv_dtype
    sizes = d.heads / parts, max(d.kv_heads / parts, 1.0), float(d.head_dim)
    cached = load.input_tokens + load.output_tokens / 2.0
    lengths, back = np.unique(load.input_tokens, return_inverse=True)
    decode = prompt = np.zeros(len(cached))
    for window in {layer.window for layer in d.kinds}:
        times = sum(layer.number for layer in d.kinds if layer.window == window)
        args = (*sizes, float(window))
        decode = decode + times * gpu.ms("decode_attention", dtype, load.served, cached, *args)
        prompt = prompt + times * gpu.ms("prefill_attention", dtype, 1.0, lengths, *args)[back]
    return decode, prompt


def operations_of(gpu: GPU, deployment: Deployment) -> dict[tuple[str, str], TimedOperation]:
    """Return the timed operations that a step and a prompt run, by name and data type."""
    used = {("gemm", product.dtype) for product in deployment.products} | {("gemm", "bfloat16")}
    used |= {(f"{which}_attention", deployment.kv_dtype) for which in ("prefill", "decode")}
    used |= {("moe", deployment.expert_dtype)} if deployment.decoder.experts else set()
    used |= {("all_reduce", "bfloat16")} if deployment.tensor_parallel > 1 else set()
    return {(name, dtype): gpu.operation(name, dtype) for name, dtype in sorted(used)}


# ---- Times of requests.


class Load(NamedTuple):
    """(rows,) arrays: tokens of a request, concurrent requests, and the requests whose caches fit."""

    input_tokens: np.ndarray
    output_tokens: np.ndarray
    concurrency: np.ndarray
    capacity: np.ndarray

    @property
    def served(self) -> np.ndarray:
        """(rows,) requests that run at once."""
        return np.minimum(self.concurrency, np.maximum(self.capacity, 1.0))


class Served(NamedTuple):
    """(rows,) ms: to the first token, per output token, of a prompt, of a decode step, of a cycle.

    A cycle lasts from the start of a request to the start of the next one.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    prompt_ms: np.ndarray
    step_ms: np.ndarray
    cycle_ms: np.ndarray


def each_ms(o: FrameworkOverheads) -> np.ndarray:
    """(PARTS + STARTS,) factors that turn a row of `ServingSteps` into ms."""
    starts = (o.kernel_ms, o.fp8_ms, o.block_ms, o.fp4_ms, o.experts_ms, o.exchange_ms, o.step_ms,
              o.parallel_ms)  # fmt: skip
    return o.level * np.array([1.0, 1.0, 1.0, 1.0, 1.0, o.small, *starts])


def serve(overheads: FrameworkOverheads, steps: ServingSteps, load: Load) -> Served:
    """Compute the times of requests from their steps, by the formula at the top of this file."""
    each, served = each_ms(overheads), load.served
    step, mixed, alone = steps.decode @ each, steps.mixed @ each, steps.prompt @ each
    chunked = overheads.chunked_share
    prompt = chunked * (mixed - steps.chunks * step) + (1.0 - chunked) * alone
    own = chunked * mixed + (1.0 - chunked) * alone
    busy = served * prompt + load.output_tokens * step
    share = served * prompt / busy
    others = (served - 1.0) / 2.0
    queue = np.minimum(share / (2.0 * (1.0 - share)), others)
    burst = overheads.burst_share
    waits = ((1.0 - burst) * queue + burst * others) * prompt
    first = own + np.minimum(others, 0.5) * step + waits  # a single request meets no running step
    after = np.maximum(load.output_tokens - 1.0, 1.0)
    tpot = np.maximum((busy - first) / after, step)
    # Requests whose cache does not fit wait for those that end.
    cycle = busy * load.concurrency / served
    waiting = np.where(load.concurrency > served, cycle - after * tpot, first)
    return Served(overheads.api_ms + waiting, tpot, own, step, cycle + overheads.api_ms)


# ---- Data types and memory.


def deployment_of(
    section: ServingSection, decoder: Decoder, tensor_parallel: int = 1, expert_parallel: int = 1,
    dtype: str = "", kv_dtype: str = "",
) -> Deployment:  # fmt: skip
    """Deploy a decoder on GPUs; "" stands for the published data type, or the framework's usual cache.

    Weights published in FP8 with a scale for each block keep that format for FP8. Experts in MXFP4 stay in
    it, and are computed in FP8 on GPUs with FP4. InputError for a data type that the GPU lacks, and for a
    number of GPUs that does not divide the decoder.
    """
    experts = decoder.experts
    if expert_parallel < 1 or tensor_parallel % expert_parallel or experts % expert_parallel:
        raise InputError(
            f"{arg('expert_parallel')} {expert_parallel}: expected a divisor of {tensor_parallel} GPUs and "
            f"of {experts} experts"
        )
    sheet, mxfp4 = section.sheet, decoder.expert_dtype.endswith("mxfp4")
    if dtype and dtype not in WEIGHT_BYTES:
        raise InputError(f"{arg('dtype')} {dtype}: expected one of {', '.join(DTYPES)}")
    if dtype == "fp8" and "fp8_block" in (decoder.dtype, decoder.expert_dtype):
        dtype = "fp8_block"
    dense = decoder.dtype if mxfp4 or not dtype else dtype
    routed = decoder.expert_dtype if mxfp4 or not dtype else dtype
    if mxfp4 and sheet.fp4_tflops:
        routed = "w4a8_mxfp4_mxfp8"
    used = {dense, routed} if experts else {dense}
    for one in used:
        if lacks(sheet, one):
            has = ", ".join(dtypes_of(section.operations))
            raise InputError(f"{arg('dtype')} {one}: this GPU computes {has}", code="dtype")
    decoder.check_tensor_parallel(tensor_parallel, expert_parallel, dense, routed)
    published = decoder.kv_dtype if dense == decoder.dtype else ""
    cache = kv_dtype or published or section.server.cache_dtype(sheet, used != {"bfloat16"})
    if cache not in CACHE_BYTES:
        raise InputError(f"{arg('kv_dtype')} {cache}: expected one of {', '.join(CACHE_BYTES)}")
    return Deployment(decoder, tensor_parallel, expert_parallel, dense, routed, cache)


def requests_that_fit(
    section: ServingSection, deployment: Deployment, tokens: np.ndarray
) -> np.ndarray:
    """(rows,) numbers of requests whose caches fit beside the weights; 0: the weights do not fit.

    `tokens`: (rows,) tokens of each request.
    """
    server = section.server
    room = GIB * server.room_gib(section.sheet) - deployment.weight_bytes
    each = np.array([deployment.cache_bytes(float(number)) for number in tokens])
    return np.floor(np.maximum(server.cache_share * room, 0.0) / each)

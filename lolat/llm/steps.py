"""The steps of a decoder on GPUs: products, attention, experts, all-reduces, and the framework's overheads.

A step runs all its tokens through all layers: one token of each sequence that is being decoded, and the
tokens of prompts. Tensor parallelism splits every matrix over the GPUs, and two all-reduces a layer put the
parts together (Megatron-LM, Shoeybi et al. 2019).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

from lolat.arrays import np
from lolat.device.question import several
from lolat.errors import InputError, arg
from lolat.llm.decoder import BLOCK, CACHE_BYTES, DTYPES, WEIGHT_BYTES, Decoder, LayerGroup
from lolat.llm.frameworks import FrameworkOverheads
from lolat.llm.gpu import GPU, OWN_FITS, FittedKernel, ServingSection, dtypes_of, lacks_rate
from lolat.llm.kernels import HALF
from lolat.llm.names import dtype_of
from lolat.llm.row_parts import Split
from lolat.llm.scheduler import CONTEXTS, Rule, StepTable
from lolat.parameters import MOST_GPUS
from lolat.units import GIB

if TYPE_CHECKING:
    from lolat.llm.question import ServingQuestion

STEP_PARTS = ("products", "head", "attention", "experts", "all_reduce", "moved")
"""The parts of a step that compute or move data; `moved`: normalization, rotation, activation and similar
operations."""
STARTS = ("kernels", "fp8", "fp8_block", "nvfp4", "layers_of_experts", "exchanges", "steps",
          "parallel")  # fmt: skip
"""Events of a step, each of which costs an overhead: kernels, kernels that quantize to a data type, layers
with experts, all-reduces, the step itself, the step on several GPUs."""
NORM, ROTATION, ACTIVATION = 4, 4, 3
"""Numbers of tensors that a normalization (with the addition before it), rotary positions, and a gated
activation read and write."""
OWN_KERNELS = 4
"""Number of small kernels of a layer besides normalizations: rotation, writing the cache, activation,
merging the parts of attention."""
LATENT_KERNELS = 5
"""Number of further small kernels of a layer with latent attention: two normalizations, both absorbed
products, joining a query's parts."""
ABSORBED_KERNELS = ("mla_bmm_pre", "mla_bmm_post")
DELTA_KERNELS = ("delta_conv", "delta_rule")
FP8 = ("fp8", "fp8_block")
SKEW = 1.2
"""Exponent, assumed in a decoder, of the power law that distributes tokens over experts; served rows
agree."""


class Product(NamedTuple):
    """A matrix product of a step's tokens with (n, k) weights, which a step runs `times` times."""

    dtype: str
    n: float
    k: float
    times: int


@dataclass(frozen=True)
class Deployment:
    """A replica: a decoder on `gpus` GPUs.

    `tensor_parallel` GPUs form a group that shares the attention of a request. Each of
    `attention_data_parallel` groups has its own requests; all groups exchange tokens at the experts of
    every step. `expert_parallel`: the number of parts into which the experts are divided; the GPUs of a
    part share its experts. Data types: `dtype` of products, `expert_dtype` of routed experts, `kv_dtype` of
    the cache.
    """

    decoder: Decoder
    tensor_parallel: int
    expert_parallel: int
    dtype: str
    expert_dtype: str
    kv_dtype: str
    attention_data_parallel: int = 1

    @property
    def split(self) -> Split:
        """The parallelism of a replica."""
        return Split(self.tensor_parallel, self.expert_parallel, self.attention_data_parallel)

    @property
    def called(self) -> str:
        """The data type of the weights, followed by + and the data type of experts if that differs."""
        differs = self.decoder.experts and self.expert_dtype != self.dtype
        return f"{self.dtype}+{self.expert_dtype}" if differs else self.dtype

    @property
    def gpus(self) -> int:
        """The number of GPUs of all groups."""
        return self.tensor_parallel * self.attention_data_parallel

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The products of a step, without the head and routed experts; equal products are one entry."""
        d, parts = self.decoder, self.tensor_parallel
        up, hidden = 2 if d.gated else 1, float(d.hidden)
        found: dict[tuple[str, float, float], int] = {}
        for layer in d.kinds:
            forward = "bfloat16" if "feed_forward" in layer.unquantized else self.dtype
            width = d.dense_width(layer) / parts
            attention = self.attention_dtype(layer)
            gates = BLOCK * layer.linear  # narrower ones stay bfloat16
            around = d.projections(layer, parts)
            shapes = [("bfloat16" if n < gates else attention, n, k) for n, k in around]
            if width:
                shapes += [(forward, up * width, hidden), (forward, hidden, width)]
            if layer.experts:
                shapes.append(("bfloat16", float(d.experts), hidden))
            for shape in shapes:
                found[shape] = found.get(shape, 0) + layer.number
        return tuple(Product(*shape, times) for shape, times in found.items())

    def attention_dtype(self, layer: LayerGroup) -> str:
        """The data type of the products around attention."""
        return "bfloat16" if "attention" in layer.unquantized else self.dtype

    def routed_dtype(self, layer: LayerGroup) -> str:
        """The data type of the weights of routed experts."""
        return "bfloat16" if "experts" in layer.unquantized else self.expert_dtype

    @cached_property
    def starts(self) -> np.ndarray:
        """(STARTS,) number of times that each event occurs in a step."""
        d, several = self.decoder, self.gpus > 1
        count = dict.fromkeys(STARTS, 0.0) | {"steps": 1.0, "parallel": float(several)}
        count["kernels"] = d.layers * (d.norms + OWN_KERNELS + 2.0 * bool(d.head_norm))
        count["kernels"] += d.layers * LATENT_KERNELS * bool(d.latent)
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
        if d.latent:  # absorbed queries included
            heads += d.heads / parts * (d.latent.rank + d.latent.rope)
        each = NORM * d.norms * d.hidden + ROTATION * heads
        widths = sum(one.number * d.dense_width(one) for one in d.kinds)
        return HALF * (d.layers * each + ACTIVATION * widths / parts)

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights on each GPU."""
        d, parts, experts = self.decoder, self.tensor_parallel, 0.0
        whole = d.weight_bytes(self.dtype, self.expert_dtype) / parts
        each = sum(one.number * WEIGHT_BYTES[self.attention_dtype(one)] for one in d.kinds)
        whole += d.replicated * each * (1.0 - 1.0 / parts)
        for layer in (layer for layer in d.kinds if layer.experts):
            dtype = self.routed_dtype(layer)
            experts += layer.number * d.of_layer(layer)["experts"][0] * d.element_bytes(dtype)
        return whole + experts * (1.0 / self.gpus - 1.0 / parts)

    @cached_property
    def dense_bytes(self) -> float:
        """Bytes of weights that every step reads on each GPU: all except routed experts."""
        head = HALF * self.decoder.vocab * self.decoder.hidden / self.tensor_parallel
        return head + sum(WEIGHT_BYTES[p.dtype] * p.n * p.k * p.times for p in self.products)

    def cache_bytes(self, tokens: float) -> float:
        """The bytes that the cache of a sequence of `tokens` takes on each GPU."""
        return self.decoder.cache_bytes(int(tokens), self.kv_dtype, self.tensor_parallel)


# ---- A step.


class StepParts(NamedTuple):
    """The parts of a deployment's steps at some sizes; other sizes are interpolated.

    `at`: numbers of tokens in a step, ascending. `tokens`: (at, STEP_PARTS + STARTS) ms and numbers of
    events, without head and attention. `head`: (at,) ms of the head for `at` output tokens. `decode`:
    (sequences, CONTEXTS + 1) ms of attention, by context in units of `unit` tokens; `prefill`: ms of a
    prompt's attention, by its length in the same units.
    """

    at: np.ndarray
    tokens: np.ndarray
    head: np.ndarray
    sequences: np.ndarray
    decode: np.ndarray
    prefill: np.ndarray
    unit: float

    def table(self, overheads: FrameworkOverheads, most: int) -> StepTable:
        """Make the table of ms that a scheduler of up to `most` sequences uses."""
        each = each_ms(overheads)
        m = np.arange(int(self.at[-1]) + 1)
        tokens = np.interp(m, self.at, self.tokens @ each)
        head, attention = each[STEP_PARTS.index("head")], each[STEP_PARTS.index("attention")]
        low, share = _between(np.arange(most + 1), self.sequences)

        @cache
        def decode(n: int) -> list[float]:
            first, second = self.decode[low[n]], self.decode[low[n] + 1]
            return (attention * (first + share[n] * (second - first))).tolist()

        return StepTable(
            tokens.tolist(), np.interp(m, self.at, head * self.head).tolist(), decode,
            (attention * self.prefill).tolist(), self.unit,
        )  # fmt: skip

    def of(self, events: np.ndarray, rule: Rule, attention: float = 1.0) -> np.ndarray:
        """(events, STEP_PARTS + STARTS) parts, summed over the steps of each event; `events`: (events,
        fields of Event).

        `attention`: the factor (see `each_ms`) that `prompt_ms` of the events includes.
        """
        _, _, steps, sequences, context, new, last, prompt_ms = events.T
        decoding = sequences * (1 + rule.drafts)
        low, share = _between(decoding + new, self.at)
        found = self.tokens[low] + share[:, None] * (self.tokens[low + 1] - self.tokens[low])
        outputs = np.where(new > 0, np.maximum(decoding + last, 1.0), decoding)
        found[:, STEP_PARTS.index("head")] = np.interp(outputs, self.at, self.head)
        row, share = _between(sequences, self.sequences)
        unit, part = _between(context / self.unit, np.arange(CONTEXTS + 1.0))
        first, second = (
            self.decode[row + i, unit] * (1.0 - part) + self.decode[row + i, unit + 1] * part
            for i in (0, 1)
        )
        decode = np.where(sequences > 0, first + share * (second - first), 0.0)
        found[:, STEP_PARTS.index("attention")] = decode + prompt_ms / attention
        return found * steps[:, None]


def _between(values: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index of the grid interval that holds each value, position of the value in it from 0 to 1)."""
    low = np.clip(np.searchsorted(grid, values, "right") - 1, 0, len(grid) - 2)
    return low, np.maximum((values - grid[low]) / (grid[low + 1] - grid[low]), 0.0)


def _sizes(most: float) -> np.ndarray:
    """The numbers of tokens at which a step is computed, close together because products grow in tiles."""
    ranges = ((1, 64, 1), (64, 256, 8), (256, 1024, 32), (1024, 4096, 128), (4096, 1 << 20, 512))
    every = np.concatenate([np.arange(*one) for one in ranges])
    return np.append(every[every < most], most).astype(float)


def step_parts(
    gpu: GPU, deployment: Deployment, tokens: int, sequences: int, longest: float
) -> StepParts:
    """Compute the parts of steps with up to `tokens` tokens, of sequences with up to `longest` tokens."""
    at = _sizes(max(tokens, 2))
    made = dict.fromkeys(STEP_PARTS, np.zeros(len(at))) | _products(gpu, deployment, at)
    head = made.pop("head")
    made |= {"head": np.zeros(len(at)), "moved": at * deployment.moved_bytes / gpu.specs.bandwidth}
    starts = np.broadcast_to(deployment.starts, (len(at), len(STARTS)))
    ms = np.column_stack([*(made[name] for name in STEP_PARTS), starts])
    halves = np.arange(0.0, math.log2(max(sequences, 2)) + 0.5, 0.5)
    numbers = np.array([*dict.fromkeys(np.round(2.0**halves).tolist())])
    unit = longest / CONTEXTS
    decode, prefill = _attention(gpu, deployment, numbers, unit * np.arange(CONTEXTS + 1))
    return StepParts(at, ms, head, numbers, decode, prefill, unit)


def _products(gpu: GPU, deployment: Deployment, m: np.ndarray) -> dict[str, np.ndarray]:
    """Part of a step -> (m,) ms for `m` tokens: products, experts, all-reduces, and the head for all `m`
    tokens.
    """
    d, gpus = deployment.decoder, deployment.gpus
    every = m * deployment.attention_data_parallel  # tokens of all groups
    made: dict[str, np.ndarray] = {"products": np.zeros(len(m))}
    for dtype in {product.dtype for product in deployment.products}:
        rows = [p for p in deployment.products if p.dtype == dtype]
        n, k, times = np.array([(p.n, p.k, p.times) for p in rows]).T
        made["products"] = made["products"] + gpu.ms("gemm", dtype, m[:, None], n, k) @ times
    numbers = Counter[str]()
    for layer in (one for one in d.kinds if one.experts):
        numbers[deployment.routed_dtype(layer)] += layer.number
    for dtype, number in numbers.items():
        made["experts"] = made.get("experts", 0.0) + number * gpu.ms(
            "moe", dtype, every, d.hidden, d.expert_width, d.experts, d.top_k,
            gpus / deployment.expert_parallel, deployment.expert_parallel, SKEW,
        )  # fmt: skip
    routed = numbers.total()
    parts, made["all_reduce"] = deployment.tensor_parallel, np.zeros(len(m))
    exchanged = 2 * d.layers - (0 if gpus == parts else routed)
    if parts > 1:
        made["all_reduce"] = exchanged * gpu.ms("all_reduce", "bfloat16", parts, m * d.hidden)
    if gpus > parts:
        # Tokens go to the GPUs that have their experts, and back: two all-to-alls move as many bytes.
        share = 1.0 - (1.0 - 1.0 / gpus) ** d.top_k
        sent = gpu.ms("all_reduce", "bfloat16", gpus, every * d.hidden * share)
        made["all_reduce"] = made["all_reduce"] + routed * sent
    return made | {"head": gpu.ms("gemm", "bfloat16", m, d.vocab / parts, d.hidden)}


def _attention(
    gpu: GPU, deployment: Deployment, sequences: np.ndarray, contexts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """((sequences, contexts) ms of a step's attention, (contexts,) ms of the attention of one prompt)."""
    d, parts, cache = deployment.decoder, deployment.tensor_parallel, deployment.kv_dtype
    lengths, each = np.maximum(contexts, 1.0), sequences[:, None]
    decode, prompt = np.zeros((len(sequences), len(contexts))), np.zeros(len(contexts))
    for layer in d.kinds:
        if layer.linear and d.linear:
            one = d.linear
            split = one.k_heads / parts, one.k_dim, one.v_heads / parts, one.v_dim
            of = "bfloat16"
            of_decode = sum(
                gpu.ms(f"{name}_generation", of, each, 1.0, *split) for name in DELTA_KERNELS
            )
            of_prompt = sum(
                gpu.ms(f"{name}_context", of, 1.0, lengths, *split) for name in DELTA_KERNELS
            )
        elif d.latent:
            heads = d.heads / parts
            of_decode = sum(gpu.ms(name, "bfloat16", each, heads) for name in ABSORBED_KERNELS)
            of_decode = of_decode + gpu.ms("mla_decode", cache, each, lengths, heads)
            n, k = d.up_projection(parts)
            of_prompt = gpu.ms("gemm", deployment.attention_dtype(layer), lengths, n, k)
            of_prompt = of_prompt + gpu.ms("mla_prefill", cache, 1.0, lengths, heads)
        else:
            sizes = d.heads / parts, max(d.kv_heads / parts, 1.0), float(d.head_dim)
            of_decode = gpu.ms("decode_attention", cache, each, lengths, *sizes, layer.window)
            of_prompt = gpu.ms("prefill_attention", cache, 1.0, lengths, *sizes, layer.window)
        decode, prompt = decode + layer.number * of_decode, prompt + layer.number * of_prompt
    return decode, prompt


def each_ms(o: FrameworkOverheads) -> np.ndarray:
    """(STEP_PARTS + STARTS,) factors that convert the parts of steps, with their events, into ms."""
    starts = (o.kernel_ms, o.fp8_ms, o.block_ms, o.fp4_ms, o.experts_ms, o.exchange_ms, o.step_ms,
              o.parallel_ms)  # fmt: skip
    return o.level * np.array([1.0, 1.0, 1.0, 1.0, 1.0, o.small, *starts])


def operations_of(gpu: GPU, deployment: Deployment) -> dict[tuple[str, str], FittedKernel]:
    """The fitted operations that steps and prompts use: (name, data type) -> operation."""
    used = {("gemm", product.dtype) for product in deployment.products} | {("gemm", "bfloat16")}
    d = deployment.decoder
    for layer in d.kinds:
        if layer.linear:
            phases = ("context", "generation")
            used |= {(f"{name}_{phase}", "bfloat16") for name in DELTA_KERNELS for phase in phases}
        elif d.latent:
            used |= {(name, "bfloat16") for name in ABSORBED_KERNELS}
            used |= {(f"mla_{which}", deployment.kv_dtype) for which in ("prefill", "decode")}
        else:
            used |= {(f"{which}_attention", deployment.kv_dtype) for which in ("prefill", "decode")}
    used |= {("moe", deployment.routed_dtype(layer)) for layer in d.kinds if layer.experts}
    used |= {("all_reduce", "bfloat16")} if deployment.gpus > 1 else set()
    return {(name, dtype): gpu.operation(name, dtype) for name, dtype in sorted(used)}


# ---- Data types and memory.


def deployment_of(
    section: ServingSection, decoder: Decoder, tensor_parallel: int = 1, expert_parallel: int = 1,
    attention_data_parallel: int = 1, dtype: str = "", kv_dtype: str = "",
) -> Deployment:  # fmt: skip
    """Deploy a decoder on GPUs. `dtype`: "" is the published one; `kv_dtype`: "" is the default.

    For a decoder published with block scales, "fp8" means fp8_block. Experts published in MXFP4 stay in
    MXFP4, and are computed in FP8 on GPUs with FP4. FP8 weights are computed in bfloat16 on a GPU without
    FP8, as in vLLM. With NVFP4 weights latent attention stays bfloat16, as in NVIDIA's files. InputError
    for a data type that the GPU lacks, and a number of GPUs that does not divide the decoder.
    """
    experts, gpus = decoder.experts, tensor_parallel * attention_data_parallel
    if attention_data_parallel > 1 and not experts:
        raise _groups_without_experts(attention_data_parallel, decoder)
    divides = gpus % expert_parallel == experts % expert_parallel == 0
    if not divides or expert_parallel > max(experts, 1):
        some = f"a divisor of {gpus} GPUs and of {experts} experts"
        right = some if experts else f"1: {decoder.name} has no experts"
        given = f"{arg('expert_parallel')} {expert_parallel}"
        raise InputError(f"{given}: expected {right}", code="expert-parallel")
    sheet, mxfp4 = section.sheet, decoder.has_mxfp4
    if dtype and dtype not in WEIGHT_BYTES:
        raise _unknown_dtype(dtype)
    in_blocks = decoder.kind in OWN_FITS or "fp8_block" in (decoder.dtype, decoder.expert_dtype)
    if dtype == "fp8" and in_blocks:
        dtype = "fp8_block"
    if dtype == "nvfp4" and decoder.latent:
        decoder = decoder.with_bfloat16("attention")
    dense = decoder.dtype if mxfp4 or not dtype else dtype
    routed = decoder.expert_dtype if mxfp4 or not dtype else dtype
    if mxfp4 and sheet.fp4_tflops:
        routed = "w4a8_mxfp4_mxfp8"
    dense, routed = ("fp8_wo" if t in FP8 and lacks_rate(sheet, t) else t for t in (dense, routed))
    used = {dense, routed} if experts else {dense}
    for one in used:
        if lacks_rate(sheet, one):
            has = ", ".join(dtypes_of(section.operations))
            given = f"{arg('dtype')} {one}" if dtype else f"{decoder.name} is in {one}"
            raise InputError(f"{given}: this GPU computes {has}", code="dtype", of_device=True)
    groups = expert_parallel / attention_data_parallel
    try:
        decoder.check_tensor_parallel(tensor_parallel, groups, dense, routed)
    except InputError as error:
        words = [product_words(tensor_parallel, attention_data_parallel, arg("tensor_parallel"))]
        if experts and experts % gpus == 0:
            with suppress(InputError):
                decoder.check_tensor_parallel(tensor_parallel, tensor_parallel, dense, routed)
                words.append(f"with {arg('expert_parallel')} {gpus} each GPU has whole experts")
        raise error.reworded("; ".join(filter(None, [error.message, *words]))) from None
    published = decoder.kv_dtype if dense == decoder.dtype else ""
    cache = kv_dtype or published or section.server.cache_dtype(sheet, used != {"bfloat16"})
    if cache not in CACHE_BYTES:
        given = f"{arg('kv_dtype')} {cache}"
        raise InputError(f"{given}: expected one of {', '.join(CACHE_BYTES)}", code="kv-dtype")
    return Deployment(
        decoder, tensor_parallel, expert_parallel, dense, routed, cache, attention_data_parallel
    )


def _groups_without_experts(attention_data_parallel: int, decoder: Decoder) -> InputError:
    """The error for attention groups of a decoder without experts."""
    return InputError(
        f"{arg('attention_data_parallel')} {attention_data_parallel}: such groups share experts, and "
        f"{decoder.name} has none; expected 1: replicas serve more requests",
        code="attention-data-parallel",
    )


def _unknown_dtype(dtype: str) -> InputError:
    """The error for an unknown data type."""
    meant = dtype_of(dtype)
    hint = f"did you mean {meant}?" if meant in DTYPES else f"expected one of {', '.join(DTYPES)}"
    hint += "; lolat.compare takes several" if "," in dtype else ""
    return InputError(f"{arg('dtype')} {dtype}: {hint}", code="dtype")


def product_words(tensor_parallel: int, groups: int, name: str = "tensor_parallel") -> str:
    """Words on the number of GPUs with attention data parallel, which frameworks count in two ways; "" if
    the number is clear.
    """
    if groups == 1 or tensor_parallel % groups:
        return ""
    few, every = tensor_parallel // groups, tensor_parallel * groups
    of_each = f"{tensor_parallel} x {groups} = {every} GPUs: {name} is of each group"
    return f"{of_each}; for {tensor_parallel}, as SGLang and TensorRT-LLM count them, give {name} {few}"


def cache_room(section: ServingSection, deployment: Deployment) -> float:
    """The bytes on each GPU that the caches get.

    Servers of large models (OWN_FITS) are usually started with options that give caches half of the memory
    that the weights leave.
    """
    server, sheet = section.server, section.sheet
    room = GIB * server.room_gib(sheet) - deployment.weight_bytes
    if deployment.decoder.kind in OWN_FITS:
        whole = GIB * (server.memory_share * sheet.memory_gib - server.own_gib)
        room = max(room, (whole - deployment.weight_bytes) / 2.0)
    return max(server.cache_share * room, 0.0)


def requests_that_fit(section: ServingSection, deployment: Deployment, tokens: float) -> int:
    """The number of requests of `tokens` tokens whose caches fit; 0 if the weights do not fit."""
    return int(cache_room(section, deployment) / deployment.cache_bytes(tokens))


def deployments_of(
    section: ServingSection, decoder: Decoder, asked: ServingQuestion
) -> list[Deployment]:
    """The deployments that the question names, else those on 1, 2, 4 or 8 GPUs of a node that hold the
    weights.

    A decoder with experts whose cache tensor parallel would copy also gets a deployment with attention data
    parallel on all GPUs. If no deployment holds the weights, the result is the one with the fewest bytes on
    a GPU.
    """
    found, refused = list[Deployment](), dict[tuple[int, int, int], InputError]()
    every = min(asked.gpus or MOST_GPUS, int(section.sheet.gpus_per_node))
    gpus = several(asked.tensor_parallel)
    experts, asked_groups = several(asked.expert_parallel), several(asked.attention_data_parallel)
    copies = decoder.latent or decoder.kv_heads < every  # tensor parallel does not split the cache
    usual_groups = (1, every) if decoder.experts and copies and not gpus else (1,)
    for groups in asked_groups or usual_groups:
        usual = (1 << n for n in range((every // groups or 1).bit_length()))
        for one in itertools.product(gpus or usual, experts, (groups,)):
            try:
                found.append(deployment_of(section, decoder, *one, asked.dtype, asked.kv_dtype))
            except InputError as error:
                if error.code not in ("tensor-parallel", "expert-parallel"):
                    raise
                refused[one] = error
    answered = [{d.split[n] for d in found} for n in range(3)]
    for one, why in reversed(refused.items()):  # each number that was asked for must have an answer
        if any(
            one[n] not in answered[n]
            for n, many in enumerate((gpus, experts, asked_groups))
            if many
        ):
            raise why
    found = [one for one in found if one.gpus <= (asked.gpus or MOST_GPUS)] or found[:1]
    if asked.tensor_parallel:
        return found
    able = [d for d in found if requests_that_fit(section, d, 1)]
    return able or [min(found, key=lambda d: d.weight_bytes)]

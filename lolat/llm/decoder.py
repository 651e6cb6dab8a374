"""A decoder: its layers, its parameters, the bytes of its weights and of its cache.

Image towers, heads that draft tokens, and the bias that corrects a router's scores are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lolat.errors import InputError, arg

MXFP4 = 0.5 + 1 / 32
GROUP = 128
"""Number of elements that share a scale in int4_wo."""
WEIGHT_BYTES = {
    "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128**2, "nvfp4": 0.5 + 1 / 16,
    "w4a16_mxfp4": MXFP4, "w4a8_mxfp4_mxfp8": MXFP4, "int4_wo": 0.5 + 2 / GROUP, "fp8_wo": 1.0,
}  # fmt: skip
"""Bytes of a matrix element with its part of the scales, by data type (names as in tables of
operations)."""
BLOCK = 128
"""BLOCK x BLOCK elements of a matrix share a scale in fp8_block."""
DTYPES = tuple(d for d in WEIGHT_BYTES if "mxfp4" not in d and d != "fp8_wo")
"""Data types that a question can ask for. Not among them: MXFP4, which only experts published in it have,
and fp8_wo, FP8 weights on a GPU that does not compute FP8."""
CACHE_BYTES = {"bfloat16": 2, "fp8": 1}


@dataclass(frozen=True)
class LayerGroup:
    """Equal layers of a decoder.

    `window`: the most tokens that a token attends to, itself included; 0: all earlier ones. `linear`: True
    if a gated delta network takes the place of attention. `unquantized`: the parts, of attention,
    feed_forward and experts, that stay bfloat16 in a quantized decoder.
    """

    number: int
    window: int = 0
    experts: bool = False
    linear: bool = False
    unquantized: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: the number of elements of each of its vectors.

    `query_rank`: of a latent query; 0: queries come from the input. `rank`: of the latent vector. `nope`,
    `rope`: of the two parts of a key; the rotated part `rope` is shared by all heads. `value`: of a head's
    value.
    """

    query_rank: int
    rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Linear:
    """A gated delta network: its heads, their sizes, and the tokens that its convolution spans (`taps`)."""

    k_heads: int
    k_dim: int
    v_heads: int
    v_dim: int
    taps: int

    @property
    def widths(self) -> tuple[int, int]:
        """(elements of all queries and keys of a token, elements of all its values)."""
        return 2 * self.k_heads * self.k_dim, self.v_heads * self.v_dim

    @property
    def state_bytes(self) -> int:
        """Bytes that a sequence keeps in a layer: the states in float32, the inputs of the convolution."""
        return 4 * self.k_dim * self.widths[1] + 2 * (self.taps - 1) * sum(self.widths)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A language model; widths are in elements, before they are split over GPUs.

    `kinds`: its layers, in the order in which each kind first occurs. `intermediate`: the width of the
    feed-forward in layers without experts; 0: there is no such layer. `tied`: the head is the embedding.
    `context`: tokens of the longest sequence; 0: not stated. `positions`: the number of learned positions;
    0: rotary positions. `experts`: routed experts of a layer; each token uses `top_k` of them.
    `shared_width`: the width of the shared experts, which all tokens use.

    `gated`: a feed-forward has three matrices (gate, up, down), else two. `fused`: the published weights
    have one matrix for query, key and value, and one for gate and up. `feed_forward_bias`: experts and
    their router have biases too. `sinks`: attention has a learned number for each head. `norms`:
    normalizations of a layer, not counting `head_norm`; `wide_norm`: their weights multiply in float32.
    `head_norm`: query and key are normalized by "head" or as a "whole"; "": not at all. `output_gate`:
    attention's output has a gate, as wide as its queries. `score_cap`: a tanh limits the scores of
    attention; `logit_cap`: a tanh limits the logits.

    `latent`: latent attention; its cache is not split over GPUs. `dtype`, `expert_dtype`: the published
    data types; half and single precision are served as "bfloat16". `group`: elements that share a scale in
    int4_wo, along the inputs of a product. `kv_dtype`: data type of the cache; "": not stated. `towers`:
    keys of a multimodal model's other parts, which have no weights and no time here.
    """

    name: str
    architecture: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    kinds: tuple[LayerGroup, ...]
    intermediate: int = 0
    tied: bool = False
    context: int = 0
    positions: int = 0
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    shared_gate: bool = False
    gated: bool = True
    fused: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    sinks: bool = False
    norms: int = 2
    norm_bias: bool = False
    wide_norm: bool = False
    head_norm: str = ""
    output_gate: bool = False
    score_cap: bool = False
    logit_cap: bool = False
    latent: Latent | None = None
    linear: Linear | None = None
    dtype: str = "bfloat16"
    expert_dtype: str = "bfloat16"
    group: float = GROUP
    kv_dtype: str = ""
    towers: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of decoder: "latent", "linear", "experts" or "dense"."""
        if self.latent or self.linear:
            return "latent" if self.latent else "linear"
        return "experts" if self.experts else "dense"

    @property
    def has_mxfp4(self) -> bool:
        """True if the experts were published in MXFP4."""
        return self.expert_dtype.endswith("mxfp4")

    @property
    def tower_remark(self) -> str:
        """The remark that a multimodal model's `towers` are not counted; "" without towers."""
        why = "the memory and the time of these parts are not counted"
        told = (
            f"{' and '.join(self.towers)}: {why}; the answer is for the decoder alone, and for text"
        )
        return told if self.towers else ""

    def with_bfloat16(self, part: str) -> Decoder:
        """This decoder with one part ("attention", "feed_forward", "experts") unquantized in all layers."""
        kinds = (replace(one, unquantized=one.unquantized | {part}) for one in self.kinds)
        return replace(self, kinds=tuple(kinds))

    @property
    def layers(self) -> int:
        """The number of layers."""
        return sum(layer.number for layer in self.kinds)

    def projections(self, layer: LayerGroup, parts: int = 1) -> list[tuple[float, float]]:
        """(n, k) of each product around attention on one of `parts` GPUs, without `up_projection`."""
        hidden = float(self.hidden)
        if layer.linear and self.linear:
            keys, values = (width / parts for width in self.linear.widths)
            gates = 2.0 * self.linear.v_heads / parts
            return [(keys + 2.0 * values, hidden), (gates, hidden), (hidden, values)]
        query = self.heads * self.head_dim / parts
        if one := self.latent:
            shared, output = float(one.rank + one.rope), (hidden, self.heads * one.value / parts)
            if not one.query_rank:
                return [(query + shared, hidden), output]
            return [(one.query_rank + shared, hidden), (query, float(one.query_rank)), output]
        cached = max(self.kv_heads / parts, 1.0) * self.head_dim
        return [((1 + self.output_gate) * query + 2 * cached, hidden), (hidden, query)]

    def up_projection(self, parts: int = 1) -> tuple[float, float]:
        """(n, k) of the product that makes keys and values from latent vectors; (0, 0) without latent
        attention.
        """
        one = self.latent
        return (self.heads / parts * (one.nope + one.value), float(one.rank)) if one else (0.0, 0.0)

    def of_layer(self, layer: LayerGroup) -> dict[str, tuple[int, int]]:
        """A layer's parameters by part: (number in the data type of the weights, number always in
        bfloat16).
        """
        query, cached = self.heads * self.head_dim, self.kv_heads * self.head_dim
        normalized = {"": 0, "head": 2 * self.head_dim, "whole": query + cached}[self.head_norm]
        biases, up = (1 + self.output_gate) * query + 2 * cached, self.up_projection()
        if one := self.latent:
            biases, normalized = one.query_rank + one.rank + one.rope, one.query_rank + one.rank
        vectors = self.qkv_bias * biases + self.output_bias * self.hidden
        if layer.linear and self.linear:
            delta, up, normalized = self.linear, (0.0, 0.0), self.linear.v_dim
            vectors = delta.taps * sum(delta.widths) + 2 * delta.v_heads
        matrices = sum(n * k for n, k in [*self.projections(layer), up])
        norms = self.norms * (1 + self.norm_bias) * self.hidden
        parts = {
            "attention": (int(matrices), vectors + self.sinks * self.heads),
            "norms": (0, norms + normalized),
            "feed_forward": self._feed_forward(self.dense_width(layer)),
        }
        if layer.experts:
            matrices, biases = self._feed_forward(self.expert_width)
            parts["experts"] = (self.experts * matrices, self.experts * biases)
            scored = self.experts + self.shared_gate
            parts["router"] = (0, scored * self.hidden + self.feed_forward_bias * self.experts)
        return parts

    def dense_width(self, layer: LayerGroup) -> int:
        """The width of a layer's feed-forward; in a layer with experts the width of its shared experts."""
        return self.shared_width if layer.experts else self.intermediate

    def _feed_forward(self, width: int) -> tuple[int, int]:
        up = 2 if self.gated else 1
        biases = self.feed_forward_bias * (up * width + self.hidden) if width else 0
        return (up + 1) * self.hidden * width, biases

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameters by part: embedding, attention, feed_forward (with shared experts), experts, ..."""
        table, positions = self.vocab * self.hidden, self.positions * self.hidden
        parts = dict.fromkeys(("embedding", "attention", "feed_forward", "experts", "router"), 0)
        parts |= {"norms": (1 + self.norm_bias) * self.hidden, "head": 0 if self.tied else table}
        parts["embedding"] = table + positions
        for layer in self.kinds:
            for part, elements in self.of_layer(layer).items():
                parts[part] += layer.number * sum(elements)
        return parts

    @property
    def parameters(self) -> int:
        """The number of parameters; an embedding that is also the head counts once."""
        return sum(self.parameters_by_part.values())

    @property
    def active_parameters(self) -> int:
        """The number of parameters that a token uses: all except the experts that it is not routed to."""
        experts = self.parameters_by_part["experts"]
        return self.parameters - experts + experts * self.top_k // max(self.experts, 1)

    def weight_bytes(self, dtype: str = "", expert_dtype: str = "") -> int:
        """The bytes of all weights. `dtype`: "" is the published one; `expert_dtype`: "" is `dtype`, else
        the published one.

        Embedding, head, normalizations, routers, biases and `unquantized` parts stay bfloat16.
        """
        experts = expert_dtype or dtype or self.expert_dtype
        others = self.element_bytes(dtype or self.dtype)
        each = dict.fromkeys(("attention", "feed_forward"), others)
        each["experts"] = self.element_bytes(experts)
        size = 2.0 * self.parameters
        for layer in self.kinds:
            for part, (matrices, _) in self.of_layer(layer).items():
                if part in each and part not in layer.unquantized:
                    size += layer.number * matrices * (each[part] - 2.0)
        return round(size)

    def element_bytes(self, dtype: str) -> float:
        """The bytes of an element of a quantized matrix, with its part of the scales.

        One scale for each output of a matrix is not counted.
        """
        finer = 2 / self.group - 2 / GROUP if dtype == "int4_wo" else 0.0
        return WEIGHT_BYTES[dtype] + finer

    @property
    def replicated(self) -> int:
        """Elements of a layer's matrices that each GPU holds whole: the projections into latent spaces."""
        one = self.latent
        return self.hidden * (one.query_rank + one.rank + one.rope) if one else 0

    def cache_bytes(self, tokens: int, kv_dtype: str = "bfloat16", parts: int = 1) -> float:
        """The bytes of a sequence's keys and values on each of `parts` GPUs.

        A layer with a window caches no more tokens than the window. A linear layer keeps a state of fixed
        size.
        """
        attending = [layer for layer in self.kinds if not layer.linear]
        kept = sum(layer.number * min(tokens, layer.window or tokens) for layer in attending)
        each = 2 * self.kv_heads * self.head_dim * max(self.kv_heads / parts, 1.0) / self.kv_heads
        if self.latent:
            each = self.latent.rank + self.latent.rope
        linear = sum(layer.number for layer in self.kinds if layer.linear)
        states = linear * self.linear.state_bytes / parts if self.linear else 0
        return each * CACHE_BYTES[kv_dtype] * kept + states

    def check_tensor_parallel(
        self, n: int, groups: float = 1, dtype: str = "", expert_dtype: str = ""
    ) -> None:
        """Raise InputError (code "tensor-parallel") if the decoder cannot be split over `n` GPUs.

        `groups`: the number of copies of all experts that these GPUs hold. `dtype`, `expert_dtype`: "" is
        the published one. `n` must divide the query heads and all widths, and must divide the number of key
        and value heads or be a multiple of it. In fp8_block each GPU must have whole blocks (vLLM's
        validate_fp8_block_shape). In int4_wo each GPU must have whole groups of inputs of the products
        whose inputs are split (vLLM's Marlin kernels); experts are not checked, as they have other kernels.
        """
        widths = {"feed_forward": self.intermediate, "experts": self.expert_width * groups,
                  "shared experts": self.shared_width}  # fmt: skip
        types = dict.fromkeys(("attention", *widths), dtype or self.dtype)
        types["experts"] = expert_dtype or self.expert_dtype
        types = {part: t for part, t in types.items() if not self._is_unquantized(part)}
        in_blocks = {part for part, t in types.items() if t == "fp8_block"}
        cached = self.heads * self.latent.value if self.latent else self.kv_heads * self.head_dim
        linear = (self.linear.k_heads, self.linear.v_heads) if self.linear else ()
        of_attention = [self.heads * self.head_dim, cached]
        of_attention += self.linear.widths if self.linear else ()
        attended = self.heads * (self.latent.value if self.latent else self.head_dim)
        whole = self.head_dim * (not self.latent)  # the least of a GPU

        def why_not(n: int) -> str:
            heads = self.kv_heads % n == 0 or n % self.kv_heads == 0
            sizes = *linear, *widths.values()
            if not heads or any(size % n for size in (self.heads, *sizes)):
                shown = f"widths {', '.join(f'{size:g}' for size in sizes if size)}"
                return f"{self.heads} query heads, {self.kv_heads} key and value heads, {shown}"
            parts = [(part, width // n) for part, width in widths.items()]
            parts += [("attention", max(size // n, whole)) for size in of_attention]
            for part, size in parts:
                if n > 1 and part in in_blocks and size % BLOCK:
                    return f"FP8 in blocks of {BLOCK}, and {part} {size:g} wide on each GPU breaks them"
            for part, size in (*widths.items(), ("attention", attended)):
                in_groups = types.get(part) == "int4_wo" and part != "experts"
                if n > 1 and in_groups and self.group < math.inf and size / n % self.group:
                    return f"groups of {self.group}, and {part} {size / n:g} wide on each GPU breaks them"
            return ""

        if why := why_not(n):
            right = ", ".join(str(m) for m in range(1, min(self.heads, 1024) + 1) if not why_not(m))
            raise InputError(
                f"{arg('tensor_parallel')} {n}: {self.name} has {why}; expected one of {right}",
                code="tensor-parallel",
            )

    def _is_unquantized(self, part: str) -> bool:
        """True if a part stays bfloat16 in every layer that has it."""
        name, of_experts = part.replace("shared experts", "feed_forward"), part.endswith("experts")
        layers = (layer for layer in self.kinds if layer.experts or not of_experts)
        return all(name in layer.unquantized for layer in layers)

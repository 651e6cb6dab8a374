"""A decoder: its layers, its parameters, bytes of its weights and of its cache.

Not counted: towers for images, heads that draft further tokens, the numbers that correct a router's scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lolat.errors import InputError, arg

MXFP4 = 0.5 + 1 / 32
WEIGHT_BYTES = {
    "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128**2, "nvfp4": 0.5 + 1 / 16,
    "w4a16_mxfp4": MXFP4, "w4a8_mxfp4_mxfp8": MXFP4, "int4_wo": 0.5 + 2 / 128,
}  # fmt: skip
"""Bytes of an element of a matrix, with its share of the scales; names as in the tables of operations."""
BLOCK = 128
"""Rows and columns of a matrix that share a scale in fp8_block."""
DTYPES = tuple(dtype for dtype in WEIGHT_BYTES if "mxfp4" not in dtype)
"""Those that can be asked for; experts in MXFP4 are so only as published."""
CACHE_BYTES = {"bfloat16": 2, "fp8": 1}


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Equal layers of a decoder."""

    number: int
    window: int = 0
    """Tokens that a token attends to at most, itself included; 0: all before it."""
    experts: bool = False
    unquantized: frozenset[str] = frozenset()
    """Parts that stay bfloat16 where others are quantized: attention, feed_forward, experts."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A language model; widths are elements, of the whole model on one device."""

    name: str
    architecture: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    kinds: tuple[Layers, ...]
    """In the order in which each first occurs."""
    intermediate: int = 0
    """Width of the feed-forward of layers without experts; 0: there is no such layer."""
    tied: bool = False
    """The head is the embedding."""
    context: int = 0
    """Tokens of the longest sequence; 0: not stated."""
    experts: int = 0
    """Routed experts of a layer, of which each token takes `top_k`."""
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    """Width of what all tokens take beside the routed experts."""
    shared_gate: bool = False
    gated: bool = True
    """A feed-forward is three matrices (gate, up, down), else two."""
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    """Of experts and their router too."""
    sinks: bool = False
    """Attention has one learned number a head."""
    norms: int = 2
    """Normalizations of a layer, but for those of query and key."""
    norm_bias: bool = False
    head_norm: str = ""
    """Query and key are normalized: each "head" or the "whole"; "": not."""
    dtype: str = "bfloat16"
    """As published; half and single precision are served in two bytes as well."""
    expert_dtype: str = "bfloat16"
    kv_dtype: str = ""
    """Of the cache, as published; "": not stated."""
    cache_remark: str = ""
    """A remark on the type of the cache, for a model known by name alone; "": none."""

    @property
    def kind(self) -> str:
        """ "experts" or "dense"."""
        return "experts" if self.experts else "dense"

    @property
    def layers(self) -> int:
        """The number of layers."""
        return sum(layer.number for layer in self.kinds)

    def of_layer(self, layer: Layers) -> dict[str, tuple[int, int]]:
        """Elements of one layer by part: (those that a data type applies to, those always bfloat16)."""
        query, cached = self.heads * self.head_dim, self.kv_heads * self.head_dim
        vectors = (
            self.qkv_bias * (query + 2 * cached)
            + self.output_bias * self.hidden
            + self.sinks * self.heads
        )
        normalized = {"": 0, "head": 2 * self.head_dim, "whole": query + cached}[self.head_norm]
        norms = self.norms * (1 + self.norm_bias) * self.hidden
        width = self.shared_width if layer.experts else self.intermediate
        parts = {
            "attention": (2 * self.hidden * (query + cached), vectors),
            "norms": (0, norms + normalized),
            "feed_forward": self._feed_forward(width),
        }
        if layer.experts:
            matrices, biases = self._feed_forward(self.expert_width)
            parts["experts"] = (self.experts * matrices, self.experts * biases)
            scored = self.experts + self.shared_gate
            parts["router"] = (0, scored * self.hidden + self.feed_forward_bias * self.experts)
        return parts

    def _feed_forward(self, width: int) -> tuple[int, int]:
        up = 2 if self.gated else 1
        biases = self.feed_forward_bias * (up * width + self.hidden) if width else 0
        return (up + 1) * self.hidden * width, biases

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of embedding, attention, feed_forward (with shared experts), experts and so on."""
        table = self.vocab * self.hidden
        parts = {"embedding": table, "attention": 0, "feed_forward": 0, "experts": 0, "router": 0,
                 "norms": (1 + self.norm_bias) * self.hidden,
                 "head": 0 if self.tied else table}  # fmt: skip
        for layer in self.kinds:
            for part, elements in self.of_layer(layer).items():
                parts[part] += layer.number * sum(elements)
        return parts

    @property
    def parameters(self) -> int:
        """All parameters; a head that is the embedding counts once."""
        return sum(self.parameters_by_part.values())

    @property
    def active_parameters(self) -> int:
        """All but the experts that a token does not take; embedding and head count."""
        parts = self.parameters_by_part
        taken = parts["experts"] * self.top_k // max(self.experts, 1)
        return sum(parts.values()) - parts["experts"] + taken

    def weight_bytes(self, dtype: str = "", expert_dtype: str = "") -> int:
        """Bytes of all weights. "": as published; experts as all else where only `dtype` is given.

        Embedding, head, normalizations, routers, biases and what `kept` names stay bfloat16. InputError
        (code "dtype" or "expert-dtype") for a data type that `WEIGHT_BYTES` has not.
        """
        experts = expert_dtype or dtype or self.expert_dtype
        dtype = dtype or self.dtype
        each = dict.fromkeys(("attention", "feed_forward"), _bytes(WEIGHT_BYTES, dtype, "dtype"))
        each["experts"] = _bytes(WEIGHT_BYTES, experts, "expert_dtype")
        size = 2.0 * self.parameters
        for layer in self.kinds:
            for part, (matrices, _) in self.of_layer(layer).items():
                if part in each and part not in layer.unquantized:
                    size += layer.number * matrices * (each[part] - 2.0)
        return round(size)

    def cache_bytes(self, tokens: int, kv_dtype: str = "bfloat16") -> int:
        """Bytes of keys and values of one sequence of `tokens`; a layer keeps no more than its window.

        InputError (code "kv-dtype") for a data type that `CACHE_BYTES` has not.
        """
        row = 2 * self.kv_heads * self.head_dim * _bytes(CACHE_BYTES, kv_dtype, "kv_dtype")
        kept = sum(layer.number * min(tokens, layer.window or tokens) for layer in self.kinds)
        return int(row) * kept

    def check_tensor_parallel(
        self, n: int, groups: int = 1, dtype: str = "", expert_dtype: str = ""
    ) -> None:
        """InputError (code "tensor-parallel") where the model cannot be split over `n` devices, of which
        `groups` share the experts whole. "": as published.

        `n` divides the query heads and all widths of the feed-forward. It divides the key and value heads,
        or is a multiple of them: then several devices hold the same one. A part of a matrix of FP8 in
        blocks is whole blocks, as vLLM's validate_fp8_block_shape has it.
        """
        widths = {"feed_forward": self.intermediate, "experts": self.expert_width * groups,
                  "shared experts": self.shared_width}  # fmt: skip
        dense, experts = dtype or self.dtype, expert_dtype or self.expert_dtype
        types = {
            "attention": dense,
            "feed_forward": dense,
            "shared experts": dense,
            "experts": experts,
        }

        def why_not(n: int) -> str:
            heads = self.kv_heads % n == 0 or n % self.kv_heads == 0
            if not heads or any(size % n for size in (self.heads, *widths.values())):
                sizes = ", ".join(str(size) for size in widths.values() if size)
                return (
                    f"{self.heads} query heads, {self.kv_heads} key and value heads, widths {sizes}"
                )
            parts = [(what, size // n) for what, size in widths.items()]
            parts += [
                ("attention", max(h // n, 1) * self.head_dim) for h in (self.heads, self.kv_heads)
            ]
            for what, size in parts if n > 1 else ():
                if types[what] == "fp8_block" and size % BLOCK and not self._is_unquantized(what):
                    return (
                        f"FP8 in blocks of {BLOCK}, and {what} {size} wide on each GPU breaks them"
                    )
            return ""

        is_valid = isinstance(n, int) and not isinstance(n, bool) and n >= 1
        if why := why_not(n) if is_valid else why_not(2 * self.heads):
            right = ", ".join(str(m) for m in range(1, min(self.heads, 1024) + 1) if not why_not(m))
            raise InputError(
                f"{arg('tensor_parallel')} {n!r}: {self.name} has {why}; expected one of {right}"
            )

    def _is_unquantized(self, part: str) -> bool:
        """Whether a part is bfloat16 in all layers that have it."""
        part, of_experts = part.replace("shared experts", "feed_forward"), part.endswith("experts")
        return all(
            part in layer.unquantized for layer in self.kinds if layer.experts or not of_experts
        )


def _bytes(table: Mapping[str, float], dtype: str, argument: str) -> float:
    if dtype not in table:
        raise InputError(f"{arg(argument)} {dtype!r}: expected one of {', '.join(table)}")
    return table[dtype]

"""The kernel model of each operation of a step: its sizes, terms and formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from lolat.arrays import np
from lolat.llm import kernels, latent
from lolat.llm.decoder import CACHE_BYTES, WEIGHT_BYTES
from lolat.llm.kernels import HALF, Center, GpuRates, Sizes, Terms


class KernelModel(NamedTuple):
    """The kernel model of an operation: `ms` is its formula.

    `columns`: the names of its sizes. `terms`: (data type, variant) -> priors of the terms; `variants`:
    data type -> variants. `log_sizes`: scaled logarithms of the sizes, the inputs of its correction; None:
    no correction. `cached`: True if its data type is written as queries/cache or projections/cache.
    """

    columns: tuple[str, ...]
    terms: Callable[[str, str], Mapping[str, Center]]
    variants: Callable[[str], tuple[str, ...]]
    ms: Callable[[Terms, Sizes, GpuRates, str, str, bool], Any]
    log_sizes: Callable[[Sizes], Any] | None
    cached: bool = False


def _model(
    columns: tuple[str, ...], terms: Mapping[str, Center], variants: Iterable[str], *functions: Any
) -> KernelModel:
    """Make a kernel model with the same terms and variants for all data types."""
    return KernelModel(columns, lambda *_: terms, lambda _: tuple(variants), *functions)


def _log(*columns: str, octaves: float = 2.5) -> Callable[[Sizes], Any]:
    """Make a function of sizes that returns (rows, columns) logarithms, in units of `octaves` doublings."""
    return lambda rows: np.log2(np.stack([rows[column] for column in columns], 1)) / octaves


def _latent(columns: tuple[str, ...], terms: Mapping[str, Center], *ms: Any) -> KernelModel:
    return _model(columns, terms, ("one",), *ms, _log(*columns), columns == latent.LATENT)


def _delta(
    ms: Any, terms: Mapping[str, Center] = latent.DELTA_TERMS, variant: str = "one"
) -> KernelModel:
    return _model(latent.DELTA, terms, (variant,), ms, _log("batch", "length", "v_heads"))


KERNEL_MODELS = {
    "gemm": KernelModel(
        ("m", "n", "k"), kernels.gemm_terms, lambda dtype: kernels.GEMM_VARIANTS.get(dtype, ("library",)),
        kernels.gemm_ms, _log("m", "n", "k", octaves=2.0),
    ),
    "prefill_attention": _model(
        kernels.ATTENTION, kernels.PREFILL, kernels.PACKED, kernels.prefill_ms,
        kernels.attention_log_sizes, True,
    ),
    "decode_attention": _model(
        kernels.ATTENTION, kernels.DECODE, kernels.GROUPED, kernels.decode_ms,
        kernels.attention_log_sizes, True,
    ),
    "moe": _model(
        kernels.EXPERTS, kernels.MOE, kernels.EXPECTED_BY, kernels.moe_ms, kernels.moe_log_sizes
    ),
    "all_reduce": _model(
        ("gpus", "elements"), kernels.ALL_REDUCE, kernels.OWN_UP_TO, kernels.all_reduce_ms, None
    ),
    "mla_prefill": _latent(latent.LATENT, kernels.PREFILL, latent.latent_prefill_ms),
    "mla_decode": _latent(latent.LATENT, latent.LATENT_DECODE, latent.latent_decode_ms),
    "mla_prefill_module": _latent(
        latent.LATENT, kernels.PREFILL | latent.MODULE, latent.latent_prefill_ms
    ),
    "mla_decode_module": _latent(
        latent.LATENT, latent.LATENT_DECODE | latent.MODULE, latent.latent_decode_ms
    ),
    "mla_bmm_pre": _latent(("tokens", "heads"), latent.ABSORBED, latent.absorbed_ms),
    "mla_bmm_post": _latent(("tokens", "heads"), latent.ABSORBED, latent.absorbed_ms),
    "delta_conv_context": _delta(latent.convolution_ms),
    "delta_conv_generation": _delta(latent.convolution_ms),
    "delta_rule_context": _delta(latent.delta_ms, latent.CHUNKS, "chunks"),
    "delta_rule_generation": _delta(latent.delta_ms),
}  # fmt: skip
"""Operation -> its kernel model. Names with _module: latent attention timed together with its
projections."""

# ---- FLOPs, and bytes of memory, without which an operation cannot be; its data type counts for the bytes.


def _of_products(rows: Sizes, dtype: str) -> tuple[Any, Any]:
    m, n, k = rows["m"], rows["n"], rows["k"]
    return 2.0 * m * n * k, n * k * WEIGHT_BYTES[dtype] + HALF * m * n


def _of_attention(rows: Sizes, dtype: str) -> tuple[Any, Any]:
    b, n, h, k, d, w = (rows[c] for c in kernels.ATTENTION)
    seen = np.where(w > 0, np.minimum(n, w), n)
    return 4.0 * b * seen * h * d, 2.0 * b * seen * k * d * CACHE_BYTES[dtype.split("/")[1]]


def _of_prompts(rows: Sizes, dtype: str) -> tuple[Any, Any]:
    b, n, h, _, d, w = (rows[c] for c in kernels.ATTENTION)
    seen = np.where(w > 0, np.minimum(n, w), n)
    return 4.0 * b * seen * (n - (seen - 1.0) / 2.0) * h * d, 2.0 * HALF * b * n * h * d


def _of_experts(rows: Sizes, dtype: str) -> tuple[Any, Any]:
    tokens, hidden, width, _, top_k, parts, groups, _ = (rows[c] for c in kernels.EXPERTS)
    whole = groups == 1.0  # of several GPUs with experts any may be timed
    return 6.0 * whole * tokens * top_k * hidden * width / parts, 0.0 * tokens


def _of_latent(rows: Sizes, dtype: str) -> tuple[Any, Any]:
    b, n, h = (rows[c] for c in latent.LATENT)
    line = latent.RANK + latent.ROPE
    return 2.0 * b * n * h * (latent.RANK + line), b * n * line * CACHE_BYTES[dtype.split("/")[1]]


WORK: Mapping[str, Callable[[Sizes, str], tuple[Any, Any]]] = {
    "gemm": _of_products, "prefill_attention": _of_prompts, "decode_attention": _of_attention,
    "moe": _of_experts, "mla_decode": _of_latent, "mla_decode_module": _of_latent,
}  # fmt: skip
"""Operation -> a function that returns the least (rows,) FLOPs, and bytes of memory, that it needs."""

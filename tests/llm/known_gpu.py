"""A GPU whose operations have the centers of their kernel models as terms, and small language models."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from lolat.device.file import new_document
from lolat.llm.config import read_decoder
from lolat.llm.gpu import FittedKernel, FrameworkOverheads, ServingSection, Sheet, specs_of
from lolat.llm.kernel_models import KERNEL_MODELS
from lolat.llm.kernels import GpuRates, Sizes

SHEET = Sheet(
    multiprocessors=100, bandwidth_gb_s=2000, memory_gib=80, bf16_tflops=1000, fp8_tflops=2000,
    link_gb_s=400,
)  # fmt: skip
SPECS = specs_of(SHEET)
OVERHEADS = FrameworkOverheads(
    kernel_ms=2e-3, fp8_ms=1e-3, block_ms=3e-3, fp4_ms=4e-3, experts_ms=0.01, exchange_ms=5e-3, step_ms=0.5,
    parallel_ms=0.25, small=2.0, front_ms=20.0,
)  # fmt: skip
DTYPES = {
    "gemm": ("bfloat16", "fp8", "fp8_block"), "moe": ("bfloat16", "fp8"), "all_reduce": ("bfloat16",),
    "prefill_attention": ("bfloat16/bfloat16", "bfloat16/fp8"),
    "decode_attention": ("bfloat16/bfloat16", "bfloat16/fp8"),
    "mla_prefill": ("bfloat16/bfloat16", "bfloat16/fp8"),
    "mla_decode": ("bfloat16/bfloat16", "bfloat16/fp8"),
    "mla_bmm_pre": ("bfloat16",), "mla_bmm_post": ("bfloat16",), "delta_conv_context": ("bfloat16",),
    "delta_conv_generation": ("bfloat16",), "delta_rule_context": ("bfloat16",),
    "delta_rule_generation": ("bfloat16",),
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 8192,
}  # fmt: skip
MIXTURE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 1000, "num_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 256, "intermediate_size": 1024,
    "mlp_only_layers": [0], "max_position_embeddings": 8192,
}  # fmt: skip
LARGE = {
    **LLAMA, "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
"""The sizes of Llama 3.1 8B."""
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 3, "hidden_size": 512, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 256, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "q_lora_rank": 128, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 48, "max_position_embeddings": 8192,
}  # fmt: skip
DELTA = {
    "model_type": "qwen3_5_text", "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000,
    "linear_num_key_heads": 4, "linear_key_head_dim": 32, "linear_num_value_heads": 8,
    "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "max_position_embeddings": 8192,
}  # fmt: skip
LATENT, LINEAR = read_decoder(DEEPSEEK), read_decoder(DELTA)
SMALL, MIXED, EIGHT = read_decoder(LLAMA), read_decoder(MIXTURE), read_decoder(LARGE)


def terms(name: str, dtype: str, variant: str = "") -> dict[str, float]:
    """The terms in the middle of what is usual."""
    kernel = KERNEL_MODELS[name]
    centers = kernel.terms(dtype, variant or kernel.variants(dtype)[0])
    return {term: center for term, (center, _) in centers.items()}


def operation(name: str, dtype: str) -> FittedKernel:
    variant = KERNEL_MODELS[name].variants(dtype)[0]
    return FittedKernel(terms=terms(name, dtype), variant=variant, rows=100, spread=0.05)


def section(**changes: Any) -> ServingSection:
    operations = {name: {d: operation(name, d) for d in dtypes} for name, dtypes in DTYPES.items()}
    usual = ServingSection(
        sheet=SHEET, operations=operations, overheads=OVERHEADS, framework="vllm", served=20
    )
    return msgspec.structs.replace(usual, **changes)


def document(known: ServingSection | None = None) -> dict[str, Any]:
    """A profile that knows nothing but language models."""
    where = {"device": "unknown", "source": "made up"}
    llm = {"llm": msgspec.to_builtins(known or section())}
    return new_document("made-up", "made-up (vllm)", where) | llm


def kernel_ms(
    name: str, dtype: str, rows: Sizes, variant: str = "", alone: bool = False, specs: GpuRates = SPECS,
    **changed: float,
) -> Any:  # fmt: skip
    """(rows,) ms by the terms in the middle but for those `changed`."""
    variant = variant or KERNEL_MODELS[name].variants(dtype)[0]
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, float)) for v in rows.values()))
    flat, own = dict(zip(rows, arrays, strict=True)), {**terms(name, dtype, variant), **changed}
    return KERNEL_MODELS[name].ms(own, flat, specs, dtype, variant, alone)


def random_rows(name: str, number: int, seed: int) -> dict[str, Any]:
    """Sizes of an operation as tables have them."""
    random = np.random.default_rng(seed)

    def size(least: float, most: float, step: int = 1) -> Any:
        """Evenly on a logarithmic scale, in steps."""
        found = np.exp(random.uniform(np.log(least), np.log(most), number))
        return np.maximum(np.round(found / step), 1.0) * step

    kv = 2.0 ** random.integers(0, 4, number)
    attention = {
        "batch": size(1, 64), "length": size(32, 16384), "heads": kv * 2.0 ** random.integers(0, 4, number),
        "kv_heads": kv, "head_dim": random.choice([64.0, 128.0], number),
        "window": random.choice([0.0, 0.0, 1024.0], number),
    }  # fmt: skip
    one_of: dict[str, dict[str, Any]] = {
        "gemm": {"m": size(1, 8192), "n": size(256, 16384, 64), "k": size(256, 16384, 64)},
        "prefill_attention": attention,
        "decode_attention": attention,
        "moe": {
            "tokens": size(1, 8192), "hidden": size(1024, 8192, 64), "intermediate": size(512, 8192, 64),
            "experts": 2.0 ** random.integers(3, 8, number),
            "top_k": 2.0 ** random.integers(0, 4, number),
            "tensor_parallel": 2.0 ** random.integers(0, 3, number),
            "expert_parallel": 2.0 ** random.integers(0, 3, number),
            "skew": random.choice([0.0, 1.01, 1.2], number),
        },
        "all_reduce": {"gpus": 2.0 ** random.integers(1, 4, number), "elements": size(512, 2**27)},
        "mla": {"batch": size(1, 256), "length": size(32, 16384), "heads": kv * 8},
        "mla_bmm": {"tokens": size(1, 8192), "heads": kv * 8},
        "delta": {
            "batch": size(1, 256), "length": size(1, 16384), "k_heads": kv, "k_dim": 128.0 + 0 * kv,
            "v_heads": 4 * kv, "v_dim": 128.0 + 0 * kv,
        },
    }  # fmt: skip
    group = "mla_bmm" if name.startswith("mla_bmm") else name.partition("_")[0]
    return one_of.get(name) or one_of[group]

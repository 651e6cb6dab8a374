"""A GPU that serves language models, made up: its operations take what is usual for their forms."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from lolat.device.file import new_document
from lolat.llm.gpu import FittedKernel, FrameworkOverheads, ServingSection, Sheet
from lolat.llm.kernel_models import KERNEL_MODELS

DTYPES = {"gemm": ("bfloat16", "fp8"), "all_reduce": ("bfloat16",),
          "prefill_attention": ("bfloat16/bfloat16",),
          "decode_attention": ("bfloat16/bfloat16",)}  # fmt: skip
CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 20, "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 4096,
}  # fmt: skip
"""Of a language model that nobody knows by name."""


def _operation(name: str, dtype: str) -> FittedKernel:
    variant = KERNEL_MODELS[name].variants(dtype)[0]
    terms = {
        term: center for term, (center, _) in KERNEL_MODELS[name].terms(dtype, variant).items()
    }
    return FittedKernel(terms=terms, variant=variant, rows=100, spread=0.05)


def document() -> dict[str, Any]:
    """A profile that knows nothing but language models."""
    sheet = Sheet(multiprocessors=100, bandwidth_gb_s=2000, memory_gib=80, bf16_tflops=1000,
                  fp8_tflops=2000, link_gb_s=400)  # fmt: skip
    overheads = FrameworkOverheads(kernel_ms=2e-3, fp8_ms=1e-3, block_ms=3e-3, fp4_ms=4e-3, experts_ms=0.01,
                exchange_ms=5e-3, step_ms=0.5, parallel_ms=0.25, small=2.0,
                front_ms=20.0)  # fmt: skip
    operations = {n: {d: _operation(n, d) for d in dtypes} for n, dtypes in DTYPES.items()}
    section = ServingSection(
        sheet=sheet, operations=operations, overheads=overheads, framework="vllm", served=20
    )
    return {**new_document("gpu", "a gpu (vllm)", {}), "llm": to_builtins(section)}

"""Published configurations of decoders, and the error of one that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.errors import InputError
from lolat.llm import names
from lolat.llm.config import read_decoder
from lolat.llm.decoder import Decoder

SCOUT = {
    "model_type": "llama4_text", "vocab_size": 202048, "num_key_value_heads": 8, "head_dim": 128,
    "num_experts_per_tok": 1, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192,
    "num_hidden_layers": 48, "hidden_size": 5120, "intermediate_size": 8192, "num_attention_heads": 40,
    "num_local_experts": 16,
}  # fmt: skip
NOT_KNOWN_BY_NAME = {
    "llama-4-scout": SCOUT,
    "llama-4-maverick": {**SCOUT, "num_local_experts": 128, "interleave_moe_layer_step": 2},
    "glm-4.6": {
        "model_type": "glm4_moe", "vocab_size": 151552, "num_key_value_heads": 8, "head_dim": 128,
        "attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 3, "n_routed_experts": 160,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
        "num_hidden_layers": 92, "hidden_size": 5120, "intermediate_size": 12288, "num_attention_heads": 96,
    },
}  # fmt: skip


def published(name: str, **changes: Any) -> dict[str, Any]:
    found = NOT_KNOWN_BY_NAME.get(name) or names.published()[name]
    return {"tie_word_embeddings": False, **found, **changes}


def quantized(name: str, quantization: Any) -> Decoder:
    return read_decoder(published(name, quantization_config=quantization))


def refusal(config: Any, match: str | None = None) -> InputError:
    with pytest.raises(InputError, match=match) as caught:
        read_decoder(config)
    assert str(caught.value).isprintable()
    return caught.value

"""A decoder from its configuration, against transformers' own models, published sizes and hand counts."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.llm.config import _OF_SOME, read_decoder
from lolat.llm.decoder import Decoder, LayerGroup
from lolat.llm.names import find_decoder
from lolat.readers.torch.named import import_package
from tests.llm.configurations import published, refusal

SIZES: dict[str, Any] = {
    "num_hidden_layers": 7, "hidden_size": 96, "intermediate_size": 80, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 512,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
    "n_shared_experts": 2, "intermediate_size_mlp": 112, "sliding_window": 32,
    "attention_chunk_size": 32, "first_k_dense_replace": 2, "q_lora_rank": 20, "kv_lora_rank": 12,
    "qk_nope_head_dim": 10, "qk_rope_head_dim": 4, "v_head_dim": 14, "n_group": 1, "topk_group": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8,
    "linear_value_head_dim": 10, "linear_conv_kernel_dim": 4, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
DENSE = [
    "llama", "mistral", "ministral", "ministral3", "qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3",
    "qwen3_vl_text", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "granite", "qwen3_5_text",
]  # fmt: skip
EXPERTS = {
    "mixtral": "num_local_experts", "qwen3_moe": "num_experts",
    "qwen3_vl_moe_text": "num_experts", "gpt_oss": "num_local_experts", "minimax_m2": "num_local_experts",
    "glm4_moe": "n_routed_experts", "llama4_text": "num_local_experts",
    "deepseek_v2": "n_routed_experts", "deepseek_v3": "n_routed_experts", "qwen3_next": "num_experts",
    "qwen3_5_moe_text": "num_experts",
}  # fmt: skip
KINDS = [*DENSE, *EXPERTS]
FLAGS = ("attention_bias", "mlp_bias", "qkv_bias", "use_bias", "use_qk_norm", "tie_word_embeddings")


def small(kind: str, **changes: Any) -> dict[str, Any]:
    experts = {EXPERTS[kind]: 6} if kind in EXPERTS else {}
    return {"model_type": kind, **SIZES, **experts, "use_qk_norm": True, **changes}


@functools.cache
def transformers() -> Any:
    return import_package("transformers")


def built(config: dict[str, Any]) -> tuple[Any, int]:
    """(transformers' own configuration, parameters of its model); where it has no head, it gets one."""
    import torch

    settings = dict(config)
    own = transformers().AutoConfig.for_model(settings.pop("model_type"), **settings)
    mapping = transformers().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    decodes = own.model_type in mapping
    maker = transformers().AutoModelForCausalLM if decodes else transformers().AutoModel
    with torch.device("meta"):
        model = maker.from_config(own)
    without_head = not decodes and not config.get("tie_word_embeddings")
    head = own.vocab_size * own.hidden_size if without_head else 0
    return own, sum(p.numel() for p in model.parameters()) + head


def windows(own: Any) -> Counter[int]:
    """Window -> layers, of transformers' configuration."""
    key = "attention_chunk_size" if own.model_type == "llama4_text" else "sliding_window"
    window = getattr(own, key, None) or 0
    types = getattr(own, "layer_types", None)
    if types is None:  # all layers alike, and a kind without windows ignores the key
        slides = own.model_type in {"mistral", "ministral3", "mixtral", "phi3", "qwen3_moe"}
        types = ["sliding" if slides and window else "full_attention"] * own.num_hidden_layers
    whole = ("full_attention", "linear_attention")
    return Counter(0 if name in whole else window for name in types)


def windows_of(decoder: Decoder) -> Counter[int]:
    found: Counter[int] = Counter()
    for layer in decoder.kinds:
        found[layer.window] += layer.number
    return found


# ---- Parameters and windows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flag", [False, True])
def test_every_kind_is_as_transformers_builds_it(kind: str, flag: bool) -> None:
    config = small(kind, **dict.fromkeys(FLAGS, flag))
    # transformers ignores MiniMax's key, which all published files have.
    config["use_qk_norm"] = flag or kind == "minimax_m2"
    # transformers has a key of DeepSeek V2 that no published file has.
    config["mlp_bias"] = flag and kind != "deepseek_v2"
    own, parameters = built(config)
    decoder = read_decoder(config)
    assert decoder.parameters == parameters
    assert windows_of(decoder) == windows(own)
    assert decoder.layers == 7
    assert (decoder.active_parameters < parameters) == (kind in EXPERTS)


def test_queries_that_come_from_the_input_itself() -> None:
    """As in DeepSeek V2 Lite."""
    config = small("deepseek_v2", q_lora_rank=None)
    assert read_decoder(config).parameters == built(config)[1]


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_any_sizes_are_as_transformers_builds_them(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(st.sampled_from(KINDS))
    layers, kv_heads = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 4]))
    heads = kv_heads * draw(st.integers(1, 4))
    changes = {
        "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "num_attention_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([8, 12])),
        "decoder_sparse_step": draw(st.integers(1, 3)),
        "interleave_moe_layer_step": draw(st.integers(1, 3)),
        "mlp_only_layers": draw(st.lists(st.integers(0, 4), max_size=2)),
        "first_k_dense_replace": draw(st.integers(0, 3)),
        "use_sliding_window": draw(st.booleans()), "max_window_layers": draw(st.integers(0, 9)),
        "sliding_window_pattern": draw(st.integers(2, 4)),
    }  # fmt: skip
    if kind in ("gemma2", "gpt_oss"):  # a fixed pattern, and older files state the same
        changes["sliding_window_pattern"] = 2
    if "_vl" in kind:  # none of their files has another one, and transformers looks at it in some
        changes["head_dim"] = changes["hidden_size"] // heads
    types = st.sampled_from(["full_attention", "sliding_attention"])
    typed = ("qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss")
    if kind in typed and draw(st.booleans()):
        changes["layer_types"] = draw(st.lists(types, min_size=layers, max_size=layers))
    config = small(kind, **changes)
    own, parameters = built(config)
    decoder = read_decoder(config)
    assert decoder.parameters == parameters
    assert windows_of(decoder) == windows(own)


@pytest.mark.parametrize("given", [2, [0, 1]])
def test_experts_in_some_layers_by_frequency_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match=re.escape(f"moe_layer_freq is {given}")):
        read_decoder(small("deepseek_v3", moe_layer_freq=given))


def test_experts_in_other_layers_than_the_step_names_are_refused() -> None:
    """Transformers follows the list, vLLM the step."""
    layers = {"num_hidden_layers": 4, "interleave_moe_layer_step": 2}
    agreeing = read_decoder(small("llama4_text", **layers, moe_layers=[1, 3]))
    assert sum(one.number for one in agreeing.kinds if one.experts) == 2
    with pytest.raises(InputError, match="moe_layers names other layers"):
        read_decoder(small("llama4_text", **layers, moe_layers=[0, 1]))


@pytest.mark.parametrize(("whole", "text"), [(True, False), (False, True)])
def test_embeddings_tied_in_one_place_alone_are_refused(whole: bool, text: bool) -> None:
    inner = small("qwen3", tie_word_embeddings=text)
    with pytest.raises(InputError, match=f"tie_word_embeddings is {whole}, and {text} in its text"):
        read_decoder({"text_config": inner, "tie_word_embeddings": whole})
    assert read_decoder({"text_config": inner, "tie_word_embeddings": text}).tied == text


# Billions of parameters, and of them active, as published.
PUBLISHED = {
    "llama-3.1-8b": (8.03, 8.03), "llama-3.1-70b": (70.55, 70.55), "llama-3.1-405b": (405.85, 405.85),
    "qwen2.5-0.5b": (0.49, 0.49), "qwen2.5-1.5b": (1.54, 1.54), "qwen2.5-3b": (3.09, 3.09),
    "qwen2.5-7b": (7.62, 7.62), "qwen2.5-14b": (14.77, 14.77), "qwen2.5-32b": (32.76, 32.76),
    "qwen2.5-72b": (72.71, 72.71), "phi-4": (14.66, 14.66),
    "qwen3-8b": (8.19, 8.19), "qwen3-32b": (32.76, 32.76), "qwen3-30b-a3b": (30.53, 3.35),
    "qwen3-235b-a22b": (235.09, 22.19), "mixtral-8x7b": (46.70, 12.88),
    # The publisher counts 5.13 and 3.61 active: without the 0.58 of the embedding.
    "gpt-oss-120b": (116.83, 5.71), "gpt-oss-20b": (20.91, 4.19),
    "minimax-m2.5": (228.69, 11.03),  # published: 229 or 230, 10
    # Published in round numbers: 109 and 400 with the tower for images, 17 active; GLM 355 and 32. These
    # are what transformers counts, too.
    "llama-4-scout": (107.77, 17.17), "llama-4-maverick": (400.71, 17.18), "glm-4.6": (352.80, 33.63),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_sizes(name: str) -> None:
    config = published(name)
    decoder = read_decoder(config)
    sizes = (decoder.parameters, decoder.active_parameters)
    assert tuple(round(size / 1e9, 2) for size in sizes) == PUBLISHED[name]
    own = {key: value for key, value in config.items() if key != "quantization_config"}
    assert decoder.parameters == built({**own, "pad_token_id": 0})[1]


@pytest.mark.parametrize("key", ["num_key_value_heads", "sliding_window"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_is_left_out_is_as_in_transformers_or_refused(kind: str, key: str) -> None:
    config = small(kind, num_attention_heads=32, hidden_size=512)
    del config[key]
    as_many = {"llama", "granite", "phi3", "olmo2", "gemma3_text"}
    if key == "num_key_value_heads" and kind not in as_many:
        refusal(config, f"it has no {key}")
        return
    own, parameters = built(config)
    decoder = read_decoder(config)
    assert (decoder.parameters, windows_of(decoder)) == (parameters, windows(own))


@pytest.mark.parametrize(
    "other", ["LlamaForCausalLMEagle3", "EagleLlamaForCausalLM", "Qwen3Model",
              "LlamaForSequenceClassification"],
)  # fmt: skip
def test_a_model_that_writes_no_text_is_refused(other: str) -> None:
    """Heads that score or draft, and models that embed, have the same `model_type`."""
    found = refusal(published("llama-3.1-8b", architectures=[other]), f"{other}, write no text")
    assert found.code == "unknown-decoder"


def test_a_quantization_that_stands_beside_a_configuration(tmp_path: Path) -> None:
    """NVIDIA's own file; a file of old tools; an edit leaves the folder's time as it was."""
    path, config = tmp_path / "config.json", published("llama-3.1-8b")
    path.write_text(json.dumps(config))
    assert find_decoder(tmp_path).dtype == "bfloat16"
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert find_decoder(str(path)).dtype == "nvfp4"
    (tmp_path / "hf_quant_config.json").rename(tmp_path / "quantize_config.json")
    assert refusal(tmp_path, "quantize_config.json").code == "decoder-dtype"
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    path.write_text(json.dumps(config))
    assert find_decoder(tmp_path).dtype == "int4_wo"


def test_a_multimodal_model_is_its_decoder(tmp_path: Path) -> None:
    """Gemma 3 4B as published: its file leaves out heads, their size and the vocabulary."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152},
             "torch_dtype": "bfloat16"}  # fmt: skip
    (tmp_path / "gemma-3-4b").mkdir()
    path = tmp_path / "gemma-3-4b" / "config.json"
    path.write_text(json.dumps(whole))
    decoder = read_decoder(path.parent)
    assert decoder == read_decoder(str(path))
    assert (decoder.name, decoder.architecture) == ("gemma-3-4b", "gemma3_text")
    assert f"{decoder.parameters / 1e9:.2f}" == "3.88"  # 4.30 with its tower for images
    assert decoder.parameters == built(text)[1]
    assert decoder.kinds == (LayerGroup(number=29, window=1024), LayerGroup(number=5))
    text["quantization_config"] = None
    outer = {"quantization_config": {"quant_method": "fp8"}, "tie_word_embeddings": False}
    assert (read_decoder(whole | outer).dtype, read_decoder(whole | outer).tied) == ("fp8", False)
    assert read_decoder(small("qwen2_5_vl")).parameters == built(small("qwen2_5_vl_text"))[1]


# ---- Bytes


def test_gpt_oss_takes_the_memory_that_its_model_card_states() -> None:
    large, little = (read_decoder(published(f"gpt-oss-{size}b")) for size in (120, 20))
    assert (large.dtype, large.expert_dtype) == ("bfloat16", "w4a16_mxfp4")
    assert [f"{d.weight_bytes() / 2**30:.1f}" for d in (large, little)] == ["60.8", "12.8"]
    assert f"{large.parameters_by_part['attention'] / 1e9:.2f}" == "0.96"
    assert sum(large.parameters_by_part.values()) == large.parameters
    assert large.weight_bytes("nvfp4") > large.weight_bytes()  # its attention stays bfloat16 too
    assert large.weight_bytes("", "bfloat16") == 2 * large.parameters


def test_the_cache_by_hand() -> None:
    llama, gpt = read_decoder(published("llama-3.1-8b")), read_decoder(published("gpt-oss-20b"))
    assert llama.cache_bytes(1) == 128 * 1024
    assert llama.cache_bytes(1, "fp8") == 64 * 1024
    assert llama.cache_bytes(1000) == 1000 * 128 * 1024
    assert gpt.kinds == tuple(
        LayerGroup(number=12, window=w, experts=True, unquantized=frozenset({"attention"}))
        for w in (128, 0)
    )
    row = 2 * 8 * 64 * 2
    found = [gpt.cache_bytes(n) for n in (0, 128, 129)]
    assert found == [0, 24 * 128 * row, 12 * (128 + 129) * row]


# ---- Refusals


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("llama-3.1-8b", (1, 2, 4, 8, 16, 32), (3, 64)),
        ("qwen3-30b-a3b", (1, 2, 4, 8, 16, 32), (3, 6, 12)),
        ("minimax-m2.5", (1, 2, 4), (3, 6, 8, 12, 32)),  # 1,536 over 8 is a block and a half
    ],
)
def test_tensor_parallel(name: str, right: tuple[int, ...], wrong: tuple[int, ...]) -> None:
    decoder = read_decoder(published(name))
    for n in right:
        decoder.check_tensor_parallel(n)
    for n in wrong:
        with pytest.raises(InputError, match=f"one of {', '.join(map(str, right))}$") as caught:
            decoder.check_tensor_parallel(n)
        assert caught.value.code == "tensor-parallel"


def test_blocks_of_fp8_stay_whole() -> None:
    """vLLM refuses these two (issue 17327): "192 is not divisible by weight quantization block_n = 128".
    Experts that are not split are whole.
    """
    for name, parallel in (("Qwen/Qwen3-235B-A22B-FP8", 8), ("Qwen/Qwen3-30B-A3B-FP8", 4)):
        decoder = find_decoder(name)
        decoder.check_tensor_parallel(parallel // 2)
        decoder.check_tensor_parallel(parallel, parallel)
        decoder.check_tensor_parallel(parallel, 1, "bfloat16", "bfloat16")
        with pytest.raises(InputError, match=r"blocks of 128.* 192 wide") as caught:
            decoder.check_tensor_parallel(parallel)
        assert caught.value.code == "tensor-parallel"
    find_decoder("qwen3-32b-fp8").check_tensor_parallel(8)  # 25,600 over 8 are 25 blocks


def test_groups_of_four_bits_stay_whole() -> None:
    """vLLM refuses Qwen2.5 72B on two GPUs (issue 21695): 29,568 inputs are 231 groups of 128."""
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    as_published = published("llama-3.1-70b", intermediate_size=29568)
    decoder = read_decoder(as_published | {"quantization_config": awq})
    decoder.check_tensor_parallel(1)
    for n in (2, 4, 8):
        with pytest.raises(InputError, match="groups of 128, and feed_forward"):
            decoder.check_tensor_parallel(n)
    by_output = {"quantization_config": awq | {"group_size": -1}}
    for others in ({}, by_output):
        read_decoder(as_published | others).check_tensor_parallel(8)


def test_a_scale_for_each_output_has_no_bytes_of_groups() -> None:
    """Of 4 bits: a scale of 2 bytes for each 128 elements of a layer's matrices, by hand, or none."""
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    sizes = [
        read_decoder(
            published("llama-3.1-70b") | {"quantization_config": gptq | {"group_size": n}}
        ).weight_bytes()
        for n in (128, -1)
    ]
    matrices = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    assert sizes[0] - sizes[1] == matrices // 128 * 2


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("deepseek_v32", "sparse attention"), ("glm_moe_dsa", "sparse attention"), ("mamba", "state"),
        ("nemotron_h", "state"), ("kimi_linear", "another form"), ("bert", "not known"),
        ("gpt5\x1b[0m", "not known; expected one of llama, "),
    ],
)  # fmt: skip
def test_another_architecture_is_refused_by_name(name: str, needs: str) -> None:
    own = {"model_type": name}
    for config in (own, {"model_type": "seen", "text_config": own}):
        found = refusal(config, re.escape(needs))
        assert found.code == "unknown-decoder"
        assert name[:4] in str(found)


@pytest.mark.parametrize("text", ["[]", "weights,1", '{"model_type": 3}', None])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    found = refusal(tmp_path if text is not None else path, r"config\.json")
    assert found.code == "no-decoder-config"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *[("qwen3-30b-a3b", {key: value}) for value in (None, 0, "64", 10**12)
          for key in ("hidden_size", "num_hidden_layers", "num_experts")],
        ("llama-3.1-8b", {"num_attention_heads": 12}), ("llama-3.1-8b", {"num_attention_heads": 24}),
        ("llama-3.1-8b", {"intermediate_size": None}), ("llama-3.1-8b", {"tie_word_embeddings": "no"}),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 0}),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}),
        ("gpt-oss-20b", {"layer_types": ["sliding_attention"] * 24, "sliding_window": None}),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be(name: str, changes: dict[str, Any]) -> None:
    found = refusal(published(name, **changes), r"expected the config\.json")
    assert found.code == "decoder-config"
    key, value = next(iter(changes.items()))
    assert key in str(found) or str(value) in str(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
OTHERS = {"layer_types", "torch_dtype", "quantization_config", "text_config"}
KEYS = sorted({*SIZES, *FLAGS, *_OF_SOME, *OTHERS})
QUANTIZED = ["quant_method", "bits", "weight_block_size", "quant_algo", "config_groups", "ignore"]
METHODS = ["fp8", "awq", "modelopt", "compressed-tensors"]


@settings(max_examples=300)
@given(st.sampled_from(KINDS), st.sampled_from(METHODS), st.sampled_from(KEYS + QUANTIZED), JSON)
def test_any_value_is_read_or_refused_in_one_line(
    kind: str, method: str, key: str, value: Any
) -> None:
    quantization = {"quant_method": method, key: value}
    changes = {"quantization_config": quantization} if key in QUANTIZED else {key: value}
    config = small(kind, **changes)
    try:
        size = read_decoder(config).weight_bytes()
    except InputError as error:
        said, code = str(error), error.code
    else:
        said, code = f"{size} bytes", "decoder-" if size > 0 else ""
    assert said.isprintable()
    assert code.startswith(("decoder-", "unknown-decoder", "no-decoder-config"))


def test_mpt_with_rotation_by_alibi_has_the_parameters_of_transformers_own_model() -> None:
    sizes = {"d_model": 96, "n_heads": 6, "n_layers": 3, "expansion_ratio": 4, "vocab_size": 300}
    more = {"max_seq_len": 64, "no_bias": True, "attn_config": {"alibi": True}}
    config = {"model_type": "mpt", **sizes, **more}
    _, parameters = built(config)
    assert read_decoder(config).parameters == parameters


MPT_7B = {
    "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
    "vocab_size": 50368, "max_seq_len": 2048, "no_bias": True, "attn_config": {"alibi": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kv_heads", "of_layer"),
    [
        ({"attn_config": {"alibi": True, "attn_type": "multiquery_attention"}}, 1, 8 * 4096),
        ({"ffn_config": {"ffn_type": "mptglu", "ffn_hidden_size": 14336}}, 32, 3 * 14336),
        ({"ffn_config": {"ffn_type": "mptglu"}, "expansion_ratio": 3.5}, 32, 3 * 14336),
        ({"ffn_config": {"ffn_type": "mptmlp", "ffn_hidden_size": 11008}}, 32, 2 * 11008),
    ],
)
def test_mpt_has_the_heads_and_the_feed_forward_that_llm_foundry_builds(
    changes: dict[str, Any], kv_heads: int, of_layer: int
) -> None:
    """By hand: its MultiQueryAttention has one key and one value head of 128; its MPTGLU a third matrix."""
    decoder = read_decoder({**MPT_7B, **changes})
    attention = 4096 * (2 * 4096 + 2 * kv_heads * 128)
    assert (decoder.kv_heads, decoder.head_dim) == (kv_heads, 128)
    table = 50368 * 4096
    assert decoder.parameters == table + 32 * (attention + 4096 * of_layer + 2 * 4096) + 4096


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ffn_config": {"ffn_type": "mb_moe", "moe_num_experts": 8}}, "ffn_type is mb_moe"),
        ({"attn_config": {"attn_type": "multiquery_attention", "kv_n_heads": 8}}, "kv_n_heads 8"),
        ({"attn_config": {"attn_type": "grouped_query_attention"}}, "no kv_n_heads"),
        ({"block_overrides": {"order": []}}, "block_overrides"),
        ({"expansion_ratio": 2.6875001}, "intermediate_size is 11008"),
    ],
)
def test_an_mpt_that_is_built_otherwise_is_refused_by_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        read_decoder({**MPT_7B, **changes})


def test_the_window_of_mpt_limits_its_cache() -> None:
    """2 x 4,096 values of 2 bytes a token in each of 32 layers, of 1,000 tokens the last 256."""
    decoder = read_decoder({**MPT_7B, "attn_config": {"alibi": True, "sliding_window_size": 256}})
    assert decoder.cache_bytes(1000) == 32 * 2 * 4096 * 2 * 256


def test_mpt_with_learned_positions_has_the_parameters_of_published_runs() -> None:
    """llm-foundry states 6,658,859,008 parameters of its 7B with biases, 2,048 positions among them."""
    sizes = {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50368}
    config = {"model_type": "mpt", **sizes, "expansion_ratio": 4, "max_seq_len": 2048}
    with_biases = read_decoder(config)
    assert with_biases.parameters == 6_658_859_008
    without = read_decoder({**config, "no_bias": True})
    assert with_biases.parameters - without.parameters == 32 * 11 * 4096 + 4096
    assert without.positions == without.context == 2048

"""Data types of published models as their configurations state them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lolat.llm.config import read_decoder
from lolat.llm.decoder import WEIGHT_BYTES, LayerGroup
from lolat.llm.question import ServingQuestion
from lolat.llm.steps import deployment_of
from tests.llm.configurations import published, quantized, refusal
from tests.llm.known_gpu import section

EXCEPT_ENDS = [f"model.layers.{i}.{m}" for i in (0, 125) for m in
               ("mlp.down_proj", "mlp.gate_proj", "mlp.up_proj")]  # fmt: skip
ATTENTION = [f"model.layers.{i}.self_attn.{m}_proj" for i in range(126) for m in "qkvo"]


def compressed(
    kind: str, bits: int, strategy: str, inputs: int = 0, target: str = "Linear",
    group_size: int | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    weights = {"type": kind, "num_bits": bits, "strategy": strategy, "group_size": group_size}
    weights |= {"block_structure": [128, 128]} if strategy == "block" else {}
    activations = {"type": kind, "num_bits": inputs, "strategy": "token"} if inputs else None
    group = {"targets": [target], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "format": "x",
        "ignore": ["lm_head"], "kv_cache_scheme": None, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_wo"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4_wo"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8_block"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*lm_head": {}}}, "int4_wo"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8"),
        (compressed("float", 8, "channel", 8), "fp8"),
        (compressed("float", 8, "block", 8), "fp8_block"),
        (compressed("float", 4, "tensor_group", 4), "nvfp4"),
        (compressed("int", 4, "group", ignore=["re:.*lm_head"]), "int4_wo"),
        (compressed("int", 4, "channel"), "int4_wo"),
    ],
)
def test_a_quantized_model_says_its_data_type(quantization: dict[str, Any], dtype: str) -> None:
    decoder = quantized("llama-3.1-8b", quantization)
    assert (decoder.dtype, decoder.expert_dtype) == (dtype, dtype)
    assert decoder.kinds == (LayerGroup(number=32),)
    matrices = 32 * (4096 * (4096 + 1024) * 2 + 3 * 4096 * 14336)
    others = decoder.parameters - matrices
    in_groups = quantization != compressed(
        "int", 4, "channel"
    )  # one scale for each output is little
    each = WEIGHT_BYTES[dtype] if in_groups else 4 / 8
    assert decoder.weight_bytes() == round(others * 2 + matrices * each)
    assert decoder.weight_bytes("bfloat16") == 2 * decoder.parameters


def test_a_configuration_of_transformers_has_enumerations() -> None:
    quantization = pytest.importorskip("transformers.utils.quantization_config")
    awq = quantization.AwqConfig(bits=4, group_size=128).to_dict()
    assert quantized("llama-3.1-8b", awq).dtype == "int4_wo"


FP8_CACHE = {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": False}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        (compressed("float", 8, "tensor", 8, kv_cache_scheme=FP8_CACHE), "fp8"),
        (compressed("int", 4, "group", kv_cache_scheme=FP8_CACHE), "fp8"),
        (compressed("float", 8, "tensor", 8), ""),
        ({**MODELOPT, "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({**MODELOPT, "kv_cache_quant_algo": None}, ""),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, None),
        (compressed("int", 4, "group", kv_cache_scheme={**FP8_CACHE, "type": "int"}), None),
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, None),
    ],
)
def test_a_quantized_cache_is_read(quantization: dict[str, Any], dtype: str | None) -> None:
    """vLLM and TensorRT-LLM take it so; another data type is refused."""
    config = published("llama-3.1-8b", quantization_config=quantization)
    if dtype is None:
        assert refusal(config, "its cache is").code == "decoder-dtype"
        return
    decoder = read_decoder(config)
    assert decoder.kv_dtype == dtype
    known = section()  # vLLM on Hopper: bfloat16 if nothing is said
    assert deployment_of(known, decoder).kv_dtype == (dtype or "bfloat16")
    assert deployment_of(known, decoder, kv_dtype="bfloat16").kv_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("name", "left_out", "kept"),
    [
        ("llama-3.1-405b", [*ATTENTION, *EXCEPT_ENDS],
         {("attention",): 124, ("attention", "feed_forward"): 2}),
        ("llama-3.1-8b", ["model.layers.1"], {(): 31, ("attention", "feed_forward"): 1}),
        ("llama-3.1-8b", ["model.layers.1."], {(): 31, ("attention", "feed_forward"): 1}),
        ("llama-3.1-8b", ["language_model.model.layers.*.mlp*"], {("feed_forward",): 32}),
        ("llama-3.1-8b", ["re:.*qkv_proj", "re:.*o_proj"], {("attention",): 32}),
        ("llama-3.1-8b", ["model.layers.*.mlp.gate_up_proj", "re:.*down_proj"], {("feed_forward",): 32}),
        ("mixtral-8x7b", [rf"re:.*experts\.\d+\.w{n}" for n in (1, 2, 3)], {("experts",): 32}),
        ("minimax-m2.5", ["gate", "lm_head"], {(): 62}),
        ("minimax-m2.5", ["model.layers.*.block_sparse_moe.experts"], {("experts",): 62}),
        ("glm-4.6", [r"re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj"],
         {("attention", "feed_forward"): 92}),
    ],
)  # fmt: skip
def test_modules_that_are_not_converted_stay(
    name: str, left_out: list[str], kept: dict[tuple[str, ...], int]
) -> None:
    decoder = quantized(name, {"quant_method": "fp8", "modules_to_not_convert": left_out})
    found: Counter[tuple[str, ...]] = Counter()
    for layer in decoder.kinds:
        found[tuple(sorted(layer.unquantized))] += layer.number
    assert found == kept


FEED, BOTH = "feed_forward", ("attention", "feed_forward")


@pytest.mark.parametrize(
    ("name", "left_out", "kept"),
    [
        ("llama-3.1-8b", ["model.layers.0.", "model.layers.31."], {(): 30, BOTH: 2}),
        ("llama-3.1-8b", ["model.layers.0", "model.layers.31"], {(): 30, BOTH: 2}),
        ("llama-3.1-8b", ["layers.1"], {(): 21, BOTH: 11}),  # 1, and 10 to 19
        ("llama-3.1-8b", ["layers.1."], {(): 31, BOTH: 1}),
        ("llama-3.1-8b", ["attn"], {("attention",): 32}),
        ("llama-3.1-8b", ["self_attn.", "lm_head"], {("attention",): 32}),
        ("llama-3.1-8b", ["mlp."], {(FEED,): 32}),
        ("mixtral-8x7b", ["gate"], {(): 32}),  # the router; experts are one module
        ("mixtral-8x7b", ["block_sparse_moe.experts"], {("experts",): 32}),
        ("glm-4.6", ["mlp.gate.", "model.layers.0."], {(): 91, BOTH: 1}),
        ("glm-4.6", ["mlp.gate.", "model.layers.91."], {(): 91, ("attention", "experts", FEED): 1}),
    ],
)  # fmt: skip
def test_awq_leaves_out_by_any_part_of_a_name(
    name: str, left_out: list[str], kept: dict[tuple[str, ...], int]
) -> None:
    """The rule of vLLM and SGLang, `any(part in name for part in modules_to_not_convert)`, by hand."""
    decoder = quantized(
        name,
        {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": left_out},
    )
    found: Counter[tuple[str, ...]] = Counter()
    for layer in decoder.kinds:
        found[tuple(sorted(layer.unquantized))] += layer.number
    assert found == kept
    whole = quantized(name, {"quant_method": "awq", "bits": 4, "group_size": 128})
    if name == "llama-3.1-8b":
        matrices = {"attention": 4096 * (4096 + 1024) * 2, FEED: 3 * 4096 * 14336}
        more = sum(n * matrices[part] for parts, n in kept.items() for part in parts)
        expected = more * (2 - WEIGHT_BYTES["int4_wo"])
        assert decoder.weight_bytes() - whole.weight_bytes() == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"torch_dtype": "int8"},
        {"quantization": {"group_size": 64, "bits": 4}},  # MLX
        *[{"quantization_config": quantization} for quantization in (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            {"quant_method": "fp8", "modules_to_not_convert": ["re:("]},
            {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "awq", "bits": 8},
            {"quant_method": "gptq", "bits": 4, "group_size": 32},
            {"quant_method": "awq", "bits": 4, "group_size": 64},
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True},
            compressed("int", 4, "group", group_size=32), compressed("int", 4, "group", group_size=-1),
            {"quant_method": "quark"},
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}},
            {"quant_method": "auto-round", "bits": 4},
            {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["self_attn.o_proj"]]},
            compressed("int", 4, "group", target=r"re:.*mlp\.experts\..*_proj$"),
            {"quant_method": "fp8", "weight_block_size": [64, 64]}, {"bits": 4},
            {"quant_method": "mxfp4"},
            {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, compressed("int", 8, "channel", 8),
            compressed("int", 4, "channel", 8), compressed("float", 8, "channel"),
            compressed("float", 4, "tensor_group"),
            compressed("int", 4, "group", format="marlin-24"),
            compressed("float", 8, "channel", 8, sparsity_config={"sparsity_structure": "2:4"}),
            {"quant_method": "fp8", "modules_to_not_convert": ["re:.*down_proj"]},
            {"quant_method": "fp8", "modules_to_not_convert": ["re:.*gate_up_proj"]},
            {**compressed("float", 8, "tensor", 8), "config_groups": {
                str(bits): compressed("float", bits, "group", bits)["config_groups"]["group_0"]
                for bits in (4, 8)}},
        )],
    ],
)  # fmt: skip
def test_a_quantization_that_has_no_data_type(changes: dict[str, Any]) -> None:
    assert refusal(published("llama-3.1-8b", **changes)).code in ("decoder-dtype", "decoder-config")


@pytest.mark.parametrize(
    ("given", "known"),
    [("auto", ""), ("bf16", "bfloat16"), ("fp8_e4m3", "fp8"), ("FP8_E5M2", "fp8")],
)
def test_a_cache_has_the_names_of_vllm(given: str, known: str) -> None:
    assert ServingQuestion(kv_dtype=given).kv_dtype == known

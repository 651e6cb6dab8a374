"""Names of language models: each published id with each way to say its data type; names that are none."""

from __future__ import annotations

import re

import pytest

from lolat import load
from lolat.api.serving import serving_models
from lolat.errors import InputError
from lolat.llm.names import find_decoder, find_decoders, is_decoder, published
from lolat.web.values import language_model

# Of model cards on Hugging Face: the id, tokens of context, window, words of the vocabulary.
IDS = {
    "Qwen/Qwen3-0.6B": (40960, 0, 151936), "Qwen/Qwen3-1.7B-Base": (32768, 0, 151936),
    "Qwen/Qwen3-4B": (40960, 0, 151936), "Qwen/Qwen3-4B-Instruct-2507": (262144, 0, 151936),
    "Qwen/Qwen3-4B-Thinking-2507": (262144, 0, 151936), "Qwen/Qwen3-8B": (40960, 0, 151936),
    "Qwen/Qwen3-8B-Base": (32768, 0, 151936), "Qwen/Qwen3-14B": (40960, 0, 151936),
    "Qwen/Qwen3-32B": (40960, 0, 151936), "Qwen/Qwen3-30B-A3B": (40960, 0, 151936),
    "Qwen/Qwen3-30B-A3B-Base": (32768, 0, 151936), "Qwen/Qwen3-30B-A3B-Instruct-2507": (262144, 0, 151936),
    "Qwen/Qwen3-30B-A3B-Thinking-2507": (262144, 0, 151936), "Qwen/Qwen3-235B-A22B": (40960, 0, 151936),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": (262144, 0, 151936),
    "Qwen/Qwen3-235B-A22B-Thinking-2507": (262144, 0, 151936),
    "meta-llama/Llama-3.1-8B": (131072, 0, 128256), "meta-llama/Llama-3.1-8B-Instruct": (131072, 0, 128256),
    "meta-llama/Meta-Llama-3.1-70B-Instruct": (131072, 0, 128256),
    "meta-llama/Meta-Llama-3.1-405B": (131072, 0, 128256),
    "meta-llama/Llama-3.2-1B-Instruct": (131072, 0, 128256), "meta-llama/Llama-3.2-3B": (131072, 0, 128256),
    "meta-llama/Llama-3.3-70B-Instruct": (131072, 0, 128256),
    "mistralai/Mistral-7B-v0.1": (32768, 4096, 32000),
    "mistralai/Mistral-7B-Instruct-v0.1": (32768, 4096, 32000),
    "mistralai/Mistral-7B-Instruct-v0.2": (32768, 0, 32000),
    "mistralai/Mistral-7B-v0.3": (32768, 0, 32768), "mistralai/Mistral-7B-Instruct-v0.3": (32768, 0, 32768),
    "mistralai/Mixtral-8x7B-v0.1": (32768, 0, 32000),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (32768, 0, 32000),
    "MiniMaxAI/MiniMax-M2.5": (196608, 0, 200064),
}  # fmt: skip
TYPES = {
    "bfloat16": ["-bf16"],
    "int4_wo": ["-AWQ", "-GPTQ", "-GPTQ-Int4", "-AWQ-INT4", "-GPTQ-4bit", "-quantized.w4a16", "-W4A16-G128",
                "-INT4", "-awq-4bit"],
    "fp8": ["-FP8-dynamic", "-FP8-KV", "-quantized.w8a8-FP8"],
    "fp8_block": ["-FP8-block"],
    "nvfp4": ["-NVFP4", "-FP4"],
    "": ["-GPTQ-Int8", "-quantized.w8a8", "-INT8", "-AWQ-8bit", "-bnb-4bit", "-BNB-NF4", "-GGUF",
         "-Q4_K_M.gguf", ".Q8_0.gguf", "-NVFP4A16", "-MXFP4", "-MLX-4bit", "-4bit", "-W4A8", "-exl2",
         "-banana", "-Instruct-Instruct", "-AWQ-banana", "-FP9", "-FP8-GGUFx", "-2508", ".json", "-"],
}  # fmt: skip
"""Behind an id -> its data type; "": it is refused."""
OWNERS = ("", "RedHatAI/", "/models/")


@pytest.mark.parametrize("name", IDS)
def test_an_id_has_its_own_context_window_and_vocabulary(name: str) -> None:
    decoder = find_decoder(name)
    assert (decoder.context, decoder.kinds[0].window, decoder.vocab) == IDS[name]
    small = name.rpartition("/")[2].lower().removeprefix("meta-")
    assert decoder.name == small
    base = max((n for n in published() if small.startswith(n)), key=len)
    same = find_decoder(base)
    assert (decoder.layers, decoder.hidden, decoder.dtype) == (same.layers, same.hidden, same.dtype)


def test_two_names_of_one_model_are_one() -> None:
    """Its name at the Hub, and the short one."""
    names = ["qwen3-8b", "Qwen/Qwen3-8B", "qwen3-8b", "qwen3-32b"]
    assert [*find_decoders(names)] == ["qwen3-8b", "qwen3-32b"]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_name_is_the_data_type_that_it_says_or_refused(name: str, dtype: str) -> None:
    alone = name.rpartition("/")[2]
    for owner in OWNERS:
        for words in TYPES[dtype]:
            given = f"{owner}{alone}{words}"
            if not dtype:
                with pytest.raises(InputError) as caught:
                    find_decoder(given)
                assert caught.value.code == "decoder-dtype", given
                assert given in caught.value.message
                continue
            # MiniMax is published in blocks, and what is called FP8 of it is that.
            expected = "fp8_block" if (dtype, alone[:7]) == ("fp8", "MiniMax") else dtype
            decoder = find_decoder(given)
            assert (decoder.dtype, decoder.expert_dtype) == (expected, expected), given
            assert decoder.context == IDS[name][0]
            assert decoder.kv_dtype == ("fp8" if words.endswith("KV") else "")


@pytest.mark.parametrize(
    ("name", "dtypes", "cache"),
    [
        ("Qwen/Qwen3-32B-FP8", ("fp8_block", "fp8_block"), ""),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", ("fp8_block", "fp8_block"), ""),
        ("nvidia/Qwen3-32B-FP8", ("fp8", "fp8"), "fp8"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", ("fp8", "fp8"), "fp8"),
        ("nvidia/Llama-3.1-8B-Instruct-FP4", ("nvfp4", "nvfp4"), "fp8"),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", ("nvfp4", "nvfp4"), "fp8"),
        ("nvidia/Llama-3.1-8B-Instruct", ("bfloat16", "bfloat16"), ""),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", ("fp8", "fp8"), ""),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-KV", ("fp8", "fp8"), "fp8"),
        ("minimax-m2.5-fp8", ("fp8_block", "fp8_block"), ""),
        ("minimax-m2.5-nvfp4", ("nvfp4", "nvfp4"), ""),
        ("openai/gpt-oss-20b", ("bfloat16", "w4a16_mxfp4"), ""),
        ("gpt-oss-120b-mxfp4", ("bfloat16", "w4a16_mxfp4"), ""),
        ("unsloth/gpt-oss-20b-BF16", ("bfloat16", "bfloat16"), ""),
    ],
)
def test_publishers_have_their_own_ways(name: str, dtypes: tuple[str, str], cache: str) -> None:
    """The hf_quant_config.json of NVIDIA's FP8 and FP4 says: kv_cache_quant_algo is FP8."""
    decoder = find_decoder(name)
    assert (decoder.dtype, decoder.expert_dtype, decoder.kv_dtype) == (*dtypes, cache)


@pytest.mark.parametrize(
    ("name", "is_quantized"),
    [("Qwen/Qwen3-32B-GGUF", True), ("qwen3-32b-q4_k_m", True), ("qwen3-32b-bnb-4bit", True),
     ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", False), ("mpt-7b-storywriter", False)],
)  # fmt: skip
def test_another_model_is_no_quantization(name: str, is_quantized: bool) -> None:
    """DeepSeek-R1-Distill-Llama-70B has 70 billion parameters; DeepSeek R1 with --dtype has 671."""
    with pytest.raises(InputError) as caught:
        find_decoder(name)
    assert ("for an estimate of a quantized" in caught.value.message) is is_quantized


@pytest.mark.parametrize("end", ["AWQ", "FP8", "GGUF"])
def test_experts_in_mxfp4_have_no_other_data_type(end: str) -> None:
    with pytest.raises(InputError) as caught:
        find_decoder(f"gpt-oss-20b-{end}")
    assert caught.value.code == "decoder-dtype"


def test_metas_own_fp8_keeps_attention_and_the_outer_layers() -> None:
    """Its config.json: modules_to_not_convert names all of self_attn, and the mlp of layers 0 and 125."""
    own, other = (
        find_decoder(f"{owner}/Llama-3.1-405B-Instruct-FP8") for owner in ("meta-llama", "x")
    )
    matrices = 126 * 2 * (16384 * 16384 + 16384 * 1024) + 2 * 3 * 16384 * 53248
    assert own.weight_bytes() - other.weight_bytes() == matrices


def test_a_name_that_is_none_is_told_the_nearest() -> None:
    for name, near in (
        ("llama-3.1-70b-banana", "llama-3.1-70b is known"),
        ("lama-3.1-70b-instruct", "did you mean llama-3.1-70b-instruct"),
        ("llama3-70b", r"did you mean .*llama-3\.1-70b"),
        ("qwen3.5", "did you mean qwen3.5-397b-a17b"),
        ("banana", "llama-3.3-70b"),
        ("deepseek", r"did you mean deepseek-v3 or deepseek-r1\?"),
        ("yi-1.5-34b", r"file config\.json from the model's page .*; known by name are "),
    ):
        with pytest.raises(InputError, match=near) as caught:
            find_decoder(name)
        assert "config.json" in caught.value.message


def test_the_page_takes_the_same_names() -> None:
    assert language_model("Qwen/Qwen3-32B-AWQ") == "Qwen/Qwen3-32B-AWQ"
    for name in ("qwen3-32b-gguf", "/etc/passwd", "../config.json", "qwen3-32b-banana"):
        with pytest.raises(InputError):
            language_model(name)
    with pytest.raises(InputError, match="several; expected one language model"):
        language_model("qwen3-8b,qwen3-32b")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("awq", "did you mean int4_wo?"), ("gptq", "did you mean int4_wo?"),
        ("fp16", "did you mean bfloat16?"), ("fp4", "did you mean nvfp4?"), ("int8", "expected one of "),
        ("mxfp4", "expected one of "), ("bfloat16,fp8", "lolat.compare takes several"),
    ],
)  # fmt: skip
def test_a_data_type_in_the_words_of_others_is_named_as_ours(given: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        load("h100-vllm").llm("qwen3-8b", dtype=given)


def test_a_data_type_that_a_gpu_lacks_is_that_of_the_name_that_was_given() -> None:
    with pytest.raises(InputError, match=r"^qwen3-32b-fp4 is in nvfp4: this GPU computes "):
        load("h100-vllm").llm("nvidia/Qwen3-32B-FP4")


def test_an_id_of_a_known_family_is_a_language_models() -> None:
    """So that its error asks for the config.json, not for a network; a file's name is none."""
    for name in ("Qwen/Qwen1.5-7B-Chat", "qwen1.5-7b", "mistralai/Mistral-8B", "llama9"):
        assert is_decoder(name)
    for name in ("timm/resnet51", "llama3.onx", "nets/gpt2.pt", "microsoft/resnet-50"):
        assert not is_decoder(name)
    with pytest.raises(InputError, match=r"config\.json .* huggingface\.co"):
        find_decoder("Qwen/Qwen1.5-7B-Chat")


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("a100", "a100-vllm"), ("a100-80gb", "a100-vllm"), ("A100-80GB", "a100-vllm"),
        ("a100-sxm", "a100-vllm"), ("NVIDIA A100-SXM4-80GB", "a100-vllm"), ("a100-40gb", None),
        ("a100-pcie", None), ("a100-sxm-40gb", None), ("h100-80gb", "h100-vllm"),
        ("nvidia-h100-80gb", "h100-vllm"), ("h100-pcie", None), ("l40s", "l40s-vllm"),
    ],
)  # fmt: skip
def test_a_card_that_leaves_form_or_memory_open_is_the_served_one(
    name: str, profile: str | None
) -> None:
    """Price lists call the SXM card of 80 GB A100-80GB; one that is another card by its name is not it."""
    found = serving_models(name).models
    names = [model.profile for model in found.values()]
    assert (profile in names) if profile else (names == [name])


def test_the_card_of_an_open_name_is_told() -> None:
    answer = serving_models("a100-40gb").models["a100-40gb"].llm("llama-3.1-8b", concurrency=1)
    assert any("is taken as A100 PCIe 40 GB" in told for told in answer.warnings)

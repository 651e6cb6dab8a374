"""Names of published language models: a known id, and behind it how the weights were quantized.

`Qwen/Qwen3-32B-AWQ` is the model qwen3-32b with 4-bit weights. The end of a name is one of SUFFIXES, or the
name is refused: an answer for another model than was asked for would look as good.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from lolat.errors import InputError, arg
from lolat.llm.config import read_decoder
from lolat.llm.decoder import DTYPES, Decoder
from lolat.llm.quantization import NEAREST
from lolat.units import did_you_mean, plain, shortened

PUBLISHED = Path(__file__).parent / "published.json"
"""Configurations of well-known models by name, the keys that say their sizes."""
_LONG, _SHORT = {"max_position_embeddings": 262144}, {"max_position_embeddings": 32768}
_OLD = {"vocab_size": 32000}
_WINDOW = {**_OLD, "sliding_window": 4096}
VERSIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (r"llama-3\.\d-\d+b", "instruct", {}),
    (r"qwen3-(0\.6|1\.7|4|8|14)b|qwen3-30b-a3b", "base", _SHORT),
    (r"qwen3-(4b|30b-a3b|235b-a22b)", "instruct-2507", _LONG),
    (r"qwen3-(4b|30b-a3b|235b-a22b)", "thinking-2507", _LONG),
    ("mistral-7b", "v0.1", _WINDOW), ("mistral-7b", "instruct-v0.1", _WINDOW),
    ("mistral-7b", "v0.2", _OLD), ("mistral-7b", "instruct-v0.2", _OLD),
    ("mistral-7b", "v0.3", {}), ("mistral-7b", "instruct-v0.3", {}),
    ("mixtral-8x7b", "v0.1", {}), ("mixtral-8x7b", "instruct-v0.1", {}),
)  # fmt: skip
"""Names in published.json, what their ids go on with, what differs there."""
_META_FP8 = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [
    "self_attn", "model.layers.0.mlp", "model.layers.125.mlp"]}  # fmt: skip
OWN: Mapping[str, Mapping[str, Any]] = {
    "meta-llama/llama-3.1-405b-fp8": {"quantization_config": _META_FP8},
    "meta-llama/llama-3.1-405b-instruct-fp8": {"quantization_config": _META_FP8},
}
"""What differs where a publisher's own id says less than its configuration."""
PER_TENSOR = ("nvidia", "redhatai", "neuralmagic")
"""Publishers of Qwen3 in FP8 with a scale a tensor or channel; Qwen's own has one for each block."""
_4, _8 = r"(int4|4-?bits?)", r"(int8|8-?bits?)"
FP8_CACHE = ("nvidia",)
"""Publishers whose FP8 and FP4 models state an FP8 cache (hf_quant_config.json, kv_cache_quant_algo)."""
SUFFIXES: Mapping[str, tuple[str, str]] = {
    "bf16|fp16|bfloat16|float16": ("bfloat16", ""),
    rf"(awq|gptq)(-{_4}|-w4a16)?(-g128|-128g)?|{_4}-(awq|gptq)|int4(-w4a16)?|(quantized\.)?w4a16(-g128)?":
        ("int4_wo", ""),
    r"fp8(-dynamic|-kv|-w8a8)?|(quantized\.)?w8a8-fp8": ("fp8", ""),
    "fp8-block": ("fp8_block", ""),
    "nvfp4|fp4": ("nvfp4", ""),
    "mxfp4": ("w4a16_mxfp4", ""),
    r"(quantized\.)?w8a8(-int8)?|int8-w8a8|int8": ("", "8-bit integers"),
    rf"(awq|gptq)-{_8}|{_8}-(awq|gptq)|int8-w8a16|(quantized\.)?w8a16(-int8)?": ("", "8-bit integers"),
    rf"(unsloth-)?(bnb|bitsandbytes)(-({_4}|{_8}|nf4|fp4))?|nf4": ("", "bitsandbytes"),
    r"(.+[.-])?gguf|(ud-)?i?q\d(_\w+)?([.-].*)?|(bf16|f16|f32)\.gguf": ("", "GGUF"),
    r"mlx(-.*)?|[2-8]bit(-dwq.*)?": ("", "MLX"),
    "nvfp4a16|nvfp4-w4a16|fp8a16": ("", "floats of 4 or 8 bits with inputs of 16"),
    r"w4a8.*|w4afp8|quantized\.w4a8.*|mxfp8|mxfp6": ("", "4 bits with inputs of 8, or in MX of 6 or 8"),
    r"(awq|gptq)-(int)?[2-8](-?bits?)?|int[2-8]|(quantized\.)?w[1-7]a\d+": ("", "another number of bits"),
    r"(exl[23]|hqq|aqlm|eetq|quip|autoround|torchao|ao|quark)([-_].*)?": ("", "another method"),
}  # fmt: skip
"""A pattern of what is behind an id -> its data type, or what it is, where no kernel here stands for it."""


def find_decoder(config: Any) -> Decoder:
    """A decoder: of a configuration as a mapping, of a file or folder, or a published name.

    InputError: code "decoder" where there is neither such a file nor such a name; "decoder-dtype" for a
    name in a data type that is not known.
    """
    if isinstance(config, Decoder):
        return config
    if isinstance(config, Mapping):
        return read_decoder(config)
    if not isinstance(config, str | os.PathLike):
        raise InputError(
            f"{arg('config')} {shortened(repr(config))}: expected the path of a config.json, its content, "
            "or a known name such as qwen3-32b",
            code="decoder",
        )
    return read_decoder(config) if Path(config).exists() else named(str(config))


@lru_cache(maxsize=64)
def named(given: str) -> Decoder:
    """The decoder of a published id, with or without its publisher; InputError as of `find_decoder`."""
    name = re.sub("^meta-(?=llama)", "", given.rpartition("/")[2].casefold())
    owner = given.rpartition("/")[0].rpartition("/")[2].casefold()
    if own := OWN.get(f"{owner}/{name}"):
        return replace(read_decoder({**known()[name.removesuffix("-fp8")], **own}), name=name)
    found = next((n for n in known() if name == n or name.startswith((f"{n}-", f"{n}."))), "")
    rest = name[len(found) + 1 :]
    row = next((row for form, row in SUFFIXES.items() if re.fullmatch(form, rest)), None)
    if not found or (name != found and row is None):
        near = f"{found} is known, and {shortened(rest)!r} behind it is not"
        if not found:
            ids = {name: name for name in known()}
            near = did_you_mean(name, ids, f"known by name are {', '.join(published())}")
        raise InputError(
            f"{plain(given)}: no such file, nor a known model; expected a config.json as published with "
            f"the model; {near}",
            code="decoder",
        )
    decoder = replace(read_decoder(known()[found]), name=name)
    return decoder if row is None else _quantized(decoder, given, found, owner, rest, *row)


def _quantized(
    decoder: Decoder, given: str, base: str, owner: str, rest: str, dtype: str, why: str
) -> Decoder:
    """The decoder in a data type that its name says."""
    has_mxfp4 = decoder.expert_dtype.endswith("mxfp4")
    if dtype == decoder.expert_dtype:
        return decoder
    if dtype != "bfloat16" and (has_mxfp4 or dtype.endswith("mxfp4")):
        why = f"{base} in {rest}"
    if why:
        raise InputError(
            f"{plain(given)}: its quantization ({why}) was not timed; expected one of {', '.join(DTYPES)}; "
            f"for an estimate give {base} and {NEAREST}",
            code="decoder-dtype",
        )
    in_blocks = base.startswith("qwen3") and rest == "fp8" and owner not in PER_TENSOR
    if dtype == "fp8" and (in_blocks or decoder.dtype == "fp8_block"):
        dtype = "fp8_block"
    decoder = replace(decoder, dtype=dtype, expert_dtype=dtype)
    if rest.endswith("-kv"):
        return replace(decoder, kv_dtype="fp8")
    if owner in FP8_CACHE and dtype in ("fp8", "fp8_block", "nvfp4"):
        remark = (
            f"the cache is FP8, as {owner} publishes this model; --kv-dtype bfloat16 changes it"
        )
        return replace(decoder, kv_dtype="fp8", cache_remark=remark)
    if not owner and rest in ("fp8", "fp4", "nvfp4") and dtype != "fp8_block":
        remark = (
            f"the name {decoder.name} does not tell the type of the cache: NVIDIA's model has FP8 "
            "(--kv-dtype fp8), those of most others bfloat16 (--kv-dtype bfloat16)"
        )
        return replace(decoder, cache_remark=remark)
    return decoder


@lru_cache(maxsize=1)
def published() -> dict[str, dict[str, Any]]:
    """Configurations by short name."""
    known: dict[str, dict[str, Any]] = msgspec.json.decode(PUBLISHED.read_bytes())
    return known


@lru_cache(maxsize=1)
def known() -> dict[str, dict[str, Any]]:
    """Configurations by id in small letters, without the publisher; the longest id first."""
    found = published() | {
        f"{name}-{words}": {**config, **differs}
        for name, config in published().items()
        for models, words, differs in VERSIONS
        if re.fullmatch(models, name)
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))

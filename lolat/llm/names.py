"""Finds a published language model by its id; the suffix of an id may name the quantization of the weights.

`Qwen/Qwen3-32B-AWQ` is qwen3-32b with 4-bit weights. An id with an unknown suffix is refused, because
nobody would notice an answer for the wrong language model.
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
from lolat.io.forms import BARE, looks_like_network
from lolat.llm.config import read_decoder
from lolat.llm.decoder import Decoder
from lolat.llm.quantization import NEAREST
from lolat.units import did_you_mean, names_in, plain, shortened, similar, value_words

PUBLISHED = Path(__file__).parent / "published.json"
"""The file with configurations of well-known language models by name, reduced to the keys that give
sizes."""
_LONG, _SHORT = {"max_position_embeddings": 262144}, {"max_position_embeddings": 32768}
_OLD = {"vocab_size": 32000}
VERSIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (r"llama-3\.\d-\d+b", "instruct", {}), (r"llama-2-\d+b", "hf chat-hf", {}),
    (r"qwen3-(0\.6|1\.7|4|8|14)b|qwen3-30b-a3b", "base", _SHORT),
    (r"qwen3-(4b|30b-a3b|235b-a22b)", "instruct-2507 thinking-2507", _LONG),
    (r"qwen2\.5-[\d.]+b", "instruct", _SHORT),
    ("mistral-7b", "v0.1 instruct-v0.1", {**_OLD, "sliding_window": 4096}),
    ("mistral-7b", "v0.2 instruct-v0.2", _OLD), ("mistral-7b", "v0.3 instruct-v0.3", {}),
    ("deepseek-v3", "0324 base .1", {}), ("deepseek-r1", "0528", {}),
    ("kimi-k2", "instruct", {}), ("kimi-k2", "instruct-0905", _LONG),
    ("qwen3-next-80b-a3b", "instruct thinking", {}), ("mixtral-8x7b", "v0.1 instruct-v0.1", {}),
)  # fmt: skip
"""(pattern of names in published.json, suffixes of the ids of further versions, keys that differ in
these)."""
SPARSE = {r"deepseek-v3\.[2-9].*": "deepseek_v32", "glm-5.*": "glm_moe_dsa"}
"""Pattern of names that are refused -> their architecture, which the refusal names."""
_META_FP8 = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [
    "self_attn", "model.layers.0.mlp", "model.layers.125.mlp"]}  # fmt: skip
_405B = (f"meta-llama/llama-3.1-405b{version}-fp8" for version in ("", "-instruct"))
OWN: Mapping[str, Mapping[str, Any]] = {id_: {"quantization_config": _META_FP8} for id_ in _405B}
"""Id of a published language model -> the keys that differ in its configuration."""
PER_TENSOR = ("nvidia", "redhatai", "neuralmagic")
"""Publishers whose Qwen3 in FP8 has a scale for each tensor or channel; Qwen's own has a scale for each
block."""
_4 = r"(int4|4-?bits?)"
_QUANTIZED = re.compile(r"\d-?bit|\b[qw]\d|(int|fp|nf)\d|gguf|mlx|bnb|awq|gptq|quant")
"""Matches words that only the suffixes of quantized weights have."""
_VERSION = re.compile(r"[a-z]+(\d+(\.\d+)?)")
"""Matches a family and its version at the beginning of an id, such as qwen3 or llama3.1."""
FP8_CACHE = "nvidia"
"""The publisher whose FP8 and FP4 files ask for an FP8 cache (kv_cache_quant_algo)."""
SUFFIXES = {
    "bf16|fp16|bfloat16|float16": "bfloat16",
    rf"(awq|gptq)(-{_4}|-w4a16)?(-g128|-128g)?|{_4}-(awq|gptq)|int4(-w4a16)?|(quantized\.)?w4a16(-g128)?":
        "int4_wo",
    r"fp8(-dynamic|-kv|-w8a8)?|(quantized\.)?w8a8-fp8": "fp8",
    "fp8-block": "fp8_block",
    "(nv)?fp4(-v2)?": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
}  # fmt: skip
"""Pattern of an id's suffix -> the data type of the weights."""


def configs_of(given: Any) -> tuple[Any, ...]:
    """The configurations in an argument: one, several in a sequence, or several names with commas.

    A mapping from names to configurations becomes decoders that have these names.
    """
    if isinstance(given, Mapping) and given and all(map(is_decoder, given.values())):
        return tuple(replace(find_decoder(one), name=name) for name, one in given.items())
    if isinstance(given, str) and not Path(given).exists():
        given = names_in(given) or [given]
    return tuple(given) or (given,) if isinstance(given, list | tuple) else (given,)


def find_decoders(given: Any) -> dict[str, Decoder]:
    """Find the decoders of one or several configurations, by name, each once.

    InputError as in `find_decoder`, and if two configurations have the same name.
    """
    found, names = dict[str, Decoder](), list[str]()
    for one in configs_of(given):
        decoder = find_decoder(one)
        is_path = isinstance(one, str | os.PathLike)
        if is_path and not Path(one).exists() and decoder in found.values():
            continue  # another name of it
        names.append(str(one) if is_path else decoder.name)
        found[names[-1]] = decoder
    if len(found) < len(names):
        why = "expected each language model once, those of one name as files"
        raise InputError(f"{arg('config')} {', '.join(names)}: {why}", code="decoder")
    return found


def find_decoder(config: Any) -> Decoder:
    """Find the decoder of a configuration (a mapping, a file, its folder) or of a published id.

    InputError with code "decoder" (no such file and no such id) or "decoder-dtype" (an unknown suffix of an
    id).
    """
    if isinstance(config, Decoder):
        return config
    if isinstance(config, Mapping):
        return read_decoder(config)
    if not isinstance(config, str | os.PathLike):
        raise InputError(
            f"{arg('config')} {value_words(config)}: expected one language model, as the path of a "
            "config.json, its content, or a known name such as qwen3-32b; for several lolat.compare(...)",
            code="decoder",
        )
    if Path(config).exists():
        return read_decoder(config)
    return named(str(config))


def is_decoder(network: Any) -> bool:
    """True if a network is a decoder: a configuration, its file or folder, or a known id.

    A misspelled id also counts, so that `named` can suggest the right one.
    """
    if isinstance(network, Decoder):
        return True
    if isinstance(network, Mapping):
        return "model_type" in network
    if not isinstance(network, str | os.PathLike) or looks_like_network(os.fspath(network)):
        return False
    path = Path(network)
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        return path.suffix.lower() == ".json" and b'"model_type"' in path.read_bytes()
    try:
        return bool(named(str(network)))
    except InputError as error:
        if error.code != "decoder":  # a known one that is refused, such as by its quantization
            return True
        name = str(network).casefold().rpartition("/")[2]  # Qwen/Qwen1.5-7B
        family = re.match(r"[a-z]+(?=[-.]?\d)", name)  # gpt-4, llama3: of a known one
        families = {re.split(r"[-.\d]", one)[0] for one in published()}
        is_name = BARE.fullmatch(re.sub(r"\.(?=\d)", "", name))  # no file
        is_of_one = bool(family and family[0] in families and is_name)
        return is_of_one or bool(similar(name, known_configs(), 1))


@lru_cache(maxsize=64)
def named(given: str) -> Decoder:
    """The decoder of an id, with or without its publisher; errors as in `find_decoder`."""
    if "," in given:
        several = "expected one language model; for several `lolat llm` or lolat.compare(...)"
        raise InputError(f"{shortened(given)}: several; {several}", code="decoder")
    path, _, end = given.casefold().rpartition("/")
    owner, name = path.rpartition("/")[2], re.sub("^meta-(?=llama)", "", end)
    for form, architecture in SPARSE.items():
        if re.fullmatch(form, name):
            read_decoder({"model_type": architecture})
    if own := OWN.get(f"{owner}/{name}"):
        return replace(
            read_decoder({**known_configs()[name.removesuffix("-fp8")], **own}), name=name
        )
    base = next(
        (n for n in known_configs() if name == n or name.startswith((f"{n}-", f"{n}."))), ""
    )
    if not base and looks_like_network(given):
        why = "it looks like a network (`lolat predict`); expected a language model, such as qwen3-32b"
        raise InputError(f"{plain(given)}: {why}", code="decoder")
    if not base:
        families = {name.partition("-")[0]: name for name in published()}
        usual = f"known by name are {', '.join(families.values())} and the like (`lolat models`)"
        near = did_you_mean(name, _like(name), usual)
        why = "no such file, nor a known model; expected a known name, or the file config.json from the "
        why += "model's page on huggingface.co"
        raise InputError(f"{plain(given)}: {why}; {near}", code="decoder")
    decoder, rest = replace(read_decoder(known_configs()[base]), name=name), name[len(base) + 1 :]
    dtype = dtype_of(rest)
    if not name[len(base) :] or dtype == decoder.expert_dtype:
        return decoder
    if not dtype or (dtype != "bfloat16" and (decoder.has_mxfp4 or dtype.endswith("mxfp4"))):
        why = f"{base} is known, and {shortened(rest)!r} behind it is not; "
        why += "expected the config.json as published with the model"
        if _QUANTIZED.search(rest):
            why += f"; for an estimate of a quantized {base} give this name and {NEAREST}"
        raise InputError(f"{plain(given)}: {why}", code="decoder-dtype")
    in_blocks = base.startswith("qwen3") and rest == "fp8" and owner not in PER_TENSOR
    if dtype == "fp8" and (in_blocks or decoder.dtype == "fp8_block"):
        dtype = "fp8_block"
    if decoder.latent and dtype == "nvfp4":
        decoder = decoder.with_bfloat16("attention")
    has_fp8_cache = owner == FP8_CACHE and dtype in ("fp8", "fp8_block", "nvfp4")
    cache = "fp8" if has_fp8_cache or rest.endswith("-kv") else decoder.kv_dtype
    return replace(decoder, dtype=dtype, expert_dtype=dtype, kv_dtype=cache)


def dtype_of(end: str) -> str:
    """The data type that the suffix of an id stands for; "" if it stands for none."""
    return next((dtype for form, dtype in SUFFIXES.items() if re.fullmatch(form, end)), "")


def _like(name: str) -> dict[str, str]:
    """Known ids similar to an unknown one: ids that begin with it, else ids of the same family and version.

    For example, llama-3.1-70b is similar to llama3-70b, but qwen2.5-72b is not similar to qwen3-8b.
    """
    begin = [one for one in reversed(published()) if one.startswith(name)]
    number = _VERSION.match(name)
    versions = ((n, _VERSION.match(n.replace("-", "", 1))) for n in known_configs())
    alike = (n for n, its in versions if number and its and its[1].startswith(number[1]))
    return {one: one for one in begin or (alike if number else known_configs())}


@lru_cache(maxsize=1)
def published() -> dict[str, dict[str, Any]]:
    """The configurations in published.json, by name."""
    return msgspec.json.decode(PUBLISHED.read_bytes(), type=dict[str, dict[str, Any]])


@lru_cache(maxsize=1)
def known_configs() -> dict[str, dict[str, Any]]:
    """Configurations by id, in lower case and without the publisher; the longest id first."""
    found = published() | {
        f"{name}{'-' if end[0] != '.' else ''}{end}": {**config, **differs}
        for name, config in published().items()
        for models, ends, differs in VERSIONS
        if re.fullmatch(models, name)
        for end in ends.split()
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))

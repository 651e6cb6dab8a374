"""Finds the data types of weights and cache in a published configuration.

It knows the methods in `quantization_config` on Hugging Face and in NVIDIA's hf_quant_config.json, and
refuses by name a method whose kernels were not timed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lolat.errors import InputError, arg
from lolat.llm.decoder import GROUP
from lolat.units import one_line, shortened

if TYPE_CHECKING:
    from lolat.llm.config import Config

SCHEMES = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "fp8 block 128x128": "fp8_block", "mxfp4": "w4a16_mxfp4",
    "awq 4": "int4_wo", "gptq 4": "int4_wo",
    "modelopt W4A16_AWQ": "int4_wo", "modelopt FP8": "fp8", "modelopt FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "modelopt FP8_PB_WO": "fp8_block", "modelopt NVFP4": "nvfp4",
    "compressed-tensors float 8 tensor, inputs float 8": "fp8",
    "compressed-tensors float 8 channel, inputs float 8": "fp8",
    "compressed-tensors float 8 block 128x128, inputs float 8": "fp8_block",
    "compressed-tensors float 4 tensor_group, inputs float 4": "nvfp4",
    "compressed-tensors float 4 group": "w4a16_mxfp4",
    "compressed-tensors int 4 group": "int4_wo", "compressed-tensors int 4 channel": "int4_wo",
}  # fmt: skip
"""Name of a quantization from `_scheme` -> name of the data type in tables of operations."""
PLAIN = {
    "bfloat16": "bfloat16", "float16": "bfloat16", "float32": "bfloat16", "float8_e4m3fn": "fp8",
}  # fmt: skip
KIMI_GROUP = 32
KEYS = "quantization_config|compression_config"
CACHES = {"FP8": "fp8", "FLOAT 8": "fp8", "": "", "NONE": ""}
NEAREST = f"the nearest {arg('dtype')}: fp8 for 8 bits, int4_wo for 4"
"""A hint for a language model in an unknown data type."""
_WITHOUT = f"for an estimate leave quantization_config out and give {NEAREST}"
IsUnquantized = Callable[[str], bool]
"""A function of a module's name: True if the module stays bfloat16."""


def dtypes_of(config: Config) -> tuple[str, str, str, IsUnquantized]:
    """(data type of the weights, of experts, of the cache ("" if not stated), a test for modules that stay
    bfloat16).

    InputError, code "decoder-dtype", for an unknown data type or quantization.
    """
    if "quantization" in config.given:
        raise _unknown(config, "MLX's")
    given = config.get(KEYS, dict[str, Any], None)
    if given is None:
        name = config.get("torch_dtype|dtype", str, "bfloat16").removeprefix("torch.")
        if name not in PLAIN:
            hint = f"expected one of {', '.join(PLAIN)}"
            raise config.refused(f"its data type is {shortened(name)!r}", "decoder-dtype", hint)
        return PLAIN[name], PLAIN[name], "", lambda _: False
    quantized = config.part(KEYS)
    if "quantization" in given:  # as in hf_quant_config.json
        inner = quantized.part("quantization")
        quantized = inner.changed({"quant_method": "modelopt", **inner.given})
    scheme = _scheme(quantized)
    if config.given.get("model_type") == "kimi_k2":  # its experts were timed in these groups
        scheme = scheme.removesuffix(f" in groups of {KIMI_GROUP}")
    if scheme not in SCHEMES:
        raise _unknown(config, repr(shortened(scheme)))
    # The method mxfp4 quantizes nothing but experts.
    dtype = "bfloat16" if scheme == "mxfp4" else SCHEMES[scheme]
    return dtype, SCHEMES[scheme], _cache(quantized), _is_unquantized(quantized)


def _unknown(config: Config, scheme: str) -> InputError:
    hint = f"expected FP8, NVFP4, MXFP4, or weights alone of 4 bits (AWQ, GPTQ); {_WITHOUT}"
    return config.refused(f"its quantization is {scheme}", "decoder-dtype", hint)


def _scheme(config: Config) -> str:
    """The name of a quantization, as in `SCHEMES`."""
    method = config.get("quant_method", str)
    rules = [rule for rule in config.get("dynamic", dict[str, Any], {}) if rule[:2] != "-:"]
    if rules or config.given.get("modules_in_block_to_quantize"):
        return f"{method} of some modules"
    if method == "fp8":
        block = config.get("weight_block_size", list[int], [])
        return f"fp8 block {'x'.join(map(str, block))}" if block else "fp8"
    if method in ("awq", "gptq"):
        head = " with its head" if config.get("lm_head", bool, False) else ""
        return f"{method} {config.get('bits')}{_grouped(config)}{head}"
    if method.startswith("modelopt"):
        return f"modelopt {config.get('quant_algo', str).upper()}"
    sparse = config.part("sparsity_config").get("sparsity_structure", str, "")
    if sparse == "2:4" or "24" in config.get("format", str, ""):
        return f"{method} 2:4"
    groups = config.get("config_groups", dict[str, dict[str, Any]], {}).values()
    each = {_group(config.changed(group)) for group in groups if group.get("weights")}
    return f"{method} {' and '.join(sorted(each))}".strip()


def _group(group: Config) -> str:
    """Name the type, bits and strategy of weights, and of inputs if they are quantized."""
    weights, inputs = group.part("weights"), group.part("input_activations").given
    words = [str(weights.given.get(key)) for key in ("type", "num_bits", "strategy")]
    if block := weights.get("block_structure", list[int], []):
        words.append("x".join(map(str, block)))
    if not all(name.isalpha() for name in group.get("targets", list[str], [])):
        words.append("of some modules")  # not of a class, such as Linear
    found = " ".join(words) + (_grouped(weights) if words[:2] == ["int", "4"] else "")
    return f"{found}, inputs {inputs.get('type')} {inputs.get('num_bits')}" if inputs else found


def _grouped(config: Config) -> str:
    """Words on the number of elements that share a scale; "" for the usual number: GROUP, or all."""
    size, is_group = config.get("group_size", int, GROUP), config.given.get("strategy") == "group"
    return "" if size == GROUP or (size == -1 and not is_group) else f" in groups of {size}"


def group_of(config: Config) -> float:
    """The number of elements that share a scale in 4-bit weights; inf: all weights of an output."""
    quantized = config.part(KEYS)
    if config.given.get("model_type") == "kimi_k2":
        return KIMI_GROUP
    groups = quantized.get("config_groups", dict[str, dict[str, Any]], {}).values()
    weights = [config.changed(group).part("weights") for group in groups]
    by_output = any(one.given.get("strategy") == "channel" for one in weights)
    return math.inf if by_output or quantized.given.get("group_size") == -1 else GROUP


def _cache(config: Config) -> str:
    """The data type of keys and values; "": not stated."""
    scheme = config.get("kv_cache_scheme", dict[str, Any] | str, "")
    if scheme and not isinstance(scheme, str):
        scheme = f"{scheme.get('type')} {scheme.get('num_bits')}"
    found = scheme or config.get("kv_cache_quant_algo", str, "")
    if found.upper() not in CACHES:
        hint = f"expected FP8; for an estimate leave it out and give {arg('kv_dtype')}"
        raise config.refused(f"its cache is {shortened(found)!r}", "decoder-dtype", hint)
    return CACHES[found.upper()]


# ---- Modules that stay bfloat16.


def _is_unquantized(config: Config) -> IsUnquantized:
    """Make a test of a module's name: True if the configuration lists the module as unquantized.

    A listed name matches whole pieces of a module's name between dots. In AWQ it matches any part of the
    name, as in vLLM and SGLang ("layers.1" also matches layers 10 to 19, "layers.1." does not). * matches
    anything; `re:` begins a regular expression.
    """
    is_awq = config.given.get("quant_method") == "awq"
    keys = ("modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore")
    names = [name for key in keys for name in config.get(key, list[str], [])]
    names += [f"re:{rule[2:]}" for rule in config.get("dynamic", dict[str, Any], {})]
    rules = ["(?!)"]
    for name in names:
        name = re.sub("block_sparse_moe|feed_forward", "mlp", name.replace("language_model.", ""))
        name = name.replace("shared_experts", "shared_expert")
        is_part = is_awq and not name.endswith("gate")  # a router's, not that of gate_proj
        pieces = ".*".join(map(re.escape, (name if is_part else name.rstrip(".")).split("*")))
        plain = pieces if is_part else rf"(?:^|\.){pieces}(?:\.|$)"
        rules.append(f"^(?:{name[3:]})" if name.startswith("re:") else plain)
    try:
        pattern = re.compile("|".join(rules))
    except re.error as error:
        why = f"a name in quantization_config is no pattern ({one_line(error)})"
        raise config.refused(why, "decoder-dtype", _WITHOUT) from None
    return lambda name: bool(pattern.search(name))


_LATENT = ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
ATTENTION_MATRICES = {
    "": [f"self_attn.{letter}_proj" for letter in "qkvo"],
    "latent": [f"self_attn.{name}" for name in _LATENT],
    "linear": ["linear_attn.out_proj"],
}
"""Kind of attention -> its matrices."""
OTHER_MATRICES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), ("qkv_proj",)),
    "gate_proj": ("gate_up_proj", "w1"), "up_proj": ("gate_up_proj", "w3"), "down_proj": ("w2",),
}  # fmt: skip
"""Matrix -> its other names: in Mixtral, and of several matrices stored as one (Phi-3, vLLM)."""


def unquantized_parts(
    config: Config, is_unquantized: IsUnquantized, layer: int, experts: bool, attention: str = ""
) -> frozenset[str]:
    """The parts of a layer that stay bfloat16; InputError if only some matrices of a part do."""
    mlp, shared = ("gate_proj", "up_proj", "down_proj"), "shared_expert." if experts else ""
    parts = {
        "attention": ATTENTION_MATRICES[attention],
        "feed_forward": [f"mlp.{shared}{name}" for name in mlp],
        "experts": [f"mlp.experts.0.{name}" for name in mlp] if experts else [],
    }
    found = set[str]()
    for part, names in parts.items():
        kept = [name for name in names if any(map(is_unquantized, _called(layer, name)))]
        if kept and len(kept) < len(names):
            why = f"{', '.join(kept)} of layer {layer} are not quantized, and the others of {part} are"
            raise config.refused(why, "decoder-dtype", _WITHOUT)
        found |= {part} if kept else set()
    return frozenset(found)


def _called(layer: int, name: str) -> Iterator[str]:
    """Yield the names that a matrix of a layer may have."""
    where, _, last = f"model.layers.{layer}.{name}".rpartition(".")
    yield from (f"{where}.{one}" for one in (last, *OTHER_MATRICES.get(last, ())))

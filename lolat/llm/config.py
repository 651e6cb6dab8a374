"""Reads a decoder from the `config.json` that is published with a language model; no weights are needed.

Architectures are named as in the package transformers. A row of `_KINDS` has the differences of an
architecture from Llama.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from lolat.errors import InputError, ModelFileError
from lolat.io.documents import read_json
from lolat.io.forms import config_name
from lolat.io.paths import shown_path
from lolat.llm.decoder import Decoder, Latent, LayerGroup, Linear
from lolat.llm.quantization import KEYS, IsUnquantized, dtypes_of, group_of, unquantized_parts
from lolat.units import one_line, plain, shortened, value_words

EXPECTED = "expected the config.json that was published with a language model"
MODELOPT_FILE = "hf_quant_config.json"
"""The file that NVIDIA's tools write beside a config.json."""
OLD = ("quantize_config.json", "quant_config.json")
"""Files that old GPTQ and AWQ tools write. Servers read them only if an option names the method."""
_NO_TOWERS = ("text_config", "quantization_config", "generation_config")
Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**24)]
LayerNumber = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_REQUIRED: Any = object()


class Config:
    """A configuration of a decoder. It checks each value that is read; a null counts as missing."""

    def __init__(self, given: Mapping[str, Any], source: str) -> None:
        self.given, self.source = given, source

    def get(self, keys: str, shape: Any = Size, default: Any = _REQUIRED) -> Any:
        """The value of the first of `keys` (divided by |) that has a value; `shape`: the type to convert it
        to.
        """
        for key in keys.split("|"):
            if (value := self.given.get(key)) is not None:
                try:
                    return msgspec.convert(value, shape)
                except msgspec.ValidationError as error:
                    given = value_words(value)
                    raise self.refused(f"{key} is {given}: {one_line(error)}") from None
        if default is _REQUIRED:
            raise self.refused(f"it has no {keys.replace('|', ' or ')}")
        return default

    def changed(self, given: Mapping[str, Any]) -> Config:
        """A configuration with other keys; its messages name the same source."""
        return Config(given, self.source)

    def part(self, keys: str) -> Config:
        """The configuration inside this one, under the first of `keys`; empty if there is none."""
        return self.changed(self.get(keys, dict[str, Any], {}))

    def refused(self, why: str, code: str = "decoder-config", hint: str = EXPECTED) -> InputError:
        """The error that says `why` this configuration cannot be read."""
        return InputError(f"{self.source}: {why}; {hint}", code=code, why=why)


class _Kind(NamedTuple):
    """The differences of an architecture from Llama; most fields name keys of its configuration.

    `defaults`: values of keys that files may leave out; other keys of `_OF_SOME` are ignored. `biases`: the
    three keys that turn biases on: of query, key and value; of attention's output; of the feed-forward
    ("yes": always, "": never). `window`: the key of the window; "": only `layer_types` gives windows.
    `width`, `expert_width`: the keys of the widths of feed-forward and experts; "": no experts.
    `shared_width`: the keys whose product is the width of the shared experts. `same`: fields of `Decoder`
    that are equal in all its models. `latent`: True for latent attention.
    """

    defaults: Mapping[str, Any] = {}
    biases: tuple[str, str, str] = ("attention_bias", "attention_bias", "")
    window: str = ""
    head_norm: str = ""
    width: str = "intermediate_size"
    expert_width: str = ""
    shared_width: tuple[str, ...] = ()
    same: Mapping[str, Any] = {}
    latent: bool = False


_OF_SOME = {
    "decoder_sparse_step", "first_k_dense_replace", "full_attention_interval",
    "interleave_moe_layer_step", "max_window_layers", "mlp_only_layers", "no_rope_layer_interval",
    "sliding_window_pattern", "use_qk_norm", "use_sliding_window",
}  # fmt: skip
"""Keys that count only in architectures whose `defaults` have them."""
_LLAMA_BIASES, _NO_BIAS = ("attention_bias", "attention_bias", "mlp_bias"), ("", "", "")
_TIED, _WIDE_NORM = {"tie_word_embeddings": True}, {"wide_norm": True}
_OFF = {"use_sliding_window": False}
_LATE = {**_OFF, "max_window_layers": 28}
_SPARSE = {**_OFF, "decoder_sparse_step": 1, "mlp_only_layers": []}
_GEMMA = {**_TIED, "head_dim": 256}
_WINDOW = {"sliding_window": 4096}
_GEMMA3 = {**_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208,
           **_WINDOW, "sliding_window_pattern": 6, "max_position_embeddings": 131072}  # fmt: skip
_MISTRAL = _Kind(_WINDOW, _NO_BIAS, "sliding_window")
_QWEN2 = _Kind(_LATE, ("yes", "", ""), "sliding_window")
_QWEN3 = _Kind({**_LATE, "head_dim": 128}, window="sliding_window", head_norm="head")
_QWEN3_MOE = _Kind(
    _SPARSE, window="sliding_window", head_norm="head", expert_width="moe_intermediate_size"
)
_SHARED = ("n_shared_experts", "moe_intermediate_size")
_DEEPSEEK = _Kind(
    {"first_k_dense_replace": 0, "n_shared_experts": 0}, expert_width="moe_intermediate_size",
    shared_width=_SHARED, latent=True,
)  # fmt: skip
_DELTA = _Kind(
    {"head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "decoder_sparse_step": 1,
     "mlp_only_layers": []}, head_norm="head", same={"output_gate": True},
)  # fmt: skip
_DELTA_MOE = _DELTA._replace(
    expert_width="moe_intermediate_size", shared_width=("shared_expert_intermediate_size",),
    same={"output_gate": True, "shared_gate": True},
)  # fmt: skip
_KINDS = {
    "llama": _Kind({}, _LLAMA_BIASES), "granite": _Kind({}, _LLAMA_BIASES),
    "mistral": _MISTRAL, "ministral": _MISTRAL,
    "ministral3": _Kind({"head_dim": 128}, _NO_BIAS, "sliding_window"),
    "mixtral": _Kind({}, _NO_BIAS, "sliding_window", expert_width="intermediate_size"),
    "qwen2": _QWEN2, "qwen2_vl": _QWEN2, "qwen2_5_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2, "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3, "qwen3_vl_text": _QWEN3._replace(window=""),
    "qwen3_moe": _QWEN3_MOE, "qwen3_vl_moe_text": _QWEN3_MOE._replace(window=""),
    "gemma": _Kind(_GEMMA, same=_WIDE_NORM),
    "gemma2": _Kind(
        {**_GEMMA, **_WINDOW, "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0,
         "final_logit_softcapping": 30.0}, window="sliding_window", same={"norms": 4, **_WIDE_NORM},
    ),
    "gemma3_text": _Kind(
        _GEMMA3, window="sliding_window", head_norm="head", same={"norms": 4, **_WIDE_NORM}
    ),
    "phi3": _Kind({}, _NO_BIAS, "sliding_window", same={"fused": True}),
    "olmo2": _Kind(head_norm="whole", same=_WIDE_NORM),
    "mpt": _Kind(
        {**_TIED, "use_bias": True}, ("use_bias", "use_bias", "use_bias"), "sliding_window",
        same={"fused": True},
    ),
    "gpt_oss": _Kind(
        {"head_dim": 64, "attention_bias": True, "sliding_window": 128,
         "sliding_window_pattern": 2},
        ("attention_bias", "attention_bias", "yes"), "sliding_window",
        expert_width="intermediate_size", same={"sinks": True},
    ),
    "minimax_m2": _Kind(
        {"head_dim": 128, "use_qk_norm": True}, _NO_BIAS,
        head_norm="whole", expert_width="intermediate_size",
    ),
    "glm4_moe": _Kind(
        {"use_qk_norm": False, "first_k_dense_replace": 1}, ("attention_bias", "", ""),
        head_norm="head", expert_width="moe_intermediate_size",
        shared_width=_SHARED,
    ),
    "deepseek_v2": _DEEPSEEK, "deepseek_v3": _DEEPSEEK, "kimi_k2": _DEEPSEEK,
    "qwen3_next": _DELTA_MOE, "qwen3_5_moe_text": _DELTA_MOE, "qwen3_5_text": _DELTA,
    "llama4_text": _Kind(
        {"head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4,
         "interleave_moe_layer_step": 1},
        window="attention_chunk_size", width="intermediate_size_mlp",
        expert_width="intermediate_size", shared_width=("intermediate_size",),
    ),
}  # fmt: skip
"""Architecture (`model_type`) -> its differences from Llama."""
_MPT = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len"}  # fmt: skip
"""Llama's name of a key -> MPT's."""
_AS_MANY = ("mpt", "llama", "granite", "phi3", "olmo2")
"""Architectures whose files may omit the number of key and value heads; it then equals that of query heads.
"""
_WRITES = re.compile(
    "(?!.*(Eagle|EAGLE|Medusa|MTP)).*(For(CausalLM|ConditionalGeneration)|LMHeadModel)"
)
"""Matches classes (`architectures`) that generate text, but not drafts for another language model."""
TIED = "tie_word_embeddings"
_OTHERS = {
    "needs sparse attention": r"deepseek_v(3[2-9]|[4-9]\d*)|glm_moe_dsa",
    "needs attention of another form":
        r"minicpm3|mistral4|glm4_moe_lite|longcat_flash|kimi_vl|kimi_linear|minimax",
    "needs layers with a state": ".*mamba2?|jamba|bamba|zamba2?|falcon_h1|nemotron_h"
    "|granitemoehybrid|recurrent_gemma|rwkv|xlstm",
}  # fmt: skip
"""The reason to refuse architectures -> a pattern of their names."""


def read_decoder(source: str | PathLike[str] | Mapping[str, Any]) -> Decoder:
    """Read a decoder from a `config.json`, a folder that holds one, or its content as a mapping.

    A multimodal model's decoder is its `text_config`. InputError, with a code: "no-decoder-config" (no such
    file, no JSON, no configuration), "unknown-decoder" (an unknown architecture), "decoder-config" (a value
    is missing or impossible, or contradicts another), "decoder-dtype" (an unknown data type).
    """
    given, name, shown = _given(source)
    whole, inner = given, given.get("text_config")
    if isinstance(inner, Mapping):
        keys = (*KEYS.split("|"), "quantization", TIED, "torch_dtype", "dtype")
        shared = {key: given[key] for key in keys if key in given and inner.get(key) is None}
        if len({one[TIED] for one in (given, inner) if one.get(TIED) is not None}) > 1:
            why = f"{TIED} is {given[TIED]}, and {inner[TIED]} in its text_config"
            raise Config(given, shown).refused(why, hint="frameworks differ in which one they take")
        given = {**inner, **shared}
    towers = tuple(key for key, value in whole.items() if _is_tower(key, value))
    architecture, kind = _kind_of(Config(given, shown))
    if architecture == "mpt":
        given = _named_as_llama(Config(given, shown))
    read = {key: v for key, v in given.items() if key in kind.defaults or key not in _OF_SOME}
    config = Config({**kind.defaults, **read}, shown)
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    may_lack = architecture in _AS_MANY or "num_key_value_heads" in given
    kv_heads = config.get("num_key_value_heads", Size, heads if may_lack else _REQUIRED)
    if heads % kv_heads:
        why = f"{heads} query heads are no multiple of {kv_heads} key and value heads"
        raise config.refused(why)
    latent = _latent(config) if kind.latent else None
    head_dim = latent.nope + latent.rope if latent else config.get("head_dim", Size, 0)
    if not head_dim and hidden % heads:
        why = f"it has no head_dim, and hidden_size {hidden} is no multiple of {heads} heads"
        raise config.refused(why)
    biases = [key == "yes" or (key != "" and config.get(key, bool, False)) for key in kind.biases]
    dtype, expert_dtype, kv_dtype, is_unquantized = dtypes_of(config)
    kinds = _layers(config, kind, is_unquantized)
    fields = {**_experts(config, kind), **kind.same}
    if architecture == "mpt":
        fields |= {"norm_bias": biases[0], "gated": config.get("gated", bool)}
    if expert_dtype != dtype and not fields.get("experts"):
        hint = "that is of experts, and it has none; leave quantization_config out for bfloat16"
        raise config.refused("its quantization is mxfp4", "decoder-dtype", hint)
    return Decoder(
        name=name or architecture, architecture=architecture, hidden=hidden,
        vocab=config.get("vocab_size"), heads=heads, kv_heads=1 if latent else kv_heads, latent=latent,
        linear=_linear(config) if any(layer.linear for layer in kinds) else None,
        head_dim=head_dim or hidden // heads, kinds=kinds,
        intermediate=0 if all(layer.experts for layer in kinds) else config.get(kind.width),
        tied=config.get(TIED, bool, False), context=_context(config),
        qkv_bias=biases[0], output_bias=biases[1], feed_forward_bias=biases[2],
        head_norm=kind.head_norm if config.get("use_qk_norm", bool, True) else "",
        group=group_of(config),
        dtype=dtype, expert_dtype=expert_dtype, kv_dtype=kv_dtype, towers=towers, **fields,
        positions=config.get("positions", Count, 0),
        score_cap=config.get("attn_logit_softcapping", float, 0.0) > 0,
        logit_cap=config.get("final_logit_softcapping", float, 0.0) > 0,
    )  # fmt: skip


def _named_as_llama(config: Config) -> Mapping[str, Any]:
    """MPT's configuration, as llm-foundry writes it, with Llama's keys. Added keys: `positions`, the number
    of learned positions (0 with ALiBi), and `gated`, True for a feed-forward with a gate.
    """
    attention, feed = config.part("attn_config"), config.part("ffn_config")
    given = {key: config.given.get(name) for key, name in _MPT.items()}
    learned = config.get("learned_pos_emb", bool, True) and not attention.get("alibi", bool, False)
    usual = {"multihead_attention": given["num_attention_heads"], "multiquery_attention": 1}
    heads_of = attention.get("attn_type", str, "multihead_attention")
    kv_heads = attention.get("kv_n_heads", Size, usual.get(heads_of, _REQUIRED))
    layers = feed.get("ffn_type", str, "mptmlp")
    if layers not in ("mptmlp", "mptglu"):
        raise config.refused(
            f"its ffn_type is {shortened(layers)}", hint="expected mptmlp or mptglu"
        )
    if config.given.get("block_overrides"):
        raise config.refused("it has block_overrides", hint="expected layers that are all alike")
    if heads_of == "multiquery_attention" and kv_heads != 1:
        raise config.refused(f"its attn_type is {heads_of}, and its kv_n_heads {kv_heads}")
    ratio = config.get("expansion_ratio", Annotated[float, msgspec.Meta(gt=0, le=1024)], 4.0)
    width = ratio * config.get("d_model")
    return {
        **config.given, **given, "gated": layers == "mptglu", "num_key_value_heads": kv_heads,
        "use_bias": not config.get("no_bias", bool, False),
        "intermediate_size": feed.get("ffn_hidden_size", Size, int(width) if width % 1 == 0 else width),
        "positions": config.get("max_seq_len") if learned else 0,
        "sliding_window": max(attention.get("sliding_window_size", int, 0), 0),
    }  # fmt: skip


def _latent(config: Config) -> Latent:
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return Latent(config.get("q_lora_rank", Count, 0), *map(config.get, keys))


def _linear(config: Config) -> Linear:
    keys = ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim", "conv_kernel_dim")
    return Linear(*(config.get(f"linear_{key}") for key in keys))


def _is_tower(key: str, value: Any) -> bool:
    """True if a part of a configuration is another network, such as the encoder of images."""
    is_part = key.endswith("_config") and key not in _NO_TOWERS and isinstance(value, Mapping)
    return is_part and any(size in value for size in ("model_type", "hidden_size", "depth"))


_STRETCHED = ("yarn", "linear", "dynamic")
"""Types of scaled positions whose `factor` multiplies the longest sequence. Files of other types, and of
Gemma 3, state a max_position_embeddings that is scaled already."""


def _context(config: Config) -> int:
    """The tokens of the longest sequence, computed as in vLLM; 0: not stated."""
    longest: int = config.get("max_position_embeddings", Size, 0)
    scaling = config.part("rope_scaling|rope_parameters")
    is_stretched = str(config.given["model_type"]).startswith("gemma3")
    if is_stretched or scaling.get("rope_type|type", str, "") not in _STRETCHED:
        return longest
    before = scaling.get("original_max_position_embeddings", Size, longest)
    factor = scaling.get("factor", Annotated[float, msgspec.Meta(ge=1, le=1024)], 1.0)
    return max(longest, int(before * factor))


def _given(source: str | PathLike[str] | Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
    """(the configuration, the language model's name or "", the source to name in messages)."""
    if isinstance(source, Mapping):
        given = msgspec.to_builtins({**source}, enc_hook=str)  # transformers leaves enumerations
        return given, "", "the configuration"
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    is_config, beside = path.name == "config.json", path.with_name(MODELOPT_FILE)
    try:
        given = read_json(path, EXPECTED, decode=json.loads)
        if not isinstance(given, dict):
            raise ModelFileError(f"{shown_path(path)}: no object; {EXPECTED}")
        if is_config and "quantization_config" not in given:
            if beside.exists():
                given["quantization_config"] = read_json(
                    beside, f"expected {MODELOPT_FILE} of ModelOpt"
                )
            if old := [name for name in OLD if path.with_name(name).exists()]:
                why = f"it does not say how it was quantized, and {old[0]} lies beside it"
                hint = "expected quantization_config in it, as in newer files of the model"
                raise Config(given, shown_path(path)).refused(why, "decoder-dtype", hint)
    except ModelFileError as error:
        raise InputError(error.message, code="no-decoder-config") from None
    return given, plain(config_name(path)), shown_path(path)


def _kind_of(config: Config) -> tuple[str, _Kind]:
    """The architecture's name and its differences from Llama."""
    name = config.given.get("model_type")
    if not isinstance(name, str):
        raise config.refused("it has no model_type", "no-decoder-config")
    classes = config.get("architectures", list[str], [])
    if name in _KINDS and classes and not any(map(_WRITES.fullmatch, classes)):
        hint = "expected one of a model that does, such as LlamaForCausalLM, or transformers:CONFIG.json"
        why = f"its architectures, {shortened(', '.join(classes))}, write no text on their own"
        raise config.refused(why, "unknown-decoder", hint)
    if name in _KINDS:
        return name, _KINDS[name]
    why = next((why for why, names in _OTHERS.items() if re.fullmatch(names, name)), "is not known")
    hint = f"expected one of {', '.join(_KINDS)}"
    if config.source.endswith(".json"):
        hint += f"; as a network, predict and cost read transformers:{config.source}"
    raise config.refused(f"the architecture {shortened(name)!r} {why}", "unknown-decoder", hint)


def _experts(config: Config, kind: _Kind) -> dict[str, Any]:
    """The fields of `Decoder` that describe experts."""
    if not kind.expert_width:
        return {}
    experts = config.get("num_local_experts|num_experts|n_routed_experts")
    top_k = config.get("num_experts_per_tok")
    if top_k > experts:
        raise config.refused(f"a token takes {top_k} of {experts} experts")
    shared = [config.get(key, Count) for key in kind.shared_width] or [0]
    width = config.get(kind.expert_width)
    return {"experts": experts, "top_k": top_k, "expert_width": width, "shared_width": prod(shared)}


def _layers(config: Config, kind: _Kind, is_unquantized: IsUnquantized) -> tuple[LayerGroup, ...]:
    """Group equal layers, in the order in which each kind first occurs."""
    number = config.get("num_hidden_layers", LayerNumber)
    windows, whole = _windows(config, kind, number), config.get("full_attention_interval", Size, 1)
    types = config.get("layer_types", list[str], [])
    linear = [one == "linear_attention" for one in types]
    linear = linear or [(i + 1) % whole != 0 for i in range(number)]
    dense = set(config.get("mlp_only_layers", list[Count], []))
    dense.update(range(config.get("first_k_dense_replace", Count, 0)))
    step = config.get("decoder_sparse_step|interleave_moe_layer_step", Size, 1)
    moe = {i for i in range(number) if i not in dense and (i + 1) % step == 0}
    if kind.expert_width and {*config.get("moe_layers", list[Count], moe)} != moe:
        raise config.refused(
            f"moe_layers names other layers than interleave_moe_layer_step {step}, which servers follow",
            hint="expected them to agree",
        )
    every = config.get("moe_layer_freq", Any, 1)
    if kind.expert_width and every != 1:  # servers follow it, transformers does not
        given = value_words(every)
        raise config.refused(
            f"moe_layer_freq is {given}, and experts in some layers are read at 1 alone"
        )
    found: Counter[LayerGroup] = Counter()
    for i in range(number):
        experts = kind.expert_width != "" and i in moe
        attention = "linear" if linear[i] else "latent" if kind.latent else ""
        stays = unquantized_parts(config, is_unquantized, i, experts, attention)
        found[LayerGroup(1, windows[i], experts, linear[i], stays)] += 1
    return tuple(replace(layer, number=number) for layer, number in found.items())


def _windows(config: Config, kind: _Kind, number: int) -> list[int]:
    """The window of each layer, in tokens; 0: none."""
    used = config.get("use_sliding_window", bool, True)
    key = kind.window or "sliding_window"
    window = config.get(key, Count, 0) if used else 0
    one_of = Literal["full_attention", "sliding_attention", "chunked_attention", "linear_attention"]
    if types := config.get("layer_types", list[one_of], []):
        if len(types) != number:
            raise config.refused(f"layer_types has {len(types)} entries for {number} layers")
        if "linear_attention" in types and "full_attention_interval" not in kind.defaults:
            raise config.refused("layer_types names linear layers, which its architecture lacks")
        whole = ("full_attention", "linear_attention")
        if used and not window and not {*types} <= {*whole}:
            raise config.refused(f"layer_types names layers with a window, and it has no {key}")
        return [0 if name in whole else window for name in types]
    if not kind.window or not window:
        return [0] * number
    first = config.get("max_window_layers", Count, 0)
    # Each n-th layer attends to all.
    every = config.get("sliding_window_pattern|no_rope_layer_interval", Size, number + 1)
    return [window if i >= first and (i + 1) % every else 0 for i in range(number)]

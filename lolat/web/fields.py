"""The fields of each tab of the page, named like the arguments of the Python calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lolat.errors import InputError
from lolat.io.forms import FILES
from lolat.llm.decoder import CACHE_BYTES, DTYPES
from lolat.llm.names import published
from lolat.parameters import (
    BEST,
    COVERAGE,
    DECODER_OPTIMIZER,
    EVEN,
    LENGTH,
    NETWORK_OPTIMIZER,
    SIZE,
    TRACE,
)
from lolat.readers.bundled import bundled_networks
from lolat.training.compare import USUAL_UPDATE
from lolat.units import shortened
from lolat.web.networks import UPLOAD, sent_name
from lolat.web.values import EVERY, batch_on_each, language_model, numbers, spec_of, what_is_tuned


@dataclass(frozen=True)
class Field:
    """A field of the form.

    `default`: the initial text. `may_be_empty`: True if the user may clear it. `most`: the largest number
    of values. `choices`: value -> label, for a list of choices. `parse`: parses a text that is not a
    number. `may_be_sent`: True if a file may be uploaded in place of a choice.
    """

    name: str
    label: str
    default: str = ""
    hint: str = ""
    most: int = 1
    choices: Mapping[str, str] | None = None
    parse: Callable[[str], Any] | None = None
    may_be_empty: bool = False
    may_be_sent: bool = False

    def value(self, text: str) -> Any:
        """The value of a text; InputError if it cannot be parsed or is not among `choices`."""
        if self.may_be_sent and text.startswith(UPLOAD):
            return text
        words = re.split(r"\s*,\s*", text) if self.most > 1 else [text]
        if self.choices is not None and not self.choices.keys() >= {*words}:
            known = ", ".join(value or words for value, words in self.choices.items())
            raise InputError(f"{shortened(text)!r} is not known; choose one of {known}")
        if not text and self.default and not self.may_be_empty:
            raise InputError("nothing is given")
        if self.parse is not None:
            return self.parse(text)
        if not self.choices:
            return numbers(text, EVERY[self.name], self.most)
        return tuple(words) if words[1:] else text or None

    def word(self, text: str) -> str:
        """The value of a text in the form of a command's option; "" if it is empty."""
        value = self.value(text)
        is_empty = value in (None, "") or value is False
        values = value if isinstance(value, tuple) else () if is_empty else (value,)
        return ",".join(sent_name(str(v)).removesuffix(".0") for v in values)


@dataclass(frozen=True)
class Subject:
    """The subject of a tab's question: a network or a language model.

    `fields`: the first one holds the name of the subject or of an uploaded file; `names`: known names;
    `endings`, `most_bytes`: limits of an uploaded file; `hint`: how the file is used; `command`: the
    command for a larger file; `folded`: the title of the folded fields below the name.
    """

    legend: str
    fields: tuple[Field, ...]
    names: Callable[[], Iterable[str]]
    endings: tuple[str, ...]
    most_bytes: int
    hint: str
    command: str
    folded: str

    @property
    def named(self) -> Field:
        """The field that holds the name."""
        return self.fields[0]

    @property
    def is_decoder(self) -> bool:
        """True if the subject is a language model."""
        return self.named.name == "config"


OF_NETWORK = Subject("Network", (
    Field("network", "Network", "ResNet50",
          "a name of keras.applications, timm:NAME or torchvision:NAME; type to search", parse=spec_of),
    Field(SIZE, "Input size", "", "such as 160 or 160,160,3; empty: the network's own", 6),
    Field(LENGTH, "Sequence length", "", "tokens of a text or steps; empty: the network's own"),
), lambda: [n.removeprefix("keras:") for n in bundled_networks()], FILES, 200 * 2**20,
   "lolat read writes a .json of any network, also from PyTorch. Only layers are read, not weights, "
   "and no code is run. The server keeps the file in memory until it ends.",
   "lolat predict MODEL FILE", "Your own file, or another size",
)  # fmt: skip
"""The network of a question. The limit for files is large because ONNX files hold unused weights."""
_CONFIG = Field("config", "Language model", "qwen3-32b", "type to search the known ones",
                parse=language_model)  # fmt: skip
OF_LANGUAGE_MODEL = Subject(
    "Language model", (_CONFIG,), lambda: sorted(published()), (".json", ".csv"), 2**20,
    "The config.json that was published with the model, or a table of arrivals "
    f"({', '.join(TRACE)}). The server keeps it in memory until it ends.",
    "lolat llm GPU CONFIG.json", "Your own file",
)  # fmt: skip
OF_TRAINED = replace(
    OF_LANGUAGE_MODEL, command="lolat cost MODEL CONFIG.json", endings=(".json",), fields=(
        replace(_CONFIG, default="llama-3.1-8b"), Field(LENGTH, "Tokens of a sequence", "4096"),
    ), hint="The config.json that was published with the model. The server keeps it until it ends.",
    folded="Your own file, or another length",
)  # fmt: skip


@dataclass(frozen=True)
class Tab:
    """A tab: its title, its fields, and the subject of its question.

    `first`: the number of visible fields; the others are folded.
    """

    title: str
    fields: tuple[Field, ...]
    subject: Subject = OF_NETWORK
    first: int = 6

    @property
    def every(self) -> dict[str, Field]:
        """Field name -> field, the subject's fields first."""
        return {f.name: f for f in (*self.subject.fields, *self.fields)}


def _of(choices: Iterable[str], first: str = "") -> dict[str, str]:
    """Choices of a field, each labeled with itself; `first`: the label of the empty choice."""
    return ({"": first} if first else {}) | {choice: choice for choice in choices}


def _words(name: str, first: str = "") -> dict[str, str]:
    """The choices of a parameter; `first`: the label of the empty choice."""
    return _of(EVERY[name].choices, first)


MODE = (
    Field("precision", "Precision", "", "by the data sheet if the GPU was measured in another one",
          choices=_words("precision", "as measured")),
    Field("launch", "Launch", "", "one by one, by torch.compile, or by it with CUDA graphs",
          choices=_words("launch", "as measured")),
    Field("host_us", "Host, µs an addition", "", "to start one addition on a GPU; empty: as usual"),
    Field("channels_last", "Layout of images", "", "on a GPU in half precision, launched one by one",
          choices={"": "as measured, or fastest as the precision", "last": "channels last"}, parse=bool),
)  # fmt: skip
"""The fields of the execution mode."""
FASTEST = Field("precision", "Precision", BEST,
                choices={BEST: "fastest"} | _words("precision", "as measured"),
                may_be_empty=True)  # fmt: skip
OF_INFERENCE = replace(FASTEST, hint="of tf32, amp, fp16, bf16 and the measured one")
RENTED = (
    Field("link_gbps", "Link of a device, Gbit/s", "", "empty: the usual one"),
    Field("price_per_hour", "Price of a device, US$ an hour", "", "empty: from the price list"),
    Field("memory_gib", "Memory of a device, GiB", "", "empty: as the device's file says"),
)
"""The fields of devices that are rented."""
SURE = Field("sure", "Certainty, %", "", f"empty: the predicted time keeps the limit; {100 * COVERAGE:g}: "
             "so does the end of its interval")  # fmt: skip
LIMITS = Field("max_hours", "Limit of hours"), Field("max_dollars", "Limit of US$")
"""The fields of the limits of a training."""
BATCH = Field("batch_size", "Batch on each device", "",
              f"empty: {USUAL_UPDATE} samples an update; auto: by speed", parse=batch_on_each)  # fmt: skip
UPDATE = (
    Field("global_batch_size", "Global batch: samples of an update", "",
          "of all devices together, such as 64; empty: as the batch size says"),
    Field("accumulate", "Batches for one update", "", "gradient accumulation; empty: 1"),
)  # fmt: skip
AGAIN = _words("checkpointing")
AGAIN |= {",".join(AGAIN): "each of these, compared"}
CHECKPOINTING = Field("checkpointing", "Activation checkpointing", "none",
                      "activations computed again: less memory, more time", 3, AGAIN)  # fmt: skip
REPLICAS = Field("replicas", "Number of devices", "1,2,4,8", "several with commas", 16)
SHARDED = {
    "none": "nothing", "zero1": "optimizer states (ZeRO 1)", "zero2": "gradients too (ZeRO 2)",
    "fsdp": "parameters too (FSDP)", "hybrid": "these inside a machine alone (hybrid)",
}  # fmt: skip
TABS = {
    "latency": Tab("Latency", (
        Field("batch_size", "Batch size", "64", "samples in one pass; several with commas", 8),
        OF_INFERENCE,
        *MODE[1:],
    ), first=3),
    "budget": Tab("What fits", (
        Field("vary", "What may change", "batch", choices={
            "batch": "batch size", "width": "width: channels of every layer", "resolution": "input size",
        }),
        Field("max_ms", "Time limit, ms", "100"),
        Field("batch_size", "Batch size now", "1", "samples in one pass"),
        OF_INFERENCE,
        SURE,
        *MODE[1:],
    ), first=4),
    "training": Tab("Training and cost", (
        Field("samples", "Samples in the data", "50000"),
        Field("epochs", "Epochs", "20"),
        BATCH,
        REPLICAS,
        *LIMITS,
        *UPDATE,
        replace(CHECKPOINTING, default="", choices={"": "as the network says"} | AGAIN),
        replace(FASTEST, hint="of fp32, tf32 and amp, in both layouts"),
        *MODE[1:],
        Field("optimizer", "Optimizer", NETWORK_OPTIMIZER, choices=_words("optimizer")),
        Field("tune", "What is trained", "", "empty: as the network says; full, lora:16 (adapters), "
              "frozen (all but the last layer)", parse=what_is_tuned),
        Field("sharding", "Divided among the devices", "none",
              choices={s: SHARDED[s] for s in ("none", "zero1", "zero2", "fsdp")}),
        SURE,
        *RENTED,
    )),
    "decoder": Tab("Training language models", (
        Field("tokens", "Tokens in the data", "1e8"),
        Field("epochs", "Epochs", "1"),
        replace(BATCH, default="1", hint="several with commas; auto: by speed"),
        replace(REPLICAS, default="8"),
        Field("tune", "What is trained", "", "empty: all; lora:16 (adapters), frozen:16 (16 layers), "
              "frozen (all but the head)", parse=what_is_tuned),
        *LIMITS,
        *UPDATE,
        CHECKPOINTING,
        Field("precision", "Precision", "", choices=_of(("amp", "bf16"), "mixed (amp)")),
        MODE[1],
        Field("optimizer", "Optimizer", DECODER_OPTIMIZER, choices=_words("optimizer")),
        Field("sharding", "Divided among the GPUs", "fsdp", choices=SHARDED),
        Field("mean_tokens", "Mean tokens of a sample", "",
              "if each is padded to a sequence; empty: packed"),
        SURE,
        *RENTED,
    ), OF_TRAINED, first=5),
    "llm": Tab("Serving language models", (
        Field("request_rate", "Requests a second", "",
              "that arrive at random; several with commas", 8),
        Field("concurrency", "Or concurrent requests", "32",
              "in progress at all times; a rate takes their place", 8,
              may_be_empty=True),
        Field("input_tokens", "Tokens of a prompt", "1024", may_be_empty=True),
        Field("output_tokens", "Tokens of an answer", "512", may_be_empty=True),
        Field("max_ttft_ms", "Limit to the first token, ms"),
        Field("max_tpot_ms", "Limit per token, ms", "", "33 ms are 30 tokens/s"),
        Field("max_latency_ms", "Limit of a whole request, ms", "", "from its arrival to its last token"),
        Field("dtype", "Data type of the weights", choices=_of(DTYPES, "as published")),
        Field("min_tokens_per_s", "Or tokens/s of a request, at least", "",
              "the speed that a user sees"),
        Field("percentile", "The limits hold for so many % of requests", "",
              "such as 90; empty: for the means"),
        Field("tensor_parallel", "GPUs that share the model (tensor parallel)", "",
              "empty: 1, 2, 4 and 8, where the model fits", 8),
        Field("price_per_hour", "Price of a GPU, US$ an hour", "", "empty: from the price list"),
        Field("cached_tokens", "Tokens of a prompt in the cache", "", "by prefix caching; empty: none"),
        Field("expert_parallel", "Groups with whole experts (expert parallel)", "",
              "of the GPUs that share the model; several with commas; empty: all share each expert", 8),
        Field("attention_data_parallel", "Groups with attention of their own (attention data parallel)",
              "", "each of so many GPUs as share the model; several with commas; empty: one, and "
              "where caches would be copied as many as a machine has GPUs", 8),
        Field("arrivals", "Arrivals at a rate", "", "or a table that is sent as a file above",
              choices={"": "at random", EVEN: "evenly"}, may_be_sent=True),
        Field("draft_tokens", "Drafted tokens of a step", "", "speculative decoding; empty: none"),
        Field("accepted", "Accepted share of drafted tokens", "", "from 0 to 1"),
        Field("max_num_seqs", "Requests in a step, at most", "", "empty: the framework's usual number"),
        Field("max_num_batched_tokens", "Tokens in a step, at most", "", "empty: the usual number"),
        Field("kv_dtype", "Data type of the cache",
              choices=_of(CACHE_BYTES, "as published, or the framework's default")),
        SURE,
        Field("gpus", "GPUs in all, at most", "",
              "empty: as many as one machine has; for a rate as many as it needs"),
    ), OF_LANGUAGE_MODEL),
}  # fmt: skip
"""View, as in the address of the page -> tab."""
COMPARING = frozenset(["training", "decoder", "llm"])
"""Tabs with a checkbox that compares all devices, as `all` does in a command."""
EXAMPLES = ("rtx-3090-amp", "rtx-4090-amp", "h100-vllm")
"""Bundled devices that are ticked initially if no device was named or learned here: two GPUs on which the
default network was timed, and one that serves language models."""


def _key(field: Field) -> str:
    """The key of a field in links. Tabs with an equal field share its key, and so its text."""
    view = next(view for view, tab in TABS.items() if tab.every.get(field.name) == field)
    return f"{view}.{field.name}"


KEYS = {
    view: {name: _key(field) for name, field in tab.every.items()} for view, tab in TABS.items()
}
FIELDS = {
    KEYS[view][name]: field for view, tab in TABS.items() for name, field in tab.every.items()
}

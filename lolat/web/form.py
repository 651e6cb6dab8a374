"""The page's form: one table of fields, the question that they ask, the link that asks it again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from lolat.device.question import AUTO
from lolat.errors import InputError, LolatError
from lolat.io.forms import BY_NAME, FILES
from lolat.llm.decoder import CACHE_BYTES, DTYPES
from lolat.llm.names import named, published
from lolat.llm.question import PERCENTILES, ServingQuestion
from lolat.parameters import COVERAGE, LENGTH, MOST_CONCURRENCY, PARAMETERS, SIZE, parameters_of
from lolat.readers.cache import bundled_networks
from lolat.readers.size import as_sizes
from lolat.training.passes import Tuning
from lolat.units import as_number, plain, shortened
from lolat.web.devices import Device
from lolat.web.networks import UPLOAD, sent_name

# ---- The value of a text in a field; InputError if it has none.

NETWORK = re.compile(rf"(({'|'.join(BY_NAME)}):)?[A-Za-z][\w.-]{{0,99}}|upload:.+", re.ASCII)


@dataclass(frozen=True)
class Numbers:
    """Reads the numbers in a field, from `least` to `most`.

    If `longest` is 1, the value is a number, None for an empty field; else a tuple of at most `longest`,
    separated by commas or spaces in the field.
    """

    least: float = 1
    most: float = 10**12
    whole: bool = True
    longest: int = 1
    may_be_empty: bool = False

    def __call__(self, text: str) -> Any:
        """The value of a text."""
        values = [as_number(word) for word in re.findall(r"[^,\s]+", text)]
        is_right = all(
            self.least <= v <= self.most and (v.is_integer() or not self.whole) for v in values
        )
        if not is_right or len(values) > self.longest or not (values or self.may_be_empty):
            found = repr(shortened(text)) if text else "nothing is given"
            one = "a whole number" if self.whole else "a number"
            several = f"{one}, or up to {self.longest} of them," if self.longest > 1 else one
            raise InputError(
                f"{found}; expected {several} from {self.least:,g} to {self.most:,.12g}"
            )
        numbers = tuple(map(int, values)) if self.whole else tuple(values)
        return numbers if self.longest > 1 else numbers[0] if numbers else None


def spec_of(name: str) -> str:
    """The NETWORK argument for a name in the form; without a prefix it is of keras.applications.

    A path and `package.module:callable` are refused: else another site that makes a browser open the page
    could have any file of the user read, or any code run.
    """
    if not NETWORK.fullmatch(name):
        raise InputError(
            f"{shortened(name)!r} is no name of a network; expected one of keras.applications, such as "
            "ResNet50, timm:NAME or torchvision:NAME; a file is given in the field below"
        )
    return name if ":" in name else f"keras:{name}"


def language_model(name: str) -> str:
    """The name of a known language model or of a sent configuration. InputError for others."""
    if not name.startswith(UPLOAD):
        named(name)
    return name


# ---- The fields of each tab, named as the arguments of the Python calls.


@dataclass(frozen=True)
class Field:
    """A field; `default`: its first text; `choices`: value -> words of a list; `steps`: of its slider."""

    name: str
    label: str
    default: str = ""
    hint: str = ""
    parse: Callable[[str], Any] = str
    choices: Mapping[str, str] | None = None
    steps: Sequence[str] = ()

    def value(self, text: str) -> Any:
        """The value of a text. InputError if it has none or is none of `choices`."""
        if self.choices is not None and text not in self.choices:
            known = ", ".join(value or words for value, words in self.choices.items())
            raise InputError(f"{shortened(text)!r} is not known; choose one of {known}")
        return self.parse(text)

    def word(self, text: str) -> str:
        """The value of a text as in an option of a command; "" if it is empty."""
        value = self.value(text)
        values = value if isinstance(value, tuple) else () if value in (None, "") else (value,)
        return ",".join(str(v).removesuffix(".0") for v in values)

    def near(self, text: str) -> str:
        """The first of these that the field takes: the text, its first word, the default."""
        for near in (text, *re.findall(r"[^,\s]+", text)[:1]):
            with contextlib.suppress(InputError):
                self.value(near)
                return near
        return self.default


VARY_WORDS = {
    "width": "width: channels of every layer",
    "resolution": "input size",
    "batch": "batch size",
}


@dataclass(frozen=True)
class Subject:
    """The subject of a tab's question; the first of `fields` holds its name, or that of a sent file.

    `names`: known names; `endings`, `most_bytes`: of a file that can be sent; `hint`: how the file is used;
    `command`: the command for a larger file.
    """

    legend: str
    fields: tuple[Field, ...]
    names: Callable[[], Iterable[str]]
    endings: tuple[str, ...]
    most_bytes: int
    hint: str
    command: str

    @property
    def named(self) -> Field:
        """The field that holds the name."""
        return self.fields[0]

    @property
    def is_decoder(self) -> bool:
        """True if it is a language model."""
        return self.named.name == "config"


OF_NETWORK = Subject("Network", (
    Field("network", "Network", "ResNet50",
          "a name of keras.applications, timm:NAME or torchvision:NAME; type to search", spec_of),
    Field(SIZE, "Input size", "", "such as 160 or 160,160,3; empty: the network's own",
          Numbers(most=10**7, longest=6, may_be_empty=True)),
    Field(LENGTH, "Sequence length", "", "tokens of a text or steps; empty: the network's own",
          Numbers(most=10**7, may_be_empty=True)),
), lambda: [n.removeprefix("keras:") for n in bundled_networks()], FILES, 200 * 2**20,
   "Its layers alone are read, not its weights, and no code is run. The server keeps the file in memory "
   "until it ends.",
   "lolat predict MODEL FILE",
)  # fmt: skip
"""ONNX files hold the weights, which are of no use here."""
_CONFIG = Field(
    "config", "Language model", "qwen3-32b", "type to search the known ones", language_model
)
OF_LANGUAGE_MODEL = Subject("Language model", (_CONFIG,), lambda: sorted(published()), (".json",), 2**20,
   "The config.json that was published with the model. The server keeps it in memory until it ends.",
   "lolat llm MODEL CONFIG.json",
)  # fmt: skip


class Tab(NamedTuple):
    """A tab: its title, its own fields, and the subject of its question."""

    title: str
    fields: tuple[Field, ...]
    subject: Subject = OF_NETWORK

    @property
    def every(self) -> dict[str, Field]:
        """All fields by name, those of the subject first."""
        return {f.name: f for f in (*self.subject.fields, *self.fields)}


def _steps(least: int, most: int) -> tuple[str, ...]:
    """Powers of two and the numbers halfway between them."""
    powers = [1 << n for n in range(least.bit_length() - 1, most.bit_length())]
    return tuple(str(n) for p in powers for n in sorted({p, p * 3 // 2}) if least <= n <= most)


def batch_on_each(text: str) -> int | str:
    """A batch size, or "auto"."""
    return AUTO if text == AUTO else int(Numbers()(text))


def what_is_tuned(text: str) -> str:
    """The words of what is tuned; InputError for others."""
    if text:
        Tuning.named(text)
    return text


SURE = f"{100 * COVERAGE:g}"
EVERY = PARAMETERS | parameters_of(ServingQuestion)
EMPTY = 1e-6
"""The distance of a field's numbers from the ends of an open range."""


def field(
    name: str, label: str, default: str = "", hint: str = "", longest: int = 1,
    words: Mapping[str, str] | None = None, **more: Any,
) -> Field:  # fmt: skip
    """The field of a parameter; without a default it may be left empty.

    `longest`: the most numbers that it takes; `words`: choice -> words, the choices themselves if None.
    """
    of = EVERY[name]
    if of.choices or words is not None:
        return Field(name, label, default, hint, choices=words or {c: c for c in of.choices})
    least, most = (of.least + EMPTY, of.most - EMPTY) if of.is_open else (of.least, of.most)
    numbers = Numbers(least, min(most, 10**15), of.kind is int, longest, default == "")
    return Field(name, label, default, hint, **{"parse": numbers, **more})


def _or(first: str, choices: Iterable[str]) -> dict[str, str]:
    """Choice -> words, with `first` for the empty choice in front."""
    return {"": first, **{choice: choice for choice in choices}}


MODE = (
    field("precision", "Precision", "", "by the data sheet if the GPU was measured in another one",
          words=_or("as measured", PARAMETERS["precision"].choices)),
    field("launch", "Launch", "", "one by one, by torch.compile, or by it with CUDA graphs",
          words=_or("as measured", PARAMETERS["launch"].choices)),
    field("host_us", "Host, µs an addition", "", "to launch it on a GPU; empty: as usual"),
)  # fmt: skip
"""The fields of the execution mode."""
RENTED = (
    field("link_gbps", "Link of a device, Gbit/s", "",
          "empty: the usual link inside a machine; between machines that of the instance type, or 10"),
    field("price_per_hour", "Price of a device, US$ an hour", "", "empty: from the price list"),
    field("memory_gib", "Memory of a device, GiB", "", "empty: as the device's file says"),
)  # fmt: skip
"""The fields of devices that are rented."""
_ACCUMULATE = field("accumulate", "Batches for one update", "1", "gradient accumulation")
SHARDED = {
    "none": "nothing", "zero1": "optimizer states (ZeRO 1)", "zero2": "gradients too (ZeRO 2)",
    "fsdp": "parameters too (FSDP)", "hybrid": "these inside a machine alone (hybrid)",
}  # fmt: skip


def _divided(*choices: str) -> dict[str, str]:
    return {choice: SHARDED[choice] for choice in choices}


def _batch(default: str) -> Field:
    hint = "auto: the largest that fits"
    return field("batch_size", "Batch size on each device", default, hint, parse=batch_on_each)


def _replicas(default: str) -> Field:
    return field("replicas", "Number of devices", default, "several with commas", 16)


OF_TRAINED = replace(OF_LANGUAGE_MODEL, command="lolat cost MODEL CONFIG.json", fields=(
    replace(_CONFIG, default="llama-3.1-8b"),
    field("sequence_length", "Tokens of a sequence", "4096"),
))  # fmt: skip
TABS = {
    "latency": Tab("Latency", (
        field("batch_size", "Batch sizes", "1", "samples in one pass; several with commas: 1,8,32", 8),
        *MODE,
    )),
    "budget": Tab("What fits", (
        field("vary", "What may change", "width", words=VARY_WORDS),
        field("max_ms", "Time limit, ms", "15"),
        field("sure", "Certainty, %", "",
              f"empty: the predicted time keeps the limit; {SURE}: so does the end of its interval"),
        field("batch_size", "Batch size", "1", "samples in one pass"),
        *MODE,
    )),
    "training": Tab("Training and cost", (
        field("samples", "Samples in the data set", "50000"),
        field("epochs", "Epochs", "20"),
        _batch("64"),
        *MODE,
        field("optimizer", "Optimizer", "sgd"),
        _ACCUMULATE,
        field("checkpointing", "Activations computed again", "",
              words=_or("as the network says", PARAMETERS["checkpointing"].choices)),
        field("tune", "What is trained", "",
              "empty: as the network says; full, lora:16 (adapters), frozen (the last layer)",
              parse=what_is_tuned),
        field("sharding", "Divided among the devices", "none",
              words=_divided("none", "zero1", "zero2", "fsdp")),
        _replicas("1,2,4,8"),
        *RENTED,
    )),
    "decoder": Tab("Training language models", (
        field("tokens", "Tokens in the data set", "1e8"),
        field("mean_tokens", "Mean tokens of a sample", "",
              "if each is padded to a sequence; empty: packed"),
        field("epochs", "Epochs", "1"),
        _batch("1"),
        field("precision", "Precision", "", words=_or("mixed (amp)", ("amp", "bf16"))),
        MODE[1],
        field("optimizer", "Optimizer", "adamw"),
        _ACCUMULATE,
        field("checkpointing", "Activations computed again", "none"),
        field("tune", "What is trained", "",
              "empty: all; lora:16 (adapters), frozen:16 (all behind 16 layers), frozen (the head)",
              parse=what_is_tuned),
        field("sharding", "Divided among the GPUs", "fsdp", words=_divided(*SHARDED)),
        _replicas("8"),
        *RENTED,
    ), OF_TRAINED),
    "llm": Tab("Serving language models", (
        field("concurrency", "Concurrent requests", "32",
              "at all times; several with commas; a rate takes their place", 8, steps=_steps(1, 1024),
              parse=Numbers(1, MOST_CONCURRENCY, True, 8, True)),
        field("request_rate", "Requests a second", "",
              "that arrive at random; with a limit, on as few GPUs as keep it", 8),
        field("input_tokens", "Tokens of a prompt", "1024", steps=_steps(16, 131_072)),
        field("output_tokens", "Tokens of an answer", "512", steps=_steps(16, 32_768)),
        field("tensor_parallel", "GPUs that share the model", "",
              "empty: 1, 2, 4 and 8, where the model fits", 8, steps=("", "1", "2", "4", "8")),
        field("cached_tokens", "Tokens of a prompt in the cache", "", "by prefix caching; empty: none"),
        field("expert_parallel", "Groups with whole experts", "",
              "expert parallel, of the GPUs that share the model; empty: all share each expert"),
        field("dtype", "Data type of the weights", words=_or("as published", DTYPES)),
        field("kv_dtype", "Data type of the cache",
              words=_or("as published, or the framework's default", CACHE_BYTES)),
        field("max_tpot_ms", "Limit per token, ms", "",
              "with a limit, the configuration with the cheapest tokens within it is chosen",
              steps=("", *_steps(4, 128))),
        field("max_ttft_ms", "Limit to the first token, ms", steps=("", *_steps(64, 8192))),
        Field("percentile", "The limits hold for", parse=lambda text: int(text) if text else None,
              choices={"": "the means", **{str(p): f"{p} % of requests" for p in PERCENTILES}}),
        field("gpus", "GPUs in all, at most", "",
              "empty: as many as one machine has; for a rate as many as it needs"),
        field("price_per_hour", "Price of a GPU, US$ an hour", "", "empty: from the price list"),
    ), OF_LANGUAGE_MODEL),
}  # fmt: skip
"""Each tab by its view."""
RARE = frozenset(["launch", "host_us", "accumulate", "checkpointing", "tune", "link_gbps", "memory_gib",
                  "price_per_hour", "kv_dtype", "percentile", "gpus", "cached_tokens",
                  "expert_parallel"])  # fmt: skip
"""Fields that are folded until one of them is used."""
WHOLE = "whole_"
"""The prefix of a text that another tab's field took a part of only: "4,8" where it has 4."""
EXAMPLES = ("epyc-2t", "rtx-4090-amp", "h100-vllm")
"""Bundled devices that are ticked at first if no device was named or learned here: a CPU, a GPU, and one
that serves language models.
"""


def _is_part(name: str, text: str | None, whole: str) -> bool:
    """Return whether a text is what the field of some tab takes of the `whole` one."""
    fields = (tab.every[name] for tab in TABS.values() if name in tab.every)
    return any(field.near(whole) == text for field in fields)


class Form:
    """The fields as they were typed; `errors`: field -> what is expected."""

    def __init__(self, query: Iterable[tuple[str, str]], devices: Mapping[str, Device]) -> None:
        """`query`: pairs of a name and a text; the first of a name counts, and those in `unknown` do not.
        `devices`: those to tick.
        """
        query = list(query)
        self.typed = dict(reversed(query))
        self.errors: dict[str, str] = {}
        view = self.typed.get("view", "")
        first = next((d for d in devices.values() if d.is_own), None)
        usual = "latency" if first is None or first.answers(False) else "llm"
        self.view = view if view in TABS else usual
        _, self.own_fields, self.subject = TABS[self.view]
        self.fields = TABS[self.view].every
        self.devices = {key: d for key, d in devices.items() if d.answers(self.subject.is_decoder)}
        self.rare = [field for field in self.own_fields if field.name in RARE]
        for name, field in self.fields.items():
            whole = self.typed.pop(WHOLE + name, "")
            if whole and _is_part(name, self.typed.get(name), whole):
                self.typed[name if field.near(whole) == whole else WHOLE + name] = whole
        # The form has an empty one of its own: at first there is none.
        given = dict.fromkeys(text for name, text in query if name == "model")
        own = [d.key for d in self.devices.values() if d.is_own]
        usually = own[:1] or [k for k in EXAMPLES if k in self.devices] or [*self.devices][:1]
        self.ticked = [key for key in given if key in self.devices] if given else usually
        self.refused = [key for key in given if key and key not in self.devices]
        # What other tabs are asked goes on with the form, for their links.
        self.elsewhere = {
            key: devices[key] for name, key in query if name == "elsewhere" and key in devices
        }
        names = dict.fromkeys(name for tab in TABS.values() for name in tab.every)
        self.kept = [("elsewhere", key) for key in self.elsewhere]
        kept = [n for name in names for n in (name, WHOLE + name) if n not in self.fields]
        self.kept += [(n, self.typed[n]) for n in kept if n in self.typed]
        known = {
            "view",
            "model",
            "file",
            "elsewhere",
            "only",
            *names,
            *(WHOLE + name for name in names),
        }
        self.unknown = [
            shortened(name) for name in dict.fromkeys(n for n, _ in query if n not in known)
        ]
        self.unknown += [f"view {shortened(view)}"] * (view not in ("", *TABS))

    def text(self, name: str) -> str:
        """The text of a field, as typed or as at first; a rate takes the place of the concurrency."""
        if name == "concurrency" and self.typed.get("request_rate", "").strip():
            return ""
        return self.typed.get(name, self.fields[name].default).strip()

    def question(self) -> dict[str, Any] | None:
        """The value of each field; None if one is wrong or no device is ticked.

        `errors` then says which. It also names devices that are not in the list; the others answer.
        """
        values = {}
        for name, field in self.fields.items():
            try:
                values[name] = field.value(self.text(name))
            except InputError as error:
                self.errors[name] = self.words(error)
        question = None if self.errors or not self.ticked else values
        if self.refused:
            names = ", ".join(map(repr, map(shortened, self.refused)))
            self.errors["model"] = f"{names}: not in the list of this tab; choose others there"
        elif self.devices and not self.ticked:
            self.errors["model"] = "none is chosen; choose at least one"
        return question

    def size(self) -> Any:
        """The input size and the length of sequences, as `lolat.readers.size.as_sizes` returns them."""
        given = {name: self.fields[name].value(self.text(name)) for name in (SIZE, LENGTH)}
        return as_sizes(given if given[LENGTH] else given[SIZE])

    def rare_is_used(self) -> bool:
        """Return whether a folded field has another text than at first, or an error."""
        return any(f.name in self.errors or self.text(f.name) != f.default for f in self.rare)

    def words(self, error: LolatError) -> str:
        """An error with the labels of fields in the place of the arguments' names."""

        def label(name: str) -> str:
            return f'"{self.fields[name].label}"' if name in self.fields else name

        return plain(error.worded(label))

    def options(self) -> list[str]:
        """The fields of the tab as options of its command, without empty ones."""
        words = []
        for field in (*self.subject.fields[1:], *self.own_fields):
            if text := field.word(self.text(field.name)):
                words += ["--" + field.name.replace("_", "-"), text]
        return words

    def network(self) -> str:
        """NETWORK or CONFIG of a command; for a sent file its name."""
        named: str = self.subject.named.value(self.text(self.subject.named.name))
        name = sent_name(named)
        return f"./{name}" if name != named and (name.startswith("-") or ":" in name) else name

    def link(self, **changes: str) -> str:
        """The query string that gives this view again, with some fields changed."""
        texts = {name: self.text(name) for name in self.fields} | changes
        devices = [*self.ticked, *self.refused] or [""]
        pairs = [("view", self.view), *(("model", key) for key in devices)]
        # An empty field is left out where it is empty at first.
        pairs += [(n, t) for n, t in texts.items() if t or self.fields[n].default]
        pairs += self.kept
        return "/?" + urlencode(pairs, safe=",:@")

    def tabs(self) -> dict[str, tuple[str, str]]:
        """View -> its tab's title and address, with the devices and the texts that the tab takes."""
        known = {key: self.devices[key] for key in self.ticked} | self.elsewhere
        found = {}
        for view, tab in TABS.items():
            at = [
                ("model" if d.answers(tab.subject.is_decoder) else "elsewhere", key)
                for key, d in known.items()
            ]
            texts = {name: text for name, text in self.kept if name != "elsewhere"}
            for name, field in self.fields.items():
                text, other = self.text(name), tab.every.get(name, field)
                if other != field and field in self.subject.fields[1:]:
                    continue  # of another kind of network
                if text != field.default or WHOLE + name in texts:
                    texts[name] = text if other == field else other.near(text)
                    if texts[name] != text:
                        texts[WHOLE + name] = text
            pairs = [("view", view), *at, *texts.items()]
            found[view] = tab.title, "/?" + urlencode(pairs, safe=",:@")
        return found

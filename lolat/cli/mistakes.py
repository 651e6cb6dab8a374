"""Suggests what was meant by an unknown option or command, or by values separated by spaces."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from itertools import islice, pairwise, takewhile

import click

from lolat.errors import LolatError
from lolat.io.forms import looks_like_network
from lolat.units import similar

_ON = (
    "--on",
    "MODEL (an argument: one device)",
    "GPU (an argument, as in `lolat llm a100,h100 NETWORK` or `lolat prices h100`)",
)
_STEPS = ("--samples (steps x samples of an update)",)
_TO_FILE = ("--html (a page) or --csv (its rows)",)
_LATENCY = ("--max-ms", "--max-latency-ms")
_NO_PRICE_LIMIT = "no limit of the price: the answer is the cheapest that keeps the other limits"
MEANT: dict[str, tuple[str, ...]] = {
    "gpus": ("--replicas", "--tensor-parallel", *_ON), "num-gpus": ("--replicas", "--tensor-parallel"),
    "world-size": ("--replicas",), "tp": ("--tensor-parallel",), "amp": ("--precision amp",),
    "fp16": ("--precision fp16", "--dtype fp16"), "bf16": ("--precision bf16", "--dtype bf16"),
    "half": ("--precision fp16", "--dtype fp16"), "dtype": ("--precision",), "precision": ("--dtype",),
    "nhwc": ("--channels-last",), "memory-format": ("--channels-last",),
    "compile": ("--launch compiled",), "compiled": ("--launch compiled",), "jit": ("--launch compiled",),
    "graph": ("--launch graph",), "cuda-graph": ("--launch graph",), "cuda-graphs": ("--launch graph",),
    "on": _ON, "gpu": _ON, "device": _ON, "devices": _ON, "hardware": _ON,
    "accelerator": _ON,
    "b": ("--batch-size",), "bs": ("--batch-size",), "format": ("--json",),
    "o": ("--output", *_TO_FILE), "output": _TO_FILE,
    "image-size": ("--input-size",), "img-size": ("--input-size",), "resolution": ("--input-size",),
    "shape": ("--input-size",), "input-shape": ("--input-size",),
    "zero": ("--sharding zero1, zero2 or fsdp",), "fsdp": ("--sharding fsdp",),
    "lora": ("--tune lora:RANK",), "lora-rank": ("--tune lora:RANK",), "lora-r": ("--tune lora:RANK",),
    "steps": _STEPS, "max-steps": _STEPS, "num-steps": _STEPS, "iterations": _STEPS,
    "max-cost": ("--max-dollars",), "max-usd": ("--max-dollars",), "max-time": ("--max-hours", "--max-ms"),
    "seq-len": ("--sequence-length", "--input-tokens"),
    "max-length": ("--sequence-length",),
    "gradient-accumulation": ("--accumulate",), "gradient-accumulation-steps": ("--accumulate",),
    "gradient-checkpointing": ("--checkpointing full",), "budget": ("--max-dollars", "--max-ms"),
    "rate": ("--request-rate",), "qps": ("--request-rate",), "rps": ("--request-rate",),
    "batch-size": ("--concurrency",), "users": ("--concurrency",), "input-len": ("--input-tokens",),
    "output-len": ("--output-tokens",), "latency": _LATENCY, "max-latency": _LATENCY, "e2e": _LATENCY,
    "quantization": ("--dtype",), "max-model-len": ("--input-tokens and --output-tokens",),
    "p50": ("--percentile 50",), "p90": ("--percentile 90",), "p95": ("--percentile 95",),
    "p99": ("--percentile 99",), "max-price": ("--max-dollars", _NO_PRICE_LIMIT),
    "ttft": ("--max-ttft-ms",), "tpot": ("--max-tpot-ms",), "itl": ("--max-tpot-ms",),
    "confidence": ("--coverage",), "network": ("NETWORK (an argument behind MODEL, the device)",),
    "model": ("NETWORK (an argument behind MODEL, the device)",),
    "html": ("a network's page is of `lolat report --html`, a comparison's of `lolat predict --html`",),
    "training": ("--mode training", "training is of `lolat cost`, of times in a table `lolat evaluate`"),
    # Former names, as the changelog lists them.
    "scores": ("--accuracy",), "max-ratio": ("--max-ms",), "value": ("ask `lolat nas search --objective`",),
    "against": ("NETWORK (a further argument of `lolat predict`)",),
}  # fmt: skip
"""Option of other tools, without dashes -> our options: the first that the command has is suggested. Text
in lower case is printed unchanged."""
COMMANDS_MEANT = {
    "train": "cost", "training": "cost", "finetune": "cost", "fine-tune": "cost", "price": "prices",
    "inference": "predict", "latency": "predict", "list": "models", "devices": "models",
}  # fmt: skip
"""Command name in other tools -> our command."""
DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""The hyphen, and the dashes and the minus sign that look like it."""
OF_ONE_NETWORK = ("report", "explain", "budget")


def _missing_of_llm(given: str) -> str:
    """The message for `lolat llm` with one argument: the GPU or the language model is missing."""
    from lolat.llm.names import find_decoders

    try:
        find_decoders(given)
    except LolatError:
        return f"name a language model behind the GPU, such as lolat llm {given} qwen3-32b"
    return f"{given} is a language model: name a GPU before it, or all: lolat llm all {given}"


def options_of(context: click.Context | None) -> set[str]:
    """The options of a context's command."""
    return {option for p in context.command.params for option in p.opts} if context else set()


def usage_words(error: click.UsageError, call: Sequence[str] = ()) -> str:
    """The message of a usage error, without a period; `call`: the arguments after "lolat"."""
    if isinstance(error, click.NoSuchOption):
        return unknown_option(error, call)
    words, context = error.format_message().rstrip("."), error.ctx
    first = str(context.params.get("model", "")) if context else ""
    if isinstance(error, click.MissingParameter) and looks_like_network(first):
        return f"{words}: {first} looks like a network, and the device comes before it"
    if (
        isinstance(error, click.MissingParameter)
        and context
        and context.info_name == "llm"
        and first
    ):
        return _missing_of_llm(first)
    if isinstance(error, click.MissingParameter) and error.param and error.param.name == "max_ms":
        return f"{words}, for example --max-ms 33"
    if "unexpected extra argument" in words and context and context.info_name in OF_ONE_NETWORK:
        return f"{words}; `lolat predict` takes several networks"
    return words


def _with_argument(option: str, call: Sequence[str]) -> str:
    """The corrected call: devices after an unknown option become its first argument; "" for non-devices."""
    command, *words = (
        part for word in call for part in word.split("=", word.startswith(f"{option}="))
    )
    devices, others = list[str](), list[str]()
    for before, word in pairwise([command, *words]):
        (devices if before == option else others).extend([word] if word != option else [])
    named = others[:1] if others and all(map(is_device, others[0].split(","))) else []
    devices = [*named, *devices]
    if not all(map(is_device, ",".join(devices).split(","))):
        return ""
    return shlex.join(["lolat", command, ",".join(devices), *others[len(named) :]])


def unknown_option(error: click.NoSuchOption, call: Sequence[str]) -> str:
    """The message for an unknown option: it suggests our option of this meaning, else similar names."""
    given, has = error.option_name, options_of(error.ctx)
    words, name = f"No such option {given!r}", given.strip("-").replace("_", "-")
    arguments = error.ctx.command.params if error.ctx else ()
    taken = has | {word for p in arguments for word in str(p.metavar).strip(".[]").split("] ")}
    if name.endswith("dtype") and "--served-model" in has:
        networks = "; of networks it is --precision" if "--precision" in has else ""
        key = name.replace("-", "_")
        of = f"in serving measurements it is the key {key} in the JSON, or a table's column"
        return f"{words}: {of}{networks}"
    for meant in MEANT.get(name, ()):
        if meant[0].islower():
            return f"{words}: {meant}"
        if meant == _ON[-1] and "GPU" in taken and (typed := _with_argument(given, call)):
            return f"{words}: GPU is an argument here: {typed}"
        if meant.split()[0] in taken:
            return f"{words}: it is {meant} here"
    names = {option.strip("-"): option for option in sorted(has) if option.startswith("--")}
    near = [option for at, option in names.items() if len(name) > 1 and at.startswith(name)]
    near = near or [names[at] for at in similar(name, names)]
    if near:
        return f"{words}; did you mean {' or '.join(near)}?"
    others = ", ".join(f"`lolat {command}`" for command in _commands_with(given, error.ctx))
    return f"{words}; it is of {others}" if others else words


def _commands_with(option: str, context: click.Context | None) -> list[str]:
    """The names of at most three other commands with this option."""
    root = context.find_root() if context else None
    if root is None or not isinstance(group := root.command, click.Group):
        return []
    commands = ((name, group.get_command(root, name)) for name in group.list_commands(root))
    found = (name for name, of in commands if of for p in of.params if option in p.opts)
    return [*islice(found, 3)]


def unknown_command(words: Sequence[str], known: Iterable[str]) -> str:
    """The message for an unknown command, the first of `words`, with similar commands."""
    given, known = words[0], [*known]
    meant = COMMANDS_MEANT.get(given.casefold())
    near = [meant] if meant in known else similar(given, known)
    near = near or similar(given, known, 1, 0.6)  # of three letters two are enough
    if not near and (is_device(given) or looks_like_network(given)):
        near = [f"lolat predict {shlex.join(words)}"]
    return f"No such command {given!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")


def is_device(word: str) -> bool:
    """True for the name of a device profile, bundled or local, and of a GPU with a data sheet."""
    from lolat.hardware.card_names import is_card
    from lolat.io.paths import list_models

    return word.casefold() in {name.casefold() for name, _, _ in list_models()} or is_card(word)


def check_commas(words: Sequence[str], lists: Collection[str], context: click.Context) -> None:
    """Raise UsageError if values of an option that takes a list are separated by spaces.

    Recognized are numbers, devices after --on, and words that end in a comma.
    """
    for at, option in enumerate(words):
        behind = words[at + 1 :] if option in lists else []
        values = [*takewhile(is_device if option == "--on" else str.isdecimal, behind)]
        if goes_on := [*takewhile(lambda word: word.endswith(","), behind)]:
            last = (word for word in behind[len(goes_on) :][:1] if word[0] != "-")
            values = [word.rstrip(",") for word in (*goes_on, *last)]
        if len(values) > 1:
            given, meant = " ".join(words[at + 1 :][: len(values)]), ",".join(values)
            how = "no spaces" if goes_on else "commas"
            raise click.UsageError(
                f"{option} {given}: expected {how} between values: {option} {meant}", context
            )


def check_dashes(words: Sequence[str], context: click.Context) -> None:
    """Raise UsageError for a word that begins with a dash, as text editors make of two hyphens."""
    for word in words:
        if (name := word.lstrip(DASHES)) and word[0] in DASHES[1:]:
            raise click.UsageError(
                f"{word} begins with a dash; expected two hyphens: --{name}", context
            )


def check_counts(on: Sequence[str], context: click.Context) -> None:
    """Raise UsageError for a count of devices in --on: 2, 2xa100 or a100x2, but not 4090 or 4060."""
    for one in ",".join(on).split(","):
        count, _, device = map(str.strip, one.partition("x"))
        if not count.isdecimal():
            device, _, count = map(str.strip, one.rpartition("x"))
            if not (count.isdecimal() and is_device(device)):
                continue
        if not is_device(one) and (device or len(one) < len("4060")):
            hint = f" ({device})" if device else ""
            if "--replicas" in options_of(context):
                hint += f", and the number as --replicas {count}"
            raise click.UsageError(f"--on {one}: expected names of devices{hint}", context)

"""The parameters of questions, each declared once: in PARAMETERS, or as a field of a question (`declared`).

Commands make their options from them, the page makes its fields, and `asks` makes the arguments of a
method; `Parameter.check` checks numbers that a Python caller gives. Choices are spelled out here, because
the modules that define them import NumPy, which would slow down a command's help.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, wraps
from inspect import Signature, cleandoc, signature
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from lolat.errors import InputError, arg, argument_code, without_options
from lolat.optimizers import OPTIMIZERS
from lolat.units import as_amount, as_number, did_you_mean, in_own_unit, value_words

COVERAGE = 0.9  # default share of true values inside an interval
PREDICTORS = ("two-regime", "extended", "kernels", "training-steps")
LAUNCHES: tuple[Literal["eager", "compiled", "graph"], ...] = ("eager", "compiled", "graph")
PRECISIONS = ("fp32", "tf32", "amp", "fp16", "bf16")
BEST = "best"  # the precision that means each device's fastest one
LISTS = ("precision", "launch")
"""The parts of an execution mode that `lolat predict` takes several values of."""
BACKENDS = ("tensorflow", "torch", "onnxruntime")
TRAINING_BACKENDS = BACKENDS[:2]
CANDIDATES = 200  # number of networks that a search scores by default
EVALUATED_BATCHES = (1, 4)  # batch sizes at which networks are measured by default
SERVING_FRAMEWORKS = ("vllm", "sglang", "trtllm")
CHECKPOINTING = ("none", "full", "selective")
SHARDINGS = ("none", "zero1", "zero2", "fsdp", "hybrid")
NETWORK_OPTIMIZER, DECODER_OPTIMIZER = "sgd", "adamw"  # if none is given
OTHER_OPTIMIZERS = {  # in transformers' TrainingArguments
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_8bit": "adamw8bit",
    "adamw_bnb_8bit": "adamw8bit", "lion_32bit": "lion",
}  # fmt: skip
OTHER_PRECISIONS = {  # in options and in columns of tables
    "float32": "fp32", "float": "fp32", "fp16-mixed": "amp", "bf16-mixed": "amp", "mixed": "amp",
    "16-mixed": "amp", "mixed_float16": "amp", "mixed_bfloat16": "amp", "autocast": "amp",
    "amp_bf16": "amp", "amp_bfloat16": "amp", "amp_fp16": "amp", "amp_float16": "amp",
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
}  # fmt: skip
OTHER_SHARDINGS = {
    "ddp": "none", "no_shard": "none", "zero3": "fsdp", "full_shard": "fsdp", "shard_grad_op": "zero2",
    "hybrid_shard": "hybrid",
}  # fmt: skip
OTHER_BACKENDS = {
    "pytorch": "torch",
    "tf": "tensorflow",
    "keras": "tensorflow",
    "onnx": "onnxruntime",
}
VARY = ("width", "resolution", "batch")
POISSON, EVEN = "poisson", "even"
TRACE = ("arrival_s", "input_tokens", "output_tokens")
SIZE, LENGTH = "input_size", "sequence_length"
InputSize = int | Sequence[int | Sequence[int]] | Mapping[str, Any] | None
"""The size of inputs as a user gives it; `lolat.readers.size.as_size` turns it into a `Size`."""
MOST_TOKENS, MOST_CONCURRENCY, MOST_GPUS = 10_000_000, 1_000_000, 1024

_SIDES = re.compile(r"\d+([x*]\d+)+")
"""Sides with an x between them, such as 224x224, where an input size is expected."""


@dataclass(frozen=True)
class Parameter:
    """A parameter, with the name of its Python argument.

    `help`: a line for people. `kind`: int, float, str, or bool for a flag. A number lies from `least` to
    `most`; if `is_open`, both ends are excluded. `choices`: the words it can be; `others`: other names of
    these words, such as trainers use; `unknown`: text at the end of the error's "expected ...". `metavar`:
    placeholder of the value in a command's help. `example`: a list of values; if given, the parameter takes
    several. `default`: the value if none is given.
    """

    name: str
    help: str
    kind: type = int
    least: float = 1
    most: float = math.inf
    is_open: bool = False
    choices: tuple[str, ...] = ()
    metavar: str = "N"
    example: str = ""
    default: Any = None
    others: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""

    def word(self, value: Any) -> Any:
        """The choice that a value names, in any case; other values are returned unchanged."""
        if not isinstance(value, str) and type(value).__name__ != "dtype":  # torch.float16
            return value
        name = str(value).strip().casefold().removeprefix("torch.")
        return self.others.get(name, name if name in self.choices else value)

    def choice(self, value: Any) -> str:
        """The choice that a value names; InputError if it names none."""
        if (found := self.word(value)) in self.choices:
            return str(found)
        expected = f"expected one of {', '.join(self.choices)}{self.unknown}"
        raise InputError(
            f"{arg(self.name)} {value_words(value)}: {expected}", code=argument_code(self.name)
        )

    @property
    def is_count(self) -> bool:
        """True if the suffix m means million, as in 5m tokens, and is not a unit, as in 5 minutes."""
        return self.kind is int or self.name == "tokens"

    @property
    def option(self) -> str:
        """The name of the command-line option."""
        return "--" + self.name.replace("_", "-")

    def check(self, *values: Any) -> None:
        """Raise InputError unless each value is allowed.

        A number must be finite and in the range, and whole for a count; a flag must be a bool, a word a
        str.
        """
        if values and all(map(self._holds, values)):
            return
        shown = f"{arg(self.name)} {', '.join(map(value_words, values))}"
        if self.kind in (bool, str):
            raise InputError(
                f"{shown}: expected {'one text' if self.kind is str else 'True or False'}",
                code=argument_code(self.name),
            )
        what = "a whole number" if self.is_count else "a number"
        least = f"{'above' if self.is_open else 'from'} {self.least:,g}"
        to = " and below" if self.is_open else " to"
        most = f"{to} {self.most:,}" if math.isfinite(self.most) else ""
        expected = f"expected {what} {least}{most}{self.unknown}"
        raise InputError(
            f"{shown}: {expected}", code=argument_code(self.name), given=[*values], most=self.most
        )

    def hint(self, text: str) -> str:
        """A hint such as "; did you mean 24?" for a text that is almost a number; "" without a likely one.

        Such a text has a unit, or gives a percentage where a fraction is expected, or the other way round.
        """
        given, text = as_number(text), text.strip().strip("$")
        if self.name == SIZE and _SIDES.fullmatch(text):
            sides = re.split("[x*]", text)
            square = len(sides) == 2 and sides[0] == sides[1]
            return f"; did you mean {sides[0] if square else ','.join(sides)}?"
        is_whole, share = self.kind is int, as_number(text.rstrip(" %"))
        # The m in 30m means minutes for hours, and is no prefix for the other two.
        is_prefix = not is_whole and text[-2:-1].isdecimal() and text[-1:] in "kKmMbBtT"
        is_prefix = is_prefix and not self.name.endswith(("_hours", "_gib", "_rate"))
        bare = math.nan if is_prefix else in_own_unit(text, self.name, self.is_count)
        share *= 100.0 if share < 1.0 else 0.01
        is_share = self.most in (1, 100) or self.name == "percentile"
        for number in (as_amount(text, is_whole), bare, *([share] if is_share else [])):
            lies = self.least < number < self.most and number != given
            if lies and (number.is_integer() or not is_whole):
                meant = f"{number:.12g}"
                if is_whole and re.fullmatch(
                    r"[\d.]+ ?[kK]", text
                ):  # 2k tokens are usually 2048, 2k images are 2000
                    meant += f" or {number / 1000 * 1024:.12g}"
                return f"; did you mean {meant}?"
        return ""

    def _holds(self, value: Any) -> bool:
        if self.kind in (bool, str):
            return isinstance(value, self.kind)
        kind: Any = Real if self.kind is float else Integral
        if not isinstance(value, kind) or isinstance(value, bool):
            return False
        if self.is_open and value in (self.least, self.most):
            return False
        is_inside = self.least <= value <= self.most and value < math.inf
        return bool(is_inside and not (self.is_count and value % 1))


def _amount(name: str, metavar: str, help: str, is_open: bool = True) -> Parameter:
    """A parameter for a number above 0; from 0 if not `is_open`."""
    return Parameter(name, help, float, 0, is_open=is_open, metavar=metavar)


def _word(
    name: str, choices: tuple[str, ...], help: str, others: Mapping[str, str] | None = None,
    unknown: str = "", example: str = "",
) -> Parameter:  # fmt: skip
    metavar = f"{'|'.join(choices)}[,...]" if example else ""
    about = {"others": others or {}, "unknown": unknown, "example": example}
    return Parameter(name, help, str, choices=choices, metavar=metavar, **about)  # type: ignore[arg-type]


_EVERY = (
    # A network, and how a device runs it.
    Parameter("batch_size", "Samples in one batch.", most=10**12, metavar="N[,N]",
              example="1,4,16"),
    Parameter(SIZE, "Height = width of the input, or its whole shape without the batch (Keras: "
              "H,W,C; PyTorch and ONNX: C,H,W).", most=10**7, metavar="H[,W,C]",
              example="224, 224,224,3 (Keras) or 3,224,224 (PyTorch, ONNX)"),
    Parameter(LENGTH, "Tokens of a text, or steps of a sequence; images stay as they are.",
              most=10**7),
    _word("precision", PRECISIONS,
          "How a GPU computes; if not given, as it was measured (several cards, and one in `lolat cost`: "
          "in its fastest). Another precision is predicted from the data sheet. amp keeps weights in "
          "float32; fp16 and bf16 keep weights, gradients and states in 2 bytes.",
          OTHER_PRECISIONS, "; a network in INT8 is an ONNX file, asked without it on a CPU"),
    _word("launch", LAUNCHES, "How a GPU's operations are started: one by one (eager), fused by "
          "torch.compile (compiled), or fused and in a CUDA graph (graph, PyTorch's reduce-overhead). If "
          "not given, as they were measured."),
    Parameter("host_us", "Time that the computer around a GPU takes to launch an addition, µs (timeit "
              "x + y); dense layers and convolutions take 2.5 times as long. If not given, the usual time, "
              "which may be wrong by a factor of 1.8.", float, 1,
              1000, metavar="US", unknown=" microseconds, such as 25 (0.025 ms)"),
    Parameter("channels_last", "Images are stored channels last (memory_format=torch.channels_last), not "
              "channels first. torch.compile chooses this layout by itself.", bool, default=False),
    _word("predictor", PREDICTORS, "A formula of the profile other than its default."),
    # Its latency.
    Parameter("coverage", f"Share of true values inside the interval; {COVERAGE:g} if not given.", float,
              0, 1, is_open=True, metavar="SHARE", unknown=f", such as {COVERAGE:g}"),
    _amount("max_ms", "MS", "The longest time allowed."),
    _amount("min_samples_per_s", "N", "The samples a second that a device must compute."),
    Parameter("sure", "A limit must hold for the upper end of the interval; PERCENT is the interval's "
              f"coverage, {100 * COVERAGE:g} if not given.", float, 1, 100, is_open=True,
              metavar="[PERCENT]", unknown=" percent, such as 95"),
    _word("vary", VARY, "The quantity that changes: channel counts, pixels of the input, or samples at "
          "once."),
    # Its training.
    Parameter("samples", "Samples in the data set. If not given, the answer is for one iteration.",
              most=10**12),
    Parameter("epochs", "Times through the data set.", most=10**12),
    _word("optimizer", tuple(OPTIMIZERS), "Optimizer that updates the weights. If not given, sgd; for a "
          "decoder adamw.", OTHER_OPTIMIZERS, "; others, such as lamb, are not predicted"),
    Parameter("accumulate", "Batches that each device computes before an update; 1 if not given.",
              most=10**6),
    Parameter("global_batch_size", "Samples of one update on all devices. The number of batches that each "
              "device accumulates follows from it.", most=10**9),
    _word("checkpointing", CHECKPOINTING, "Activations that are not kept, but computed again in the "
          "backward pass. none: all are kept. full: each block keeps its input alone. selective: results "
          "of matrix products are kept too; in a decoder those of attention and of every second matrix "
          "product. If not given, as the network's code does.",
          example="none,full"),
    Parameter("tune", "What is trained. full: everything. lora:RANK: adapters at linear layers in float32; "
              "in a decoder lora:RANK:bf16 has them in bfloat16. frozen:N: all but the first N blocks. "
              "frozen: the last layer alone. If not given, as the network says (requires_grad, trainable).",
              str, metavar="WHAT"),
    Parameter("validation_samples", "Samples evaluated after each epoch."),
    Parameter("replicas", "Devices that train together. If not given, 1; a comparison of GPUs, and a GPU's "
              "name with a limit, take the sizes of the instances in the price list.", most=4096,
              metavar="K[,K]", example="1,2,4,8"),
    _word("sharding", SHARDINGS, "What the devices divide among themselves. none: nothing. zero1: "
          "optimizer states. zero2: gradients too. fsdp: parameters too. hybrid: as fsdp, but only inside "
          "each machine (for a decoder's configuration).",
          OTHER_SHARDINGS, "; zero3 is fsdp; tensor and pipeline parallelism are not predicted"),
    Parameter("tokens", "Tokens in the data set, such as 1e9 or 200m, in place of --samples.", float, 1,
              1e18),
    Parameter("mean_tokens", "Mean length of samples that are padded to --sequence-length; if not given, "
              "samples are packed. If each batch is padded to its longest sample, give the mean length of "
              "these longest samples as --sequence-length.", float, 1, MOST_TOKENS),
    _amount("link_gbps", "GBPS", "Gbit/s that adding up gradients reaches between machines, for each "
            "device. If all numbers of --replicas fit into one machine: between its devices. If not given, "
            "that of the instance type (docs/how-to/cost.md)."),
    Parameter("memory_gib", "Memory of each device. 0.5 GiB of it stays free, and 6 % too unless the "
              "network is a decoder. A comparison leaves out GPUs with less. If not given, by the data "
              "sheet; of a CPU what was free when it was learned.", float, 0, 8192, is_open=True,
              metavar="GIB", unknown=" GiB, such as 24 (24,576 MiB)"),
    _amount("max_hours", "HOURS",
            "Name the cheapest option that takes no longer; exit code 3 if there is none. Without "
            "--samples or --tokens: say how much can be trained in this time."),
    _amount("max_dollars", "USD",
            "Name the fastest option that costs no more; exit code 3 if there is none. Without "
            "--samples or --tokens: say how much can be trained for this money."),
    _amount("price_per_hour", "USD", "US$ an hour for one device.", is_open=False),
    Parameter("prices", "A CSV file in the layout of SkyPilot's catalog; the list of `lolat prices` if not "
              "given.", str, metavar="FILE"),
    # A language model.
    _word("framework", SERVING_FRAMEWORKS, "The framework that serves language models. If not given, the "
          "one in the name of a table or of the output, else vllm."),
    Parameter("served_model", "The language model in tables and result files that do not name it, or use a "
              "name of their own: a known name, or the path of a config.json.", str,
              metavar="NAME"),
    # Measuring and searching.
    Parameter("wait", "Wait until no other program runs, at most ten minutes.", bool, default=False),
    Parameter("restart", "Throw away what an interrupted run left.", bool, default=False),
    Parameter("training", "With --table: compare its training steps; needs a profile made from tables.",
              bool, default=False),
    Parameter("lower_is_better", "A low score is good, such as a loss.", bool, default=False),
    _word("backend", BACKENDS, "The framework that is measured.", OTHER_BACKENDS),
    Parameter("threads", "Threads on a CPU."),
    Parameter("seed", "Seed of the random numbers.", least=0),
)  # fmt: skip
PARAMETERS = {parameter.name: parameter for parameter in _EVERY}
"""Parameters by name."""


def check_given(**values: Any) -> None:
    """Raise InputError unless each value is None or passes its parameter's `check`.

    A name that is not in PARAMETERS takes whole numbers from 1.
    """
    for name, value in values.items():
        if value is None or (name in PARAMETERS and value is PARAMETERS[name].default):
            continue
        PARAMETERS.get(name, Parameter(name, "")).check(value)


def percent_sure(sure: float | None) -> float | None:
    """The probability, in percent, with which limits must hold; None if `sure` is False or None.

    True stands for COVERAGE; InputError for any other value that is no number or out of range.
    """
    if sure is None or isinstance(sure, bool):
        return 100 * COVERAGE if sure else None
    PARAMETERS["sure"].check(sure)
    return sure


def surely(sure: float | None, coverage: float | None) -> tuple[bool, float | None]:
    """(True if a limit must hold for the end of the interval, coverage of the interval or None).

    A number in `sure` is the coverage in percent; InputError if `coverage` is given as well.
    """
    percent = percent_sure(sure)
    if percent is None or sure is True:
        return bool(sure), coverage
    if coverage is not None:
        given = f"{arg('sure')} {percent:g} and {arg('coverage')} {coverage}"
        raise InputError(
            f"{given}: both are the share of true values; expected one of them", code="sure"
        )
    return True, percent / 100.0


# ---- Questions whose fields declare their parameters


def declared(default: Any, help: str, least: float = 1, most: float = math.inf, **more: Any) -> Any:
    """A dataclass field of a question that declares a parameter; `more`: further fields of Parameter."""
    about = {"help": help, "least": least, "most": most, **more}
    return field(default=default, metadata=about)


@cache
def parameters_of(question: type) -> dict[str, Parameter]:
    """The parameters of a question's fields, by name: `declared` in the question, or in PARAMETERS."""
    found = {}
    for one in fields(question):
        if one.metadata:
            words = re.findall(r"\w+", str(one.type))
            kind = next((kind for kind in (float, int) if kind.__name__ in words), str)
            found[one.name] = Parameter(one.name, kind=kind, default=one.default, **one.metadata)
        elif one.name in PARAMETERS:
            default = None if one.default is MISSING else one.default
            found[one.name] = replace(PARAMETERS[one.name], default=default)
    return found


def check_is_batch(value: Any, behind_network: bool) -> None:
    """Raise InputError for a batch size that can only be an input array or an input size.

    `behind_network`: True if it was given by position behind the network, where `lolat.read` has the input
    size.
    """
    shape = tuple(map(int, getattr(value, "shape", ())))
    meant = shape[1:] if len(shape) > 1 else ()
    sizes = [*map(str, value)] if behind_network and isinstance(value, (tuple, list)) else []
    if any(one == next_ for one, next_ in pairwise(sizes)):  # a height and a width
        meant = tuple(value)
    if meant:
        given = f"an array of {shape}" if shape else f"{meant}"
        where = ", the argument behind the network," if behind_network else ""
        raise InputError(
            f"{arg('batch_size')}{where} is {given}; did you mean {SIZE}={meant}?",
            code="batch-size",
        )


def with_length(named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, with the sequence length moved into the input size, as `lolat.read` takes it."""
    length, others = named.get(LENGTH), {n: v for n, v in named.items() if n != LENGTH}
    return others if length is None else others | {SIZE: {SIZE: named.get(SIZE), LENGTH: length}}


def check_names(question: Callable[..., Any], named: Mapping[str, Any]) -> None:
    """Raise InputError for a name that is not an argument of a question."""
    for name in named.keys() - signature(question).parameters.keys():
        known = list(signature(question).parameters)
        hint = did_you_mean(name, {n: n for n in known}, f"expected {', '.join(known)}")
        raise InputError(f"{name}: no such argument; {hint}", code="no-argument")


def _check_all_given(required: Sequence[str], named: Mapping[str, Any]) -> None:
    """Raise InputError for the first required argument that is missing."""
    for name in required:
        if name not in named:
            help = ({"on": _ON} | PARAMETERS).get(name, Parameter(name, "")).help.rstrip(".")
            expected = help and f"; expected {help[0].lower()}{help[1:]}"
            raise InputError(f"{arg(name)} is missing{expected}", code=argument_code(name))


_ON = Parameter("on", "The name of a device, such as 'a100', or several; lolat.models() lists them")
P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")


def asks(
    question: Callable[P, Q],
) -> Callable[[Callable[[Any, Any, Q], R]], Callable[Concatenate[Any, Any, P], R]]:
    """Decorate a method so that its arguments are its subject and then the fields of a question.

    A function with two subjects, such as a network and devices, can be decorated too.
    """

    def decorate(method: Callable[[Any, Any, Q], R]) -> Callable[Concatenate[Any, Any, P], R]:
        own = [*signature(method).parameters.values()][:2]
        given = [*signature(question).parameters.values()]
        at = next((n for n, p in enumerate(given, 1) if p.name == SIZE), 0)
        length = [p.replace(name=LENGTH, annotation="int | None") for p in given if p.name == SIZE]
        listed = [*own, *given[:at], *length, *given[at:]]
        shown = Signature(listed, return_annotation=method.__annotations__["return"])
        required = [p.name for p in (*own, *given) if p.default is p.empty]

        @wraps(method)
        def ask(*args: Any, **named: Any) -> R:
            _check_all_given(required[len(args) :], named)
            if twice := next((p.name for p in own[: len(args)] if p.name in named), None):
                order = ", ".join([*shown.parameters][: len(own) + 1])
                words = (
                    f"{twice} is given twice, by its place and by its name; the order is {order}"
                )
                raise InputError(words, code="no-argument")
            if given[0].name == "batch_size":
                check_is_batch(args[2] if len(args) > 2 else named.get("batch_size"), len(args) > 2)
            if length:
                named = with_length(named)
            subjects = {p.name for p in own[len(args) :]}  # subjects that are given by name
            check_names(question, {n: v for n, v in named.items() if n not in subjects})
            if subjects:
                bound = shown.bind(*args, **named)
                args, named = bound.args, bound.kwargs
            return method(*args[:2], question(*args[2:], **named))  # type: ignore[call-arg]

        parameters = [*parameters_of(question).values(), *[PARAMETERS[LENGTH]] * len(length)]
        words = "".join(f"\n- `{one.name}`: {one.help}" for one in parameters)
        ask.__doc__ = f"{cleandoc(method.__doc__ or '')}\n{words}"
        ask.__signature__ = shown  # type: ignore[attr-defined]
        return ask

    return decorate


def in_python(line: str) -> str:
    """A line of an answer with options as Python arguments: `launch="graph"`; a command stays as it is."""

    def written(name: str, word: str) -> str:
        known = PARAMETERS.get(name)
        if name == "json":
            return f".to_dict() {word}".rstrip()
        if known and known.kind is bool:
            return f"{name}=True {word}".rstrip()
        if word in (*(known.choices if known else ()), BEST):
            return f'{name}="{word}"'
        is_value = word.isupper() or word.replace(".", "").isdigit()
        return f"{name}={word}" if is_value else f"{name} {word}".rstrip()

    return without_options(line, written)

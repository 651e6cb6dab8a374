"""Prints the answers of commands, and defines arguments and options that several commands share."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import augment_usage_errors

from lolat.cli.main import JSON, REMARKS, say_json, say_remarks
from lolat.cli.mistakes import check_commas, check_counts, check_dashes, is_device
from lolat.cli.progress import Show as Show
from lolat.cli.progress import counting as counting
from lolat.cli.progress import say as say
from lolat.errors import InputError, arg, argument_code
from lolat.io.forms import is_file, looks_like_network
from lolat.io.results import plain_data
from lolat.io.writing import check_file as check_file
from lolat.io.writing import check_inputs_stay
from lolat.parameters import (
    BEST,
    COVERAGE,
    LENGTH,
    LISTS,
    PARAMETERS,
    SIZE,
    Parameter,
    parameters_of,
)
from lolat.units import as_amount, as_number, names_in

if TYPE_CHECKING:
    from lolat.api.model import Model
    from lolat.report.tables import Part


def refuse_given(place: str, *names: str) -> None:
    """Raise InputError if the call has one of the parameters `names`, which apply only to `place`."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(
                f"{arg(name)} is for {place}; leave it out, or give {place}",
                code=argument_code(name),
            )


# ---- What a command prints


def answer(result: Any, lines: Iterable[Part]) -> None:
    """Print the result of a command: as JSON with --json, else as `lines` and tables.

    The remarks of opened profiles are printed first. With an error they are dropped, which they would bury.
    """
    context = click.get_current_context()
    say_remarks(context.meta)
    if context.meta.get(JSON):
        kinds = getattr(context.command, "answers", {})
        by_class = {place.partition(":")[2]: kind for kind, place in kinds.items()}
        say_json(by_class.get(type(result).__name__, next(iter(kinds))), plain_data(result))
        return
    show(lines)


def show(lines: Iterable[Part]) -> None:
    """Print lines and tables."""
    for part in lines:
        for line in [part] if isinstance(part, str) else part.lines():
            click.echo(line)


def warn(remarks: Iterable[str]) -> None:
    """Print warnings on stderr, one line each."""
    for remark in remarks:
        say(f"warning: {remark}")


def say_written(*files: Path | None) -> None:
    """Print the names of written files on stderr. None: no file was asked for."""
    for file in filter(None, files):
        say(f"written: {file}")


# ---- Types of values.


class _Meant(click.ParamType):
    """A number in a range; the error for another spelling says which number was meant."""

    min: Any
    max: Any
    min_open: bool

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert text to a number."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            kind, name = int if isinstance(self, Whole) else float, str(param and param.name)
            most = math.inf if self.max is None else self.max
            of = Parameter(name, "", kind, self.min or 0, most, self.min_open)
            hint = of.hint(str(value))
            number = as_number(str(value))
            is_outside = (
                number <= of.least or number >= of.most
            )  # False for NaN, which is no number
            if not hint and name in PARAMETERS and is_outside:
                hint = PARAMETERS[name].unknown  # the unit, an example
            self.fail(error.message.rstrip(".") + hint, param, ctx)


class Number(_Meant, click.FloatRange):
    """A number in a range."""


class Whole(_Meant, click.IntRange):
    """A whole number; 1.2e6 is one too."""

    name = "whole number"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert text to an int."""
        with contextlib.suppress(ValueError):
            if isinstance(value, str) and float(value).is_integer():
                value = int(float(value)) if "e" in value.casefold() else value
        return super().convert(value, param, ctx)


class Auto(click.ParamType):
    """A value of one type, or the word "auto"."""

    name = "N|auto"

    def __init__(self, item: click.ParamType) -> None:
        self.item = item

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert text to a value, or keep "auto"."""
        is_auto = isinstance(value, str) and value.lower() == "auto"
        return "auto" if is_auto else self.item.convert(value, param, ctx)


class Word(click.Choice):
    """One of a parameter's choices, under any of their names, or one of the choices `more`."""

    def __init__(self, of: Parameter, *more: str) -> None:
        super().__init__((*of.choices, *more), case_sensitive=False)
        self.of = of
        compared = f"; `lolat predict NETWORK --on DEVICE {of.option} {','.join(of.choices[:3:2])}`"
        self.one_at_a_time = (
            f"{compared} compares several" if of.name in LISTS else "; one at a time"
        )

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert text to a choice."""
        found = self.of.word(value)
        several = {self.of.word(one) for one in names_in(str(value))}
        are_known = len(several) > 1 and several <= {*self.choices}
        if found not in self.choices and (self.of.unknown or are_known):
            expected = (
                f"{', '.join(self.choices)}{self.one_at_a_time if are_known else self.of.unknown}"
            )
            self.fail(f"{value!r} is not one of {expected}", param, ctx)
        return super().convert(found, param, ctx)


class Amount(click.ParamType):
    """A number of one type, with an optional suffix: k (thousand), m (million), b (billion), t (10^12)."""

    name = "number"

    def __init__(self, item: click.ParamType) -> None:
        self.item = item

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert text to a number."""
        text = str(value)
        if math.isnan(as_number(text)) and not math.isnan(number := as_amount(text)):
            value = f"{number:.17g}"
        return self.item.convert(value, param, ctx)


class List(click.ParamType):
    """A tuple of values of one type, separated by commas."""

    def __init__(self, item: click.ParamType, name: str, example: str) -> None:
        """`name`: the name in the help; `example`: an example for error messages."""
        self.item, self.name, self.example = item, name, example

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Convert text to a tuple."""
        if isinstance(value, tuple):
            return value
        try:
            items = [self.item.convert(part.strip(), param, ctx) for part in str(value).split(",")]
        except click.BadParameter as error:
            said = (f"{value!r}: " if "," in str(value) else "") + error.message.rstrip(".")
            self.fail(f"{said}; expected for example {self.example}", param, ctx)
        return tuple(items)

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        """The text after click's message on a missing option: its possible values."""
        return f"Expected {self.name}, such as {self.example}"


# ---- Options that several commands have: one name, one meaning.

WHOLE = Whole(1)
BATCHES = List(Auto(WHOLE), "N[,N]|auto", "256 or auto")
SURE: dict[str, Any] = {"is_flag": False, "flag_value": 100 * COVERAGE, "default": None}
PRECISION = Word(PARAMETERS["precision"], BEST)
PRECISIONS = List(
    PRECISION, f"{'|'.join(PARAMETERS['precision'].choices)}[,...]|{BEST}", "fp32,amp"
)
LAUNCHES = List(
    Word(PARAMETERS["launch"]), f"{'|'.join(PARAMETERS['launch'].choices)}[,...]", "eager,graph"
)


GIVEN = "given"
"""The key of the command line's arguments in the `meta` of click's context."""


def called() -> str:
    """The command line as it was called, quoted for a shell."""
    context = click.get_current_context()
    return shlex.join([*context.command_path.split(), *context.meta[GIVEN]])


def _into_meta(key: str) -> Callable[..., None]:
    return lambda context, option, value: context.meta.update({key: value})


JSON_OPTION = click.Option(
    ["--json"], is_flag=True, expose_value=False, callback=_into_meta(JSON),
    help="One JSON object on stdout.",
)  # fmt: skip


class Command(click.Command):
    """A command of `lolat`, which also checks its options and output files.

    `answers`: kind of JSON answer -> its class, `package.module:Class`; `renews`: True if the command may
    overwrite a JSON file that it reads.
    """

    answers: Mapping[str, str] = {}
    renews = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; UsageError for an option given twice, and for spaces in a list."""
        ctx.meta[GIVEN] = [*args]
        if not "".join(args).isascii():
            check_dashes(args, ctx)
        with augment_usage_errors(ctx):
            _, _, given = self.make_parser(ctx).parse_args(list(args))
        if any(map(str.isdecimal, args)) or "--on" in args or ", " in " ".join(args):
            taking = (p for p in self.params if isinstance(p.type, List) or p.name == "on")
            lists = {option for p in taking for option in p.opts}
            check_commas(args, lists, ctx)
        for param in given:
            is_single = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if is_single and given.count(param) > 1:
                commas = ", several values with commas" if isinstance(param.type, List) else ""
                given_as = f"{param.opts[0]} is given {given.count(param)} times"
                raise click.UsageError(f"{given_as}; expected once{commas}", ctx)
        rest = super().parse_args(ctx, args)
        if outputs := {n: v for n, v in ctx.params.items() if isinstance(v, Path)}:
            values = (v if isinstance(v, tuple) else [v] for v in ctx.params.values())
            texts = (text for each in values for text in each if isinstance(text, str))
            check_inputs_stay(outputs, texts, self.renews)
            for name in ("csv", "html"):
                check_file(ctx.params.get(name), name)
        return rest


def command(*examples: str, answers: Mapping[str, str] | None = None, renews: bool = False) -> Any:
    """Turn a function into a command whose help shows the examples. `answers`, `renews`: see `Command`."""
    shown = "\n".join(f"  {example}" for example in examples)

    def decorate(function: Callable[..., Any]) -> Command:
        made = click.command(cls=Command, epilog=f"\b\nExamples:\n{shown}")(function)
        made.answers, made.renews = answers or {}, renews
        if answers:
            made.params.append(JSON_OPTION)
        return made

    return decorate


def shared(*names: str, help: str, **about: Any) -> Callable[..., Any]:
    """Make an option for several commands: a function of `more` help text and changed attributes."""

    def made(more: str = "", **changed: Any) -> Any:
        return click.option(*names, **{**about, "help": f"{help} {more}".rstrip(), **changed})

    return made


def question(asked: type, *without: str, **changes: Mapping[str, Any]) -> Any:
    """Options for a question's parameters except `without`; `changes`: name -> arguments of `parameter`."""

    def decorate(function: Any) -> Any:
        for one in reversed(parameters_of(asked).values()):
            if one.name not in without:
                function = parameter(one, **changes.get(one.name, {}))(function)
        return function

    return decorate


def parameter(name: str | Parameter, more: str = "", **changed: Any) -> Any:
    """The option for one of PARAMETERS, with the command's changes and `more` help text.

    Unless `several` is given, a parameter that takes a list takes one value. The option of the input size
    comes with the option of the sequence length.
    """
    of = PARAMETERS[name] if isinstance(name, str) else name
    name = of.name
    several = changed.pop("several", bool(of.example))
    about: dict[str, Any] = {"show_default": bool(of.default)}
    if of.default is not None:  # to click None is a value, also of a required option
        about["default"] = of.default
    if of.choices:
        about["type"] = Word(of)
    elif of.kind is bool:
        about = {"is_flag": True}
    elif of.kind is str:
        about["type"] = str
    elif of.kind is float:
        most = None if math.isinf(of.most) else of.most
        about["type"] = Number(of.least, most, of.is_open, of.is_open and most is not None)
        of_ms = " of milliseconds, for example 1000" if "MS" in of.metavar else ""
        about["type"].name = f"number{of_ms}"  # click's words for another text
    else:
        about["type"] = Whole(int(of.least))
        about["type"].name += f" from {of.least:g}"
        about["type"].name += f" to {of.most:,}" if math.isfinite(of.most) else ""
    if name in ("samples", "tokens"):
        about["type"] = Amount(about["type"])
    if several:
        about["type"] = List(about["type"], of.metavar, of.example)
        if not changed.get("required"):
            about.setdefault("default", ())
    elif not (of.choices or of.kind is bool):
        about["metavar"] = "N" if of.example else of.metavar
    about |= {"help": f"{of.help} {more}".rstrip(), **changed}
    if name != SIZE:
        return click.option(of.option, name, **about)
    made = click.option(of.option, name, callback=_with_length, **about)
    length = parameter(LENGTH, expose_value=False, is_eager=True, callback=_into_meta(LENGTH))
    return lambda function: made(length(function))


def _with_length(context: click.Context, _: click.Parameter, value: tuple[int, ...]) -> Any:
    """The input size combined with the call's sequence length."""
    if not (length := context.meta.pop(LENGTH, None)):
        return value
    from lolat.readers.size import as_size

    return as_size({SIZE: value, LENGTH: length})


def open_profile(name: str, now: bool = False, as_learned: bool | None = None) -> Model:
    """Open a profile by `open_here`; its progress goes to stderr, its remarks too, before an answer."""
    from lolat.api.loading import open_here

    remarks = click.get_current_context().meta.setdefault(REMARKS, [])
    return open_here(name, remarks.append, Show, now, as_learned)


def check_named(on: Sequence[str], left_out: Mapping[str, str]) -> None:
    """Raise InputError if a device named in `on` has no profile that answered."""
    from lolat.api.profile_names import ALL, full_names

    named = names_in(*on)
    if ALL in named:
        return
    if lost := [n for n in named if n in left_out or {*full_names(n)} <= {*left_out}]:
        raise InputError(f"no answer of {', '.join(lost)}: its reason is above", code="no-device")


def device_first(networks: Sequence[str]) -> str:
    """A question whether a name that may be a device was meant to be first; "" without such a name."""
    order = sorted(networks, key=lambda n: looks_like_network(n) or is_file(n))
    return f"; did you mean {' '.join(order)}?" if order != [*networks] else ""


def model_and_networks(
    arguments: Sequence[str], on: Sequence[str], most: int | None = None
) -> tuple[str | None, tuple[str, ...]]:
    """(MODEL, NETWORKs) of a command; MODEL is None if it is left out because --on gives the devices.

    The first argument is MODEL unless it can only be a network. `most`: maximum number of networks.
    UsageError for too many or no networks.
    """
    first, *rest = arguments
    if "on" in rest:
        raise click.UsageError("on: did you mean --on?", click.get_current_context())
    if on:
        check_counts(on, click.get_current_context())
    is_network = looks_like_network(first) or (not rest and bool(on or most))
    networks = tuple(arguments if is_network else rest)
    if not networks:
        words = f"no network is given; expected one behind the device: {first} NETWORK"
        raise click.UsageError(words, click.get_current_context())
    names = [n for n in networks if not (looks_like_network(n) or Path(n).is_file())]
    if not is_network and not on and (others := [n for n in names if is_device(n)]):
        several = "are devices" if others[1:] else "is a device"
        raise click.UsageError(
            f"{' and '.join(others)} {several}; expected several as --on {','.join([first, *others])}",
            click.get_current_context(),
        )
    if most is not None and len(networks) > most:
        meant = device_first(networks)
        raise click.UsageError(
            f"{len(networks)} networks ({', '.join(networks)}); expected [MODEL] NETWORK{meant}",
            click.get_current_context(),
        )
    if networks[1:] and (sides := [n for n in networks[1:] if n.isdecimal()]):
        raise click.UsageError(
            f"{sides[0]} is no network; did you mean --input-size {sides[0]}?",
            click.get_current_context(),
        )
    if not is_network and on and most:
        raise click.UsageError(
            f"{first} beside --on; expected it among the devices of --on",
            click.get_current_context(),
        )
    return None if is_network else first, networks


network_argument = click.argument("network", metavar="NETWORK")
model_argument = click.argument("model", metavar="MODEL")
space_argument = click.argument("space", metavar="SPACE")
on_option = shared(
    "--on", "--devices", "--device", "on", multiple=True, metavar="MODEL[,MODEL]",
    help="Devices to compare; all: every one that can answer.",
)  # fmt: skip
output_option = shared(
    "--output", type=click.Path(path_type=Path), metavar="PATH", help="Where the result goes."
)
csv_option = shared(
    "--csv", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a table."
)
html_option = shared(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page to open in a browser.",
)

"""How a command line is read: commands, groups of them, kinds of values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from lolat.cli.progress import QUIET
from lolat.units import as_number

RUNS = "lolat.runs"
"""In the `meta` of a call's context: the command that was called, the innermost one."""


def _be_quiet(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        ctx.meta[QUIET] = True


class Command(click.Command):
    """A command with examples and --quiet, before a command and behind it."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        quiet = click.Option(
            ["-q", "--quiet"], is_flag=True, expose_value=False, callback=_be_quiet,
            help="Nothing on stderr but errors: no progress, no remarks, no warnings.",
        )  # fmt: skip
        self.params.append(quiet)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Also note which command it is: an error names the options that it has."""
        ctx.meta[RUNS] = self
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, a line each."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


# ---- A group of commands that imports a command's module only when the command is used.


class Group(Command, click.Group):
    """A command with commands of its own."""


class LazyGroup(Group):
    """Imports a command's module only when the command is used or its own help asked for."""

    def __init__(
        self, *args: Any, table: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        """`table`: name -> ("package.module:attribute", what the command does in a few words)."""
        super().__init__(*args, **kwargs)
        self.table = dict(table or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the work."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command by name."""
        import importlib

        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that is called; UsageError with the ones that are like it where there is none."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.table, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in self.table.items()])


# ---- Kinds of values. Not of a type each: click 8.1's ParamType is not generic.


LARGEST = 2**53
"""Of a whole number: what arithmetic in floats still tells from its neighbors."""


class Number(click.ParamType):
    """A number: finite, of at least `least` or above `above`, at most `most`."""

    def __init__(
        self, unit: str = "N", what: str = "", *, whole: bool = False, such: str = "",
        least: float = -math.inf, above: float = -math.inf, below: float = math.inf,
        most: float = math.inf,
    ) -> None:  # fmt: skip
        """`unit`: as help shows it; `what` is counted, and an example, `such`, are said in errors."""
        self.name, self.whole = unit, whole
        most = min(most, LARGEST) if whole else most
        self.limits = (("from", least), ("above", above), ("below", below), ("to", most))
        said = (math.inf, -math.inf, LARGEST)
        limits = [f" {word} {limit:g}" for word, limit in self.limits if limit not in said]
        self.expected = (
            ("whole number" if whole else "number") + "{}" + (f" of {what}" * bool(what))
        )
        self.expected += " and".join(limits).replace(" and to", " to") + (
            f", such as {such}" * bool(such)
        )

    def number(self, text: str) -> float | None:
        """The number of a text; None where it is none, or not within the limits."""
        found = as_number(text.strip())
        if self.whole:
            try:
                found = int(text) if found == found else found  # exactly, which 1e6 is not
            except ValueError:
                return None
        (_, least), (_, above), (_, below), (_, most) = self.limits
        inside = least <= found <= most and above < found < below and abs(found) < math.inf
        return found if inside else None

    def _wanted(self, text: str, plural: str) -> str:
        """What is expected; that numbers have an end is only said where one is long."""
        too_long = self.whole and any(len(part) > 15 for part in text.split(","))
        return self.expected.format(plural) + " (at most 2**53)" * too_long

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text into a number."""
        found = self.number(str(value))
        if found is None:
            self.fail(f"{str(value)!r}: expected a {self._wanted(str(value), '')}", param, ctx)
        return found


class Percent(Number):
    """Percent, as 90 or 90%: a share, 0.9."""

    def __init__(self) -> None:
        super().__init__("PERCENT", "percent", above=0.0, such="90")

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text into a share."""
        found = self.number(str(value).removesuffix("%"))
        if found is None or found >= 100.0:
            self.fail(f"{str(value)!r}: expected percent above 0 and below 100, such as 90 (without a "
                      "number, write the option last)", param, ctx)  # fmt: skip
        return found / 100.0


class Numbers(Number):
    """Numbers with commas between them, each once: a tuple."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text into a tuple."""
        if isinstance(value, tuple):
            return value
        found = [self.number(part) for part in str(value).split(",")]
        if None in found:
            self.fail(f"{str(value)!r}: expected {self._wanted(str(value), 's')}", param, ctx)
        return tuple(dict.fromkeys(found))


class Size(click.ParamType):
    """An input size: 224, or several numbers with commas."""

    name = "H[,W,C]"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Text into a tuple of positive integers."""
        if isinstance(value, tuple):
            return value
        size = [Number(whole=True, least=1).number(part) for part in str(value).split(",")]
        if None in size:
            self.fail(f"{value!r}: expected a positive whole number (224) or several (224,224,3)")
        return tuple(size)  # type: ignore[arg-type]


class Names(click.ParamType):
    """Names with commas between them; whether there are such is not looked at here."""

    def __init__(self, what: str, such: str, lower: bool = False) -> None:
        """`what` they name and an example, `such`, are said in errors."""
        self.name, self.what, self.such, self.lower = "NAME[,NAME]", what, such, lower

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Text into a tuple of names, each once."""
        if isinstance(value, tuple):
            return value
        text = str(value).lower() if self.lower else str(value)
        names = tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
        if not names:
            self.fail(f"{value!r}: expected at least one {self.what}, such as {self.such}")
        return names

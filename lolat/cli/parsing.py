"""Read a command line: a group that imports a command when it is used, lists with commas."""

from __future__ import annotations

import contextlib
import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

from lolat.cli.progress import QUIET

COMMAND = "lolat.command"
"""The key of the innermost running command in the `meta` of a call's context."""
QUIET_NAMES = ("-q", "--quiet")


class LazyGroup(click.Group):
    """Imports a command's module only when the command is used or its own help asked for."""

    def __init__(
        self, *args: Any, table: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        """`table`: name -> ("package.module:attribute", what the command does in a few words)."""
        super().__init__(*args, **kwargs)
        self.table = dict(table or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """--quiet is an option of all commands together, wherever it stands."""
        ctx.meta[QUIET] = ctx.meta.get(QUIET, False) or any(a in QUIET_NAMES for a in args)
        return super().parse_args(ctx, [a for a in args if a not in QUIET_NAMES])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the work."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command by name."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that is called; UsageError with the ones that are like it where there is none."""
        if args[0] not in self.table and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.table, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[COMMAND] = command  # an error names the options that it has
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in self.table.items()])


class Whole(click.IntRange):
    """A whole number, also written as 1.2e6."""

    name = "whole number"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text into an int."""
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
        """Text into a value."""
        return value if value == "auto" else self.item.convert(value, param, ctx)


class List(click.ParamType):
    """Values of one type with commas between them: a tuple."""

    def __init__(self, item: click.ParamType, name: str, example: str) -> None:
        """`name`: as help shows it; `example`: for errors."""
        self.item, self.name, self.example = item, name, example

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Text into a tuple."""
        if isinstance(value, tuple):
            return value
        try:
            items = [self.item.convert(part.strip(), param, ctx) for part in str(value).split(",")]
        except click.BadParameter as error:
            self.fail(f"{value!r}: {error.message} Expected for example {self.example}", param, ctx)
        return tuple(items)

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        """Words on the values of a required option that a call lacks."""
        return f"Expected {self.name}, such as {self.example}"

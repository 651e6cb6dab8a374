"""A group of commands that imports a command's module only when the command is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in self.table.items()])

"""The `lolat` command: thin words over the library; each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from lolat.cli.errors import run

COMMANDS = {
    "learn": "lolat.cli.learn:learn",
    "predict": "lolat.cli.predict:predict",
    "report": "lolat.cli.predict:report",
    "evaluate": "lolat.cli.evaluate:evaluate",
    "fit": "lolat.cli.fit:fit",
    "show": "lolat.cli.show:show",
    "models": "lolat.cli.show:models",
}


class LazyGroup(click.Group):
    """Imports a command's module only when the command is used or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command by name."""
        import importlib

        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lolat", prog_name="lolat")
def lolat() -> None:
    """How long does a neural network take on your device? Measure once, then ask.

    MODEL is a learned model: a JSON file, `local` (the one learned last on this machine) or a name
    from `lolat models`. NETWORK is keras:ResNet50 (any name of keras.applications), a .keras file or
    package.module:callable.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `lolat` command."""
    sys.exit(run(lolat, arguments, "lolat"))


if __name__ == "__main__":
    main()

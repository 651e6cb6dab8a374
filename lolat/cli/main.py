"""The `lolat` command: imports and runs one command; an error becomes one line and an exit code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from lolat import __version__
from lolat.cli.mistakes import unknown_command, usage_words
from lolat.cli.progress import QUIET, complain, is_quiet, say
from lolat.errors import AnswerIsNo, LolatError
from lolat.io.progress import late
from lolat.io.results import json_text

INTERRUPTED = 130
COMMAND, KIND, JSON, REMARKS = "lolat.command", "lolat.kind", "lolat.json", "lolat.remarks"
"""Keys in the `meta` of click's context: the innermost running command, the kind of answer if it is not the
first in the command's `answers`, True with --json, and the remarks to print before the answer."""
QUIET_NAMES = ("-q", "--quiet")


def run(command: click.Command, arguments: Sequence[str] | None, name: str) -> int:
    """Run a click command and return its exit code. LOLAT_DEBUG=1 shows the traceback of an error."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:
        del sys.argv[1:]  # a network's file that parses arguments has its defaults, not our options
    meta: dict[str, Any] = {}
    try:
        # Not command.main(), which on Ctrl-C prints an empty line of its own.
        with command.make_context(name, words) as context, announced(words[0] if words else ""):
            meta = context.meta
            result = command.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt) as end:
        complain(str(end) or "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away
        _discard_stdout()
        return 1
    except Exception as error:
        if isinstance(error, OSError):
            _discard_stdout()
        if isinstance(error, AnswerIsNo):
            say_remarks(meta)
        if isinstance(error, AnswerIsNo) and error.answer is not None and meta.get(JSON):
            kinds = getattr(meta.get(COMMAND, command), "answers", {})
            say_json(meta.get(KIND) or next(iter(kinds)), error.answer)
        if os.environ.get("LOLAT_DEBUG"):
            import traceback

            traceback.print_exception(error)
        text, code = _text_and_code(error, meta.get(COMMAND, command), name, words)
        complain(text)
        return code


def say_remarks(meta: dict[str, Any]) -> None:
    """Print the remarks in the `meta` of click's context, once."""
    for remark in meta.pop(REMARKS, ()):
        say(remark)


READING = frozenset(["predict", "report", "explain", "budget", "cost", "read"])
"""Commands that read a network without showing progress themselves."""


def announced(command: str) -> contextlib.AbstractContextManager[None]:
    """On a terminal, print a line if a command of READING takes long to read its network."""
    text = "reading the network: its framework is imported and run once, without values ..."
    is_seen = command in READING and sys.stderr.isatty() and not is_quiet()
    return late(complain, text) if is_seen else contextlib.nullcontext()


def _text_and_code(
    error: Exception, command: click.Command, name: str, call: Sequence[str]
) -> tuple[str, int]:
    """(an error in one line, its exit code); `call`: the arguments after the command's name."""
    if isinstance(error, LolatError):
        return words_of(error, command), error.exit_code
    if isinstance(error, click.UsageError):
        called = error.ctx.command_path if error.ctx is not None else name
        return f"{usage_words(error, call)}; see: {called} --help", 2
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return f"the system refused{where}: {error.strerror or error}", 1
    return (
        f"unexpected {type(error).__name__}: {error}; this is a fault of LoLat: please report it with "
        "your command (CONTRIBUTING.md says how); LOLAT_DEBUG=1 shows where it is from"
    ), 1


def words_of(error: LolatError, command: click.Command | None = None) -> str:
    """The message of an error, with the options of a command, by default the running one, for arguments."""
    params = (command or click.get_current_context().command).params
    by_name = {param.name: param for param in params}

    def option_of(argument: str) -> str:
        """The option or metavar (`--max-ms`, `NETWORK`); the name itself if the command has none."""
        param = by_name.get(argument) or by_name.get(f"{argument}s")
        if isinstance(param, click.Argument):
            return str(param.metavar).strip("[]. ")
        return next((o for o in param.opts if o.startswith("--")), argument) if param else argument

    return error.worded(option_of)


def say_json(kind: str, answer: Mapping[str, Any]) -> None:
    """Print the answer of a command as strict JSON with the schema `lolat-KIND`."""
    click.echo(json_text(kind, answer))


def _discard_stdout() -> None:
    """Discard unwritten stdout; else the interpreter would try to write it at exit and report an error."""
    try:
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command or its help is called."""

    def __init__(
        self, *args: Any, table: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        """`table`: name -> ("package.module:attribute", what the command does in a few words)."""
        super().__init__(*args, **kwargs)
        self.table = dict(table or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take out --quiet, which holds for every command and may stand anywhere."""
        ctx.meta[QUIET] = ctx.meta.get(QUIET, False) or any(a in QUIET_NAMES for a in args)
        return super().parse_args(ctx, [a for a in args if a not in QUIET_NAMES])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order in which a user needs them."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command by name."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that is called; UsageError with similar commands if it does not exist."""
        if args[0] not in self.table and not args[0].startswith("-"):
            raise click.UsageError(unknown_command(args, self.table), ctx)
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[COMMAND] = command  # an error names the options that it has
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in self.table.items()])


# ---- The commands

COMMANDS = {
    "learn": ("lolat.cli.learn:learn", "Measure this device and fit a profile of it."),
    "predict": ("lolat.cli.predict:predict", "How long a network takes."),
    "report": ("lolat.cli.predict:report", "The same block by block, with the bottlenecks."),
    "explain": (
        "lolat.cli.predict:explain",
        "Which term costs the time, what a change would save.",
    ),
    "budget": ("lolat.cli.predict:budget", "The largest width, input or batch within a time."),
    "read": ("lolat.cli.show:read", "A network as a file, which needs no framework again."),
    "evaluate": ("lolat.cli.evaluate:evaluate", "Measure networks and compare with the profile."),
    "doctor": ("lolat.cli.evaluate:doctor", "Whether a profile still holds on this machine."),
    "fit": ("lolat.cli.fit:fit", "A profile from times that are measured already."),
    "llm": ("lolat.cli.llm:llm", "Speed and cost of serving a language model."),
    "mlp": ("lolat.cli.mlp:mlp", "Single layers, by a deep network (Justus et al. 2018)."),
    "nas": ("lolat.cli.nas:nas", "Search spaces: fit from ten measurements, score, search."),
    "cost": (
        "lolat.cli.cost:cost",
        "Time, memory and dollars of training, on one or several devices.",
    ),
    "prices": ("lolat.cli.cost:prices", "What instances cost an hour."),
    "serve": ("lolat.cli.show:serve", "Latency, training and serving, as a page in the browser."),
    "show": ("lolat.cli.show:show", "What a profile says of its device."),
    "models": ("lolat.cli.show:models", "The profiles that there are."),
}
"""Command -> ("package.module:attribute", its purpose in a few words)."""
FIRST = """\
LoLat predicts a neural network's latency and cost on CPUs and GPUs. Try:

  lolat predict epyc-2t keras:ResNet50     an answer now, for a bundled device
  lolat learn cpu                          measure this device once: two to three minutes
  lolat report local keras:ResNet50        then ask about it: block by block, with the bottlenecks
  lolat --help                             all commands"""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, message="lolat %(version)s", help="LoLat's version.")
@click.option("-q", "--quiet", is_flag=True, expose_value=False,
              help="Only errors on stderr: no progress, no warnings. Notes of answers stay.")  # fmt: skip
@click.pass_context
def lolat(context: click.Context) -> None:
    """Predict a neural network's latency and cost on CPUs and GPUs, yours or those you don't have.

    MODEL is a device's profile: a JSON file, `local` (the one learned last on this machine) or a name
    from `lolat models`. NETWORK is keras:ResNet50 (any name of keras.applications), timm:resnet50 (any of
    timm's, or torchvision:), transformers:CONFIG.json, a .keras or .onnx file, what `lolat read` wrote,
    or a function that returns a Keras or PyTorch network: net.py:function or package.module:function.
    """
    if context.invoked_subcommand is None:
        click.echo(FIRST)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `lolat` command."""
    gc.set_threshold(10_000)  # Python's 700 take a tenth of a short command
    sys.exit(run(lolat, arguments, "lolat"))


if __name__ == "__main__":
    main()

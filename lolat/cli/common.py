"""Arguments and options that several commands share."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import click

from lolat.errors import LolatError
from lolat.io.results import json_text
from lolat.io.writing import check_writable as check_writable

# ---- Turns what goes wrong into one plain line on stderr and an exit code.

INTERRUPTED = 130


def run(command: click.Command, arguments: Sequence[str] | None, name: str) -> int:
    """Run a click command; returns the exit code. LOLAT_TRACEBACK=1 shows where an error is from."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # Not command.main(), which on Ctrl-C prints an empty line of its own.
        with command.make_context(name, given) as context:
            result = command.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        say(str(stop) or "interrupted")
        return INTERRUPTED
    except click.UsageError as error:
        return _report(error, _usage(error, name), 2)
    except click.ClickException as error:
        return _report(error, error.format_message(), 2)
    except LolatError as error:
        return _report(error, str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output went away
        _discard_stdout()
        return 1
    except OSError as error:
        _discard_stdout()
        where = f" {error.filename}" if error.filename else ""
        return _report(error, f"the system refused{where}: {error.strerror or error}", 1)
    except MemoryError as error:
        return _report(error, "not enough memory; try a smaller batch size or network", 1)
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error} (set LOLAT_TRACEBACK=1 to see where)"
        return _report(error, text, 1)


def _discard_stdout() -> None:
    """Forget what stdout did not take; the interpreter would try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def say(text: str) -> None:
    """One line on stderr."""
    click.echo(f"lolat: {' '.join(str(text).split())}", err=True)


def say_json(kind: str, answer: Mapping[str, Any]) -> None:
    """The answer of a command as strict JSON on stdout, of the schema `lolat-KIND`."""
    click.echo(json_text(kind, answer))


def _report(error: BaseException, text: str, code: int) -> int:
    if os.environ.get("LOLAT_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    say(text)
    return code


def _usage(error: click.UsageError, name: str) -> str:
    command = error.ctx.command_path if error.ctx is not None else name
    return f"{error.format_message().rstrip('.')}; see: {command} --help"


# ---- A group of commands that imports a command's module only when the command is used.


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


# ---- options ----------------------------------------

model_argument = click.argument("model", metavar="MODEL")
network_argument = click.argument("network", metavar="NETWORK")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


class Size(click.ParamType):  # not of a type: that of click 8.1 is not generic
    """An input size: 224, or several numbers with commas."""

    name = "H[,W,C]"
    expected = "a positive whole number (224) or several (224,224,3)"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Text into a tuple of positive integers."""
        if isinstance(value, tuple):
            return value
        try:
            size = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            size = ()
        if not size or min(size) < 1:
            self.fail(f"{value!r}: expected {self.expected}")
        return size


def only_one(ctx: click.Context, param: click.Parameter, given: Sequence[Any]) -> Any:
    """The value of an option that may be given once, and not silently the last of several."""
    if len(given) > 1:
        several = " and ".join(map(str, given))
        raise click.BadParameter(
            f"{several}: this command takes one; give one, or ask lolat predict for several",
            ctx,
            param,
        )
    return given[0]


class Batches(Size):
    """Batch sizes: 1, or several numbers with commas."""

    name = "N[,N]"
    expected = "a positive whole number (8) or several (1,4,16)"


class Columns(click.ParamType):
    """Names of columns with commas between them; whether there are such is not looked at here."""

    name = "A,B"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Text into a tuple of names, each once."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(n.strip().lower() for n in str(value).split(",") if n.strip()))
        if not names:
            self.fail(f"{value!r}: expected at least one column, such as ms,share,macs")
        return names


class Milliseconds(click.ParamType):
    """A time above 0."""

    name = "MS"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Text into a number."""
        try:
            time = float(value)
        except ValueError:
            time = math.nan
        if not 0.0 < time < math.inf:
            self.fail(f"{value!r}: expected a number of milliseconds above 0, such as 15")
        return time


batch_option = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=(1,),
    show_default="1",
    multiple=True,
    callback=only_one,
    metavar="N",
    help="Samples in one forward pass.",
)
batches_option = click.option(
    "--batch-size",
    "batch_sizes",
    type=Batches(),
    default=((1,),),
    show_default="1",
    multiple=True,
    callback=lambda _, __, found: tuple(dict.fromkeys(n for one in found for n in one)),
    metavar="N[,N]",
    help="Samples in one forward pass; several, with commas or the option again, are answered each.",
)
devices_option = click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="MODEL",
    help="A further device beside MODEL; may be given again.",
)
size_option = click.option(
    "--input-size",
    "--sequence-length",
    "input_size",
    type=Size(),
    default=(),
    help="Height = width of the input, or its whole shape without the batch (Keras: H,W,C; PyTorch "
    "and ONNX: C,H,W); of a text, its length.",
)
predictor_option = click.option(
    "--predictor", default=None, help="two-regime or extended; the model's default if not given."
)
coverage_option = click.option(
    "--coverage",
    type=float,
    default=None,
    metavar="C",
    help="How sure the interval is to be, above 0 and below 1; 0.9 if not given.",
)


def network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """MODEL NETWORK and what goes with them."""
    for option in (json_option, predictor_option, size_option, batch_option):
        command = option(command)
    return model_argument(network_argument(command))


def several_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """MODEL NETWORK... and what goes with them, where several are answered at once."""
    for option in (json_option, predictor_option, size_option, devices_option, batches_option):
        command = option(command)
    networks = click.argument("networks", metavar="NETWORK...", nargs=-1, required=True)
    return model_argument(networks(command))


# ---- How far a run is: a bar with the time left on a terminal, plain lines elsewhere; both on
# stderr.

QUIET_S = 5.0  # between two plain lines of a stage, at least


class PlainProgress:
    """A line at the start of a stage and at every quarter of it, unless they come thick and fast."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.text, self.total, self.done, self.began, self.said = "", 0, 0, 0.0, 0.0

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *unused: object) -> None:
        return None

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins; the same one again within QUIET_S of a line has none."""
        now = self.clock()
        if text != self.text or now - self.said >= QUIET_S:
            say(f"{text}: {total} steps")
            self.said = now
        self.text, self.total, self.done, self.began = text, total, 0, now

    def step(self) -> None:
        """One step is done."""
        self.done += 1
        now = self.clock()
        quarter = max(1, self.total // 4)
        if self.done % quarter == 0 and now - self.said >= QUIET_S:
            left = (now - self.began) / self.done * (self.total - self.done)
            say(f"{self.text}: {self.done} of {self.total}, about {left:.0f} s left")
            self.said = now

    def note(self, text: str) -> None:
        """A remark."""
        say(text)


class BarProgress:
    """rich's progress bar."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.bar = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self.task: Any = None
        self.text = ""

    def __enter__(self) -> BarProgress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""
        if text == self.text:
            self.bar.reset(self.task, total=total)
        else:
            self.task = self.bar.add_task(text, total=total)
        self.text = text

    def step(self) -> None:
        """One step is done."""
        self.bar.advance(self.task)

    def note(self, text: str) -> None:
        """A remark."""
        self.bar.console.print(f"lolat: {text}", markup=False, highlight=False)


def progress() -> PlainProgress | BarProgress:
    """What suits stderr."""
    return BarProgress() if sys.stderr.isatty() else PlainProgress()


def counting(bar: Any) -> Callable[[int, int, str], None]:
    """What `lolat.devices.tables` tells of its networks, on a bar."""

    def said(done: int, total: int, name: str) -> None:
        if done == 1:
            bar.start("counting networks", total)
        bar.step()

    return said

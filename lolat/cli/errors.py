"""Turns what goes wrong into one plain line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from lolat.errors import LolatError

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
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
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


def _report(error: BaseException, text: str, code: int) -> int:
    if os.environ.get("LOLAT_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    say(text)
    return code


def _usage(error: click.UsageError, name: str) -> str:
    command = error.ctx.command_path if error.ctx is not None else name
    return f"{error.format_message().rstrip('.')}; see: {command} --help"

"""Arguments and options that several commands share."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from lolat.cli.parsing import RUNS, Command, Names, Number, Numbers, Percent, Size
from lolat.cli.parsing import LazyGroup as LazyGroup
from lolat.cli.progress import complain as complain
from lolat.cli.progress import counting as counting
from lolat.cli.progress import progress as progress
from lolat.cli.progress import say as say
from lolat.errors import AnswerIsNo, LolatError
from lolat.io import FILES_APART
from lolat.io.results import json_text, plain_data
from lolat.io.writing import check_writable as check_writable

# ---- Turns what goes wrong into one plain line on stderr and an exit code.

INTERRUPTED = 130
CALLED = {
    "batch_size": "batch_sizes",
    "network": "networks",
    "html": "html_file",
    "csv": "csv_file",
    "prices": "prices_file",
}
"""Argument in Python -> parameter of a command, where they differ."""


def run(command: click.Command, arguments: Sequence[str] | None, name: str) -> int:
    """Run a click command; returns the exit code. LOLAT_DEBUG=1 shows where an error is from."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    meta: dict[str, Any] = {}
    try:
        # Not command.main(), which on Ctrl-C prints an empty line of its own.
        with command.make_context(name, given) as context:
            meta = context.meta
            result = command.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        complain(str(stop) or "interrupted")
        return INTERRUPTED
    except click.UsageError as error:
        called = error.ctx.command_path if error.ctx is not None else name
        text = f"{error.format_message().rstrip('.')}; see: {called} --help"
        return _report(error, text, 2)
    except click.ClickException as error:
        return _report(error, error.format_message(), 2)
    except LolatError as error:
        ran = meta.get(RUNS, command)
        return _report(error, words_of(error, ran), error.exit_code)
    except BrokenPipeError:  # the reader of our output went away
        _discard_stdout()
        return 1
    except OSError as error:
        _discard_stdout()
        where = f" {error.filename}" if error.filename else ""
        wrong = error.errno == errno.ENAMETOOLONG  # of what was given, not of the system
        return _report(error, f"the system refused{where}: {error.strerror or error}", 1 + wrong)
    except MemoryError as error:
        return _report(error, "not enough memory; try a smaller batch size or network", 1)
    except Exception as error:
        text = (
            f"unexpected {type(error).__name__}: {error}; this is a fault of LoLat: please report it with "
            "your command (CONTRIBUTING.md says how); LOLAT_DEBUG=1 shows where it is from"
        )
        ours = ("lolat", "microbench")
        if isinstance(error, ImportError) and not str(error.name).startswith(ours):
            text = (
                f"a package that is needed cannot be imported ({error}): it is missing or damaged, or "
                "PYTHONPATH or the working directory has another of its name; LOLAT_DEBUG=1 "
                "shows where it is from"
            )
        return _report(error, text, 1)


def words_of(error: LolatError, command: click.Command | None = None) -> str:
    """An error with the options of a command, if not given of the one that runs, in Python's arguments'
    place.
    """
    params = (command or click.get_current_context().command).params
    known = {param.name: param for param in params}

    def as_given(argument: str) -> str:
        """`--max-ms`, `NETWORK`; the name itself where the command has no such argument."""
        param = known.get(argument) or known.get(CALLED.get(argument, argument))
        if isinstance(param, click.Argument):
            return str(param.metavar).strip("[]. ")
        return next((o for o in param.opts if o.startswith("--")), argument) if param else argument

    return error.worded(as_given)


def run_apart(command: click.Command, arguments: Sequence[str] | None, name: str) -> int:
    """`run` where the networks may be anybody's: those that may do harm are read apart.

    Not with LOLAT_DEBUG, which asks for a traceback: what a child raises has none.
    """
    before = FILES_APART.set(not os.environ.get("LOLAT_DEBUG"))
    try:
        return run(command, arguments, name)
    finally:
        FILES_APART.reset(before)


def _discard_stdout() -> None:
    """Forget what stdout did not take; the interpreter would try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def say_json(kind: str, answer: Mapping[str, Any]) -> None:
    """The answer of a command as strict JSON on stdout, of the schema `lolat-KIND`."""
    click.echo(json_text(kind, answer))


def answer(kind: str, found: Any, as_json: bool, lines: Iterable[str]) -> None:
    """Print what a command found: as `say_json`, or for people its `lines`."""
    if as_json:
        say_json(kind, plain_data(found))
        return
    for line in lines:
        click.echo(line)


def warn(remarks: Iterable[str]) -> None:
    """Warnings, a line each on stderr."""
    for remark in remarks:
        say(f"warning: {remark}")


@contextlib.contextmanager
def json_of_no(kind: str, as_json: bool) -> Iterator[None]:
    """What --json prints where the answer is no, which is then raised on."""
    try:
        yield
    except AnswerIsNo as no:
        if as_json and no.answer is not None:
            say_json(kind, no.answer)
        raise


def _report(error: BaseException, text: str, code: int) -> int:
    if os.environ.get("LOLAT_DEBUG"):
        import traceback

        traceback.print_exception(error)
    complain(text)
    return code


# ---- Options that several commands have: one name, one meaning.

OPTIMIZERS = ("sgd", "momentum", "rmsprop", "adagrad", "adam", "adadelta")
STRATEGIES = ("ring", "tree", "one-to-all", "mirrored")
PREDICTORS = ("two-regime", "extended", "kernels", "training-steps")
LAUNCHES = ("eager", "compiled", "graph")
BACKENDS = ("tensorflow", "torch", "onnxruntime")
"""Written out, as what has them imports NumPy, and a command's help should not."""

SHARE = Number("SHARE", above=0.0, below=1.0, such="0.9")
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
WHOLE = Number("N", whole=True, least=1)
MILLISECONDS = Number("MS", "milliseconds", above=0.0, such="15")


def command(*examples: str, **about: Any) -> Any:
    """As `click.command`, with examples that its help shows."""
    return click.command(cls=Command, examples=examples, **about)


def option(*names: str, **about: Any) -> Any:
    """As `click.option`; to be used as it is, or called with what is changed and `more` words of help."""

    def decorate(target: Any = None, /, more: str = "", **changed: Any) -> Any:
        words = " ".join(filter(None, [about.get("help"), more]))
        made = click.option(*names, **{**about, "help": words or None, **changed})
        return made if target is None else made(target)

    return decorate


def only_one(ctx: click.Context, param: click.Parameter, given: Sequence[Any]) -> Any:
    """The value of an option that may be given once, and not silently the last of several."""
    if len(given) > 1:
        several = " and ".join(map(str, given))
        raise click.BadParameter(
            f"{several}: this command takes one; give one, or ask lolat predict for several",
            ctx,
            param,
        )
    return given[0] if given else None


def _check_plot(ctx: click.Context, _: click.Parameter, path: str | None) -> str | None:
    """The file of a plot; InputError now, rather than after minutes, where none can be drawn there."""
    if path is not None and not ctx.resilient_parsing:
        from lolat.report.plots import check_plot

        check_plot(path)
    return path


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def stacked(*decorators: Decorator) -> Decorator:
    """Decorators as one, the first on top."""
    return lambda command: functools.reduce(lambda made, one: one(made), decorators[::-1], command)


def as_one(name: str, kind: Callable[[], type[Any]], *options: Decorator) -> Decorator:
    """Options of a command, which gets them as one dataclass called `name`.

    `kind` says which; it is asked when the command runs, and may import it then.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(**values: Any) -> Any:
            made = kind()(**{f.name: values.pop(f.name) for f in fields(kind())})
            return command(**values, **{name: made})

        return stacked(*options)(called)

    return decorate


network_argument = click.argument("network", metavar="NETWORK")
model_argument = click.argument("model", metavar="MODEL")
space_argument = click.argument("space", metavar="SPACE")
device_argument = functools.partial(
    click.argument, "device", type=click.Choice(["cpu", "gpu"]), metavar="{cpu|gpu}"
)
json_option = option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
batch_option = option(
    "--batch-size", type=WHOLE, multiple=True, callback=only_one, help="Samples in one batch."
)
devices_option = option(
    "--device", "devices", multiple=True, metavar="MODEL",
    help="A further device beside MODEL; may be given again.",
)  # fmt: skip
batches_option = option(
    "--batch-size", "batch_sizes", type=Numbers("N[,N]", whole=True, least=1, such="1,4,16"),
    multiple=True, callback=lambda _, __, found: tuple(dict.fromkeys(sum(found, ()))),
    help="Samples in one batch.",
)  # fmt: skip
size_option = option(
    "--input-size", "--sequence-length", "input_size", type=Size(), default=(),
    help="Height = width of the input, or its whole shape without the batch (Keras: H,W,C; PyTorch "
    "and ONNX: C,H,W); of a text, its length.",
)  # fmt: skip
predictor_option = option(
    "--predictor", type=click.Choice(PREDICTORS),
    help="Another formula of the model than its default.",
)  # fmt: skip
launch_option = option(
    "--launch", type=click.Choice(LAUNCHES),
    help="How a GPU's operations are started: one by one, those of torch.compile, or at once from a "
    "CUDA graph; as what was measured if not given.",
)  # fmt: skip
coverage_option = option(
    "--coverage", type=SHARE, help="How sure the interval is to be; 0.9 if not given."
)
max_ms_option = option("--max-ms", type=MILLISECONDS, help="The longest that it may take.")
sure_option = option(
    "--sure", type=Percent(), is_flag=False, flag_value="90", metavar="[PERCENT]",
    help="The upper end of the interval counts; without a number, of 90 %.",
)  # fmt: skip
"""A share such as 0.9, or None."""
samples_option = option("--samples", type=WHOLE, help="Samples in the data set.")
epochs_option = option("--epochs", type=WHOLE, help="Times through the data set.")
optimizer_option = option(
    "--optimizer", type=click.Choice(OPTIMIZERS, case_sensitive=False), default="sgd",
    show_default=True, help="What updates the weights.",
)  # fmt: skip
strategy_option = option(
    "--strategy", type=click.Choice(STRATEGIES), default="ring", show_default=True,
    help="How gradients are exchanged.",
)  # fmt: skip
replicas_option = option(
    "--replicas", type=Numbers("K[,K]", whole=True, least=1, such="1,2,4,8"),
    default="1", show_default=True, help="Devices that train together.",
)  # fmt: skip
link_option = option(
    "--link-gbps", type=Number("GBPS", "Gbit/s", above=0.0, such="25"),
    help="Gbit/s of each device's link to the others; if not given, as such devices are linked in one "
    "machine, and 10 between machines.",
)  # fmt: skip
backend_option = option(
    "--backend", type=click.Choice(BACKENDS), help="The framework that is measured."
)
threads_option = option("--threads", type=WHOLE, help="Threads on a CPU.")
seed_option = option(
    "--seed", type=Number("N", whole=True, least=0), default=0, show_default=True,
    help="Of what is drawn at random: another one, other draws.",
)  # fmt: skip
facts_option = option("--facts", type=click.Path(), metavar="FILE", help="Data sheets of devices.")
name_option = option("--name", metavar="NAME", help="What the device is called.")
only_option = option(
    "--only", type=Names("device", "v100,p100"), help="The rows of these devices alone."
)
count_option = option("--count", type=WHOLE, show_default=True, help="How many.")
output_option = option("--output", type=PATH, metavar="PATH", help="Where the result goes.")
csv_option = option("--csv", "csv_file", type=FILE, metavar="FILE", help="Write a table.")
html_option = option("--html", "html_file", type=click.Path(), metavar="FILE", help="Write a page.")
plot_option = option(
    "--plot",
    type=click.Path(),
    callback=_check_plot,
    metavar="FILE",
    help="Draw it (.svg or .png).",
)
restart_option = option("--restart", is_flag=True, help="Throw away what an interrupted run left.")


network_options = stacked(
    model_argument, network_argument, batch_option(default=(1,), show_default=True), size_option,
    predictor_option, launch_option, json_option,
)  # fmt: skip
"""MODEL NETWORK and what goes with them."""
several_options = stacked(
    model_argument,
    click.argument("networks", metavar="NETWORK...", nargs=-1, required=True),
    batches_option(default=("1",), show_default=True), devices_option, size_option,
    predictor_option, launch_option, json_option,
)  # fmt: skip
"""MODEL NETWORK... and what goes with them, where several are answered at once."""

"""docs/reference/command-line.md, made from the commands themselves by `python -m benchmarks.pages`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mode

import click

from lolat.cli.main import lolat

OPENING = """\
# Command line

<!-- made by: python -m benchmarks.pages -->
`lolat COMMAND --help` says the same, with more examples. A default stands in brackets.

- MODEL: a device, by its profile: a name that `lolat models` lists, a JSON file, or `local` (the one
  learned last here).
- NETWORK: [one of many kinds](../how-to/networks.md), such as `keras:ResNet50` or `mynet.onnx`.
- SPACE: `nasbench201`, `fbnet` (224x224), `fbnet-cifar` (32x32), or
  `package.module:callable` that returns a `lolat.nas.Space`.

An answer is on stdout. Progress, remarks, warnings and errors are on stderr; with `lolat -q` errors only.

## Exit codes

| code | meaning |
| --: | --- |
| 0 | done |
| 1 | something else went wrong, such as a full disk; one line says what |
| 2 | the call or its input is wrong; one line says what was given, what is expected and how to fix it |
| 3 | the answer is no: a time is exceeded, a profile no longer holds; `--json` prints its object too |
| 130 | interrupted by Ctrl-C; what was measured is kept |

`LOLAT_DEBUG=1` shows where an error is from.
"""


@dataclass(frozen=True)
class Shown:
    """An option of a command, as help has it."""

    name: str
    value: str
    default: str
    help: str

    @property
    def meaning(self) -> str:
        """The first sentence of its help."""
        return re.split(r"(?<=\.) ", self.help, maxsplit=1)[0]


def leaves(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its name as it is typed."""
    group = isinstance(command, click.Group)
    if names and not (group and not command.invoke_without_command):  # type: ignore[attr-defined]
        yield " ".join(names), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, *names, name)


def options(command: click.Command) -> list[Shown]:
    """The options of a command that are not hidden."""
    context = click.Context(command)
    found = []
    for p in command.params:
        if isinstance(p, click.Option) and not p.hidden:
            names = ", ".join(o for o in p.opts if o.startswith("--"))
            value = "" if p.is_flag else p.make_metavar(context).strip("[]" if p.is_flag else "")
            shown = p.get_help_extra(context).get("default") or ("required" if p.required else "")
            said = " ".join((p.help or "").split())
            if of_some := re.search(r"\. (\d[^.]* if not given)\.$", said):
                shown = of_some[1]
            found.append(Shown(names, value, shown, said))
    return found


def examples(command: click.Command) -> list[str]:
    """The examples at the end of a command's help."""
    lines = (command.epilog or "").splitlines()
    return [line.strip() for line in lines if line.startswith("  lolat ")]


def shared() -> dict[str, Shown]:
    """The options of three commands or more, by name: with the most frequent value, the default of all."""
    every: dict[str, list[tuple[str, Shown]]] = {}
    for name, command in leaves(lolat):
        for option in options(command):
            every.setdefault(option.name, []).append((name, option))
    return {
        name: Shown(
            name,
            mode(s.value for _, s in uses),
            uses[0][1].default if len({s.default for _, s in uses}) == 1 else "",
            uses[0][1].meaning,
        )
        for name, uses in sorted(every.items())
        if len(uses) >= 3
    }


def item(option: Shown) -> str:
    """An option as an item of a list."""
    default = f" ({option.default})" if option.default else ""
    return f"- `{f'{option.name} {option.value}'.strip()}`{default}: {option.help}"


def usual_or_own(option: Shown, usual: Shown) -> str:
    """An option that is shown above, with its value and default where these are others here."""
    shown = option.name if option.value == usual.value else f"{option.name} {option.value}"
    default = f" ({option.default})" if option.default != usual.default else ""
    return f"`{shown}`{default}"


def lines() -> Iterator[str]:
    """The page: the options of several commands once, then each command."""
    common = shared()
    yield from OPENING.splitlines()
    yield from ("", "## Options of several commands", "")
    yield from (item(option) for option in common.values())
    for name, command in leaves(lolat):
        context = click.Context(command, info_name=f"lolat {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        yield from ("", f"## lolat {name}", "", f"`lolat {name} {usage}`", "")
        text = re.sub(
            r"\x08\n(.*?)(?=\n\n|\Z)",
            r"```\n\1\n```",
            inspect.cleandoc(command.help or ""),
            flags=re.S,
        )
        yield from text.strip().splitlines()
        own = [option for option in options(command) if option.name not in common]
        if own:
            yield from ("", *(item(option) for option in own))
        also = [usual_or_own(o, common[o.name]) for o in options(command) if o.name in common]
        if also:
            yield from ("", f"And {', '.join(also)}.")
        yield from ("", "```", *examples(command)[:1], "```")


def text() -> str:
    """The page as it is to stand in the file."""
    return "\n".join(lines()) + "\n"

"""Runs benchmarks: tables of results, made anew.

    python -m benchmarks list
    python -m benchmarks run NAME [--data DIR] [--save] [OPTION=VALUE ...]

Tables are printed as Markdown; with --save they go to benchmarks/results, and `python -m benchmarks.pages`
puts them into the pages. OPTION: a parameter of the benchmark's function, as in `seeds=3`.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path

import click

from benchmarks import runner, tables

MODULES = (
    "zoo.judge", "zoo.ablation", "zoo.spreads", "plain", "probe", "compare", "query", "nas_few", "gpus",
    "networks", "refined", "published_networks", "published_figures", "h100_times", "justus",
    "training_runs", "training_epochs", "training_estimate", "training_parts", "training_decoders",
    "published", "llm", "savings",
)  # fmt: skip


def load() -> None:
    """Import every module that registers benchmarks."""
    for module in MODULES:
        importlib.import_module(f"benchmarks.{module}")


@click.group()
def main() -> None:
    """Tables of results, made anew."""
    load()


@main.command("list")
def show() -> None:
    """Name every benchmark."""
    for one in runner.ALL.values():
        click.echo(f"{one.name:18} {one.about}{f' (DATA: {one.data})' if one.data else ''}")


@main.command()
@click.argument("name")
@click.argument("options", nargs=-1)
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Data of others.")
@click.option("--save", is_flag=True, help="Keep the tables in benchmarks/results.")
def run(name: str, options: tuple[str, ...], data: Path | None, save: bool) -> None:
    """Run one benchmark and print its tables."""
    if name not in runner.ALL:
        raise click.UsageError(f"no benchmark {name!r}; there are {', '.join(runner.ALL)}")
    one = runner.ALL[name]
    made = one.run(data, dict(option.split("=", 1) for option in options))
    for table, (columns, rows) in made.items():
        click.echo(f"\n{table}:\n\n{tables.lines(columns, rows)}", nl=False)
    if save:
        words = ["--data", "DATA"] if data else []
        command = shlex.join(["python", "-m", "benchmarks", "run", name, *options, *words])
        tables.save(one.topic, one.formula, command, made)


if __name__ == "__main__":
    sys.exit(main())

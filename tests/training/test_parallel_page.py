"""docs/training-devices.md: its Python runs, and its commands are commands."""

from __future__ import annotations

import doctest
import shlex
from pathlib import Path

import click

from lolat.cli.training import training

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training-devices.md"


def test_its_python_runs() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 4
    assert found.failed == 0


def test_its_commands_are_understood() -> None:
    lines = [
        shlex.split(line, comments=True)[2:]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("lolat training ")
    ]
    assert {words[0] for words in lines} == {"link", "predict"}
    for name, *words in lines:
        command = training.get_command(click.Context(training), name)
        assert command is not None
        command.make_context(name, words)  # which raises for an option that is not there

"""Values of options: numbers with what was meant by another text, lists with commas, words."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import click

from lolat.cli.mistakes import with_number_meant
from lolat.parameters import Parameter
from lolat.units import as_amount, as_number


class _Meant(click.ParamType):
    """A number in a range, whose error tells the one that was meant by another text."""

    min: Any
    max: Any

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text into a number."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            with_number_meant(error, value, self.min, self.max, isinstance(self, Whole))


class Number(_Meant, click.FloatRange):
    """A number in a range."""


class Whole(_Meant, click.IntRange):
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


class Word(click.Choice):
    """A parameter's choice under any of its names, or one of `more`."""

    def __init__(self, of: Parameter, *more: str) -> None:
        super().__init__((*of.choices, *more), case_sensitive=False)
        self.of = of

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text into a choice."""
        found = self.of.word(value)
        if found not in self.choices and self.of.unknown:
            self.fail(
                f"{value!r} is not one of {', '.join(self.choices)}{self.of.unknown}", param, ctx
            )
        return super().convert(found, param, ctx)


class Amount(click.ParamType):
    """A number of one type, also with k, m, b or t for thousands, millions and more behind it."""

    name = "number"

    def __init__(self, item: click.ParamType) -> None:
        self.item = item

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Text into a number."""
        text = str(value)
        if math.isnan(as_number(text)) and not math.isnan(number := as_amount(text)):
            value = f"{number:.17g}"
        return self.item.convert(value, param, ctx)


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
            said = f"{value!r}: " * ("," in str(value)) + error.message.rstrip(".")
            self.fail(f"{said}; expected for example {self.example}", param, ctx)
        return tuple(items)

    def get_missing_message(self, *_: Any, **__: Any) -> str:
        """Words on the values of a required option that a call lacks."""
        return f"Expected {self.name}, such as {self.example}"

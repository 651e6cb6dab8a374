"""Parses the texts of the form's fields; InputError if a text has no value."""

from __future__ import annotations

import re
from math import inf
from typing import Any

from lolat.device.question import AUTO
from lolat.errors import InputError
from lolat.io.forms import BY_NAME, is_function
from lolat.llm.names import named, published
from lolat.llm.question import ServingQuestion
from lolat.parameters import PARAMETERS, Parameter, parameters_of
from lolat.readers.bundled import bundled_as
from lolat.training.tuning import Tuning
from lolat.units import as_amount, shortened
from lolat.web.networks import UPLOAD

NETWORK = re.compile(rf"(({'|'.join(BY_NAME)}):)?[A-Za-z][\w.-]{{0,99}}|upload:.+", re.ASCII)
EVERY = PARAMETERS | parameters_of(ServingQuestion)
"""Name -> parameter, for all parameters that a field can set."""


def numbers(text: str, parameter: Parameter, most: int = 1) -> Any:
    """Parse the numbers of a parameter, separated by commas, semicolons or spaces.

    5k is 5,000 if the parameter is a count. 1,000 is one number, because no number begins with 0; 100,200
    are two numbers. Returns a tuple if `most` is above one, else a number; None for an empty text.
    """
    if parameter.is_count:
        text = re.sub(r"(?<=\d),(?=0\d\d(?!\d))", "", text)
    is_one = most == 1 and (as_amount(text, parameter.is_count) < inf or parameter.hint(text))
    words = [text] if is_one else re.findall(r"[^,;\s]+", text)
    values = [as_amount(word, parameter.is_count) for word in words]
    if len(values) > most:
        wanted = f"at most {most} numbers" if most > 1 else "one number, such as 1000 or 2.5"
        raise InputError(f"{shortened(text)!r}: expected {wanted}")
    if words:
        try:
            parameter.check(*[
                int(value) if parameter.kind is int and value.is_integer() else value
                if abs(value) < inf else shortened(word)
                for value, word in zip(values, words, strict=True)
            ])  # fmt: skip
        except InputError as error:
            hints = map(parameter.hint, words)
            raise error.reworded(error.message + next(filter(None, hints), "")) from None
    found = tuple(map(parameter.kind, values))
    return found if most > 1 else found[0] if found else None


def spec_of(name: str) -> str:
    """The argument NETWORK for a name in the form; a name without a prefix is of keras.applications.

    Paths and `package.module:callable` are refused: otherwise another site that makes the browser open the
    page could make it read any file of the user, or run any code.
    """
    if not NETWORK.fullmatch(name):
        way = ""
        if is_function(name):
            way = f"; make a file of this function: lolat read {shortened(name)} --output net.json (of "
            way += "PyTorch with --input-size, such as 224)"
        raise InputError(
            f"{shortened(name)!r} is no name of a network; expected one of keras.applications, such as "
            f"ResNet50, timm:NAME or torchvision:NAME; a file is given in the field below{way}"
        )
    if name.casefold() in published():
        raise InputError(
            f"{shortened(name)!r} is a language model; the two tabs of language models answer for it"
        )
    if (near := bundled_as(name)) and f"keras:{name}" not in near:
        raise InputError(f"{shortened(name)!r}: did you mean {' or '.join(near)}?")
    if ":" not in name and "_" in name:  # as no name of Keras
        raise InputError(
            f"{shortened(name)!r}: write its package in front, timm:{name} or torchvision:{name}"
        )
    return name if ":" in name else f"keras:{name}"


def language_model(name: str) -> str:
    """The name of a known language model or of an uploaded configuration; InputError for others."""
    if not name.startswith(UPLOAD):
        named(name)
    return name


def batch_on_each(text: str) -> Any:
    """A batch size, a tuple of several, or "auto"; None for an empty text."""
    if not text:
        return None
    found = AUTO if text == AUTO else numbers(text.strip(", ") or "-", EVERY["batch_size"], 8)
    return found[0] if len(found) == 1 else found


def what_is_tuned(text: str) -> str:
    """The value of the parameter `tune`, checked; InputError for an unknown value."""
    if text:
        Tuning.named(text)
    return text

"""Which network a page asks for, as what the reader is given, what a link keeps and what a command says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lolat.errors import InputError, NetworkError
from lolat.readers import generated
from lolat.readers.generated_configs import keys, wrong
from lolat.readers.wording import shortened

_TYPED = re.compile(r"[\w.,]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class NetworkAsked:
    """`spec` is NETWORK of the command line, or upload:HASH; `size` what goes with it as --input-size.

    A file's path and `package.module:callable` cannot be had here: whoever may open the page, or make a
    browser open it, could otherwise have any file of the user read, or any code run.
    """

    spec: str
    size: tuple[int, ...] = ()

    @property
    def uploaded(self) -> bool:
        """Whether it is a file that was given to the page."""
        return self.spec.startswith("upload:")


class GeneratedError(NetworkError):
    """A generated network's key that is wrong; `key` says which."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def named_network(name: str, size: tuple[int, ...]) -> NetworkAsked:
    """A network of keras.applications; whether there is one of that name is for Keras to say."""
    name = name.removeprefix("keras:")
    if not _NAME.fullmatch(name):
        given = f"{shortened(name)!r} is no name of a network" if name else "no name is given"
        raise NetworkError(
            f"{given}; expected one of keras.applications, such as ResNet50; a file is given under "
            '"From a file"'
        )
    return NetworkAsked(f"keras:{name}", size)


def uploaded_network(digest: str, size: tuple[int, ...]) -> NetworkAsked:
    """A file that was given to the page, by its SHA-256."""
    digest = digest.removeprefix("upload:")
    if not _HASH.fullmatch(digest):
        raise InputError("no file has been given yet; choose a .keras or .onnx file and send it")
    return NetworkAsked(f"upload:{digest}", size)


def generated_network(family: str, given: Mapping[str, str]) -> NetworkAsked:
    """A generated network from what is typed for its keys; GeneratedError."""
    typed = {key: re.sub(r"\s+", "", text) for key, text in given.items()}
    try:
        for key, text in typed.items():
            if not _TYPED.fullmatch(text):  # `&` and `=` would be other keys
                raise wrong(family, key, given[key])
        options = "&".join(f"{key}={text}" for key, text in typed.items() if text)
        config = generated.parse(f"{generated.PREFIX}{family}?{options}")
    except NetworkError as error:
        said = str(error).partition(": ")[2] or str(error)
        named = re.search(rf"\b({'|'.join(sorted(keys(family), key=len, reverse=True))})\b", said)
        raise GeneratedError(said, named[1] if named else keys(family)[0]) from error
    return NetworkAsked(generated.text(config))

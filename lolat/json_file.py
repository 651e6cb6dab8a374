"""Reads a JSON file that a command of LoLat wrote, or says in one line why it is none."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from lolat.errors import ModelFileError


def read_json(path: str | PathLike[str], expected: str, largest_bytes: int | None = None) -> Any:
    """The document in the file at `path`, unchecked.

    ModelFileError, ending in `expected`, names what is wrong: no such file, larger than
    `largest_bytes`, not UTF-8, not JSON.
    """
    try:
        if largest_bytes and Path(path).is_file() and Path(path).stat().st_size > largest_bytes:
            raise ModelFileError(f"{path}: larger than {largest_bytes // 2**20} MiB; {expected}")
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModelFileError(
            f"cannot read {path}: {error.strerror or error}; {expected}"
        ) from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: not UTF-8 text; {expected}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON ({error}); {expected}") from error

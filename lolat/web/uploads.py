"""A file that is sent to the page: taken in counted pieces, looked at, read, and deleted at once."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import Message

from lolat.errors import NetworkError
from lolat.units import plain
from lolat.web.archives import check_file
from lolat.web.kept import Networks
from lolat.web.networks import NetworkAsked

MOST_BYTES = 200 * 2**20
"""Of a file; ONNX files hold the weights, which are of no use here: a larger network has to be read by
the command line."""
OTHER_FIELDS = 2**20
MOST_THROWN_AWAY = 2**30


class TooLarge(NetworkError):
    """A request that holds more than a file of MOST_BYTES."""


async def received(request: Request, most: int = MOST_BYTES) -> FormData:
    """The fields of a request with a file, which lies in a temporary file; TooLarge.

    What arrives is counted: Content-Length is only what somebody says. What is too much is read on and
    thrown away (to a limit), because a browser that is still sending would never see the answer.
    """
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await request.receive()
        total += len(message.get("body", b""))
        if total > most + OTHER_FIELDS:
            while message.get("more_body") and total <= most + MOST_THROWN_AWAY:
                message = await request.receive()
                total += len(message.get("body", b""))
            raise TooLarge(
                f"the file is larger than {most / 2**20:,.0f} MiB, which is the limit here; ask for it in "
                "a terminal: lolat training predict MODEL FILE"
            )
        return message

    return await Request(request.scope, counted).form(
        max_files=1, max_fields=400, max_part_size=64 * 1024
    )


def keep(
    file: BinaryIO, name: str, size: tuple[int, ...], networks: Networks, most: int = MOST_BYTES
) -> NetworkAsked:
    """Read the network in a file that was sent, called `name`; it is then known as what is returned.

    NetworkError: too large, no network, harmful. Nothing of the file is left on the disk.
    """
    name = plain(re.split(r"[/\\]", name)[-1])[:200]
    with tempfile.TemporaryDirectory(prefix="lolat-") as folder:
        # Under a name of ours: the one that came with it may be anything.
        path = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"
        file.seek(0)
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy, 2**20)
        if path.stat().st_size > most:
            raise TooLarge(
                f"{name} is larger than {most / 2**20:,.0f} MiB, which is the limit here; ask for it in a "
                f"terminal: lolat training predict MODEL {name}"
            )
        check_file(path, name)
        with path.open("rb") as copy_read:
            digest = hashlib.file_digest(copy_read, "sha256").hexdigest()
        asked = NetworkAsked(f"upload:{digest}", size)
        networks.read_file(str(path), asked, name)
    return asked

"""Runs the application on this machine's own address."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from lolat.errors import InputError, MissingPackageError

HOST = "127.0.0.1"
"""Never another one: the page reads files that it is given, and has no password."""


def serve(port: int, named: Sequence[Path], told: Callable[[str], None]) -> None:
    """Answer until Ctrl-C; `told` gets the address once requests are taken.

    `port`: 0 for any free one. InputError where it is taken; MissingPackageError without FastAPI.
    """
    try:
        import jinja2  # noqa: F401 - what the application needs, all at once
        import python_multipart  # noqa: F401
        import uvicorn

        from lolat.web.app import create_app
    except ImportError as error:
        raise MissingPackageError(
            f"the calculator needs packages that are not here ({error}); install them with: "
            "pip install 'lolat[web]'"
        ) from error
    listening = bound(port)
    try:
        app = create_app(named)
        listening.listen(128)  # so that a browser that is faster than the server waits for it
        told(f"http://{HOST}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()


def bound(port: int) -> socket.socket:
    """A socket at HOST and `port`; InputError where another program has it, or it may not be had."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows: else two programs may have the same port
        found.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:  # a server that was ended a moment ago does not block the port
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        return found
    except OSError as error:
        found.close()
        why = (
            "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        )
        raise InputError(
            f"port {port} {why}; give another with --port, or --port 0 for any free one"
        ) from None

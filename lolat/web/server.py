"""Runs the application on this machine's own address; what clients may take of it, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from lolat.errors import InputError
from lolat.readers.apart import MIB
from lolat.web.app import Guard, create_app  # before uvicorn: it says what is missing

import uvicorn  # isort: skip
from uvicorn.protocols.http.h11_impl import H11Protocol  # isort: skip

HOST = "127.0.0.1"
"""Never another one: the page reads files that it is given, and has no password."""
MOST_CONNECTIONS = 512
FILES = 4 * MOST_CONNECTIONS
"""File descriptors, where the system lets us have them: connections, files that are sent, models."""
HEADER_BYTES = 64 * 1024
GRACE_S = 10.0
BYTES_PER_S = 2 * MIB
LONGEST_S = 900.0
END_S = 1.0
"""What is asked for when the server ends has so long to be answered; then it gets a 503."""


class Connection(H11Protocol):
    """Ends a client that keeps the server waiting: for a request, what nobody asked for, its answer.

    uvicorn itself only ends those that say nothing at all after an answer.
    """

    since, heard = 0.0, 0

    def connection_made(self, transport: Any) -> None:
        """One more; where there are too many, the one goes that the server has waited for the longest."""
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            others = [c for c in self.connections if isinstance(c, Connection)]
            open_ = [c for c in others if not c.transport.is_closing()]
            if len(open_) > MOST_CONNECTIONS:
                waits = [c for c in open_ if not c.is_served()]
                min(waits, key=lambda c: c.since, default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        """A piece of a request."""
        self.heard += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        """The client's turn."""
        self.since, self.heard = self.loop.time(), 0
        super().on_response_complete()

    def is_served(self) -> bool:
        """Whether it is the server's turn: the client takes its answer. A file that is sent, which is
        part of this, has limits of its own (`lolat.web.networks.Intake`).
        """
        asked = self.cycle is not None and not self.cycle.response_complete
        return asked and not self.flow.write_paused

    def look(self) -> None:
        """End it if its time is over."""
        now = self.loop.time()
        if self.is_served():
            self.since, self.heard = now, 0
        elif now - self.since > GRACE_S + min(self.heard / BYTES_PER_S, LONGEST_S):
            self.transport.abort()


class Server(uvicorn.Server):
    """Looks after its connections; ends with an answer to each request, at once when told twice."""

    def __init__(self, config: uvicorn.Config, app: Guard) -> None:
        super().__init__(config)
        self.app = app

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, answer what was asked for, end what was started."""
        self.app.stopping = True
        ending = asyncio.create_task(self._give_up())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            self.app.close()

    async def _give_up(self) -> None:
        """After END_S answer the rest; end those who do not take their answer, or send without end."""
        await asyncio.sleep(END_S)
        self.app.give_up()
        await asyncio.sleep(END_S / 4)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal; the second one is of somebody who does not want to wait."""
        if self.should_exit:
            self.app.close()
            os._exit(128 + sig)
        super().handle_exit(sig, frame)


def serve(port: int, named: Sequence[Path], announce: Callable[[str], None]) -> None:
    """Answer until Ctrl-C; `announce` gets the address once requests are taken.

    `port`: 0 for any free one. InputError where it is taken.
    """
    listening = bound(port)
    # It would write a line for each form that is none, as nobody else listens to it.
    logging.getLogger("python_multipart").addHandler(logging.NullHandler())
    try:
        app = create_app(named)
        _allow_files()
        listening.listen(MOST_CONNECTIONS)  # a browser that is faster than the server waits for it
        announce(f"http://{HOST}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_level="error",  # not a line for each request that is none
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=10,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        Server(config, app).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python waits for threads that make pages
        listening.close()


def _allow_files() -> None:
    """Let this process have FILES open, or as many as it may."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def bound(port: int) -> socket.socket:
    """A socket at HOST and `port`; InputError where another program has it, or it may not be had."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows: else two programs may have the same port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:  # a server that was ended a moment ago does not block the port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        return listening
    except OSError as error:
        listening.close()
        why = (
            "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        )
        raise InputError(
            f"port {port} {why}; give another with --port, or --port 0 for any free one"
        ) from None

"""The web application, and what runs it on this machine's own address: what clients may take of it.

FastAPI looks the types of its handlers up in this module, so that it alone is imported at the top.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import html
import logging
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any

from lolat.errors import InputError, LolatError, MissingPackageError

try:  # what the page needs, all at once
    import jinja2  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn
    from anyio import CapacityLimiter, to_thread
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, RedirectResponse, Response
    from fastapi.staticfiles import StaticFiles
    from python_multipart.exceptions import FormParserError
    from starlette.datastructures import FormData, Headers, MutableHeaders, UploadFile
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import PlainTextResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingPackageError(
        f"the page needs packages that are not here ({error})", "web"
    ) from error

from lolat.readers.apart import ENDINGS, LIMIT_S, MIB
from lolat.web.form import as_size
from lolat.web.networks import (
    RETRY_S,
    UPLOAD,
    Busy,
    Intake,
    NetworkCache,
    NetworkKey,
    Reader,
    TooLarge,
    TooSlow,
)
from lolat.web.page import BUSY, Page, Pages

# ---- Who may ask the server: this machine's own browser, on the page that the server gave it.
#
# Any web page that a user has open can make the browser send requests to 127.0.0.1. What it cannot do is
# read the answers, unless its own name is made to point to 127.0.0.1 (DNS rebinding): then the browser
# takes the two for one site. But the Host header still says the other name, so only ours is answered. And a
# page elsewhere that sends a form here is told by its Origin. Starlette's TrustedHostMiddleware looks at
# what stands before the first colon alone, so that it lets 127.0.0.1:80@evil through.

HOSTS = ("127.0.0.1", "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from anywhere else, and no script but the one that comes with LoLat runs."""
_CSP = "Content-Security-Policy"
HEADERS = {
    _CSP: POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with it browsers send the form's Origin as "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI application around another one: refuses strangers, adds HEADERS to every answer, and has one
    for each request when the server ends. `close` ends what the other one started.
    """

    def __init__(self, app: ASGIApp, close: Callable[[], None]) -> None:
        self.app, self.close, self.stopping = app, close, False
        self._requests: set[asyncio.Task[Any]] = set()

    def give_up(self) -> None:
        """Answer what is not answered yet: the server is `stopping`."""
        for request in self._requests:
            request.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is nothing else here
            return

        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                given = MutableHeaders(scope=message)
                given.update({n: v for n, v in HEADERS.items() if n not in given or n != _CSP})
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        answer = self.app if refusal is None else PlainTextResponse(refusal + "\n", 403)
        ended = PlainTextResponse("the server is stopping\n", BUSY)
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            await (ended if self.stopping else answer)(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            if not self.stopping:
                raise
            if not begun:
                await ended(scope, receive, send_with_headers)
        finally:
            self._requests.discard(task)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        """Why a request is not answered, or None."""
        host = headers.get("host", "")
        name, _, port = host.partition(":")
        if name.lower() not in HOSTS or (port and not port.isdigit()):
            return f"this server is {' or '.join(HOSTS)}; open the address that it printed"
        if method in ("GET", "HEAD"):
            return None
        # Both are sent by every browser of today with a form; a program of the user's can set them.
        if headers.get("origin", "") != f"http://{host}":
            return "a form of another page; open the address that the server printed"
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "a request of another site; open the address that the server printed"
        return None


# ---- The application.

NO_TELEMETRY: Any = dict.fromkeys(
    ("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False
)
"""FastAPI can tell OpenTelemetry of every request where the environment says so: not here."""


def _of_upload(query: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """The texts of a form, with a file as where the network is from."""
    texts = [(n, t) for n, t in query if isinstance(t, str) and n not in ("source", "upload")]
    return [*texts, ("source", "upload")]


PATIENCE_S = 1.0
"""How long a page waits for a network that is being read before it says so."""
LOOK_S = 0.05
THREADS = 4
"""That make pages; more would only share the same processor."""


class Answers:
    """What requests are answered with. No thread waits for a network: there are few of them."""

    def __init__(
        self, pages: Pages, cache: NetworkCache, intake: Intake, patience_s: float
    ) -> None:
        self.pages, self.cache, self.intake, self.patience_s = pages, cache, intake, patience_s
        self._threads = CapacityLimiter(THREADS)

    async def in_thread(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """What `make` returns."""
        return await to_thread.run_sync(partial(make, *arguments), limiter=self._threads)

    async def made(self, make: Callable[..., Any], patience_s: float, *arguments: Any) -> Any:
        """The Page of `make`, again when the network is read that it waits for, but not for ever."""
        end = time.monotonic() + patience_s
        while True:
            page = await self.in_thread(make, *arguments)
            if page is None or page.reading is None:
                return page
            await self._read(page.reading, end)
            if self.cache.is_reading(page.reading):
                return page

    async def _read(self, key: NetworkKey, end: float) -> None:
        while self.cache.is_reading(key) and time.monotonic() < end:
            await asyncio.sleep(LOOK_S)

    async def home(self, request: Request) -> Response:
        """The page."""
        query = request.query_params.multi_items()
        return _response(await self.made(self.pages.page, self.patience_s, query))

    async def report(self, request: Request) -> Response:
        """A page that is one file, with its own policy, as its script and its style are in it."""
        query = request.query_params.multi_items()
        found: Page | None = await self.made(self.pages.report, LIMIT_S, query)
        if found is None or found.reading is not None:
            # What cannot be answered is the page that says why.
            return RedirectResponse(f"/?{request.url.query}", 303)
        page = found.html
        own = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
        policy = f"{html.unescape(own[1])}; frame-ancestors 'none'" if own else POLICY
        return _response(found, {_CSP: policy})

    async def upload(self, request: Request) -> Response:
        """The page of a file that is sent, or the page that says why it is none."""
        query = _of_upload(request.query_params.multi_items())  # as the page was sent
        try:
            async with self.intake.received(request) as form:
                query = _of_upload(form.multi_items())  # which says more
                key = await self._uploaded(form, dict(query))
        except (LolatError, HTTPException, FormParserError, ClientDisconnect, OSError) as error:
            return await self._refused(query, error)
        digest = key.spec.removeprefix(UPLOAD)
        link = await self.in_thread(self.pages.link, [*query, ("upload", digest)])
        return RedirectResponse(link, 303)

    async def _uploaded(self, form: FormData, query: dict[str, str]) -> NetworkKey:
        """The network of a form with a file, once it is read."""
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.filename:
            raise InputError(f"no file is chosen; choose one of {', '.join(ENDINGS)}, then send it")
        size = as_size(query.get("file_size", ""))
        begin, most = self.cache.begin_file, self.intake.most_bytes
        key: NetworkKey = await self.in_thread(begin, file.file, file.filename, size, most)
        await self._read(key, float("inf"))
        self.cache.get(key)
        return key

    async def _refused(self, query: list[tuple[str, str]], error: Exception) -> Response:
        kinds = ((Busy, BUSY), (TooLarge, 413), (TooSlow, 408), (OSError, BUSY))
        status = next((status for kind, status in kinds if isinstance(error, kind)), 400)
        reason = str(error) if isinstance(error, LolatError) else "the file did not arrive whole"
        if isinstance(error, OSError):
            reason = f"the file cannot be kept while it is read: {error.strerror}"
        page = await self.in_thread(self.pages.page, query, reason, status)
        # What of it still comes is not waited for.
        return _response(page, {"Connection": "close"})


def _response(page: Page, headers: dict[str, str] | None = None) -> HTMLResponse:
    later = {"Retry-After": str(RETRY_S)} if page.status == BUSY else {}
    return HTMLResponse(page.html, page.status, headers={**later, **(headers or {})})


def create_app(
    named: Sequence[Path] = (),
    networks: NetworkCache | None = None,
    patience_s: float = PATIENCE_S,
    intake: Intake | None = None,
) -> Guard:
    """The application; `named`: model files to list besides local and shipped ones."""
    cache = NetworkCache(Reader()) if networks is None else networks
    answers = Answers(Pages(cache, named), cache, intake or Intake(), patience_s)

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        cache.start()
        yield
        cache.close()

    # Without FastAPI's own pages, which load scripts from the network.
    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url=None, lifespan=life, telemetry=NO_TELEMETRY
    )
    static = Path(str(files("lolat.web").joinpath("static")))
    app.mount("/static", StaticFiles(directory=static), name="static")

    app.get("/", response_class=HTMLResponse)(answers.home)
    app.get("/report")(answers.report)
    app.post("/upload")(answers.upload)
    return Guard(app, cache.close)  # around everything, answers to faults of ours too


# ---- What runs it.

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

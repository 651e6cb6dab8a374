"""The web application: the page, what it loads, and where a file is sent to.

FastAPI looks the types of its handlers up in this module, so that it alone is imported at the top.
"""

from __future__ import annotations

import errno
import html
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from lolat.errors import InputError, LolatError, MissingPackageError

try:  # what the page needs, all at once
    import jinja2  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, RedirectResponse, Response
    from fastapi.staticfiles import StaticFiles
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import FormData, Headers, MutableHeaders, UploadFile
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import PlainTextResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise MissingPackageError(
        f"the page needs packages that are not here ({error})", "web"
    ) from error

from lolat.readers.apart import LIMIT_S
from lolat.readers.archives import ENDINGS
from lolat.web.fields import as_size
from lolat.web.networks import (
    MOST_BYTES,
    UPLOAD,
    NetworkCache,
    TooLarge,
    read_upload,
    received,
)
from lolat.web.page import PATIENCE_S, Pages
from lolat.web.reading import Reader

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
    """An ASGI application around another one: refuses strangers, adds HEADERS to every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = HOSTS) -> None:
        self.app, self.hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is nothing else here
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = MutableHeaders(scope=message)
                given.update({n: v for n, v in HEADERS.items() if n not in given or n != _CSP})
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        answer = self.app if refusal is None else PlainTextResponse(refusal + "\n", 403)
        await answer(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        """Why a request is not answered, or None."""
        host = headers.get("host", "")
        name, _, port = host.partition(":")
        if name.lower() not in self.hosts or (port and not port.isdigit()):
            return f"this server is {' or '.join(sorted(self.hosts))}; open the address that it printed"
        if method in ("GET", "HEAD"):
            return None
        # Both are sent by every browser of today with a form; a program of the user's can set them.
        if headers.get("origin", "") != f"http://{host}":
            return "a form of another page; open the address that the server printed"
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "a request of another site; open the address that the server printed"
        return None


# ---- The application.

NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI can tell OpenTelemetry of every request where the environment says so: not here."""


def _of_upload(query: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """The texts of a form, with a file as where the network is from."""
    texts = [(n, t) for n, t in query if isinstance(t, str) and n not in ("source", "upload")]
    return [*texts, ("source", "upload")]


def _one_file(page: str) -> HTMLResponse:
    """A page that is one file, with its own policy: its script and its style are in it."""
    own = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    policy = f"{html.unescape(own[1])}; frame-ancestors 'none'" if own else POLICY
    return HTMLResponse(page, headers={_CSP: policy})


async def _taken(
    request: Request, pages: Pages, cache: NetworkCache, patience_s: float, most_bytes: int
) -> Response:
    """The page of a file that is sent, or the page that says why it is none."""
    query = _of_upload(request.query_params.multi_items())  # as the page was sent
    form = FormData()
    try:
        form = await received(request, most_bytes)
        query = _of_upload(form.multi_items())  # which says more
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.filename:
            raise InputError(f"no file is chosen; choose one of {', '.join(ENDINGS)}, then send it")
        size = as_size(dict(query).get("file_size", ""))
        key = await run_in_threadpool(
            read_upload, file.file, file.filename, size, cache, most_bytes
        )
    except (LolatError, HTTPException, ClientDisconnect) as error:
        status = 413 if isinstance(error, TooLarge) else 400
        reason = str(error) if isinstance(error, LolatError) else "the file did not arrive whole"
        page = await run_in_threadpool(pages.page, query, patience_s, reason)
        return HTMLResponse(page, status)
    finally:
        await form.close()
    digest = key.spec.removeprefix(UPLOAD)
    link = await run_in_threadpool(pages.link, [*query, ("upload", digest)])
    return RedirectResponse(link, 303)


def create_app(
    named: Sequence[Path] = (),
    networks: NetworkCache | None = None,
    patience_s: float = PATIENCE_S,
    most_bytes: int = MOST_BYTES,
) -> Guard:
    """The application; `named`: model files to list besides local and shipped ones."""
    cache = NetworkCache(Reader()) if networks is None else networks
    pages = Pages(cache, named)

    @asynccontextmanager
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

    @app.get("/", response_class=HTMLResponse)
    def home(request: Request) -> str:
        return pages.page(request.query_params.multi_items(), patience_s)

    @app.get("/report")
    def report(request: Request) -> Response:
        found = pages.report(request.query_params.multi_items(), LIMIT_S)
        # What cannot be answered is the page that says why.
        return _one_file(found) if found else RedirectResponse(f"/?{request.url.query}", 303)

    @app.post("/upload")
    async def upload(request: Request) -> Response:
        return await _taken(request, pages, cache, patience_s, most_bytes)

    return Guard(app)  # around everything, answers to faults of ours too


# ---- Runs the application on this machine's own address.

HOST = "127.0.0.1"
"""Never another one: the page reads files that it is given, and has no password."""


def serve(port: int, named: Sequence[Path], announce: Callable[[str], None]) -> None:
    """Answer until Ctrl-C; `announce` gets the address once requests are taken.

    `port`: 0 for any free one. InputError where it is taken.
    """
    listening = bound(port)
    try:
        app = create_app(named)
        listening.listen(128)  # so that a browser that is faster than the server waits for it
        announce(f"http://{HOST}:{listening.getsockname()[1]}/")
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

"""The web application, what runs it on this machine's own address, and who may ask it."""

from __future__ import annotations

import html
import logging
import re
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from lolat.errors import InputError, LolatError, MissingPackageError, NetworkError, arg

try:  # what the page needs, all at once
    import jinja2  # noqa: F401
    import uvicorn
    from python_multipart.exceptions import FormParserError
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import FormData, Headers, MutableHeaders, UploadFile
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise MissingPackageError(
        f"the page needs packages that are not here ({error})", "web"
    ) from error

from lolat.readers.children import ENDINGS, MIB
from lolat.web.form import SIZES
from lolat.web.networks import MOST_BYTES, UPLOAD, NetworkCache, NetworkKey
from lolat.web.page import Pages

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

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

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

OTHER_FIELDS = MIB
"""Of a request with a file: what the form's other fields may take."""
MOST_IGNORED = 2**30


class TooLarge(NetworkError):
    """A request with a file of more than `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the file is larger than {most / MIB:,.0f} MiB, which is the limit here; ask for it in a "
            "terminal: lolat predict MODEL FILE"
        )


def limited(receive: Receive, most: int) -> Receive:
    """`receive` for a file of at most `most` bytes. What arrives is counted: a header may say anything."""
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > most + OTHER_FIELDS:
            while message.get("more_body") and total < MOST_IGNORED:
                message = await receive()  # a browser that is still sending sees no answer
                total += len(message.get("body", b""))
            raise TooLarge(most)
        return message

    return counted


def _of_upload(query: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """The texts of a form, with a file as where the network is from."""
    texts = [(n, t) for n, t in query if isinstance(t, str) and n not in ("source", "upload")]
    return [*texts, ("source", "upload")]


class Answers:
    """The answers to requests; Starlette runs in threads what is not `async`."""

    def __init__(self, pages: Pages, cache: NetworkCache, most_bytes: int) -> None:
        self.pages, self.cache, self.most_bytes = pages, cache, most_bytes

    def home(self, request: Request) -> Response:
        """The page."""
        return HTMLResponse(self.pages.page(request.query_params.multi_items()))

    def report(self, request: Request) -> Response:
        """A page that is one file, with its own policy, as its script and its style are in it."""
        page = self.pages.report(request.query_params.multi_items())
        if page is None:  # the page says why
            return RedirectResponse(f"/?{request.url.query}", 303)
        own = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
        policy = f"{html.unescape(own[1])}; frame-ancestors 'none'" if own else POLICY
        return HTMLResponse(page, headers={_CSP: policy})

    async def upload(self, request: Request) -> Response:
        """The page of a file that is sent, or the page that says what is wrong with it."""
        query = _of_upload(request.query_params.multi_items())  # as the page was sent
        counted = Request(request.scope, limited(request.receive, self.most_bytes))
        try:
            async with counted.form(max_files=1, max_fields=400, max_part_size=2**14) as form:
                query = _of_upload(form.multi_items())  # which says more
                key = await run_in_threadpool(self._uploaded, form, dict(query))
        except (LolatError, HTTPException, FormParserError, ClientDisconnect, OSError) as error:
            reason = (
                str(error) if isinstance(error, LolatError) else "the file did not arrive whole"
            )
            if isinstance(error, OSError):
                reason = f"the file cannot be kept while it is read: {error.strerror}"
            status = 413 if isinstance(error, TooLarge) else 400
            page = await run_in_threadpool(self.pages.page, query, reason)
            return HTMLResponse(page, status, {"Connection": "close"})
        digest = key.spec.removeprefix(UPLOAD)
        link = await run_in_threadpool(self.pages.link, [*query, ("upload", digest)])
        return RedirectResponse(link, 303)

    def _uploaded(self, form: FormData, query: dict[str, str]) -> NetworkKey:
        """The network of a form with a file, once it is read."""
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.filename:
            raise InputError(f"no file is chosen; choose one of {', '.join(ENDINGS)}, then send it")
        if (file.size or 0) > self.most_bytes:
            raise TooLarge(self.most_bytes)
        size = SIZES(query.get("file_size", ""))
        return self.cache.put_file(file.file, file.filename, size)


def create_app(
    named: Sequence[Path] = (), networks: NetworkCache | None = None, most_bytes: int = MOST_BYTES
) -> Guard:
    """The application; `named`: model files to list besides local and shipped ones."""
    cache = networks or NetworkCache()
    answers = Answers(Pages(cache, named), cache, most_bytes)
    static = StaticFiles(directory=Path(str(files("lolat.web").joinpath("static"))))
    routes = [
        Route("/", answers.home),
        Route("/report", answers.report),
        Route("/upload", answers.upload, methods=["POST"]),
        Mount("/static", static),
    ]
    return Guard(Starlette(routes=routes))  # around answers to faults of ours too


# ---- What runs it.

HOST = "127.0.0.1"
"""Never another one: the page reads files that it is given, and has no password."""
MOST_CONNECTIONS = 64
"""Answered at a time, more than one browser opens; others get a 503."""
END_S = 5
"""Requests that are open when the server ends have so long."""


def serve(port: int, named: Sequence[Path], announce: Callable[[str], None]) -> None:
    """Answer until Ctrl-C; `announce` gets the address once requests are taken.

    `port`: 0 for any free one. InputError where it is taken.
    """
    try:
        listening = socket.create_server(
            (HOST, port)
        )  # a browser that is faster waits for the server
    except OSError as error:
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); give another {arg('port')}, or 0 for any free "
            "one"
        ) from None
    # It would write a line for each form that is none, as nobody else listens to it.
    logging.getLogger("python_multipart").addHandler(logging.NullHandler())
    with listening:
        app = create_app(named)
        announce(f"http://{HOST}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            app, http="h11", ws="none", server_header=False, proxy_headers=False,
            log_level="critical", access_log=False,  # not a line for each request that is none
            limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=END_S,
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python waits for threads that make pages

"""The web application: the page, what it loads, and where a file is sent to.

FastAPI looks the types of its handlers up in this module, so that it alone is imported at the top.
"""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from lolat.errors import InputError, LolatError, MissingPackageError

try:  # what the page needs, all at once
    import jinja2  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn  # noqa: F401
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
except ImportError as error:
    raise MissingPackageError(
        f"the page needs packages that are not here ({error})", "web"
    ) from error

from lolat.readers.apart import ENDINGS, LIMIT_S
from lolat.web.fields import as_size
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
    begin_upload,
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

    def __init__(
        self, app: ASGIApp, close: Callable[[], None], hosts: Iterable[str] = HOSTS
    ) -> None:
        self.app, self.close, self.hosts = app, close, frozenset(hosts)
        self.stopping = False
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


PATIENCE_S = 1.0
"""How long a page waits for a network that is being read before it says so."""
LOOK_S = 0.05
THREADS = 4
"""That make pages; more would only share the same processor."""


class Answers:
    """What requests are answered with. No thread waits for a network: there are few of them."""

    def __init__(self, pages: Pages, cache: NetworkCache, intake: Intake) -> None:
        self.pages, self.cache, self.intake = pages, cache, intake
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

    async def home(self, request: Request, patience_s: float) -> Response:
        """The page."""
        query = request.query_params.multi_items()
        return _response(await self.made(self.pages.page, patience_s, query))

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
        form, kept = FormData(), 0
        try:
            form, kept = await self.intake.receive(request)
            query = _of_upload(form.multi_items())  # which says more
            key = await self._uploaded(form, dict(query))
        except (LolatError, HTTPException, FormParserError, ClientDisconnect, OSError) as error:
            return await self._refused(query, error)
        finally:
            await form.close()
            self.intake.leave(kept)
        digest = key.spec.removeprefix(UPLOAD)
        link = await self.in_thread(self.pages.link, [*query, ("upload", digest)])
        return RedirectResponse(link, 303)

    async def _uploaded(self, form: FormData, query: dict[str, str]) -> NetworkKey:
        """The network of a form with a file, once it is read."""
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.filename:
            raise InputError(f"no file is chosen; choose one of {', '.join(ENDINGS)}, then send it")
        size = as_size(query.get("file_size", ""))
        name, most = file.filename, self.intake.most_bytes
        key: NetworkKey = await self.in_thread(
            begin_upload, file.file, name, size, self.cache, most
        )
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
    answers = Answers(Pages(cache, named), cache, intake or Intake())

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
    async def home(request: Request) -> Response:
        return await answers.home(request, patience_s)

    @app.get("/report")
    async def report(request: Request) -> Response:
        return await answers.report(request)

    @app.post("/upload")
    async def upload(request: Request) -> Response:
        return await answers.upload(request)

    return Guard(app, cache.close)  # around everything, answers to faults of ours too

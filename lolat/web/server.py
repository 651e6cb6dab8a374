"""The web application, and what runs it on this machine's own address."""

from __future__ import annotations

import html
import re
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from lolat.errors import InputError, LolatError, MissingPackageError, arg

try:  # what the page needs, all at once
    import jinja2  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import FormData, UploadFile
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ImportError as error:
    raise MissingPackageError(
        f"the page needs packages that are not here ({error})", "web"
    ) from error

from lolat.web.networks import NetworkCache
from lolat.web.page import Pages

HOSTS = ["127.0.0.1", "localhost"]
"""Another name that points to 127.0.0.1 would let its page read the answers (DNS rebinding)."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from anywhere else, and no script but the one that comes with LoLat runs."""


def _page(text: str, status: int = 200, policy: str = POLICY) -> Response:
    return HTMLResponse(text, status, {"Content-Security-Policy": policy})


OWN = ("", "none", "same-origin")
"""Sec-Fetch-Site of a request that a user made, or the page itself; "" of a program that is no browser."""
ELSEWHERE = (
    "another page asked this question, and reading its network takes this computer's time; to ask it "
    "yourself, go to the address bar and press Enter\n"
)
FAILED = "LoLat could not answer; the terminal of `lolat serve` says why\n"


def _asked_elsewhere(request: Request) -> bool:
    """Return whether another site's page has the browser ask a question."""
    return bool(request.url.query) and request.headers.get("sec-fetch-site", "") not in OWN


def failed(request: Request, error: Exception) -> Response:
    """The answer where something broke; the terminal gets the traceback."""
    traceback.print_exception(error)
    return PlainTextResponse(FAILED, 500)


class Answers:
    """The answers to requests; Starlette runs in threads what is not `async`."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages

    def home(self, request: Request) -> Response:
        """The page."""
        if _asked_elsewhere(request):
            return PlainTextResponse(ELSEWHERE, 403)
        return _page(self.pages.page(request.query_params.multi_items()))

    def report(self, request: Request) -> Response:
        """A page in one file; its content policy allows the script and the style inside it."""
        if _asked_elsewhere(request):
            return PlainTextResponse(ELSEWHERE, 403)
        page = self.pages.report(request.query_params.multi_items())
        if page is None:  # the page says why
            return RedirectResponse(f"/?{request.url.query}", 303)
        own = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
        return _page(page, policy=html.unescape(own[1]) if own else POLICY)

    async def upload(self, request: Request) -> Response:
        """The page of a file that is sent from this page, or the page that says what is wrong with it."""
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return PlainTextResponse("a form of another page; open the server's own\n", 403)
        async with request.form(max_files=1) as form:
            return await run_in_threadpool(self._uploaded, form)

    def _uploaded(self, form: FormData) -> Response:
        """The answer to a form with a file, once the file is read."""
        file = form.get("file")
        query = [(name, text) for name, text in form.multi_items() if isinstance(text, str)]
        asked = self.pages.form(query)
        subject = asked.subject
        try:
            if not isinstance(file, UploadFile) or not file.filename:
                raise InputError(f"no file is chosen; choose one of {', '.join(subject.endings)}")
            if (file.size or 0) > subject.most_bytes:
                raise InputError(
                    f"{file.filename} is larger than {subject.most_bytes // 2**20} MiB; ask for it in a "
                    f"terminal: {subject.command}"
                )
            sent = self.pages.put(asked, file.file, file.filename)
        except LolatError as error:
            return _page(self.pages.page(query, asked.words(error)), 400)
        return RedirectResponse(asked.link(**sent), 303)


def create_app(named: Sequence[Path] = (), networks: NetworkCache | None = None) -> Starlette:
    """The application; `named`: profiles to list besides local and bundled ones."""
    answers = Answers(Pages(networks or NetworkCache(), named))
    static = StaticFiles(directory=Path(str(files("lolat.web").joinpath("static"))))
    routes = [
        Route("/", answers.home),
        Route("/report", answers.report),
        Route("/upload", answers.upload, methods=["POST"]),
        Mount("/static", static),
    ]
    only_here = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[only_here], exception_handlers={Exception: failed})


# ---- What runs it.

HOST = "127.0.0.1"
"""Never another one: the page reads files that it is given, and has no password."""
END_S = 5
"""Seconds in which requests that are open can end when the server ends."""


def serve(port: int, named: Sequence[Path], announce: Callable[[str], None]) -> None:
    """Answer until Ctrl-C; `announce` gets the address once requests are taken.

    `port`: 0 for any free one. InputError where it is taken.
    """
    try:
        listening = socket.create_server((HOST, port))  # a browser that is faster waits
    except OSError as error:
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); give another {arg('port')}, or 0 for any free "
            "one",
            code="port",
        ) from None
    with listening:
        app = create_app(named)
        announce(f"http://{HOST}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            # `failed` tells of errors.
            app, http="h11", ws="none", log_level="critical", access_log=False,
            timeout_graceful_shutdown=END_S,
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python waits for threads that make pages

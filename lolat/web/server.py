"""The web application, and the server that runs it on this machine's local address."""

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
"""Accepted host names. A foreign name that resolves to 127.0.0.1 could read the answers (DNS rebinding)."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy: nothing is loaded from other sites, and only LoLat's own script runs."""


def _page(text: str, status: int = 200, policy: str = POLICY) -> Response:
    return HTMLResponse(text, status, {"Content-Security-Policy": policy})


OWN = ("", "none", "same-origin")
"""Accepted Sec-Fetch-Site headers: of the user and of the page itself; "" of programs without a browser."""
ELSEWHERE = (
    "another page asked this question, and reading its network takes this computer's time; to ask it "
    "yourself, go to the address bar and press Enter\n"
)
FAILED = "LoLat could not answer; the terminal of `lolat serve` says why\n"


def _asked_elsewhere(request: Request) -> bool:
    """Return whether the page of another site made the browser send the request."""
    return bool(request.url.query) and request.headers.get("sec-fetch-site", "") not in OWN


def failed(request: Request, error: Exception) -> Response:
    """The response to an unexpected error; the traceback goes to the terminal."""
    traceback.print_exception(error)
    return PlainTextResponse(FAILED, 500)


class Answers:
    """The responses to requests; Starlette runs methods that are not `async` in threads."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages

    def home(self, request: Request) -> Response:
        """The calculator page."""
        if _asked_elsewhere(request):
            return PlainTextResponse(ELSEWHERE, 403)
        return _page(self.pages.page(request.query_params.multi_items()))

    def report(self, request: Request) -> Response:
        """The self-contained page of a report; its content policy allows its inline script and style."""
        if _asked_elsewhere(request):
            return PlainTextResponse(ELSEWHERE, 403)
        page = self.pages.report(request.query_params.multi_items())
        if page is None:  # the page says why
            return RedirectResponse(f"/?{request.url.query}", 303)
        own = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
        return _page(page, policy=html.unescape(own[1]) if own else POLICY)

    async def upload(self, request: Request) -> Response:
        """The page for a file uploaded from this page, or a page that says what is wrong with the file."""
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return PlainTextResponse("a form of another page; open the server's own\n", 403)
        async with request.form(max_files=1) as form:
            return await run_in_threadpool(self._uploaded, form)

    def _uploaded(self, form: FormData) -> Response:
        """The response to a form with a file, after the file was received."""
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
    """The web application. `named`: paths of profiles to list besides local and bundled profiles."""
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
"""The only address to listen on: the page reads uploaded files and has no password."""
END_S = 5
"""Seconds that open requests get to finish when the server ends."""


def serve(port: int, named: Sequence[Path], announce: Callable[[str], None]) -> None:
    """Run the server until Ctrl-C. `announce` gets the address once the server accepts requests.

    `port`: 0 for any free port. InputError if the port is taken.
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
            # `failed` reports errors.
            app, http="h11", ws="none", log_level="critical", access_log=False,
            timeout_graceful_shutdown=END_S,
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python waits for threads that make pages

"""The web application: the page, what it loads, and where a file is sent to.

FastAPI looks the types of its handlers up in this module, so that it alone is imported at the top.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lolat.errors import InputError, LolatError
from lolat.web.asked import as_size
from lolat.web.example import example
from lolat.web.guard import Guard
from lolat.web.kept import Networks
from lolat.web.page import PATIENCE_S, Pages
from lolat.web.reader import Reader
from lolat.web.uploads import MOST_BYTES, TooLarge, keep, received

NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""FastAPI can tell OpenTelemetry of every request where the environment says so: not here."""


def create_app(
    named: Sequence[Path] = (),
    networks: Networks | None = None,
    patience_s: float = PATIENCE_S,
    most_bytes: int = MOST_BYTES,
) -> Guard:
    """The application; `named`: model files to list besides local and shipped ones."""
    known = Networks(Reader()) if networks is None else networks
    pages = Pages(known, named)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        known.keep(*example())
        known.start()
        yield
        known.close()

    # Without FastAPI's own pages, which load scripts from the network.
    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url=None, lifespan=life, telemetry=NO_TELEMETRY
    )
    static = Path(str(files("lolat.web").joinpath("static")))
    app.mount("/static", StaticFiles(directory=static), name="static")

    @app.get("/", response_class=HTMLResponse)
    def home(request: Request) -> str:
        return pages.page(request.query_params.multi_items(), patience_s)

    @app.post("/upload")
    async def upload(request: Request) -> Response:
        given = request.query_params.multi_items()  # as the page was sent; the form says more
        form = FormData()
        try:
            form = await received(request, most_bytes)
            given = [(n, t) for n, t in form.multi_items() if isinstance(t, str)]
            given = [pair for pair in given if pair[0] not in ("source", "upload")]
            given.append(("source", "upload"))
            file = form.get("file")
            if not isinstance(file, UploadFile) or not file.filename:
                raise InputError("no file is chosen; choose a .keras or .onnx file, then send it")
            size = as_size(dict(given).get("file_size", ""))
            asked = await run_in_threadpool(keep, file.file, file.filename, size, known, most_bytes)
        except (LolatError, HTTPException, ClientDisconnect) as error:
            given = [*[p for p in given if p[0] not in ("source", "upload")], ("source", "upload")]
            status = 413 if isinstance(error, TooLarge) else 400
            told = str(error) if isinstance(error, LolatError) else "the file did not arrive whole"
            page = await run_in_threadpool(pages.page, given, patience_s, told)
            return HTMLResponse(page, status)
        finally:
            await form.close()
        digest = asked.spec.partition(":")[2]
        link = await run_in_threadpool(pages.link, [*given, ("upload", digest)])
        return RedirectResponse(link, 303)

    return Guard(app)  # around everything, answers to faults of ours too

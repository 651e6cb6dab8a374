"""The calculator in this process: asked as a browser asks, with a reader that reads nothing."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.testclient import TestClient

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.readers.size import as_size
from lolat.web.networks import NetworkCache
from lolat.web.server import create_app
from tests import synthetic
from tests.processes import PATIENCE_S
from tests.report.pages import Page

ORIGIN = "http://127.0.0.1"


class FakeReader:
    """Records the calls; `go` holds it up while it is not set; names that begin with Bad are refused."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.go = threading.Event()
        self.go.set()

    def read(self, network: str, size: Any = ()) -> Graph:
        size = as_size(size)
        self.calls.append((network, size.numbers))
        self.go.wait(PATIENCE_S)
        if "Bad" in network:
            raise NetworkError(f"no network {network!r} in keras.applications; did you mean good?")
        name = network.rpartition("/")[2].removeprefix("keras:")
        return synthetic.network(size=[*size.images, 56][0], name=name)


class Site:
    """The page; asked with a query it gives what a person sees."""

    def __init__(self, client: Any, reader: FakeReader) -> None:
        self.client, self.reader = client, reader
        self.raw = ""

    def get(self, query: str = "", **fields: object) -> str:
        """The page's HTML; every page is well formed."""
        pairs = [urlencode([(name, str(value))]) for name, value in fields.items()]
        found = self.client.get("/" + "&".join([query or "?", *pairs]))
        assert found.status_code == 200, found.text
        return self.taken(found.text)

    def send(self, name: str, content: bytes, **fields: str) -> Any:
        """Send a file as the page's form does; a redirection is followed."""
        file = {"file": (name, content)}
        found = self.client.post("/upload", files=file, data=fields, headers={"origin": ORIGIN})
        self.taken(found.text)
        return found

    def taken(self, text: str) -> str:
        self.raw = text
        Page(text)
        return text

    def errors(self) -> dict[str, str]:
        """The errors that stand at fields, by field."""
        found = re.findall(r'<p class="error" id="e-([^"]*)">([^<]+)</p>', self.raw)
        return {name: html.unescape(text) for name, text in found}

    def answer(self) -> str:
        """The words of the answer, on one line."""
        text = self.raw.partition("<main")[2]
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())

    def value(self, name: str) -> str:
        """What a field of the form holds."""
        tag = re.search(rf'<input[^>]* name="{re.escape(name)}"[^>]*>', self.raw)
        assert tag is not None, name
        found = re.search(r' value="([^"]*)"', tag[0])
        return html.unescape(found[1]) if found else ""

    def commands(self) -> list[str]:
        """The command lines."""
        found = re.findall(r'<textarea[^>]*class="command"[^>]*>([^<]*)</textarea>', self.raw)
        return [html.unescape(text) for text in found]

    def link(self) -> str:
        """The link to the view."""
        found = re.search(r'data-link="([^"]*)"', self.raw)
        assert found is not None
        return html.unescape(found[1])


@contextmanager
def site(named: Sequence[Path]) -> Iterator[Site]:
    """The page, started and ended."""
    fake = FakeReader()
    app = create_app(named, NetworkCache(lambda spec, size: fake.read(spec, size)))
    with TestClient(app, base_url=ORIGIN) as client:
        yield Site(client, fake)

"""The real server, in a process of its own: requests that are none, and what is left when it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from tests import synthetic
from tests.processes import is_running, wait_until
from tests.report.pages import Page

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
ROOT = Path(__file__).resolve().parents[2]
START = """
import sys
from lolat.cli.main import main
from lolat.web import server
server.END_S = 1
main(["serve", sys.argv[1], "--port", "0"])
"""
HALF = (
    b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nOrigin: http://127.0.0.1:%d\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 900\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.onnx"\r\n\r\nabc'
)
REPORT = (
    b"GET /report?name=keras:MobileNet&size=33&model=laptop HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"
)


class Running:
    """A server with a model of a laptop; its temporary files go to `temporary`."""

    def __init__(self, model: Path, temporary: Path) -> None:
        self.temporary = temporary
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", START, str(model)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(temporary.parent / "cache")},
            # It is ignored, and so by the child, where the tests run in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split(":")[3].split("/")[0])

    def client(self, request: bytes) -> socket.socket:
        """A client that has sent `request`, with the port wherever it is needed."""
        found = socket.create_connection(("127.0.0.1", self.port), 60)
        found.sendall(request % ((self.port,) * request.count(b"%d")))
        return found

    def page(self) -> str:
        """The first page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=60) as found:
            return str(found.read().decode())

    def reader(self) -> list[int]:
        """Its child."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(p) for task in tasks for p in (task / "children").read_text().split()]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@contextmanager
def running(model: Path, temporary: Path) -> Iterator[Running]:
    found = Running(model, temporary)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def answer(client: socket.socket) -> bytes:
    """All that a client gets until the server closes, b"" for nothing or a reset."""
    text = b""
    with client:
        try:
            while piece := client.recv(65536):
                text += piece
        except ConnectionResetError:
            pass
    return text


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "laptop.json"
    path.write_text(json.dumps(synthetic.document(name="laptop", device="a laptop")))
    return path


def test_what_is_no_request(laptop: Path, temporary: Path) -> None:
    requests = [
        b"\0" * 200_000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"9" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nOrigin: http://127.0.0.1:%d\r\n"
        b"Connection: close\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: 5\r\n\r\nhello",
    ]
    with running(laptop, temporary) as server:
        for request in requests:
            found = answer(server.client(request))
            assert not found or found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))
        Page(server.page())
        server.process.terminate()
        assert server.process.communicate(timeout=60)[1] == ""  # nothing was said of any client


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_requests_that_are_open(
    laptop: Path, temporary: Path, how: signal.Signals
) -> None:
    with running(laptop, temporary) as server:
        clients = [server.client(HALF), server.client(REPORT), server.client(b"")]
        server.page()
        server.process.send_signal(how)
        out, err = server.process.communicate(timeout=120)
        for client in clients:
            client.close()
    assert (out, err) == ("", "lolat: interrupted\n" if how == signal.SIGINT else "")
    assert server.process.returncode == (130 if how == signal.SIGINT else -how)
    wait_until(lambda: list(temporary.iterdir()) == [], 30, "the end of its files")


def test_nothing_is_left_of_one_that_is_killed(laptop: Path, temporary: Path) -> None:
    with running(laptop, temporary) as server:
        client = server.client(REPORT)
        wait_until(lambda: len(server.reader()) == 1, 120, "the start of the reader")
        (reader,) = server.reader()
        server.process.kill()
        wait_until(lambda: not is_running(reader), 30, "the reader's end")
        client.close()
    wait_until(lambda: list(temporary.iterdir()) == [], 30, "the end of its files")

"""The real server, in a process of its own: clients that keep it waiting, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.processes import is_running, wait_until
from tests.report.pages import Page

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
ROOT = Path(__file__).resolve().parents[2]
START = """
import sys
from pathlib import Path
from lolat.cli.main import main
from lolat.web import networks, server
child = networks.Child
networks.Child = lambda start, _, **options: child(start, "", **options)  # Keras is asked for nothing here
networks.Intake.__init__.__defaults__ = (1000, 5000, 64, float(sys.argv[2]), 1e6, 0, 0)
server.GRACE_S, server.MOST_CONNECTIONS, server.END_S = 2.0, 60, float(sys.argv[3])
main(["serve", sys.argv[1], "--port", "0"])
"""
HALF = (
    b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nOrigin: http://127.0.0.1:%d\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 900\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.onnx"\r\n\r\nabc'
)
HEADERS = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX-A: b"
REPORT = b"GET /report?name=timm:resnet18&model=laptop HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"


class Running:
    """A server with short limits; `end_s`: how long it lets requests finish when it ends; `sent_s`: how
    long a file may take to arrive.
    """

    def __init__(
        self, model: Path, temporary: Path, end_s: float = 0.5, sent_s: float = 600.0
    ) -> None:
        self.temporary = temporary
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", START, str(model), str(sent_s), str(end_s)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(temporary / "none")},
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

    def connections(self) -> int:
        """How many clients it has."""
        return len(self.files("socket:"))

    def files(self, kind: str) -> list[str]:
        """What it has open."""
        found = [os.readlink(p) for p in Path(f"/proc/{self.process.pid}/fd").iterdir()]
        return [name for name in found if name.startswith(kind)]

    def reader(self) -> list[int]:
        """Its child."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [
            int(p)
            for t in path.parent.parent.iterdir()
            for p in (t / "children").read_text().split()
        ]


@contextmanager
def running(model: Path, temporary: Path, *options: float) -> Iterator[Running]:
    found = Running(model, temporary, *options)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def answers(clients: Sequence[socket.socket]) -> list[bytes]:
    """All that each client gets until the server closes, b"" for nothing or a reset."""
    found = []
    for client in clients:
        text = b""
        with client:
            try:
                while piece := client.recv(65536):
                    text += piece
            except ConnectionResetError:
                pass
        found.append(text)
    return found


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import json

    from tests import synthetic

    path = tmp_path_factory.mktemp("models") / "laptop.json"
    path.write_text(json.dumps(synthetic.document(name="laptop", device="a laptop")))
    return path


@pytest.fixture(scope="module")
def server(laptop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(laptop, tmp_path_factory.mktemp("temporary"), 0.5, 1.0) as found:
        yield found
        found.process.terminate()
        assert found.process.communicate(timeout=60)[1] == ""  # nothing was said of any client


def test_clients_that_send_half_of_a_file(server: Running) -> None:
    """More than there are threads; they are told, the page is answered, nothing is left."""
    wait_until(lambda: len(server.reader()) == 1, 120, "the start of the reader")
    clients = [server.client(HALF) for _ in range(45)]
    Page(server.page())
    found = answers(clients)
    assert {a[:13] for a in found} == {b"HTTP/1.1 408 "}
    assert all(b"the file did not arrive" in a for a in found)
    wait_until(lambda: server.connections() < 10, 60, "the end of the connections")
    assert len(list(server.temporary.iterdir())) <= 1  # the reader's
    assert [f for f in server.files(str(server.temporary)) if "(deleted)" not in f] == []


@pytest.mark.parametrize(
    "request_",
    [HEADERS, b"", b"POST /none HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\na"],
    ids=["headers", "nothing", "a body that nobody asked for"],
)
def test_clients_that_never_finish(server: Running, request_: bytes) -> None:
    """More than there may be connections: those that wait longest make room."""
    clients = [server.client(request_) for _ in range(90)]
    Page(server.page())
    assert server.connections() <= 70
    assert all(not a or a.startswith(b"HTTP/1.1 403 ") for a in answers(clients))
    wait_until(lambda: server.connections() < 10, 60, "the end of the connections")


def test_a_byte_now_and_then_is_not_enough(server: Running) -> None:
    sent = 0
    with (
        server.client(HEADERS) as client,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        while sent < 600:
            sent += client.send(b"b")
            time.sleep(0.1)
    assert sent < 600


@pytest.mark.parametrize(
    "request_",
    [b"\0" * 200_000, b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"9" * 100_000 + b" HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
     b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nOrigin: http://127.0.0.1:%d\r\nConnection: close\r\n"
     b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 5\r\n\r\nhello"],
    ids=["NUL", "version", "length", "two hosts", "form"],
)  # fmt: skip
def test_what_is_no_request(server: Running, request_: bytes) -> None:
    (found,) = answers([server.client(request_)])
    assert not found or found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_what_is_open_at_the_end_gets_an_answer(
    laptop: Path, tmp_path: Path, how: signal.Signals
) -> None:
    with running(laptop, tmp_path) as server:
        clients = [server.client(HALF), server.client(REPORT), server.client(HEADERS)]
        clients.append(server.client(b""))
        server.page()
        server.process.send_signal(how)
        out, err = server.process.communicate(timeout=120)
        found = answers(clients)
    assert found[0][:13] == b"HTTP/1.1 503 "
    # A quick machine has read it in time.
    assert found[1][:13] in (b"HTTP/1.1 503 ", b"HTTP/1.1 200 ")
    assert found[2:] == [b"", b""]
    assert (out, err) == ("", "lolat: interrupted\n" if how == signal.SIGINT else "")
    assert server.process.returncode == (130 if how == signal.SIGINT else -how)
    assert list(tmp_path.iterdir()) == []


def test_who_interrupts_twice_does_not_wait(laptop: Path, tmp_path: Path) -> None:
    with running(laptop, tmp_path, 600.0, 600.0) as server:
        client = server.client(HALF)
        server.page()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.process.communicate(timeout=120) == ("", "")
        answers([client])
    assert server.process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_one_that_is_killed(laptop: Path, tmp_path: Path) -> None:
    with running(laptop, tmp_path) as server:
        client = server.client(REPORT)
        wait_until(lambda: len(server.reader()) == 1, 120, "the start of the reader")
        (reader,) = server.reader()
        server.process.kill()
        wait_until(lambda: not is_running(reader), 30, "the reader's end")
        answers([client])
    wait_until(lambda: list(tmp_path.iterdir()) == [], 30, "the end of its files")

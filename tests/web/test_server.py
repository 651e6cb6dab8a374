"""Who may ask the server, what its pages may load, and what is left when its process ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from lolat.web.server import create_app
from tests.processes import PATIENCE_S, is_running, wait_until
from tests.web.pages import ORIGIN, Site

ROOT = Path(__file__).resolve().parents[2]
START = """
import sys
from lolat.cli.main import main
from lolat.web import server
server.END_S = 1
main(["serve", sys.argv[1], "--port", "0"])
"""
HEAD = (
    b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nOrigin: http://127.0.0.1:%d\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n"
)
BODY = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.onnx"\r\n\r\nabc'
HALF = HEAD + b"Content-Length: 900\r\n\r\n" + BODY
END = b"\r\n--x--\r\n"
SENT = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY + END) + BODY + END


class Running:
    """A server with a model of a laptop; its temporary files go to `temporary`."""

    def __init__(self, model: Path, temporary: Path) -> None:
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

    def reader(self) -> list[int]:
        """Its child."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(p) for task in tasks for p in (task / "children").read_text().split()]


@contextmanager
def running(model: Path, temporary: Path) -> Iterator[Running]:
    found = Running(model, temporary)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_requests_that_are_open(
    laptop: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """While one client has sent half a file, one says nothing, and the network of one is being read."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with running(laptop, temporary) as server:
        clients = [server.client(HALF), server.client(SENT), server.client(b"")]
        wait_until(lambda: len(server.reader()) == 1, "the start of the reader")
        (reader,) = server.reader()
        assert [path.name for path in temporary.rglob("*.onnx")] == ["file.onnx"]
        server.process.send_signal(how)
        out, err = server.process.communicate(timeout=PATIENCE_S)
        for client in clients:
            client.close()
    assert (out, err) == ("", "lolat: interrupted\n" if how == signal.SIGINT else "")
    assert server.process.returncode == (130 if how == signal.SIGINT else -how)
    wait_until(lambda: not is_running(reader), "the reader's end")
    if how == signal.SIGINT:  # the others end a process before it deletes its files
        assert list(temporary.iterdir()) == []


# ---- Who may ask, and what a page may load: nothing from anywhere else.

WEB = ROOT / "lolat" / "web"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.1.7", ""])
def test_another_name_for_this_machine_is_refused(page: Site, host: str) -> None:
    assert page.client.get("/", headers={"host": host}).status_code == 400
    assert page.client.get("/", headers={"host": "localhost:8123"}).status_code == 200


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "http://127.0.0.1:81"])
def test_a_file_is_taken_from_the_page_alone(page: Site, origin: str | None) -> None:
    headers = {} if origin is None else {"origin": origin}
    file = {"file": ("x.onnx", b"\x08\x01")}
    assert page.client.post("/upload", headers=headers, files=file).status_code == 403
    assert page.reader.calls == []
    assert page.client.post("/upload", headers={"origin": ORIGIN}, files=file).status_code == 200


@pytest.mark.parametrize("path", ["/", "/report"])
def test_no_other_site_has_a_question_answered(page: Site, path: str) -> None:
    asked = f"{path}?network=Mine&model=laptop&only=laptop"
    for site in ("cross-site", "same-site"):
        assert page.client.get(asked, headers={"sec-fetch-site": site}).status_code == 403
    assert page.reader.calls == []
    assert page.client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    for site in ("none", "same-origin"):
        assert page.client.get(asked, headers={"sec-fetch-site": site}).status_code == 200
    assert page.reader.calls[0] == ("keras:Mine", ())


def test_a_fault_is_told_in_the_terminal(
    laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("what broke")

    monkeypatch.setattr("lolat.web.page.Pages.page", broken)
    with TestClient(create_app([laptop]), ORIGIN, raise_server_exceptions=False) as client:
        found = client.get("/")
    assert (found.status_code, "`lolat serve` says why" in found.text) == (500, True)
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "RuntimeError: what broke" in told


def test_no_page_loads_anything_from_elsewhere(page: Site) -> None:
    for path in ("/", "/report?only=laptop"):
        policy = page.client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
    for query in ("?", "?view=llm"):
        assert "unsafe" not in page.client.get("/" + query).headers["content-security-policy"]
        assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:", page.get(query))
    files = [p for p in WEB.rglob("*") if p.suffix in (".html", ".js", ".css", ".svg")]
    assert len(files) >= 6
    for file in files:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|@import|url\(|<iframe|<object", text), file

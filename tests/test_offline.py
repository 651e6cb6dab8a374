"""No test reaches another machine, not from a child process either; what is on this machine is reached."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Addresses that are kept for documents (RFC 5737, 3849) and a name that is (RFC 2606).
ATTEMPTS: list[Callable[[], object]] = [
    lambda: socket.create_connection(("192.0.2.1", 80), timeout=5),
    lambda: socket.create_connection(("2001:db8::1", 80), timeout=5),
    lambda: socket.create_connection(("example.org", 443), timeout=5),
    lambda: socket.gethostbyname("example.org"),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)),
    lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(("2001:db8::1", 53)),
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_another_machine_is_refused_at_once(attempt: Callable[[], object]) -> None:
    with pytest.raises(OSError, match="tests have no network"):
        attempt()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_this_machine_is_reached(family: int, tmp_path: Path) -> None:
    own = {socket.AF_INET: ("127.0.0.1", 0), socket.AF_INET6: ("::1", 0)}
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind(own.get(family, str(tmp_path / "socket")))
        server.listen()
        client.connect(server.getsockname())
        assert server.accept()


def test_a_child_process_is_refused_what_it_fetches() -> None:
    code = "import urllib.request as u; u.urlopen('http://192.0.2.1/', timeout=5)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Connection refused" in done.stderr or "unreachable" in done.stderr


@pytest.mark.skipif(not os.environ.get("LOLAT_OWN_NETWORK"), reason="only root on Linux can")
def test_a_child_process_sees_no_interface_but_the_loopback() -> None:
    lines = subprocess.run(["cat", "/proc/net/dev"], capture_output=True, text=True).stdout
    assert [line.split(":")[0].strip() for line in lines.splitlines() if ":" in line] == ["lo"]

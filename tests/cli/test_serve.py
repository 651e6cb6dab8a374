"""`lolat serve`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from tests import synthetic
from tests.cli.commands import ROOT, Command
from tests.processes import PATIENCE_S


def test_a_port_in_use(lolat: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = lolat.refused("serve", "--port", port)
    assert str(port) in said
    assert "--port" in said


def test_a_model_that_there_is_not(lolat: Command) -> None:
    assert "no such device" in lolat.refused("serve", "nothing-of-that-name")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_it_says_where_it_is_and_ends_quietly(tmp_path: Path) -> None:
    """By another signal, and with requests under way: tests/web/test_server.py."""
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    running = subprocess.Popen(
        [sys.executable, "-m", "lolat.cli.main", "serve", str(path), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        # It is ignored, and so by the child, where the tests run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert running.stdout is not None
        said = running.stdout.readline()
        address = re.fullmatch(r"LoLat: (http://127\.0\.0\.1:\d+/)   \(Ctrl-C ends it\)\n", said)
        assert address is not None, said
        with urllib.request.urlopen(address[1], timeout=PATIENCE_S) as page:
            assert b"desk" in page.read()
        asked = urllib.request.Request(address[1], headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(asked, timeout=PATIENCE_S)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
        running.wait()
    assert out == ""
    assert (running.returncode, err) == (130, "lolat: interrupted\n")

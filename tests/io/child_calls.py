"""What the children of these tests do: they misbehave in every way there is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from lolat.errors import DeviceError, MeasuringError
from lolat.io.process import Handler, limit_memory


def start(how: str = "") -> Handler:
    match how:
        case "refused":
            raise DeviceError("no gpu here: looked under the table")
        case "broken":
            raise RuntimeError("import broken")
        case "limited":
            limit_memory(2**28, on_top=True)
    return answer


def answer(request: Any) -> Any:
    match request:
        case "path":
            return sys.path
        case "environment":
            return {k: os.environ.get(k) for k in ("LOLAT_TEST", "TMPDIR")}
        case "sleep":
            time.sleep(600)
        case "busy in C":
            sum(range(10**13))
        case "abort":
            os.write(2, b"first\nFatal: the kernel is on fire\n")
            os.abort()
        case "exit":
            sys.exit(7)
        case "kill":
            os.kill(os.getpid(), 9)
        case "realtime signal":
            os.kill(os.getpid(), 36)
        case "print":
            print('{"answer": "from a network"}', flush=True)
            os.write(1, b'{"answer": "from below"}\n')
            subprocess.run(["echo", "from a child"], check=True)
        case "chatter":
            os.write(2, b"chatter\n" * 200_000)
        case "read":
            assert sys.stdin.read() == ""
            assert os.read(0, 10) == b""
        case "temporary":
            tempfile.NamedTemporaryFile(prefix="left_behind", delete=False).close()
        case "heir":  # a child that inherits every pipe and outlives its parent
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            os.kill(os.getpid(), 9)
        case "torn":
            pipes = [int(n) for n in os.listdir("/proc/self/fd") if _is_pipe(n)]
            os.write(max(pipes), b'{"answ')
            os.kill(os.getpid(), 9)
        case "memory":
            return len(bytes(2**30))
        case "lines":
            raise ValueError("first line\nsecond line")
        case "silent":
            raise ValueError
        case "known":
            raise MeasuringError("operation 'foo' is not built here")
    return request


def _is_pipe(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False

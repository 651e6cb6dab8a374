"""The handler of the tests' children: they misbehave in every way there is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from lolat.errors import DeviceError, MeasuringError
from lolat.io.process import Handler


def start(how: str = "") -> Handler:
    match how:
        case "refused":
            raise DeviceError("no gpu here: looked under the table")
        case "broken":
            raise RuntimeError("import broken")
    return answer


def answer(request: Any) -> Any:
    match request:
        case "path":
            return sys.path
        case "environment":
            return os.environ.get("LOLAT_TEST")
        case "sleep":
            os.write(2, b"sleeping\n")
            time.sleep(600)
        case "abort":
            os.write(2, b"first\nFatal: the kernel is on fire\n")
            os.abort()
        case "exit":
            sys.exit(7)
        case "kill":
            os.kill(os.getpid(), 9)
        case "print":
            print('{"answer": "from a network"}', flush=True)
            os.write(1, b'{"answer": "from below"}\n')
            subprocess.run(["echo", "from a child"], check=True)
        case "chatter":
            os.write(2, b"chatter\n" * 200_000)
        case "read":
            assert sys.stdin.read() == ""
            assert os.read(0, 10) == b""
        case "torn":
            pipes = [int(n) for n in os.listdir("/proc/self/fd") if _is_pipe(n)]
            os.write(max(pipes), b'{"answ')
            os.kill(os.getpid(), 9)
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

"""A backend without a framework, for a real worker process that misbehaves in every way there is.

A network is written as what shall happen when it is prepared, such as `sleep` or `abort`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import microbench.worker
from lolat.errors import DeviceError, MeasuringError
from microbench.backends import Prepared

GREETING = "import broken"
# What else runs on the machine of the tests is none of theirs.
microbench.worker.others_s = lambda pids: None  # type: ignore[assignment]


class Fake:
    name = "fake"

    def __init__(self, device: str) -> None:
        if device == "gpu":
            raise DeviceError("no gpu here: looked under the table")
        if device == "broken":
            raise RuntimeError(GREETING)
        # As it was when threads of a framework would have been started.
        self.nice = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0

    def environment(self) -> dict[str, Any]:
        return {
            "framework": "fake",
            "cwd_on_path": "" in sys.path,
            "ints": list(range(100_000)),
            "nice": self.nice,
        }

    def available_bytes(self) -> int | None:
        return 12345

    def prepare_graph(self, graph: Any, batch_size: int) -> Prepared:
        return Prepared(lambda: None)

    def prepare_network(self, spec: str, input_size: tuple[int, ...], batch_size: int) -> Prepared:
        match spec:
            case "sleep":
                time.sleep(600)
            case "abort":
                os.write(2, b"Fatal: the kernel is on fire\n")
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
                answers = max(int(n) for n in os.listdir("/proc/self/fd") if _is_pipe(n))
                os.write(answers, b'{"estimate_')
                os.kill(os.getpid(), 9)
            case "memory":
                raise MemoryError
            case "lines":
                raise ValueError("first line\nsecond line")
            case "silent":
                raise ValueError
            case "known":
                raise MeasuringError("operation 'foo' is not built here")
        return Prepared(lambda: None)


def _is_pipe(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False

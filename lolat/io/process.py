"""Child processes that answer requests of their parent.

The parent starts `Child("package.module:function", ...)`. The child calls this function, which sets up the
child and returns a handler of requests. Requests and answers are lines of JSON on separate pipes, so that
prints of a network's code do no harm. If a child dies (out of memory, a crash in a kernel), its parent goes
on; if the parent dies, the child ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from lolat import errors
from lolat.errors import LolatError

Handler = Callable[[Any], Any]
"""A function that answers a request in the child; request and answer are JSON data."""

START_LIMIT_S = 180.0
ENDING_S = 5.0
"""Seconds that a child gets to exit after its pipes are closed; frameworks take long to shut down."""
LAST_LINES_BYTES = 4096

# The child imports from where its parent does; -P, so that no file of the working directory does harm.
START_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from lolat.io.process import serve; serve()"
)


class ProcessDied(Exception):
    """The child died, or was killed because its answer was late; the message says which."""


class RequestFailed(Exception):
    """The child is alive, but a request failed; the message says why."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        """`answer`: the exception as `errors.to_dict` returns it."""
        super().__init__(errors.worded(answer["error"]))
        self.answer = answer

    def as_error(self, otherwise: type[LolatError]) -> LolatError:
        """The LolatError that was raised in the child; an `otherwise` error for any other exception."""
        return errors.from_dict(self.answer, otherwise)


# ---- The parent's side


class Child:
    """One child process, ended with its context. Any thread may close it; one at a time may request."""

    def __init__(
        self, start: str, *arguments: str, name: str = "the process",
        environment: Mapping[str, str] | None = None, shows_errors: bool = False,
    ) -> None:  # fmt: skip
        """Start a process that calls `start`, `package.module:function`, with `arguments`; see `ready`.

        `name`: its name in messages. `environment`: further environment variables. `shows_errors`: True if
        its stderr and stdout go to this process's stderr; otherwise error messages quote its last line.
        """
        self.name = name
        self._errors: IO[bytes] | None = None
        if not shows_errors:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        path = json.dumps([p for p in sys.path if isinstance(p, str)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START_CODE, path, start, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8",
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # a signal to the terminal's group is the parent's to handle
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._is_ready = False
        self._ending = threading.Lock()
        """Held while waiting for the exit: afterwards another process may get this id or process group."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """True while the process lives."""
        with self._ending:
            return self._process.poll() is None

    def ready(self) -> None:
        """Wait until the child is ready. Raises ProcessDied, or RequestFailed with its error."""
        if not self._is_ready:
            self._exchange("", START_LIMIT_S)
            self._is_ready = True

    def request(self, document: Any, limit_s: float) -> Any:
        """Return the handler's answer. Raises RequestFailed, and ProcessDied, also after `limit_s`."""
        self.ready()
        return self._exchange(json.dumps(document) + "\n", limit_s)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        with contextlib.suppress(OSError):  # what was still buffered for a dead process
            self._requests.close()
        self._kill()
        self._answers.close()
        if self._errors is not None:
            self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _exchange(self, line: str, limit_s: float) -> Any:
        """Write one line and read one line; kill the child after `limit_s`."""
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self._kill()

        timer = threading.Timer(limit_s, end)
        timer.daemon = True
        timer.start()
        try:
            self._requests.write(line)
            self._requests.flush()
            answer = json.loads(self._answers.readline())
        except (OSError, ValueError):  # nothing, half a line of a dying process, or closed
            if is_late.is_set():
                timer.join()  # the pipe closes a moment before the process is gone
                how = f"gave no answer within {limit_s:g} s"
            else:
                how = self._end()
            raise ProcessDied(f"{self.name} {how}") from None
        finally:
            timer.cancel()
        if "error" in answer:
            raise RequestFailed(answer)
        return answer["answer"]

    def _kill(self) -> None:
        with self._ending:
            if self._process.returncode is None and hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()

    def _end(self) -> str:
        """End the process; return a text on how it ended, with its last line of output."""
        try:
            with self._ending:
                code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return "stopped answering"
        how = f"exited with code {code}"
        if code < 0:
            name = {s.value: s.name for s in signal.Signals}.get(-code, str(-code))
            how = f"was ended by signal {name}"
            if name == "SIGKILL":
                how = "was killed (often: the system ran out of memory)"
        lines: list[str] = []
        with contextlib.suppress(ValueError):  # closed meanwhile
            if self._errors is not None:
                self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_LINES_BYTES))
                lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return how + (f": {lines[-1][:200]}" if lines else "")


def scheduled_count() -> int:
    """Number of processors that this process may use: the default threads of TensorFlow and PyTorch."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- The child's side


def serve() -> None:
    """Set up the child by the function on the command line, then answer requests until the pipe closes."""
    start, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    incoming = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        with contextlib.suppress(ValueError):  # half a line of a parent that died
            for line in incoming:
                requests.put(json.loads(line))
        os._exit(0)  # the parent is gone, or done with us

    def answer(function: Handler, request: Any) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: `listen` ends this process
            answers.write(json.dumps(_answer(function, request)) + "\n")
            answers.flush()

    handlers: list[Handler] = []

    def make_ready(_: Any) -> None:
        handlers.append(pkgutil.resolve_name(start)(*arguments))

    threading.Thread(target=listen, daemon=True).start()
    answer(make_ready, None)
    while handlers:
        answer(handlers[0], requests.get())


def _answer(handler: Handler, request: Any) -> dict[str, Any]:
    """The answer to a request, or the exception, as a dict."""
    try:
        return {"answer": handler(request)}
    except MemoryError:
        return {"error": "not enough memory", "kind": "MemoryError"}
    except LolatError as error:
        return errors.to_dict(error)
    except Exception as error:
        kind, lines = type(error).__name__, str(error).strip().splitlines() or [""]
        return {"error": f"{kind}: {lines[0][:300]}", "kind": kind}

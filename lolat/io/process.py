"""A process that answers another one: the one protocol of all child processes.

The parent starts `Child("package.module:function", ...)`. In the child that function makes ready and gives
the handler of requests. Requests and answers are lines of JSON on pipes of their own, so that nothing that
a network's code prints or reads comes between them. A child may die (out of memory, a crash in a kernel)
without taking its parent along, and ends within seconds when its parent does, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pkgutil
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from lolat import errors
from lolat.errors import LolatError

Handler = Callable[[Any], Any]
"""What a child does for a request; request and answer are of what JSON has."""

START_LIMIT_S = 180.0
LOOK_S = 1.0
"""Between looks at whether a child still lives."""
ENDING_S = 5.0
"""For a child that closed its answers to end: frameworks take long to go, on a busy machine longer."""
ALONE_S = 2.0
"""What a child without a parent has to tidy up."""
LAST_WORDS_BYTES = 4096


class ProcessDied(Exception):
    """The child ended, or was ended as it did not answer in time; the message says how."""


class RequestFailed(Exception):
    """The child lives, but could not do it; the message says why."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        """`said`: the exception as `errors.sent` has it."""
        super().__init__(errors.worded(said["error"]))
        self.said = said

    @property
    def kind(self) -> str:
        """The name of the exception."""
        return str(self.said["kind"])

    def as_error(self, otherwise: type[LolatError]) -> LolatError:
        """The same error of LoLat that it was in the child; `otherwise` for any other exception."""
        return errors.received(self.said, otherwise)


# ---- The parent's side

# The child imports from where its parent does; -P, so that no file of the working directory does harm.
START_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from lolat.io.process import serve; serve()"
)
_is_starting = False  # of this process, where it is a child itself


class Child:
    """One child process; leaving the context ends it. Any thread may close it, one at a time may ask it."""

    def __init__(
        self,
        start: str,
        *arguments: str,
        name: str = "the process",
        environment: Mapping[str, str] | None = None,
        shows_errors: bool = False,
    ) -> None:
        """Start a process that calls `start`, `package.module:function`, with `arguments`; see `ready`.

        `name`: what messages call it. Its temporary files are in a folder of its own, which goes with it.
        `environment`: variables that it has besides.
        `shows_errors`: what it writes to stderr (or stdout) is not kept for messages but goes to ours.
        """
        if _is_starting:
            raise LolatError("a process that is being started itself starts no others")
        self.name = name
        self.folder = tempfile.mkdtemp(prefix="lolat-")  # frameworks leave files when ended
        self._errors: IO[bytes] | None = None
        if not shows_errors:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        path = json.dumps([p for p in sys.path if isinstance(p, str)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", START_CODE, path, self.folder, start, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env={**os.environ, **(environment or {}), "TMPDIR": self.folder},
            start_new_session=True,  # a signal to the terminal's group is the parent's to handle
        )
        self._is_ready = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def ready(self, limit_s: float = START_LIMIT_S) -> None:
        """Wait until the child has made ready. ProcessDied, or RequestFailed with what it raised."""
        if not self._is_ready:
            self._exchange("", limit_s)
            self._is_ready = True

    def request(self, document: Any, limit_s: float) -> Any:
        """What the handler answers. ProcessDied, RequestFailed; after `limit_s` the child is ended."""
        self.ready()
        return self._exchange(json.dumps(document) + "\n", limit_s)

    def close(self) -> None:
        """End the process, whatever it is doing: it ends itself, and tidies up, when its input ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # what was still buffered for a dead process
            self._process.stdin.close()
        try:
            self._process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._process.stdout.close()
        if self._errors is not None:
            self._errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # it had no time to tidy up

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _exchange(self, line: str, limit_s: float) -> Any:
        """Write a line, read one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        done, late = threading.Event(), threading.Event()

        def watch() -> None:
            """End the child when its time is over, and what it started and left with its pipes."""
            end = time.monotonic() + limit_s
            while not done.wait(max(0.0, min(LOOK_S, end - time.monotonic()))):
                if time.monotonic() >= end:
                    late.set()
                if late.is_set() or not self.is_running():
                    self._kill()
                    return

        threading.Thread(target=watch, daemon=True).start()
        said = ""
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            said = self._process.stdout.readline()
            answer = json.loads(said)
            whole = isinstance(answer, dict) and ("answer" in answer or "kind" in answer)
            if not whole:
                raise ValueError
        except (OSError, ValueError, RecursionError):
            # Nothing, what a dying process got out, what its code wrote to the pipe, or closed meanwhile.
            how = self._end(LOOK_S if said else ENDING_S)
            if late.is_set():
                how = f"gave no answer within {limit_s:g} s"
            raise ProcessDied(f"{self.name} {how}") from None
        finally:
            done.set()
        if "error" in answer:
            raise RequestFailed(answer)
        return answer["answer"]

    def _kill(self) -> None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def _end(self, limit_s: float) -> str:
        """How the process ended, with the last thing that it said; after `limit_s` it is ended."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._kill()
            return "stopped answering"
        how = f"exited with code {code}"
        if code < 0:
            name = {s.value: s.name for s in signal.Signals}.get(-code, str(-code))
            how = f"was ended by signal {name}"
            if name == "SIGKILL":
                how = "was killed (often: the system ran out of memory)"
        said: list[str] = []
        with contextlib.suppress(ValueError):  # closed meanwhile
            if self._errors is not None:
                self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
                said = self._errors.read().decode(errors="replace").strip().splitlines()
        return how + (f": {said[-1][:200]}" if said else "")


# ---- The child's side


def serve() -> None:
    """Make ready as the command line says, then answer requests until the parent closes the pipe."""
    global _is_starting
    folder, start, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    watcher = _watched(folder)
    incoming = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            for line in incoming:
                requests.put(json.loads(line))
        finally:  # the parent is gone, or done with us; something may be under way
            end = time.monotonic() + ALONE_S / 2  # what is under way may put a file there meanwhile
            while os.path.exists(folder) and time.monotonic() < end:
                shutil.rmtree(folder, ignore_errors=True)
            _dismiss(watcher)
            os._exit(0)

    def answer(function: Handler, request: Any) -> None:
        line = json.dumps(_answer(function, request)) + "\n"
        try:
            answers.write(line)
            answers.flush()
        except OSError:  # nobody reads it: `listen` ends this process, but has to tidy up first
            listener.join()

    handlers: list[Handler] = []

    def make_ready(_: Any) -> None:
        handlers.append(pkgutil.resolve_name(start)(*arguments))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    _is_starting = True
    answer(make_ready, None)
    _is_starting = False
    if not handlers:
        _dismiss(watcher)
        return
    (handler,) = handlers
    while True:
        answer(handler, requests.get())


def _watched(folder: str) -> int:
    """Start a process that ends this one, and removes its files, when the parent is gone: no thread of ours
    does where a framework is busy in C. Until then it sleeps. Its id; 0 where there is no such thing.

    To be called before there are threads.
    """
    if not hasattr(os, "fork"):
        return 0
    ours, life = os.pipe()  # the end that is written to is ours alone, and closed when we end
    me, watcher = os.getpid(), os.fork()
    if watcher:
        os.close(ours)
        return watcher
    try:
        for other in (life, 1, 2):  # else nobody would see that we have closed them
            os.close(other)
        ends = select.poll()
        for end in (0, ours):
            ends.register(end, 0)  # for nothing but that the other side is closed
        if 0 in dict(ends.poll()):
            ends.unregister(0)
            if not ends.poll(1000 * ALONE_S):
                os.kill(me, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _dismiss(watcher: int) -> None:
    """End the process of `_watched`, and leave nothing of it to whoever collects orphans."""
    if watcher:
        with contextlib.suppress(OSError):
            os.kill(watcher, signal.SIGKILL)
            os.waitpid(watcher, 0)


def _answer(handler: Handler, request: Any) -> dict[str, Any]:
    """The answer to a request, or the error in one line."""
    try:
        return {"answer": handler(request)}
    except MemoryError:
        return {"error": "not enough memory", "kind": "MemoryError"}
    except LolatError as error:
        return errors.sent(error)
    except Exception as error:
        kind, lines = type(error).__name__, str(error).strip().splitlines() or [""]
        return {"error": f"{kind}: {lines[0][:300]}", "kind": kind}


@contextlib.contextmanager
def ends_by_itself(limit_s: float) -> Iterator[None]:
    """End this process after `limit_s` in here, even where it is busy in C and no thread of Python runs.

    For code that may be so when the parent dies, which is then not seen; it takes a thread.
    """
    with open(os.devnull, "w", encoding="ascii") as nowhere:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def limit_memory(size_bytes: int, on_top: bool = False) -> None:
    """Let this process have at most `size_bytes` of data, where the system has such a limit.

    `on_top`: of what it has already. What would need more gets a MemoryError.
    """
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        if on_top:
            with open("/proc/self/statm", encoding="ascii") as file:
                size_bytes += int(file.read().split()[5]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

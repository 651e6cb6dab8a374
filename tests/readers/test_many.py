"""Many networks read at once: equal to reading each, and what goes wrong costs one network alone."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat import readers
from lolat.errors import InputError, LolatError, NetworkError
from lolat.readers import many
from lolat.readers.cache import Cache
from lolat.readers.many import arrays_of
from tests.processes import is_running, wait_until
from tests.readers.onnx_networks import model, node, saved

ROOT = Path(__file__).parents[2]
NAME = "lolat_many_nets"
FILES = [(f"{name}.onnx", 8) for name in "abcd"]
# Says torch, and so spares its networks the import of Keras.
MODULE = '''
"""Networks of torch that do harm, and arrays."""
import ctypes, os, signal, sys, time
from pathlib import Path
import numpy as np

LOG = Path(__file__).with_name("log")

def log(text):
    with open(LOG, "a") as file:
        file.write(f"{text}\\n")

def sleeps():
    log(os.getpid())
    time.sleep(100)

def swallows():
    while True:
        try:
            time.sleep(100)
        except Exception:
            pass

def callback():
    class Loud:
        def __del__(self):
            time.sleep(3)  # what is raised in here is only printed
    Loud()
    time.sleep(100)

def stuck():
    """As code in C that neither lets go of Python nor looks at signals; but it takes no processor."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT})
    ctypes.PyDLL(None).sleep(1000)

def dies():
    os._exit(0)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def hungry():
    return np.ones(2**28)

def leaves():
    raise SystemExit(0)

def good():
    import torch
    print("building")
    return torch.nn.Linear(3, 4)

def sizes(graph):
    log(graph.name)
    return np.array([t.elements() for t in graph.tensors])

def slowly(graph):
    if graph.name != "a":
        log(os.getpid())
        time.sleep(100)
    return sizes(graph)

def forever(graph):
    log(os.getpid())
    stuck()

def process(graph):
    return np.array([os.getpid()])

def threads(graph):
    os.write(1, b"noise")
    torch = sys.modules.get("torch")  # where the network is of PyTorch
    return np.array([torch.get_num_threads() if torch else 1, int(os.environ["OMP_NUM_THREADS"])])

def wrong(graph):
    raise KeyError("wrong")

def unknown(graph):
    from lolat.errors import NetworkError
    raise NetworkError(f"{graph.name} has no such thing")
'''
SCRIPT = """
import os, signal, sys
from pathlib import Path
import lolat_many_nets as nets
from lolat.readers.cache import Cache
from lolat.readers.many import arrays_of

def main(function):
    specs = [(f"{name}.onnx", 8) for name in "abcd"]
    for asked, found in arrays_of(specs, "sizes", function, Cache(Path("cache")), processes=2):
        nets.log("first")
        "kill" in sys.argv and os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    try:
        main(getattr(nets, sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module and four networks, a.onnx to d.onnx, of one to four channels."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    for i, name in enumerate("abcd", start=1):
        nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node("Relu", "h", "y")]
        open_size = ("N", 3, "H", "W")
        saved(tmp_path, model(nodes, open_size, w=(i, 3, 3, 3)), f"{name}.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(NAME, None)


@pytest.fixture
def kept(here: Path) -> Cache:
    return Cache(here / "cache")


@pytest.fixture
def nets(here: Path) -> Any:
    return importlib.import_module(NAME)


def logged(here: Path) -> list[str]:
    return (here / "log").read_text().split() if (here / "log").exists() else []


def pids(here: Path) -> list[int]:
    """Of the processes, which they have logged."""
    return [int(word) for word in logged(here) if word.isdigit()]


def are_gone(here: Path) -> None:
    wait_until(lambda: not any(map(is_running, pids(here))), 10, "the end of the processes")


def direct(spec: str, size: Any = None) -> np.ndarray:
    return np.array([t.elements() for t in readers.read(spec, size).tensors])


def errors(found: dict[Any, Any]) -> dict[str, str]:
    return {spec: str(e) for (spec, _), e in found.items() if isinstance(e, LolatError)}


def all_read(found: dict[Any, Any]) -> bool:
    """Whether the files' arrays are all there, and what else is not is an error of a network."""
    others = [found[a] for a in found if a not in FILES]
    read = all(np.array_equal(found[a], direct(*a)) for a in FILES)
    return read and all(isinstance(error, NetworkError) for error in others)


@contextlib.contextmanager
def no_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    with monkeypatch.context() as patch:
        patch.setattr(many, "Child", refuse)
        yield


def test_arrays_are_those_of_each_network(
    kept: Cache, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, int, str]] = []
    asked, say = [*FILES, ("a.onnx", 16), FILES[0]], lambda *words: said.append(words)
    found = list(arrays_of(asked, "sizes", nets.sizes, kept, processes=2, said=say))
    assert len(found) == 5  # each once
    assert {a for a, _ in found} == set(asked)
    for (spec, size), array in found:
        assert np.array_equal(array, direct(spec, size)), (spec, size)
        assert kept.graph(spec, size) == readers.read(spec, size)
        assert np.array_equal(kept.array(spec, size, "sizes"), array)
    assert said == [(i, 5, spec) for i, ((spec, _), _) in enumerate(found, start=1)]
    with no_processes(monkeypatch):
        again = dict(arrays_of(asked, "sizes", nets.wrong, kept, processes=2))
    assert {a: v.tolist() for a, v in again.items()} == {a: v.tolist() for a, v in found}


def test_what_is_kept_comes_first_and_is_not_read_again(
    kept: Cache, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(arrays_of(FILES[2:], "sizes", nets.sizes, kept, processes=1))
    with no_processes(monkeypatch):
        found = arrays_of(FILES, "sizes", nets.sizes, kept, processes=2)
        assert [next(found)[0], next(found)[0]] == FILES[2:]
        with pytest.raises(AssertionError, match="a process was started"):
            next(found)
    monkeypatch.setattr(many, "read_now", None)
    others = dict(arrays_of(FILES[2:], "process", nets.process, kept, processes=1))
    assert {int(v[0]) for v in others.values()} == {os.getpid()}


def test_one_network_is_read_here(kept: Cache, nets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_processes(monkeypatch):
        ((spec, found),) = arrays_of(FILES[:1], "process", nets.process, kept, processes=8)
        assert (spec, found.tolist()) == (FILES[0], [os.getpid()])
        assert list(arrays_of([], "process", nets.process, kept)) == []


def test_what_cannot_be_read_costs_itself_alone(kept: Cache, nets: Any) -> None:
    bad = [("gone.onnx", None), ("a.onnx", "big"), (f"{NAME}:none", None), (f"{NAME}:leaves", 3)]
    found, here = (
        dict(arrays_of([*FILES, *bad], "sizes", nets.sizes, kept, processes=n)) for n in (2, 1)
    )
    assert set(found) == set(here) == {*FILES, *bad}
    assert errors(found) == errors(here)
    assert "no file 'gone.onnx'" in errors(found)["gone.onnx"]
    assert "input size 'big'" in errors(found)["a.onnx"]
    assert f"module '{NAME}' has no 'none'" in errors(found)[f"{NAME}:none"]
    assert "SystemExit" in errors(found)[f"{NAME}:leaves"]
    for answers in (found, here):
        assert {type(answers[a]) for a in bad} == {NetworkError, InputError}
        assert all(answers[a].__traceback__ is None for a in bad[2:])
        assert all(np.array_equal(answers[a], direct(*a)) for a in FILES)


NO_MEMORY = "needs more than the memory that there is to read; it was left out"


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (KeyError("x"), "cannot be read (KeyError: 'x')"),
        (RecursionError("deep"), "is nested too deeply to be read"),
        (MemoryError(), NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), NO_MEMORY),
    ],
)
def test_what_no_framework_has_foreseen(
    kept: Cache, nets: Any, monkeypatch: pytest.MonkeyPatch, raised: Exception, words: str
) -> None:
    def read(*_: object) -> None:
        raise raised

    monkeypatch.setattr(many, "read_now", read)
    ((_, found),) = arrays_of(FILES[:1], "sizes", nets.sizes, kept)
    assert (type(found), str(found)) == (NetworkError, f"a.onnx {words}")


# ---- Limits of time and memory


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is swallowed
@pytest.mark.parametrize(
    ("names", "count"),  # the last cannot be interrupted
    [("sleeps swallows callback", 1), ("sleeps swallows callback", 2), ("stuck", 2)],
)
def test_too_long(
    kept: Cache, nets: Any, names: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "GRACE_S", 2.0)
    asked = [(f"{NAME}:{n}", None) for n in names.split()]
    every, said = [*asked, *FILES], "took longer than 1.5 s to read; it was left out"
    found = dict(arrays_of(every, "sizes", nets.sizes, kept, processes=count, limit_s=1.5))
    assert errors(found) == {spec: f"{spec} {said}" for spec, _ in asked}
    assert all_read(found)


def test_an_array_that_takes_too_long_leaves_the_graph(kept: Cache, nets: Any) -> None:
    found = dict(arrays_of(FILES[:2], "slow", nets.slowly, kept, processes=1, limit_s=1))
    assert "took longer than 1 s" in errors(found)["b.onnx"]
    assert kept.graph("b.onnx", 8) == readers.read("b.onnx", 8)
    assert kept.array("b.onnx", 8, "slow") is None


def test_the_time_of_somebody_else_goes_on(kept: Cache, nets: Any) -> None:
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 50.0)
    mine = signal.getsignal(signal.SIGALRM)
    try:
        list(arrays_of(FILES, "sizes", nets.sizes, kept, processes=1, limit_s=1))
        assert 1 < signal.getitimer(signal.ITIMER_REAL)[0] < 50
        assert signal.getsignal(signal.SIGALRM) is mine
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        list(arrays_of([(f"{NAME}:sleeps", None)], "sizes", nets.sizes, kept, limit_s=1))
        time.sleep(0.2)
        assert rung == [1]  # late, but it rings
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def test_another_thread_reads_without_a_limit(kept: Cache, nets: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: dict(arrays_of(FILES, "a", nets.sizes, kept, processes=1)))
    assert all_read(found.result())


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of data is Linux's")
def test_too_much_memory(kept: Cache, nets: Any) -> None:
    hungry = f"{NAME}:hungry"
    asked = [(hungry, None), *FILES]
    found = dict(arrays_of(asked, "sizes", nets.sizes, kept, processes=2, memory_gib=1))
    said = f"{hungry} needs more than 1 GiB of memory to read; it was left out"
    assert errors(found) == {hungry: said}


# ---- Processes


def test_a_process_that_dies_costs_its_network_alone(kept: Cache, nets: Any) -> None:
    dead = [(f"{NAME}:{n}", None) for n in ("dies", "killed")]
    asked = [dead[0], *FILES, dead[1]]
    found = dict(arrays_of(asked, "sizes", nets.sizes, kept, processes=2, memory_gib=2.5))
    for spec, _ in dead:
        assert f"{spec} ended the process that read it" in errors(found)[spec]
        assert "2.5 GiB of memory" in errors(found)[spec]
    assert all_read(found)


def test_one_that_dies_between_two_networks_is_replaced(
    kept: Cache, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(many.Child):
        def request(self, document: Any, limit_s: float) -> Any:
            answer = super().request(document, limit_s)
            os.kill(self.pid, signal.SIGKILL)
            wait_until(lambda: not self.is_running(), 10, "its end")
            return answer

    monkeypatch.setattr(many, "Child", Dying)
    found = dict(arrays_of(FILES, "process", nets.process, kept, processes=2))
    assert len({int(array[0]) for array in found.values()}) == 4


def test_processes_are_renewed(
    kept: Cache, nets: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "RENEWED", 2)
    asked = [(f"{name}.onnx", size) for name in "abcd" for size in (8, 16)]
    found = [int(a[0]) for _, a in arrays_of(asked, "process", nets.process, kept, processes=2)]
    assert max(found.count(pid) for pid in found) <= 2
    assert os.getpid() not in found
    (here / "log").write_text("\n".join(map(str, found)))
    are_gone(here)


def test_one_thread_and_a_quiet_stdout(
    kept: Cache, nets: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    asked = [(f"{NAME}:good", 3), FILES[0]]
    found = dict(arrays_of(asked, "threads", nets.threads, kept, processes=2))
    assert [found[a].tolist() for a in asked] == [[1, 1], [1, 1]]
    assert "OMP_NUM_THREADS" not in os.environ
    said = capfd.readouterr()
    assert said.out == ""
    assert "building" in said.err
    assert "noise" in said.err


def test_code_is_not_kept_and_remarks_come_back_from_the_processes(
    kept: Cache, here: Path, nets: Any
) -> None:
    for _ in range(2):
        list(arrays_of([(f"{NAME}:good", 3)], "sizes", nets.sizes, kept))
    assert logged(here) == ["good", "good"]
    (here / "file").write_text("")
    kept = Cache(here / "file" / "cache")
    found = dict(arrays_of(FILES, "sizes", nets.sizes, kept, processes=2))
    assert all_read(found)
    assert len(kept.remarks) == 1
    assert "networks that were read are not kept" in kept.remarks[0]


@pytest.mark.parametrize("processes", [1, 2])
def test_what_the_function_raises(kept: Cache, nets: Any, processes: int) -> None:
    with pytest.raises(KeyError, match="wrong"):
        list(arrays_of(FILES, "sizes", nets.wrong, kept, processes=processes))
    found = dict(arrays_of(FILES, "sizes", nets.unknown, kept, processes=processes))
    assert errors(found) == {f"{n}.onnx": f"{n} has no such thing" for n in "abcd"}


@pytest.mark.parametrize(("cpus", "processes"), [(3, 3), (100, 8)])
def test_as_many_processes_as_there_are_processors(
    monkeypatch: pytest.MonkeyPatch, cpus: int, processes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)), raising=False)
    assert many.default_processes() == processes


@contextlib.contextmanager
def started(here: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process and those that it starts; none is left."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    own = {"cwd": here, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "start_new_session": True}
    process = subprocess.Popen([sys.executable, *words], **pipes, **own)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_run_that_is_killed_goes_on_where_it_was(kept: Cache, nets: Any, here: Path) -> None:
    with started(here, "script.py", "slowly", "kill") as process:
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        are_gone(here)  # they end with their parent
    (here / "log").unlink()
    assert all_read(dict(arrays_of(FILES, "sizes", nets.sizes, kept, processes=2)))
    assert sorted(logged(here)) == ["b", "c", "d"]  # not a, which was made before


@pytest.mark.parametrize(
    ("function", "kill"),
    [("slowly", os.killpg), ("slowly", os.kill), ("forever", os.killpg)],  # kill: the parent alone
)
def test_ctrl_c_ends_all_processes(
    here: Path, function: str, kill: Callable[[int, int], None]
) -> None:
    with started(here, "script.py", function) as process:
        wait_until(lambda: len(pids(here)) >= 2, 60, "two processes")
        kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")  # they would sleep for longer
        assert process.returncode == 130
        are_gone(here)


def test_whoever_stops_asking_leaves_no_process(kept: Cache, nets: Any, here: Path) -> None:
    found = arrays_of(FILES, "sizes", nets.slowly, kept, processes=2)
    next(found)
    wait_until(lambda: len(pids(here)) >= 2, 60, "two processes")
    found.close()
    are_gone(here)

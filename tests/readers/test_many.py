"""Many networks read at once: equal to reading each, and what goes wrong costs one network alone."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat import readers
from lolat.errors import InputError, LolatError, NetworkError
from lolat.readers import many
from lolat.readers import many as many_worker
from lolat.readers.cache import Kept
from lolat.readers.many import arrays_of
from tests.readers.onnx_networks import model, node, saved

ROOT = Path(__file__).parents[2]
NAME = "lolat_many_nets"
# Says torch, and so spares its networks the import of Keras.
MODULE = '''
"""Networks of torch that do harm, and arrays."""
import os, signal, sys, time
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
    sum(range(10**13))

def dies():
    os._exit(0)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def hungry():
    return np.ones(2**28)

def leaves():
    import torch
    class Leaves(torch.nn.Module):
        def forward(self, x):
            raise SystemExit(0)
    return Leaves()

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
    import torch
    os.write(1, b"noise")
    return np.array([torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])])

def wrong(graph):
    raise KeyError("wrong")

def unknown(graph):
    from lolat.errors import NetworkError
    raise NetworkError(f"{graph.name} has no such thing")
'''
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import lolat_many_nets as nets
from lolat.readers.cache import Kept
from lolat.readers.many import arrays_of

def main():
    specs = [(f"{name}.onnx", 8) for name in "abcd"]
    for asked, found in arrays_of(specs, "sizes", getattr(nets, sys.argv[1]), Kept(Path("cache")),
                                  processes=2):
        nets.log("first")
        "kill" in sys.argv and os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__mp_main__" and "boot" in sys.argv:
    nets.log(os.getpid())
    time.sleep(1)
if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the module and four networks, a.onnx to d.onnx, of one to four channels."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    for i, name in enumerate("abcd", start=1):
        nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node("Relu", "h", "y")]
        open_size = ("N", 3, "H", "W")
        saved(tmp_path, model(nodes, open_size, w=(i, 3, 3, 3)), f"{name}.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(NAME, None)


@pytest.fixture
def kept(here: Path) -> Kept:
    return Kept(here / "cache")


@pytest.fixture
def nets(here: Path) -> Any:
    return importlib.import_module(NAME)


FILES = [(f"{name}.onnx", 8) for name in "abcd"]


def logged(here: Path) -> list[str]:
    return (here / "log").read_text().split() if (here / "log").exists() else []


def direct(spec: str, size: Any = None) -> np.ndarray:
    return np.array([t.elements() for t in readers.read(spec, size).tensors])


def errors(found: dict[Any, Any]) -> dict[str, str]:
    return {spec: str(e) for (spec, _), e in found.items() if isinstance(e, LolatError)}


def alive(pid: int) -> bool:
    """Whether a process is there, and not only waiting to be asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition: Callable[[], Any], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextlib.contextmanager
def no_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    with monkeypatch.context() as patch:
        patch.setattr(many, "ProcessPoolExecutor", refuse)
        yield


def test_arrays_are_those_of_each_network(
    kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, int, str]] = []
    asked = [*FILES, ("a.onnx", 16), FILES[0]]
    found = list(
        arrays_of(asked, "sizes", nets.sizes, kept, processes=2, said=lambda *a: said.append(a))
    )
    assert len(found) == 5  # each once
    assert {a for a, _ in found} == set(asked)
    for (spec, size), array in found:
        assert np.array_equal(array, direct(spec, size)), (spec, size)
        assert kept.graph(spec, size) == readers.read(spec, size)
        assert np.array_equal(kept.array(spec, size, "sizes"), array)
    assert [(done, total) for done, total, _ in said] == [(i, 5) for i in range(1, 6)]
    assert [spec for *_, spec in said] == [spec for (spec, _), _ in found]
    with no_processes(monkeypatch):
        again = dict(arrays_of(asked, "sizes", nets.wrong, kept, processes=2))
    assert {a: v.tolist() for a, v in again.items()} == {a: v.tolist() for a, v in found}


def test_a_kept_graph_is_not_read_again(
    kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(arrays_of(FILES, "sizes", nets.sizes, kept, processes=1))
    monkeypatch.setattr(many_worker, "read", None)
    found = dict(arrays_of(FILES, "process", nets.process, kept, processes=1))
    assert {int(v[0]) for v in found.values()} == {os.getpid()}


def test_what_is_kept_comes_first(kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    list(arrays_of(FILES[2:], "sizes", nets.sizes, kept, processes=1))
    with no_processes(monkeypatch):
        found = arrays_of(FILES, "sizes", nets.sizes, kept, processes=2)
        assert [next(found)[0], next(found)[0]] == FILES[2:]
        with pytest.raises(AssertionError, match="a process was started"):
            next(found)


def test_one_network_is_read_here(kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_processes(monkeypatch):
        ((asked, found),) = arrays_of(FILES[:1], "process", nets.process, kept, processes=8)
        assert (asked, found.tolist()) == (FILES[0], [os.getpid()])
        list(arrays_of(FILES, "process", nets.process, kept, processes=1))
        assert list(arrays_of([], "process", nets.process, kept)) == []


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.slow
def test_networks_of_timm(kept: Kept, nets: Any) -> None:
    asked = [("timm:resnet18", 64), ("timm:resnet10t", 64), ("timm:resnet81", None)]
    found = dict(arrays_of(asked, "sizes", nets.sizes, kept, processes=2))
    assert "did you mean" in str(found.pop(asked[2]))
    assert {a: v.tolist() for a, v in found.items()} == {a: direct(*a).tolist() for a in asked[:2]}
    assert kept.graph(*asked[0]) == readers.read(*asked[0])


def test_what_cannot_be_read_costs_itself_alone(kept: Kept, nets: Any) -> None:
    asked = [
        *FILES,
        ("gone.onnx", None),
        ("a.onnx", "big"),
        (f"{NAME}:none", None),
        (f"{NAME}:leaves", 3),
    ]
    found = dict(arrays_of(asked, "sizes", nets.sizes, kept, processes=2))
    here = dict(arrays_of(asked, "sizes", nets.sizes, kept, processes=1))
    assert list(found) != []
    assert set(found) == set(here) == set(asked)
    assert errors(found) == errors(here)
    assert "no network 'gone.onnx'" in errors(found)["gone.onnx"]
    assert "input size 'big'" in errors(found)["a.onnx"]
    assert f"module '{NAME}' has no 'none'" in errors(found)[f"{NAME}:none"]
    assert errors(found)[f"{NAME}:leaves"].startswith(f"{NAME}:leaves cannot be read (SystemExit")
    for answers in (found, here):
        kinds = {type(answers[a]) for a in asked[4:]}
        assert kinds == {NetworkError, InputError}
        assert all(answers[a].__traceback__ is None for a in asked[6:])
        assert all(np.array_equal(answers[a], direct(*a)) for a in FILES)


def test_what_no_framework_has_foreseen(
    kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for raised, said in (
        (KeyError("x"), "a.onnx cannot be read (KeyError: 'x')"),
        (RecursionError("deep"), "a.onnx is nested too deeply to be read"),
        (MemoryError(), "a.onnx needs more than the memory that there is to read; it was left out"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"),
         "a.onnx needs more than the memory that there is to read; it was left out"),
    ):  # fmt: skip

        def read(*_: object, raised: Exception = raised) -> None:
            raise raised

        monkeypatch.setattr(many_worker, "read", read)
        ((_, found),) = arrays_of(FILES[:1], "sizes", nets.sizes, kept)
        assert (type(found), str(found)) == (NetworkError, said)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is swallowed
@pytest.mark.parametrize("processes", [1, 2])
def test_too_long(kept: Kept, nets: Any, processes: int) -> None:
    asked = [(f"{NAME}:{n}", None) for n in ("sleeps", "swallows", "callback")]
    begun = time.monotonic()
    found = dict(
        arrays_of([*asked, *FILES], "sizes", nets.sizes, kept, processes=processes, limit_s=1.5)
    )
    assert time.monotonic() - begun < 30
    assert errors(found) == {
        spec: f"{spec} took longer than 1.5 s to read; it was left out" for spec, _ in asked
    }
    assert all(isinstance(found[a], NetworkError) for a in asked)
    assert all(np.array_equal(found[a], direct(*a)) for a in FILES)


def test_an_array_that_takes_too_long_leaves_the_graph(kept: Kept, nets: Any) -> None:
    found = dict(arrays_of(FILES[:2], "slow", nets.slowly, kept, processes=1, limit_s=1))
    assert errors(found) == {"b.onnx": "b.onnx took longer than 1 s to read; it was left out"}
    assert kept.graph("b.onnx", 8) == readers.read("b.onnx", 8)
    assert kept.array("b.onnx", 8, "slow") is None


@pytest.mark.slow
def test_what_cannot_be_interrupted_is_ended(kept: Kept, nets: Any) -> None:
    stuck = f"{NAME}:stuck"
    asked = [(stuck, None), *FILES]
    found = dict(arrays_of(asked, "sizes", nets.sizes, kept, processes=2, limit_s=1))
    assert errors(found) == {stuck: f"{stuck} took longer than 1 s to read; it was left out"}


def test_the_time_of_somebody_else_goes_on(kept: Kept, nets: Any) -> None:
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


def test_another_thread_reads_without_a_limit(kept: Kept, nets: Any) -> None:
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.extend(arrays_of(FILES, "sizes", nets.sizes, kept, processes=1))
    )
    thread.start()
    thread.join()
    assert all(np.array_equal(array, direct(*asked)) for asked, array in found)
    assert len(found) == 4


@pytest.mark.parametrize("processes", [2, 3])
def test_a_process_that_dies_costs_its_network_alone(kept: Kept, nets: Any, processes: int) -> None:
    dead = [(f"{NAME}:{n}", None) for n in ("dies", "killed")]
    found = dict(
        arrays_of(
            [dead[0], *FILES, dead[1]],
            "sizes",
            nets.sizes,
            kept,
            processes=processes,
            memory_gib=2.5,
        )
    )
    assert errors(found) == {
        spec: f"{spec} ended the process that read it (more than 2.5 GiB of memory, or a framework "
        "crashed); it was left out"
        for spec, _ in dead
    }
    assert all(isinstance(found[a], NetworkError) for a in dead)
    assert all(np.array_equal(found[a], direct(*a)) for a in FILES)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of data is Linux's")
def test_too_much_memory(kept: Kept, nets: Any) -> None:
    hungry = f"{NAME}:hungry"
    asked = [(hungry, None), *FILES]
    found = dict(arrays_of(asked, "sizes", nets.sizes, kept, processes=2, memory_gib=1))
    assert errors(found) == {
        hungry: f"{hungry} needs more than 1 GiB of memory to read; it was left out"
    }


def test_a_worker_that_dies_between_two_networks_is_replaced(
    kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = many._Worker.result
    ended = []

    def and_ends(worker: Any, answer: Any) -> Any:
        found = result(worker, answer)
        os.kill(int(found[0]), signal.SIGKILL)
        with contextlib.suppress(many.BrokenProcessPool):
            while True:  # until it is known to be dead
                worker._pool.submit(os.getpid)
                time.sleep(0.01)
        ended.append(int(found[0]))
        return found

    monkeypatch.setattr(many._Worker, "result", and_ends)
    found = dict(arrays_of(FILES, "process", nets.process, kept, processes=2))
    assert sorted(ended) == sorted(int(array[0]) for array in found.values())
    assert len(set(ended)) == 4


def test_processes_are_renewed(kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "RENEWED", 2)
    asked = [(f"{name}.onnx", size) for name in "abcd" for size in (8, 16)]
    found = [int(a[0]) for _, a in arrays_of(asked, "process", nets.process, kept, processes=2)]
    assert max(found.count(pid) for pid in found) <= 2
    assert os.getpid() not in found
    until(lambda: not any(map(alive, found)), 10)


def test_a_worker_has_one_thread_and_a_quiet_stdout(
    kept: Kept, nets: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_code_is_not_kept(kept: Kept, nets: Any, here: Path) -> None:
    for _ in range(2):
        list(arrays_of([(f"{NAME}:good", 3)], "sizes", nets.sizes, kept))
    assert logged(here) == ["good", "good"]


def test_remarks_come_back_from_the_processes(here: Path, nets: Any) -> None:
    (here / "file").write_text("")
    kept = Kept(here / "file" / "cache")
    found = dict(arrays_of(FILES, "sizes", nets.sizes, kept, processes=2))
    assert all(np.array_equal(found[a], direct(*a)) for a in FILES)
    assert len(kept.remarks) == 1
    assert "networks that were read are not kept" in kept.remarks[0]


def test_what_the_function_raises(kept: Kept, nets: Any) -> None:
    for processes in (1, 2):
        with pytest.raises(KeyError, match="wrong"):
            list(arrays_of(FILES, "sizes", nets.wrong, kept, processes=processes))
        found = dict(arrays_of(FILES, "sizes", nets.unknown, kept, processes=processes))
        assert errors(found) == {f"{n}.onnx": f"{n} has no such thing" for n in "abcd"}


def test_a_function_that_other_processes_cannot_have(
    kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def local(graph: Any) -> np.ndarray:
        return nets.sizes(graph)

    with (
        no_processes(monkeypatch),
        pytest.raises(InputError, match="a function at the top of a mod"),
    ):
        list(arrays_of(FILES, "sizes", local, kept, processes=2))
    assert len(list(arrays_of(FILES, "sizes", local, kept, processes=1))) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"processes": 0}, "processes 0: expected a whole number from 1"),
        ({"limit_s": 0.0}, "a limit of 0.0 s: expected a number above 0"),
        ({"limit_s": float("nan")}, "a limit of nan s: expected a number above 0"),
        ({"limit_s": float("inf")}, "a limit of inf s: expected a number above 0"),
        ({"memory_gib": -1}, "a limit of -1 GiB: expected a number above 0"),
    ],
)
def test_options_that_are_none(kept: Kept, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        arrays_of(FILES, "sizes", direct, kept, **options)
    assert str(caught.value) == said


def test_a_name_that_is_none(kept: Kept) -> None:
    with pytest.raises(InputError, match="array 'a/b'"):
        arrays_of(FILES, "a/b", direct, kept)


def test_processes_and_memory_by_default(
    kept: Kept, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        many, "_in_processes", lambda waiting, task, count: asked.append((count, task)) or iter(())
    )
    monkeypatch.setattr(many, "_memory_gib", lambda: 64.0)
    for cpus in (3, 100):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cpus: set(range(n)), raising=False)
        list(arrays_of(FILES, "sizes", nets.sizes, kept))
    monkeypatch.setattr(many, "_memory_gib", lambda: 0.0)
    list(arrays_of(FILES, "sizes", nets.sizes, kept))
    assert [count for count, _ in asked] == [3, 8, 8]
    assert [task.memory_gib for _, task in asked] == pytest.approx([64.0, 64.0, 2.0])
    assert {task.limit_s for _, task in asked} == {300.0}


def started(here: Path, *words: str) -> subprocess.Popen[str]:
    (here / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py", *words],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pids(here: Path) -> list[int]:
    """Of the workers, which they have logged."""
    return [int(word) for word in logged(here) if word.isdigit()]


def test_a_run_that_is_killed_goes_on_where_it_was(kept: Kept, nets: Any, here: Path) -> None:
    process = started(here, "slowly", "kill")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    until(lambda: not any(map(alive, pids(here))), 10)  # they end with their parent
    (here / "log").unlink()
    found = dict(arrays_of(FILES, "sizes", nets.sizes, kept, processes=2))
    assert sorted(logged(here)) == ["b", "c", "d"]  # not a, which was made before
    assert {a: v.tolist() for a, v in found.items()} == {a: direct(*a).tolist() for a in FILES}


@pytest.mark.parametrize(
    ("words", "kill"),
    [
        (["slowly"], os.killpg),
        (["slowly"], os.kill),  # the parent alone
        (["slowly", "boot"], os.killpg),
        (["forever"], os.killpg),
    ],
)
def test_ctrl_c_ends_all_processes(
    here: Path, words: list[str], kill: Callable[[int, int], None]
) -> None:
    process = started(here, *words)
    until(lambda: len(pids(here)) >= 2)
    begun = time.monotonic()
    kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    assert process.returncode == 130
    assert said == ""
    until(lambda: not any(map(alive, pids(here))), 10)


def test_whoever_stops_asking_leaves_no_process(kept: Kept, nets: Any, here: Path) -> None:
    found = arrays_of(FILES, "sizes", nets.slowly, kept, processes=2)
    next(found)
    until(lambda: len(pids(here)) >= 2)
    found.close()
    until(lambda: not any(map(alive, pids(here))), 10)


UNGUARDED = """
import lolat_many_nets as nets
from lolat.errors import LolatError
from lolat.readers.cache import Kept
from lolat.readers.many import arrays_of
def mine(graph):
    return nets.sizes(graph)
specs = [(f"{n}.onnx", 8) for n in "abcd"]
try:
    print(list(arrays_of(specs, "sizes", nets.sizes, Kept(None), processes=2)))
except LolatError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["script without guard", "function of no module"])
def test_where_no_process_starts(here: Path, how: str) -> None:
    (here / "script.py").write_text(UNGUARDED)
    words = (
        ["script.py"] if "script" in how else ["-c", UNGUARDED.replace("nets.sizes, K", "mine, K")]
    )
    done = subprocess.run(
        [sys.executable, *words], cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == (
        "no process could be started to read networks in; a script that asks for many has to do so "
        'under `if __name__ == "__main__":`, with a function that can be imported, or with processes=1\n'
    )

"""Many networks read at once: equal to reading each, and what goes wrong costs one network alone."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat import readers
from lolat.errors import InputError, LolatError, NetworkError
from lolat.readers import many
from lolat.readers.cache import Cache
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
from lolat.readers.cache import Cache
from lolat.readers.many import arrays_of

def main():
    specs = [(f"{name}.onnx", 8) for name in "abcd"]
    for asked, found in arrays_of(specs, "sizes", getattr(nets, sys.argv[1]), Cache(Path("cache")),
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


FILES = [(f"{name}.onnx", 8) for name in "abcd"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the module and four networks, a.onnx to d.onnx, of one to four channels."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    for i, name in enumerate("abcd", start=1):
        nodes = [node("Conv", "x w", "h", kernel_shape=[3, 3]), node("Relu", "h", "y")]
        saved(tmp_path, model(nodes, ("N", 3, "H", "W"), w=(i, 3, 3, 3)), f"{name}.onnx")
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


@pytest.fixture
def run(kept: Cache, nets: Any) -> Callable[..., dict[Any, Any]]:
    """`arrays_of` with a function of the module, as a dict: in two processes unless told."""

    def run(specs: Any, of: str = "sizes", name: str = "", **options: Any) -> dict[Any, Any]:
        options = {"processes": 2, **options}
        return dict(arrays_of(specs, name or of, getattr(nets, of), kept, **options))

    return run


def code(*names: str) -> list[tuple[str, Any]]:
    return [(f"{NAME}:{name}", None) for name in names]


def logged(here: Path) -> list[str]:
    return (here / "log").read_text().split() if (here / "log").exists() else []


def direct(spec: str, size: Any = None) -> list[int]:
    return [t.elements() for t in readers.read(spec, size).tensors]


def errors(answers: dict[Any, Any]) -> dict[str, str]:
    return {spec: str(e) for (spec, _), e in answers.items() if isinstance(e, LolatError)}


def check_files(answers: dict[Any, Any]) -> None:
    assert {a: answers[a].tolist() for a in FILES} == {a: direct(*a) for a in FILES}


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


def test_arrays_are_those_of_each_network(kept: Cache, run: Any) -> None:
    progress: list[tuple[int, int, str]] = []
    specs = [*FILES, ("a.onnx", 16), FILES[0]]
    answers = run(specs, said=lambda *a: progress.append(a))
    assert {a: v.tolist() for a, v in answers.items()} == {a: direct(*a) for a in set(specs)}
    for asked, array in answers.items():
        assert kept.graph(*asked) == readers.read(*asked)
        assert np.array_equal(kept.array(*asked, "sizes"), array)
    assert progress == [(i, 5, spec) for i, (spec, _) in enumerate(answers, start=1)]
    again = run(specs, "wrong", "sizes")  # what is kept is not made again
    assert {a: v.tolist() for a, v in again.items()} == {a: v.tolist() for a, v in answers.items()}


def test_what_is_kept_comes_first_and_starts_no_process(
    kept: Cache, run: Any, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(FILES[2:], processes=1)
    answers = arrays_of(FILES, "sizes", nets.sizes, kept, processes=2)
    assert [next(answers)[0], next(answers)[0]] == FILES[2:]
    answers.close()
    run(FILES, processes=1)
    monkeypatch.setattr(many, "read", None)  # of a kept graph, no other array needs the network
    assert {v.item() for v in run(FILES, "process", processes=1).values()} == {os.getpid()}


def test_one_network_is_read_here(run: Any) -> None:
    assert run(FILES[:1], "process", processes=8)[FILES[0]].tolist() == [os.getpid()]
    assert run([], "process") == {}


def test_what_cannot_be_read_costs_itself_alone(run: Any) -> None:
    wrong = [("gone.onnx", None), ("a.onnx", "big"), (f"{NAME}:none", None), (f"{NAME}:leaves", 3)]
    of_processes, here = (run([*FILES, *wrong], processes=n) for n in (2, 1))
    assert errors(of_processes) == errors(here)
    for (spec, _), part in zip(
        wrong, ("no network", "input size 'big'", "has no 'none'", "SystemExit"), strict=True
    ):
        assert part in errors(here)[spec]
    for answers in (of_processes, here):
        check_files(answers)
        assert {type(answers[a]) for a in wrong} == {NetworkError, InputError}
        assert all(answers[a].__traceback__ is None for a in wrong[2:])


@pytest.mark.parametrize(
    ("raised", "part"),
    [
        (KeyError("x"), "cannot be read (KeyError: 'x')"),
        (RecursionError("deep"), "nested too deeply"),
        (MemoryError(), "needs more than the memory that there is"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "more than the memory"),
    ],
)
def test_what_no_framework_has_foreseen(
    run: Any, monkeypatch: pytest.MonkeyPatch, raised: Exception, part: str
) -> None:
    def read(*_: object) -> None:
        raise raised

    monkeypatch.setattr(many, "read", read)
    answer = run(FILES[:1])[FILES[0]]
    assert type(answer) is NetworkError
    assert str(answer).startswith("a.onnx ")
    assert part in str(answer)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is swallowed
@pytest.mark.parametrize("processes", [1, 2])
def test_too_long(run: Any, processes: int) -> None:
    slow = code("sleeps", "swallows", "callback")
    begun = time.monotonic()
    answers = run([*slow, *FILES], processes=processes, limit_s=1.5)
    assert time.monotonic() - begun < 30
    assert set(errors(answers)) == {spec for spec, _ in slow}
    assert all("took longer than 1.5 s" in said for said in errors(answers).values())
    check_files(answers)


def test_an_array_that_takes_too_long_leaves_the_graph(kept: Cache, run: Any) -> None:
    assert list(errors(run(FILES[:2], "slowly", processes=1, limit_s=1))) == ["b.onnx"]
    assert kept.graph("b.onnx", 8) == readers.read("b.onnx", 8)
    assert kept.array("b.onnx", 8, "slowly") is None


@pytest.mark.slow
def test_what_cannot_be_interrupted_is_ended(run: Any) -> None:
    answers = run([*code("stuck"), *FILES], limit_s=1)
    assert "took longer than 1 s" in errors(answers)[f"{NAME}:stuck"]


def test_the_timer_of_somebody_else_goes_on(run: Any) -> None:
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 50.0)
    mine = signal.getsignal(signal.SIGALRM)
    try:
        run(FILES, processes=1, limit_s=1)
        assert 1 < signal.getitimer(signal.ITIMER_REAL)[0] < 50
        assert signal.getsignal(signal.SIGALRM) is mine
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        run(code("sleeps"), limit_s=1)
        time.sleep(0.2)
        assert rung == [1]  # late, but it rings
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def test_another_thread_reads_without_a_limit(run: Any) -> None:
    answers: dict[Any, Any] = {}
    thread = threading.Thread(target=lambda: answers.update(run(FILES, processes=1)))
    thread.start()
    thread.join()
    check_files(answers)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_process_that_dies_costs_its_network_alone(run: Any, processes: int) -> None:
    dead = code("dies", "killed")
    answers = run([dead[0], *FILES, dead[1]], processes=processes, memory_gib=2.5)
    assert set(errors(answers)) == {spec for spec, _ in dead}
    for said in errors(answers).values():
        assert "ended the process that read it" in said
        assert "2.5 GiB" in said
    check_files(answers)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of data is Linux's")
def test_too_much_memory(run: Any) -> None:
    answers = run([*code("hungry"), *FILES], memory_gib=1)
    assert "needs more than 1 GiB of memory" in errors(answers)[f"{NAME}:hungry"]
    check_files(answers)


def test_processes_are_renewed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "RENEWED", 2)
    specs = [(f"{name}.onnx", size) for name in "abcd" for size in (8, 16)]
    pids = [array.item() for array in run(specs, "process").values()]
    assert max(pids.count(pid) for pid in pids) <= 2
    assert os.getpid() not in pids
    until(lambda: not any(map(alive, pids)), 10)


def test_a_worker_has_one_thread_and_a_quiet_stdout(
    run: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    answers = run([(f"{NAME}:good", 3), FILES[0]], "threads")
    assert [a.tolist() for a in answers.values()] == [[1, 1], [1, 1]]
    assert "OMP_NUM_THREADS" not in os.environ
    said = capfd.readouterr()
    assert said.out == ""
    assert "building" in said.err
    assert "noise" in said.err


def test_code_is_not_kept(run: Any, here: Path) -> None:
    for _ in range(2):
        run([(f"{NAME}:good", 3)])
    assert logged(here) == ["good", "good"]


def test_remarks_come_back_from_the_processes(here: Path, nets: Any) -> None:
    (here / "file").write_text("")
    kept = Cache(here / "file" / "cache")
    check_files(dict(arrays_of(FILES, "sizes", nets.sizes, kept, processes=2)))
    (remark,) = kept.remarks
    assert "are not kept" in remark


@pytest.mark.parametrize("processes", [1, 2])
def test_what_the_function_raises(run: Any, processes: int) -> None:
    with pytest.raises(KeyError, match="wrong"):
        run(FILES, "wrong", processes=processes)
    answers = run(FILES, "unknown", processes=processes)
    assert errors(answers) == {f"{n}.onnx": f"{n} has no such thing" for n in "abcd"}


def test_a_function_that_other_processes_cannot_have(kept: Cache, nets: Any) -> None:
    def local(graph: Any) -> np.ndarray:
        return nets.sizes(graph)

    with pytest.raises(InputError, match="a function at the top of a mod"):
        list(arrays_of(FILES, "sizes", local, kept, processes=2))
    assert len(list(arrays_of(FILES, "sizes", local, kept, processes=1))) == 4


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"processes": 0}, "processes 0"),
        ({"limit_s": 0.0}, "0.0 s"),
        ({"limit_s": float("nan")}, "nan s"),
        ({"limit_s": float("inf")}, "inf s"),
        ({"memory_gib": -1}, "-1 GiB"),
        ({"name": "a/b"}, "array 'a/b'"),
    ],
)
def test_options_that_are_none(run: Any, options: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=part):
        run(FILES, **options)


def started(here: Path, *words: str) -> subprocess.Popen[str]:
    (here / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py", *words], cwd=here, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip


def pids(here: Path) -> list[int]:
    """Of the workers, which they have logged."""
    return [int(word) for word in logged(here) if word.isdigit()]


def test_a_run_that_is_killed_goes_on_where_it_was(run: Any, here: Path) -> None:
    process = started(here, "slowly", "kill")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    until(lambda: not any(map(alive, pids(here))), 10)  # they end with their parent
    (here / "log").unlink()
    check_files(run(FILES))
    assert sorted(logged(here)) == ["b", "c", "d"]  # not a, which was made before


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
    assert (process.returncode, said) == (130, "")
    until(lambda: not any(map(alive, pids(here))), 10)


def test_whoever_stops_asking_leaves_no_process(kept: Cache, nets: Any, here: Path) -> None:
    answers = arrays_of(FILES, "sizes", nets.slowly, kept, processes=2)
    next(answers)
    until(lambda: len(pids(here)) >= 2)
    answers.close()
    until(lambda: not any(map(alive, pids(here))), 10)


UNGUARDED = """
import lolat_many_nets as nets
from lolat.errors import LolatError
from lolat.readers.cache import Cache
from lolat.readers.many import arrays_of
def mine(graph):
    return nets.sizes(graph)
specs = [(f"{n}.onnx", 8) for n in "abcd"]
try:
    print(list(arrays_of(specs, "sizes", nets.sizes, Cache(None), processes=2)))
except LolatError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["script without guard", "function of no module"])
def test_where_no_process_starts(here: Path, how: str) -> None:
    (here / "script.py").write_text(UNGUARDED)
    text = UNGUARDED.replace("nets.sizes, Cache", "mine, Cache")
    words = ["script.py"] if "script" in how else ["-c", text]
    done = subprocess.run(
        [sys.executable, *words], cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "no process could be started" in done.stdout
    assert '`if __name__ == "__main__":`' in done.stdout
    assert done.stdout.count("\n") == 1

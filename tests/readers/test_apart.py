"""Networks' files read in a process of their own, as the command line does, and files that are hostile."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from onnx import helper

import lolat
from lolat.cli import main as command_line
from lolat.cli.common import run_apart
from lolat.errors import InputError, NetworkError
from lolat.io import FILES_APART
from lolat.readers import apart
from lolat.readers.apart import Reader, is_apart, read_apart
from microbench.check import read_cases
from tests.cli.commands import valid_answer
from tests.processes import is_running, wait_until
from tests.readers.onnx_networks import model, node, saved


def relu(path: Path) -> Path:
    """A file of one operation, which says the shape of its output."""
    made = model([node("Relu", "x", "y")], x=(1, 3, 8, 8), opset=17)
    made.graph.output[0].type.CopyFrom(made.graph.input[0].type)
    return Path(saved(path.parent, made, path.name))


def test_a_file_is_read_as_in_this_process(tmp_path: Path) -> None:
    path = str(relu(tmp_path / "n.onnx"))
    assert read_apart(path, ()) == lolat.read(path)


def test_the_command_line_reads_files_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(apart, "read_apart", lambda path, size: asked.append((path, size)))
    path = str(relu(tmp_path / "n.onnx"))
    monkeypatch.setenv("LOLAT_DEBUG", "")
    with pytest.raises(SystemExit):
        command_line.main(["predict", "epyc-2t", path, "--input-size", "8"])
    assert asked == [(path, (8,))]
    assert not FILES_APART.get()  # as it was
    lolat.read(path)
    assert len(asked) == 1


@pytest.mark.parametrize("value", ["0", "nan", "much"])
def test_a_limit_that_is_none(tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(relu(tmp_path / "n.onnx"))
    monkeypatch.setenv("LOLAT_READ_S", value)
    with pytest.raises(InputError, match="LOLAT_READ_S"):
        read_apart(path, ())


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a GiB for a network."""
    monkeypatch.setenv("LOLAT_READ_GIB", "0.25")


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b" " * 300 * 2**20,
            "packed.keras: reading it needs more than 0.25 GiB of memory; expected",
        ),
        (b"[" * 2**20, "it is not a .keras file; expected a zip archive written by model.save"),
    ],
)
def test_a_configuration_that_does_not_fit(tmp_path: Path, content: bytes, said: str) -> None:
    """A kilobyte of a file may unpack to whatever its author likes: the process has its limit."""
    pytest.importorskip("keras")
    path = tmp_path / "packed.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", content)
    with pytest.raises(NetworkError) as caught:
        read_apart(str(path), ())
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


HOSTILE = """
import os  # and no torch: frameworks that a text names are imported first

def network():
    from onnx import load
    os.write(1, b"by its number")
    print("by name")
    return load("relu.onnx")

def leaves():
    os._exit(0)

class Stop(BaseException):
    pass

def stops():
    raise Stop("at once")

class Forward:
    def __getattr__(self, name):
        raise Stop("when it is looked at")

def crashes():
    import ctypes
    ctypes.string_at(0)

def never():
    while True:
        pass

def eats():
    return [bytearray(2**30) for _ in range(50)]

def answers():
    for number in range(3, 20):
        try:
            os.write(number, b'5\\n')
        except OSError:
            pass
    return network()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a module of functions that do what they should not."""
    relu(tmp_path / "relu.onnx")
    (tmp_path / "lolat_hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOLAT_DEBUG", "")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("leaves", "reading it exited with code 0"),
        ("stops", "failed: Stop: at once"),
        ("Forward", "is a lolat_hostile.Forward|Stop"),
        ("crashes", "ended by signal SIGSEGV"),
        ("never", "gave no answer within 1 s; expected .*LOLAT_READ_S"),
        ("eats", "more than 1 GiB of memory; expected .*LOLAT_READ_GIB"),
        ("answers", "reading it "),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_a_function_may_do(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    """One line, exit code 2, nothing on stdout; what it writes to stderr itself stays there."""
    monkeypatch.setattr("lolat.io.process.ENDING_S", 1.0)  # of one that closes its answers
    words = ["predict", "epyc-2t", f"lolat_hostile:{function}", "--json"]
    monkeypatch.setenv("LOLAT_READ_S", "1" if function == "never" else "60")
    monkeypatch.setenv("LOLAT_READ_GIB", "1")
    assert run_apart(command_line.lolat, words, "lolat") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(f"lolat: .*{function}.*{said}", err.splitlines()[-1])
    assert err.count("lolat: ") == 1
    assert "Traceback" not in err


def test_what_a_function_writes_stays_out_of_the_answer(
    here: None, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "epyc-2t", "lolat_hostile:network", "--json"]
    assert run_apart(command_line.lolat, words, "lolat") == 0
    out, err = capfd.readouterr()
    assert valid_answer(words, out)["network"] == "network"
    assert "by its number" in err
    assert "by name" in err


@pytest.fixture
def by_command() -> Iterator[None]:
    """As in a command."""
    token = FILES_APART.set(True)
    yield
    FILES_APART.reset(token)


def test_a_network_to_measure_is_read_apart(here: None, by_command: None) -> None:
    with pytest.raises(NetworkError, match="reading it exited with code 0"):
        read_cases(["lolat_hostile:leaves"], [1])


@pytest.mark.parametrize(
    ("network", "apart"),
    [
        ("relu.onnx", True), ("lolat_hostile:leaves", True), ("transformers:relu.onnx?layers=1", True),
        ("keras:ResNet50", False), ("timm:resnet50", False), ("missing.onnx", False), ("n.json", False),
    ],
)  # fmt: skip
def test_which_networks_are_read_apart(here: None, network: str, apart: bool) -> None:
    assert is_apart(network) == apart


# ---- One child after another


@pytest.fixture
def reader() -> Iterator[Reader]:
    with contextlib.closing(Reader(ending="")) as started:
        started.start()
        yield started


def test_a_child_that_dies_is_replaced(reader: Reader, tmp_path: Path) -> None:
    first = reader.start()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not first.is_running(), 30, "its end")
    assert reader.read(str(relu(tmp_path / "n.onnx"))).operations
    assert reader.start().pid != first.pid


def test_a_child_that_takes_too_long_is_ended(reader: Reader, tmp_path: Path) -> None:
    stopped = reader.start().pid
    os.kill(stopped, signal.SIGSTOP)
    reader.limit_s = 0.3
    with pytest.raises(NetworkError, match=r"within 0\.3 s"):
        reader.read(str(relu(tmp_path / "n.onnx")))
    assert not is_running(stopped)


def test_a_reader_that_is_closed_reads_nothing(reader: Reader, tmp_path: Path) -> None:
    reader.close()
    with pytest.raises(NetworkError):
        reader.read(str(relu(tmp_path / "n.onnx")))


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (MemoryError(), "2 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "2 GiB"),
        (KeyError("x"), ""),
    ],
)
def test_whatever_a_framework_raises_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, error: Exception, limit: str
) -> None:
    def read(*_: object) -> None:
        raise error

    monkeypatch.setattr("lolat.readers.open_network", read)
    with pytest.raises(NetworkError, match=limit):
        apart.answer({"network": "n", "size": []})


def calling(folder: Path, depth: int, width: int, last: str = "Relu") -> str:
    """A file of functions that each call the next `width` times, `depth` of them."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(depth):
        op, domain = (
            (last, "own" if last != "Relu" else "") if not level else (f"f{level - 1}", "own")
        )
        names = ["a", *(f"t{i}" for i in range(width - 1)), "b"]
        nodes = [node(op, x, y, domain) for x, y in pairwise(names)]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, imports))
    made = model([node(f"f{depth - 1}", "x", "y", "own")], opset=17, domains=["own"])
    made.functions.extend(functions)
    return saved(folder, made)


@pytest.mark.parametrize(
    ("depth", "width", "last", "said"),
    [(40, 10, "Relu", "LOLAT_READ_(S|GIB)"), (3, 1, "f2", "Cycle detected")],
)
def test_functions_that_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, width: int, last: str, said: str
) -> None:
    """The limits of the process that reads them suffice."""
    monkeypatch.setenv("LOLAT_READ_GIB", "0.3")
    with pytest.raises(NetworkError, match=said) as caught:
        read_apart(calling(tmp_path, depth, width, last), ())
    assert str(caught.value).isprintable()
    assert len(read_apart(calling(tmp_path, 3, 5), ()).operations) == 5**3


def test_sizes_of_nothing_in_an_onnx_file(tmp_path: Path) -> None:
    made = model([node("Conv", "x w", "y")], w=(0, 3, 3, 3))
    with pytest.raises(NetworkError):
        lolat.read(saved(tmp_path, made))

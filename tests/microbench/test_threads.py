"""`learn --threads N`: in the backend's name, in the environment, and in the real framework's worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.graph.layers import Layers
from microbench import backends, environment
from microbench.backends import choice, onnxruntime, threads
from microbench.process import WorkerProcess

MODULES = {"tensorflow": "tensorflow", "torch": "torch", "onnxruntime": "onnxruntime"}


@pytest.mark.parametrize(
    ("name", "options", "written"),
    [
        ("tensorflow", ["threads=1"], "tensorflow+threads=1"),
        ("tensorflow", ["threads=12", "jit"], "tensorflow+jit+threads=12"),
        ("torch", ["half", "threads=2", "compile"], "torch+compile+half+threads=2"),
        ("onnxruntime", ["threads=1"], "onnxruntime+threads=1"),
    ],
)
def test_threads_are_part_of_the_backends_name(name: str, options: list[str], written: str) -> None:
    assert backends.joined(name, options) == written
    count = int(next(o for o in options if "=" in o).partition("=")[2])
    assert backends.threads_of(written) == count
    plain = backends.joined(name, [o for o in options if "=" not in o])
    assert backends.without_threads(written) == plain
    assert backends.threads_of(plain) is None
    flags = {o: True for o in options if "=" not in o}
    where = {"framework": name, **flags, "threads": count}
    assert backends.of_model(where) == plain, "as many as there were, unasked"
    assert backends.of_model({**where, "threads_asked": count}) == written


@pytest.mark.parametrize("asked", [None, True, "1", 0, -1, 1.0])
def test_a_damaged_number_in_a_model_file_is_none(asked: Any) -> None:
    assert backends.of_model({"framework": "torch", "threads_asked": asked}) == "torch"


@pytest.mark.parametrize("given", ["0", "-1", "x", "", "1.5", "²", "9" * 5000])
def test_what_is_no_number_of_threads(given: str) -> None:
    with pytest.raises(InputError) as caught:
        backends.check(f"torch+threads={given}")
    said = f"--threads {given}: expected a whole number of threads, 1 or more"
    assert str(caught.value) == said


def test_more_threads_than_processors_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cpu_count", lambda: 3)
    for fine in (None, 1, 3):
        threads.check(fine, "cpu")
    for refuse in (
        lambda: threads.check(4, "cpu"),
        lambda: backends.create("torch+threads=4", "cpu"),
    ):
        with pytest.raises(InputError) as caught:
            refuse()
        assert str(caught.value) == (
            "--threads 4: this process may use 3 processors; expected a number from 1 to 3"
        )
    threads.check_asked(4, "cpu")  # a node of a cluster may have them
    monkeypatch.setattr(threads, "cpu_count", lambda: 1)
    with pytest.raises(InputError, match="may use one processor; expected a number from 1 to 1"):
        threads.check(2, "cpu")
    for refuse in (
        lambda: threads.check_asked(1, "gpu"),
        lambda: backends.create("onnxruntime+threads=1", "gpu"),
    ):
        with pytest.raises(
            InputError, match=r"^--threads 1 is for the cpu; a gpu .*: leave it out"
        ):
            refuse()


def test_every_backend_can_be_picked_with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "lacking", lambda name: [])
    assert choice.pick("cpu", ["threads=1"]) == ("tensorflow+threads=1", "")
    assert choice.pick("cpu", ["half", "threads=1"])[0] == "torch+half+threads=1"


def test_the_devices_name_says_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_model", lambda: "EPYC")
    monkeypatch.setattr(environment, "processor_facts", dict)
    monkeypatch.setattr(environment, "cpu_count", lambda: 8)
    for where, label in (
        ({}, "EPYC, 8 threads"),
        ({"threads": 2}, "EPYC, 8 threads"),
        ({"threads": 2, "threads_asked": 2}, "EPYC, 2 threads"),
        ({"threads_asked": 1}, "EPYC, 1 thread"),
    ):
        assert environment.label_of("cpu", where) == label
    assert environment.label_of("gpu", {"device_name": "T4"}) == "T4"


def convolution() -> dict[str, Any]:
    n = Layers.on("conv", 32, 32, 16)
    return {"graph": n.done(n.conv_norm_act(n.input, 64, 3)).to_dict(), "batch_size": 4}


def tasks(worker: WorkerProcess) -> int:
    """The threads that the operating system sees."""
    return len(os.listdir(f"/proc/{worker.pid}/task"))


@pytest.mark.parametrize("name", MODULES)
def test_the_real_framework_uses_them_in_its_worker(name: str) -> None:
    """What it says itself and, where the system shows it, how many threads computing starts."""
    pytest.importorskip(MODULES[name])
    with WorkerProcess(f"{name}+threads=1", "cpu") as worker:
        found = worker.request({"do": "environment"}, 60)["environment"]
        assert (found["threads"], found["threads_asked"]) == (1, 1)
        assert (found["intra_op_threads"], found["inter_op_threads"]) == (1, 1)
        before = tasks(worker) if Path("/proc/self/task").is_dir() else 0
        worker.request({"do": "prepare", "key": "c", "job": convolution()}, 120)
        if before and name != "tensorflow":  # which has threads that wait for other things
            assert tasks(worker) == before, "one thread computes: the one that there is"


@pytest.mark.parametrize("name", MODULES)
def test_without_threads_nothing_is_set(name: str) -> None:
    pytest.importorskip(MODULES[name])
    with WorkerProcess(name, "cpu") as worker:
        found = worker.request({"do": "environment"}, 60)["environment"]
        assert not {"threads", "threads_asked"} & set(found)
        # 0: as many as there are, to TensorFlow and ONNX Runtime.
        own = len(os.sched_getaffinity(0)) if name == "torch" else 0
        if "OMP_NUM_THREADS" not in os.environ:
            assert found["intra_op_threads"] == own


def test_a_pool_that_is_there_already_is_no_pool_of_one_thread() -> None:
    runtime = pytest.importorskip("onnxruntime")
    onnxruntime._share(runtime)
    assert onnxruntime._share(runtime) is True
    backend: Any = backends.create("onnxruntime+threads=1", "cpu")
    assert backend.shares_threads is False
    options = backend._options()
    assert options.use_per_session_threads is True
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert backend.environment()["shared_threads"] is False


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_more_threads_are_more_threads(name: str) -> None:
    """Against what the operating system counts, so that one thread above is no accident."""
    pytest.importorskip(MODULES[name])
    counts = []
    for count in (1, 2):
        with WorkerProcess(f"{name}+threads={count}", "cpu") as worker:
            worker.request({"do": "prepare", "key": "c", "job": convolution()}, 120)
            counts.append(tasks(worker))
    assert counts[1] > counts[0]

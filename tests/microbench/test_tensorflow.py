"""The TensorFlow backend: its options, its environment, users' networks in a real worker."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from lolat.io.process import RequestFailed
from lolat.readers.keras import import_keras
from microbench.backends import create
from microbench.worker import WorkerProcess
from tests.microbench.fakes import small


@pytest.fixture(scope="module")
def keras() -> Any:
    return import_keras()


@pytest.mark.parametrize("jit", [False, True])
def test_xla_compiles_when_asked(keras: Any, monkeypatch: pytest.MonkeyPatch, jit: bool) -> None:
    backend: Any = create("tensorflow+jit" if jit else "tensorflow", "cpu")
    assert backend.environment()["jit"] is jit
    compiled: list[Any] = []
    function = backend.tf.function

    def noted(*body: Any, **options: Any) -> Any:
        compiled.append(options)  # Keras calls it too, as a decorator
        return function(*body, **options)

    monkeypatch.setattr(backend.tf, "function", noted)
    backend.prepare_graph(small(), 2)()
    assert compiled[0] == {"jit_compile": True if jit else None}


NETWORKS = """
    import os, subprocess
    import keras

    def loud():
        print('{"estimate_ms": 1}', flush=True)
        os.write(1, b'{"estimate_ms": 2}')
        subprocess.run(["echo", "three"], check=True)
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])

    def two_inputs():
        a, b = keras.Input((8,)), keras.Input((3,), dtype="int32")
        return keras.Model({"a": a, "b": b}, [a * 2.0, b + 1])

    def failing():
        raise ValueError("first\\nsecond")
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("networks")
    (folder / "lolat_test_networks.py").write_text(textwrap.dedent(NETWORKS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        started = WorkerProcess("tensorflow+threads=1", "cpu")
    with started:
        yield started


def network(name: str) -> dict[str, Any]:
    job = {"network": f"lolat_test_networks:{name}", "input_size": [], "batch_size": 2}
    return {"do": "prepare", "key": name, "job": job}


@pytest.mark.parametrize("name", ["loud", "two_inputs"])
def test_a_users_network_runs_whatever_it_prints(
    worker: WorkerProcess, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert set(worker.request(network(name), 60)) == {"estimate_ms"}
    taken = worker.request({"do": "sample", "key": name, "before": "", "calls": 2}, 60)
    assert len(taken["samples_ms"]) == 2
    assert capfd.readouterr() == ("", "")


def test_a_network_that_fails_is_one_line(worker: WorkerProcess) -> None:
    with pytest.raises(RequestFailed, match=r"ValueError: first") as caught:
        worker.request(network("failing"), 60)
    assert str(caught.value).isprintable()
    assert "environment" in worker.request({"do": "environment"}, 60)

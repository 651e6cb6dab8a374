"""The TensorFlow backend: compilation by XLA, users' networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lolat.microbench.backends import create
from lolat.readers.keras import import_keras
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
import keras

def two_inputs():
    a, b = keras.Input((8,), name="a"), keras.Input((3,), name="b", dtype="int32")
    return keras.Model({"a": a, "b": b}, [a * 2.0, b + 1])
"""


def test_a_users_network_with_named_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lolat_test_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    call = create("tensorflow", "cpu").prepare_network("lolat_test_networks:two_inputs", (), 2)
    call()
    assert [(x.shape, x.dtype) for x in call.inputs] == [((2, 8), "float32"), ((2, 3), "int32")]

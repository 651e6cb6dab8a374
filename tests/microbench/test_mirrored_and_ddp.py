"""Real replicas on this machine's processors: that they exchange gradients, and what it is said to take."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lolat.errors import DeviceError
from microbench.exchange import STRATEGIES
from microbench.timing import REPLICA_CALLS as CALLS
from microbench.timing import REPLICA_ROUNDS as ROUNDS
from microbench.worker import run_together
from tests.microbench import replica_calls

CALL = f"{replica_calls.__name__}"
GRADIENTS = [(3, 60000)]


def request(strategy: str) -> list[dict[str, object]]:
    one = {"device": "cpu", "replicas": 2, "threads": 1}
    return [one] if strategy == "mirrored" else [{**one, "rank": rank} for rank in (0, 1)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exchanges_are_timed(strategy: str) -> None:
    framework = "tensorflow" if strategy == "mirrored" else "torch"
    pytest.importorskip(framework)
    gradients = [(0, 0), *GRADIENTS] if strategy == "mirrored" else GRADIENTS
    asked = [{**r, "gradients": gradients} for r in request(strategy)]
    answers = run_together(STRATEGIES[strategy], asked, 120)
    assert len(answers) == len(asked)
    for answer in answers:
        for key in ("with_ms", "without_ms"):
            assert np.shape(answer[key]) == (len(gradients), ROUNDS * CALLS)
            assert np.min(answer[key]) > 0
        said = answer["environment"]
        assert (said["framework"], said["intra_op_threads"]) == (framework, 1)


def test_mirrored_replicas_add_up_their_gradients() -> None:
    pytest.importorskip("tensorflow")
    (found,) = run_together(f"{CALL}:mirrored", [{"threads": 2}], 120)
    # The batch and the loss by hand: mean over 8 numbers of (sum of a row - 1) squared.
    batch = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    slope = 2 * (batch.sum(axis=1) - 1) / 8
    kernel = np.stack([batch.T @ slope] * 2, axis=1)
    bias = np.full(2, slope.sum())
    for name, factor in (("beside", 1), ("mirrored", 2)):  # Keras adds up; both have the same batch
        for change, expected in zip(found[name], (kernel, bias), strict=True):
            assert np.array(change) == pytest.approx(factor * expected, rel=1e-2, abs=2e-3)
    threads = found["environment"]
    assert (threads["intra_op_threads"], threads["inter_op_threads"]) == (4, 2)


def test_ddp_replicas_average_their_gradients() -> None:
    pytest.importorskip("torch")
    for found in run_together(f"{CALL}:averaged", request("ddp"), 120):
        assert found["gradients"] == [[1.5] * 5] * 2  # of 1 and 2
        assert found["environment"]["exchange"] == "gloo"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gpus_that_are_not_there(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, tensorflow = (pytest.importorskip(name) for name in ("torch", "tensorflow"))
    if torch.cuda.is_available() or tensorflow.config.list_physical_devices("GPU"):
        pytest.skip("there are GPUs")
    for name in ("KERAS_BACKEND", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    from microbench.backends.tensorflow.training import Replicas
    from microbench.backends.torch.training import Replica

    words = r"finds 0 GPUs here, but 2 replicas need one each; give fewer --replicas, or cpu"
    asked = {"device": "gpu", "replicas": 2, "rank": 0, "threads": 1}
    with pytest.raises(DeviceError, match=words):
        _ = Replicas("gpu", 2, 1) if strategy == "mirrored" else Replica(asked)

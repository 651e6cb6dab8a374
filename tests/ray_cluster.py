"""A small Ray for tests: two CPUs on this machine, no dashboard, and nothing left behind."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NODE = {"include_dashboard": False, "object_store_memory": int(100e6)}
OPTIONS = {
    **NODE,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
}


@contextlib.contextmanager
def small_ray() -> Iterator[Any]:
    """`ray`, on two CPUs of this machine."""
    with _environment() as ray:
        ray.init(address="local", num_cpus=2, **OPTIONS)  # not one that somebody runs here
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def nodes(*cpus: int) -> Iterator[Any]:
    """A cluster of so many nodes on this machine, with so many CPUs each."""
    # A dead node is noticed sooner than by default.
    settings = {"health_check_period_ms": 300, "health_check_failure_threshold": 3}
    with _environment() as ray:
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            for i, n in enumerate(cpus):
                cluster.add_node(num_cpus=n, **NODE, **({} if i else {"_system_config": settings}))
            ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextlib.contextmanager
def _environment() -> Iterator[Any]:
    """`ray`, not connected, with what its processes are to inherit; taken back at the end."""
    ray = pytest.importorskip("ray")
    if ray.is_initialized():  # another test's
        ray.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # workers import as the tests do
        yield ray

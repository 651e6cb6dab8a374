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
OPTIONS = {
    "include_dashboard": False,
    "object_store_memory": int(100e6),
    "log_to_driver": False,
    "logging_level": logging.ERROR,
}


@contextlib.contextmanager
def small_ray() -> Iterator[Any]:
    """`ray`, on two CPUs of this machine."""
    ray = pytest.importorskip("ray")
    if ray.is_initialized():  # another test's
        ray.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # workers import as the tests do
        ray.init(address="local", num_cpus=2, **OPTIONS)  # not one that somebody runs here
        try:
            yield ray
        finally:
            ray.shutdown()

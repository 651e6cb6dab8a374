"""Tests of readers: a network by name is read by its framework, though some come with LoLat."""

from __future__ import annotations

import importlib.util

import pytest

from lolat.readers import reading

# Whole files of PyTorch, where there is none of it; test_attributes.py, which is skipped, says so.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_torch_*.py"]


@pytest.fixture(autouse=True)
def read_by_frameworks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves shipped graphs out, but where they are what is tested."""
    if "test_shipped" not in request.node.nodeid:
        monkeypatch.setattr(reading, "bundled_graph", lambda *_: None)

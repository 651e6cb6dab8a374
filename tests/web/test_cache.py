"""Networks that are kept: as many as there is room for, each read once."""

from __future__ import annotations

import threading
from io import BytesIO

import pytest

pytest.importorskip("starlette")

from lolat.errors import NetworkError
from lolat.web.networks import CachedNetwork, NetworkCache, NetworkKey
from tests.web.pages import FakeReader


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


@pytest.fixture
def networks(reader: FakeReader) -> NetworkCache:
    return reader.cache(most=3)


def named(name: str) -> NetworkKey:
    return NetworkKey(f"keras:{name}")


def test_each_is_read_once(networks: NetworkCache, reader: FakeReader) -> None:
    first = networks.get(named("A"))
    assert first.graph.name == "A"
    assert networks.get(named("A")).graph is first.graph
    networks.get(NetworkKey("keras:A", (64,)))
    assert reader.calls == [("keras:A", ()), ("keras:A", (64,))]


def test_two_who_ask_at_once_have_it_read_once(networks: NetworkCache, reader: FakeReader) -> None:
    reader.go.clear()
    found: list[CachedNetwork] = []
    asking = [threading.Thread(target=lambda: found.append(networks.get(named("A")))) for _ in "ab"]
    for thread in asking:
        thread.start()
    reader.go.set()
    for thread in asking:
        thread.join(20)
    assert len(found) == 2
    assert len(reader.calls) == 1


def test_a_network_of_too_many_operations_is_not_kept(
    networks: NetworkCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lolat.web.networks.MOST_OPERATIONS", 1)
    with pytest.raises(NetworkError, match="at most 1 here"):
        networks.get(named("A"))


def test_the_one_that_was_longest_not_asked_for_goes(
    networks: NetworkCache, reader: FakeReader
) -> None:
    for name in "ABCADA":  # D takes the place of B
        networks.get(named(name))
    assert [n for n, _ in reader.calls] == ["keras:A", "keras:B", "keras:C", "keras:D"]
    networks.get(named("B"))
    assert len(reader.calls) == 5


def test_a_file_that_went_has_to_be_given_again(networks: NetworkCache) -> None:
    file = networks.put_file(BytesIO(b"abc"), "x.onnx")
    assert networks.get(file).file_name == "x.onnx"
    for name in "ABC":
        networks.get(named(name))
    with pytest.raises(NetworkError, match="give it again"):
        networks.get(file)


def test_an_error_is_not_cached(networks: NetworkCache, reader: FakeReader) -> None:
    for calls in (1, 2):
        with pytest.raises(NetworkError, match="did you mean"):
            networks.get(named("Bad"))
        assert len(reader.calls) == calls

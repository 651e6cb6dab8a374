"""NetworkCache that are cached: as many as there is room for, each read once."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import pytest

pytest.importorskip("fastapi")

from lolat.errors import NetworkError
from lolat.web.networks import FAILED_S, MOST_WAITING, Busy, CachedNetwork, NetworkCache, NetworkKey
from tests import synthetic
from tests.web.pages import FakeReader


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def networks(reader: FakeReader, clock: list[float]) -> Iterator[NetworkCache]:
    found = NetworkCache(reader, most=3, clock=lambda: clock[0])
    yield found
    reader.go.set()
    found.close()
    assert reader.closed


def named(name: str) -> NetworkKey:
    return NetworkKey(f"keras:{name}")


def test_each_is_read_once(networks: NetworkCache, reader: FakeReader) -> None:
    first = networks.get(named("A"), 10)
    assert first is not None
    assert first.graph.name == "A"
    again = networks.get(named("A"), 10)
    assert again is not None
    assert again.graph is first.graph
    networks.get(NetworkKey("keras:A", (64,)), 10)
    assert reader.calls == [("keras:A", ()), ("keras:A", (64,))]


def test_a_network_of_too_many_operations_is_not_kept(
    networks: NetworkCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lolat.web.networks.MOST_OPERATIONS", 1)
    with pytest.raises(NetworkError, match=r"operations; expected at most 1 here: .*lolat predict"):
        networks.put(named("A"), CachedNetwork(synthetic.network()))


def test_the_one_that_was_longest_not_asked_for_goes(
    networks: NetworkCache, reader: FakeReader
) -> None:
    for name in "ABCADA":  # D takes the place of B
        networks.get(named(name), 10)
    assert [n for n, _ in reader.calls] == ["keras:A", "keras:B", "keras:C", "keras:D"]
    networks.get(named("B"), 10)
    assert len(reader.calls) == 5


def test_a_file_that_went_has_to_be_given_again(networks: NetworkCache) -> None:
    file = NetworkKey(f"upload:{'0' * 64}")
    networks.put(file, CachedNetwork(synthetic.network(), "x.onnx"))
    cached = networks.get(file, 0)
    assert cached is not None
    assert cached.file_name == "x.onnx"
    for name in "ABC":
        networks.get(named(name), 10)
    with pytest.raises(NetworkError, match=r"the last 3 are kept.*give it again"):
        networks.get(file, 0)


def test_an_error_is_told_and_tried_again(
    networks: NetworkCache, reader: FakeReader, clock: list[float]
) -> None:
    """Everybody who waited for it is told; who asks later has it read again."""
    for calls in (1, 1, 2):
        with pytest.raises(NetworkError, match="did you mean"):
            networks.get(named("Bad"), 10)
        assert len(reader.calls) == calls
        clock[0] += 0.6 * FAILED_S


def test_who_waits_does_not_wait_for_ever(networks: NetworkCache, reader: FakeReader) -> None:
    reader.go.clear()
    assert networks.get(named("A"), 0.01) is None
    assert networks.get(named("A"), 0.01) is None
    reader.go.set()
    assert networks.get(named("A"), 10) is not None
    assert len(reader.calls) == 1


def test_not_too_many_wait(networks: NetworkCache, reader: FakeReader) -> None:
    reader.go.clear()
    for i in range(MOST_WAITING):
        assert networks.get(named(f"N{i}"), 0) is None
    with pytest.raises(Busy, match="8 networks are waiting to be read; try again"):
        networks.get(named("Another"), 0)
    with pytest.raises(Busy, match="8 networks are waiting to be read; try again"):
        networks.begin_file(BytesIO(b"abc"), "x.onnx")


def test_it_is_ready_once_the_reader_is(networks: NetworkCache, reader: FakeReader) -> None:
    assert not networks.ready
    networks.start()
    networks.get(named("A"), 10)
    assert networks.ready

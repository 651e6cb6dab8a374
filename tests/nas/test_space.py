"""A space's integers and indices, and its counts against whole networks built and counted."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.nas import Part, Position, Space
from lolat.nas.grid import Grid

SIDE = 16
VALUES = {"width 1": 16, "kernel 2": 5, "width 2": 12, "kernel 3": 3, "width 3": 32}


def small(name: str = "small") -> Space:
    """Three convolutions: each width is the next one's input."""
    positions = [
        Position("width 1", (8, 16)), Position("kernel 2", (1, 3, 5)), Position("width 2", (8, 12, 40)),
        Position("kernel 3", (3, 5)), Position("width 3", (16, 32)),
    ]  # fmt: skip

    def image(outside: int) -> tuple[int, ...]:
        return (1, SIDE, SIDE, 3)

    def of_input(inside: int, *rest: int) -> tuple[int, ...]:
        return (1, SIDE, SIDE, inside)

    def first(layers: Layers, x: int, outside: int) -> int:
        return layers.conv(x, outside, 3)

    def second(layers: Layers, x: int, inside: int, kernel: int, outside: int) -> int:
        return layers.norm_act(layers.conv(x, outside, kernel), "relu")

    def head(layers: Layers, x: int, inside: int) -> int:
        return layers.dense(layers.flatten(layers.global_pool(x)), 10)

    parts = [
        Part("first", (0,), image, first), Part("second", (0, 1, 2), of_input, second),
        Part("third", (2, 3, 4), of_input, second), Part("head", (4,), of_input, head),
    ]  # fmt: skip
    return Space.of_parts(name, positions, parts)


@functools.cache
def every() -> tuple[Space, np.ndarray, list[Graph]]:
    """The small space, all its candidates, and their networks."""
    space = small()
    rows = space.decode(np.arange(space.size))
    return space, rows, [space.network(row) for row in rows]


SIZES = [(1,), (9000,), (3, 4100), (3, 4100, 2), (1, 2, 1, 3), (7,) * 22, (300, 20, 9), (9,) * 19]


@pytest.mark.parametrize("sizes", SIZES)
def test_indices_are_those_of_numpy(sizes: tuple[int, ...]) -> None:
    grid, random = Grid(sizes), np.random.default_rng(0)
    for length in (0, 1, 7, 4900, 20_000):
        most = max(grid.size - length, 0)
        for start in {0, most, int(random.integers(most + 1))}:
            indices = np.arange(start, min(start + length, grid.size))
            wanted = np.array(np.unravel_index(indices, sizes)).T
            for rows in (grid.decode(indices), grid.between(start, start + len(indices))):
                assert rows.dtype == grid.dtype
                np.testing.assert_array_equal(rows, wanted)


def test_more_candidates_than_an_int64_can_index() -> None:
    more = Grid((9,) * 22)
    assert more.size == 9**22
    assert more.sample(3, np.random.default_rng(0)).shape == (3, 22)
    with pytest.raises(InputError):
        more.decode([0])
    assert Grid((2,) * 62).countable() == 2**62
    with pytest.raises(InputError):
        Grid((2,) * 63).countable()


def test_what_is_no_candidate_is_refused() -> None:
    grid = Grid((2, 3))
    for indices in ([-1], [6], [0.5], [[0]]):
        with pytest.raises(InputError):
            grid.decode(indices)
    for rows in ([[0, 0], [1, 3]], [[-1, 0]], [[0, 0, 0]], [[0.0, 1.0]], [0, 1]):
        with pytest.raises(InputError):
            grid.checked(rows)
    for sizes in ((), (3, 0)):
        with pytest.raises(InputError):
            Grid(sizes)


@pytest.mark.parametrize("batch_size", [1, 2, 64, 1024])
def test_counts_are_those_of_the_whole_network(batch_size: int) -> None:
    # Up to sizes at which thresholds are passed (threaded, streamed) and kernels repacked.
    space, rows, networks = every()
    whole = np.array([count(network).total(batch_size) for network in networks])
    np.testing.assert_array_equal(space.counts(rows, batch_size), whole)


def test_a_candidate_by_its_values_and_its_macs_by_hand() -> None:
    space = small()
    rows = space.sample(300, seed=3)
    assert [set(column) for column in rows.T.tolist()] == [set(range(n)) for n in space.grid.sizes]
    np.testing.assert_array_equal(rows, space.sample(300, seed=3))
    row = np.array([1, 2, 1, 0, 1])
    assert space.values(row) == VALUES
    macs = SIDE * SIDE * (3 * 3 * 3 * 16 + 25 * 16 * 12 + 9 * 12 * 32) + 32 * 10
    assert space.counts(row[None])[0, 2] == macs


@pytest.mark.parametrize("count", [10, 60, 72])
def test_samples_of_a_small_space_do_not_repeat(count: int) -> None:
    space = small()
    assert space.size == 72
    rows = space.sample(count, seed=3)
    assert len({tuple(row) for row in rows.tolist()}) == count
    assert rows.dtype == space.grid.dtype
    drawn = space.grid.sample(count, np.random.default_rng(3))
    first = np.sort(np.unique(drawn, axis=0, return_index=True)[1])
    np.testing.assert_array_equal(rows[first], drawn[first])  # what did not repeat is as drawn


def test_text_and_back() -> None:
    space, rows, _ = every()
    archs = [space.arch(row) for row in rows]
    names = space.network(rows[0]).name, space.network(rows[0], "mine").name
    assert (archs[0], *names) == ("0-0-0-0-0", "small 0-0-0-0-0", "mine")
    assert len(set(archs)) == space.size
    np.testing.assert_array_equal(space.parse(archs), rows)
    for wrong in ("", "0-0-0-0", "0-0-0-0-x", "0-0-0-0--1", "0-0-0-0-2"):
        with pytest.raises(InputError, match="network 2: "):
            space.parse(["0-0-0-0-0", wrong])


def test_parts_that_do_not_fit_are_named() -> None:
    def image() -> tuple[int, ...]:
        return (1, 8, 8, 3)

    def write(layers: Layers, x: int) -> int:
        return layers.conv(x, 16, 3)

    parts = [Part("a", (), image, write), Part("b", (), image, write)]
    space = Space.of_parts("wrong", [Position("nothing", (0,))], parts)
    with pytest.raises(InputError, match=r"'b' .* reads \(1, 8, 8, 3\).* writes \(1, 8, 8, 16\)"):
        space.network([0])


@pytest.mark.parametrize("size", [2**60, 0])
def test_a_batch_too_large_or_none_is_refused(size: int) -> None:
    with pytest.raises(InputError):
        small().counts(np.zeros((1, 5), int), size)


@pytest.mark.parametrize(
    ("choices", "cell", "found"),
    [(("A", "a"), "a", 1), (("A", "a"), "A", 0), ((1, 2), "1.0", 0), ((1.0, 1), "1", 1), (("x", 1), "X", 0),
     (("1", 1), "1", None), ((1.0, 1), "1.00", None)],
)  # fmt: skip
def test_a_cell_is_the_choice_that_is_written_like_it(
    tmp_path: Path, choices: tuple[object, ...], cell: str, found: int | None
) -> None:
    space = Space(
        "two", [Position("p", choices)], (), lambda values, name: small().network([0, 0, 0], name)
    )
    (path := tmp_path / "t.csv").write_text(f"p,score\n{cell},1\n")
    if found is None:
        with pytest.raises(InputError, match=r"it fits .* and .*: give arch instead"):
            space.read_table(path, ("score",))
    else:
        table = space.read_table(path, ("score",))
        assert space.parse_table(table).tolist() == [[found]]


TABLE = "Mode,width (channels),score\nslow,8,1\nfast,16.0,2\nFAST,8,3\n"


def test_a_table_names_candidates_by_their_choices(tmp_path: Path) -> None:
    """Whatever the case and the digits; the same rows by their text, as `parse` reads it."""
    positions = [Position("mode", ("slow", "fast")), Position("width (channels)", (8, 16))]
    space = Space("named", positions, (), lambda values, name: small().network([0, 0, 0], name))
    (path := tmp_path / "t.csv").write_text(TABLE)
    table = space.read_table(path, ("score",))
    assert [row["arch"] for row in table] == ["0-0", "1-1", "1-0"]
    assert space.parse_table(table).tolist() == [[0, 0], [1, 1], [1, 0]]
    assert table.unread == ("score",)
    path.write_text(TABLE.replace("16.0", "24"))
    with pytest.raises(InputError, match=r"line 3: width_channels is '24'; expected one of 8, 16"):
        space.read_table(path)
    path.write_text("mode,score\nfast,1\n")
    with pytest.raises(
        InputError, match=r"lacks the column arch, or width_channels; expected .*0-0"
    ):
        space.read_table(path, ("score",))

"""Cells of NAS-Bench-201 as integers: read, written, refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.nas.spaces import nasbench201
from tests.nas.few_devices import OPERATIONS, cell, some_cells

RESNET = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|"


def test_a_cell_read_by_hand() -> None:
    assert nasbench201.parse(RESNET).tolist() == [3, 0, 3, 1, 0, 1]
    assert nasbench201.POSITIONS == ("0->1", "0->2", "1->2", "0->3", "1->3", "2->3")


@given(st.lists(st.tuples(*[st.sampled_from(OPERATIONS)] * 6), max_size=20))
def test_many_cells_are_read_as_they_are_written(cells: list[tuple[str, ...]]) -> None:
    archs = [cell(operations) for operations in cells]
    rows = nasbench201.parse_many(archs)
    assert rows.shape == (len(cells), 6)
    assert rows.dtype == np.int8
    assert [[OPERATIONS[i] for i in row] for row in rows] == [list(c) for c in cells]
    assert [nasbench201.write(row) for row in rows] == archs


def test_space_around_a_cell_does_no_harm() -> None:
    assert nasbench201.parse_many([f" {RESNET}\n", RESNET]).tolist() == [[3, 0, 3, 1, 0, 1]] * 2


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        (RESNET.replace("3x3~0", "5x5~0"), "unknown operation 'nor_conv_5x5'"),
        (RESNET.replace("none~1", "none~2"), "is not a NAS-Bench-201 cell"),
        (RESNET + "+", "is not a NAS-Bench-201 cell"),
        ("", "is not a NAS-Bench-201 cell"),
        ("x" * 500, "unknown operation 'xxxx"),
    ],
)
def test_a_wrong_cell_is_named_with_its_place(arch: str, words: str) -> None:
    with pytest.raises(InputError, match=r"^network 3: ") as caught:
        nasbench201.parse_many([*some_cells(2), arch, "also wrong"])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_cell_that_is_too_long_lends_nothing_to_the_next() -> None:
    first, _, end = RESNET.partition("+")
    with pytest.raises(InputError, match="network 1"):
        nasbench201.parse_many([f"{RESNET}+{first}", end])
    with pytest.raises(InputError, match="network 1"):
        nasbench201.parse_many([f"{RESNET}+;+{RESNET}", ""])


def test_the_caller_says_how_a_place_is_called() -> None:
    with pytest.raises(InputError, match=r"^line 7: "):
        nasbench201.parse_many(["x"], lambda index: f"line {index + 7}")

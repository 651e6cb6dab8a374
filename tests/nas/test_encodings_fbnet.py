"""FBNet's networks as integers: read, written, refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.nas.spaces import fbnet

ARCH = "7818488874147327324245"


def test_a_network_read_by_hand() -> None:
    assert fbnet.parse(ARCH).tolist() == [
        7, 8, 1, 8, 4, 8, 8, 8, 7, 4, 1, 4, 7, 3, 2, 7, 3, 2, 4, 2, 4, 5,
    ]  # fmt: skip
    assert fbnet.CHOICES[8] == "skip"
    assert len(fbnet.POSITIONS) == 22


@given(st.lists(st.text("012345678", min_size=22, max_size=22), max_size=20))
def test_many_networks_are_read_as_they_are_written(archs: list[str]) -> None:
    rows = fbnet.parse_many(archs)
    assert rows.shape == (len(archs), 22)
    assert rows.dtype == np.int8
    assert rows.tolist() == [[int(digit) for digit in arch] for arch in archs]
    assert [fbnet.write(row) for row in rows] == archs


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        (ARCH[:5] + "9" + ARCH[6:], "unknown operation '9' at layer 6"),
        (ARCH[:5] + "x" + ARCH[6:], "unknown operation 'x' at layer 6"),
        (ARCH[:5] + "٣" + ARCH[6:], "unknown operation '٣' at layer 6"),
        (ARCH[:-1], "has 21 characters; expected 22"),
        ("", "has 0 characters"),
        ("1" * 1000, "has 1000 characters"),
    ],
)
def test_a_wrong_network_is_named_with_its_place(arch: str, words: str) -> None:
    with pytest.raises(InputError, match=r"^network 2: ") as caught:
        fbnet.parse_many([ARCH, arch])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_lengths_that_only_together_are_right_are_refused() -> None:
    with pytest.raises(InputError, match="network 1"):
        fbnet.parse_many([ARCH + "1", ARCH[:-1]])

"""Networks of NAS-Bench-201 and FBNet as integers: read, written, refused with their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.nas.spaces import fbnet, nasbench201
from tests.nas.few_devices import OPERATIONS, cell

RESNET = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|"
LAYERS = "7818488874147327324245"


def test_networks_read_by_hand() -> None:
    assert nasbench201.parse(RESNET).tolist() == [3, 0, 3, 1, 0, 1]
    assert nasbench201.POSITIONS == ("0->1", "0->2", "1->2", "0->3", "1->3", "2->3")
    assert nasbench201.parse_many([f" {RESNET}\n", RESNET]).tolist() == [[3, 0, 3, 1, 0, 1]] * 2
    assert fbnet.parse(LAYERS).tolist() == list(map(int, LAYERS))
    assert fbnet.CHOICES[8] == "skip"


@given(st.lists(st.tuples(*[st.sampled_from(OPERATIONS)] * 6), max_size=20))
def test_many_cells_are_read_as_they_are_written(cells: list[tuple[str, ...]]) -> None:
    archs = [cell(operations) for operations in cells]
    rows = nasbench201.parse_many(archs)
    assert (rows.shape, rows.dtype) == ((len(cells), 6), np.int8)
    assert [[OPERATIONS[i] for i in row] for row in rows] == [list(c) for c in cells]
    assert [nasbench201.write(row) for row in rows] == archs


@given(st.lists(st.text("012345678", min_size=22, max_size=22), max_size=20))
def test_many_layers_are_read_as_they_are_written(archs: list[str]) -> None:
    rows = fbnet.parse_many(archs)
    assert (rows.shape, rows.dtype) == ((len(archs), 22), np.int8)
    assert rows.tolist() == [[int(digit) for digit in arch] for arch in archs]
    assert [fbnet.write(row) for row in rows] == archs


@pytest.mark.parametrize(
    ("module", "arch", "words"),
    [
        (nasbench201, RESNET.replace("3x3~0", "5x5~0"), "unknown operation 'nor_conv_5x5'"),
        (nasbench201, RESNET.replace("none~1", "none~2"), "is not a NAS-Bench-201 cell"),
        (nasbench201, RESNET + "+", "is not a NAS-Bench-201 cell"),
        (nasbench201, "", "is not a NAS-Bench-201 cell"),
        (nasbench201, "x" * 500, "unknown operation 'xxxx"),
        (fbnet, LAYERS[:5] + "9" + LAYERS[6:], "unknown operation '9' at layer 6"),
        (fbnet, LAYERS[:5] + "٣" + LAYERS[6:], "unknown operation '٣' at layer 6"),
        (fbnet, LAYERS[:-1], "has 21 characters; expected 22"),
        (fbnet, "1" * 1000, "has 1000 characters"),
    ],
)
def test_a_wrong_network_is_named_with_its_place(module: Any, arch: str, words: str) -> None:
    right = RESNET if module is nasbench201 else LAYERS
    with pytest.raises(InputError, match=r"^network 2: ") as caught:
        module.parse_many([right, arch, "also wrong"])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 450
    with pytest.raises(InputError, match=r"^line 8: "):
        module.parse_many([right, arch], lambda index: f"line {index + 7}")


def test_what_only_together_is_right_is_refused() -> None:
    first, _, end = RESNET.partition("+")
    for module, archs in (
        (nasbench201, [f"{RESNET}+{first}", end]), (nasbench201, [f"{RESNET}+;+{RESNET}", ""]),
        (fbnet, [LAYERS + "1", LAYERS[:-1]]),
    ):  # fmt: skip
        with pytest.raises(InputError, match="network 1"):
            module.parse_many(archs)

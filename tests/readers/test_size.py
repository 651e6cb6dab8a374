"""The one rule of input sizes: which size of which input a number is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, NetworkError
from lolat.graph import GraphBuilder
from lolat.readers.size import InputForm, Size, as_numbers, as_size, filled, is_of_size


@pytest.mark.parametrize(
    "size", [0, -1, True, 2.5, "224", (224, 0), (True,), (2.5, 3), "2,3", ("2", "3")]
)
def test_sizes_are_positive_whole_numbers(size: Any) -> None:
    with pytest.raises(InputError):
        as_numbers(size)


def test_sizes_as_tuples() -> None:
    assert [as_numbers(s) for s in (None, 224, [3, 4], np.int64(8))] == [(), (224,), (3, 4), (8,)]


@pytest.mark.parametrize(
    ("shapes", "size", "fits"),
    [([(1, 9)] * 2, (9,), True), ([(1, 9)] * 2, ((9,), (9,)), True), ([(1, 9)] * 2, (6,), False),
     ([(1, 8, 8, 3), (1, 7)], (8,), True), ([(1, 3, 16, 8, 8)], (8,), True),
     ([(1, 9)], {"sequence_length": 9}, True), ([(1, 8, 8, 3)], {"sequence_length": 8}, False),
     ([(1, 3, 8, 8)], (8, 8), True), ([(1, 3, 8, 8)], (9,), False), ([(1, 3, 8, 8)], (3, 8), False)],
)  # fmt: skip
def test_a_network_is_of_a_size(shapes: Any, size: Any, fits: bool) -> None:
    builder = GraphBuilder("net")
    tensors = [builder.input(shape) for shape in shapes]
    assert is_of_size(builder.build(tensors), as_size(size)) == fits


def test_sizes_by_name() -> None:
    """A length alone stays apart from a size; the form is the same again after JSON."""
    both = as_size({"sequence_length": 77, "input_size": (3, 8, 8)})
    assert as_size(json.loads(json.dumps(both.given))) == both
    assert hash(both) == hash(as_size({"input_size": [3, 8, 8], "sequence_length": 77}))
    assert as_size({"input_size": 8}) == as_size(8) == Size((8,))
    assert both.options == " --input-size 3,8,8 --sequence-length 77"
    for wrong in ({"pixels": 8}, {"sequence_length": (7, 7)}, {"sequence_length": 0}):
        with pytest.raises(InputError):
            as_size(wrong)


IMAGE, OPEN, FACTS = (8, 8, 3), (None, None, 3), (7,)


@pytest.mark.parametrize(
    ("inputs", "size", "fixed", "shapes"),
    [
        ([IMAGE], (), True, [IMAGE]),
        ([IMAGE], (9,), False, [(9, 9, 3)]),
        ([IMAGE], (8,), True, [IMAGE]),
        ([OPEN], (9,), True, [(9, 9, 3)]),
        ([OPEN], (9, 5), True, [(9, 5, 3)]),
        ([OPEN], (9, 5, 3), True, [(9, 5, 3)]),
        ([OPEN, FACTS], (9,), False, [(9, 9, 3), FACTS]),
        ([IMAGE, FACTS], ((9, 9, 3), (6,)), False, [(9, 9, 3), (6,)]),
        ([FACTS], (5,), False, [(5,)]),
    ],
)
def test_sizes_that_fit(inputs: Any, size: Any, fixed: bool, shapes: Any) -> None:
    named = {f"x{i}": InputForm(shape, -1) for i, shape in enumerate(inputs)}
    made = filled(named, as_size(size), "net", fixed=fixed)
    assert list(made.values()) == shapes


@pytest.mark.parametrize(
    ("inputs", "size", "fixed"),
    [([OPEN], (), False), ([IMAGE], (9,), True), ([OPEN], (9, 5, 4), True), ([IMAGE], (1, 2, 3, 4), False),
     ([IMAGE, FACTS], ((9, 9, 3),), False), ([IMAGE], (3, 9), False), ([OPEN], (3, 9), False)],
)  # fmt: skip
def test_sizes_that_do_not_fit(inputs: Any, size: Any, fixed: bool) -> None:
    named = {f"x{i}": InputForm(shape, -1) for i, shape in enumerate(inputs)}
    with pytest.raises(NetworkError) as caught:
        filled(named, as_size(size), "net", fixed=fixed)
    assert caught.value.code == "input-size"


def test_an_input_of_one_number_a_sample_has_no_size_to_keep() -> None:
    """As the lengths of sequences of an ONNX recurrent layer; a mask that keeps its own is told."""
    x, lengths, mask = (
        InputForm((None, 32), -1),
        InputForm((), is_index=True),
        InputForm((7, 7), -1),
    )
    told: list[str] = []
    filled({"x": x, "lengths": lengths, "mask": mask}, as_size(50), "net", remarks=told)
    assert told == ["mask stays 7x7"]

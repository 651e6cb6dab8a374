"""How deep JSON is nested, compared with what it was made of and with the standard library's parser."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.io import checks as nesting

LEAVES = st.none() | st.booleans() | st.integers() | st.text('[]{}\\"a\n,:', max_size=6)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text('[{"\\'), inner)
)


def depth_of(document: Any) -> int:
    """By the definition: a list or object is one deeper than what it holds."""
    if not isinstance(document, dict | list):
        return 0
    held = document.values() if isinstance(document, dict) else document
    return 1 + max(map(depth_of, held), default=0)


@given(document=DOCUMENTS, deepest=st.integers(0, 6))
def test_text_and_document_are_as_deep_as_they_are(document: Any, deepest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "DEEPEST", deepest)
        wanted = depth_of(document) > deepest
        assert nesting.too_deep(document) is wanted
        for indent in (None, 1):
            assert nesting.text_too_deep(json.dumps(document, indent=indent)) is wanted


@given(document=DOCUMENTS, cut=st.integers(0, 60))
def test_a_part_of_a_text_is_never_deeper_than_the_whole(document: Any, cut: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "DEEPEST", depth_of(document))
        assert not nesting.text_too_deep(json.dumps(document)[:cut])


def test_what_is_beside_each_other_is_not_deep() -> None:
    assert not nesting.text_too_deep("[" + "[],{}," * 1000 + "[]]")
    assert not nesting.too_deep([[] for _ in range(1000)])


def test_a_document_that_holds_itself_or_one_list_again_and_again() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert nesting.too_deep(endless)
    doubled: list[Any] = []
    for _ in range(nesting.DEEPEST - 1):  # 2**99 ways down
        doubled = [doubled, doubled]
    assert not nesting.too_deep(doubled)
    assert nesting.too_deep([doubled])


def test_other_kinds_of_objects_nest_too() -> None:
    deep: Any = 0
    for _ in range(nesting.DEEPEST + 1):
        deep = OrderedDict(a=deep)
    assert nesting.too_deep(deep)

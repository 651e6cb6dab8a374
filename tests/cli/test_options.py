"""What several commands share: the size of an input, with every version of click that is allowed."""

from __future__ import annotations

import importlib.util

import click
import pytest

from lolat.cli import common as options


class Plain(click.ParamType):
    """Like click 8.1's: of no type, so that `Plain[int]` is a TypeError."""


def test_a_click_whose_types_are_not_generic(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError):
        Plain[int]  # type: ignore[misc]
    monkeypatch.setattr(click, "ParamType", Plain)
    spec = importlib.util.spec_from_file_location("options_with_old_click", options.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.Size().convert("3,224,128", None, None) == (3, 224, 128)


@pytest.mark.parametrize("text", ["", "0", "-1", "2.5", "3,,4", "224x224"])
def test_a_size_that_is_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a positive whole number"):
        options.Size().convert(text, None, None)

"""What several commands share: the size of an input, and how far a run is."""

from __future__ import annotations

import importlib.util

import click
import pytest

from lolat.cli import parsing as options
from lolat.cli.common import run
from lolat.cli.main import lolat
from lolat.cli.progress import PlainProgress


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


@pytest.mark.parametrize("text", ["", "0", "-1", "2.5", "3,,4", "224x224", "9" * 400, "1_0", "١٢"])
def test_a_size_that_is_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a positive whole number"):
        options.Size().convert(text, None, None)


@pytest.mark.parametrize("kind", [options.Number, options.Numbers])
@pytest.mark.parametrize("digits", [16, 400, 5000])
def test_a_whole_number_that_no_float_holds(kind: type[options.Number], digits: int) -> None:
    with pytest.raises(
        click.BadParameter, match=r"expected (a )?whole numbers? from 1 \(at most 2"
    ):
        kind(whole=True, least=1).convert("9" * digits, None, None)
    assert kind(whole=True, least=1).convert(str(2**53), None, None) in (2**53, (2**53,))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("text", ["1_0", "١٢", "nan", "inf", "", "1,5", "½"])
def test_a_number_is_written_as_in_tables(text: str, whole: bool) -> None:
    with pytest.raises(click.BadParameter, match="expected a"):
        options.Number(whole=whole).convert(text, None, None)


def test_a_name_that_no_file_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    """What was given is wrong, not the system: exit code 2."""
    assert run(lolat, ["prices", "--prices", "p" * 5000], "lolat") == 2
    assert "File name too long" in capsys.readouterr().err


def test_a_line_a_quarter_and_no_more_than_one_in_five_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    bar = PlainProgress(lambda: now[0])
    bar.start("measuring", 8)
    for _ in range(8):
        now[0] += 3
        bar.step()
    for _ in range(3):  # a short stage, again and again
        bar.start("again", 2)
        bar.step()
        bar.step()
    bar.note("two\nlines")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "lolat: measuring: 8 steps",
        "lolat: measuring: 2 of 8, about 18 s left",
        "lolat: measuring: 4 of 8, about 12 s left",
        "lolat: measuring: 6 of 8, about 6 s left",
        "lolat: measuring: 8 of 8, about 0 s left",
        "lolat: again: 2 steps",
        "lolat: two lines",
    ]

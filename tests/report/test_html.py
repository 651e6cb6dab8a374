"""The frame of a page: well formed, nothing loaded, names escaped."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from lolat.io.results import element, escape, table
from lolat.report.comparison import document, figure
from tests.report.pages import Page

EVIL = "<script>alert('\"&')</script>"


@given(st.text())
def test_text_stays_text(text: str) -> None:
    parsed = ElementTree.fromstring(element("p", text, title=text))
    shown = text if text.isprintable() else None
    if shown is not None:
        assert (parsed.text or "") == shown
        assert parsed.get("title") == shown
    assert len(parsed) == 0


def test_what_a_terminal_would_act_on_is_shown() -> None:
    assert escape("a\x1b[1m\n") == "a\\x1b[1m\\n"


def test_numbers_and_names_of_attributes() -> None:
    assert element("rect", x=1.0, y=2.25, class_="a", stroke_width=3) == (
        '<rect x="1" y="2.2" class="a" stroke-width="3"></rect>'
    )
    assert element("b", "<i>", raw=True) == "<b><i></b>"


def test_a_page_is_whole_and_loads_nothing() -> None:
    page = document(f"t {EVIL}", [element("h1", EVIL)])
    found = Page(page)
    assert page.startswith("<!doctype html>")
    assert found.named("script") == []
    assert found.named("html") == [{"lang": "en"}]
    assert EVIL in found.text
    policy = [a["content"] for a in found.named("meta") if "http-equiv" in a]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not any({"src", "href", "onload"} & set(attributes) for _, attributes in found.tags)
    for word in ("http:", "https:", "url(", "@import"):
        assert word not in page
    assert "prefers-color-scheme: dark" in page


def test_a_table_has_a_caption_heads_and_marks() -> None:
    found = Page(table("c <b>", ["name", "a", "b"], [["x&", "1", "2"]], [[False, True, False]]))
    assert found.named("th") == [{"scope": "col"}] * 3 + [{"scope": "row"}]
    assert found.named("td") == [{"class": "best"}, {}]
    assert found.named("b") == []
    assert found.text == "c <b>nameabx&12"
    (region,) = found.named("div")
    assert (region["role"], region["tabindex"], region["aria-label"]) == ("region", "0", "c <b>")


def test_a_figure_says_what_it_is() -> None:
    found = Page(figure("<svg></svg>", "a<", "words"))
    assert found.text == "a< words"

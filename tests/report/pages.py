"""Reads a page as a browser would: what the tests of pages share."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a browser would see: tags with attributes, text; every tag must be closed in order."""

    VOID = ("col", "meta", "!doctype", "input", "link", "option", "rect", "wbr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.texts = "", dict[str, str]()  # of all, and by the element around it
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

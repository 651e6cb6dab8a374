"""Elements and tables of HTML, for pages and for notebooks; text is escaped where it goes in."""

from __future__ import annotations

import html
from collections.abc import Sequence

from lolat.units import plain


def escape(text: str) -> str:
    """Text as a part of a page, in an attribute too; what a terminal would act on is shown as an escape."""
    return html.escape(plain(text), quote=True)


def element(tag: str, content: str = "", raw: bool = False, **attributes: str | float) -> str:
    """One element; `content` is text, or HTML where `raw` says so.

    A number in an attribute has one decimal; `class_` is `class`, and `_` elsewhere is a hyphen.
    """
    written = []
    for name, value in attributes.items():
        text = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        written.append(f' {name.strip("_").replace("_", "-")}="{escape(text)}"')
    return f"<{tag}{''.join(written)}>{content if raw else escape(content)}</{tag}>"


def table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Sequence[Sequence[bool]] | None = None,
) -> str:
    """A table with a caption; the first cell of a row is its head. `best` marks cells like `rows`."""
    top = "".join(element("th", head, scope="col") for head in heads)
    lines = []
    for i, row in enumerate(rows):
        cells = [element("th", row[0], scope="row")]
        for j, text in enumerate(row[1:], start=1):
            stands_out = best is not None and best[i][j]
            cells.append(element("td", text, class_="best") if stands_out else element("td", text))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    # What scrolls must be reachable by the keyboard, and have a name.
    region = f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
    return (
        f"{region}<table>{element('caption', caption)}<thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )

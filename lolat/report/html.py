"""A page in one file: its frame, its style and its tables. Nothing in it is loaded from anywhere.

Text is escaped where it becomes a part of the page (`element`, `table`); what these return is HTML and
goes in as it is.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from lolat.units import plain

STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --dim: #5b6570; --paper: #ffffff; --card: #f5f7f9;
  --line: #d9dfe5; --mark: #0b6e99; --bar: #9aa9b7; --band: #c3dfec; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --dim: #9aa5b0; --paper: #14181c; --card: #1c2228; --line: #333c45;
    --mark: #5cb8e0; --bar: #64727f; --band: #285064; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 46rem; }
.dim, caption, figcaption, dd { color: var(--dim); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--dim); font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 500; }
td.best { font-weight: 700; color: var(--mark); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(268px, 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem .7rem; }
main > figure { width: fit-content; max-width: 100%; }
figcaption { font-size: .9rem; }
figcaption b { color: var(--ink); display: block; }
svg { display: block; max-width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--dim); } svg .label { fill: var(--ink); font-size: 13px; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
.charts svg { width: 100%; }
.frame { fill: none; stroke: var(--line); } .grid { stroke: var(--line); stroke-width: .6; }
.band { fill: var(--band); } .equal { stroke: var(--dim); stroke-width: 1; }
.point { fill: var(--mark); fill-opacity: .6; stroke: var(--mark); stroke-width: .5; }
.bar { fill: var(--bar); } .bar.marked { fill: var(--mark); }
dl { margin: .5rem 0; } dt { font-weight: 600; } dd { margin: 0 0 .5rem; max-width: 46rem; }
code { font: .92em ui-monospace, "Cascadia Mono", Consolas, monospace; overflow-wrap: anywhere; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""


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


def figure(image: str, name: str, words: str = "") -> str:
    """An image (HTML) with its name and some words below it."""
    told = f"{element('b', name)} {escape(words)}".strip()
    return f"<figure>{image}<figcaption>{told}</figcaption></figure>"


def document(title: str, body: Sequence[str]) -> str:
    """A whole page; `body` is HTML."""
    lines = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing may be loaded, whatever a name in a model file says.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"{element('title', title)}\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{lines}\n"
        "</main>\n</body>\n</html>\n"
    )

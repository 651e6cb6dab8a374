"""A page in one file: its frame, its style and its tables. Nothing in it is loaded from anywhere.

Text is escaped where it becomes a part of the page (`element`, `table`); what these return is HTML and
goes in as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from lolat.io.results import element, escape, table

__all__ = ["STYLE", "document", "element", "escape", "figure", "table"]

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

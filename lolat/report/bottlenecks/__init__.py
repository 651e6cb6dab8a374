"""The page of a report as one file: the template filled in, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from lolat.fitting.intervals import noise_floor
from lolat.io.writing import write_text
from lolat.report.bottlenecks.data import Side, document
from lolat.report.html import element
from lolat.report.words import GLOSSARY
from lolat.units import percent, plain, shapes_text

__all__ = ["Side", "embedded", "page", "write_page"]


def page(
    sides: Sequence[Side],
    batch_size: int = 1,
    predictor: str | None = None,
    coverage: float | None = None,
) -> str:
    """The page, as HTML; what comes in and what is raised: see `data.document`."""
    data = document(sides, batch_size, predictor, coverage)
    script = _template("page.js")
    networks = list(dict.fromkeys(s.graph.name for s in sides))
    devices = list(dict.fromkeys(f"{s.model.name}: {s.model.device}" for s in sides))
    both = zip(sides, data["sides"], strict=True)
    return Template(_template("page.html")).substitute(
        title=element("title", f"{' and '.join(networks)}: where the time goes"),
        heading=element("h1", " and ".join(networks)),
        place=element("p", f"on {' and '.join(devices)}", class_="place"),
        words="".join(element("dt", word) + element("dd", text) for word, text in GLOSSARY.items()),
        facts="".join(_facts(s, e, len(sides) > 1) for s, e in both),
        style=_template("page.css"),
        script=script,
        script_hash=f"sha256-{_hash(script)}",
        data=embedded(data),
    )


def write_page(
    path: str,
    sides: Sequence[Side],
    batch_size: int = 1,
    predictor: str | None = None,
    coverage: float | None = None,
) -> None:
    """Write the page; see `page`. InputError where `path` cannot be written."""
    write_text(path, page(sides, batch_size, predictor, coverage))


def embedded(data: Any) -> str:
    """JSON that stays data inside a <script>: no `<`, `>`, `&`, nor anything outside ASCII, as itself."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _template(name: str) -> str:
    return files("lolat.report.bottlenecks").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What a Content-Security-Policy names the script by."""
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _facts(side: Side, entry: Mapping[str, Any], several: bool) -> str:
    """Device, framework, when it was learned and how good it is, as a list."""
    where: Mapping[str, Any] = side.model.document["environment"]
    found = side.model.document["predictors"][entry["formula"]["name"]]
    rows = [("device", side.model.device)]
    if "framework" in where:
        rows.append(
            ("framework", f"{where['framework']} {where.get('framework_version', '')}".strip())
        )
    if isinstance(where.get("date"), str):
        rows.append(("learned", where["date"][:16].replace("T", " ")))
    rows.append(("model", f"{side.model.name}, predictor {entry['formula']['name']}"))
    floor = noise_floor(side.model.document)
    if floor is not None:
        rows.append(("noise floor", f"{percent(floor)}: measuring a block again differs by that"))
    error = found.get("error")
    left_out = error.get("left_out") if isinstance(error, Mapping) else None
    if isinstance(left_out, Mapping) and isinstance(left_out.get("median"), float):
        rows.append(
            ("median error", f"{percent(left_out['median'])}, of blocks left out of the fit")
        )
    rows.append(("input", f"{shapes_text(side.graph.shapes(side.graph.inputs))} a sample"))
    cells = "".join(element("dt", name) + element("dd", plain(text)) for name, text in rows)
    name = element("h3", entry["name"]) if several else ""
    return f"<div>{name}<dl>{cells}</dl></div>"

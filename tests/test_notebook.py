"""The notebook of the how-to pages is played: its tables and pictures are those of this version.

`python -m tests.test_notebook` plays it anew and writes it, with the page made from it and its pictures.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lolat.io.results import Result

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs/how-to/notebook.ipynb"
PAGE, PICTURES = NOTEBOOK.with_suffix(".md"), ROOT / "docs/figures"


def played(cells: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The outputs of the code cells, run one after the other, as a notebook shows their last value."""
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    return [[output(run("".join(c["source"]), names))] for c in cells if c["cell_type"] == "code"]


def run(code: str, names: dict[str, Any]) -> Any:
    *statements, last = ast.parse(code).body
    assert isinstance(last, ast.Expr), "a cell ends with what it shows"
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def output(value: Any) -> dict[str, Any]:
    if hasattr(value, "figure"):
        picture = io.BytesIO()
        value.figure.savefig(picture, dpi=90)
        png = base64.b64encode(picture.getvalue()).decode()
        return {"output_type": "display_data", "metadata": {}, "data": {"image/png": png}}
    data = {"text/plain": [repr(value) if isinstance(value, (Result, float)) else str(value)]}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    about = {"output_type": "execute_result", "metadata": {}, "execution_count": None}
    return {**about, "data": data}


def page(cells: list[dict[str, Any]]) -> str:
    """The notebook as a page: its text, its code, its pictures, and other answers as text."""
    parts, number = ["<!-- made by: python -m tests.test_notebook -->"], 0
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for shown in cell["outputs"]:
            if "image/png" in shown["data"]:
                number += 1
                parts.append(
                    f"![The picture that this cell draws](../figures/notebook-{number}.png)"
                )
            else:
                parts.append(f"```text\n{''.join(shown['data']['text/plain'])}\n```")
    parts.insert(2, "As a notebook: [notebook.ipynb](notebook.ipynb).")
    return "\n\n".join(parts) + "\n"


def timeless(outputs: list[dict[str, Any]]) -> Any:
    """Outputs without ages and the bytes of pictures, which another matplotlib draws with others."""
    data = [{k: k == "image/png" or v for k, v in o["data"].items()} for o in outputs]
    text = json.dumps(data)
    return re.sub(r"\d+ (minute|hour|day)s? ago", "", text)


def test_the_notebook_shows_what_it_answers_now() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    stored = [c["outputs"] for c in cells if c["cell_type"] == "code"]
    for old, new in zip(stored, played(cells), strict=True):
        assert timeless(old) == timeless(new), "play it anew: python -m tests.test_notebook"
    assert PAGE.read_text(encoding="utf-8") == page(cells)
    assert sum("image/png" in o["data"] for outputs in stored for o in outputs) >= 3


def main() -> None:
    """Play the notebook and write it, its page and its pictures."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [c for c in document["cells"] if c["cell_type"] == "code"]
    pictures = []
    for n, (cell, outputs) in enumerate(zip(code, played(document["cells"]), strict=True), 1):
        cell |= {"outputs": outputs, "execution_count": n}
        pictures += [p for o in outputs if (p := o["data"].get("image/png"))]
    for n, picture in enumerate(pictures, 1):
        (PICTURES / f"notebook-{n}.png").write_bytes(base64.b64decode(picture))
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(document["cells"]), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What the bottleneck page is told: counts that give the model's own times, names that stay text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS, GROUPS
from lolat.model import Model
from lolat.model.prediction import Prediction
from lolat.report.bottlenecks import (
    at_sizes,
    embedded,
    numbers,
    page,
    pairs,
    rows_at,
    side_names,
)
from lolat.report.bottlenecks.sections import COLORS, FAMILIES, color_of
from tests import synthetic
from tests.report.pages import Page

MODEL = Model(synthetic.document())


Side = tuple[Graph, Model]


def side(graph: Graph | None = None, model: Model = MODEL) -> Side:
    """A network on a device."""
    return synthetic.network() if graph is None else graph, model


def predicted(*sides: Side, batch_size: int = 1, predictor: str | None = None) -> list[Prediction]:
    return [model.predict(graph, batch_size, predictor) for graph, model in sides]


def other_device() -> Model:
    made = synthetic.document(device="a faster desk")
    entry = made["predictors"]["extended"]["coefficients"]
    made["predictors"]["extended"]["coefficients"] = {k: 0.5 * v for k, v in entry.items()}
    return Model(made)


def data_of(text: str) -> Any:
    found = re.search(r'id="data">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("model", [MODEL, lolat.load("rtx-4090-amp")])
def test_the_numbers_of_each_batch_size_add_up(model: Model) -> None:
    """Folded or not, the rows are the prediction of the model."""
    graph = synthetic.network()
    data = data_of(page(predicted((graph, model), batch_size=300)))
    assert data["sizes"] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert data["start"] == 9
    for of_folding in data["foldings"]:
        for size, rows in zip(data["sizes"], of_folding, strict=True):
            wanted = model.predict(graph, size)
            total = sum(ms for row in rows for ms in row["ms"])
            assert total == pytest.approx(wanted.latency_ms, rel=1e-9)
            assert sum(row["macs"] for row in rows) == wanted.counts["flops"]


def test_bars_are_as_long_as_their_times() -> None:
    found = MODEL.predict(synthetic.network())
    rows = numbers(rows_at([found], None), [found])
    longest = max(row["time"] for row in rows)
    for row in rows:
        (end,) = re.findall(r"transparent ([\d.]+)%", row["bars"][0])
        assert float(end) == pytest.approx(100 * row["time"] / longest, abs=0.02)


def test_a_batch_size_too_large_is_left_out() -> None:
    """2**53 elements of one operation are the most; 200000**2 * 32 * 288 MACs a sample are that at 24.4."""
    found = at_sizes(predicted(side(synthetic.network(size=200_000))))
    assert [answers[0].batch_size for answers in found] == [1, 2, 4, 8, 16]


def test_every_count_has_a_color() -> None:
    assert set(GROUPS.values()) <= set(COLORS)
    for term in COLUMNS:
        assert FAMILIES[color_of(term)] == GROUPS[term]


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([["a", "b"]], [[0], [1]]),
        ([["a", "b"], ["a", "b"]], [[0, 0], [1, 1]]),
        ([["s", "a", "h"], ["s", "x", "y", "h"]], [[0, 0], [1, -1], [-1, 1], [-1, 2], [2, 3]]),
        ([["a"], ["b"]], [[0, -1], [-1, 0]]),
        ([[], ["b"]], [[-1, 0]]),
    ],
)
def test_blocks_of_one_name_stand_together(labels: Any, found: Any) -> None:
    assert pairs(labels) == found


@given(
    st.lists(st.sampled_from("abcdef"), max_size=9), st.lists(st.sampled_from("abcdef"), max_size=9)
)
def test_every_block_stands_in_one_row_in_order(first: list[str], second: list[str]) -> None:
    found = pairs([first, second])
    assert [a for a, _ in found if a >= 0] == list(range(len(first)))
    assert [b for _, b in found if b >= 0] == list(range(len(second)))


def test_what_tells_two_sides_apart() -> None:
    one, faster = predicted(side(), side(model=other_device()))
    (other,) = predicted(side(synthetic.network(name="b")))
    assert side_names([one, faster]) == ["a desk, 2 threads", "a faster desk"]
    assert side_names([one, other]) == ["hand made", "b"]
    assert side_names([one, one.named("x:y", None)]) == ["hand made", "x:y"]
    assert side_names([one, one]) == ["hand made (1)", "hand made (2)"]


EVIL = "</script><script>alert(1)</script><!-- \u2028 & \" ' ]]> <img src=x onerror=alert(2)>"


def evil() -> Side:
    """A network, a device and blocks with names that would be markup."""
    graph = synthetic.network(name=EVIL)
    names = ("</script><b>x", "\u2028\u2029", "\x00\x1b[2J", "\ud800", EVIL)
    blocks = [
        replace(block, name=f"{name} · {name}", label=name)
        for block, name in zip(cut(graph), names, strict=True)
    ]
    graph.cache["blocks"] = tuple(blocks)
    return graph, Model(synthetic.document(device=EVIL))


def test_names_stay_text() -> None:
    text = page(predicted(evil()))
    found = Page(text)
    scripts = [attributes for tag, attributes in found.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert "img" not in {tag for tag, _ in found.tags}
    assert found.texts["h1"].startswith("</script><script>alert(1)</script><!-- \\u2028 & \" ' ]]>")
    assert re.search(r'id="data">[ -;=?-~]*</script>', text)  # ASCII without < and >
    text.encode("utf-8")


@given(st.text(), st.text())
def test_embedded_json_is_data(key: str, value: str) -> None:
    found = embedded({key: [value]})
    assert not set("<>&\u2028\u2029") & set(found)
    assert json.loads(found) == {key: [value]}


def test_the_page_loads_nothing() -> None:
    text = page(predicted(side(), side(model=other_device())))
    found = Page(text)
    (policy,) = [a["content"] for tag, a in found.tags if "http-equiv" in a]
    assert policy is not None
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", parts["script-src"])
    for _, attributes in found.tags:
        assert not {"src", "srcset", "action", "onload", "onerror", "style"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttp", "innerHTML", "eval("):
        assert word not in text


def test_what_is_known_of_the_device() -> None:
    text = Page(page(predicted(side()))).texts
    assert "a desk, 2 threads" in text["dd"]
    assert "tensorflow 2.21.0" in text["dd"]
    assert "3.0 %: measuring a block again differs by that" in text["dd"]
    assert "56x56x3 a sample" in text["dd"]
    bare = Model(synthetic.document(environment={}, noise={}))
    assert "noise floor" not in Page(page(predicted(side(model=bare)))).texts["dt"]

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
from lolat.errors import InputError
from lolat.graph import GraphBuilder
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS, GROUPS
from lolat.model import Model
from lolat.model.attribution import explain_block, explain_network
from lolat.report.bottlenecks import (
    FAMILIES,
    Side,
    are_unlike,
    command_of,
    document,
    embedded,
    page,
    pairs,
    side_names,
    stage,
)
from lolat.report.rows import module_paths
from tests import synthetic
from tests.report.pages import Page

MODEL = Model(synthetic.document())


def side(graph: Any = None, model: Model = MODEL, **named: str) -> Side:
    graph = synthetic.network() if graph is None else graph
    names = {"model_name": "desk.json", "network": "mine:net", **named}
    return Side(model, graph, module_paths(graph, cut(graph)), **names)  # type: ignore[arg-type]


def other_device() -> Model:
    made = synthetic.document(device="a faster desk")
    entry = made["predictors"]["extended"]["coefficients"]
    made["predictors"]["extended"]["coefficients"] = {k: 0.5 * v for k, v in entry.items()}
    return Model(made)


def test_counts_of_every_batch_size() -> None:
    graph = synthetic.network(size=112)
    made = document([side(graph, Model(synthetic.document()))], 300, None, None)
    assert made["sizes"] == [*range(1, 257), 300]
    assert made["steps"] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert made["start"] == 300
    (told,) = made["sides"]
    assert {"flops", "weights", "elements", "acts"} <= told["counts"].keys()
    names = set(told["counts"]) - {"elements"}
    for size in (1, 3, 300):
        wanted = synthetic.totals(graph, size)
        for name in names:
            column = told["counts"][name]
            found = sum(column.get("fixed", [])) + size * sum(column.get("scaled", []))
            assert found == wanted[name]
    assert set(told["formula"]["features"]) <= set(told["counts"])
    assert len(told["operations"]["names"]) == len(graph.operations)


def test_a_term_that_costs_nothing_is_left_out() -> None:
    made = synthetic.document()
    made["predictors"]["extended"]["coefficients"] |= {"flat_macs": 0.0, "norm_ops": 0.5}
    (told,) = document([side(model=Model(made))], 1, None, None)["sides"]
    assert "flat_macs" not in told["formula"]["features"]
    assert "norm_ops" in told["formula"]["features"]


@pytest.mark.parametrize("predictor", ["extended", "two-regime"])
def test_what_each_batch_size_says(predictor: str) -> None:
    graph = synthetic.network()
    made = document([side(graph)], 1, predictor, 0.8)
    (told,) = made["sides"]
    assert told["formula"]["name"] == predictor
    for answer, size in zip(told["answers"], made["sizes"], strict=True):
        wanted = MODEL.predict(graph, size, predictor, 0.8)
        assert answer["interval"] == list(wanted.interval_ms or ())
        assert (answer["coverage"], answer["inside"]) == (0.8, wanted.in_domain)
        assert [told["remarks"][i] for i in answer["remarks"]] == list(wanted.warnings)


def test_times_of_a_formula_that_is_no_sum_of_counts() -> None:
    """Those of the operations add up to the prediction, at each batch size that the page has."""
    model, graph = lolat.load("rtx-4090-amp"), synthetic.network()
    made = document([side(graph, model)], 100, None, None)
    assert made["largest"] is None
    assert made["start"] == 100
    assert made["sizes"][:33] == [*range(1, 33), 40]
    (told,) = made["sides"]
    assert told["times"].keys() == {str(n) for n in made["sizes"]}
    for size in (1, 32, 100):
        total = sum(sum(column) for column in told["times"][str(size)])
        assert total == pytest.approx(model.predict(graph, size).latency_ms, rel=1e-6)


def test_what_a_change_would_save() -> None:
    """The same as `lolat explain` says of the network, and of its longest block."""
    graph = synthetic.network()
    (told,) = document([side(graph)], 2, None, None)["sides"]
    found = explain_network(MODEL, graph, 2).counterfactuals
    assert [(c["by"], c["saves"]) for c in told["changes"]["network"]] == [
        (c.change, c.saves_ms) for c in found
    ]
    own = explain_block(MODEL, graph, "conv2_block1", 2)
    (block,) = [b for b in told["changes"]["blocks"] if told["labels"][int(b)] == "conv2_block1"]
    assert [c["ofBlock"] for c in told["changes"]["blocks"][block]] == [
        c.of_block for c in own.counterfactuals
    ]


def test_commands_name_the_network() -> None:
    command = command_of("my nets:a", (96, 64))
    assert command == "'my nets:a' --input-size 96,64"
    (told,) = document([side(command=command)], 256, None, None)["sides"]
    assert told["asked"].endswith(command)


def test_a_batch_size_too_large_is_left_out() -> None:
    """2**53 elements of one operation are the most; 200000**2 * 32 * 288 MACs a sample are that at 24.4."""
    graph = synthetic.network(size=200_000)
    made = document([side(graph)], 1, None, None)
    assert made["sizes"] == [*range(1, 25)]
    assert made["steps"] == [1, 2, 4, 8, 16]
    with pytest.raises(InputError, match="too large"):
        document([side(graph)], 10**6, None, None)


def test_every_count_has_a_color() -> None:
    terms = [term for _, own in FAMILIES.values() for term in own]
    assert sorted(terms) == sorted(COLUMNS)
    of = {"compute": "flops", "memory": "memory", "weights": "weights", "shapes": "patches",
          "starting": "ops"}  # fmt: skip
    for key, group in of.items():
        assert {GROUPS[term] for term in FAMILIES[key][1]} == {group}
    assert FAMILIES.keys() - of.keys() == {"call"}


def test_the_page_is_told_the_groups() -> None:
    """With them it says in a word what a block is bound by, as the terminal does."""
    made = document([side()], 1, None, None)
    assert made["groups"] == GROUPS
    assert set(GROUPS.values()) | {"nothing", made["call"]} <= set(made["words"])
    assert not {"moving", "memory"} & made.keys()


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


def test_versions_of_a_network_and_unlike_ones() -> None:
    narrow, other = synthetic.network(width=16), images([64, 32, 16])
    assert not are_unlike([side(), side(narrow)])
    assert not are_unlike(
        [side(), side(synthetic.network(stages=9))]
    )  # it has all blocks of the first
    assert not are_unlike([side(), side(model=other_device())])
    assert not are_unlike([side()])
    assert are_unlike([side(), side(other)])


def images(sizes: list[int], channels_first: bool = False, part: str = "part") -> Any:
    """Convolutions on images of these heights, and a head; of an image twice as high as the first."""

    def shape(size: int, channels: int) -> tuple[int, ...]:
        return (1, channels, size, size) if channels_first else (1, size, size, channels)

    builder, last = GraphBuilder("images"), 3
    x = builder.input(shape(2 * sizes[0], 3))
    for i, size in enumerate(sizes):
        x = builder.add("conv", [x], shape(size, 8), f"{part}{i}_conv", kernel=(3, 3), in_channels=last,
                        out_channels=8, groups=1, bias=False)  # fmt: skip
        x = builder.add("relu", [x], shape(size, 8), f"{part}{i}_relu")
        last = 8
    x = builder.add("global_average_pool", [x], (1, 8), "pool")
    x = builder.add("dense", [x], (1, 10), "classes", in_features=8, out_features=10, bias=True)
    return builder.build([x])


@pytest.mark.parametrize("channels_first", [False, True])
def test_stages_by_the_size_of_images(channels_first: bool) -> None:
    graph = images([112, 56, 7], channels_first)
    found = dict.fromkeys(stage(graph, b) for b in cut(graph))
    assert list(found) == [(1, "112 px"), (2, "56 px"), (5, "7 px"), (2000, "head")]


def test_networks_of_other_image_sizes_share_their_stages() -> None:
    other = images([120, 60, 30, 15], part="other")
    made = document([side(images([112, 56, 28])), side(other)], 1, None, None)
    assert made["stages"] == ["112 and 120 px", "56 and 60 px", "28 and 30 px", "15 px", "head"]
    assert [s["stages"] for s in made["sides"]] == [[0, 1, 2, 4], [0, 1, 2, 3, 4]]


def test_what_tells_two_sides_apart() -> None:
    one, faster = side(), side(model=other_device())
    assert side_names([one, faster]) == ["a desk, 2 threads", "a faster desk"]
    assert side_names([one, side(synthetic.network(name="b"))]) == ["hand made", "b"]
    assert side_names([one, side(network="x:y")]) == ["mine:net", "x:y"]
    assert side_names([one, side(model_name="b.json")]) == ["desk.json", "b.json"]
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
    paths = [("<i>", f"<i>/{n}") for n in range(len(blocks))]
    return Side(Model(synthetic.document(device=EVIL)), graph, paths, "m", "n")


def test_names_stay_text() -> None:
    text = page([evil()])
    found = Page(text)
    scripts = [attributes for tag, attributes in found.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not {"img", "b", "i"} & {tag for tag, _ in found.tags}
    assert found.texts["h1"].startswith("</script><script>alert(1)</script><!-- \\u2028 & \" ' ]]>")
    data = re.search(r'id="data">(.*?)</script>', text)
    assert data is not None
    assert re.fullmatch(r"[ -;=?-~]*", data[1])  # ASCII without < and >
    assert json.loads(data[1])["sides"][0]["labels"][:2] == ["</script><b>x", r"\u2028\u2029"]
    text.encode("utf-8")


@given(st.text(), st.text())
def test_embedded_json_is_data(key: str, value: str) -> None:
    found = embedded({key: [value]})
    assert not set("<>&\u2028\u2029") & set(found)
    assert json.loads(found) == {key: [value]}


def test_the_page_loads_nothing() -> None:
    text = page([side(), side(model=other_device())])
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
    text = Page(page([side()])).texts
    assert "a desk, 2 threads" in text["dd"]
    assert "tensorflow 2.21.0" in text["dd"]
    assert "3.0 %: measuring a block again differs by that" in text["dd"]
    assert "56x56x3 a sample" in text["dd"]
    bare = Model(synthetic.document(environment={}, noise={}))
    assert "noise floor" not in Page(page([side(model=bare)])).texts["dt"]

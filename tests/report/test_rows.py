"""What a report says of a prediction: rows folded by module paths, bottlenecks, figures of other tools."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import COLUMNS, FEATURES
from lolat.model import Model
from lolat.model.prediction import Prediction
from lolat.report.rows import (
    TERMS,
    bottleneck_sentence,
    bottlenecks,
    enumeration,
    familiar,
    levels,
    module_paths,
    rows,
)
from tests import synthetic

NETWORK = synthetic.network(stages=2)
PREDICTION = Model(synthetic.document()).predict(NETWORK, 2)


def folded() -> Graph:
    """A network of four blocks, of which two are in a module `tower`."""
    named = {"stem": "stem", "conv1_block1": "tower.a", "conv2_block1": "tower.b"}
    operations = tuple(
        replace(o, name=o.name.replace(key, new), path="/".join(new.split(".")[:-1]))
        for o in NETWORK.operations
        for key, new in [next((i for i in named.items() if i[0] in o.name), ("", ""))]
    )
    return replace(NETWORK, name="folded", operations=operations)


FOLDED = Model(synthetic.document()).predict(folded(), 2)


def test_blocks_as_they_are() -> None:
    found = rows(PREDICTION)
    assert [r.latency_ms for r in found] == [b.latency_ms for b in PREDICTION.blocks]
    assert [r.bound_by for r in found] == [b.bound_by for b in PREDICTION.blocks]
    assert found[0].label == "stem"
    assert found[-1].label == "call"


def test_modules_have_the_sums_of_their_blocks() -> None:
    assert [r.label for r in rows(FOLDED, 1)] == ["stem", "tower", "head", "call"]
    assert rows(FOLDED, 1)[1].summary == "2 blocks"
    assert [r.label for r in rows(FOLDED, 9)] == [r.label for r in rows(FOLDED)]
    whole, call = rows(FOLDED, 0)
    assert (whole.label, whole.summary) == ("folded", "4 blocks")
    assert whole.latency_ms + call.latency_ms == pytest.approx(FOLDED.latency_ms)
    assert whole.share + call.share == pytest.approx(1)
    module, inside = rows(FOLDED, 1)[1], FOLDED.blocks[1:3]
    assert module.latency_ms == sum(b.latency_ms for b in inside)
    for term in FOLDED.features:
        assert module.terms_ms[term] == sum(b.terms_ms[term] for b in inside)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("conv2_block1", ("conv2", "conv2_block1")),
        ("layer1.0.conv", ("layer1", "layer1.0", "layer1.0.conv")),
        ("encoder/layer_3", ("encoder", "encoder/layer_3")),
        ("block_3", ("block_3",)),
        ("block2a", ("block2", "block2a")),
        ("block2d", ("block2", "block2d")),
        ("block2a_expand", ("block2", "block2a", "block2a_expand")),
        ("conv2d", ("conv2d",)),
        ("conv2d_transpose_1", ("conv2d_transpose_1",)),
        ("max_pooling2d", ("max_pooling2d",)),
        ("multi_head_attention_2", ("multi_head_attention_2",)),
        ("dense_4-5", ("dense_4-5",)),
        ("head", ("head",)),
        ("block (2)", ("block (2)",)),
        ("/a//b", ("/a", "/a/", "/a//b")),
        ("", ("",)),
        ("._/", ("._/",)),
    ],
)
def test_where_a_name_is_cut(name: str, found: tuple[str, ...]) -> None:
    assert levels(name) == found


@dataclass(frozen=True)
class Part:
    label: str
    operations: tuple[int, ...]


def paths(*named: tuple[str, list[str]]) -> list[tuple[str, ...]]:
    """Of blocks with a label and the paths of their operations."""
    builder = GraphBuilder("net")
    x = builder.input((1, 8))
    parts = []
    at = 0
    for label, own in named:
        for path in own:
            x = builder.add("relu", [x], (1, 8), "relu", path)
        parts.append(Part(label, tuple(range(at, at + len(own)))))
        at += len(own)
    return module_paths(builder.build([x]), parts)


def test_a_path_in_front_of_a_label() -> None:
    found = paths(
        ("first", ["tower/left", "tower/left"]), ("second", ["tower", "tower/b"]), ("head", [""])
    )
    assert found == [
        ("tower", "tower/left", "tower/left/first"),
        ("tower", "tower/second"),
        ("head",),
    ]  # fmt: skip


def test_a_path_that_says_the_same_as_the_label() -> None:
    found = paths(
        ("layer1.0", ["layer1/0/a", "layer1/0/b"]), ("layer1.1", ["net/layer1/1"]), ("fc", [""])
    )
    assert found == [
        ("layer1", "layer1.0"),
        ("net", "net/layer1", "net/layer1.1"),
        ("fc",),
    ]


def test_what_all_are_in_says_nothing() -> None:
    assert paths(("a", ["model/m"]), ("b", ["model/n"])) == [
        ("model/m", "model/m/a"),
        ("model/n", "model/n/b"),
    ]
    assert paths(("a", ["model"])) == [("model/a",)]
    assert paths() == []


def prediction(blocks: dict[str, dict[str, float]], call_ms: float = 0.1,
               flops: dict[str, int] | None = None) -> Prediction:  # fmt: skip
    """Blocks by name, each with the milliseconds of its terms."""
    terms = np.array([[b.get(f, 0.0) for f in FEATURES] for b in blocks.values()])
    counts = np.zeros((len(blocks), len(COLUMNS)), np.int64)
    for i, name in enumerate(blocks):
        counts[i, COLUMNS.index("flops")] = (flops or {}).get(name, 100)
    return dataclasses.replace(
        Model(synthetic.document()).predict(synthetic.network()),
        network="net", batch_size=1, predictor="extended", interval_ms=(1.0, 2.0), coverage=0.9,
        latency_ms=float(terms.sum()) + call_ms, in_domain=True, warnings=(), names=tuple(blocks),
        features=FEATURES, block_counts=counts, block_terms=terms.reshape(len(blocks), len(FEATURES)),
        call_ms=call_ms,
    )  # fmt: skip


EVEN = {f"b{i}": {"flops": 1.0} for i in range(8)}


def names(found: Prediction) -> list[str]:
    return [b.name for b in bottlenecks(found)]


def test_the_longest_blocks_are_the_bottlenecks() -> None:
    assert names(prediction(EVEN | {"slow": {"acts": 5.0}})) == ["slow"]
    found = prediction(EVEN | {"c": {"flops": 4.0}, "a": {"flops": 6.0}, "b": {"flops": 5.0},
                               "d": {"flops": 3.9}})  # fmt: skip
    assert names(found) == ["a", "b", "c"]  # three at most, the longest first


def test_where_none_stands_out_none_is_named_a_bottleneck() -> None:
    even = prediction(EVEN | {"b9": {"flops": 1.2}})
    assert names(even) == []
    sentence = bottleneck_sentence(even)
    assert sentence.startswith("No block stands out: the longest of ")
    assert ", b9, takes " in sentence
    assert sentence.endswith("of all of them, most is compute.")


def test_of_few_blocks_the_longest_is_named() -> None:
    assert names(prediction({"a": {"flops": 1.0}, "b": {"flops": 1.1}})) == ["b"]


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ({"flops": 9.0, "acts": 1.0}, "it computes."),
        ({"flops": 4.0, "acts": 2.0, "inp": 2.0, "traffic": 2.0}, "it moves data more than it computes."),
        ({"traffic": 9.0}, "it moves data more than it computes."),
        ({"weights": 5.0, "flops": 4.0}, "most of it is reading weights."),
        ({"ops": 5.0, "flops": 4.0}, "most of it is starting operations."),
    ],
)  # fmt: skip
def test_it_says_why(slow: dict[str, float], words: str) -> None:
    text = bottleneck_sentence(prediction(EVEN | {"slow · 3 convs, add": slow}))
    assert text.startswith("Bottleneck: slow takes ")
    assert text.endswith(words)


def test_the_figures_are_right() -> None:
    blocks = {
        "a": {"flops": 6.0},
        "b": {"flops": 3.0},
        **{f"c{i}": {"flops": 0.2} for i in range(5)},
    }
    flops = {"a": 300, "b": 200, **{f"c{i}": 100 for i in range(5)}}
    text = bottleneck_sentence(prediction(blocks, call_ms=2.0, flops=flops))
    # 9 of 12 ms, 500 of 1000 MACs.
    assert text == "Bottlenecks: a and b take 75 % of the time for 50 % of the MACs: they compute."


@pytest.mark.parametrize(
    ("blocks", "call_ms", "words"),
    [
        ({"a": {"traffic": 6.0}, "b": {"traffic": 1.0}}, 0.1, "for 0 % of the MACs: it moves data"),
        ({"a": {"flops": 0.1}, "b": {}}, 0.9, "The fixed cost of a call takes 90 % of the time"),
        ({"a": {}}, 0.1, "fixed cost"),
        ({}, 0.1, "There is nothing to compute."),
        ({"\x1b[31m[red]x[/]": {"flops": 9.0}}, 0.1, r"\x1b[31m[red]x[/] takes"),
    ],
)
def test_what_is_unusual(blocks: dict[str, dict[str, float]], call_ms: float, words: str) -> None:
    found = prediction(blocks, call_ms, dict.fromkeys(blocks, 0))
    assert words in bottleneck_sentence(found)
    assert bottlenecks(prediction({})) == []


def test_every_count_has_words() -> None:
    assert set(COLUMNS) <= set(TERMS)
    words = ["a", "a and b", "a, b and c"]
    assert [enumeration(list("abc")[:n]) for n in (1, 2, 3)] == words


def test_a_network_counted_by_hand() -> None:
    """Per stage two 3x3 convolutions of 32 channels, each with a batch norm (a scale, a shift)."""
    found = familiar(synthetic.network(stages=3, width=32, size=56))
    stage = 2 * (9 * 32 * 32 + 2 * 32)
    dense = 32 * 1000 + 1000
    assert found.parameters == 27 * 32 + 3 * stage + dense
    assert found.activations == (1 + 6) * 56 * 56 * 32 + 1000
    assert found.macs == 56 * 56 * 32 * 27 + 6 * 56 * 56 * 32 * 9 * 32 + 32 * 1000


def test_tables_and_other_normalizations() -> None:
    builder = GraphBuilder("text")
    x = builder.input((1, 7), "int64")
    x = builder.add("embedding", [x], (1, 7, 16), "table", rows=100, out_features=16)
    x = builder.add("layer_norm", [x], (1, 7, 16), "norm")
    x = builder.add("rms_norm", [x], (1, 7, 16), "rms")
    x = builder.add("unit_norm", [x], (1, 7, 16), "unit")
    y = builder.add("concatenate", [x, x], (1, 7, 32), "both")
    y = builder.add("batch_norm", [y], (1, 7, 32), "last")
    y = builder.add("matmul", [y, x], (1, 7, 7), "scores", contracted=16)
    y = builder.add("layer_norm", [y], (1, 7, 7), "behind a product")
    token = builder.tensor((1, 1, 7), batched=False)
    y = builder.add("concatenate", [y, token], (1, 8, 7), "with a token")
    y = builder.add("layer_norm", [y], (1, 8, 7), "behind a token")
    found = familiar(builder.build([y]))
    assert found.parameters == 100 * 16 + 2 * 16 + 16 + 2 * 32 + 2 * 7 + 2 * 7
    assert found.activations == 7 * 7


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "vit"])
def test_as_fvcore_counts(name: str) -> None:
    torch = pytest.importorskip("torch")
    nn = pytest.importorskip("fvcore.nn")
    from lolat.readers import read

    model, shape = _networks(torch)[name]
    model.eval()
    image = torch.zeros(1, *shape)
    ours = familiar(read(model, shape))
    assert ours.parameters == sum(p.numel() for p in model.parameters())
    flops = nn.FlopCountAnalysis(model, image).unsupported_ops_warnings(False)
    macs = sum(n for kind, n in flops.by_operator().items() if kind in ("conv", "linear"))
    assert ours.macs == macs  # without what fvcore counts for norms and pools
    activations = nn.ActivationCountAnalysis(model, image).unsupported_ops_warnings(False)
    assert ours.activations == activations.total()


def _networks(torch: Any) -> dict[str, tuple[Any, tuple[int, ...]]]:
    n = torch.nn

    class Residual(n.Module):  # type: ignore[misc,name-defined]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    def conv(i: int, o: int, k: int = 3, groups: int = 1) -> Any:
        return n.Sequential(
            n.Conv2d(i, o, k, padding=k // 2, groups=groups, bias=False), n.BatchNorm2d(o), n.ReLU()
        )

    ends = [n.AdaptiveAvgPool2d(1), n.Flatten()]
    return {
        "resnet": (
            n.Sequential(conv(3, 16), Residual(n.Sequential(conv(16, 16), conv(16, 16))),
                         *ends, n.Linear(16, 10)),
            (3, 16, 16),
        ),
        "mobilenet": (
            n.Sequential(conv(3, 16), conv(16, 32, 1), conv(32, 32, 3, 32), *ends, n.Linear(32, 10)),
            (3, 16, 16),
        ),
        "vit": (
            n.Sequential(n.Linear(24, 32), Residual(n.Sequential(
                n.LayerNorm(32), n.Linear(32, 64), n.GELU(), n.Linear(64, 32))), n.LayerNorm(32)),
            (9, 24),
        ),
    }  # fmt: skip

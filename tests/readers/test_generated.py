"""Generated networks: the string, and networks whose layers are counted by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat.errors import NetworkError
from lolat.graph.counts import count
from lolat.readers import open_network
from lolat.readers.generated import Config, Fc, Inception, ResNet, Vgg, parse, text

STUDY_VGG, STUDY_INCEPTION = {
    "batch_size": 8, "filters": [16, 32], "hidden_layers": [100, 50], "input_shape": [64, 96, 3],
    "input_size": 1024, "model": "VGG", "num_hidden_layers": 2, "num_layers": 2, "output_shape": 5,
    "vgg_layers": [2, 1],
}, {
    **{k: [[n, n + 1], [n + 2]] for n, k in enumerate(
        ["f1", "f2_in", "f2_out", "f3_in", "f3_out", "f4_out"], start=10)},
    "hidden_layers": [], "inception_layers": [2, 1], "input_shape": [32, 32, 1],
    "model": "Inception", "output_shape": 7, "num_layers": 2, "num_hidden_layers": 0,
}  # fmt: skip


# ---- the string ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("generate:vgg?layers=2,2,3&filters=64,128,256&hidden=100&input=128",
         Vgg((2, 2, 3), (64, 128, 256), (100,), (128, 128, 3), 2)),
        ("generate:vgg", Vgg((2,), (16,), (100,), (128, 128, 3), 2)),
        ("generate:VGG?layers=1,1,1", Vgg((1, 1, 1), (16, 32, 64), (100,), (128, 128, 3), 2)),
        ("generate:vgg?filters=8,9", Vgg((2, 2), (8, 9), (100,), (128, 128, 3), 2)),
        ("generate:vgg?hidden=none&input=64,96&classes=10", Vgg((2,), (16,), (), (64, 96, 3), 10)),
        ("generate:vgg?vgg_layers=3&input_shape=64x96x1&output_shape=10&hidden_layers=5",
         Vgg((3,), (16,), (5,), (64, 96, 1), 10)),
        ("generate:resnet", ResNet((3, 3, 3, 3), (100,), (128, 128, 3), 2, False)),
        ("generate:resnet?layers=3,4,6,3&small=true&output=9",
         ResNet((3, 4, 6, 3), (100,), (128, 128, 3), 9, True)),
        ("generate:fc", Fc((1000,), (128,), 2, 0.2, 0.5)),
        ("generate:fc?hidden=30,20&input=7&dropout=none&input_dropout=0.1",
         Fc((30, 20), (7,), 2, 0.1, None)),
        ("generate:inception?layers=2,1&f1=1&f2_in=2,3&f2_out=4,5,6",
         Inception((2, 1), ((1, 1), (1,)), ((2, 2), (3,)), ((4, 5), (6,)), *[((32, 32), (32,))] * 3,
                   (100,), (128, 128, 3), 2)),
        (f"generate:vgg?config={json.dumps(STUDY_VGG)}", Vgg((2, 1), (16, 32), (100, 50), (64, 96, 3), 5)),
        ("generate:vgg?config=%7B%22output_shape%22%3A%203%7D",
         Vgg((2,), (16,), (100,), (128, 128, 3), 3)),
        (f"generate:inception?config={json.dumps(STUDY_INCEPTION)}",
         Inception((2, 1), *(((n, n + 1), (n + 2,)) for n in range(10, 16)), (), (32, 32, 1), 7)),
        ('generate:fc?config={"batch_size": 8, "dropout": null, "hidden_layers": 1, '
         '"input_dropout": 0, "input_shape": [5], "layers": [9], "model": "FC", "output_shape": 3}',
         Fc((9,), (5,), 3, 0.0, None)),
        ('generate:resnet?config={"resnet_layers": [1, 2, 3, 4], "small": true, "model": "ResNet"}',
         ResNet((1, 2, 3, 4), (100,), (128, 128, 3), 2, True)),
    ],
)  # fmt: skip
def test_what_a_string_says(spec: str, expected: Config) -> None:
    assert parse(spec) == expected


def test_an_input_size_takes_the_place_of_the_input() -> None:
    assert parse("generate:vgg?input=32", (64,)).input == (64, 64, 3)
    assert parse("generate:resnet", (64, 48)).input == (64, 48, 3)
    assert parse("generate:fc", (64,)).input == (64,)
    assert lolat.read("generate:vgg", 96).tensors[0].shape == (1, 96, 96, 3)


def test_the_name_is_the_short_form() -> None:
    made = open_network(f"generate:vgg?config={json.dumps(STUDY_VGG)}")
    name = "vgg?layers=2,1&filters=16,32&hidden=100,50&input=64,96,3&output=5"
    assert made.name == made.graph().name == name
    assert text(parse("generate:resnet?output=2")) == "generate:resnet"
    assert text(parse("generate:inception?layers=2,1&f1=64&f3_in=5")) == (
        "generate:inception?layers=2,1&f3_in=5"
    )


numbers = st.integers(1, 10**7)
images = st.tuples(st.integers(128, 2000), st.integers(128, 2000), numbers)
dense = st.lists(numbers, max_size=4).map(tuple)
shares = st.none() | st.floats(0, 1, exclude_max=True)


@st.composite
def vggs(draw: st.DrawFn) -> Vgg:
    stages = draw(st.lists(st.tuples(st.integers(1, 50), numbers), min_size=1, max_size=7))
    layers, filters = zip(*stages, strict=True)
    return Vgg(layers, filters, draw(dense), draw(images), draw(numbers))


@st.composite
def inceptions(draw: st.DrawFn) -> Inception:
    layers = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    some = st.sampled_from([5, 32, 64])
    stages = st.tuples(*(st.tuples(*[some] * n) for n in layers))
    blocks = [draw(stages) for _ in range(6)]  # f1 to f4_out
    return Inception(layers, *blocks, draw(dense), draw(images), draw(numbers))


four = st.tuples(*[st.integers(1, 50)] * 4)
resnets = st.builds(ResNet, four, dense, images, numbers, st.booleans())
widths = st.lists(numbers, min_size=1, max_size=5).map(tuple)
fcs = st.builds(Fc, widths, st.tuples(numbers), numbers, shares, shares)
configs = vggs() | inceptions() | resnets | fcs


def in_study(config: Config) -> str:
    """A configuration as the study writes it."""
    layers = "layers" if isinstance(config, Fc) else f"{config.family}_layers"
    names = {"layers": layers, "hidden": "hidden_layers", "input": "input_shape"}
    names["output"] = "output_shape"
    return json.dumps({names.get(k, k): v for k, v in vars(config).items()})


@given(configs)
def test_the_short_form_and_the_study_say_everything(config: Config) -> None:
    assert parse(text(config)) == config
    assert parse(f"generate:{config.family}?config={in_study(config)}") == config


keys = st.sampled_from(
    ["layers", "filters", "hidden", "input", "output", "small", "dropout", "f1", "config"]
)
values = st.sampled_from(
    ["1", "2,2", "", "-1", "0", "1e9", "none", "nan", "{}", "[[1]]", "9" * 5000]
)
parts = st.tuples(keys | st.text(max_size=5), values | st.text(max_size=8)).map("=".join)
families = st.sampled_from(["vgg", "resnet", "inception", "fc"]) | st.text(max_size=6)


def parsed(spec: str) -> Config | None:
    """What a string says; None where that is an error of one readable line."""
    try:
        return parse(spec)
    except NetworkError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 700
    return None


@given(families, st.lists(parts | st.text(max_size=9), max_size=3).map("&".join))
def test_a_string_is_a_configuration_or_one_line_of_error(family: str, options: str) -> None:
    config = parsed(f"generate:{family}?{options}")
    assert config is None or parse(text(config)) == config


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)
study_keys = ["vgg_layers", "filters", "hidden_layers", "input_shape", "output_shape", "model"]


@given(st.dictionaries(st.sampled_from(study_keys), json_values) | json_values)
def test_any_json_is_a_configuration_or_one_line_of_error(value: Any) -> None:
    config = parsed(f"generate:vgg?config={json.dumps(value)}")
    assert config is None or isinstance(config, Vgg)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("vg", "no family 'vg' to generate; did you mean vgg? expected one of vgg, resnet, incep"),
        ("", "no family '' to generate; expected one of"),
        ("vgg?layer=2", "vgg has no key 'layer'; did you mean layers? expected one of layers, filt"),
        ("fc?filters=2", "fc has no key 'filters'; did you mean layers? expected one of layers, "),
        ("vgg?layers", "layers has no value; write layers=VALUE"),
        ("vgg?layers=1&layers=2", "layers is given twice"),
        ("vgg?output=1&classes=1", "output is given twice"),
        ("vgg?input=8&config={}", "config=JSON goes alone; give it right after the question mark"),
        ("vgg?layers=2,x", "layers=2,x is no value; expected positive whole numbers, such as layers="),
        ("vgg?layers=0", "layers=0 is no value"),
        ("vgg?hidden=1.5", "hidden=1.5 is no value; expected positive whole numbers, such as hidden"),
        ("vgg?filters=10000001", "filters=10000001 is no value"),
        ("vgg?input=1,2,3,4", "input=1,2,3,4 is no value; expected height, width and channels"),
        ("fc?input=3,4", "input=3,4 is no value; expected the number of features"),
        ("fc?layers=none", "layers=none is no value; expected positive whole numbers, the widths"),
        ("vgg?output=1,2", "output=1,2 is no value; expected a positive whole number"),
        ("resnet?small=5", "small=5 is no value; expected true or false"),
        ("fc?dropout=1", "dropout=1.0 is no value; expected a number from 0 to below 1, or none"),
        ("fc?dropout=nan", "dropout=NaN is no value"),
        ("inception?f1=64,x", "f1=64,x is no value; expected positive whole numbers, such as f1=64"),
        ("vgg?layers=2,2&filters=8", "layers has 2 and filters 1 numbers; give one of each for ev"),
        ("resnet?layers=3,3", "layers has 2 numbers; it has four stages, give four, such as"),
        ("inception?layers=2,2&f1=1,2,3", "f1 has 3 numbers for layers=2,2; give one for all"),
        ("vgg?layers=999,2", "1002 layers or blocks are too many to build; give at most 1000"),
        ("vgg?layers=1,1,1&input=7", "an input of 7x7x3 is too small, each of its stages (3) halves "
                                     "it; give at least input=8"),
        ("vgg?input=400&layers=" + ",".join("1" * 30), "(30) halves it; give fewer stages"),
        ("resnet?input=4", "4x4x3 is too small, a convolution of stride 2 and a 3x3 pooling follow; "
                           "give at least input=5"),
        ("inception?input=90,6", "90x6x3 is too small, a 7x7 convolution without padding follows; "
                                 "give at least input=7"),
        ("vgg?config={", "is not JSON (Expecting property name enclosed in double quotes, at char"),
        ("vgg?config=" + "[" * 200_000, "is not JSON (too large)"),
        ("vgg?config=[1]", "config=[1] is no JSON object; expected such as"),
        ('vgg?config={"model": "ResNet"}', "is of the model 'ResNet'; write generate:resnet"),
        ('vgg?config={"model": "Alex"}', "is of the model 'Alex'; expected vgg"),
        ('vgg?config={"vgg_layer": [1]}', "has the key 'vgg_layer'; did you mean vgg_layers? expec"),
        ('vgg?config={"output_shape": true}', "output=true is no value"),
        ('vgg?config={"vgg_layers": [[1]]}', "layers=[[1]] is no value"),
        ('inception?config={"inception_layers": [2, 1], "f1": [[1], [2]]}',
         "f1 has 1+1 numbers for layers=2,1; give one for all blocks"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(NetworkError) as caught:
        parse(f"generate:{spec}")
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 2


# ---- the networks --------------------------------------------------------------------------------


def learned(inputs: int, outputs: int, kernel: int = 1, norm: bool = True) -> int:
    """Trainable weights of a layer with bias, and of the normalization after it."""
    return kernel**2 * inputs * outputs + outputs + (2 * outputs if norm else 0)


def bottleneck(before: int, filters: int, shortcut: bool) -> int:
    """Trainable weights of a bottleneck."""
    inner = learned(before, filters) + learned(filters, filters, 3) + learned(filters, 4 * filters)
    return inner + (learned(before, 4 * filters) if shortcut else 0)


def plain(before: int, filters: int) -> int:
    """Trainable weights of a small stage of one block: with a shortcut, and the one more."""
    first = learned(before, filters, 3) + learned(before, filters)
    return first + 3 * learned(filters, filters, 3)


HAND = {
    # 8x8 images; 4x4 after the first pooling, 2x2 after the second
    "vgg?layers=2,1&filters=4,8&hidden=10&input=8&output=3": (
        64 * 9 * 3 * 4 + 64 * 9 * 4 * 4 + 16 * 9 * 4 * 8 + 4 * 8 * 10 + 10 * 3,
        (3 * 9 * 4 + 4 + 8) + (4 * 9 * 4 + 4 + 8) + (4 * 9 * 8 + 8 + 16) + 330 + 33,
    ),
    "fc?layers=6,5&input=4&output=3": (
        4 * 6 + 6 * 5 + 5 * 3, (4 * 6 + 6 + 12) + (6 * 5 + 5 + 10) + (5 * 3 + 3)),
    # 32 -> 16 (stem) -> 7 (pooling without padding) -> 4 -> 2 -> 1
    "resnet?layers=1,2,1,1&input=32&hidden=10&output=3": (
        256 * 49 * 3 * 64
        + 49 * (64 * 64 + 9 * 64 * 64 + 64 * 256 + 64 * 256)
        + 16 * (256 * 128 + 9 * 128 * 128 + 128 * 512 + 256 * 512)
        + 16 * (512 * 128 + 9 * 128 * 128 + 128 * 512)
        + 4 * (512 * 256 + 9 * 256 * 256 + 256 * 1024 + 512 * 1024)
        + 1 * (1024 * 512 + 9 * 512 * 512 + 512 * 2048 + 1024 * 2048) + 2048 * 10 + 10 * 3,
        learned(3, 64, 7) + bottleneck(64, 64, True) + bottleneck(256, 128, True)
        + bottleneck(512, 128, False) + bottleneck(512, 256, True) + bottleneck(1024, 512, True)
        + learned(2048, 10, norm=False) + learned(10, 3, norm=False),
    ),
    "resnet?layers=1,1,1,1&input=32&hidden=none&output=3&small=true": (
        256 * 49 * 3 * 64
        + 49 * (9 * 64 * 64 * 4 + 64 * 64)
        + 16 * (9 * 64 * 128 + 9 * 128 * 128 * 3 + 64 * 128)
        + 4 * (9 * 128 * 256 + 9 * 256 * 256 * 3 + 128 * 256)
        + 1 * (9 * 256 * 512 + 9 * 512 * 512 * 3 + 256 * 512) + 512 * 3,
        learned(3, 64, 7) + plain(64, 64) + plain(64, 128) + plain(128, 256) + plain(256, 512)
        + learned(512, 3, norm=False),
    ),
    # 15 -> 5 (7x7, no padding) -> 3 -> 2, blocks of 2x2, -> 1; the second block's input is 2+4+6+7
    "inception?layers=2&f1=2&f2_in=3&f2_out=4&f3_in=5&f3_out=6&f4_out=7&input=15&hidden=10&output=3": (
        25 * 49 * 3 * 64
        + 9 * (64 * 128 + 9 * 128 * 192)
        + 4 * (192 * 2 + 192 * 3 + 9 * 3 * 4 + 192 * 5 + 25 * 5 * 6 + 192 * 7)
        + 4 * (19 * 2 + 19 * 3 + 9 * 3 * 4 + 19 * 5 + 25 * 5 * 6 + 19 * 7) + 19 * 10 + 10 * 3,
        learned(3, 64, 7) + learned(64, 128) + learned(128, 192, 3)
        + sum(learned(n, 2) + learned(n, 3) + learned(3, 4, 3) + learned(n, 5) + learned(5, 6, 5)
              + learned(n, 7) for n in (192, 19))
        + learned(19, 10, norm=False) + learned(10, 3, norm=False),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "macs", "weights"), [(k, *v) for k, v in HAND.items()])
def test_counts_by_hand(spec: str, macs: int, weights: int) -> None:
    made = open_network(f"generate:{spec}")
    assert count(made.graph()).total().flops == macs
    assert sum(math.prod(w.shape) for w in made.model.trainable_weights) == weights


def kinds(spec: str) -> str:
    return " ".join(o.kind for o in lolat.read(f"generate:{spec}").operations)


def test_the_order_of_the_layers() -> None:
    assert kinds("vgg?layers=2&hidden=5&input=8") == (
        "conv relu batch_norm conv relu batch_norm max_pool reshape dense relu dense softmax"
    )
    assert kinds("fc") == "dropout dense relu dropout batch_norm dense softmax"
    assert kinds("fc?dropout=none&input_dropout=none") == "dense relu batch_norm dense softmax"
    residual = "conv relu batch_norm conv relu batch_norm conv batch_norm"
    assert kinds("resnet?layers=2,1,1,1").split(" add ")[1].startswith(f"relu {residual}")


def test_a_network_of_every_family_runs_on_any_channels() -> None:
    import numpy as np

    for spec in (
        "vgg?layers=1&input=8,10,2&output=4",
        "resnet?layers=1,1,1,1&small=true&input=5,6,1&output=4",
        "inception?layers=1&input=7,9,1&output=4",
        "fc?layers=3,3&input=9&output=4",
    ):
        network = open_network(f"generate:{spec}", weights=True).model
        answer = network(np.zeros((2, *network.input_shape[1:]), "float32"), training=True)
        assert answer.shape == (2, 4)
        assert np.allclose(np.sum(answer, axis=1), 1, atol=1e-5)

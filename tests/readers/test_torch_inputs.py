"""Inputs and outputs of PyTorch's modules, their sizes, and what grows with the batch."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lolat
from lolat.errors import NetworkError
from lolat.graph.counts import count
from tests.readers.torch_networks import (
    Does,
    conv,
    counted,
    does,
    graph_of,
    kinds,
    total,
    unet,
    vit,
)

# ---- inputs and outputs ------------------------------------------------------------------------------


def test_a_network_without_memory_that_makes_tensors_as_it_runs() -> None:
    """A cache of keys starts as an empty tensor on the device of what it is given."""

    def cached(m: Any, x: Any) -> Any:
        empty = torch.tensor([], dtype=x.dtype, device=x.device)
        return m.layer(torch.cat([empty.reshape(0, 8), x]))

    with torch.device("meta"):
        layer = nn.Linear(8, 4)
    assert kinds(does(cached, (8,), layer=layer))[-1] == "dense"


class Two(nn.Module):
    """An image and a text."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Conv2d(3, 4, 3), nn.Embedding(20, 4)

    def forward(self, image: Any, text: Any, scale: float = 1.0) -> Any:
        return self.image(image).mean((2, 3)) + self.text(text).mean(1) * scale


def test_several_inputs() -> None:
    shapes = (3, 8, 8), (5,)
    graphs = [
        lolat.read(Two(), shapes),
        lolat.read(Two(), list(shapes)),
        lolat.read((Two(), (torch.zeros(1, 3, 8, 8), torch.zeros(1, 5, dtype=torch.int64)))),
        lolat.read((Two(), {"image": torch.zeros(1, 3, 8, 8),
                            "text": torch.zeros(1, 5, dtype=torch.int64)})),
    ]  # fmt: skip
    for graph in graphs:
        assert sorted(kinds(graph)) == sorted(
            ["conv", "global_average_pool", "embedding", "reduce", "multiply", "add"]
        )
        assert {graph.tensors[i].shape for i in graph.inputs} == {(1, 3, 8, 8), (1, 5)}
        assert total(graph, 4) == total(graphs[0], 4)


def test_inputs_that_come_with_a_network_get_the_size_that_is_given() -> None:
    """A convolution of 3x3 without padding, by hand: 27 MACs for each output."""
    conv, text = nn.Conv2d(3, 1, 3), nn.Embedding(9, 4)
    image, tokens = torch.zeros(2, 3, 8, 8), torch.zeros(2, 5, dtype=torch.int64)
    for inputs in (image, (image,), {"input": image}):
        for size, side in (
            (None, 8),
            (16, 16),
            ((16, 16), 16),
            ((3, 16, 16), 16),
            ([(3, 16, 16)], 16),
        ):
            graph = lolat.read((conv, inputs), size)
            assert graph.shapes(graph.inputs) == [(1, 3, side, side)]
            assert count(graph).total(1).flops == 27 * (side - 2) ** 2
    graph = lolat.read((text, tokens), 7)
    assert graph.shapes(graph.inputs) == [(1, 7)]
    for size in ((1, 16, 16), 2, (16, 16, 16, 16), [(3, 8, 8), (5,)]):
        with pytest.raises(NetworkError):
            lolat.read((conv, image), size)


TEXTS = {"sequence_length": 7}
GRU = nn.GRU(6, 4, batch_first=True)


def pair(*shape: int, tokens: int = 0) -> Any:
    """A convolution of 1x1 of images, of videos or of steps, and its input; or with tokens beside it."""
    if tokens:
        return Two(), (torch.zeros(1, *shape), torch.zeros(1, tokens, dtype=torch.int64))
    convolution: Any = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}[len(shape)]
    return convolution(shape[0], 2, 1), torch.zeros(1, *shape)


@pytest.mark.parametrize(
    ("network", "size", "shapes"),
    [
        (pair(3, 8, 8, tokens=5), TEXTS, [(1, 3, 8, 8), (1, 7)]),
        (pair(3, 8, 8, tokens=5), 6, [(1, 3, 6, 6), (1, 5)]),
        (pair(3, 8, 8, tokens=5), {"input_size": 6, **TEXTS}, [(1, 3, 6, 6), (1, 7)]),
        (pair(3, 4, 8, 8), 6, [(1, 3, 4, 6, 6)]),
        (pair(80, 30), TEXTS, [(1, 80, 7)]),
        ((nn.LSTM(6, 4, batch_first=True), torch.zeros(1, 9, 6)), TEXTS, [(1, 7, 6)]),
        (nn.Embedding(9, 4), TEXTS, [(1, 7)]),
        (nn.Linear(6, 4), TEXTS, [(1, 7, 6)]),
        (Does(lambda m, x: m.pool(m.read(x)[0]), read=GRU, pool=nn.Linear(4, 2)), 7, [(1, 7, 6)]),
        (Does(lambda m, x: m.body(m.table(x)), body=nn.Linear(4, 2), table=nn.Embedding(9, 4)), TEXTS,
         [(1, 7)]),
    ],
)  # fmt: skip
def test_a_size_is_of_images_and_a_length_of_tokens_and_steps(
    network: Any, size: Any, shapes: list[tuple[int, ...]]
) -> None:
    graph = lolat.read(network, size)
    assert graph.shapes(graph.inputs) == shapes


def test_inputs_that_keep_their_size_are_told() -> None:
    (told,) = lolat.read(pair(3, 8, 8, tokens=5), TEXTS).warnings
    assert told == "input 1 stays 3x8x8"
    (told,) = lolat.read(pair(3, 4, 8, 8), 6).warnings
    assert "its frames, or its depth, stay" in told
    assert any("4 frames" in said for said in lolat.read(CLIPS).warnings)


@pytest.mark.parametrize(
    ("network", "size"),
    [
        (pair(1, 80, 30), TEXTS),  # an image, or a spectrogram with its steps last
        (nn.Conv3d(2, 3, 3), 6),  # of unknown depth
        (Two(), {"input_size": 6, **TEXTS}),
        (pair(3, 8, 8), {"input_size": 6, **TEXTS}),
        ((nn.Embedding(9, 4), torch.zeros(1, 5, dtype=torch.int64)), {"input_size": 6, **TEXTS}),
    ],
)
def test_sizes_that_could_be_of_several_axes_are_refused(network: Any, size: Any) -> None:
    with pytest.raises(NetworkError) as caught:
        lolat.read(network, size)
    assert caught.value.code == "input-size"


def test_a_network_that_was_read_is_refused_at_another_size() -> None:
    graph, model = lolat.read(nn.Conv2d(3, 1, 3), 8), lolat.load("h100-fp32")
    assert lolat.read(graph, 8) is graph
    for ask in (lolat.read, lambda g, size: model.predict(g, input_size=size)):
        with pytest.raises(NetworkError) as caught:
            ask(graph, 16)
        assert caught.value.code == "input-size"
    now = model.predict((nn.Conv2d(3, 1, 3), torch.zeros(1, 3, 8, 8)))
    larger = model.budget((nn.Conv2d(3, 1, 3), torch.zeros(1, 3, 8, 8)), 1e3, "resolution")
    assert larger.best.value > 8 == now.input_shapes[0][-1]


def test_an_input_without_a_batch() -> None:
    module = Does(lambda m, x, mask: F.scaled_dot_product_attention(x, x, x, mask))
    graph = graph_of(module, (), (torch.zeros(3, 2, 5, 4), torch.zeros(5, 5)))
    assert [graph.tensors[i].batched for i in graph.inputs] == [True, False]
    assert kinds(graph) == ["attention"]
    assert len(graph.operations[0].inputs) == 4
    mask = torch.zeros(5, 5, dtype=torch.bool)
    graph = graph_of(module, (), (torch.zeros(3, 2, 5, 4), mask))
    assert len(graph.operations[0].inputs) == 3


def test_outputs_of_any_structure() -> None:
    def forward(m: Any, x: Any) -> Any:
        y = m.conv(x)
        return y.mean((2, 3)), {"deep": [y, (y.relu(), None)]}

    graph = does(forward, (3, 6, 6), conv=conv())
    assert graph.shapes(graph.outputs) == [(1, 8), (1, 8, 6, 6), (1, 8, 6, 6)]
    assert len(graph_of(unet, (3, 16, 16)).outputs) == 1
    # What no output needs is left out.
    both = does(lambda m, x: (m.other(x), m.conv(x))[1], (3, 6, 6), conv=conv(), other=conv())
    assert kinds(both) == ["conv"]


OWN = conv()
OWN.default_cfg = {"input_size": (3, 32, 40)}  # as timm's
CLIPS: Any = nn.Conv3d(3, 2, 1)
CLIPS.default_cfg = {"input_size": (3, 4, 6, 6)}  # four frames


@pytest.mark.parametrize(
    ("module", "size", "shape"),
    [
        (nn.Conv1d(2, 3, 3), (50,), (2, 50)), (conv(4), (20,), (4, 20, 20)),
        (nn.Conv3d(2, 3, 3), (4, 6, 6), (2, 4, 6, 6)), (nn.Linear(7, 3), (), (7,)),
        (nn.Linear(7, 3), (7,), (7,)), (nn.Linear(7, 3), (5,), (5, 7)),
        (OWN, (), (3, 32, 40)), (OWN, (16,), (3, 16, 16)), (OWN, (16, 24), (3, 16, 24)),
        (CLIPS, (8,), (3, 4, 8, 8)), (CLIPS, (8, 10), (3, 4, 8, 10)), (CLIPS, (2, 8, 8), (3, 2, 8, 8)),
        (vit, (32,), (3, 32, 32)),  # the embedding of positions is not what reads the image
    ],
)  # fmt: skip
def test_sizes_as_the_module_has_them(module: Any, size: Any, shape: tuple[int, ...]) -> None:
    graph = graph_of(module, size)
    assert graph.shapes(graph.inputs) == [(1, *shape)]


# ---- the batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_counts_grow_with_the_batch(batch_size: int) -> None:
    def forward(m: Any, x: Any) -> Any:
        token = m.token.expand(x.size(0), -1, -1)
        x = torch.cat([token, m.conv(x).flatten(2).transpose(1, 2)], 1)
        return m.fc((x + m.position)[:, 0])

    graph = does(
        forward, (3, 4, 4), conv=conv(), fc=nn.Linear(8, 2),
        token=nn.Parameter(torch.zeros(1, 1, 8)), position=nn.Parameter(torch.zeros(1, 17, 8)),
    )  # fmt: skip
    assert kinds(graph) == ["conv", "concatenate", "add", "slice", "dense"]
    traffic = batch_size * (2 * 17 * 8 + 2 * 17 * 8 + 2 * 8 + 8 + 2) + 17 * 8
    assert total(graph, batch_size).traffic == traffic


@pytest.mark.parametrize(
    "code",
    [lambda m, x: torch.cat([m.conv(one[None]) for one in x]), lambda m, x: m.conv(x).view(1, 8, 36)],
)  # fmt: skip
def test_what_depends_on_the_input_grows(code: Any) -> None:
    """Also where the code looks at the batch size, or works at one alone."""
    counts = count(does(code, (3, 6, 6), conv=conv()))
    once = counted(conv(), (3, 6, 6))
    assert (counts.total(3).flops, counts.total(3).weights) == (3 * once.flops, once.weights)


def test_what_is_made_as_large_as_the_batch_grows() -> None:
    """A map of positions, convolved; not a table of parameters, nor one whose size the code says."""

    def forward(m: Any, x: Any) -> Any:
        places = torch.zeros(x.size(0), 3, 6, 6)
        return m.conv(x) + m.conv(places) + m.conv(m.table) + m.conv(torch.zeros(3, 6, 6))

    once = counted(conv(), (3, 6, 6)).flops
    graph = does(forward, (3, 6, 6), conv=conv(), table=nn.Parameter(torch.zeros(1, 3, 6, 6)))
    assert total(graph, 1).flops == 4 * once
    assert total(graph, 5).flops == (2 * 5 + 2) * once


@pytest.mark.parametrize(
    "code",
    [
        lambda q, n: q[:, None].repeat(1, n, 1),
        lambda q, n: q[:, None].expand(-1, n, -1),
        lambda q, n: q.repeat(n, 1, 1),
    ],
)
def test_queries_that_are_repeated_for_each_sample_grow(code: Any) -> None:
    """As DETR has them, the batch on the second axis or the first."""
    graph = does(
        lambda m, x: (m.fc(code(m.queries, len(x))), x * 2), (8,),
        fc=nn.Linear(8, 4), queries=nn.Parameter(torch.zeros(20, 8)),
    )  # fmt: skip
    assert (total(graph, 5).flops, graph.warnings) == (5 * 20 * 8 * 4, ())


class Spectrogram(nn.Module):
    """Adds the axis of channels itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.conv(x[:, None]).relu().mean((2, 3)))


def test_an_image_without_channels_is_given_by_its_two_sides() -> None:
    graph = lolat.read(Spectrogram(), (128, 400))
    assert graph.input_sizes == [(128, 400)]
    assert count(graph).total(1).flops == 126 * 398 * 9 * 8 + 8 * 4
    assert any("takes no channels" in said for said in graph.warnings)


def test_the_inputs_of_a_tokenizer_are_a_mapping() -> None:
    """As the BatchEncoding of transformers, which is a UserDict."""
    network, ids = nn.Embedding(10, 4), torch.zeros(1, 6, dtype=torch.long)
    graph = lolat.read((network, UserDict({"input": ids})))
    assert graph == lolat.read((network, {"input": ids}))
    assert graph.input_sizes == [(6,)]


class Denoiser(nn.Module):
    """A diffusion model that draws the step and the noise of each sample itself."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.image = nn.Embedding(10, 4), nn.Conv2d(3, 4, 1)
        self.more = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        step = torch.randint(0, 10, (x.shape[0],))
        added = self.more(self.steps(step))[:, :, None, None]
        return self.image(x + torch.randn_like(x)) + added


def test_a_table_registered_before_an_image_and_steps_drawn_for_each_sample() -> None:
    """By hand: 4 x 4 MACs of the step and 12 of each of 64 pixels, in each sample; no remark."""
    graph = lolat.read(Denoiser(), (3, 8, 8))
    assert total(graph).flops == 16 + 64 * 12
    assert graph.tensors[graph.outputs[0]].batched
    assert not graph.warnings

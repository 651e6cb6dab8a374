"""Networks in the styles of torchvision and timm, as a whole: published counts, and the names of blocks."""

from __future__ import annotations

import lolat
from lolat.graph.blocks import cut
from lolat.graph.counts import count


def test_resnet50_is_the_published_one() -> None:
    """fvcore's 4.09 GMACs and 11.1 M activations, 25,557,032 parameters, of which 53,120 are of norms.

    Not Keras' own, whose stride is in the first 1x1 of a block: 3.86 GMACs.
    """
    graph = lolat.read("tests.readers.torch_networks:resnet50", 224)
    counts = count(graph).total(8)
    assert (round(counts.flops / 8e9, 2), counts.acts) == (4.09, 8 * 11_113_984)
    assert counts.weights == 25_557_032 - 53_120
    labels = [b.label for b in cut(graph)]
    assert labels[:3] + labels[-2:] == ["stem", "layer1.0", "layer1.1", "layer4.2", "head"]
    assert len(labels) == 18
    names = [o.full_name for o in graph.operations]
    assert (names[0], names[4]) == ("conv1", "layer1.0/conv1")

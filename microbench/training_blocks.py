"""What is measured to learn training: the predefined blocks, five more, and at which batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from lolat.counts import count
from lolat.graph import Graph
from microbench import families, parts
from microbench.blocks import BLOCKS, Predefined

LARGE = (4, 16, 64)
"""Batch sizes beside 1, of which a block is measured at the largest that its counts allow."""
MOST_FLOPS = 3e9  # multiply-accumulates of a forward pass
MOST_ELEMENTS = 7e7  # that it reads and writes
IMAGE = 4  # channels up to which an input is an image: nobody asks for its gradient


def batch_sizes(graph: Graph) -> tuple[int, ...]:
    """1, and the largest of LARGE whose counts stay below the limits.

    2 instead of 1 where a batch norm has one value per channel and sample: PyTorch does not train that.

    Convolutions in groups of several channels are measured at 1 alone: TensorFlow's backward pass of
    one takes seconds on a CPU.
    """
    found = count(graph).total(1)
    if found.patches and any(is_unrolled(o.attributes) for o in graph.operations):
        return (1,)
    elements = found.acts + found.inp + found.traffic
    able = [n for n in LARGE if n * found.flops <= MOST_FLOPS and n * elements <= MOST_ELEMENTS]
    norms = [o for o in graph.operations if o.kind == "batch_norm"]
    alone = any(prod(graph.tensors[o.inputs[0]].shape[1:-1]) == 1 for o in norms)
    return (2 if alone else 1, *able[-1:])


def is_unrolled(a: Mapping[str, Any]) -> bool:
    """Whether an operation's attributes are of a convolution in groups of several channels."""
    return bool(1 < a.get("groups", 1) < a.get("in_channels", 0))


def reads_image(graph: Graph) -> bool:
    """Whether a block stands at the entrance of a network."""
    return all(graph.tensors[i].shape[-1] <= IMAGE for i in graph.inputs)


TRAINING_BLOCKS: tuple[Predefined, ...] = tuple(
    replace(b, batch_sizes=batch_sizes(b.make()))
    for b in (
        *BLOCKS,
        Predefined("3 dense, dropout, norm 784", partial(parts.regularized, 784, 512, 3), ()),
        Predefined("small vgg 3x32x32", partial(parts.small_vgg, 32, 32), ()),
        # Small networks from image to classes, some of which are started too.
        Predefined("small resnet 3x224x224", partial(families.residual_network, 224, 64), ()),
        Predefined(
            "small mobile net 3x224x224", partial(families.mobile_network, 224, "relu6", False), ()
        ),
        Predefined(
            "small mobile net silu 3x192x192",
            partial(families.mobile_network, 192, "silu", True),
            (),
        ),
    )
)

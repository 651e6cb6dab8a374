"""Remarks on networks of any framework: data types, dropout, and code that only runs in training."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from lolat.errors import NetworkError
from lolat.graph import Graph
from lolat.graph.modes import has_wide_adapters, product_dtypes

ALWAYS_DROPS = (
    "its dropouts drop elements at inference too: a CPU may take longer for their random numbers than for "
    "the network, and runs attention as single operations"
)
AS_COMPILED = "add --launch compiled, unless the answer says compiled"
_DROPS = re.compile(r"\.\w*drop|(StochasticDepth|PatchDropout)\w*\.p")


def fixed_words(what: str, size: object) -> str:
    """The remark on a batch size that a network fixes."""
    return f"{what} is fixed at {size}: taken as the batch size and read at 1"


def quantized_error(what: str, expected: str) -> NetworkError:
    """The error for a network that a framework has quantized; `expected`: the form to give instead."""
    return NetworkError(
        f"{what} is quantized, which is not read; expected {expected}, or a quantized ONNX file",
        code="quantized",
    )


def drop_rates(layer: Any) -> list[float]:
    """Drop rates in the attributes of a layer, such as `drop_prob`, that apply in training."""
    return [
        value for name, value in vars(layer).items()
        if isinstance(value, float) and 0.0 < value <= 1.0
        and _DROPS.search(f"{type(layer).__name__}.{name}")
    ]  # fmt: skip


def several_of(layers: Iterable[Any]) -> list[str]:
    """Texts with the number and class of layers, one for each class: "12 DropPath"."""
    return [f"{n} {name}" for name, n in Counter(type(one).__name__ for one in layers).items()]


LIBRARIES = ("torch", "torchvision", "timm", "transformers", "keras", "tensorflow")
_ON_TRAINING = re.compile(
    r"(?:if|while|not|and|or) +(?:\w+\.)?training\b|\b(?:\w+\.)?training +(?:and|or|else|is)\b"
    r"|set_grad_enabled\((?:\w+\.)?training\b"
)


def training_branches(
    modules: Iterable[Any], method: str, has_checkpoints: bool = True
) -> Iterator[str]:
    """Yield a text for each user's class whose `method` branches on training: that branch is not read.

    `has_checkpoints`: True if checkpoints are recorded elsewhere; branches for them are then ignored.
    """
    for kind in dict.fromkeys(type(one) for one in modules if not drop_rates(one)):
        own = kind.__module__.partition(".")[0] not in LIBRARIES
        if own and asks_for_training(getattr(kind, method), has_checkpoints=has_checkpoints):
            yield f"what {kind.__name__}.{method} does if it is training"


def asks_for_training(code: Any, word: str = "training", has_checkpoints: bool = True) -> bool:
    """True if a class or function branches on a word for training.

    Branches for a dropout, and for a checkpoint if `has_checkpoints`, are ignored.
    """
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):  # it has no file
        return False
    known = "checkpoint|drop" if has_checkpoints else "drop"
    lines = (line for line in source.splitlines() if not re.search(known, line))
    return any(found and word in found.group() for found in map(_ON_TRAINING.search, lines))


def with_dtype_remarks(graph: Graph) -> Graph:
    """The graph, with a remark if it multiplies complex numbers or numbers of several data types."""
    dtypes = sorted(dtype for dtype in product_dtypes(graph) if "int" not in dtype)
    if found := [dtype for dtype in dtypes if dtype.startswith("complex")]:
        remark = (
            f"its products in {' and '.join(found)} count as one multiply-accumulate each, for which a "
            "device computes three or four of real numbers: their time is too low; in training, gradients "
            "and states of complex weights count half their bytes"
        )
        graph = replace(graph, warnings=(*graph.warnings, remark))
        dtypes = [dtype for dtype in dtypes if dtype not in found]
    if len(dtypes) < 2:
        return graph
    if has_wide_adapters(graph):
        remark = (
            "its adapters are in float32, and their products are counted in the base's precision"
        )
        return replace(graph, warnings=(*graph.warnings, remark))
    remark = (
        f"its products are in {' and '.join(dtypes)}: all are taken to be in the precision of the "
        "answer; give the network in one of them"
    )
    return replace(graph, warnings=(*graph.warnings, remark))

"""One network from two frameworks: known networks as PyTorch has them, and as an exporter wrote them.

Equal are all counts, the steps of work of a forward pass and of training in every mode, and the memory.
Left out by name is what the exporter itself changes: it writes the transposes between images and tokens,
which are views in PyTorch, it joins and drops concatenations, and it writes chunks as slices. Left out too
is what eager PyTorch alone launches beside an operation, which `tests/readers/test_torch_code.py` compares
with PyTorch's profiler.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections import Counter
from typing import Any

import pytest
from msgspec import structs

pytest.importorskip("onnxscript")
pytest.importorskip("torch")

import onnx
import torch

from lolat.graph import Graph
from lolat.graph.analysis import analyze
from lolat.graph.counts import COLUMNS, count
from lolat.graph.kinds import AHEAD
from lolat.graph.modes import Mode
from lolat.graph.network import ExtraBytes
from lolat.graph.work import CLASSES, JOINED, work_of
from lolat.readers.onnx import read_model as read_onnx
from lolat.readers.size import Size
from lolat.readers.torch import read_model
from lolat.readers.torch.named import named
from tests.readers.test_onnx_exports import quiet, random

NETWORKS = {
    "torchvision": """
        mobilenet_v2 mobilenet_v3_small convnext_tiny shufflenet_v2_x0_5 inception_v3:96
        lraspp_mobilenet_v3_large""",
    "timm": """
        deit_tiny_patch16_224:224 swin_tiny_patch4_window7_224:224 coatnet_0_rw_224:224 levit_128s:224
        poolformer_s12 tf_efficientnetv2_b0 eca_resnext26ts skresnet18""",
}  # fmt: skip
"""Package -> its networks, behind a colon the side of the image where it is not 64.

Each but two has a kind of operation, or of stride, padding and groups, that no other has; further ones of
the packages that were tried have none besides.
"""
SIDES = {
    f"{package}:{name.partition(':')[0]}": int(name.partition(":")[2] or 64)
    for package, names in NETWORKS.items()
    for name in names.split()
}
JOINS = {"torchvision:inception_v3"}
"""Networks that concatenate what was concatenated."""
MASKS = {"timm:swin_tiny_patch4_window7_224": 5}
"""Networks with masks, and their number: a file stores these as it does weights, which have gradients."""
BESIDE = (AHEAD, "filled", "copied")
MODES = [Mode(), Mode("amp"), Mode("float16", training=True), Mode("amp", "compiled")]


def attended(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
             is_causal: bool = False, scale: float | None = None) -> Any:  # fmt: skip
    """Attention as single operations, which is what an exporter writes."""
    scores = query * (scale or 1 / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    return (scores if attn_mask is None else scores + attn_mask).softmax(-1) @ value


def exported(model: Any, side: int) -> Any:
    """The network as ONNX; batch norms stay, and the batch size is open."""
    file = io.BytesIO()
    with quiet():
        torch.onnx.export(
            model, (torch.zeros(1, 3, side, side),), file, dynamo=False, input_names=["x"],
            dynamic_axes={"x": {0: "batch"}}, training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def of_both(graph: Graph) -> Graph:
    """The graph with transposes, dropouts and expansions free, splits as slices, and nothing beside."""
    operations = []
    for o in graph.operations:
        kept = {name: value for name, value in o.attributes.items() if name not in BESIDE}
        is_free = o.kind in ("transpose", "dropout", "repeat")
        kind = "slice" if o.kind == "split" else o.kind
        operations.append(
            structs.replace(o, kind="reshape", attributes={})
            if is_free
            else structs.replace(o, kind=kind, attributes=kept)
        )
    return structs.replace(graph, operations=tuple(operations))


def facts(graph: Graph, joins: bool, others: int = 0) -> dict[Any, Any]:
    """Counts, steps and bytes of memory at batch size 2; `joins`: without concatenations.

    `others`: parameters that are not compared, as buffers are not: a file has what was computed of them.
    """
    graph = structs.replace(graph, extra_bytes=ExtraBytes())
    left_out = {"traffic", "ops", "serial", "threaded", "joined_elements", "move_ops"}
    totals = zip(COLUMNS, count(graph).total(2), strict=True)
    found: dict[Any, Any] = {n: c for n, c in totals if not (joins and n in left_out)}
    for mode in MODES[: 3 if joins else None]:
        work = work_of(graph, 2, mode)
        moves = (work.number > 0) | (work.bytes > 0)
        moves &= (work.kind != CLASSES.index(JOINED)) | (not joins)
        steps = zip(
            *(array[moves].tolist() for array in work._replace(operation=work.kind)), strict=True
        )
        found[mode] = Counter(steps)
        # Eager PyTorch holds the inputs of modules besides, which a file has none of.
        memory = analyze(graph).memory(2, Mode(mode.dtype, "compiled"))
        weights = memory.weights_bytes - others * (2 if mode.dtype == "float16" else 4)
        found["memory", mode] = weights, memory.activations_bytes
    return found


@pytest.mark.parametrize("network", SIDES)
def test_a_network_is_the_same_from_pytorch_and_exported(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(network.partition(":")[0]) is None:
        pytest.skip(f"{network} needs a package that is not installed")
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attended)
    side = SIDES[network]
    model = random(named(network, Size((side,)), False)[0])
    heads = [p for n, p in model.named_parameters() if n.lower().startswith("aux")]  # of training
    masks = [b for n, b in model.named_buffers() if n.endswith("attn_mask")]
    ours, theirs = (
        facts(of_both(graph), network in JOINS, sum(t.numel() for t in others))
        for graph, others in (
            (read_model(model, network, (3, side, side)), heads),
            (read_onnx(exported(model, side)), masks),
        )
    )
    different = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
    if network in MASKS:
        mine, its = different.pop(MODES[2])
        assert ((its - mine).total(), (mine - its).total()) == (MASKS[network], 0)
    if (
        "levit" in network
    ):  # it stores its tables of positions in a first call, which the exporter makes
        different = {name: two for name, two in different.items() if name[0] != "memory"}
    assert not different

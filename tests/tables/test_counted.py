"""Counts of a table's networks, in the form in which they were timed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lolat.graph.work import ATTENTION, CLASSES, STEP_COLUMNS
from lolat.tables.counted import Counted, counts_of
from lolat.tables.networks import read_networks


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="could not import 'timm'")
@pytest.mark.parametrize(
    ("version", "fused", "products"), [("pt240-cu124", 12, 0), ("pt113-cu117", 0, 2)]
)
def test_attention_before_pytorch_2_is_single_operations(
    tmp_path: Path, version: str, fused: int, products: int
) -> None:
    """Each of a ViT's 12 blocks has q k^T and the product with v; PyTorch 2.0 brought the fused one."""
    path = tmp_path / f"infer-fp32-nchw-{version}-rtx3090.csv"
    path.write_text(
        "model,infer_samples_per_sec,infer_batch_size,infer_img_size,param_count\n"
        "vit_tiny_patch16_224,100,1,224,5.72\nresnet18,100,1,224,11.69\n"
    )
    vit, resnet = counts_of(read_networks(path).rows)
    assert isinstance(vit, Counted)
    assert isinstance(resnet, Counted)
    of = {name: vit.steps[:, STEP_COLUMNS.index(name)] for name in STEP_COLUMNS}
    assert (of["kind"] == CLASSES.index(ATTENTION)).sum() == fused
    # 3 heads of 64 on 197 positions; the batch multiplies the number of products.
    inner = (of["columns"] == 197) & (of["depth"] == 64) | (of["columns"] == 64) & (
        of["depth"] == 197
    )
    assert (inner & (of["number"] == 3)).sum() == 12 * products
    assert vit.parameters == 5_717_416
    assert not resnet.has(ATTENTION)

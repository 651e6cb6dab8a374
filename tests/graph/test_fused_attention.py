"""Attention in single operations becomes the fused one, predicted as the same network written with that."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.api.loading import load
from lolat.graph.edits import with_fused_attention
from lolat.readers import read

torch = pytest.importorskip("torch")
scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention


class _Attention(torch.nn.Module):
    """Attention of 4 heads in single operations, or the same by PyTorch's fused one."""

    def __init__(self, form: str, fused: bool = False) -> None:
        super().__init__()
        self.form, self.is_fused = form, fused
        self.qkv, self.drop = torch.nn.Linear(64, 192), torch.nn.Dropout(0.1)
        self.bias = torch.nn.Parameter(torch.zeros(1, 4, 49, 49))
        self.register_buffer("allowed", torch.ones(1, 1, 49, 49, dtype=torch.bool))

    def forward(self, x: Any) -> Any:
        batch, steps, size = x.shape
        if self.form in ("columns", "einsum of columns"):
            return self._of_columns(*self.qkv(x).reshape(batch, 3, 4, size // 4, steps).unbind(1))
        parts = self.qkv(x).reshape(batch, steps, 3, 4, size // 4).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        if self.form == "flat":
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        if self.is_fused:
            mask = {"bias": self.bias, "boolean": self.allowed}.get(self.form)
            return scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.form == "query":
            q = q * 0.25
        if self.form == "einsum":
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.25
        else:
            scores = q @ k.transpose(-2, -1)
        scores = scores / 4.0 if self.form in ("bias", "boolean", "plain") else scores
        scores = scores + self.bias if self.form == "bias" else scores
        if self.form == "boolean":
            scores = scores.masked_fill(self.allowed, float("-inf"))
        if self.form == "learned":
            scores = scores * self.bias[:, :, :1, :1]
        weights = self.drop(scores.softmax(-1))
        return (weights @ v, weights) if self.form == "shown" else weights @ v

    def _of_columns(self, q: Any, k: Any, v: Any) -> Any:
        """Attention of (batch, heads, size, steps), as networks of images have it."""
        if self.is_fused:
            return scaled_dot_product_attention(q.mT, k.mT, v.mT).mT
        if self.form == "columns":
            return v @ self.drop((q.mT @ k * 0.25).softmax(-1)).mT
        scores = torch.einsum("bhdi,bhdj->bhij", q * 0.25, k)
        return torch.einsum("bhij,bhdj->bhid", scores.softmax(-1), v).mT


@pytest.mark.parametrize(
    "form", ["plain", "query", "einsum", "bias", "boolean", "columns", "einsum of columns"]
)
def test_fused_attention_is_that_of_the_same_network_written_with_it(form: str) -> None:
    by_hand, fused = (read((_Attention(form, f), torch.zeros(1, 49, 64))) for f in (False, True))
    changed = with_fused_attention(by_hand, range(len(by_hand.operations)))
    assert changed is not None
    device = load("l4")
    times = [device.predict(g, 8).latency_ms for g in (by_hand, changed, fused)]
    assert times[1] == pytest.approx(times[2])
    assert times[0] > 1.1 * times[1]
    found = next(c for c in device.explain(by_hand, 8).counterfactuals if c.kind == "attention")
    assert found.latency_ms == pytest.approx(times[2])


@pytest.mark.parametrize("form", ["shown", "learned", "flat"])
def test_what_may_be_no_attention_that_pytorch_fuses_stays(form: str) -> None:
    """Weights that are returned, a learned factor of the scores, no axis of heads."""
    graph = read((_Attention(form), torch.zeros(1, 49, 64)))
    assert with_fused_attention(graph, range(len(graph.operations))) is None

"""Parameters, MACs and activations as other tools have them: hand counts, and fvcore's."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.graph import GraphBuilder
from lolat.report.rows import Figures, familiar
from tests import synthetic


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


def test_the_line() -> None:
    shown = str(Figures(25_557_032, 4_089_184_256, 11_114_472))
    assert shown == (
        "25.6 M parameters · 4.09 G mult-adds · 11.1 M activations "
        "(one sample, as torchinfo and fvcore count)"
    )


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

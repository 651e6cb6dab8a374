"""The example networks read without warnings, and are what they say."""

from __future__ import annotations

import pytest

from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.readers import open_network

EXAMPLES = ("unet", "vit", "transformer", "transfer", "sound", "recurrent", "deep", "wide",
            "perceptron", "line")  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_reads_without_warnings(name: str) -> None:
    pytest.importorskip("keras")
    graph = open_network(f"examples.networks:{name}").graph()
    assert count(graph).warnings == ()
    assert cut(graph)


def test_macs_by_hand() -> None:
    pytest.importorskip("keras")
    macs = {
        n: count(open_network(f"examples.networks:{n}").graph()).total().flops for n in EXAMPLES
    }
    assert macs["line"] == 4
    assert macs["perceptron"] == 100 * 256 + 256 * 256 + 256 * 10
    assert macs["wide"] == 25088 * 4096 + 4096 * 4096
    assert macs["deep"] == 200 * 32 * 32 * 16 * 16 * 9
    # windows of 80 at every 4th of 16000 samples, pooled by 4; then 3 over 64 channels
    assert macs["sound"] == 3981 * 64 * 80 + (3981 // 4 - 2) * 128 * 3 * 64 + 128 * 35
    per_block = 4 * 196 * 192 * 192 + 2 * 196 * 196 * 192 + 2 * 196 * 192 * 768
    assert macs["vit"] == 196 * 192 * 16 * 16 * 3 + 12 * per_block + 192 * 1000

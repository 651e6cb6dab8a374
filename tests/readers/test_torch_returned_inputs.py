"""Inputs that a function returns beside its network: what is wrong with them is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.errors import NetworkError
from lolat.readers import read

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("layer", "example", "remedy"),
    [
        (torch.nn.Conv2d(3, 8, 3), torch.zeros(3, 64, 64), "the batch: torch.zeros(1, 3, 64, 64)"),
        (torch.nn.Linear(8, 8), torch.zeros(8), "the batch: torch.zeros(1, 8)"),
        (torch.nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 9, 9, dtype=torch.uint8),
         "make its input floating point, as in torch.zeros(1, 3, 9, 9)"),
        (torch.nn.Linear(8, 8), torch.zeros(1, 9), "returned beside it: mend them there"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_mended_where_they_are(layer: Any, example: Any, remedy: str) -> None:
    with pytest.raises(NetworkError) as found:
        read((torch.nn.Sequential(layer), example))
    assert str(found.value).endswith(remedy)
    assert "input_size" not in str(found.value)

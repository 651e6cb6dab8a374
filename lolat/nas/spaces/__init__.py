"""The spaces that LoLat knows: one module each, with a function that returns the `Space`."""

from __future__ import annotations

from collections.abc import Callable

from lolat.nas.space import Space
from lolat.nas.spaces import fbnet, nasbench201

SPACES: dict[str, Callable[[], Space]] = {
    "nasbench201": nasbench201.space,
    "fbnet": fbnet.space,
    "fbnet-cifar": fbnet.cifar,
}
"""Name on the command line -> a function that makes the space."""

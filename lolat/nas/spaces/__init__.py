"""The bundled spaces; each module has a function that returns its `Space`."""

from __future__ import annotations

from collections.abc import Callable

from lolat.nas.space import Space
from lolat.nas.spaces import fbnet, nasbench201

SPACES: dict[str, Callable[[], Space]] = {
    "nasbench201": nasbench201.space,
    "fbnet": fbnet.space,
    "fbnet-cifar": fbnet.cifar,
}
"""Name -> the function that makes the space."""

"""The bundled spaces; each module has a function that returns its `Space`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from lolat.nas.space import Space
from lolat.nas.spaces import fbnet, nasbench201

SPACES: dict[str, Callable[[], Space]] = {
    "nasbench201": cache(nasbench201.space),
    "fbnet": cache(fbnet.space),
    "fbnet-cifar": cache(fbnet.cifar),
}
"""Name -> the function that returns the space. The result is cached, so that tables are computed once."""

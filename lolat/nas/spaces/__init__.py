"""The spaces that LoLat knows: one module each, with a function that returns the `Space`."""

from __future__ import annotations

from collections.abc import Callable

from lolat.nas.space import Space
from lolat.nas.spaces import fbnet as _fbnet
from lolat.nas.spaces import nasbench201 as _nasbench201
from lolat.nas.spaces import ofa as _ofa

SPACES: dict[str, Callable[[], Space]] = {
    "nasbench201": _nasbench201.space,
    "fbnet": _fbnet.space,
    "fbnet-cifar": _fbnet.cifar,
    "ofa": _ofa.space,
}
"""By the name that the command line takes."""

"""The spaces that LoLat knows: one module each, with a function that returns the `Space`."""

from __future__ import annotations

from collections.abc import Callable

from lolat.nas.space import Space
from lolat.nas.spaces import fbnet as _fbnet
from lolat.nas.spaces import mobile as _mobile
from lolat.nas.spaces import nasbench201 as _nasbench201

SPACES: dict[str, Callable[[], Space]] = {
    "nasbench201": _nasbench201.space,
    "fbnet": _fbnet.space,
    "fbnet-cifar": _fbnet.cifar,
    "ofa": _mobile.once_for_all,
    "mobile": _mobile.space,
}
"""By the name that the command line takes."""

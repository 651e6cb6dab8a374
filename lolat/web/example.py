"""The network that the page shows first: ResNet-50, counted in advance, so that nothing is waited for."""

from __future__ import annotations

import json
from importlib.resources import files

from lolat.graph import Graph
from lolat.web.fields import FIELDS
from lolat.web.networks import NetworkAsked, named_network


def example() -> tuple[NetworkAsked, Graph]:
    """What the page asks for at first, and its Graph, as `lolat.read("keras:ResNet50")` gives it."""
    text = files("lolat.web").joinpath("example.json").read_text(encoding="utf-8")
    return named_network(FIELDS["name"].default, ()), Graph.from_dict(json.loads(text))

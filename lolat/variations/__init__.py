"""A network as it would be with something changed: Graph -> Graph, without any framework."""

from __future__ import annotations

from lolat.variations.width import inner, inner_widened, widened

__all__ = ["inner", "inner_widened", "widened"]

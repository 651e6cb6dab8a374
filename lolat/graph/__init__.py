"""A network as plain data, the same from each framework, with its counts, blocks and memory."""

from lolat.graph.network import (
    FORMAT_VERSION,
    Graph,
    GraphBuilder,
    Operation,
    Tensor,
    cached_on_graph,
)

__all__ = ["FORMAT_VERSION", "Graph", "GraphBuilder", "Operation", "Tensor", "cached_on_graph"]

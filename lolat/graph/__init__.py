"""A network as plain data, whatever the framework it came from, and what follows from it alone."""

from lolat.graph.network import FORMAT_VERSION, Graph, GraphBuilder, Operation, Tensor, once

__all__ = ["FORMAT_VERSION", "Graph", "GraphBuilder", "Operation", "Tensor", "once"]

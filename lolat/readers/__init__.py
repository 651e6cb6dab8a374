"""Reads a framework's network into a Graph; a package for each framework, imported when needed."""

from lolat.readers.reading import OF_TRANSFORMERS, Network, open_network, read, read_now

__all__ = ["OF_TRANSFORMERS", "Network", "open_network", "read", "read_now"]

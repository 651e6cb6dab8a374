"""Reads PyTorch networks into a Graph."""

from lolat.readers.torch.reader import import_torch, is_network, read_model

__all__ = ["import_torch", "is_network", "read_model"]

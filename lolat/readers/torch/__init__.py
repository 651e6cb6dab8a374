"""PyTorch networks, read into a Graph."""

from lolat.readers.torch.reader import import_torch, is_network, read_model, tf32_remarks

__all__ = ["import_torch", "is_network", "read_model", "tf32_remarks"]

"""Reads ONNX networks into a Graph."""

from lolat.readers.onnx.reader import import_onnx, read_file, read_inputs, read_model

__all__ = ["import_onnx", "read_file", "read_inputs", "read_model"]

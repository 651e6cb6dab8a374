"""Opens Keras networks by name or from a file, and reads them into a Graph."""

from lolat.readers.keras.named import application, import_keras, saved, without_weights
from lolat.readers.keras.reader import read_model

__all__ = ["application", "import_keras", "read_model", "saved", "without_weights"]

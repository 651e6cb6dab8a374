"""NumPy, imported on first use: an answer from a few counts needs no NumPy, and so starts faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _NumPy:
        """The module's names, all of them from the first one on that is asked for."""

        def __getattr__(self, name: str) -> Any:
            import numpy

            self.__dict__.update(vars(numpy))
            return getattr(numpy, name)

    np = _NumPy()

"""The library's face: Model, and what joins several rooms: learn, fit, measure, compare."""

from types import ModuleType

from lolat.io.results import Result


def _view() -> ModuleType:
    """Import what shows answers in a notebook."""
    from lolat.report import notebook

    return notebook


Result._view = staticmethod(_view)

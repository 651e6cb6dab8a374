"""The library's interface: Model, and calls that combine several packages: learn, fit, measure, compare."""

from types import ModuleType

from lolat.io.results import Result


def _view() -> ModuleType:
    """Import the module that shows answers in a notebook."""
    from lolat.report import notebook

    return notebook


Result._view = staticmethod(_view)

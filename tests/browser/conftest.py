"""A browser for the tests of pages; where there is none they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Chromium]:
    if chromium.found() is None:
        pytest.skip(
            f"no Chromium here (looked for {', '.join(chromium.NAMES)}): apt install chromium"
        )
    running = chromium.Chromium()
    yield running
    running.close()

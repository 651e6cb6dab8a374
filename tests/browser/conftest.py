"""A browser for the tests of pages; where there is none they are skipped, or fail if LOLAT_NEEDS asks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lolat.device.file import write
from tests import synthetic
from tests.browser import chromium
from tests.processes import PATIENCE_S
from tests.web import language_models

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Chromium]:
    if chromium.found() is None:
        missing = f"no Chromium here (looked for {', '.join(chromium.NAMES)}): apt install chromium"
        (pytest.fail if "browser" in os.environ.get("LOLAT_NEEDS", "") else pytest.skip)(missing)
    running = chromium.Chromium()
    yield running
    running.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `lolat serve` answers, with two devices, and one that knows language models alone."""
    desk = tmp_path_factory.mktemp("models") / "desk.json"
    write(desk, synthetic.document(name="desk", device="a desk"))
    laptop = desk.with_name("laptop.json")
    laptop.write_text(json.dumps(synthetic.document(name="laptop", device="a laptop")))
    gpu = desk.with_name("gpu.json")
    write(gpu, language_models.document())
    named = map(str, (desk, laptop, gpu))
    running = subprocess.Popen(
        [sys.executable, "-u", "-m", "lolat.cli.main", "serve", *named, "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert running.stdout is not None
    found = re.search(r"http://\S+", running.stdout.readline())
    assert found is not None
    yield found[0]
    running.terminate()
    assert running.communicate(timeout=PATIENCE_S)[1] == ""  # nothing went wrong in the server


@pytest.fixture
def served(browser: chromium.Chromium, address: str) -> Iterator[chromium.Chromium]:
    """The browser, to visit `address` with; afterwards nothing went wrong in the page."""
    browser.size(1280)
    browser.media()
    yield browser
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert [f for f in browser.faults() if not f.startswith(f"request: {address}")] == []

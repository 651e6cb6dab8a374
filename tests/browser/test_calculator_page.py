"""The tab of training in a real browser, on a real server: as somebody uses it who has never seen it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("keras")

from lolat.cli.main import lolat
from lolat.units import dollars, duration
from tests.browser.chromium import ANSWER, DONE, Chromium, answered
from tests.web.test_reader import onnx_file


@pytest.fixture
def page(served: Chromium, address: str) -> Chromium:
    served.visit(f"{address}?view=training")
    return served


BIG = "[...document.querySelectorAll('.big')].map(e => e.textContent)"


def test_a_first_time_user_reaches_a_cost(page: Chromium) -> None:
    """Sees one, types another network's name and a price, and sees that one's. No other step is needed."""
    first = page.run(BIG)
    assert first[1].startswith("$")
    assert "ResNet50 20 epochs of 50,000 samples" in answered(page, "20 epochs")
    page.write("#f-name", "MobileNetV2")
    answered(page, "MobileNetV2 20 epochs")
    second = page.run(BIG)
    assert second != first
    page.write("[name='price.desk']", "12.50")
    said = answered(page, "$12.50")
    assert page.run(BIG)[0] == second[0]
    assert page.run(BIG)[1] != second[1]
    assert "● is the frontier" in said


def test_the_commands_copied_give_the_same_dollars(
    page: Chromium, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = address.rstrip("/")
    page.ask("Browser.grantPermissions", origin=origin,
             permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])  # fmt: skip
    page.give("#f-upload", onnx_file(tmp_path / "my net.onnx"))
    said = answered(page, "my net 20 epochs")
    page.write("[name='price.desk']", "9999")
    said = answered(page, "$9,999")
    page.click("[data-copy^=command]")
    page.wait("document.getElementById('copied').textContent === 'Copied'")
    command = page.run("navigator.clipboard.readText()")
    assert command.startswith("lolat cost ")
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(lolat, [*shlex.split(command)[1:], "--json"], catch_exceptions=False)
    told = json.loads(run.stdout)
    assert page.run(BIG) == [
        duration(told["options"][0]["total_s"]),
        dollars(told["options"][0]["dollars"]),
    ]
    rows = page.run("[...document.querySelectorAll('#plan tbody tr')].map(r => r.innerText)")
    assert len(rows) == len(told["options"]) == 4
    for row, option in zip(rows, told["options"], strict=True):
        assert dollars(option["dollars"]) in row
    assert "my net.onnx in it" in said


def test_what_is_wrong_with_a_file_stands_at_its_field(page: Chromium, tmp_path: Path) -> None:
    words = tmp_path / "words.onnx"
    words.write_text("these are words\n" * 20)
    shown = "document.getElementById('e-upload').textContent"
    page.write("#f-samples", "123456")
    answered(page, "123,456 samples")
    page.click("[name=source][value=upload]")
    page.give("#f-upload", words)
    page.wait(f"{DONE} && {shown}.includes('words.onnx') && !{shown}.startsWith('Reading')")
    assert page.value("#f-samples") == "123456"
    page.click("[name=source][value=keras]")
    answered(page, "ResNet50 20 epochs")
    forget(page, 400)


def forget(page: Chromium, status: int) -> None:
    """Browsers remark on a page with such a status, which this one is to have."""
    page.run("0")
    page.events = [e for e in page.events if f"status of {status}" not in str(e)]


@pytest.mark.parametrize("script", [True, False])
def test_a_file_that_is_too_large(page: Chromium, tmp_path: Path, script: bool) -> None:
    """It is not sent; without the script nobody looks at its size before it is there, and it is refused."""
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(205 * 2**20)
    page.click("[name=source][value=upload]")
    if not script:
        page.run("document.getElementById('f-upload').dataset.most = '1e12'")
    page.give("#f-upload", path)
    error = "document.getElementById('e-upload').textContent"
    page.wait(f"{DONE} && {error}.includes('larger than 200 MiB')")
    assert not script or not [f for f in page.faults() if "/upload" in f]
    forget(page, 413)


def test_errors_come_and_go_and_nothing_typed_is_lost(page: Chromium) -> None:
    page.write("#f-samples", "10")
    error = "document.getElementById('e-batch_size').textContent"
    page.wait(f"{error}.includes('larger than the data set of 10 samples')")
    assert page.attribute("#f-batch_size", "aria-invalid") == "true"
    assert "Batch on each device" in answered(page, "One field needs another value")
    page.write("#f-batch_size", "5")
    answered(page, "10 samples, batch 5")
    assert page.run(error) == ""
    assert page.attribute("#f-batch_size", "aria-invalid") is None
    assert page.value("#f-samples") == "10"


def test_fields_of_other_kinds_of_networks_are_put_away(page: Chromium) -> None:
    shown = "[...document.querySelectorAll('.network input:not([type=hidden]), .network select')]" \
            ".filter(e => e.offsetParent).map(e => e.id || e.value)"  # fmt: skip
    assert page.run(shown) == ["keras", "upload", "f-name", "f-size"]
    page.write("#f-name", "VGG16")
    answered(page, "VGG16")
    page.click("[name=source][value=upload]")
    page.wait(f"{shown}.includes('f-upload')")
    assert "f-name" not in page.run(shown)


def test_it_works_without_the_script(page: Chromium, address: str, tmp_path: Path) -> None:
    page.ask("Emulation.setScriptExecutionDisabled", value=True)
    page.visit(f"{address}?view=training")
    assert page.run("document.querySelector('[data-copy]').hidden")
    page.write("#f-epochs", "9")
    page.events.clear()
    page.key("Enter")
    page.loaded()
    assert "ResNet50 9 epochs" in page.run(ANSWER)
    assert page.value("#f-epochs") == "9"
    page.click("[name=source][value=upload]")
    page.give("#f-upload", onnx_file(tmp_path / "plain.onnx"))
    page.events.clear()
    page.click("#send")
    page.loaded()
    assert "plain 9 epochs" in page.run(ANSWER)
    page.visit(f"{address}?view=training&name=VGG16")
    page.wait(
        f"{ANSWER}.includes('VGG16 20 epochs')"
    )  # it may first have said that it is being read


def test_a_script_of_another_does_not_run(page: Chromium) -> None:
    """Were something typed ever to become markup, the policy would still not let it run or load."""
    page.run(
        "document.body.insertAdjacentHTML('beforeend', "
        '\'<img src=http://127.0.0.1:9/x onerror="window.ran = 1"><p style="color: red" id=bad>x</p>\')'
    )
    assert page.run("window.ran ?? 0") == 0
    assert page.run("getComputedStyle(document.getElementById('bad')).color") != "rgb(255, 0, 0)"
    refused = [e for e in page.events if "Content Security Policy" in str(e)]
    assert refused
    page.events.clear()

"""The tabs of latency in a real browser: by mouse, by keys, on a phone, in the dark, on paper, with axe."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("keras")

import lolat
from lolat.units import milliseconds
from tests.browser.chromium import DONE, Chromium, answered, violations
from tests.web.test_reader import keras_file, onnx_file

GPU = "rtx-4090-amp"
VIEWS = {
    "latency": f"?model=laptop&model={GPU}&model=v100-fp32&batch=1,8",
    "budget": f"?view=budget&model=laptop&model={GPU}&max_ms=400",
    "no": "?view=budget&model=laptop&max_ms=0.001&vary=batch",
    "training": f"?view=training&model=desk&model={GPU}",
    "wrong": "?batch=x&size=y&model=laptop",
    "wrong training": "?view=training&samples=x&price.desk=-1",
}
CHECKED = "document.querySelector('[name=view]:checked').value"


@pytest.fixture
def page(served: Chromium, address: str) -> Chromium:
    served.visit(address)
    return served


def test_a_first_time_user_reads_a_latency_and_compares_a_gpu(page: Chromium) -> None:
    told = milliseconds(
        float(lolat.load(synthetic_file(page)).predict(lolat.read("keras:ResNet50")).latency_ms)
    )
    assert told in answered(page, "a desk")
    page.click(f"[name=model][value={GPU}]")
    said = answered(page, f"{GPU} is ")
    assert "Side by side" in said
    assert milliseconds(lolat.load(GPU).predict(lolat.read("keras:ResNet50")).latency_ms) in said
    assert "Where the time goes" in said
    page.write("#f-batch", "1, 16")
    assert "Batch 16" in answered(page, "Batch 16")


def synthetic_file(page: Chromium) -> Path:
    """The model that the server was given, as its command says."""
    command = page.value(".command")
    return Path(command.split()[2])


def test_each_tab_keeps_network_and_devices(page: Chromium) -> None:
    page.write("#f-name", "MobileNetV2")
    answered(page, "MobileNetV2 224x224x3")
    page.click(f"[name=model][value={GPU}]")
    answered(page, "Side by side")
    page.click(".tabs label:nth-of-type(2)")
    said = answered(page, "MobileNetV2 the widest within 15 ms")
    assert "width × " in said
    assert GPU in said
    assert page.run("document.querySelector('#f-max_ms').offsetParent !== null")
    assert page.run("document.querySelector('#f-batch').offsetParent === null")
    page.click(".tabs label:nth-of-type(3)")
    said = answered(page, "MobileNetV2 20 epochs")
    assert "an estimate" in said  # of a device whose training was not measured
    page.visit(page.run("location.href"))
    assert "MobileNetV2 20 epochs" in answered(page, "20 epochs")
    assert page.run(CHECKED) == "training"


def test_by_keys_alone(page: Chromium, address: str) -> None:
    """Tab to each field in the order that is read, arrows between the tabs, Enter to ask."""
    page.press("Tab")
    assert page.run("document.activeElement.textContent") == "Skip to the answer"
    order = []
    for _ in range(6):
        page.press("Tab")
        order.append(page.run("document.activeElement.id || document.activeElement.value"))
    assert order == ["latency", "keras", "f-name", "f-size", "desk", "laptop"]  # the chosen first
    page.run("document.querySelector('[name=view]:checked').focus()")
    outlined = "getComputedStyle(document.activeElement.nextElementSibling).outlineStyle"
    assert page.run(outlined) == "solid"
    page.press("ArrowRight")
    answered(page, "the widest within")
    assert page.run(CHECKED) == "budget"
    assert page.run("document.activeElement.value") == "budget"  # the focus is not lost
    page.press("ArrowLeft")
    answered(page, "a desk")
    page.write("#f-batch", "2")
    page.press("Enter")
    answered(page, "batch 2")
    assert page.run("document.activeElement.id") == "f-batch"
    assert "/upload" not in page.run("location.href")
    # A list that scrolls follows the keys.
    page.run(f"document.querySelector('[name=model][value={GPU}]').focus()")
    page.press(" ")
    answered(page, "Side by side")


def test_the_full_report_opens(page: Chromium, address: str) -> None:
    page.visit(f"{address}{VIEWS['latency']}&batch=1")
    links = page.run(
        "[...document.querySelectorAll('#answer a[href^=\"/report\"]')].map(a => a.href)"
    )
    assert len(links) == 3
    for link in links[:2]:
        page.visit(link)
        page.wait("document.querySelectorAll('#blocks tbody tr').length > 3")
        assert "where the time goes" in page.run("document.title")


@pytest.mark.parametrize(
    ("make", "said"),
    [(onnx_file, "dropped 3x8x8"), (keras_file, "dropped 4")],
)
def test_a_file_is_dropped_anywhere(page: Chromium, tmp_path: Path, make: Any, said: str) -> None:
    path = make(tmp_path / f"dropped.{make.__name__.removesuffix('_file')}")
    content = base64.b64encode(path.read_bytes()).decode()
    page.run(
        f"""(() => {{
          const bytes = Uint8Array.from(atob({json.dumps(content)}), c => c.charCodeAt(0));
          const data = new DataTransfer();
          data.items.add(new File([bytes], {json.dumps(path.name)}));
          for (const kind of ["dragover", "drop"]) document.querySelector("h1").dispatchEvent(
            new DragEvent(kind, {{ dataTransfer: data, bubbles: true, cancelable: true }}));
        }})()"""
    )
    said = answered(page, said)
    assert "dropped" in said
    assert page.value("[name=source]:checked") == "upload"


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(
    page: Chromium, address: str, view: str, scheme: str
) -> None:
    page.media(scheme)
    page.visit(address + VIEWS[view])
    page.wait(DONE)
    for width in (320, 390, 800, 1280):
        page.size(width, 844)
        page.do("")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert width in (320, 800) or violations(page) == []
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_on_paper_there_is_the_answer_alone(page: Chromium, address: str) -> None:
    page.visit(address + VIEWS["latency"])
    page.media(kind="print")
    assert page.run("document.querySelector('form').offsetParent === null")
    assert page.run("document.querySelector('.tabs').offsetParent === null")
    assert page.run("document.querySelector('#compared').offsetParent !== null")
    assert page.pdf().startswith(b"%PDF")

"""The tab of language models in a real browser: sliders, a configuration that is dropped, the curve."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

import lolat
from lolat.units import milliseconds
from tests.browser.chromium import ANSWER, DONE, Chromium, answered
from tests.web.language_models import CONFIG

BIG = "document.querySelector('.big').textContent"
INK = """(() => {
  const canvas = document.querySelector(".curve canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colors = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) colors.add(data.slice(i, i + 3).join());
  return [...colors];
})()"""
"""The colors of the curve, where nothing shines through."""


@pytest.fixture
def page(served: Chromium, address: str) -> Chromium:
    served.visit(f"{address}?view=llm&config=llama-3.1-8b")
    answered(served, "a token on")
    return served


def title(page: Chromium, config: object = "llama-3.1-8b", **asked: int) -> str:
    """The answer of the library in large letters."""
    model = lolat.load(page.value(".command").split()[2])
    ms = model.llm(config, **{"concurrency": 32, **asked}).chosen.tpot_ms  # type: ignore[arg-type]
    return milliseconds(ms or 0.0)


def slide(page: Chromium, field: str, *keys: str) -> None:
    page.run(f"document.querySelector('[data-of=f-{field}]').focus()")
    for key in keys:
        page.press(key)


def test_a_slider_and_its_number_move_each_other_and_the_answer(page: Chromium) -> None:
    assert page.run(BIG).startswith(title(page))
    slide(page, "concurrency", "ArrowRight", "ArrowRight")
    assert page.value("#f-concurrency") == "64"
    answered(page, "64 concurrent requests")
    assert page.run(BIG).startswith(title(page, concurrency=64))
    assert page.attribute("[data-of=f-concurrency]", "aria-valuetext") == "64"
    page.write("#f-input_tokens", "1900")
    answered(page, "1,900 tokens in")
    assert page.attribute("[data-of=f-input_tokens]", "aria-valuetext") == "1900"
    slide(page, "input_tokens", "ArrowRight")  # from the step next to it, 2048
    assert page.value("#f-input_tokens") == "3072"
    slide(page, "tensor_parallel", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft")
    assert page.value("#f-tensor_parallel") == ""
    answered(page, "3,072 tokens in")


def test_the_curve_is_drawn_in_the_colors_of_the_page(page: Chromium) -> None:
    def color(name: str) -> str:
        value = page.run(f"getComputedStyle(document.body).getPropertyValue('--{name}').trim()")
        return ",".join(str(int(value[i : i + 2], 16)) for i in (1, 3, 5))

    for scheme in ("light", "dark"):
        page.media(scheme)
        page.do("")
        found = page.run(INK)
        assert {color(name) for name in ("s0", "s1", "s2", "s3", "ink")} <= {*found}
        assert color("bad") not in found
    page.media()
    page.write("#f-max_tpot_ms", "12")
    answered(page, "a token on")
    page.wait("location.search.includes('max_tpot_ms=12')")
    assert color("bad") in page.run(INK)  # the limit
    page.size(500)
    page.wait("document.querySelector('.curve canvas').getBoundingClientRect().right <= 500")


def told(line: Any, ms: float, value: str) -> bool:
    """Whether a line's value in the legend is that at `ms`."""
    times, rates, requests = zip(*line["points"], strict=True)
    if not times[0] <= ms <= times[-1]:
        return value == "\u2013"
    found = re.fullmatch(r"(\d+) tokens/s, (\d+) requests?", value)
    at = np.log(ms), np.log(times)
    return found is not None and all(
        abs(float(given) - np.interp(*at, known)) <= 0.51
        for given, known in zip(found.groups(), (rates, requests), strict=True)
    )


def test_each_line_tells_what_it_has_at_the_time_of_the_pointer(page: Chromium) -> None:
    """Its point, or what lies between its two points next to it; nothing outside of them."""
    rows = "[...document.querySelectorAll('.u-legend .u-series')].map(r => r.innerText.trim())"
    assert all(row and not row.endswith(":") for row in page.run(rows))
    lines = page.run("JSON.parse(document.querySelector('.curve').dataset.curve).lines")
    page.run(
        "document.querySelector('.curve').scrollIntoView({ block: 'center', behavior: 'instant' })"
    )
    over = "document.querySelector('.u-over').getBoundingClientRect()"
    x, y, width = page.run(f"(() => {{ const r = {over}; return [r.x, r.y, r.width]; }})()")
    seen = set()
    for part in (0.02, 0.3, 0.5, 0.7, 0.98):
        page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x + part * width, y=y + 50)
        page.do("")
        values = page.run(
            "[...document.querySelectorAll('.u-legend .u-value')].map(v => v.textContent)"
        )
        every = [ms for line in lines for ms, *_ in line["points"]]
        text = values[0].removesuffix(" ms")
        half = 0.51 * 10.0 ** -len(text.partition(".")[2])
        # Points of several lines may look alike when rounded.
        alike = [ms for ms in every if abs(ms - float(text)) <= half]
        assert any(
            all(told(line, ms, value) for line, value in zip(lines, values[1:], strict=True))
            for ms in alike
        ), (text, values)
        seen |= {value == "\u2013" for value in values[1:]}
        assert not any(" 1 requests" in value for value in values)
    assert seen == {True, False}


def test_a_configuration_is_dropped(page: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    page.drop(path)
    answered(page, "llama · 1.35 G parameters")
    assert page.run(BIG).startswith(title(page, CONFIG))
    path.write_text("{}")
    page.drop(path)
    page.wait(
        f"{DONE} && document.getElementById('e-upload').textContent.includes('no model_type')"
    )
    page.run("0")
    page.events = [e for e in page.events if "status of 400" not in str(e)]


def test_it_works_without_the_script(page: Chromium) -> None:
    page.ask("Emulation.setScriptExecutionDisabled", value=True)
    page.visit(page.run("location.href"))
    assert page.run("document.querySelector('[type=range]').hidden")
    page.write("#f-concurrency", "9")
    page.events.clear()
    page.key("Enter")
    page.loaded()
    assert "9 concurrent requests" in page.run(ANSWER)
    assert "The points of the curve" in page.run(ANSWER)

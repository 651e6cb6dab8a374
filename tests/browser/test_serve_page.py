"""The calculator in a real browser, on a real server: by mouse, by keys, without its script, with axe."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("keras")

import lolat
from lolat.cli.main import lolat as commands
from lolat.units import dollars, duration, milliseconds
from tests.browser.chromium import ANSWER, DONE, Chromium, answered, violations
from tests.web.language_models import CONFIG
from tests.web.test_networks import keras_file, onnx_file

GPU = "rtx-4090-amp"
VIEWS = {
    "latency": f"?model=laptop&model={GPU}&model=v100-fp32&batch_size=1,8",
    "no": "?view=budget&model=laptop&max_ms=0.001&vary=batch",
    "training": f"?view=training&model=desk&model={GPU}",
    "decoder": "?view=decoder&model=gpu&model=h100-vllm&tune=lora:16&replicas=1,8",
    "each way": "?view=decoder&model=h100-vllm&model=h200&replicas=2,8&batch_size=1,2"
    "&global_batch_size=64&checkpointing=none,full,selective",
    "llm": "?view=llm&model=gpu&model=h100-vllm&concurrency=4,16&max_tpot_ms=30",
    "rates": "?view=llm&model=h100-vllm&config=llama-3.1-70b&dtype=fp8&request_rate=6.5,13"
    "&input_tokens=1800&output_tokens=350&max_ttft_ms=1000&max_tpot_ms=60&percentile=95",
    "wrong": "?batch_size=x&input_size=y&model=laptop",
}
BIG = "document.querySelector('.big').firstChild.textContent.trim()"


@pytest.fixture
def page(served: Chromium, address: str) -> Chromium:
    served.visit(address)
    return served


def test_a_first_time_user_reads_a_latency_and_compares_a_gpu(page: Chromium) -> None:
    answered(page, "a desk")
    model = lolat.load(page.value(".command").split()[2])  # the model that the server was given
    network = lolat.read("keras:ResNet50")
    assert page.run(BIG) == milliseconds(model.predict(network, 64).latency_ms)
    page.click(f"[name=model][value={GPU}]")
    said = answered(page, "bf16")
    assert milliseconds(lolat.load(GPU).predict(network, 64, precision="best").latency_ms) in said
    page.write("#f-batch_size", "1, 16")
    answered(page, "Batch 16")


def test_a_tab_takes_along_what_was_typed_just_before(page: Chromium) -> None:
    page.write("#f-network", "MobileNetV2")
    page.run("document.querySelector('.tabs a:nth-of-type(3)').click()")
    answered(page, "MobileNetV2 · 224x224x3 · batch 32 to 256 on each device")
    assert page.value("#f-network") == "MobileNetV2"


def test_the_command_copied_gives_the_same_dollars(
    page: Chromium, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.ask("Browser.grantPermissions", origin=address.rstrip("/"),
             permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])  # fmt: skip
    page.visit(f"{address}?view=training&batch_size=64")
    page.give("#f-upload", onnx_file(tmp_path / "my net.onnx"))
    answered(page, "my net")
    page.click("details:has(#folded) summary")
    page.write("#f-price_per_hour", "9999")
    answered(page, "9,999")
    page.click("[data-copy^=command]")
    page.wait("document.getElementById('copied').textContent === 'Copied'")
    command = page.run("navigator.clipboard.readText()")
    assert command.startswith("lolat cost ")
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(
        commands, [*shlex.split(command)[1:], "--json"], catch_exceptions=False
    )
    first, *others = json.loads(run.stdout)["options"]
    assert page.run(BIG) == f"1 device, {duration(first['total_s'])}, {dollars(first['dollars'])}"
    assert page.run("document.querySelectorAll('.card tbody tr').length") == 1 + len(others) == 4


def test_what_is_wrong_with_a_file_stands_at_its_field(page: Chromium, tmp_path: Path) -> None:
    words = tmp_path / "words.onnx"
    words.write_text("these are words\n" * 20)
    shown = "document.getElementById('e-upload').textContent"
    page.write("#f-batch_size", "7")
    answered(page, "batch 7")
    page.give("#f-upload", words)
    page.wait(f"{DONE} && {shown}.includes('words.onnx') && !{shown}.startsWith('Reading')")
    assert page.value("#f-batch_size") == "7"
    assert page.run("location.pathname") == "/"  # loaded again it asks the same
    assert "batch_size=7" in page.run("location.search")
    page.run("0")  # browsers remark on a page with such a status, which this one is to have
    page.events = [e for e in page.events if "status of 400" not in str(e)]


def test_errors_come_and_go_and_nothing_typed_is_lost(page: Chromium) -> None:
    page.write("#f-batch_size", "x")
    error = "document.getElementById('e-batch_size').textContent"
    page.wait(f"{error}.includes('expected a whole number')")
    assert page.attribute("#f-batch_size", "aria-invalid") == "true"
    answered(page, "One field needs another value")
    page.write("#f-batch_size", "5")
    answered(page, "batch 5")
    assert page.run(error) == ""
    assert page.attribute("#f-batch_size", "aria-invalid") is None


def test_one_network_is_read_at_a_time_and_the_newest_is_the_next(page: Chromium) -> None:
    page.run("""(() => {
      const real = window.fetch;
      window.calls = [];
      window.go = new Promise((done) => { window.open_gate = done; });
      window.fetch = async (address) => { calls.push(address); await go; return real("/"); };
    })()""")
    for name in ("One", "Two", "Three"):
        page.write("#f-network", name)
        page.press("Enter")
    assert page.run("calls.length") == 1
    stale = "document.querySelectorAll('#answer > [inert]').length"
    page.wait(f"{stale} === document.querySelectorAll('#answer > :not(#status)').length")
    assert page.run(stale) > 0  # link and commands of the answer before
    page.run("window.open_gate()")
    page.wait("calls.length === 2")
    assert page.run("calls.map((a) => new URLSearchParams(a).get('network'))") == ["One", "Three"]
    page.wait("!document.querySelector('[aria-busy]')")
    assert page.run(stale) == 0


def test_in_a_narrow_window_the_answer_stays_in_sight(page: Chromium) -> None:
    page.size(400, 700)
    page.write("#f-batch_size", "3")
    answered(page, "batch 3")
    bottom = "document.getElementById('brief').getBoundingClientRect().bottom"
    page.run("window.scrollTo(0, 0)")
    assert page.run(bottom) == 700
    assert page.text("#brief").startswith(page.run(BIG))
    page.run("document.getElementById('answer').scrollIntoView()")
    assert page.run("document.getElementById('brief').getBoundingClientRect().top") <= 0
    at_rest = """(() => {
      document.getElementById('calculate').scrollIntoView();
      const box = document.getElementById('brief').getBoundingClientRect();
      return [0.01, 0.5, 0.99].flatMap(x => [0.1, 0.5, 0.9].map(y =>
        document.elementFromPoint(box.left + x * box.width, box.top + y * box.height).id));
    })()"""
    assert "brief" not in page.run(at_rest)  # the answer is in front of it


def test_in_a_narrow_window_the_answer_follows_what_is_often_changed(
    page: Chromium, address: str
) -> None:
    """Devices, sizes and files are folded; a summary has the names of the devices."""
    page.size(400, 800)
    page.visit(address)
    page.wait(DONE)
    seen = "[...document.querySelectorAll('.fold')].map(part => part.open)"
    assert page.run(seen) == [False]
    assert page.run("document.getElementById('answer').getBoundingClientRect().top") < 1200
    assert page.text("#ticked") == ", ".join(
        page.run("[...document.querySelectorAll('[name=model]:checked')].map(box => box.value)")
    )
    for view in ("no", "training", "decoder", "llm", "rates"):
        page.visit(address + VIEWS[view])
        page.wait(DONE)
        assert page.run("document.getElementById('answer').getBoundingClientRect().top") < 960
        if view == "decoder":  # the choice between full training and adapters is not folded away
            assert page.run("document.getElementById('f-tune').checkVisibility()")
    assert "The limits hold for so many % of requests 95" in page.text("#folded")
    page.visit(address)
    page.wait(DONE)
    page.size(1280, 800)  # a tablet that is turned: nothing there opens them
    page.wait(f"{seen}.every(Boolean)")
    page.visit(address)
    page.wait(DONE)
    assert page.run(seen) == [True]


def test_it_works_without_the_script(page: Chromium, address: str, tmp_path: Path) -> None:
    page.ask("Emulation.setScriptExecutionDisabled", value=True)
    page.visit(address)
    assert page.run("document.querySelector('[data-copy]').hidden")
    page.write("#f-batch_size", "9")
    page.events.clear()
    page.key("Enter")
    page.loaded()
    assert "batch 9" in page.run(ANSWER)
    page.give("#f-upload", onnx_file(tmp_path / "plain.onnx"))
    page.events.clear()
    page.click("details:has(#sized) summary")
    page.click("#send")
    page.loaded()
    assert "plain 3x8x8 · batch 9" in page.run(ANSWER)


def test_by_keys_alone(page: Chromium) -> None:
    """Tab to each field in the order that is read, Enter to ask."""
    page.press("Tab")
    assert page.run("document.activeElement.textContent") == "Skip to the answer"
    order = []
    for _ in range(8):
        page.press("Tab")
        order.append(page.run("document.activeElement.id || document.activeElement.textContent"))
    tabs = [
        "Latency", "What fits", "Training and cost", "Training language models", "Serving language models",
    ]  # fmt: skip
    assert order[:7] == [*tabs, "f-network", "Your own file, or another size"]
    page.write("#f-batch_size", "2")
    page.press("Enter")
    answered(page, "batch 2")
    assert page.run("document.activeElement.id") == "f-batch_size"
    assert "/upload" not in page.run("location.href")
    page.run(f"document.querySelector('[name=model][value={GPU}]').focus()")
    page.press(" ")
    answered(page, "Side by side")


@pytest.mark.parametrize(
    ("make", "name", "title"),
    [(onnx_file, "dropped.onnx", "dropped 3x8x8"), (keras_file, "dropped.keras", "dropped 4 ·")],
)
def test_a_file_is_dropped_anywhere(
    page: Chromium, tmp_path: Path, make: Any, name: str, title: str
) -> None:
    page.drop(make(tmp_path / name))
    assert answered(page, title).startswith(title)


def test_a_configuration_is_dropped(page: Chromium, address: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    page.visit(f"{address}?view=llm")
    page.drop(path)
    answered(page, "llama · 1.35 G parameters")
    ms = lolat.load(page.value(".command").split()[2]).llm(CONFIG, concurrency=32).chosen.tpot_ms
    then = page.run("document.querySelector('.then').textContent")
    assert then.startswith(f"{milliseconds(ms or 0.0)} a token, ")


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(
    page: Chromium, address: str, view: str
) -> None:
    page.visit(address + VIEWS[view])
    page.wait(DONE)
    for width, scheme in ((320, "light"), (800, "light"), (1280, "light"), (1280, "dark")):
        page.size(width, 844)
        page.media(scheme)
        page.do("")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert width == 800 or violations(page) == []
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("view", ["training", "decoder", "each way"])
def test_the_table_of_a_training_run_is_seen_whole(page: Chromium, address: str, view: str) -> None:
    page.visit(address + VIEWS[view])
    page.wait(DONE)
    page.do("for (const part of document.querySelectorAll('.card details')) part.open = true;")
    cut = "[...document.querySelectorAll('.card .wide')].map(t => t.scrollWidth - t.clientWidth)"
    for width in (390, 900, 1280):
        page.size(width)
        page.do("")
        assert page.run(cut) == [0, 0, 0]  # the comparison, and each device
    seen = page.run("document.querySelector('.cards table').innerText")
    title = page.run("document.querySelector('.cards .big').firstChild.textContent.trim()")
    amount = title.split(", ")[-1]  # the dollars, or without a price the time; the table has hours
    if found := re.fullmatch(r"(\d+) min (\d+) s", amount):
        hours = int(found[1]) / 60 + int(found[2]) / 3600
        assert any(
            float(n) == pytest.approx(hours, rel=0.002) for n in re.findall(r"\d+\.\d+", seen)
        )
    else:
        assert amount.removeprefix("$") in seen


def test_at_several_rates_the_table_is_seen_whole_and_no_word_covers_another(
    page: Chromium, address: str
) -> None:
    page.visit(address + VIEWS["rates"])
    page.wait(DONE)
    for width in (390, 1300):
        page.size(width)
        page.do("")
        cut = "(t => t.scrollWidth - t.clientWidth)(document.querySelector('.card .wide'))"
        assert page.run(cut) == 0
        boxes = page.run("""[...document.querySelectorAll('.front text')].map(t => {
          const box = t.getBoundingClientRect();
          return [t.textContent, box.left, box.right, box.top + 2, box.bottom - 2]; // its letters
        })""")
        for n, (name, left, right, top, bottom) in enumerate(boxes):
            over = [
                b[0]
                for b in boxes[:n]
                if left < b[2] and b[1] < right and top < b[4] and b[3] < bottom
            ]
            assert (name, over) == (name, [])


def test_on_paper_there_is_the_answer_alone(page: Chromium, address: str) -> None:
    page.visit(address + VIEWS["latency"])
    page.media(kind="print")
    assert page.run("document.querySelector('form').offsetParent === null")
    assert page.run("document.querySelector('#compared').offsetParent !== null")

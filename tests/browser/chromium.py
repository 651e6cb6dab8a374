"""A real headless Chromium, spoken to over its pipe: the DevTools protocol needs no package that way.

https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a NUL.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.processes import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = PATIENCE_S  # for one answer
# The browser reads from its descriptor 3 and writes to 4.
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
DONE = "document.readyState === 'complete' && performance.timing.loadEventEnd > 0"
KEYS = {
    "Enter": (13, "\r"),
    " ": (32, " "),
    "Tab": (9, ""),
    "Delete": (46, ""),
    "ArrowRight": (39, ""),
    "ArrowLeft": (37, ""),
}


def found() -> str | None:
    """The Chromium of this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class RefusedError(Exception):
    """The browser refuses a call, as while one page takes the place of another."""


class Chromium:
    """One browser with one page."""

    def __init__(self) -> None:
        program = found()
        assert program is not None
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.pipe = os.pipe()
        self.read, to_write = os.pipe()
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
            f"--user-data-dir={self.folder.name}", "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(to_read), str(to_write), program, *options],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self.number, self.rest = 0, b""
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.ask("Target.getTargets")["targetInfos"]
        target = next(t for t in targets if t["type"] == "page")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        try:
            self.session = None
            self.ask("Browser.close")
        except (OSError, AssertionError):
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.read)
        os.close(self.pipe)
        self.folder.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, wait for its answer."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.pipe, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RefusedError(answer)
                return answer["result"]  # type: ignore[no-any-return]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser did not answer within {PATIENCE:.0f} s"
            part = os.read(self.read, 1 << 20)
            assert part, "the browser went away"
            self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def open(self, path: Path) -> None:
        """Show a file; `events` begins anew."""
        self.visit(path.as_uri())

    def visit(self, address: str) -> None:
        """Show what is at an address; `events` begins anew."""
        self.events.clear()
        self.ask("Page.navigate", url=address)
        self.loaded()
        # An event of the page before may have come late.
        self.wait(f"{DONE} && location.href === new URL({json.dumps(address)}).href")

    def loaded(self) -> None:
        """Wait for a page to be there, since `events` began."""
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """The text in an element."""
        return str(self.run(f"document.querySelector({selector!r}).textContent"))

    def value(self, selector: str) -> str:
        """What a field holds."""
        return str(self.run(f"document.querySelector({selector!r}).value"))

    def attribute(self, selector: str, name: str) -> str | None:
        """An attribute of an element."""
        found: str | None = self.run(f"document.querySelector({selector!r}).getAttribute({name!r})")
        return found

    def do(self, script: str) -> None:
        """Run statements, then wait until the page has drawn what came of them."""
        drawn = (
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
        )
        self.run(f"(() => {{ {script} }})(); {drawn}")

    def press(self, key: str) -> None:
        """A key, as from the keyboard, and what comes of it on the same page."""
        self.key(key)
        self.do("")

    def key(self, key: str) -> None:
        """A key, as from the keyboard."""
        code, text = KEYS[key]
        known = {"key": key, "windowsVirtualKeyCode": code}
        self.ask(
            "Input.dispatchKeyEvent", type="keyDown", **known, **({"text": text} if text else {})
        )
        self.ask("Input.dispatchKeyEvent", type="keyUp", **known)

    def wait(self, script: str) -> Any:
        """Wait until an expression in the page, which may be another one by then, is true; its value."""
        end = time.monotonic() + PATIENCE
        value = f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()"
        while time.monotonic() < end:
            with contextlib.suppress(RefusedError):  # the page is just being replaced
                if found := self.run(value):
                    return found
            time.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE:.0f} s: {script}")

    def write(self, selector: str, text: str) -> None:
        """Put a text into a field in place of what is there, as from the keyboard."""
        self.run(
            f"(() => {{ const f = document.querySelector({selector!r}); f.focus(); f.select(); }})()"
        )
        if text:
            self.ask("Input.insertText", text=text)
        else:
            self.press("Delete")

    def click(self, selector: str) -> None:
        """Press what is found, with the mouse, in its middle."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({selector!r});"
            "e.scrollIntoView({ block: 'center', behavior: 'instant' });"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def give(self, selector: str, path: Path) -> None:
        """Choose a file in a field for files."""
        document = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def drop(self, path: Path) -> None:
        """Drop a file on the heading."""
        content = base64.b64encode(path.read_bytes()).decode()
        self.run(
            f"""(() => {{
              const bytes = Uint8Array.from(atob({json.dumps(content)}), c => c.charCodeAt(0));
              const data = new DataTransfer();
              data.items.add(new File([bytes], {json.dumps(path.name)}));
              for (const kind of ["dragover", "drop"]) document.querySelector("h1").dispatchEvent(
                new DragEvent(kind, {{ dataTransfer: data, bubbles: true, cancelable: true }}));
            }})()"""
        )

    def size(self, width: int, height: int = 900) -> None:
        """The window, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def media(self, scheme: str = "light", kind: str = "") -> None:
        """Dark or light; `kind`: print or nothing."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=kind, features=features)

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])

    def faults(self) -> list[str]:
        """Errors of scripts and the console, and requests for anything but the page itself."""
        self.run("0")
        told = []
        for event in self.events:
            method, found = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                told.append(str(found["exceptionDetails"]))
            elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
                told.append(found["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                told.append(str(found["args"]))
            elif method == "Network.requestWillBeSent" and found.get("type") != "Document":
                told.append(f"request: {found['request']['url'][:200]}")
        return told


# ---- What the tests of `lolat serve` ask of its page.

ANSWER = "document.getElementById('answer').innerText"
READY = f"{DONE} && !document.querySelector('[aria-busy]')"


def answered(page: Chromium, words: str) -> str:
    """The answer, once it has these words and nothing is being waited for."""
    page.wait(f"{READY} && {ANSWER}.includes({json.dumps(words)})")
    return str(page.run(ANSWER))


def accessible(page: Chromium) -> list[tuple[str, str]]:
    """(role, name) of all that a screen reader is told of."""
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    return [
        (n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]
    ]


def violations(page: Chromium) -> list[str]:
    """What axe-core finds wrong for people who see, hear or point otherwise: rule, element."""
    axe = find_spec("axe_core_python")
    assert axe is not None, "pip install axe-core-python"
    assert axe.origin is not None
    page.run(f"{Path(axe.origin).with_name('axe.min.js').read_text(encoding='utf-8')}; 0")
    return page.run("""axe.run(document, { resultTypes: ['violations'] }).then(found =>
      found.violations.flatMap(v => v.nodes.map(n => `${v.id}: ${n.html.slice(0, 160)}`)))""")  # type: ignore[no-any-return]


def luminance(color: str) -> float:
    """Relative luminance of rgb(r, g, b), as WCAG 2.1 defines it."""
    parts = [int(n) / 255 for n in color.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

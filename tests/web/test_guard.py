"""Who may ask, and what a page may load: nothing from anywhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from lolat.web.server import HEADERS, POLICY
from tests.web.pages import ORIGIN, Site

WEB = Path(__file__).resolve().parent.parent.parent / "lolat" / "web"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "127.1",
     "0.0.0.0", "192.168.1.7", "[::1]", "", "127.0.0.1:80@evil", "user@127.0.0.1"],
)  # fmt: skip
def test_another_name_for_this_machine_is_refused(page: Site, host: str) -> None:
    found = page.client.get("/", headers={"host": host})
    assert found.status_code == 403
    assert found.text == (
        "this server is 127.0.0.1 or localhost; open the address that it printed\n"
    )
    assert found.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:8123", "LOCALHOST"])
def test_this_machine_is_answered(page: Site, host: str) -> None:
    assert page.client.get("/", headers={"host": host}).status_code == 200


FORM = {"files": {"file": ("x.onnx", b"\x08\x01")}, "follow_redirects": False}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1"}, 403),
        ({"origin": "http://127.0.0.1:81"}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"origin": ORIGIN, "sec-fetch-site": "cross-site"}, 403),
        ({"origin": ORIGIN, "sec-fetch-site": "same-site"}, 403),
        ({"origin": ORIGIN}, 303),
        ({"origin": ORIGIN, "sec-fetch-site": "same-origin"}, 303),
    ],
)
def test_a_file_is_taken_from_the_page_alone(
    page: Site, headers: dict[str, str], status: int
) -> None:
    found = page.client.post("/upload", headers=headers, **FORM)
    assert found.status_code == status
    assert len(page.reader.calls) == (status == 303)


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch", "options"])
def test_other_methods(page: Site, method: str) -> None:
    assert getattr(page.client, method)("/").status_code == 403
    mine = getattr(page.client, method)("/", headers={"origin": ORIGIN})
    assert mine.status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/static/page.js", "/static/page.css", "/static/icon.svg", "/nothing", "/docs"]
)
def test_every_answer_has_the_policy(page: Site, path: str) -> None:
    found = page.client.get(path)
    for name, value in HEADERS.items():
        assert found.headers[name.lower()] == value
    policy = found.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; ")


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/static/../app.py", "/x"])
def test_there_is_nothing_else(page: Site, path: str) -> None:
    assert page.client.get(path).status_code == 404


def test_no_file_of_the_page_names_an_address() -> None:
    files = [p for p in WEB.rglob("*") if p.suffix in (".html", ".js", ".css", ".svg")]
    assert len(files) >= 6
    for path in files:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?:|//\w|@import|url\(|<iframe|<object", text.replace("// ", "")
        ), path


def test_pages_hold_no_style_or_script_that_the_policy_forbids(page: Site) -> None:
    for text in (page.get(), page.get(name="", samples="x")):
        assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:", text)
        assert re.findall(r"<script[^>]*>", text) == ['<script src="/static/page.js" defer>']
        assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) <= {
            "/static/icon.svg", "/static/page.css", "/static/page.js", "#answer", "#f-name", "#f-samples",
        }  # fmt: skip


def test_a_fault_of_ours_is_one_plain_line(page: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.testclient import TestClient

    monkeypatch.setattr("lolat.web.page.Form", lambda *_: 1 / 0)
    client = TestClient(page.client.app, base_url=ORIGIN, raise_server_exceptions=False)
    found = client.get("/")
    assert (found.status_code, found.text) == (500, "Internal Server Error")
    assert found.headers["content-security-policy"] == POLICY

"""Who may ask the server: this machine's own browser, on the page that the server gave it.

Any web page that a user has open can make the browser send requests to 127.0.0.1. What it cannot do is
read the answers, unless its own name is made to point to 127.0.0.1 (DNS rebinding): then the browser takes
the two for one site. But the Host header still says the other name, so only ours is answered. And a page
elsewhere that sends a form here is told by its Origin.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing is loaded from anywhere else, and no script but the one that comes with LoLat runs."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with it browsers send the form's Origin as "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI application around another one: refuses strangers, adds HEADERS to every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = HOSTS) -> None:
        self.app, self.hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is nothing else here
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        answer = self.app if refusal is None else PlainTextResponse(refusal + "\n", 403)
        await answer(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        """Why a request is not answered, or None."""
        host = headers.get("host", "")
        name, _, port = host.partition(":")
        if name.lower() not in self.hosts or (port and not port.isdigit()):
            return f"this server is {' or '.join(sorted(self.hosts))}; open the address that it printed"
        if method in ("GET", "HEAD"):
            return None
        # Both are sent by every browser of today with a form; a program of the user's can set them.
        if headers.get("origin", "") != f"http://{host}":
            return "a form of another page; open the address that the server printed"
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "a request of another site; open the address that the server printed"
        return None

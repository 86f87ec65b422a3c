"""Who may see the pages: the browser that was given the token, and no page of another site or port."""

from __future__ import annotations

import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with no-referrer a form's Origin is null
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_OPEN = ("/login", "/static/")
"""Paths without contents of the cluster."""


class Access:
    """Refuses other Host headers (DNS rebinding), requests of other origins, and who has no token."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = cookie_name(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(HTTPConnection(scope))
        app = PlainTextResponse(refusal, 403) if refusal else self._app
        await app(scope, receive, send_with_headers)

    def _refusal(self, request: HTTPConnection) -> str:
        headers = request.headers
        if headers.get("host", "") not in self._hosts:
            return f"The Host header must be one of {', '.join(sorted(self._hosts))}.\n"
        origin = headers.get("origin", "")
        foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if foreign or origin not in ("", *(f"http://{host}" for host in self._hosts)):
            return "Only these pages themselves may ask for them; enter the address yourself.\n"
        if request.url.path == "/" or request.url.path.startswith(_OPEN):
            return ""
        if not same(request.cookies.get(self._cookie, ""), self._token):
            return "Open the address that kubectl hami ui printed; it lets you in.\n"
        return ""


def cookie_name(port: int) -> str:
    """The cookie of one port: a browser sends cookies to all ports of a host."""
    return f"kubectl-hami-{port}"


def new_token() -> str:
    return secrets.token_urlsafe(32)


def same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())

"""Who may see the pages: browsers that have the token, or users that a proxy names; and no page of another site."""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with no-referrer a form's Origin is null
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_OPEN = ("/login", "/static/")
"""Paths without contents of the cluster."""


class TokenHolders(Struct, frozen=True):
    """Browsers on this machine that were given the token; the pages are on a port of loopback."""

    token: str
    port: int

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset({f"127.0.0.1:{self.port}", f"localhost:{self.port}"})

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(f"http://{host}" for host in self.hosts)

    @property
    def cookie(self) -> str:
        """The cookie's name: a browser sends cookies to all ports of a host."""
        return f"kubectl-hami-{self.port}"

    def refusal(self, request: HTTPConnection) -> str:
        if request.url.path == "/" or request.url.path.startswith(_OPEN):
            return ""
        if not self.admits(request.cookies.get(self.cookie, "")):
            return "Open the address that kubectl hami ui printed; it lets you in.\n"
        return ""

    def admits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())


class ProxiedUsers(Struct, frozen=True):
    """Users of a proxy: it serves the pages at `url`, and names the user in a header of each request."""

    url: str
    header: str

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset({urlsplit(self.url).netloc})

    @property
    def origins(self) -> frozenset[str]:
        return frozenset({self.url.rstrip("/")})

    def refusal(self, request: HTTPConnection) -> str:
        if not request.headers.get(self.header):
            return f"The proxy must name the user in the header {self.header}.\n"
        return ""


class Access:
    """Refuses other Host headers (DNS rebinding), requests of other origins, and who isn't a visitor."""

    def __init__(self, app: ASGIApp, visitors: TokenHolders | ProxiedUsers) -> None:
        self._app = app
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(HTTPConnection(scope), scope["method"])
        app = PlainTextResponse(refusal, 403) if refusal else self._app
        await app(scope, receive, send_with_headers)

    def _refusal(self, request: HTTPConnection, method: str) -> str:
        visitors, headers = self._visitors, request.headers
        if headers.get("host", "") not in visitors.hosts:
            return f"The Host header must be one of {', '.join(sorted(visitors.hosts))}.\n"
        foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        # a login on another site leads back by a link, and so may others
        if isinstance(visitors, ProxiedUsers) and method == "GET" and headers.get("sec-fetch-dest") == "document":
            foreign = False
        if foreign or headers.get("origin", "") not in ("", *visitors.origins):
            return "Only these pages themselves may ask for them; enter the address yourself.\n"
        return visitors.refusal(request)


def new_token() -> str:
    return secrets.token_urlsafe(32)

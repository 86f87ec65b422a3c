"""The scheduler extender's routes: `/filter`, `/filter-simulation`, `/prioritize`, `/bind` and `/preempt`.

They are on an address of their own, which is loopback unless clients need a certificate (the listener's TLS) or a
bearer token; and on the main server, where HAMi's chart has kube-scheduler send them, for the same clients.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.protocol import (
    ExtenderArgs,
    Filtered,
    decode_args,
    decode_binding,
    decode_proposals,
    encode_filtered,
    encode_proposals,
)
from hami_webhook.server.app import is_loopback
from hami_webhook.server.bodies import BodyError, BodyTooLarge, read_body
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import RequestMetrics

logger = logging.getLogger(__name__)

MAX_BODY = 32 << 20
"""Bytes of a request: whole nodes of a large cluster come in one."""

Handler = Callable[[object], Awaitable[object]]

_FROM_ELSEWHERE = (
    "{} is answered on loopback only, and {} isn't; other clients need the bearer token of --extender-token-file, or a "
    "certificate of --client-ca-file\n"
)


class ExtenderApp:
    """The routes, over an extender. `token_file` is read with every request, so it can be changed at any time."""

    def __init__(
        self, extender: Extender, limits: ListenerLimits, requests: RequestMetrics, token_file: str = ""
    ) -> None:
        self._extender = extender
        self._limits = limits
        self._token_file = token_file
        self._requests = requests

    def application(self) -> Starlette:
        """The application of the extender's own listener, which lets only trusted clients connect."""
        application = Starlette(
            routes=[*self.routes(loopback_only=False), Route("/healthz", _healthy), Route("/readyz", _healthy)]
        )
        application.router.redirect_slashes = False
        return application

    def routes(self, *, loopback_only: bool) -> Sequence[Route]:
        """The routes for any server; `loopback_only`: who connects from elsewhere gets 403."""
        handlers: dict[str, Handler] = {
            "/filter": self._filter,
            "/filter-simulation": self._simulate,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
            "/preempt": self._preempt,
        }
        return [
            Route(path, self._answering(path, handler, loopback_only=loopback_only), methods=["POST"])
            for path, handler in handlers.items()
        ]

    def _answering(
        self, path: str, handler: Handler, *, loopback_only: bool
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            started = perf_counter()
            if loopback_only and not is_loopback(request.scope["client"][0]):
                self._requests.answered(path, 403, perf_counter() - started)
                return PlainTextResponse(_FROM_ELSEWHERE.format(path, request.scope["client"][0]), 403)
            if not self._is_authorized(request):
                self._requests.answered(path, 401, perf_counter() - started)
                return PlainTextResponse("a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
            try:
                body = await read_body(request, self._limits)
            except BodyError as error:
                self._requests.answered(path, error.status, perf_counter() - started)
                words = "too large: " if isinstance(error, BodyTooLarge) else ""
                return PlainTextResponse(f"{words}{error}\n", error.status)
            if not body:
                return PlainTextResponse("the request has no body\n", 400)
            try:
                args: object = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                args = error
            try:
                answered = await handler(args)
                code = 200
            except Exception:
                logger.exception("%s failed", path)
                answered, code = {"Error": "hami-webhook failed; its log says why"}, 500
            self._requests.answered(path, code, perf_counter() - started)
            return Response(orjson.dumps(answered), media_type="application/json")

        return answer

    def _is_authorized(self, request: Request) -> bool:
        """Whether the request brings the token, if one is required."""
        if not self._token_file:
            return True
        try:
            wanted = Path(self._token_file).read_text().strip()
        except (OSError, ValueError) as error:
            logger.warning("the extender's token can't be read, so all clients are refused: %s", error)
            return False
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), wanted.encode())
        return bool(wanted) and scheme.lower() == "bearer" and same

    async def _filter(self, body: object) -> object:
        args = _args(body)
        return encode_filtered(Filtered(error=args) if isinstance(args, str) else await self._extender.filter(args))

    async def _simulate(self, body: object) -> object:
        args = _args(body)
        if not isinstance(args, str) and args.nodes is None:
            args = "a simulation needs whole nodes: extender args missing nodes"
        return encode_filtered(Filtered(error=args) if isinstance(args, str) else await self._extender.filter(args))

    async def _prioritize(self, body: object) -> object:
        args = _args(body)
        if isinstance(args, str):
            logger.warning("/prioritize: %s", args)
            return []
        return [{"Host": host, "Score": score} for host, score in await self._extender.prioritize(args)]

    async def _bind(self, body: object) -> object:
        binding = str(body) if isinstance(body, Exception) else decode_binding(body)
        return {"Error": binding if isinstance(binding, str) else await self._extender.bind(binding)}

    async def _preempt(self, body: object) -> object:
        proposals = str(body) if isinstance(body, Exception) else decode_proposals(body)
        if isinstance(proposals, str):
            return {"Error": proposals}
        return encode_proposals(await self._extender.preempt(*proposals))


def _args(body: object) -> ExtenderArgs | str:
    return str(body) if isinstance(body, Exception) else decode_args(body)


async def _healthy(_: Request) -> Response:
    return Response()

"""The routes of reviews and their application: `/mutate`, `/validate`, `/webhook`, `/claims`, `/templates`, `/quotas`,
`/names`. Large reviews are bounded in sum, and answered one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.admission.review import (
    REPORT_SOURCE,
    REVIEWED_FROM,
    Answer,
    BadReview,
    ClaimReview,
    QuotaReview,
    Review,
    WorkloadReview,
    allowed,
    denied,
    parse_claim_review,
    parse_quota_review,
    parse_review,
    parse_workload_review,
    read_start,
)
from hami_webhook.config import parse_go_duration
from hami_webhook.config.setting_values import Network
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota_ports.claims import ClaimHandler
from hami_webhook.server.bodies import BodyError, BodyTooLarge, header, receive_body, within
from hami_webhook.server.limits import ListenerLimits, TooManyRequests
from hami_webhook.server.request_metrics import RequestMetrics

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Review | ClaimReview | WorkloadReview)
Step = Callable[[R, float | None], Coroutine[Any, Any, Answer]]

_ANSWERING = 0.5
"""Seconds kept back for the way of an answer; a charge keeps back as much again, so that it is the one to say why."""


_LARGE_REVIEWS = 2
"""How many of the largest reviews there may be at a time: what is read of one takes several times its bytes."""


class Sources:
    """The addresses that reviews are accepted from; any if `networks` is empty."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = networks
        self.accepts = lru_cache(maxsize=1024)(self._accepts)

    def _accepts(self, address: str) -> bool:
        if not self._networks:
            return True
        found = _read_address(address)
        return any(found in network for network in self._networks)


def is_loopback(address: str) -> bool:
    """Whether a client's address is one of this machine's loopback, or of the pod's."""
    return _read_address(address).is_loopback


def _read_address(text: str) -> IPv4Address | IPv6Address:
    """A client's address as the socket has it; what a dual-stack socket maps to IPv6 is the IPv4 address."""
    found = ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def review_routes(
    handler: AdmissionHandler,
    limits: ListenerLimits,
    *,
    claims: ClaimHandler | None = None,
    registry: CollectorRegistry,
    misreadings: Callable[[ResourceQuota], Sequence[str]] = lambda quota: (),
    sources: Sources | None = None,
) -> list[Route]:
    """The routes of reviews. `misreadings` are the sentences that the creator of a quota is warned with."""
    reviewing = _Reviewing(
        limits,
        sources or Sources(),
        LargeReviews(_LARGE_REVIEWS * limits.max_request_bytes),
        RequestMetrics(registry, "hami_webhook_review", "admission review"),
        Counter("hami_webhook_review_refusals", "Pods and claims refused.", ("reason",), registry=registry),
    )

    async def stamp_templates(review: WorkloadReview, time_left: float | None) -> Answer:
        return handler.stamp_templates(review)

    steps = {"/mutate": handler.mutate, "/validate": handler.validate, "/webhook": handler.webhook}
    reviews: list[_ReviewRoute] = [
        *(_AdmissionRoute(path, reviewing, parse_review, step) for path, step in steps.items()),
        _AdmissionRoute("/claims", reviewing, parse_claim_review, (claims or ClaimHandler()).review, "claim"),
        _AdmissionRoute("/templates", reviewing, parse_workload_review, stamp_templates, "workload"),
        _WarningRoute("/quotas", reviewing, partial(_quota_warnings, misreadings)),
        _WarningRoute("/names", reviewing, partial(_name_warnings, handler)),
    ]
    return [Route(review.path, review, methods=["POST"]) for review in reviews]


def application(routes: Iterable[Route]) -> ASGIApp:
    """One that serves the routes: those of reviews without starlette's search, which costs as much as their reading."""
    routes = list(routes)
    starlette = Starlette(routes=routes)
    starlette.router.redirect_slashes = False
    reviews = {route.path: route.endpoint for route in routes if isinstance(route.endpoint, _ReviewRoute)}
    if not reviews:
        return starlette

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        review = reviews.get(scope["path"]) if scope["method"] == "POST" else None
        await (review or starlette)(scope, receive, send)

    return serve


_IS_JSON = (b"content-type", b"application/json")


@dataclass(frozen=True)
class _Reviewing:
    """What all routes of reviews share."""

    limits: ListenerLimits
    sources: Sources
    large: LargeReviews
    requests: RequestMetrics
    refusals: Counter


class _ReviewRoute:
    """An ASGI application for a route, which makes no request and response objects of it as starlette would.

    `fails_as_call`: the HTTP answer has the status code of the review in it, which is 200 for others.
    """

    fails_as_call = False

    def __init__(self, path: str, reviewing: _Reviewing, noun: str = "pod") -> None:
        """`noun` is what the reviewed object is called."""
        self.path = path
        self._noun = noun
        self._limits = reviewing.limits
        self._sources = reviewing.sources
        self._large = reviewing.large
        self._requests = reviewing.requests
        self._refusals = reviewing.refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        address = scope["client"][0]
        if not self._sources.accepts(address):
            self._requests.answered(self.path, 403, perf_counter() - started)
            text = f"reviews are accepted from --api-server-cidrs only, and {address} isn't in them\n"
            await PlainTextResponse(text, 403)(scope, receive, send)
            return
        try:
            body = await receive_body(scope, receive, self._limits)
            read = self._read_large if len(body) >= LARGE else self._read
            code, content = await read(scope, body, _time_left(scope["query_string"]))
        except BodyError as error:
            text = f"the review of this {self._noun} is too large: {error} by --max-request-bytes"
            refusal = Denied(error.status, text if isinstance(error, BodyTooLarge) else str(error))
            code, content = self._refused(*read_start(error.start), refusal)
        except BadReview as error:
            self._refusals.labels("request").inc()
            code, content = error.code, denied(error.api_version, error.uid, error, error.name)
        except TooManyRequests:
            self._refusals.labels("unavailable").inc()
            self._requests.answered(self.path, 503, perf_counter() - started)
            raise
        self._requests.answered(self.path, code, perf_counter() - started)
        status = code if self.fails_as_call else 200
        length = (b"content-length", b"%d" % len(content))
        await send({"type": "http.response.start", "status": status, "headers": [_IS_JSON, length]})
        await send({"type": "http.response.body", "body": content})

    async def _read_large(self, scope: Scope, body: bytes, left: float | None) -> tuple[int, bytes]:
        """As `_read`, when it is the review's turn."""
        started = perf_counter()
        try:
            async with self._large.admitted(len(body)):
                await within(min(self._limits.request_timeout, left or math.inf), self._large.turn())
                waited = perf_counter() - started
                return await self._read(scope, body, left and max(left - waited, _ANSWERING))
        except (TooManyLargeReviews, TimeoutError):
            logger.warning("%s: a review of %d bytes refused, as other large ones wait", self.path, len(body))
            refusal = Denied(503, "too many large pods are being reviewed; try again", retry_after=1)
            return self._refused(*read_start(body[:1024]), refusal)

    def _refused(self, api_version: str, uid: str, refusal: Denied, name: str = "") -> tuple[int, bytes]:
        """The status code inside the answer, and the answer."""
        self._refusals.labels(refusal.cause).inc()
        kind = "resourceclaims" if self._noun == "claim" else "pods"
        return refusal.code, denied(api_version, uid, refusal, name, kind)

    async def _read(self, scope: Scope, body: bytes, left: float | None) -> tuple[int, bytes]:
        """The status code inside the answer, and the answer. Raises `BadReview`."""
        raise NotImplementedError


class _AdmissionRoute(_ReviewRoute, Generic[R]):
    """A route that may refuse objects, pods or claims."""

    def __init__(
        self, path: str, reviewing: _Reviewing, parse: Callable[[bytes, str], R], step: Step[R], noun: str = "pod"
    ) -> None:
        super().__init__(path, reviewing, noun)
        self._parse = parse
        self._step = step

    async def _read(self, scope: Scope, body: bytes, left: float | None) -> tuple[int, bytes]:
        review = self._parse(body, header(scope, b"content-type"))
        began = perf_counter()
        seconds = min(self._limits.request_timeout, left or math.inf)
        try:
            answer = await within(seconds, self._step(review, left and left - _ANSWERING))
        except Denied as error:
            self._log(logging.INFO, f"{self._noun} refused", review, began, error)
            return self._refused(review.api_version, review.uid, error, review.name)
        except TimeoutError:
            late = Denied(503, "the cluster didn't answer in time; try again", retry_after=1)
            self._log(logging.WARNING, f"{self._noun} refused", review, began, late)
            return self._refused(review.api_version, review.uid, late, review.name)
        except Exception as error:
            failure = Denied(500, f"hami-webhook failed to review this {self._noun}; its log says why", cause="failure")
            self._log(logging.ERROR, "review failed", review, began, failure, error)
            return self._refused(review.api_version, review.uid, failure, review.name)
        if logger.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, f"{self._noun} allowed", review, began)
        meta = review.object.metadata
        if review.dry_run and meta is not None and REPORT_SOURCE in (meta.annotations or ()):
            source = f"{REVIEWED_FROM}{_read_address(scope['client'][0])}"
            answer = msgspec.structs.replace(answer, warnings=(*answer.warnings, source))
        return 200, allowed(review.api_version, review.uid, answer)

    def _log(
        self,
        level: int,
        message: str,
        review: R,
        began: float,
        refusal: Denied | None = None,
        error: Exception | None = None,
    ) -> None:
        meta = review.object.metadata
        about = {
            "namespace": review.namespace,
            self._noun: review.name or (meta and (meta.name or meta.generate_name)),
            "uid": meta and meta.uid,
            "review": review.uid,
            "path": self.path,
            "code": 200 if refusal is None else refusal.code,
            "reason": refusal and refusal.message,
            "duration": perf_counter() - began,
        }
        logger.log(level, message, extra=about, exc_info=error)


_Warnings = Callable[[], Sequence[str]]
"""What the creator of a reviewed object is warned of."""


class _WarningRoute(_ReviewRoute):
    """A route that warns of what an object says, and refuses none. `read` reads a body of a content type.

    What can't be answered fails as a call: the failure policy `Ignore` lets the object pass then, and no refusal.
    """

    fails_as_call = True

    def __init__(
        self, path: str, reviewing: _Reviewing, read: Callable[[bytes, str], tuple[Review | QuotaReview, _Warnings]]
    ) -> None:
        super().__init__(path, reviewing)
        self._warnings_of = read

    async def _read(self, scope: Scope, body: bytes, left: float | None) -> tuple[int, bytes]:
        review, warnings = self._warnings_of(body, header(scope, b"content-type"))
        try:
            answer = Answer(warnings=warnings())
        except Exception:
            logger.exception("%s failed", self.path)
            failure = Denied(500, "hami-webhook failed to review this object; its log has the reason")
            return failure.code, denied(review.api_version, review.uid, failure)
        return 200, allowed(review.api_version, review.uid, answer)


def _quota_warnings(
    misreadings: Callable[[ResourceQuota], Sequence[str]], body: bytes, content_type: str
) -> tuple[QuotaReview, _Warnings]:
    review = parse_quota_review(body, content_type)
    return review, lambda: misreadings(ResourceQuota.from_object(review.object))


def _name_warnings(handler: AdmissionHandler, body: bytes, content_type: str) -> tuple[Review, _Warnings]:
    review = parse_review(body, content_type)
    return review, lambda: handler.misspelt(review)


@lru_cache(maxsize=64)
def _time_left(query: bytes) -> float | None:
    """Seconds the API server still waits (`?timeout=10s`), less a moment for the way back; None if it doesn't say."""
    text = QueryParams(query).get("timeout")
    if not text:
        return None
    try:
        return max(_ANSWERING + 0.1, parse_go_duration(text) - _ANSWERING)
    except ValueError:
        return None


LARGE: Final = 64 * 1024
"""Bytes of a review from which it is a large one."""


class TooManyLargeReviews(Exception):
    """The large reviews that aren't answered yet take all the memory that they may."""


class LargeReviews:
    """The large reviews that aren't answered yet, with bodies of at most `most` bytes in sum. A pod may have more than
    ten thousand containers; its review takes tenths of a second, in which nothing else happens.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[None]:
        """While the block runs, a review with a body of `size` bytes counts. Raises `TooManyLargeReviews`."""
        if self._bytes + size > self._most:
            raise TooManyLargeReviews
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size

    async def turn(self) -> None:
        """Wait for the turn of a review. It lasts until the caller awaits, and a pause of the same length follows."""
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._pause, perf_counter())

    def _pause(self, began: float) -> None:
        asyncio.get_running_loop().call_later(perf_counter() - began, self._turn.release)

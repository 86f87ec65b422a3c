"""The cluster port on a real API server, through `kubernetes.aio`.

Objects stay plain JSON: the client's own models would cost a hundred times the memory and know fewer fields than the
server. Reads for decisions are linearizable (no resourceVersion); lists come in pages of one snapshot.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import msgspec
import orjson

from hami_webhook.cluster.api import (
    JSON,
    LONGEST_SILENCE,
    AlreadyExists,
    ClusterError,
    Conflict,
    EventNote,
    EvictionRefused,
    Forbidden,
    Gone,
    Invalid,
    Kind,
    Listing,
    NotFound,
    Unavailable,
    WatchEvent,
    WatchType,
)
from hami_webhook.cluster.clock import ServerClock
from hami_webhook.cluster.events import EventCorrelator
from hami_webhook.cluster.kept_fields import decode_whole
from hami_webhook.cluster.rate import TokenBucket
from hami_webhook.kube import wire
from hami_webhook.kube.names import is_subdomain
from hami_webhook.light_imports import aiohttp

logger = logging.getLogger(__name__)

PAGE = 500
LARGEST_ANSWER = 64 << 20
"""Bytes of an answer: a page of ordinary pods has 10 MiB; one that tenants filled with the largest there are, more.
Larger pages are read in smaller ones, down to a single object, which has 8 MiB at most.
"""
LARGEST_LINE = 16 << 20
"""Bytes of a watch's line: twice the JSON of the largest object that etcd stores."""
_LARGEST_REFUSAL = 1 << 20
"""Bytes of an error's body."""
_MERGE = "application/merge-patch+json"
REQUEST_TIMEOUT = 30.0
"""Seconds after which a request fails where no other limit is set."""
_WATCH_SECONDS = (300, 600)
_PAGING_TRIES = 3

_WARNING = re.compile(r'299 \S+ "(?P<text>.*)"', re.DOTALL)
_LEASES = "/apis/coordination.k8s.io/v1"

T = TypeVar("T")


class _ListMeta(wire.Wire, frozen=True):
    resource_version: str
    next: str | None = msgspec.field(default=None, name="continue")


class _Page(wire.Wire, frozen=True):
    """A page of a list, its items not decoded yet."""

    metadata: _ListMeta
    items: tuple[msgspec.Raw, ...] | None = None


class _Watched(wire.Wire, frozen=True):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_JSON: msgspec.json.Decoder[JSON] = msgspec.json.Decoder(dict[str, Any])
_PAGE, _WATCHED = msgspec.json.Decoder(_Page), msgspec.json.Decoder(_Watched)


class _TooLarge(Unavailable):
    """An answer has more bytes than are ever read of one."""


class Client(Protocol):
    """What is used of `kubernetes.aio`'s `ApiClient`."""

    async def param_serialize(
        self, method: str, resource_path: str, *, query_params: Any, header_params: Any, auth_settings: Any
    ) -> tuple[Any, ...]:
        """Method, URL and headers of a request."""
        ...

    async def call_api(self, method: str, url: str, headers: Any, body: Any, *, _request_timeout: Any) -> Any:
        """Send it; `response` of what is returned is aiohttp's, whatever its status."""
        ...

    async def close(self) -> None: ...


class KubernetesCluster(AbstractAsyncContextManager["KubernetesCluster"]):
    """A real API server. `async with` closes the connections.

    `decode` decodes listed and watched objects, as far as they are kept; `component` and `instance` are who events are
    from. `limit` is waited for before every request but watches. `clock` is kept at the API server's time. A request
    fails after `timeout` seconds, and after `silence` seconds without a byte.
    """

    def __init__(
        self,
        api: Client,
        *,
        decode: Callable[[Kind, msgspec.Raw], JSON] = decode_whole,
        component: str = "hami-webhook",
        instance: str = "",
        limit: TokenBucket | None = None,
        timeout: float = 0.0,
        silence: float | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        self._api = api
        self._decode = decode
        self._limit = limit
        self._timeout = aiohttp.ClientTimeout(total=timeout or REQUEST_TIMEOUT, sock_connect=silence, sock_read=silence)
        self.clock = clock or ServerClock()
        self._events = EventCorrelator(component, instance)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.close()

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        return await self.call("GET", _path(kind, namespace, name))

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        for _ in range(_PAGING_TRIES - 1):
            try:
                return await self._list(kind, namespace, node)
            except Gone:  # the snapshot was compacted away between two pages
                continue
        return await self._list(kind, namespace, node)

    async def _list(self, kind: Kind, namespace: str, node: str) -> Listing:
        items: list[JSON] = []
        token, limit = "", PAGE
        while True:
            query = {"limit": str(limit), **_bound_to(node)} | ({"continue": token} if token else {})
            try:
                page = await self._request("GET", _path(kind, namespace), query=query, decoder=_PAGE)
            except _TooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            items += (self._decode(kind, item) for item in page.items or ())
            token = page.metadata.next or ""
            if not token:
                return Listing(items, page.metadata.resource_version)

    async def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        query = {
            **_bound_to(node),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311  it only spreads load
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT, sock_read=LONGEST_SILENCE)
        try:
            response = await self._send("GET", _path(kind, ""), query=query, within=timeout)
            try:
                async for line in _lines(response):
                    event = self._watch_event(kind, _WATCHED.decode(line))
                    if event is not None:
                        yield event
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError, *_NOT_JSON) as error:
            raise Unavailable(f"the watch of {kind.value} broke: {_cause(error)}") from error

    def _watch_event(self, kind: Kind, event: _Watched) -> WatchEvent | None:
        if event.type == "ERROR":
            status = decode_whole(kind, event.object)
            _refuse(status.get("code", 500), status)
        try:
            type_ = WatchType(event.type)
        except ValueError:  # a type that came after this was written
            return None
        decode = decode_whole if type_ is WatchType.BOOKMARK else self._decode
        return WatchEvent(type_, decode(kind, event.object))

    async def create(self, kind: Kind, obj: JSON) -> JSON:
        return await self.call("POST", _path(kind, obj["metadata"].get("namespace", "")), obj)

    async def patch(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        return await self.call("PATCH", _path(kind, namespace, name), patch)

    async def patch_status(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        return await self.call("PATCH", _path(kind, namespace, name, "status"), patch)

    async def bind(
        self, namespace: str, pod: str, uid: str, node: str, *, resource_version: str = "", metadata: JSON | None = None
    ) -> None:
        meta = {**(metadata or {}), "name": pod, "namespace": namespace, "uid": uid}
        if resource_version:
            meta["resourceVersion"] = resource_version
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.call("POST", _path(Kind.PODS, namespace, pod, "binding"), binding)

    async def delete_pod(self, namespace: str, pod: str, uid: str) -> None:
        await self.call("DELETE", _path(Kind.PODS, namespace, pod), {"preconditions": {"uid": uid}})

    async def delete_claim_template(self, namespace: str, name: str, uid: str) -> None:
        path = _path(Kind.RESOURCE_CLAIM_TEMPLATES, namespace, name)
        await self.call("DELETE", path, {"preconditions": {"uid": uid}})

    async def evict_pod(self, namespace: str, pod: str, uid: str, grace: int | None = None) -> None:
        options: JSON = {"preconditions": {"uid": uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": options,
        }
        await self.call("POST", _path(Kind.PODS, namespace, pod, "eviction"), eviction)

    async def record_event(self, note: EventNote) -> None:
        recording = self._events.correlate(note, self.clock())
        if recording is None:
            return
        path = _joined("/api/v1", "events", recording.namespace)
        if not recording.create:
            try:
                await self.call(
                    "PATCH", _joined("/api/v1", "events", recording.namespace, recording.name), recording.body
                )
            except NotFound:  # events live for an hour
                self._events.lost(recording)
                again = self._events.correlate(note, self.clock())
                if again is None:
                    return
                recording = again
            else:
                self._events.recorded(recording, self.clock())
                return
        await self.call("POST", path, recording.body)
        self._events.recorded(recording, self.clock())

    async def get_lease(self, namespace: str, name: str) -> JSON:
        return await self.call("GET", _joined(_LEASES, "leases", namespace, name))

    async def create_lease(self, namespace: str, lease: JSON) -> JSON:
        return await self.call("POST", _joined(_LEASES, "leases", namespace), _lease(lease))

    async def replace_lease(self, namespace: str, lease: JSON) -> JSON:
        return await self.call("PUT", _joined(_LEASES, "leases", namespace, lease["metadata"]["name"]), _lease(lease))

    async def version(self) -> str:
        """The API server's own version, such as `v1.36.3`."""
        return str((await self.call("GET", "/version")).get("gitVersion", ""))

    async def time(self) -> float:
        """The API server's clock in Unix seconds, as its answers are dated. Raises `ClusterError`."""
        try:
            response = await self._send("GET", "/version", within=self._timeout)
            response.release()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"the API server didn't answer GET /version: {_cause(error)}") from error
        return parsedate_to_datetime(response.headers["Date"]).timestamp()

    async def try_creating(self, path: str, obj: JSON) -> Sequence[str]:
        """Create an object in a collection in a dry run; what its creator is warned of. Raises `ClusterError`."""
        try:
            response = await self._send("POST", path, body=obj, query={"dryRun": "All"}, within=self._timeout)
            response.release()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"the API server didn't answer POST {path}: {_cause(error)}") from error
        found = (_WARNING.fullmatch(text) for text in response.headers.getall("Warning", ()))
        return [re.sub(r"\\(.)", r"\1", match["text"]) for match in found if match is not None]

    async def may(self, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """Whether these credentials have a right in every namespace (SelfSubjectAccessReview)."""
        requested = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": requested},
        }
        answer = await self.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(answer["status"].get("allowed"))

    async def call(
        self, method: str, path: str, body: JSON | None = None, query: Mapping[str, str] | None = None
    ) -> JSON:
        """One request and its JSON answer. Raises `ClusterError`."""
        return await self._request(method, path, body, query, decoder=_JSON)

    async def _request(
        self,
        method: str,
        path: str,
        body: JSON | None = None,
        query: Mapping[str, str] | None = None,
        *,
        decoder: msgspec.json.Decoder[T],
    ) -> T:
        if self._limit is not None:
            await self._limit.take()
        try:
            response = await self._send(method, path, body=body, query=query, within=self._timeout)
            content = await _content(response, LARGEST_ANSWER)
            if content is None:
                most = LARGEST_ANSWER >> 20
                raise _TooLarge(f"the answer to {method} {path} has more than {most} MiB, and isn't read")
            return decoder.decode(content)
        except (aiohttp.ClientError, TimeoutError, OSError, *_NOT_JSON) as error:
            raise Unavailable(f"the API server didn't answer {method} {path}: {_cause(error)}") from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        within: aiohttp.ClientTimeout,
        body: JSON | None = None,
        query: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """The response to a request that succeeded; raises the `ClusterError` of one that didn't."""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if method == "PATCH":
            headers["Content-Type"] = _MERGE
        _, url, headers, _, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            auth_settings=["BearerToken"],
        )
        sent = time.monotonic()
        answer = await self._api.call_api(method, url, headers, body, _request_timeout=within)
        response: aiohttp.ClientResponse = answer.response
        self.clock.answered(response.headers.get("Date", ""), time.monotonic() - sent)
        if response.status >= 400:
            content = await _content(response, _LARGEST_REFUSAL) or b"an error too large to be read"
            try:
                status = orjson.loads(content)
            except orjson.JSONDecodeError:
                status = None
            text = content[:200].decode(errors="replace")
            _refuse(response.status, status if isinstance(status, dict) else {"message": text})
        return response


def _bound_to(node: str) -> Mapping[str, str]:
    """The query for the pods of a node, for all if it is empty."""
    return {"fieldSelector": f"spec.nodeName={_checked(node, 'node')}"} if node else {}


def _path(kind: Kind, namespace: str, name: str | None = None, subresource: str = "") -> str:
    within = namespace if kind.namespaced and (namespace or name is not None) else None
    return _joined(kind.prefix, kind.value, within, name, subresource)


def _joined(prefix: str, resource: str, namespace: str | None, name: str | None = None, subresource: str = "") -> str:
    """The path of an object, of a collection if `name` is None, in any namespace if that is. Raises `Invalid`.

    No text from outside leads anywhere else: an empty name would be the collection, `..` another resource.
    """
    segments = [resource] if namespace is None else ["namespaces", _checked(namespace, "namespace"), resource]
    if name is not None:
        segments += [_checked(name, resource), *([subresource] if subresource else [])]
    return "/".join((prefix, *(quote(segment, safe="") for segment in segments)))


def _checked(name: str, what: str) -> str:
    if not is_subdomain(name):
        raise Invalid(
            f"{name[:100]!r} can't be the name of a {what.removesuffix('s')}: names are lower case letters, digits, "
            "'-' and '.', begin and end with a letter or digit, and have at most 253 characters"
        )
    return name


def _lease(lease: JSON) -> JSON:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}


_DISRUPTION_BUDGET = "DisruptionBudget"
"""The cause of a 429 that isn't about load."""
_ERRORS: Mapping[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid, 403: Forbidden}


def _refuse(code: int, status: JSON) -> NoReturn:
    """Raises what a status of the API server means."""
    message = str(status.get("message") or status.get("reason") or f"HTTP status {code}")
    if code == 409 and status.get("reason") == "AlreadyExists":
        raise AlreadyExists(message)
    causes = (status.get("details") or {}).get("causes") or ()
    if code == 429 and any(each.get("reason") == _DISRUPTION_BUDGET for each in causes):
        raise EvictionRefused(message)
    if code in _ERRORS:
        raise _ERRORS[code](message)
    # 401: a token that was just rotated is read again with the next request
    raise (Unavailable if code in (401, 429) or code >= 500 else ClusterError)(message)


async def _content(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body of an answer; None if it has more than `most` bytes: the connection is closed then."""
    chunks, size = [], 0
    try:
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > most:
                response.close()
                return None
            chunks.append(chunk)
    finally:
        response.release()
    return b"".join(chunks)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a stream. Raises `Unavailable` for one that is longer than any object."""
    begun: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        first, *rest = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > LARGEST_LINE:
            raise Unavailable(f"a line of a watch has more than {LARGEST_LINE >> 20} MiB, which no object has")
        if not rest:
            continue
        *whole, last = b"".join(begun), *rest
        begun, size = [last], len(last)
        for line in whole:
            if line:
                yield line


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__

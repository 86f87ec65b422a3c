"""Reading the body of a request within a listener's limits, and deadlines for what has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from hami_webhook.server.limits import ListenerLimits

# Bytes of a body that is too large which are kept, so that the answer can name what it answers.
_START_BYTES: Final = 1024
# Digits of a Content-Length that are looked at; no body that is accepted needs as many.
_LENGTH_DIGITS: Final = 18


class BodyError(Exception):
    """A request body that was refused. ``status`` is the HTTP status for that; the text is one sentence.

    ``start`` is how the body begins, where that was read.
    """

    status = 400

    def __init__(self, text: str, start: bytes = b"") -> None:
        super().__init__(text)
        self.start = start


class BodyTooLarge(BodyError):
    """The body is, or says it is, larger than ``max_request_bytes``."""

    status = 413


class BodyTimeout(BodyError):
    """The body was not complete within ``request_timeout``."""

    status = 408


async def read_body(request: Request, limits: ListenerLimits) -> bytes:
    """The whole body of a starlette request: see `receive_body`."""
    return await receive_body(request.scope, request.receive, limits)


async def receive_body(scope: Scope, receive: Receive, limits: ListenerLimits) -> bytes:
    """The whole body; little more than ``max_request_bytes`` of it are ever held.

    Raises `BodyTooLarge` or `BodyTimeout`, after which the request can still be answered, and starlette's
    ``ClientDisconnect``, after which it can't (the listener handles it).
    """
    bound = most = limits.max_request_bytes
    declared = header(scope, b"content-length")
    too_large = declared.isdecimal() and (len(declared) > _LENGTH_DIGITS or int(declared) > bound)
    if too_large:  # a client that expects `100 Continue` sends none of it
        most = -1 if header(scope, b"expect") else _START_BYTES - 1
    try:
        body = await within(limits.request_timeout, _received(receive, most))
    except TimeoutError:
        raise BodyTimeout(f"the request body was not complete within {limits.request_timeout:g} s") from None
    if not too_large and len(body) <= bound:
        return body
    has = f"{declared[:_LENGTH_DIGITS]} bytes, more than the {bound}" if too_large else f"more than the {bound} bytes"
    raise BodyTooLarge(f"the request body has {has} allowed", body[:_START_BYTES])


async def _received(receive: Receive, most: int) -> bytes:
    """The body, or the parts of it with which it has more than ``most`` bytes. Raises ``ClientDisconnect``."""
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = bool(message.get("more_body"))
    return b"".join(parts)


def header(scope: Scope, name: bytes) -> str:
    """The first header of a name, which is lower case; empty if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""


T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Raises `TimeoutError`, and cancels it, if it isn't done in so many seconds. Costs nothing
    where nothing waits: starting and stopping a timer is a tenth of most answers.
    """
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(seconds):
        finished: T = await _Begun(work, awaited)
        return finished


class _Begun:
    """A coroutine that was begun already, and waits for `awaited`."""

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        while True:
            try:
                answer = yield awaited
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:
                failed: BaseException | None = error
            else:
                failed = None
            try:
                awaited = self._work.send(answer) if failed is None else self._work.throw(failed)
            except StopIteration as done:
                return done.value

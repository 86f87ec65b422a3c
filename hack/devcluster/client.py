"""The kubelet's own small client of the API server: JSON requests, and following what a selector picks.

It isn't `hami_webhook.cluster`: what tests the program should not depend on it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import aiohttp

JSON = dict[str, Any]

_log = logging.getLogger(__name__)
_MERGE = {"Content-Type": "application/merge-patch+json"}
_RETRY_SECONDS = 1.0


class ApiError(Exception):
    """The API server refused; `code` is the HTTP status, the text its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


FAILURES = (ApiError, aiohttp.ClientError, TimeoutError, OSError)
"""What a request may raise."""


class Client(AbstractAsyncContextManager["Client"]):
    """The API server at `server`, with the client certificate `user` of the control plane in `folder`."""

    def __init__(self, server: str, folder: Path, user: str) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._tls.load_cert_chain(folder / f"{user}.crt", folder / f"{user}.key")
        self._headers: dict[str, str] = {}

    @classmethod
    def with_token(cls, server: str, ca: str, token: str) -> Client:
        """As the user of a token; `ca` is the API server's authority as PEM."""
        client = cls.__new__(cls)
        client._server = server
        client._tls = ssl.create_default_context(cadata=ca)
        client._headers = {"Authorization": f"Bearer {token}"}
        return client

    async def __aenter__(self) -> Client:
        # every followed object keeps a connection
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, **query: str) -> JSON:
        return await self._call("GET", path, query=query)

    async def post(self, path: str, body: JSON) -> JSON:
        return await self._call("POST", path, body)

    async def patch(self, path: str, body: JSON) -> JSON:
        """Apply a merge patch."""
        return await self._call("PATCH", path, body)

    async def delete(self, path: str, options: JSON) -> JSON:
        return await self._call("DELETE", path, options)

    async def follow(self, path: str, **selector: str) -> AsyncIterator[dict[str, JSON]]:
        """The objects that `selector` picks of a collection, by UID: as they are, and again after every change."""
        while True:
            try:
                listing = await self.get(path, **selector)
                found = {item["metadata"]["uid"]: item for item in listing["items"]}
                yield found
                async for event in self._watch(path, listing["metadata"]["resourceVersion"], selector):
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                    uid = event["object"]["metadata"]["uid"]
                    if event["type"] == "DELETED":
                        found.pop(uid, None)
                    else:
                        found[uid] = event["object"]
                    yield found
            except FAILURES as error:
                _log.warning("following %s %s: %s", path, selector, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _watch(self, path: str, version: str, selector: dict[str, str]) -> AsyncIterator[JSON]:
        query = {**selector, "watch": "1", "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        async with self._session.get(self._server + path, params=query, timeout=timeout) as answer:
            if answer.status >= 400:
                raise ApiError(answer.status, await answer.text())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    async def _call(
        self,
        method: Literal["GET", "POST", "PATCH", "DELETE"],
        path: str,
        body: JSON | None = None,
        query: dict[str, str] | None = None,
    ) -> JSON:
        headers = _MERGE if method == "PATCH" else None
        timeout = aiohttp.ClientTimeout(total=30)
        async with self._session.request(
            method, self._server + path, json=body, params=query, headers=headers, timeout=timeout
        ) as answer:
            found: JSON = await answer.json(content_type=None)
            if answer.status >= 400:
                raise ApiError(answer.status, str(found.get("message")))
            return found

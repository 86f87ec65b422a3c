"""Everything that happens to pods and quotas, revision by revision of etcd."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import aiohttp

from hack.devcluster.plane import ControlPlane

JSON = dict[str, Any]
WATCHED = ("pods", "resourcequotas")
CLAIMS = "resourceclaims"
_ACCELERATOR_QUOTAS = "acceleratorquotas"


class Change(NamedTuple):
    """What happened to an object at a revision: `type` is ADDED, MODIFIED or DELETED; `kind` is the plural."""

    revision: int
    kind: str
    type: str
    object: JSON


class Revisions:
    """Records while the block runs; then `replay` gives each revision's objects.

    Those of a namespace, or without one those of all namespaces, and AcceleratorQuotas; with `claims` ResourceClaims
    too. Resource versions are etcd's revisions, so those of two kinds have one order. `keep` makes of an object what is
    remembered of it.
    """

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str = "",
        keep: Callable[[JSON], JSON] = lambda item: item,
        *,
        claims: bool = False,
    ) -> None:
        self._plane = plane
        self._keep = keep
        within = f"/namespaces/{namespace}" if namespace else ""
        self._paths = {kind: f"{plane.server}/api/v1{within}/{kind}" for kind in WATCHED}
        if not namespace:
            self._paths[_ACCELERATOR_QUOTAS] = f"{plane.server}/apis/hami.io/v1alpha1/{_ACCELERATOR_QUOTAS}"
        if claims:
            self._paths[CLAIMS] = f"{plane.server}/apis/resource.k8s.io/v1{within}/{CLAIMS}"
        self._events: list[tuple[int, str, JSON]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Revisions:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def replay(self) -> Iterator[tuple[int, list[JSON], list[JSON]]]:
        """Each revision with the pods and the quotas that there are from then on, by the API server's own objects."""
        for revision, objects in self.objects():
            yield revision, objects["pods"], objects["resourcequotas"]

    def changes(self) -> Iterator[Change]:
        """Everything in its order."""
        for revision, kind, event in sorted(self._events, key=lambda each: each[0]):
            assert event["type"] in ("ADDED", "MODIFIED", "DELETED"), event
            yield Change(revision, kind, event["type"], event["object"])

    def objects(self) -> Iterator[tuple[int, dict[str, list[JSON]]]]:
        """Each revision with the objects that there are from then on, by their kind's plural."""
        objects: dict[str, dict[str, JSON]] = {kind: {} for kind in self._paths}
        for revision, kind, type_, item in self.changes():
            if type_ == "DELETED":
                objects[kind].pop(item["metadata"]["uid"], None)
            else:
                objects[kind][item["metadata"]["uid"]] = item
            yield revision, {each: list(found.values()) for each, found in objects.items()}

    def versions(self, *kinds: str) -> dict[str, list[JSON]]:
        """Each object of these kinds as it was from change to change, by its UID."""
        found: dict[str, list[JSON]] = {}
        for _, kind, event in sorted(self._events, key=lambda each: each[0]):
            if kind in kinds and event["type"] != "DELETED":
                found.setdefault(event["object"]["metadata"]["uid"], []).append(event["object"])
        return found

    def newest(self, kind: str) -> int:
        return max((revision for revision, known, _ in self._events if known == kind), default=0)

    async def _start(self) -> None:
        context = ssl.create_default_context(cafile=str(self._plane.authority.certificate))
        context.load_cert_chain(self._plane.folder / "admin.crt", self._plane.folder / "admin.key")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=2**24,
        )
        self._tasks = []
        for kind, path in self._paths.items():
            async with self._session.get(path) as answer:
                listing = await answer.json()
            for item in listing["items"]:
                self._record(kind, "ADDED", item)
            self._tasks.append(asyncio.create_task(self._watch(kind, listing["metadata"]["resourceVersion"])))

    async def _stop(self) -> None:
        ended = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        await asyncio.sleep(0.1)  # in which the loop ends what was aborted
        assert not ended, f"a watch ended early, so something may be missing: {ended}"

    def _record(self, kind: str, type_: str, item: JSON) -> None:
        event = {"type": type_, "object": self._keep(item)}
        self._events.append((int(item["metadata"]["resourceVersion"]), kind, event))

    async def _watch(self, kind: str, version: str) -> None:
        """Record what happens after a version, also where the API server ends a watch that it finds slow."""
        while True:
            url = f"{self._paths[kind]}?watch=1&resourceVersion={version}&timeoutSeconds=3600"
            async with self._session.get(url) as answer:
                try:
                    async for line in answer.content:
                        event = json.loads(line)
                        self._record(kind, event["type"], event["object"])
                        version = event["object"]["metadata"]["resourceVersion"]
                finally:
                    if answer.connection is not None and answer.connection.transport is not None:
                        answer.connection.transport.abort()  # an orderly end would wait for the API server's

"""A proxy in front of the API server that breaks what passes, as a middlebox does: silent watches, lost requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import threading
from pathlib import Path
from types import TracebackType

import aiohttp
from aiohttp import web

from hack.devcluster.plane import ControlPlane


class ApiProxy:
    """Passes requests on, over plain HTTP; watches say nothing while `silence()` holds, and stay open.

    Of all other requests one in `failing` breaks its connection, if that isn't 0: in turn it doesn't arrive, or its
    answer is lost. `failed` is how many did. Every request waits for `delay` seconds.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.failing = self.failed = 0
        self.delay = 0.0
        self._requests = itertools.count(1)

    def __enter__(self) -> ApiProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def silence(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def speak(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def login(self, kubeconfig: Path, path: Path) -> Path:
        """The same login through the proxy."""
        document = json.loads(kubeconfig.read_text())
        document["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        path.write_text(json.dumps(document))
        return path

    async def _start(self) -> None:
        self._open.set()
        context = ssl.create_default_context(cafile=str(self._plane.authority.certificate))
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0))
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {name: text for name, text in request.headers.items() if name not in ("Host", "Content-Length")}
        watching = "watch" in request.query
        await asyncio.sleep(self.delay)
        fails = bool(self.failing) and not watching and next(self._requests) % self.failing == 0
        self.failed += fails
        if fails and self.failed % 2:
            return self._broken(request)
        async with self._session.request(
            request.method,
            self._plane.server + request.raw_path,
            headers=headers,
            data=await request.read(),
            timeout=aiohttp.ClientTimeout(total=None),
        ) as found:
            if fails:
                await found.read()
                return self._broken(request)
            answer = web.StreamResponse(status=found.status, headers={"Content-Type": found.content_type})
            await answer.prepare(request)
            async for part in found.content.iter_any():
                if watching:
                    await self._open.wait()
                await answer.write(part)
            await answer.write_eof()
            return answer

    @staticmethod
    def _broken(request: web.Request) -> web.StreamResponse:
        """No answer."""
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

"""An HTTP server that tests answer for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def http_server(answer: Callable[[web.BaseRequest, bytes], web.Response]) -> Iterator[str]:
    """The URL of a server on 127.0.0.1 that sends what `answer` makes of a request and its body, in its own thread."""

    async def handle(request: web.BaseRequest) -> web.Response:
        return answer(request, await request.read())

    async def start() -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

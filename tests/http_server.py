"""An HTTP server that tests answer for."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def http_server(
    answer: Callable[[web.BaseRequest, bytes], web.Response | Iterable[bytes] | AsyncIterable[bytes]],
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """The URL of a server on 127.0.0.1 that sends what `answer` makes of a request and its body, in its own thread.

    Parts of a body are sent one by one, for as long as the client reads: there may be any number of them.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        answered = answer(request, await request.read())
        if isinstance(answered, web.Response):
            return answered
        stream = web.StreamResponse()
        await stream.prepare(request)
        with contextlib.suppress(ConnectionError):
            if isinstance(answered, AsyncIterable):
                async for part in answered:
                    await stream.write(part)
            else:
                for part in answered:
                    await stream.write(part)
        return stream

    async def start() -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return runner

    async def end(runner: web.ServerRunner) -> None:
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # answers that have no end
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(end(runner), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

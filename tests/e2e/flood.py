"""A client that keeps connections of a server occupied: `python flood.py PORT SOURCE IDLE HALF_SENT [--plain]`.

Idle connections have had one answer. Half-sent requests have announced a body and sent a part of it. What the server
closes is opened anew, twenty a second. Prints `held` once it has tried everything, and runs until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import ssl
import sys

import uvloop

GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
HALF_SENT = (
    b"POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
    + b'{"kind":"AdmissionReview",' * 400
)


class Flood:
    """Connections to one port of loopback, from one of its addresses."""

    def __init__(self, port: int, source: str, context: ssl.SSLContext | None) -> None:
        self._port = port
        self._source = source
        self._context = context
        self._connecting = asyncio.Semaphore(50)
        self._reopening = asyncio.Lock()

    async def hold(self, count: int, request: bytes, answered: bool) -> None:
        """Occupy `count` connections; returns when each was opened once, and goes on in the background."""
        first = [asyncio.get_running_loop().create_future() for _ in range(count)]
        self._tasks = [asyncio.create_task(self._keep(request, answered, opened)) for opened in first]
        await asyncio.gather(*first)

    async def _keep(self, request: bytes, answered: bool, opened: asyncio.Future[None]) -> None:
        while True:
            try:
                async with self._connecting:
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1",
                        self._port,
                        ssl=self._context,
                        server_hostname="x" if self._context else None,
                        local_addr=(self._source, 0),
                        limit=1024,
                    )
                    writer.write(request)
                    if answered:
                        await reader.readuntil(b"\r\n\r\n")
                if not opened.done():
                    opened.set_result(None)
                await reader.read()
                writer.transport.abort()
            except (OSError, asyncio.IncompleteReadError):
                if not opened.done():
                    opened.set_result(None)
            async with self._reopening:
                await asyncio.sleep(0.05)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("source")
    parser.add_argument("idle", type=int)
    parser.add_argument("half_sent", type=int)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = None
    if not given.plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    idle, half_sent = (Flood(given.port, given.source, context) for _ in range(2))
    await asyncio.gather(idle.hold(given.idle, GET, True), half_sent.hold(given.half_sent, HALF_SENT, False))
    print("held", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())

"""Clients that go away at any moment, a hundred at a time: they leave no traceback in the log."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from hami_webhook.server.tls import ReloadingTls

from .sockets import BRISK, GET, SLOW, App, answer, connected, listening, until

CLIENTS = 100
HALF = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc"
WHOLE = b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
LARGE = b"GET /pieces HTTP/1.1\r\nhost: x\r\n\r\n"
MOMENTS = [b"", HALF[:20], HALF, SLOW, WHOLE, GET * 3, LARGE, HALF + b"x" * 7 + LARGE]
"""What each of them has sent when it goes."""


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def close(connection: socket.socket) -> None:
    """Without TLS' goodbye, whatever was received."""
    connection.close()


def half_close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    connection.settimeout(0.05)
    with suppress(OSError):
        connection.recv(1)
    connection.close()


def hello(context: ssl.SSLContext) -> bytes:
    """The first message of a TLS client."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname="w.n.svc").do_handshake()
    return sent.read()


@pytest.mark.parametrize("leave", [reset, close, half_close])
@pytest.mark.parametrize("over_tls", [True, False], ids=["TLS", "plain"])
async def test_no_traceback_is_logged_of_clients_that_leave(
    tls: ReloadingTls,
    trusting: ssl.SSLContext,
    caplog: pytest.LogCaptureFixture,
    leave: Callable[[socket.socket], None],
    over_tls: bool,
) -> None:
    first = hello(trusting)

    def visit(port: int, number: int) -> None:
        with suppress(OSError):
            plain = socket.create_connection(("127.0.0.1", port), timeout=5)
            if over_tls and number % 4 == 0:  # in its handshake
                plain.sendall(first[: len(first) * (number % 12) // 11])
                leave(plain)
                return
            connection = trusting.wrap_socket(plain, server_hostname="w.n.svc") if over_tls else plain
            connection.sendall(MOMENTS[number % len(MOMENTS)])
            if number % 3 == 0:
                connection.settimeout(0.05)
                with suppress(OSError):
                    connection.recv(1)
            leave(connection)

    app = App()
    limits = replace(BRISK, max_concurrent_requests=CLIENTS)
    caught: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: caught.append(context))
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(20) as threads:
        async with listening(app, limits, tls if over_tls else None) as listener:
            loop = asyncio.get_running_loop()
            visits = [loop.run_in_executor(threads, visit, listener.port, number) for number in range(CLIENTS)]
            await asyncio.gather(*visits)
            app.release.set()
            await until(lambda: listener.open_connections == 0)
            secured = {"ssl": trusting, "server_hostname": "w.n.svc"} if over_tls else {}
            async with connected(listener, **secured) as (reader, writer):
                writer.write(GET)
                assert (await answer(reader))[0] == 200
    gc.collect()  # a task whose exception nobody took says so when it goes
    assert caught == []
    assert [record.getMessage() for record in caplog.records] == []

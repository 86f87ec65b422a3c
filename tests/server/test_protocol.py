"""What a client may send on one connection, and clients that go away at any moment."""

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

from .sockets import BRISK, GET, LIMITS, SLOW, App, answer, connected, listening, until, until_cut

POST = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
NONSENSE = b"\x00\x01 nonsense\r\n\r\n"


@pytest.mark.parametrize("later", [GET, GET * 50, GET[:9], POST + b"zz\r\n", b"\r\n" + NONSENSE])
async def test_who_doesn_t_wait_for_an_answer_gets_it_and_no_other(
    later: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    async with listening(app, BRISK) as listener, connected(listener) as (reader, writer):
        writer.write(SLOW + later)
        await app.entered.wait()
        writer.write(later)
        await asyncio.sleep(2 * BRISK.header_read_timeout)
        app.release.set()
        got = await until_cut(reader)
        assert got.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in got
        assert got.endswith(b"done")
    assert not caplog.records


@pytest.mark.parametrize("late", [b"\r\n", b"abc"])
async def test_what_comes_late_doesn_t_keep_a_connection_open(late: bytes) -> None:
    first = b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n" if late == b"abc" else GET
    async with (
        listening(App(), replace(LIMITS, keep_alive=0.2)) as listener,
        connected(listener) as (reader, writer),
    ):
        writer.write(first)
        await answer(reader)
        writer.write(late)
        assert await until_cut(reader) == b""


async def test_a_connection_ends_with_an_unwanted_body_while_draining() -> None:
    async with listening(App(), replace(LIMITS, shutdown_grace=3)) as listener, connected(listener) as (reader, writer):
        writer.write(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n")
        await answer(reader)
        began = asyncio.get_running_loop().time()
        draining = asyncio.create_task(listener.drain_and_stop())
        await asyncio.sleep(0.05)
        writer.write(b"abc")
        assert await until_cut(reader) == b""
        writer.close()
        await draining
        assert asyncio.get_running_loop().time() - began < 1


async def test_a_client_that_is_gone_when_its_answer_comes_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    async with listening(app) as listener:
        for _ in range(20):
            app.entered.clear()
            app.release.clear()
            async with connected(listener) as (_, writer):
                writer.write(SLOW)
                await app.entered.wait()
                writer.transport.abort()
                app.release.set()
        await until(lambda: listener.requests_in_flight == 0)
    assert not caplog.records


async def test_a_length_of_thousands_of_digits_is_too_large() -> None:
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: " + b"0" * 1000 + b"1\r\n\r\nx")
        assert (await answer(reader))[0] == 413


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        pytest.param(b"1\r\nx\r\n0\r\n", b"trailer: " + b"x" * 1000, id="a long trailer"),
        pytest.param(b"1\r\nx\r\n0\r\n", b"a: b\r\n" * 200, id="many trailers"),
        pytest.param(b"1\r\nx\r\n" * 100_000 + b"0\r\n", b"t" * 1000, id="a trailer after many small chunks"),
        pytest.param(b"", b"1;" + b"x" * 500 + b"\r\nx\r\n", id="extensions of chunks"),
    ],
)
async def test_what_comes_beside_a_body_without_end_cuts_the_connection(begun: bytes, more: bytes) -> None:
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(POST + begun)
        cut = asyncio.create_task(until_cut(reader))
        for _ in range(1000):
            if cut.done():
                break
            writer.write(more)
            await asyncio.sleep(0.001)
        assert (await cut).startswith(b"HTTP/1.1 4")


async def test_a_body_in_the_smallest_chunks_is_taken() -> None:
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(POST)
        for _ in range(50):
            writer.write(b"1\r\nx\r\n" * 100)
            await asyncio.sleep(0)
        writer.write(b"0\r\nchecksum: 1\r\n\r\n")
        assert (await answer(reader))[2] == b"5000"
        writer.write(GET)
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with listening(App()) as listener:
        async with connected(listener) as (reader, writer):
            writer.write(head)
            assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ")
        await until(lambda: listener.open_connections == 0)
    assert not caplog.records


# Clients that go away at any moment, a hundred at a time


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

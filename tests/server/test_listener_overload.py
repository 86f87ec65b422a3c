"""The listener under malformed requests, too many of them, and while it drains."""

import asyncio
import errno
import logging
import socket
import ssl
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NoReturn

import httpx
import pytest

from hami_webhook.server import listener as listener_module
from hami_webhook.server.tls import ReloadingTls

from .sockets import (
    GET,
    LIMITS,
    SLOW,
    App,
    answer,
    connected,
    listening,
    until,
    until_cut,
)


class TestMalformed:
    @pytest.mark.parametrize("secure", [False, True])
    async def test_bytes_that_are_no_http_are_refused_and_the_server_goes_on(
        self, secure: bool, tls: ReloadingTls
    ) -> None:
        async with listening(App(), tls=tls if secure else None) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(b"\x00\x01 nonsense\r\n\r\n")
                assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ") is not secure
            await until(lambda: listener.open_connections == 0)

    async def test_headers_above_the_bound_are_refused_in_one_piece_and_in_many(self) -> None:
        long = b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 2_000
        async with listening(App()) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(long + b"\r\n\r\n")
                assert (await answer(reader))[0] == 431
            async with connected(listener) as (reader, writer):
                writer.write(long)
                assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ")

    @pytest.mark.parametrize(
        ("path", "received", "answered"),
        [
            pytest.param(b"/", b"", b"HTTP/1.1 400 ", id="while the request is read"),
            pytest.param(b"/streamed", b"", b"HTTP/1.1 200 ", id="under an answer half sent"),
            pytest.param(b"/unread", b"no need", b"", id="after the answer"),
        ],
    )
    async def test_a_broken_chunk_cuts_the_connection(
        self, path: bytes, received: bytes, answered: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.ERROR)
        app = App()
        async with listening(app) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % path)
            if received:
                assert (await answer(reader))[2] == received
            elif path == b"/streamed":
                await app.entered.wait()
            else:
                await until(lambda: listener.requests_in_flight == 1)
            writer.write(b"zz\r\n" + GET)
            got = await until_cut(reader)
            assert (got[:13], b"rest" in got, got.count(b"HTTP/1.1 ")) == (answered, False, bool(answered))
            app.release.set()
            await until(lambda: listener.requests_in_flight == 0)
        assert not caplog.records


class TestTooMany:
    async def test_requests_above_the_limit_get_503_at_once_except_those_without_a_body_to_read(self) -> None:
        app = App()
        limits = replace(LIMITS, max_concurrent_requests=2)
        async with listening(app, limits) as listener, httpx.AsyncClient() as http:
            url = f"http://127.0.0.1:{listener.port}"
            slow = [asyncio.create_task(http.get(f"{url}/slow")) for _ in range(2)]
            await until(lambda: listener._in_work == 2)
            refused = await http.get(url)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.text == "Too many requests in flight"
            assert (await http.post(f"{url}/unread")).status_code == 200
            assert listener.refused == 1
            app.release.set()
            assert [(await task).text for task in slow] == ["done", "done"]
            assert (await http.get(url)).status_code == 200

    async def test_a_request_counts_once_its_body_is_complete(self) -> None:
        app = App()
        async with listening(app, replace(LIMITS, max_concurrent_requests=1)) as listener, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(listener)) for _ in range(5)]
            for _, writer in clients:
                writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
            await until(lambda: listener.requests_in_flight == 5)
            for reader, writer in clients:
                writer.write(b"b")
                assert (await answer(reader))[::2] == (200, b"2")
            assert listener.refused == 0

    async def test_clients_that_do_not_read_their_answers_keep_nobody_out(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING)
        limits = replace(LIMITS, max_concurrent_requests=8, max_request_bytes=16_000_000, request_timeout=2)
        async with listening(App(), limits) as listener, AsyncExitStack() as stack:
            for _ in range(30):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", listener.port))
                client.send(b"GET /pieces HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: listener.requests_in_flight + listener.refused == 30)
            async with connected(listener) as (reader, writer):
                writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab")
                assert (await answer(reader))[::2] == (200, b"2")
            await until(lambda: listener.requests_in_flight == 0)  # cut, as they don't read
            assert listener.refused == 0
        assert not caplog.records

    async def test_a_streamed_answer_beyond_the_limit_is_refused_whole(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        app = App()
        async with (
            listening(app, replace(LIMITS, max_concurrent_requests=1)) as listener,
            connected(listener) as (busy, one),
            connected(listener) as (reader, two),
        ):
            one.write(SLOW)
            await app.entered.wait()
            two.write(b"GET /pieces HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await answer(reader))[::2] == (503, b"Too many requests in flight")
            two.write(b"POST /unread HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await answer(reader))[0] == 200
            app.release.set()
            assert (await answer(busy))[2] == b"done"
        assert not caplog.records

    async def test_idle_connections_are_not_requests(self) -> None:
        async with (
            listening(App(), replace(LIMITS, max_concurrent_requests=1)) as listener,
            connected(listener) as (r1, w1),
            connected(listener) as (r2, w2),
        ):
            for reader, writer in ((r1, w1), (r2, w2)) * 2:
                writer.write(GET)
                assert (await answer(reader))[0] == 200

    async def test_at_the_limit_the_connection_that_was_idle_longest_gives_way(self) -> None:
        async with listening(App(), replace(LIMITS, max_connections=2)) as listener:
            async with connected(listener) as (first, one), connected(listener) as (second, two):
                for reader, writer in ((second, two), (first, one)):
                    writer.write(GET)
                    assert (await answer(reader))[0] == 200
                async with connected(listener) as (third, three):
                    assert await until_cut(second) == b""
                    for reader, writer in ((first, one), (third, three)):
                        writer.write(GET)
                        assert (await answer(reader))[0] == 200
            assert listener.refused == 1

    @pytest.mark.parametrize("sent", [b"", GET[:9], b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"])
    async def test_a_half_sent_request_gives_way_and_one_with_the_application_never(self, sent: bytes) -> None:
        app = App()
        async with listening(app, replace(LIMITS, max_connections=2)) as listener:
            async with connected(listener) as (busy, one), connected(listener) as (half, two):
                one.write(SLOW)
                await app.entered.wait()
                two.write(sent)
                async with connected(listener) as (third, three):
                    assert await until_cut(half) == b""
                    three.write(SLOW)
                    await until(lambda: listener.requests_in_flight == 2)
                    await until(lambda: listener._in_work == 2)
                    async with connected(listener) as (fourth, _):
                        assert await until_cut(fourth) == b""
                    app.release.set()
                    for reader in (busy, third):
                        assert (await answer(reader))[2] == b"done"
            assert listener.refused == 2

    async def test_a_handshake_that_is_not_finished_gives_way(
        self, tls: ReloadingTls, trusting: ssl.SSLContext
    ) -> None:
        async with (
            listening(App(), replace(LIMITS, max_connections=2), tls=tls) as listener,
            connected(listener) as (silent, _),
            connected(listener, ssl=trusting) as (reader, writer),
            connected(listener, ssl=trusting) as (third, three),
        ):
            assert await until_cut(silent) == b""
            for its_reader, its_writer in ((reader, writer), (third, three)):
                its_writer.write(GET)
                assert (await answer(its_reader))[0] == 200

    async def test_one_address_can_not_take_the_connections_of_another(self) -> None:
        async with listening(App(), replace(LIMITS, max_connections=4)) as listener, AsyncExitStack() as stack:
            reader, writer = await stack.enter_async_context(connected(listener))
            await until(lambda: listener.open_connections == 1)
            for _ in range(10):
                await stack.enter_async_context(connected(listener, local_addr=("127.0.0.2", 0)))
            await until(lambda: listener.refused == 7)
            writer.write(GET)
            assert (await answer(reader))[0] == 200

    async def test_half_sent_bodies_give_way_oldest_first_before_they_hold_too_much(self) -> None:
        begin = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        async with listening(App()) as listener, AsyncExitStack() as stack:
            attackers = [
                await stack.enter_async_context(connected(listener, local_addr=("127.0.0.2", 0))) for _ in range(4)
            ]
            reader, writer = await stack.enter_async_context(connected(listener))
            writer.write(begin % 100_000 + b"x" * 50_000)
            for index, (_, attacker) in enumerate(attackers, 2):
                attacker.write(begin % 200_000 + b"x" * 120_000)
                await until(lambda count=index: listener.requests_in_flight == count or listener.refused)
            assert await until_cut(attackers[0][0]) == b""
            assert await until_cut(attackers[1][0]) == b""
            writer.write(b"x" * 50_000)
            assert (await answer(reader))[::2] == (200, b"100000")
            for attacker_reader, attacker in attackers[2:]:
                attacker.write(b"x" * 80_000)
                assert (await answer(attacker_reader))[::2] == (200, b"200000")
            assert listener.refused == 2

    async def test_answers_that_nobody_reads_give_way_before_they_hold_too_much(self) -> None:
        limits = replace(LIMITS, max_request_bytes=20_000_000)
        async with listening(App(), limits) as listener, AsyncExitStack() as stack:
            for count in (1, 2, 3):
                _, writer = await stack.enter_async_context(connected(listener, limit=1024))
                writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
                await until(lambda wanted=count: len(listener._connections._holding) == wanted or listener.refused)
            await until(lambda: listener.refused == 1)

    async def test_without_file_descriptors_accepting_pauses_and_goes_on(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE", 0.05)
        failures = [ConnectionAbortedError(), OSError(errno.EMFILE, "Too many open files"), BlockingIOError()]
        accept = socket.socket.accept

        def scarce(listening_socket: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
            if failures:
                raise failures.pop(0)
            return accept(listening_socket)

        async with listening(App()) as listener:
            monkeypatch.setattr(socket.socket, "accept", scarce)
            async with connected(listener) as (reader, writer):
                writer.write(GET)
                assert (await answer(reader))[0] == 200
        assert [record.getMessage() for record in caplog.records] == [
            "no connection can be accepted for 0.05 s: [Errno 24] Too many open files"
        ]

    async def test_stopping_ends_the_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE", 0.05)

        def scarce(listening_socket: socket.socket) -> NoReturn:
            raise OSError(errno.EMFILE, "Too many open files")

        app = App()
        async with listening(app) as listener, connected(listener) as (reader, writer):
            writer.write(SLOW)
            await app.entered.wait()
            monkeypatch.setattr(socket.socket, "accept", scarce)
            async with connected(listener):
                await until(lambda: listener._accept_timer is not None)
                draining = asyncio.create_task(listener.drain_and_stop())
                await asyncio.sleep(0.1)
                app.release.set()
                assert (await answer(reader))[0] == 200
                await draining


class TestDrain:
    @pytest.mark.parametrize("secure", [False, True])
    async def test_finishes_the_request_in_flight_and_refuses_new_connections(
        self, secure: bool, tls: ReloadingTls, trusting: ssl.SSLContext
    ) -> None:
        app = App()
        limits = replace(LIMITS, shutdown_grace=3)
        async with listening(app, limits, tls=tls if secure else None) as listener:
            port = listener.port
            more = {"ssl": trusting} if secure else {}
            async with connected(listener, **more) as (reader, writer), connected(listener, **more) as (idle, other):
                other.write(GET)
                await answer(idle)
                writer.write(SLOW)
                await app.entered.wait()
                draining = asyncio.create_task(listener.drain_and_stop())
                assert await until_cut(idle) == b""
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", port)
                assert not draining.done()
                app.release.set()
                status, headers, body = await answer(reader)
                assert (status, headers["connection"], body) == (200, "close", b"done")
                other.close()
                writer.close()
                began = time.monotonic()
                await draining
                assert time.monotonic() - began < 1

    async def test_cancels_what_exceeds_the_grace(self, caplog: pytest.LogCaptureFixture) -> None:
        app = App()
        async with (
            listening(app, replace(LIMITS, shutdown_grace=0.1)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(SLOW)
            await app.entered.wait()
            await listener.drain_and_stop()
            assert (await until_cut(reader)).startswith(b"HTTP/1.1 500 ")

    async def test_does_not_wait_for_a_request_that_resists(self, caplog: pytest.LogCaptureFixture) -> None:
        app = App()
        async with (
            listening(app, replace(LIMITS, shutdown_grace=0.1, linger=0.1)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(b"GET /stubborn HTTP/1.1\r\nhost: x\r\n\r\n")
            await app.entered.wait()
            await listener.drain_and_stop()
            assert await until_cut(reader) == b""
            app.release.set()
            await until(lambda: listener.requests_in_flight == 0)
            await asyncio.sleep(0.01)

    async def test_a_request_half_received_is_still_answered(self) -> None:
        limits = replace(LIMITS, shutdown_grace=3)
        async with listening(App(), limits) as listener, connected(listener) as (reader, writer):
            writer.write(GET[:9])
            await asyncio.sleep(0.05)
            draining = asyncio.create_task(listener.drain_and_stop())
            await asyncio.sleep(0.05)
            writer.write(GET[9:])
            status, headers, _ = await answer(reader)
            assert (status, headers["connection"]) == (200, "close")
            await draining

    @pytest.mark.parametrize("secure", [False, True])
    async def test_a_request_that_nobody_has_read_yet_is_still_answered(
        self, secure: bool, tls: ReloadingTls, trusting: ssl.SSLContext
    ) -> None:
        """On a busy machine it may have arrived long before: the API server repeats no POST whose connection ends."""
        more = {"ssl": trusting} if secure else {}
        async with (
            listening(App(), replace(LIMITS, shutdown_grace=3), tls=tls if secure else None) as listener,
            connected(listener, **more) as (reader, writer),
        ):
            writer.write(GET)
            await answer(reader)
            (protocol,) = listener._served.values()
            listener.end_keep_alive()
            writer.write(GET)
            protocol.shutdown()
            status, headers, _ = await answer(reader)
            assert (status, headers["connection"]) == (200, "close")
            assert await until_cut(reader) == b""

    @pytest.mark.parametrize("secure", [False, True])
    async def test_a_connection_that_is_closed_already_has_nothing_unread(
        self, secure: bool, tls: ReloadingTls, trusting: ssl.SSLContext
    ) -> None:
        more = {"ssl": trusting} if secure else {}
        async with (
            listening(App(), tls=tls if secure else None) as listener,
            connected(listener, **more) as (reader, writer),
        ):
            writer.write(GET)
            await answer(reader)
            (protocol,) = listener._served.values()
            protocol.transport.abort()
            await until(lambda: protocol.transport.get_extra_info("socket") is None or not listener._served)
            protocol.shutdown()

    async def test_a_handshake_not_finished_is_cut(self, tls: ReloadingTls) -> None:
        async with listening(App(), tls=tls) as listener, connected(listener) as (reader, _):
            await until(lambda: listener.open_connections == 1)
            await listener.drain_and_stop()
            assert await until_cut(reader) == b""

    @pytest.mark.parametrize("secure", [False, True])
    async def test_a_connection_just_accepted_is_cut(self, secure: bool, tls: ReloadingTls) -> None:
        async with listening(App(), tls=tls if secure else None) as listener:
            with socket.create_connection(("127.0.0.1", listener.port)) as client:
                assert listener._socket is not None
                listener._accept(listener._socket)
                assert listener.open_connections == 1
                await listener.drain_and_stop()
                client.settimeout(1)
                assert client.recv(1) == b""

    async def test_cancelled_itself_cuts_everything_at_once(self) -> None:
        app = App()
        async with (
            listening(app, replace(LIMITS, shutdown_grace=60)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(SLOW)
            await app.entered.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(listener.drain_and_stop(), 0.05)
            assert listener.open_connections == 0
            assert (await until_cut(reader)).startswith(b"HTTP/1.1 500 ")

    async def test_a_tls_client_that_does_not_say_goodbye_is_cut_after_the_grace(
        self, tls: ReloadingTls, trusting: ssl.SSLContext
    ) -> None:
        limits = replace(LIMITS, shutdown_grace=0.1)

        def mute(port: int) -> ssl.SSLSocket:
            wrapped = trusting.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")
            wrapped.sendall(GET)
            wrapped.recv(1)
            return wrapped

        async with listening(App(), limits, tls=tls) as listener:
            client = await asyncio.to_thread(mute, listener.port)
            began = time.monotonic()
            await listener.drain_and_stop()
            assert time.monotonic() - began < 1
            client.close()

    async def test_before_it_clients_can_be_sent_elsewhere(self) -> None:
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(GET)
            assert "connection" not in (await answer(reader))[1]
            for _ in range(2):
                listener.end_keep_alive()
            writer.write(GET)
            assert (await until_cut(reader)).count(b"connection: close\r\n") == 1
            async with connected(listener) as (again, other):
                other.write(GET)
                assert (await answer(again))[0] == 200

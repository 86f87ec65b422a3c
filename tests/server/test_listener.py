"""The listener's limits, as clients on real sockets meet them. Deadlines are tenths of seconds here."""

import asyncio
import errno
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from hami_webhook.server.bodies import BodyTimeout, BodyTooLarge, read_body
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.tls import ReloadingTls

from .sockets import (
    BRISK,
    GET,
    LIMITS,
    App,
    answer,
    connected,
    listening,
    until,
    until_cut,
)


class TestServing:
    async def test_https_and_plain_listeners_side_by_side_on_free_ports(
        self, tls: ReloadingTls, trusting: ssl.SSLContext
    ) -> None:
        secure, plain = App(), App()
        async with (
            listening(secure, tls=tls) as main,
            listening(plain) as metrics,
            httpx.AsyncClient(verify=trusting) as http,
        ):
            assert main.port != metrics.port
            answered = await http.post(f"https://localhost:{main.port}/", content=b"12345")
            assert (answered.status_code, answered.text) == (200, "5")
            answered = await http.get(f"http://127.0.0.1:{metrics.port}/")
            assert answered.text == "0"
            assert "server" not in answered.headers
            assert answered.headers["date"].endswith("GMT")

    @pytest.mark.parametrize("host", ["", "::", "localhost", "127.0.0.1"])
    async def test_loopback_is_reached_whatever_the_host_says(self, host: str) -> None:
        listener = Listener(App().asgi, host=host, port=0, limits=LIMITS)
        await listener.start()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"http://localhost:{listener.port}/")).status_code == 200
        await listener.drain_and_stop()

    async def test_every_address_is_ipv4_where_there_is_no_ipv6(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
        listener = Listener(App().asgi, host="", port=0, limits=LIMITS)
        await listener.start()
        async with connected(listener) as (reader, writer):
            writer.write(GET)
            assert (await answer(reader))[0] == 200
        await listener.drain_and_stop()

    async def test_start_and_stop_again_and_again(self) -> None:
        listener = Listener(App().asgi, host="127.0.0.1", port=0, limits=LIMITS)
        await listener.drain_and_stop()
        for _ in range(3):
            await listener.start()
            with pytest.raises(RuntimeError, match="already"):
                await listener.start()
            async with connected(listener) as (reader, writer):
                writer.write(GET)
                status, headers, _ = await answer(reader)
                assert status == 200
                assert "connection" not in headers
            await listener.drain_and_stop()
            with pytest.raises(RuntimeError, match="not been started"):
                _ = listener.port

    async def test_a_taken_port_is_an_error_that_names_it(self) -> None:
        async with listening(App()) as first:
            second = Listener(App().asgi, host="127.0.0.1", port=first.port, limits=LIMITS)
            with pytest.raises(OSError, match=str(first.port)) as raised:
                await second.start()
            assert raised.value.errno == errno.EADDRINUSE
            await second.drain_and_stop()

    async def test_signals_stay_the_caller_s(self) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        async with listening(App()):
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    async def test_the_date_moves_on(self) -> None:
        async with listening(App()) as listener:
            first = listener._server.server_state.default_headers
            await until(lambda: listener._server.server_state.default_headers is not first)
            assert [name for name, _ in listener._server.server_state.default_headers] == [b"date"]

    async def test_a_wish_for_another_protocol_is_passed_over(self, caplog: pytest.LogCaptureFixture) -> None:
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            for protocol in (b"websocket", b"h2c"):
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % protocol)
                assert (await answer(reader))[0] == 200
        assert not caplog.records

    async def test_an_idle_connection_ends_after_keep_alive(self) -> None:
        async with (
            listening(App(), replace(LIMITS, keep_alive=0.1)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(GET)
            await answer(reader)
            assert await until_cut(reader) == b""

    async def test_an_idle_connection_outlives_the_header_deadline(self) -> None:
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            for _ in range(2):
                writer.write(GET)
                assert (await answer(reader))[0] == 200
                await asyncio.sleep(2 * BRISK.header_read_timeout)
            assert listener.open_connections == 1

    def test_limits_are_positive(self) -> None:
        with pytest.raises(ValueError, match="positive"):
            ListenerLimits(keep_alive=0)
        assert ListenerLimits().keep_alive > 90


class TestSlowClients:
    @pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
    async def test_headers_that_do_not_come_cut_the_connection(self, start: bytes) -> None:
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            writer.write(start)
            began = time.monotonic()
            assert await until_cut(reader) == b""
            assert time.monotonic() - began < 2

    async def test_headers_that_trickle_cut_the_connection(self) -> None:
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            cut = asyncio.create_task(until_cut(reader))
            for byte in GET * 100:
                if cut.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)
            assert await cut == b""

    async def test_the_second_request_s_headers_have_the_same_deadline(self) -> None:
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            writer.write(GET + GET[:9])
            assert (await answer(reader))[0] == 200
            assert await until_cut(reader) == b""

    async def test_a_handshake_that_never_ends_cuts_the_connection(self, tls: ReloadingTls) -> None:
        async with listening(App(), BRISK, tls=tls) as listener, connected(listener) as (reader, writer):
            writer.write(b"\x16\x03\x01\x02")
            assert await until_cut(reader) == b""
            await until(lambda: listener.open_connections == 0)
            assert listener.failed_handshakes == 1

    async def test_slow_headers_over_tls_cut_the_connection(self, tls: ReloadingTls, trusting: ssl.SSLContext) -> None:
        async with (
            listening(App(), replace(BRISK, header_read_timeout=0.4), tls=tls) as listener,
            connected(listener, ssl=trusting) as (reader, writer),
        ):
            writer.write(GET[:-2])
            assert await until_cut(reader) == b""
            await until(lambda: listener.open_connections == 0)

    async def test_a_body_that_trickles_is_answered_408_and_cut(self) -> None:
        app = App(BRISK)
        async with listening(app, replace(BRISK, linger=0.1)) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
            cut = asyncio.create_task(until_cut(reader))
            while not cut.done():
                writer.write(b".")
                await asyncio.sleep(0.02)
            received = await cut
            assert received.startswith(b"HTTP/1.1 408 ")
            assert b"not complete within 0.15 s" in received
            assert isinstance(app.errors[0], BodyTimeout)

    async def test_a_body_the_application_waits_for_without_deadline_is_cut_all_the_same(self) -> None:
        app = App(replace(BRISK, request_timeout=60))
        async with listening(app, replace(BRISK, linger=0.1)) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
            assert await until_cut(reader) == b""
            await until(lambda: listener.requests_in_flight == 0)

    @pytest.mark.parametrize("secure", [False, True])
    async def test_an_answer_nobody_reads_cuts_the_connection(
        self, secure: bool, tls: ReloadingTls, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hami_webhook.server.listener._TLS_CLOSE_TIMEOUT", 0.3)
        limits = replace(LIMITS, request_timeout=0.3, keep_alive=0.3 if secure else 60)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        async with listening(App(), limits, tls=tls if secure else None) as listener:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", listener.port))
            secured: dict[str, Any] = {"ssl": trusting, "server_hostname": "localhost"} if secure else {}
            _, writer = await asyncio.open_connection(sock=raw, limit=1024, **secured)
            writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: listener.open_connections == 1)
            await until(lambda: listener.open_connections == 0)
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def test_a_large_answer_that_is_read_arrives_whole(self, tls: ReloadingTls, trusting: ssl.SSLContext) -> None:
        async with (
            listening(App(), LIMITS, tls=tls) as listener,
            httpx.AsyncClient(verify=trusting) as http,
        ):
            assert len((await http.get(f"https://localhost:{listener.port}/large")).content) == 20_000_000


class TestBodies:
    async def test_a_body_of_exactly_the_bound_is_taken_in_either_framing(self) -> None:
        async with listening(App()) as listener, httpx.AsyncClient() as http:
            whole = b"x" * LIMITS.max_request_bytes

            async def pieces() -> AsyncIterator[bytes]:
                for start in range(0, len(whole), 50_000):
                    yield whole[start : start + 50_000]

            contents: tuple[bytes | AsyncIterator[bytes], ...] = (whole, pieces())
            for content in contents:
                answered = await http.post(f"http://127.0.0.1:{listener.port}/", content=content)
                assert (answered.status_code, answered.text) == (200, str(len(whole)))

    async def test_a_larger_content_length_is_refused_before_a_byte_is_read(self) -> None:
        app = App()
        async with listening(app) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 200001\r\n\r\n")
            status, _, body = await answer(reader)
            assert (status, body) == (413, b"the request body has 200001 bytes, more than the 200000 allowed")
            assert isinstance(app.errors[0], BodyTooLarge)

    async def test_a_larger_chunked_body_is_refused_while_it_streams(self) -> None:
        app = App()
        async with listening(app) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            cut = asyncio.create_task(answer(reader))
            sent = 0
            while not cut.done():
                writer.write(b"4e20\r\n" + b"x" * 20_000 + b"\r\n")
                sent += 20_000
                await asyncio.sleep(0.001)
            assert (await cut)[0] == 413
            assert sent > LIMITS.max_request_bytes

    async def test_a_refused_body_that_still_arrives_leaves_the_connection_usable(self) -> None:
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 50_000)
            assert (await answer(reader))[2] == b"no need"
            writer.write(b"x" * 50_000 + GET)
            assert (await answer(reader))[0] == 200

    async def test_a_refused_body_that_goes_on_and_on_is_cut(self) -> None:
        async with listening(App(), replace(LIMITS, linger=0.1)) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST /unread HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            cut = asyncio.create_task(until_cut(reader))
            while not cut.done():
                writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0.01)
            assert (await cut).endswith(b"no need")

    async def test_a_client_that_leaves_in_the_middle_is_no_error(self, caplog: pytest.LogCaptureFixture) -> None:
        app = App()
        async with listening(app) as listener:
            async with connected(listener) as (_, writer):
                writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
                await until(lambda: listener.requests_in_flight == 1)
            await until(lambda: listener.requests_in_flight == 0)
        assert not caplog.records

    async def test_a_length_that_is_no_number_counts_as_none(self) -> None:
        """As when the application runs under something else than uvicorn."""
        messages: list[Message] = [{"type": "http.request", "body": b"abc", "more_body": False}]

        async def receive() -> Message:
            return messages.pop()

        request = Request({"type": "http", "headers": [(b"content-length", b"-1")]}, receive)
        assert await read_body(request, LIMITS) == b"abc"

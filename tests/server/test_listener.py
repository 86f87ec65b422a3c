"""The listener's limits, as clients on real sockets meet them. Deadlines are tenths of seconds here."""

import asyncio
import errno
import functools
import logging
import signal
import socket
import ssl
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hami_webhook import pki
from hami_webhook.server import listener as listener_module
from hami_webhook.server.listener import BodyError, BodyTimeout, BodyTooLarge, Listener, ListenerLimits, read_body
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

PAIR = pki.generate("w", "n", now=datetime.now(UTC))
LIMITS = ListenerLimits(
    max_request_bytes=200_000,
    max_header_bytes=2_000,
    header_read_timeout=5,
    request_timeout=5,
    keep_alive=5,
    shutdown_grace=0.3,
)
BRISK = replace(LIMITS, header_read_timeout=0.15, request_timeout=0.15)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Echoes the length of a body on /, waits to be released on /slow."""

    def __init__(self, limits=LIMITS):
        self.limits = limits
        self.release = asyncio.Event()
        self.entered = asyncio.Event()
        self.errors = []
        self.asgi = Starlette(
            routes=[
                Route("/", self.echo, methods=["GET", "POST"]),
                Route("/slow", self.slow),
                Route("/unread", self.unread, methods=["POST"]),
                Route("/large", self.large),
                Route("/stubborn", self.stubborn),
                Route("/streamed", self.streamed, methods=["POST"]),
            ]
        )

    async def echo(self, request: Request) -> PlainTextResponse:
        try:
            body = await read_body(request, self.limits)
        except BodyError as error:
            self.errors.append(error)
            return PlainTextResponse(str(error), error.status)
        return PlainTextResponse(str(len(body)))

    async def slow(self, request: Request) -> PlainTextResponse:
        self.entered.set()
        await self.release.wait()
        return PlainTextResponse("done")

    async def unread(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("no need")

    async def large(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * 20_000_000)

    async def stubborn(self, request: Request) -> PlainTextResponse:
        self.entered.set()
        while True:
            with suppress(asyncio.CancelledError):
                await self.release.wait()
                return PlainTextResponse("at last")

    async def streamed(self, request: Request):
        async def answer(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            self.entered.set()
            await self.release.wait()
            await send({"type": "http.response.body", "body": b"rest"})

        return answer


@asynccontextmanager
async def listening(app, limits=LIMITS, **more):
    listener = Listener(app.asgi, host="127.0.0.1", port=0, limits=limits, **more)
    await listener.start()
    try:
        yield listener
    finally:
        app.release.set()
        await listener.drain_and_stop()
        assert listener.open_connections == 0


def scenario(test):
    """Run an async test in a loop of its own, within seconds, and find the tasks it leaves."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def whole():
            async with asyncio.timeout(8):
                await test(*args, **kwargs)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left

        asyncio.run(whole())

    return run


@asynccontextmanager
async def connected(listener, **more):
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, **more)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def answer(reader):
    """Status, headers and body of the next answer that has a content-length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), headers, body


async def until_cut(reader):
    """Everything until the server ends the connection."""
    received = b""
    with suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            received += part
    return received


async def until(condition):
    while not condition():  # noqa: ASYNC110 the listener has no event for it
        await asyncio.sleep(0.005)


@pytest.fixture
def tls(tmp_path):
    pki.write(tmp_path, PAIR, force=True)
    return ReloadingTls(CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key"))


@pytest.fixture
def trusting():
    return ssl.create_default_context(cadata=PAIR.ca.certificate.decode())


class TestServing:
    @scenario
    async def test_https_and_plain_listeners_side_by_side_on_free_ports(self, tls, trusting):
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
    @scenario
    async def test_loopback_is_reached_whatever_the_host_says(self, host):
        listener = Listener(App().asgi, host=host, port=0, limits=LIMITS)
        await listener.start()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"http://localhost:{listener.port}/")).status_code == 200
        await listener.drain_and_stop()

    @scenario
    async def test_every_address_is_ipv4_where_there_is_no_ipv6(self, monkeypatch):
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
        listener = Listener(App().asgi, host="", port=0, limits=LIMITS)
        await listener.start()
        async with connected(listener) as (reader, writer):
            writer.write(GET)
            assert (await answer(reader))[0] == 200
        await listener.drain_and_stop()

    @scenario
    async def test_start_and_stop_again_and_again(self):
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

    @scenario
    async def test_a_taken_port_is_an_error_that_names_it(self):
        async with listening(App()) as first:
            second = Listener(App().asgi, host="127.0.0.1", port=first.port, limits=LIMITS)
            with pytest.raises(OSError, match=str(first.port)) as raised:
                await second.start()
            assert raised.value.errno == errno.EADDRINUSE
            await second.drain_and_stop()

    @scenario
    async def test_signals_stay_the_caller_s(self):
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        async with listening(App()):
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    @scenario
    async def test_the_date_moves_on(self, monkeypatch):
        monkeypatch.setattr(listener_module, "_STAMP_INTERVAL", 0.05)
        async with listening(App()) as listener:
            stamped = listener._state.default_headers
            stamped.clear()
            await asyncio.sleep(0.1)
            assert [name for name, _ in stamped] == [b"date"]

    @scenario
    async def test_a_wish_for_another_protocol_is_passed_over(self, caplog):
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            assert (await answer(reader))[0] == 200
        assert not caplog.records

    @scenario
    async def test_an_idle_connection_ends_after_keep_alive(self):
        async with (
            listening(App(), replace(LIMITS, keep_alive=0.1)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(GET)
            await answer(reader)
            assert await until_cut(reader) == b""

    @scenario
    async def test_an_idle_connection_outlives_the_header_deadline(self):
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            for _ in range(2):
                writer.write(GET)
                assert (await answer(reader))[0] == 200
                await asyncio.sleep(2 * BRISK.header_read_timeout)
            assert listener.open_connections == 1

    def test_limits_are_positive(self):
        with pytest.raises(ValueError, match="positive"):
            ListenerLimits(keep_alive=0)
        assert ListenerLimits().keep_alive > 90


class TestSlowClients:
    @pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
    @scenario
    async def test_headers_that_do_not_come_cut_the_connection(self, start):
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            writer.write(start)
            began = time.monotonic()
            assert await until_cut(reader) == b""
            assert time.monotonic() - began < 2

    @scenario
    async def test_headers_that_trickle_cut_the_connection(self):
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            cut = asyncio.create_task(until_cut(reader))
            for byte in GET * 100:
                if cut.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)
            assert await cut == b""

    @scenario
    async def test_the_second_request_s_headers_have_the_same_deadline(self):
        async with listening(App(), BRISK) as listener, connected(listener) as (reader, writer):
            writer.write(GET + GET[:9])
            assert (await answer(reader))[0] == 200
            assert await until_cut(reader) == b""

    @scenario
    async def test_a_handshake_that_never_ends_cuts_the_connection(self, tls):
        async with listening(App(), BRISK, tls=tls) as listener, connected(listener) as (reader, writer):
            writer.write(b"\x16\x03\x01\x02")
            assert await until_cut(reader) == b""
            await until(lambda: listener.open_connections == 0)
            assert listener.failed_handshakes == 1

    @scenario
    async def test_slow_headers_over_tls_cut_the_connection(self, tls, trusting):
        async with (
            listening(App(), replace(BRISK, header_read_timeout=0.4), tls=tls) as listener,
            connected(listener, ssl=trusting) as (reader, writer),
        ):
            writer.write(GET[:-2])
            assert await until_cut(reader) == b""
            await until(lambda: listener.open_connections == 0)

    @scenario
    async def test_a_body_that_trickles_is_answered_408_and_cut(self, monkeypatch):
        monkeypatch.setattr(listener_module, "_LINGER", 0.1)
        app = App(BRISK)
        async with listening(app, BRISK) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
            cut = asyncio.create_task(until_cut(reader))
            while not cut.done():
                writer.write(b".")
                await asyncio.sleep(0.02)
            received = await cut
            assert received.startswith(b"HTTP/1.1 408 ")
            assert b"not complete within 0.15 s" in received
            assert isinstance(app.errors[0], BodyTimeout)

    @scenario
    async def test_a_body_the_application_waits_for_without_deadline_is_cut_all_the_same(self, monkeypatch):
        monkeypatch.setattr(listener_module, "_LINGER", 0.1)
        app = App(replace(BRISK, request_timeout=60))
        async with listening(app, BRISK) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
            assert await until_cut(reader) == b""
            await until(lambda: listener.requests_in_flight == 0)

    @pytest.mark.parametrize("secure", [False, True])
    @scenario
    async def test_an_answer_nobody_reads_cuts_the_connection(self, secure, tls, trusting):
        limits = replace(LIMITS, request_timeout=0.3, keep_alive=0.3 if secure else 60)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        async with listening(App(), limits, tls=tls if secure else None) as listener:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", listener.port))
            more = {"ssl": trusting, "server_hostname": "localhost"} if secure else {}
            _, writer = await asyncio.open_connection(sock=raw, limit=1024, **more)
            writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: listener.open_connections == 1)
            await until(lambda: listener.open_connections == 0)
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    @scenario
    async def test_a_large_answer_that_is_read_arrives_whole(self, tls, trusting):
        async with (
            listening(App(), LIMITS, tls=tls) as listener,
            httpx.AsyncClient(verify=trusting) as http,
        ):
            assert len((await http.get(f"https://localhost:{listener.port}/large")).content) == 20_000_000


class TestBodies:
    @scenario
    async def test_a_body_of_exactly_the_bound_is_taken_in_either_framing(self):
        async with listening(App()) as listener, httpx.AsyncClient() as http:
            whole = b"x" * LIMITS.max_request_bytes

            async def pieces():
                for start in range(0, len(whole), 50_000):
                    yield whole[start : start + 50_000]

            for content in (whole, pieces()):
                answered = await http.post(f"http://127.0.0.1:{listener.port}/", content=content)
                assert (answered.status_code, answered.text) == (200, str(len(whole)))

    @scenario
    async def test_a_larger_content_length_is_refused_before_a_byte_is_read(self):
        app = App()
        async with listening(app) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 200001\r\n\r\n")
            status, _, body = await answer(reader)
            assert (status, body) == (413, b"the request body has 200001 bytes, more than the 200000 allowed")
            assert isinstance(app.errors[0], BodyTooLarge)

    @scenario
    async def test_a_larger_chunked_body_is_refused_while_it_streams(self):
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

    @scenario
    async def test_a_refused_body_that_still_arrives_leaves_the_connection_usable(self):
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 50_000)
            assert (await answer(reader))[2] == b"no need"
            writer.write(b"x" * 50_000 + GET)
            assert (await answer(reader))[0] == 200

    @scenario
    async def test_a_refused_body_that_goes_on_and_on_is_cut(self, monkeypatch):
        monkeypatch.setattr(listener_module, "_LINGER", 0.1)
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST /unread HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            cut = asyncio.create_task(until_cut(reader))
            while not cut.done():
                writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0.01)
            assert (await cut).endswith(b"no need")

    @scenario
    async def test_a_client_that_leaves_in_the_middle_is_no_error(self, caplog):
        app = App()
        async with listening(app) as listener:
            async with connected(listener) as (_, writer):
                writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
                await until(lambda: listener.requests_in_flight == 1)
            await until(lambda: listener.requests_in_flight == 0)
        assert not caplog.records

    @scenario
    async def test_a_length_that_is_no_number_counts_as_none(self):
        """As when the application runs under something else than h11."""
        messages = [{"type": "http.request", "body": b"abc", "more_body": False}]

        async def receive():
            return messages.pop()

        request = Request({"type": "http", "headers": [(b"content-length", b"-1")]}, receive)
        assert await read_body(request, LIMITS) == b"abc"


class TestMalformed:
    @pytest.mark.parametrize("secure", [False, True])
    @scenario
    async def test_bytes_that_are_no_http_are_refused_and_the_server_goes_on(self, secure, tls):
        async with listening(App(), tls=tls if secure else None) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(b"\x00\x01 nonsense\r\n\r\n")
                assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ") is not secure
            await until(lambda: listener.open_connections == 0)

    @scenario
    async def test_headers_above_the_bound_are_refused_in_one_piece_and_in_many(self):
        long = b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 2_000
        async with listening(App()) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(long + b"\r\n\r\n")
                assert (await answer(reader))[0] == 431
            async with connected(listener) as (reader, writer):
                writer.write(long)
                assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ")

    @scenario
    async def test_a_broken_chunk_ends_the_request_being_read(self, caplog):
        caplog.set_level(logging.ERROR)
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            await until(lambda: listener.requests_in_flight == 1)
            writer.write(b"zz\r\n")
            assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ")
            await until(lambda: listener.requests_in_flight == 0)
        assert not caplog.records

    @scenario
    async def test_a_broken_chunk_under_an_answer_half_sent_cuts_the_connection(self, caplog):
        caplog.set_level(logging.ERROR)
        app = App()
        async with listening(app) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST /streamed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            await app.entered.wait()
            writer.write(b"zz\r\n")
            assert b"rest" not in await until_cut(reader)
            app.release.set()
            await until(lambda: listener.requests_in_flight == 0)
        assert not caplog.records

    @scenario
    async def test_a_broken_chunk_after_the_answer_cuts_the_connection(self, caplog):
        caplog.set_level(logging.ERROR)
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(b"POST /unread HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            await answer(reader)
            writer.write(b"zz\r\n" + GET)
            assert await until_cut(reader) == b""
        assert not caplog.records


class TestTooMany:
    @scenario
    async def test_requests_above_the_limit_get_503_at_once_except_exempt_ones(self):
        app = App()
        limits = replace(LIMITS, max_concurrent_requests=2)
        async with listening(app, limits, exempt=["/unread"]) as listener, httpx.AsyncClient() as http:
            url = f"http://127.0.0.1:{listener.port}"
            slow = [asyncio.create_task(http.get(f"{url}/slow")) for _ in range(2)]
            await until(lambda: listener.requests_in_flight == 2)
            refused = await http.get(url)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert (await http.post(f"{url}/unread")).status_code == 200
            assert listener.refused == 1
            app.release.set()
            assert [(await task).text for task in slow] == ["done", "done"]
            assert (await http.get(url)).status_code == 200

    @scenario
    async def test_idle_connections_are_not_requests(self):
        async with (
            listening(App(), replace(LIMITS, max_concurrent_requests=1)) as listener,
            connected(listener) as (r1, w1),
            connected(listener) as (r2, w2),
        ):
            for reader, writer in ((r1, w1), (r2, w2)) * 2:
                writer.write(GET)
                assert (await answer(reader))[0] == 200

    @scenario
    async def test_connections_above_the_limit_are_closed(self):
        async with listening(App(), replace(LIMITS, max_connections=1)) as listener:
            async with connected(listener) as (first, writer):
                await until(lambda: listener.open_connections == 1)
                async with connected(listener) as (second, _):
                    assert await until_cut(second) == b""
                writer.write(GET)
                assert (await answer(first))[0] == 200
            assert listener.refused == 1

    @scenario
    async def test_without_file_descriptors_accepting_pauses_and_goes_on(self, monkeypatch, caplog):
        monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE", 0.05)
        failures = [ConnectionAbortedError(), OSError(errno.EMFILE, "Too many open files"), BlockingIOError()]
        accept = socket.socket.accept

        def scarce(listening_socket):
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

    @scenario
    async def test_stopping_ends_the_pause(self, monkeypatch):
        monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE", 0.05)

        def scarce(listening_socket):
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
    @scenario
    async def test_finishes_the_request_in_flight_and_refuses_new_connections(self, secure, tls, trusting):
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

    @scenario
    async def test_cancels_what_exceeds_the_grace(self, caplog):
        app = App()
        async with (
            listening(app, replace(LIMITS, shutdown_grace=0.1)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(SLOW)
            await app.entered.wait()
            await listener.drain_and_stop()
            assert (await until_cut(reader)).startswith(b"HTTP/1.1 500 ")

    @scenario
    async def test_does_not_wait_for_a_request_that_resists(self, monkeypatch, caplog):
        monkeypatch.setattr(listener_module, "_LINGER", 0.1)
        app = App()
        async with (
            listening(app, replace(LIMITS, shutdown_grace=0.1)) as listener,
            connected(listener) as (reader, writer),
        ):
            writer.write(b"GET /stubborn HTTP/1.1\r\nhost: x\r\n\r\n")
            await app.entered.wait()
            await listener.drain_and_stop()
            assert await until_cut(reader) == b""
            app.release.set()
            await until(lambda: listener.requests_in_flight == 0)
            await asyncio.sleep(0.01)

    @scenario
    async def test_a_request_half_received_is_still_answered(self):
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

    @scenario
    async def test_a_handshake_not_finished_is_cut(self, tls):
        async with listening(App(), tls=tls) as listener, connected(listener) as (reader, _):
            await until(lambda: listener.open_connections == 1)
            await listener.drain_and_stop()
            assert await until_cut(reader) == b""

    @pytest.mark.parametrize("secure", [False, True])
    @scenario
    async def test_a_connection_just_accepted_is_cut(self, secure, tls):
        async with listening(App(), tls=tls if secure else None) as listener:
            with socket.create_connection(("127.0.0.1", listener.port)) as client:
                listener._accept(listener._socket)
                assert listener.open_connections == 1
                await listener.drain_and_stop()
                client.settimeout(1)
                assert client.recv(1) == b""

    @scenario
    async def test_cancelled_itself_cuts_everything_at_once(self):
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

    @scenario
    async def test_a_tls_client_that_does_not_say_goodbye_is_cut_after_the_grace(self, tls, trusting):
        limits = replace(LIMITS, shutdown_grace=0.1)

        def mute(port):
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

    @scenario
    async def test_before_it_clients_can_be_sent_elsewhere(self):
        async with listening(App()) as listener, connected(listener) as (reader, writer):
            writer.write(GET)
            assert "connection" not in (await answer(reader))[1]
            listener.end_keep_alive()
            writer.write(GET)
            assert (await answer(reader))[1]["connection"] == "close"
            assert await until_cut(reader) == b""
            async with connected(listener) as (again, other):
                other.write(GET)
                assert (await answer(again))[0] == 200

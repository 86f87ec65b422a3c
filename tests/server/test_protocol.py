"""What a client may send on one connection, as the listener's protocol bounds it."""

import asyncio
import logging

import pytest

from .sockets import GET, LIMITS, App, answer, connected, listening, scenario, until, until_cut

POST = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
NONSENSE = b"\x00\x01 nonsense\r\n\r\n"


@scenario
async def test_requests_sent_together_are_answered_in_order():
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(
            b"".join(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % n + b"x" * n for n in (3, 1, 2))
        )
        assert [(await answer(reader))[2] for _ in range(3)] == [b"3", b"1", b"2"]


@scenario
async def test_more_requests_than_may_queue_end_the_connection_after_the_first(caplog):
    app = App()
    async with listening(app) as listener, connected(listener) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n" + GET * 50)
        await app.entered.wait()
        app.release.set()
        assert (await until_cut(reader)).count(b"HTTP/1.1 200 ") < 20
    assert not caplog.records


@scenario
async def test_nonsense_behind_a_request_doesn_t_spoil_its_answer():
    app = App()
    async with listening(app) as listener, connected(listener) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n" + NONSENSE)
        await app.entered.wait()
        writer.write(NONSENSE)
        app.release.set()
        got = await until_cut(reader)
        assert got.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in got
        assert got.endswith(b"done")


@pytest.mark.parametrize("beside", [b"trailer: " + b"x" * 1000, b"a: b\r\n" * 200])
@scenario
async def test_trailers_without_end_cut_the_connection(beside):
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(POST + b"1\r\nx\r\n0\r\n")
        cut = asyncio.create_task(until_cut(reader))
        sent = 0
        while not cut.done():
            writer.write(beside)
            sent += len(beside)
            await asyncio.sleep(0.001)
            assert sent < 100 * LIMITS.max_header_bytes
        assert (await cut).startswith(b"HTTP/1.1 400 ")


@scenario
async def test_extensions_of_chunks_without_end_cut_the_connection():
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(POST)
        cut = asyncio.create_task(until_cut(reader))
        for _ in range(1000):
            if cut.done():
                break
            writer.write(b"1;" + b"x" * 500 + b"\r\nx\r\n")
            await asyncio.sleep(0.001)
        assert (await cut).startswith(b"HTTP/1.1 400 ")


@scenario
async def test_a_body_in_the_smallest_chunks_is_taken():
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(POST)
        for _ in range(50):
            writer.write(b"1\r\nx\r\n" * 100)
            await asyncio.sleep(0)
        writer.write(b"0\r\nchecksum: 1\r\n\r\n")
        assert (await answer(reader))[2] == b"5000"
        writer.write(GET)
        assert (await answer(reader))[0] == 200


@scenario
async def test_a_large_body_and_the_head_of_the_next_request_in_one_piece():
    body = b"x" * (20 * LIMITS.max_header_bytes)
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body + GET[:9])
        assert (await answer(reader))[2] == b"%d" % len(body)
        writer.write(GET[9:])
        assert (await answer(reader))[0] == 200


@scenario
async def test_a_connection_goes_on_after_a_wish_for_another_protocol():
    async with listening(App()) as listener, connected(listener) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" + GET)
        assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]


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
@scenario
async def test_what_could_be_read_in_two_ways_is_refused(head, caplog):
    caplog.set_level(logging.INFO)
    async with listening(App()) as listener:
        async with connected(listener) as (reader, writer):
            writer.write(head)
            assert (await until_cut(reader)).startswith(b"HTTP/1.1 400 ")
        await until(lambda: listener.open_connections == 0)
    assert not caplog.records

"""A load generator in a process of its own: HTTPS with keep-alive, as many requests as are answered.

The parent writes a plan to its standard input and reads what came of it; see `Load`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

UID = "00000000-0000-0000-0000-000000000000"
"""Where a body has this, each request gets an id of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send where."""

    port: int
    authority: str
    path: str
    body: str
    connections: int
    seconds: float


@dataclass(slots=True)
class Outcome:
    """What came of a plan."""

    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.answered / self.seconds


class Load:
    """The generator's process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hack.bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, plan: Plan) -> Outcome:
        """Carry out a plan; ends the program where an answer was wrong."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(plan)) + "\n")
        self._process.stdin.flush()
        outcome = Outcome(**json.loads(self._process.stdout.readline()))
        if outcome.wrong:
            raise SystemExit(f"{plan.path}: {outcome.wrong[0]}")
        return outcome

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    transport: asyncio.Transport

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._buffer = b""
        self._missing: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self) -> None:
        self.transport.write(self._run.request())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._missing is None:
            head, found, _ = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            self._missing = len(head) + 4 + length
        if len(self._buffer) < self._missing:
            return
        answer, self._buffer, self._missing = self._buffer, b"", None
        if not answer.startswith(b"HTTP/1.1 200") or b'"allowed":true' not in answer:
            self._run.outcome.wrong.append(answer[:2000].decode(errors="replace"))
        self._run.answered(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost()


class _Run:
    """A plan under way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outcome = Outcome()
        body = plan.body.encode()
        head = (
            f"POST {plan.path}?timeout=10s HTTP/1.1\r\nHost: 127.0.0.1:{plan.port}\r\nUser-Agent: kube-apiserver\r\n"
            f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._own = UID.encode() if UID in plan.body else b""
        self._number = time.time_ns()
        self._connections: list[_Connection] = []
        self._idle = 0
        self._ends = 0.0
        self._done = asyncio.Event()

    def request(self) -> bytes:
        if not self._own:
            return self._request
        self._number += 1
        return self._request.replace(self._own, b"%036d" % self._number)

    def answered(self, connection: _Connection) -> None:
        self.outcome.answered += 1
        if time.perf_counter() < self._ends and not self.outcome.wrong:
            connection.send()
            return
        self._idle += 1
        if self._idle == self.plan.connections:
            self._done.set()

    def lost(self) -> None:
        if not self._done.is_set():
            self.outcome.wrong.append("the server closed a connection")
            self._done.set()

    async def whole(self) -> Outcome:
        context = ssl.create_default_context(cafile=self.plan.authority)
        loop = asyncio.get_running_loop()
        for _ in range(self.plan.connections):
            connect = loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.plan.port, ssl=context)
            self._connections.append((await connect)[1])
        started = time.perf_counter()
        self._ends = started + self.plan.seconds
        for connection in self._connections:
            connection.send()
        await self._done.wait()
        self.outcome.seconds = time.perf_counter() - started
        return self.outcome


def _serve_plans() -> None:
    gc.disable()
    for line in sys.stdin:
        outcome = asyncio.run(_Run(Plan(**json.loads(line))).whole())
        print(json.dumps(asdict(outcome)), flush=True)
        gc.collect()


if __name__ == "__main__":
    _serve_plans()

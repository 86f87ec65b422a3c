"""A network namespace per pod: its own address, which the machine and other pods reach, and its own loopback.

Nothing outlives the process that opened it: the namespace goes with its last process, and the pair of links with it.
Inside, the API server is where its Service says. There is no kube-proxy: connections to that address are passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import socket
from pathlib import Path

HOST = "198.18.0.1"
"""The machine's address as pods see it, and of every link to a pod. 198.18.0.0/15 is in no network (RFC 2544)."""

_TRIES = 20
_CLONE_NEWNET = 0x40000000


class NetworkError(Exception):
    """A command failed; the text is the command and what it said."""


class PodNetwork:
    """The network of one pod. `name` is the link's on the machine, at most 15 characters.

    `service` is where the pod finds the API server, `target` where it really is.
    """

    def __init__(self, name: str, service: tuple[str, int], target: tuple[str, int]) -> None:
        self._name = name
        self._service = service
        self._target = target
        self._holder: asyncio.subprocess.Process | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    async def open(self) -> None:
        """Make the namespace, give it an address nobody else has, and serve the API server's Service in it."""
        # it ends with our end of its standard input, however we end
        script = f"ip link set lo up && ip address add {self._service[0]}/32 dev lo && echo up && exec cat >/dev/null"
        self._holder = await asyncio.create_subprocess_exec(
            *("unshare", "--net", "sh", "-c", script), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert self._holder.stdout is not None
        if await self._holder.stdout.readline() != b"up\n":
            raise NetworkError("unshare --net: the loopback of a new network namespace can't be set up")
        inside = ("nsenter", f"--net={self.path}", "ip")
        await _run("ip", "link", "add", self._name, "type", "veth", "peer", "eth0", "netns", str(self._holder.pid))
        await _run("ip", "address", "add", f"{HOST}/32", "dev", self._name)
        await _run("ip", "link", "set", self._name, "up")
        _forward(self._name)
        address = await self._claim()
        await _run(*inside, "address", "add", f"{address}/32", "dev", "eth0")
        await _run(*inside, "link", "set", "eth0", "up")
        await _run(*inside, "route", "add", HOST, "dev", "eth0")
        await _run(*inside, "route", "add", "default", "via", HOST)
        listening = await asyncio.to_thread(_listen, self.path, self._service)
        self._server = await asyncio.start_server(self._pass_on, sock=listening)
        self.address = address

    @property
    def path(self) -> Path:
        """The namespace as a file."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/ns/net")

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._holder is not None:
            with contextlib.suppress(ProcessLookupError):
                self._holder.kill()
            await self._holder.wait()

    async def _claim(self) -> str:
        """An address of the range, by its route: a second route to the same address is refused."""
        for _ in range(_TRIES):
            address = f"198.{random.choice((18, 19))}.{random.randrange(1, 256)}.{random.randrange(1, 255)}"
            try:
                await _run("ip", "route", "add", f"{address}/32", "dev", self._name, "src", HOST)
            except NetworkError as error:
                if "File exists" not in str(error):
                    raise
            else:
                return address
        raise NetworkError(f"no free address for {self._name} found in 198.18.0.0/15 with {_TRIES} tries")

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            there, back = await asyncio.open_connection(*self._target)
            try:
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
            finally:
                back.close()
        except OSError:
            pass  # the client finds its connection closed
        finally:
            writer.close()


def _forward(link: str) -> None:
    """Pass on what a pod sends to others; where the kernel's settings are read-only, it reaches the machine alone."""
    with contextlib.suppress(OSError):
        Path(f"/proc/sys/net/ipv4/conf/{link}/forwarding").write_text("1")


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    target.close()


def _listen(namespace: Path, address: tuple[str, int]) -> socket.socket:
    """A listening socket in another network namespace; the calling thread is back in its own afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    with open("/proc/thread-self/ns/net") as own, namespace.open() as other:
        enter(other.fileno())
        try:
            listening = socket.create_server(address)
        finally:
            enter(own.fileno())
    return listening


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise NetworkError(f"{' '.join(command)}: {output.decode().strip()}")

"""`kubectl hami ui`: the pages on a socket."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import uvicorn

from hami_webhook.cluster.informer import Informer
from hami_webhook.kubectl.live import LiveCluster, context_names, diagnosed, follow, probing, read
from hami_webhook.kubectl.ui.access import ProxiedUsers, TokenHolders, new_token
from hami_webhook.kubectl.ui.metrics import Metrics
from hami_webhook.kubectl.ui.pages import Diagnose, Pages
from hami_webhook.kubectl.ui.readings import LONGEST_SILENCE, Readings
from hami_webhook.terminal import UsageError


def serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""

    async def reading() -> LiveCluster:
        """In a thread, so that other requests are answered meanwhile."""
        return await asyncio.to_thread(lambda: asyncio.run(read(arguments)))

    async def serving() -> None:
        # one thread: the allocator keeps for each of them the memory that its largest reading took
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        prometheus = arguments.prometheus
        if prometheus:
            del arguments.prometheus  # it is asked beside the readings
        async with probing(arguments, LONGEST_SILENCE) as probe:
            cluster = await reading()
            metrics = Metrics(prometheus, cluster.effective.exporters) if prometheus else None
            readings = Readings(
                reading, cluster, context_names(arguments), metrics, probe=probe, follow=partial(follow, arguments)
            )
            if arguments.behind_proxy:
                with listening(arguments.port, "0.0.0.0") as listener:  # noqa: S104  the proxy is elsewhere
                    visitors = ProxiedUsers(arguments.behind_proxy, arguments.user_header)
                    await server(Pages(readings, None, visitors)).serve(sockets=[listener])
            else:
                with listening(arguments.port) as listener:
                    await serve_on(listener, readings, lambda: diagnosed(arguments))

    logger = logging.getLogger(Informer.__module__)
    level = logger.level
    logger.setLevel(logging.ERROR)  # what isn't seen, the pages say
    try:
        asyncio.run(serving())
    finally:
        logger.setLevel(level)
    return 0


def listening(port: int, address: str = "127.0.0.1") -> socket.socket:
    """A socket; port 0 is any that is free. Raises `UsageError`."""
    try:
        listener = socket.create_server((address, port))
    except OSError as error:
        raise UsageError(f"port {port} can't be used: {error.strerror}; --port names another") from error
    # asyncio sets it for connections of listeners with an explicit protocol alone; a page would take 40 ms more
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve_on(listener: socket.socket, readings: Readings, diagnose: Diagnose | None) -> None:
    """Print the address, and serve the pages until Ctrl-C; without `diagnose` there is no page Doctor."""
    port = listener.getsockname()[1]
    token = new_token()
    print(f"http://127.0.0.1:{port}/#{token}", flush=True)
    print("open this address in a browser of this machine; Ctrl-C ends it", file=sys.stderr)
    await server(Pages(readings, diagnose, TokenHolders(token, port))).serve(sockets=[listener])


def server(pages: Pages) -> uvicorn.Server:
    """What serves the pages on a socket."""
    return uvicorn.Server(
        uvicorn.Config(
            pages.app(), log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
    )

"""`kubectl hami ui`: the pages on a socket of loopback."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys

import uvicorn

from hami_webhook.kubectl.live import diagnosed, read
from hami_webhook.kubectl.ui.access import new_token
from hami_webhook.kubectl.ui.pages import Pages
from hami_webhook.kubectl.ui.readings import Readings
from hami_webhook.terminal import UsageError


def serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    first = asyncio.run(read(arguments))
    try:
        listener = socket.create_server(("127.0.0.1", arguments.port))
    except OSError as error:
        raise UsageError(f"port {arguments.port} can't be used: {error.strerror}; --port names another") from error
    with listener:
        port = listener.getsockname()[1]
        token = new_token()
        pages = Pages(Readings(lambda: read(arguments), first), lambda: diagnosed(arguments), token, port)
        print(f"http://127.0.0.1:{port}/#{token}", flush=True)
        print("kubectl hami: open this address in a browser of this machine; Ctrl-C ends it", file=sys.stderr)
        config = uvicorn.Config(
            pages.app(), log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listener])
    return 0

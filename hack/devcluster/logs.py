"""The part of a kubelet that `kubectl logs` needs: the API server asks it for what a container has written."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from .client import FAILURES, Client
from .identities import Authority

ADDRESS = "127.0.0.1"
"""Where the API server, which is on this machine, reaches kubelets."""
API_SERVER = "kube-apiserver-kubelet-client"
"""The client certificate of the API server."""
_AGAIN = 0.5
"""Seconds between two looks at a log that is followed."""
_NOTHING = b"The dev cluster runs nothing for this container: its image isn't one of ours.\n"


@contextlib.asynccontextmanager
async def served(credentials: Path, folder: Path, node: str, client: Client) -> AsyncIterator[int]:
    """Serve the logs below a kubelet's folder to the API server; the port. `client` is that of the node."""
    authority = Authority(credentials)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.serving(f"serving-{node}", [ADDRESS]))
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", _Logs(folder, client).answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class _Logs:
    def __init__(self, folder: Path, client: Client) -> None:
        self._folder = folder
        self._client = client

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """What the container has written, of all its starts; `follow` and `tailLines` are as a kubelet has them."""
        subject = request.get_extra_info("peercert")["subject"]
        if (("commonName", API_SERVER),) not in subject:
            raise web.HTTPForbidden
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        log = self._log(request.match_info)
        written = log.read_bytes() if log is not None else _NOTHING
        lines = written.splitlines(keepends=True)
        tail = int(request.query.get("tailLines", len(lines)))
        await response.write(b"".join(lines[len(lines) - min(tail, len(lines)) :]))
        if log is not None and request.query.get("follow") == "true":
            await self._follow(log, len(written), request.match_info, response)
        return response

    def _log(self, asked: web.UrlMappingMatchInfo) -> Path | None:
        """The log of a container of the newest pod of the name."""
        found = self._folder.glob(f"{asked['namespace']}_{asked['pod']}_*/{asked['container']}.log")
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    async def _follow(
        self, log: Path, known: int, asked: web.UrlMappingMatchInfo, response: web.StreamResponse
    ) -> None:
        """Write what comes beyond what is known until the container has ended."""
        with log.open("rb") as file:
            file.seek(known)
            runs = True
            while runs:
                await asyncio.sleep(_AGAIN)
                runs = await self._runs(asked)
                await response.write(file.read())

    async def _runs(self, asked: web.UrlMappingMatchInfo) -> bool:
        path = f"/api/v1/namespaces/{asked['namespace']}/pods/{asked['pod']}"
        try:
            status = (await self._client.get(path)).get("status", {})
        except FAILURES:
            return False
        found = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        return any(each["name"] == asked["container"] and "running" in each["state"] for each in found)

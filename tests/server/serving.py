"""A whole process over real HTTPS, with certificates of its own."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from admission.reviews import JSON, VENDORS, body

from hami_webhook import pki
from hami_webhook.config import Settings, add_flags, resolve
from hami_webhook.server.run import Running, running

PAIR = pki.generate("hami-webhook", "hami-system", now=datetime.now(UTC), extra_names=("127.0.0.1",))
ANYWHERE = tuple(
    text
    for flag in ("--http_bind", "--metrics-bind-address", "--extender-bind-address")
    for text in (flag, "127.0.0.1:0")
)
"""The flags to listen on free ports."""
QUICK = ("--shutdown-grace", "200ms", "--quota-debounce", "10ms")


def certificates(folder: Path, pair: pki.Pair = PAIR) -> tuple[str, ...]:
    """The flags for a pair written to a folder."""
    pki.write(folder, pair, force=True)
    return "--cert_file", str(folder / pki.SERVING_CERTIFICATE), "--key_file", str(folder / pki.SERVING_KEY)


def settings_of(*flags: str, **env: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return resolve(parser.parse_args([*ANYWHERE, "--scheduler-name", "hami-scheduler", *QUICK, *flags]), env)


def trusting(*authorities: pki.KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for authority in authorities or (PAIR.ca,):
        context.load_verify_locations(cadata=authority.certificate.decode())
    return context


@dataclass
class Served:
    process: Running
    client: httpx.AsyncClient

    async def review(self, path: str, written: JSON, **params: str) -> JSON:
        """The AdmissionResponse to a review."""
        answer = await self.client.post(path, content=body(written), headers=AS_JSON, params=params)
        assert answer.status_code == 200
        inner: JSON = answer.json()["response"]
        return inner

    @property
    def extender_url(self) -> str:
        """Of an extender that listens on an address of its own."""
        assert self.process.extender is not None
        return f"http://127.0.0.1:{self.process.extender.port}"


AS_JSON = {"content-type": "application/json"}


@asynccontextmanager
async def served(folder: Path, cluster: Any, *flags: str, sync: bool = True, **more: Any) -> AsyncIterator[Served]:
    settings = settings_of(*certificates(folder), *flags, **more.pop("env", {}))
    async with running(cluster, more.pop("vendors", VENDORS), settings, **more) as process:
        if sync:
            await process.informers.wait_synced()
        url = f"https://127.0.0.1:{process.main.port}"
        async with httpx.AsyncClient(base_url=url, verify=trusting(), timeout=10) as client:
            yield Served(process, client)

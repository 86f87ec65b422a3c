"""A serving certificate for listeners, and a client's trust in it."""

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvloop
from async_tests import run_async
from uvicorn import server

from hami_webhook import pki
from hami_webhook.server.tls import CertificateFiles, ReloadingTls

from .sockets import PAIR


@pytest.fixture
def tls(tmp_path: Path) -> ReloadingTls:
    pki.write(tmp_path, PAIR, force=True)
    return ReloadingTls(CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key"))


@pytest.fixture
def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=PAIR.ca.certificate.decode())


@pytest.fixture(autouse=True)
def quick_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn's server looks ten times a second whether it has ended; two hundred times in tests, which end many."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)

    monkeypatch.setattr(server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem, uvloop.run, ends_tasks=True)

"""What is asked of the API server before anything is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest
from admission.reviews import VENDORS

from hami_webhook.cluster.api import ClusterError, Forbidden, Unavailable
from hami_webhook.cluster.quotas_in_memory import QuotasInMemory
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.server import serve_kubernetes

from .serving import settings_of


class Asked:
    """An API server that gives these answers, one after the other."""

    def __init__(self, *answers: str | bool | ClusterError) -> None:
        self._answers = list(answers)

    async def version(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    async def may(self, *right: str) -> Any:
        assert right == ("patch", "", "resourcequotas", "status")
        return await self.version()

    def __getattr__(self, name: str) -> object:
        """Every other call, which nobody makes here."""
        return None


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        assert seconds == 1

    monkeypatch.setattr(asyncio, "sleep", sleep)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["v1.36.3"], []),
        (["v1.29.1"], ["the API server is Kubernetes v1.29.1, and v1.30 or newer is needed"]),
        ([Forbidden("no")], ["the API server doesn't report its version: no"]),
        ([Unavailable("refused"), "v1.36.3"], ["at the start: refused; trying again"]),
    ],
)
def test_an_api_server_that_is_too_old_is_named(
    answers: list[Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    asked: Any = Asked(*answers)
    asyncio.run(serve_kubernetes._check_version(asked))
    messages = [record.getMessage() for record in caplog.records if record.name == serve_kubernetes.__name__]
    assert len(messages) == len(said)
    assert all(message.startswith(words) for message, words in zip(messages, said, strict=True))


def test_without_the_right_to_write_it_quota_is_kept_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    with_right: Any = Asked(Unavailable("refused"), True)
    assert asyncio.run(serve_kubernetes._with_quotas(with_right)) is with_right
    without: Any = Asked(False)
    assert isinstance(asyncio.run(serve_kubernetes._with_quotas(without)), QuotasInMemory)
    assert "no right to patch resourcequotas/status: " in caplog.text


async def test_what_is_served_goes_by_the_api_servers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    there = time.time() + 600  # this machine is ten minutes behind

    class Client:
        async def param_serialize(self, method: str, path: str, **more: Any) -> tuple[Any, ...]:
            return method, path, more["header_params"], None, None

        async def call_api(self, *request: Any, **more: Any) -> Any:
            async def parts() -> AsyncIterator[bytes]:
                yield b'{"gitVersion": "v1.36.3", "status": {"allowed": true}}'

            headers = {"Date": formatdate(there, usegmt=True)}
            response = SimpleNamespace(
                status=200, headers=headers, content=SimpleNamespace(iter_any=parts), release=lambda: None
            )
            return SimpleNamespace(response=response)

        async def close(self) -> None:
            """Nothing is open."""

    async def connect(*where: str) -> Any:
        return Client()

    clocks: list[Callable[[], float]] = []

    async def serve(*what: Any, **more: Any) -> None:
        clocks.append(more.get("clock", time.time))

    monkeypatch.setattr(serve_kubernetes, "connect", connect)
    monkeypatch.setattr(serve_kubernetes, "serve", serve)
    await serve_kubernetes.serve_kubernetes(VENDORS, settings_of(), PolicyRules.EMPTY)
    assert clocks[0]() == pytest.approx(there, abs=30)

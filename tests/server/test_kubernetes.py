"""What is asked of the API server before anything is served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_webhook.cluster.api import ClusterError, Forbidden, Unavailable
from hami_webhook.cluster.quotas_in_memory import QuotasInMemory
from hami_webhook.server import serve_kubernetes


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


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        assert seconds == 1

    monkeypatch.setattr(serve_kubernetes.asyncio, "sleep", sleep)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["v1.36.3"], []),
        (["v1.29.1"], ["the API server is Kubernetes v1.29.1, and v1.30 or newer is needed"]),
        ([Forbidden("no")], ["the API server doesn't tell its version: no"]),
        ([Unavailable("refused"), "v1.36.3"], ["at the start: refused; trying again"]),
    ],
)
def test_an_api_server_that_is_too_old_is_named(
    answers: list[Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(serve_kubernetes._check_version(Asked(*answers)))
    messages = [record.getMessage() for record in caplog.records if record.name == serve_kubernetes.__name__]
    assert len(messages) == len(said)
    assert all(message.startswith(words) for message, words in zip(messages, said, strict=True))


def test_without_the_right_to_write_it_quota_is_kept_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    with_right: Any = Asked(Unavailable("refused"), True)
    assert asyncio.run(serve_kubernetes._with_quotas(with_right)) is with_right
    without: Any = Asked(False)
    assert isinstance(asyncio.run(serve_kubernetes._with_quotas(without)), QuotasInMemory)
    assert "no right to patch resourcequotas/status: " in caplog.text

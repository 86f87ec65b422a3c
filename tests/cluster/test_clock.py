"""The clock that is kept at the API server's time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.clock import ServerClock
from hami_webhook.cluster.kubernetes import KubernetesCluster

NOW = 1_767_225_600.0


class Machine:
    """A machine whose clock is `ahead` of the API server's, and the API server."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.time = NOW
        """The API server's time."""
        self.ahead = ahead
        self.clock = ServerClock(lambda: self.time + self.ahead, lambda: self.time - NOW)

    def request(self, before: float = 0.0, after: float = 0.0) -> None:
        """A request whose answer is dated so many seconds after it was sent, and comes so many later."""
        self.time += before
        date = formatdate(int(self.time), usegmt=True)
        self.time += after
        self.clock.answered(date, before + after)

    @property
    def error(self) -> float:
        return self.clock() - self.time


ways = st.floats(0, 30)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(ways, ways), min_size=1))
def test_it_is_within_a_second_and_the_time_of_the_quickest_answer(
    ahead: float, requests: list[tuple[float, float]]
) -> None:
    machine = Machine(ahead)
    for before, after in requests:
        machine.request(before, after)
    assert abs(machine.error) <= 1.001 + min(sum(each) for each in requests)


@given(st.lists(st.tuples(ways, ways)))
def test_that_of_a_machine_that_keeps_time_is_never_set(requests: list[tuple[float, float]]) -> None:
    machine = Machine()
    for before, after in requests:
        machine.request(before, after)
        assert machine.error == pytest.approx(0, abs=1e-3)
    assert machine.clock.skew == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_setting_the_machines_clock_moves_only_the_skew(ahead: float) -> None:
    machine = Machine()
    machine.request()
    machine.ahead = ahead
    assert machine.error == pytest.approx(0, abs=1e-3)
    assert machine.clock.skew == pytest.approx(ahead, abs=1e-3)
    machine.request()
    assert machine.clock.skew == pytest.approx(ahead, abs=1e-3)


@pytest.mark.parametrize(
    "date", ["", "soon", "Thu, 99 Jan 1970 00:00:00 GMT", "Thu, 01 Jan 99999 00:00:00 GMT", "9" * 5000]
)
def test_an_answer_without_a_usable_date_changes_nothing(date: str) -> None:
    machine = Machine(5)
    machine.clock.answered(date, 0.0)
    assert machine.error == pytest.approx(5)


class DatedServer:
    """A client of an API server that finds nothing, and dates that."""

    async def param_serialize(self, method: str, path: str, **more: Any) -> tuple[Any, ...]:
        return method, path, more["header_params"], None, None

    async def call_api(self, *request: Any, **more: Any) -> Any:
        async def parts() -> AsyncIterator[bytes]:
            yield b"{}"

        headers, content = {"Date": formatdate(NOW, usegmt=True)}, SimpleNamespace(iter_any=parts)
        return SimpleNamespace(
            response=SimpleNamespace(status=404, headers=headers, content=content, release=lambda: None)
        )


def test_every_answer_of_the_api_server_counts() -> None:
    client: Any = DatedServer()
    cluster = KubernetesCluster(client, clock=ServerClock(lambda: NOW - 600, lambda: 0.0))
    with pytest.raises(Exception, match="404"):
        asyncio.run(cluster.get(Kind.NODES, "n1"))
    assert cluster.clock() == pytest.approx(NOW)

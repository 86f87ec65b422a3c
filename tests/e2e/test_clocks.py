"""Replicas whose machines' clocks are ten minutes off: charges in flight count, and the skew is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from .deployment import Deployment, eventually
from .objects import namespace, pod, quota
from .webhooks import holding_webhook

SKEW = "hami_webhook_clock_skew_seconds"


@contextmanager
def another_replica(program: Deployment, ahead: float) -> Iterator[None]:
    """One whose clock is wrong charges, until the block ends; that with the right clock only recomputes."""
    (first,) = program.balancer.backends
    program.start("hami-webhook-1", ahead=ahead)
    program.balancer.backends.remove(first)
    try:
        yield
    finally:
        program.stop("hami-webhook-1")
        program.balancer.backends.append(first)


@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_a_charge_in_flight_survives_a_clock_that_is_ten_minutes_off(one_replica: Deployment, ahead: float) -> None:
    program, kubectl = one_replica, one_replica.kubectl
    eventually(program.leader, "hami-webhook-0")
    with another_replica(program, ahead):
        space = namespace(kubectl)
        kubectl.apply(quota(space, gpu=1))
        with ThreadPoolExecutor() as background, holding_webhook(program, space, "held-") as release:
            held = json.dumps(pod(space, "held-0", gpu=1, gpumem=10))
            creating = background.submit(kubectl.run, "create", "-f", "-", stdin=held)
            eventually(lambda: kubectl.used(space), {"gpu": "1"})
            kubectl.apply(quota(space, gpu=1, mem=100_000))
            eventually(lambda: kubectl.used(space).get("gpumem") is not None)  # the leader recomputed
            assert kubectl.used(space)["gpu"] == "1"
            assert [entry["s"] for entry in kubectl.ledger(space).values()] == ["admitted"]
            assert "exceeded quota: gpu-quota" in kubectl.refused(pod(space, "more", gpu=1, gpumem=10))
            release.set()
            assert creating.result().returncode == 0
        eventually(lambda: (kubectl.ledger(space), kubectl.used(space)["gpu"]), ({}, "1"))

        def skews(name: str) -> dict[str, float]:
            lines = [line for line in program.metrics(name).splitlines() if line.startswith(SKEW)]
            return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}

        eventually(lambda: {*skews("hami-webhook-1")}, {"api-server", "leader"})
        assert skews("hami-webhook-0")["api-server"] == pytest.approx(0, abs=5)
        assert skews("hami-webhook-1") == {"api-server": pytest.approx(ahead, abs=5), "leader": pytest.approx(0, abs=8)}

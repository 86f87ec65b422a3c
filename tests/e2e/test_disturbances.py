"""The API server goes away and comes back, watches break, certificates change: no wrong verdict, no restart of ours."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane
from hami_webhook import pki

from .deployment import SYSTEM, Deployment, deployed, eventually
from .objects import namespace, pod, quota
from .test_bursts import create_all, existing


@pytest.fixture
def program(plane: ControlPlane, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(plane, tmp_path, "hami-webhook-0", "hami-webhook-1") as deployment:
        yield deployment


def test_the_api_server_restarts_in_the_middle(program: Deployment, plane: ControlPlane) -> None:
    """Its watch caches begin anew then, so every watch of ours is refused as too old (410) and lists again."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=10))
    kubectl.apply(*(pod(space, f"before-{number}", gpu=1, gpumem=10) for number in range(4)))
    plane.restart_api_server()
    eventually(lambda: kubectl.run("get", "ns").returncode, 0)
    asyncio.run(create_all(kubectl.kubeconfig, [pod(space, f"after-{n}", gpu=1, gpumem=10) for n in range(12)]))
    eventually(lambda: kubectl.ledger(space), {})
    missing = 10 - existing(kubectl, space)
    assert 0 <= missing < 6
    asyncio.run(create_all(kubectl.kubeconfig, [pod(space, f"late-{n}", gpu=1, gpumem=10) for n in range(missing + 3)]))
    assert existing(kubectl, space) == 10
    # deletions are heard of again, without a restart of ours
    kubectl.delete_all("pods", namespace=space)
    eventually(lambda: kubectl.used(space), {"gpu": "0"})
    assert all(process.poll() is None for process in program.replicas.values())


def test_the_certificate_changes_under_load(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=100_000))
    before = sum(program.metric(name, "hami_webhook_tls_reloads_total") for name in program.replicas)
    done = threading.Event()
    refusals: list[str] = []
    created = 0

    def load() -> None:
        nonlocal created
        while not done.is_set():
            batch = [pod(space, f"p{created + number}", gpu=1, gpumem=10) for number in range(20)]
            created += len(batch)
            refusals.extend(asyncio.run(create_all(kubectl.kubeconfig, batch)))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(3):
            for name in program.replicas:
                serving = pki.issue(program.ca, "hami-webhook", SYSTEM, now=datetime.now(UTC))
                pki.write(program.folder / name, pki.Pair(program.ca, serving), force=True)
            time.sleep(2.5)
    finally:
        done.set()
        thread.join()
    after = sum(program.metric(name, "hami_webhook_tls_reloads_total") for name in program.replicas)
    assert after - before >= 4
    assert refusals == []
    eventually(lambda: kubectl.used(space), {"gpu": _canonical(created)})


def _canonical(count: int) -> str:
    return f"{count // 1000}k" if count and count % 1000 == 0 else str(count)


def test_broken_connections_cost_nothing(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=3))
    for number in range(3):
        program.balancer.break_connections()
        kubectl.apply(pod(space, f"p{number}", gpu=1, gpumem=10))
    assert "exceeded quota" in kubectl.refused(pod(space, "p3", gpu=1, gpumem=10))
    eventually(lambda: (kubectl.used(space), kubectl.ledger(space)), ({"gpu": "3"}, {}))

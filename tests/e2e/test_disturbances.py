"""The API server goes away and comes back, watches break, certificates change: no wrong verdict, no restart of ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from hack.devcluster.plane import ControlPlane
from hami_webhook import pki
from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

from .deployment import SYSTEM, Deployment, eventually
from .objects import namespace, pod, quota
from .test_bursts import create_all, existing

REPLICAS = ("hami-webhook-0", "hami-webhook-1")


@pytest.fixture
def program(two_replicas: Deployment) -> Deployment:
    two_replicas.start_missing(*REPLICAS)
    return two_replicas


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


GRACE = ("--shutdown-grace", "15s")
CLIENTS = 16
PACE = 0.02
"""Seconds between two pods of a client."""
BETWEEN = 40
"""Pods that must have been created after a replacement before the next one."""


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """A loop on each core that never rests, until the block ends."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait(60)


def replace(program: Deployment, old: str, new: str) -> None:
    """As a Deployment's rolling update with maxUnavailable 0: the new replica is ready before the old one is ended.

    The Service forgets the old one when its probe fails, and connections that it has stay with it.
    """
    program.start(new, *GRACE)
    process = program.replicas[old]
    process.send_signal(signal.SIGTERM)
    eventually(lambda: process.poll() is not None or not program.ready(old))
    program.balancer.backends.remove(program.backends.pop(old))
    del program.replicas[old]
    process.wait(60)
    assert process.returncode == 0


def test_replacing_each_replica_refuses_no_review(program: Deployment) -> None:
    """Under a stream of pods from several clients, on a machine that has no time to spare."""
    for name in REPLICAS:
        program.stop(name)
        program.start(name, *GRACE)
    kubectl, space = program.kubectl, namespace(program.kubectl)
    kubectl.apply(quota(space, gpu=100_000))
    ending = threading.Event()
    refusals: list[str] = []
    created = 0

    async def client(name: str) -> None:
        nonlocal created
        async with KubernetesCluster(await connect(str(kubectl.kubeconfig))) as cluster:
            number = 0
            while not ending.is_set():
                number += 1
                try:
                    await cluster.create(Kind.PODS, pod(space, f"{name}-{number}", gpu=1, gpumem=10))
                    created += 1
                except ClusterError as error:
                    refusals.append(str(error))
                await asyncio.sleep(PACE)

    async def stream() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(client(f"c{number}"))

    with busy_cores():
        thread = threading.Thread(target=lambda: asyncio.run(stream()))
        thread.start()
        try:
            for number, old in enumerate(REPLICAS):
                before = created
                eventually(lambda: created >= before + BETWEEN)  # noqa: B023  called at once
                replace(program, old, f"new-{number}")
            before = created
            eventually(lambda: created >= before + BETWEEN)
        finally:
            ending.set()
            thread.join()
    assert refusals == []
    eventually(lambda: kubectl.used(space), {"gpu": _canonical(created)})
    for name in list(program.replicas):
        program.stop(name)

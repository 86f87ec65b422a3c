"""Pods of ten thousand containers: they are admitted, and hold up nobody."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane
from hami_webhook.kube.quantity import parse_whole

from .deployment import Deployment, Kubectl, eventually
from .objects import JSON, namespace, pod, quota
from .tenants import tenant


def large(namespace: str, name: str, containers: int, incoming: int = 1) -> JSON:
    """A pod of many containers, the first of which ask for a GPU each."""
    made = pod(namespace, name)
    limits = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}}
    made["spec"]["containers"] = [
        {"name": f"c{number}", "image": "a", "resources": limits if number < incoming else {}}
        for number in range(containers)
    ]
    made["spec"]["automountServiceAccountToken"] = False
    return made


@pytest.mark.parametrize(("containers", "incoming"), [(14_000, 1), (7_000, 7_000)])
def test_a_pod_of_thousands_of_containers_is_admitted_charged_and_updated(
    program: Deployment, plane: ControlPlane, tmp_path: Path, containers: int, incoming: int
) -> None:
    space = namespace(program.kubectl)
    user = tenant(program.kubectl, plane, tmp_path, space)
    # With managedFields such a pod is too large for etcd; the API server drops them and tries again, as another UID. So
    # it is charged twice until the first charge, whose pod never appears, expires.
    program.kubectl.apply(quota(space, gpu=2 * incoming, mem=2_000_000))
    user("create", "-f", "-", stdin=json.dumps(large(space, "large", containers, incoming)))

    def used() -> JSON:
        return {key: parse_whole(value) for key, value in program.kubectl.used(space).items()}

    eventually(used, {"gpu": incoming, "gpumem": 100 * incoming})
    user("annotate", "pod", "large", "-n", space, "hami.io/gpu-scheduler-policy=binpack")
    assert "exceeded quota" in user.refused(pod(space, "second", gpu=incoming + 1, gpumem=100))


@contextmanager
def creating(user: Kubectl, *pods: JSON) -> Iterator[list[str]]:
    """Create pods and delete them, each as fast as that goes, until the block ends; what kubectl said every time."""
    stop = threading.Event()
    said: list[str] = []

    def go_on(made: JSON) -> None:
        meta = made["metadata"]
        text = json.dumps(made)
        while not stop.is_set():
            done = user.run("create", "-f", "-", stdin=text)
            said.append(done.stdout + done.stderr)
            remove = ("delete", "pod", meta["name"], "-n", meta["namespace"], "--ignore-not-found")
            user.run(*remove, "--grace-period=0", "--force", "--wait=false")

    workers = [threading.Thread(target=go_on, args=(made,)) for made in pods]
    for worker in workers:
        worker.start()
    try:
        yield said
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def is_among(text: str, lines: list[str]) -> bool:
    return any(text in line for line in lines)


def admissions(user: Kubectl, space: str, name: str, count: int) -> list[float]:
    """Seconds that each of some small pods took to be created."""
    taken = []
    for number in range(count):
        text = json.dumps(pod(space, f"{name}-{number}", gpu=1, gpumem=100))
        began = time.monotonic()
        user("create", "-f", "-", stdin=text)
        taken.append(time.monotonic() - began)
    return taken


def test_large_pods_of_a_tenant_hold_up_no_other_tenant(
    program: Deployment, plane: ControlPlane, tmp_path: Path
) -> None:
    """As of the webhook's own work; API server, etcd and kubectl are kept as busy by the same pods unreviewed.

    The pods that ask in every container are too large for etcd, so they are reviewed and charged, and never stored.
    """
    attackers, victims = namespace(program.kubectl), namespace(program.kubectl)
    attacker = tenant(program.kubectl, plane, tmp_path, attackers)
    victim = tenant(program.kubectl, plane, tmp_path, victims)
    for space in (attackers, victims):
        program.kubectl.apply(quota(space, gpu=100_000_000))
    pods = [large(attackers, f"large-{incoming}-{n}", 10_000, incoming) for incoming in (1, 10_000) for n in range(2)]
    unreviewed = [large(attackers, f"unreviewed-{n}", 10_000, 0) for n in range(4)]
    with creating(attacker, *unreviewed) as said:
        eventually(lambda: len(said) >= 2)
        undisturbed = admissions(victim, victims, "before", 10)
    with creating(attacker, *pods) as said:
        eventually(lambda: len(said) >= 2)
        disturbed = admissions(victim, victims, "during", 10)
        for end in ("created", "etcdserver: request is too large"):
            eventually(partial(is_among, end, said))
    # on a busy machine both take longer
    assert statistics.median(disturbed) < 2 * statistics.median(undisturbed) + 1

"""A quota holds from the moment it exists, although a replica's watches say nothing about it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane

from .apiproxy import ApiProxy
from .deployment import Deployment, Kubectl, deployed, eventually
from .objects import JSON, accelerator_quota, namespace, pod, quota
from .tenants import tenant


@pytest.fixture(scope="module")
def program(plane: ControlPlane, proxy: ApiProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("program")
    with deployed(plane, folder, through=lambda login: proxy.login(login, folder / "proxy.kubeconfig")) as deployment:
        deployment.start("hami-webhook-0")
        yield deployment


BELIEVED = 3.0
"""Seconds from a watch's last sign of life for which a quota may go unseen: two, and API times have whole seconds."""


def since(start: JSON, end: JSON) -> float:
    """Seconds between the creation of two objects."""
    times = [datetime.fromisoformat(each["metadata"]["creationTimestamp"]) for each in (start, end)]
    return (times[1] - times[0]).total_seconds()


def refused_soon(user: Kubectl, space: str, start: JSON, refusal: str) -> None:
    """A pod that is created later than `BELIEVED` after an object, and ten more, are refused with these words."""
    numbers = itertools.count()

    def create() -> JSON | None:
        name = f"p-{next(numbers):03}"
        done = user.run("create", "-o", "json", "-f", "-", stdin=json.dumps(pod(space, name, gpu=1, gpumem=10)))
        assert done.returncode == 0 or refusal in done.stderr, done.stderr
        created: JSON | None = json.loads(done.stdout) if done.returncode == 0 else None
        return created

    while (created := create()) is not None:
        assert since(start, created) <= BELIEVED
    assert [create() for _ in range(10)] == [None] * 10


@pytest.mark.parametrize("known", [{}, {"limits.amd.com/gpu": 5}, {"pods": 100}], ids=["none", "another key", "native"])
def test_a_new_limit_is_obeyed_at_once(
    program: Deployment, proxy: ApiProxy, plane: ControlPlane, tmp_path: Path, known: JSON
) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    user = tenant(kubectl, plane, tmp_path, space)
    if known:
        kubectl.apply(quota(space, **known))
    user.apply(pod(space, "before", gpu=1, gpumem=10))
    proxy.silence()
    try:
        marker = namespace(kubectl)
        kubectl.apply(quota(space, **known, gpu=1))
        refused_soon(user, space, kubectl.get("namespace", marker), "exceeded quota: gpu-quota")
    finally:
        proxy.speak()
    eventually(lambda: kubectl.ledger(space), {})


@pytest.mark.parametrize("what", ["quota", "label"])
def test_a_new_limit_above_namespaces_is_obeyed_at_once(
    program: Deployment, proxy: ApiProxy, plane: ControlPlane, tmp_path: Path, what: str
) -> None:
    """An AcceleratorQuota that is new, or one that selects a namespace by a label that is."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    user = tenant(kubectl, plane, tmp_path, space)
    selector = {"matchLabels": {"org": space}}
    made = accelerator_quota(space, selector, {"gpu": 1})
    if what == "quota":
        kubectl("label", "namespace", space, f"org={space}")
    else:
        kubectl.apply(made)
    user.apply(pod(space, "before", gpu=1, gpumem=10))
    proxy.silence()
    try:
        marker = namespace(kubectl)
        if what == "quota":
            kubectl.apply(made)
        else:
            kubectl("label", "namespace", space, f"org={space}")
        refused_soon(user, space, kubectl.get("namespace", marker), f"exceeded quota: AcceleratorQuota {space}")
    finally:
        proxy.speak()
        kubectl("delete", "acceleratorquota", space)

"""`kubectl hami explain` of a pod that waits among 24 nodes that answer differently, and among a thousand.

`pytest -s` prints the seconds of computing that the whole command takes.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
from collections.abc import Iterator

import pytest
from explain.mixed_nodes import WAITING, mixed_nodes, quotas
from terminals import on_terminal

from hack.bench.apiserver import create_all
from hack.devcluster.plane import ControlPlane
from hami_webhook.cluster.api import Kind

from .deployment import Kubectl
from .objects import JSON, namespace

SCREEN = 40
"""Lines of a terminal."""
KINDS = {"Node": Kind.NODES, "Pod": Kind.PODS, "ResourceQuota": Kind.RESOURCE_QUOTAS}
PROGRAM = [sys.executable, "-c", "import sys; from hami_webhook.kubectl.main import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def spaces(plane: ControlPlane) -> Iterator[dict[str, str]]:
    """The namespaces of the pod that waits and of those that hold cards; pods and nodes go with the module."""
    kubectl = Kubectl(plane.kubeconfig)
    found = {name: namespace(kubectl) for name in ("default", "team-b")}
    yield found
    for space in found.values():
        kubectl("delete", "--raw", f"/api/v1/namespaces/{space}/pods?gracePeriodSeconds=0")
    kubectl("delete", "--raw", "/api/v1/nodes")
    kubectl("delete", "namespace", *found.values(), "--wait=false")


def create(plane: ControlPlane, spaces: dict[str, str], objects: list[JSON]) -> None:
    made = copy.deepcopy(objects)
    for each in made:
        if each["kind"] == "Node":
            for amounts in (each["status"].setdefault(name, {}) for name in ("capacity", "allocatable")):
                amounts["pods"] = "100"
        else:
            each["metadata"]["namespace"] = spaces[each["metadata"]["namespace"]]
        if each["kind"] == "Pod":  # nodes without a kubelet are tainted
            each["spec"] |= {"tolerations": [{"operator": "Exists"}], "schedulerName": "hami-scheduler"}
    asyncio.run(create_all(plane.kubeconfig, [(KINDS[each["kind"]], each) for each in made], clients=16))


def explained(plane: ControlPlane, space: str) -> tuple[list[str], float]:
    """The lines on a terminal of 80 columns, and the seconds of computing."""
    before = os.times()
    command = [*PROGRAM, "explain", "pod", "waiting", "-n", space]
    text = on_terminal(command, "stdout", {"KUBECONFIG": str(plane.kubeconfig), "COLUMNS": "80", "TERM": "dumb"})
    after = os.times()
    seconds = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    return text.splitlines(), seconds


@pytest.mark.parametrize(("copies", "screens"), [(1, 1), (42, 2)])
def test_the_answer_is_a_screen_for_24_mixed_nodes_and_two_for_a_thousand(
    plane: ControlPlane, spaces: dict[str, str], copies: int, screens: int
) -> None:
    first = [*mixed_nodes(), WAITING, *quotas()]
    create(plane, spaces, first if copies == 1 else mixed_nodes(copies)[len(mixed_nodes()) :])
    lines, seconds = explained(plane, spaces["default"])
    print(f"{24 * copies} nodes: {len(lines)} lines, {seconds:.2f} s of computing")
    assert f"{6 * copies} " in "\n".join(line for line in lines if "CardInsufficientMemory" in line)
    assert len(lines) <= screens * SCREEN

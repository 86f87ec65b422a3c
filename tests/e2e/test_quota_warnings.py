"""Misread quotas and pods: what kubectl shows of them, and the events on quotas that are there already."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import builders
import pytest
from quota.right_quotas import RIGHT

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, deployed, eventually
from .objects import MEM, add_node, gpu_node, namespace

JSON = dict[str, Any]


@dataclass
class Installed:
    program: Deployment
    earlier: str
    """A namespace with a misread quota from before the program was there."""


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    kubectl = Kubectl(plane.kubeconfig)
    earlier = namespace(kubectl)
    kubectl.apply(quota(earlier, "earlier", {"requests.nvidia.com/gpumem": "16000"}))
    folder = tmp_path_factory.mktemp("program")
    with deployed(plane, folder, "hami-webhook-0", flags=("--enable-ascend=false",)) as program:
        add_node(kubectl, gpu_node("card-24g", 24576), gpu=10)
        yield Installed(program, earlier)
        kubectl("delete", "node", "card-24g")


def quota(space: str, name: str, hard: JSON, **spec: Any) -> JSON:
    return builders.quota(name, namespace=space, spec=spec, **hard)


def applied(kubectl: Kubectl, item: JSON) -> list[str]:
    """The warnings that `kubectl apply` prints."""
    done: subprocess.CompletedProcess[str] = kubectl.run("apply", "-f", "-", stdin=json.dumps(item))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert all(line.startswith("Warning: ") for line in lines), lines
    return [line.removeprefix("Warning: ") for line in lines]


@pytest.mark.parametrize(
    ("hard", "spec", "message"),
    [
        ({"requests.nvidia.com/gpumem": "16000"}, {}, "write limits.nvidia.com/gpumem"),
        ({"limits.nvidia.com/gpumen": "16000"}, {}, "did you mean limits.nvidia.com/gpumem?"),
        ({"limits.nvidia.com/gpumem-percentage": "50"}, {}, "quota doesn't count nvidia.com/gpumem-percentage"),
        ({"limits.huawei.com/Ascend910B4": "8"}, {}, "enables no vendor with huawei.com/Ascend910B4"),
        ({MEM: "16Gi"}, {}, "for as many bytes write 16384"),
        ({MEM: "80"}, {}, "less than the smallest card has (24576 MiB)"),
        ({MEM: "40000", "pods": "10"}, {}, "use a quota of its own for accelerators"),
        ({MEM: "40000"}, {"scopes": ["VolumeAttributesClass"]}, "no pod is in all its scopes"),
    ],
)
def test_each_kind_is_a_warning_and_an_event(installed: Installed, hard: JSON, spec: JSON, message: str) -> None:
    kubectl = installed.program.kubectl
    space = namespace(kubectl)
    eventually(lambda: installed.program.metric("hami-webhook-0", "hami_gpu_memory_limit_bytes"), 24576 * 2.0**20)
    [warning] = applied(kubectl, quota(space, "q", hard, **spec))
    assert message in warning
    eventually(lambda: messages(kubectl, space), [warning])


def messages(kubectl: Kubectl, space: str) -> list[str]:
    """What events on the namespace's quotas say."""
    found = kubectl.get("events", "-n", space, "--field-selector", "involvedObject.kind=ResourceQuota")["items"]
    return [item["message"] for item in found]


def test_right_quotas_get_no_warning_and_no_event(installed: Installed) -> None:
    kubectl = installed.program.kubectl
    space = namespace(kubectl)
    for name, spec in RIGHT.items():
        if name != "ascend":  # which these replicas don't enable
            assert applied(kubectl, quota(space, name, **spec)) == [], name
    [last] = applied(kubectl, quota(space, "wrong", {"limits.nvidia.com/gpus": "1"}))
    eventually(lambda: messages(kubectl, space), [last])


def test_a_quota_that_was_there_already_has_an_event(installed: Installed) -> None:
    kubectl = installed.program.kubectl
    eventually(lambda: len(messages(kubectl, installed.earlier)), 1)
    assert "write limits.nvidia.com/gpumem" in messages(kubectl, installed.earlier)[0]


def test_a_change_is_judged_and_the_ledger_changes_nothing(installed: Installed) -> None:
    kubectl = installed.program.kubectl
    space = namespace(kubectl)
    assert applied(kubectl, quota(space, "q", {MEM: "40000"})) == []
    assert len(applied(kubectl, quota(space, "q", {MEM: "40Gi"}))) == 1
    assert applied(kubectl, quota(space, "q", {MEM: "40960"})) == []


def test_without_a_replica_quotas_are_written_as_ever(installed: Installed) -> None:
    program = installed.program
    space = namespace(program.kubectl)
    with unanswered(program):
        assert applied(program.kubectl, quota(space, "q", {MEM: "16Gi"})) == []


@contextlib.contextmanager
def unanswered(program: Deployment) -> Iterator[None]:
    """Until the block ends no replica answers."""
    backends, program.balancer.backends = program.balancer.backends, []
    program.balancer.break_connections()
    try:
        yield
    finally:
        program.balancer.backends = backends


@pytest.mark.parametrize(
    ("resource", "meant"),
    [("hami.io/gpumem", "nvidia.com/gpumem"), ("nvidia.com/gpus", "nvidia.com/gpu"), ("example.com/gpu", "")],
)
def test_a_pod_that_names_no_resource_of_ours_is_warned_of_those_that_are_nearly(
    installed: Installed, resource: str, meant: str
) -> None:
    kubectl = installed.program.kubectl
    found = applied(kubectl, misspelt(namespace(kubectl), resource))
    assert [meant in text.partition("did you mean ")[2] for text in found] == ([True] if meant else [])


def test_without_a_replica_such_a_pod_is_created_as_ever(installed: Installed) -> None:
    program = installed.program
    space = namespace(program.kubectl)
    with unanswered(program):
        assert applied(program.kubectl, misspelt(space, "nvidia.com/gpus")) == []


def misspelt(space: str, resource: str) -> JSON:
    return builders.pod("p", builders.container(**{resource: "1"}), namespace=space)

"""Misread quotas and pods: what kubectl shows of them, and `simulate`; the events on quotas that are there already."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import builders
import pytest
from quota.right_quotas import RIGHT
from simulate.workload_objects import OBJECTS, template

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
        ({"limits.huawei.com/Ascend910B4": "8"}, {}, "enables no vendor with huawei.com/Ascend910B4"),
        ({MEM: "80"}, {}, "less than the smallest card has (24576 MiB)"),
    ],
)
def test_a_misreading_is_a_warning_and_an_event(installed: Installed, hard: JSON, spec: JSON, message: str) -> None:
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


# What `simulate` says is what the API server says


def simulated(kubectl: Kubectl, folder: Path, objects: list[JSON], *flags: str) -> tuple[list[JSON], str]:
    """The pods of the result, and what is warned of beside it, in the cluster as it is."""
    dump, file = folder / "cluster.json", folder / "objects.json"
    dump.write_text(kubectl("get", "nodes,namespaces,resourcequotas", "-A", "-o", "json"))
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    command = [
        sys.executable,
        "-m",
        "hami_webhook",
        "simulate",
        "--cluster",
        str(dump),
        str(file),
        "-o",
        "json",
        *flags,
    ]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    pods: list[JSON] = json.loads(done.stdout)["pods"]
    return pods, done.stderr


def limited(**limits: str) -> JSON:
    return builders.container(resources={"limits": limits})


NOTE = {"nvidia.com/gpumem": "3000"}
CARD, MISSPELT = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpumemory": "1"}
DISABLED = {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]}
PRIVILEGED = {"securityContext": {"privileged": True}}


def written(name: str, *containers: JSON, **more: Any) -> JSON:
    """A pod that names no namespace."""
    made = builders.pod(name, *containers, **more)
    del made["metadata"]["namespace"]
    return made


MEANT = {
    "note": written("note", annotations=NOTE),
    "resource": written("resource", limited(**{"nvidia.com/use-gputype": "1"})),
    "nearly": written("nearly", limited(**MISSPELT)),
    "card": written("card", limited(**CARD), annotations=NOTE),
    "privileged": written("privileged", {**limited(**CARD, **MISSPELT), **PRIVILEGED}),
    "node": written("node", limited(**CARD), nodeName="card-24g", annotations=NOTE),
    "bytes": written("bytes", limited(**CARD, **{"nvidia.com/gpumem": "16Gi"}), annotations=NOTE),
    "some-bytes": written("some-bytes", limited(**CARD, **{"nvidia.com/gpumem": "1Gi"})),
    "disabled": written("disabled", {**limited(**CARD, **{"nvidia.com/gpumem": "1"}), **DISABLED}),
}
"""Pods that are hardly meant as they are written."""
QUIET = written("quiet", limited(**CARD), annotations={"nvidia.com/use-gputype": "A100", "example.com/gpu": "1"})


def test_what_was_meant_is_said_by_the_api_server_and_by_simulate_alike(installed: Installed, tmp_path: Path) -> None:
    """Of allowed pods, of refused ones, and of those that name nothing else of ours; and nothing of an ordinary pod."""
    kubectl = installed.program.kubectl
    space = namespace(kubectl)
    pods, _ = simulated(kubectl, tmp_path, [*MEANT.values(), QUIET], "-n", space)
    found = {each["name"]: (each["allowed"], set(each["warnings"]), each["message"]) for each in pods}
    assert found.pop("quiet")[1] == set()
    assert kubectl.run("create", "-n", space, "-f", "-", stdin=json.dumps(QUIET)).stderr == ""
    for name, manifest in MEANT.items():
        done = kubectl.run("create", "-n", space, "-f", "-", stdin=json.dumps(manifest))
        warnings = {line.removeprefix("Warning: ") for line in done.stderr.splitlines() if line.startswith("Warning: ")}
        allowed, said, message = found[name]
        assert (done.returncode == 0, warnings) == (allowed, said), name
        assert len(said) == 1, name
        assert message in done.stderr, name


def test_the_pods_of_many_kinds_are_refused_in_the_namespace_of_the_context(
    installed: Installed, tmp_path: Path
) -> None:
    """15 kinds and more, whose own API isn't there: their controllers create the pods that `simulate` makes of them."""
    kubectl = installed.program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, "none", {"limits.nvidia.com/gpu": "0"}))
    kinds: list[tuple[str, str, JSON]] = [
        ("apps/v1", "Deployment", {"selector": {"matchLabels": {"app": "w"}}, "template": labelled(template(1))})
    ]
    kinds += [(api, kind, spec) for api, kind, spec, cards in OBJECTS if "volcano" not in api and any(cards.values())]
    objects: list[JSON] = [
        {"apiVersion": api, "kind": kind, "metadata": {"name": f"w{number}"}, "spec": spec}
        for number, (api, kind, spec) in enumerate(kinds)
    ]
    assert len({each["kind"] for each in objects}) > 15
    pods, warnings = simulated(kubectl, tmp_path, objects, "--kubeconfig", str(context(kubectl, tmp_path, space)))
    assert f"objects without a namespace are taken to be in {space}" in warnings
    asking = [
        each for each in pods if "exceeded quota" in each["message"] or "exceeding resource quota" in each["message"]
    ]
    assert {each["namespace"] for each in pods} == {space}
    assert {name.partition("-")[0] for each in asking if (name := each["name"])} == {
        each["metadata"]["name"] for each in objects
    }
    deployment = objects[0]
    kubectl("create", "-n", space, "-f", "-", stdin=json.dumps(deployment))
    message = next(each["message"] for each in asking if each["name"] == "w0-0")
    eventually(lambda: refusals(kubectl, space, message), True)


def labelled(template: JSON) -> JSON:
    (container,) = template["spec"]["containers"]
    spec = {**template["spec"], "containers": [{**container, "image": "registry.k8s.io/pause:3.10"}]}
    return {"metadata": {"labels": {"app": "w"}}, "spec": spec}


def context(kubectl: Kubectl, folder: Path, space: str) -> Path:
    """A kubeconfig whose current context names a namespace."""
    path = folder / "kubeconfig"
    path.write_text(kubectl.kubeconfig.read_text())
    own = Kubectl(path)
    own("config", "set-context", "--current", "--namespace", space)
    return path


def refusals(kubectl: Kubectl, space: str, message: str) -> bool:
    """Whether the ReplicaSets' conditions say so."""
    sets = kubectl.get("replicasets", "-n", space)["items"]
    return any(message in each["message"] for found in sets for each in found["status"].get("conditions", []))

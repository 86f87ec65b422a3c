"""Misread quotas and pods: what kubectl shows of them, and `simulate`; the events on quotas that are there already."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import builders
import pytest
from quota.right_quotas import RIGHT

from .deployment import Deployment, Kubectl, eventually
from .objects import JSON, MEM, add_node, gpu_node, namespace


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Deployment:
    add_node(one_replica.kubectl, gpu_node("card-24g", 24576), gpu=10)
    eventually(lambda: one_replica.metric("hami-webhook-0", "hami_gpu_memory_limit_bytes"), 24576 * 2.0**20)
    return one_replica


def quota(space: str, name: str, hard: JSON, **spec: Any) -> JSON:
    return builders.quota(name, namespace=space, spec=spec, **hard)


def applied(kubectl: Kubectl, item: JSON) -> list[str]:
    """The warnings that `kubectl apply` prints."""
    done: subprocess.CompletedProcess[str] = kubectl.run("apply", "-f", "-", stdin=json.dumps(item))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert all(line.startswith("Warning: ") for line in lines), lines
    return [line.removeprefix("Warning: ") for line in lines]


MISREAD = {
    "request": ({"requests.nvidia.com/gpumem": "16000"}, "write limits.nvidia.com/gpumem"),
    "small": ({MEM: "80"}, "less than the smallest card has (24576 MiB)"),
}


def test_a_misreading_is_a_warning_and_an_event(program: Deployment) -> None:
    """One that nobody was warned of, as no replica was there, has an event too."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    warnings = []
    for name, (hard, message) in MISREAD.items():
        [warning] = applied(kubectl, quota(space, name, hard))
        assert message in warning
        warnings.append(warning)
    changed = namespace(kubectl)
    for amount, number in (("40000", 0), ("40Gi", 1), ("40960", 0)):
        assert len(applied(kubectl, quota(changed, "q", {MEM: amount}))) == number, amount
    with unanswered(program):
        assert applied(kubectl, quota(space, "unanswered", {MEM: "16Gi"})) == []
        assert applied(kubectl, misspelt(space, "nvidia.com/gpus")) == []
    eventually(lambda: set(warnings) <= {*messages(kubectl, space)})
    eventually(lambda: len(messages(kubectl, space)), len(warnings) + 1)


def messages(kubectl: Kubectl, space: str) -> list[str]:
    """What events on the namespace's quotas say."""
    found = kubectl.get("events", "-n", space, "--field-selector", "involvedObject.kind=ResourceQuota")["items"]
    return [item["message"] for item in found]


def test_right_quotas_get_no_warning_and_no_event(program: Deployment) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    for name, spec in RIGHT.items():
        assert applied(kubectl, quota(space, name, **spec)) == [], name
    [last] = applied(kubectl, quota(space, "wrong", {"limits.nvidia.com/gpus": "1"}))
    eventually(lambda: messages(kubectl, space), [last])


@contextlib.contextmanager
def unanswered(program: Deployment) -> Iterator[None]:
    """Until the block ends no replica answers."""
    backends, program.balancer.backends = program.balancer.backends, []
    program.balancer.break_connections()
    try:
        yield
    finally:
        program.balancer.backends = backends


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


def test_what_was_meant_is_said_by_the_api_server_and_by_simulate_alike(program: Deployment, tmp_path: Path) -> None:
    """Of allowed pods, of refused ones, and of those that name nothing else of ours; and nothing of an ordinary pod."""
    kubectl = program.kubectl
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

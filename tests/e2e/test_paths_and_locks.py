"""`/bind` and node locks: no name leads to another API path, what can't be bound writes nothing, no lock lasts."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest

from hami_webhook.kube.objects import format_time

from .deployment import Deployment, Kubectl, eventually
from .hamischeduler import HamiScheduler
from .objects import JSON, add_node, gpu_node, namespace, pod
from .scheduling import scheduler_account

LOCK = "hami.io/mutex.lock"
LOCK_SECONDS = 3.0
EXTENDER = "system:serviceaccount:hami-system:hami-scheduler"


class Extender:
    """The extender as a stranger on its address reaches it, and what the API server saw of it."""

    def __init__(self, program: Deployment, processes: HamiScheduler) -> None:
        self._program = program
        self._processes = processes

    def ask(self, path: str, body: JSON) -> JSON:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._processes.port}/{path}", json.dumps(body).encode(), method="POST"
        )
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: JSON = json.loads(answer.read())
        return found

    def bind(self, space: str, name: str, uid: str, node: str) -> str:
        sent = {"PodName": name, "PodNamespace": space, "PodUID": uid, "Node": node}
        error: str = self.ask("bind", sent)["Error"]
        return error

    def requests(self, since: int) -> list[tuple[str, str]]:
        """Verb and URI of the requests of the extender's account since a mark.

        Left out is what it does by itself: watches, events, and nodes that it touches for kube-scheduler to try again.
        """
        marker = f"mark-{time.monotonic_ns()}"
        self._program.kubectl.run("get", "configmap", marker)  # what came before is in the log when this is

        eventually(lambda: marker in self._log(since))
        # the first line and the last may be written just now
        lines = self._log(since).splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [
            (event["verb"], event["requestURI"])
            for event in events
            if event["user"]["username"] == EXTENDER
            and event["verb"] != "watch"
            and "/events" not in event["requestURI"]
            and not (event["verb"] == "patch" and event["requestURI"].startswith("/api/v1/nodes/"))
        ]

    def _log(self, since: int) -> str:
        """What the API server has logged since a mark."""
        with self._program.plane.audit_log.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def mark(self) -> int:
        return self._program.plane.audit_log.stat().st_size


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Deployment:
    scheduler_account(one_replica.kubectl)
    for number in range(3):
        add_node(one_replica.kubectl, gpu_node(f"locked-{number}", 24576), gpu=10)
    return one_replica


@pytest.fixture(scope="module")
def extender(program: Deployment) -> Iterator[Extender]:
    flags = ("--node-lock-timeout", f"{LOCK_SECONDS:g}s", "--node-lock-retry-timeout", "1s")
    folder = program.folder / "extender"
    processes = HamiScheduler(program.plane, folder, program.login("hami-scheduler"), "cooperative", flags)
    try:
        processes.start_extender()
        yield Extender(program, processes)
    finally:
        processes.close()


def filtered(kubectl: Kubectl, extender: Extender, space: str, name: str, node: str) -> str:
    """The pod's UID, once the extender finds it fit for the node."""

    def fits() -> bool:
        answer = extender.ask("filter", {"Pod": kubectl.get("pod", name, "-n", space), "NodeNames": [node]})
        return bool(answer["NodeNames"] == [node])

    eventually(fits)
    uid: str = kubectl.get("pod", name, "-n", space)["metadata"]["uid"]
    return uid


def node_lock(kubectl: Kubectl, node: str) -> str | None:
    value: str | None = kubectl.get("node", node)["metadata"]["annotations"].get(LOCK)
    return value


def test_no_name_reaches_another_path(program: Deployment, extender: Extender) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    kubectl.apply(pod(space, "p", gpu=1, gpumem=1000))
    uid = filtered(kubectl, extender, space, "p", "locked-0")
    since = extender.mark()
    bad = ("../configmaps/kube-root-ca.crt", "..", "p/status", "p%2fstatus", "p?fieldManager=x", "p#", "P", "p\n")
    for name in bad:
        assert "is no name that a Kubernetes object can have" in extender.bind(space, name, uid, "locked-0")
        assert "is no name that a Kubernetes object can have" in extender.bind(name, "p", uid, "locked-0")
        assert "is no name that a Kubernetes object can have" in extender.bind(space, "p", uid, name)
    assert extender.requests(since) == []
    assert node_lock(kubectl, "locked-0") is None


def test_a_pod_that_can_not_be_bound_is_not_written(program: Deployment, extender: Extender) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    ending = pod(space, "ending", gpu=1, gpumem=100)
    ending["metadata"]["finalizers"] = ["example.com/wait"]
    gated = pod(space, "gated", gpu=1, gpumem=100)
    gated["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    theirs = pod(space, "theirs", gpu=1, gpumem=100)
    theirs["spec"]["schedulerName"] = "somebody-else"
    kubectl.apply(pod(space, "p", gpu=1, gpumem=100), pod(space, "bound", gpu=1, gpumem=100), ending, gated, theirs)
    uids = {
        name: filtered(kubectl, extender, space, name, "locked-1")
        for name in ("p", "bound", "ending", "gated", "theirs")
    }
    target = {"apiVersion": "v1", "kind": "Node", "name": "locked-2"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"}, "target": target}
    kubectl("create", "--raw", f"/api/v1/namespaces/{space}/pods/bound/binding", "-f", "-", stdin=json.dumps(binding))
    kubectl("delete", "pod", "ending", "-n", space, "--wait=false")
    since = extender.mark()
    for name, uid, node, error in (
        ("p", "1234", "locked-1", "is another one by now"),
        ("p", uids["p"], "ghost", 'node "ghost" not found'),
        ("bound", uids["bound"], "locked-1", "is bound to locked-2 already"),
        ("ending", uids["ending"], "locked-1", "is being deleted"),
        ("gated", uids["gated"], "locked-1", "has non-empty .spec.schedulingGates"),
        ("theirs", uids["theirs"], "locked-1", "is to be bound by scheduler somebody-else, not by hami-scheduler"),
        ("nobody", uids["p"], "locked-1", 'pod "nobody" not found'),
    ):
        assert error in extender.bind(space, name, uid, node)
    assert {verb for verb, _ in extender.requests(since)} == {"get"}
    assert node_lock(kubectl, "locked-1") is None
    kubectl("patch", "pod", "ending", "-n", space, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


@pytest.mark.parametrize(
    "value",
    ["{now},,", "garbage", "", "2999-01-01T00:00:00Z,{space},waits", "2999-01-01T00:00:00Z,,", ",,"],
)
def test_no_lock_value_keeps_a_node_or_costs_a_list(program: Deployment, extender: Extender, value: str) -> None:
    """What a compromised node can write on its own Node object; `waits` is a pod that is never bound."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    value = value.format(space=space, now=format_time(time.time()))
    kubectl.apply(pod(space, "p", gpu=1, gpumem=100), pod(space, "waits"))
    kubectl("annotate", "node", "locked-0", "--overwrite", f"{LOCK}={value}")
    since, started = extender.mark(), time.monotonic()

    def bound() -> str:
        uid = filtered(kubectl, extender, space, "p", "locked-0")
        error = extender.bind(space, "p", uid, "locked-0")
        waited = time.monotonic() - started
        assert error == "" or waited < LOCK_SECONDS + 20, error
        assert error or waited >= LOCK_SECONDS - 0.1
        return error

    eventually(bound, "", seconds=LOCK_SECONDS + 60)
    assert str(node_lock(kubectl, "locked-0")).endswith(f",{space},p")
    lists = [uri for verb, uri in extender.requests(since) if verb == "list"]
    assert [uri for uri in lists if uri.startswith("/api/v1/pods") and "fieldSelector=spec.nodeName" not in uri] == []
    kubectl("annotate", "node", "locked-0", f"{LOCK}-")
    kubectl("delete", "pod", "p", "-n", space, "--grace-period=0", "--force")

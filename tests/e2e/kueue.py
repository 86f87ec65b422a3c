"""A stand-in for Kueue 0.19, which does on the API what that does, with a quota of cards for each namespace.

Its webhook, called after ours, marks and gates pods that name a queue, and those of StatefulSets. Its controller writes
on the latter which group they are of, admits what there is room for, and lets all pods of what it admits go at once; a
suspended Job starts then. Left out are its finalizers, its own objects, and all about flavors and preemption.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .api_client import ApiClient, api_client
from .deployment import Deployment
from .objects import JSON
from .webhooks import mutating

GATE = "kueue.x-k8s.io/admission"
QUEUE, MANAGED, WORKLOAD = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed", "kueue.x-k8s.io/workload"
GROUP, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
FAST, SERVING = "kueue.x-k8s.io/pod-group-fast-admission", "kueue.x-k8s.io/pod-group-serving"
PARENT = "kueue.x-k8s.io/pod-suspending-parent"


@contextmanager
def kueue(program: Deployment, cards: int, *namespaces: str) -> Iterator[None]:
    """Kueue, with a ClusterQueue of so many cards for each of the namespaces, until the block ends."""
    stop = threading.Event()
    client = api_client(program.kubectl.kubeconfig)
    admitting = [threading.Thread(target=_admit, args=(client, cards, each, stop), daemon=True) for each in namespaces]
    with mutating(program, "kueue-mutating-webhook-configuration", _mutation, *namespaces):
        for each in admitting:
            each.start()
        try:
            yield
        finally:
            stop.set()
            for each in admitting:
                each.join(30)


def _mutation(made: JSON) -> list[JSON]:
    """What its webhook does to a new pod: gate it, and mark what isn't of a StatefulSet."""
    labels, gates = made["metadata"].get("labels") or {}, made["spec"].get("schedulingGates") or []
    of_set = PARENT in (made["metadata"].get("annotations") or {})
    if not (of_set or labels.get(QUEUE)) or {"name": GATE} in gates:
        return []
    marked = labels if of_set else {**labels, MANAGED: "true"}
    return [
        {"op": "add", "path": "/metadata/labels", "value": marked},
        {"op": "add", "path": "/spec/schedulingGates", "value": [*gates, {"name": GATE}]},
    ]


def _admit(client: ApiClient, cards: int, namespace: str, stop: threading.Event) -> None:
    """Its controller: everything once a tenth of a second, what is left undone again then."""
    admitted: set[str] = set()
    while not stop.wait(0.1):
        with suppress(AssertionError):  # an object has changed since, or is gone
            _step(client, cards, namespace, admitted)


def _step(client: ApiClient, cards: int, namespace: str, admitted: set[str]) -> None:
    pods = [each for each in client.get("pods", "-n", namespace)["items"] if each["status"]["phase"] == "Pending"]
    for each in pods:
        _name_group(client, each)
    workloads: dict[str, list[JSON]] = {}
    for each in pods:
        if each["metadata"].get("labels", {}).get(MANAGED) == "true":
            workloads.setdefault(_group(each) or each["metadata"]["name"], []).append(each)
    jobs = {each["metadata"]["name"]: each for each in client.get("jobs", "-n", namespace)["items"]}
    admitted &= workloads.keys() | jobs.keys()
    used = sum(
        _cards_of(jobs[name]["spec"]["template"]) * jobs[name]["spec"]["parallelism"] for name in admitted & jobs.keys()
    )
    used += sum(_cards_of(each) for name in admitted & workloads.keys() for each in workloads[name])
    for name, members in sorted(workloads.items(), key=lambda item: item[1][0]["metadata"]["creationTimestamp"]):
        notes = members[0]["metadata"].get("annotations", {})
        total = int(notes.get(TOTAL, "1"))
        needed = total * _cards_of(members[0])
        whole = len(members) == total or notes.get(FAST) == "true"
        if name not in admitted and whole and used + needed <= cards:
            admitted.add(name)
            used += needed
        if name in admitted:
            for each in members:
                _let_go(client, each)
    for name, job in jobs.items():
        needed = job["spec"]["parallelism"] * _cards_of(job["spec"]["template"])
        if job["spec"].get("suspend") and used + needed <= cards:
            admitted.add(name)
            used += needed
            template = {"metadata": {"annotations": {WORKLOAD: f"job-{name}"}}}
            client.merge({"spec": {"suspend": False, "template": template}}, "jobs", name, namespace)


def _group(each: JSON) -> str:
    meta = each["metadata"]
    return str(meta.get("annotations", {}).get(GROUP) or meta.get("labels", {}).get(GROUP, ""))


def _cards_of(each: JSON) -> int:
    return sum(int(container["resources"]["limits"]["nvidia.com/gpu"]) for container in each["spec"]["containers"])


def _name_group(client: ApiClient, each: JSON) -> None:
    """Write on a StatefulSet's pod which group it is of, once it is there."""
    meta = each["metadata"]
    if PARENT not in meta.get("annotations", {}) or _group(each):
        return
    owner = meta["ownerReferences"][0]["name"]
    replicas = client.get("statefulsets", owner, "-n", meta["namespace"])["spec"]["replicas"]
    notes = {GROUP: f"statefulset-{owner}", TOTAL: str(replicas), FAST: "true", SERVING: "true"}
    labels = {MANAGED: "true", QUEUE: "team"}
    client.merge({"metadata": {"labels": labels, "annotations": notes}}, "pods", meta["name"], meta["namespace"])


def _let_go(client: ApiClient, each: JSON) -> None:
    gates, meta = each["spec"].get("schedulingGates", []), each["metadata"]
    if {"name": GATE} in gates:
        left = [gate for gate in gates if gate != {"name": GATE}]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"schedulingGates": left or None}}
        client.merge(patch, "pods", meta["name"], meta["namespace"])

"""Replicas that a quota refuses are no pods: their controllers' events name them (docs/kubectl.md#refused-replicas)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

from msgspec import Struct

from hami_webhook.cluster.api import JSON, Forbidden, NotFound
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.message_text import counted
from hami_webhook.kube.objects import parse_time
from hami_webhook.terminal import AbsentError

WORKLOADS = {
    "deployment": ("Deployment", "/apis/apps/v1", "deployments"),
    "job": ("Job", "/apis/batch/v1", "jobs"),
    "statefulset": ("StatefulSet", "/apis/apps/v1", "statefulsets"),
}
"""Kinds that can be explained: by the word on the command line the kind, the path of its API, and the plural."""
_CREATING = {
    "ReplicaSet": ("/apis/apps/v1", "replicasets", 1000.0),
    "Job": ("/apis/batch/v1", "jobs", 60.0),
    "StatefulSet": ("/apis/apps/v1", "statefulsets", 1000.0),
}
"""Kinds that create pods: the path of the API, the plural, and the longest pause in seconds between two tries."""
_REASON = "FailedCreate"
_MOST_EVENTS = 500
_LONGEST = 1000
"""Characters of a refusal."""
_QUOTA = re.compile(r"exceeded quota: (?P<name>(?:AcceleratorQuota )?[a-z0-9][-a-z0-9.]{0,252}), requested: ")


class RefusedReplicas(Struct, frozen=True):
    """How many replicas of a workload aren't there as a quota refused them, and what the quota said.

    `next_try` is when their controller tries again (Unix seconds), as its pauses double; None where that isn't known.
    """

    namespace: str
    kind: str
    name: str
    missing: int
    quota: str
    message: str
    last_try: float
    next_try: float | None = None

    def sentence(self, now: float) -> str:
        """`4 replicas of serve refused by gpu-quota, next try in 40 s`; `now` is in Unix seconds."""
        what = counted(self.missing, "pod" if self.kind == "Job" else "replica")
        if self.next_try is not None and self.next_try > now:
            when = f"next try in {_duration(self.next_try - now)}"
        else:
            when = f"last try {_duration(now - self.last_try)} ago"
        return f"{what} of {self.name} refused by {self.quota}, {when}"


class Workload(Struct, frozen=True):
    """A workload: how many replicas it should have and has, the labels of its pods, and what was refused."""

    namespace: str
    kind: str
    name: str
    wanted: int
    current: int
    labels: Mapping[str, str]
    refused: RefusedReplicas | None = None
    unseen: str = ""
    """Why it isn't known what was refused."""

    def sentence(self, now: float) -> str:
        """The first line about it; `now` is in Unix seconds."""
        if self.refused is not None:
            return self.refused.sentence(now)
        of = counted(self.wanted, "pod" if self.kind == "Job" else "replica")
        why = f"refusals of quotas aren't known, as {self.unseen}" if self.unseen else "no quota refuses any"
        return f"{self.kind} {self.namespace}/{self.name} has {self.current} of {of}; {why}"


async def read_refused(api: KubernetesCluster, namespace: str = "") -> list[RefusedReplicas]:
    """The replicas of a namespace, or of all, that a quota refuses now; none where the rights don't show the events.

    An event of the last hour counts only while its workload lacks replicas. Raises `ClusterError`.
    """
    try:
        return await _read(api, namespace)
    except Forbidden:
        return []


async def _read(api: KubernetesCluster, namespace: str) -> list[RefusedReplicas]:
    """Raises `Forbidden`, too."""
    space = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    query = {"fieldSelector": f"reason={_REASON}", "limit": str(_MOST_EVENTS)}
    events = (await api.call("GET", f"/api/v1{space}/events", query=query)).get("items") or ()
    by_object: dict[tuple[str, str, str], list[JSON]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        if event.get("reason") == _REASON and about.get("kind") in _CREATING and about.get("name"):
            key = str(about["kind"]), str(about.get("namespace") or namespace), str(about["name"])
            by_object.setdefault(key, []).append(event)
    refused = {key: of_it for key, of_it in sorted(by_object.items()) if _by_quota(of_it)}
    found = [_refused(key, await _object(api, *key), of_it) for key, of_it in refused.items()]
    return [each for each in found if each is not None]


async def read_workload(api: KubernetesCluster, word: str, namespace: str, name: str) -> Workload:
    """A workload by its kind's word in `WORKLOADS`. Raises `AbsentError`, and `ClusterError`."""
    kind, prefix, plural = WORKLOADS[word]
    path = f"{prefix}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"
    try:
        found = await api.call("GET", path)
    except NotFound:
        raise AbsentError(f"no {kind} {name} in namespace {namespace}") from None
    refused: Sequence[RefusedReplicas] = ()
    unseen = ""
    try:
        refused = await _read(api, namespace)
    except Forbidden:
        unseen = "events can't be listed with your rights"
    own = next((each for each in refused if (each.kind, each.name) == (kind, name)), None)
    labels = ((found.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return Workload(namespace, kind, name, *_replicas(kind, found), labels, own, unseen)


async def _object(api: KubernetesCluster, kind: str, namespace: str, name: str) -> JSON | None:
    prefix, plural, _ = _CREATING[kind]
    with suppress(NotFound, Forbidden):
        path = f"{prefix}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"
        return await api.call("GET", path)
    return None


def _refused(key: tuple[str, str, str], found: JSON | None, events: Sequence[JSON]) -> RefusedReplicas | None:
    """What the events say of an object as it is now; None if it is gone, or has its replicas."""
    if found is None:
        return None
    kind, namespace, name = key
    wanted, current = _replicas(kind, found)
    last = max(events, key=_last)
    refused_by = _QUOTA.search(_message(last))
    if wanted <= current or refused_by is None:
        return None
    owners = found["metadata"].get("ownerReferences") or ()
    owner = next((each for each in owners if each.get("kind") == "Deployment"), None)
    if kind == "ReplicaSet" and owner is not None:
        kind, name = "Deployment", str(owner["name"])
    at, began = _last(last), min(map(_first, events))
    pause = min(at - began, _CREATING[key[0]][2])
    message = " ".join(_message(last).split())[:_LONGEST]
    # each pause is as long as all before it together
    return RefusedReplicas(
        namespace, kind, name, wanted - current, refused_by["name"], message, at, at + pause if pause > 0 else None
    )


def _by_quota(events: Iterable[JSON]) -> bool:
    return any(_QUOTA.search(_message(each)) for each in events)


def _replicas(kind: str, found: JSON) -> tuple[int, int]:
    """How many pods an object should have now, and how many it has."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    if kind != "Job":
        return _count(spec.get("replicas", 1)), _count(status.get("replicas"))
    ended = _count(status.get("succeeded"))
    completions = spec.get("completions")
    left = _count(spec.get("parallelism", 1))
    if completions is not None:
        left = min(left, max(0, _count(completions) - ended))
    conditions = status.get("conditions") or ()
    done = any(each.get("type") in ("Complete", "Failed") and each.get("status") == "True" for each in conditions)
    return 0 if done or spec.get("suspend") else left, _count(status.get("active"))


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _message(event: Mapping[str, object]) -> str:
    return str(event.get("message") or "")


def _last(event: JSON) -> float:
    series = event.get("series") or {}
    return _time(series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))


def _first(event: JSON) -> float:
    return _time(event.get("firstTimestamp"), event.get("eventTime"), event.get("lastTimestamp"))


def _time(*texts: object) -> float:
    """The first of these times that can be read, in Unix seconds; 0 if none can."""
    for text in texts:
        with suppress(ValueError):
            if isinstance(text, str):
                return parse_time(text)
    return 0.0


def _duration(seconds: float) -> str:
    return f"{max(0, round(seconds))} s" if seconds < 120 else human_duration(seconds)

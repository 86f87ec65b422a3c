"""When pods with cards were created, started and ended, from kube-state-metrics' series of a Prometheus server.

Source: docs/room.md#a-recorded-time. What the server says may be anything: values are bounded, and pods whose series
make no sense are left out and counted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from hami_webhook.prometheus import PrometheusError, query
from hami_webhook.usage.samples import Sample, makes_sense

MOST_PODS = 20_000
"""Pods of one record."""
LIMITS, INIT_LIMITS = "kube_pod_container_resource_limits", "kube_pod_init_container_resource_limits"
CREATED, SCHEDULED = "kube_pod_created", "kube_pod_status_scheduled_time"
_COMPLETED, _PHASE, _INFO = "kube_pod_completion_time", "kube_pod_status_phase", "kube_pod_info"
_NEEDED = (LIMITS, CREATED, SCHEDULED)
_POD = ("namespace", "pod", "uid", "exported_namespace", "exported_pod")
"""The labels of a pod; Prometheus renames those that it has itself for the target."""
_BY = ", ".join(_POD)
_CONTAINER = f"{_BY}, container, exported_container, resource"
_STEPS, _SHORTEST_STEP, _LONGEST_STEP = 1440, 60, 240
"""Into so many steps the time is divided, to see when a pod was seen last; the longest is below the 5 minutes for which
Prometheus takes the last sample of a series as its value.
"""
_STILL_THERE = 300.0
"""Seconds before the end of the record: a pod seen since then is taken to be there still."""
_MOST_CONTAINERS = 100
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CLASS = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_Identity = tuple[str, str, str]
"""A pod's namespace, name and UID."""


class RecordedContainer(Struct, frozen=True):
    """The limits of one container, by the name of the managed resource."""

    init: bool
    limits: Mapping[str, int]


class RecordedPod(Struct, frozen=True):
    """A pod of the record, with times in Unix seconds.

    `started`: when it was bound to a node, None if never. `ended`: when it ended or was deleted, None if it was still
    there at the end.
    """

    namespace: str
    created: float
    started: float | None
    ended: float | None
    containers: Sequence[RecordedContainer]
    priority_class: str = ""


class Record(Struct, frozen=True):
    """The pods from `start` to `end` (Unix seconds), by creation; `left_out` is how many made no sense."""

    start: float
    end: float
    pods: Sequence[RecordedPod]
    left_out: int = 0


def read_record(prometheus: str, resources: Collection[str], end: float, seconds: int) -> Record:
    """The record of the server at a URL, of the pods with limits of these resources in so many seconds before `end`.

    It starts later where the server has no older series of them. Raises `PrometheusError`, also for more than
    `MOST_PODS`, and where kube-state-metrics' series are missing.
    """
    return _Reader(prometheus, resources, end, seconds).record()


class _Reader:
    def __init__(self, prometheus: str, resources: Collection[str], end: float, seconds: int) -> None:
        self._prometheus, self._end, self._seconds = prometheus, end, seconds
        self._names = {_NO_LABEL.sub("_", name): name for name in resources}
        self._at = f"@ {end:.0f}"
        self._range = f"[{seconds}s] {self._at}"
        self._step = min(_LONGEST_STEP, max(_SHORTEST_STEP, seconds // _STEPS))
        chosen = f'{{resource=~"{"|".join(sorted(self._names))}"}}'
        self._limits, self._init_limits = LIMITS + chosen, INIT_LIMITS + chosen
        pods = [f"max by ({_BY}) (max_over_time({each}{self._range}))" for each in (self._limits, self._init_limits)]
        self._pods = " or ".join(pods)

    def record(self) -> Record:
        count = next((value for _, value in query(self._prometheus, f"count({self._pods})")), 0.0)
        if not count:
            self._check_series()
            raise PrometheusError(
                f"{self._prometheus}: no pod of the last {self._hours} had limits of resources with cards"
            )
        if not count <= MOST_PODS:
            raise PrometheusError(
                f"{self._prometheus}: {count:.0f} pods with cards in the last {self._hours}; a replay takes at most "
                f"{MOST_PODS}: give fewer hours"
            )
        first = min([*self._seen("min").values(), self._end])
        start = max(self._end - self._seconds, first - self._step)
        return self._made(start, self._seen("max"))

    @property
    def _hours(self) -> str:
        return f"{self._seconds / 3600:g}h"

    def _made(self, start: float, last: Mapping[_Identity, float]) -> Record:
        created, scheduled = self._times(CREATED), self._times(SCHEDULED)
        if not created or not scheduled:
            self._check_series()
        finished = f'(max_over_time({_PHASE}{{phase=~"Succeeded|Failed"}}{self._range}) == 1)'
        completed = self._times(_COMPLETED, f"and on ({_BY}) {finished}")
        classes = self._priority_classes()
        pods, left_out = [], 0
        for identity, containers in sorted(self._containers().items()):
            found = self._pod(identity, containers, created, scheduled, completed, last)
            if found is None:
                left_out += 1
            elif found.ended is None or found.ended > start:
                pods.append(
                    RecordedPod(
                        identity[0], found.created, found.started, found.ended, containers, classes.get(identity, "")
                    )
                )
        return Record(start, self._end, sorted(pods, key=lambda pod: pod.created), left_out)

    def _pod(
        self,
        identity: _Identity,
        containers: Sequence[RecordedContainer],
        created: Mapping[_Identity, float],
        scheduled: Mapping[_Identity, float],
        completed: Mapping[_Identity, float],
        last: Mapping[_Identity, float],
    ) -> RecordedPod | None:
        """The pod with its times, None if these or its other values make no sense."""
        born, bound = created.get(identity, 0.0), scheduled.get(identity)
        if not (0 < born <= self._end and _NAMESPACE.fullmatch(identity[0]) and len(containers) <= _MOST_CONTAINERS):
            return None
        if not any(each.limits for each in containers) or (bound is not None and bound > self._end):
            return None
        started = None if bound is None else max(bound, born)
        seen = last.get(identity, started or born)
        ended = completed.get(identity)
        if ended is None and seen < self._end - _STILL_THERE:
            ended = seen
        return RecordedPod(
            identity[0], born, started, None if ended is None else max(ended, started or born), containers
        )

    def _containers(self) -> Mapping[_Identity, Sequence[RecordedContainer]]:
        """The limits of the containers, app containers first; a limit that makes no sense counts as none."""
        limits: dict[_Identity, dict[tuple[bool, str], dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        for init, series in ((False, self._limits), (True, self._init_limits)):
            text = f"max by ({_CONTAINER}) (max_over_time({series}{self._range}))"
            for labels, value in query(self._prometheus, text):
                name = self._names.get(labels.get("resource", ""))
                of_container = limits[_identity(labels)][init, Sample("", labels, value).label("container")]
                if name is not None and makes_sense(value):
                    of_container[name] = int(value)
        return {
            identity: [RecordedContainer(init, amounts) for (init, _), amounts in sorted(of_pod.items())]
            for identity, of_pod in limits.items()
        }

    def _seen(self, which: str) -> Mapping[_Identity, float]:
        """The times of the first sample of each pod (`min`), or of the last (`max`)."""
        steps = f"[{self._seconds}s:{self._step}s] {self._at}"
        series = (f"{which}_over_time(timestamp({each}){steps})" for each in (self._limits, self._init_limits))
        return self._values(" or ".join(f"{which} by ({_BY}) ({each})" for each in series), which)

    def _times(self, metric: str, more: str = "") -> Mapping[_Identity, float]:
        """The values of a metric of the pods with cards."""
        return self._values(f"max_over_time({metric}{self._range}) {more} and on ({_BY}) ({self._pods})", "max")

    def _values(self, text: str, by: str) -> Mapping[_Identity, float]:
        found = query(self._prometheus, f"{by} by ({_BY}) ({text})")
        return {_identity(labels): value for labels, value in found if makes_sense(value)}

    def _priority_classes(self) -> Mapping[_Identity, str]:
        text = f"max by ({_BY}, priority_class) (max_over_time({_INFO}{self._range}) and on ({_BY}) ({self._pods}))"
        classes = ((_identity(labels), labels.get("priority_class", "")) for labels, _ in query(self._prometheus, text))
        return {identity: name for identity, name in classes if _CLASS.fullmatch(name)}

    def _check_series(self) -> None:
        """Raises `PrometheusError` if the server has none of a metric of kube-state-metrics that is needed."""
        names = "|".join(_NEEDED)
        text = f'group by (__name__) (last_over_time({{__name__=~"{names}"}}{self._range}))'
        there = {labels.get("__name__", "") for labels, _ in query(self._prometheus, text)}
        if missing := [name for name in _NEEDED if name not in there]:
            raise PrometheusError(
                f"{self._prometheus}: has no series {', '.join(missing)} of the last {self._hours}. --replay needs "
                "those of kube-state-metrics (https://github.com/kubernetes/kube-state-metrics): install it, and let "
                "Prometheus scrape it"
            )


def _identity(labels: Mapping[str, str]) -> _Identity:
    sample = Sample("", labels, 0.0)
    return sample.label("namespace"), sample.label("pod"), labels.get("uid", "")

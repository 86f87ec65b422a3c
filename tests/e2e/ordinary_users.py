"""Users who do what users do: Deployments, Jobs, gangs and CronJobs of shares, one at a time, each waited for."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .attackers.client import Client
from .installation import card_pod

JSON = dict[str, Any]
APPS, BATCH = "/apis/apps/v1", "/apis/batch/v1"
MERGE = "application/merge-patch+json"
GONE: JSON = {"propagationPolicy": "Foreground"}
SHARE = 1000
"""MiB of a card that each pod asks for."""
NOT_BY_DRAINS = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
"""The `podFailurePolicy` of Jobs that don't count pods that were evicted."""


@dataclass
class Day:
    """What happened to all users. `look` is seconds between two looks at something, `patience` until it is stuck."""

    look: float
    patience: float
    over: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    """How often each kind of work ended well."""
    refused: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)
    """Seconds of the longest of each kind of work."""


class User:
    """One user of a namespace, whose work follows from `dice`; `run` ends once the day is over and its work is done.

    `pause` is seconds between two pieces of work, on average; with `cron` some of them are CronJobs.
    """

    def __init__(self, day: Day, client: Client, space: str, dice: random.Random, pause: float, *, cron: bool) -> None:
        self._day = day
        self._client = client
        self._space = space
        self._dice = dice
        self._pause = pause
        self._cron = cron
        self._names = (f"w{serial}" for serial in itertools.count())

    def run(self) -> None:
        work: Sequence[tuple[int, Callable[[], bool]]] = (
            (4, self.serve),
            (4, self.run_a_job),
            (4, self.run_a_gang),
            (int(self._cron), self.run_every_minute),
        )
        weights = [weight for weight, _ in work]
        while not self._day.over.wait(self._dice.uniform(0, 2 * self._pause)):
            ((_, act),) = self._dice.choices(work, weights)
            began = time.monotonic()
            name = act.__name__
            if act():
                self._day.done[name] += 1
            self._day.slowest[name] = max(self._day.slowest.get(name, 0.0), time.monotonic() - began)

    def serve(self) -> bool:
        """A Deployment that comes up, is rolled out once more, scaled, and deleted."""
        name, labels = next(self._names), {"app": "serve"}
        path = f"{APPS}/namespaces/{self._space}/deployments"
        template = {"metadata": {"labels": labels}, "spec": card_pod(self._space, name, SHARE)["spec"]}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        made = self._create(path, "apps/v1", "Deployment", name, spec)
        made = made and self._until(f"{path}/{name}", lambda found: _is_rolled_out(found, 2))
        template["metadata"]["annotations"] = {"rolled": "out"}
        made = made and self._merge(f"{path}/{name}", {"spec": {"template": template}})
        made = made and self._until(f"{path}/{name}", lambda found: _is_rolled_out(found, 2))
        made = made and self._merge(f"{path}/{name}", {"spec": {"replicas": 1}})
        made = made and self._until(f"{path}/{name}", lambda found: _is_rolled_out(found, 1))
        return self._delete(f"{path}/{name}") and made

    def run_a_job(self) -> bool:
        return self._job({"completions": 3, "parallelism": 2})

    def run_a_gang(self) -> bool:
        """An indexed Job whose pods start together or not at all."""
        size = self._dice.choice([2, 3])
        labels = {"hami.io/pod-group": "gang", "hami.io/pod-group-size": str(size)}
        return self._job({"completions": size, "parallelism": size, "completionMode": "Indexed"}, labels)

    def run_every_minute(self) -> bool:
        """A CronJob, until it ran once."""
        name, path = next(self._names), f"{BATCH}/namespaces/{self._space}/cronjobs"
        spec = {"schedule": "* * * * *", "jobTemplate": {"spec": self._job_spec(name, {})}}
        made = self._create(path, "batch/v1", "CronJob", name, spec)
        made = made and self._until(f"{path}/{name}", lambda found: "lastSuccessfulTime" in found.get("status", {}))
        return self._delete(f"{path}/{name}") and made

    def _job(self, more: JSON, labels: JSON | None = None) -> bool:
        name, path = next(self._names), f"{BATCH}/namespaces/{self._space}/jobs"
        if labels:
            labels = labels | {"hami.io/pod-group": name}
        made = self._create(path, "batch/v1", "Job", name, self._job_spec(name, more, labels))
        made = made and self._until(f"{path}/{name}", _is_complete)
        return self._delete(f"{path}/{name}") and made

    def _job_spec(self, name: str, more: JSON, labels: JSON | None = None) -> JSON:
        spec: JSON = card_pod(self._space, name, SHARE)["spec"] | {"restartPolicy": "Never"}
        spec["containers"][0]["command"] = ["sleep", f"{self._dice.uniform(0.2, 2):.1f}"]
        template = {"metadata": {"labels": labels or {}}, "spec": spec}
        return {"template": template, "backoffLimit": 0, "podFailurePolicy": NOT_BY_DRAINS} | more

    def _create(self, path: str, version: str, kind: str, name: str, spec: JSON) -> bool:
        made = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self._answered("POST", path, made)

    def _merge(self, path: str, patch: JSON) -> bool:
        return self._answered("PATCH", path, patch, MERGE)

    def _answered(self, method: str, path: str, body: JSON, kind: str = "application/json") -> bool:
        code, answer = self._client(method, path, body, kind)
        if code not in (200, 201):
            self._day.refused.append(f"{method} {path}: {code} {answer.get('message')}")
        return code in (200, 201)

    def _delete(self, path: str) -> bool:
        """Delete something with its pods, and wait until they are gone."""
        self._client("DELETE", path, GONE)
        return self._wait(path, lambda code, _: code == 404)

    def _until(self, path: str, is_so: Callable[[JSON], bool]) -> bool:
        return self._wait(path, lambda code, found: code == 200 and is_so(found))

    def _wait(self, path: str, is_so: Callable[[int, JSON], bool]) -> bool:
        end = time.monotonic() + self._day.patience
        while time.monotonic() < end:
            code, found = self._client("GET", path)
            if is_so(code, found):
                return True
            time.sleep(self._day.look)
        self._day.stuck.append(f"{path}: {code} {found.get('status')} {self._pods()}")
        return False

    def _pods(self) -> list[JSON]:
        """The namespace's pods, as far as it matters why one waits."""
        items = self._client("GET", f"/api/v1/namespaces/{self._space}/pods")[1]["items"]
        return [
            {
                "name": item["metadata"]["name"],
                "gates": item["spec"].get("schedulingGates", []),
                "node": item["spec"].get("nodeName", ""),
                "phase": item["status"].get("phase"),
                "deleted": item["metadata"].get("deletionTimestamp", ""),
                "conditions": [
                    each.get("message", each["type"])
                    for each in item["status"].get("conditions", [])
                    if each["status"] == "False"
                ],
            }
            for item in items
        ]


def _is_rolled_out(found: JSON, replicas: int) -> bool:
    status = found.get("status", {})
    counts = [status.get(f"{which}eplicas", 0) for which in ("r", "updatedR", "availableR")]
    return counts == [replicas] * 3 and status.get("observedGeneration") == found["metadata"]["generation"]


def _is_complete(found: JSON) -> bool:
    conditions = found.get("status", {}).get("conditions", [])
    return any(each["type"] == "Complete" and each["status"] == "True" for each in conditions)

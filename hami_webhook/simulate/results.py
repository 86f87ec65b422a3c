"""What goes into a simulation, and what comes out of it (docs/spec/cli.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from hami_webhook.kube.objects import Pod
from hami_webhook.node_filters.result import NotJudged


class Pods(Struct, frozen=True):
    """What to simulate: manifests in order; each goes to `default` if it names no namespace."""

    manifests: Sequence[Mapping[str, Any]]


class Arrival(Struct, frozen=True):
    """A pod after admission: its manifest as it was reviewed last, and the pod as stored, None if denied."""

    namespace: str
    name: str
    manifest: Mapping[str, Any]
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()
    pod: Pod | None = None
    code: int = 200
    message: str = ""


class Outcome(Struct, frozen=True):
    """The result of one pod in each stage of the pipeline, as the JSON output has it."""

    namespace: str
    name: str
    allowed: bool
    code: int = 200
    message: str = ""
    warnings: Sequence[str] = ()
    patch: Sequence[Mapping[str, Any]] = ()
    pod: Mapping[str, Any] | None = None
    placement: Mapping[str, Any] | None = None
    failed: Mapping[str, str] = {}
    debits: Mapping[str, int] = {}
    victims: Sequence[str] = ()
    """The pods that were evicted for it, as `namespace/name`."""
    preempted_by: str = ""
    """The pod that it was evicted for after it had been placed."""
    waits: str = ""
    """What it waits for in its quotas' queue, and when it starts at the latest."""
    unplaced: bool = False
    """Allowed and requesting devices, but no node fits."""

    def as_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "name": self.name,
            "allowed": self.allowed,
            "code": self.code,
            "message": self.message,
            "warnings": list(self.warnings),
            "patch": [dict(operation) for operation in self.patch],
            "pod": self.pod,
            "placement": self.placement,
            "failed": dict(self.failed),
            "debits": dict(self.debits),
            "victims": list(self.victims),
            "preempted_by": self.preempted_by,
            **({"waits": self.waits} if self.waits else {}),
        }


class Result(Struct, frozen=True):
    """A run's pods in order, and every ResourceQuota with its managed keys after it.

    `not_judged` are the rules of kube-scheduler that may have refused nodes and weren't evaluated.
    """

    pods: Sequence[Outcome]
    quotas: Sequence[Mapping[str, Any]]
    not_judged: Sequence[NotJudged] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "pods": [outcome.as_json() for outcome in self.pods],
            "quotas": [dict(quota) for quota in self.quotas],
            "not_judged": [to_builtins(rule) for rule in self.not_judged],
        }

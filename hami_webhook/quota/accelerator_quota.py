"""AcceleratorQuotas (hami.io/v1alpha1): quotas of many namespaces, read as quotas of one (docs/spec/quota.md#5.2).

A ResourceQuota's annotations are fields of an AcceleratorQuota, because a write to `/status` of a custom resource drops
metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from hami_webhook.cluster.api import JSON
from hami_webhook.kube import wire
from hami_webhook.kube.objects import ResourceQuota, parse_time
from hami_webhook.kube.quota_fields import NO_PERCENTS, Lending, Percents, PerSubject, WrittenBudget, WrittenWindow
from hami_webhook.kube.selectors import LabelSelector
from hami_webhook.quota.card_selection import COUNTED, DEVICE_TYPES, NODE_SELECTOR
from hami_webhook.quota.enforcement import ENFORCEMENT, OBSERVED, QUEUE_ORDER, QUEUE_OVERTAKING
from hami_webhook.quota.idle import IDLE, IDLE_AFTER
from hami_webhook.quota.ledger import LEDGER
from hami_webhook.quota.percents import known_amounts, percents_of
from hami_webhook.quota.runtime import DEFAULT_RUNTIME, LONGER_RUNTIME, MAX_RUNTIME
from hami_webhook.quota.subjects import COUNTED_SUBJECTS, SUBJECT_USE

KIND = "AcceleratorQuota"
Labels = Mapping[str, Mapping[str, str]]
"""The labels of each namespace, by its name."""

_STATUS_FIELDS = {
    LEDGER: "ledger",
    COUNTED: "countedCards",
    COUNTED_SUBJECTS: "countedSubjects",
    SUBJECT_USE: "subjectUse",
}


def read_accelerator_quota(obj: Any, namespaces: Labels) -> ResourceQuota:
    """An AcceleratorQuota from its JSON. Raises `MalformedObject`."""
    quota = wire.convert(obj, wire.AcceleratorQuotaObject, "acceleratorquota")
    meta, spec = quota.metadata or wire.ObjectMeta(), quota.spec or wire.AcceleratorQuotaSpec()
    status, queue = quota.status or wire.AcceleratorQuotaStatus(), spec.queue or wire.QueueSpec()
    selector = LabelSelector.from_wire(spec.namespace_selector or wire.LabelSelectorObject())
    hard, shares = spec.hard or {}, status.shares or {}
    written_percents = percents_of(hard)
    percents = Percents(written_percents, shares) if written_percents or shares else NO_PERCENTS
    written = {
        DEVICE_TYPES: ",".join(spec.device_types or ()),
        NODE_SELECTOR: ",".join(f"{key}={label}" for key, label in (spec.node_selector or {}).items()),
        ENFORCEMENT: spec.enforcement,
        QUEUE_ORDER: queue.order,
        QUEUE_OVERTAKING: queue.overtaking,
        MAX_RUNTIME: spec.max_runtime,
        DEFAULT_RUNTIME: spec.default_runtime,
        LONGER_RUNTIME: spec.longer_runtime,
        IDLE_AFTER: spec.idle_after,
        IDLE: spec.idle,
        LEDGER: status.ledger,
        COUNTED: status.counted_cards,
        COUNTED_SUBJECTS: status.counted_subjects,
        SUBJECT_USE: status.subject_use,
        OBSERVED: str(status.observed or ""),
    }
    return ResourceQuota(
        namespace="",
        name=meta.name or "",
        uid=meta.uid or "",
        annotations={key: text for key, text in written.items() if text},
        hard=hard
        if not written_percents
        else {**hard, **dict.fromkeys(written_percents, "0"), **known_amounts(percents)},
        status_hard=status.hard or {},
        used=status.used or {},
        resource_version=meta.resource_version or "",
        namespaces=frozenset(name for name, labels in namespaces.items() if selector.matches(labels)),
        report=_report(status),
        lending=Lending(spec.nominal or {}, spec.reclaim or "", spec.reclaim_min_runtime or ""),
        budget=_budget(spec.budget or wire.BudgetSpec(), meta, status) if spec.budget or status.budget else None,
        pod_selector=None if spec.pod_selector is None else LabelSelector.from_wire(spec.pod_selector),
        per=None if spec.per is None else _per_subject(spec.per),
        windows=() if not spec.windows else tuple(map(_window, spec.windows)),
        window_status=status.window or {},
        percents=percents,
    )


def _window(spec: Mapping[str, Any]) -> WrittenWindow:
    cron, at, length, zone = (str(spec.get(field) or "") for field in ("from", "at", "for", "timeZone"))
    hard = spec.get("hard")
    return WrittenWindow(cron, at, length, zone, hard if isinstance(hard, dict) else {})


def _budget(spec: wire.BudgetSpec, meta: wire.ObjectMeta, status: wire.AcceleratorQuotaStatus) -> WrittenBudget:
    created = 0.0  # periods of a file's object without a time follow each other since 1970
    with contextlib.suppress(ValueError, TypeError):
        created = parse_time(meta.creation_timestamp)
    return WrittenBudget(
        spec.amounts or {},
        spec.period or "Month",
        spec.then or "Refuse",
        spec.time_zone or "",
        created,
        status.budget or {},
    )


def _report(status: wire.AcceleratorQuotaStatus) -> dict[str, Any]:
    """What a recompute wrote of namespaces and subjects."""
    found: dict[str, Any] = {"namespaces": [*(status.namespaces or ())], "conditions": [*(status.conditions or ())]}
    if status.subjects is not None or status.other_subjects is not None:
        found |= {"subjects": [*(status.subjects or ())], "otherSubjects": status.other_subjects}
    return found


def _per_subject(spec: wire.PerSubjectSpec) -> PerSubject:
    overrides = {each.subject: each.hard or {} for each in spec.overrides or () if each.subject}
    groups = {each.group: each.hard or {} for each in spec.groups or () if each.group}
    return PerSubject(spec.label or "", spec.hard or {}, overrides, {} if spec.label else groups)


def status_patch(patch: JSON) -> JSON:
    """Return the patch of an AcceleratorQuota's status that writes what `patch` would write to a ResourceQuota."""
    meta = patch["metadata"]
    annotations: Mapping[str, str | None] = meta.get("annotations") or {}
    status = dict(patch.get("status") or {})
    status |= {field: annotations[key] for key, field in _STATUS_FIELDS.items() if key in annotations}
    if OBSERVED in annotations:
        status["observed"] = int(annotations[OBSERVED] or 0)
    return {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}

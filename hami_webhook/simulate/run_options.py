"""What a run on files goes by, and when it starts (docs/spec/cli.md)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.submitters import Submitters
from hami_webhook.cluster.loading import Bundle
from hami_webhook.core_options import Options
from hami_webhook.devices.placement_annotations import TIME
from hami_webhook.integrations.volcano.annotation_keys import BIND_TIME
from hami_webhook.kube.objects import parse_time
from hami_webhook.quota.recompute import LedgerBounds
from hami_webhook.scheduling.placer import SchedulingPolicies

_FALLBACK_START = 1767225600.0
"""When a run starts if its files name no time: 2026-01-01T00:00:00Z."""


def simulation_options(scheduler_name: str, policies: SchedulingPolicies) -> Options:
    """What a run on files goes by: times are UTC, no charge is given up, and pods of no user keep their stamps."""
    return Options(
        rules=AdmissionRules(scheduler_name=scheduler_name, submitters=Submitters(controllers=frozenset({""}))),
        policies=policies,
        charge_timeout=60.0,
        bounds=LedgerBounds(most=100_000),
        zone=UTC,
    )


def start_of(bundle: Bundle) -> float:
    """When a run on these files starts: the newest time in them, so that the same files give the same run.

    A dump is read as of its own time: handshakes and unbound placements in it are as old as they were then.
    """
    times = [
        *(found for item in bundle.nodes for found in _times(item.object)),
        *(found for item in bundle.pods for found in _times(item.object)),
    ]
    return max(times, default=_FALLBACK_START)


_STAMPS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


def _times(obj: Mapping[str, Any]) -> Iterable[float]:
    """The readable times in an object's metadata and conditions."""
    meta, status = obj["metadata"], obj.get("status")
    annotations = meta.get("annotations")
    written = [meta.get("creationTimestamp")]
    if isinstance(annotations, Mapping):
        written += [annotations.get(TIME), annotations.get(BIND_TIME)]
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping):
            written += [condition.get("lastTransitionTime"), condition.get("lastHeartbeatTime")]
    for text in written:
        if isinstance(text, str) and _STAMPS.fullmatch(text):
            with contextlib.suppress(ValueError):  # a 13th month
                yield parse_time(text)
        elif isinstance(text, str) and text.isdecimal() and len(text) <= 11:
            yield float(text)

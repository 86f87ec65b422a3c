"""Effective requests: what a pod holds at its peak, with init containers and sidecars (KEP-753).

With A the sum over app containers, S the sum over sidecars and, for each ordinary init container i, s(i) the sum over
the sidecars listed before it: E = max(A + S, max over i of (x(i) + s(i))).
"""

from __future__ import annotations

from collections.abc import Iterable

from hami_webhook.kube.objects import ContainerKind


def effective(rows: Iterable[tuple[ContainerKind, int]], *, init_finished: bool = False) -> int:
    """E over the containers' amounts, init containers first in manifest order; without the init terms after init."""
    sidecars = apps = peak = 0
    for kind, amount in rows:
        if kind is ContainerKind.SIDECAR:
            sidecars += amount
        elif kind is ContainerKind.APP:
            apps += amount
        elif not init_finished:
            peak = max(peak, sidecars + amount)
    return max(apps + sidecars, peak)

"""Effective requests: what a pod holds at its peak, with init containers and sidecars (KEP-753).

With A the sum over app containers, S the sum over sidecars and, for each ordinary init container i, s(i) the sum over
the sidecars listed before it: E = max(A + S, max over i of (x(i) + s(i))).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import add

from hami_webhook.kube.objects import ContainerKind


def effective(
    rows: Iterable[tuple[ContainerKind, int]],
    *,
    init_finished: bool = False,
    join: Callable[[int, int], int] = add,
    size: Callable[[int], int] = int,
) -> int:
    """E over the containers' amounts, init containers first in manifest order; without the init terms after init.

    Amounts that are more than numbers say with `join` what they come to together, and with `size` how much that is.
    """
    sidecars = apps = peak = 0
    for kind, amount in rows:
        if kind is ContainerKind.SIDECAR:
            sidecars = join(sidecars, amount)
        elif kind is ContainerKind.APP:
            apps = join(apps, amount)
        elif not init_finished:
            peak = max(peak, size(join(sidecars, amount)))
    return max(size(join(apps, sidecars)), peak)

"""The annotations that let one pod at a time be bound to a node.

Source: docs/spec/core.md#9.4, docs/spec/node-registration.md#5.

Only which lock a vendor takes is declared here; taking and releasing it is the scheduler extender's work.
"""

from __future__ import annotations

from msgspec import Struct

from hami_webhook.kube.names import is_subdomain
from hami_webhook.kube.objects import parse_time


class NodeLock(Struct, frozen=True):
    """A lock on a node, which the vendors that name the same annotation share.

    `expires`: seconds after which another pod may take the lock; for the common lock, the default of
    `--node-lock-timeout`. `names_holder`: the value is `time,namespace,pod`, not the bare RFC 3339 time.
    """

    annotation: str
    expires: float
    names_holder: bool = True


COMMON_LOCK = NodeLock("hami.io/mutex.lock", 300.0)
"""The lock of every vendor whose plugin finds by it the pod that it is to serve."""


class LockValue(Struct, frozen=True):
    """A lock's value: since when (Unix seconds) and by which pod (None for the bare time of old versions)."""

    since: float
    holder: tuple[str, str] | None

    @classmethod
    def read(cls, text: str) -> LockValue:
        """Read a lock's value. Raise ValueError if the text isn't one."""
        time, *holder = text.split(",")
        try:
            if len(holder) not in (0, 2) or not all(map(is_subdomain, holder)):
                raise ValueError
            return cls(parse_time(time), (holder[0], holder[1]) if holder else None)
        except ValueError:
            raise ValueError(f"{text[:100]!r} isn't a time, or a time, a namespace and a pod") from None

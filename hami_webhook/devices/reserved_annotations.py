"""The scheduler-owned pod annotations of every vendor, enabled or not: users may not set them.

Source: docs/spec/node-registration.md#4; what follows from it is in docs/spec/security.md#1. Keys are
case-sensitive. They are those that the vendors' classes declare, so they are complete once `vendors` is imported. A
chip of `device-config.yaml` may have a common word of its own: what that adds below `hami.io/` is covered here, but
below `huawei.com/` only words that begin with `Ascend` are; for any other word ask the enabled vendors for their keys
too (`Vendors.owned_annotations`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hami_webhook.devices.keys import NO_KEYS
from hami_webhook.devices.vendor import Vendor

OWNED_LABELS = frozenset({"hami.io/vgpu-node"})
"""The scheduler-owned pod labels."""

PLACEMENT_KEYS = (
    *("hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-time", "hami.io/bind-phase"),
    *("hami.io/nominated-node", "hami.io/nominated-until"),
)
"""The scheduler-owned annotations that every vendor shares."""


_PAIR = r"hami\.io/.+-devices-(?:to-allocate|allocated)"
"""Every vendor's pair of lists, and every chip's."""


class _Reserved:
    """What classes of vendors reserve: exact keys, and patterns of more."""

    def __init__(self, classes: tuple[type[Vendor], ...]) -> None:
        self.classes = classes
        self.kept = frozenset(key for cls in classes for key in cls.reserved.kept)
        declared = (key for cls in classes for key in (*getattr(cls, "keys", NO_KEYS).owned, *cls.reserved.keys))
        self.exact = frozenset((*PLACEMENT_KEYS, *declared, *self.kept))
        self.pattern = "|".join(sorted({_PAIR, *(cls.reserved.pattern for cls in classes if cls.reserved.pattern)}))
        self.matches = re.compile(self.pattern).fullmatch


_latest = _Reserved(())


def _reserved() -> _Reserved:
    global _latest  # noqa: PLW0603  # read for every annotation of every pod
    if _latest.classes is not Vendor.classes:
        _latest = _Reserved(Vendor.classes)
    return _latest


def kept_annotations() -> frozenset[str]:
    """Those that no placement writes: the device plugin keeps them itself, so none removes them either."""
    return _reserved().kept


def is_scheduler_owned(key: str) -> bool:
    """Whether only the scheduler, the device plugins and our own controller may write the annotation `key`."""
    reserved = _reserved()
    return key in reserved.exact or reserved.matches(key) is not None


def owned_expression(more: Iterable[str] = ()) -> str:
    """A regular expression, valid in both RE2 and `re`, of the keys that `is_scheduler_owned` and of `more` besides."""
    reserved = _reserved()
    exact = sorted(key.replace(".", r"\.") for key in {*reserved.exact, *more} if not reserved.matches(key))
    return f"^({'|'.join([*exact, reserved.pattern])})$"


def owned_in(annotations: Iterable[str]) -> list[str]:
    """The scheduler-owned keys among `annotations`, sorted."""
    return sorted(key for key in annotations if is_scheduler_owned(key))

"""The scheduler-owned pod annotations: users may not set them.

Source: docs/spec/node-registration.md#4; what follows from it is in docs/spec/security.md#1. Keys are case-sensitive.
`is_scheduler_owned` covers the annotations of all vendor classes, enabled or not: all that a placement may have
written. It needs `vendors` to be imported. `ReservedAnnotations` covers all keys that begin with `hami.io/`, and, on
pods with managed resources, the keys of enabled vendors and their chips.
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


_OURS = "hami.io/"
_PAIR = r"hami\.io/.+-devices-(?:to-allocate|allocated)"
"""Every vendor's pair of lists, and every chip's."""


class _Reserved:
    """What classes of vendors reserve: exact keys, and patterns of more."""

    def __init__(self, classes: tuple[type[Vendor], ...]) -> None:
        self.classes = classes
        self.kept = frozenset(key for cls in classes for key in cls.reserved.kept)
        declared = (key for cls in classes for key in (*getattr(cls, "keys", NO_KEYS).owned, *cls.reserved.keys))
        self.exact = frozenset((*PLACEMENT_KEYS, *declared, *self.kept))
        patterns = {pattern for cls in classes for pattern in (cls.reserved.pattern, cls.reserved.of_chips) if pattern}
        self.matches = re.compile("|".join(sorted({_PAIR, *patterns}))).fullmatch


_latest = _Reserved(())


def _reserved() -> _Reserved:
    global _latest  # noqa: PLW0603  # read for every annotation of every pod
    if _latest.classes is not Vendor.classes:
        _latest = _Reserved(Vendor.classes)
    return _latest


def kept_annotations() -> frozenset[str]:
    """Return the annotations that the device plugin maintains itself; placements neither write nor remove them."""
    return _reserved().kept


def is_scheduler_owned(key: str) -> bool:
    """Return whether a placement or device plugin of any vendor class writes the annotation `key`."""
    reserved = _reserved()
    return key in reserved.exact or reserved.matches(key) is not None


class ReservedAnnotations:
    """What only schedulers, device plugins and our own controller may write on pods, where these vendors are enabled.

    Keys below `hami.io/` are reserved on every pod: our scheduler and HAMi's plugins read them. Others, such as
    `predicate-time`, are reserved only on pods with managed resources, because other projects use the same keys
    elsewhere. Neither we nor a device plugin reads them on pods that request no cards.
    """

    def __init__(self, vendors: Iterable[Vendor]) -> None:
        vendors = list(vendors)
        self._declared = frozenset(key for vendor in vendors for key in (*vendor.keys.owned, *vendor.reserved.all_keys))
        self._patterns = sorted({vendor.reserved.pattern for vendor in vendors if vendor.reserved.pattern})
        self._matches = re.compile("|".join(self._patterns) or "(?!)").fullmatch

    def among(self, annotations: Iterable[str], *, with_cards: bool) -> set[str]:
        """Those among annotations; `with_cards`: of a pod that names managed resources."""
        return {key for key in annotations if _is_ours(key) or (with_cards and self._is_vendors(key))}

    @property
    def everywhere(self) -> str:
        """A regular expression, valid in both RE2 and `re`, of the keys that are reserved on every pod."""
        return _expression((key for key in _reserved().exact if key.startswith(_OURS)), [_PAIR])

    @property
    def with_cards(self) -> str:
        """The same of those that are reserved besides on pods that name managed resources; empty for none."""
        return _expression((key for key in self._declared if not key.startswith(_OURS)), self._patterns)

    def _is_vendors(self, key: str) -> bool:
        return key in self._declared or self._matches(key) is not None


def owned_in(annotations: Iterable[str]) -> list[str]:
    """The keys among `annotations` that are reserved whatever is enabled, sorted."""
    return sorted(filter(_is_ours, annotations))


def _is_ours(key: str) -> bool:
    return key.startswith(_OURS) and is_scheduler_owned(key)


def _expression(keys: Iterable[str], patterns: list[str]) -> str:
    matches = re.compile("|".join(patterns) or "(?!)").fullmatch
    words = [*sorted(key.replace(".", r"\.") for key in keys if not matches(key)), *patterns]
    return "|".join(words)

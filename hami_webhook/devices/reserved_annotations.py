"""The scheduler-owned pod annotations: users may not set them.

Source: docs/spec/node-registration.md#4; what follows from it is in docs/spec/security.md#1. Keys are case-sensitive.
`is_scheduler_owned` knows those that the vendors' classes declare, enabled or not, so it is complete once `vendors` is
imported: what a placement may have written. `ReservedAnnotations` are those that mean something here: below `hami.io/`
all of them, and besides those of the enabled vendors and their chips, on pods that name managed resources.
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
    """Those that no placement writes: the device plugin keeps them itself, so none removes them either."""
    return _reserved().kept


def is_scheduler_owned(key: str) -> bool:
    """Whether a placement writes the annotation `key`, by any vendor's class, or a device plugin for it."""
    reserved = _reserved()
    return key in reserved.exact or reserved.matches(key) is not None


class ReservedAnnotations:
    """What only schedulers, device plugins and our own controller may write on pods, where these vendors are enabled.

    Keys below `hami.io/` are reserved on every pod: our scheduler and HAMi's plugins read them. Others, such as
    `predicate-time`, are reserved on pods that name managed resources alone: elsewhere other projects have the same
    words, and neither we nor a device plugin look at a pod that requests no cards.
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

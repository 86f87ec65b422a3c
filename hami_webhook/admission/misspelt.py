"""Names of resources and annotations that a pod has nearly right: nobody refuses them, and nothing follows from them.

Only names close to a known one are told of, of resources in limits and requests and of annotations; labels of these
domains are node features' and others'. What device plugins of vendors give out beside ours is known by `_OF_OTHERS`.
docs/spec/core.md#5 has the rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from itertools import islice

from hami_webhook.devices.registry import Vendors, declared
from hami_webhook.devices.reserved_annotations import is_scheduler_owned
from hami_webhook.kube.shown import cut
from hami_webhook.policy.evaluation import governed_keys

MOST = 5
"""As many names of a pod are told of, and looked for: a tenant may write any number."""
_CLOSE = 0.8
_OURS = "hami.io"
_LONGEST = 63
"""Longer than any known name; what is longer isn't compared."""
_OTHER_ANNOTATIONS = frozenset({"hami.io/device-scoring-weights", "hami.io/webhook"})
"""Those that people write and policy doesn't govern."""
_OF_OTHERS = re.compile(
    r"nvidia\.com/(?:mig-.+|.+\.shared)"  # NVIDIA's device plugin
    r"|huawei\.com/(?:Ascend\w+-\d+c[\w.]*|Ascend(?:310|310P|910)|npu(?:-core)?)"  # Ascend's, with its templates
)


def misspelt(named: Iterable[str], annotations: Mapping[str, str], vendors: Vendors) -> list[str]:
    """A sentence for each name of a resource or annotation that is nearly one of the vendors', at most 5."""
    resources = _Known(vendors.own_names, {name for vendor in declared() for name in vendor.resource_names})
    told = resources.told(each for each in named if each not in vendors.resource_names)
    if annotations:
        keys = governed_keys(vendors.governed.values()) | _OTHER_ANNOTATIONS
        told = [*told, *_Known(keys).told(key for key in annotations if not is_scheduler_owned(key))]
    return told[:MOST]


class _Known:
    """Names that mean something, and `elsewhere` those that do so where another configuration is in force."""

    def __init__(self, names: Collection[str], elsewhere: Collection[str] = ()) -> None:
        self._names = names
        self._elsewhere = elsewhere
        self._domains = tuple(sorted({f"{each.partition('/')[0]}/" for each in (*names, f"{_OURS}/")}))

    def told(self, written: Iterable[str]) -> list[str]:
        return list(islice(self._sentences(written), MOST))

    def _sentences(self, written: Iterable[str]) -> Iterator[str]:
        unknown = (each for each in written if each.startswith(self._domains) and each not in self._names)
        for name in islice(unknown, 2 * MOST):
            if name in self._elsewhere or _OF_OTHERS.fullmatch(name):
                continue
            nearest = self._nearest(name)
            if nearest:
                yield f"{cut(name)} isn't a name that means anything here; did you mean {nearest}?"

    def _nearest(self, name: str) -> str:
        """The known name that it is most like; in our own domain that of a vendor's, whatever its domain."""
        domain, _, own = name.partition("/")
        if len(own) > _LONGEST:
            return ""
        matcher = SequenceMatcher(b=_folded(own))
        best, nearest = _CLOSE, ""
        for known in sorted(self._names):
            its_domain, _, its_own = known.partition("/")
            if domain not in (its_domain, _OURS):
                continue
            matcher.set_seq1(_folded(its_own))
            if matcher.real_quick_ratio() >= best and matcher.quick_ratio() >= best and matcher.ratio() >= best:
                ratio = matcher.ratio()
                if ratio > best or not nearest:
                    best, nearest = ratio, known
        return nearest


def _folded(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").replace(".", "")

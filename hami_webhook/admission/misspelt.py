"""Names of resources and annotations that a pod has nearly right, or in the wrong place.

Nobody refuses them, and nothing follows from them. A warning is for a resource's name that is an annotation's, for an
annotation's that is a resource's, and else only for names close to a known one, of resources in limits and requests and
of annotations; labels of these domains are node features' and others'. What device plugins of vendors give out beside
ours is known by `_OF_OTHERS`. docs/spec/core.md#5 has the rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Set
from difflib import SequenceMatcher
from functools import cached_property, partial

from hami_webhook.devices.registry import Vendors, declared
from hami_webhook.devices.reserved_annotations import is_scheduler_owned
from hami_webhook.kube.message_text import cut
from hami_webhook.policy.evaluation import governed_keys

MOST = 5
"""Names of a pod that get a warning, at most: a tenant may write any number."""
_CLOSE = 0.8
_OURS = "hami.io"
_LONGEST = 63
"""Longer than any known name; what is longer isn't compared."""
_OTHER_ANNOTATIONS = frozenset({"hami.io/device-scoring-weights", "hami.io/webhook"})
"""Those that people write and policy doesn't govern."""
_INTO_LIMITS = "it's a resource, and belongs into resources.limits of a container"
_INTO_ANNOTATIONS = "it belongs into metadata.annotations of the pod"
_OF_OTHERS = re.compile(
    r"nvidia\.com/(?:mig-.+|.+\.shared)"  # NVIDIA's device plugin
    r"|huawei\.com/(?:Ascend\w+-\d+c[\w.]*|Ascend(?:310|310P|910)|npu(?:-core)?)"  # Ascend's, with its templates
)


class NameSuggester:
    """The names of resources and annotations that mean something with a device configuration."""

    def __init__(self, vendors: Vendors) -> None:
        self._resources = _NameSet(vendors.own_names, partial(_other_names, vendors))
        self._annotations = _NameSet(governed_keys(vendors.governed.values()) | _OTHER_ANNOTATIONS)
        self._misplaced_in = vendors.resource_names - self._annotations.known
        """Resources that are no annotations: written as such they mean nothing."""

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the prefixes of the resource names that are checked, sorted."""
        return self._resources.domains

    def misspelt(self, named: Set[str], annotations: Mapping[str, str]) -> list[str]:
        """Return a warning for each resource or annotation name that is almost a known one, or used as the other kind.

        They are 5 at most.
        """
        found: list[str] = []
        as_resources = self._annotations.known & named
        if as_resources:
            found = [f"{name} is an annotation, and no resource: {_INTO_ANNOTATIONS}" for name in sorted(as_resources)]
            named = named - as_resources
        found += self._resources.nearly(named)
        if annotations:
            as_annotations = sorted(self._misplaced_in & annotations.keys())
            # what a chip's plugin reads has its resource's name; a pod with cards that brings it is refused
            resources = [name for name in as_annotations if not is_scheduler_owned(name)]
            found = [*(f"annotation {name} means nothing: {_INTO_LIMITS}" for name in resources), *found]
            found += self._annotations.nearly(annotations.keys() - set(as_annotations))
        return found[:MOST]


def _other_names(vendors: Vendors) -> frozenset[str]:
    """The names of resources that mean something to others, or by another configuration."""
    return vendors.resource_names.union(*(vendor.resource_names for vendor in declared()))


class _NameSet:
    """Names that mean something; `others` finds those that do so elsewhere, once a name isn't among the first."""

    def __init__(self, names: Collection[str], others: Callable[[], Set[str]] = frozenset) -> None:
        self._names = sorted(names)
        self.known = frozenset(names)
        self._find_others = others
        self.domains = tuple(sorted({f"{each.partition('/')[0]}/" for each in (*names, f"{_OURS}/")}))

    def nearly(self, written: Set[str]) -> list[str]:
        sentences: list[str] = []
        looked_at = 0
        unknown = [name for name in written - self.known if name.startswith(self.domains)]
        for name in sorted(unknown):
            if name in self._others or is_scheduler_owned(name) or _OF_OTHERS.fullmatch(name):
                continue
            looked_at += 1
            nearest = self._nearest(name)
            if nearest:
                meant = " or ".join(nearest)
                sentences.append(f"{cut(name)} isn't a name that means anything here; did you mean {meant}?")
            if looked_at == 2 * MOST or len(sentences) == MOST:
                break
        return sentences

    @cached_property
    def _others(self) -> Set[str]:
        return self._find_others()

    def _nearest(self, name: str) -> list[str]:
        """The known names that it is most like; in our own domain those of vendors, whatever their domain."""
        domain, _, own = name.partition("/")
        if len(own) > _LONGEST:
            return []
        matcher = SequenceMatcher(b=_folded(own))
        best, nearest = _CLOSE, list[str]()
        for known in self._names:
            its_domain, _, its_own = known.partition("/")
            if domain not in (its_domain, _OURS):
                continue
            matcher.set_seq1(_folded(its_own))
            if matcher.real_quick_ratio() >= best and matcher.quick_ratio() >= best and matcher.ratio() >= best:
                ratio = matcher.ratio()
                if ratio > best or not nearest:
                    best, nearest = ratio, [known]
                elif ratio == best and domain == _OURS:
                    nearest.append(known)
        return nearest


def _folded(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "").replace(".", "")

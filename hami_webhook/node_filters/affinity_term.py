"""A term of a pod's required affinity or anti-affinity to other pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.node_filters.selectors import Labels, Matches, expression, label_selector


class AffinityTerm:
    """Which pods it is about, and `key`, the label of their nodes by which they are near each other."""

    __slots__ = ("_matches", "_namespaces", "_selector", "key")

    def __init__(self, written: scheduling.PodAffinityTerm, namespace: str, labels: Labels) -> None:
        """`namespace` and `labels` are those of the pod that has the term. Raises `MalformedObject`."""
        self.key = written.topology_key or ""
        self._namespaces = frozenset(written.namespaces or ())
        self._selector: Matches | None = None
        if written.namespace_selector is not None:
            self._selector = label_selector(written.namespace_selector)
        elif not self._namespaces:
            self._namespaces = frozenset((namespace,))
        self._matches = label_selector(written.label_selector, _of_keys(written, labels))

    def matches(self, namespace: str, labels: Labels, labels_of: Callable[[str], Labels]) -> bool:
        """Whether it is about a pod of this namespace and these labels; `labels_of` gives a namespace's."""
        if not self._matches(labels):
            return False
        if namespace in self._namespaces:
            return True
        return self._selector is not None and self._selector(labels_of(namespace))


def _of_keys(written: scheduling.PodAffinityTerm, labels: Labels) -> Iterator[Matches]:
    """What matchLabelKeys and mismatchLabelKeys stand for.

    The API server adds it to the selector of a pod that it stores, by the labels that the pod has then.
    """
    selector = written.label_selector
    added = {(each.key, each.operator) for each in (selector and selector.match_expressions) or ()}
    for operator, keys in (("In", written.match_label_keys), ("NotIn", written.mismatch_label_keys)):
        for key in keys or ():
            if key in labels and (key, operator) not in added:
                yield expression(key, operator, (labels[key],))

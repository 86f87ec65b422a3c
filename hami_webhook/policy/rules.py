"""The rules of the policy file as values: which pods a rule matches, and what it requires of them."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import ClassVar

from msgspec import Struct

from hami_webhook.devices.pod_preferences import GPU_POLICY, NODE_POLICY, WEIGHTS
from hami_webhook.kube.objects import Namespace
from hami_webhook.kube.selectors import LabelSelector
from hami_webhook.policy.selectors import EVERYTHING

GENERAL_CHOICES = (GPU_POLICY, NODE_POLICY, WEIGHTS)
"""The choice keys that apply to every vendor's cards."""

NAMESPACE = "namespace"
"""The name of the Namespace's own annotations in `Changes.rules`; no rule may have it."""


class DeviceBounds(Struct, frozen=True):
    """A rule's lists for one vendor's cards; an empty allow list is no constraint."""

    allow_uuids: tuple[str, ...] = ()
    deny_uuids: tuple[str, ...] = ()
    allow_types: tuple[str, ...] = ()
    deny_types: tuple[str, ...] = ()


class PolicyRule(Struct, frozen=True):
    """One rule of the policy file. No namespaces: every one; `devices` has bounds by backend key. `deny_env` are the
    environment variables that no container of a pod with cards may set.
    """

    name: str
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector = EVERYTHING
    pod_selector: LabelSelector = EVERYTHING
    default: Mapping[str, str] = {}
    enforce: Mapping[str, str] = {}
    devices: Mapping[str, DeviceBounds] = {}
    scheduler_name: str | None = None
    deny_env: frozenset[str] = frozenset()

    def matches(self, namespace: Namespace, pod_labels: Mapping[str, str]) -> bool:
        """Whether the rule matches pods with these labels in this namespace: all its parts must match."""
        return (
            (not self.namespaces or any(fnmatchcase(namespace.name, glob) for glob in self.namespaces))
            and self.namespace_selector.matches(namespace.labels)
            and self.pod_selector.matches(pod_labels)
        )


class PolicyRules(Struct, frozen=True):
    """The rules of the policy file, in its order."""

    rules: tuple[PolicyRule, ...] = ()
    EMPTY: ClassVar[PolicyRules]

    def matching(self, namespace: Namespace, pod_labels: Mapping[str, str]) -> tuple[PolicyRule, ...]:
        return tuple([rule for rule in self.rules if rule.matches(namespace, pod_labels)])


PolicyRules.EMPTY = PolicyRules()

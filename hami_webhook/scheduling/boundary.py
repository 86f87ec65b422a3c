"""Pods as policy demands them when they are placed, whatever their annotations have become since their admission."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.cluster.api import ClusterError
from hami_webhook.devices.pod_fit import vendors_requested_by
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Namespace, Pod
from hami_webhook.policy.evaluation import governed_keys, required_changes
from hami_webhook.policy.rules import PolicyRules


class BoundedPod(Struct, frozen=True):
    """A pod as Fit reads it: `written` are the annotations that policy changes on it, `changes` a sentence for each."""

    pod: Pod
    written: Mapping[str, str] = {}
    changes: tuple[str, ...] = ()


class PolicyEnforcer:
    """What policy demands of the pods of a cluster.

    `policies` are the rules in force; `namespaces` gives a Namespace by its name, None if it isn't known.
    """

    def __init__(
        self,
        vendors: Vendors,
        policies: Callable[[], PolicyRules],
        namespaces: Callable[[str], Awaitable[Namespace | None]],
    ) -> None:
        self._vendors = vendors
        self._policies = policies
        self._namespaces = namespaces
        self._governed_keys = governed_keys(vendors.values())

    async def namespace(self, name: str) -> Namespace:
        """Raises `ClusterError` for a Namespace that isn't known: its pods are tried again, not placed by guess."""
        found = await self._namespaces(name)
        if found is None:
            raise ClusterError(f"namespace {name} isn't known yet, nor are the devices that it allows; try again")
        return found

    def bounded(self, pod: Pod, namespace: Namespace) -> BoundedPod:
        """The pod with the annotations that its Namespace and the rules demand now, just as admission writes them.

        Raises `PolicyViolation` if they leave it no device, and `BadRequest` for what admission would have refused.
        """
        rules = self._policies().matching(namespace, pod.labels)
        if not rules and self._governed_keys.isdisjoint(namespace.annotations):
            return BoundedPod(pod)
        requested = [self._vendors[key] for key in vendors_requested_by(pod, self._vendors)]
        changes = required_changes(pod.annotations, namespace, rules, requested)
        if not changes.annotations:
            return BoundedPod(pod)
        written = {**pod.annotations, **changes.annotations}
        return BoundedPod(replace(pod, annotations=written), changes.annotations, changes.sentences)

"""Nodes that other schedulers use, and pods taken through our admission and those schedulers' stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from admission.reviews import NO_CLAIMS, RULES, FakeServices, parsed, patched, review
from devices.fit_env import CHART, NOW

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.devices.foreign_scheduler import ForeignScheduler, NoNode, Prediction
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.kube.objects import Namespace, Node, Pod
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.quota.pricing import charge_of, price_pending
from hami_webhook.state.cluster_cache import ClusterCache

JSON = dict[str, Any]


@dataclass(frozen=True)
class Admitted:
    """A pod as admission leaves it, or what it was refused with."""

    manifest: JSON
    warnings: Sequence[str] = ()
    message: str = ""

    @property
    def pod(self) -> Pod:
        assert not self.message, self.message
        return Pod.from_object(self.manifest)

    @property
    def codes(self) -> list[str]:
        """What is in brackets in front of each warning."""
        assert not self.message, self.message
        return [warning.partition("]")[0].removeprefix("[") for warning in self.warnings]

    def limits(self, index: int = 0) -> JSON:
        assert not self.message, self.message
        found: JSON = self.manifest["spec"]["containers"][index]["resources"].get("limits", {})
        return found

    def requests(self, index: int = 0) -> JSON:
        assert not self.message, self.message
        found: JSON = self.manifest["spec"]["containers"][index]["resources"].get("requests", {})
        return found

    def env(self, index: int = 0) -> JSON:
        return {each["name"]: each.get("value") for each in self.manifest["spec"]["containers"][index].get("env", [])}

    @property
    def notes(self) -> JSON:
        found: JSON = self.manifest["metadata"].get("annotations", {})
        return found

    @property
    def labels(self) -> Mapping[str, str]:
        return self.pod.labels

    @property
    def scheduler(self) -> str | None:
        found: str | None = self.manifest["spec"].get("schedulerName")
        return found


@dataclass
class SchedulersEnv:
    """Nodes, and the pods on them so far."""

    nodes: Sequence[Node] = ()
    vendors: Vendors = field(default_factory=lambda: CHART)
    now: float = NOW

    def __post_init__(self) -> None:
        self.state = ClusterCache(self.vendors)
        for each in self.nodes:
            self.state.set_node(each, self.now)
        around = FakeServices({"default": Namespace("default", {}, {}), "team-a": Namespace("team-a", {}, {})})

        async def no_claims() -> DeviceInventory:
            return NO_CLAIMS

        self._gate = AdmissionHandler(
            self.vendors,
            RULES,
            policies=lambda: PolicyRules.EMPTY,
            namespaces=around,
            charging=around,
            device_lister=self.state,
            reservation_key="hami.io/quota-reservation",
            inventory=no_claims,
            allocates=ClaimCache(()).allocates,
        )

    def admit(self, manifest: JSON, **request: Any) -> Admitted:
        """Mutate and validate a pod; a second mutation must change nothing. `request` is more of the request."""
        try:
            answer = asyncio.run(self._gate.mutate(parsed(review(manifest, **request))))
            after = patched(manifest, answer)
            asyncio.run(self._gate.validate(parsed(review(after, **request))))
            again = asyncio.run(self._gate.mutate(parsed(review(after, **request))))
        except Denied as denial:
            return Admitted(manifest, message=denial.message)
        assert not again.patch, f"admission isn't idempotent: {again.patch}"
        return Admitted(after, list(answer.warnings))

    def refusal(self, manifest: JSON, **request: Any) -> str:
        """What a pod is refused with; fails if it is admitted."""
        message = self.admit(manifest, **request).message
        assert message, "admitted"
        return message

    def foreign(self, pod: Pod) -> ForeignScheduler:
        (found,) = (scheduler for scheduler in self.vendors.foreign if scheduler.named_by(pod))
        return found

    def predict(self, manifest: JSON) -> Prediction | NoNode:
        """Where the pod's scheduler would place it."""
        pod = Pod.from_object(manifest)
        return self.foreign(pod).predict(pod, self.state, self.now)

    def predicted(self, manifest: JSON) -> Prediction:
        """The same of a pod that is placed somewhere."""
        found = self.predict(manifest)
        assert isinstance(found, Prediction), found
        return found

    def place(self, manifest: JSON, *, admit: bool = True) -> tuple[Prediction, Mapping[str, int]]:
        """Admit a pod, let its scheduler place it, and keep it there: the prediction and the debits."""
        if admit:
            admitted = self.admit(manifest)
            assert not admitted.message, admitted.message
            manifest = admitted.manifest
        predicted = self.predicted(manifest)
        bound = self.keep(manifest, predicted.node, predicted.annotations)
        return predicted, charge_of(bound, self.vendors, self.state.capacity, self.now).amounts

    def keep(self, manifest: JSON, node: str, annotations: Mapping[str, str] | None = None) -> Pod:
        """A pod is bound, with further annotations."""
        notes = {**manifest["metadata"].get("annotations", {}), **(annotations or {})}
        bound = Pod.from_object(
            {
                **manifest,
                "metadata": {**manifest["metadata"], "annotations": notes},
                "spec": {**manifest["spec"], "nodeName": node},
            }
        )
        self.state.set_pod(bound, self.now)
        return bound

    def failed(self, manifest: JSON) -> Mapping[str, str]:
        """Why no node takes the pod."""
        predicted = self.predict(self.admit(manifest).manifest)
        assert isinstance(predicted, NoNode), predicted
        return predicted.failed

    def waiting(self, manifest: JSON) -> Mapping[str, int]:
        """What an admitted pod is charged."""
        return price_pending(self.admit(manifest).pod, self.vendors, self.state.capacity).amounts

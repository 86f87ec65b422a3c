"""Reviews of pods, and a gate to send them to."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import builders
import jsonpatch
import orjson
from builders import CORES, GPU, MEM, PERCENT, PRIORITY

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.handler import AdmissionHandler
from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.new_pod import NewPod
from hami_webhook.admission.ports import PodEstimate
from hami_webhook.admission.review import Answer, Review, parse_review
from hami_webhook.charging.queue import ChargeResult
from hami_webhook.device_config import enabled_vendors, load_device_config
from hami_webhook.devices.device_lister import NO_DEVICES, DeviceLister
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.model import Requests
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.dra.devices import PublishedDevices
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import RESERVATION, Namespace, Pod, ResourceQuota
from hami_webhook.policy.rules import PolicyRules

JSON = dict[str, Any]
SCHEDULER = "hami-scheduler"
RULES = AdmissionRules(scheduler_name=SCHEDULER)


def vendors(**more: object) -> Vendors:
    """NVIDIA as HAMi's chart configures it, with `more` keys of its section."""
    section = {
        "resourceCountName": GPU,
        "resourceMemoryName": MEM,
        "resourceMemoryPercentageName": PERCENT,
        "resourceCoreName": CORES,
        "resourcePriorityName": PRIORITY,
        "defaultGPUNum": 1,
        "gpuCorePolicy": "default",
        **more,
    }
    return enabled_vendors(load_device_config(orjson.dumps({"nvidia": section}).decode(), "test").config)


VENDORS = vendors()
NO_CLAIMS = DeviceInventory({}, PublishedDevices((), ()))
NO_CLASSES = ClaimCache(())


pod = functools.partial(builders.pod, namespace="team-a")


def cpu(name: str = "main", **fields: Any) -> JSON:
    """A container that asks for no accelerator."""
    return builders.container(name, cpu="1", memory="256Mi", **fields)


def review(obj: object, operation: str = "CREATE", *, version: str = "v1", **more: Any) -> JSON:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team-a",
        "name": (obj.get("metadata") or {}).get("name", "") if isinstance(obj, dict) else "",
        "operation": operation,
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        **more,
    }
    return {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "request": request}


def update(old: JSON, new: JSON, user: str = "alice", *groups: str, subresource: str = "") -> JSON:
    info = {"username": user, "groups": ["system:authenticated", *groups]}
    more = {"subResource": subresource} if subresource else {}
    return review(new, "UPDATE", oldObject=old, userInfo=info, **more)


def parsed(written: JSON) -> Review:
    return parse_review(orjson.dumps(written), "application/json")


def body(written: object) -> bytes:
    return orjson.dumps(written, option=orjson.OPT_NON_STR_KEYS)


def patched(obj: JSON, answer: Answer) -> JSON:
    """The object after the answer's patch, as the API server applies it."""
    operations = orjson.loads(orjson.dumps(list(answer.patch)))
    result: JSON = jsonpatch.apply_patch(orjson.loads(orjson.dumps(obj)), operations)
    return result


@dataclass
class FakeServices:
    """Namespaces and quotas that take everything and remember it; `there` is what namespaces there are, and `unlimited`
    whether they have no quotas.
    """

    there: dict[str, Namespace] = field(default_factory=lambda: {"team-a": Namespace("team-a", {}, {})})
    charged: list[tuple[str, str]] = field(default_factory=list)
    ignored: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    unlimited: bool = False
    counted_labels: frozenset[str] = frozenset()
    named_groups: frozenset[str] = frozenset()

    async def namespace(self, name: str) -> Namespace | None:
        return self.there.get(name)

    async def report_ignored(self, namespace: str, keys: tuple[str, ...]) -> None:
        self.ignored.append((namespace, keys))

    def of(self, pod: Pod) -> Free:
        return Free(self, pod)

    def shown(self, namespace: str) -> Sequence[ResourceQuota]:
        return ()

    def limit_runtime(self, draft: PodDraft, new: NewPod, quotas: Sequence[ResourceQuota]) -> None:
        """No quota limits how long pods run."""

    def queues(self, pod: Pod, requests: Mapping[str, Requests], quotas: Sequence[ResourceQuota]) -> bool:
        return False

    def reprice(self, before: Pod, after: Pod) -> PodEstimate | None:
        return None


@dataclass
class Free:
    """A pod that costs nothing."""

    around: FakeServices
    pod: Pod

    @property
    def unlimited(self) -> bool:
        return self.around.unlimited

    async def read_templates(self) -> None:
        """There are no claims."""

    async def refuse_uncreatable(self, name: str, *, sized: bool) -> None:
        """The API server takes every pod."""

    def price(self, requests: Mapping[str, Requests], foreign: Sequence[ForeignScheduler]) -> Free:
        return self

    async def charge(
        self, uid: str, *, reservation: str, dry_run: bool, time_left: float | None, expects_gate: bool = False
    ) -> ChargeResult:
        self.around.charged.append((self.pod.name, uid))
        return ChargeResult()

    def new_reservation(self) -> tuple[str, str]:
        return "secret", ""


class NoTouch:
    """FakeServices whose every use is a mistake, but for whether an update adds to a price, and what caches show."""

    counted_labels: frozenset[str] = frozenset()
    named_groups: frozenset[str] = frozenset()

    def reprice(self, before: Pod, after: Pod) -> PodEstimate | None:
        return None

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


def handler_of(
    rules: AdmissionRules = RULES,
    *,
    known: Vendors = VENDORS,
    policies: PolicyRules = PolicyRules.EMPTY,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    inventory: DeviceInventory = NO_CLAIMS,
    classes: ClaimCache = NO_CLASSES,
    services: Any = None,
    device_lister: DeviceLister = NO_DEVICES,
) -> AdmissionHandler:
    around = services or FakeServices({"team-a": Namespace("team-a", labels or {}, annotations or {})})

    async def published() -> DeviceInventory:
        return inventory

    return AdmissionHandler(
        known,
        rules,
        policies=lambda: policies,
        namespaces=around,
        charging=around,
        device_lister=device_lister,
        reservation_key=RESERVATION,
        inventory=published,
        allocates=classes.allocates,
    )


def at_once(call: Coroutine[Any, Any, Answer]) -> Answer:
    """What a step answers that waits for nothing: no event loop, which takes longer to make than the answer."""
    try:
        call.send(None)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    raise AssertionError("it waited for something")


def mutate(obj: JSON, rules: AdmissionRules = RULES, **more: Any) -> Answer:
    return at_once(handler_of(rules, **more).mutate(parsed(review(obj))))


def validate(obj: JSON, rules: AdmissionRules = RULES, **more: Any) -> Answer:
    return at_once(handler_of(rules, **more).validate(parsed(review(obj))))


def refusal(step: Any, *arguments: Any, **more: Any) -> tuple[int, str]:
    """The code and message that `step` refuses with."""
    try:
        answer = step(*arguments, **more)
    except Denied as denied:
        return denied.code, denied.message
    raise AssertionError(f"allowed: {answer}")

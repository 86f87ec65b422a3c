"""The order of the steps of `/mutate`, `/validate` and `/webhook` (quota chapter 4), with what they need passed in.

Looking up a namespace and charging the quota are the caller's: both come in as a protocol, so this knows no cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.pods import (
    AdmissionRules,
    User,
    mutate,
    names_managed,
    read_pod,
    refuse_forged,
    validate,
    validate_update,
)
from hami_webhook.admission.policy import Policies
from hami_webhook.admission.review import Answer, Review
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import MalformedObject, Namespace, Pod

logger = logging.getLogger(__name__)

Amounts = Mapping[str, Mapping[str, int]]
"""What was charged: by quota name, by key."""


class Charging(Protocol):
    """The namespace's books."""

    async def charge(self, pod: Pod, identity: str, *, stamp: str, dry_run: bool, timeout: float | None) -> Amounts:
        """Charge the pod under an id; raises `Denied`. `stamp` is an id it may be charged under already."""
        ...

    async def stamp(self, pod: Pod) -> str:
        """The id for a pod that has no UID yet: the stamp it brings if that is live and unused, else a new one."""
        ...


class Gate:
    """Answers reviews of pods. Every method raises `Denied` for a refusal."""

    def __init__(
        self,
        vendors: Vendors,
        rules: AdmissionRules,
        *,
        policies: Callable[[], Policies],
        namespace: Callable[[str], Awaitable[Namespace | None]],
        charging: Charging,
        stamp_key: str,
    ) -> None:
        self._vendors = vendors
        self._rules = rules
        self._policies = policies
        self._namespace = namespace
        self._charging = charging
        self._stamp_key = stamp_key
        self._touches_all = any(vendor.touches_every_container for vendor in vendors.values())

    async def mutate(self, review: Review) -> Answer:
        """`/mutate`: normalise only."""
        if not self._concerns(review) or review.operation != "CREATE":
            return Answer()
        _, answer, _ = await self._mutated(review)
        return answer

    async def validate(self, review: Review, timeout: float | None = None) -> Answer:
        """`/validate`: check, then charge as the very last step."""
        if not self._concerns(review):
            return Answer()
        if review.operation == "UPDATE":
            self._check_update(review)
            return Answer()
        if review.operation != "CREATE" or review.subresource:
            return Answer()
        draft = read_pod(review.object, review.namespace)
        if not names_managed(review.object.get("spec") or {}, self._vendors):
            refuse_forged(draft.original)
            return Answer()
        pod = draft.original
        if not await self._checked(pod):
            return Answer()
        stamp = pod.annotations.get(self._stamp_key, "")
        amounts = await self._charging.charge(
            pod, pod.uid or review.uid, stamp=stamp, dry_run=review.dry_run, timeout=timeout
        )
        return Answer(audit=_audit(amounts))

    async def webhook(self, review: Review, timeout: float | None = None) -> Answer:
        """`/webhook`, HAMi's path: mutate, validate and charge at once, with a stamp in place of the missing UID."""
        if not self._concerns(review):
            return Answer()
        if review.operation != "CREATE" or review.subresource:
            return await self.validate(review, timeout)
        draft, answer, pod = await self._mutated(review)
        if not names_managed(review.object.get("spec") or {}, self._vendors) or not await self._checked(pod):
            return answer
        stamp = await self._charging.stamp(pod)
        amounts = await self._charging.charge(pod, stamp, stamp="", dry_run=review.dry_run, timeout=timeout)
        patch = answer.patch
        if amounts and not review.dry_run and pod.annotations.get(self._stamp_key) != stamp:
            patch = _with_annotation(draft, patch, self._stamp_key, stamp)
        return Answer(patch, answer.warnings, {**answer.audit, **_audit(amounts)})

    async def _mutated(self, review: Review) -> tuple[PodDraft, Answer, Pod]:
        draft = read_pod(review.object, review.namespace)
        managed = names_managed(review.object.get("spec") or {}, self._vendors)
        if not managed and not self._touches_all:
            refuse_forged(draft.original)
            return draft, Answer(), draft.original
        namespace = await self._namespace(draft.original.namespace) if managed else None
        done = mutate(draft, self._vendors, self._rules, namespace, self._policies())
        for note in done.notes:
            logger.debug("%s: %s", done.pod.key, note)
        if done.ignored_namespace_keys:
            logger.warning(
                "namespace %s: scheduler-owned annotations mean nothing there: %s",
                done.pod.namespace,
                ", ".join(done.ignored_namespace_keys),
            )
        audit = {"policy": ",".join(done.rules)} if done.rules else {}
        return draft, Answer(done.patch, done.warnings, audit), done.pod

    async def _checked(self, pod: Pod) -> bool:
        """Validate a pod that names managed resources; whether it really asks for any."""
        namespace = await self._namespace(pod.namespace)
        return bool(validate(pod, self._vendors, namespace, self._policies()))

    def _check_update(self, review: Review) -> None:
        try:
            old = Pod.from_object(review.old_object, review.namespace)
            new = Pod.from_object(review.object, review.namespace)
        except MalformedObject as error:
            raise Denied(400, f"the pod can't be read: {error}") from error
        validate_update(old, new, User(review.username, review.groups), self._vendors, self._rules)

    def _concerns(self, review: Review) -> bool:
        """Whether there is anything to look at; another kind than Pod is a mistake in the webhook's configuration."""
        if review.kind != "Pod":
            raise Denied(400, f"this webhook reviews pods (core/v1 Pod), not {review.kind or 'objects without a kind'}")
        return review.operation in ("CREATE", "UPDATE")


def _audit(amounts: Amounts) -> dict[str, str]:
    told = [
        f"{name}:{','.join(f'{key}={amount}' for key, amount in sorted(charged.items()))}"
        for name, charged in sorted(amounts.items())
        if charged
    ]
    return {"quota": ";".join(told)} if told else {}


def _with_annotation(
    draft: PodDraft, patch: Sequence[Mapping[str, Any]], key: str, value: str
) -> Sequence[Mapping[str, Any]]:
    """The patch with one more annotation, on a pod whose annotations it may just be adding."""
    whole = next((operation for operation in patch if operation["path"] == draft.annotations.path), None)
    if whole is not None:
        more = {**whole, "value": {**whole["value"], key: value}}
        return [more if operation is whole else operation for operation in patch]
    fresh = PodDraft(draft.raw, draft.original.namespace)
    fresh.annotations[key] = value
    return [*patch, *fresh.operations()]

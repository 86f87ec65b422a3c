"""Pods whose cards come by ResourceClaims: what each claim has, or why no device is given to it (docs/dra.md).

Prices, selections and amounts are those of `dra`, by which claims are charged. Which device kube-scheduler will choose
isn't known: it goes by rules that aren't considered here, such as constraints between requests.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hami_webhook.devices.keys import MEBIBYTE
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.claim_templates import declared_templates
from hami_webhook.dra.cost import SECONDS, ClassRequest, extended_requests
from hami_webhook.dra.devices import PublishedDevice
from hami_webhook.dra.holders import extended_claim, generated_claims, key_of, requests_of, results_of
from hami_webhook.dra.selectors import selected
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.human_memory import human_mebibytes, needed_and_free
from hami_webhook.kube.objects import MalformedObject, Pod

_MOST_ANSWERS = 8
"""Sentences about one request's devices."""
_LONGEST_EXPRESSION = 120
"""Characters of an expression that are shown: a tenant wrote it."""


class _PodClaim(NamedTuple):
    """A claim that a pod needs, as sentences call it; `claim` is None where it isn't there.

    `requests` are what it requests, or will; None where that isn't known. `absent` says what becomes of one that isn't
    there.
    """

    subject: str
    claim: wire.ResourceClaim | None
    requests: Sequence[wire.DeviceRequest] | None = None
    absent: str = ""

    @property
    def waits(self) -> bool:
        return self.claim is None or results_of(self.claim) is None


def has_claims(pod: Pod, cache: ClaimCache) -> bool:
    """Whether a pod uses claims, or will get one for its extended resources."""
    return bool(pod.resource_claims or pod.extended_claim or extended_requests(pod, cache.inventory.extended))


def waits_for_claims(pod: Pod, cache: ClaimCache) -> bool:
    """Whether one of a pod's claims isn't allocated, or isn't there yet."""
    return any(each.waits for each in _claims_of(pod, cache))


def claim_notes(pod: Pod, cache: ClaimCache) -> Iterator[str]:
    """What each of a pod's claims has, or why it has nothing; a sentence each."""
    for each in _claims_of(pod, cache):
        if each.claim is not None and not each.waits:
            yield from _allocated(each.subject, each.claim, cache)
        else:
            yield f"{each.subject} {each.absent or 'waits for its devices'}"
            yield from _requests(each.requests or (), cache)


def _claims_of(pod: Pod, cache: ClaimCache) -> Iterator[_PodClaim]:
    """The claims that a pod needs."""
    owned = cache.owned_by(pod)
    generated, extended = generated_claims(pod, owned), extended_claim(pod, owned)
    for reference in pod.resource_claims:
        if not reference.template:
            yield _known(reference.claim, cache.claims.get((pod.namespace, reference.claim)))
        elif reference.name in generated:
            key = generated[reference.name]
            yield _known(key[1], cache.claims[key])
        elif pod.generated_claims.get(reference.name) != "":  # with an empty name it needs none
            yield _of_template(pod, reference.template, cache)
    requests = extended_requests(pod, cache.inventory.extended)
    if extended is not None:
        yield _known(extended[1], cache.claims[extended])
    elif requests and not pod.node_name:
        absent = "isn't there yet: kube-scheduler makes it once there are devices for it"
        yield _PodClaim("the claim for its extended resources", None, requests, absent)


def _known(name: str, claim: wire.ResourceClaim | None) -> _PodClaim:
    if claim is not None:
        return _PodClaim(f"claim {name}", claim, requests_of(claim.spec))
    return _PodClaim(f"claim {name}", None, None, "isn't there: create it, or correct the pod's spec.resourceClaims")


def _of_template(pod: Pod, name: str, cache: ClaimCache) -> _PodClaim:
    subject, absent = f"the claim of template {name}", "isn't there yet: kube-controller-manager makes it"
    template = cache.templates.get((pod.namespace, name))
    if template is None:
        declared = declared_templates(pod, cache.inventory.devices.rows).get(name)
        if declared is None:
            absent = "isn't there, as there is no such ResourceClaimTemplate: the pod waits until it is created"
            return _PodClaim(subject, None, None, absent)
        template, absent = declared.template, "isn't there yet: the controller makes the template, of the pod's limits"
    requests = requests_of(template.spec.spec if template.spec is not None else None)
    return _PodClaim(subject, None, requests, absent)


def _allocated(subject: str, claim: wire.ResourceClaim, cache: ClaimCache) -> Iterator[str]:
    found = cache.held.of(key_of(claim))
    if not found:
        yield f"{subject} is allocated, and holds no device that is charged"
    for device in found:
        where = f" on {device.node}" if device.node else ""
        model = f" ({device.model})" if device.model else ""
        amounts = f"{human_mebibytes(device.debit.memory)}, {device.debit.cores} cores"
        yield f"{subject} has {device.uuid or device.id.name}{model}{where}: {amounts}"


def _requests(requests: Sequence[wire.DeviceRequest], cache: ClaimCache) -> Iterator[str]:
    """For each request how many devices would do, and why the others wouldn't."""
    until = time.monotonic() + SECONDS * 4
    for request in requests:
        alternatives = request.first_available or ((request.exactly,) if request.exactly is not None else ())
        for each in alternatives:
            name = "/".join(filter(None, (request.name, each.name if request.first_available else "")))
            try:
                known = ClassRequest(name, each, cache.inventory)
            except MalformedObject as error:
                yield f"request {name} can't be read: {error}"
                continue
            if known.rows:
                yield _answer(name, each, known, cache, max(0.0, until - time.monotonic()))


def _answer(name: str, request: wire.ExactRequest, known: ClassRequest, cache: ClaimCache, seconds: float) -> str:
    left, answers = list(known.devices), Counter[str]()
    of_class = len(cache.inventory.classes.get(request.device_class_name or "", ()))
    for position, expression in enumerate(known.expressions):
        kept = selected(left, [expression], seconds=seconds / len(known.expressions), clock=time.monotonic)
        by = f"its class {request.device_class_name}" if position < of_class else f"its selector {_shown(expression)}"
        answers[f"isn't selected by {by}"] += len(left) - len(kept)
        left = kept
    fitting = 0
    for device in left:
        lack = _lack(device, known, cache)
        fitting += not lack
        answers[lack] += bool(lack)
    total = len(known.devices)
    reasons = [f"{number} {text}" for text, number in answers.most_common() if text and number]
    more = [f"{len(reasons) - _MOST_ANSWERS} more reasons"] if len(reasons) > _MOST_ANSWERS else []
    wanted = "every device" if request.allocation_mode == "All" else f"{max(1, request.count or 1)}"
    verdict = f"request {name} asks for {wanted} of class {request.device_class_name}: {fitting} of {total} would do"
    return f"{verdict}; {'; '.join([*reasons[:_MOST_ANSWERS], *more])}" if reasons else verdict


def _lack(device: PublishedDevice, known: ClassRequest, cache: ClaimCache) -> str:
    """Why a selected device can't be given; empty if it can."""
    debit = known.taken(device.model)
    if debit is None:
        return "can't give the amounts that it asks for"
    used = cache.held.used(device)
    if not device.model.shared:
        return "is another claim's" if used.slots else ""
    if device.model.share():  # kube-scheduler counts no memory there
        return ""
    for amount, in_use, written, unit in (
        (debit.memory, used.memory, device.model.row.memory, MEBIBYTE),
        (debit.cores, used.cores, device.model.row.cores, 1),
    ):
        capacity = device.model.capacity.get(device.model.qualified(written))
        if capacity is not None and amount > (free := max(0, int(capacity.value / unit) - in_use)):
            left, needed = f"{free} cores", str(amount)
            if unit == MEBIBYTE:
                needed, left = needed_and_free(amount, free)
            return f"has {left} left, where {needed} are needed"
    return ""


def _shown(expression: str) -> str:
    text = " ".join(expression.split())
    return text if len(text) <= _LONGEST_EXPRESSION else f"{text[:_LONGEST_EXPRESSION]}…"

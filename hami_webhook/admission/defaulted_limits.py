"""The limits that mutation added to a pod, so that its next pass decides them again (docs/spec/core.md#5).

The API server asks us again after a later webhook changed the pod. What the first pass added may be wrong by then: all
cores of a card, where the other webhook added a share of its memory. So an annotation lists what we added. A tenant may
write it, too, and gets what leaving out the listed limits gives.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

import msgspec

from hami_webhook.kube.draft import ContainerDraft, PodDraft

logger = logging.getLogger(__name__)

DEFAULTED = "hami.io/defaulted-limits"
"""`{"CONTAINER": {"RESOURCE": "AMOUNT"}}`, as JSON."""

_LONGEST = 16 << 10
"""Characters of it that are written or read."""

_Listed = dict[str, dict[str, str]]


def drop_defaulted(draft: PodDraft, resources: Set[str]) -> None:
    """Remove the limits, of these resources, that an earlier pass added and nobody changed since."""
    text = draft.original.annotations.get(DEFAULTED)
    if text is None:
        return
    listed = _read(text)
    for container in draft.containers:
        for resource, amount in listed.get(container.name, {}).items():
            if resource in resources and str(container.limits.get(resource)) == amount:
                del container.limits[resource]
                if str(container.requests.get(resource)) == amount:  # the API server copied it there
                    del container.requests[resource]


def note_defaulted(draft: PodDraft, resources: Set[str]) -> None:
    """Write down what this pass added to the limits of these resources, in place of what an earlier one did."""
    text = draft.original.annotations.get(DEFAULTED)
    earlier = {} if text is None else _read(text)
    added = {
        each.name: found
        for each in draft.containers
        if each.limits.changes or text is not None
        if (found := _added(each, resources, earlier.get(each.name, {})))
    }
    encoded = msgspec.json.encode(added, order="sorted").decode() if added else ""
    if 0 < len(encoded) <= _LONGEST:
        draft.annotations[DEFAULTED] = encoded
    elif text is not None:
        del draft.annotations[DEFAULTED]
    if text is not None:
        for container in draft.containers:
            limits, requests = container.limits, container.requests
            for resource in limits.keys() & requests.original.keys() - requests.keys():
                requests[resource] = limits[resource]  # dropped, and decided as before


def _added(container: ContainerDraft, resources: Set[str], earlier: Mapping[str, str]) -> dict[str, str]:
    """The limits that neither the pod's author nor another webhook wrote."""
    limits, requests = container.limits, container.requests
    return {
        resource: str(amount)
        for resource, amount in limits.items()
        if resource in resources
        and (
            earlier.get(resource) == str(limits.original[resource])
            if resource in limits.original
            else resource not in requests.original
        )
    }


def _read(text: str) -> _Listed:
    """What an annotation lists; nothing if it isn't ours, or too long."""
    if len(text) > _LONGEST:
        return {}
    try:
        return msgspec.json.decode(text, type=_Listed)
    except (msgspec.DecodeError, RecursionError):
        logger.debug("annotation %s isn't what we write", DEFAULTED)
        return {}

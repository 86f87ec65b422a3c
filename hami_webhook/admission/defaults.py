"""The limits that mutation added to a pod by itself, so that a later pass decides again about them.

A webhook that comes after ours may add what they depend on, and API servers ask ours again then. The list is an
annotation that anybody can write: it takes out amounts only that the vendor would add itself, and nothing else reads it
(docs/spec/core.md#5).
"""

from __future__ import annotations

from hami_webhook.kube.draft import PodDraft

DEFAULTED = "hami.io/defaulted-limits"
"""Comma-separated `container:resource`."""
_LONGEST = 16 * 1024
"""What is longer isn't read, and not written: those defaults stay."""


def read_defaults(draft: PodDraft) -> None:
    """Read the pod's list of defaulted limits, and mark these limits on its containers."""
    text = draft.annotations.get(DEFAULTED, "")
    if not text or len(text) > _LONGEST:
        return
    listed: dict[str, set[str]] = {}
    for item in text.split(","):
        name, _, resource = item.partition(":")
        listed.setdefault(name, set()).add(resource)
    for container in draft.containers:
        container.listed = listed.get(container.name, ())


def write_defaults(draft: PodDraft) -> None:
    """List the defaults on the pod as they are now."""
    text = ",".join([f"{each.name}:{resource}" for each in draft.containers for resource in each.defaulted])
    if text and len(text) <= _LONGEST:
        draft.annotations[DEFAULTED] = text
    else:
        forget_list(draft)


def forget_list(draft: PodDraft) -> None:
    """Leave no list on a pod without defaults."""
    if DEFAULTED in draft.annotations:
        del draft.annotations[DEFAULTED]

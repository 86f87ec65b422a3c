"""The result of kube-scheduler's filters for a pod: refused nodes, and rules that aren't evaluated here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


class NodeRefusal(Struct, frozen=True):
    """Why kube-scheduler refuses a node before it asks an extender.

    `filter` is the plugin that refuses it first, `reasons` are its words, as FailedScheduling counts them, `why` is a
    sentence with what they are about on this node ("" if there is no more to say).
    """

    filter: str
    reasons: Sequence[str]
    why: str = ""


class NotJudged(Struct, frozen=True):
    """A plugin of kube-scheduler that may refuse the pod and isn't evaluated here, with the reason as a sentence."""

    filter: str
    why: str


class FilteredNodes(Struct, frozen=True):
    """The refused nodes, by name; each other node passes all evaluated filters.

    `pod_refused`: the pod is refused before any node is looked at, and so are all nodes.
    """

    refusals: Mapping[str, NodeRefusal] = {}
    not_judged: Sequence[NotJudged] = ()
    pod_refused: bool = False

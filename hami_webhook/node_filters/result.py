"""What kube-scheduler's filters say of a pod: the nodes that they refuse, and the rules that aren't judged here."""

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
    """A plugin of kube-scheduler that may refuse the pod and isn't judged here, and a sentence that says why."""

    filter: str
    why: str


class FilteredNodes(Struct, frozen=True):
    """The nodes that are refused, by name; each other node passes all filters that are judged.

    `pod_refused`: the pod is refused before any node is looked at, and so are all nodes.
    """

    refusals: Mapping[str, NodeRefusal] = {}
    not_judged: Sequence[NotJudged] = ()
    pod_refused: bool = False

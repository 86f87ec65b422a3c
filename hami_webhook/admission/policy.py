"""Policy at admission: applied when a pod is mutated, checked when it is validated or updated."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from msgspec import Struct

from hami_webhook.admission.denial import Denied
from hami_webhook.devices.keys import PolicyTarget
from hami_webhook.devices.reserved_annotations import owned_in
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Namespace, Pod
from hami_webhook.kube.wire import ReviewedContainer, ReviewedPod
from hami_webhook.policy import evaluation
from hami_webhook.policy.evaluation import PolicyViolation
from hami_webhook.policy.rules import PolicyRule, PolicyRules

MOST_WARNINGS = 10


class PolicyOutcome(Struct, frozen=True):
    """What policy did to a pod.

    `rules` are those that changed an annotation, as in `Changes`. `ignored_namespace_keys` are scheduler-owned keys
    found on the Namespace.
    """

    rules: tuple[str, ...] = ()
    ignored_namespace_keys: tuple[str, ...] = ()


UNTOUCHED = PolicyOutcome()
"""What becomes of a pod that no policy is about."""


class AdmissionContext:
    """Where a pod arrives: its Namespace, and the policies. `has_policy`: they can say anything of its pods."""

    __slots__ = ("has_policy", "namespace", "policies")

    def __init__(self, namespace: Namespace, policies: PolicyRules) -> None:
        self.namespace = namespace
        self.policies = policies
        self.has_policy = bool(policies.rules or namespace.annotations)

    def matching(self, pod: Pod) -> Sequence[PolicyRule]:
        """The rules for a pod there, in the order of the file."""
        return self.policies.matching(self.namespace, pod.labels) if self.policies.rules else ()


def apply(draft: PodDraft, context: AdmissionContext, requested: Collection[PolicyTarget]) -> PolicyOutcome:
    """Write what policy demands on the pod, with one warning for each change, at most 10.

    `requested` are the vendors whose cards the pod requests; without any, nothing happens. It has to come before a
    vendor writes defaults of its own. Applied to its own result it changes nothing. Raises `Denied` (403) if a list
    leaves the pod with nothing; the draft is of no use then.
    """
    if not requested:
        return UNTOUCHED
    namespace, rules = context.namespace, context.matching(draft.original)
    try:
        changes = evaluation.required_changes(draft.annotations, namespace, rules, requested)
    except PolicyViolation as violation:
        raise Denied(403, str(violation), cause="policy") from violation
    for key, value in changes.annotations.items():
        draft.annotations[key] = value
    _warn(draft, changes.sentences)
    return PolicyOutcome(changes.rules, tuple(_ignored(namespace, requested)))


def check(
    pod: Pod, context: AdmissionContext, requested: Collection[PolicyTarget], changed: Set[str] | None = None
) -> None:
    """Raise `Denied` (403) if the pod is looser than policy: mutation was skipped, or another webhook undid it.

    `changed` are the annotation keys that an update changes: only rules that read one of them are checked.
    """
    try:
        evaluation.check(pod.annotations, context.namespace, context.matching(pod), requested, changed)
    except PolicyViolation as violation:
        raise Denied(403, str(violation), cause="policy") from violation


def check_environment(obj: ReviewedPod, pod: Pod, context: AdmissionContext) -> None:
    """Raise `Denied` (403) if a container sets an environment variable that policy denies to pods with cards."""
    for rule in context.matching(pod):
        for container in (*_containers(obj, "init_containers"), *_containers(obj, "containers")):
            denied = rule.deny_env & {item.name for item in container.env or ()} if rule.deny_env else ()
            if denied:
                text = f"container {container.name}: {min(denied)} must not be set in a pod with cards"
                raise Denied(403, f"{text}, by policy {rule.name}; remove it", cause="policy")


def _containers(obj: ReviewedPod, field: str) -> Sequence[ReviewedContainer]:
    return getattr(obj.spec, field) or ()


def _warn(draft: PodDraft, sentences: tuple[str, ...]) -> None:
    """One warning for each change: at most `MOST_WARNINGS` lines, the last of which counts what is left out."""
    kept = sentences if len(sentences) <= MOST_WARNINGS else sentences[: MOST_WARNINGS - 1]
    for line in kept:
        draft.warn(line)
    if len(kept) < len(sentences):
        draft.warn(f"… and {len(sentences) - len(kept)} more annotations set by policy")


def _ignored(namespace: Namespace, requested: Collection[PolicyTarget]) -> list[str]:
    of_vendors = {key for vendor in requested for key in vendor.keys.owned} & namespace.annotations.keys()
    return sorted(of_vendors.union(owned_in(namespace.annotations)))

"""Checks of nodes, device plugins and quotas, as far as they could be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import msgspec

from hami_webhook.charging.recomputer import read_pods
from hami_webhook.cluster.api import JSON, ClusterError, Forbidden, Kind, NotFound
from hami_webhook.devices.lock_annotations import COMMON_LOCK, LockValue
from hami_webhook.doctor.facts import Facts, Find, Finding
from hami_webhook.doctor.node_faults import (
    mixed_managers,
    silent_plugins,
    unhealthy_cards,
    unreadable_registrations,
)
from hami_webhook.kube import wire
from hami_webhook.kube.message_text import counted, first_of
from hami_webhook.kube.objects import Node, ResourceQuota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.idle import held_since, idle_rule
from hami_webhook.quota.recompute import recompute
from hami_webhook.usage.api import GROUP, read_pod_usages

_DEFINITION = "acceleratorquotas.hami.io"
_SETTLED = 3.0
"""Seconds after which a recompute that was due is done, on a cluster that isn't slow."""
_LOOKS = 5
"""How often a quota that drifts is looked at again."""
_BRIEF = 30.0
"""Seconds for which a lock may outlast its pod."""


def _of_nodes(faults: Callable[[Facts, Node], Iterable[str]], remedy: str) -> Find:
    """A check that looks at one node after the other."""

    async def find(facts: Facts) -> AsyncIterator[Finding]:
        facts.require(Kind.NODES)
        for node in facts.view.state.nodes():
            for text in faults(facts, node):
                yield Finding(f"node {node.name}", text, remedy)

    return find


registrations = _of_nodes(
    lambda facts, node: unreadable_registrations(facts.view, node),
    "look at the device plugin's log on this node, and at its annotation",
)
handshakes = _of_nodes(
    lambda facts, node: silent_plugins(facts.view, node, facts.now), "look at the device plugin's pod on this node"
)
cards = _of_nodes(
    lambda facts, node: unhealthy_cards(facts.view, node),
    "docs/runbooks/HamiCardUnhealthy.md has the remedy for each cause",
)
managers = _of_nodes(lambda facts, node: mixed_managers(facts.view, node), "keep one manager for each node")


async def node_locks(facts: Facts) -> AsyncIterator[Finding]:
    """No node is locked for longer than a pod takes to be bound."""
    facts.require(Kind.NODES, Kind.PODS)
    locks = {COMMON_LOCK, *(vendor.lock for vendor in facts.view.vendors.values() if vendor.lock is not None)}
    for node in facts.view.state.nodes():
        for lock in sorted(locks, key=lambda lock: lock.annotation):
            text = node.annotations.get(lock.annotation)
            life = facts.effective.settings.node_lock_timeout if lock == COMMON_LOCK else lock.expires
            fault = _lock_fault(facts, text, life) if text else ""
            if fault:
                remedy = f"kubectl annotate node {node.name} {lock.annotation}-, once no pod is being bound there"
                yield Finding(f"node {node.name}", f"lock {lock.annotation} {fault}", remedy)


def _lock_fault(facts: Facts, text: str, life: float) -> str:
    try:
        held = LockValue.read(text)
    except ValueError as error:
        return f"can't be read: {error}"
    age = facts.now - held.since
    if age > life:
        return f"was taken {age:.0f} s ago, and is to be released after {life:.0f} s"
    if held.holder is not None and age > _BRIEF:
        namespace, name = held.holder
        if not any(pod.name == name for pod in facts.view.state.pods_in(namespace)):
            return f"was taken {age:.0f} s ago for pod {namespace}/{name}, which isn't there"
    return ""


async def quota_limits(facts: Facts) -> AsyncIterator[Finding]:
    """Quotas mean what they say."""
    facts.require(Kind.RESOURCE_QUOTAS)
    for quota in facts.view.caches.all_quotas():
        for misread in facts.view.misreadings(quota):
            remedy = "change the quota so; `hami-webhook quota check FILE` says the same of one in a file"
            yield Finding(f"ResourceQuota {quota.namespace}/{quota.name}", misread.text, remedy)
    process = await facts.process("webhook")
    for quota in facts.view.caches.accelerator_quotas.all():
        if process is not None and not process.settings.submitted_by and quota.per is not None and not quota.per.label:
            fault = "limits each user, but the webhook doesn't stamp pods with their users: all count for one, unknown"
            remedy = "set submittedBy.enabled in the chart, after reading docs/quotas.md"
            yield Finding(f"AcceleratorQuota {quota.name}", fault, remedy)


async def quota_definition(facts: Facts) -> AsyncIterator[Finding]:
    """The definition of AcceleratorQuotas is this version's: a field it lacks isn't stored.

    Our manifests and our chart have one; beside HAMi's chart it is a choice.
    """
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{_DEFINITION}"
    definition = await facts.get(path)
    if definition is None:
        process = await facts.process("controller")
        needed = process is not None and process.settings.webhook_configuration
        fault = "is missing, and all AcceleratorQuotas with it: nothing limits the namespaces that they selected"
        remedy = "apply the manifests again, then the AcceleratorQuotas: they were deleted with their definition"
    else:
        fault = needed = _definition_fault(definition["spec"])
        remedy = "apply the manifests again; with the chart, `helm upgrade` does it"
    if needed:
        yield Finding(f"CustomResourceDefinition {_DEFINITION}", fault, remedy)


def _definition_fault(spec: JSON) -> str:
    version = next((each for each in spec["versions"] if each["name"] == "v1alpha1" and each["served"]), None)
    if version is None:
        return "doesn't serve v1alpha1"
    if "status" not in (version.get("subresources") or {}):
        return "has no subresource status"
    parts = ((version.get("schema") or {}).get("openAPIV3Schema") or {}).get("properties") or {}
    structures: dict[str, type[msgspec.Struct]] = {
        "spec": wire.AcceleratorQuotaSpec,
        "status": wire.AcceleratorQuotaStatus,
    }
    lacking = [
        f"{part}.{member.encode_name}"
        for part, structure in structures.items()
        for member in msgspec.structs.fields(structure)
        if member.encode_name not in ((parts.get(part) or {}).get("properties") or {})
    ]
    return f"is another version's: it has no {', '.join(lacking)}" if lacking else ""


async def quota_drift(facts: Facts) -> AsyncIterator[Finding]:
    """What quotas show as used is what their pods cost."""
    facts.require(Kind.RESOURCE_QUOTAS, Kind.PODS)
    drifting = {(account.quota.namespace, account.name) for account in _accounts(facts) if _drift(facts, account, None)}
    drifts: dict[tuple[str, str], dict[str, tuple[int | None, int]] | None] = {}
    for _ in range(_LOOKS):
        if drifting:
            await facts.sleep(_SETTLED)
        drifts = {each: await _drift_now(facts, *each) for each in sorted(drifting)}
        drifting = {each for each, still in drifts.items() if still is None or still}
    for (namespace, name), still in drifts.items():
        if still:
            text = "; ".join(f"{key}: used is {used}, its pods cost {cost}" for key, (used, cost) in still.items())
            remedy = "look at the controller's log; it corrects quotas within its --quota-resync"
            yield Finding(f"ResourceQuota {namespace}/{name}", text, remedy)


async def _drift_now(facts: Facts, namespace: str, name: str) -> dict[str, tuple[int | None, int]] | None:
    """How a quota drifts now; None if it changed while its pods were listed."""
    try:
        found = await facts.api.get(Kind.RESOURCE_QUOTAS, name, namespace)
        pods = (await facts.api.list(Kind.PODS, namespace)).items
        after = await facts.api.get(Kind.RESOURCE_QUOTAS, name, namespace)
    except NotFound:
        return {}
    if found.get("status") != after.get("status") or found.get("spec") != after.get("spec"):
        return None
    return _drift(facts, QuotaAccount.read(ResourceQuota.from_object(found), facts.view.vendors), pods)


def _drift(facts: Facts, account: QuotaAccount, listed: Sequence[JSON] | None) -> dict[str, tuple[int | None, int]]:
    """The keys of which used isn't what the pods cost; of pods that were just listed, or those that were read."""
    view = facts.view
    pods = view.state.pods_in(account.quota.namespace) if listed is None else read_pods(listed)
    charged = [*pods, *view.claims_in(account.quota.namespace)]
    result = recompute(account, charged, view.vendors, view.capacity, facts.now, facts.effective.options.bounds)
    return {
        key: (account.used.get(key), amount)
        for key, amount in sorted(result.after.used.items())
        if account.used.get(key) != amount
    }


def _accounts(facts: Facts) -> list[QuotaAccount]:
    found = (QuotaAccount.read(quota, facts.view.vendors) for quota in facts.view.caches.all_quotas())
    return [account for account in found if account.hard]


async def idle_pods(facts: Facts) -> AsyncIterator[Finding]:
    """Pods whose quotas say what becomes of idle ones are measured: without figures nothing happens."""
    facts.require(Kind.PODS)
    view = facts.view
    quotas = (*view.caches.all_quotas(), *view.caches.accelerator_quotas.all())
    accounts = [QuotaAccount.read(quota, view.vendors) for quota in quotas if idle_rule(quota) is not None]
    if not accounts:
        return
    try:
        usages = await read_pod_usages(facts.api, "")
    except Forbidden:
        raise
    except ClusterError as error:
        absent = isinstance(error, NotFound)
        why = f"the cluster doesn't serve {GROUP}" if absent else f"{GROUP} doesn't answer: {error}"
        remedy = "turn on the nodes' monitors and the API, as docs/time.md says"
        for account in accounts:
            subject = f"{account.quota.kind} {account.quota.namespace}/{account.quota.name}".replace(" /", " ")
            yield Finding(subject, f"its idleAfter has no effect: {why}", remedy)
        return
    known = {(each.metadata.namespace, each.metadata.name) for each in usages}
    unknown: dict[str, set[str]] = defaultdict(set)
    for pod in view.state.pods():
        held = (held_since(each, pod, view.vendors, view.capacity, facts.now, view.placement_ttl) for each in accounts)
        if (pod.namespace, pod.name) not in known and any(since is not None for since in held):
            unknown[pod.node_name].add(pod.key)
    for node, pods in sorted(unknown.items()):
        named = f"{counted(len(pods), 'pod')} ({first_of(sorted(pods))})"
        fault = f"has no figures of {named}, so that no quota takes them for idle"
        remedy = (
            "see that a pod of the monitor runs on this node; pods without HAMi-core have no figures (docs/used.md)"
        )
        yield Finding(f"node {node}", fault, remedy, advice=True)


async def allocations(facts: Facts) -> AsyncIterator[Finding]:
    """What is written on pods about their cards can be read."""
    facts.require(Kind.PODS)
    for problem in facts.view.state.problems():
        if problem.kind == "Pod":
            remedy = "delete the pod, and find the writer of its annotation"
            yield Finding(f"pod {problem.namespace}/{problem.name}", problem.text, remedy)

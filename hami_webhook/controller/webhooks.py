"""Reconciling our webhook configurations with the device configuration, which the leader does.

With other match conditions the API server sends us too few pods, or all of them. So the match conditions of our
webhooks, which are known by their names, are restored. Other edits may be on purpose and are only reported.

Of two processes with different device configurations only the one that has the Lease writes: a former leader that stood
still reads the Lease before each write, and leaves what its successor wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from itertools import product

from hami_webhook.cluster.api import JSON, Cluster, ClusterError, Conflict, Forbidden, Kind, NotFound
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.match_conditions import CLAIMING_PODS, CLAIMS, match_conditions
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.loops import Sleep, repeat

logger = logging.getLogger(__name__)

LOOP = "webhook configurations"
EVERY = 10.0
"""Seconds between two comparisons."""

CONFIGURATIONS = {
    Kind.MUTATING_WEBHOOKS: "MutatingWebhookConfiguration",
    Kind.VALIDATING_WEBHOOKS: "ValidatingWebhookConfiguration",
}

_MUTATING = "mutate.webhook.hami.io"
_QUOTAS, _NAMES = "quotas.webhook.hami.io", "names.webhook.hami.io"
_MAY_IGNORE = {_QUOTAS, _NAMES, CLAIMING_PODS}
"""Those that only warn, and the one for pods whose claims may be of any driver."""
_Rule = tuple[str, str, str, str, str]
"""One group, version, resource, operation and scope of a webhook's rules."""


def _rules(operations: set[str], resources: set[str], group: str = "") -> set[_Rule]:
    return {(group, "v1", resource, operation, "Namespaced") for resource, operation in product(resources, operations)}


_DRA = "resource.k8s.io"
_RULES = {
    _MUTATING: _rules({"CREATE"}, {"pods"}),
    "validate.webhook.hami.io": _rules({"CREATE"}, {"pods"}),
    "guard.webhook.hami.io": _rules({"UPDATE"}, {"pods", "pods/status"}),
    "bindings.webhook.hami.io": _rules({"CREATE"}, {"pods/binding", "bindings"}),
    "amounts.webhook.hami.io": _rules({"UPDATE"}, {"pods/resize", "pods/ephemeralcontainers"}),
    "policy.webhook.hami.io": _rules({"UPDATE"}, {"pods", "pods/status"}),
    _QUOTAS: _rules({"CREATE", "UPDATE"}, {"resourcequotas"}),
    _NAMES: _rules({"CREATE"}, {"pods"}),
    CLAIMS: _rules({"CREATE"}, {"resourceclaims"}, _DRA) | _rules({"UPDATE"}, {"resourceclaims/status"}, _DRA),
    CLAIMING_PODS: _rules({"CREATE"}, {"pods"}),
}
"""The rules of each webhook in the manifests."""
_OF_CLAIMS = {CLAIMS, CLAIMING_PODS}
"""The webhooks that there are only where claims are charged."""


def webhooks_of(configuration: JSON) -> list[JSON]:
    """The webhooks of a configuration."""
    found = configuration.get("webhooks")
    return [hook for hook in found if isinstance(hook, dict)] if isinstance(found, list) else []


def wanted_conditions(
    vendors: Vendors, extended: Collection[str] = (), labels: Collection[str] = ()
) -> dict[str, list[JSON]]:
    """The `matchConditions` of each of our webhooks by its name; `extended` are resources that DeviceClasses take,
    `labels` those that quotas count pods by.
    """
    return {
        hook: [{"name": each, "expression": expression} for each, expression in conditions.items()]
        for hook, conditions in match_conditions(vendors, extended, labels, stamping=True).items()
    }


def edits_of(kind: Kind, found: JSON, *, claims: bool = False) -> str:
    """What differs in a configuration of ours from the manifests, besides conditions; empty if nothing.

    `claims`: there are webhooks for ResourceClaims too.
    """
    hooks = {hook.get("name"): hook for hook in webhooks_of(found)}
    validating = _RULES.keys() - {_MUTATING} - (set() if claims else _OF_CLAIMS)
    ours = [_MUTATING] if kind is Kind.MUTATING_WEBHOOKS else sorted(validating)
    missing = [name for name in ours if name not in hooks]
    closed = [name for name in ours if name in hooks and name not in _MAY_IGNORE]
    ignoring = [name for name in closed if hooks[name].get("failurePolicy") == "Ignore"]
    other_rules = [name for name in ours if name in hooks and _rules_of(hooks[name]) != _RULES[name]]
    sentences = []
    if missing:
        sentences.append(f"{', '.join(missing)} missing: apply the manifests again")
    if ignoring:
        danger = "pods pass without a charge while no replica answers"
        sentences.append(f"failurePolicy of {', '.join(ignoring)} is Ignore: {danger}")
    if other_rules:
        danger = "requests that they leave out aren't reviewed"
        sentences.append(f"rules of {', '.join(other_rules)} aren't those of the manifests: {danger}")
    return "; ".join(sentences)


class WebhookReconciler:
    """Restores the match conditions of the configurations called `name`, of which there may be one, both or none.

    `leads` is called before each write, and says whether it may be done. `extended` gives the extended resources that
    DeviceClasses take now, `labels` the labels that quotas count pods by. `problem` is what is wrong and can't be
    restored with our rights; empty if nothing.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        vendors: Vendors,
        object_events: ObjectEvents,
        leads: Callable[[], Awaitable[bool]],
        extended: Callable[[], Collection[str]] = tuple,
        labels: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._vendors = vendors
        self._extended = extended
        self._labels = labels
        self._cluster = cluster
        self._name = name
        self._object_events = object_events
        self._leads = leads
        self._problems: dict[Kind, str] = {}
        self._logged: dict[Kind, str] = {}
        self._wanted = wanted_conditions(vendors)
        self._of: tuple[list[str], list[str]] = [], []

    @property
    def problem(self) -> str:
        return "; ".join(problem for problem in self._problems.values() if problem)

    @property
    def problems(self) -> int:
        """The number of configurations that can't be restored."""
        return sum(map(bool, self._problems.values()))

    async def lead(self, sleep: Sleep = asyncio.sleep) -> None:
        """Reconcile until cancelled, as the leader; returns at once without a name."""
        if not self._name:
            return
        try:
            await repeat(self.reconcile, EVERY, sleep)
        finally:
            self._problems.clear()

    async def reconcile(self) -> bool:
        """Reconcile the configurations once; False if somebody else wrote one meanwhile."""
        settled = True
        of = sorted(self._extended()), sorted(self._labels())
        if of != self._of:
            self._wanted, self._of = wanted_conditions(self._vendors, *of), of
        for kind in CONFIGURATIONS:
            try:
                problem = await self._reconcile(kind)
            except Conflict:
                settled = False
                continue
            except ClusterError as error:
                self._log(kind, f"{CONFIGURATIONS[kind]} {self._name} can't be compared: {error}")
                continue
            self._log(kind, problem)
            self._problems[kind] = problem
        return settled

    def _log(self, kind: Kind, problem: str) -> None:
        """Log the problem of a configuration, once for as long as it stays the same."""
        if problem not in ("", self._logged.get(kind)):
            logger.warning("%s", problem)
        self._logged[kind] = problem

    async def _reconcile(self, kind: Kind) -> str:
        """Restore a configuration; the problem with it that remains, empty if none."""
        subject = f"{CONFIGURATIONS[kind]} {self._name}"
        try:
            found = await self._cluster.get(kind, self._name)
        except NotFound:
            return ""
        except Forbidden as error:
            problem = f"{subject} can't be compared with the device configuration: {error}"
            await self._warn(kind, "", "WebhookConditionsUnknown", problem)
            return problem
        uid = str(found["metadata"].get("uid", ""))
        edits = edits_of(kind, found, claims=bool(self._vendors.drivers))
        await self._warn(kind, uid, "WebhookConfigurationEdited", edits)
        hooks = webhooks_of(found)
        changed = [self._corrected(hook) for hook in hooks]
        names = [str(new["name"]) for old, new in zip(hooks, changed, strict=True) if old != new]
        problem = ""
        if names:
            # after the read: who becomes the leader later finds this write done, or refused if it wrote first itself
            if not await self._leads():
                return ""
            meta = {"resourceVersion": found["metadata"].get("resourceVersion")}
            try:
                await self._cluster.patch(kind, self._name, {"metadata": meta, "webhooks": changed})
            except Forbidden as error:
                problem = f"{subject}: {_differ(names)}, and can't be corrected: {error}"
        restored = f"{_differ(names)}, and were corrected" if names and not problem else ""
        await self._warn(kind, uid, "WebhookConditionsMended", restored)
        await self._warn(kind, uid, "WebhookConditionsDiffer", problem)
        return problem

    def _corrected(self, hook: JSON) -> JSON:
        wanted = self._wanted.get(str(hook.get("name")))
        if wanted is None or hook.get("matchConditions") == wanted:
            return hook
        return {**hook, "matchConditions": wanted}

    async def _warn(self, kind: Kind, uid: str, reason: EventReason, message: str) -> None:
        await self._object_events.warn(CONFIGURATIONS[kind], "", self._name, uid, reason, message)


def _rules_of(hook: JSON) -> set[_Rule]:
    """The combinations that a webhook's rules list; wildcards are left as they are."""
    return {
        (group, version, resource, operation, rule.get("scope") or "*")
        for rule in hook.get("rules") or ()
        for group, version, resource, operation in product(
            *(rule.get(key) or () for key in ("apiGroups", "apiVersions", "resources", "operations"))
        )
    }


def _differ(names: list[str]) -> str:
    return f"matchConditions of {', '.join(names)} differ from those of the device configuration"

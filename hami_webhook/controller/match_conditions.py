"""The match conditions of our webhooks, as CEL: they follow from the device configuration.

They name every managed resource, and every annotation that only schedulers write or that says which cards a pod may
get, so that the API server sends us no other pod, but for a warning those that name a resource of a vendor's domain or
of ours, or have one of our resources as an annotation. Of quotas it sends those with keys that only extended
resources have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hami_webhook.admission.misspelt import NameSuggester
from hami_webhook.devices.foreign_scheduler import ForeignScheduler
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import OWNED_LABELS
from hami_webhook.dra.cost import IMPLICIT_RESOURCE
from hami_webhook.kube.objects import QUOTA_GATE, RESERVATION
from hami_webhook.kube.stamps import STAMPS, SUBMITTED_BY
from hami_webhook.policy.evaluation import governed_keys

Conditions = Mapping[str, str]
"""CEL expressions by the names of their conditions, all of which must hold."""

TEMPLATES = "templates.webhook.hami.io"
STAMPED = (
    *("cronjobs", "daemonsets", "deployments", "jobs"),
    *("replicasets", "replicationcontrollers", "statefulsets"),
)
"""The resources of Kubernetes' own kinds that have pod templates and a controller that makes pods of them."""
CLAIMS, CLAIMING_PODS = "claims.webhook.hami.io", "claiming-pods.webhook.hami.io"

_CONTAINERS = "object.spec.containers + object.spec.?initContainers.orValue([])"
_EPHEMERAL = "object.spec.?ephemeralContainers.orValue([])"  # whose embedded fields are those of a container
_AMOUNTS = "[c.?resources.limits.orValue({}), c.?resources.requests.orValue({})]"
_RESERVATION, _STAMP, _STAMPS = f"'{RESERVATION}'", f"'{SUBMITTED_BY}'", [f"'{key}'" for key in STAMPS]
_LIMITS_EXTENDED_RESOURCES = "object.?spec.hard.orValue({}).exists(k, k.contains('/') && !k.startsWith('count/'))"
_CHANGES_NODES = "object.spec.?nodeSelector != oldObject.spec.?nodeSelector"
_ANNOTATIONS = "metadata.?annotations.orValue({})"
_LABELS = "metadata.?labels.orValue({})"


def match_conditions(
    vendors: Vendors, extended: Collection[str] = (), labels: Collection[str] = (), *, stamping: bool = False
) -> dict[str, Conditions]:
    """The conditions of each of our webhooks by its name, those for claims where these are charged.

    `extended` are the extended resources that DeviceClasses take, `labels` those that quotas count pods by. `stamping`:
    pods and their templates are stamped with who submitted them.
    """
    names_managed = requests_managed = _requests_any(_CONTAINERS, vendors.resource_names)
    if vendors.asked_by_annotation:
        requests_managed = f"({requests_managed}\n|| {_asks(vendors)})"
    everywhere, with_cards = _reserved(vendors)
    forges = _forges(everywhere)
    governed = _changes_any(governed_keys(vendors.governed.values()))
    return {
        "mutate.webhook.hami.io": {"asks-for-a-managed-resource": requests_managed},
        "validate.webhook.hami.io": {
            "asks-for-a-managed-resource-or-forges-an-allocation": (
                f"{requests_managed}\n|| {forges}\n|| {_STAMP} in object.{_ANNOTATIONS}"
            )
        },
        "guard.webhook.hami.io": {
            "changes-an-allocation": f"{_changes_allocation(everywhere)}"
            f"{_changes_of_vendors(with_cards, names_managed)}{_changes_request(vendors)}"
            f"{_changes_labels(labels, names_managed)}"
        },
        "bindings.webhook.hami.io": {
            "brings-an-allocation": (
                f"{_forges(everywhere, *with_cards)}"
                + "".join(f"\n|| {key} in object.{_ANNOTATIONS}" for key in (_RESERVATION, *_STAMPS))
                + "".join(f"\n|| '{label}' in object.{_LABELS}" for label in sorted(labels))
            )
        },
        "amounts.webhook.hami.io": {
            "concerns-a-managed-resource": _requests_any(f"{_CONTAINERS}\n+ {_EPHEMERAL}", vendors.resource_names)
        },
        "policy.webhook.hami.io": {
            "changes-which-cards-it-may-get": f"{governed}\n|| {_CHANGES_NODES}",
            "asks-for-a-managed-resource": requests_managed,
        },
        "quotas.webhook.hami.io": {"limits-extended-resources": _LIMITS_EXTENDED_RESOURCES},
        "names.webhook.hami.io": {
            "names-another-resource-of-our-domains": (
                f"{_requests_of_domains(NameSuggester(vendors).domains)}\n|| {_annotated(vendors.resource_names)}"
            ),
            "asks-for-no-managed-resource": f"!{requests_managed}",
        },
        **(_of_claims(vendors, extended, requests_managed) if vendors.drivers else {}),
        **({TEMPLATES: {"may-ask-for-devices": _may_ask_for_devices(vendors)}} if stamping else {}),
    }


def _may_ask_for_devices(vendors: Vendors) -> str:
    """A pod template of a workload may ask for devices, or brings a stamp; or the kind isn't Kubernetes' own, and only
    the webhook finds its templates.
    """
    return (
        f"!(request.resource.resource in [\n{_list_items(STAMPED)}])\n"
        "|| [object.?spec.template, object.?spec.jobTemplate.spec.template].exists(t, t.hasValue() && (\n"
        "(t.?spec.containers.orValue([]) + t.?spec.initContainers.orValue([])).exists(c,\n"
        f"{_AMOUNTS}.exists(m, m.exists(r, r.contains('/'))))\n"
        "|| size(t.?spec.resourceClaims.orValue([])) > 0\n"
        f"|| {_STAMP} in t.?metadata.annotations.orValue({{}})"
        + (
            f"\n|| t.?spec.schedulerName.orValue('') in [\n{_list_items(vendors.asked_by_annotation)}]"
            if vendors.asked_by_annotation
            else ""
        )
        + "))"
    )


def _changes_labels(labels: Collection[str], names_managed: str) -> str:
    """A label that quotas count by is changed, added or removed on a pod that names managed resources."""
    if not labels:
        return ""
    changes = " || ".join(_changes("labels", f"'{label}'") for label in sorted(labels))
    return f"\n|| (({changes})\n&& {names_managed})"


def _of_claims(vendors: Vendors, extended: Collection[str], requests_managed: str) -> dict[str, Conditions]:
    """What of pods and claims may be about devices of configured drivers; a pod doesn't say of which driver its claims
    will be.
    """
    classes = {name for row in vendors.drivers for name in row.device_classes}
    names = {*(f"{IMPLICIT_RESOURCE}{name}" for name in classes), *extended}
    requests = "object.spec.?devices.requests.orValue([]).exists(r,"
    of_classes = f"in [\n{_list_items(classes)}]"
    created = (
        f"{requests}\nr.?exactly.deviceClassName.orValue('') {of_classes}\n"
        f"|| r.?firstAvailable.orValue([]).exists(a, a.deviceClassName {of_classes}))"
    )
    drivers = f"[\n{_list_items({row.driver for row in vendors.drivers})}]"
    allocated = (
        f"object.?status.allocation.devices.results.orValue([]).exists(r, r.driver in {drivers})\n"
        "&& object.?status.allocation != oldObject.?status.allocation"
    )
    return {
        CLAIMS: {"is-of-our-drivers": f"request.?subResource.orValue('') == 'status' ?\n({allocated}) :\n({created})"},
        CLAIMING_PODS: {
            "may-get-claims": (
                "object.spec.?resourceClaims.orValue([]).exists(c, has(c.resourceClaimTemplateName))\n"
                f"|| {_requests_any(_CONTAINERS, names)}"
            ),
            "asks-for-no-managed-resource": f"!{requests_managed}",
        },
    }


def _requests_any(containers: str, names: Collection[str]) -> str:
    """A container names one of the resources, in limits or in requests."""
    return f"({containers}).exists(c,\n{_AMOUNTS}.exists(m, m.exists(r, r in [\n{_list_items(names)}])))"


def _requests_of_domains(domains: Collection[str]) -> str:
    """A container names a resource that begins like one of these, in limits or in requests."""
    of_domain = f"[\n{_list_items(domains)}].exists(d, r.startsWith(d))"
    return f"({_CONTAINERS}).exists(c,\n{_AMOUNTS}.exists(m, m.exists(r, {of_domain})))"


def _annotated(names: Collection[str]) -> str:
    """A resource's name is the key of an annotation."""
    return f"object.{_ANNOTATIONS}.exists(r, r in [\n{_list_items(names)}])"


def _asks(vendors: Vendors) -> str:
    """A pod asks another scheduler for cards by annotation."""
    each = (
        f"({_is_of(scheduler)} && object.{_ANNOTATIONS}.exists(k, {_asks_by(scheduler)}))"
        for scheduler in vendors.foreign
        if scheduler.asks_by
    )
    return "\n|| ".join(each)


def _changes_request(vendors: Vendors) -> str:
    """An annotation by which a pod asks another scheduler for cards is changed, added or removed."""
    return "".join(
        f"\n|| ({_is_of(scheduler)} && [object.{_ANNOTATIONS}, oldObject.{_ANNOTATIONS}].exists(m, m.exists(k,\n"
        f"{_asks_by(scheduler)} && {_changes('annotations', 'k')})))"
        for scheduler in vendors.foreign
        if scheduler.asks_by
    )


def _is_of(scheduler: ForeignScheduler) -> str:
    """A pod names this scheduler as its own."""
    return f"object.spec.?schedulerName.orValue('') in [\n{_list_items(scheduler.scheduler_names)}]"


def _asks_by(scheduler: ForeignScheduler) -> str:
    """The key `k` of an annotation is one by which pods ask the scheduler for cards."""
    assert scheduler.asks_by is not None
    return f"k.matches('^({_in_cel(scheduler.asks_by.pattern)})$')"


def _reserved(vendors: Vendors) -> tuple[str, tuple[str, ...]]:
    """What matches annotations that are reserved on every pod, and besides on those that name managed resources."""
    foreign = (key.replace(".", r"\.") for key in sorted(vendors.foreign_annotations))
    everywhere = "|".join([*foreign, vendors.reserved.everywhere])
    with_cards = vendors.reserved.with_cards
    return _in_cel(f"^({everywhere})$"), (_in_cel(f"^({with_cards})$"),) if with_cards else ()


def _in_cel(pattern: str) -> str:
    """A regular expression as a CEL string has it."""
    return pattern.replace("\\", "\\\\")


def _forges(*owned: str) -> str:
    """The new object has an annotation or label that only schedulers write."""
    matches = " || ".join(f"k.matches('{each}')" for each in owned)
    labels = "".join(f"\n|| '{label}' in object.{_LABELS}" for label in sorted(OWNED_LABELS))
    return f"object.{_ANNOTATIONS}.exists(k, {matches}){labels}"


def _changes_allocation(owned: str) -> str:
    """An annotation or label that only schedulers write is changed, added or removed, or quota's gate is removed."""
    keys = [f"'{label}'" for label in sorted(OWNED_LABELS)]
    labels = "".join(f"\n|| {_changes('labels', key)}" for key in keys)
    stamps = "".join(f"|| {_changes('annotations', key)}\n" for key in _STAMPS)
    return (
        f"{_changes_matching(owned)}"
        f"{labels}\n"
        f"|| {_changes('annotations', _RESERVATION)}\n"
        f"{stamps}"
        f"|| ({_has_gate('oldObject')} && !{_has_gate('object')})"
    )


def _changes_of_vendors(with_cards: tuple[str, ...], names_managed: str) -> str:
    """An annotation of an enabled vendor is changed, added or removed on a pod that names managed resources."""
    return "".join(f"\n|| ({_changes_matching(each)}\n&& {names_managed})" for each in with_cards)


def _changes_matching(owned: str) -> str:
    """An annotation that the expression matches is changed, added or removed."""
    return (
        f"[object.{_ANNOTATIONS}, oldObject.{_ANNOTATIONS}].exists(m, m.exists(k,\n"
        f"k.matches('{owned}')\n"
        f"&& {_changes('annotations', 'k')}))"
    )


def _has_gate(obj: str) -> str:
    """An object has the scheduling gate of quota."""
    return f"{obj}.spec.?schedulingGates.orValue([]).exists(g, g.name == '{QUOTA_GATE}')"


def _changes(entries: str, key: str) -> str:
    """An annotation or a label is changed, added or removed; its key is a CEL expression."""
    return f"object.metadata.?{entries}[?{key}] != oldObject.metadata.?{entries}[?{key}]"


def _changes_any(keys: Collection[str]) -> str:
    """One of the annotations is changed, added or removed."""
    return f"[\n{_list_items(keys)}].exists(k,\n{_changes('annotations', 'k')})"


def _list_items(names: Collection[str]) -> str:
    """The items of a CEL list, four a line."""
    items = [f"'{name}'" for name in sorted(names)]
    return ",\n".join(f"  {', '.join(items[i : i + 4])}" for i in range(0, len(items), 4))

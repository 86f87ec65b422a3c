"""Writes the manifests that name every vendor's resources: `python -m hack.render_manifests`.

The webhooks' conditions name every managed resource, and every annotation that only schedulers write or that policy
governs, of the built-in configuration, so that the API server asks us about no other pod; kube-scheduler's
configuration names the resources it must leave to us. A test compares the files with what this renders.
"""

from __future__ import annotations

from pathlib import Path

from hami_webhook.config import builtin_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.evaluation import governed_keys

MANIFESTS = Path(__file__).parents[1] / "manifests"
KUBELET_COUNTS = frozenset(
    (
        *("mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"),
        *("cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"),
        "enflame.com/shared-gcu",
    )
)
"""Managed resources that a device plugin advertises in the same units: kube-scheduler's own count of them stands."""

VENDORS = Vendors.from_config(builtin_device_config().config)
FOREIGN = "|".join(sorted(key.replace(".", r"\\.") for key in VENDORS.foreign_annotations))
RESERVATION = "hami.io/quota-reservation"
OWNED = (
    r"^(hami\\.io/(vgpu-(node|time|mig-allocations)|bind-(time|phase)|kunlun-allocated|amd-cu-allocated"
    r"|.+-devices-(to-allocate|allocated))"
    r"|huawei\\.com/Ascend.*|predicate-time|assigned-containers|BAIDU_COM_DEVICE_IDX"
    r"|AWS_NEURON_IDS|NEURON_(ALLOC_TIME|ALLOCATED|RESOURCE_TYPE)|CAMBRICON_DSMLU_(ASSIGNED|ASSIGHED|PROFILE)"
    r"|aws\\.amazon\\.com/predicate-node|metax-tech\\.com/(gpu-devices-allocated|predicate-time)"
    r"|enflame\\.com/gcu-(assigned.*|request-size)|iluvatar\\.ai/(gpu-assigned|predicate-.*)"
    r"|mthreads\\.com/(gpu-index|predicate-(node|time))"
    rf"|{FOREIGN})$"
)
"""The scheduler-owned annotations as an RE2 expression, and perhaps a few more; the webhook itself looks exactly."""


def listed(names: list[str], indent: str) -> str:
    """The items of a CEL list."""
    return f",\n{indent}  ".join(", ".join(f"'{n}'" for n in names[i : i + 4]) for i in range(0, len(names), 4))


def asks(names: list[str], indent: str) -> str:
    """CEL: some container or init container names one of the resources, in limits or in requests."""
    return (
        f"(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,\n"
        f"{indent}[c.?resources.limits.orValue({{}}), c.?resources.requests.orValue({{}})]"
        f".exists(m, m.exists(r, r in [\n"
        f"{indent}  {listed(names, indent)}])))"
    )


FORGED = (
    f"object.metadata.?annotations.orValue({{}}).exists(k, k.matches('{OWNED}'))\n"
    "      || 'hami.io/vgpu-node' in object.metadata.?labels.orValue({})"
)
CHANGED = (
    "[object.metadata.?annotations.orValue({}), oldObject.metadata.?annotations.orValue({})].exists(m, m.exists(k,\n"
    f"      k.matches('{OWNED}')\n"
    "      && object.metadata.?annotations[?k] != oldObject.metadata.?annotations[?k]))\n"
    "      || object.metadata.?labels[?'hami.io/vgpu-node'] != oldObject.metadata.?labels[?'hami.io/vgpu-node']\n"
    f"      || object.metadata.?annotations[?'{RESERVATION}'] != oldObject.metadata.?annotations[?'{RESERVATION}']"
)
BROUGHT = f"{FORGED}\n      || '{RESERVATION}' in object.metadata.?annotations.orValue({{}})"


def changes_any(keys: list[str], indent: str) -> str:
    """CEL: the value of one of the annotations changes."""
    return (
        f"[\n{indent}  {listed(keys, indent)}].exists(k,\n"
        f"{indent}object.metadata.?annotations[?k] != oldObject.metadata.?annotations[?k])"
    )


TEMPLATE = """\
# Who is asked about what. Rendered by hack/render_manifests.py, which has the reasons.
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: hami-webhook-admission
webhooks:
- name: mutate.webhook.hami.io
  admissionReviewVersions: [v1]
  clientConfig: &mutate
    service: {{name: hami-webhook, namespace: hami-system, path: /mutate, port: 443}}
  rules:
  - {{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}}
  failurePolicy: Fail
  matchPolicy: Equivalent
  reinvocationPolicy: IfNeeded
  sideEffects: None
  timeoutSeconds: 10
  namespaceSelector:
    matchExpressions:
    - {{key: kubernetes.io/metadata.name, operator: NotIn, values: [hami-system, kube-system]}}
    - {{key: hami.io/webhook, operator: NotIn, values: [ignore]}}
  objectSelector:
    matchExpressions:
    - {{key: hami.io/webhook, operator: NotIn, values: [ignore]}}
  matchConditions:
  - name: asks-for-a-managed-resource
    expression: >-
      {asks}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: hami-webhook-admission
webhooks:
# No objectSelector: a label must not let a pod opt out of its quota.
- name: validate.webhook.hami.io
  admissionReviewVersions: [v1]
  clientConfig: &validate
    service: {{name: hami-webhook, namespace: hami-system, path: /validate, port: 443}}
  rules:
  - {{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}}
  failurePolicy: Fail
  matchPolicy: Equivalent
  sideEffects: NoneOnDryRun
  timeoutSeconds: 10
  namespaceSelector: &others
    matchExpressions:
    - {{key: kubernetes.io/metadata.name, operator: NotIn, values: [hami-system, kube-system]}}
    - {{key: hami.io/webhook, operator: NotIn, values: [ignore]}}   # labels of namespaces are administrators' matter
  matchConditions:
  - name: asks-for-a-managed-resource-or-forges-an-allocation
    expression: >-
      {asks}
      || {forged}
# What only the scheduler, device plugins and nodes may change on a pod; other subresources change no metadata.
- name: guard.webhook.hami.io
  admissionReviewVersions: [v1]
  clientConfig: *validate
  rules:
  - {{apiGroups: [""], apiVersions: [v1], resources: [pods, pods/status], operations: [UPDATE], scope: Namespaced}}
  failurePolicy: Fail
  matchPolicy: Equivalent
  sideEffects: NoneOnDryRun
  timeoutSeconds: 10
  namespaceSelector: *others
  matchConditions:
  - name: changes-an-allocation
    expression: >-
      {changed}
# The API server merges the annotations and labels of a Binding into its pod.
- name: bindings.webhook.hami.io
  admissionReviewVersions: [v1]
  clientConfig: *validate
  rules:
  - {{apiGroups: [""], apiVersions: [v1], resources: [pods/binding, bindings], operations: [CREATE], scope: Namespaced}}
  failurePolicy: Fail
  matchPolicy: Equivalent
  sideEffects: NoneOnDryRun
  timeoutSeconds: 10
  namespaceSelector: *others
  matchConditions:
  - name: brings-an-allocation
    expression: >-
      {brought}
# Amounts can't change, and ephemeral containers can't ask for any.
- name: amounts.webhook.hami.io
  admissionReviewVersions: [v1]
  clientConfig: *validate
  rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods/resize, pods/ephemeralcontainers]
    operations: [UPDATE]
    scope: Namespaced
  failurePolicy: Fail
  matchPolicy: Equivalent
  sideEffects: NoneOnDryRun
  timeoutSeconds: 10
  namespaceSelector: *others
  matchConditions:
  - name: concerns-a-managed-resource
    expression: >-
      {asks_more}
# What policy set on a pod, its user may tighten and not loosen.
- name: policy.webhook.hami.io
  admissionReviewVersions: [v1]
  clientConfig: *validate
  rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods, pods/status]
    operations: [UPDATE]
    scope: Namespaced
  failurePolicy: Fail
  matchPolicy: Equivalent
  sideEffects: NoneOnDryRun
  timeoutSeconds: 10
  namespaceSelector: *others
  matchConditions:
  - name: changes-what-policy-governs
    expression: >-
      {governed}
  - name: asks-for-a-managed-resource
    expression: >-
      {asks}
"""


SCHEDULER = """\
# A stock kube-scheduler as hami-scheduler, with the extender beside it in the same pod. Rendered by
# hack/render_manifests.py.
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: hami-scheduler
  resourceNamespace: hami-system
profiles:
- schedulerName: hami-scheduler
# A pod that was refused is tried again soon after something was freed.
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 3
extenders:
- urlPrefix: http://127.0.0.1:8081
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  weight: 1
  nodeCacheCapable: true
  httpTimeout: 30s
  # What kube-scheduler leaves to us; not what a device plugin advertises in the same units.
  managedResources:
{managed}
"""


def managed_names() -> list[str]:
    return sorted(VENDORS.resource_names)


def governed_names() -> list[str]:
    return sorted(governed_keys(VENDORS.governed.values()))


def render_webhooks() -> str:
    """manifests/base/webhooks.yaml"""
    every = asks(managed_names(), "      ")
    # the embedded fields of an ephemeral container are those of a container
    more = every.replace(
        "object.spec.?initContainers.orValue([])",
        "object.spec.?initContainers.orValue([])\n      + object.spec.?ephemeralContainers.orValue([])",
    )
    governed = changes_any(governed_names(), "      ")
    return TEMPLATE.format(
        asks=every, forged=FORGED, changed=CHANGED, brought=BROUGHT, asks_more=more, governed=governed
    )


def render_scheduler() -> str:
    """manifests/scheduler/kube-scheduler.yaml"""
    ours = sorted(VENDORS.own_names - KUBELET_COUNTS)
    return SCHEDULER.format(managed="\n".join(f"  - {{name: {name}, ignoredByScheduler: true}}" for name in ours))


FILES = {"base/webhooks.yaml": render_webhooks, "scheduler/kube-scheduler.yaml": render_scheduler}

if __name__ == "__main__":
    for path, rendered in FILES.items():
        (MANIFESTS / path).write_text(rendered())

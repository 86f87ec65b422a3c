"""Writes the manifests that follow from the device configuration: `python -m hack.render_manifests`.

In manifests/ that is the built-in one; a test compares the files with what this renders. `--device-config-file FILE
--to FOLDER` renders another one, into a copy of manifests/.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from textwrap import dedent, indent

from hami_webhook.config import FILE_NAME, DeviceConfig, read_text
from hami_webhook.config.drivers import DraSection
from hami_webhook.controller.match_conditions import CLAIMING_PODS, CLAIMS, Conditions, match_conditions
from hami_webhook.device_config import enabled_vendors, load_device_config

MANIFESTS = Path(__file__).parents[1] / "manifests"

HEAD = """\
# Who is asked about what. Rendered by hack/render_manifests.py; the conditions follow from the device configuration.
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
{mutate}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: hami-webhook-admission
webhooks:
"""
VALIDATING = """\
# {comment}
- name: {name}.webhook.hami.io
  admissionReviewVersions: [v1]
  clientConfig:{client}
  rules:
  {rules}
  failurePolicy: {failure}
  matchPolicy: Equivalent
  sideEffects: {effects}
  timeoutSeconds: {seconds}
  namespaceSelector: {selector}
  matchConditions:
{conditions}
"""
SELECTOR = """&others
    matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [hami-system, kube-system]}
    - {key: hami.io/webhook, operator: NotIn, values: [ignore]}   # labels of namespaces are administrators' matter"""
SERVICE = "\n    service: {{name: hami-webhook, namespace: hami-system, path: /{path}, port: 443}}"
CHARGES = {"client": " *validate", "failure": "Fail", "effects": "NoneOnDryRun", "seconds": 10}
WARNS = {"failure": "Ignore", "effects": "None", "seconds": 3}


def _rules(resources: str, operations: str, *, block: bool = False) -> str:
    fields = ['apiGroups: [""]', "apiVersions: [v1]", f"resources: [{resources}]", f"operations: [{operations}]"]
    fields.append("scope: Namespaced")
    return "- " + "\n    ".join(fields) if block else f"- {{{', '.join(fields)}}}"


WEBHOOKS: Sequence[tuple[str, str, str, Mapping[str, object]]] = (
    (
        "validate",
        "No objectSelector: a label must not let a pod opt out of its quota.",
        _rules("pods", "CREATE"),
        {**CHARGES, "client": " &validate" + SERVICE.format(path="validate"), "selector": SELECTOR},
    ),
    (
        "guard",
        "What only the scheduler, device plugins and nodes may change on a pod; other subresources change no metadata.",
        _rules("pods, pods/status", "UPDATE"),
        CHARGES,
    ),
    (
        "bindings",
        "The API server merges the annotations and labels of a Binding into its pod.",
        _rules("pods/binding, bindings", "CREATE"),
        CHARGES,
    ),
    (
        "amounts",
        "Amounts can't change, and ephemeral containers can't ask for any.",
        _rules("pods/resize, pods/ephemeralcontainers", "UPDATE", block=True),
        CHARGES,
    ),
    (
        "policy",
        "What policy set on a pod, its user may tighten and not loosen; and what a pod that waits costs more then is "
        "charged.",
        _rules("pods, pods/status", "UPDATE", block=True),
        CHARGES,
    ),
    (
        "quotas",
        "Warns of quotas that hardly mean what they say, and refuses none.",
        _rules("resourcequotas", "CREATE, UPDATE", block=True),
        {**WARNS, "client": SERVICE.format(path="quotas")},
    ),
    (
        "names",
        "Warns of resources that are nearly called as ours are, in pods that ask for none of ours, and refuses none.",
        _rules("pods", "CREATE"),
        {**WARNS, "client": SERVICE.format(path="names")},
    ),
)
"""The webhooks that validate: their names, why, and what differs."""

OF_CLAIMS = {"claims": CLAIMS, "claiming_pods": CLAIMING_PODS}
"""The webhooks for claims, by their fields in the templates."""
CLAIMS_WEBHOOK = """\
# Only claims of the drivers in the device configuration, which nobody else may let pass.
name: claims.webhook.hami.io
admissionReviewVersions: [v1]
clientConfig:
  service: {{name: {service}, namespace: {namespace}, path: /claims, port: 443}}{bundle}
rules:
- apiGroups: [resource.k8s.io]
  apiVersions: [v1]
  resources: [resourceclaims]
  operations: [CREATE]
  scope: Namespaced
- apiGroups: [resource.k8s.io]
  apiVersions: [v1]
  resources: [resourceclaims/status]
  operations: [UPDATE]
  scope: Namespaced
failurePolicy: Fail
matchPolicy: Equivalent
sideEffects: NoneOnDryRun
timeoutSeconds: 10
namespaceSelector: &others
  matchExpressions:
  - {{key: kubernetes.io/metadata.name, operator: NotIn, values: [{left_out}]}}
  - {{key: hami.io/webhook, operator: NotIn, values: [ignore]}}
matchConditions:
{claims}"""
CLAIMING_PODS_WEBHOOK = """\
# Ignore: a pod doesn't say of which driver its claims will be. What passes is charged when it is allocated.
name: claiming-pods.webhook.hami.io
admissionReviewVersions: [v1]
clientConfig:
  service: {{name: {service}, namespace: {namespace}, path: /validate, port: 443}}{bundle}
rules:
- {{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE], scope: Namespaced}}
failurePolicy: Ignore
matchPolicy: Equivalent
sideEffects: NoneOnDryRun
timeoutSeconds: 5
namespaceSelector: *others
matchConditions:
{claiming_pods}"""
CLAIMS_COMPONENT = """\
# What reviews of claims are added to our configuration. Rendered by hack/render_manifests.py.
- op: add
  path: /webhooks/-
  value:
{claims}
- op: add
  path: /webhooks/-
  value:
{claiming_pods}
"""
CLAIMS_IN_HAMI_CHART = """\
# With our image in HAMi's own chart, and dra: {{enabled: true}} in its device configuration (docs/in-hami-chart.md):
# what charging claims takes beside rbac.yaml. CA_BUNDLE is that of the chart's own webhook. Rendered by
# hack/render_manifests.py; the conditions follow from the device configuration.
{rights}---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: hami-scheduler-claims
webhooks:
-
{claims}
-
{claiming_pods}
"""


def render(device_config: str, source: str) -> dict[str, str]:
    """What the files hold, by their path in manifests/, for a device-config.yaml that messages call `source`.

    Those for claims are left out where no driver's devices are those of an enabled vendor.
    """
    config = load_device_config(device_config, source).config
    conditions = {name: _listed(found) for name, found in match_conditions(enabled_vendors(config)).items()}
    conditions = {name.partition(".")[0]: text for name, text in conditions.items()}
    validating = (
        VALIDATING.format(
            **{
                "name": name,
                "comment": why,
                "rules": rules,
                "selector": "*others",
                "conditions": conditions[name],
                **more,
            }
        )
        for name, why, rules, more in WEBHOOKS
    )
    return {
        "base/webhooks.yaml": HEAD.format(**conditions) + "".join(validating),
        f"device-config/{FILE_NAME}": device_config,
        **_of_claims(config),
    }


def _of_claims(config: DeviceConfig) -> dict[str, str]:
    """The files with the webhooks for claims."""
    found = match_conditions(enabled_vendors(charging_claims(config)))
    texts = {key: dedent(_listed(found[name])) for key, name in OF_CLAIMS.items() if name in found}
    if not texts:
        return {}

    def webhooks(indentation: str, **fields: str) -> dict[str, str]:
        templates = {"claims": CLAIMS_WEBHOOK, "claiming_pods": CLAIMING_PODS_WEBHOOK}
        return {key: indent(template.format(**texts, **fields), indentation) for key, template in templates.items()}

    ours = webhooks(
        "    ", service="hami-webhook", namespace="hami-system", bundle="", left_out="hami-system, kube-system"
    )
    bundle = "\n  caBundle: CA_BUNDLE"
    in_chart = webhooks("  ", service="hami-scheduler", namespace="kube-system", bundle=bundle, left_out="kube-system")
    return {
        "components/claims/webhooks.yaml": CLAIMS_COMPONENT.format(**ours),
        "in-hami-chart/claims.yaml": CLAIMS_IN_HAMI_CHART.format(rights=_rights_in_hami_chart(), **in_chart),
    }


def _rights_in_hami_chart() -> str:
    """What the component grants to the webhook, which includes the controller's, for the account of HAMi's chart."""
    lines = (MANIFESTS / "components" / "claims" / "rbac.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.startswith(("#", "  labels:")))
    role, binding, *_ = kept.replace("hami-webhook-claims", "hami-scheduler-claims").split("---\n")
    ours, theirs = "hami-webhook, namespace: hami-system", "hami-scheduler, namespace: kube-system"
    return f"{role}---\n{binding.replace(ours, theirs)}"


def charging_claims(config: DeviceConfig) -> DeviceConfig:
    """The configuration of an installation that charges claims, which the webhooks for claims are for."""
    dra = (config.section("dra") or DraSection()).model_copy(update={"enabled": True})
    return config.model_copy(update={"dra": dra})


def _listed(conditions: Conditions) -> str:
    """The items of `matchConditions`."""
    return "\n".join(
        f"  - name: {name}\n    expression: |-\n{indent(expression, '      ')}"
        for name, expression in conditions.items()
    )


def render_builtin() -> dict[str, str]:
    """The files of manifests/."""
    text = resources.files("hami_webhook.config").joinpath(FILE_NAME).read_text(encoding="utf-8")
    return render(text, f"built-in {FILE_NAME}")


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="render_manifests", description="Writes what follows from device-config.yaml."
    )
    parser.add_argument("--device-config-file", metavar="FILE", help="default: the built-in one")
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=MANIFESTS, help="default: manifests")
    arguments = parser.parse_args()
    path = arguments.device_config_file
    for name, text in (render(read_text(path), path) if path else render_builtin()).items():
        (arguments.to / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

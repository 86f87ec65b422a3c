"""Writes the rights that the manifests give each role into the package, for `kubectl hami doctor` to check.

`python -m hack.render_rights`; a test compares the file with what this renders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hami_webhook.doctor.process_checks import CLAIMS, LENDING

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "hami_webhook" / "doctor" / "rights.json"
SOURCES = {
    "base/rbac.yaml": "",
    "base/rbac-certificates.yaml": "certificate_secret",
    "base/rbac-configurations.yaml": "webhook_configuration",
    "scheduler/rbac.yaml": "",
    "components/claims/rbac.yaml": CLAIMS,
    "components/conversion/rbac.yaml": "claims",
    "components/placeholders/rbac.yaml": "placeholders",
}
"""The files with rights, each with the setting without which they aren't needed."""
OF_RULES = {
    ("hami-scheduler", "pods", "delete"): "preemption",
    ("hami-scheduler", "pods/status", "patch"): "preemption",
    ("hami-scheduler", "poddisruptionbudgets", "list"): "preemption",
    ("hami-scheduler", "poddisruptionbudgets", "watch"): "preemption",
    ("hami-webhook-controller", "pods/eviction", "create"): LENDING,
    ("hami-webhook-controller", "poddisruptionbudgets", "list"): LENDING,
}
"""Rights of a file that others of it don't share: account, resource and verb, with their setting."""
ROLES = {"hami-webhook": "webhook", "hami-webhook-controller": "controller", "hami-scheduler": "extender"}
"""The roles of processes by their service accounts."""


def render() -> str:
    """The file's text."""
    lines = [json.dumps(right) for path, setting in SOURCES.items() for right in _rights(path, setting)]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _rights(path: str, setting: str) -> Iterator[dict[str, Any]]:
    objects = list(yaml.safe_load_all((ROOT / "manifests" / path).read_text(encoding="utf-8")))
    rules = {(each["kind"], each["metadata"]["name"]): each["rules"] for each in objects if "rules" in each}
    for binding in objects:
        if "roleRef" not in binding or binding["metadata"].get("namespace") == "kube-system":
            continue
        account = binding["subjects"][0]["name"]
        reference = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for rule in rules.get(reference, ()):
            yield from (
                {
                    "role": ROLES[account],
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "name": name,
                    "namespaced": binding["kind"] == "RoleBinding",
                    "setting": "leader_elect"
                    if resource == "leases"
                    else OF_RULES.get((account, resource, verb), setting),
                }
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames") or ("",)
                for verb in rule["verbs"]
            )


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")

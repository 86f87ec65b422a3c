"""The manifests against the program: who is asked about what, and with which flags it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.render_manifests import render_builtin
from hami_webhook.config import add_flags, resolve

MANIFESTS = Path(__file__).parents[2] / "manifests"
POD = {"POD_NAME": "hami-webhook-0", "POD_NAMESPACE": "hami-system"}


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / path).read_text()))


@pytest.mark.parametrize(("path", "text"), render_builtin().items())
def test_the_file_is_as_rendered(path: str, text: str) -> None:
    assert (MANIFESTS / path).read_text() == text, "make render writes it"


def test_the_extender_listens_where_kube_scheduler_asks() -> None:
    (configuration,) = documents("scheduler/kube-scheduler.yaml")
    deployment = documents("scheduler/deployment.yaml")[0]
    scheduler, extender = deployment["spec"]["template"]["spec"]["containers"]
    parser = argparse.ArgumentParser()
    add_flags(parser)
    settings = resolve(parser.parse_args(extender["args"][1:]), POD)
    assert settings.warnings == ()
    assert settings.extender_bind_address is not None
    assert settings.extender_bind_address.is_loopback
    assert configuration["extenders"][0]["urlPrefix"] == f"http://{settings.extender_bind_address}"
    assert configuration["profiles"][0]["schedulerName"] == settings.scheduler_name
    assert scheduler["volumeMounts"][0]["mountPath"] == "/etc/kube-scheduler"


def test_every_request_that_can_write_metadata_of_a_pod_is_reviewed() -> None:
    """Which subresources those are, tests/e2e/test_pod_subresources.py finds out."""
    _, validating = documents("base/webhooks.yaml")
    rules = {hook["name"]: hook["rules"][0] for hook in validating["webhooks"]}
    guard, bindings = rules["guard.webhook.hami.io"], rules["bindings.webhook.hami.io"]
    assert (guard["resources"], guard["operations"]) == (["pods", "pods/status"], ["UPDATE"])
    assert (bindings["resources"], bindings["operations"]) == (["pods/binding", "bindings"], ["CREATE"])


def test_admission_and_the_extender_read_the_same_policy_file() -> None:
    found = []
    for path, name in (("replicas/deployment.yaml", "webhook"), ("scheduler/deployment.yaml", "extender")):
        spec = documents(path)[0]["spec"]["template"]["spec"]
        (container,) = (each for each in spec["containers"] if each["name"] == name)
        (flag,) = (flag for flag in container["args"] if flag.startswith("--policy-file="))
        folder, _, file = flag.removeprefix("--policy-file=").rpartition("/")
        (mount,) = (mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder)
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == mount)
        found.append((volume["configMap"]["name"], file))
    (held,) = (each for each in documents("replicas/deployment.yaml") if each["kind"] == "ConfigMap")
    assert found == [(held["metadata"]["name"], *held["data"])] * 2


def test_pods_without_managed_resources_never_depend_on_us() -> None:
    """Whatever fails closed is asked only under a condition, never about our own namespace or kube-system."""
    for configuration in documents("base/webhooks.yaml"):
        for hook in configuration["webhooks"]:
            assert hook["failurePolicy"] == ("Ignore" if hook["name"].startswith(("quotas.", "names.")) else "Fail")
            assert hook["matchConditions"]
            first = hook["namespaceSelector"]["matchExpressions"][0]
            assert (first["operator"], first["values"]) == ("NotIn", ["hami-system", "kube-system"])
    _, validating = documents("base/webhooks.yaml")
    assert not any("objectSelector" in hook for hook in validating["webhooks"])

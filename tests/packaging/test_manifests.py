"""The manifests against the program: who is asked about what, and with which flags it runs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import yaml

from hack.render_manifests import FILES, KUBELET_COUNTS, OWNED
from hami_webhook.config import add_flags, builtin_device_config, resolve
from hami_webhook.devices.owned import is_scheduler_owned
from hami_webhook.devices.registry import Vendors
from hami_webhook.policy.rules import GENERAL_CHOICES

MANIFESTS = Path(__file__).parents[2] / "manifests"
VENDORS = Vendors.from_config(builtin_device_config().config)
POD = {"POD_NAME": "hami-webhook-0", "POD_NAMESPACE": "hami-system"}


def documents(path: str) -> list[dict]:
    return list(yaml.safe_load_all((MANIFESTS / path).read_text()))


@pytest.mark.parametrize("path", FILES)
def test_the_file_is_as_rendered(path: str) -> None:
    assert (MANIFESTS / path).read_text() == FILES[path]()


def test_kube_scheduler_leaves_to_us_what_kubelet_does_not_count() -> None:
    (configuration,) = documents("scheduler/kube-scheduler.yaml")
    (extender,) = configuration["extenders"]
    listed = {item["name"] for item in extender["managedResources"]}
    assert listed == VENDORS.own_names - KUBELET_COUNTS
    assert all(item["ignoredByScheduler"] for item in extender["managedResources"])


def test_the_extender_listens_where_kube_scheduler_asks() -> None:
    (configuration,) = documents("scheduler/kube-scheduler.yaml")
    deployment = documents("scheduler/deployment.yaml")[0]
    scheduler, extender = deployment["spec"]["template"]["spec"]["containers"]
    parser = argparse.ArgumentParser()
    add_flags(parser)
    settings = resolve(parser.parse_args(extender["args"][1:]), POD)
    assert settings.warnings == ()
    assert settings.extender_bind_address.is_loopback
    assert configuration["extenders"][0]["urlPrefix"] == f"http://{settings.extender_bind_address}"
    assert configuration["profiles"][0]["schedulerName"] == settings.scheduler_name
    assert scheduler["volumeMounts"][0]["mountPath"] == "/etc/kube-scheduler"


def test_every_webhook_names_every_managed_resource() -> None:
    mutating, validating = documents("base/webhooks.yaml")
    hooks = {hook["name"]: hook for hook in validating["webhooks"]}
    by_resource = [hooks[f"{name}.webhook.hami.io"] for name in ("validate", "amounts", "policy")]
    for hook in (*mutating["webhooks"], *by_resource):
        condition = hook["matchConditions"][-1]
        listed = re.findall(r"'([^'^]+/[^'^]+)'", condition["expression"].partition("annotations")[0])
        assert sorted(set(listed)) == sorted(VENDORS.resource_names)


@pytest.mark.parametrize("key", sorted(VENDORS.owned_annotations))
def test_the_guard_sees_every_annotation_that_is_ours(key: str) -> None:
    assert is_scheduler_owned(key)
    assert re.match(OWNED.replace("\\\\", "\\"), key)


@pytest.mark.parametrize("key", sorted(VENDORS.foreign_annotations))
def test_the_guard_sees_every_annotation_of_other_schedulers(key: str) -> None:
    assert not is_scheduler_owned(key)
    assert re.match(OWNED.replace("\\\\", "\\"), key)


@pytest.mark.parametrize("key", ["volcano-sh/vgpu-node", "volcano.sh/vgpu-mode", "scheduling.koordinator.sh/gpu"])
def test_the_guard_takes_other_schedulers_keys_literally(key: str) -> None:
    assert not re.match(OWNED.replace("\\\\", "\\"), key)


def test_every_request_that_can_write_metadata_of_a_pod_is_reviewed() -> None:
    """Which subresources those are, tests/e2e/test_pod_subresources.py finds out."""
    _, validating = documents("base/webhooks.yaml")
    rules = {hook["name"]: hook["rules"][0] for hook in validating["webhooks"]}
    guard, bindings = rules["guard.webhook.hami.io"], rules["bindings.webhook.hami.io"]
    assert (guard["resources"], guard["operations"]) == (["pods", "pods/status"], ["UPDATE"])
    assert (bindings["resources"], bindings["operations"]) == (["pods/binding", "bindings"], ["CREATE"])


@pytest.mark.parametrize(
    "key",
    [
        "hami.io/gpu-scheduler-policy",
        "nvidia.com/use-gpuuuid",
        "hami.io/use-xpu-uuid",
        "team",
        "hami.io/quota-reservation",
    ],
)
def test_the_guard_leaves_what_users_write_alone(key: str) -> None:
    assert not re.match(OWNED.replace("\\\\", "\\"), key)


def test_the_policy_webhook_sees_every_annotation_that_policy_governs() -> None:
    policy = next(
        hook for hook in documents("base/webhooks.yaml")[1]["webhooks"] if hook["name"] == "policy.webhook.hami.io"
    )
    listed = re.findall(r"'([^']+)'", policy["matchConditions"][0]["expression"])
    keys = [key for vendor in VENDORS.governed.values() for key in (*vendor.keys.choices, *vendor.keys.lists)]
    assert sorted(listed) == sorted({*GENERAL_CHOICES, *keys})
    assert policy["rules"][0]["operations"] == ["UPDATE"]


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
            assert hook["failurePolicy"] == "Fail"
            assert hook["matchConditions"]
            first = hook["namespaceSelector"]["matchExpressions"][0]
            assert (first["operator"], first["values"]) == ("NotIn", ["hami-system", "kube-system"])
    _, validating = documents("base/webhooks.yaml")
    assert not any("objectSelector" in hook for hook in validating["webhooks"])

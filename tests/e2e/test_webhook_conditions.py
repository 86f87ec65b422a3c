"""What the controller restores and reports of edited webhook configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import builders
import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import BOTH, SYSTEM, Deployment, Kubectl, both_roles, deployed, eventually
from .objects import GPU, JSON, namespace
from .tenants import tenant

NAME = "hami-webhook-admission"
NVIDIA_ALONE = "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem}\n"
OTHERS = (
    *("huawei.com/AscendReal", "huawei.com/Ascend910", "predicate-time", "AWS_NEURON_IDS", "NEURON_ALLOC_TIME"),
    *("mthreads.com/gpu-index", "enflame.com/gcu-assigned", "CAMBRICON_DSMLU_ASSIGNED"),
)
"""What plugins and schedulers of vendors write that aren't enabled here."""
ROLE = "hami-webhook-configurations"
BINDING = f"e2e-{ROLE}"


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """With one vendor, whose conditions the controller has written in place of those of the manifests."""
    folder = tmp_path_factory.mktemp("program")
    config = folder / "device-config.yaml"
    config.write_text(NVIDIA_ALONE)
    with deployed(plane, folder, "a", flags=("--device-config-file", str(config))) as deployment:
        written = "validatingwebhookconfiguration", NAME
        eventually(lambda: "AWS_NEURON_IDS" in json.dumps(deployment.kubectl.get(*written)["webhooks"]), False)
        yield deployment


def first_condition(kubectl: Kubectl) -> str:
    found = kubectl.get("validatingwebhookconfiguration", NAME)["webhooks"][0]["matchConditions"][0]
    return str(found["expression"])


def edit(kubectl: Kubectl) -> None:
    """Let every pod pass the first webhook, as somebody with `kubectl edit` may."""
    change = [{"op": "replace", "path": "/webhooks/0/matchConditions/0/expression", "value": "false"}]
    kubectl("patch", "validatingwebhookconfiguration", NAME, "--type=json", "-p", json.dumps(change))


def set_operations(kubectl: Kubectl, operations: list[str]) -> None:
    """Have the API server send the first webhook other operations on pods."""
    change = [{"op": "replace", "path": "/webhooks/0/rules/0/operations", "value": operations}]
    kubectl("patch", "validatingwebhookconfiguration", NAME, "--type=json", "-p", json.dumps(change))


def messages(kubectl: Kubectl, reason: str) -> list[str]:
    found = kubectl.get("events", "-A", "--field-selector", f"reason={reason}")["items"]
    return [item["message"] for item in found]


def may_patch(kubectl: Kubectl) -> str:
    """ "yes" or "no", as the API server answers the controller's account."""
    account = f"system:serviceaccount:{SYSTEM}:{BOTH}"
    return kubectl.run(
        "auth", "can-i", "patch", f"validatingwebhookconfigurations/{NAME}", "--as", account
    ).stdout.strip()


def test_an_edited_condition_is_put_right_or_reported(program: Deployment) -> None:
    kubectl = program.kubectl
    rendered = first_condition(kubectl)
    assert "nvidia.com/gpumem" in rendered
    edit(kubectl)
    eventually(lambda: first_condition(kubectl), rendered)
    eventually(lambda: any("were corrected" in text for text in messages(kubectl, "WebhookConditionsMended")))
    eventually(lambda: program.readiness("a"), "")
    # other edits are left, and reported
    set_operations(kubectl, ["DELETE"])
    report = "rules of validate.webhook.hami.io aren't those of the manifests"
    eventually(lambda: any(report in text for text in messages(kubectl, "WebhookConfigurationEdited")))
    set_operations(kubectl, ["CREATE"])
    # with the right to read only
    role = kubectl.get("clusterrole", ROLE)
    read = [{"op": "replace", "path": "/rules/0/verbs", "value": ["get"]}]
    kubectl("patch", "clusterrole", ROLE, "--type=json", "-p", json.dumps(read))
    try:
        # the API server's own view of roles follows a moment later: an edit before that would still be put right
        eventually(lambda: may_patch(kubectl), "no")
        edit(kubectl)
        eventually(lambda: program.metric("a", "hami_webhook_wrong_webhook_configurations"), 1.0)
        said = program.readiness("a")
        assert "matchConditions of validate.webhook.hami.io differ from those of the device configuration" in said
        assert "can't be corrected: " in said
        eventually(lambda: any("can't be corrected: " in text for text in messages(kubectl, "WebhookConditionsDiffer")))
        assert first_condition(kubectl) == "false"
        assert program.ready("a")
        # without any
        kubectl("delete", "clusterrolebinding", BINDING)
        unknown = "can't be compared with the device configuration: "
        eventually(lambda: program.readiness("a").count(unknown), 2)
        eventually(lambda: program.metric("a", "hami_webhook_wrong_webhook_configurations"), 2.0)
        eventually(lambda: bool(messages(kubectl, "WebhookConditionsUnknown")))
    finally:
        kubectl("replace", "-f", "-", stdin=json.dumps(role | {"metadata": {"name": ROLE}}))
        kubectl.apply(*both_roles())
    eventually(lambda: program.metric("a", "hami_webhook_wrong_webhook_configurations"), 0.0)
    assert first_condition(kubectl) == rendered


def test_other_projects_write_their_own_words_where_their_vendor_is_not_enabled(
    program: Deployment, tmp_path: Path
) -> None:
    """A stand-in for MindCluster, Neuron's scheduler and others: an account that writes what theirs write."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    plugin = tenant(kubectl, program.plane, tmp_path, space)
    pods: dict[str, JSON] = {"cpu": {}, "npu": {"huawei.com/Ascend910": "1"}, "gpu": {GPU: "1"}}
    for name, limits in pods.items():
        created = builders.pod(name, namespace=space, annotations=dict.fromkeys(OTHERS, "1"), **limits)
        plugin.apply(created)
        for change in (dict.fromkeys(OTHERS, "2"), dict.fromkeys(OTHERS)):
            patch = json.dumps({"metadata": {"annotations": change}})
            plugin("patch", "pod", name, "-n", space, "--type=merge", "-p", patch)
        # what HAMi's plugins read stays reserved on every pod, whatever is enabled
        for key in ("hami.io/vgpu-devices-allocated", "hami.io/Ascend910-devices-allocated"):
            patch = json.dumps({"metadata": {"annotations": {key: "x"}}})
            done = plugin.run("patch", "pod", name, "-n", space, "--type=merge", "-p", patch)
            assert f"{key} is written by the scheduler and device plugins only" in done.stderr

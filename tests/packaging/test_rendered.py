"""The overlays as kustomize renders them, which is what gets installed."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_webhook.cli import main
from hami_webhook.config import Settings, add_flags, resolve
from hami_webhook.config.settings import KNOWN_PLUGINS
from hami_webhook.device_config import builtin_device_config, enabled_vendors, load_device_config

OVERLAYS = Path(__file__).parents[2] / "manifests" / "overlays"
NAMES = sorted(path.name for path in OVERLAYS.iterdir())
FULL = ("default", "cert-manager")
"""Those with our own scheduler."""

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the overlays")


@cache
def rendered(overlay: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["kubectl", "kustomize", OVERLAYS / overlay], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def objects(overlay: str, *kinds: str) -> list[dict[str, Any]]:
    return [found for found in rendered(overlay) if found["kind"] in kinds]


def containers(overlay: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every Deployment with each of its containers of ours."""
    for deployment in objects(overlay, "Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            if (container.get("args") or [""])[0] == "serve":
                yield deployment, container


def settings_of(deployment: dict[str, Any], container: dict[str, Any]) -> Settings:
    """What a container runs with."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    fields = {"POD_NAME": "pod-0", "POD_NAMESPACE": deployment["metadata"]["namespace"]}
    environment = {each["name"]: each.get("value", "") for each in container["env"]} | fields
    return resolve(parser.parse_args(container["args"][1:]), environment)


def programs(overlay: str) -> dict[str, Settings]:
    """What each Deployment's container of ours runs with."""
    return {
        deployment["metadata"]["name"]: settings_of(deployment, container)
        for deployment, container in containers(overlay)
    }


def used_names(overlay: str) -> set[tuple[str, str]]:
    """Resource and name of what the programs of an overlay ask for by a name of their own."""
    used = set()
    for settings in programs(overlay).values():
        if settings.leader_elect:
            used.add(("leases", f"{settings.leader_elect_resource_name}-controller"))
        if settings.certificate_secret:
            used.add(("secrets", settings.certificate_secret))
        if "controller" in settings.roles:
            for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
                used.add((kind, settings.webhook_configuration))
    for configuration in objects(overlay, "ConfigMap"):
        text = configuration["data"].get("kube-scheduler.yaml")
        if text is not None:
            used.add(("leases", yaml.safe_load(text)["leaderElection"]["resourceName"]))
    return used


def granted_names(overlay: str) -> set[tuple[str, str]]:
    return {
        (resource, name)
        for role in objects(overlay, "Role", "ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or ()
    }


@pytest.mark.integration
@pytest.mark.parametrize("overlay", NAMES)
def test_rights_name_what_the_programs_use(overlay: str) -> None:
    """A Lease whose name is another in the Role is one that nobody ever gets."""
    deployed = overlay if programs(overlay) else "default"  # dev runs the program outside the cluster
    wanted = used_names(deployed)
    assert wanted
    if overlay == deployed:
        assert granted_names(overlay) == wanted
    else:
        assert granted_names(overlay) <= wanted


@pytest.mark.parametrize("overlay", NAMES)
def test_every_account_reads_and_charges_quotas_of_both_kinds(overlay: str) -> None:
    quotas = {("", "resourcequotas"), ("hami.io", "acceleratorquotas")}
    wanted = {(group, name, verb) for group, name in quotas for verb in ("get", "list", "watch")}
    wanted |= {(group, f"{name}/status", "patch") for group, name in quotas}
    accounts = ["hami-webhook", "hami-webhook-controller", *(["hami-scheduler"] if overlay in FULL else [])]
    roles = {role["metadata"]["name"]: role for role in objects(overlay, "ClusterRole")}
    for account in accounts:
        granted = {
            (group, resource, verb)
            for rule in roles[account]["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert wanted <= granted, account
    (definition,) = objects(overlay, "CustomResourceDefinition")
    assert (definition["spec"]["group"], definition["spec"]["names"]["plural"]) == ("hami.io", "acceleratorquotas")


ANYBODY = (
    "any client that reaches it can post reviews and tie up the quota of any namespace; set --client-ca-file or "
    "--api-server-cidrs to accept them from API servers only"
)
"""What the program warns of until `make deploy` is given the API servers' addresses."""

INSTALLED = [overlay for overlay in NAMES if overlay != "dev"]


@pytest.mark.parametrize("overlay", INSTALLED)
def test_each_deployment_runs_with_flags_that_the_program_has_and_does_one_thing(overlay: str) -> None:
    roles = {name: settings.roles for name, settings in programs(overlay).items()}
    expected = {"hami-webhook": {"webhook"}, "hami-webhook-controller": {"controller"}, "hami-scheduler": {"extender"}}
    assert roles == {name: role for name, role in expected.items() if overlay != "drop-in" or name != "hami-scheduler"}
    for deployment, container in containers(overlay):
        settings = settings_of(deployment, container)
        open_to_all = [f'--http_bind "{settings.http_bind}": {ANYBODY}'] if "webhook" in settings.roles else []
        assert list(settings.warnings) == open_to_all
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        open_ports = {"metrics": settings.metrics_bind_address.port}
        if "webhook" in settings.roles:
            open_ports["https"] = settings.http_bind.port
        else:
            assert settings.http_bind.is_loopback
        assert ports == open_ports
    controller = programs(overlay)["hami-webhook-controller"]
    assert controller.leader_elect
    assert controller.certificate_secret == ("" if overlay == "cert-manager" else "hami-webhook-tls")
    assert not programs(overlay)["hami-webhook"].leader_elect
    assert not programs(overlay)["hami-webhook"].certificate_secret


@pytest.mark.parametrize("overlay", INSTALLED)
def test_replicas_of_the_webhook_see_the_serving_pair_alone(overlay: str) -> None:
    (deployment,) = [each for each, _ in containers(overlay) if each["metadata"]["name"] == "hami-webhook"]
    spec = deployment["spec"]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if "secret" in each]
    assert volume["secret"]["secretName"] == "hami-webhook-tls"
    assert [item["key"] for item in volume["secret"]["items"]] == ["tls.crt", "tls.key"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    settings = programs(overlay)["hami-webhook"]
    assert {settings.cert_file, settings.key_file} == {
        f"{mount['mountPath']}/{name}" for name in ("tls.crt", "tls.key")
    }


@pytest.mark.parametrize("overlay", INSTALLED)
def test_only_schedulers_and_device_plugins_may_write_allocations(overlay: str) -> None:
    accounts = programs(overlay)["hami-webhook"].trusted_users
    namespace = "kube-system" if overlay == "drop-in" else "hami-system"
    assert f"system:serviceaccount:{namespace}:hami-scheduler" in accounts
    # tenants make no accounts there
    assert {account.split(":")[2] for account in accounts} <= {"kube-system", "hami-system"}
    plugins = [each if "/" in each else f"hami-system/{each}" for each in KNOWN_PLUGINS]
    assert {f"system:serviceaccount:{each.replace('/', ':')}" for each in plugins} < accounts


@pytest.mark.parametrize("overlay", INSTALLED)
def test_every_pod_has_an_account_a_network_policy_and_a_disruption_budget_of_its_own(overlay: str) -> None:
    deployments = objects(overlay, "Deployment")
    components = {each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"] for each in deployments}
    for kind, field in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        selected = {each["metadata"]["name"]: each["spec"][field]["matchLabels"] for each in objects(overlay, kind)}
        assert selected == components
    for deployment in deployments:
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == deployment["metadata"]["name"]
    exposed = [
        each["metadata"]["name"] for each in objects(overlay, "Service") if each["spec"]["ports"][0]["port"] == 443
    ]
    assert exposed == ["hami-webhook"]


@pytest.mark.parametrize("overlay", INSTALLED)
def test_the_pods_pass_the_restricted_standard(overlay: str) -> None:
    for deployment in objects(overlay, "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.integration
@pytest.mark.parametrize("overlay", INSTALLED)
def test_the_namespace_lets_the_pods_of_the_nodes_mount_their_folders(overlay: str, tmp_path: Path) -> None:
    """Kubernetes' standards `baseline` and `restricted` refuse pods with volumes of the host."""
    paths = (OVERLAYS / overlay, *(OVERLAYS.parent / "components" / name for name in ("node", "monitor")))
    base, *components = (os.path.relpath(path, tmp_path.resolve()) for path in paths)
    (tmp_path / "kustomization.yaml").write_text(json.dumps({"resources": [base], "components": components}))
    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True, timeout=60)
    found = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    assert all("hostPath" in volume for volume in found["DaemonSet"]["spec"]["template"]["spec"]["volumes"])
    assert found["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def mounted(deployment: dict[str, Any], container: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The volume that a container has a file in, and the file's name there."""
    folder, _, name = path.rpartition("/")
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == folder]
    (volume,) = [v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == mount["name"]]
    return volume, name


@pytest.mark.parametrize("overlay", INSTALLED)
def test_every_process_reads_the_one_device_configuration(overlay: str) -> None:
    (found,) = [each for each in objects(overlay, "ConfigMap") if "device-config.yaml" in each["data"]]
    # a name with a hash: pods are replaced when it changes
    assert re.fullmatch(r"hami-device-config-\w+", found["metadata"]["name"])
    for deployment, container in containers(overlay):
        settings = settings_of(deployment, container)
        volume, name = mounted(deployment, container, settings.device_config_file)
        assert (volume["configMap"]["name"], name) == (found["metadata"]["name"], "device-config.yaml")
        assert settings.ignored_sections == ()
    assert load_device_config(found["data"]["device-config.yaml"], "rendered").warnings == ()


@pytest.mark.parametrize("overlay", ["default", "cert-manager"])
def test_kube_scheduler_reads_what_the_init_container_writes(overlay: str, tmp_path: Path) -> None:
    (deployment,) = [each for each in objects(overlay, "Deployment") if each["metadata"]["name"] == "hami-scheduler"]
    spec = deployment["spec"]["template"]["spec"]
    (init,) = spec["initContainers"]
    flags = dict(argument.partition("=")[::2] for argument in init["args"])
    inputs = {}
    for flag in ("--from", "--device-config-file"):
        volume, name = mounted(deployment, init, flags[flag])
        (data,) = [
            o["data"] for o in objects(overlay, "ConfigMap") if o["metadata"]["name"] == volume["configMap"]["name"]
        ]
        inputs[flag] = tmp_path / f"{flag}.yaml"
        inputs[flag].write_text(data[name])
    written = tmp_path / "written.yaml"
    arguments = [argument for argument in init["args"] if argument.partition("=")[0] not in {*inputs, "--to"}]
    main([*arguments, *(f"{flag}={path}" for flag, path in inputs.items()), f"--to={written}"])
    (scheduler,) = [each for each in spec["containers"] if each["name"] == "kube-scheduler"]
    (read,) = [word.removeprefix("--config=") for word in scheduler["command"] if word.startswith("--config=")]
    assert mounted(deployment, scheduler, read) == mounted(deployment, init, flags["--to"])
    assert "emptyDir" in mounted(deployment, init, flags["--to"])[0]
    (extender,) = yaml.safe_load(written.read_text())["extenders"]
    vendors = enabled_vendors(builtin_device_config().config)
    assert {each["name"] for each in extender["managedResources"]} == vendors.ignored_by_scheduler
    assert all(each["ignoredByScheduler"] for each in extender["managedResources"])


def test_with_cert_manager_nobody_of_ours_touches_certificates() -> None:
    resources = {
        resource
        for role in objects("cert-manager", "Role", "ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert "secrets" not in resources


def test_in_development_every_webhook_calls_the_developers_machine() -> None:
    for configuration in objects("dev", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for hook in configuration["webhooks"]:
            assert hook["clientConfig"]["url"].startswith("https://DEV_SERVER/")
            assert set(hook["clientConfig"]) == {"url", "caBundle"}

"""The overlays as kustomize renders them, which is what gets installed."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_webhook.config import Settings, add_flags, resolve

OVERLAYS = Path(__file__).parents[2] / "manifests" / "overlays"
NAMES = sorted(path.name for path in OVERLAYS.iterdir())

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


def programs(overlay: str) -> dict[str, Settings]:
    """What each container of ours runs with, by the Deployment's name."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    found = {}
    for deployment in objects(overlay, "Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            verb, *flags = container.get("args") or [""]
            if verb != "serve":
                continue
            fields = {"POD_NAME": "pod-0", "POD_NAMESPACE": deployment["metadata"]["namespace"]}
            environment = {each["name"]: each.get("value", "") for each in container["env"]} | fields
            found[deployment["metadata"]["name"]] = resolve(parser.parse_args(flags), environment)
    return found


def used_names(overlay: str) -> set[tuple[str, str]]:
    """Resource and name of what the programs of an overlay ask for by a name of their own."""
    used = set()
    for settings in programs(overlay).values():
        if settings.leader_elect:
            used.add(("leases", f"{settings.leader_elect_resource_name}-controller"))
        if settings.certificate_secret:
            used.add(("secrets", settings.certificate_secret))
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

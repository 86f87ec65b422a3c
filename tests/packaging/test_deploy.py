"""hack/deploy with its variables: what it applies, and what it refuses before it applies anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_webhook.cluster.version import OLDEST
from hami_webhook.controller.match_conditions import match_conditions
from hami_webhook.device_config import enabled_vendors, load_device_config

ROOT = Path(__file__).parents[2]
KUBECTL = shutil.which("kubectl")

pytestmark = [pytest.mark.integration, pytest.mark.skipif(KUBECTL is None, reason="kubectl renders the overlays")]

RECORDING = """\
#!/bin/sh
case "$1" in
get) echo '{version}' ;;
kustomize) exec {kubectl} "$@" ;;
api-resources) echo certificates.cert-manager.io ;;
apply) cat > {folder}/applied.yaml ;;
esac
"""


def deploy(
    folder: Path, recording: str = "", *, version: dict[str, str] | None = None, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]] | None]:
    """What `hack/deploy up` does where kubectl only records what it is to apply; None: nothing.

    `recording` is what that kubectl does first.
    """
    message = json.dumps(version or {"major": "1", "minor": "36"}, indent=2)
    script = RECORDING.format(kubectl=KUBECTL, folder=folder, version=message)
    (folder / "kubectl").write_text(script.replace("#!/bin/sh\n", f"#!/bin/sh\n{recording}"))
    (folder / "kubectl").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "hack" / "deploy", "up"],
        env={"PATH": path, "TMPDIR": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    applied = folder / "applied.yaml"
    return done, list(yaml.safe_load_all(applied.read_text())) if applied.exists() else None


def sources(objects: list[dict[str, Any]]) -> tuple[list[dict[str, Any]] | None, str]:
    """Where reviews may come from: by the network policy, and by the program's own setting."""
    (policy,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == ("NetworkPolicy", "hami-webhook")]
    (deployment,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == ("Deployment", "hami-webhook")]
    (rule,) = [rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"port": "https"}]]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (value,) = [each["value"] for each in container["env"] if each["name"] == "HAMI_API_SERVER_CIDRS"]
    return rule.get("from"), value


@pytest.mark.parametrize("overlay", ["default", "cert-manager", "drop-in"])
def test_the_api_servers_addresses_reach_the_network_policy_and_the_program(overlay: str, tmp_path: Path) -> None:
    cidrs = "10.0.0.1/32, 10.0.0.2,fd00::/64"
    done, applied = deploy(tmp_path, OVERLAY=overlay, API_SERVER_CIDRS=cidrs, IMAGE="registry.example/hami-webhook:1")
    assert done.returncode == 0, done.stderr
    assert applied is not None
    blocks = [{"ipBlock": {"cidr": cidr}} for cidr in ("10.0.0.1/32", "10.0.0.2/32", "fd00::/64")]
    assert sources(applied) == (blocks, "10.0.0.1/32,10.0.0.2/32,fd00::/64")
    images = {
        container["image"]
        for found in applied
        if found["kind"] == "Deployment"
        for container in found["spec"]["template"]["spec"]["containers"]
    }
    assert images - {"registry.k8s.io/kube-scheduler:v1.36.3"} == {"registry.example/hami-webhook:1"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["applied.yaml", "kubectl"]


def test_without_them_reviews_may_come_from_anywhere(tmp_path: Path) -> None:
    done, applied = deploy(tmp_path)
    assert done.returncode == 0, done.stderr
    assert applied is not None
    assert sources(applied) == (None, "")


BAD_CIDRS = "deploy: API_SERVER_CIDRS must be a comma list of CIDRs such as 10.0.0.1/32,10.0.0.2"
NO_NETWORK = "does not appear to be an IPv4 or IPv6 network"


def of_cidrs(given: str, reason: str) -> tuple[dict[str, Any], str, str, str]:
    return {"API_SERVER_CIDRS": given}, "none", BAD_CIDRS, reason


CERT_MANAGER = {"OVERLAY": "cert-manager"}


@pytest.mark.parametrize(
    ("variables", "refusing", "begin", "reason"),
    [
        of_cidrs("api.example", f"'api.example' {NO_NETWORK}"),
        of_cidrs("10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        of_cidrs("10.0.0.1/32,10.0.0.2/33", f"'10.0.0.2/33' {NO_NETWORK}"),
        of_cidrs(",", "and not empty"),
        of_cidrs('10.0.0.1"}}]', NO_NETWORK),
        (CERT_MANAGER, "get", "deploy: the cluster of the current kubeconfig doesn't answer", ""),
        (CERT_MANAGER, "api-resources", "deploy: OVERLAY=cert-manager needs cert-manager, which this", "install it"),
        (CERT_MANAGER, "auth", "deploy: the user of the current kubeconfig may not create: namespaces custom", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_or_taken_is_refused_before_anything_is_applied(
    variables: dict[str, Any], refusing: str, begin: str, reason: str, tmp_path: Path
) -> None:
    done, applied = deploy(tmp_path, recording=f'[ "$1" != {refusing} ] || exit 1\n', **variables)
    assert done.returncode == 1
    assert done.stderr.startswith(begin)
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert applied is None


def test_replicas_that_do_not_get_ready_are_a_failure_that_says_so(tmp_path: Path) -> None:
    done, applied = deploy(
        tmp_path, 'case "$*" in *rollout*) exit 1 ;; esac\n', IMAGE="registry.example/hami-webhook:1", TIMEOUT="1s"
    )
    assert done.returncode == 1
    assert "the replicas aren't ready" in done.stderr
    assert applied is not None
    deployments = {each["metadata"]["name"]: each for each in applied if each["kind"] == "Deployment"}
    images = {
        name: [container["image"] for container in each["spec"]["template"]["spec"]["containers"]]
        for name, each in deployments.items()
    }
    ours = "registry.example/hami-webhook:1"
    assert images["hami-webhook"] == images["hami-webhook-controller"] == [ours]
    assert images["hami-scheduler"] == ["registry.k8s.io/kube-scheduler:v1.36.3", ours]
    assert "OVERLAY must be one of" in deploy(tmp_path, OVERLAY="none")[0].stderr


def test_everything_follows_from_another_device_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "nvidia:\n  resourceCountName: hami.io/gpu\n  resourceMemoryName: hami.io/mem\n"
    )
    done, applied = deploy(tmp_path, CONFIG=str(tmp_path / "mine.yaml"), API_SERVER_CIDRS="10.0.0.1/32")
    assert (done.returncode, done.stderr) == (0, "")
    assert applied is not None
    assert sources(applied)[1] == "10.0.0.1/32"
    (held,) = [o for o in applied if o["kind"] == "ConfigMap" and "device-config.yaml" in o["data"]]
    assert held["data"]["device-config.yaml"] == (tmp_path / "mine.yaml").read_text()
    volumes = [
        volume["configMap"]["name"]
        for found in applied
        if found["kind"] == "Deployment"
        for volume in found["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "device-config"
    ]
    assert volumes == [held["metadata"]["name"]] * 3
    vendors = enabled_vendors(load_device_config(held["data"]["device-config.yaml"], "mine.yaml").config)
    conditions = {
        hook["name"]: {each["name"]: each["expression"] for each in hook["matchConditions"]}
        for found in applied
        if found["kind"].endswith("WebhookConfiguration")
        for hook in found["webhooks"]
    }
    assert conditions == match_conditions(vendors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["applied.yaml", "kubectl", "mine.yaml"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nvidia:\n  resourceCountName: gpu\n", "{path}:2: nvidia.resourceCountName: must be a resource name"),
        ("nvidia:\n  a: [", "{path}:3: is not valid YAML"),
        ("", "{path}: is empty"),
        (None, "deploy: CONFIG must name a device-config.yaml: there is no file {path}"),
    ],
)
def test_a_device_configuration_that_cannot_be_used_is_refused(text: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    done, applied = deploy(tmp_path, CONFIG=str(path))
    assert done.returncode == 1
    assert reason.format(path=path) in done.stderr
    if text is not None:
        assert done.stderr.splitlines()[-1] == "deploy: nothing was applied, as CONFIG can't be used"
    assert applied is None


@pytest.mark.parametrize("version", [{"major": "1", "minor": "29"}, {"major": "1", "minor": "28+"}])
def test_an_older_cluster_is_refused_before_anything_is_applied(version: dict[str, str], tmp_path: Path) -> None:
    done, applied = deploy(tmp_path, version=version)
    assert done.returncode == 1
    minor = version["minor"].removesuffix("+")
    expected = f"deploy: the cluster is Kubernetes 1.{minor}, and {'.'.join(map(str, OLDEST))} or newer is needed"
    assert done.stderr == f"{expected}; nothing was applied\n"
    assert applied is None


@pytest.mark.parametrize("version", [{"major": "1", "minor": "30"}, {"major": "1", "minor": "33+"}])
def test_newer_ones_are_fine(version: dict[str, str], tmp_path: Path) -> None:
    done, applied = deploy(tmp_path, version={**version, "emulationMajor": "1", "emulationMinor": "2"})
    assert done.returncode == 0, done.stderr
    assert applied is not None


UNDEPLOYING = """\
#!/bin/sh
case "$1" in
get) {answer} ;;
kustomize) exec {kubectl} "$@" ;;
delete) echo "$@" >> {folder}/deleted ;;
esac
"""


@pytest.mark.parametrize(
    ("answer", "selector", "says"),
    [
        ("true", "", ""),
        ("exit 1", "app.kubernetes.io/component!=definitions", ""),
        (
            "echo acceleratorquota.hami.io/all",
            "app.kubernetes.io/component!=definitions",
            "deploy: AcceleratorQuotas are left, and enforced by nobody; "
            "kubectl delete crd acceleratorquotas.hami.io deletes them\n",
        ),
    ],
    ids=["none", "none can be read", "some"],
)
def test_accelerator_quotas_outlive_the_program(answer: str, selector: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "kubectl").write_text(UNDEPLOYING.format(answer=answer, kubectl=KUBECTL, folder=tmp_path))
    (tmp_path / "kubectl").chmod(0o755)
    done = subprocess.run(
        [ROOT / "hack" / "deploy", "down"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, says, "")
    first, second = (tmp_path / "deleted").read_text().splitlines()
    assert "webhookconfiguration" in first
    assert second.split(" -l ") == ["delete --ignore-not-found -f -", selector]

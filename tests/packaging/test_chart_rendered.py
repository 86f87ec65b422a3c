"""What `helm template` makes of the chart: the overlays' own objects, and a refusal of what can't be meant."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_program import CHART, JSON, ROOT, Helm, built

from hami_webhook.config.load import builtin_text
from hami_webhook.controller.match_conditions import STAMPED, match_conditions
from hami_webhook.device_config import enabled_vendors, load_device_config

MANIFESTS = ROOT / "manifests"
Key = tuple[str, str, str]
"""Kind, namespace and name of an object."""

AS_KUSTOMIZE = ("--set", "image.tag=latest,scheduler.kubeScheduler.image.tag=v1.36.3")
CERT_MANAGER = ("--set", "scheduler.certManager.enabled=true", "--api-versions", "cert-manager.io/v1")
MONITORING = (
    "--set",
    "serviceMonitor.enabled=true,podMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true",
    "--api-versions",
    "monitoring.coreos.com/v1",
)
NODE = ("--set", "node.enabled=true")
MONITOR = (*NODE, "--set", "node.monitor.enabled=true")
USAGE = (*MONITOR, "--set", "usage.enabled=true")
CLAIMS = ("--set", "claims.enabled=true")
CONVERSION = (*CLAIMS, "--set", "claims.mode=labelled")
RENAMED = """\
nvidia:
  resourceCountName: hami.io/gpu
  resourceMemoryName: hami.io/gpumem
enflame:
  resourceNameGCU: hami.io/gcu
vnpus:
  configs:
  - commonWord: Ascend910A
    chipName: 910A
    resourceName: hami.io/npu
    memoryAllocatable: 32768
    memoryCapacity: 32768
    aiCore: 30
kai:
  schedulerNames: [kai-of-ours]
dra:
  devices:
  - {driver: gpu.example.com, deviceClasses: [big.example.com], vendor: NVIDIA, memory: memory}
"""
NAMED = ("hami-webhook", "hami-webhook-admission")
OTHER_DRIVER = yaml.safe_load(RENAMED)["dra"]


pytestmark = [pytest.mark.integration, pytest.mark.skipif(built() is None, reason="helm renders the chart")]


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def kustomized(folder: Path) -> dict[Key, JSON]:
    """An overlay's objects but the Namespace, with the names of ConfigMaps as they are before their hashes."""
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = re.sub(r"(name: hami-(device|scheduler)-config)-[a-z0-9]{10}\b", r"\1", done.stdout)
    return {key(each): comparable(each) for each in yaml.safe_load_all(text) if each["kind"] != "Namespace"}


def charted(helm: Helm, *arguments: str) -> dict[Key, JSON]:
    """The chart's objects but its test, without the checksums that roll pods where kustomize renames ConfigMaps."""
    objects = [each for each in helm.template(*arguments) if "helm.sh/hook" not in annotations_of(each)]
    for each in objects:
        notes = annotations_of(each.get("spec", {}).get("template", {}))
        checksums = [name for name in notes if name.startswith("checksum/")]
        goes_by_config_maps = each["kind"] == "Deployment" and each["metadata"]["name"] != "hami-webhook-usage"
        assert bool(checksums) == goes_by_config_maps
        if checksums:
            assert checksums == list(notes)
            del each["spec"]["template"]["metadata"]["annotations"]
    return {key(each): comparable(each) for each in objects}


def annotations_of(found: JSON) -> dict[str, str]:
    return found.get("metadata", {}).get("annotations") or {}


def key(found: JSON) -> Key:
    return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def comparable(found: JSON) -> JSON:
    """An object in which configurations are read: helm writes them in an order of its own."""
    data = found.get("data", {})
    for name in {"kube-scheduler.yaml", "device-config.yaml"} & data.keys():
        data[name] = yaml.safe_load(data[name])
    return found


def overlay(name: str) -> Path:
    return MANIFESTS / "overlays" / name


def with_components(name: str, components: list[str], folder: Path) -> Path:
    """An overlay with some of the components."""
    base, *more = (
        os.path.relpath(path.resolve(), folder.resolve())
        for path in (overlay(name), *(MANIFESTS / "components" / component for component in components))
    )
    images = yaml.safe_load((overlay(name) / "kustomization.yaml").read_text())["images"]
    written = {"resources": [base], "components": more, "images": images}
    (folder / "kustomization.yaml").write_text(json.dumps(written))
    return folder


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("default", ()),
        ("cert-manager", CERT_MANAGER),
        ("drop-in", ("--set", "dropIn.enabled=true")),
        ("default", MONITORING),
        ("default", NODE),
        ("default", MONITOR),
        ("default", USAGE),
        ("default", CONVERSION),
        ("drop-in", (*CLAIMS, "--set", "dropIn.enabled=true")),
    ],
)
def test_the_objects_are_those_of_the_overlay(helm: Helm, tmp_path: Path, name: str, values: tuple[str, ...]) -> None:
    known = {"monitoring": MONITORING, "node": NODE, "monitor": MONITOR, "usage": USAGE, "claims": CLAIMS}
    known["conversion"] = CONVERSION
    components = [component for component, needed in known.items() if set(needed) <= set(values)]
    expected = kustomized(with_components(name, components, tmp_path) if components else overlay(name))
    found = charted(helm, *AS_KUSTOMIZE, *values)
    if "claims" in components:  # the overlay's user writes this line
        charging = expected["ConfigMap", "hami-system", "hami-device-config"]["data"]
        charging["device-config.yaml"]["dra"]["enabled"] = True
    assert sorted(found) == sorted(expected)
    for each in expected:
        assert found[each] == expected[each]


def test_the_api_servers_addresses_reach_the_network_policy_and_the_program(helm: Helm) -> None:
    found = charted(helm, "--set", "apiServerCIDRs={10.0.0.1/32,fd00::/64}")
    (rule,) = [
        rule
        for rule in found["NetworkPolicy", "hami-system", "hami-webhook"]["spec"]["ingress"]
        if rule["ports"] == [{"port": "https"}]
    ]
    assert rule["from"] == [{"ipBlock": {"cidr": cidr}} for cidr in ("10.0.0.1/32", "fd00::/64")]
    (container,) = pod_spec(found, "hami-webhook")["containers"]
    assert {"name": "HAMI_API_SERVER_CIDRS", "value": "10.0.0.1/32,fd00::/64"} in container["env"]


def test_who_reads_metrics_is_a_value(helm: Helm) -> None:
    values = {"namespaceSelector": {"matchLabels": {"team": "sre"}}, "podSelector": {"matchLabels": None}}
    found = charted(helm, "-f", str(helm.values("values", {"prometheus": values})))
    peers = [{"namespaceSelector": {"matchLabels": {"team": "sre"}}, "podSelector": {}}]
    policies = [each["spec"]["ingress"] for (kind, _, _), each in found.items() if kind == "NetworkPolicy"]
    assert len(policies) == 3
    assert [rules for rules in policies if rules[0] != {"from": peers, "ports": [{"port": "metrics"}]}] == []


@pytest.mark.parametrize("feedback", [False, True])
def test_the_regions_are_mounted_writable_for_priority_feedback_alone(helm: Helm, feedback: bool) -> None:
    monitor = {"enabled": True, "hookPath": "/opt/vgpu", "priorityFeedback": feedback}
    found = charted(helm, "-f", str(helm.values("values", {"node": {"enabled": True, "monitor": monitor}})))
    spec = found["DaemonSet", "hami-system", "hami-webhook-node"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert ("--priority-feedback" in container["args"]) is feedback
    assert {"name": "HOOK_PATH", "value": "/opt/vgpu"} in container["env"]
    regions = {"name": "vgpu", "mountPath": "/opt/vgpu/containers", "readOnly": not feedback}
    lock = {"name": "mig-lock", "mountPath": "/tmp/hami", "readOnly": True}
    claims = {"name": "claims", "mountPath": "/opt/vgpu/claims", "readOnly": True}
    assert container["volumeMounts"] == [lock, regions, claims]
    paths = [volume["hostPath"]["path"] for volume in spec["volumes"]]
    assert paths == ["/tmp/hami", "/opt/vgpu/containers", "/opt/vgpu/claims"]


@pytest.mark.parametrize(
    ("value", "annotation", "folder"),
    [
        ("https://wiki.example/hami", "runbook_url", "https://wiki.example/hami"),
        ("docs/runbooks", "runbook", "docs/runbooks"),
        ("elsewhere/runbooks", "runbook", "docs/runbooks"),
    ],
)
def test_alerts_link_to_where_the_runbooks_are(helm: Helm, value: str, annotation: str, folder: str) -> None:
    """A link in an alert is absolute, or none."""
    found = charted(helm, *MONITORING, "--set", f"prometheusRule.runbooks={value}")
    groups = found["PrometheusRule", "hami-system", "hami-webhook"]["spec"]["groups"]
    pages = {
        rule["alert"]: {key: text for key, text in rule["annotations"].items() if key.startswith("runbook")}
        for group in groups
        for rule in group["rules"]
    }
    assert pages
    assert pages == {alert: {annotation: f"{folder}/{alert}.md"} for alert in pages}


def test_pods_with_claims_can_be_refused_while_no_replica_answers(helm: Helm) -> None:
    policies = []
    for values in (CLAIMS, (*CLAIMS, "--set", "claims.podFailurePolicy=Fail")):
        found = charted(helm, *values)["ValidatingWebhookConfiguration", "", "hami-webhook-admission"]["webhooks"]
        policies.append({each["name"]: each["failurePolicy"] for each in found})
    before, after = policies
    assert before["claiming-pods.webhook.hami.io"] == "Ignore"
    assert after == {**before, "claiming-pods.webhook.hami.io": "Fail"}


def pod_spec(found: dict[Key, JSON], deployment: str) -> JSON:
    spec: JSON = found["Deployment", "hami-system", deployment]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("given", ["an object", "text"])
def test_a_device_configuration_reaches_the_config_map_and_every_condition(helm: Helm, given: str) -> None:
    if given == "text":
        file = helm.folder / "device-config.yaml"
        file.write_text(RENAMED)
        found = charted(helm, *CLAIMS, "--set-file", f"deviceConfig={file}")
    else:
        values = helm.values("values", {"deviceConfig": yaml.safe_load(RENAMED)})
        found = charted(helm, *CLAIMS, "-f", str(values))
    written = found["ConfigMap", "hami-system", "hami-device-config"]["data"]["device-config.yaml"]
    assert written == yaml.safe_load(RENAMED) | {"dra": {**OTHER_DRIVER, "enabled": True}}
    wanted = match_conditions(enabled_vendors(load_device_config(yaml.safe_dump(written), "values").config))
    for configuration in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in found[configuration, "", "hami-webhook-admission"]["webhooks"]:
            for condition in webhook["matchConditions"]:
                exact = wanted[webhook["name"]][condition["name"]]
                assert listed(exact) - listed(condition["expression"]) == set()


def listed(expression: str) -> set[str]:
    """What a condition lists: resources, classes and drivers."""
    return set(re.findall(r"'([^']+)'", "".join(re.findall(r"(?s) in \[(.*?)\]", expression))))


def test_templates_are_stamped_where_that_is_enabled_alone(helm: Helm) -> None:
    portal = "system:serviceaccount:hub:hub"
    values = {
        "enabled": True,
        "controllers": ["system:serviceaccount:kubeflow:training-operator"],
        "portals": [portal, "argocd"],
        "workloads": [{"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"]}],
        "namespaceSelector": {"matchLabels": {"shared": "yes"}},
    }

    def rendered(*more: str | Path) -> tuple[list[JSON], list[str]]:
        found = {each["kind"]: each for each in helm.template(*more) if each["metadata"]["name"] in NAMED}
        hooks = found["MutatingWebhookConfiguration"]["webhooks"]
        (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
        return hooks, [each for each in container["args"] if each.startswith("--submitted-by")]

    hooks, flags = rendered()
    assert ([each["name"] for each in hooks], flags) == (["mutate.webhook.hami.io"], [])
    hooks, flags = rendered("-f", helm.values("stamped", {"submittedBy": values}))
    assert flags == [
        "--submitted-by",
        "--submitted-by-controllers=system:serviceaccount:kubeflow:training-operator",
        f"--submitted-by-portals={portal},argocd",
    ]
    _, templates = hooks
    assert (templates["name"], templates["failurePolicy"]) == ("templates.webhook.hami.io", "Fail")
    assert "objectSelector" not in templates  # a label must not let a template opt out
    stamped = {name for rule in templates["rules"] for name in rule["resources"]}
    assert stamped == {*STAMPED, "pytorchjobs"}
    assert {"key": "shared", "operator": "In", "values": ["yes"]} in templates["namespaceSelector"]["matchExpressions"]
    (condition,) = templates["matchConditions"]
    vendors = enabled_vendors(load_device_config(builtin_text(), "built-in").config)
    assert condition["expression"] == match_conditions(vendors, stamping=True)[templates["name"]][condition["name"]]


def test_a_change_of_what_pods_read_once_rolls_them(helm: Helm) -> None:
    def checksums(*arguments: str) -> dict[str, dict[str, str]]:
        return {
            each["metadata"]["name"]: annotations_of(each["spec"]["template"])
            for each in helm.template(*arguments)
            if each["kind"] == "Deployment"
        }

    before = checksums()
    assert before == checksums("--set-json", 'policies=[{"name":"reloaded"}]')
    values = helm.values("values", {"deviceConfig": yaml.safe_load(RENAMED)})
    assert {name for name, notes in checksums("-f", str(values)).items() if notes != before[name]} == set(before)
    after = checksums("--set", "scheduler.leaderElect=false,scheduler.replicas=1")
    assert {name for name, notes in after.items() if notes != before[name]} == {"hami-scheduler"}


def test_kube_scheduler_is_of_the_clusters_version(helm: Helm) -> None:
    found = charted(helm, "--kube-version", "v1.33.4+vendor.1", "--set", "global.imageRegistry=mirror.example:5000")
    images = {each["name"]: each["image"] for each in pod_spec(found, "hami-scheduler")["containers"]}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert images == {
        "kube-scheduler": "mirror.example:5000/kube-scheduler:v1.33.4",
        "extender": f"mirror.example:5000/hami-webhook:{version}",
    }


def test_what_says_where_pods_run_reaches_each_deployment(helm: Helm) -> None:
    where: dict[str, Any] = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "priorityClassName": "important",
    }
    values = {name: {**where, "replicas": 3} for name in ("webhook", "controller", "scheduler")}
    secrets = {"global": {"imagePullSecrets": ["registry"]}}
    found = charted(helm, "-f", str(helm.values("values", values | secrets)))
    for deployment in ("hami-webhook", "hami-webhook-controller", "hami-scheduler"):
        assert found["Deployment", "hami-system", deployment]["spec"]["replicas"] == 3
        spec = pod_spec(found, deployment)
        assert {name: spec[name] for name in where} == where
        assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_hamis_values_reach_the_programs_and_the_webhooks(helm: Helm) -> None:
    values = {
        "schedulerName": "other-scheduler",
        "devices": {"ascend": {"enabled": False}},
        "scheduler": {
            "leaderElect": False,
            "replicas": 1,
            "defaultSchedulerPolicy": {"nodeSchedulerPolicy": "spread", "gpuSchedulerPolicy": "mutex,binpack"},
            "forceOverwriteDefaultScheduler": False,
            "admissionWebhook": {
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "Never",
                "whitelistNamespaces": ["istio-system"],
                "namespaceSelector": {"matchLabels": {"gpu": "on"}},
                "objectSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
            },
        },
        "webhook": {"extraArgs": ["--legacy-metrics"]},
    }
    found = charted(helm, "-f", str(helm.values("values", values)))
    assert found["Deployment", "hami-system", "hami-scheduler"]["spec"]["replicas"] == 1
    spec = pod_spec(found, "hami-scheduler")
    for flag in ("--scheduler-name=other-scheduler", "--node-scheduler-policy=spread"):
        assert flag in spec["containers"][1]["args"]
    for flag in ("--gpu-scheduler-policy=mutex,binpack", "--force-overwrite-default-scheduler=false"):
        assert flag in spec["containers"][1]["args"]
    for container in (*spec["initContainers"], spec["containers"][1]):
        assert "--enable-ascend" not in container["args"]
        assert "--enable-iluvatar" in container["args"]
    assert pod_spec(found, "hami-webhook")["containers"][0]["args"][-1] == "--legacy-metrics"
    scheduler = found["ConfigMap", "hami-system", "hami-scheduler-config"]["data"]["kube-scheduler.yaml"]
    profiles = ["other-scheduler", "other-scheduler-claims"]
    assert [each["schedulerName"] for each in scheduler["profiles"]] == profiles
    assert scheduler["leaderElection"]["leaderElect"] is False
    leases = found["Role", "hami-system", "hami-webhook-controller"]["rules"][0]
    assert leases["resourceNames"] == ["other-scheduler-controller"]
    (mutating,) = found["MutatingWebhookConfiguration", "", "hami-webhook-admission"]["webhooks"]
    validating = found["ValidatingWebhookConfiguration", "", "hami-webhook-admission"]["webhooks"]
    assert mutating["reinvocationPolicy"] == "Never"
    assert mutating["objectSelector"]["matchExpressions"][-1] == {"key": "team", "operator": "Exists"}
    for webhook in (mutating, *validating):
        assert webhook["failurePolicy"] == "Ignore"
        selector = webhook["namespaceSelector"]
        assert selector["matchLabels"] == {"gpu": "on"}
        assert selector["matchExpressions"][0]["values"] == ["hami-system", "kube-system", "istio-system"]
        assert ("objectSelector" in webhook) == (webhook is mutating)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("/webhook", {"webhook": {"replica": 3}}, "'replica' not allowed"),
        ("/schedulerName", {"schedulerName": "HAMi"}, "does not match pattern"),
        ("/apiServerCIDRs/0", {"apiServerCIDRs": ["10.0.0.1"]}, "does not match pattern"),
        ("/webhook/resources/limits/memory", {"webhook": {"resources": {"limits": {"memory": "1 GB"}}}}, "pattern"),
        ("/scheduler/affinity", {"scheduler": {"affinity": {"nodeaffinity": {}}}}, "'nodeaffinity' not allowed"),
        (
            "/deviceConfig/nvidia/resourceCountName",
            {"deviceConfig": {"nvidia": {"resourceCountName": "one gpu"}}},
            "does not match pattern",
        ),
        ("/controller/extraArgs/0", {"controller": {"extraArgs": ["verbose"]}}, "does not match pattern"),
        ("/policies/0", {"policies": [{"name": "a", "enforced": {}}]}, "'enforced' not allowed"),
        ("/dropIn/schedulerServiceAccount", {"dropIn": {"schedulerServiceAccount": "hami"}}, "does not match pattern"),
        ("/apiServerCIDRs", {"apiServerCIDRs": "10.0.0.1/32"}, "want array"),
        ("/controller/replicas", {"controller": {"replicas": 0}}, "want 1"),
        ("/deviceConfig", {"deviceConfig": 7}, "got number, want"),
        (
            "/scheduler/admissionWebhook/failurePolicy",
            {"scheduler": {"admissionWebhook": {"failurePolicy": "ignore"}}},
            "must be one of",
        ),
        (
            "/scheduler/admissionWebhook/objectSelector/matchExpressions/0/operator",
            {"scheduler": {"admissionWebhook": {"objectSelector": {"matchExpressions": [{"operator": "Is"}]}}}},
            "must be one of",
        ),
        ("/webhook", {"webhook": {"resources": None}}, "missing property 'resources'"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_meant_is_refused_with_its_path(helm: Helm, path: str, value: JSON, reason: str) -> None:
    said = helm.refused("template", CHART, "-f", helm.values("values", value))
    assert "values don't meet the specifications of the schema" in said
    assert [line for line in said.splitlines() if f"at '{path}'" in line and reason in line]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--set", "scheduler.certManager.enabled=true"),
            "scheduler.certManager.enabled: the cluster doesn't serve cert-manager.io/v1: install cert-manager first",
        ),
        (
            ("--set", "podMonitor.enabled=true"),
            "the cluster doesn't serve monitoring.coreos.com/v1: install the Prometheus operator first",
        ),
        (
            ("--set-json", 'deviceConfig="nvidia: {resourceCountName: one gpu}"'),
            'deviceConfig.nvidia.resourceCountName: "one gpu" must be the name of a resource, such as nvidia.com/gpu',
        ),
        (
            ("--set", "scheduler.leaderElect=false"),
            "scheduler.replicas: must be 1, not 2, where scheduler.leaderElect is false: one would schedule against",
        ),
        (
            ("--set", "webhook.extraArgs={-v=4,--log-fromat=json}"),
            "webhook.extraArgs[1]: hami-webhook serve has no flag --log-fromat; did you mean --log-format?",
        ),
        (
            ("--set", "scheduler.extender.extraArgs={--preemtion=off}"),
            "scheduler.extender.extraArgs[0]: hami-webhook serve has no flag --preemtion; did you mean --preemption?",
        ),
        (
            ("--set", "usage.enabled=true,node.enabled=true"),
            "usage.enabled: needs node.enabled and node.monitor.enabled, which measure what it serves",
        ),
        (
            ("--set", "node.enabled=true,node.extraArgs={--xyz}"),
            "node.extraArgs[0]: hami-webhook serve has no flag --xyz; docs/reference.md lists all",
        ),
        (
            ("--set", "deviceConfig.dra.enabled=true"),
            "claims.enabled: must be true where deviceConfig.dra.enabled is: it brings the rights and the webhooks",
        ),
        (
            ("--set", "submittedBy.enabled=true,dropIn.enabled=true"),
            "submittedBy.enabled: with dropIn.enabled this webhook doesn't mutate pods, so it can't stamp them",
        ),
        (
            ("--set", "deviceConfig=[nvidia"),
            "deviceConfig: must be HAMi's device-config.yaml, a mapping of sections: error converting YAML to JSON",
        ),
        (
            ("--kube-version", "v1.29.9"),
            "chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29.9",
        ),
    ],
)
def test_what_the_schema_cannot_know_is_refused_in_a_sentence(
    helm: Helm, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in helm.refused("template", CHART, *arguments)


def test_the_chart_passes_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", CHART, "--strict")

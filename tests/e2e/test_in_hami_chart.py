"""Our image in HAMi's own chart: what it renders runs, with its account and its kube-scheduler's configuration."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from hami_webhook import pki

from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .installation import ALLOCATED, Cluster, card_pod, device_plugins
from .objects import JSON, namespace, quota
from .tenants import tenant
from .test_rights import Right, of_kube_scheduler, right

HAMI = "kube-system"
CHART = Path(__file__).with_name("in-hami-chart.yaml")
DEVICES = ROOT / "tests" / "config" / "charts"
NEXT = {
    **{f"{before}443": f"{before}9443" for before in ("--http_bind=0.0.0.0:", "targetPort: ", "containerPort: ")},
    "port: 443, scheme: HTTPS": "port: 9443, scheme: HTTPS",
    "https://127.0.0.1:443": "https://127.0.0.1:9444",
    "hygon.com/dcu": "hygon.com/hcu",
    "        - --enable-ascend=true\n": "        - --enable-ascend=true\n"
    "        - --extender-bind=127.0.0.1:9444\n"
    "        - --profiling-bind-address=127.0.0.1:6060\n"
    "        - --device-plugin-namespace=kube-system\n"
    "        - --device-plugin-service-account=hami-device-plugin\n",
}
"""What the chart of 2.11 renders otherwise."""
PORTS = {"2.10": 443, "2.11": 9443}
MANIFEST = ROOT / "manifests" / "in-hami-chart" / "rbac.yaml"
SELECTED = "kubernetes.io/service-name=hami-scheduler"


def rendered(version: str) -> list[JSON]:
    """The chart's objects, with the certificates that its jobs make and the device configuration that it renders."""
    text = CHART.read_text()
    for before, after in NEXT.items() if version == "2.11" else ():
        assert before in text
        text = text.replace(before, after)
    objects: list[JSON] = list(yaml.safe_load_all(text))
    pair = pki.generate("hami-scheduler", HAMI, now=datetime.now(UTC), extra_names=("127.0.0.1",))
    files = {"ca": pair.ca.certificate, "tls.crt": pair.serving.certificate, "tls.key": pair.serving.key}
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    for item in objects:
        for webhook in item.get("webhooks") or []:
            webhook["clientConfig"]["caBundle"] = data["ca"]
    meta = {"name": "hami-scheduler-tls", "namespace": HAMI}
    devices = {"metadata": {"name": "hami-scheduler-device", "namespace": HAMI}}
    configuration = (DEVICES / f"hami-{version}.yaml").read_text() + f"\nhami: {{version: '{version}'}}\n"
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data},
        {"apiVersion": "v1", "kind": "ConfigMap", **devices, "data": {"device-config.yaml": configuration}},
        *objects,
    ]


@contextlib.contextmanager
def installed(cluster: Cluster, version: str, *, granted: bool) -> Iterator[None]:
    """The chart, with our manifest that grants what its account lacks, or without; ready for reviews of pods."""
    kubectl, objects = cluster.kubectl, rendered(version)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    leases = "delete", "lease", "hami-scheduler", "hami-scheduler-controller", "-n", HAMI, "--ignore-not-found"
    if granted:
        kubectl("apply", "-f", str(MANIFEST))
    try:
        kubectl("apply", "-f", "-", stdin=listed)
        try:
            kubectl("rollout", "status", "deployment/hami-scheduler", "-n", HAMI, "--timeout=120s")
            eventually(lambda: endpoints(kubectl), [True])
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs(cluster)}") from error
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", stdin=listed)
        kubectl("delete", "--ignore-not-found", "-f", str(MANIFEST))
        kubectl("wait", "pod", "-n", HAMI, "-l", "app.kubernetes.io/name=hami", "--for=delete", "--timeout=120s")
        kubectl(*leases)


def logs(cluster: Cluster) -> str:
    """The end of the logs of both containers."""
    found = sorted((cluster.plane.folder / "pods").glob(f"{HAMI}_hami-scheduler-*/*.log"))
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in found)


def endpoints(kubectl: Kubectl) -> list[bool]:
    """Whether each endpoint of the chart's Service is ready; the Service selects by the role label."""
    slices = kubectl.get("endpointslices", "-n", HAMI, "-l", SELECTED)["items"]
    return [each["conditions"]["ready"] for item in slices for each in item.get("endpoints") or []]


def the_pod(kubectl: Kubectl) -> JSON:
    (found,) = kubectl.get("pods", "-n", HAMI, "-l", "app.kubernetes.io/name=hami")["items"]
    assert isinstance(found, dict)
    return found


@contextlib.contextmanager
def a_namespace_for_plugins(kubectl: Kubectl) -> Iterator[None]:
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    try:
        yield
    finally:
        kubectl("delete", "namespace", SYSTEM)


def is_mutated(kubectl: Kubectl, item: JSON) -> bool:
    """Whether the API server sends pods to us by now: with the chart's failure policy they pass until then."""
    found = json.loads(kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(item)))
    return bool(found["spec"]["schedulerName"] == "hami-scheduler")


def pod_with(space: str, name: str) -> JSON:
    """A pod with one of a resource."""
    found = card_pod(space, "hygon", 1)
    found["spec"]["containers"][0]["resources"] = {"limits": {name: "1"}}
    return found


def metrics(kubectl: Kubectl) -> list[str]:
    with urllib.request.urlopen(f"http://{the_pod(kubectl)['status']['podIP']}:9395/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text.splitlines()


def post(address: str, port: int, path: str) -> tuple[int, str]:
    """What the pod answers somebody who isn't in it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(f"https://{address}:{port}{path}", b"{}", {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def audited(cluster: Cluster, since: int) -> list[JSON]:
    """What our container asked of the API server, but for the API's own description."""
    lines = cluster.plane.audit_log.read_bytes()[since:].decode().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    account = f"system:serviceaccount:{HAMI}:hami-scheduler"
    ours = [entry for entry in entries if entry["user"]["username"] == account and not of_kube_scheduler(entry)]
    return [entry for entry in ours if "objectRef" in entry]


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("version", "granted"), [("2.10", True), ("2.11", False)], ids=["2.10-with-the-right", "2.11-without"]
)
def test_a_pod_is_admitted_charged_placed_bound_and_debited(
    cluster: Cluster, card_node: str, version: str, granted: bool
) -> None:
    """In the chart of 2.11 kube-scheduler speaks HTTPS to the extender's own address, and nobody else reaches it."""
    kubectl = cluster.kubectl
    before = cluster.plane.audit_log.stat().st_size
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2, mem=6000))
    user = tenant(kubectl, cluster.plane, cluster.folder, space)

    def used() -> dict[str, str]:
        """What the quota says, or, without the right to write it, what the process knows."""
        if granted:
            return kubectl.used(space)
        assert kubectl.used(space) == {}
        found = {}
        for key in ("gpu", "gpumem"):
            labels = f'key="limits.nvidia.com/{key}",namespace="{space}",quota="gpu-quota"'
            (value,) = [
                line.rpartition(" ")[2]
                for line in metrics(kubectl)
                if line.startswith(f"hami_webhook_quota_used{{{labels}}}")
            ]
            found[key] = f"{float(value):g}"
        return found

    two_thousand = "2k" if granted else "2000"
    with installed(cluster, version, granted=granted), a_namespace_for_plugins(kubectl):
        eventually(lambda: is_mutated(user, card_pod(space, "probe", 100)))
        assert the_pod(kubectl)["metadata"]["labels"]["hami.io/scheduler-role"] == "leader"
        with device_plugins(cluster):
            user.apply(card_pod(space, "p", 2000))
            assert used() == {"gpu": "1", "gpumem": two_thousand}
            refused = user.refused(card_pod(space, "q", 5000))
            assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=5000, used: " in refused
            eventually(lambda: user.get("pod", "p", "-n", space)["spec"].get("nodeName"), card_node)
            eventually(lambda: user.get("pod", "p", "-n", space)["status"]["phase"], "Running")
            notes = user.get("pod", "p", "-n", space)["metadata"]["annotations"]
            assert notes[ALLOCATED] == f"{card_node}-0,NVIDIA,2000,0:;"
            assert used() == {"gpu": "1", "gpumem": two_thousand}
            user("delete", "pod", "p", "-n", space)
            eventually(used, {"gpu": "0", "gpumem": "0"})
        dear = card_pod(space, "cores", 100)
        dear["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = "150"
        if version == "2.10":
            assert is_mutated(user, dear)
        else:
            assert "value 150 in container main: must be an integer between 0 and 100" in user.refused(dear)
        for path in ("/filter", "/bind"):
            code, words = post(the_pod(kubectl)["status"]["podIP"], PORTS[version], path)
            assert code == (403 if version == "2.10" else 404)
            assert version == "2.11" or f"{path} is answered on loopback only" in words
        for name in ("hygon.com/dcunum", "hygon.com/hcunum"):  # both, whichever the chart's device configuration has
            assert is_mutated(user, pod_with(space, name))
        assert {"hami_scheduler_is_leader 1.0", "hami_scheduler_cache_synced 1.0"} <= set(metrics(kubectl))
        states = [(each["ready"], each["restartCount"]) for each in the_pod(kubectl)["status"]["containerStatuses"]]
        assert states == [(True, 0)] * 2, logs(cluster)
        check_what_is_said(cluster, granted=granted)
        check_rights(cluster, before, granted=granted)


def check_what_is_said(cluster: Cluster, *, granted: bool) -> None:
    """Without the right: once in the log, in an event on the pod, and in metrics what is lost; with it, nothing."""
    kubectl = cluster.kubectl
    uid = the_pod(kubectl)["metadata"]["uid"]
    events = kubectl.get("events", "-n", HAMI, "--field-selector", f"involvedObject.uid={uid},type=Warning")["items"]
    reported = [(event["reason"], event["message"], event["count"]) for event in events if event["source"] == SOURCE]
    sentence = "no right to patch resourcequotas/status: this process enforces quota from its memory"
    (log,) = (cluster.plane.folder / "pods").glob(f"{HAMI}_*_{uid}/vgpu-scheduler-extender.log")
    lines = [line for line in log.read_text().splitlines() if sentence in line]
    backend = "status" if granted else "memory"
    assert f'hami_webhook_quota_backend{{backend="{backend}"}} 1.0' in metrics(kubectl)
    if granted:
        assert (reported, lines) == ([], [])
        return
    assert len(lines) == 1
    ((reason, message, count),) = reported
    assert (reason, count) == ("QuotaStatusForbidden", 1)
    assert message.startswith(sentence)
    assert "manifests/in-hami-chart" in message
    assert 'hami_webhook_problems_total{reason="QuotaStatusForbidden"} 1.0' in metrics(kubectl)


SOURCE = {"component": "hami-scheduler"}


def check_rights(cluster: Cluster, before: int, *, granted: bool) -> None:
    """The chart's rights and ours are all that is needed, and ours is used; doctor misses no others."""
    entries = audited(cluster, before)
    allowed: set[Right] = set()
    forbidden: set[Right] = set()
    for entry in entries:
        verdict = entry["annotations"]["authorization.k8s.io/decision"]
        (allowed if verdict == "allow" else forbidden).add(right(entry))
    others = {("scheduling.koordinator.sh", "devices", "list"), ("hami.io", "acceleratorquotas", "list")}
    assert forbidden <= (set() if granted else others)
    ((rule, *more),) = [item["rules"] for item in yaml.safe_load_all(MANIFEST.read_text()) if "rules" in item]
    ours = ("", "resourcequotas/status", "patch")
    assert rule == {"apiGroups": [ours[0]], "resources": [ours[1]], "verbs": [ours[2]]}
    assert [each["apiGroups"] for each in more] == [["hami.io"], ["hami.io"], ["scheduling.koordinator.sh"]]
    assert (ours in allowed) == granted
    told = json.loads(cluster.kubectl.run("hami", "doctor", "--system-namespace", HAMI, "-o", "json").stdout)
    (checked,) = [each for each in told["checks"] if each["check"] == "rights"]
    lacking = [] if granted else ["may not patch resourcequotas/status"]
    assert [each["fault"] for each in checked["findings"]] == lacking

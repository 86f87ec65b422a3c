"""`kubectl hami doctor`: nothing is found in a healthy installation, and of one fault just that one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from builders import accelerator_quota, card, node
from simulate.files import GPU, JSON, MEM, pod, quota

from hami_webhook import pki
from hami_webhook.doctor.facts import Facts
from hami_webhook.doctor.process_checks import clocks

from .apiserver import ApiServer
from .conftest import Hami
from .installation import NOW, SYSTEM, Installation, lease, reviewed, secret, stamp

WEB, CONFIG, SCHEDULER = "hami-webhook", "hami-device-config", "hami-scheduler-config"
Spoil = Callable[[Installation], object]


def found(run: JSON) -> dict[str, list[tuple[str, str]]]:
    """By check the subjects and faults that were found."""
    return {
        each["check"]: [(finding["subject"], finding["fault"]) for finding in each["findings"]]
        for each in run["checks"]
        if each["findings"]
    }


def advised(run: JSON) -> list[str]:
    """The checks that give advice; none finds a fault."""
    assert (found(run), run["healthy"]) == ({}, True)
    return [each["check"] for each in run["checks"] if each["advice"]]


def check_only_fault(run: JSON, check: str, subject: str, fault: str) -> None:
    """Only this check found something, and first that."""
    faults = found(run)
    assert [check] == list(faults)
    (first, *_) = faults[check]
    assert subject in first[0]
    assert fault in first[1]


def test_a_healthy_installation_has_no_faults(hami: Hami) -> None:
    installation = Installation()
    run = hami(installation.api, "doctor", "-o", "json")
    assert run.err == ""
    assert (run.status, found(run.result), run.result["healthy"]) == (0, {}, True)
    assert [(each["check"], each["unseen"]) for each in run.result["checks"] if each["unseen"] or each["skipped"]] == []
    posts = {path for method, path in installation.api.asked if method != "GET"}
    assert posts == {"/apis/authorization.k8s.io/v1/subjectaccessreviews", "/api/v1/namespaces/team-a/pods"}
    run = hami(installation.api, "doctor")
    assert (run.status, run.out) == (0, "30 checks, 0 faults\n")
    assert hami(installation.api, "doctor", "-o", "wide").out.count("OK ") == 30


def hook(installation: Installation, name: str) -> JSON:
    kind = "MutatingWebhookConfiguration" if name.startswith("mutate") else "ValidatingWebhookConfiguration"
    return next(each for each in installation.find(kind, "hami-webhook-admission")["webhooks"] if each["name"] == name)


def set_bundle(installation: Installation, bundle: bytes) -> None:
    for name in ("mutate.webhook.hami.io", "guard.webhook.hami.io"):
        hook(installation, name)["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()


def rewrite(installation: Installation, name: str, before: str, after: str) -> None:
    data = installation.find("ConfigMap", name)["data"]
    for file, text in data.items():
        assert before in text
        data[file] = text.replace(before, after)


def extender_moved(installation: Installation) -> None:
    """As HAMi's chart of 2.11 moves it, where kube-scheduler's configuration stays as it was."""
    for container in installation.find("Deployment", "hami-scheduler")["spec"]["template"]["spec"]["containers"]:
        if "serve" in container.get("args", ()):
            container["args"].append("--extender-bind=127.0.0.1:9444")


NOTES = {
    "handshake": "node-handshake",
    "lock": "mutex.lock",
    "register": "node-nvidia-register",
    "sick": "unhealthy-cards",
}
FALLEN = "card GPU-1 is unhealthy: its driver reported XID 79 (fallen off the bus); no new pod gets it"


def annotate(installation: Installation, **notes: str) -> None:
    found = installation.find("Node", "n1")
    found["metadata"]["annotations"] |= {f"hami.io/{NOTES[key]}": text for key, text in notes.items()}


def volcano(installation: Installation) -> None:
    installation.find("Node", "n1")["metadata"]["annotations"]["volcano.sh/node-vgpu-register"] = "x"


def silent(installation: Installation) -> None:
    annotate(installation, handshake=f"Requesting_{NOW - timedelta(minutes=5):%Y-%m-%d %H:%M:%S}")
    installation.find("Node", "n1")["status"]["allocatable"] = {}


def stopped(installation: Installation) -> None:
    """A device plugin whose connection to kubelet ended, after the handshake that it left unanswered was removed."""
    installation.find("Node", "n1")["status"]["allocatable"] = {"nvidia.com/gpu": "0"}


def scale(installation: Installation, name: str, replicas: int, ready: int) -> None:
    found = installation.find("Deployment", name)
    found["spec"]["replicas"], found["status"] = replicas, {"readyReplicas": ready}


def replace(installation: Installation, new: JSON) -> None:
    installation.remove(new["kind"], new["metadata"]["name"])
    installation.objects.append(new)


def container_of(installation: Installation, name: str) -> JSON:
    (found,) = installation.find("Deployment", name)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def refuse_pods(installation: Installation, code: int, message: str) -> None:
    installation.api.pod = lambda _: (code, {"message": message, "code": code})


def bound_without_reading(installation: Installation) -> None:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,much,0:;"}
    bad = pod("bad", gpu=1, mem=1000, annotations=notes, nodeName="n1")
    bad["metadata"]["uid"] = "bad"
    installation.objects.append(bad)
    installation.find("ResourceQuota", "gpu-quota")["status"]["used"] = {GPU: "1", MEM: "1000"}


def let_anybody_in(installation: Installation, servers: tuple[str, ...] = ("10.0.0.1",), source: str = "") -> None:
    containers = installation.find("Deployment", WEB)["spec"]["template"]["spec"]["containers"]
    (variable,) = (each for each in containers[0]["env"] if each["name"] == "HAMI_API_SERVER_CIDRS")
    variable["value"] = ""
    meta = {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}}
    installation.objects.append({"kind": "EndpointSlice", "metadata": meta, "endpoints": [{"addresses": [*servers]}]})

    def warnings(pod: JSON) -> list[str]:
        asked = "hami.io/report-review-source" in pod["metadata"].get("annotations", {})
        return ['another "one"', f"[review-source] the review came from {source}"] if asked and source else []

    installation.api.warnings = warnings


@pytest.mark.parametrize(
    ("servers", "source", "networks"),
    [
        (("10.0.0.2", "10.0.0.1"), "10.0.0.1", ["10.0.0.1/32", "10.0.0.2/32"]),
        (("10.0.0.9", "10.0.0.10"), "", ["10.0.0.9/32", "10.0.0.10/32"]),
        (("2001:db8::1",), "2001:db8::1", ["2001:db8::1/128"]),
        (("34.1.2.3",), "10.4.0.7", ["34.1.2.3/32", "10.4.0.7/32"]),  # behind a proxy in the cluster
        ((), "10.4.0.7", ["10.4.0.7/32"]),
    ],
)
def test_the_lines_that_let_only_the_api_server_in(
    hami: Hami, servers: tuple[str, ...], source: str, networks: list[str]
) -> None:
    installation = Installation()
    let_anybody_in(installation, servers, source)
    run = hami(installation.api, "doctor", "-o", "json")
    assert (run.status, run.result["healthy"]) == (0, True)
    ((check, (finding,)),) = ((each["check"], each["advice"]) for each in run.result["checks"] if each["advice"])
    listed = ", ".join(f'"{each}"' for each in networks)
    assert finding["remedy"].splitlines() == [
        f"make deploy API_SERVER_CIDRS={','.join(networks)}",
        f"or, with the chart, the value apiServerCIDRs: [{listed}]",
    ]
    behind = bool(servers) and source not in ("", *servers)
    assert (f"came from {source}, not from" in finding["fault"], "behind NAT" in finding["fault"]) == (behind,) * 2
    line = f"ADVICE review-sources: {finding['subject']}: {finding['fault']}"
    assert [len(sentence.split()) <= 25 for sentence in line.split(". ")] == [True] * (1 + behind)
    out = hami(installation.api, "doctor").out
    assert out.startswith(f"30 checks, 0 faults\nADVICE {check}: ")
    assert all(f"      {line}\n" in out for line in finding["remedy"].splitlines())


def test_a_client_certificate_or_a_network_policy_is_enough(hami: Hami) -> None:
    installation = Installation()
    let_anybody_in(installation)
    installation.find("Deployment", WEB)["spec"]["template"]["spec"]["containers"][0]["env"].append(
        {"name": "HAMI_CLIENT_CA_FILE", "value": "/etc/clients/ca.crt"}
    )
    assert advised(hami(installation.api, "doctor", "-o", "json").result) == []
    installation = Installation()
    let_anybody_in(installation)
    rule = {"ports": [{"port": "https"}], "from": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}
    installation.find("NetworkPolicy", WEB)["spec"]["ingress"] = [rule]
    assert advised(hami(installation.api, "doctor", "-o", "json").result) == []
    rule["from"].append({"ipBlock": {"cidr": "0.0.0.0/0"}})  # type: ignore[attr-defined]  # the list above
    assert advised(hami(installation.api, "doctor", "-o", "json").result) == ["review-sources"]


def api_server_lease(renewed: float) -> JSON:
    made = lease("apiserver-x", "kube-system", renewed)
    made["metadata"]["labels"] = {"apiserver.kubernetes.io/identity": "kube-apiserver"}
    return made


def definition(installation: Installation) -> JSON:
    version: JSON
    (version,) = installation.find("CustomResourceDefinition", "acceleratorquotas.hami.io")["spec"]["versions"]
    return version


def delete_the_definition(installation: Installation) -> None:
    """All AcceleratorQuotas go with it, as do the paths of its group."""
    installation.remove("CustomResourceDefinition", "acceleratorquotas.hami.io")
    installation.api.groups = set()


def limiting_users() -> JSON:
    return accelerator_quota("shared", spec={"per": {"user": True, "hard": {GPU: 1}}}, gpu=4)


FAULTS: list[tuple[str, Spoil, str, str]] = [
    ("api-server", lambda i: setattr(i.api, "version", "v1.29.4"), "the API server", "v1.30 or newer is needed"),
    ("deployments", lambda i: scale(i, "hami-webhook", 0, 0), "hami-webhook", "is scaled to 0 replicas: no replica"),
    ("deployments", lambda i: scale(i, "hami-webhook-controller", 2, 0), "controller", "none of 2 replicas is ready"),
    ("deployments", lambda i: scale(i, "hami-scheduler", 2, 1), "hami-scheduler", "only 1 of 2 replicas are ready"),
    ("deployments", lambda i: i.remove("Deployment", "hami-webhook-controller"), SYSTEM, "none runs the controller"),
    ("deployments", lambda i: container_of(i, WEB)["args"].append("--kube-qps=x"), WEB, "--kube-qps"),
    ("versions", lambda i: container_of(i, WEB).update(image="hami:old"), SYSTEM, "hami:old"),
    ("device-configuration", lambda i: i.remove("ConfigMap", CONFIG), "Deployment", "no ConfigMap of"),
    ("device-configuration", lambda i: rewrite(i, CONFIG, "nvidia:", "nvidia: x"), "device-config", "used"),
    (
        "device-configuration",
        lambda i: container_of(i, "hami-webhook-controller")["args"].remove("--enable-ascend"),
        "device-config.yaml",
        "isn't the same for all",
    ),
    (
        "rights",
        lambda i: setattr(i.api, "allowed", lambda spec: spec["resourceAttributes"]["resource"] != "secrets"),
        "ServiceAccount hami-system/hami-webhook-controller",
        "may not get secrets hami-webhook-tls, patch secrets hami-webhook-tls, create secrets",
    ),
    (
        "webhook-configurations",
        lambda i: i.remove("MutatingWebhookConfiguration", "hami-webhook-admission"),
        "MutatingWebhookConfiguration",
        "is missing",
    ),
    (
        "webhook-configurations",
        lambda i: hook(i, "guard.webhook.hami.io").update(failurePolicy="Ignore"),
        "ValidatingWebhookConfiguration",
        "failurePolicy of guard.webhook.hami.io is Ignore",
    ),
    (
        "match-conditions",
        lambda i: rewrite(i, "hami-device-config", "nvidia.com/gpucores", "acme.com/cores"),
        "matchConditions",
        "mutate.webhook.hami.io",
    ),
    ("certificate", lambda i: i.remove("Secret", "hami-webhook-tls"), "Secret", "is missing"),
    ("certificate", lambda i: replace(i, secret(service="other")), "Secret", "is not for hami-webhook.hami-system.svc"),
    ("certificate", lambda i: replace(i, secret(age=pki.SERVING_LIFETIME * 2)), "Secret", "has expired"),
    ("certificate", lambda i: replace(i, secret(age=pki.SERVING_LIFETIME * 0.95)), "Secret", "ends at 2026"),
    ("ca-bundle", lambda i: set_bundle(i, b""), "WebhookConfiguration", "caBundle has no valid authority"),
    (
        "ca-bundle",
        lambda i: set_bundle(i, pki.authority(now=NOW).certificate),
        "ValidatingWebhookConfiguration",
        "caBundle doesn't have the authority",
    ),
    ("service", lambda i: i.remove("Service", "hami-webhook"), "Service hami-system/hami-webhook", "is missing"),
    ("service", lambda i: i.find("EndpointSlice", f"{WEB}-x").update(endpoints=[]), "Service", "no ready endpoint"),
    (
        "network-policy",
        lambda i: i.find("NetworkPolicy", "hami-webhook")["spec"].update(ingress=[{"ports": [{"port": 9395}]}]),
        "NetworkPolicy hami-system/hami-webhook",
        "none of them lets the API server in on port 8443",
    ),
    ("admission", lambda i: refuse_pods(i, 500, "failed calling webhook: timeout"), "a pod", "failed calling webhook"),
    ("admission", lambda i: setattr(i.api, "pod", lambda p: (201, p)), "a pod", "gets the scheduler None"),
    (
        "namespaces",
        lambda i: i.find("Namespace", "team-a")["metadata"].update(labels={"hami.io/webhook": "ignore"}),
        "Namespace team-a",
        "its quota gpu-quota isn't enforced",
    ),
    ("clocks", lambda i: replace(i, lease("n1", "kube-node-lease", 90.0)), "node n1", "89 s ahead"),
    ("clocks", lambda i: i.objects.append(api_server_lease(12.0)), "API server apiserver-x", "11 s ahead"),
    (
        "scheduler",
        lambda i: rewrite(i, SCHEDULER, "schedulerName: hami-scheduler", "schedulerName: other"),
        "kube-scheduler",
        "has the profiles other, other-claims, and pods name hami-scheduler",
    ),
    (
        "scheduler",
        lambda i: rewrite(i, SCHEDULER, "schedulerName: hami-scheduler-claims", "schedulerName: other"),
        "kube-scheduler",
        "has no profile hami-scheduler-claims: pods that request cards and have ResourceClaims never start",
    ),
    ("scheduler", lambda i: rewrite(i, SCHEDULER, ":8081", ":8082"), "kube-scheduler", "calls no extender"),
    ("scheduler", extender_moved, "kube-scheduler", "calls no extender on port 9444: pods get no cards"),
    ("scheduler", lambda i: rewrite(i, SCHEDULER, "bindVerb: bind", ""), "kube-scheduler", "no bindVerb"),
    ("leaders", lambda i: replace(i, lease("hami-scheduler-controller", renewed=-80.0)), "Lease", "renewed 80 s ago"),
    ("leaders", lambda i: i.remove("Lease", "hami-scheduler"), "Lease hami-system/hami-scheduler", "no replica leads"),
    ("registrations", lambda i: annotate(i, register="nonsense"), "node n1", "must be a JSON array"),
    ("cards", lambda i: annotate(i, sick=json.dumps({"GPU-1": {"causes": ["xid-79"]}})), "node n1", FALLEN),
    ("cards", lambda i: replace(i, node("n1", card("GPU-1", health=False))), "node n1", "its device plugin says so"),
    ("handshakes", silent, "node n1", "the device plugin of NVIDIA is silent"),
    ("handshakes", stopped, "node n1", "kubelet offers 0 nvidia.com/gpu: it has stopped, or all of its cards"),
    ("managers", volcano, "node n1", "more than one GPU"),
    ("node-locks", lambda i: annotate(i, lock=f"{stamp(-900)},team-a,gone"), "node n1", "was taken 900 s ago"),
    ("node-locks", lambda i: annotate(i, lock=f"{stamp(-60)},team-a,gone"), "node n1", "pod team-a/gone, which isn't"),
    ("quota-limits", lambda i: replace(i, quota(gpu="4Ki", used={GPU: "0"})), "ResourceQuota", "4Ki means 4096"),
    (
        "quota-limits",
        lambda i: replace(i, quota(spec={"hard": {"limits.nvidia.com/gpumen": "4"}})),
        "ResourceQuota team-a/gpu-quota",
        "limits.nvidia.com/gpumen has no effect",
    ),
    (
        "quota-limits",
        lambda i: i.objects.append(limiting_users()),
        "AcceleratorQuota shared",
        "limits each user, but the webhook doesn't stamp pods with their users",
    ),
    ("quota-definition", lambda i: definition(i).update(served=False), "acceleratorquotas.hami.io", "serve v1alpha1"),
    ("quota-definition", delete_the_definition, "CustomResourceDefinition acceleratorquotas.hami.io", "is missing"),
    ("quota-definition", lambda i: definition(i).pop("subresources"), "acceleratorquotas.hami.io", "no subresource"),
    (
        "quota-definition",
        lambda i: definition(i)["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"].pop("ledger"),
        "CustomResourceDefinition acceleratorquotas.hami.io",
        "is another version's: it has no status.ledger",
    ),
    ("quota-drift", lambda i: replace(i, quota(gpu="4", used={GPU: "3"})), "ResourceQuota", "is 3, its pods cost 0"),
    ("allocations", bound_without_reading, "pod team-a/bad", "can't be read"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "spoil", "subject", "fault"), FAULTS, ids=[f"{f[0]}-{f[3]}"[:60] for f in FAULTS])
def test_one_fault_is_found_and_nothing_else(
    hami: Hami, monkeypatch: pytest.MonkeyPatch, check: str, spoil: Spoil, subject: str, fault: str
) -> None:
    monkeypatch.setattr("hami_webhook.doctor.cluster_checks._SETTLED", 0.0)
    installation = Installation()
    spoil(installation)
    run = hami(installation.api, "doctor", "-o", "json")
    assert run.status == 1
    check_only_fault(run.result, check, subject, fault)


@pytest.mark.parametrize(
    ("age", "next_age", "fault"),
    [
        (609.0, 601.0, "at least 590 s behind"),
        (30.0, 22.0, "at least 11 s behind"),
        (609.0, 620.0, ""),  # a node that stopped
        (19.0, 19.0, ""),
        (29.0, 5.0, ""),  # one renewal was late
    ],
)
async def test_a_clock_behind_is_found_by_the_next_renewal(age: float, next_age: float, fault: str) -> None:
    slept: list[float] = []
    leases = [lease("n1", "kube-node-lease", -age)]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        stopped = next_age == age + seconds
        leases[:] = [lease("n1", "kube-node-lease", -age if stopped else seconds - next_age)]

    async def call(method: str, path: str) -> JSON:
        return {"items": [each for each in leases if each["metadata"]["namespace"] in path]}

    async def time() -> float:
        return NOW.timestamp() + sum(slept)

    unread: Any = None
    api: Any = SimpleNamespace(call=call, time=time)
    facts = Facts(api, SYSTEM, "team-a", NOW.timestamp(), unread, unread, unread, sleep=sleep)
    findings = [each async for each in clocks(facts)]
    assert [each.subject for each in findings] == (["node n1"] if fault else [])
    assert all(fault in each.fault for each in findings)
    assert slept == ([11.0] if age > 20 else [])


def test_beside_hamis_chart_a_cluster_without_accelerator_quotas_is_fine(hami: Hami) -> None:
    installation = Installation()
    delete_the_definition(installation)
    for each in installation.objects:
        for container in each["spec"]["template"]["spec"]["containers"] if each["kind"] == "Deployment" else ():
            if "serve" in container.get("args", ()):
                container["args"].append("--webhook-configuration=")
    assert found(hami(installation.api, "doctor", "-o", "json").result) == {}


def test_a_tenant_reads_what_could_not_be_checked(hami: Hami) -> None:
    installation = Installation()
    installation.api.only = "team-a"
    run = hami(installation.api, "doctor", "-o", "json")
    assert (run.status, found(run.result)) == (0, {})
    unseen = {each["check"] for each in run.result["checks"] if each["unseen"]}
    assert {each["check"] for each in run.result["checks"]} - unseen == {"api-server", "namespaces"}
    run = hami(installation.api, "doctor")
    first, second = run.out.splitlines()
    assert first == "28 of 30 checks can't see everything with your rights; 0 faults in the rest"
    assert second.startswith("Not seen: deployments, versions, ")
    assert second.endswith(", allocations (-o wide says why)")
    assert run.status == 0
    out = hami(installation.api, "doctor", "-o", "wide").out
    assert out.splitlines()[0] == first
    assert 'UNSEEN deployments: Deployments and their replicas: User "tenant" cannot get' in out


class SlowApiServer(ApiServer):
    """Takes `step` seconds for each answer, while whoever renews Leases goes on, every 10 s."""

    step = 0.0

    def answer(self, method: str, path: str, body: JSON | None) -> tuple[int, JSON]:
        assert self.now is not None
        self.now += timedelta(seconds=self.step)
        renewed = stamp((self.now - NOW).total_seconds() // 10 * 10)
        for each in self.objects:
            if each["kind"] == "Lease":
                each["spec"]["renewTime"] = renewed
        return super().answer(method, path, body)


@pytest.mark.parametrize("step", [0.0, 0.3, 1.0, 5.0])
def test_twenty_times_on_a_healthy_and_a_slow_installation_nothing_is_found(hami: Hami, step: float) -> None:
    """Before, an API server that takes 5 s for an answer had Leases "in the future": they were renewed meanwhile."""
    installation = Installation()
    api = SlowApiServer(installation.objects, now=NOW, pod=reviewed)
    api.step = step
    for turn in range(20):
        run = hami(api, "doctor")
        assert (run.status, run.out, run.err) == (0, "30 checks, 0 faults\n", ""), turn


def test_the_number_of_faults_comes_first_then_faults_then_advice(hami: Hami) -> None:
    installation = Installation()
    let_anybody_in(installation)
    annotate(installation, register="nonsense")
    run = hami(installation.api, "doctor")
    lines = run.out.splitlines()
    assert (run.status, lines[0]) == (1, "30 checks, 1 fault")
    marks = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert marks == ["FAULT", "ADVICE"]


def test_a_quota_that_changes_while_it_is_looked_at_does_not_drift(hami: Hami, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami_webhook.doctor.cluster_checks._SETTLED", 0.0)
    installation = Installation()
    changing = quota(gpu="4", used={GPU: "3"})
    replace(installation, changing)

    def charge(path: str) -> None:
        if path == "/api/v1/namespaces/team-a/pods":  # a pod is charged, and not listed yet
            changing["status"] = {**changing["status"], "used": {GPU: str(int(changing["status"]["used"][GPU]) + 1)}}

    installation.api.on_request = charge
    assert found(hami(installation.api, "doctor", "-o", "json").result) == {}


def test_a_refusal_by_quota_shows_that_reviews_work(hami: Hami) -> None:
    installation = Installation()
    denied = 'admission webhook "validate.webhook.hami.io" denied the request: exceeded quota: gpu-quota'
    refuse_pods(installation, 403, denied)
    assert found(hami(installation.api, "doctor", "-o", "json").result) == {}


def test_a_pod_is_tried_where_pods_are_reviewed(hami: Hami) -> None:
    installation = Installation()
    installation.find("Namespace", "team-a")["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    hami(installation.api, "doctor")
    assert ("POST", "/api/v1/namespaces/default/pods") in installation.api.asked


def test_another_namespace_of_the_installation(hami: Hami) -> None:
    run = hami(Installation().api, "doctor", "--system-namespace", "elsewhere", "-o", "json")
    assert found(run.result)["deployments"][0][1].startswith("none runs the webhook")

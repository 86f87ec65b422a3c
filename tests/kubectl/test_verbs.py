"""The verbs of `kubectl hami`, asked as a user asks them, of an API server on a socket."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import accelerator_quota, card, node
from simulate.files import GPU, JSON, MEM, pod, quota

from .apiserver import ApiServer
from .conftest import Hami

DEPLOYED = [
    each
    for path in ("replicas/deployment.yaml", "controller/deployment.yaml")
    for each in yaml.safe_load_all((Path(__file__).parents[2] / "manifests" / path).read_text())
]
HELD = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,20000,10:;"}
SPACES = [{"kind": "Namespace", "metadata": {"name": name, "uid": name}} for name in ("team-a", "team-b")]


def placed(name: str, namespace: str = "team-a", memory: int = 20000, **spec: Any) -> JSON:
    notes = {**HELD, "hami.io/vgpu-devices-allocated": f"GPU-1,NVIDIA,{memory},10:;"}
    found = pod(name, gpu=1, mem=memory, cores=10, namespace=namespace, annotations=notes, nodeName="n1", **spec)
    return with_uid(found)


def with_uid(found: JSON) -> JSON:
    """The object with what the API server gives every one."""
    found["metadata"] |= {"uid": f"uid-{found['metadata']['name']}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return found


def cluster(*more: JSON) -> list[JSON]:
    """Two cards on a node; in team-a a placed pod and one that waits, in team-b a placed one."""
    return [
        node("n1", card("GPU-1"), card("GPU-2", health=False)),
        node("cpu"),
        placed("busy"),
        placed("other", "team-b", memory=4000),
        with_uid(pod("waiting", gpu=1, mem=30000, schedulerName="hami-scheduler")),
        with_uid(pod("web")),
        quota(gpu="4", mem="60000", used={GPU: "2", MEM: "50000", "pods": "3"}, pods="10"),
        quota(gpu="1", namespace="team-b", used={GPU: "1"}),
        *SPACES,
        *more,
    ]


OF_KEY = {"measured": None, "queued": 0, "nominal": None, "borrowed": None, "lent": None}


def test_a_quota_shows_what_its_pods_hold_and_what_still_fits(hami: Hami) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED)), "quota", "-o", "json")
    assert run.err == ""
    (found,) = run.result
    assert (found["namespace"], found["name"], found["notes"]) == ("team-a", "gpu-quota", [])
    gpu = {"key": GPU, "used": 2, "hard": 4, "waiting": 1, "placed": 1, "unit_bytes": 0}
    memory = {"key": MEM, "used": 50000, "hard": 60000, "waiting": 30000, "placed": 20000, "unit_bytes": 1 << 20}
    assert found["keys"] == [gpu | OF_KEY, memory | OF_KEY]
    states = {each["name"]: (each["state"], each["node"], each["models"]) for each in found["pods"]}
    assert states == {"busy": ("Bound", "n1", ["NVIDIA A100-SXM4-40GB"]), "waiting": ("Waiting", "", [])}
    model = "NVIDIA A100-SXM4-40GB"
    assert found["models"] == [{"model": model, "pods": 1, "slots": 1, "memory": 20000, "cores": 10}]
    (room,) = found["room"]  # GPU-2 is unhealthy
    assert (room["cards"], room["memory"], room["cores"]) == (1, 40960 - 24000, 80)
    assert (room["quota_cards"], room["quota_memory"], room["quota_cores"]) == (2, 10000, None)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (
            {"message": "0/2 nodes\nare available: 2 x. preemption: 0/2 nodes are available: 2 y"},
            "0/2 nodes are available: 2 x.",
        ),
        ({"message": "x" * 1000}, "x" * 239 + "…"),
        ({"reason": "SchedulingGated"}, "SchedulingGated"),
        ({"message": 7}, ""),
        ({"message": "it was", "status": "True"}, ""),
    ],
)
def test_a_pod_that_waits_says_why_as_its_status_does(hami: Hami, condition: JSON, reason: str) -> None:
    objects = cluster(*DEPLOYED)
    waiting = next(each for each in objects if each["metadata"]["name"] == "waiting")
    waiting["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", **condition}]}
    found = {each["name"]: each["reason"] for each in hami(ApiServer(objects), "pods", "-o", "json").result}
    assert found == {"busy": "", "waiting": reason}


def test_a_quota_above_namespaces_shows_all_their_pods(hami: Hami) -> None:
    above = accelerator_quota(gpu=9, status={"used": {GPU: "3"}})
    run = hami(ApiServer(cluster(*DEPLOYED, above)), "quota", "-o", "json", "AcceleratorQuota/all")
    (found,) = run.result
    (key,) = found["keys"]
    assert (found["namespace"], found["name"], key["key"], key["hard"]) == ("", "AcceleratorQuota/all", GPU, 9)
    names = {pod["name"] for pod in found["pods"]}
    assert {name.partition("/")[0] for name in names} == {"team-a", "team-b"}
    assert key["waiting"] + key["placed"] == len(names)


def test_what_each_user_uses_of_its_limit_is_listed(hami: Hami) -> None:
    per = {"hard": {GPU: 4}, "overrides": [{"subject": "carol", "hard": {GPU: 9}}]}
    objects = []
    for name, kind in (("shared", {"user": True}), ("projects", {"label": "team"})):
        counted = "user" if name == "shared" else "label team"
        use = json.dumps({"keys": [GPU], "use": {"alice": [1], "bob": [4]}})
        status = {"used": {GPU: "5"}, "countedSubjects": counted, "subjectUse": use}
        objects.append(accelerator_quota(name, spec={"per": {**per, **kind}}, status=status, gpu=9))
    api = ApiServer(cluster(*DEPLOYED, *objects))
    run = hami(api, "quota", "--by", "user", "-o", "json")
    assert [(each["quota"], each["subject"], each["used"], each["hard"]) for each in run.result] == [
        ("shared", "bob", 4, 4),
        ("shared", "alice", 1, 4),
        ("shared", "carol", 0, 9),
    ]
    rows = hami(api, "quota", "projects", "--by", "label").out.splitlines()
    assert rows[0].split() == ["QUOTA", "BY", "SUBJECT", "KEY", "USED", "HARD", "LEFT"]
    assert rows[1].split() == ["projects", "team", "bob", GPU, "4", "4", "0"]
    assert "no quota none with accelerators" in hami(api, "quota", "none", "--by", "user").err


def test_used_that_the_pods_do_not_explain_is_noted(hami: Hami) -> None:
    objects = [each for each in cluster(*DEPLOYED) if each["metadata"]["name"] != "waiting"]
    (found,) = hami(ApiServer(objects), "quota", "-o", "json").result
    assert found["notes"] == [
        f"{GPU}: used is 2, and the pods that can be seen cost 1",
        f"{MEM}: used is 50000, and the pods that can be seen cost 20000",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["quota", "-A"], ["team-a", "team-b", "CHARGED, UNPLACED", "48.8Gi"]),
        (["quota", "gpu-quota"], ["Pods of team-a/gpu-quota", "What still fits", "2 cards, 9.8Gi"]),
        (["explain", "quota", "gpu-quota"], ["Placed pods of team-a/gpu-quota by model"]),
        (["nodes"], ["n1", "1/2 healthy", "2 of 20", "23.4Gi of 80Gi"]),
        (["nodes", "-o", "wide"], ["NVIDIA A100-SXM4-40GB"]),
        (["cards"], ["GPU-1", "GPU-2 (unhealthy)", "23.4Gi of 40Gi", "team-a/busy, team-b/other"]),
        (["cards", "n1", "-o", "wide"], ["VENDOR", "NVIDIA A100-SXM4-40GB"]),
        (["pods"], ["busy", "waiting", "nvidia.com/gpu=1"]),
        (["pods", "-A", "-o", "wide"], ["other", "SCHEDULER", "hami-scheduler"]),
        (["explain", "pod", "waiting"], ["team-a/waiting fits on none of 2 nodes", "1/2 CardInsufficientMemory"]),
        (["explain", "node", "n1"], ["GPU-1", "team-b/other"]),
        (["explain", "node", "cpu"], ["it registers no cards of an enabled vendor"]),
    ],
)
def test_tables_have_the_numbers(hami: Hami, arguments: list[str], expected: list[str]) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED)), *arguments)
    unmeasured = (
        "the measured use of pods isn't known: the cluster doesn't serve usage.hami.io" if "wide" in arguments else ""
    )
    assert run.status == 0
    assert (unmeasured in run.err) if unmeasured else (run.err == "")
    assert [text for text in expected if text not in run.out] == [], run.out
    assert "\x1b" not in run.out


def test_a_card_shows_what_its_node_s_monitor_found(hami: Hami) -> None:
    sick = node("n", card("G"), card("H"), unhealthy={"G": ["lost"]})
    assert "1/2 healthy" in hami(ApiServer([sick]), "nodes").out
    (one, other) = hami(ApiServer([sick]), "cards", "-o", "json").result
    assert [(each["uuid"], each["healthy"], each["fault"]) for each in (one, other)] == [
        ("G", False, "NVML no longer finds it"),
        ("H", True, ""),
    ]
    assert "G (unhealthy: NVML" in hami(ApiServer([sick]), "cards").out


def test_a_node_says_what_is_wrong_with_it(hami: Hami) -> None:
    silent = {**node("n9", card("GPU-9")), "kind": "Node", "status": {}}
    silent["metadata"]["annotations"] |= {
        "hami.io/node-handshake": "Requesting_2026-01-01 00:00:00",
        "hami.io/mutex.lock": "2026-01-01T00:00:00Z,team-a,x",
        "volcano.sh/node-vgpu-register": "x",
    }
    found = hami(ApiServer(cluster(silent)), "explain", "node", "n9", "-o", "json").result
    assert (found["lock"], found["handshakes"]) == (
        "2026-01-01T00:00:00Z,team-a,x",
        {"NVIDIA": "Requesting_2026-01-01 00:00:00"},
    )
    message = ("the device plugin of NVIDIA is silent", "more than one GPU manager", "it registers no cards")
    assert [sum(note.startswith(text) for note in found["notes"]) for text in message] == [1, 1, 1]


def test_an_annotation_of_a_node_controls_no_terminal(hami: Hami) -> None:
    spoilt = {**node("n9", card("GPU-9")), "kind": "Node", "status": {}}
    spoilt["metadata"]["annotations"]["hami.io/mutex.lock"] = "\x1b[2Jgone"
    run = hami(ApiServer(cluster(spoilt)), "explain", "node", "n9")
    assert "\ufffd[2Jgone" in run.out
    assert "\x1b" not in run.out + run.err


def test_pods_without_accelerators_are_left_out(hami: Hami) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED)), "pods", "-o", "yaml")
    assert [each["name"] for each in yaml.safe_load(run.out)] == ["busy", "waiting"]


def test_a_pod_is_simulated_on_the_live_cluster_and_not_created(hami: Hami, tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod("new", gpu=1, mem=9000, namespace="")))
    api = ApiServer(cluster(*DEPLOYED))
    run = hami(api, "simulate", str(path), "-o", "json")
    (found,) = run.result["pods"]
    assert (found["namespace"], found["placement"]["node"]) == ("team-a", "n1")
    too_large = {**pod("new", gpu=1, mem=11000, namespace="")}
    path.write_text(json.dumps(too_large))
    run = hami(api, "simulate", "--strict", str(path), "-o", "json")
    assert (run.status, run.result["pods"][0]["code"]) == (1, 403)
    assert {method for method, _ in api.asked} == {"GET"}


RENAMED = "nvidia:\n  resourceCountName: acme.com/gpu\n  resourceMemoryName: acme.com/gpumem\n"


def test_the_installed_device_configuration_counts(hami: Hami) -> None:
    data = {"device-config.yaml": RENAMED}
    meta = {"name": "hami-device-config", "namespace": "hami-system"}
    config = {"kind": "ConfigMap", "metadata": meta, "data": data}
    assert hami(ApiServer(cluster(*DEPLOYED, config)), "quota", "-o", "json").result == []


def test_the_installation_may_be_that_of_hamis_chart(hami: Hami) -> None:
    flags = ["--http_bind=0.0.0.0:443", "--device-config-file=/device-config.yaml", "--scheduler-name=hami-scheduler"]
    mounts = [{"name": "config", "mountPath": "/device-config.yaml", "subPath": "device-config.yaml"}]
    containers = [{"name": "vgpu-scheduler-extender", "command": ["scheduler", *flags], "volumeMounts": mounts}]
    spec = {"containers": containers, "volumes": [{"name": "config", "configMap": {"name": "devices"}}]}
    meta = {"name": "hami-scheduler", "namespace": "kube-system"}
    deployment = {"kind": "Deployment", "metadata": meta, "spec": {"template": {"spec": spec}}}
    data = {"device-config.yaml": RENAMED}
    config = {"kind": "ConfigMap", "metadata": {"name": "devices", "namespace": "kube-system"}, "data": data}
    renamed = quota("renamed", namespace="team-a", spec={"hard": {"limits.acme.com/gpu": "3"}})
    api = ApiServer(cluster(deployment, config, renamed))
    run = hami(api, "quota", "--system-namespace", "kube-system", "-o", "json")
    assert [each["name"] for each in run.result] == ["renamed"]


def test_another_context_names_another_namespace(hami: Hami) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED)), "quota", "--context", "bare", "-o", "json")
    assert run.result == []
    run = hami(ApiServer(cluster(*DEPLOYED)), "quota", "--context", "none")
    assert (run.status, run.err.splitlines()[0].endswith("has no context 'none'; it has bare, x")) == (2, True)


TENANT = [
    f"kubectl hami: no right to {text}"
    for text in (
        "read the Deployments and ConfigMaps of hami-system: HAMi's own device configuration and no policy are assumed "
        "(--config FILE names another)",
        "list nodes: cards, their models and what still fits aren't known",
        "list pods outside of namespace team-a: cards, cpu and ports may be in use by pods of other namespaces",
        "list resourcequotas outside of namespace team-a: quotas of other namespaces aren't known",
        "list acceleratorquotas.hami.io: AcceleratorQuotas aren't known",
        "list poddisruptionbudgets.policy outside of namespace team-a: evictions that they prevent there aren't known",
        "list priorityclasses.scheduling.k8s.io: new pods count as of priority 0",
        "list deviceclasses.resource.k8s.io: resources and devices of classes aren't known",
    )
]


ABOVE = "AcceleratorQuotas aren't"
NO_NODES = "nodes and acceleratorquotas.hami.io can't be listed with your rights"
QUOTAS = f"acceleratorquotas.hami.io can't be listed with your rights: {ABOVE} shown"


@pytest.mark.parametrize(
    ("arguments", "shown", "lacking"),
    [
        (["quota"], "gpu-quota", QUOTAS),
        (
            ["quota", "-A"],
            "gpu-quota",
            "resourcequotas of other namespaces and acceleratorquotas.hami.io can't be listed with your rights: only "
            f"those of team-a are shown; {ABOVE} shown",
        ),
        (["pods"], "GPU-1", ""),
        (
            ["pods", "-A"],
            "waiting",
            "pods of other namespaces can't be listed with your rights: only those of team-a are shown",
        ),
        (
            ["explain", "pod", "busy"],
            "team-a/busy is placed on n1",
            f"{NO_NODES}: the answer uses only the pod's own annotations, status and events; {ABOVE} known",
        ),
        (
            ["explain", "pod", "waiting"],
            "team-a/waiting isn't placed; which nodes it fits on can't be seen",
            f"{NO_NODES}: the answer uses only the pod's own annotations, status and events; {ABOVE} known",
        ),
        (
            ["explain", "quota", "gpu-quota"],
            "Pods of team-a/gpu-quota",
            f"{NO_NODES}: models of cards and what still fits aren't known; {ABOVE} shown",
        ),
    ],
)
def test_a_tenant_reads_in_a_line_what_the_command_lacked(
    hami: Hami, arguments: list[str], shown: str, lacking: str
) -> None:
    api = ApiServer(cluster(*DEPLOYED), only="team-a")
    run = hami(api, *arguments)
    assert run.status == 0
    assert shown in run.out
    assert "team-b" not in run.out
    assert not any(text in run.out for text in ("nowhere", "isn't there", "isn't registered"))
    assert run.err.splitlines() == [f"kubectl hami: {lacking}"] * bool(lacking)
    assert hami(api, *arguments, "-v").err.splitlines() == TENANT


def test_nodes_have_their_model_a_sum_and_the_order_in_which_people_count(hami: Hami) -> None:
    names = ["a100-10", "a100-2", "a100-1"]
    api = ApiServer([*(node(name, card(f"GPU-{name}")) for name in names), *DEPLOYED])
    header, *lines, total = hami(api, "nodes").out.splitlines()
    assert header.split()[:4] == ["NODE", "VENDOR", "MODEL", "CARDS"]
    assert [line.split()[0] for line in lines] == ["a100-1", "a100-2", "a100-10"]
    assert all("NVIDIA A100-SXM4-40GB" in line for line in lines)
    assert (total.split()[:2], "0 of 30" in total, "0 of 120Gi" in total) == (["TOTAL", "3"], True, True)
    assert [each["node"] for each in hami(api, "cards", "-o", "json").result] == ["a100-1", "a100-2", "a100-10"]
    assert "TOTAL" not in hami(ApiServer([node("n1", card("G")), *DEPLOYED]), "nodes").out


NODES, NAMESPACE = "nodes can't be listed", "{} can't be listed in namespace team-a"


@pytest.mark.parametrize(
    ("only", "arguments", "sentence"),
    [
        ("team-a", ["nodes"], NODES),
        ("team-a", ["cards"], NODES),
        ("team-a", ["cards", "n1"], NODES),
        ("team-a", ["explain", "node", "n1"], NODES),
        ("team-b", ["quota"], NAMESPACE.format("resourcequotas")),
        ("team-b", ["pods"], NAMESPACE.format("pods")),
        ("team-b", ["explain", "pod", "waiting"], NAMESPACE.format("pods")),
        ("team-b", ["explain", "quota", "gpu-quota"], NAMESPACE.format("resourcequotas")),
    ],
)
def test_what_is_forbidden_to_a_tenant_is_told(hami: Hami, only: str, arguments: list[str], sentence: str) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED), only=only), *arguments)
    assert (run.status, run.out, run.err) == (1, "", f"kubectl hami: {sentence} with your rights\n")


def event(reason: str, message: str, minutes: int, source: str = "hami-scheduler") -> JSON:
    """An event of the pod `waiting`, so many minutes ago."""
    meta = {"name": f"waiting.{reason}.{minutes}", "namespace": "team-a"}
    at = (datetime.now(UTC) - timedelta(minutes=minutes, seconds=1)).isoformat()
    return {
        "kind": "Event",
        "metadata": meta,
        "involvedObject": {"kind": "Pod", "name": "waiting"},
        "reason": reason,
        "message": message,
        "source": {"component": source},
        "lastTimestamp": at,
        "count": 3,
    }


def test_what_a_pods_events_and_status_say_is_told_where_nodes_cannot_be_seen(hami: Hami) -> None:
    objects = cluster(*DEPLOYED)
    (waiting,) = (each for each in objects if each["metadata"]["name"] == "waiting")
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    waiting["status"] = {"conditions": [{**unschedulable, "message": "0/9 nodes are\navailable"}]}
    events = [
        event("FailedScheduling", "0/7 nodes are available", 19),
        event("FailedScheduling", "0/8 nodes are available:\n 8 Insufficient \x1bcpu", 14),
        event("QuotaExceeded", "exceeded quota", 70),
    ]
    api = ApiServer([*objects, *events], only="team-a")
    run = hami(api, "explain", "pod", "waiting", "-o", "json")
    assert run.result["notes"] == [
        "event FailedScheduling of hami-scheduler, 3 times, 14m ago: 0/8 nodes are available: 8 Insufficient \x1bcpu",
        "event QuotaExceeded of hami-scheduler, 3 times, 70m ago: exceeded quota",
        "not scheduled since 2026-01-01T00:00:00Z: Unschedulable: 0/9 nodes are available",
    ]
    assert "8 Insufficient \ufffdcpu" in hami(api, "explain", "pod", "waiting").out


@pytest.mark.parametrize("lacking", ["/api/v1/pods", "/api/v1/namespaces", "/api/v1/nodes"])
def test_with_half_a_clusters_rights_no_more_is_said_than_is_known(hami: Hami, lacking: str) -> None:
    (small,) = (each for each in cluster() if each["metadata"]["name"] == "waiting")
    small["metadata"]["name"] = small["metadata"]["uid"] = "small"
    small["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "5000"
    api = ApiServer(cluster(*DEPLOYED, small), lacking={lacking, "/api/v1/namespaces/team-a"})
    found = hami(api, "explain", "pod", "small", "-o", "json")
    assert (found.status, found.err.count("\n")) == (0, 1)
    expected = {
        "/api/v1/pods": "isn't placed, but fits on n1, as far as its cards aren't taken by pods that can't be seen",
        "/api/v1/namespaces": "isn't placed, but fits on n1",
        "/api/v1/nodes": "isn't placed; which nodes it fits on can't be seen",
    }
    assert found.result["verdict"] == expected[lacking]


def test_a_simulation_without_sight_of_nodes_does_not_say_that_none_fits(hami: Hami, tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod("new", gpu=1, mem=9000, namespace="")))
    run = hami(ApiServer(cluster(*DEPLOYED), only="team-a"), "simulate", "--strict", str(path))
    assert (run.status, "no node" in run.out) == (0, False)
    assert "where pods would go isn't known" in run.err


def test_an_old_api_server_is_told(hami: Hami) -> None:
    """1.20 has no policy/v1."""
    api = ApiServer(cluster(*DEPLOYED), unknown={"/apis/policy/v1/poddisruptionbudgets"})
    run = hami(api, "explain", "pod", "waiting", "-v")
    assert run.status == 0
    assert run.err == (
        "kubectl hami: the API server is too old to have policy/v1 poddisruptionbudgets: evictions that they "
        "prevent aren't known\n"
    )


@pytest.mark.parametrize(
    ("objects", "arguments", "complaint"),
    [
        (SPACES, ["quota"], "No resources found in team-a namespace."),
        (SPACES, ["pods"], "No resources found in team-a namespace."),
        (SPACES, ["queue"], "No resources found in team-a namespace."),
        (SPACES, ["pods", "-A"], "No resources found"),
        ([node("cpu")], ["nodes"], "No resources found: no node registers cards of an enabled vendor"),
        ([node("cpu")], ["cards"], "No resources found: no node registers cards of an enabled vendor"),
    ],
)
def test_nothing_is_said_as_kubectl_says_it(
    hami: Hami, objects: list[JSON], arguments: list[str], complaint: str
) -> None:
    api = ApiServer([*DEPLOYED, *objects])
    run = hami(api, *arguments)
    assert (run.status, run.out, run.err) == (0, "", f"{complaint}\n")
    assert hami(api, *arguments, "-o", "json").result == []


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["quota", "none"], 1, "no quota none with accelerators in namespace team-a"),
        (["pods", "web"], 1, "no pod web that asks for accelerators in namespace team-a"),
        (["nodes", "none"], 1, "no node none"),
        (["cards", "cpu"], 1, "node cpu registers no cards of an enabled vendor"),
        (["explain", "node", "none"], 1, "no node none"),
        (["explain", "pod", "other"], 1, "no pod other in namespace team-a; one of that name is in team-b"),
        (["simulate", "-", "-"], 2, "standard input (-) can be read only once"),
        (["simulate", "nowhere.yaml"], 2, "nowhere.yaml: no such file"),
        (["quota", "--config", "nowhere.yaml"], 2, "nowhere.yaml"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(hami: Hami, arguments: list[str], status: int, complaint: str) -> None:
    run = hami(ApiServer(cluster(*DEPLOYED)), *arguments)
    assert (run.status, run.out) == (status, "")
    (line,) = run.err.splitlines()
    assert line.startswith(f"kubectl hami: {complaint}")


def test_simulate_tries_pods_that_wait_on_nodes_that_are_not_there(hami: Hami) -> None:
    api = ApiServer(cluster(*DEPLOYED))
    for flags, place in (((), None), (("--add", "1xn1"), "n1-new-1")):
        run = hami(api, "simulate", "-n", "team-a", "-o", "json", "--waiting", *flags)
        assert [(each["name"], (each["placement"] or {}).get("node")) for each in json.loads(run.out)["pods"]] == [
            ("waiting", place)
        ]
    assert hami(api, "simulate").status == 2
    assert {method for method, _ in api.asked} == {"GET"}

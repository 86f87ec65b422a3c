"""Each filter by itself: what it refuses, in which words, and what it says of the node.

That the verdicts are kube-scheduler's own is shown beside it, in `tests/e2e/test_node_filters.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders import container, pod
from tables import in_one_test

from hami_webhook.node_filters.result import NodeRefusal, NotJudged
from hami_webhook.node_filters.snapshot import SchedulerSnapshot

JSON = dict[str, Any]
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10"}
CORDONED = ("NodeUnschedulable", "node(s) were unschedulable", "it is cordoned (spec.unschedulable)")
TAINTED = ("TaintToleration", "node(s) had untolerated taint(s)")
AFFINITY = ("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
NAMED = ("NodeAffinity", "node(s) didn't satisfy plugin(s) [NodeAffinity]")
NEAR = ("InterPodAffinity", "node(s) didn't match pod affinity rules")
AWAY = ("InterPodAffinity", "node(s) didn't match pod anti-affinity rules")
KEPT_OFF = ("InterPodAffinity", "node(s) didn't satisfy existing pods anti-affinity rules")
UNEVEN = ("PodTopologySpread", "node(s) didn't match pod topology spread constraints")
FULL = "NodeResourcesFit"


def node(name: str = "n", spec: JSON | None = None, offered: JSON | None = None, **labels: str) -> JSON:
    status = {"allocatable": ROOM | (offered or {})}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec or {}, "status": status}


def tainted(key: str, effect: str, value: str = "") -> JSON:
    return node(spec={"taints": [{"key": key, "value": value, "effect": effect}]})


def requiring(*terms: JSON) -> JSON:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return pod(affinity={"nodeAffinity": required})


def expressing(*expressions: tuple[str, str, list[str]]) -> JSON:
    found = [{"key": key, "operator": operator, "values": values} for key, operator, values in expressions]
    return requiring({"matchExpressions": found})


def named(operator: str, *names: str) -> JSON:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [*names]}]}


def term(key: str = "zone", app: str = "db", **more: Any) -> JSON:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def near(*terms: JSON, kind: str = "podAffinity", **fields: Any) -> JSON:
    return pod(affinity={kind: {"requiredDuringSchedulingIgnoredDuringExecution": [*terms]}}, **fields)


def away(*terms: JSON, **fields: Any) -> JSON:
    return near(*terms, kind="podAntiAffinity", **fields)


def spread(max_skew: int = 1, of: JSON | None = None, **more: Any) -> JSON:
    constraint = {
        "maxSkew": max_skew,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}},
        **more,
    }
    return pod(labels={"app": "db"}, topologySpreadConstraints=[constraint], **(of or {}))


def on(where: str, name: str = "there", made: JSON | None = None, app: str = "db", **fields: Any) -> JSON:
    """A pod that is on a node."""
    found = made or pod(name, labels={"app": app}, **fields)
    return {**found, "metadata": {**found["metadata"], "name": name}, "spec": {**found["spec"], "nodeName": where}}


def asking(*containers: JSON, init: Sequence[JSON] = (), **fields: Any) -> JSON:
    return pod("p", *containers, init=init, **fields)


def cpu(amount: str, name: str = "main", *, sidecar: bool = False) -> JSON:
    return container(name, requests={"cpu": amount}, sidecar=sidecar)


def snapshot(*objects: JSON, ignored: frozenset[str] = frozenset()) -> SchedulerSnapshot:
    """The cluster of these nodes and pods."""
    found = SchedulerSnapshot(ignored)
    for obj in objects:
        if "containers" in obj["spec"]:
            found.put_pod(obj)
        else:
            found.put_node(obj)
    return found


def port(number: int, address: str = "", protocol: str = "TCP") -> JSON:
    return container(ports=[{"containerPort": number, "hostPort": number, "hostIP": address, "protocol": protocol}])


TWO_ZONES = (node("n", zone="a"), node("m", zone="b"))

ROWS: list[tuple[str, list[JSON], JSON, tuple[str, ...] | None]] = [
    ("cordoned", [node(spec={"unschedulable": True})], pod(), CORDONED),
    (
        "a cordon is tolerated",
        [node(spec={"unschedulable": True})],
        pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]),
        None,
    ),
    (
        "NotReady",
        [tainted("node.kubernetes.io/not-ready", "NoSchedule")],
        pod(),
        (*TAINTED, "its taint node.kubernetes.io/not-ready:NoSchedule isn't tolerated"),
    ),
    (
        "NoExecute, with a value",
        [tainted("team", "NoExecute", "a")],
        pod(tolerations=[{"key": "team", "value": "b"}]),
        (*TAINTED, "its taint team=a:NoExecute isn't tolerated"),
    ),
    ("PreferNoSchedule", [tainted("team", "PreferNoSchedule")], pod(), None),
    ("tolerated", [tainted("team", "NoSchedule", "a")], pod(tolerations=[{"key": "team", "value": "a"}]), None),
    (
        "tolerated, but another effect",
        [tainted("team", "NoSchedule")],
        pod(tolerations=[{"key": "team", "operator": "Exists", "effect": "NoExecute"}]),
        (*TAINTED, "its taint team:NoSchedule isn't tolerated"),
    ),
    ("everything is tolerated", [tainted("team", "NoSchedule")], pod(tolerations=[{"operator": "Exists"}]), None),
    (
        "nodeSelector",
        [node(zone="a")],
        pod(nodeSelector={"zone": "b"}),
        (*AFFINITY, "it lacks the labels zone=b of the pod's nodeSelector"),
    ),
    ("In", [node(zone="a")], expressing(("zone", "In", ["a", "b"])), None),
    (
        "not In",
        [node(zone="a")],
        expressing(("zone", "In", ["b", "c"])),
        (*AFFINITY, "it doesn't match the pod's required node affinity: zone In (b, c)"),
    ),
    ("NotIn holds without the label", [node()], expressing(("zone", "NotIn", ["a"])), None),
    ("Exists", [node(zone="")], expressing(("zone", "Exists", [])), None),
    ("DoesNotExist", [node()], expressing(("zone", "DoesNotExist", [])), None),
    ("Gt", [node(size="5")], expressing(("size", "Gt", ["4"])), None),
    ("Lt of no number", [node(size="x")], expressing(("size", "Lt", ["4"])), (*AFFINITY,)),
    ("Gt something that is no number", [node(size="5")], expressing(("size", "Gt", ["x"])), (*AFFINITY,)),
    (
        "one of two terms",
        [node(zone="a")],
        requiring({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, named("In", "other")),
        None,
    ),
    ("an empty term matches nothing", [node()], requiring({}), (*AFFINITY,)),
    ("another name", [node()], requiring(named("In", "m")), (*NAMED,)),
    ("any name but this", [node()], requiring(named("NotIn", "n")), (*AFFINITY,)),
    (
        "names that exclude each other",
        [node()],
        requiring({"matchFields": [*named("In", "n")["matchFields"], *named("In", "m")["matchFields"]]}),
        ("NodeAffinity", "pod affinity terms conflict"),
    ),
    (
        "a host port is taken",
        [node(), on("n", made=pod("p", port(80)))],
        pod("q", port(80)),
        (
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
            "its port 80/TCP is taken by default/there",
        ),
    ),
    ("a port of another protocol", [node(), on("n", made=pod("p", port(80)))], pod("q", port(80, "", "UDP")), None),
    ("a port elsewhere", [node(), on("n", made=pod("p", port(80, "10.0.0.1")))], pod("q", port(80, "10.0.0.2")), None),
    (
        "on all addresses",
        [node(), on("n", made=pod("p", port(80, "10.0.0.1")))],
        pod("q", port(80)),
        ("NodePorts", "node(s) didn't have free ports for the requested pod ports"),
    ),
    (
        "cpu",
        [node(), on("n", made=asking(cpu("3")))],
        asking(cpu("1500m")),
        (FULL, "Insufficient cpu", "1500m cpu requested, 1 of 4 free"),
    ),
    ("exactly enough cpu", [node(), on("n", made=asking(cpu("3")))], asking(cpu("1")), None),
    (
        "a pod that is over holds nothing",
        [node(), {**on("n", made=asking(cpu("3"))), "status": {"phase": "Succeeded"}}],
        asking(cpu("2")),
        None,
    ),
    ("limits are requests", [node()], asking(container(limits={"cpu": "5"})), (FULL, "Insufficient cpu")),
    (
        "memory",
        [node()],
        asking(container(requests={"memory": "16Gi"})),
        (FULL, "Insufficient memory", "16Gi memory requested, 8Gi of 8Gi free"),
    ),
    (
        "any resource",
        [node()],
        asking(container(limits={"example.com/hca": "1"})),
        (FULL, "Insufficient example.com/hca", "1 example.com/hca requested, 0 of 0 free"),
    ),
    (
        "pods",
        [node(offered={"pods": "1"}), on("n")],
        pod(),
        (FULL, "Too many pods", "it has 1 of at most 1 pod"),
    ),
    ("the largest init container", [node()], asking(cpu("1"), init=[cpu("5", "i")]), (FULL, "Insufficient cpu")),
    ("init containers one by one", [node()], asking(cpu("1"), init=[cpu("4", "i"), cpu("4", "j")]), None),
    (
        "a sidecar beside an init container",
        [node()],
        asking(cpu("1"), init=[cpu("1", "s", sidecar=True), cpu("4", "i")]),
        (FULL, "Insufficient cpu"),
    ),
    ("a sidecar after it", [node()], asking(cpu("1"), init=[cpu("4", "i"), cpu("1", "s", sidecar=True)]), None),
    ("overhead", [node()], asking(cpu("4"), overhead={"cpu": "1m"}), (FULL, "Insufficient cpu")),
    ("pod-level", [node()], asking(cpu("1"), resources={"requests": {"cpu": "5"}}), (FULL, "Insufficient cpu")),
    (
        "while it is resized",
        [
            node(),
            {
                **on("n", made=asking(cpu("1"))),
                "status": {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]},
            },
        ],
        asking(cpu("2")),
        (FULL, "Insufficient cpu"),
    ),
    (
        "spread",
        [*TWO_ZONES, on("n")],
        spread(),
        (*UNEVEN, "zone=a would have 2 of the pods, where another has 0 (maxSkew 1)"),
    ),
    ("spread, with room", [*TWO_ZONES, on("n")], spread(2), None),
    ("spread over what can't be reached", [*TWO_ZONES, on("n")], spread(of={"nodeSelector": {"zone": "a"}}), None),
    ("spread, fewer domains than wanted", [node("n", zone="a"), on("n")], spread(minDomains=2), (*UNEVEN,)),
    (
        "spread, without the label",
        [node()],
        spread(),
        (UNEVEN[0], f"{UNEVEN[1]} (missing required label)", "it has no label zone"),
    ),
    ("spread as one likes", [*TWO_ZONES, on("n")], spread(whenUnsatisfiable="ScheduleAnyway"), None),
    ("near", [*TWO_ZONES, on("n")], near(term()), None),
    ("near, elsewhere", [*TWO_ZONES, on("m")], near(term()), (*NEAR, "no pod that it must be near to is in zone=a")),
    ("near itself, the first", [*TWO_ZONES], near(term(), labels={"app": "db"}), None),
    ("near, no label", [node()], near(term()), (*NEAR, "it has no label zone, by which the pod's affinity goes")),
    ("near, in another namespace", [*TWO_ZONES, on("n", namespace="b")], near(term()), (*NEAR,)),
    ("near, in a named namespace", [*TWO_ZONES, on("n", namespace="b")], near(term(namespaces=["b"])), None),
    ("near, in any namespace", [*TWO_ZONES, on("n", namespace="b")], near(term(namespaceSelector={})), None),
    (
        "near, in a namespace of that name",
        [*TWO_ZONES, on("n", namespace="b")],
        near(term(namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "b"}})),
        None,
    ),
    (
        "away",
        [*TWO_ZONES, on("n")],
        away(term()),
        (*AWAY, "default/there, which it must not be near to, is in zone=a"),
    ),
    ("away, elsewhere", [*TWO_ZONES, on("m")], away(term()), None),
    ("away, of a track", [*TWO_ZONES, on("n")], away(term(matchLabelKeys=["track"]), labels={"track": "x"}), None),
    (
        "kept off",
        [*TWO_ZONES, on("n", made=away(term(app="web")))],
        pod(labels={"app": "web"}),
        (*KEPT_OFF, "default/there is in zone=a and has an anti-affinity to the pod"),
    ),
]  # fmt: skip


@in_one_test(("objects", "raw", "expected"), [row[1:] for row in ROWS])
def test_what_refuses_a_node(objects: list[JSON], raw: JSON, expected: tuple[str, ...] | None) -> None:
    refusal = snapshot(*objects).filter_nodes(raw).refusals.get("n")
    if expected is None or refusal is None:
        assert refusal is None
        assert expected is None
        return
    found = (refusal.filter, *refusal.reasons, refusal.why)
    assert found[: len(expected)] == expected


def test_the_first_filter_speaks_for_all_and_with_all_that_is_insufficient() -> None:
    full = [node(), on("n", made=asking(cpu("4"))), node("m", spec={"unschedulable": True}, offered={"cpu": "0"})]
    wants = asking(container(requests={"cpu": "1", "memory": "9Gi"}))
    found = snapshot(*full).filter_nodes(wants)
    assert found.refusals["n"].reasons == ["Insufficient cpu", "Insufficient memory"]
    assert found.refusals["m"].filter == "NodeUnschedulable"


def test_what_the_extender_manages_is_left_to_it() -> None:
    wants = asking(container(limits={"nvidia.com/gpumem": "3000"}))
    assert snapshot(node(), ignored=frozenset({"nvidia.com/gpumem"})).filter_nodes(wants).refusals == {}


def test_a_nominated_pod_counts_as_if_it_were_there_unless_it_yields() -> None:
    nominated = {**asking(cpu("3")), "status": {"nominatedNodeName": "n"}}
    nominated["metadata"] = {**nominated["metadata"], "name": "nominated"}
    cluster = snapshot(node(), nominated)
    assert cluster.filter_nodes(asking(cpu("2"))).refusals["n"].reasons == ["Insufficient cpu"]
    assert cluster.filter_nodes(asking(cpu("2"), priority=1)).refusals == {}
    assert cluster.filter_nodes(nominated).refusals == {}


def test_a_nominated_pod_counts_for_spread_and_affinity() -> None:
    nominated = {**on("", "nominated"), "status": {"nominatedNodeName": "n"}}
    cluster = snapshot(*TWO_ZONES, nominated)
    assert cluster.filter_nodes(spread()).refusals.keys() == {"n"}
    assert cluster.filter_nodes(away(term())).refusals.keys() == {"n"}
    # it may go elsewhere in the end, so that it attracts nobody
    assert cluster.filter_nodes(near(term())).refusals.keys() == {"n", "m"}


@pytest.mark.parametrize(
    ("spec", "filters"),
    [
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}]}, []),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            ["VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits"],
        ),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, ["VolumeRestrictions, NodeVolumeLimits"]),
        ({"resourceClaims": [{"name": "card"}]}, ["DynamicResources"]),
        ({"hostNetwork": True, "hostUsers": False}, ["NodeDeclaredFeatures"]),
        ({"topologySpreadConstraints": "everywhere"}, ["every filter"]),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]}}}, ["InterPodAffinity"]),
    ],
)  # fmt: skip
def test_what_is_not_judged_is_named_where_a_pod_has_it(spec: JSON, filters: list[str]) -> None:
    found = snapshot(node()).filter_nodes(pod(**spec))
    assert [rule.filter for rule in found.not_judged] == filters
    assert found.refusals == {}


def test_a_node_that_does_not_say_what_it_can_give_is_judged_by_what_it_says() -> None:
    silent = {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": {"example.com/hca": "1", "pods": "1"}}}
    cluster = snapshot(silent)
    wants = asking(container(requests={"cpu": "100"}, limits={"example.com/hca": "1"}))
    found = cluster.filter_nodes(wants)
    assert found.refusals == {}
    assert found.not_judged == [
        NotJudged("NodeResourcesFit", "cpu of n: status.allocatable names neither cpu nor memory")
    ]
    cluster.put_pod(on("n", made=wants))
    refusal = cluster.filter_nodes(wants).refusals["n"]
    assert refusal.reasons == ["Too many pods", "Insufficient example.com/hca"]


def test_a_resource_that_no_node_offers_may_be_a_device_classs() -> None:
    found = snapshot(node()).filter_nodes(asking(container(limits={"example.com/hca": "1"})))
    assert [rule.filter for rule in found.not_judged] == ["DynamicResources"]


def test_what_cannot_be_read_is_left_out_and_named() -> None:
    cluster = snapshot(
        node(), {"metadata": {"name": "m"}, "spec": {"taints": "all"}}, on("n", made=asking(cpu("many")))
    )
    found = cluster.filter_nodes(asking(cpu("4")))
    assert found.refusals == {}
    assert [(rule.filter, rule.why) for rule in found.not_judged] == [
        ("node m", "spec.taints must be a list, not a string"),
        ("pod default/there", "'many' is not a quantity"),
    ]
    cluster.drop_pod(("default", "there"))
    assert [rule.filter for rule in cluster.filter_nodes(pod()).not_judged] == ["node m"]


def test_pods_and_nodes_may_come_in_any_order() -> None:
    cluster = snapshot(on("n", made=asking(cpu("4"))), node())
    assert cluster.filter_nodes(asking(cpu("1"))).refusals["n"] == NodeRefusal(
        "NodeResourcesFit", ["Insufficient cpu"], "1 cpu requested, 0 of 4 free"
    )

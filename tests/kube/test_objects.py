"""What is read of Kubernetes' objects, and how a wrong type is reported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.kube.names import is_label_value
from hami_webhook.kube.objects import (
    ContainerKind,
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
    ScopeRequirement,
    format_time,
    parse_time,
)

NOON = 1767268800.0  # 2026-01-01T12:00:00Z


def test_a_pod_in_full() -> None:
    pod = Pod.from_object(
        {
            "apiVersion": "v1",
            "metadata": {
                "namespace": "team",
                "name": "p",
                "uid": "u",
                "labels": {"a": "b"},
                "annotations": {"c": "d"},
                "creationTimestamp": "2026-01-01T12:00:00Z",
                "deletionTimestamp": "2026-01-01T12:00:30Z",
                "deletionGracePeriodSeconds": 30,
                "resourceVersion": "7",
            },
            "spec": {
                "schedulerName": "hami-scheduler",
                "nodeName": "n",
                "nodeSelector": {"gpu": "on"},
                "priorityClassName": "low",
                "activeDeadlineSeconds": 60,
                "containers": [
                    {
                        "name": "main",
                        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": 1, "cpu": "1"}},
                        "securityContext": {"privileged": True},
                    }
                ],
                "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
            },
            "status": {"phase": "Pending"},
        },
        "elsewhere",
    )
    assert (pod.namespace, pod.name, pod.uid, pod.key, pod.resource_version) == ("team", "p", "u", "team/p", "7")
    assert (pod.labels, pod.annotations) == ({"a": "b"}, {"c": "d"})
    assert (pod.scheduler_name, pod.node_name, pod.node_selector) == ("hami-scheduler", "n", {"gpu": "on"})
    assert (pod.priority_class, pod.active_deadline, pod.phase) == ("low", 60, "Pending")
    assert (pod.created, pod.deletion_time, pod.deletion_grace) == (NOON, NOON + 30, 30)
    assert [container.name for container in pod.containers] == ["init", "side", "main"]
    assert pod.kinds == (ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP)
    main = pod.containers[-1]
    assert main.privileged
    assert (main.amount("nvidia.com/gpu"), main.amount("cpu"), main.amount("memory")) == ("1", "1", None)
    assert (main.names_resource("cpu"), main.names_resource("nvidia.com/gpu"), main.names_resource("memory")) == (
        True,
        True,
        False,
    )
    assert not pod.init_finished
    assert not pod.best_effort


def test_compact_pods_share_what_is_alike() -> None:
    def made(name: str, count: object) -> Pod:
        meta = {"name": name, "labels": {"app": "a"}}
        return Pod.from_object(
            {"metadata": meta, "spec": {"containers": [{"name": "c", "resources": {"limits": {"g": count}}}]}}
        )

    one, other = made("a", "1").compact(), made("b", "1").compact()
    assert (one, other) == (made("a", "1"), made("b", "1"))
    assert one.labels is other.labels
    assert one.containers is other.containers
    assert Pod.from_object({}).compact() == Pod.from_object({})
    counts: tuple[object, ...] = ("2", 1, True, 1.0, [], None)
    for count in counts:
        limits = made("c", count).compact().containers[0].limits
        assert limits == {"g": count}
        assert type(limits["g"]) is type(count)


def test_a_pod_with_nothing_in_it() -> None:
    pod = Pod.from_object({}, "team")
    assert (pod.namespace, pod.name, pod.uid, pod.phase, pod.containers) == ("team", "", "", "", ())
    assert (pod.created, pod.deletion_time, pod.deletion_deadline, pod.active_deadline) == (None, None, None, None)
    assert pod.best_effort
    assert not pod.ended(NOON)


def test_a_generated_name_stands_in_for_a_name() -> None:
    assert Pod.from_object({"metadata": {"generateName": "train-"}}).name == "train-"


def test_only_an_init_container_can_be_a_sidecar() -> None:
    spec = {"containers": [{"name": "a", "restartPolicy": "Always"}], "initContainers": [{"restartPolicy": "Never"}]}
    assert Pod.from_object({"spec": spec}).kinds == (ContainerKind.INIT, ContainerKind.APP)


@pytest.mark.parametrize(
    ("meta", "phase", "ended_after"),
    [
        ({}, "Running", None),
        ({}, "Pending", None),
        ({}, "Succeeded", -1),
        ({}, "Failed", -1),
        ({"deletionTimestamp": "2026-01-01T12:00:30Z"}, "Running", None),
        ({"deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 30}, "Running", 60),
        ({"deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 0}, "Running", 30),
    ],
)
def test_when_a_pod_ends(meta: Any, phase: str, ended_after: float | None) -> None:
    pod = Pod.from_object({"metadata": meta, "status": {"phase": phase}})
    assert pod.terminal is (ended_after == -1)
    if ended_after is None:
        assert not pod.ended(NOON + 10**9)
    else:
        assert pod.ended(NOON + ended_after + 1)
        assert pod.ended(NOON + ended_after) is (ended_after == -1)


def finished(exit_code: int | None) -> dict[str, Any]:
    return {"terminated": {} if exit_code is None else {"exitCode": exit_code}}


@in_one_test(
    ("status", "over"),
    [
        ({}, False),
        ({"initContainerStatuses": [{"name": "a", "state": finished(0)}]}, False),
        ({"initContainerStatuses": [{"name": "a", "state": finished(0)}, {"name": "b", "state": finished(0)}]}, True),
        ({"initContainerStatuses": [{"name": "a", "state": finished(0)}, {"name": "b", "state": finished(1)}]}, False),
        ({"initContainerStatuses": [{"name": "a", "state": {"running": {}}}, {"name": "b"}]}, False),
        ({"containerStatuses": [{"state": {"waiting": {}}}]}, False),
        ({"containerStatuses": [{"state": {"running": {}}}]}, True),
        ({"containerStatuses": [{"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1}}}]}, True),
        ({"containerStatuses": [{"restartCount": 0}]}, False),
        ({"containerStatuses": [{"restartCount": 1}]}, True),
    ],
)
def test_when_init_is_over(status: Any, over: bool) -> None:
    init = [{"name": "a"}, {"name": "side", "restartPolicy": "Always"}, {"name": "b"}]
    spec = {"initContainers": init, "containers": [{"name": "main"}]}
    assert Pod.from_object({"spec": spec, "status": status}).init_finished is over


def test_without_ordinary_init_containers_none_finish() -> None:
    spec = {"initContainers": [{"name": "side", "restartPolicy": "Always"}]}
    assert not Pod.from_object({"spec": spec, "status": {"initContainerStatuses": []}}).init_finished


def test_a_node() -> None:
    node = Node.from_object(
        {
            "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"c": "d"}, "resourceVersion": "3"},
            "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7"}},
        }
    )
    assert node == Node("n", {"a": "b"}, {"c": "d"}, {"cpu": "8"}, {"cpu": "7"}, "3")
    assert Node.from_object({}) == Node("", {}, {}, {}, {})


def test_a_namespace() -> None:
    found = Namespace.from_object({"metadata": {"name": "team", "labels": {"a": "b"}, "annotations": {"c": "d"}}})
    assert found == Namespace("team", {"a": "b"}, {"c": "d"})


def test_a_resource_quota() -> None:
    quota = ResourceQuota.from_object(
        {
            "metadata": {
                "namespace": "team",
                "name": "q",
                "uid": "u",
                "annotations": {"a": "b"},
                "resourceVersion": "9",
            },
            "spec": {
                "hard": {"pods": "4"},
                "scopes": ["BestEffort"],
                "scopeSelector": {
                    "matchExpressions": [
                        {"scopeName": "PriorityClass", "operator": "In", "values": ["low", "high"]},
                        {"scopeName": "PriorityClass", "operator": "Exists"},
                    ]
                },
            },
            "status": {"hard": {"pods": "3"}, "used": {"pods": "1"}},
        }
    )
    assert (quota.namespace, quota.name, quota.uid, quota.resource_version) == ("team", "q", "u", "9")
    assert (quota.hard, quota.status_hard, quota.used) == ({"pods": "4"}, {"pods": "3"}, {"pods": "1"})
    assert quota.scopes == (
        ScopeRequirement("BestEffort", "Exists"),
        ScopeRequirement("PriorityClass", "In", ("low", "high")),
        ScopeRequirement("PriorityClass", "Exists"),
    )


CONTAINER = "spec.containers[0]"
PODS, REQUIRED = "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution"


@in_one_test(
    ("obj", "message"),
    [
        ([], "pod must be an object, not a list"),
        ({"metadata": []}, "metadata must be an object, not a list"),
        ({"metadata": {"name": 1}}, "metadata.name must be a string, not a number"),
        ({"metadata": {"generateName": []}}, "metadata.generateName must be a string, not a list"),
        ({"metadata": {"labels": "x"}}, "metadata.labels must be an object, not a string"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels[a] must be a string, not a number"),
        ({"metadata": {"annotations": {"a": True}}}, "metadata.annotations[a] must be a string, not a boolean"),
        ({"metadata": {"annotations": {"a": None}}}, "metadata.annotations[a] must be a string, not null"),
        ({"metadata": {"creationTimestamp": 1.5}}, "metadata.creationTimestamp must be an RFC 3339 time, not 1.5"),
        ({"metadata": {"creationTimestamp": "now"}}, "metadata.creationTimestamp must be an RFC 3339 time, not 'now'"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T12:00:00"}}, "metadata.deletionTimestamp must be an RFC 3339"),
        ({"metadata": {"deletionGracePeriodSeconds": "3"}}, "metadata.deletionGracePeriodSeconds must be an integer"),
        ({"spec": "x"}, "spec must be an object, not a string"),
        ({"spec": {"nodeName": {}}}, "spec.nodeName must be a string, not an object"),
        ({"spec": {"nodeSelector": {"a": 1}}}, "spec.nodeSelector[a] must be a string, not a number"),
        ({"spec": {"activeDeadlineSeconds": True}}, "spec.activeDeadlineSeconds must be an integer, not a boolean"),
        ({"spec": {"containers": {}}}, "spec.containers must be a list, not an object"),
        ({"spec": {"containers": [None]}}, "spec.containers[0] must be an object, not null"),
        ({"spec": {"initContainers": ["x"]}}, "spec.initContainers[0] must be an object, not a string"),
        ({"spec": {"containers": [{"name": 1}]}}, f"{CONTAINER}.name must be a string, not a number"),
        ({"spec": {"containers": [{"resources": 1}]}}, f"{CONTAINER}.resources must be an object, not a number"),
        ({"spec": {"containers": [{"resources": {"limits": []}}]}}, f"{CONTAINER}.resources.limits must be an object"),
        ({"spec": {"containers": [{"securityContext": 1}]}}, f"{CONTAINER}.securityContext must be an object"),
        ({"spec": {"affinity": []}}, "spec.affinity must be an object, not a list"),
        ({"spec": {"affinity": {PODS: {REQUIRED: {}}}}}, f"spec.affinity.{PODS}.{REQUIRED} must be a list, not an obj"),
        ({"status": []}, "status must be an object, not a list"),
        ({"status": {"containerStatuses": [1]}}, "status.containerStatuses[0] must be an object, not a number"),
        ({"status": {"containerStatuses": [{"restartCount": "1"}]}}, "status.containerStatuses[0].restartCount must"),
        (
            {"status": {"initContainerStatuses": [{"name": [], "state": {"terminated": {}}}]}},
            "status.initContainerStatuses[0].name must be a string, not a list",
        ),
    ],
)
def test_malformed_pods_are_reported_with_the_path(obj: Any, message: str) -> None:
    with pytest.raises(MalformedObject) as caught:
        Pod.from_object(obj)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("read", "obj", "message"),
    [
        (Node.from_object, {"status": {"allocatable": 1}}, "status.allocatable must be an object, not a number"),
        (Node.from_object, None, None),
        (Namespace.from_object, "x", "namespace must be an object, not a string"),
        (ResourceQuota.from_object, {"spec": {"hard": []}}, "spec.hard must be an object, not a list"),
        (ResourceQuota.from_object, {"spec": {"scopes": [1]}}, "spec.scopes[0] must be a string, not a number"),
        (
            ResourceQuota.from_object,
            {"spec": {"scopeSelector": {"matchExpressions": [{"values": [1]}]}}},
            "spec.scopeSelector.matchExpressions[0].values[0] must be a string, not a number",
        ),
    ],
)
def test_other_malformed_objects(read: Callable[[Any], object], obj: Any, message: str | None) -> None:
    if message is None:
        assert read(obj)
        return
    with pytest.raises(MalformedObject) as caught:
        read(obj)
    assert str(caught.value) == message


# Times and label values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01T13:30:00+01:30", NOON),
        ("2026-01-01T12:00:00.250000Z", NOON + 0.25),
        ("1969-12-31T23:59:59Z", -1.0),
    ],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "now", "2026-01-01T12:00:00", "2026-13-01T12:00:00Z", "12:00"])
def test_other_times_are_not(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


@given(st.integers(0, 253402300799))
def test_times_round_trip(seconds: int) -> None:
    assert parse_time(format_time(seconds + 0.75)) == seconds


def test_a_time_that_yaml_made_is_read() -> None:
    for value in (
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        datetime(2026, 1, 1, 12),  # noqa: DTZ001  # PyYAML gives UTC times without a zone
        datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))),
    ):
        assert Pod.from_object({"metadata": {"creationTimestamp": value}}).created == NOON


@in_one_test(
    ("text", "legal"),
    [
        ("", True),
        ("a", True),
        ("A-b_c.9", True),
        ("x" * 63, True),
        ("x" * 64, False),
        ("-a", False),
        ("a-", False),
        ("a/b", False),
        ("é", False),
        ("a\n", False),
    ],
)
def test_label_values(text: str, legal: bool) -> None:
    assert is_label_value(text) is legal

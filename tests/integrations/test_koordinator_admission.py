"""Koordinator's pods at admission: the rules of docs/spec/koordinator.md#5, one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import container
from tables import in_one_test

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.identities import AdmissionRules, User
from hami_webhook.admission.pods import validate_update
from hami_webhook.devices.model import BadRequest
from hami_webhook.integrations.koordinator.keys import ALIASES
from hami_webhook.kube.objects import Pod

from .koords import (
    ALLOCATED,
    CHART,
    CORE,
    GPU,
    HINT,
    ISOLATED,
    ISOLATION,
    JSON,
    MEMORY,
    NPU,
    PARTITION_SPEC,
    RATIO,
    SHARED,
    Koords,
    a10s,
    box,
    card,
    configured,
    hint,
    named,
    pod_with_limits,
    refused,
    seed_pod,
)

JOINT = "scheduling.koordinator.sh/device-joint-allocate"
QUIET: JSON = {"labels": ISOLATED, "scheduler": "koord-scheduler"}


def codes(manifest: JSON, koords: Koords | None = None) -> list[str]:
    """The codes of the warnings."""
    return (koords or a10s()).admit(manifest).codes


# which pods


@in_one_test("name", [SHARED, CORE, MEMORY, RATIO, GPU, *ALIASES])
@in_one_test("where", ["limits", "requests"])
def test_one_name_anywhere_makes_it_koordinators(name: str, where: str) -> None:
    amounts = {name: "1"}
    made = container(**amounts) if where == "limits" else container(requests=amounts)
    scheduler = a10s().scheduler
    assert scheduler.named_by(Pod.from_object(pod_with_limits("p", made)))
    assert scheduler.named_by(Pod.from_object(pod_with_limits("p", container(), init=[made])))


def test_a_pod_of_whole_vendor_cards_is_not_koordinators() -> None:
    done = a10s().admit(pod_with_limits("p", container(**{"nvidia.com/gpu": 1})))
    assert done.warnings == []
    assert done.scheduler == "hami-scheduler"


def test_the_names_are_managed_but_not_ours() -> None:
    names = {SHARED, CORE, MEMORY, RATIO, GPU, *ALIASES}
    assert names <= CHART.resource_names
    assert names.isdisjoint(CHART.own_names)
    assert {key for key in CHART.quota_keys if "koordinator" in key} == {
        f"limits.{name}" for name in (SHARED, CORE, MEMORY, RATIO, GPU)
    }
    assert CHART.byte_keys == {f"limits.{MEMORY}"}


# 5.2

NORMAL = [
    # the page's examples
    ({"gpu": 50}, {"core": 50, "ratio": 50, "shared": 1}),  # example 2
    ({"gpu": 200}, {"core": 200, "ratio": 200, "shared": 2}),  # example 2
    ({"core": 100, "ratio": 200}, {"core": 100, "ratio": 200, "shared": 2}),
    ({"core": 200, "memory": "64Gi"}, {"core": 200, "memory": "64Gi", "shared": 2}),
    ({"ratio": 50}, {"ratio": 50, "shared": 1}),
    # and around them
    ({"gpu": 50, "core": 7, "ratio": 8}, {"core": 50, "ratio": 50, "shared": 1}),
    ({"gpu": 50, "shared": 2}, {"core": 50, "ratio": 50, "shared": 2}),
    ({"gpu": 0, "ratio": 50}, {"ratio": 50, "shared": 1}),
    ({"shared": 0, "core": "0", "ratio": 300, "memory": 0}, {"ratio": 300, "shared": 3}),
    ({"core": 200, "ratio": 100}, None),
    ({"shared": 0, "core": 0}, {}),
]


@pytest.mark.parametrize(("written", "normal"), NORMAL)
@pytest.mark.parametrize("where", ["limits", "requests", "both"])
def test_5_2_amounts_are_put_into_one_form_on_both_sides(written: JSON, normal: JSON | None, where: str) -> None:
    amounts = named(**written)
    limits, requests = ({} if where == "requests" else amounts), ({} if where == "limits" else amounts)
    done = a10s().admit(pod_with_limits("p", container(requests=requests, **limits)))
    if normal is None:
        assert "exceeds 100 per GPU" in done.message
        return
    expected = {name: str(amount) for name, amount in named(**normal).items()}
    assert done.limits() == done.requests() == expected


NOT_OFFERED = [
    # without the number of cards, where Koordinator reads it off the percentages
    ({"gpu": 50}, {"core": 50, "ratio": 50}),
    ({"core": 100, "ratio": 200}, {"core": 100, "ratio": 200}),
    ({"memory": "8Gi"}, {"memory": "8Gi"}),
    # with it, where its user named it or nothing else tells it
    ({"shared": 2, "ratio": 100}, {"shared": 2, "ratio": 100}),
    ({"core": 200, "memory": "64Gi"}, {"core": 200, "memory": "64Gi", "shared": 2}),
]


@pytest.mark.parametrize(("written", "normal"), NOT_OFFERED)
@pytest.mark.parametrize("known", [False, True])
def test_5_2_gpu_shared_that_no_node_offers_is_added_to_no_pod(written: JSON, normal: JSON, known: bool) -> None:
    koords = Koords().node("n1", card(0), card(1), offers_shared=False) if known else Koords()
    made = pod_with_limits("p", **written, **QUIET)
    done = koords.admit(made)
    expected = {name: str(amount) for name, amount in named(**normal).items()}
    assert done.limits() == done.requests() == expected
    warned = [text for text in done.warnings if "[koordinator/shared]" in text]
    assert len(warned) == ("shared" in normal)
    assert all("EnableSyncGPUSharedResource" in text for text in warned)
    if known:
        assert koords.waiting(made) == a10s().waiting(made)


def test_5_2_a_pod_whose_sidecar_counts_cards_counts_all_of_them() -> None:
    made = pod_with_limits("p", box(ratio=50), init=[box("side", sidecar=True, shared=1, ratio=30)], **QUIET)
    assert Koords().admit(made).limits() == named(ratio="50", shared="1")


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        ({"core": 200, "ratio": 100}, "koordinator.sh/gpu-core 200 of the whole pod exceeds 100 per GPU of 1"),
        ({"ratio": 150}, "koordinator.sh/gpu-memory-ratio 150 must be at most 100, or a multiple of 100"),
    ],
)
def test_5_4_amounts_that_fit_on_no_cards_are_refused_without_gpu_shared_too(amounts: JSON, text: str) -> None:
    assert text in Koords().admit(pod_with_limits("p", **amounts)).message


def test_5_2_other_resources_stay() -> None:
    done = a10s().admit(pod_with_limits("p", container(cpu="4", requests={"cpu": "2"}, **named(ratio=50))))
    assert (done.limits()["cpu"], done.requests()["cpu"]) == ("4", "2")


@pytest.mark.parametrize(("alias", "proper"), sorted(ALIASES.items()))
def test_5_2_aliases_are_renamed(alias: str, proper: str) -> None:
    others = {"memory": 1} if proper in (SHARED, CORE) else {"shared": 1}
    done = a10s().admit(pod_with_limits("p", container(**{alias: 1}, **named(**others)), **QUIET))
    spelt = {CORE: "1", RATIO: "1"} if proper == GPU else {proper: "1"}
    assert done.limits() == done.requests() == {**spelt, SHARED: "1", **dict.fromkeys(named(**others), "1")}
    assert done.warnings == [f"[koordinator/alias] container main: {alias} is read as {proper}"]


def test_5_2_an_alias_beside_the_proper_name_is_dropped() -> None:
    done = a10s().admit(pod_with_limits("p", container(**{"kubernetes.io/gpu-memory-ratio": 7}, **named(ratio=50))))
    assert done.limits() == named(ratio="50", shared="1")


def test_5_2_init_containers_stay_as_they_are() -> None:
    init = box("init", core=50, ratio=50)
    done = a10s().admit(pod_with_limits("p", box(core=50, ratio=50), init=[init]))
    assert done.manifest["spec"]["initContainers"] == [init]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (101, "koordinator.sh/gpu 101 in container main"),
        (150, "koordinator.sh/gpu 150 in container main"),  # example 2
        ("1500m", "invalid koordinator.sh/gpu value 1500m in container main"),
    ],
)
def test_5_2_what_the_shorthand_can_not_be(value: object, text: str) -> None:
    assert text in refused(pod_with_limits(gpu=value))


# 5.3


@pytest.mark.parametrize(
    ("written", "stored"), [("HAMi-core", "HAMi-core"), ("hami-core", "HAMi-core"), ("HAMI-CORE", "HAMi-core"),
                            ("HAMi", "HAMi"), ("hami_core", "hami_core"), ("", "")],
)  # fmt: skip
def test_5_3_only_the_case_of_the_label_is_put_right(written: str, stored: str) -> None:
    """Example 5."""
    done = a10s().admit(pod_with_limits(ratio=50, labels={ISOLATION: written, "app": "a"}))
    assert done.labels == {ISOLATION: stored, "app": "a"}


@pytest.mark.parametrize(
    ("amounts", "label"),
    [({"ratio": 50}, "HAMi-core"), ({"memory": "8Gi"}, "HAMi-core"), ({"memory": "23040Mi"}, "HAMi-core"),
     ({"gpu": 100}, None), ({"ratio": 200}, None)],
)  # fmt: skip
def test_5_3_parts_of_cards_are_labelled_where_that_is_wanted(amounts: JSON, label: str | None) -> None:
    koords = a10s(vendors=configured(inject_isolation_label=True))
    done = koords.admit(pod_with_limits(**amounts))
    assert done.labels.get(ISOLATION) == label
    unasked = a10s().admit(pod_with_limits(**amounts))
    assert unasked.labels == {}


# 4: annotations


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *((key, text) for key in (HINT, JOINT, PARTITION_SPEC) for text in ("", "{", "[]", "7", '"x"')),
        (HINT, '{"gpu": []}'),
        (HINT, '{"gpu": {"selector": "a=b"}}'),
        (HINT, '{"gpu": {"selector": {"matchLabels": {"a": 1}}}}'),
        (HINT, '{"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}}'),
        (HINT, '{"gpu": {"requiredTopologyScope": 2}}'),
        (JOINT, '{"deviceTypes": "gpu"}'),
        (PARTITION_SPEC, '{"ringBusBandwidth": "fast"}'),
        (PARTITION_SPEC, '{"allocatePolicy": true}'),
    ],
)
def test_4_an_annotation_that_koordinator_can_not_read_is_refused(key: str, text: str) -> None:
    assert refused(seed_pod(notes={key: text})).startswith(f"invalid annotation {key}: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (HINT, {"rdma": {}}),
        (HINT, None),
        (HINT, {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}}),
        (HINT, {"gpu": {"requiredTopologyScope": "PCIe", "exclusivePolicy": "PCIeLevel", "allocateStrategy": "x"}}),
        (JOINT, {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}),
        (PARTITION_SPEC, {"allocatePolicy": "Restricted", "ringBusBandwidth": "400Gi"}),
    ],
)
def test_4_annotations_that_it_can_read(key: str, value: object) -> None:
    assert not a10s().admit(seed_pod(notes={key: json.dumps(value)})).message


# 5.6

HINTED = hint(requiredTopologyScope="NUMANode")
DOUBTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"ratio": 50, **QUIET}, []),
    ({"gpu": 100, "scheduler": "koord-scheduler"}, []),
    ({"ratio": 50, "scheduler": "koord-scheduler"}, ["koordinator/isolation"]),
    ({"ratio": 50, "labels": {ISOLATION: ""}}, ["koordinator/isolation"]),
    ({"ratio": 50, "labels": {ISOLATION: "none"}}, ["koordinator/isolation", "koordinator/isolation-node"]),
    ({"gpu": 100, "labels": {ISOLATION: "none"}}, ["koordinator/isolation", "koordinator/isolation-unused"]),
    ({"shared": 2, "memory": 5, **QUIET}, ["koordinator/remainder"]),
    ({"shared": 2, "memory": 6, **QUIET}, []),
    ({"shared": 2, "ratio": 50, "notes": HINTED, **QUIET}, ["koordinator/topology"]),
    ({"shared": 1, "ratio": 50, "notes": HINTED, **QUIET}, []),
    ({"gpu": 200, "notes": HINTED, "scheduler": "koord-scheduler"}, []),
    ({"ratio": 50, "labels": ISOLATED, "scheduler": "mine"}, ["koordinator/scheduler"]),
    ({"ratio": 50, "scheduler": "mine",
      "labels": {**ISOLATED, "scheduling.koordinator.sh/scheduler-name": "koord-scheduler"}}, []),
    ({"ratio": 50, "labels": {**ISOLATED, "scheduling.koordinator.sh/scheduler-name": "x"}}, ["koordinator/scheduler"]),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "expected"), DOUBTS)
def test_5_6_what_is_hardly_meant(asked: dict[str, Any], expected: list[str]) -> None:
    assert codes(pod_with_limits("p", **asked)) == expected


def test_5_6_isolation_that_no_node_has() -> None:
    bare = Koords().node("n1", card(0), labels={ISOLATION: "other"})
    assert codes(pod_with_limits(ratio=50, **QUIET), bare) == ["koordinator/isolation-node"]
    assert codes(pod_with_limits(gpu=100, scheduler="koord-scheduler"), bare) == []


def test_5_6_every_running_container_gets_the_cards() -> None:
    main = box(ratio=50)
    assert codes(pod_with_limits("p", main, container("other"), **QUIET)) == ["koordinator/containers"]
    assert codes(pod_with_limits("p", main, init=[box("s", sidecar=True)], **QUIET)) == ["koordinator/containers"]
    assert codes(pod_with_limits("p", main, init=[box("i")], **QUIET)) == []


def test_5_6_a_scheduler_that_is_not_injected_is_warned_of() -> None:
    koords = a10s(vendors=configured(inject_scheduler_name=False))
    done = koords.admit(pod_with_limits(ratio=50, labels=ISOLATED))
    assert len(done.warnings) == 1
    assert done.warnings[0].startswith("[koordinator/scheduler] default-scheduler would bind the pod")


# 9: what its scheduler writes later


def test_9_its_scheduler_may_label_its_pods_for_hamis_monitor() -> None:
    """The label says nothing of who placed a pod; the annotation of that name does, and stays guarded."""
    named_node: JSON = {"hami.io/vgpu-node": "n1"}
    own, both = box(ratio=50), container(**{"nvidia.com/gpu": 1}, **named(ratio=50))

    rules = AdmissionRules(
        foreign_users={"koordinator": frozenset({"koord-scheduler"}), "volcano": frozenset({"volcano-scheduler"})}
    )

    def write(made: JSON, user: str = "koord-scheduler", labels: JSON | None = None, notes: JSON | None = None) -> None:
        after = Pod.from_object(pod_with_limits("p", made, labels=labels, notes=notes))
        validate_update(Pod.from_object(pod_with_limits("p", made)), after, User(user), CHART, rules)

    write(own, labels=named_node)
    with pytest.raises(Denied, match=r"label hami\.io/vgpu-node is written by the scheduler"):
        write(own, user="volcano-scheduler", labels=named_node)
    with pytest.raises(Denied, match=r"hami\.io/vgpu-node is written by the scheduler"):
        write(own, notes=named_node)
    with pytest.raises(Denied, match=r"hami\.io/vgpu-node is written by the scheduler"):
        write(both, labels=named_node)


# 5.4, for each container

BAD = [
    ({"shared": -1, "ratio": 50}, "invalid koordinator.sh/gpu.shared value -1 in container main"),
    ({"shared": 2147483648, "ratio": 50}, "invalid koordinator.sh/gpu.shared value 2147483648 in container main"),
    ({"core": "x", "ratio": 50}, "invalid koordinator.sh/gpu-core value x in container main"),
    ({"memory": "1500m"}, "invalid koordinator.sh/gpu-memory value 1500m in container main"),
    ({"ratio": "-5"}, "invalid koordinator.sh/gpu-memory-ratio value -5 in container main"),
    ({"core": 50}, "needs koordinator.sh/gpu-memory or koordinator.sh/gpu-memory-ratio"),  # example 4
    ({"memory": "8Gi", "ratio": 30}, "mutually exclusive"),  # example 4
    ({"shared": 2, "core": 101, "ratio": 100}, "koordinator.sh/gpu-core 101 in container main is not a multiple"),  # 3
    ({"shared": 2, "ratio": 51}, "koordinator.sh/gpu-memory-ratio 51 in container main is not a multiple"),
    ({"shared": 2, "core": 202, "memory": 4}, "exceeds 100 per GPU"),
    ({"shared": 1, "ratio": 101}, "exceeds 100 per GPU"),  # example 3
    ({"ratio": 150}, "exceeds 100 per GPU"),
]


@pytest.mark.parametrize(("amounts", "text"), BAD)
def test_5_4_what_a_container_must_not_ask(amounts: JSON, text: str) -> None:
    side = box("side", memory=1) if "memory" in amounts else box("side", ratio=10)
    assert text in refused(pod_with_limits("p", side, box(**amounts)))


@pytest.mark.parametrize(("amounts", "text"), BAD[:-1])
def test_5_4_holds_for_init_containers_too(amounts: JSON, text: str) -> None:
    init = box("main", **amounts)
    assert text in refused(pod_with_limits("p", box("app", ratio=50), init=[init]))


@pytest.mark.parametrize("amounts", [{"shared": 2147483647, "memory": 2**40}, {"shared": 2, "core": 200, "ratio": 200}])
def test_5_4_the_most_there_may_be(amounts: JSON) -> None:
    assert not a10s().admit(pod_with_limits(**amounts)).message


def test_5_4_a_pod_that_no_mutation_saw_is_checked_as_it_is() -> None:
    """Say, because a label keeps the mutating webhook away."""
    koords = a10s()
    for bad, text in (
        (pod_with_limits(gpu=50), "invalid resource device requests"),
        (pod_with_limits(core=50), "needs koordinator.sh"),
    ):
        with pytest.raises(BadRequest, match=text):
            koords.scheduler.check(Pod.from_object(bad), koords.state)
    with pytest.raises(BadRequest, match=ALLOCATED):
        koords.scheduler.check(Pod.from_object(seed_pod(notes={ALLOCATED: "{}"})), koords.state)


# 5.4, the pod as a whole

MIXED = "invalid resource device requests"


@pytest.mark.parametrize(
    ("containers", "init"),
    [
        ([{"shared": 1, "memory": "1Gi"}], []),
        ([{"ratio": 10}, {"ratio": 20}], []),
        ([{"shared": 1, "memory": "8Gi", "huawei.com/npu-dvpp": 100, **NPU}], []),
        ([{"ratio": 100, "huawei.com/npu-core": 100}], []),
        ([{"ratio": 50}], [{"ratio": 50}]),
        ([{}], [{"core": 50, "memory": 1}]),
    ],
)
def test_5_4_names_that_go_together(containers: list[JSON], init: list[JSON]) -> None:
    made = [box(f"c{index}", **amounts) for index, amounts in enumerate(containers)]
    done = a10s().admit(pod_with_limits("p", *made, init=[box("init", **amounts) for amounts in init]))
    assert not done.message


@pytest.mark.parametrize(
    ("containers", "init", "text"),
    [
        ([{"ratio": 10}, {"memory": 10}], [], "koordinator.sh/gpu-memory, koordinator.sh/gpu-memory-ratio can't"),  # 6
        ([{"ratio": 10}], [{"gpu": 10}], "koordinator.sh/gpu can't"),
        ([{"ratio": 10, "amd.com/gpu": 1}], [], "amd.com/gpu"),
        ([{"ratio": 10}, {"dcu.com/gpu": 1}], [], "dcu.com/gpu"),
        ([{"ratio": 10}, {"nvidia.com/gpu": 1}], [], "nvidia.com/gpu"),  # example 6
        ([{"ratio": 10}, {"nvidia.com/mig-1g.5gb": 1}], [], "nvidia.com/mig-1g.5gb"),
        ([{"ratio": 10}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}], [], "nvidia.com/gpu, nvidia.com/gpumem"),
        ([{"shared": 1, "memory": 1, "huawei.com/npu-core": 1}], [], MIXED),
        ([{"shared": 1, "core": 1, "memory": 1, **NPU}], [], MIXED),
        ([{"shared": 2, "memory": 2, **NPU}], [], "at most 1"),
        ([{"shared": 1, "memory": 1, **NPU}, {"shared": 1, "memory": 1, **NPU}], [], "at most 1"),
        ([{"shared": 1, "memory": 1, "huawei.com/npu-dvpp": 101, **NPU}], [], "at most 100"),
        ([{"shared": 1, "core": 30, "ratio": 3}, {"shared": 2, "core": 20, "ratio": 6}], [],
         "koordinator.sh/gpu-core 50 of the whole pod is not a multiple of koordinator.sh/gpu.shared 3"),
        ([{"shared": 1, "core": 60, "ratio": 60}], [{"core": 120, "ratio": 60}], "exceeds 100 per GPU"),
        ([{}], [{"ratio": 150}], "must be at most 100, or a multiple of 100"),
    ],
)  # fmt: skip
def test_5_4_what_the_pod_as_a_whole_must_not_ask(containers: list[JSON], init: list[JSON], text: str) -> None:
    made = [box(f"c{index}", **amounts) for index, amounts in enumerate(containers)]
    found = refused(pod_with_limits("p", *made, init=[box("init", **amounts) for amounts in init]))
    assert found.startswith(MIXED)
    assert text in found

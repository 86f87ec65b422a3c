"""Who may write which scheduler's allocations: on CREATE, on UPDATE of a pod and its status, and with a Binding."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, container
from tables import in_one_test

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import Answer
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.stamps import STAMPS

from .reviews import SCHEDULER, NoTouch, at_once, cpu, handler_of, parsed, pod, refusal, review, update

CHART = enabled_vendors(builtin_device_config().config)
VOLCANO, KOORDINATOR, OURS, OPERATOR = "volcano-scheduler", "koord-scheduler", "hami-scheduler", "operator"
RULES = AdmissionRules(
    scheduler_name=SCHEDULER,
    trusted_users=frozenset({OURS, OPERATOR}),
    trusted_groups=frozenset({"ops"}),
    foreign_users={"volcano": frozenset({VOLCANO, OPERATOR}), "koordinator": frozenset({KOORDINATOR, OPERATOR})},
)
HANDLER = handler_of(RULES, known=CHART, services=NoTouch())
RESERVATION = "hami.io/quota-reservation"
VOLCANOS = (
    *("volcano.sh/vgpu-ids-new", "volcano.sh/devices-to-allocate", "volcano.sh/vgpu-node", "volcano.sh/vgpu-time"),
    *("volcano.sh/bind-phase", "volcano.sh/bind-time", "volcano.sh/predicate-time", "volcano.sh/gpu-index"),
)
KOORDINATORS = tuple(
    f"scheduling.koordinator.sh/{name}" for name in ("device-allocated", "bind-timestamp", "gpu-minors")
)
ASCENDS = ("hami.io/Ascend910B3-devices-allocated", "huawei.com/Ascend910B3", "predicate-time", "hami.io/bind-phase")
HAMIS = ("hami.io/vgpu-devices-allocated", "hami.io/amd-cu-allocated", "BAIDU_COM_DEVICE_IDX")
OF_VENDORS = ("huawei.com/Ascend910B3", "predicate-time", "BAIDU_COM_DEVICE_IDX")
"""What is anybody's on pods without cards."""
EVERYTHING = (*VOLCANOS, *KOORDINATORS, *ASCENDS, *HAMIS)
MAY: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {
    ("alice", ()): (),
    ("", ()): (),
    (OURS, ()): (*ASCENDS, *HAMIS),
    (VOLCANO, ()): (*VOLCANOS, *ASCENDS),
    (KOORDINATOR, ()): KOORDINATORS,
    (OPERATOR, ()): EVERYTHING,
    ("bob", ("ops",)): EVERYTHING,
    ("system:node:n1", ("system:nodes",)): EVERYTHING,
    ("system:node:n2", ("system:nodes",)): (),
    # names that are nearly right
    ("system:node:", ("system:nodes",)): (),
    ("system:node:n1x", ("system:nodes",)): (),
    ("n1", ("system:nodes",)): (),
    (OURS.upper(), ()): (),
    ("ops", ()): (),
    ("bob", (OURS,)): (),
}
"""The annotations that each user, by name and groups, may write on a pod that is bound to node n1."""


def vgpu(**more: Any) -> JSON:
    return container("main", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 20000}, **more)


def share() -> JSON:
    amounts = {"koordinator.sh/gpu.shared": 1, "koordinator.sh/gpu-memory-ratio": 50}
    return container("main", amounts, amounts)


def send(written: JSON, path: str = "validate") -> Answer:
    """The answer; nothing but the review may be looked at."""
    return at_once(getattr(HANDLER, path)(parsed(written)))


def create(obj: Any, path: str = "validate", user: str = "alice") -> Answer:
    written = review(obj, userInfo={"username": user})
    return at_once(getattr(handler_of(RULES, known=CHART), path)(parsed(written)))


def binding(user: str, *groups: str, path: str = "pods/binding", **metadata: Any) -> JSON:
    resource, _, subresource = path.partition("/")
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    obj = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", **metadata}, "target": target}
    more = {"subResource": subresource} if subresource else {}
    return review(
        obj,
        kind={"group": "", "version": "v1", "kind": "Binding"},
        resource={"group": "", "version": "v1", "resource": resource},
        userInfo={"username": user, "groups": list(groups)},
        **more,
    )


@pytest.mark.parametrize(
    ("subresource", "one"),
    [
        pytest.param("", container(gpu=1, mem=3000), id="gpu"),
        pytest.param("", vgpu(), id="volcano"),
        pytest.param("", share(), id="koordinator"),
        pytest.param("", cpu(), id="cpu"),
        pytest.param("status", container(gpu=1, mem=3000), id="the status"),
    ],
)
@pytest.mark.parametrize(("user", "groups"), MAY)
def test_each_identity_changes_the_allocations_of_its_own_scheduler_only(
    user: str, groups: tuple[str, ...], subresource: str, one: Any
) -> None:
    for key in EVERYTHING:
        without, having = pod("p", one, nodeName="n1"), pod("p", one, nodeName="n1", annotations={key: "1"})
        other = pod("p", one, nodeName="n1", annotations={key: "2"})
        for old, new in ((without, having), (having, without), (having, other)):
            written = update(old, new, user, *groups, subresource=subresource)
            if key in MAY[user, groups] or (one == cpu() and key in OF_VENDORS):
                send(written)
            else:
                assert refusal(send, written) == (
                    403,
                    f"{key} is written by the scheduler and device plugins only; "
                    f"{user or 'this user'} may not add, change or remove it",
                )


@in_one_test("path", ["pods/binding", "bindings"])
@in_one_test("step", ["validate", "webhook"])
@in_one_test(("user", "groups"), MAY)
def test_each_identity_binds_with_the_allocations_of_its_own_scheduler_only(
    user: str, groups: tuple[str, ...], step: str, path: str
) -> None:
    """A Binding doesn't say which node its pod is on, so no node has a right there."""
    allowed = () if user.startswith("system:node:") else MAY[user, groups]
    for key in EVERYTHING:
        written = binding(user, *groups, path=path, annotations={key: "1", "mine": "x"})
        if key in allowed:
            send(written, step)
        else:
            assert refusal(send, written, step) == (
                403,
                f"{key} is written by the scheduler and device plugins only; "
                f"{user or 'this user'} may not set it with a Binding",
            )


@pytest.mark.parametrize(("user", "allowed"), [("alice", False), (VOLCANO, False), (KOORDINATOR, False), (OURS, True)])
def test_the_node_label_of_a_binding_is_ours(user: str, allowed: bool) -> None:
    written = binding(user, labels={"hami.io/vgpu-node": "n1", "mine": "x"})
    if allowed:
        send(written)
    else:
        assert "label hami.io/vgpu-node is written by" in refusal(send, written)[1]


@pytest.mark.parametrize("meta", [{}, {"annotations": {}}, {"annotations": {"a": "b"}, "labels": {"c": "d"}}])
def test_everybody_binds_with_other_metadata(meta: Any) -> None:
    send(binding("alice", **meta))


def test_volcano_may_copy_a_pods_annotations_into_its_binding() -> None:
    annotations = {"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,1,0:", "mine": "x"}
    send(binding(VOLCANO, annotations={**annotations, RESERVATION: "s", **dict.fromkeys(STAMPS, "alice")}))
    for key in (RESERVATION, *STAMPS):
        code, message = refusal(send, binding("alice", annotations={key: "s"}))
        assert (code, key in message) == (403, True)


@pytest.mark.parametrize("meta", [[], "x", {"annotations": []}, {"annotations": "x"}, {"labels": 7}])
def test_a_binding_that_can_not_be_read_is_refused(meta: Any) -> None:
    written = binding("alice")
    written["request"]["object"]["metadata"] = meta
    code, message = refusal(send, written)
    assert code == 400
    assert message.startswith("the Binding can't be read: metadata")


def test_a_binding_is_nothing_to_mutate() -> None:
    assert list(send(binding("alice", annotations={"mine": "x"}), "mutate").patch) == []


@in_one_test("user", ["alice", OURS, VOLCANO, OPERATOR, "system:node:n1"])
@in_one_test("subresource", ["", "status"])
def test_nobody_changes_a_reservation_once_the_pod_exists(user: str, subresource: str) -> None:
    without, having = pod("p", cpu(), nodeName="n1"), pod("p", cpu(), nodeName="n1", annotations={RESERVATION: "s"})
    for old, new in ((without, having), (having, without), (having, pod("p", cpu(), annotations={RESERVATION: "t"}))):
        code, message = refusal(send, update(old, new, user, "ops", subresource=subresource))
        assert (code, message) == (
            403,
            f"{RESERVATION} is written when the pod is created only; {user} may not add, change or remove it",
        )
    send(update(having, pod("p", cpu(), annotations={RESERVATION: "s", "mine": "x"}), user, subresource=subresource))


# on CREATE


@in_one_test("step", ["mutate", "validate", "webhook"])
@in_one_test("user", ["alice", VOLCANO, KOORDINATOR, OURS])
@in_one_test("key", [*VOLCANOS, *KOORDINATORS])
def test_a_new_pod_that_does_not_ask_its_scheduler_must_not_bring_an_allocation(key: str, user: str, step: str) -> None:
    for one in (cpu(), container(gpu=1, mem=3000), share() if key in VOLCANOS else vgpu()):
        assert refusal(create, pod("p", one, annotations={key: "x"}), step, user) == (
            403,
            f"annotation {key} is written by the scheduler only; remove it from the pod",
        )


@pytest.mark.parametrize(("one", "keys"), [(vgpu(), VOLCANOS), (share(), KOORDINATORS)])
def test_a_copied_manifest_of_a_pod_that_asks_is_stripped_and_refused_where_it_is_not(one: Any, keys: Any) -> None:
    """Volcano page 5.4, Koordinator page 5.3: copies of a placed pod carry its allocation."""
    for key in keys:
        obj = pod("p", one, annotations={key: "x", "mine": "y"})
        (removed,) = [each for each in create(obj, "mutate").patch if each["path"].startswith("/metadata/annotations")]
        assert (removed["op"], key.replace("/", "~1") in removed["path"]) == ("remove", True)
        assert f"annotation {key} is written by the scheduler only" in refusal(create, obj)[1]


@pytest.mark.parametrize(("one", "key"), [(vgpu(), "volcano"), (share(), "koordinator")])
def test_a_privileged_ephemeral_container_beside_their_cards_is_a_warning(one: Any, key: str) -> None:
    debug = {"name": "debug", "securityContext": {"privileged": True}}
    written = update(pod("p", one), pod("p", one, ephemeralContainers=[debug]), subresource="ephemeralcontainers")
    assert list(send(written).warnings) == [
        f"[{key}/privileged] ephemeral container debug is privileged, so it sees every card of the node"
    ]


def test_a_scheduler_that_is_not_enabled_owns_nothing() -> None:
    old, new = pod("p", cpu()), pod("p", cpu(), annotations={"volcano.sh/vgpu-node": "n1"})
    at_once(handler_of(RULES, services=NoTouch()).validate(parsed(update(old, new))))

"""Stamps of who submitted a pod, as users write, carry and forge them (docs/spec/who.md#1 and #2)."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
from builders import JSON, container
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import in_one_test

from hami_webhook.admission.identities import AdmissionRules
from hami_webhook.admission.review import parse_workload_review
from hami_webhook.admission.submitters import (
    KUBERNETES_CONTROLLERS,
    LONGEST,
    Submitters,
    stamped_templates,
    subject_name,
    submitter,
)
from hami_webhook.kube.stamps import SUBMITTED_BY, SUBMITTED_BY_GROUPS

from .reviews import SCHEDULER, FakeServices, at_once, handler_of, parsed, pod, refusal, review, update

HUB, OPERATOR = "hub", "training-operator"
REPLICA_SETS, MANAGER = "system:serviceaccount:kube-system:replicaset-controller", "system:kube-controller-manager"
ROBOT = "system:serviceaccount:team-a:robot"
RULES = AdmissionRules(
    scheduler_name=SCHEDULER,
    submitters=Submitters(KUBERNETES_CONTROLLERS | {OPERATOR}, frozenset({HUB})),
)
HANDLER, OFF = handler_of(RULES), handler_of(AdmissionRules(scheduler_name=SCHEDULER))
LONG = "x" * 300

WHO: list[tuple[str, str | None, str | None]] = [
    ("alice", None, "alice"),
    ("alice", "bob", "alice"),
    ("alice", "", "alice"),
    ("alice", "unknown", "alice"),
    ("böb 張", "alice", "böb 張"),
    (LONG, "alice", subject_name(LONG)),
    ("system:admin", "bob", "system:admin"),
    (ROBOT, "bob", "system:serviceaccounts:team-a"),
    ("system:serviceaccount:team-a:another", None, "system:serviceaccounts:team-a"),
    ("system:serviceaccount:team-a:replicaset-controller", "bob", "system:serviceaccounts:team-a"),
    ("system:serviceaccount:kube-system:default", "bob", "system:serviceaccounts:kube-system"),
    (REPLICA_SETS, "bob", "bob"),
    (MANAGER, "bob", "bob"),
    (OPERATOR, "bob", "bob"),
    (OPERATOR, LONG, subject_name(LONG)),
    (REPLICA_SETS, None, None),
    (HUB, "carol@example.com", "carol@example.com"),
    (HUB, None, HUB),
    (HUB, "", HUB),
    ("", "bob", None),
]
"""A user, what the pod brings, and the stamp that it gets."""


def gpu() -> JSON:
    return container("main", {"nvidia.com/gpu": "1"})


def stamped(stamp: str | None, **more: Any) -> JSON:
    annotations = {} if stamp is None else {SUBMITTED_BY: stamp}
    return pod("p", gpu(), annotations=annotations, **more)


def as_user(obj: JSON, username: str) -> JSON:
    made = review(obj)
    made["request"]["userInfo"] = {"username": username}
    return made


def mutated(obj: JSON, username: str, handler: Any = HANDLER) -> JSON:
    answer = at_once(handler.mutate(parsed(as_user(obj, username))))
    found: JSON = jsonpatch.apply_patch(obj, list(answer.patch))
    return found


def refused(written: JSON, handler: Any = HANDLER) -> tuple[int, str]:
    return refusal(lambda: at_once(handler.validate(parsed(written))))


def stamp_of(obj: JSON) -> str | None:
    found: str | None = (obj["metadata"].get("annotations") or {}).get(SUBMITTED_BY)
    return found


@in_one_test(("username", "written", "stamp"), WHO)
def test_a_pod_has_the_stamp_of_its_user_whatever_it_says(
    username: str, written: str | None, stamp: str | None
) -> None:
    made = mutated(stamped(written), username)
    assert stamp_of(made) == stamp
    at_once(HANDLER.validate(parsed(as_user(made, username))))


@in_one_test("username", ["alice", LONG, ROBOT, HUB])
def test_a_pod_that_skipped_mutation_is_refused(username: str) -> None:
    skipped = mutated(stamped("mallory"), "", OFF)
    code, text = refused(as_user(skipped, username))
    assert code == 403
    assert f"annotation {SUBMITTED_BY} must have" in text
    assert "but it is missing, because mutation was skipped" in text


def test_another_stamp_is_refused_on_pods_without_cards_too() -> None:
    forged = pod("p", annotations={SUBMITTED_BY: "bob"})
    found = refused(as_user(forged, "alice"))
    assert 'must have "alice", but the pod says "bob"' in found[1]
    at_once(HANDLER.validate(parsed(as_user(forged, "bob"))))


def test_where_stamps_are_off_none_is_believed_and_nothing_else_changes() -> None:
    assert stamp_of(mutated(stamped("bob"), "alice", OFF)) is None
    assert stamp_of(mutated(stamped("bob"), REPLICA_SETS, OFF)) is None
    assert mutated(stamped(None), "alice", OFF) == mutated(stamped(None), "bob", OFF)
    assert HANDLER.stamp_templates(workload(deployment("bob", labels={"a": "b"}), None, "alice")).patch
    assert not OFF.stamp_templates(workload(deployment(None), None, "alice")).patch
    (operation,) = OFF.stamp_templates(workload(deployment("bob"), None, "alice")).patch
    assert operation["op"] == "remove"


def test_a_pod_without_cards_is_not_touched() -> None:
    assert not at_once(HANDLER.mutate(parsed(as_user(pod("p"), "alice")))).patch


CHANGES: list[tuple[str | None, str | None]] = [("alice", "bob"), ("alice", None), (None, "bob"), ("alice", "")]


@in_one_test(("before", "after"), CHANGES)
def test_the_stamp_of_a_pod_does_not_change(before: str | None, after: str | None) -> None:
    for username in ("alice", "admin", REPLICA_SETS, HUB):
        for subresource in ("", "status", "ephemeralcontainers", "resize"):
            made = update(stamped(before), stamped(after), user=username, subresource=subresource)
            found = refused(made)
            assert f"{SUBMITTED_BY} is written when the pod is created only" in found[1]


def test_a_counted_label_of_a_pod_with_cards_does_not_change() -> None:
    services = FakeServices(counted_labels=frozenset({"project"}))
    handler = handler_of(RULES, services=services)

    def relabelled(before: JSON, after: JSON, *containers: JSON) -> JSON:
        old, new = (pod("p", *containers, labels=labels) for labels in (before, after))
        return update(old, new)

    for before, after in (({"project": "a"}, {"project": "b"}), ({"project": "a"}, {}), ({}, {"project": "a"})):
        _, text = refused(relabelled(before, after, gpu()), handler)
        assert "label project can't be changed once the pod exists" in text
        at_once(handler.validate(parsed(relabelled(before, after))))
    at_once(handler.validate(parsed(relabelled({"project": "a"}, {"project": "a", "Project": "b"}, gpu()))))


def deployment(stamp: str | None, image: str = "a", *, replicas: int = 1, cards: bool = True, **meta: Any) -> JSON:
    annotations = {"other": "x"} if stamp is None else {"other": "x", SUBMITTED_BY: stamp}
    resources = {"limits": {"nvidia.com/gpu": "1"}} if cards else {}
    spec = {"containers": [{"name": "main", "image": image, "resources": resources}]}
    template = {"metadata": {"annotations": annotations, **meta}, "spec": spec}
    return {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": replicas, "template": template}}


def workload(obj: JSON, old: JSON | None, username: str) -> Any:
    request = {
        "uid": "1",
        "operation": "CREATE" if old is None else "UPDATE",
        "kind": {"kind": obj.get("kind", "Deployment")},
        "namespace": "team-a",
        "object": obj,
        "oldObject": old,
        "userInfo": {"username": username},
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return parse_workload_review(json.dumps(body).encode(), "application/json")


def after(obj: JSON, old: JSON | None, username: str) -> JSON:
    found: JSON = jsonpatch.apply_patch(obj, list(HANDLER.stamp_templates(workload(obj, old, username)).patch))
    return found


def template_stamp(obj: JSON) -> str | None:
    return stamp_of(obj["spec"]["template"])


TEMPLATES: list[tuple[JSON, JSON | None, str, str | None]] = [
    # creation
    (deployment(None), None, "alice", "alice"),
    (deployment("bob"), None, "alice", "alice"),
    (deployment("bob"), None, ROBOT, "system:serviceaccounts:team-a"),
    (deployment("bob"), None, REPLICA_SETS, "bob"),
    (deployment("carol"), None, HUB, "carol"),
    (deployment(None), None, HUB, HUB),
    (deployment("bob", cards=False), None, "alice", None),
    # nothing changes but the number, or what is outside of the template
    (deployment("alice", replicas=9), deployment("alice"), "bob", "alice"),
    # the stamp alone: put right, taken away, or forged
    (deployment("bob"), deployment("alice"), "bob", "alice"),
    (deployment(None), deployment("alice"), "bob", "alice"),
    (deployment("bob"), deployment(None), "bob", None),
    (deployment(None), deployment("alice"), HUB, "alice"),
    (deployment("carol"), deployment("alice"), HUB, "carol"),
    (deployment("alice"), deployment("alice"), REPLICA_SETS, "alice"),
    # what runs changes
    (deployment("alice", "b"), deployment("alice"), "bob", "bob"),
    (deployment("alice", "b"), deployment("alice"), "alice", "alice"),
    (deployment("alice", labels={"restarted": "now"}), deployment("alice"), "bob", "bob"),
    (deployment("alice", "b"), deployment(None), "bob", "bob"),
    (deployment("alice", cards=True), deployment("alice", cards=False), "bob", "bob"),
    (deployment("alice", cards=False), deployment("alice"), "bob", None),
]


@in_one_test(("obj", "old", "username", "stamp"), TEMPLATES)
def test_a_template_has_the_stamp_of_who_wrote_what_runs(
    obj: JSON, old: JSON | None, username: str, stamp: str | None
) -> None:
    made = after(obj, old, username)
    assert template_stamp(made) == stamp
    assert after(made, old, username) == made  # reviewed again, it stays


GROUPS = frozenset({"ml", "research", 'CN=a,OU="b"'})
NAMING = handler_of(RULES, services=FakeServices(named_groups=GROUPS))
"""A replica that knows quotas with these groups."""
OF_ALICE = ["system:authenticated", "web", "research", "ml"]
BOTH = '["ml","research"]'


def in_groups(written: JSON, groups: list[str]) -> JSON:
    written["request"]["userInfo"]["groups"] = groups
    return written


def groups_on(obj: JSON) -> str | None:
    found: str | None = (obj["metadata"].get("annotations") or {}).get(SUBMITTED_BY_GROUPS)
    return found


def bringing(stamp: str | None, groups: str | None) -> JSON:
    brought = {SUBMITTED_BY: stamp, SUBMITTED_BY_GROUPS: groups}
    return pod("p", gpu(), annotations={key: text for key, text in brought.items() if text is not None})


OF_GROUPS: list[tuple[str, list[str], str | None, str | None, str | None]] = [
    ("alice", OF_ALICE, None, None, BOTH),
    ("alice", OF_ALICE, "alice", '["ml"]', BOTH),
    ("alice", ["web"], None, BOTH, None),
    ("alice", [], None, BOTH, None),
    ("alice", ['CN=a,OU="b"'], None, None, json.dumps(['CN=a,OU="b"'])),
    (ROBOT, ["system:serviceaccounts", "system:authenticated"], "alice", BOTH, None),
    (REPLICA_SETS, [*OF_ALICE], "carol", '["research"]', '["research"]'),
    (REPLICA_SETS, OF_ALICE, "carol", None, None),
    (REPLICA_SETS, OF_ALICE, None, BOTH, None),
    (REPLICA_SETS, OF_ALICE, "carol", "ml", None),
    (HUB, OF_ALICE, "carol", '["research"]', '["research"]'),
    (HUB, OF_ALICE, "carol", None, None),
    (HUB, OF_ALICE, None, None, BOTH),
]
"""A user with its groups, the stamp and the groups that a pod brings, and the groups that it gets."""


@in_one_test(("username", "groups", "stamp", "written", "expected"), OF_GROUPS)
def test_a_pod_has_those_groups_of_its_user_that_quotas_name(
    username: str, groups: list[str], stamp: str | None, written: str | None, expected: str | None
) -> None:
    obj = bringing(stamp, written)
    answer = at_once(NAMING.mutate(parsed(in_groups(as_user(obj, username), groups))))
    made = jsonpatch.apply_patch(obj, list(answer.patch))
    assert groups_on(made) == expected
    at_once(NAMING.validate(parsed(in_groups(as_user(made, username), groups))))
    unnamed = jsonpatch.apply_patch(obj, list(at_once(HANDLER.mutate(parsed(as_user(obj, username)))).patch))
    if username not in (REPLICA_SETS, HUB):
        assert groups_on(unnamed) is None


def test_attack_groups_that_skip_mutation_are_refused() -> None:
    """Groups that the user isn't in, and a pod without those that would give it less."""

    def found(stamp: str, groups: str | None, handler: Any = NAMING) -> tuple[int, str]:
        return refused(in_groups(as_user(bringing(stamp, groups), "alice"), OF_ALICE), handler)

    code, text = found("alice", '["admins","ml","research"]')
    assert (code, 'names group "admins", which the user isn\'t in' in text) == (403, True)
    for written in (None, "[]", "ml", '["ml"]'):
        code, text = found("alice", written)
        assert (code, "which a quota names: mutation was skipped, or the quota is new" in text) == (503, True)
    assert found("bob", BOTH)[0] == 403
    assert found("alice", BOTH, OFF)[0] == 403
    # a claim's pod, which isn't mutated, may say for itself who submitted it, and then has to say all
    claiming = pod("p", annotations={SUBMITTED_BY: "alice"})
    assert refused(in_groups(as_user(claiming, "alice"), OF_ALICE), NAMING)[0] == 503


def test_replicas_that_know_quotas_of_different_moments_refuse_no_groups_of_the_user() -> None:
    made = bringing("alice", '["ml","research","web"]')
    at_once(NAMING.validate(parsed(in_groups(as_user(made, "alice"), OF_ALICE))))
    at_once(HANDLER.validate(parsed(in_groups(as_user(made, "alice"), OF_ALICE))))


def test_the_groups_of_a_pod_do_not_change() -> None:
    for before, now in (('["ml"]', None), (None, '["ml"]'), ('["ml"]', BOTH)):
        found = refused(update(bringing("alice", before), bringing("alice", now), user="alice"), NAMING)
        assert f"{SUBMITTED_BY_GROUPS} is written when the pod is created only" in found[1]


def test_a_template_carries_its_users_groups() -> None:
    def template(stamp: str | None, groups: str | None, image: str = "a") -> JSON:
        made = deployment(stamp, image)
        made["spec"]["template"]["metadata"]["annotations"] |= {} if groups is None else {SUBMITTED_BY_GROUPS: groups}
        return made

    def stored(obj: JSON, old: JSON | None, username: str, *groups: str, handler: Any = NAMING) -> tuple[Any, Any]:
        review = replace(workload(obj, old, username), groups=groups)
        made = jsonpatch.apply_patch(obj, list(handler.stamp_templates(review).patch))["spec"]["template"]
        return stamp_of(made), groups_on(made)

    alices = template("alice", BOTH)
    assert stored(template(None, None), None, "alice", *OF_ALICE) == ("alice", BOTH)
    assert stored(template("bob", '["admins"]'), None, "alice", *OF_ALICE) == ("alice", BOTH)
    assert stored(template("bob", '["admins"]'), None, "alice", "web") == ("alice", None)
    # only what runs changes the submitter, with all that is said of it
    assert stored(template("alice", '["admins"]'), alices, "bob", "research") == ("alice", BOTH)
    assert stored(template(None, None), alices, "bob", "research") == ("alice", BOTH)
    assert stored(template("alice", BOTH, "b"), alices, "bob", "research") == ("bob", '["research"]')
    assert stored(template("alice", BOTH), None, REPLICA_SETS) == ("alice", BOTH)
    assert stored(template("carol", '["research"]'), None, HUB, *OF_ALICE) == ("carol", '["research"]')
    assert stored(template("bob", '["admins"]'), None, "alice", *OF_ALICE, handler=OFF) == (None, None)


def test_templates_are_found_wherever_they_stand() -> None:
    template = deployment("bob")["spec"]["template"]
    bare = {"spec": template["spec"]}
    obj = {
        "kind": "Training",
        "metadata": {"annotations": {SUBMITTED_BY: "x"}},
        "spec": {
            "jobTemplate": {"spec": {"template": template}},
            "roles": {"master/0~1": {"template": bare}, "worker": [{"template": template}, {"template": template}]},
        },
        "status": {"template": template},
    }
    obj = json.loads(json.dumps(obj))
    made = after(obj, None, "alice")
    roles = made["spec"]["roles"]
    assert stamp_of(made["spec"]["jobTemplate"]["spec"]["template"]) == "alice"
    assert [stamp_of(each["template"]) for each in (roles["master/0~1"], *roles["worker"])] == ["alice"] * 3
    assert made["status"] == obj["status"]
    assert made["metadata"] == obj["metadata"]
    changed = copy.deepcopy(made)
    changed["spec"]["roles"]["worker"][1]["template"]["spec"]["containers"][0]["image"] = "b"
    found = after(changed, made, "bob")["spec"]["roles"]["worker"]
    assert [stamp_of(each["template"]) for each in found] == ["alice", "bob"]


def test_pods_that_may_ask_for_devices_in_another_way_are_stamped() -> None:
    for change in (
        {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "b"}]},
        {"initContainers": [{"name": "i", "resources": {"requests": {"example.com/device": 1}}}]},
        {"schedulerName": "kai-scheduler"},
    ):
        obj = deployment("bob", cards=False)
        obj["spec"]["template"]["spec"] |= change
        expected = "alice" if "schedulerName" not in change or HANDLER._vendors.asked_by_annotation else None
        assert template_stamp(after(obj, None, "alice")) == expected


def test_odd_objects_are_left_or_refused() -> None:
    odd: list[Any] = [None, 1, []]
    for spec in (*odd, {}, {"template": None}, {"template": {"spec": {"containers": "x"}}}, {"template": []}):
        obj = {"kind": "Odd", "metadata": {"name": "o"}, "spec": spec}
        assert after(obj, None, "alice") == obj
    large = workload({"spec": {"a": [[]] * 30_000}}, None, "alice")
    assert refusal(HANDLER.stamp_templates, large)[0] == 422


def test_attack_templates_that_are_too_deep_to_compare_are_refused_in_words() -> None:
    """Of an update: a creation compares nothing."""

    class Deep:
        """Nested so deeply that comparing it exceeds what the interpreter allows: how deep that is depends on it."""

        __hash__ = None  # type: ignore[assignment]  # as of what may be compared only

        def __eq__(self, other: object) -> bool:
            raise RecursionError

    def deep() -> JSON:
        spec: JSON = deployment("alice")["spec"]
        spec["template"]["spec"]["odd"] = Deep()
        return spec

    assert refusal(stamped_templates, deep(), deep(), "bob", frozenset(), Submitters()) == (
        422,
        "a pod template is nested too deeply to be compared; nest its fields less deeply",
    )
    assert len(stamped_templates(deep(), None, "bob", frozenset(), Submitters())) == 1


@given(st.text(min_size=1, max_size=600), st.text(min_size=1, max_size=600))
def test_names_are_bounded_and_no_two_users_share_one(one: str, other: str) -> None:
    names = [subject_name(each) for each in (one, other)]
    assert all(0 < len(each) <= LONGEST for each in names)
    assert (names[0] == names[1]) == (one == other)
    assert subject_name(names[0]) == names[0]
    assert submitter(f"system:serviceaccount:n:{one}") == "system:serviceaccounts:n"

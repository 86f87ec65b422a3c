"""Limits of each subject of a quota, beside its own (docs/spec/who.md#3)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from builders import accelerator_quota
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import in_one_test

from hami_webhook.cluster.api import JSON
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import SIZE
from hami_webhook.kube.quota_fields import PerSubject
from hami_webhook.kube.stamps import MOST_GROUPS, SUBMITTED_BY, SUBMITTED_BY_GROUPS, groups_in, groups_text
from hami_webhook.kubectl.subjects import subject_uses
from hami_webhook.quota import subjects
from hami_webhook.quota.accelerator_quota import read_accelerator_quota, status_patch
from hami_webhook.quota.account import ChargeRequest, Gate, NeedsRecompute, QuotaAccount
from hami_webhook.quota.batch import BatchResult, evaluate_batch
from hami_webhook.quota.ledger import decode
from hami_webhook.quota.placing import PlacementRequest, Placing
from hami_webhook.quota.pricing import price_pending
from hami_webhook.quota.queue_order import OF_SUBJECT, QueuedPod, QueueRoom, decide
from hami_webhook.quota.recompute import LedgerBounds, recompute
from hami_webhook.quota.refusals import Refusal
from hami_webhook.quota.subjects import COUNTED_SUBJECTS, SUBJECT_USE, UNKNOWN, Subjects, subject_of, titled
from hami_webhook.state.cluster_cache import ClusterCache

from .objects import GPU, MEM, NOON, TEAM, read_pod, vendors

ALL = {TEAM: {"team": TEAM}}
USER: JSON = {"user": True, "hard": {GPU: 2}}
LABEL = "example.com/project"
LONG, ODD = "x" * 253, 'böb, "張" (root)'
CACHE = ClusterCache(vendors(), placement_ttl=300.0)


def stored(per: JSON | None = USER, hard: int = 10, status: JSON | None = None, **spec: Any) -> JSON:
    """A quota whose amounts are known, of all pods of a team."""
    made = accelerator_quota("shared", None, {**({"per": per} if per else {}), **spec}, gpu=hard)
    made["metadata"] |= {"uid": "q", "resourceVersion": "1"}
    counted = subjects.counted_text(read_accelerator_quota(made, ALL))
    return made | {"status": {"used": {GPU: "0"}, "countedSubjects": counted, **(status or {})}}


def account_of(obj: JSON) -> QuotaAccount:
    return QuotaAccount.read(read_accelerator_quota(obj, ALL), vendors())


def of(name: str, user: str | None = "alice", labels: JSON | None = None, *, gpu: int = 1) -> Pod:
    annotations = {} if user is None else {SUBMITTED_BY: user}
    return read_pod(name, gpu=gpu, mem=100, uid=name, annotations=annotations, labels=labels)


def request(pod: Pod, gate: Gate = Gate.NONE, **more: Any) -> ChargeRequest:
    return ChargeRequest(pod.uid, pod, price_pending(pod, vendors(), CACHE.capacity), gate=gate, **more)


def charged(account: QuotaAccount, *pods: Pod, recomputed: bool = True, gate: Gate = Gate.NONE) -> BatchResult:
    known = frozenset({"shared"}) if recomputed else frozenset[str]()
    requests = [request(each, gate) for each in pods]
    return evaluate_batch({"shared": account}, requests, NOON, 1000, recomputed=known)


def used_of(account: QuotaAccount) -> dict[str, int]:
    assert account.subjects is not None
    return {name: use[GPU] for name, use in account.subjects.used.items()}


def text_of(result: BatchResult, index: int) -> str:
    return result.refusals[index].message


def test_each_user_has_the_limit_beside_that_of_all() -> None:
    account = account_of(stored(hard=5))
    names = [
        ("a1", "alice"),
        ("a2", "alice"),
        ("a3", "alice"),
        ("b1", "bob"),
        ("b2", "bob"),
        ("c1", "carol"),
        ("d1", "dan"),
    ]
    found = charged(account, *(of(*each) for each in names))
    assert sorted(found.refusals) == [2, 6]
    assert text_of(found, 2) == (
        "exceeding resource quota: exceeded quota: AcceleratorQuota shared (user alice), "
        f"requested: {GPU}=1, used: {GPU}=2, limited: {GPU}=2"
    )
    assert text_of(found, 6) == (
        "exceeding resource quota: exceeded quota: AcceleratorQuota shared, "
        f"requested: {GPU}=1, used: {GPU}=5, limited: {GPU}=5"
    )
    after = found.accounts["shared"]
    assert used_of(after) == {"alice": 2, "bob": 2, "carol": 1}
    assert after.used[GPU] == 5
    assert after.ledger["a1"].subject == "alice"
    patch = account.patch(after)
    assert patch is not None
    written = status_patch(patch)["status"]
    again = account_of(stored(hard=5, status={"subjectUse": written["subjectUse"], "used": {GPU: "5"}}))
    assert used_of(again) == used_of(after)
    assert decode(written["ledger"]) == after.ledger


WHOSE: list[tuple[JSON, Pod, str, str]] = [
    (USER, of("p"), "alice", "user alice"),
    (USER, of("p", None), UNKNOWN, "user unknown"),
    (USER, of("p", ""), UNKNOWN, "user unknown"),
    (USER, of("p", "unknown"), UNKNOWN, "user unknown"),
    (USER, of("p", LONG), LONG, f'user "{"x" * 60}…"'),
    (USER, of("p", ODD), ODD, 'user "böb, \\"張\\" (root)"'),
    (USER, of("p", "a\nb"), "a\nb", 'user "a\\nb"'),
    ({"label": LABEL, "hard": {GPU: 1}}, of("p", labels={LABEL: "vision"}), "vision", "project vision"),
    ({"label": LABEL, "hard": {GPU: 1}}, of("p"), UNKNOWN, "project unknown"),
    ({"label": "team", "hard": {GPU: 1}}, of("p", labels={"team": "a"}), "a", "team a"),
]


@in_one_test(("per", "pod", "subject", "title"), WHOSE)
def test_whose_a_pod_is(per: JSON, pod: Pod, subject: str, title: str) -> None:
    read = read_accelerator_quota(stored(per), ALL).per
    assert read is not None
    assert subject_of(read, pod) == subject
    assert titled(read, subject) == title


def test_overrides_give_some_subjects_other_limits_of_some_keys() -> None:
    per = {
        "user": True,
        "hard": {GPU: 1},
        "overrides": [{"subject": "alice", "hard": {GPU: 3}}, {"subject": "bob", "hard": {GPU: 0}}],
    }
    found = charged(
        account_of(stored(per)), *(of(f"{user}{n}", user) for user in ("alice", "bob", "carol") for n in range(4))
    )
    assert used_of(found.accounts["shared"]) == {"alice": 3, "carol": 1}
    assert sum("(user bob)" in each.message for each in found.refusals.values()) == 4


GROUPED: JSON = {
    "user": True,
    "hard": {GPU: 2, MEM: 500},
    "overrides": [{"subject": "dan", "hard": {GPU: 1}}],
    "groups": [
        {"group": "ml", "hard": {GPU: 4}},
        {"group": "research", "hard": {GPU: 3, MEM: 900}},
        {"group": "interns", "hard": {GPU: 1}},
        {"group": "none, at all", "hard": {GPU: 0}},
    ],
}
LIMITS: list[tuple[str, list[str], int, int, str]] = [
    ("alice", [], 2, 500, "user alice"),
    ("alice", ["others"], 2, 500, "user alice"),
    ("alice", ["interns"], 1, 500, "user alice, group interns"),
    ("alice", ["interns", "ml"], 4, 500, "user alice, group ml"),
    ("alice", ["ml", "research"], 4, 900, "user alice, group ml, group research"),
    ("alice", ["none, at all"], 0, 500, 'user alice, group "none, at all"'),
    ("dan", ["ml", "interns"], 1, 500, "user dan"),
    ("dan", ["research"], 1, 900, "user dan, group research"),
]
"""A user, its groups, its limits of cards and memory, and how it is named."""


@in_one_test(("user", "groups", "gpu", "mem", "title"), LIMITS)
def test_the_largest_limit_of_a_users_groups_holds_and_its_own_comes_first(
    user: str, groups: list[str], gpu: int, mem: int, title: str
) -> None:
    made = stored(GROUPED)
    account = account_of(made | {"spec": made["spec"] | {"hard": {GPU: 10, MEM: 5000}}})
    for order in (groups, groups[::-1]):
        own = account.of_submitter(grouped("p", user, *order))
        assert own.hard == {GPU: gpu, MEM: mem}
        assert own.title == f"shared ({title})"


def grouped(name: str, user: str | None, *groups: str) -> Pod:
    pod = of(name, user)
    return replace(pod, annotations={**pod.annotations, SUBMITTED_BY_GROUPS: json.dumps(groups)})


def test_a_limit_of_a_group_is_of_each_of_its_users() -> None:
    pods = [grouped(f"{user}{n}", user, "ml") for user in ("alice", "bob") for n in range(5)]
    found = charged(account_of(stored(GROUPED)), *pods, *(of(f"c{n}", "carol") for n in range(3)))
    assert used_of(found.accounts["shared"]) == {"alice": 4, "bob": 4, "carol": 2}
    assert "(user alice, group ml), requested" in text_of(found, 4)


def test_all_pods_of_a_user_count_whatever_groups_they_bring() -> None:
    """As of templates that are older than the quota's group."""
    pods = [grouped("a", "alice", "ml"), of("b"), of("c"), grouped("d", "alice", "ml"), grouped("e", "alice", "ml")]
    found = charged(account_of(stored(GROUPED)), *pods, grouped("f", "alice", "ml"))
    assert used_of(found.accounts["shared"]) == {"alice": 4}
    assert sorted(found.refusals) == [2, 5]


def test_groups_without_a_stamp_and_texts_that_are_no_list_mean_nothing() -> None:
    account = account_of(stored(GROUPED))
    forged = grouped("p", None, "ml")
    assert account.of_submitter(forged).hard[GPU] == 2
    for text in ("", "ml", '"ml"', '{"ml": 1}', '["ml", 1]', "[", '[""]', "[[]]"):
        pod = of("p")
        assert (
            account.of_submitter(replace(pod, annotations={**pod.annotations, SUBMITTED_BY_GROUPS: text})).groups == ()
        )


def test_a_recompute_names_the_groups_that_decide_a_users_limit() -> None:
    pods = [grouped("a", "alice", "ml", "interns"), of("a2"), grouped("b", "bob", "x"), grouped("d", "dan", "ml")]
    account = recompute(account_of(stored(GROUPED)), pods, vendors(), CACHE.capacity, NOON, LedgerBounds()).after
    assert account.quota.report["subjects"] == [
        {"name": "alice", "used": {GPU: "2"}, "groups": ["ml"]},
        {"name": "bob", "used": {GPU: "1"}},
        {"name": "dan", "used": {GPU: "1"}},
    ]
    assert subjects.groups_shown(account.quota) == {"alice": ["ml"]}
    limits = {each.subject: each.hard for each in subject_uses([account], "user")}
    assert limits == {"alice": 4, "bob": 2, "dan": 1}


def test_the_groups_that_quotas_name() -> None:
    quotas = [account_of(stored(per)).quota for per in (GROUPED, USER, None)]
    assert subjects.groups_named(quotas) == {"ml", "research", "interns", "none, at all"}
    by_label = read_accelerator_quota(stored(GROUPED | {"label": LABEL}), ALL)  # refused by the definition
    assert subjects.groups_named([by_label]) == frozenset()


@given(st.lists(st.text(min_size=1, max_size=300), max_size=150))
def test_groups_read_as_they_were_written_and_are_bounded(groups: list[str]) -> None:
    found = groups_in(groups_text(groups))
    assert found == sorted(set(groups))[:MOST_GROUPS]
    assert groups_text(found) == groups_text(groups)


def test_a_pod_selector_narrows_a_quota() -> None:
    account = account_of(stored(None, 1, podSelector={"matchLabels": {"tier": "batch"}}))
    found = charged(
        account,
        of("a", labels={"tier": "batch"}),
        of("b", labels={"tier": "web"}),
        of("c"),
        of("d", labels={"tier": "batch"}),
    )
    assert list(found.refusals) == [3]
    assert (
        account_of(stored(None, 1, {"countedSubjects": None}, podSelector={"matchLabels": {"tier": "batch"}})).used
        == {}
    )
    assert subjects.labels_counted([account.quota, account_of(stored({"label": LABEL, "hard": {GPU: 1}})).quota]) == {
        "tier",
        LABEL,
    }


def test_amounts_of_other_subjects_or_pods_are_unknown_until_they_are_counted() -> None:
    old = stored(status={"subjectUse": subjects.encode({"alice": {GPU: 2}})})
    for spec in ({"per": {"label": LABEL, "hard": {GPU: 2}}}, {"podSelector": {"matchLabels": {"a": "b"}}}):
        changed = {**old, "spec": old["spec"] | spec}
        assert account_of(changed).used == {}
        with pytest.raises(NeedsRecompute):
            charged(account_of(changed), of("p", labels={"a": "b"}), recomputed=False)
    without = {**old, "spec": {key: value for key, value in old["spec"].items() if key != "per"}}
    account = account_of(without)
    patch = account.patch(replace(account, used={GPU: 0}))
    assert patch is not None
    written = status_patch(patch)["status"]
    assert (written["subjectUse"], written["countedSubjects"]) == (None, None)


def test_before_a_subject_is_refused_its_pods_are_counted_again() -> None:
    account = account_of(stored(status={"used": {GPU: "2"}, "subjectUse": subjects.encode({"alice": {GPU: 2}})}))
    with pytest.raises(NeedsRecompute):
        charged(account, of("p"), recomputed=False)
    assert not charged(account, of("p", "bob"), recomputed=False).refusals


def test_a_placement_that_costs_more_needs_room_of_its_subject() -> None:
    account = account_of(stored(status={"used": {GPU: "2"}, "subjectUse": subjects.encode({"alice": {GPU: 2}})}))

    def placed(user: str) -> QuotaAccount | Refusal:
        pod = of("p", user)
        asked = PlacementRequest(pod, lambda account: Placing(None, {GPU: 1}, {GPU: 2}, {GPU: 2}))
        return asked.charged(account, NOON, is_latest=True)

    refused, taken = placed("alice"), placed("bob")
    assert isinstance(refused, Refusal)
    assert "(user alice)" in refused.message
    assert isinstance(taken, QuotaAccount)
    assert used_of(taken) == {"alice": 2, "bob": 1}


def test_a_recompute_counts_pods_and_charges_in_flight_by_subject() -> None:
    account = charged(account_of(stored()), of("a"), of("gone", "bob")).accounts["shared"]
    wrong = replace(account, subjects=Subjects(account.subjects.per, {GPU: 2}, used={"mallory": {GPU: 9}}))  # type: ignore[union-attr]  # it has some
    pods = [of("a"), of("b", None), of("c", "bob"), of("other", "bob", gpu=0)]
    found = recompute(wrong, pods, vendors(), CACHE.capacity, NOON + 1, LedgerBounds())
    assert used_of(found.after) == {"alice": 1, UNKNOWN: 1, "bob": 2}
    report = found.after.quota.report
    assert report["subjects"] == [
        {"name": "bob", "used": {GPU: "2"}},
        {"name": "alice", "used": {GPU: "1"}},
        {"name": UNKNOWN, "used": {GPU: "1"}},
    ]
    assert report["otherSubjects"] is None
    later = recompute(found.after, pods, vendors(), CACHE.capacity, NOON + 100, LedgerBounds())
    assert used_of(later.after) == {"alice": 1, UNKNOWN: 1, "bob": 1}


def test_a_recompute_of_a_quota_that_no_longer_limits_subjects_removes_their_rows() -> None:
    rows: JSON = {"subjects": [{"name": "alice", "used": {GPU: "1"}}]}
    for status, removed in ((rows, {"subjects": None, "otherSubjects": None}), ({}, {})):
        account = account_of(stored(None, status=status))
        report = recompute(account, [of("a")], vendors(), CACHE.capacity, NOON, LedgerBounds()).after.quota.report
        assert {key: value for key, value in report.items() if "ubjects" in key} == removed


def test_the_status_names_500_subjects_and_sums_the_others() -> None:
    account = account_of(stored(hard=100_000))
    pods = [of(f"p{number}", f"user-{number:03}", gpu=1 + (number == 7)) for number in range(503)]
    report = recompute(account, pods, vendors(), CACHE.capacity, NOON, LedgerBounds()).after.quota.report
    assert len(report["subjects"]) == 500
    assert report["subjects"][0] == {"name": "user-007", "used": {GPU: "2"}}
    assert report["otherSubjects"] == {"count": 3, "used": {GPU: "3"}}


def test_100_000_subjects_have_a_bounded_ledger_and_those_that_are_in_it_go_on() -> None:
    use = {f"user-{number}": {GPU: 1} for number in range(100_000)}
    made = Subjects(PerSubject("", {}), {GPU: 2})
    kept: dict[str, dict[str, int]] = {}
    for number in range(0, 100_000, 2_000):
        if made.with_used(kept).is_full_for("new"):
            break
        kept |= {name: use[name] for name in list(use)[number : number + 2_000]}
    full = made.with_used(kept)
    assert 10_000 < len(full.used) < 50_000
    assert len((subjects.encode(full.used) or "").encode()) < 2 * subjects.MOST_BYTES
    assert not full.is_full_for("user-0")
    account = replace(account_of(stored(hard=200_000)), subjects=full)
    found = charged(account, of("p", "new"), of("q", "user-0"))
    assert list(found.refusals) == [0]
    assert found.refusals[0].code == 503
    assert "so many subjects use AcceleratorQuota/shared" in text_of(found, 0)


def test_pods_of_more_subjects_than_can_be_written_leave_no_place() -> None:
    use = {f"user-{number}": {GPU: 1 + number // 99_999} for number in range(100_000)}
    found = Subjects(PerSubject("", {}), {GPU: 2}, used=use).bounded({GPU: 1})
    assert "user-99999" in found.used
    assert len((subjects.encode(found.used) or "").encode()) < 1_300_000
    assert found.is_full_for(max(use.keys() - found.used.keys()))
    assert Subjects(PerSubject("", {}), {GPU: 2}, used={ODD: {GPU: 1}}).bounded({GPU: 1}).used == {ODD: {GPU: 1}}


def test_a_pod_behind_the_gate_that_its_subject_can_never_have_is_refused() -> None:
    account = account_of(stored(enforcement="queue"))
    found = charged(account, of("p", gpu=3), of("q", gpu=2), gate=Gate.CLOSED)
    assert list(found.refusals) == [0]
    assert "(user alice)" in text_of(found, 0)


def test_a_subject_without_room_lets_the_pods_of_others_through() -> None:
    account = account_of(stored(enforcement="queue"))
    pods = [of("a1", gpu=2), of("a2"), of("b1", "bob"), of("a3")]
    found = charged(account, *pods, gate=Gate.OPENING)
    assert sorted(found.refusals) == [1, 3]
    assert found.refusals[1].no_room_in == found.refusals[3].no_room_in == "AcceleratorQuota/shared (user alice)"


def test_a_group_that_its_subject_can_never_have_is_refused() -> None:
    account = account_of(stored(enforcement="queue"))
    labels = {"hami.io/pod-group": "g", SIZE: "3"}
    member = of("m", labels=labels)
    asked = replace(request(member, Gate.CLOSED), equal_members=lambda: 2)
    found = evaluate_batch({"shared": account}, [asked], NOON, 1000, recomputed=frozenset({"shared"}))
    assert "(user alice)" in text_of(found, 0)


def test_an_observing_quota_says_whose_limit_it_would_have_been() -> None:
    found = charged(account_of(stored(enforcement="observe")), of("a"), of("b"), of("c"))
    assert not found.refusals
    assert [each.message for each in found.observed[2]] != []
    assert "(user alice)" in found.observed[2][0].message
    assert used_of(found.accounts["shared"]) == {"alice": 3}


@given(
    st.dictionaries(
        st.text(max_size=300), st.dictionaries(st.sampled_from([GPU, MEM]), st.integers(1, 10**12), min_size=1)
    )
)
def test_the_text_of_use_reads_as_it_was_written(use: dict[str, dict[str, int]]) -> None:
    assert subjects.decode(subjects.encode(use)) == use


@in_one_test(
    "text", ["", "x", "[]", "{}", '{"keys":1,"use":{}}', '{"keys":["a"],"use":{"b":[1,2]}}', '{"keys":["a"],"use":[]}']
)
def test_a_text_that_somebody_spoilt_is_no_use(text: str) -> None:
    assert subjects.decode(text) == {}


@given(
    st.lists(st.tuples(st.sampled_from(["alice", "bob", "carol", None]), st.integers(1, 3), st.booleans()), max_size=30)
)
def test_no_subject_passes_its_limit_and_the_sums_are_the_pods(steps: list[tuple[str | None, int, bool]]) -> None:
    """Pods come and go: at each write both limits hold, and a recompute agrees."""
    account, there, now = account_of(stored({"user": True, "hard": {GPU: 4}}, hard=9)), dict[str, Pod](), NOON
    for number, (user, gpu, leaves) in enumerate(steps):
        pod = of(f"p{number}", user, gpu=gpu)
        found = charged(account, pod)
        account = found.accounts["shared"]
        assert account.used[GPU] <= 9
        assert all(each <= 4 for each in used_of(account).values())
        assert sum(used_of(account).values()) == account.used[GPU]
        if not found.refusals:
            there[pod.uid] = pod
        if leaves and there:
            there.pop(next(iter(there)))
    now += 100
    after = recompute(account, there.values(), vendors(), CACHE.capacity, now, LedgerBounds()).after
    expected: Counter[str] = Counter()
    for pod in there.values():
        expected[pod.annotations.get(SUBMITTED_BY, UNKNOWN)] += int(pod.containers[0].limits["nvidia.com/gpu"])
    assert used_of(after) == dict(expected)


def room(subject: str, hard: int, used: int, of_quota: str = "q") -> QueueRoom:
    return QueueRoom({"gpu": hard}, {"gpu": hard - used}, namespaces=OF_SUBJECT, part_of=of_quota, subject=subject)


def waiting(name: str, user: str, created: float, priority: int = 0) -> QueuedPod:
    demand = (("q", (("gpu", 1),)), (f"q ({user})", (("gpu", 1),)))
    return QueuedPod(name, f"team/{name}", priority, created, demand)


def test_turns_go_to_the_subject_that_uses_least_then_by_age() -> None:
    rooms = {
        "q": QueueRoom({"gpu": 100}, {"gpu": 4}, None, 1),
        "q (alice)": room("alice", 50, 2),
        "q (bob)": room("bob", 50, 0),
    }
    pods = [waiting(f"a{n}", "alice", n) for n in range(1000)] + [waiting(f"b{n}", "bob", 5000 + n) for n in range(2)]
    assert [each.uid for each in decide(pods, rooms, 0.0).released] == ["b0", "b1", "a0", "a1"]
    old = [replace(each, demand=(("q", (("gpu", 1),)), ("q (alice, group ml)", (("gpu", 1),)))) for each in pods[:9]]
    both = rooms | {"q (alice, group ml)": room("alice", 80, 2)}  # one subject, whatever groups its pods bring
    assert [each.uid for each in decide([*old, *pods[9:]], both, 0.0).released] == ["b0", "b1", "a0", "a1"]
    urgent = waiting("a-urgent", "alice", 9000, priority=1)
    assert decide([*pods, urgent], rooms, 0.0).released[0].uid == "a-urgent"


def test_a_subject_at_its_limit_keeps_nothing_from_others() -> None:
    rooms = {
        "q": QueueRoom({"gpu": 100}, {"gpu": 2}, None, 1),
        "q (alice)": room("alice", 2, 2),
        "q (bob)": room("bob", 2, 0),
    }
    pods = [waiting("a", "alice", 0.0), waiting("b", "bob", 1e6)]
    decision = decide(pods, rooms, 2e6)
    assert [each.uid for each in decision.released] == ["b"]
    assert [each.quota for each in decision.waiting[0].obstacle.lacks] == ["q (alice)"]


def test_names_of_the_status_fields() -> None:
    assert status_patch(
        {"metadata": {"resourceVersion": "1", "annotations": {SUBJECT_USE: "x", COUNTED_SUBJECTS: "y"}}}
    ) == {
        "metadata": {"resourceVersion": "1"},
        "status": {"subjectUse": "x", "countedSubjects": "y"},
    }
